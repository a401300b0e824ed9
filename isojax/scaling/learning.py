"""Whether anything was learnt in a sweep, as far as its evaluations can show; if not, in words why.

Something was learnt where a reward moves by more than noise, and by at least one step, the smallest
difference that an evaluation can show (1 / N for N = problems x samples rollouts). There are four
tests, of which one must find a change:

    shift    in some run, the median of three evaluations in a row differs from where the run
             began; a single correct rollout moves no median
    common   all runs together differ from where they began, each from its reward at C = 0
    trend    over all runs, rewards rise or fall with C (Kendall's S)
    cells    rewards differ between cells (Kruskal and Wallis)

Otherwise all runs stay at one reward, the level (0, 1, a constant, or noise around one), and every
difference between two n is chance. N does not add up over evaluations: they repeat the same
problems, so that many of them tell no more about other problems than one does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, chdtrc, ndtr, ndtri, stdtrit

from isojax.core.nouns import RunRecord
from isojax.scaling.evaluation_size import (
    ASSUMED_ROLLOUTS,
    BEND_VARIANCE,
    SAME_REWARD,
    EvaluationSize,
    bends,
    evaluation_size,
)
from isojax.scaling.intervals import share_interval
from isojax.scaling.tracks import FloatArray, RewardPath, RunTrack, TracksByCell

WINDOW = 3  # evaluations in a row, of which the median counts
MEDIAN_VARIANCE = {1: 1.0, 2: 0.7, 3: 0.45}  # variance of the median of so many values, each of 1
MIN_Z = 3.0  # of a trend, and of a difference between cells, in standard errors
# The probability that noise alone shows a shift in any of the runs; also that of any evaluation
# that stands out.
FALSE_SHIFTS = 0.005
# Evaluations at C > 0 of a single run, to conclude that it has not learnt anything so far.
MIN_OF_ONE_RUN = 5
MIN_COMMON_RUNS = 6  # runs that were each evaluated at C = 0, for the test "common"
MAX_TREND_POINTS = 100  # of a run; more are merged to medians
MAX_UNSOLVED = 0.01  # share of wrong answers: with more of them there is something to learn
# Shares (of updates, checks, responses, groups) from which on a cause is named.
NEARLY_ALL = 0.99
NEARLY_NONE = 0.01
MOST = 0.5


@dataclass(frozen=True)
class NothingLearnt:
    """A sweep or run in which nothing was learnt: all rewards are noise around one, the level."""

    level: float  # the mean of all rewards
    # The true reward, by one evaluation of this size; wider where an evaluation stands out.
    interval: tuple[float, float]
    size: EvaluationSize
    # By which the interval was computed: fewer than the size where rewards scatter more than that
    # many rollouts would.
    rollouts: float
    is_solved: bool  # the level is 1, as far as such evaluations can show
    # what was seen, and why as far as the records show it: a sentence, without its capital and full
    # stop
    text: str


def find_nothing_learnt(
    cells: TracksByCell, metric: str, others: Sequence[RunTrack] = ()
) -> NothingLearnt | None:
    """The level of a sweep in which nothing was learnt, and a sentence on it; else None.

    The level is the one reward around which all evaluations scatter. cells: the runs of each
    (B_p, n), at least one; metric: such as "avg@4"; others: runs whose n changes along C, which may
    have learnt something although the runs of fixed n did not."""
    groups = [list(seeds) for seeds in cells.values()]
    tracks = [t for seeds in groups for t in seeds]
    size = evaluation_size(tracks, metric)
    if shows_something(groups, size):
        return None

    # If the others did not learn anything either, their rewards and causes count too.
    opening = "no run learnt anything"
    if others and shows_something([*groups, others], size):
        opening = "no run of a fixed n learnt anything"
    else:
        tracks += others
    causes = () if _is_solved(_level(tracks), size) else find_causes([t.run for t in tracks])
    return describe(tracks, size, metric, opening, causes)


def find_nothing_learnt_by_run(track: RunTrack, metric: str) -> NothingLearnt | None:
    """The level of a single run, still in training, that has not learnt anything so far.

    None where it has, or has too few evaluations to tell: one at C > 0 is enough if all rewards are
    equal, otherwise MIN_OF_ONE_RUN."""
    is_constant = np.ptp(track.R) <= SAME_REWARD
    fewest = 1 if is_constant else MIN_OF_ONE_RUN
    if int((track.C > 0).sum()) < fewest:
        return None

    size = evaluation_size([track], metric)
    if shows_something([[track]], size):
        return None
    causes = () if _is_solved(_level([track]), size) else find_causes([track.run])
    return describe([track], size, metric, "this run has not learnt anything so far", causes)


def sampling_sd(rewards: FloatArray) -> float | None:
    """The standard deviation of an evaluation, where too few show it by their scatter.

    It is that of a share of ASSUMED_ROLLOUTS rollouts, since few logs have smaller evaluations.
    rewards: float[evaluations], at least one. None for rewards outside [0, 1], whose noise has no
    bound."""
    if rewards.min() < 0 or rewards.max() > 1:
        return None
    mean = float(rewards.mean())
    return float(np.sqrt(mean * (1 - mean) / ASSUMED_ROLLOUTS))


def shows_something(groups: Sequence[Sequence[RewardPath]], size: EvaluationSize) -> bool:
    """Whether something was learnt, by one of the four tests at the top of this file.

    The rewards must move by a step or more, and by more than noise. groups: the runs of each cell;
    size: of one evaluation, from which the step and the noise follow."""
    runs = [run for group in groups for run in group]
    if np.ptp(np.concatenate([run.R for run in runs])) <= SAME_REWARD:
        return False
    return (
        _has_shift(runs, size)
        or _has_common_shift(runs, size)
        or _has_trend(runs, size.step)
        or _cells_differ(groups, size.step)
    )


def _has_common_shift(runs: Sequence[RewardPath], size: EvaluationSize) -> bool:
    """The test "common": whether the runs together differ from where they began.

    It finds a gain that would be too small to see in any one of them, by a t-test of each run's
    mean reward less its reward at C = 0. False where the size of an evaluation is not in the
    records, where fewer than MIN_COMMON_RUNS have an evaluation at C = 0, or where these show fewer
    than half as many different rewards, so that the runs share evaluations."""
    differences = [
        float(_trained(run).mean() - run.R[run.C == 0].mean())
        for run in runs
        if run.C[0] == 0 < run.C[-1]
    ]
    starts = {float(run.R[0]) for run in runs if run.C[0] == 0}
    if not size.is_known or len(differences) < MIN_COMMON_RUNS:
        return False
    if len(starts) < MIN_COMMON_RUNS / 2:  # one evaluation, which all or most share
        return False

    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1) / np.sqrt(len(differences)))
    z = -float(stdtrit(len(differences) - 1, FALSE_SHIFTS / 2))
    return abs(mean) >= _whole_step(size.step) and abs(mean) > z * error


def _trained(run: RewardPath) -> FloatArray:
    """The rewards after the base policy's, at C > 0."""
    return run.R[run.C > 0]


def _has_shift(runs: Sequence[RewardPath], size: EvaluationSize) -> bool:
    """The test "shift": whether some run moves away from where it began.

    The median of WINDOW evaluations in a row must differ from there by a step or more, and by more
    than noise would anywhere in all the runs. size: of one evaluation; its step is the smallest
    difference that an evaluation can show. A run with fewer than two evaluations to compare has no
    shift."""
    at_zero = [r for run in runs for r in run.R[run.C == 0]]
    base = float(np.mean(at_zero)) if at_zero else None
    noise = np.concatenate([bends(_trained(run)) for run in runs])
    # Bonferroni: so many comparisons, upwards and downwards.
    comparisons = sum(max(len(run.R) - 1, 1) for run in runs)
    z = -float(ndtri(FALSE_SHIFTS / (2 * comparisons)))

    for run in runs:
        # The base policy's reward and all evaluations after it or, where no run has one at C = 0,
        # the run's first evaluations and the others.
        start, later = _start_and_later(_trained(run), base)
        width = min(WINDOW, len(later))
        if width < 2:
            continue
        for reward in _extreme_rewards(later, width):
            # The variance of a share of N rollouts; where N is only estimated, that by how much
            # neighbouring evaluations differ.
            middle = float(np.clip((start.reward + reward) / 2, size.step / 2, 1 - size.step / 2))
            variance = middle * (1 - middle) / size.rollouts
            if not size.is_known and len(noise):
                variance = float(np.mean(noise**2)) / BEND_VARIANCE
            error = float(np.sqrt(variance * (start.variance + MEDIAN_VARIANCE[width])))

            shift = abs(reward - start.reward)
            if shift >= _whole_step(size.step) and shift > z * error:
                return True
    return False


def _extreme_rewards(rewards: FloatArray, width: int) -> tuple[float, float]:
    """The highest and the lowest reward that a run has for `width` evaluations in a row.

    Three in a row have their median. Two in a row are high only as far as both are, and low only as
    far as both are. rewards: float[evaluations], by rising C; width: 2 or WINDOW, and at most
    len(rewards)."""
    windows = np.lib.stride_tricks.sliding_window_view(rewards, width)
    if width == WINDOW:
        medians = np.median(windows, axis=1)
        return float(medians.max()), float(medians.min())
    return float(windows.min(1).max()), float(windows.max(1).min())


@dataclass(frozen=True)
class _Start:
    """The reward with which a run began, and how noisy that number is."""

    reward: float
    variance: float  # in variances of one evaluation


def _start_and_later(rewards: FloatArray, base: float | None) -> tuple[_Start, FloatArray]:
    """The reward with which a run began, and the rewards of the evaluations after.

    rewards: float[evaluations] at C > 0, by rising C. base: the base policy's reward, with which
    the run then began; None where it is unknown: the median of the run's first evaluations counts,
    and these are left out of the rewards after."""
    if base is not None:
        return _Start(base, 1.0), rewards

    count = min(WINDOW, max(1, len(rewards) // 2))
    first = float(np.median(rewards[:count])) if len(rewards) else 0.0
    return _Start(first, MEDIAN_VARIANCE[count]), rewards[count:]


def _whole_step(step: float) -> float:
    """A step, less a rounding error: rewards that differ by exactly one step differ by this."""
    return step * (1 - 1e-6)


def _has_trend(runs: Sequence[RewardPath], step: float) -> bool:
    """The test "trend": whether rewards rise or fall with C over all runs.

    In one run at least the mean must change by a step or more from the first half to the second.
    The score is Kendall's S: the pairs of evaluations of a run of which the later is higher, less
    those of which it is lower, summed over the runs."""
    score = 0.0
    variance = 0.0
    changes = []  # of the mean reward, from the first half of a run to the second
    for run in runs:
        rewards = _merge_to_medians(_trained(run))
        if len(rewards) < 2:
            continue

        difference = rewards[None, :] - rewards[:, None]
        signs = np.where(np.abs(difference) > SAME_REWARD, np.sign(difference), 0.0)
        score += float(np.triu(signs, 1).sum())  # each pair once
        variance += _kendall_variance(rewards)

        half = len(rewards) // 2
        changes.append(float(rewards[-half:].mean() - rewards[:half].mean()))

    if not variance or np.abs(changes).max() < _whole_step(step):
        return False
    # Less 1: the continuity correction, since S is a whole number.
    return (abs(score) - 1) / np.sqrt(variance) >= MIN_Z


def _merge_to_medians(rewards: FloatArray) -> FloatArray:
    """The rewards of a run, float[points]; of a long one MAX_TREND_POINTS medians of neighbours.

    A long run would have too many pairs."""
    if len(rewards) <= MAX_TREND_POINTS:
        return rewards
    return np.array([np.median(part) for part in np.array_split(rewards, MAX_TREND_POINTS)])


def _kendall_variance(rewards: FloatArray) -> float:
    """The variance of Kendall's S without a trend, with ties (Kendall 1970)."""
    rounded = np.round(rewards / SAME_REWARD)
    ties = np.unique(rounded, return_counts=True)[1].astype(np.float64)
    n = float(len(rewards))
    without_ties = n * (n - 1) * (2 * n + 5)
    of_ties = float((ties * (ties - 1) * (2 * ties + 5)).sum())
    return (without_ties - of_ties) / 18


def _cells_differ(groups: Sequence[Sequence[RewardPath]], step: float) -> bool:
    """The test "cells": whether rewards differ between cells, and by a step or more in their means.

    It is the test of Kruskal and Wallis. groups: the runs of each cell."""
    rewards = [np.concatenate([_trained(run) for run in group]) for group in groups]
    rewards = [r for r in rewards if len(r)]
    if len(rewards) < 2 or np.ptp(np.concatenate(rewards)) <= SAME_REWARD:
        return False
    if np.ptp([r.mean() for r in rewards]) < _whole_step(step):
        return False
    return bool(kruskal_p_value(rewards) < 2 * ndtr(-MIN_Z))


def kruskal_p_value(groups: Sequence[FloatArray]) -> float:
    """The probability that groups of one distribution differ as much as these, by Kruskal and
    Wallis (1952).

    groups: at least two, each float[values] with at least one value, and not all values equal.
    scipy.stats has this test too; its import takes as long as a small fit."""
    values = np.concatenate(groups)
    n = len(values)

    # Equal values share the mean of the ranks that they take up, which begin at 1.
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(counts)
    ranks = (last_ranks - (counts - 1) / 2)[places]

    ends = np.cumsum([len(group) for group in groups])
    ranks_by_group = np.split(ranks, ends[:-1])
    between_groups = sum(r.sum() ** 2 / len(r) for r in ranks_by_group)
    statistic = 12 / (n * (n + 1)) * between_groups - 3 * (n + 1)

    ties = counts.astype(np.float64)
    statistic /= 1 - (ties**3 - ties).sum() / (float(n) ** 3 - n)
    return float(chdtrc(len(groups) - 1, statistic))


def _level(runs: Sequence[RewardPath]) -> float:
    """The mean of all rewards."""
    return float(np.mean(np.concatenate([run.R for run in runs])))


def _is_solved(level: float, size: EvaluationSize) -> bool:
    """Whether fewer rollouts are wrong than an evaluation can show, and at most MAX_UNSOLVED."""
    return level > 1 - min(size.step, MAX_UNSOLVED)


def describe(
    runs: Sequence[RewardPath],
    size: EvaluationSize,
    metric: str,
    opening: str,
    causes: Sequence[str] = (),
    reward_range: tuple[float, float] = (0.0, 1.0),
) -> NothingLearnt:
    """The level of runs in which nothing was learnt, its interval, and a sentence on them.

    runs: with rewards in [0, 1], at least one. size: of one evaluation. metric: what the sentence
    calls the reward, such as "avg@4". opening: how the sentence begins, such as "no run learnt
    anything". causes: its end, clauses as `find_causes` gives them. reward_range: what 0 and 1
    stand for on the user's scale, such as (0.0, 100.0), for rewards that were scaled to [0, 1]; the
    sentence is on that scale, the numbers of the result are not."""

    def show(reward: float, form: str = ".4g") -> str:
        """A reward on the user's scale."""
        low, high = reward_range
        return f"{low + (high - low) * reward:{form}}"

    rewards = np.concatenate([run.R for run in runs])
    level = _level(runs)
    is_solved = _is_solved(level, size)
    rollouts = _effective_rollouts(runs, level, size)
    interval = share_interval(level, rollouts)
    outliers = _find_outliers(runs, level, rollouts)
    if outliers:
        # Noise does not explain them, so the interval must include all that was measured.
        trained = np.concatenate([_trained(run) for run in runs])
        interval = min(interval[0], float(trained.min())), max(interval[1], float(trained.max()))

    seen = _describe_rewards(rewards, level, metric, len(runs), is_solved, show)
    if seen.is_varied:
        opening += " that evaluations can show"
        outlying = _describe_outliers(outliers, level, show)
        where = f"{seen.text}, but {outlying}" if outlying else f"{seen.text}, {seen.verdict}"
    else:
        where = seen.text
    statement = f"{opening}: {where}"
    if is_solved:
        has_base = any((run.C == 0).any() for run in runs)
        solved_by = "the problems are solved from the start"
        if has_base:
            solved_by = "the base policy already solves them"
        statement = f"nothing to learn: {solved_by} ({where})"
    return NothingLearnt(
        level=level,
        interval=interval,
        size=size,
        rollouts=rollouts,
        is_solved=is_solved,
        text="; ".join([statement, *causes]),
    )


@dataclass(frozen=True)
class _SeenRewards:
    """The rewards of runs in which nothing was learnt, in words."""

    text: str
    is_varied: bool = False  # they are not all equal
    verdict: str = ""  # why they show no learning all the same, where no evaluation stands out


def _describe_rewards(
    rewards: FloatArray,
    level: float,
    metric: str,
    run_count: int,
    is_solved: bool,
    show: Callable[..., str],
) -> _SeenRewards:
    """All rewards of the runs in a few words: all equal, a few above 0, or around the level.

    rewards: float[evaluations of all runs], in [0, 1]; level: their mean; show: writes a reward on
    the user's scale, with a format such as ".3f" as its second argument."""
    count = len(rewards)
    of_several = f" of {run_count} runs" if run_count > 1 else ""
    of_runs = f"{count} {'evaluation' if count == 1 else 'evaluations'}{of_several}"
    if np.ptp(rewards) <= SAME_REWARD:
        at_all = f"all {of_runs}"
        if count == 2:
            at_all = f"both evaluations{of_several}"
        elif count == 1:
            at_all = f"the only evaluation{of_several}"
        return _SeenRewards(f"{metric} is {show(level)} at {at_all}")

    hits = rewards[rewards > SAME_REWARD]
    if len(hits) < count / 2 and not is_solved:
        hits_text = "only one is" if len(hits) == 1 else f"only {len(hits)} are"
        highest = f"at most {show(rewards.max())}"
        text = f"of {of_runs} {hits_text} above {metric} 0 ({highest})"
        return _SeenRewards(text, is_varied=True, verdict="which is no rise")

    extremes = f"{show(rewards.min())} to {show(rewards.max())}"
    text = f"{metric} stays at {show(level, '.3f')} ({extremes}) at {of_runs}"
    return _SeenRewards(text, is_varied=True, verdict="which is what noise alone gives")


@dataclass(frozen=True)
class _Outlier:
    """An evaluation whose reward noise around the level hardly explains."""

    reward: float
    is_last: bool  # no evaluation after it in its run is back where noise allows


def _find_outliers(runs: Sequence[RewardPath], level: float, rollouts: float) -> list[_Outlier]:
    """The evaluations at C > 0 whose rewards noise around the level hardly explains.

    With probability FALSE_SHIFTS there is one among all evaluations by chance. rollouts: of one
    evaluation; need not be whole."""
    count = sum(len(_trained(run)) for run in runs)
    least_likely = FALSE_SHIFTS / (2 * count) if count else 0.0
    outliers = []
    for run in runs:
        rewards = _trained(run)
        is_outside = [_tail(reward, level, rollouts) < least_likely for reward in rewards.tolist()]
        for i in np.flatnonzero(is_outside).tolist():
            outliers.append(_Outlier(float(rewards[i]), is_last=all(is_outside[i:])))
    return outliers


def _tail(reward: float, level: float, rollouts: float) -> float:
    """The probability of a reward this far from the level or further, on the same side.

    Each of so many rollouts is correct with probability `level`: it is the tail of the binomial
    distribution, continued to numbers of hits that are not whole."""
    if abs(reward - level) <= SAME_REWARD:
        return 1.0
    if reward < level:  # by symmetry: the share of misses is above the level of misses
        reward, level = 1 - reward, 1 - level
    hits = reward * rollouts
    return float(betainc(hits, max(rollouts - hits, 0.0) + 1, level))


def _describe_outliers(
    outliers: Sequence[_Outlier], level: float, show: Callable[[float], str]
) -> str:
    """The evaluations that stand out, in words, and whether the change may be real.

    "" where there are none. level: in [0, 1], as the outliers' rewards are; show: writes a reward
    on the user's scale."""
    if not outliers:
        return ""

    rewards = sorted({outlier.reward for outlier in outliers})
    lowest = rewards[0]
    highest = rewards[-1]
    is_one = len(outliers) == 1
    range_text = show(lowest) if len(rewards) == 1 else f"{show(lowest)} to {show(highest)}"
    statement = f"{len(outliers)} evaluations of {range_text} stand out"
    if is_one:
        statement = f"one evaluation of {range_text} stands out"
    if not any(outlier.is_last for outlier in outliers):
        return f"{statement}; no evaluation after {'it' if is_one else 'them'} stays there"

    change = "a change"
    if lowest > level:
        change = "a rise"
    elif highest < level:
        change = "a fall"
    doubt = "only further evaluations can tell"
    return f"{statement}; whether {'it is' if is_one else 'that is'} {change}, {doubt}"


def _effective_rollouts(runs: Sequence[RewardPath], level: float, size: EvaluationSize) -> float:
    """The rollouts of an evaluation by which the level's interval is computed.

    That is the size of an evaluation, or fewer where the rewards scatter around the level more than
    shares of so many rollouts would."""
    deviations = np.concatenate([np.abs(run.R - level) for run in runs])
    # The standard deviation by the median deviation, which for a normal distribution is 0.67 of it.
    scatter = float(np.median(deviations)) / -float(ndtri(0.25))
    if not scatter:
        return size.rollouts
    by_scatter = max(level * (1 - level) / scatter**2, 1.0)
    return min(size.rollouts, by_scatter)


def find_causes(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Why nothing was learnt, as far as the records show it: clauses for the end of a sentence.

    Such as "93% of the responses were cut off at the length limit (truncated)"; () where the
    metrics of training and evaluations show no cause."""
    return tuple(_causes(runs))


def _causes(runs: Sequence[RunRecord]) -> Iterator[str]:
    """The causes in turn, a clause each.

    They are: skipped updates, failed checks of answers, responses cut off, answers that could not
    be read, and groups (the n rollouts of a problem) without a gradient."""
    points = [p for run in runs for p in run.points]
    trained = [p.train for p in points if p.M > 0]
    evaluated = [p.metrics for p in points]
    skipped = _mean(trained, "nonfinite_update")
    if skipped is not None and skipped >= MOST:
        reason = "because their loss or gradient was not finite (nonfinite_update)"
        yield f"{_share(skipped)} updates were skipped, {reason}"

    failed = _failed_share(runs)
    if failed is not None and failed >= MOST:
        kinds = f"verifier_failures{_kinds_of_failure(trained)}"
        yield f"{_share(failed)} checks of the verifier failed ({kinds})"

    truncated = _largest(_mean(trained, "truncated"), _mean(evaluated, "truncated"))
    if truncated is not None and truncated >= MOST:
        yield f"{_share(truncated)} responses were cut off at the length limit (truncated)"

    # Failed checks read no answer: where most failed, unread answers are no further cause.
    parsed = _largest(_mean(trained, "parsed_fraction"), _mean(evaluated, "parsed_fraction"))
    if parsed is not None and parsed <= NEARLY_NONE and (failed is None or failed < MOST):
        yield f"{_share(parsed)} responses held an answer that could be read (parsed_fraction)"

    equal_groups = _mean(trained, "zero_variance")
    if equal_groups is not None and equal_groups >= NEARLY_ALL:
        consequence = "so there is no gradient (zero_variance)"
        yield f"in {_share(equal_groups)} groups the rewards are equal, {consequence}"


def _share(share: float) -> str:
    """A share in words, to stand before a noun: "all", "no", or "93% of the"."""
    if share > 0.9995:
        return "all"
    if share < 0.0005:
        return "no"
    return f"{100 * share:.3g}% of the"


def _mean(rows: Sequence[Mapping[str, float]], name: str) -> float | None:
    """The mean of a metric over the rows that have it; None where none does."""
    values = [row[name] for row in rows if np.isfinite(row.get(name, np.nan))]
    return float(np.mean(values)) if values else None


def _largest(*shares: float | None) -> float | None:
    return max((share for share in shares if share is not None), default=None)


def _failed_share(runs: Sequence[RunRecord]) -> float | None:
    """The share of the verifier's checks that failed; None where it was not recorded.

    It is that in training or that at the evaluations, whichever is larger. A rollout is one check.
    "verifier_failures" is their number: in `train` since the evaluation before, in `metrics` at it.
    runs: each with at least one evaluation."""
    points = [p for run in runs for p in run.points]
    checks_in_training = sum(run.points[-1].rollouts for run in runs)
    failed_in_training = sum(p.train.get("verifier_failures", 0.0) for p in points)
    is_recorded = any("verifier_failures" in p.train for p in points)

    checks_at_evaluations = sum(
        len(p.counts) * p.samples for p in points if "verifier_failures" in p.metrics
    )
    failed_at_evaluations = sum(p.metrics.get("verifier_failures", 0.0) for p in points if p.counts)

    in_training = None
    if checks_in_training and is_recorded:
        in_training = failed_in_training / checks_in_training
    at_evaluations = None
    if checks_at_evaluations:
        at_evaluations = failed_at_evaluations / checks_at_evaluations
    return _largest(in_training, at_evaluations)


def _kinds_of_failure(trained: Sequence[Mapping[str, float]]) -> str:
    """The kinds of failure that were recorded, the most frequent first, each after a comma:
    ", verifier_timeout, verifier_crash"; "" for none."""
    sums: dict[str, float] = {}
    for row in trained:
        for name, value in row.items():
            is_kind = name.startswith("verifier_") and name != "verifier_failures"
            if is_kind and value > 0:
                sums[name] = sums.get(name, 0.0) + value
    return "".join(f", {name}" for name in sorted(sums, key=lambda name: -sums[name]))
