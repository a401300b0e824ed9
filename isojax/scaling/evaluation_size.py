"""How many rollouts one evaluation has: N = problems x samples. By the records where they hold the
right answers of each problem. Otherwise by the rewards, which are multiples of 1 / N:

    common     the step of which all their differences are multiples
    smallest   where rounding hides that, the smallest difference; rewards within SAME_REWARD are
               equal, because sums of float32 print k / N in more than one way
    scatter    but rewards that scatter by far more than evaluations of so many rollouts would are
               graded, no shares of N: they are then as uncertain as shares of as many rollouts as
               scatter so

or assumed, where all rewards are equal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isojax.core.nouns import EvalPoint
from isojax.scaling.reward_metric import correct_counts, parse_metric
from isojax.scaling.tracks import FloatArray, RunTrack

# rewards that differ by less are equal: sums of float32 in another order differ by as much
SAME_REWARD = 1e-6
ASSUMED_ROLLOUTS = 100  # of an evaluation, where nothing says how many
BEND_VARIANCE = 1.5  # of a value less the mean of its neighbours
MAX_DECIMALS = 6  # of a reward in a log; what follows is rounding
MAX_STEP_MULTIPLE = 5  # the smallest step that was seen may be so many of the smallest there is
# of a reward to be near a multiple of a step: with more, their agreement says little
MAX_CHANCE = 0.4
MAX_FALSE_STEP = 0.01  # the probability that rewards without a common step seem to have one
MIN_BENDS = 4  # evaluations that differ from their neighbours, to see a scatter
MAX_SCATTER_RATIO = 4.0  # of the rollouts by the smallest step over those by the scatter


@dataclass(frozen=True)
class EvaluationSize:
    """The rollouts of one evaluation, and where that number comes from."""

    rollouts: float
    source: str
    is_known: bool  # the records say it

    @property
    def step(self) -> float:
        """The smallest difference that an evaluation can show."""
        return 1 / self.rollouts


def evaluation_size(tracks: Sequence[RunTrack], metric: str) -> EvaluationSize:
    """From the counts of right answers; else from the rewards of each run."""
    points = [p for t in tracks for p in t.run.points]
    sizes = [_rollouts_of(p, metric) for p in points]
    if sizes and all(sizes):
        return EvaluationSize(min(sizes), "problems x samples, by the records", is_known=True)
    return size_by_step(*[t.R for t in tracks])


def _rollouts_of(point: EvalPoint, metric: str) -> int:
    """Problems x samples of an evaluation, of KIND@k the groups of k; 0 where the records do not
    say it."""
    counts = correct_counts(point, metric)
    parsed = parse_metric(metric)
    if not counts or parsed is None:
        return 0
    if parsed.kind == "avg":
        return len(counts) * point.samples
    # best@4 of 16 samples is known as well as from 4 groups of 4
    return len(counts) * max(1, point.samples // parsed.k)


def size_by_step(*rewards_of_runs: FloatArray) -> EvaluationSize:
    """Of rewards in [0, 1], float[evaluations] of each run in their order, whose number of rollouts
    nothing says."""
    values = np.unique(np.concatenate(rewards_of_runs))
    steps = np.diff(values)
    steps = steps[steps > SAME_REWARD]
    unsaid = "because the log does not say it"
    if not len(steps):
        return EvaluationSize(
            ASSUMED_ROLLOUTS, f"assumed, {unsaid} and all its rewards are equal", is_known=False
        )

    smallest = float(steps.min())
    common = _common_step(values, smallest)
    if common is not None:
        was_seen = common > 0.99 * smallest
        which = "smallest step between" if was_seen else "common step of"
        source = f"by the {which} its rewards, {common:.3g}, {unsaid}"
        return EvaluationSize(1 / common, source, is_known=False)

    by_scatter = _rollouts_by_scatter(rewards_of_runs)
    if by_scatter is not None and 1 / smallest > MAX_SCATTER_RATIO * by_scatter:
        source = f"by the scatter of its rewards, which have no common step, {unsaid}"
        return EvaluationSize(max(by_scatter, 1.0), source, is_known=False)
    source = f"by the smallest step between its rewards, {smallest:.3g}, {unsaid}"
    return EvaluationSize(1 / smallest, source, is_known=False)


def bends(rewards: FloatArray) -> FloatArray:
    """float[evaluations - 2]: how far each evaluation but the outer two is from the mean of its
    neighbours."""
    if len(rewards) <= 2:
        return rewards[:0]
    return rewards[1:-1] - (rewards[:-2] + rewards[2:]) / 2


def _rollouts_by_scatter(rewards_of_runs: Sequence[FloatArray]) -> float | None:
    """The rollouts of shares that scatter like these between neighbours; None where most neighbours
    are equal."""
    bend = np.concatenate([bends(rewards) for rewards in rewards_of_runs])
    middles = [rewards[1:-1] for rewards in rewards_of_runs if len(rewards) > 2]
    middle = np.clip(np.concatenate(middles or [bend]), 0, 1)  # the rewards that bend
    differs = np.abs(bend) > SAME_REWARD
    if differs.sum() < max(MIN_BENDS, len(bend) / 2):
        return None

    binomial = float((middle * (1 - middle))[differs].mean())  # the variance of one rollout
    scatter = float((bend[differs] ** 2).mean()) / BEND_VARIANCE  # of one evaluation
    return binomial / scatter if binomial > 0 else None


def _common_step(values: FloatArray, smallest: float) -> float | None:
    """The step of which all differences of rewards are multiples, more than rounding and chance
    make them; float[...] of rising values, and the smallest step between two of them."""
    decimals = _decimals(values)
    if decimals < MAX_DECIMALS:
        grid = 10**decimals
        in_steps = np.round((values - values[0]) * grid).astype(np.int64)
        divisor = int(np.gcd.reduce(in_steps))
        if divisor > 1:
            return divisor / grid

    # Of rounded rewards: try the steps that are `smallest` over 1, 2, ... to within the rounding,
    # as long as it would be no chance that all rewards are near a multiple of one of them.
    rounding = 10.0**-decimals  # of a difference between two
    distinct = 1 + int((np.diff(values) > SAME_REWARD).sum())
    differences = values - values[0]
    for multiple in range(1, MAX_STEP_MULTIPLE + 1):
        if smallest <= rounding:
            return None
        fewest = multiple / (smallest + rounding)
        most = multiple / (smallest - rounding)
        candidates = range(int(np.ceil(fewest)), int(most) + 1)
        is_near = 2 * rounding * most  # the share of all rewards that are near a multiple by chance
        if is_near > MAX_CHANCE or is_near ** (distinct - 2) * len(candidates) > MAX_FALSE_STEP:
            continue
        for N in candidates:
            nearest_multiples = np.round(differences * N) / N
            if np.abs(differences - nearest_multiples).max() <= rounding:
                return 1 / N
    return None


def _decimals(values: FloatArray) -> int:
    """To how many a log rounds its rewards."""
    for decimals in range(1, MAX_DECIMALS):
        if np.abs(values - np.round(values, decimals)).max() <= SAME_REWARD / 10:
            return decimals
    return MAX_DECIMALS
