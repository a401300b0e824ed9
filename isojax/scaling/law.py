"""n*(C), the compute-optimal number of rollouts a problem (IsoCompute Playbook, arXiv:2603.12151, section 4.1, Fig. 7):

    log2 n*(C) = b + L / (1 + exp(-k (log10 C - log10 C0))).

As in the paper it is fitted to a running average of the frontier's log2 n over log10 C (the window is not published: here
`WINDOW` decades, centred, cut off at the ends). Departures: the start is the best of a fixed grid of (k, C0), b and L being linear there;
the law saturates at most at twice the largest n measured, because nothing beyond it was seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from isojax.scaling.metrics import FloatArray

WINDOW = 0.25
K_BOUNDS = (0.05, 50.0)
STARTS = 3
# C0 may lie this many decades outside the frontier.
C0_DECADES = 1.0


@dataclass(frozen=True)
class Law:
    """n*(C). form "constant": n* = 2^b at every C, with L = k = 0 and no C0. `at_bounds` names parameters the data do not determine."""

    form: str
    L: float
    k: float
    log10_C0: float | None
    b: float
    at_bounds: tuple[str, ...] = ()


def log2_n_star(law: Law, C: ArrayLike) -> FloatArray:
    """log2 n*(C); C > 0, float[...] -> float[...]."""
    x = np.log10(np.asarray(C, dtype=np.float64))
    if law.log10_C0 is None:
        return np.full_like(x, law.b)
    return law.b + law.L * _logistic(law.k * (x - law.log10_C0))


def n_star(law: Law, C: ArrayLike) -> FloatArray:
    """n*(C), not rounded; C > 0, float[...] -> float[...]."""
    return 2.0 ** log2_n_star(law, C)


def _logistic(x: FloatArray) -> FloatArray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def running_average(x: FloatArray, y: FloatArray, window: float) -> FloatArray:
    """The mean of y over all points within window / 2 of each x; float[points]. A window of 0 changes nothing."""
    near = np.abs(x[:, None] - x[None, :]) <= window / 2 + 1e-12
    return (near @ y) / near.sum(1)


def _starts(x: FloatArray, y: FloatArray, cap: float) -> list[list[float]]:
    """The best corners [b, f, k, log10 C0] of a fixed grid, L = f (cap - b); at each, b and L by linear least squares."""
    k, C0 = np.meshgrid(np.geomspace(0.5, 40, 10), np.linspace(x[0] - 0.3, x[-1] + 0.3, 25), indexing="ij")
    s = _logistic(k[..., None] * (x - C0[..., None]))
    ds, dy = s - s.mean(-1, keepdims=True), y - y.mean()
    L = np.maximum((ds * dy).sum(-1) / np.maximum((ds * ds).sum(-1), 1e-12), 0.0)
    b = np.clip(y.mean() - L * s.mean(-1), 0.0, cap - 1e-3)
    f = np.clip(L / (cap - b), 0.0, 1.0)
    error = ((b[..., None] + (f * (cap - b))[..., None] * s - y) ** 2).sum(-1)
    best = np.argsort(error, axis=None, kind="stable")[:STARTS]
    return [[float(v.flat[i]) for v in (b, f, k, C0)] for i in best]


def fit_law(C: ArrayLike, n: ArrayLike, n_max: float, window: float = WINDOW) -> Law:
    """The sigmoid law through a frontier.

    Args:
        C: float[points] > 0, rising. n: float[points] >= 1, the frontier's n there.
        n_max: the largest n measured; the law saturates at 2 n_max at most.
        window: running average, in decades of C; 0 for none.

    Returns:
        A sigmoid with 0 <= b, 0 <= L, 0 < k <= 50; the constant law where n never changes.
    """
    x, raw = np.log10(np.asarray(C, dtype=np.float64)), np.log2(np.asarray(n, dtype=np.float64))
    if np.ptp(raw) == 0:
        return Law("constant", 0.0, 0.0, None, float(raw[0]))
    y, cap = running_average(x, raw, window), math.log2(n_max) + 1

    def parts(theta: FloatArray) -> tuple[FloatArray, float]:
        return _logistic(theta[2] * (x - theta[3])), float(theta[1] * (cap - theta[0]))

    def residual(theta: FloatArray) -> FloatArray:
        s, L = parts(theta)
        return theta[0] + L * s - y

    def jacobian(theta: FloatArray) -> FloatArray:
        s, L = parts(theta)
        slope = L * s * (1 - s)
        return np.stack([1 - theta[1] * s, (cap - theta[0]) * s, slope * (x - theta[3]), -slope * theta[2]], axis=1)

    lower = np.array([0.0, 0.0, K_BOUNDS[0], x[0] - C0_DECADES])
    upper = np.array([cap, 1.0, K_BOUNDS[1], x[-1] + C0_DECADES])
    jac: Any = jacobian  # SciPy's stub knows only the names of its finite differences
    solutions = [
        least_squares(residual, np.clip(s, lower + 1e-6, upper - 1e-6), jac, (lower, upper), x_scale="jac") for s in _starts(x, y, cap)
    ]
    theta = min(solutions, key=lambda s: s.cost).x
    b, f, k, C0 = (float(t) for t in theta)
    near = 1e-3 * (upper - lower)
    stuck = (theta - lower < near) | (upper - theta < near)
    # b = 0 is n* = 1, which is a value, not a failure.
    names = tuple(name for name, is_stuck in zip(("b", "L", "k", "C0"), stuck, strict=True) if is_stuck and name != "b")
    return Law("sigmoid", f * (cap - b), k, C0, b, names)
