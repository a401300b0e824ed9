"""A smooth correction of each cell's curve inside its measured range: a Gaussian process over log10 C with correlation
length CORRELATION_DECADES and one amplitude, used only if it raises twice the log likelihood by
MIN_LOG_LIKELIHOOD_GAIN. It fades to 0 within FADE_DECADES outside the knots.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from isojax.core.estimators import FloatArray

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
        knots = [self.log10_C[0] - FADE_DECADES, *self.log10_C, self.log10_C[-1] + FADE_DECADES]
        return np.interp(np.log10(np.asarray(C, dtype=np.float64)), knots, [0.0, *self.value, 0.0])

    def sample(self, C: ArrayLike, replicates: int, key: tuple[int, int]) -> FloatArray:
        """The same of replicates, float[G] -> float[Q, G]; the cell's key seeds them, so that no file holds them."""
        knot_weights = np.stack(
            [ResidualCorrection(self.log10_C, tuple(row), self.sd).evaluate(C) for row in np.eye(len(self.log10_C))]
        )
        normal_draws = np.random.default_rng(key).normal(size=(replicates, len(self.log10_C)))
        for k in range(1, len(self.log10_C)):
            innovation = np.sqrt(1 - _KNOT_CORRELATION**2) * normal_draws[:, k]
            normal_draws[:, k] = _KNOT_CORRELATION * normal_draws[:, k - 1] + innovation
        return (np.array(self.value) + np.array(self.sd) * normal_draws) @ knot_weights


def fit_corrections(
    log10_C: Sequence[FloatArray], residuals: Sequence[FloatArray], evaluation_sd: float
) -> list[ResidualCorrection | None]:
    """A correction for each cell, or None for all, from the residuals at C > 0 of each cell, its seeds together."""
    if evaluation_sd <= 0 or not log10_C:
        return [None] * len(log10_C)
    evaluation_sd = max(evaluation_sd, MIN_EVALUATION_SD)
    spectra = []
    for x, r in zip(log10_C, residuals, strict=True):
        eigenvalues, eigenvectors = np.linalg.eigh(_correlation(x, x))
        spectra.append((np.maximum(eigenvalues, 0), ((eigenvectors.T @ r) / evaluation_sd) ** 2))

    def log_likelihood_gain(amplitude: float) -> float:
        gain = 0.0
        for eigenvalues, squared_projections in spectra:
            signal_to_noise = amplitude**2 * eigenvalues / evaluation_sd**2
            explained = squared_projections * signal_to_noise / (1 + signal_to_noise)
            gain += float((explained - np.log1p(signal_to_noise)).sum())
        return gain

    gains = [log_likelihood_gain(amplitude) for amplitude in AMPLITUDES]
    if max(gains) < MIN_LOG_LIKELIHOOD_GAIN:
        return [None] * len(log10_C)
    amplitude = AMPLITUDES[int(np.argmax(gains))]
    return [_posterior_correction(x, r, amplitude, evaluation_sd) for x, r in zip(log10_C, residuals, strict=True)]


def _correlation(a: FloatArray, b: FloatArray) -> FloatArray:
    """float[len(a), len(b)], the prior correlation of a correction at two log10 C."""
    return np.exp(-0.5 * ((a[:, None] - b[None, :]) / CORRELATION_DECADES) ** 2)


def _posterior_correction(
    log10_C: FloatArray, residuals: FloatArray, amplitude: float, evaluation_sd: float
) -> ResidualCorrection:
    knots = np.linspace(log10_C.min(), log10_C.max(), max(2, int(np.ceil(np.ptp(log10_C) / KNOT_DECADES)) + 1))
    cross_covariance = amplitude**2 * _correlation(knots, log10_C)
    covariance = amplitude**2 * _correlation(log10_C, log10_C) + evaluation_sd**2 * np.eye(len(log10_C))
    solutions = np.linalg.solve(covariance, np.column_stack([residuals, cross_covariance.T]))
    mean = cross_covariance @ solutions[:, 0]
    variance = amplitude**2 - np.einsum("kp,pk->k", cross_covariance, solutions[:, 1:])
    sd = np.sqrt(np.maximum(variance, 0.0))
    return ResidualCorrection(tuple(knots.tolist()), tuple(mean.tolist()), tuple(sd.tolist()))
