"""What a cell's evaluations show that no shape of shapes.py has: a smooth bend added to its curve, inside its measured range only.

The bend is a Gaussian process over log10 C with correlation LENGTH, its size one number for the sweep, kept only if it makes the residuals
likelier by MIN_GAIN; where the shapes suffice there is none. It fades to nothing within FADE decades outside the knots: beyond the data the
joint surface speaks alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling.metrics import FloatArray

LENGTH = 0.3
SIZES = (0.003, 0.005, 0.008, 0.012, 0.018, 0.025, 0.035, 0.05)
MIN_GAIN = 10.0  # of twice the log likelihood, for the one number that is fitted
KNOT_DECADES = 0.2
FADE = 0.3
_CORRELATION = 0.7  # of a bend's error from one knot to the next


@dataclass(frozen=True)
class Bend:
    """A cell's bend at knots: log10_C rising, reward to add, and its standard deviation."""

    log10_C: tuple[float, ...]
    value: tuple[float, ...]
    sd: tuple[float, ...]

    def at(self, C: ArrayLike) -> FloatArray:
        """Reward to add at C > 0, float[...] -> float[...]."""
        x = np.log10(np.asarray(C, dtype=np.float64))
        return np.interp(x, *_faded(self.log10_C, self.value))

    def draws(self, C: ArrayLike, z: FloatArray) -> FloatArray:
        """The same of replicates: z float[Q, knots] from `normals`; float[G] -> float[Q, G]."""
        x = np.log10(np.asarray(C, dtype=np.float64))
        knots = np.array([*self.log10_C])
        weights = np.stack([np.interp(x, *_faded(self.log10_C, tuple(row))) for row in np.eye(len(knots))])
        return (np.array(self.value) + np.array(self.sd) * z) @ weights


def _faded(knots: Sequence[float], values: Sequence[float]) -> tuple[FloatArray, FloatArray]:
    return np.array([knots[0] - FADE, *knots, knots[-1] + FADE]), np.array([0.0, *values, 0.0])


def normals(replicates: int, knots: int, key: tuple[int, int]) -> FloatArray:
    """float[Q, knots] of the cell `key`, standard normal and correlated along the knots; always the same, so that files need not hold
    them."""
    noise = np.random.default_rng(key).normal(size=(replicates, knots))
    for k in range(1, knots):
        noise[..., k] = _CORRELATION * noise[..., k - 1] + np.sqrt(1 - _CORRELATION**2) * noise[..., k]
    return noise


def fit_bends(x: Sequence[FloatArray], residual: Sequence[FloatArray], sd: float) -> list[Bend | None]:
    """A bend for each cell, or None for all.

    Args:
        x: log10 C of each cell's points at C > 0, its seeds together. residual: what its fitted runs leave. sd: noise of one evaluation,
        from
            how neighbouring evaluations of a run differ.
    """
    if sd <= 0 or not x:
        return [None] * len(x)
    spread = [((a[:, None] - a[None, :]) / LENGTH) ** 2 for a in x]
    kernels = [np.exp(-0.5 * d) for d in spread]
    eigen = [np.linalg.eigh(K) for K in kernels]

    def gain(size: float) -> float:
        total = 0.0
        for (values, vectors), r in zip(eigen, residual, strict=True):
            ratio = size**2 * np.maximum(values, 0) / sd**2
            total += float((((vectors.T @ r) / sd) ** 2 * ratio / (1 + ratio) - np.log1p(ratio)).sum())
        return total

    gains = [gain(size) for size in SIZES]
    if max(gains) < MIN_GAIN:
        return [None] * len(x)
    size = SIZES[int(np.argmax(gains))]
    return [_bend(a, r, K, size, sd) for a, r, K in zip(x, residual, kernels, strict=True)]


def _bend(x: FloatArray, residual: FloatArray, K: FloatArray, size: float, sd: float) -> Bend:
    knots = np.linspace(x.min(), x.max(), max(2, int(np.ceil(np.ptp(x) / KNOT_DECADES)) + 1))
    across = size**2 * np.exp(-0.5 * ((knots[:, None] - x[None, :]) / LENGTH) ** 2)
    solved = np.linalg.solve(size**2 * K + sd**2 * np.eye(len(x)), np.column_stack([residual, across.T]))
    variance = size**2 - np.einsum("kp,pk->k", across, solved[:, 1:])
    return Bend(*(tuple(v.tolist()) for v in (knots, across @ solved[:, 0], np.sqrt(np.maximum(variance, 0.0)))))
