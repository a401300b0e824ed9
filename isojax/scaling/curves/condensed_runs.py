"""A run with many evaluations as a few points that say the same of its curve, so that the time of a
fit follows the number of runs and not of evaluations.

A run of more than MAX_POINTS evaluations is divided into bins of equal width in log C. The
evaluations of a bin become one point at their mean log C and mean reward, which counts as many
evaluations as it has. A bin is so narrow that a curve is a line within it. What the mean does not
say, how far the evaluations of a bin scatter, is needed for the noise of one evaluation and is
kept with it. Shorter runs stay as they are, to the last bit."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.evaluation_noise import noise_sd
from isojax.scaling.tracks import FloatArray

MAX_POINTS = 64  # of a run, that at C = 0 included
# A bin needs so many evaluations for a median that a single outlier does not move.
MIN_FOR_MEDIAN = 3
# Evaluations further than this from those around them, in standard deviations of one, count as if
# they were at this distance; the fit's own loss treats single outliers alike.
OUTLIER_SD = 3.0


@dataclass(frozen=True)
class CondensedRun:
    """A run's points, in order of C; a point is one evaluation, or the mean of several."""

    x: FloatArray  # [points], log10 C; -inf at C = 0
    y: FloatArray  # [points], reward
    count: FloatArray  # [points], the evaluations of each point
    scatter: FloatArray  # [points], their variance around the run's course; 0 of a single one

    def trained(self) -> "CondensedRun":
        """The points at C > 0."""
        is_trained = np.isfinite(self.x)
        return CondensedRun(
            self.x[is_trained], self.y[is_trained], self.count[is_trained], self.scatter[is_trained]
        )


def single_evaluations(C: FloatArray, R: FloatArray) -> CondensedRun:
    """A run with a point for each evaluation; C, R: as of `condense_run`."""
    with np.errstate(divide="ignore"):
        x = np.log10(C)
    return CondensedRun(x, R, np.ones(len(x)), np.zeros(len(x)))


def condense_run(C: FloatArray, R: FloatArray) -> CondensedRun:
    """The points of a run with the rewards R at compute C, float[evaluations] each, C rising."""
    if len(C) <= MAX_POINTS:
        return single_evaluations(C, R)

    # an evaluation at C = 0 has no place in log C and stays alone
    first = int(C[0] == 0)
    base = single_evaluations(C[:first], R[:first])
    trained = _bin_means(np.log10(C[first:]), R[first:], noise_sd([R]))
    return CondensedRun(
        x=np.concatenate([base.x, trained.x]),
        y=np.concatenate([base.y, trained.y]),
        count=np.concatenate([base.count, trained.count]),
        scatter=np.concatenate([base.scatter, trained.scatter]),
    )


def _bin_means(x: FloatArray, y: FloatArray, evaluation_sd: float) -> CondensedRun:
    """One point for each bin that has evaluations; x, y: float[evaluations], x rising."""
    bins = bin_indices(x, MAX_POINTS - 1)
    count = np.bincount(bins).astype(np.float64)
    x_mean = np.bincount(bins, x) / count

    # How far each evaluation is from the middle of its bin, once the run's slope is taken off.
    middle = _medians(bins, y, count)
    slope = np.gradient(middle, x_mean)
    deviation = y - middle[bins] - slope[bins] * (x - x_mean[bins])
    may_clip = (count >= MIN_FOR_MEDIAN)[bins] & (evaluation_sd > 0)
    limit = np.where(may_clip, OUTLIER_SD * evaluation_sd, np.inf)
    deviation = np.clip(deviation, -limit, limit)

    shift = np.bincount(bins, deviation) / count
    scatter = np.bincount(bins, (deviation - shift[bins]) ** 2) / count
    return CondensedRun(x_mean, middle + shift, count, scatter)


def bin_indices(x: FloatArray, bins: int) -> NDArray[np.intp]:
    """int[points]: the bin of each value, of equal widths over their range; bins without a value
    are left out, so that every index up to the largest occurs. x: float[points]."""
    position = (x - x.min()) / max(float(np.ptp(x)), 1e-300)
    in_order = np.minimum((position * bins).astype(np.intp), bins - 1)
    return np.unique(in_order, return_inverse=True)[1]


def _medians(bins: NDArray[np.intp], y: FloatArray, count: FloatArray) -> FloatArray:
    """float[bins]: the median of the values y of each bin."""
    in_order = y[np.lexsort((y, bins))]
    start = np.concatenate([[0], np.cumsum(count)[:-1]]).astype(np.intp)
    size = count.astype(np.intp)
    return (in_order[start + (size - 1) // 2] + in_order[start + size // 2]) / 2
