"""Estimates from c correct rollouts of N: the validation metrics of a problem.

Unbiased, for k <= N (Chen et al., arXiv:2107.03374, eq. 1):
    avg@k = c / N
    best@k = pass@k = 1 - C(N-c, k) / C(N, k)
    worst@k = C(c, k) / C(N, k)
Drawn with replacement, as verl does, which is biased downwards for best and upwards for worst:
    verl/best@k = 1 - (1 - c/N)^k
    verl/worst@k = (c/N)^k

Of graded rewards, from 0 to 1, the sum of N gives avg@k alone; best@N and worst@N are the largest
and the smallest reward.
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
    """float[N + 1]: the estimate for c = 0 .. N correct rollouts.

    kind: of ESTIMATOR_KINDS but "avg"; "best" and "pass" are the same. 1 <= k <= N. Subsets are
    counted in exact integers: C(N, k) may be larger than any float.
    """
    fraction = np.arange(N + 1) / N
    if kind == "verl/best":
        return 1 - (1 - fraction) ** k
    if kind == "verl/worst":
        return fraction**k

    num_subsets = math.comb(N, k)
    if kind == "worst":
        all_right = [math.comb(c, k) / num_subsets for c in range(N + 1)]
        return np.array(all_right)
    all_wrong = [math.comb(N - c, k) / num_subsets for c in range(N + 1)]
    return np.array([1 - share for share in all_wrong])


def estimate_at_k(counts: ArrayLike, samples: int, kind: str, k: int) -> FloatArray:
    """Each problem's estimate of kind@k, such as best@4, from its number of correct rollouts.

    counts: int[...], from 0 to `samples`; or float[...] where they are sums of graded rewards, of
        which only avg follows.
    samples: N, the rollouts of each problem.
    kind: one of ESTIMATOR_KINDS. k: from 1 to `samples`.

    Returns float[...] of the same shape, in [0, 1]. InputError for arguments that are none of
    these.
    """
    if kind not in ESTIMATOR_KINDS:
        raise InputError(
            where="estimate",
            found=f"given {kind!r}",
            expected=f"one of {', '.join(ESTIMATOR_KINDS)}",
        )
    if not 1 <= k <= samples:
        raise InputError(
            where=f"{kind}@{k}",
            found=f"{samples} samples per problem were drawn",
            expected=f"{k} or more",
            fix=f"Ask for 1 <= k <= {samples}.",
        )

    c = np.asarray(counts)
    if c.size and (c.min() < 0 or c.max() > samples):
        raise InputError(
            where="sums of rewards",
            found=f"given {c.min()} to {c.max()}",
            expected=f"0 to {samples}, the samples",
        )
    if kind == "avg":
        return c / samples  # It does not depend on k.
    if c.size and np.issubdtype(c.dtype, np.floating):
        raise InputError(
            where=f"{kind}@{k}",
            found="does not follow from sums of graded rewards",
            fix="Ask for avg@k.",
        )
    return _estimate_table(kind, k, samples)[c.astype(np.int64)]


def summarize_rewards(rewards: np.ndarray, reward_sums: np.ndarray) -> dict[str, float]:
    """The metrics of a problem set in a ledger: means over its problems of avg@N, best@N, worst@N.

    `rewards`: float[Q, N] of Q problems; `reward_sums`: [Q], their sums over a problem's N
    rollouts, integers where rewards are binary. Returns {"avg@4": 0.41, "best@4": ..., "worst@4":
    ...} of N = 4, in this order. InputError where there is no problem.
    """
    if rewards.size == 0:
        raise InputError(
            found="no problem to summarize",
            expected="at least one",
            fix="Evaluate on a set that is not empty.",
        )

    N = rewards.shape[1]
    rounded = np.round(rewards.astype(np.float64), 6)  # without float32's noise
    estimates = {
        "avg": reward_sums / N,
        "best": rounded.max(axis=1),
        "worst": rounded.min(axis=1),
    }
    return {f"{kind}@{N}": float(values.mean()) for kind, values in estimates.items()}
