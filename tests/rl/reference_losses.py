"""The RL recipes' formulas as plain float64 loops over ragged batches, from the papers; nothing
here is vectorised, jitted or fast.

A response is one 1-D array, a batch a list of responses. Every loss takes `logps` twice: as the
variable, and as `held`, the same numbers under stop-gradient; `slope` moves the variable alone,
which gives the gradient that an automatic one must equal. The loops themselves are checked against
TRL and verl in test_reference_losses.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Response = np.ndarray  # f64[tokens of this response]
Batch = Sequence[Response]


class Clip(NamedTuple):
    """The surrogate is flat where the ratio leaves [1 - low, 1 + high] in the direction the
    advantage pushes."""

    low: float
    high: float


# --- the value of each token's loss: (variable logps, the same held, the sampler's, advantages,
# clip), all of one response


def clipped(ratio: float, advantage: float, clip: Clip) -> float:
    """PPO's pessimistic surrogate, arXiv:1707.06347 eq. 7, as a loss."""
    inside = min(max(ratio, 1 - clip.low), 1 + clip.high)
    return -min(ratio * advantage, inside * advantage)


def grpo(
    logps: Response, held: Response, sampler: Response, advantages: Response, clip: Clip
) -> Response:
    """DeepSeekMath, arXiv:2402.03300 eq. 3, without its KL. Dr. GRPO (2503.20783), DAPO
    (2503.14476), PPO and REINFORCE++ (2501.03262) share it: they differ in the advantages, the two
    clip bounds and the aggregation."""
    return np.array(
        [clipped(math.exp(logps[t] - sampler[t]), advantages[t], clip) for t in range(len(logps))]
    )


def gspo(
    logps: Response, held: Response, sampler: Response, advantages: Response, clip: Clip
) -> Response:
    """GSPO-token, arXiv:2507.18071 eq. 13-14: a sequence's ratio is the geometric mean of its
    tokens', held, times exp(logp - held).
    """
    sequence = math.exp(sum(held[t] - sampler[t] for t in range(len(held))) / len(held))
    return np.array(
        [
            clipped(sequence * math.exp(logps[t] - held[t]), advantages[t], clip)
            for t in range(len(logps))
        ]
    )


def cispo(
    logps: Response, held: Response, sampler: Response, advantages: Response, clip: Clip
) -> Response:
    """MiniMax-M1, arXiv:2506.13585 eq. 4-5: REINFORCE weighted by the held ratio, cut above
    alone."""
    weights = [min(math.exp(held[t] - sampler[t]), 1 + clip.high) for t in range(len(logps))]
    return np.array([-weights[t] * advantages[t] * logps[t] for t in range(len(logps))])


def rloo(
    logps: Response, held: Response, sampler: Response, advantages: Response, clip: Clip
) -> Response:
    """Ahmadian et al., arXiv:2402.14740: REINFORCE with no clipping, here importance-weighted by
    the ratio (equal gradient at 1).
    """
    return np.array([-math.exp(logps[t] - sampler[t]) * advantages[t] for t in range(len(logps))])


LOSSES = {
    "grpo": grpo,
    "dr_grpo": grpo,
    "dapo": grpo,
    "ppo": grpo,
    "reinforce_pp": grpo,
    "gspo": gspo,
    "cispo": cispo,
    "rloo": rloo,
}
Loss = Callable[[Response, Response, Response, Response, Clip], Response]


def importance(
    held: Response, sampler: Response, level: str, mode: str, cap: float, low: float = 0.0
) -> Response:
    """Truncated importance sampling's weight of each token: pi_trainer / pi_sampler of the token or
    of the whole response. IcePop (arXiv:2510.18855) masks what is outside [low, cap].
    """
    log_ratios = [held[t] - sampler[t] for t in range(len(held))]
    weights = []
    for t in range(len(held)):
        w = math.exp(log_ratios[t]) if level == "token" else math.exp(sum(log_ratios))
        if mode == "truncate":
            weights.append(min(w, cap))
        elif mode == "mask":
            weights.append(w if low <= w <= cap else 0.0)
        else:
            raise ValueError(mode)
    return np.array(weights)


def corrected(
    loss: Loss,
    logps: Response,
    held: Response,
    sampler: Response,
    advantages: Response,
    clip: Clip,
    *tis: object,
) -> Response:
    """A loss under TIS (level, mode, cap, low): its ratio is to the trainer's held
    log-probabilities, its tokens are weighted.
    """
    weights = importance(held, sampler, *tis)  # type: ignore[arg-type]
    values = loss(logps, held, held, advantages, clip)
    return np.array([weights[t] * values[t] for t in range(len(values))])


def value_loss(values: Response, before: Response, returns: Response, clip: float) -> Response:
    """The critic's clipped loss (PPO's code; verl's `cliprange_value`): half the larger of two
    squared errors."""
    losses = []
    for t in range(len(values)):
        near = min(max(values[t], before[t] - clip), before[t] + clip)
        losses.append(0.5 * max((values[t] - returns[t]) ** 2, (near - returns[t]) ** 2))
    return np.array(losses)


# --- regularisers, a token


def kl(kind: str, logps: Response, base: Response) -> Response:
    """Schulman's estimators of KL(policy || base), from the sampled token's log-probabilities."""
    forms = {"k1": lambda d: -d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(d) - 1 - d}
    return np.array([forms[kind](base[t] - logps[t]) for t in range(len(logps))])


def entropy(logits: np.ndarray) -> Response:
    """-sum p log p over the vocabulary, of f64[tokens V]."""
    result = []
    for row in logits:
        top = max(row)
        log_sum = top + math.log(sum(math.exp(x - top) for x in row))
        result.append(-sum(math.exp(x - log_sum) * (x - log_sum) for x in row))
    return np.array(result)


# --- advantages, of rewards in the order of the responses, whose group is `groups[i]`


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def sample_std(numbers: Sequence[float]) -> float:
    """With n - 1 below; 0 for one number."""
    return (
        math.sqrt(sum((x - mean(numbers)) ** 2 for x in numbers) / (len(numbers) - 1))
        if len(numbers) > 1
        else 0.0
    )


def members(groups: Sequence[int], i: int) -> list[int]:
    return [j for j in range(len(groups)) if groups[j] == groups[i]]


def zero_variance(rewards: Sequence[float], groups: Sequence[int]) -> list[bool]:
    """Of each response: whether all of its group earned the same."""
    return [all(rewards[j] == rewards[i] for j in members(groups, i)) for i in range(len(rewards))]


def centred(rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
    """Dr. GRPO, arXiv:2503.20783: the reward less its group's mean."""
    return [
        rewards[i] - mean([rewards[j] for j in members(groups, i)]) for i in range(len(rewards))
    ]


def group(rewards: Sequence[float], groups: Sequence[int], epsilon: float = 1e-6) -> list[float]:
    """GRPO: centred, over the group's standard deviation; 0 where that is 0. (TRL adds 1e-4.)"""
    flat = zero_variance(rewards, groups)
    stds = [sample_std([rewards[j] for j in members(groups, i)]) for i in range(len(rewards))]
    return [
        0.0 if flat[i] else x / (stds[i] + epsilon) for i, x in enumerate(centred(rewards, groups))
    ]


def leave_one_out(rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
    """RLOO, arXiv:2402.14740 eq. 8."""
    return [
        rewards[i] - mean([rewards[j] for j in members(groups, i) if j != i])
        for i in range(len(rewards))
    ]


def batch(rewards: Sequence[float], groups: Sequence[int], effective: bool = False) -> list[float]:
    """ScaleRL, arXiv:2510.13786: centred by group, over the standard deviation of these in the
    whole batch; with `effective`, in the groups whose rewards differ.
    """
    values = centred(rewards, groups)
    left_out = zero_variance(rewards, groups)
    counted = [x for x, out in zip(values, left_out, strict=True) if not (effective and out)]
    return [x / (sample_std(counted) + 1e-6) for x in values]


def whiten(per_token: Batch) -> list[Response]:
    """REINFORCE++, arXiv:2501.03262: over all response tokens of the batch, each weighing the same;
    verl's variance has n - 1 below.
    """
    flat = [x for response in per_token for x in response]
    middle = mean(flat)
    variance = sum((x - middle) ** 2 for x in flat) / (len(flat) - 1)
    return [
        np.array([(x - middle) / math.sqrt(variance + 1e-8) for x in response])
        for response in per_token
    ]


def gae(reward: float, values: Response, gamma: float, lam: float) -> tuple[Response, Response]:
    """arXiv:1506.02438 for one response that ends the episode: the reward comes with the last
    token. Returns advantages and returns.
    """
    advantages, following = np.zeros(len(values)), 0.0
    for t in reversed(range(len(values))):
        last = t == len(values) - 1
        delta = (reward if last else 0.0) + gamma * (0.0 if last else values[t + 1]) - values[t]
        following = delta + gamma * lam * following
        advantages[t] = following
    return advantages, advantages + values


# --- aggregation of the tokens' values into one number; `keep[i]` says whether response i is in the
# term at all


def aggregate(
    kind: str, values: Batch, groups: Sequence[int], keep: Sequence[bool], T: int
) -> float:
    """token: DAPO. sequence: GRPO. prompt: ScaleRL. constant: Dr. GRPO (T: the longest response
    allowed). 0 of nothing.
    """
    remaining = [i for i in range(len(values)) if keep[i]]
    if not remaining:
        return 0.0
    if kind == "token":
        return sum(sum(values[i]) for i in remaining) / sum(len(values[i]) for i in remaining)
    if kind == "sequence":
        return mean([sum(values[i]) / len(values[i]) for i in remaining])
    if kind == "prompt":
        by_problem = [
            [i for i in remaining if groups[i] == g] for g in sorted({groups[i] for i in remaining})
        ]
        return mean(
            [sum(sum(values[i]) for i in of) / sum(len(values[i]) for i in of) for of in by_problem]
        )
    if kind == "constant":
        return sum(sum(values[i]) for i in remaining) / (len(remaining) * T)
    raise ValueError(kind)


# --- gradients


def slope(f: Callable[[list[Response]], float], at: Batch, step: float = 1e-5) -> list[Response]:
    """Central differences of f in each number of a ragged batch."""
    gradient = [np.zeros(len(response)) for response in at]
    for i, response in enumerate(at):
        for t in range(len(response)):
            ends = []
            for sign in (1, -1):
                moved = [np.array(r, np.float64) for r in at]
                moved[i][t] += sign * step
                ends.append(f(moved))
            gradient[i][t] = (ends[0] - ends[1]) / (2 * step)
    return gradient
