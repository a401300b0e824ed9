"""Intervals of replicates: one level, one number of replicates and one seed for the whole package.

A replicate is one draw of all curves from their posterior, one refit to resampled residuals, or one refit to resampled
points. An interval runs from the 5th to the 95th percentile of the replicates.
"""

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling.validation_metrics import FloatArray

LEVEL = 0.9
REPLICATES = 500
SEED = 0
Interval = tuple[float | None, float | None]


def central_interval(values: ArrayLike, level: float = LEVEL) -> Interval:
    """The central `level` of replicates, float[Q]. An infinite bound is None: an open end.

    Infinite replicates mean that the quantity is beyond the data; percentiles are then not interpolated.
    """
    samples = np.asarray(values, dtype=np.float64)
    method = "linear" if np.isfinite(samples).all() else "nearest"
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], method=method)
    return (float(low) if np.isfinite(low) else None, float(high) if np.isfinite(high) else None)


def central_band(values: FloatArray, level: float = LEVEL) -> tuple[FloatArray, FloatArray]:
    """The lower and upper bounds along the first axis of finite replicates: float[Q, ...] -> two float[...]."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high
