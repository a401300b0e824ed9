"""n*(C), the compute-optimal rollouts per problem (IsoCompute Playbook, arXiv:2603.12151, section 4.1, Fig. 7).

`fit_law` is the paper's: a sigmoid through a running average of the frontier's log2 n over log10 C. The paper does not
publish the average's window; here it is AVERAGING_WINDOW decades, centred, and cut off at the ends. `choose_law` is
that of mode "hierarchical": no average, weighted points, and the form (law_forms.py) chosen by AICc (Hurvich and Tsai
1989; where variances are known QAICc, Burnham and Anderson 2002, section 2.5). Both depart from the paper in that the
law saturates at most at twice the largest n measured. At a fixed batch B the same forms describe n*(M) over log10 M.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling.law.law_forms import FORMS, Law, LawForm, LawPoints, fit_rising_sigmoid, weighted_mean_square
from isojax.scaling.validation_metrics import FloatArray, as_float64

AVERAGING_WINDOW = 0.25
# Residuals of log2 n below this are rounding: all forms that reach it count as equally exact.
EXACT_RESIDUAL = 1e-6


@dataclass(frozen=True)
class LawChoice:
    """Which form points support."""

    law: Law  # the best form's
    aicc: dict[str, float | None]  # form -> AICc, the smallest best; None where the points are too few for the form
    weights: dict[str, float]  # form -> Akaike weight, its share of the evidence for all that were fitted
    laws: dict[str, Law]  # of the forms that were fitted


def log2_n_star(law: Law, C: ArrayLike) -> FloatArray:
    """log2 n*(C); C > 0, float[...] -> float[...]."""
    return FORMS[law.form].log2_n_star(law, np.log10(as_float64(C)))


def n_star(law: Law, C: ArrayLike) -> FloatArray:
    """n*(C), not rounded; C > 0, float[...] -> float[...]."""
    return 2.0 ** log2_n_star(law, C)


def running_average(x: FloatArray, y: FloatArray, window: float) -> FloatArray:
    """The mean of y over all points within window / 2 of each x; float[points]."""
    within_window = np.abs(x[:, None] - x[None, :]) <= window / 2 + 1e-12
    return (within_window @ y) / within_window.sum(1)


def fit_law(C: ArrayLike, n: ArrayLike, n_max: float, window: float = AVERAGING_WINDOW) -> Law:
    """The paper's law: a sigmoid through a frontier's running average, with 0 <= b, 0 <= L, 0 < k <= 50; constant where
    n never changes.

    Args:
        C: float[points] > 0. n: float[points] >= 1, the frontier's n there.
        n_max: the largest n measured; the law saturates at 2 n_max at most.
        window: of the running average, in decades of C; 0 for none.
    """
    x, log2_n = np.log10(as_float64(C)), np.log2(as_float64(n))
    if np.ptp(log2_n) == 0:
        return Law("constant", 0.0, 0.0, None, float(log2_n[0]))
    return fit_rising_sigmoid(LawPoints(x, running_average(x, log2_n, window), np.ones_like(x), math.log2(n_max) + 1))


def choose_law(
    C: ArrayLike,
    log2_n: ArrayLike,
    n_max: float,
    variance: ArrayLike | None = None,
    observations: float | None = None,
    falling: bool = False,
) -> LawChoice:
    """The form of n*(C) that points support, by weighted least squares and AICc.

    Only forms are compared that have no more parameters than there are distinct n and fewer than there are distinct C
    and observations.

    Args:
        C: float[points] > 0, any order. log2_n: float[points] >= 0, n there, whole or estimated.
        n_max: the largest n measured; a sigmoid saturates at 2 n_max at most.
        variance: float[points] > 0 of log2_n; None: equal and unknown. If even the richest form misses the points by
            more than these explain, all are scaled up by one factor.
        observations: how many independent observations the points are worth where they are correlated; None: as many
            as there are points.
        falling: whether the law may also fall.
    """
    x, y = np.log10(as_float64(C)), as_float64(log2_n)
    variances = np.ones_like(x) if variance is None else as_float64(variance)
    mean_variance = float(1 / np.mean(1 / variances))
    points = LawPoints(x, y, mean_variance / variances, math.log2(n_max) + 1)
    observation_count = float(len(x) if observations is None else observations)
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
    scores = _aicc_scores(mean_squares, observation_count, None if variance is None else mean_variance)
    best_form = min(scores, key=lambda name: scores[name])  # of equal ones the first, which is the simplest
    likelihoods = {
        name: 1.0 if name == best_form else math.exp(-0.5 * (score - scores[best_form]))
        for name, score in scores.items()
    }
    return LawChoice(
        law=laws[best_form],
        aicc={name: scores[name] if math.isfinite(scores.get(name, math.inf)) else None for name in FORMS},
        weights={name: likelihood / sum(likelihoods.values()) for name, likelihood in likelihoods.items()},
        laws=laws,
    )


def _aicc_scores(
    mean_squares: Mapping[str, float], observation_count: float, variance: float | None
) -> dict[str, float]:
    """AICc of each form from its mean square residual; infinite where even the constant has too few observations."""
    scores = {}
    richest_form = max(mean_squares, key=lambda name: FORMS[name].parameter_count)
    for name, mean_square_residual in mean_squares.items():
        unknown_count = FORMS[name].parameter_count + (variance is None)
        spare_count = observation_count - unknown_count - 1
        if spare_count <= 0:
            scores[name] = math.inf
            continue
        misfit = observation_count * math.log(mean_square_residual)
        if variance is not None:
            residual_dof = max(observation_count - FORMS[richest_form].parameter_count, 1.0)
            richest_variance = observation_count * mean_squares[richest_form] / residual_dof
            misfit = observation_count * mean_square_residual / max(variance, richest_variance)
        scores[name] = misfit + 2 * unknown_count + 2 * unknown_count * (unknown_count + 1) / spare_count
    return scores
