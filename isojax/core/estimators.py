"""Estimates from c correct rollouts of N: the validation metrics of a problem. Of graded rewards,
from 0 to 1, the sum of N gives avg@k alone; best@N and worst@N are the largest and the smallest
reward.

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
    if kind == "verl/best":
        return 1 - (1 - fraction) ** k
    if kind == "verl/worst":
        return fraction**k
    if kind == "worst":
        return np.array([math.comb(c, k) / num_subsets for c in range(N + 1)])
    return np.array([1 - math.comb(N - c, k) / num_subsets for c in range(N + 1)])


def estimate_at_k(counts: ArrayLike, samples: int, kind: str, k: int) -> FloatArray:
    """Each problem's estimate in [0, 1], from int[...] correct rollouts of `samples`; avg also from
    sums of rewards."""
    if kind not in ESTIMATOR_KINDS:
        raise InputError(
            f"estimate {kind!r} is not known; expected one of {', '.join(ESTIMATOR_KINDS)}."
        )
    if not 1 <= k <= samples:
        drawn = f"{samples} were drawn; ask for 1 <= k <= {samples}"
        raise InputError(f"{kind}@{k} needs {k} samples per problem, but {drawn}.")
    c = np.asarray(counts)
    if c.size and (c.min() < 0 or c.max() > samples):
        raise InputError(
            f"sums of rewards range from {c.min()} to {c.max()}; expected 0..{samples}, the samples."
        )
    if kind == "avg":
        return c / samples
    if c.size and np.issubdtype(c.dtype, np.floating):
        raise InputError(f"{kind}@{k} does not follow from sums of graded rewards; ask for avg@k.")
    return _estimate_table(kind, k, samples)[c.astype(np.int64)]


def summarize_rewards(rewards: np.ndarray, reward_sums: np.ndarray) -> dict[str, float]:
    """The metrics of a problem set in a ledger: avg@N, best@N and worst@N, means over Q problems of
    float[Q, N]."""
    if rewards.size == 0:
        raise InputError(
            "no problem to summarize; expected at least one. Evaluate on a set that is not empty."
        )
    N = rewards.shape[1]
    rounded = np.round(rewards.astype(np.float64), 6)  # without float32's noise
    estimates = {"avg": reward_sums / N, "best": rounded.max(1), "worst": rounded.min(1)}
    return {f"{kind}@{N}": float(values.mean()) for kind, values in estimates.items()}
