"""All figures by name: what draws each, and its words. A fork adds a figure by adding a line.

A drawing function takes the fits (the main one first) and the runs, and gives a matplotlib Figure, or None where its
data are absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from isojax.core.nouns import RunRecord
from isojax.report import text
from isojax.report.figures.best_n_by_metric import best_n_figure
from isojax.report.figures.fixed_batch import fixed_batch_figure
from isojax.report.figures.n_star import n_star_figure
from isojax.report.figures.overfitting_runs import overfitting_figure
from isojax.report.figures.problem_panel import panel_figure
from isojax.report.figures.record_points import record_breaking_figure
from isojax.report.figures.reward_frontier import frontier_figure
from isojax.report.figures.reward_sensitivity import sensitivity_figure
from isojax.report.figures.segment_evidence import evidence_figure
from isojax.report.figures.training_metrics import training_figure
from isojax.report.fit_views import FitDocument
from isojax.report.text import format_compact, join_list


@dataclass(frozen=True)
class FigureSpec:
    """A figure: how to draw it, what it shows for someone who cannot see it, and its caption."""

    draw: Callable[[Sequence[FitDocument], Sequence[RunRecord]], Figure | None]
    alt_text: Callable[[FitDocument], str]
    caption: str


def _frontier_alt_text(fit: FitDocument) -> str:
    crossings = (
        join_list([f"{x['n_low']} to {x['n_high']} at C = {format_compact(x['C'])}" for x in fit["crossovers"]])
        or "none"
    )
    return f"Validation {fit['metric']} against C on a log axis, with fitted curves for each n and the frontier. Crossovers: {crossings}."


FIGURES: dict[str, FigureSpec] = {
    "frontier": FigureSpec(
        frontier_figure,
        _frontier_alt_text,
        "Validation reward against compute. Dots: evaluations, averaged over seeds; thin lines: each seed; smooth lines: the fitted curve "
        "of each n. The thick line is the frontier, the best any fitted curve reaches at that C, coloured by the n that reaches it, over "
        "its interval; diamonds mark where one n overtakes another, bars how well that is known, arrows an end the data leave open.",
    ),
    "n_star": FigureSpec(
        n_star_figure,
        lambda fit: f"The compute-optimal n against C, both on log axes. {text.describe_law(fit['n_star'])}",
        "The n on the frontier against compute, coloured by the reward there, and the fitted law with its interval (red; dashed where no "
        "run has been). Below, where the fit has replicates: how often each n was the best one.",
    ),
    "fixed_batch": FigureSpec(
        fixed_batch_figure,
        lambda fit: (
            "Reward against updates M at fixed batches B = B_p n, with the best cell on top, and n*(M) and B_p*(M) below."
        ),
        "At a fixed batch B the budget is a number of updates M: which split of B into problems and rollouts a problem leads, and when.",
    ),
    "best_n": FigureSpec(
        best_n_figure,
        lambda fit: "Bars of the best n at the largest C for each B_p, one for each metric, with the reward reached.",
        "The best n by metric. A whisker spans the n that are likely to be the best one.",
    ),
    "sensitivity": FigureSpec(
        sensitivity_figure,
        lambda fit: (
            f"Fitted {fit['metric']} at the largest shared C, against n for each B_p and against B_p for each n."
        ),
        "How much the reward depends on n and on B_p at the largest C that all shown cells reached.",
    ),
    "records": FigureSpec(
        record_breaking_figure,
        lambda fit: "Every evaluation of one run, those that break its record, and the fitted curve of its cell.",
        "One run of the leading cell. Records are maxima of noise too, which is why the paper's fit, made from them alone, lies high.",
    ),
    "overfitting": FigureSpec(
        overfitting_figure,
        lambda fit: (
            "Training and validation reward against C for each run where training goes on rising while validation falls."
        ),
        "Runs flagged for overfitting: training reward rises while validation falls. Stop such a run at its peak.",
    ),
    "training": FigureSpec(
        training_figure,
        lambda fit: (
            "Entropy, KL, gradient norm and other training metrics against C, a line for each n; each panel names its metric."
        ),
        "How training went at one B_p: a panel for each metric that was recorded and is not 0 throughout, each n the mean over its seeds.",
    ),
    "panel": FigureSpec(
        panel_figure,
        lambda fit: (
            "A histogram of pass@1 over a fixed panel of training problems for the smallest and largest n, and its change with C."
        ),
        "pass@1 of a fixed panel of training problems. Left: how it is spread over problems at the largest C that both n reached, beside "
        "the base policy. Right: how many problems have no, some and all answers right, along training.",
    ),
    "evidence": FigureSpec(
        evidence_figure,
        lambda fit: (
            "Each segment's lead over its closest neighbour with error bars of two standard errors; the tables have the numbers."
        ),
        "A bar that crosses zero is a lead the evaluations cannot tell from noise.",
    ),
}
