"""The forms that n*(C) may have, x = log10 C (or C itself, see Law.axis), each fitted by weighted least squares:

    constant   log2 n*(C) = b
    linear     log2 n*(C) = b + k (x - x0),   x0 the centre of the points
    sigmoid    log2 n*(C) = b + L / (1 + exp(-k (x - x0)))     (IsoCompute Playbook, arXiv:2603.12151, section 4.1)

A fork adds a form by adding an entry to FORMS. The sigmoid starts from the best corners of a fixed grid of (k, x0), b and L being linear
there, so that a fit draws no random number; and it saturates at most at a given cap, because nothing beyond the data was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.optimize import least_squares
from scipy.special import expit

from isojax.scaling.metrics import FloatArray

Axis = Literal["log10", "linear"]

K_BOUNDS = (0.05, 50.0)
STARTS = 3
# C0 may lie this many decades outside the frontier.
C0_DECADES = 1.0


@dataclass(frozen=True)
class Law:
    """n*(C).

    Attributes:
        form: a key of FORMS; which of L, k, log10_C0 it has (the others are 0, 0, None) is in the module's equations.
        log10_C0: the middle, on the law's axis: log10 C0, or C0 itself where `axis` is "linear".
        at_bounds: parameters that the data do not determine.
        axis: "log10" or "linear" in compute (or in M).
    """

    form: str
    L: float
    k: float
    log10_C0: float | None
    b: float
    at_bounds: tuple[str, ...] = ()
    axis: Axis = "log10"


@dataclass(frozen=True)
class Points:
    """What a form is fitted to.

    Attributes:
        x: float[points], on the axis, at least 2 distinct. y: float[points], log2 n. w: float[points] > 0, weights of mean 1.
        cap: the largest log2 n a law may saturate at.
    """

    x: FloatArray
    y: FloatArray
    w: FloatArray
    cap: float


@dataclass(frozen=True)
class Form:
    """A shape of n*(C).

    Attributes:
        parameters: how many it has; it needs as many distinct n, and more distinct C.
        at: (law, x on its axis) -> log2 n*.
        fit: (points, whether the law may fall) -> the law of least weighted squares.
    """

    parameters: int
    at: Callable[[Law, FloatArray], FloatArray]
    fit: Callable[[Points, bool], Law]


def _middle(law: Law) -> float:
    assert law.log10_C0 is not None, f"a {law.form} law has a middle"
    return law.log10_C0


def _constant(p: Points, falling: bool) -> Law:
    del falling
    return Law("constant", 0.0, 0.0, None, float(np.average(p.y, weights=p.w)))


def _linear(p: Points, falling: bool) -> Law:
    middle, b = np.average(p.x, weights=p.w), float(np.average(p.y, weights=p.w))
    dx = p.x - middle
    k = float((p.w * dx * (p.y - b)).sum() / (p.w * dx * dx).sum())
    return Law("linear", 0.0, k if falling else max(k, 0.0), float(middle), b)


def _sigmoid(p: Points, falling: bool) -> Law:
    rising = rising_sigmoid(p)
    if not falling:
        return rising
    mirror = rising_sigmoid(replace(p, x=-p.x))
    fallen = replace(mirror, L=-mirror.L, b=mirror.b + mirror.L, log10_C0=-_middle(mirror))
    return min((rising, fallen), key=lambda law: mean_square(law, p))


def mean_square(law: Law, p: Points) -> float:
    return float(np.mean(p.w * (FORMS[law.form].at(law, p.x) - p.y) ** 2))


def _starts(p: Points) -> list[list[float]]:
    """The best corners [b, f, k, log10 C0] of a fixed grid, L = f (cap - b); at each, b and L by linear least squares."""
    k, C0 = np.meshgrid(np.geomspace(0.5, 40, 10), np.linspace(p.x.min() - 0.3, p.x.max() + 0.3, 25), indexing="ij")
    s = expit(k[..., None] * (p.x - C0[..., None]))
    mean_s, mean_y = np.average(s, axis=-1, weights=p.w), np.average(p.y, weights=p.w)
    ds, dy = s - mean_s[..., None], p.y - mean_y
    L = np.maximum((p.w * ds * dy).sum(-1) / np.maximum((p.w * ds * ds).sum(-1), 1e-12), 0.0)
    b = np.clip(mean_y - L * mean_s, 0.0, p.cap - 1e-3)
    f = np.clip(L / (p.cap - b), 0.0, 1.0)
    error = (p.w * (b[..., None] + (f * (p.cap - b))[..., None] * s - p.y) ** 2).sum(-1)
    best = np.argsort(error, axis=None, kind="stable")[:STARTS]
    return [[float(v.flat[i]) for v in (b, f, k, C0)] for i in best]


def rising_sigmoid(p: Points) -> Law:
    """Least weighted squares with 0 <= b, 0 <= L, b + L <= cap, k within its bounds."""
    root = np.sqrt(p.w)

    def parts(theta: FloatArray) -> tuple[FloatArray, float]:
        return expit(theta[2] * (p.x - theta[3])), float(theta[1] * (p.cap - theta[0]))

    def residual(theta: FloatArray) -> FloatArray:
        s, L = parts(theta)
        return root * (theta[0] + L * s - p.y)

    def jacobian(theta: FloatArray) -> FloatArray:
        s, L = parts(theta)
        slope = L * s * (1 - s)
        columns = [1 - theta[1] * s, (p.cap - theta[0]) * s, slope * (p.x - theta[3]), -slope * theta[2]]
        return root[:, None] * np.stack(columns, axis=1)

    lower = np.array([0.0, 0.0, K_BOUNDS[0], p.x.min() - C0_DECADES])
    upper = np.array([p.cap, 1.0, K_BOUNDS[1], p.x.max() + C0_DECADES])
    jac: Any = jacobian  # SciPy's stub knows only the names of its finite differences
    solutions = [least_squares(residual, np.clip(s, lower + 1e-6, upper - 1e-6), jac, (lower, upper), x_scale="jac") for s in _starts(p)]
    theta = min(solutions, key=lambda s: s.cost).x
    b, f, k, C0 = (float(t) for t in theta)
    near = 1e-3 * (upper - lower)
    stuck = (theta - lower < near) | (upper - theta < near)
    # b = 0 is n* = 1, which is a value, not a failure.
    names = tuple(name for name, is_stuck in zip(("b", "L", "k", "C0"), stuck, strict=True) if is_stuck and name != "b")
    return Law("sigmoid", f * (p.cap - b), k, C0, b, names)


FORMS: dict[str, Form] = {
    "constant": Form(1, lambda law, x: np.full_like(x, law.b), _constant),
    "linear": Form(2, lambda law, x: law.b + law.k * (x - _middle(law)), _linear),
    "sigmoid": Form(4, lambda law, x: law.b + law.L * expit(law.k * (x - _middle(law))), _sigmoid),
}
