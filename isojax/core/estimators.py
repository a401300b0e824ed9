"""Estimates from c correct rollouts of N: the validation metrics of a problem.

Unbiased, for k <= N (Chen et al., arXiv:2107.03374, eq. 1):
    avg@k = c / N,    best@k = pass@k = 1 - C(N-c, k) / C(N, k),    worst@k = C(c, k) / C(N, k)
Drawn with replacement, as verl does, which is biased downwards for best and upwards for worst:
    verl/best@k = 1 - (1 - c/N)^k,    verl/worst@k = (c/N)^k
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isojax.core.errors import InputError

FloatArray = NDArray[np.float64]
ESTIMATOR_KINDS = ("avg", "best", "worst", "pass", "verl/best", "verl/worst")


@lru_cache(maxsize=256)
def _estimate_table(kind: str, k: int, N: int) -> FloatArray:
    """float[N + 1]: the estimate for c = 0 .. N; subsets are counted in exact integers."""
    fraction, num_subsets = np.arange(N + 1) / N, math.comb(N, k)
    if kind == "avg":
        return fraction
    if kind == "verl/best":
        return 1 - (1 - fraction) ** k
    if kind == "verl/worst":
        return fraction**k
    if kind == "worst":
        return np.array([math.comb(c, k) / num_subsets for c in range(N + 1)])
    return np.array([1 - math.comb(N - c, k) / num_subsets for c in range(N + 1)])


def estimate_at_k(counts: ArrayLike, samples: int, kind: str, k: int) -> FloatArray:
    """The estimate for each problem, float[...] in [0, 1], from int[...] correct rollouts of `samples`."""
    if kind not in ESTIMATOR_KINDS:
        raise InputError(f"estimate {kind!r} is not known; expected one of {', '.join(ESTIMATOR_KINDS)}.")
    if not 1 <= k <= samples:
        raise InputError(
            f"{kind}@{k} needs {k} samples per problem, but {samples} were drawn; ask for 1 <= k <= {samples}, or"
            " evaluate with more."
        )
    c = np.asarray(counts, dtype=np.int64)
    if c.size and (c.min() < 0 or c.max() > samples):
        raise InputError(
            f"correct rollouts range from {c.min()} to {c.max()}; expected 0..{samples}, the samples per problem."
            " Correct either."
        )
    return _estimate_table(kind, k, samples)[c]


def summarize_counts(counts: ArrayLike, samples: int) -> dict[str, float]:
    """The metrics of a problem set in a ledger: avg@N, best@N and worst@N with N = `samples`, means over problems."""
    if np.size(counts) == 0:
        raise InputError("no problem to summarize; expected at least one. Evaluate on a set that is not empty.")
    return {
        f"{kind}@{samples}": float(estimate_at_k(counts, samples, kind, samples).mean())
        for kind in ("avg", "best", "worst")
    }
