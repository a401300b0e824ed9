"""All figures by name: what draws each, its description and its caption. A fork adds a figure by adding an entry.

A drawing function takes the fits (the main one first) and the runs, and returns a matplotlib Figure, or None where its
data are absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from isojax.core.nouns import RunRecord
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
from isojax.report.wording import describe_law, format_compact, join_list
from isojax.scaling.result import FitResult


@dataclass(frozen=True)
class FigureSpec:
    """A figure: how to draw it, what it shows for someone who cannot see it, and its caption."""

    draw: Callable[[Sequence[FitResult], Sequence[RunRecord]], Figure | None]
    alt_text: Callable[[FitResult], str]
    caption: str


def _frontier_alt_text(fit: FitResult) -> str:
    crossings = [f"{row.n_low} to {row.n_high} at C = {format_compact(row.C)}" for row in fit.joint.crossovers]
    axes = f"Validation {fit.metric} against C on a log axis, with fitted curves for each n and the frontier."
    return f"{axes} Crossovers: {join_list(crossings) or 'none'}."


def _n_star_alt_text(fit: FitResult) -> str:
    return f"The compute-optimal n against C, both on log axes. {describe_law(fit.joint.n_star)}"


def _sensitivity_alt_text(fit: FitResult) -> str:
    return f"Fitted {fit.metric} at the largest shared C, against n for each B_p and against B_p for each n."


FIGURES: dict[str, FigureSpec] = {
    "frontier": FigureSpec(
        frontier_figure,
        _frontier_alt_text,
        "Validation reward against compute. Dots: evaluations, averaged over seeds; thin lines: each seed; smooth "
        "lines: the fitted curve of each n. The thick line is the frontier, the best reward that any fitted curve "
        "reaches at that C, coloured by the n that reaches it, over its interval. Diamonds mark where one n overtakes "
        "another, bars the interval of that C; an arrow is an end that the data do not determine.",
    ),
    "n_star": FigureSpec(
        n_star_figure,
        _n_star_alt_text,
        "The n on the frontier against compute, coloured by the reward there; the red line is the fitted law, dashed "
        "beyond the measured budgets. The red band is the interval of the best measured n, not of the law. Below, "
        "where the fit has replicates: the share of replicates in which each n is the best one.",
    ),
    "fixed_batch": FigureSpec(
        fixed_batch_figure,
        lambda fit: (
            "Reward against updates M at fixed batches B = B_p n, with the best cell on top; n*(M) and B_p*(M) below."
        ),
        "At a fixed batch B the budget is a number of updates M: which split of B into problems and rollouts per "
        "problem leads, and when.",
    ),
    "best_n": FigureSpec(
        best_n_figure,
        lambda fit: "Bars of the best n at the largest C for each B_p, one for each metric, with the reward reached.",
        "The best n by metric. A whisker spans the n that are likely to be the best one.",
    ),
    "sensitivity": FigureSpec(
        sensitivity_figure,
        _sensitivity_alt_text,
        "How much the reward depends on n and on B_p at the largest C that all shown cells reached.",
    ),
    "records": FigureSpec(
        record_breaking_figure,
        lambda fit: "Every evaluation of one run, those that break its record, and the fitted curve of its cell.",
        "One run of the leading cell. Records are maxima of noise too, so the paper's fit, made from them alone, lies "
        "high.",
    ),
    "overfitting": FigureSpec(
        overfitting_figure,
        lambda fit: (
            "Training and validation reward against C for each run whose training reward rises while its validation "
            "reward falls."
        ),
        "Runs flagged for overfitting: training reward rises while validation reward falls. Stop such a run at the "
        "peak of its validation reward.",
    ),
    "training": FigureSpec(
        training_figure,
        lambda fit: (
            "Entropy, KL, gradient norm and other training metrics against C, a line for each n; each panel names its "
            "metric."
        ),
        "Training metrics at one B_p: a panel for each metric that was recorded and is not 0 throughout, for each n "
        "the mean over its seeds.",
    ),
    "panel": FigureSpec(
        panel_figure,
        lambda fit: (
            "A histogram of pass@1 over a fixed panel of training problems for the smallest and largest n, and its "
            "change with C."
        ),
        "pass@1 of a fixed panel of training problems. Left: its distribution over problems at the largest C that both "
        "n reached, with the base policy's. Right: the share of problems with no, some and all answers correct, along "
        "training.",
    ),
    "evidence": FigureSpec(
        evidence_figure,
        lambda fit: (
            "Each segment's lead over its closest neighbour with error bars of two standard errors; the tables hold "
            "the numbers."
        ),
        "A bar that crosses zero is a lead that the evaluations cannot tell from noise.",
    ),
}
