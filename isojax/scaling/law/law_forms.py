"""The forms that n*(C) may have, with x = log10 C, each fitted by weighted least squares:

    constant   log2 n*(C) = b
    linear     log2 n*(C) = b + k (x - x0),   x0 the centre of the points
    sigmoid    log2 n*(C) = b + L / (1 + exp(-k (x - x0)))     (IsoCompute Playbook, arXiv:2603.12151, section 4.1)

A fork adds a form by adding an entry to FORMS. The sigmoid is fitted by the solver of the learning curves (varpro.py),
which draws no random number; it saturates at most at a given cap, because nothing beyond the data was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from isojax.scaling.curves import varpro
from isojax.scaling.curves.hill import LN10
from isojax.scaling.validation_metrics import FloatArray

MIN_DISTINCT_N = 3  # values of n that a law with a slope needs: two show only where one n overtakes the other

K_BOUNDS = (0.05, 50.0)
C0_MARGIN_DECADES = 1.0  # C0 may be this many decades outside the frontier
L_MARGIN = 1e-3  # of its range: a smaller L is at its bound


@dataclass(frozen=True)
class Law:
    """n*(C), or n*(M) at a fixed batch; L, k and log10_C0 are 0, 0 and None where the form does not have them."""

    form: str  # a key of FORMS
    L: float
    k: float
    log10_C0: float | None  # the x0 of the equation
    b: float  # log2 n*, of the constant, of the line's middle, or of the sigmoid's lower level
    at_bounds: tuple[str, ...] = ()  # parameters that the data do not determine


@dataclass(frozen=True)
class LawPoints:
    """What a form is fitted to."""

    x: FloatArray  # [points], log10 C, at least 2 distinct
    y: FloatArray  # [points], log2 n
    w: FloatArray  # [points] > 0, weights of mean 1
    cap: float  # the largest log2 n at which a law may saturate


@dataclass(frozen=True)
class LawForm:
    """A form of n*(C); it needs as many distinct n as it has parameters, and more distinct C."""

    parameter_count: int
    log2_n_star: Callable[[Law, FloatArray], FloatArray]  # (law, log10 C) -> log2 n*
    fit: Callable[[LawPoints, bool], Law]  # (points, whether the law may fall) -> the law of least weighted squares


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
    """The weighted mean of the squared residuals, in log2 n."""
    return float(np.mean(points.w * (FORMS[law.form].log2_n_star(law, points.x) - points.y) ** 2))


def fit_rising_sigmoid(points: LawPoints) -> Law:
    """Least weighted squares with 0 <= b, 0 <= L, b + L <= cap, k within its bounds.

    The law is a Hill curve in 10^x: b is its R0, L its gain, k / ln 10 its exponent and x0 its log10 C_mid.
    """
    k_lower, k_upper = K_BOUNDS
    space = varpro.SearchSpace(
        log10_C=points.x,
        weight=points.w,
        phi_lower=np.array([np.log(k_lower / LN10), points.x.min() - C0_MARGIN_DECADES]),
        phi_upper=np.array([np.log(k_upper / LN10), points.x.max() + C0_MARGIN_DECADES]),
        reward_range=(0.0, points.cap),
    )
    best = varpro.fit_least_squares(space, points.y)
    b, L, k = float(best.R0[0]), float(best.G[0]), LN10 * float(best.exponent[0])
    law_names = {"A": "L", "exponent": "k", "C_mid": "C0"}
    at_bounds = [law_names[name] for name in varpro.parameters_at_bounds(best, space)]
    if L < L_MARGIN * (points.cap - b) and "L" not in at_bounds:
        at_bounds.append("L")  # no rise at all
    return Law("sigmoid", L, k, float(best.phi[0, 1]), b, tuple(sorted(at_bounds, reverse=True)))


FORMS: dict[str, LawForm] = {
    "constant": LawForm(1, lambda law, x: np.full_like(x, law.b), _fit_constant),
    "linear": LawForm(2, lambda law, x: law.b + law.k * (x - _log10_C0(law)), _fit_linear),
    "sigmoid": LawForm(4, lambda law, x: law.b + law.L * expit(law.k * (x - _log10_C0(law))), _fit_sigmoid),
}
