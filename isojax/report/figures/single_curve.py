"""One run's curve with its interval, the points it was fitted to and those held out (`isojax
fit-curve --plot`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from isojax.report import canvas
from isojax.scaling.curve_file import CurveFilePoints

MARKERS = "osD^v"
HELD_OUT_COLOUR = "#2f6fb2"


def single_curve_figure(
    document: Mapping[str, Any], data: CurveFilePoints
) -> canvas.RenderedFigure:
    """What `curve_file.fit_curve_file` gives: the curve, its interval and the points; the dashed
    line is R0."""
    C, R = data.points.C, data.points.R
    fig, (ax,) = canvas.panel_grid(1, height=4.6)
    C_limit = np.inf if document["fit_below"] is None else document["fit_below"]
    _draw_curve(ax, document, C_limit)
    for i, name in enumerate(data.seed_names):
        seed_text = canvas.escape_label(f", {document['group']} {name}") if name else ""
        style = {"s": 16, "alpha": 0.75, "lw": 0, "zorder": 3, "marker": MARKERS[i % len(MARKERS)]}
        is_of_seed = (data.points.run_index == i) & (C > 0)
        splits = ((canvas.INK, "fitted", C <= C_limit), (HELD_OUT_COLOUR, "held out", C > C_limit))
        for colour, split, is_of_split in splits:
            shown = is_of_seed & is_of_split
            if shown.any():
                ax.scatter(C[shown], R[shown], label=split + seed_text, color=colour, **style)
    ax.axhline(document["R0"], color=canvas.MUTED, lw=0.9, ls=canvas.DASHES[1], zorder=1)
    x_label = canvas.escape_label(document["x"])
    y_label = canvas.escape_label(document["y"])
    canvas.style_axes(ax, "Reward along the run, and the curve fitted to it", x_label, y_label)
    canvas.legend_below(fig, 2)
    return canvas.render_figure(fig)


def _draw_curve(ax: Axes, document: Mapping[str, Any], C_limit: float) -> None:
    C, low, high, reward = (
        np.array([p[key] for p in document["band"]]) for key in ("C", "low", "high", "reward")
    )
    label = f"{document['draws']['level']:.0%} interval"
    ax.fill_between(C, low, high, color=canvas.LAW_COLOUR, alpha=0.18, lw=0, zorder=2, label=label)
    line = {"color": canvas.LAW_COLOUR, "lw": 2.2, "zorder": 4}
    parameters = {name: document[name] for name in ("R0", "A", "exponent", "C_mid")}
    values = {
        name: f"{name} = {value:.3g}" for name, value in parameters.items() if value is not None
    }
    values["A"] += "" if document["determined"] else " (not determined)"
    is_fitted = C <= C_limit
    ax.plot(C[is_fitted], reward[is_fitted], label=", ".join(values.values()), **line)
    if np.isfinite(C_limit):
        label = "the same, beyond the fitted points"
        ax.plot(C[~is_fitted], reward[~is_fitted], ls=canvas.DASHES[1], label=label, **line)
        ax.axvline(C_limit, color=canvas.MUTED, lw=0.9, ls=canvas.DASHES[2], zorder=1)
