"""n*(C), the best n for each compute C (paper's Figs. 7 and 21).

Departs from the paper: P(best) of each n, its colour rather than the reward's, and a law dashed
beyond the measured budgets and left out where the frontier has two values of n only."""

from collections.abc import Mapping, Sequence
from math import log2, sqrt

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isojax.core.nouns import RunRecord
from isojax.report import canvas
from isojax.report.figures import report_figure
from isojax.report.fit_views import BandRow, all_n, frontier_views, probability_ribbons, thin
from isojax.report.wording import LAW_PARAMETERS, LAW_REACH, UNITS, law_is_drawn
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import FitResult, FrontierFit

PARAMETER_LABELS = {"L": "$L$", "k": "$k$", "log10_C0": "$\\log_{10} C_0$", "b": "$b$"}
BEYOND_DASHES = (0, (3, 2))  # of the law beyond the measured budgets


@report_figure(
    position=2,
    alt_text="The compute-optimal n against C, both on log axes, with P(best) of each n and the "
    "fitted law.",
    caption="Dots: the n on the frontier. "
    "The ribbon of each n is as thick as the probability that this n is the best at that C: "
    "where one ribbon stands alone the choice is clear, where there are several it is not. "
    "An n without a ribbon is nowhere likely to be the best. "
    "The red line is the fitted law, dashed beyond the measured budgets.",
)
def n_star_figure(fit: FitResult, runs: Sequence[RunRecord]) -> Figure | None:
    """The best n at each C, n*(C): that of the frontier as dots, the probability of each n to be
    the best as a ribbon, and the fitted law. A panel for all B_p together, and one for each. None
    where no run learnt anything, so that no n leads."""
    if fit.nothing_learnt:
        return None

    views = frontier_views(fit)
    ns = all_n(fit)
    colours = canvas.n_palette(ns)
    fig, law_axes = canvas.panel_grid(len(views), height=4.0)
    for i, (ax, view) in enumerate(zip(law_axes, views, strict=True)):
        is_first_column = i % canvas.grid_columns(len(views)) == 0
        n_label = "compute-optimal n" if is_first_column else ""
        canvas.style_axes(ax, canvas.view_title(view.B_p), f"C ({UNITS[fit.compute]})", n_label)
        _draw_n_star(ax, view, colours)
        _write_law(ax, view)

    # Room above for the law's text; the panels share y, which is log2 n.
    low = log2(ns[0])
    high = log2(ns[-1])
    law_axes[0].set_ylim(low - 0.5, high + 0.3 * max(high - low, 1))
    canvas.label_log2_n(law_axes[0].yaxis, ns)
    _legend(fig, fit)
    return fig


def _draw_n_star(ax: Axes, view: FrontierFit, colours: Mapping[int, str]) -> None:
    """Draw the n of the frontier as dots, for each n a ribbon as thick as its probability to be the
    best, and the fitted law, dashed beyond the measured budgets, a range which is shaded. The y
    axis is log2 n; `colours`: by n."""
    for n, ribbon in probability_ribbons(view).items():
        log2_ribbon = [BandRow(C, log2(low), log2(high)) for C, low, high in ribbon]
        canvas.fill_band(ax, log2_ribbon, color=colours[n], alpha=0.35, zorder=2)

    points = thin(view.frontier)
    C = [point.C for point in points]
    log2_n = [log2(point.n) for point in points]
    dots = {"s": 26, "edgecolors": "white", "linewidths": 0.4, "zorder": 4}
    ax.scatter(C, log2_n, c=[colours[point.n] for point in points], **dots)

    # The law through the measured budgets, and on to LAW_REACH times the last.
    C_last = C[-1]
    C_end = C_last * LAW_REACH
    if law_is_drawn(view):
        law = view.n_star.law
        style = {"color": canvas.LAW_COLOUR, "lw": 2.2, "zorder": 3}
        measured_C = np.geomspace(C[0], C_last, 300)
        ax.plot(measured_C, log2_n_star(law, measured_C), ls="-", **style)
        further_C = np.geomspace(C_last, C_end, 100)
        ax.plot(further_C, log2_n_star(law, further_C), ls=BEYOND_DASHES, **style)

    # The shaded range beyond the data.
    ax.axvspan(C_last, C_end, color=canvas.GRID_COLOUR, alpha=0.6, lw=0, zorder=0)
    beyond = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 8, "color": canvas.MUTED}
    middle = sqrt(C_last * C_end)
    ax.text(middle, 0.03, "not measured", transform=ax.get_xaxis_transform(), **beyond)
    ax.set_xlim(C[0] / 1.2, C_end)


def _write_law(ax: Axes, view: FrontierFit) -> None:
    """The law's parameters in a box at the top left."""
    box = {"facecolor": "white", "edgecolor": canvas.GRID_COLOUR, "boxstyle": "round,pad=0.4"}
    style = {
        "va": "top",
        "fontsize": 8.5,
        "color": canvas.INK,
        "linespacing": 1.35,
        "bbox": box,
        "zorder": 6,
    }
    ax.text(0.03, 0.96, _law_text(view), transform=ax.transAxes, **style)


def _law_text(view: FrontierFit) -> str:
    law = view.n_star.law
    if view.n_star.no_effect:
        return "$n$ makes no difference here"
    if not law_is_drawn(view):
        return "two values of $n$:\ntoo few for a law"
    if law.form == "constant":
        return f"constant: $n^*$ = {2**law.b:.3g}"
    return "\n".join(
        f"{PARAMETER_LABELS[name]} = {getattr(law, name):.2f}" for name in LAW_PARAMETERS[law.form]
    )


def _legend(fig: Figure, fit: FitResult) -> None:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=canvas.LAW_COLOUR, lw=2.2, label="fitted law $n^*(C)$"),
        Line2D([], [], marker="o", ls="", color=canvas.MUTED, ms=5, label="best measured n"),
    ]
    if fit.draws is not None:
        ribbon = Patch(color=canvas.MUTED, alpha=0.35, lw=0, label="as thick as P(n is best)")
        handles.append(ribbon)
    canvas.legend_below(fig, len(handles), handles, handlelength=1.8)
