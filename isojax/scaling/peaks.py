"""Where a cell's validation reward starts to fall (overfitting, IsoCompute Playbook, arXiv:2603.12151, section 5.2).

A cell's points are compared with a rising curve that breaks at C_peak and falls on by a straight line in log C. The break is believed if it
explains the points better than every rising shape does, by more than chance would over all places looked at. Points beyond it are left
out of the rising curve, which is held flat there: a budget of C may be stopped early, so the most it can give is the best up to C.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isojax.scaling.metrics import FloatArray, Track
from isojax.scaling.shapes import HILL, STRETCHED, shape

# Twice the log likelihood that a break has to gain, and how many standard errors its fall has to be steep.
MIN_GAIN = 14.0
MIN_Z = 3.3
MIN_TAIL = 4
_LN10 = float(np.log(10.0))


def find_peak(seeds: Sequence[Track], base: float | None) -> float | None:
    """log10 C where the cell's reward starts to fall; None where it does not. base: the reward at C = 0 (None: the lowest seen)."""
    points = [(np.log10(t.C[t.C > 0]), t.R[t.C > 0], np.full((t.C > 0).sum(), s)) for s, t in enumerate(seeds)]
    x, y, run = (np.concatenate(part) for part in zip(*points, strict=True))
    if len(x) < 3 * MIN_TAIL + len(seeds):
        return None
    floor = base if base is not None else float(y.min())
    sd2 = max(_noise(points), 1e-18)
    places = np.quantile(np.unique(x), np.linspace(0.3, 0.9, 16))
    places = np.unique(places[[(x > c).sum() >= MIN_TAIL for c in places]])
    one_hot = np.eye(len(seeds))[run.astype(int)]
    flat = min(_best(tail, x, y - floor, one_hot, None)[0] for tail in (HILL, STRETCHED))
    found = [(*_best(tail, x, y - floor, one_hot, c), c) for c in places for tail in (HILL, STRETCHED)]
    if not found:
        return None
    rss, fall, fall_variance, peak = min(found, key=lambda f: f[0])
    scale = max(sd2, rss / max(1, len(x) - 4 - len(seeds)))
    believed = fall > MIN_Z * np.sqrt(fall_variance * scale) and flat - rss > MIN_GAIN * scale
    return float(peak) if believed else None


def _noise(points: Sequence[tuple[FloatArray, FloatArray, FloatArray]]) -> float:
    """Variance of one evaluation, from how far each lies from the mean of its neighbours."""
    off = np.concatenate([(y[1:-1] - (y[:-2] + y[2:]) / 2) ** 2 for _, y, _ in points if len(y) > 2])
    return float(np.median(off)) / 0.455 / 1.5 if len(off) else 0.0


def _best(tail: float, x: FloatArray, r: FloatArray, one_hot: FloatArray, peak: float | None) -> tuple[float, float, float]:
    """(residual sum of squares, fall a decade, its variance for unit noise) of the best curve of a grid: a gain for each run, one fall."""
    mids, Bs = np.meshgrid(np.linspace(x.min() - 0.5, x.max() + 0.7, 18), [0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.2], indexing="ij")
    held = x if peak is None else np.minimum(x, peak)
    s = shape(_LN10 * Bs.reshape(-1, 1) * (held - mids.reshape(-1, 1)), tail)[0]  # [grid, points]
    D = s[:, :, None] * one_hot
    if peak is not None:
        D = np.concatenate([D, np.broadcast_to(-np.maximum(x - peak, 0)[None, :, None], (len(s), len(x), 1))], axis=2)
    normal = np.einsum("gpi,gpj->gij", D, D) + 1e-9 * np.eye(D.shape[2])
    right = np.einsum("gpi,p->gi", D, r)
    solved = np.linalg.solve(normal, right[..., None])[..., 0]
    rss = (r**2).sum() - (solved * right).sum(1)
    at = int(rss.argmin())
    return float(rss[at]), float(solved[at, -1]), float(np.linalg.inv(normal[at])[-1, -1])
