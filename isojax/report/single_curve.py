"""One run's curve with its interval, the points it was fitted to and those held out (`isojax curve --plot`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.report.canvas import DASHES, INK, LAW, SOFT, Drawing, frame, label, panels, rendered
from isojax.scaling.metrics import FloatArray

MARKERS = "osD^v"
HELD = "#2f6fb2"


def single_curve(document: Mapping[str, Any], C: FloatArray, R: FloatArray, run: NDArray[np.intp], names: tuple[str, ...]) -> Drawing:
    """Draw it.

    Args:
        document: what `curve_file.fit_curve_file` found.
        C, R, run: float[points] >= 0, rewards, and which seed, an index into `names`; points at C = 0 are the dashed line R0.
    """
    fig, (ax,) = panels(1, height=4.6)
    below = document["fit_below"]
    grid, low, high = (np.array([p[key] for p in document["band"]]) for key in ("C", "low", "high"))
    curve = np.array([p["reward"] for p in document["band"]])
    ax.fill_between(grid, low, high, color=LAW, alpha=0.18, lw=0, zorder=2, label=f"{document['bootstrap']['level']:.0%} interval")
    inside = np.ones(len(grid), dtype=bool) if below is None else grid <= below
    reach = f"A = {document['A']:.3g}{'' if document['determined'] else ' (not determined)'}, B = {document['B']:.3g}"
    text = f"R0 = {document['R0']:.3g}, {reach}, C_mid = {document['C_mid']:.3g}"
    ax.plot(grid[inside], curve[inside], color=LAW, lw=2.2, zorder=4, label=text)
    if below is not None:
        ax.plot(grid[~inside], curve[~inside], color=LAW, lw=2.2, ls=DASHES[1], zorder=4, label="the same, beyond what it was fitted to")
        ax.axvline(below, color=SOFT, lw=0.9, ls=DASHES[2], zorder=1)
    is_held = C > (np.inf if below is None else below)
    for i, name in enumerate(names):
        seed = label(f", {document['group']} {name}") if name else ""
        for colour, words, chosen in ((INK, "fitted", ~is_held), (HELD, "held out", is_held)):
            chosen = chosen & (run == i) & (C > 0)
            if chosen.any():
                style = {"marker": MARKERS[i % len(MARKERS)], "color": colour, "s": 16, "alpha": 0.75, "lw": 0, "zorder": 3}
                ax.scatter(C[chosen], R[chosen], label=words + seed, **style)
    ax.axhline(document["R0"], color=SOFT, lw=0.9, ls=(0, (4, 3)), zorder=1)
    frame(ax, "reward(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)", label(document["x"]), label(document["y"]))
    fig.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return rendered(fig)
