"""The value of a validation metric at an evaluation, by the metric's name:
- KIND@k such as avg@4 or best@4, and SET/KIND@k for an extra set of problems: computed from the
  counts of right answers (core/estimators.py); with graded rewards only avg@k, from their sums;
- train/NAME: a training metric;
- any other name: a value that was recorded under it."""

import re
from dataclasses import dataclass

from numpy.typing import ArrayLike

from isojax.core.errors import InputError
from isojax.core.estimators import ESTIMATOR_KINDS, FloatArray, estimate_at_k
from isojax.core.nouns import EvalPoint, RewardSums

TRAIN_PREFIX = "train/"  # opens the name of a training metric
KINDS_TEXT = (
    ", ".join(f"{kind}@k" for kind in ESTIMATOR_KINDS[:-1]) + f" or {ESTIMATOR_KINDS[-1]}@k"
)
_METRIC_NAME = re.compile(
    rf"(?:(?P<set>(?!train/|verl/)[^/]+)/)?(?P<kind>{'|'.join(ESTIMATOR_KINDS)})@(?P<k>[1-9]\d*)"
)


@dataclass(frozen=True)
class EstimatorMetric:
    """A metric that can be computed from counts of right answers."""

    problem_set: str  # an extra set; "" for the main one
    kind: str  # one of ESTIMATOR_KINDS
    k: int


def parse_metric(metric: str) -> EstimatorMetric | None:
    """The parts of a metric's name, such as EstimatorMetric("hard", "best", 4) of "hard/best@4";
    None where the name is of another kind, which counts of right answers do not determine."""
    match = _METRIC_NAME.fullmatch(metric)
    if match is None:
        return None
    return EstimatorMetric(problem_set=match["set"] or "", kind=match["kind"], k=int(match["k"]))


def correct_counts(point: EvalPoint, metric: str) -> RewardSums:
    """The right answers of each problem, from which the metric is computed, such as (4, 0, 3).

    With graded rewards, sums of rewards. () where the evaluation has none, has fewer samples than
    the metric's k, or has sums of graded rewards that do not determine the metric, and for a metric
    that counts do not determine, such as "train/reward"."""
    parsed = parse_metric(metric)
    if parsed is None or parsed.k > point.samples:
        return ()
    if parsed.kind != "avg" and point.graded:
        return ()

    if parsed.problem_set:
        return point.extra.get(parsed.problem_set, ())
    return point.counts


def metric_per_problem(counts: ArrayLike, samples: int, metric: str) -> FloatArray:
    """The metric of each of N problems: float[..., N] in [0, 1].

    counts: int[..., N], right answers (with graded rewards, sums of rewards) of `samples` rollouts
    per problem; metric: such as "best@4", its k at most `samples`. InputError for a metric that
    counts do not determine."""
    parsed = parse_metric(metric)
    if parsed is None:
        raise InputError(
            where="metric",
            found=f"given {metric!r}, which is not determined by right answers",
            expected=f"{KINDS_TEXT}, or SET/ before one of them, for example best@4",
        )
    return estimate_at_k(counts, samples, parsed.kind, parsed.k)


def metric_value(point: EvalPoint, metric: str, source: str = "") -> float:
    """The metric of one evaluation: recorded, of training, or else computed from its counts.

    InputError where the evaluation has none of them. metric: such as "avg@4", "hard/best@4" or
    "train/entropy"; source: such as the ledger's path and line, begins that message."""
    if metric in point.metrics:
        return float(point.metrics[metric])
    training_name = metric.removeprefix(TRAIN_PREFIX)
    if metric.startswith(TRAIN_PREFIX) and training_name in point.train:
        return float(point.train[training_name])

    counts = correct_counts(point, metric)
    if counts:
        return float(metric_per_problem(counts, point.samples, metric).mean())

    expected = _describe_metrics(point)
    raise InputError(
        found=f"{source or 'an evaluation'} (C = {point.rollouts}) has no metric {metric!r}",
        expected=f"one of those it has: {expected}",
        fix="Ask for one of them.",
    )


def _describe_metrics(point: EvalPoint) -> str:
    """The metrics that one evaluation has, in words, for a message.

    Such as "avg@4, train/entropy and avg@k for k <= 4 from its sums of graded rewards"."""
    names = [*sorted(point.metrics), *(TRAIN_PREFIX + name for name in sorted(point.train))]
    text = ", ".join(names) or "none"

    set_prefixes = ", ".join(f"{name}/" for name, counts in sorted(point.extra.items()) if counts)
    if point.counts or set_prefixes:
        follows = "avg@k" if point.graded else KINDS_TEXT
        source_of_kinds = "sums of graded rewards" if point.graded else "counts"
        text += f" and {follows} for k <= {point.samples} from its {source_of_kinds}"
    if set_prefixes:
        text += f", after {set_prefixes} for an extra set"
    return text


def check_reward(point: EvalPoint, metric: str, reward: float, location: str) -> None:
    """InputError where a reward is not in [0, 1]. location: the file and line, for the message."""
    if not 0 <= reward <= 1:  # also NaN
        raise InputError(
            where=location,
            found=f"{metric} is {reward} at C = {point.rollouts}",
            expected="a number in [0, 1]",
            fix="Correct it or leave the run out.",
        )
