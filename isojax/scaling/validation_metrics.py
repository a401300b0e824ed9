"""The two axes of every plot: compute of a run (rollouts, tokens or device hours) and a validation metric.

A metric's name says how it follows from right answers (isojax/core/estimators.py): KIND@k of the validation problems,
SET/KIND@k of an extra set of problems, with KIND one of avg, best, worst, pass, verl/best and verl/worst. train/NAME is
a training metric; any other name stands for what is recorded under it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from isojax.core.errors import InputError
from isojax.core.estimators import ESTIMATOR_KINDS, FloatArray, estimate_at_k
from isojax.core.nouns import EvalPoint, RunRecord

TRAIN_PREFIX = "train/"  # opens the name of a training metric
TRAIN_REWARD = "reward"  # among EvalPoint.train
COMPUTE_UNITS = ("rollouts", "tokens", "device_hours")
_METRIC_NAME = re.compile(rf"(?:(?P<set>(?!train/|verl/)[^/]+)/)?(?P<kind>{'|'.join(ESTIMATOR_KINDS)})@(?P<k>[1-9]\d*)")


def as_float64(values: ArrayLike) -> FloatArray:
    """As an array of float64 (SciPy and linalg name their results more loosely)."""
    return np.asarray(values, dtype=np.float64)


@dataclass(frozen=True)
class RunTrack:
    """One run as two axes.

    Attributes:
        run: the record it came from.
        C: float[points], compute; 0 at the base policy.
        R: float[points], the metric, each in [0, 1].
    """

    run: RunRecord
    C: FloatArray
    R: FloatArray

    @property
    def key(self) -> tuple[int, int]:
        """(B_p, n)."""
        return self.run.cell.B_p, self.run.cell.n


TracksByCell = Mapping[tuple[int, int], Sequence[RunTrack]]  # (B_p, n) -> its seeds


@dataclass(frozen=True)
class PairedDifference:
    """The mean over validation problems of a paired difference, and its standard error (both in units of the
    metric).
    """

    mean: float
    se: float

    @property
    def z(self) -> float:
        """mean / se; 0 where both are 0, infinite where only se is."""
        if self.se > 0:
            return self.mean / self.se
        return math.copysign(math.inf, self.mean) if self.mean else 0.0


@dataclass(frozen=True)
class EstimatorMetric:
    """A metric that right answers determine: `kind` (one of estimators.KINDS) at k, of the extra set `problems`, or ""
    for the main one.
    """

    problem_set: str
    kind: str
    k: int


def parse_metric(metric: str) -> EstimatorMetric | None:
    """Metric("hard", "best", 4) for "hard/best@4"; None for a name that right answers alone do not determine."""
    match = _METRIC_NAME.fullmatch(metric)
    return EstimatorMetric(match["set"] or "", match["kind"], int(match["k"])) if match else None


def correct_counts(point: EvalPoint, metric: str) -> tuple[int, ...]:
    """The counts of one evaluation that determine the metric; () where there are none, or too few samples for its k."""
    parsed = parse_metric(metric)
    if parsed is None or parsed.k > point.samples:
        return ()
    return point.extra.get(parsed.problem_set, ()) if parsed.problem_set else point.counts


def metric_per_problem(counts: ArrayLike, samples: int, metric: str) -> FloatArray:
    """The metric of each problem.

    Args:
        counts: int[..., N], right answers of `samples` per problem, of the metric's set of problems.
        samples: rollouts per problem, at least k.
        metric: such as "avg@4", "verl/best@4" or "hard/pass@4".

    Returns:
        float[..., N], each in [0, 1].

    Raises:
        InputError: another metric, or as `estimators.estimate`.
    """
    parsed = parse_metric(metric)
    if parsed is None:
        received = f"metric {metric!r} is not determined by right answers"
        raise InputError(f"{received}; expected {_kinds_text()}, or SET/ before one of them, for example best@4.")
    return estimate_at_k(counts, samples, parsed.kind, parsed.k)


def _kinds_text() -> str:
    return ", ".join(f"{kind}@k" for kind in ESTIMATOR_KINDS[:-1]) + f" or {ESTIMATOR_KINDS[-1]}@k"


def metric_value(point: EvalPoint, metric: str, source: str = "") -> float:
    """The metric of one evaluation: as recorded, train/NAME from its training metrics, else from its counts.

    Raises:
        InputError: it is neither recorded nor determined by the counts; the message names the metrics there are.
    """
    if metric in point.metrics:
        return float(point.metrics[metric])
    if metric.startswith(TRAIN_PREFIX) and metric.removeprefix(TRAIN_PREFIX) in point.train:
        return float(point.train[metric.removeprefix(TRAIN_PREFIX)])
    counts = correct_counts(point, metric)
    if counts:
        return float(metric_per_problem(counts, point.samples, metric).mean())
    available = ", ".join([*sorted(point.metrics), *(TRAIN_PREFIX + name for name in sorted(point.train))]) or "none"
    location = f"{source or 'an evaluation'} (C = {point.rollouts})"
    raise InputError(
        f"{location} has no metric {metric!r}; expected one of those it has: {available}{_describe_derived(point)}. "
        "Ask for one of them."
    )


def _describe_derived(point: EvalPoint) -> str:
    """What follows from an evaluation's counts, in words."""
    set_prefixes = [f"{name}/" for name, counts in sorted(point.extra.items()) if counts]
    if not point.counts and not set_prefixes:
        return ""
    set_suffix = f", after {', '.join(set_prefixes)} for an extra set" if set_prefixes else ""
    return f" and {_kinds_text()} for k <= {point.samples} from its counts{set_suffix}"


def compute_axis(run: RunRecord, compute: str) -> FloatArray:
    """Compute at each evaluation, in rollouts, response tokens or device hours.

    Device hours count from the base policy's evaluation on, where there is one, so that start-up is not charged to a
    run.

    Returns:
        float[points].

    Raises:
        InputError: unknown axis, or the run has no device hours.
    """
    if compute not in COMPUTE_UNITS:
        raise InputError(f"compute {compute!r} is not an axis; expected one of {', '.join(COMPUTE_UNITS)}.")
    if compute == "rollouts":
        return np.array([p.rollouts for p in run.points], dtype=np.float64)
    if compute == "tokens":
        return np.array([p.tokens for p in run.points], dtype=np.float64)
    if len(run.device_hours) != len(run.points):
        raise InputError(
            f"{run.source or run.cell.name} has device hours for {len(run.device_hours)} of {len(run.points)} "
            "evaluations; "
            "expected one each. Restore its timing.jsonl, or use --compute rollouts."
        )
    hours = np.array(run.device_hours, dtype=np.float64)
    return hours - hours[0] if run.points[0].rollouts == 0 else hours


def make_track(run: RunRecord, metric: str, compute: str) -> RunTrack:
    """A run's two axes, checked. A training metric, train/NAME, has no value before the first update: that point is
    left out.

    Raises:
        InputError: no evaluation, a metric that is absent, not finite or outside [0, 1], or compute that does not rise
        from >= 0.
    """
    location = run.source or f"run {run.cell.name}"
    if metric.startswith(TRAIN_PREFIX):
        run = _without_untrained_points(run, metric.removeprefix(TRAIN_PREFIX))
    if not run.points:
        raise InputError(f"{location} has no evaluation; expected at least one. Run the cell or leave it out.")
    locations = [f"{location}, line {line}" for line in run.line_numbers] or [location] * len(run.points)
    C = compute_axis(run, compute)
    R = np.array([metric_value(p, metric, place) for p, place in zip(run.points, locations, strict=True)])
    for p, r, place in zip(run.points, R, locations, strict=True):
        if not 0 <= r <= 1:  # also NaN
            raise InputError(
                f"{place}: {metric} is {r} at C = {p.rollouts}; expected a number in [0, 1]. Mend it or leave the "
                "run out."
            )
    for i in range(len(C)):
        is_rising = C[i] > C[i - 1] if i else C[i] >= 0
        if not (np.isfinite(C[i]) and is_rising):
            before = f", after {C[i - 1]:g}" if i else ""
            problem_text = f"{locations[i]}: {compute} is {C[i]:g} at evaluation {i + 1}{before}"
            absent = not C.any()
            fix = "The log has none: use --compute rollouts." if absent else "Mend the file or leave the run out."
            raise InputError(f"{problem_text}; expected values >= 0 that rise. {fix}")
    return RunTrack(run, C, R)


def _without_untrained_points(run: RunRecord, metric_name: str) -> RunRecord:
    """The run without evaluations before the first update that lack a training metric."""
    first_index = next((i for i, p in enumerate(run.points) if p.M > 0 or metric_name in p.train), len(run.points))
    return replace(
        run,
        points=run.points[first_index:],
        device_hours=run.device_hours[first_index:],
        line_numbers=run.line_numbers[first_index:],
    )


def paired_difference(
    counts_a: ArrayLike, counts_b: ArrayLike, samples: int, metric: str = "avg@1"
) -> PairedDifference:
    """How far a lies above b on the same validation problems: d_i = mean over seeds of a_i - mean over seeds of b_i.

    Pairing removes the spread of the problems' difficulty, most of an unpaired error. The error is that over other
    problems and other samples, not over other training seeds.

    Args:
        counts_a: int[seeds of a, N], right answers of `samples`; int[N] for one seed.
        counts_b: int[seeds of b, N].
        samples: rollouts per problem.
        metric: as in `per_problem`.

    Returns:
        mean(d) and std(d, ddof=1) / sqrt(N).

    Raises:
        InputError: different N, N < 2, or as `per_problem`.
    """
    a, b = np.atleast_2d(counts_a), np.atleast_2d(counts_b)
    N = a.shape[-1]
    if b.shape[-1] != N or N < 2:
        received = f"{N} validation problems are to be paired with {b.shape[-1]}"
        raise InputError(f"{received}; expected the same ones, at least 2. Evaluate both on one set.")
    differences = metric_per_problem(a, samples, metric).mean(0) - metric_per_problem(b, samples, metric).mean(0)
    return PairedDifference(float(differences.mean()), float(differences.std(ddof=1) / math.sqrt(N)))


def evaluations_by_target(seeds: Sequence[RunTrack]) -> dict[int, tuple[list[EvalPoint], float]]:
    """For each target that all seeds of a cell answered: their evaluations, and the mean of their compute."""
    maps_by_seed = [{p.target: (p, float(c)) for p, c in zip(t.run.points, t.C, strict=True)} for t in seeds]
    common_targets = sorted(set.intersection(*(set(m) for m in maps_by_seed)))
    return {
        t: ([m[t][0] for m in maps_by_seed], float(np.mean([m[t][1] for m in maps_by_seed]))) for t in common_targets
    }


def paired_lead(
    evaluations_a: Sequence[EvalPoint], evaluations_b: Sequence[EvalPoint], metric: str
) -> PairedDifference | None:
    """The paired difference of two lists of evaluations (one per seed); None without counts of one common number of
    samples.
    """
    sample_counts = {p.samples for p in (*evaluations_a, *evaluations_b)}
    correct_a, correct_b = ([correct_counts(p, metric) for p in points] for points in (evaluations_a, evaluations_b))
    if len(sample_counts) != 1 or not all([*correct_a, *correct_b]):
        return None
    return paired_difference(correct_a, correct_b, sample_counts.pop(), metric)


def group_by_cell(tracks: Sequence[RunTrack]) -> dict[tuple[int, int], list[RunTrack]]:
    """The seeds of each (B_p, n), cells and seeds in rising order."""
    cells: dict[tuple[int, int], list[RunTrack]] = {}
    for t in sorted(tracks, key=lambda t: t.run.cell):
        cells.setdefault(t.key, []).append(t)
    return cells
