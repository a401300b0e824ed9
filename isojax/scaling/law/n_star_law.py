"""n*(C), the compute-optimal rollouts per problem (IsoCompute Playbook, arXiv:2603.12151, section 4.1, Fig. 7).

`fit_law` is the paper's: a sigmoid through a running average of the frontier's log2 n over log10 C. The paper does not
publish the average's window; here it is AVERAGING_WINDOW decades, centred, and cut off at the ends. `choose_law` is
that of mode "hierarchical": no average, weighted points, and the form (law_forms.py) chosen by AICc (Hurvich and Tsai
1989; where variances are known QAICc, Burnham and Anderson 2002, section 2.5). Both depart from the paper in that the
law saturates at most at twice the largest n measured. At a fixed batch B the same forms describe n*(M), over log10 M or
over M (Fig. 9).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from isojax.core.errors import InputError
from isojax.scaling.law.law_forms import (
    FORMS,
    Law,
    LawAxis,
    LawForm,
    LawPoints,
    fit_rising_sigmoid,
    weighted_mean_square,
)
from isojax.scaling.validation_metrics import FloatArray

AVERAGING_WINDOW = 0.25
# A linear axis is scaled so that the points span this many units, for the bounds of k and C0.
LINEAR_AXIS_DECADES = 2.0
# Residuals of log2 n below this are rounding: all forms that reach it count as equally exact.
EXACT_RESIDUAL = 1e-6


@dataclass(frozen=True)
class LawChoice:
    """Which form points support.

    Attributes:
        law: the best form's.
        aicc: form -> AICc, the smallest best; None where the points are too few for the form.
        weights: form -> Akaike weight, the evidence for it among the forms that were fitted; they sum to 1.
        laws: form -> its law, of the forms that were fitted.
    """

    law: Law
    aicc: dict[str, float | None]
    weights: dict[str, float]
    laws: dict[str, Law]


def log2_n_star(law: Law, C: ArrayLike) -> FloatArray:
    """log2 n*(C); C > 0, float[...] -> float[...]."""
    return FORMS[law.form].log2_n_star(law, _to_axis(np.asarray(C, dtype=np.float64), law.axis))


def n_star(law: Law, C: ArrayLike) -> FloatArray:
    """n*(C), not rounded; C > 0, float[...] -> float[...]."""
    return 2.0 ** log2_n_star(law, C)


def _to_axis(C: FloatArray, axis: LawAxis) -> FloatArray:
    return np.log10(C) if axis == "log10" else C


def running_average(x: FloatArray, y: FloatArray, window: float) -> FloatArray:
    """The mean of y over all points within window / 2 of each x; float[points]. A window of 0 changes nothing."""
    if window == 0:
        return y
    within_window = np.abs(x[:, None] - x[None, :]) <= window / 2 + 1e-12
    return (within_window @ y) / within_window.sum(1)


def fit_law(C: ArrayLike, n: ArrayLike, n_max: float, window: float = AVERAGING_WINDOW) -> Law:
    """The paper's law: a sigmoid through a frontier's running average.

    Args:
        C: float[points] > 0. n: float[points] >= 1, the frontier's n there.
        n_max: the largest n measured; the law saturates at 2 n_max at most.
        window: running average, in decades of C; 0 for none.

    Returns:
        A sigmoid with 0 <= b, 0 <= L, 0 < k <= 50; the constant law where n never changes.
    """
    x, log2_n = np.log10(np.asarray(C, dtype=np.float64)), np.log2(np.asarray(n, dtype=np.float64))
    if np.ptp(log2_n) == 0:
        return Law("constant", 0.0, 0.0, None, float(log2_n[0]))
    return fit_rising_sigmoid(LawPoints(x, running_average(x, log2_n, window), np.ones_like(x), math.log2(n_max) + 1))


def choose_law(
    C: ArrayLike,
    log2_n: ArrayLike,
    n_max: float,
    variance: ArrayLike | None = None,
    observations: float | None = None,
    window: float = 0.0,
    axis: LawAxis = "log10",
    falling: bool = False,
) -> LawChoice:
    """The form of n*(C) that points support, by weighted least squares and AICc; at a fixed batch n*(M), with M for C.

    Only forms are compared that have no more parameters than there are distinct n and fewer than there are distinct C
    and observations.

    Args:
        C: float[points] > 0, any order. log2_n: float[points] >= 0, n there, whole or estimated.
        n_max: the largest n measured; a sigmoid saturates at 2 n_max at most.
        variance: float[points] > 0 of log2_n; None: equal and unknown. If even the richest form misses the points by
            more than these explain, all are scaled up by one factor.
        observations: how many independent observations the points are worth where they are correlated; None: as many
            as there are points.
        window: of the running average, in units of the axis; 0 for none.
        axis: whether the law is a function of log10 C or of C itself.
        falling: whether the law may also fall.

    Raises:
        InputError: no point, arrays of different length, numbers that are not finite or not in these ranges.
    """
    C_values, y = np.asarray(C, dtype=np.float64), np.asarray(log2_n, dtype=np.float64)
    variances = np.ones_like(C_values) if variance is None else np.asarray(variance, dtype=np.float64)
    _check_points(C_values, y, variances, n_max)
    x, observation_count = _to_axis(C_values, axis), float(len(C_values) if observations is None else observations)
    axis_shift, axis_scale = (
        (0.0, 1.0) if axis == "log10" or np.ptp(x) == 0 else (float(x.min()), float(np.ptp(x)) / LINEAR_AXIS_DECADES)
    )
    x = (x - axis_shift) / axis_scale
    mean_variance = float(1 / np.mean(1 / variances))
    points = LawPoints(x, running_average(x, y, window / axis_scale), mean_variance / variances, math.log2(n_max) + 1)
    distinct_n, distinct_C = len(np.unique(y)), len(np.unique(x))

    def is_supported(form: LawForm) -> bool:
        unknown_count = form.parameter_count + (variance is None)
        return (
            form.parameter_count <= distinct_n
            and form.parameter_count < distinct_C
            and unknown_count + 1 < observation_count
        )

    laws = {name: form.fit(points, falling) for name, form in FORMS.items() if name == "constant" or is_supported(form)}
    mean_squares = {name: max(weighted_mean_square(law, points), EXACT_RESIDUAL**2) for name, law in laws.items()}
    aicc_scores = _aicc_scores(mean_squares, observation_count, None if variance is None else mean_variance)
    laws = {name: _undo_axis_scaling(law, axis_shift, axis_scale, axis) for name, law in laws.items()}
    best_form = min(aicc_scores, key=lambda name: aicc_scores[name])  # of equal ones the first, which is the simplest
    relative_likelihoods = {
        name: math.exp(-0.5 * (score - aicc_scores[best_form])) if name != best_form else 1.0
        for name, score in aicc_scores.items()
    }
    weights = {name: e / sum(relative_likelihoods.values()) for name, e in relative_likelihoods.items()}
    return LawChoice(laws[best_form], {name: _finite_or_none(aicc_scores.get(name)) for name in FORMS}, weights, laws)


def _finite_or_none(score: float | None) -> float | None:
    return score if score is not None and math.isfinite(score) else None


def _check_points(C: FloatArray, y: FloatArray, variance: FloatArray, n_max: float) -> None:
    if not len(C) or not C.shape == y.shape == variance.shape or C.ndim != 1:
        raise InputError(
            f"C{C.shape}, log2 n{y.shape} and variance{variance.shape}; expected one number each for at least one "
            "point."
        )
    for name, values, in_range in (
        ("C", C, C > 0),
        ("log2 n", y, y >= 0),
        ("the variance of log2 n", variance, variance > 0),
    ):
        if not np.all(in_range & np.isfinite(values)):
            bad_value = values[~(in_range & np.isfinite(values))][0]
            raise InputError(
                f"{name} is {bad_value:g} at a point; expected a finite number {'>= 0' if values is y else '> 0'}. "
                "Leave the point out."
            )
    if n_max < 2 ** y.max() * (1 - 1e-9):
        raise InputError(
            f"n_max = {n_max:g} is given as the largest n measured, but a point has n = {2 ** y.max():g}; expected at "
            "least that."
        )


def _aicc_scores(
    mean_squares: Mapping[str, float], observation_count: float, variance: float | None
) -> dict[str, float]:
    """AICc of each form from its mean square residual; the constant's is infinite where even it has too few
    observations.
    """
    scores = {}
    richest_form = max(mean_squares, key=lambda name: FORMS[name].parameter_count)
    for name, mean_square_residual in mean_squares.items():
        unknown_count = FORMS[name].parameter_count + (variance is None)
        if observation_count - unknown_count - 1 <= 0:
            scores[name] = math.inf
            continue
        misfit = observation_count * math.log(mean_square_residual)
        if variance is not None:
            residual_dof = max(observation_count - FORMS[richest_form].parameter_count, 1.0)
            misfit = (
                observation_count
                * mean_square_residual
                / max(variance, observation_count * mean_squares[richest_form] / residual_dof)
            )
        scores[name] = (
            misfit
            + 2 * unknown_count
            + 2 * unknown_count * (unknown_count + 1) / (observation_count - unknown_count - 1)
        )
    return scores


def _undo_axis_scaling(law: Law, shift: float, scale: float, axis: LawAxis) -> Law:
    log10_C0 = None if law.log10_C0 is None else law.log10_C0 * scale + shift
    return replace(law, k=law.k / scale, log10_C0=log10_C0, axis=axis)
