"""One run's curve with its interval, the points it was fitted to and those held out (`isojax
fit-curve --plot`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from isojax.report import canvas
from isojax.scaling.curve_from_file import CurveFilePoints

MARKERS = "osD^v"
HELD_OUT_COLOUR = "#2f6fb2"


def single_curve_figure(
    document: Mapping[str, Any], data: CurveFilePoints
) -> canvas.RenderedFigure:
    """The figure of `isojax fit-curve`: one run's points, the curve fitted to them with its
    interval, and a dashed line at R0, the reward at C = 0.

    `document`: what `fit_curve_file` (scaling/curve_from_file.py) returns, a dict with the curve's
    parameters, its interval and the names of the axes. `data`: the points."""
    fig, (ax,) = canvas.panel_grid(1, height=4.6)
    # points up to here were fitted, those beyond held out
    C_limit = np.inf if document["fit_below"] is None else document["fit_below"]
    _draw_curve(ax, document, C_limit)
    _draw_points(ax, data, C_limit, group=document["group"])
    ax.axhline(document["R0"], color=canvas.MUTED, lw=0.9, ls=canvas.DASHES[1], zorder=1)

    title = "Reward along the run, and the curve fitted to it"
    x_label = canvas.escape_label(document["x"])
    y_label = canvas.escape_label(document["y"])
    canvas.style_axes(ax, title, x_label, y_label)
    canvas.legend_below(fig, 2)
    return canvas.render_figure(fig)


def _draw_points(ax: Axes, data: CurveFilePoints, C_limit: float, group: str | None) -> None:
    """Draw the points, a marker for each seed; those up to `C_limit`, to which the curve was
    fitted, in one colour, those beyond, which were held out, in another. `group`: the name of the
    column that tells the seeds apart; None where the file has no such column."""
    C = data.points.C
    rewards = data.points.R
    splits = ((canvas.INK, "fitted", C <= C_limit), (HELD_OUT_COLOUR, "held out", C > C_limit))

    for i, name in enumerate(data.seed_names):
        is_of_seed = (data.points.run_index == i) & (C > 0)  # C = 0 has no place on a log axis
        seed_text = canvas.escape_label(f", {group} {name}") if name else ""
        style = {"s": 16, "alpha": 0.75, "lw": 0, "zorder": 3, "marker": MARKERS[i % len(MARKERS)]}
        for colour, split, is_of_split in splits:
            shown = is_of_seed & is_of_split
            if shown.any():
                label = split + seed_text
                ax.scatter(C[shown], rewards[shown], label=label, color=colour, **style)


def _draw_curve(ax: Axes, document: Mapping[str, Any], C_limit: float) -> None:
    """Draw the curve over the band of its interval; beyond `C_limit`, where no point was fitted, it
    is dashed. Its parameters are its label in the legend. `document`: as of
    `single_curve_figure`."""
    band = document["band"]
    C = np.array([point["C"] for point in band])
    reward = np.array([point["reward"] for point in band])
    low = np.array([point["low"] for point in band])
    high = np.array([point["high"] for point in band])

    label = f"{document['draws']['level']:.0%} interval"
    ax.fill_between(C, low, high, color=canvas.LAW_COLOUR, alpha=0.18, lw=0, zorder=2, label=label)

    line = {"color": canvas.LAW_COLOUR, "lw": 2.2, "zorder": 4}
    is_fitted = C <= C_limit
    ax.plot(C[is_fitted], reward[is_fitted], label=_parameter_text(document), **line)
    if np.isfinite(C_limit):
        label = "the same, beyond the fitted points"
        ax.plot(C[~is_fitted], reward[~is_fitted], ls=canvas.DASHES[1], label=label, **line)
        ax.axvline(C_limit, color=canvas.MUTED, lw=0.9, ls=canvas.DASHES[2], zorder=1)


def _parameter_text(document: Mapping[str, Any]) -> str:
    """ "R0 = 0.2, A = 0.7 (not determined), ...", without those that a flat curve has not."""
    texts = []
    for name in ("R0", "A", "exponent", "C_mid"):
        value = document[name]
        if value is None:
            continue
        text = f"{name} = {value:.3g}"
        if name == "A" and not document["determined"]:
            text += " (not determined)"
        texts.append(text)
    return ", ".join(texts)
