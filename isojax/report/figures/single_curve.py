"""One run's curve with its interval, the points it was fitted to and those held out (`isojax fit-curve --plot`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from isojax.report.canvas import (
    DASHES,
    INK,
    LAW_COLOUR,
    MUTED,
    RenderedFigure,
    escape_label,
    legend_below,
    panel_grid,
    render_figure,
    style_axes,
)
from isojax.scaling.validation_metrics import FloatArray

MARKERS = "osD^v"
HELD_OUT_COLOUR = "#2f6fb2"


def single_curve_figure(
    document: Mapping[str, Any], C: FloatArray, R: FloatArray, seed_index: NDArray[np.intp], seed_names: tuple[str, ...]
) -> RenderedFigure:
    """The fitted curve over its interval, and the points; the dashed line is R0.

    Args:
        document: what `curve_file.fit_curve_file` returns.
        C, R: float[points] >= 0, compute and rewards.
        seed_index: int[points], which seed each point belongs to, an index into `seed_names`.
    """
    fig, (ax,) = panel_grid(1, height=4.6)
    _draw_curve(ax, document)
    C_limit = np.inf if document["fit_below"] is None else document["fit_below"]
    style = {"s": 16, "alpha": 0.75, "lw": 0, "zorder": 3}
    for i, name in enumerate(seed_names):
        seed_text = escape_label(f", {document['group']} {name}") if name else ""
        is_of_seed = (seed_index == i) & (C > 0)
        for colour, split, is_of_split in ((INK, "fitted", C <= C_limit), (HELD_OUT_COLOUR, "held out", C > C_limit)):
            shown = is_of_seed & is_of_split
            if shown.any():
                marker = MARKERS[i % len(MARKERS)]
                ax.scatter(C[shown], R[shown], label=split + seed_text, marker=marker, color=colour, **style)
    ax.axhline(document["R0"], color=MUTED, lw=0.9, ls=(0, (4, 3)), zorder=1)
    title = "reward(C) = R0 + (A - R0) / (1 + (C_mid / C)^exponent)"
    style_axes(ax, title, escape_label(document["x"]), escape_label(document["y"]))
    legend_below(fig, 2)
    return render_figure(fig)


def _draw_curve(ax: Axes, document: Mapping[str, Any]) -> None:
    """The curve with its interval and parameters, dashed beyond the points that it was fitted to."""
    C, low, high, reward = (np.array([p[key] for p in document["band"]]) for key in ("C", "low", "high", "reward"))
    label = f"{document['bootstrap']['level']:.0%} interval"
    ax.fill_between(C, low, high, color=LAW_COLOUR, alpha=0.18, lw=0, zorder=2, label=label)
    line = {"color": LAW_COLOUR, "lw": 2.2, "zorder": 4}
    C_limit = document["fit_below"]
    is_fitted = np.ones(len(C), dtype=bool) if C_limit is None else C <= C_limit
    ax.plot(C[is_fitted], reward[is_fitted], label=_parameters_text(document), **line)
    if C_limit is not None:
        label = "the same, beyond the fitted points"
        ax.plot(C[~is_fitted], reward[~is_fitted], ls=DASHES[1], label=label, **line)
        ax.axvline(C_limit, color=MUTED, lw=0.9, ls=DASHES[2], zorder=1)


def _parameters_text(document: Mapping[str, Any]) -> str:
    values = {name: f"{name} = {document[name]:.3g}" for name in ("R0", "A", "exponent", "C_mid")}
    values["A"] += "" if document["determined"] else " (not determined)"
    return ", ".join(values.values())
