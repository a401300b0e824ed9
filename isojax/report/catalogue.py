"""All figures of a sweep's report by name, in the order of the page (report/figures/)."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.report.figures import ReportFigure, report_figure
from isojax.report.fit_views import fitted_runs
from isojax.scaling.result import FitResult


def load_figures() -> dict[str, ReportFigure]:
    """The plug-ins of report/figures/ by the names of their files."""
    figures = sorted(
        report_figure.load_own(), key=lambda figure: (figure.traits.position, figure.name)
    )
    return {figure.name: figure for figure in figures}


FIGURES = load_figures()


def draw_figure(figure: ReportFigure, fit: FitResult, runs: Sequence[RunRecord]) -> Figure | None:
    """The figure of a fit and its runs; None where these lack its data.

    InputError where its function returns anything else than a figure of matplotlib or None.
    """
    drawing = figure(fit, runs)
    if drawing is not None and not isinstance(drawing, Figure):
        raise InputError(
            where=figure.place,
            found=f"the function returned {type(drawing).__name__}",
            expected="a matplotlib Figure, or None where the fit lacks its data",
        )
    return drawing


def plot(fit: FitResult, runs: Sequence[RunRecord], name: str = "frontier") -> Figure:
    """Draw a figure of the report, such as "frontier" or "n_star", of those runs that were fitted;
    InputError for a name that is not in FIGURES, or a fit without the data of that figure."""
    if name not in FIGURES:
        raise InputError(
            found=f"no figure is called {name!r}",
            expected=f"one of {', '.join(FIGURES)}",
        )
    drawing = draw_figure(FIGURES[name], fit, fitted_runs(fit, runs))
    if drawing is None:
        raise InputError(
            found=f"the fit has no data for the figure {name!r}",
            fix=f"Ask for another: {', '.join(FIGURES)}.",
        )
    return drawing
