"""Runs as tracks: the compute C and the reward R at each evaluation of a run, as arrays. R is a
validation metric (reward_metric.py), C counts rollouts, tokens or device hours from the base policy
on. These are the two axes of every plot."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from isojax.core.errors import InputError
from isojax.core.estimators import FloatArray
from isojax.core.nouns import EvalPoint, RunRecord
from isojax.runs.ledger import run_conflicts
from isojax.scaling.reward_metric import TRAIN_PREFIX, check_reward, metric_value, parse_metric

COMPUTE_UNITS = ("rollouts", "tokens", "device_hours")
T = TypeVar("T")
K = TypeVar("K")


def as_float64(values: ArrayLike) -> FloatArray:
    """As an array of float64 (SciPy and linalg name their results more loosely)."""
    return np.asarray(values, dtype=np.float64)


class RewardPath(Protocol):
    """One run: compute C and reward R, float[points] each, by rising C."""

    @property
    def C(self) -> FloatArray: ...

    @property
    def R(self) -> FloatArray: ...


@dataclass(frozen=True)
class RewardPoints:
    """A RewardPath of which nothing else is known."""

    C: FloatArray
    R: FloatArray


@dataclass(frozen=True)
class RunTrack:
    """One run's evaluations as two arrays, a RewardPath."""

    run: RunRecord
    C: FloatArray  # [points], compute, rising, 0 at the base policy
    R: FloatArray  # [points], the metric, in [0, 1]

    @property
    def key(self) -> tuple[int, int]:
        return self.run.cell.B_p, self.run.cell.n


TracksByCell = Mapping[tuple[int, int], Sequence[RunTrack]]  # (B_p, n) -> its seeds


def build_tracks(runs: Sequence[RunRecord], metric: str, compute: str) -> list[RunTrack]:
    """The tracks of runs, in order of their cells: C and the metric of each evaluation, as arrays.

    metric: such as "avg@4"; compute: the unit of C, one of COMPUTE_UNITS. InputError where there is
    no run, and where runs do not belong to one sweep, were evaluated on different problems, or lack
    the metric."""
    if not runs:
        raise InputError(
            found="no run to fit",
            expected="at least one RunRecord",
            fix="Name a sweep's folder that holds records.",
        )
    sorted_runs = sorted(runs, key=lambda r: (r.cell, r.source))

    # A sentence where two runs are of one cell and seed, or have different settings. It compares
    # neighbours alone, so that the runs must be sorted.
    conflict = next(run_conflicts(sorted_runs), None)
    if conflict is not None:
        raise InputError(conflict)
    _require_same_problems(sorted_runs, metric)

    return [make_track(r, metric, compute) for r in sorted_runs]


def _require_same_problems(runs: Sequence[RunRecord], metric: str) -> None:
    """InputError where evaluations have different numbers of validation problems.

    They could not be paired. The main set is checked, and the extra set that a metric such as
    "hard/avg@4" names. Evaluations without counts of right answers are not."""
    parsed = parse_metric(metric)
    set_names = dict.fromkeys(("", parsed.problem_set if parsed else ""))  # "": the main set

    for name in set_names:
        source_by_size: dict[int, str] = {}  # a run for each number of problems
        for run in runs:
            for point in run.points:
                counts = point.extra.get(name, ()) if name else point.counts
                if counts:
                    source_by_size[len(counts)] = run.source or run.cell.name

        if len(source_by_size) > 1:  # the message names the two smallest numbers
            (a, first), (b, second), *_ = sorted(source_by_size.items())
            problem_set = f"problems of the set {name!r}" if name else "validation problems"
            raise InputError(
                found=f"{first} has right answers of {a} {problem_set}, {second} of {b}",
                expected="the same problems at every evaluation",
                fix="Correct the file or fit them separately.",
            )


def make_track(run: RunRecord, metric: str, compute: str) -> RunTrack:
    """The track of one run: the compute C and the metric of each evaluation, as arrays.

    metric: such as "avg@4"; compute: the unit of C, one of COMPUTE_UNITS. For a training metric
    (train/NAME) the evaluation before the first update, which has none, is left out. InputError,
    with file and line, where there is no evaluation, one lacks the metric or has it outside [0, 1],
    or C does not rise."""
    location = run.source or f"run {run.cell.name}"
    if metric.startswith(TRAIN_PREFIX):
        run = select_points(run, _points_with_training(run, metric.removeprefix(TRAIN_PREFIX)))
    if not run.points:
        raise InputError(
            where=location,
            found="no evaluation",
            expected="at least one",
            fix="Run the cell or leave it out.",
        )

    locations = [location] * len(run.points)
    if run.line_numbers:
        locations = [f"{location}, line {line}" for line in run.line_numbers]

    C = _compute_axis(run, compute)
    R = np.array(
        [
            metric_value(point, metric, point_location)
            for point, point_location in zip(run.points, locations, strict=True)
        ]
    )
    for point, reward, point_location in zip(run.points, R, locations, strict=True):
        check_reward(point, metric, reward, point_location)
    _check_rising(C, compute, locations)
    return RunTrack(run, C, R)


def _points_with_training(run: RunRecord, name: str) -> slice:
    """The evaluations from the first one on that has this training metric, such as "entropy".

    One that comes after an update should have it, and counts in any case."""
    has_value = [p.M > 0 or name in p.train for p in run.points]
    first = has_value.index(True) if any(has_value) else len(run.points)
    return slice(first, None)


def _check_rising(C: FloatArray, compute: str, locations: Sequence[str]) -> None:
    """InputError where C, float[points], does not rise from evaluation to evaluation.

    compute: the unit of C; locations: the file and line of each evaluation, for the message."""
    for i in range(len(C)):
        is_rising = C[i] > C[i - 1] if i else C[i] >= 0
        if np.isfinite(C[i]) and is_rising:
            continue

        before = f", after {C[i - 1]:g}" if i else ""
        fix = "Correct the file or leave the run out."
        if not C.any():
            fix = "The log has none: use --compute rollouts."
        raise InputError(
            where=locations[i],
            found=f"{compute} is {C[i]:g} at evaluation {i + 1}{before}",
            expected="values >= 0 that rise",
            fix=fix,
        )


def _compute_axis(run: RunRecord, compute: str) -> FloatArray:
    """The compute at each evaluation, float[points], in the unit `compute`, one of COMPUTE_UNITS.

    Device hours count from the base policy's evaluation on, so that start-up does not count.
    InputError for an unknown unit, and where device hours were not recorded."""
    if compute not in COMPUTE_UNITS:
        raise InputError(
            where="compute",
            found=f"given {compute!r}, which is not an axis",
            expected=f"one of {', '.join(COMPUTE_UNITS)}",
        )
    if compute == "rollouts":
        return np.array([p.rollouts for p in run.points], dtype=np.float64)
    if compute == "tokens":
        return np.array([p.tokens for p in run.points], dtype=np.float64)

    if len(run.device_hours) != len(run.points):
        count = f"{len(run.device_hours)} of {len(run.points)} evaluations"
        fix = "Restore its timing.jsonl, or use --compute rollouts."
        raise InputError(
            where=run.source or run.cell.name,
            found=f"has device hours for {count}",
            expected="one each",
            fix=fix,
        )
    hours = np.array(run.device_hours, dtype=np.float64)
    return hours - hours[0] if run.points[0].rollouts == 0 else hours


def fixed_runs(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """The runs whose B_p and n stay, in their order."""
    return [run for run in runs if not run.cell.schedule]


def require_fixed_runs(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs whose B_p and n stay; InputError where there are runs, and none is such.

    The others have a schedule, by which n changes along C."""
    if runs and all(run.cell.schedule for run in runs):
        names = ", ".join(sorted({run.cell.schedule for run in runs}))
        hint = "Add sweep.B_p and sweep.n."
        if all(run.cell.is_of_spend for run in runs):
            hint = (
                "`isojax spend` chose their n on the way: its answer is spend.html. "
                "For a law, launch a sweep."
            )
        raise InputError(
            found=f"all runs have a schedule ({names})",
            expected="some of a fixed n",
            fix=hint,
        )
    return fixed_runs(runs)


def select_points(run: RunRecord, points: slice) -> RunRecord:
    """The run with these of its evaluations alone, their hours and their lines."""
    return replace(
        run,
        points=run.points[points],
        device_hours=run.device_hours[points],
        line_numbers=run.line_numbers[points],
    )


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by their key: keys in the order in which they first occur, items in their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def group_by_cell(tracks: Sequence[RunTrack]) -> dict[tuple[int, int], list[RunTrack]]:
    """The seeds of each (B_p, n), cells and seeds in rising order."""
    return group_by(sorted(tracks, key=lambda t: t.run.cell), lambda t: t.key)


def base_reward(tracks: Sequence[RunTrack]) -> float | None:
    """The base policy's reward: the mean over all runs of the metric at C = 0 (all start from one
    policy)."""
    rewards_at_zero = [t.R[0] for t in tracks if t.C[0] == 0]
    return float(np.mean(rewards_at_zero)) if rewards_at_zero else None


class SharedEvaluations(NamedTuple):
    """The evaluations of all seeds of a cell for one target of C."""

    points: list[EvalPoint]  # one of each seed
    C: float  # mean over the seeds
    R: float


def evaluations_by_target(seeds: Sequence[RunTrack]) -> dict[int, SharedEvaluations]:
    """The evaluations of a cell's seeds by their target, with the means of C and reward over them.

    A target is the budget C that an evaluation answers (EvalPoint.target), 0 for the base policy;
    C itself may differ a little between seeds. It has the targets for which all seeds were
    evaluated, rising. seeds: at least one."""
    # Of each seed, where in its run the evaluation of a target is.
    places_by_seed = [{p.target: i for i, p in enumerate(t.run.points)} for t in seeds]
    targets = sorted(set.intersection(*map(set, places_by_seed)))
    places = [[of_seed[target] for target in targets] for of_seed in places_by_seed]

    mean_C = np.mean([t.C[p] for t, p in zip(seeds, places, strict=True)], axis=0)
    mean_R = np.mean([t.R[p] for t, p in zip(seeds, places, strict=True)], axis=0)
    points = zip(
        *([t.run.points[i] for i in p] for t, p in zip(seeds, places, strict=True)), strict=True
    )
    return {
        target: SharedEvaluations(list(of_target), C, R)
        for target, of_target, C, R in zip(
            targets, points, mean_C.tolist(), mean_R.tolist(), strict=True
        )
    }
