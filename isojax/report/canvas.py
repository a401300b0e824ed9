"""How every figure looks: its colours, panels, axes and legend, and its bytes as PNG and PDF. No
pyplot state."""

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
from isojax.report.wording import format_compact

INK, MUTED, GRID_COLOUR, LAW_COLOUR = "#1c2126", "#5c6670", "#e4e8ec", "#c2362f"
# Distinct without colour vision (Okabe and Ito's colours); with DASHES, in grey too.
DISTINCT_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1, 2)))
HALO = [patheffects.withStroke(linewidth=3, foreground="white")]
DPI = 160


def log2_positions(values: Sequence[int]) -> dict[int, float]:
    """The position of each n between the smallest (0) and the largest (1), by log2 n; .5 for one
    alone."""
    values = sorted(set(values))
    low, high = log2(values[0]), log2(values[-1])
    return {n: (log2(n) - low) / (high - low) if high > low else 0.5 for n in values}


def n_palette(values: Sequence[int]) -> dict[int, str]:
    """A colour for each n: viridis by log2 n, its palest end left out (unreadable on white)."""
    return {
        n: to_hex(colormaps["viridis"](0.88 * share)) for n, share in log2_positions(values).items()
    }


def escape_label(text: str, max_length: int = 48) -> str:
    """Text from a log as matplotlib's text: no mathematics in it, and not longer than an axis."""
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
    """`count` axes in rows of at most three, sharing y."""
    columns = grid_columns(count)
    rows = ceil(count / columns)
    fig = new_figure({1: 10.0, 2: 12.0}.get(columns, 14.4), height * rows + 0.5)
    axes: list[Axes] = []
    for i in range(count):
        axes.append(fig.add_subplot(rows, columns, i + 1, sharey=axes[0] if axes else None))
        axes[-1].tick_params(labelleft=i % columns == 0)
    return fig, axes


def style_axes(ax: Axes, title: str, x_label: str, y_label: str, log_x: bool = True) -> None:
    """Titles, a quiet grid, no box; budgets on a log axis read 1k, 10k, 100k."""
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


def fill_band(ax: Axes, rows: Sequence[tuple[float, float, float]], **style: Any) -> None:
    """A band through rows of (x, low, high); nothing where there are none."""
    if rows:
        x, low, high = np.array(rows).T
        ax.fill_between(x, low, high, lw=0, **style)


def n_handles(colours: Mapping[int, str]) -> list[Line2D]:
    return [Line2D([], [], color=colour, lw=3, label=f"n = {n}") for n, colour in colours.items()]


def legend_below(
    fig: Figure, columns: int, handles: Sequence[Artist] | None = None, **options: Any
) -> None:
    """The figure's legend below its panels; of the labelled artists where no handles are given."""
    entries = {} if handles is None else {"handles": list(handles)}
    fig.legend(
        loc="outside lower center", ncols=columns, frameon=False, fontsize=9, **entries, **options
    )


def _minor_label(ax: Axes, C: float) -> str:
    """2k, 5k, 20k, ... where powers of ten alone would label a log axis too thinly."""
    low, high = ax.get_xlim()
    leading_digit = round(C / 10 ** floor(log10(C)))
    return format_compact(C) if log10(high / low) < 1.7 and leading_digit in (2, 5) else ""


@dataclass(frozen=True)
class RenderedFigure:
    """A figure as PNG (for pages) and as PDF with text as text (for papers)."""

    png: bytes
    pdf: bytes

    def write(self, path: Path) -> None:
        """One of them, by the suffix of the path; its folder is made."""
        write_bytes(path, self.pdf if path.suffix == ".pdf" else self.png)


def render_figure(fig: Figure) -> RenderedFigure:
    """The figure in both formats, the same bits for the same figure."""
    FigureCanvasAgg(fig)
    png, pdf = io.BytesIO(), io.BytesIO()
    fig.savefig(png, format="png", facecolor="white", metadata={"Software": None})
    no_layout_engine: Any = {"figure.autolayout": False, "figure.constrained_layout.use": False}
    with rc_context(no_layout_engine):  # a user's matplotlibrc may name an engine
        # keeps what was placed; an engine would draw everything once more
        fig.set_layout_engine(None)
    with rc_context({"pdf.fonttype": 42}):
        no_dates = {"Creator": None, "Producer": None, "CreationDate": None}
        fig.savefig(pdf, format="pdf", facecolor="white", metadata=no_dates)
    return RenderedFigure(png.getvalue(), pdf.getvalue())
