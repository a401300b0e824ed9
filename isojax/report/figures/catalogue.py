"""All figures by name: what draws each from the fit and the runs, its description and caption. A
drawing function returns None where its data are absent; a fork adds an entry."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.report.figures.fixed_batch import fixed_batch_figure
from isojax.report.figures.n_star import n_star_figure
from isojax.report.figures.problem_panel import panel_figure
from isojax.report.figures.reward_frontier import frontier_figure
from isojax.report.fit_views import fitted_runs
from isojax.scaling.result import FitResult


@dataclass(frozen=True)
class FigureSpec:
    """A figure: how to draw it, what it shows for someone who cannot see it, and its caption."""

    draw: Callable[[FitResult, Sequence[RunRecord]], Figure | None]
    alt_text: str
    caption: str


FIGURES: dict[str, FigureSpec] = {
    "frontier": FigureSpec(
        frontier_figure,
        "Validation reward against C on a log axis, with fitted curves for each n, the frontier and its crossovers.",
        "Validation reward against compute. Dots: evaluations, averaged over seeds; thin "
        "lines: the fitted curve of each n. The thick line is the frontier, the best reward that any fitted curve "
        "reaches at that C, coloured by the n that reaches it, over its interval. Diamonds mark where one n overtakes "
        "another, bars the interval of that C; an arrow is an end that the data do not determine.",
    ),
    "n_star": FigureSpec(
        n_star_figure,
        "The compute-optimal n against C, both on log axes, with P(best) of each n and the fitted law.",
        "Dots: the n on the frontier. The ribbon of each n is as thick as the probability that this n is the best at "
        "that C: where one ribbon stands alone the choice is clear, where there are several it is not. An n without a "
        "ribbon is nowhere likely to be the best. The red line is the fitted law, dashed beyond the measured budgets.",
    ),
    "fixed_batch": FigureSpec(
        fixed_batch_figure,
        "Reward against updates M at fixed batches B = B_p n, with the best cell on top; n*(M) and B_p*(M) below.",
        "At a fixed batch B the budget is a number of updates M: which split of B into problems and rollouts per "
        "problem leads, and when.",
    ),
    "panel": FigureSpec(
        panel_figure,
        "A histogram of pass@1 over a fixed panel of training problems for the smallest and largest n, and its change.",
        "pass@1 of a fixed panel of training problems. Left: its distribution over problems at the largest C that both "
        "n reached, with the base policy's. Right: the share of problems with no, some and all answers correct, along "
        "training.",
    ),
}


def plot(fit: FitResult, runs: Sequence[RunRecord], name: str = "frontier") -> Figure:
    """Draw a figure of the report, such as "frontier" or "n_star", of those runs that were fitted;
    InputError for a name that is not in FIGURES, or a fit without the data of that figure."""
    if name not in FIGURES:
        raise InputError(f"no figure is called {name!r}; expected one of {', '.join(FIGURES)}.")
    figure = FIGURES[name].draw(fit, fitted_runs(fit, runs))
    if figure is None:
        raise InputError(
            f"the fit has no data for the figure {name!r}. Ask for another: {', '.join(FIGURES)}."
        )
    return figure
