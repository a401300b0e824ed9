"""The forms that n*(C) may have, x = log10 C (or C itself, see Law.axis), each fitted by weighted least squares:

    constant   log2 n*(C) = b
    linear     log2 n*(C) = b + k (x - x0),   x0 the centre of the points
    sigmoid    log2 n*(C) = b + L / (1 + exp(-k (x - x0)))     (IsoCompute Playbook, arXiv:2603.12151, section 4.1)

A fork adds a form by adding an entry to FORMS. The sigmoid starts from the best corners of a fixed grid of (k, x0), b
and L being linear there, so that a fit draws no random number; and it saturates at most at a given cap, because nothing
beyond the data was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.optimize import least_squares
from scipy.special import expit

from isojax.scaling.validation_metrics import FloatArray

LawAxis = Literal["log10", "linear"]

K_BOUNDS = (0.05, 50.0)
N_STARTS = 3
# C0 may lie this many decades outside the frontier.
C0_MARGIN_DECADES = 1.0


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
    axis: LawAxis = "log10"


@dataclass(frozen=True)
class LawPoints:
    """What a form is fitted to.

    Attributes:
        x: float[points], on the axis, at least 2 distinct. y: float[points], log2 n. w: float[points] > 0, weights of
        mean 1.
        cap: the largest log2 n a law may saturate at.
    """

    x: FloatArray
    y: FloatArray
    w: FloatArray
    cap: float


@dataclass(frozen=True)
class LawForm:
    """A shape of n*(C).

    Attributes:
        parameters: how many it has; it needs as many distinct n, and more distinct C.
        at: (law, x on its axis) -> log2 n*.
        fit: (points, whether the law may fall) -> the law of least weighted squares.
    """

    parameter_count: int
    log2_n_star: Callable[[Law, FloatArray], FloatArray]
    fit: Callable[[LawPoints, bool], Law]


def _log10_C0(law: Law) -> float:
    assert law.log10_C0 is not None, f"a {law.form} law has a middle"
    return law.log10_C0


def _fit_constant(points: LawPoints, falling: bool) -> Law:
    del falling
    return Law("constant", 0.0, 0.0, None, float(np.average(points.y, weights=points.w)))


def _fit_linear(points: LawPoints, falling: bool) -> Law:
    x0, b = np.average(points.x, weights=points.w), float(np.average(points.y, weights=points.w))
    dx = points.x - x0
    k = float((points.w * dx * (points.y - b)).sum() / (points.w * dx * dx).sum())
    return Law("linear", 0.0, k if falling else max(k, 0.0), float(x0), b)


def _fit_sigmoid(points: LawPoints, falling: bool) -> Law:
    rising_law = fit_rising_sigmoid(points)
    if not falling:
        return rising_law
    mirrored_law = fit_rising_sigmoid(replace(points, x=-points.x))
    falling_law = replace(
        mirrored_law, L=-mirrored_law.L, b=mirrored_law.b + mirrored_law.L, log10_C0=-_log10_C0(mirrored_law)
    )
    return min((rising_law, falling_law), key=lambda law: weighted_mean_square(law, points))


def weighted_mean_square(law: Law, points: LawPoints) -> float:
    return float(np.mean(points.w * (FORMS[law.form].log2_n_star(law, points.x) - points.y) ** 2))


def _initial_parameters(points: LawPoints) -> list[list[float]]:
    """The best corners [b, f, k, log10 C0] of a fixed grid, L = f (cap - b); at each, b and L by linear least
    squares.
    """
    k, C0 = np.meshgrid(
        np.geomspace(0.5, 40, 10), np.linspace(points.x.min() - 0.3, points.x.max() + 0.3, 25), indexing="ij"
    )
    sigmoids = expit(k[..., None] * (points.x - C0[..., None]))
    mean_sigmoid, mean_y = np.average(sigmoids, axis=-1, weights=points.w), np.average(points.y, weights=points.w)
    centred_sigmoids, centred_y = sigmoids - mean_sigmoid[..., None], points.y - mean_y
    L = np.maximum(
        (points.w * centred_sigmoids * centred_y).sum(-1)
        / np.maximum((points.w * centred_sigmoids * centred_sigmoids).sum(-1), 1e-12),
        0.0,
    )
    b = np.clip(mean_y - L * mean_sigmoid, 0.0, points.cap - 1e-3)
    f = np.clip(L / (points.cap - b), 0.0, 1.0)
    squared_errors = (points.w * (b[..., None] + (f * (points.cap - b))[..., None] * sigmoids - points.y) ** 2).sum(-1)
    best_corners = np.argsort(squared_errors, axis=None, kind="stable")[:N_STARTS]
    return [[float(v.flat[i]) for v in (b, f, k, C0)] for i in best_corners]


def fit_rising_sigmoid(points: LawPoints) -> Law:
    """Least weighted squares with 0 <= b, 0 <= L, b + L <= cap, k within its bounds."""
    root_weights = np.sqrt(points.w)

    def sigmoid_and_height(theta: FloatArray) -> tuple[FloatArray, float]:
        return expit(theta[2] * (points.x - theta[3])), float(theta[1] * (points.cap - theta[0]))

    def residual(theta: FloatArray) -> FloatArray:
        s, L = sigmoid_and_height(theta)
        return root_weights * (theta[0] + L * s - points.y)

    def jacobian(theta: FloatArray) -> FloatArray:
        s, L = sigmoid_and_height(theta)
        slope = L * s * (1 - s)
        columns = [1 - theta[1] * s, (points.cap - theta[0]) * s, slope * (points.x - theta[3]), -slope * theta[2]]
        return root_weights[:, None] * np.stack(columns, axis=1)

    lower = np.array([0.0, 0.0, K_BOUNDS[0], points.x.min() - C0_MARGIN_DECADES])
    upper = np.array([points.cap, 1.0, K_BOUNDS[1], points.x.max() + C0_MARGIN_DECADES])
    jac: Any = jacobian  # SciPy's stub knows only the names of its finite differences
    solutions = [
        least_squares(residual, np.clip(s, lower + 1e-6, upper - 1e-6), jac, (lower, upper), x_scale="jac")
        for s in _initial_parameters(points)
    ]
    theta = min(solutions, key=lambda s: s.cost).x
    b, f, k, C0 = (float(t) for t in theta)
    bound_tolerances = 1e-3 * (upper - lower)
    is_at_bound = (theta - lower < bound_tolerances) | (upper - theta < bound_tolerances)
    # b = 0 is n* = 1, which is a value, not a failure.
    at_bounds = tuple(
        name for name, is_stuck in zip(("b", "L", "k", "C0"), is_at_bound, strict=True) if is_stuck and name != "b"
    )
    return Law("sigmoid", f * (points.cap - b), k, C0, b, at_bounds)


FORMS: dict[str, LawForm] = {
    "constant": LawForm(1, lambda law, x: np.full_like(x, law.b), _fit_constant),
    "linear": LawForm(2, lambda law, x: law.b + law.k * (x - _log10_C0(law)), _fit_linear),
    "sigmoid": LawForm(4, lambda law, x: law.b + law.L * expit(law.k * (x - _log10_C0(law))), _fit_sigmoid),
}
