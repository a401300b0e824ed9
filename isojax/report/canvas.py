"""How every figure looks: its colours, panels, axes and legend, and its bytes as PNG and PDF.

Figures are made without pyplot, which keeps them in a state of the process."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, patheffects, rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator

from isojax.core.atomic_files import write_bytes
from isojax.report.fit_views import BandRow
from isojax.report.wording import format_compact

INK = "#1c2126"
MUTED = "#5c6670"
GRID_COLOUR = "#e4e8ec"
LAW_COLOUR = "#c2362f"
# Distinct without colour vision (Okabe and Ito's colours); with DASHES, in grey too.
DISTINCT_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1, 2)))
HALO = [patheffects.withStroke(linewidth=3, foreground="white")]  # around text on top of lines

DPI = 160
LEGEND_HEIGHT = 0.5  # inches below a grid of panels
GRID_WIDTHS = {1: 10.0, 2: 12.0, 3: 14.4}  # inches, by the number of columns

MAX_DECADES_WITH_MINOR_LABELS = 1.7
PALETTE_END = 0.88  # of viridis, whose palest colours cannot be read on white


def log2_positions(values: Sequence[int]) -> dict[int, float]:
    """The position of each n between the smallest (0) and the largest (1), by log2 n; 0.5 for one
    alone."""
    values = sorted(set(values))
    low = log2(values[0])
    high = log2(values[-1])
    if low == high:
        return dict.fromkeys(values, 0.5)
    return {n: (log2(n) - low) / (high - low) for n in values}


def n_palette(values: Sequence[int]) -> dict[int, str]:
    """A colour for each n, the same in all figures of a sweep: viridis by log2 n."""
    viridis = colormaps["viridis"]
    return {
        n: to_hex(viridis(PALETTE_END * position)) for n, position in log2_positions(values).items()
    }


def escape_label(text: str, max_length: int = 48) -> str:
    """Text from a log as matplotlib's text: `$` begins no mathematics, and it is not longer than
    an axis."""
    short = text if len(text) <= max_length else text[: max_length - 1] + "…"
    return short.replace("$", r"\$")


def view_title(B_p: int | None) -> str:
    """The title of a frontier's panel; None: the joint frontier."""
    return "joint: best over $B_p$ and $n$" if B_p is None else f"$B_p$ = {B_p}"


class NotebookFigure(Figure):
    """A figure that a notebook shows, whatever backend matplotlib has."""

    def _repr_png_(self) -> bytes:
        return render_figure(self).png


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches."""
    return NotebookFigure(figsize=(width, height), dpi=DPI, layout="constrained")


def grid_columns(count: int) -> int:
    """Columns of a grid of panels: at most three, two for four panels."""
    return 2 if count == 4 else min(count, 3)


def panel_grid(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, in rows of at most three; each row is `height` inches high. All
    panels share the y axis, and only those in the first column show its tick labels."""
    columns = grid_columns(count)
    rows = ceil(count / columns)
    fig = new_figure(GRID_WIDTHS[columns], height * rows + LEGEND_HEIGHT)

    axes: list[Axes] = []
    for i in range(count):
        first_axes = axes[0] if axes else None
        ax = fig.add_subplot(rows, columns, i + 1, sharey=first_axes)
        ax.tick_params(labelleft=i % columns == 0)
        axes.append(ax)
    return fig, axes


def style_axes(ax: Axes, title: str, x_label: str, y_label: str, log_x: bool = True) -> None:
    """Give a panel the look of every figure: its titles, a pale grid, no box around it. `log_x`:
    the x axis is a log axis of budgets, labelled 1k, 10k, 100k."""
    ax.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    ax.set_xlabel(x_label, fontsize=10, color=INK)
    ax.set_ylabel(y_label, fontsize=10, color=INK)

    if log_x:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(10))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda C, _: format_compact(C)))
        ax.xaxis.set_minor_locator(LogLocator(10, subs=range(2, 10)))
        ax.xaxis.set_minor_formatter(FuncFormatter(lambda C, _: _minor_label(ax, C)))

    ax.grid(visible=True, which="major", color=GRID_COLOUR, lw=0.8, zorder=0)
    ax.set_axisbelow(True)
    ax.tick_params(which="both", labelsize=9, color=MUTED, labelcolor=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)


def label_log2_n(axis: Axis, ns: Sequence[int]) -> None:
    """An axis of log2 n: a tick at each n that was measured, labelled with that n."""
    axis.set_major_locator(FixedLocator([log2(n) for n in ns]))
    axis.set_major_formatter(FuncFormatter(lambda y, _: f"{2**y:g}"))


def fill_band(ax: Axes, rows: Sequence[BandRow], **style: Any) -> None:
    """A band through rows of x, low and high; nothing where there are none."""
    if rows:
        x, low, high = np.array(rows).T
        ax.fill_between(x, low, high, lw=0, **style)


def n_handles(colours: Mapping[int, str]) -> list[Line2D]:
    """An entry of the legend for each n."""
    return [Line2D([], [], color=colour, lw=3, label=f"n = {n}") for n, colour in colours.items()]


def legend_below(
    fig: Figure, columns: int, handles: Sequence[Artist] | None = None, **options: Any
) -> None:
    """The figure's legend below its panels; of the labelled artists where no handles are given."""
    if handles is not None:
        options["handles"] = list(handles)
    fig.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=9, **options)


def _minor_label(ax: Axes, C: float) -> str:
    """The label of a tick between powers of ten: 2k, 5k, 20k, ... on an axis of so few decades that
    powers of ten would be too few labels; else, and for other digits, ""."""
    low, high = ax.get_xlim()
    decades = log10(high / low)
    leading_digit = round(C / 10 ** floor(log10(C)))

    is_labelled = decades < MAX_DECADES_WITH_MINOR_LABELS and leading_digit in (2, 5)
    return format_compact(C) if is_labelled else ""


@dataclass(frozen=True)
class RenderedFigure:
    """A figure as PNG (for pages) and as PDF with text as text (for papers)."""

    png: bytes
    pdf: bytes

    def write(self, path: Path) -> None:
        """One of them, by the suffix of the path; its folder is made."""
        write_bytes(path, self.pdf if path.suffix == ".pdf" else self.png)


def render_figure(fig: Figure) -> RenderedFigure:
    """A figure as PNG and as PDF; the same figure always gives the same bytes. So the names of
    programs, their versions and the date, which both formats would hold, are left out."""
    FigureCanvasAgg(fig)  # becomes the figure's canvas, by which `savefig` draws
    png = io.BytesIO()
    fig.savefig(png, format="png", facecolor="white", metadata={"Software": None})

    # The layout engine has placed everything for the PNG and would draw it all once more to place
    # it again: without an engine the places stay. A user's matplotlibrc may name one.
    no_layout_engine: Any = {"figure.autolayout": False, "figure.constrained_layout.use": False}
    with rc_context(no_layout_engine):
        fig.set_layout_engine(None)

    pdf = io.BytesIO()
    no_dates = {"Creator": None, "Producer": None, "CreationDate": None}
    with rc_context({"pdf.fonttype": 42}):  # TrueType: text stays text
        fig.savefig(pdf, format="pdf", facecolor="white", metadata=no_dates)
    return RenderedFigure(png.getvalue(), pdf.getvalue())
