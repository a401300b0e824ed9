"""Values along a run: running means, and the noise of one value."""

from collections.abc import Sequence

import numpy as np

from isojax.core.estimators import FloatArray

_CHI_SQUARE_MEDIAN = 0.455  # of one degree of freedom
_BEND_VARIANCE = 1.5  # of a value minus the mean of its two neighbours, in variances of one value
_ROUNDING = 1e-9  # values of this size are residuals of a computed curve: their ratios mean nothing


def running_means(values: FloatArray, width: int) -> FloatArray:
    """The mean of each `width` consecutive values."""
    return np.convolve(values, np.full(width, 1 / width), mode="valid")


def noise_sd(values_by_run: Sequence[FloatArray]) -> float:
    """Standard deviation of one value, from its median distance to the mean of its neighbours; 0 of too few values."""
    bends = [r[1:-1] - (r[:-2] + r[2:]) / 2 for r in values_by_run if len(r) > 2]
    return float(np.sqrt(np.median(np.concatenate(bends) ** 2) / _CHI_SQUARE_MEDIAN / _BEND_VARIANCE)) if bends else 0.0


def difference_sd(residuals_by_run: Sequence[FloatArray]) -> float:
    """Standard deviation of one evaluation from how residuals differ from their neighbours."""
    differences = [np.diff(r) for r in residuals_by_run if len(r) > 1]
    return float(np.sqrt(np.mean(np.concatenate(differences) ** 2) / 2)) if differences else 0.0


def autocorrelation(residuals_by_run: Sequence[FloatArray]) -> float | None:
    """Correlation of neighbouring residuals; None where there are no neighbours or the residuals are rounding."""
    products = [r[1:] * r[:-1] for r in residuals_by_run if len(r) > 1]
    variance = float(np.mean(np.concatenate(residuals_by_run) ** 2)) if products else 0.0
    return float(np.mean(np.concatenate(products)) / variance) if variance > _ROUNDING**2 else None


def reduced_chi_square(residuals_by_run: Sequence[FloatArray], evaluation_sd: float) -> float | None:
    """Mean squared residual in variances of one evaluation; None without residuals, or where they are rounding."""
    if evaluation_sd <= _ROUNDING or not sum(map(len, residuals_by_run)):
        return None
    return float(np.mean(np.concatenate(residuals_by_run) ** 2) / evaluation_sd**2)
