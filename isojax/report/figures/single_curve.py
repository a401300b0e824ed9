"""One run's curve with its interval, the points it was fitted to and those held out (`isojax fit-curve --plot`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.report.canvas import (
    DASHES,
    INK,
    LAW_COLOUR,
    MUTED,
    RenderedFigure,
    escape_label,
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
    """Draw it.

    Args:
        document: what `curve_file.fit_curve_file` found.
        C, R, run: float[points] >= 0, rewards, and which seed, an index into `names`; points at C = 0 are the dashed
        line R0.
    """
    fig, (ax,) = panel_grid(1, height=4.6)
    C_limit = document["fit_below"]
    grid, low, high = (np.array([p[key] for p in document["band"]]) for key in ("C", "low", "high"))
    band_rewards = np.array([p["reward"] for p in document["band"]])
    ax.fill_between(
        grid,
        low,
        high,
        color=LAW_COLOUR,
        alpha=0.18,
        lw=0,
        zorder=2,
        label=f"{document['bootstrap']['level']:.0%} interval",
    )
    is_fitted_range = np.ones(len(grid), dtype=bool) if C_limit is None else grid <= C_limit
    plateau_text = f"A = {document['A']:.3g}{'' if document['determined'] else ' (not determined)'}, exponent = {document['exponent']:.3g}"
    parameters_text = f"R0 = {document['R0']:.3g}, {plateau_text}, C_mid = {document['C_mid']:.3g}"
    ax.plot(
        grid[is_fitted_range], band_rewards[is_fitted_range], color=LAW_COLOUR, lw=2.2, zorder=4, label=parameters_text
    )
    if C_limit is not None:
        ax.plot(
            grid[~is_fitted_range],
            band_rewards[~is_fitted_range],
            color=LAW_COLOUR,
            lw=2.2,
            ls=DASHES[1],
            zorder=4,
            label="the same, beyond what it was fitted to",
        )
        ax.axvline(C_limit, color=MUTED, lw=0.9, ls=DASHES[2], zorder=1)
    is_held_out = C > (np.inf if C_limit is None else C_limit)
    for i, name in enumerate(seed_names):
        seed_text = escape_label(f", {document['group']} {name}") if name else ""
        for colour, split_text, is_shown in ((INK, "fitted", ~is_held_out), (HELD_OUT_COLOUR, "held out", is_held_out)):
            is_shown = is_shown & (seed_index == i) & (C > 0)
            if is_shown.any():
                style = {
                    "marker": MARKERS[i % len(MARKERS)],
                    "color": colour,
                    "s": 16,
                    "alpha": 0.75,
                    "lw": 0,
                    "zorder": 3,
                }
                ax.scatter(C[is_shown], R[is_shown], label=split_text + seed_text, **style)
    ax.axhline(document["R0"], color=MUTED, lw=0.9, ls=(0, (4, 3)), zorder=1)
    style_axes(
        ax, "reward(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)", escape_label(document["x"]), escape_label(document["y"])
    )
    fig.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return render_figure(fig)
