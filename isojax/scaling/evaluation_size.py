"""How many rollouts one evaluation has, N = problems x samples: from it follows how far off its
reward may be.

Records with counts of right answers contain N. For others, such as logs of other trainers, it is
estimated from the rewards, which are shares k / N:

    common     1 / N is the step of which all differences between rewards are multiples
    smallest   where rounding hides that step, 1 / N is the smallest difference; rewards within
               SAME_REWARD are equal, because sums of float32 print k / N in more than one way
    scatter    rewards that scatter far more than shares of so many rollouts would are graded, and
               no shares: N is then that with which shares would scatter as much

Where all rewards are equal, N is assumed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isojax.core.nouns import EvalPoint
from isojax.scaling.reward_metric import correct_counts, parse_metric
from isojax.scaling.tracks import FloatArray, RunTrack

# rewards that differ by less are equal: sums of float32 in another order differ by as much
SAME_REWARD = 1e-6
ASSUMED_ROLLOUTS = 100  # of an evaluation, where it is unknown how many
BEND_VARIANCE = 1.5  # of a value less the mean of its two neighbours, in variances of one value
MAX_DECIMALS = 6  # of a reward in a log; what follows is rounding
# The smallest difference between rewards that was seen may be up to so many steps of 1 / N.
MAX_STEP_MULTIPLE = 5
# The probability of any number to be near a multiple of a step: above it, agreement shows little.
MAX_CHANCE = 0.4
MAX_FALSE_STEP = 0.01  # the probability that rewards without a common step seem to have one
MIN_BENDS = 4  # evaluations that differ from their neighbours, to estimate a scatter
# Where the smallest step gives more than so many times the rollouts that the scatter gives, the
# rewards are no shares.
MAX_SCATTER_RATIO = 4.0


@dataclass(frozen=True)
class EvaluationSize:
    """The rollouts of one evaluation, and where that number comes from."""

    rollouts: float  # need not be whole where it is estimated
    source: str  # in words, such as "problems x samples, by the records"
    is_known: bool  # by the records; else it is estimated or assumed

    @property
    def step(self) -> float:
        """The smallest difference that an evaluation can show."""
        return 1 / self.rollouts


def evaluation_size(tracks: Sequence[RunTrack], metric: str) -> EvaluationSize:
    """How many rollouts an evaluation of these runs has, the fewest where they differ.

    By its counts of right answers, where all evaluations have them; otherwise estimated from the
    rewards of each run. metric: such as "avg@4"; tracks: at least one."""
    sizes = []
    for point in (p for t in tracks for p in t.run.points):
        size = _rollouts_of(point, metric)
        if not size:  # one without counts is enough, and a log without any may be long
            return size_by_step(*[t.R for t in tracks])
        sizes.append(size)
    return EvaluationSize(min(sizes), "problems x samples, by the records", is_known=True)


def _rollouts_of(point: EvalPoint, metric: str) -> int:
    """The rollouts of an evaluation by its counts, problems x samples; 0 where it has no counts.

    Of a metric such as best@k it is problems x groups of k samples."""
    counts = correct_counts(point, metric)
    parsed = parse_metric(metric)
    if not counts or parsed is None:
        return 0
    if parsed.kind == "avg":
        return len(counts) * point.samples
    # best@4 of 16 samples is known as well as from 4 groups of 4
    return len(counts) * max(1, point.samples // parsed.k)


def size_by_step(*rewards_of_runs: FloatArray) -> EvaluationSize:
    """How many rollouts an evaluation has, estimated from the rewards alone.

    For logs that do not contain the number (see the top of this file). rewards_of_runs: of each
    run, in order of C, float[evaluations], in [0, 1]; at least one run."""
    values = np.unique(np.concatenate(rewards_of_runs))
    steps = np.diff(values)
    steps = steps[steps > SAME_REWARD]
    reason = "because the log does not say it"
    if not len(steps):
        return EvaluationSize(
            ASSUMED_ROLLOUTS, f"assumed, {reason} and all its rewards are equal", is_known=False
        )

    smallest = float(steps.min())
    common = _common_step(values, smallest)
    if common is not None:
        # 0.99: equal but for the rounding of the log.
        was_seen = common > 0.99 * smallest  # two rewards differ by just this step
        step_text = "smallest step between" if was_seen else "common step of"
        source = f"by the {step_text} its rewards, {common:.3g}, {reason}"
        return EvaluationSize(1 / common, source, is_known=False)

    by_scatter = _rollouts_by_scatter(rewards_of_runs)
    if by_scatter is not None and 1 / smallest > MAX_SCATTER_RATIO * by_scatter:
        source = f"by the scatter of its rewards, which have no common step, {reason}"
        return EvaluationSize(max(by_scatter, 1.0), source, is_known=False)

    source = f"by the smallest step between its rewards, {smallest:.3g}, {reason}"
    return EvaluationSize(1 / smallest, source, is_known=False)


def bends(rewards: FloatArray) -> FloatArray:
    """How far each reward, but the first and the last, is from the mean of its two neighbours:
    float[evaluations] -> float[evaluations - 2]."""
    if len(rewards) <= 2:
        return rewards[:0]
    return rewards[1:-1] - (rewards[:-2] + rewards[2:]) / 2


def _rollouts_by_scatter(rewards_of_runs: Sequence[FloatArray]) -> float | None:
    """The number N for which shares k / N would scatter as much as these rewards do.

    None where fewer than MIN_BENDS rewards, or fewer than half, differ from the mean of their two
    neighbours. rewards_of_runs: as in `size_by_step`."""
    bend = np.concatenate([bends(rewards) for rewards in rewards_of_runs])
    middles = [rewards[1:-1] for rewards in rewards_of_runs if len(rewards) > 2]
    # the rewards that bend; without any, bend is empty too
    middle = np.clip(np.concatenate(middles or [bend]), 0, 1)
    differs = np.abs(bend) > SAME_REWARD
    if differs.sum() < max(MIN_BENDS, len(bend) / 2):
        return None

    binomial = float((middle * (1 - middle))[differs].mean())  # the variance of one rollout
    scatter = float((bend[differs] ** 2).mean()) / BEND_VARIANCE  # of one evaluation
    return binomial / scatter if binomial > 0 else None


def _common_step(values: FloatArray, smallest: float) -> float | None:
    """The step 1 / N of which all differences between rewards are multiples, such as 0.01.

    None where there is none, or where the agreement may be rounding or chance. values: the distinct
    rewards, float[values], rising; smallest: the smallest difference between two of them that is
    above SAME_REWARD."""
    # Rewards that the log gives exactly, with few decimals: the greatest common divisor.
    decimals = _decimals(values)
    if decimals < MAX_DECIMALS:
        grid = 10**decimals
        in_steps = np.round((values - values[0]) * grid).astype(np.int64)
        divisor = int(np.gcd.reduce(in_steps))
        if divisor > 1:
            return divisor / grid

    # Otherwise try the steps that are `smallest` divided by 1, 2, ..., to within the rounding; only
    # as long as chance would hardly put all rewards near multiples of one of them.
    rounding = 10.0**-decimals  # of a difference between two rewards
    distinct = 1 + int((np.diff(values) > SAME_REWARD).sum())
    differences = values - values[0]
    if smallest <= rounding:
        return None

    for multiple in range(1, MAX_STEP_MULTIPLE + 1):
        # N = 1 / step = multiple / smallest, of which `smallest` is known to within the rounding
        fewest = multiple / (smallest + rounding)
        most = multiple / (smallest - rounding)
        candidates = range(int(np.ceil(fewest)), int(most) + 1)
        # The share of all numbers that are near a multiple, and the probability that so many
        # rewards are for some candidate; two of them, which differ by `smallest`, always are.
        p_near = 2 * rounding * most
        if p_near > MAX_CHANCE or p_near ** (distinct - 2) * len(candidates) > MAX_FALSE_STEP:
            continue

        for N in candidates:
            nearest_multiples = np.round(differences * N) / N
            if np.abs(differences - nearest_multiples).max() <= rounding:
                return 1 / N
    return None


def _decimals(values: FloatArray) -> int:
    """The number of decimals to which a log rounds its rewards, 1 to MAX_DECIMALS.

    values: float[values]."""
    for decimals in range(1, MAX_DECIMALS):
        if np.abs(values - np.round(values, decimals)).max() <= SAME_REWARD / 10:
            return decimals
    return MAX_DECIMALS
