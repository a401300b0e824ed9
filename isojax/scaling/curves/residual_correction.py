"""A smooth correction of each cell's curve inside its measured range, where its evaluations depart from every shape of
hill.py.

The correction is a Gaussian process over log10 C with correlation length CORRELATION_DECADES and one amplitude for the
sweep. It is used only if it raises twice the log likelihood of the residuals by MIN_LOG_LIKELIHOOD_GAIN. It fades to 0
within FADE_DECADES outside the knots, so beyond the data the joint surface alone determines the curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling.validation_metrics import FloatArray

CORRELATION_DECADES = 0.3
AMPLITUDES = (0.003, 0.005, 0.008, 0.012, 0.018, 0.025, 0.035, 0.05)
MIN_LOG_LIKELIHOOD_GAIN = 10.0  # of twice the log likelihood, for one fitted number
MIN_EVALUATION_SD = 1e-6  # less is rounding, and two seeds at one C would make the covariance singular
KNOT_DECADES = 0.2
FADE_DECADES = 0.3
_KNOT_CORRELATION = 0.7  # of a correction's error from one knot to the next


@dataclass(frozen=True)
class ResidualCorrection:
    """A cell's correction at knots: log10_C rising, the reward to add, and its standard deviation."""

    log10_C: tuple[float, ...]
    value: tuple[float, ...]
    sd: tuple[float, ...]

    def evaluate(self, C: ArrayLike) -> FloatArray:
        """Reward to add at C > 0, float[...] -> float[...]."""
        log10_C = np.log10(np.asarray(C, dtype=np.float64))
        return np.interp(log10_C, *_fade_out(self.log10_C, self.value))

    def sample(self, C: ArrayLike, normal_draws: FloatArray) -> FloatArray:
        """The same of replicates, with normal_draws float[Q, knots] from `correlated_normals`; float[G] -> float[Q,
        G].
        """
        log10_C = np.log10(np.asarray(C, dtype=np.float64))
        knots = np.array([*self.log10_C])
        knot_weights = np.stack(
            [np.interp(log10_C, *_fade_out(self.log10_C, tuple(row))) for row in np.eye(len(knots))]
        )
        return (np.array(self.value) + np.array(self.sd) * normal_draws) @ knot_weights


def _fade_out(knots: Sequence[float], values: Sequence[float]) -> tuple[FloatArray, FloatArray]:
    return np.array([knots[0] - FADE_DECADES, *knots, knots[-1] + FADE_DECADES]), np.array([0.0, *values, 0.0])


def correlated_normals(replicates: int, knot_count: int, key: tuple[int, int]) -> FloatArray:
    """float[Q, knots], standard normal and correlated along the knots. They depend on the cell's key = (B_p, n) alone,
    so files need not store them.
    """
    noise = np.random.default_rng(key).normal(size=(replicates, knot_count))
    for k in range(1, knot_count):
        noise[..., k] = _KNOT_CORRELATION * noise[..., k - 1] + np.sqrt(1 - _KNOT_CORRELATION**2) * noise[..., k]
    return noise


def fit_corrections(
    log10_C: Sequence[FloatArray], residuals: Sequence[FloatArray], evaluation_sd: float
) -> list[ResidualCorrection | None]:
    """A correction for each cell, or None for all.

    Args:
        log10_C: of each cell's points at C > 0, its seeds together.
        residuals: the evaluations minus the fitted curve, at the same points.
        evaluation_sd: standard deviation of one evaluation, from the differences of neighbours.
    """
    if evaluation_sd <= 0 or not log10_C:
        return [None] * len(log10_C)
    evaluation_sd = max(evaluation_sd, MIN_EVALUATION_SD)
    squared_distances = [((a[:, None] - a[None, :]) / CORRELATION_DECADES) ** 2 for a in log10_C]
    kernels = [np.exp(-0.5 * d) for d in squared_distances]
    eigensystems = [np.linalg.eigh(K) for K in kernels]

    def log_likelihood_gain(amplitude: float) -> float:
        total_gain = 0.0
        for (eigenvalues, eigenvectors), r in zip(eigensystems, residuals, strict=True):
            signal_to_noise = amplitude**2 * np.maximum(eigenvalues, 0) / evaluation_sd**2
            total_gain += float(
                (
                    ((eigenvectors.T @ r) / evaluation_sd) ** 2 * signal_to_noise / (1 + signal_to_noise)
                    - np.log1p(signal_to_noise)
                ).sum()
            )
        return total_gain

    gains = [log_likelihood_gain(size) for size in AMPLITUDES]
    if max(gains) < MIN_LOG_LIKELIHOOD_GAIN:
        return [None] * len(log10_C)
    size = AMPLITUDES[int(np.argmax(gains))]
    return [
        _posterior_correction(a, r, K, size, evaluation_sd) for a, r, K in zip(log10_C, residuals, kernels, strict=True)
    ]


def _posterior_correction(
    log10_C: FloatArray, residuals: FloatArray, kernel: FloatArray, amplitude: float, evaluation_sd: float
) -> ResidualCorrection:
    knots = np.linspace(log10_C.min(), log10_C.max(), max(2, int(np.ceil(np.ptp(log10_C) / KNOT_DECADES)) + 1))
    cross_covariance = amplitude**2 * np.exp(-0.5 * ((knots[:, None] - log10_C[None, :]) / CORRELATION_DECADES) ** 2)
    solutions = np.linalg.solve(
        amplitude**2 * kernel + evaluation_sd**2 * np.eye(len(log10_C)),
        np.column_stack([residuals, cross_covariance.T]),
    )
    variance = amplitude**2 - np.einsum("kp,pk->k", cross_covariance, solutions[:, 1:])
    return ResidualCorrection(
        *(tuple(v.tolist()) for v in (knots, cross_covariance @ solutions[:, 0], np.sqrt(np.maximum(variance, 0.0))))
    )
