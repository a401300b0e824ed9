"""Runs as tracks, the two axes of every plot: compute C and a validation metric R, from the base
policy on.

KIND@k and SET/KIND@k (an extra set) follow from right answers (isojax/core/estimators.py), of
graded rewards avg@k alone from their sums; train/NAME is a training metric; other names are
recorded values. Below: how far one cell leads another on the same problems, and the noise of R.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from isojax.core.errors import InputError
from isojax.core.estimators import ESTIMATOR_KINDS, FloatArray, estimate_at_k
from isojax.core.nouns import EvalPoint, RewardSums, RunRecord
from isojax.runs.ledger import run_conflicts

TRAIN_PREFIX = "train/"  # opens the name of a training metric
COMPUTE_UNITS = ("rollouts", "tokens", "device_hours")
KINDS_TEXT = (
    ", ".join(f"{kind}@k" for kind in ESTIMATOR_KINDS[:-1]) + f" or {ESTIMATOR_KINDS[-1]}@k"
)
_METRIC_NAME = re.compile(
    rf"(?:(?P<set>(?!train/|verl/)[^/]+)/)?(?P<kind>{'|'.join(ESTIMATOR_KINDS)})@(?P<k>[1-9]\d*)"
)
_CHI_SQUARE_MEDIAN = 0.455  # of one degree of freedom
_BEND_VARIANCE = 1.5  # of a value minus the mean of its two neighbours, in variances of one value
NEWTON_STEPS = 30
# between evaluations, to tell their time from that of rollouts
MIN_INTERVALS = 5
MIN_ROLLOUT_SHARE = 0.1
_ROUNDING = 1e-9  # values of this size are residuals of a computed curve: their ratios mean nothing
T = TypeVar("T")
K = TypeVar("K")


def as_float64(values: ArrayLike) -> FloatArray:
    """As an array of float64 (SciPy and linalg name their results more loosely)."""
    return np.asarray(values, dtype=np.float64)


@dataclass(frozen=True)
class RunTrack:
    """One run as two axes: compute, 0 at the base policy, and the metric, each in [0, 1]."""

    run: RunRecord
    C: FloatArray  # [points]
    R: FloatArray  # [points]

    @property
    def key(self) -> tuple[int, int]:
        return self.run.cell.B_p, self.run.cell.n


TracksByCell = Mapping[tuple[int, int], Sequence[RunTrack]]  # (B_p, n) -> its seeds


def build_tracks(runs: Sequence[RunRecord], metric: str, compute: str) -> list[RunTrack]:
    """The runs' axes by cell, once the runs are known to belong together; raises InputError where
    they do not."""
    if not runs:
        raise InputError(
            "no run to fit; expected at least one RunRecord. Name a sweep's folder that holds records."
        )
    sorted_runs = sorted(runs, key=lambda r: (r.cell, r.source))
    if (conflict := next(run_conflicts(sorted_runs), None)) is not None:
        raise InputError(conflict)
    _require_same_problems(sorted_runs, metric)
    return [make_track(r, metric, compute) for r in sorted_runs]


def _require_same_problems(runs: Sequence[RunRecord], metric: str) -> None:
    """Refuse right answers of different numbers of problems, in the main or the metric's set: they
    cannot be paired."""
    parsed = parse_metric(metric)
    for name in dict.fromkeys(("", parsed.problem_set if parsed else "")):
        counts_by_run = [
            (r, p.extra.get(name, ()) if name else p.counts) for r in runs for p in r.points
        ]
        source_by_size = {
            len(counts): r.source or r.cell.name for r, counts in counts_by_run if counts
        }
        if len(source_by_size) > 1:
            (a, first), (b, second), *_ = sorted(source_by_size.items())
            problem_set = f"problems of the set {name!r}" if name else "validation problems"
            raise InputError(
                f"{first} has right answers of {a} {problem_set}, {second} of {b}; "
                "expected the same problems at every evaluation. Correct the file or fit them separately."
            )


def make_track(run: RunRecord, metric: str, compute: str) -> RunTrack:
    """A run's two axes, or a refusal; the point before the first update, which has no train/NAME,
    is left out."""
    location = run.source or f"run {run.cell.name}"
    if metric.startswith(TRAIN_PREFIX):
        has_value = [p.M > 0 or metric.removeprefix(TRAIN_PREFIX) in p.train for p in run.points]
        run = select_points(
            run, slice(has_value.index(True) if any(has_value) else len(run.points), None)
        )
    if not run.points:
        raise InputError(
            f"{location} has no evaluation; expected at least one. Run the cell or leave it out."
        )
    locations = [f"{location}, line {line}" for line in run.line_numbers] or [location] * len(
        run.points
    )
    C = _compute_axis(run, compute)
    R = np.array(
        [metric_value(p, metric, place) for p, place in zip(run.points, locations, strict=True)]
    )
    for p, r, place in zip(run.points, R, locations, strict=True):
        check_reward(p, metric, r, place)
    for i in range(len(C)):
        is_rising = C[i] > C[i - 1] if i else C[i] >= 0
        if not (np.isfinite(C[i]) and is_rising):
            before = f", after {C[i - 1]:g}" if i else ""
            received = f"{locations[i]}: {compute} is {C[i]:g} at evaluation {i + 1}{before}"
            fix = (
                "Correct the file or leave the run out."
                if C.any()
                else "The log has none: use --compute rollouts."
            )
            raise InputError(f"{received}; expected values >= 0 that rise. {fix}")
    return RunTrack(run, C, R)


def check_reward(point: EvalPoint, metric: str, reward: float, location: str) -> None:
    """InputError where a reward is none."""
    if not 0 <= reward <= 1:  # also NaN
        received = f"{location}: {metric} is {reward} at C = {point.rollouts}"
        raise InputError(
            f"{received}; expected a number in [0, 1]. Correct it or leave the run out."
        )


def _compute_axis(run: RunRecord, compute: str) -> FloatArray:
    """float[points]: compute at each evaluation; device hours count from the base policy's on,
    without start-up."""
    if compute not in COMPUTE_UNITS:
        raise InputError(
            f"compute {compute!r} is not an axis; expected one of {', '.join(COMPUTE_UNITS)}."
        )
    if compute != "device_hours":
        return np.array(
            [p.rollouts if compute == "rollouts" else p.tokens for p in run.points],
            dtype=np.float64,
        )
    if len(run.device_hours) != len(run.points):
        raise InputError(
            f"{run.source or run.cell.name} has device hours for {len(run.device_hours)} of {len(run.points)} "
            "evaluations; expected one each. Restore its timing.jsonl, or use --compute rollouts."
        )
    hours = np.array(run.device_hours, dtype=np.float64)
    return hours - hours[0] if run.points[0].rollouts == 0 else hours


@dataclass(frozen=True)
class Clock:
    """C >= C_first rollouts take startup + C per_rollout + log(C / C_first) per_efold seconds; the
    last term is that of evaluations evenly spaced in log C from C_first on. Of one run, or
    float[cells] of each cell (NaN: not known)."""

    startup: FloatArray
    per_rollout: FloatArray
    per_efold: FloatArray
    C_first: FloatArray
    devices: FloatArray

    def seconds(self, C: FloatArray | float) -> FloatArray:
        return (
            self.startup
            + C * self.per_rollout
            + np.log(np.maximum(C / self.C_first, 1.0)) * self.per_efold
        )

    def rollouts(self, seconds: FloatArray | float) -> FloatArray:
        """The whole rollouts that these seconds are enough for; 0 where that is not known."""
        # if evaluations took no time
        C = np.maximum(seconds - self.startup, 0.0) / self.per_rollout
        # in log C, in which the seconds are convex: from above, to the solution
        for _ in range(NEWTON_STEPS):
            slope = C * self.per_rollout + np.where(self.C_first < C, self.per_efold, 0.0)
            C = C * np.exp((seconds - self.seconds(C)) / np.maximum(slope, _ROUNDING))
        return np.floor(np.nan_to_num(C * (1 + _ROUNDING)))


def run_clock(run: RunRecord) -> Clock | None:
    """A run's clock between evaluations at C > 0; None where it has none. Least squares, in which
    the variance of the seconds between two evaluations grows with their rollouts: it keeps the
    seconds in all."""
    C = np.array([point.rollouts for point in run.points], dtype=np.float64)
    if len(run.device_hours) != len(C) or (C > 0).sum() < 2:
        return None
    seconds, C = 3600 * np.array(run.device_hours)[C > 0] / run.devices, C[C > 0]
    rollouts, efolds, total = np.diff(C), np.diff(np.log(C)), seconds[-1] - seconds[0]
    if total <= 0:
        return None
    average = per_rollout = total / rollouts.sum()
    if len(rollouts) >= MIN_INTERVALS:
        terms = np.stack([rollouts, efolds], axis=1) / np.sqrt(rollouts)[:, None]
        per_rollout = max(
            nnls(terms, np.diff(seconds) / np.sqrt(rollouts))[0][0], MIN_ROLLOUT_SHARE * average
        )
    per_efold = max(total - per_rollout * rollouts.sum(), 0.0) / efolds.sum()
    return Clock(
        *as_float64(
            [max(seconds[0] - C[0] * per_rollout, 0.0), per_rollout, per_efold, C[0], run.devices]
        )
    )


def fixed_runs(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """The runs whose B_p and n stay, in their order."""
    return [run for run in runs if not run.cell.schedule]


def require_fixed_runs(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """`fixed_runs`; InputError where there are runs, and all have a schedule."""
    if runs and all(run.cell.schedule for run in runs):
        names = ", ".join(sorted({run.cell.schedule for run in runs}))
        hint = "Add sweep.B_p and sweep.n."
        if all(run.cell.is_of_spend for run in runs):
            hint = "`isojax spend` chose their n on the way: its answer is spend.html. For a law, launch a sweep."
        raise InputError(f"all runs have a schedule ({names}); expected some of a fixed n. {hint}")
    return fixed_runs(runs)


def select_points(run: RunRecord, points: slice) -> RunRecord:
    hours, lines = run.device_hours[points], run.line_numbers[points]
    return replace(run, points=run.points[points], device_hours=hours, line_numbers=lines)


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items of each key; keys, and the items of one, in the order in which they come."""
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


@dataclass(frozen=True)
class EstimatorMetric:
    """A metric that right answers determine."""

    problem_set: str  # an extra set; "" for the main one
    kind: str  # one of ESTIMATOR_KINDS
    k: int


def parse_metric(metric: str) -> EstimatorMetric | None:
    """EstimatorMetric("hard", "best", 4) for "hard/best@4"; None where right answers do not
    determine the metric."""
    match = _METRIC_NAME.fullmatch(metric)
    return EstimatorMetric(match["set"] or "", match["kind"], int(match["k"])) if match else None


def correct_counts(point: EvalPoint, metric: str) -> RewardSums:
    """The counts, or sums of graded rewards, of one evaluation that determine the metric; () where
    there are none, too few samples for its k, or sums alone that do not."""
    parsed = parse_metric(metric)
    if parsed is None or parsed.k > point.samples or (parsed.kind != "avg" and point.graded):
        return ()
    return point.extra.get(parsed.problem_set, ()) if parsed.problem_set else point.counts


def metric_per_problem(counts: ArrayLike, samples: int, metric: str) -> FloatArray:
    """The metric of each problem, from int[..., N] right answers of `samples` per problem:
    float[..., N] in [0, 1]."""
    parsed = parse_metric(metric)
    if parsed is None:
        received = f"metric {metric!r} is not determined by right answers"
        raise InputError(
            f"{received}; expected {KINDS_TEXT}, or SET/ before one of them, for example best@4."
        )
    return estimate_at_k(counts, samples, parsed.kind, parsed.k)


def metric_value(point: EvalPoint, metric: str, source: str = "") -> float:
    """The metric of one evaluation: as recorded, train/NAME from its training metrics, else from
    its counts."""
    recorded = {
        **{TRAIN_PREFIX + name: value for name, value in point.train.items()},
        **point.metrics,
    }
    if metric in recorded:
        return float(recorded[metric])
    counts = correct_counts(point, metric)
    if counts:
        return float(metric_per_problem(counts, point.samples, metric).mean())
    expected = (
        ", ".join([*sorted(point.metrics), *(TRAIN_PREFIX + name for name in sorted(point.train))])
        or "none"
    )
    set_prefixes = ", ".join(f"{name}/" for name, counts in sorted(point.extra.items()) if counts)
    if point.counts or set_prefixes:
        follows = "avg@k" if point.graded else KINDS_TEXT
        source_of_kinds = "sums of graded rewards" if point.graded else "counts"
        expected += f" and {follows} for k <= {point.samples} from its {source_of_kinds}"
        expected += f", after {set_prefixes} for an extra set" if set_prefixes else ""
    problem = f"{source or 'an evaluation'} (C = {point.rollouts}) has no metric {metric!r}"
    raise InputError(f"{problem}; expected one of those it has: {expected}. Ask for one of them.")


@dataclass(frozen=True)
class PairedDifference:
    """The mean over validation problems of a paired difference of the metric, and its standard
    error."""

    mean: float
    se: float

    @property
    def z(self) -> float:
        """mean / se; 0 where both are 0, infinite where only se is."""
        if self.se > 0:
            return self.mean / self.se
        return math.copysign(math.inf, self.mean) if self.mean else 0.0


def evaluations_by_target(
    seeds: Sequence[RunTrack],
) -> dict[int, tuple[list[EvalPoint], float, float]]:
    """For each target that all seeds of a cell answered: their evaluations, the means of their
    compute and metric."""
    answers_by_seed = [
        {p.target: (p, C, R) for p, C, R in zip(t.run.points, t.C, t.R, strict=True)} for t in seeds
    ]
    by_target = {}
    for target in sorted(set.intersection(*map(set, answers_by_seed))):
        points, C, R = zip(*(answers[target] for answers in answers_by_seed), strict=True)
        by_target[target] = list(points), float(np.mean(C)), float(np.mean(R))
    return by_target


def paired_lead(
    a: Sequence[EvalPoint], b: Sequence[EvalPoint], metric: str
) -> PairedDifference | None:
    """How far a is above b (an evaluation per seed) on the same problems, with the error over other
    problems and samples; None without counts of one common number of samples."""
    sample_counts = {p.samples for p in (*a, *b)}
    counts_a, counts_b = ([correct_counts(p, metric) for p in points] for points in (a, b))
    if len(sample_counts) != 1 or not all([*counts_a, *counts_b]):
        return None
    N_a, N_b = len(counts_a[0]), len(counts_b[0])
    if N_a != N_b or N_a < 2:
        received = f"{N_a} validation problems are to be paired with {N_b}"
        raise InputError(
            f"{received}; expected the same ones, at least 2. Evaluate both on one set."
        )
    mean_a, mean_b = (
        metric_per_problem(c, a[0].samples, metric).mean(0) for c in (counts_a, counts_b)
    )
    differences = mean_a - mean_b
    return PairedDifference(
        float(differences.mean()), float(differences.std(ddof=1) / math.sqrt(N_a))
    )


def running_means(values: FloatArray, width: int) -> FloatArray:
    """The mean of each `width` consecutive values."""
    return np.convolve(values, np.full(width, 1 / width), mode="valid")


def noise_sd(values_by_run: Sequence[FloatArray]) -> float:
    """Standard deviation of one value, from its median distance to the mean of its neighbours; 0 of
    too few values."""
    bends = [r[1:-1] - (r[:-2] + r[2:]) / 2 for r in values_by_run if len(r) > 2]
    return (
        float(np.sqrt(np.median(np.concatenate(bends) ** 2) / _CHI_SQUARE_MEDIAN / _BEND_VARIANCE))
        if bends
        else 0.0
    )


def difference_sd(residuals_by_run: Sequence[FloatArray]) -> float:
    """Standard deviation of one evaluation from how residuals differ from their neighbours."""
    differences = [np.diff(r) for r in residuals_by_run if len(r) > 1]
    return float(np.sqrt(np.mean(np.concatenate(differences) ** 2) / 2)) if differences else 0.0


def autocorrelation(residuals_by_run: Sequence[FloatArray]) -> float | None:
    """Correlation of neighbouring residuals; None where there are no neighbours or the residuals
    are rounding."""
    products = [r[1:] * r[:-1] for r in residuals_by_run if len(r) > 1]
    variance = float(np.mean(np.concatenate(residuals_by_run) ** 2)) if products else 0.0
    return float(np.mean(np.concatenate(products)) / variance) if variance > _ROUNDING**2 else None


def reduced_chi_square(residuals_by_run: Sequence[FloatArray]) -> float | None:
    """Mean squared residual in variances of one evaluation; None without neighbours, or where they
    are rounding."""
    evaluation_sd = difference_sd(residuals_by_run)
    if evaluation_sd <= _ROUNDING:
        return None
    return float(np.mean(np.concatenate(residuals_by_run) ** 2) / evaluation_sd**2)
