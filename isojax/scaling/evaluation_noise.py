"""How noisy evaluations are, and how far one leads another on the same problems."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isojax.core.errors import InputError
from isojax.core.estimators import FloatArray
from isojax.core.nouns import EvalPoint
from isojax.scaling.reward_metric import correct_counts, metric_per_problem

_CHI_SQUARE_MEDIAN = 0.455  # of one degree of freedom
_BEND_VARIANCE = 1.5  # of a value minus the mean of its two neighbours, in variances of one value
_ROUNDING = 1e-9  # values of this size are residuals of a computed curve: their ratios mean nothing


@dataclass(frozen=True)
class PairedDifference:
    """The mean over validation problems of a paired difference of the metric, and its standard
    error."""

    mean: float
    se: float

    @property
    def z(self) -> float:
        """mean / se; 0 where both are 0, infinite where only se is."""
        if self.se > 0:
            return self.mean / self.se
        return math.copysign(math.inf, self.mean) if self.mean else 0.0


def paired_lead(
    a: Sequence[EvalPoint], b: Sequence[EvalPoint], metric: str
) -> PairedDifference | None:
    """How far the evaluations a are above the evaluations b on the same validation problems.

    a, b: such as one for each seed, at least one; metric: such as "avg@4". The standard error is
    that over other problems and samples; pairing by problem makes it small. None where some
    evaluation has no counts of right answers per problem, or the numbers of samples differ.
    InputError for different numbers of problems, or a single one."""
    sample_counts = {p.samples for p in (*a, *b)}
    counts_a = [correct_counts(p, metric) for p in a]
    counts_b = [correct_counts(p, metric) for p in b]
    if len(sample_counts) != 1 or not all([*counts_a, *counts_b]):
        return None

    N_a = len(counts_a[0])
    N_b = len(counts_b[0])
    if N_a != N_b or N_a < 2:
        raise InputError(
            found=f"{N_a} validation problems are to be paired with {N_b}",
            expected="the same ones, at least 2",
            fix="Evaluate both on one set.",
        )

    samples = a[0].samples
    mean_a = metric_per_problem(counts_a, samples, metric).mean(0)  # [N], over the seeds
    mean_b = metric_per_problem(counts_b, samples, metric).mean(0)
    differences = mean_a - mean_b
    se = differences.std(ddof=1) / math.sqrt(N_a)
    return PairedDifference(mean=float(differences.mean()), se=float(se))


def running_means(values: FloatArray, width: int) -> FloatArray:
    """The mean of each `width` consecutive values: float[N] -> float[N - width + 1], N >= width."""
    return np.convolve(values, np.full(width, 1 / width), mode="valid")


def noise_sd(values_by_run: Sequence[FloatArray]) -> float:
    """The standard deviation of one value around a smooth course; 0 for too few values.

    It follows from the median distance of a value to the mean of its two neighbours, which single
    jumps do not affect. values_by_run: float[points] of each run, in order of C."""
    bends = [r[1:-1] - (r[:-2] + r[2:]) / 2 for r in values_by_run if len(r) > 2]
    if not bends:
        return 0.0
    median_square = np.median(np.concatenate(bends) ** 2)
    return float(np.sqrt(median_square / _CHI_SQUARE_MEDIAN / _BEND_VARIANCE))


def difference_sd(residuals_by_run: Sequence[FloatArray]) -> float:
    """The standard deviation of one evaluation, from how much neighbouring residuals differ.

    residuals_by_run: float[points] of each run, in order of C; 0 without neighbours."""
    differences = [np.diff(r) for r in residuals_by_run if len(r) > 1]
    if not differences:
        return 0.0
    # A difference of two evaluations has twice the variance of one.
    return float(np.sqrt(np.mean(np.concatenate(differences) ** 2) / 2))


def autocorrelation(residuals_by_run: Sequence[FloatArray]) -> float | None:
    """Correlation of neighbouring residuals; None without neighbours, or where all are rounding.

    residuals_by_run: float[points] of each run, in order of C."""
    products = [r[1:] * r[:-1] for r in residuals_by_run if len(r) > 1]
    if not products:
        return None
    variance = float(np.mean(np.concatenate(residuals_by_run) ** 2))
    if variance <= _ROUNDING**2:
        return None
    return float(np.mean(np.concatenate(products)) / variance)


def reduced_chi_square(residuals_by_run: Sequence[FloatArray]) -> float | None:
    """The mean squared residual over the variance of one evaluation: near 1 where the curves fit.

    The variance is that of `difference_sd`. None without neighbours, or where the residuals are
    rounding. residuals_by_run: float[points] of each run, in order of C."""
    evaluation_sd = difference_sd(residuals_by_run)
    if evaluation_sd <= _ROUNDING:
        return None
    return float(np.mean(np.concatenate(residuals_by_run) ** 2) / evaluation_sd**2)
