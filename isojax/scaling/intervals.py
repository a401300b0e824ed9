"""Intervals of replicates (draws, or refits to resampled residuals or points): one level, number and seed for all."""

from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from isojax.core.limits import MAX_COUNT, MAX_NUMBER
from isojax.scaling.tracks import FloatArray

LEVEL = 0.9
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
REPLICATES = 500
SEED = 0
OpenInterval = tuple[float | None, float | None]  # None: an open end
Size = Annotated[int, Field(ge=1, le=MAX_COUNT)]  # of a cell in a file, its B_p or n
Positive = Annotated[float, Field(gt=0, le=MAX_NUMBER)]  # its compute, or what is a factor


def central_interval(values: ArrayLike, discrete: bool = False) -> OpenInterval:
    """The central LEVEL of replicates float[Q]; an infinite bound is None, an open end; both are None if Q is 0. The
    bounds of `discrete` values are among them."""
    samples = np.asarray(values, dtype=np.float64)
    if not samples.size:
        return None, None
    method = "nearest" if discrete or not np.isfinite(samples).all() else "linear"
    low, high = np.quantile(samples, TAILS, method=method)
    return (float(low) if np.isfinite(low) else None, float(high) if np.isfinite(high) else None)


def central_band(values: FloatArray, discrete: bool = False) -> tuple[FloatArray, FloatArray]:
    """The lower and upper bounds along the first axis of finite replicates: float[Q, ...] -> two float[...]."""
    low, high = np.quantile(values, TAILS, axis=0, method="nearest" if discrete else "linear")
    return low, high
