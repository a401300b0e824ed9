"""Whether a sweep shows anything at all, and in words why not.

Evaluations show something where a reward moves beyond what noise allows, and by at least one step
of their resolution (1 / N for an evaluation of N rollouts), in one of these ways:

    shift    a run's median of three evaluations in a row differs from where it began; one hit moves no median
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
NEARLY_ALL, NEARLY_NONE, MOST = 0.99, 0.01, 0.5  # shares, to name a cause


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
    size = evaluation_size([t for seeds in groups for t in seeds], metric)
    if shows_something(groups, size):
        return None
    tracks = [t for seeds in groups for t in seeds]
    if others and not shows_something([*groups, others], size):
        tracks += others
    others_learnt = len(others) > 0 and len(tracks) == sum(map(len, groups))
    opening = "no run of a fixed n learnt anything" if others_learnt else "no run learnt anything"
    causes = () if _is_solved(_level(tracks), size) else find_causes([t.run for t in tracks])
    return describe(tracks, size, metric, opening, causes)


def find_nothing_learnt_by_run(track: RunTrack, metric: str) -> NothingLearnt | None:
    """The same of one run that goes on; None also where it has too few evaluations to say so."""
    trained, is_constant = int((track.C > 0).sum()), np.ptp(track.R) <= SAME_REWARD
    if trained < (1 if is_constant else MIN_OF_ONE_RUN):
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
    if not size.is_known or len(differences) < MIN_COMMON_RUNS or len(starts) < MIN_COMMON_RUNS / 2:
        return False

    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1) / np.sqrt(len(differences)))
    z = float(student_t.isf(FALSE_SHIFTS / 2, len(differences) - 1))
    return abs(mean) >= _whole_step(size.step) and abs(mean) > z * error


def _trained(run: RewardPath) -> FloatArray:
    return run.R[run.C > 0]


def _has_shift(runs: Sequence[RewardPath], size: EvaluationSize) -> bool:
    at_zero = [r for run in runs for r in run.R[run.C == 0]]
    base = float(np.mean(at_zero)) if at_zero else None
    noise = np.concatenate([bends(_trained(run)) for run in runs])
    shifts: list[tuple[float, float]] = []  # (of reward, its standard error)
    for run in runs:
        start, later = _start_and_later(_trained(run), base)
        width = min(WINDOW, len(later))
        if width < 2:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(later, width)
        # Of two evaluations both have to differ.
        highest = float((np.median(windows, axis=1) if width == WINDOW else windows.min(1)).max())
        lowest = float((np.median(windows, axis=1) if width == WINDOW else windows.max(1)).min())
        for reward in (highest, lowest):
            # The noise of shares of N rollouts, or that of neighbours, where N is a guess.
            middle = float(np.clip((start.reward + reward) / 2, size.step / 2, 1 - size.step / 2))
            variance = middle * (1 - middle) / size.rollouts
            if not size.is_known and len(noise):
                variance = float(np.mean(noise**2)) / BEND_VARIANCE
            error = float(np.sqrt(variance * (start.variance + MEDIAN_VARIANCE[width])))
            shifts.append((abs(reward - start.reward), error))
    places = sum(max(len(run.R) - 1, 1) for run in runs)
    z = float(norm.isf(FALSE_SHIFTS / (2 * places)))
    return any(shift >= _whole_step(size.step) and shift > z * error for shift, error in shifts)


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
    score, variance, changes = 0.0, 0.0, []
    for run in runs:
        rewards = _merge_to_medians(_trained(run))
        if len(rewards) < 2:
            continue
        difference = rewards[None, :] - rewards[:, None]
        signs = np.where(np.abs(difference) > SAME_REWARD, np.sign(difference), 0.0)
        score += float(np.triu(signs, 1).sum())
        variance += _kendall_variance(rewards)
        half = len(rewards) // 2
        changes.append(float(rewards[-half:].mean() - rewards[:half].mean()))
    if not variance or np.abs(changes).max() < _whole_step(step):
        return False
    return (abs(score) - 1) / np.sqrt(variance) >= MIN_Z


def _merge_to_medians(rewards: FloatArray) -> FloatArray:
    if len(rewards) <= MAX_TREND_POINTS:
        return rewards
    return np.array([np.median(part) for part in np.array_split(rewards, MAX_TREND_POINTS)])


def _kendall_variance(rewards: FloatArray) -> float:
    """The variance of Kendall's S without a trend, with ties (Kendall 1970)."""
    ties = np.unique(np.round(rewards / SAME_REWARD), return_counts=True)[1].astype(np.float64)
    n = float(len(rewards))
    return (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18


def _cells_differ(groups: Sequence[Sequence[RewardPath]], step: float) -> bool:
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

    rewards, level = np.concatenate([run.R for run in runs]), _level(runs)
    is_solved = _is_solved(level, size)
    count = len(rewards)
    of_several = f" of {len(runs)} runs" if len(runs) > 1 else ""
    of_runs = f"{count} {'evaluation' if count == 1 else 'evaluations'}{of_several}"
    at_all = (
        f"all {of_runs}"
        if count > 2
        else f"{'both evaluations' if count == 2 else 'the only evaluation'}{of_several}"
    )
    hits = rewards[rewards > SAME_REWARD]
    rollouts = _effective_rollouts(runs, level, size)
    interval = share_interval(level, rollouts)
    outliers = _find_outliers(runs, level, rollouts)
    outlying = _describe_outliers(outliers, level, show)
    if outliers:  # no noise explains them, so that no interval may exclude what was measured
        trained = np.concatenate([_trained(run) for run in runs])
        interval = min(interval[0], float(trained.min())), max(interval[1], float(trained.max()))
    if np.ptp(rewards) <= SAME_REWARD:
        where = f"{metric} is {show(level)} at {at_all}"
    elif len(hits) < count / 2 and not is_solved:
        opening += " that evaluations can show"
        which = "only one is" if len(hits) == 1 else f"only {len(hits)} are"
        seen = f"of {of_runs} {which} above {metric} 0 (at most {show(rewards.max())})"
        where = f"{seen}, but {outlying}" if outlying else f"{seen}, which is no rise"
    else:
        opening += " that evaluations can show"
        extremes = f"{show(rewards.min())} to {show(rewards.max())}"
        seen = f"{metric} stays at {show(level, '.3f')} ({extremes}) at {of_runs}"
        where = (
            f"{seen}, but {outlying}" if outlying else f"{seen}, which is what noise alone gives"
        )
    if is_solved:
        has_base = any((run.C == 0).any() for run in runs)
        solved_by = (
            "the base policy already solves them"
            if has_base
            else "the problems are solved from the start"
        )
        opening = f"nothing to learn: {solved_by}"
    text = "; ".join([f"{opening}: {where}" if not is_solved else f"{opening} ({where})", *causes])
    return NothingLearnt(level, interval, size, rollouts, is_solved, text)


@dataclass(frozen=True)
class _Outlier:
    reward: float
    is_last: bool  # no evaluation after it in its run is back where noise allows


def _find_outliers(runs: Sequence[RewardPath], level: float, rollouts: float) -> list[_Outlier]:
    """The evaluations after C = 0 that lie outside what noise allows around the level, over all of
    them."""
    count = sum(len(_trained(run)) for run in runs)
    outliers = []
    for run in runs:
        rewards = _trained(run)
        is_outside = [
            _tail(reward, level, rollouts) < FALSE_SHIFTS / (2 * count)
            for reward in rewards.tolist()
        ]
        for i in np.flatnonzero(is_outside).tolist():
            outliers.append(_Outlier(float(rewards[i]), all(is_outside[i:])))
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
    one = len(outliers) == 1
    of = show(rewards[0]) if len(rewards) == 1 else f"{show(rewards[0])} to {show(rewards[-1])}"
    which = (
        f"one evaluation of {of} stands out"
        if one
        else f"{len(outliers)} evaluations of {of} stand out"
    )
    if not any(outlier.is_last for outlier in outliers):
        return f"{which}; no evaluation after {'it' if one else 'them'} stays there"
    change = "a rise" if rewards[0] > level else "a fall" if rewards[-1] < level else "a change"
    return f"{which}; whether {'it is' if one else 'that is'} {change}, only further evaluations can tell"


def _effective_rollouts(runs: Sequence[RewardPath], level: float, size: EvaluationSize) -> float:
    """Fewer than the size where the rewards scatter more than so many rollouts would."""
    deviations = np.concatenate([np.abs(run.R - level) for run in runs])
    scatter = float(np.median(deviations)) / float(norm.isf(0.25))
    return (
        size.rollouts
        if not scatter
        else min(size.rollouts, max(level * (1 - level) / scatter**2, 1.0))
    )


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
        yield f"{_share(failed)} checks of the verifier failed (verifier_failures{_kinds_of_failure(trained)})"
    truncated = _largest(_mean(trained, "truncated"), _mean(evaluated, "truncated"))
    if truncated is not None and truncated >= MOST:
        yield f"{_share(truncated)} responses were cut off at the length limit (truncated)"
    parsed = _largest(_mean(trained, "parsed_fraction"), _mean(evaluated, "parsed_fraction"))
    if parsed is not None and parsed <= NEARLY_NONE and (failed is None or failed < MOST):
        yield f"{_share(parsed)} responses held an answer that could be read (parsed_fraction)"
    equal_groups = _mean(trained, "zero_variance")
    if equal_groups is not None and equal_groups >= NEARLY_ALL:
        yield f"in {_share(equal_groups)} groups the rewards are equal, so there is no gradient (zero_variance)"


def _share(share: float) -> str:
    """ "all", "no", or "93% of the"."""
    return "all" if share > 0.9995 else "no" if share < 0.0005 else f"{100 * share:.3g}% of the"


def _mean(rows: Sequence[Mapping[str, float]], name: str) -> float | None:
    values = [row[name] for row in rows if np.isfinite(row.get(name, np.nan))]
    return float(np.mean(values)) if values else None


def _largest(*shares: float | None) -> float | None:
    return max((share for share in shares if share is not None), default=None)


def _failed_share(runs: Sequence[RunRecord]) -> float | None:
    """The larger of the shares of the checks that failed, in training and at the evaluations."""
    points = [p for run in runs for p in run.points]
    trained = sum(run.points[-1].rollouts for run in runs)
    evaluated = sum(len(p.counts) * p.samples for p in points if "verifier_failures" in p.metrics)
    in_training = sum(p.train.get("verifier_failures", 0.0) for p in points)
    at_evaluations = sum(p.metrics.get("verifier_failures", 0.0) for p in points if p.counts)
    is_recorded = any("verifier_failures" in p.train for p in points)
    return _largest(
        in_training / trained if trained and is_recorded else None,
        at_evaluations / evaluated if evaluated else None,
    )


def _kinds_of_failure(trained: Sequence[Mapping[str, float]]) -> str:
    prefix, names = "verifier_", {"verifier_failures"}
    sums: dict[str, float] = {}
    for row in trained:
        for name, value in row.items():
            if name.startswith(prefix) and name not in names and value > 0:
                sums[name] = sums.get(name, 0.0) + value
    return "".join(f", {name}" for name in sorted(sums, key=lambda name: -sums[name]))
