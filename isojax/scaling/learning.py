"""Whether a sweep shows anything at all, and in words why not.

Evaluations show something where a reward moves beyond what noise allows, and by at least one step
of their resolution (1 / N for an evaluation of N rollouts), in one of these ways:

    shift    a run's median of three evaluations in a row differs from where it began; one hit
             moves no median
    common   all runs together differ from where they began, each from an evaluation of its own
    trend    over all runs, rewards rise or fall with C (Kendall's S)
    cells    rewards differ between cells (Kruskal and Wallis)

Otherwise all runs stand at one reward, and every difference between two n is chance: 0, 1, a
constant, noise around one, or single hits. N is problems x samples; it does not add up over
evaluations, which repeat the same problems with policies that differ, so that many of them say no
more of other problems than one does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import betainc
from scipy.stats import kruskal, norm
from scipy.stats import t as student_t

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
from isojax.scaling.tracks import FloatArray, RunTrack, TracksByCell

WINDOW = 3  # evaluations in a row, of which the median counts
MEDIAN_VARIANCE = {1: 1.0, 2: 0.7, 3: 0.45}  # of so many values of variance 1
MIN_Z = 3.0  # of a trend, and of a difference between cells
# the probability that noise alone shows a shift, over all runs; or one evaluation that stands out
FALSE_SHIFTS = 0.005
# evaluations at C > 0 of a run that goes on, to say that it has not learnt anything so far
MIN_OF_ONE_RUN = 5
MIN_COMMON_RUNS = 6  # with an evaluation at C = 0 of their own, to differ from it together
MAX_TREND_POINTS = 100  # of a run; more are merged to medians
MAX_UNSOLVED = 0.01  # share of wrong answers: with more of them there is something to learn
# shares, to name a cause
NEARLY_ALL = 0.99
NEARLY_NONE = 0.01
MOST = 0.5


class RewardPath(Protocol):
    """One run: compute C and reward R, float[points] each, by rising C; a RunTrack is one."""

    @property
    def C(self) -> FloatArray: ...

    @property
    def R(self) -> FloatArray: ...


@dataclass(frozen=True)
class NothingLearnt:
    """All runs stand at one reward, `level`."""

    level: float
    # What an evaluation of this size allows around it; to all that was measured, where an
    # evaluation stands out.
    interval: tuple[float, float]
    size: EvaluationSize
    rollouts: float  # that the interval is worth: fewer than the size where rewards scatter by more
    is_solved: bool  # the level is 1, as far as such evaluations can show
    # what was seen, and why as far as the records show it: a sentence, without its capital and full
    # stop
    text: str


def find_nothing_learnt(
    cells: TracksByCell, metric: str, others: Sequence[RunTrack] = ()
) -> NothingLearnt | None:
    """What a sweep that shows nothing stands at; None for a sweep that shows something. `others`:
    runs without a fixed n, which may have learnt all the same."""
    groups = [list(seeds) for seeds in cells.values()]
    tracks = [t for seeds in groups for t in seeds]
    size = evaluation_size(tracks, metric)
    if shows_something(groups, size):
        return None

    # The others count too, unless it is they that show something.
    opening = "no run learnt anything"
    if others and shows_something([*groups, others], size):
        opening = "no run of a fixed n learnt anything"
    else:
        tracks += others
    causes = () if _is_solved(_level(tracks), size) else find_causes([t.run for t in tracks])
    return describe(tracks, size, metric, opening, causes)


def find_nothing_learnt_by_run(track: RunTrack, metric: str) -> NothingLearnt | None:
    """The same of one run that goes on; None also where it has too few evaluations to say so."""
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
    """The noise of evaluations too few to show their own scatter: that of shares of
    ASSUMED_ROLLOUTS rollouts, which few logs fall short of. None for rewards outside [0, 1], whose
    noise nothing bounds."""
    if rewards.min() < 0 or rewards.max() > 1:
        return None
    mean = float(rewards.mean())
    return float(np.sqrt(mean * (1 - mean) / ASSUMED_ROLLOUTS))


def shows_something(groups: Sequence[Sequence[RewardPath]], size: EvaluationSize) -> bool:
    """Whether the rewards of runs, grouped by cell, move by a step or more, and beyond noise."""
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
    """Whether the runs together differ from where they began: a gain too small for any one of them,
    which all have.

    Only where the records say how large an evaluation is, and each of many runs has one of its own
    at C = 0."""
    differences = [
        float(_trained(run).mean() - run.R[run.C == 0].mean())
        for run in runs
        if run.C[0] == 0 < run.C[-1]
    ]
    starts = {float(run.R[0]) for run in runs if run.C[0] == 0}
    if not size.is_known or len(differences) < MIN_COMMON_RUNS:
        return False
    if len(starts) < MIN_COMMON_RUNS / 2:  # one evaluation, which all share
        return False

    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1) / np.sqrt(len(differences)))
    z = float(student_t.isf(FALSE_SHIFTS / 2, len(differences) - 1))
    return abs(mean) >= _whole_step(size.step) and abs(mean) > z * error


def _trained(run: RewardPath) -> FloatArray:
    return run.R[run.C > 0]


def _has_shift(runs: Sequence[RewardPath], size: EvaluationSize) -> bool:
    """Whether a run's median of WINDOW evaluations in a row differs from where it began, by a step
    or more and beyond noise, over all places at which one could."""
    at_zero = [r for run in runs for r in run.R[run.C == 0]]
    base = float(np.mean(at_zero)) if at_zero else None
    noise = np.concatenate([bends(_trained(run)) for run in runs])
    places = sum(max(len(run.R) - 1, 1) for run in runs)
    z = float(norm.isf(FALSE_SHIFTS / (2 * places)))

    for run in runs:
        start, later = _start_and_later(_trained(run), base)
        width = min(WINDOW, len(later))
        if width < 2:
            continue
        for reward in _extreme_rewards(later, width):
            # The noise of shares of N rollouts, or that of neighbours, where N is a guess.
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
    """The highest and the lowest that a run comes to with `width` evaluations in a row: their
    median; of two evaluations both have to come so far."""
    windows = np.lib.stride_tricks.sliding_window_view(rewards, width)
    if width == WINDOW:
        medians = np.median(windows, axis=1)
        return float(medians.max()), float(medians.min())
    return float(windows.min(1).max()), float(windows.max(1).min())


@dataclass(frozen=True)
class _Start:
    reward: float
    variance: float  # in variances of one evaluation


def _start_and_later(rewards: FloatArray, base: float | None) -> tuple[_Start, FloatArray]:
    """Where a run began, the base policy's reward or the median of its first evaluations, and the
    evaluations after."""
    if base is not None:
        return _Start(base, 1.0), rewards
    count = min(WINDOW, max(1, len(rewards) // 2))
    first = float(np.median(rewards[:count])) if len(rewards) else 0.0
    return _Start(first, MEDIAN_VARIANCE[count]), rewards[count:]


def _whole_step(step: float) -> float:
    return step * (1 - 1e-6)


def _has_trend(runs: Sequence[RewardPath], step: float) -> bool:
    """Whether rewards rise or fall with C: Kendall's S, the pairs that rise less those that fall,
    summed over the runs."""
    score = 0.0
    variance = 0.0
    changes = []  # from the first half of a run to the second
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
    return (abs(score) - 1) / np.sqrt(variance) >= MIN_Z  # 1: S is a whole number


def _merge_to_medians(rewards: FloatArray) -> FloatArray:
    """At most MAX_TREND_POINTS of a long run, whose pairs would be too many."""
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
    """Whether rewards differ between cells, by a step or more in their means."""
    rewards = [np.concatenate([_trained(run) for run in group]) for group in groups]
    rewards = [r for r in rewards if len(r)]
    if len(rewards) < 2 or np.ptp(np.concatenate(rewards)) <= SAME_REWARD:
        return False
    if np.ptp([r.mean() for r in rewards]) < _whole_step(step):
        return False
    return bool(kruskal(*rewards).pvalue < 2 * norm.sf(MIN_Z))


def _level(runs: Sequence[RewardPath]) -> float:
    return float(np.mean(np.concatenate([run.R for run in runs])))


def _is_solved(level: float, size: EvaluationSize) -> bool:
    return level > 1 - min(size.step, MAX_UNSOLVED)


def describe(
    runs: Sequence[RewardPath],
    size: EvaluationSize,
    metric: str,
    opening: str,
    causes: Sequence[str] = (),
    reward_range: tuple[float, float] = (0.0, 1.0),
) -> NothingLearnt:
    """Runs that show nothing, in words; `opening`: such as "no run learnt anything". reward_range:
    what 0 and 1 stand for, where rewards have another scale."""

    def show(reward: float, form: str = ".4g") -> str:
        low, high = reward_range
        return f"{low + (high - low) * reward:{form}}"

    rewards = np.concatenate([run.R for run in runs])
    level = _level(runs)
    is_solved = _is_solved(level, size)
    rollouts = _effective_rollouts(runs, level, size)
    interval = share_interval(level, rollouts)
    outliers = _find_outliers(runs, level, rollouts)
    if outliers:  # no noise explains them, so that no interval may exclude what was measured
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
    """What the rewards of runs that show nothing look like, in words."""

    text: str
    is_varied: bool = False  # they are not all equal
    verdict: str = ""  # why they show nothing all the same, where none stands out


def _describe_rewards(
    rewards: FloatArray,
    level: float,
    metric: str,
    run_count: int,
    is_solved: bool,
    show: Callable[..., str],
) -> _SeenRewards:
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
        which = "only one is" if len(hits) == 1 else f"only {len(hits)} are"
        highest = f"at most {show(rewards.max())}"
        text = f"of {of_runs} {which} above {metric} 0 ({highest})"
        return _SeenRewards(text, is_varied=True, verdict="which is no rise")

    extremes = f"{show(rewards.min())} to {show(rewards.max())}"
    text = f"{metric} stays at {show(level, '.3f')} ({extremes}) at {of_runs}"
    return _SeenRewards(text, is_varied=True, verdict="which is what noise alone gives")


@dataclass(frozen=True)
class _Outlier:
    reward: float
    is_last: bool  # no evaluation after it in its run is back where noise allows


def _find_outliers(runs: Sequence[RewardPath], level: float, rollouts: float) -> list[_Outlier]:
    """The evaluations after C = 0 that lie outside what noise allows around the level, over all of
    them."""
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
    """The probability that so many rollouts, each right with the probability `level`, give this
    reward or one further from the level: of the binomial distribution, continued to hits that are
    not whole."""
    if abs(reward - level) <= SAME_REWARD:
        return 1.0
    if reward < level:  # the misses are as far above their own level
        reward, level = 1 - reward, 1 - level
    hits = reward * rollouts
    return float(betainc(hits, max(rollouts - hits, 0.0) + 1, level))


def _describe_outliers(
    outliers: Sequence[_Outlier], level: float, show: Callable[[float], str]
) -> str:
    """ "" where there are none."""
    if not outliers:
        return ""
    rewards = sorted({outlier.reward for outlier in outliers})
    lowest = rewards[0]
    highest = rewards[-1]
    is_one = len(outliers) == 1
    of = show(lowest) if len(rewards) == 1 else f"{show(lowest)} to {show(highest)}"
    which = f"{len(outliers)} evaluations of {of} stand out"
    if is_one:
        which = f"one evaluation of {of} stands out"
    if not any(outlier.is_last for outlier in outliers):
        return f"{which}; no evaluation after {'it' if is_one else 'them'} stays there"

    change = "a change"
    if lowest > level:
        change = "a rise"
    elif highest < level:
        change = "a fall"
    doubt = "only further evaluations can tell"
    return f"{which}; whether {'it is' if is_one else 'that is'} {change}, {doubt}"


def _effective_rollouts(runs: Sequence[RewardPath], level: float, size: EvaluationSize) -> float:
    """Fewer than the size where the rewards scatter more than so many rollouts would."""
    deviations = np.concatenate([np.abs(run.R - level) for run in runs])
    # of a normal distribution half of the deviations are below this many standard deviations
    scatter = float(np.median(deviations)) / float(norm.isf(0.25))
    if not scatter:
        return size.rollouts
    by_scatter = max(level * (1 - level) / scatter**2, 1.0)
    return min(size.rollouts, by_scatter)


def find_causes(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Why nothing was learnt, as far as the records show it."""
    return tuple(_causes(runs))


def _causes(runs: Sequence[RunRecord]) -> Iterator[str]:
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

    # Where most checks failed, no answer was read for that reason.
    parsed = _largest(_mean(trained, "parsed_fraction"), _mean(evaluated, "parsed_fraction"))
    if parsed is not None and parsed <= NEARLY_NONE and (failed is None or failed < MOST):
        yield f"{_share(parsed)} responses held an answer that could be read (parsed_fraction)"

    equal_groups = _mean(trained, "zero_variance")
    if equal_groups is not None and equal_groups >= NEARLY_ALL:
        consequence = "so there is no gradient (zero_variance)"
        yield f"in {_share(equal_groups)} groups the rewards are equal, {consequence}"


def _share(share: float) -> str:
    """ "all", "no", or "93% of the"."""
    if share > 0.9995:
        return "all"
    if share < 0.0005:
        return "no"
    return f"{100 * share:.3g}% of the"


def _mean(rows: Sequence[Mapping[str, float]], name: str) -> float | None:
    values = [row[name] for row in rows if np.isfinite(row.get(name, np.nan))]
    return float(np.mean(values)) if values else None


def _largest(*shares: float | None) -> float | None:
    return max((share for share in shares if share is not None), default=None)


def _failed_share(runs: Sequence[RunRecord]) -> float | None:
    """The larger of the shares of the checks that failed, in training and at the evaluations."""
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
    """The kinds of the verifier's failures that were recorded, the most frequent first, each after
    a comma."""
    sums: dict[str, float] = {}
    for row in trained:
        for name, value in row.items():
            is_kind = name.startswith("verifier_") and name != "verifier_failures"
            if is_kind and value > 0:
                sums[name] = sums.get(name, 0.0) + value
    return "".join(f", {name}" for name in sorted(sums, key=lambda name: -sums[name]))
