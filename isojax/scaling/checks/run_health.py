"""Which runs broke, by stated criteria, from their records alone. Flagged runs are left out of fits unless asked for.

A criterion holds where it does so at every evaluation from some C to the end, at least the last `PERSISTENCE`; that C
is where it set in. With w the mean of the last three evaluations, b the reward of the base policy (of the first
evaluation, where C = 0 has none) and r the best running mean of three (at least b), a difference counts where it
exceeds max(.02, 4 SE). SE is paired over validation problems where right answers are recorded, and, of ten evaluations
or more, not below what the scatter of neighbours says; with neither nothing counts.
"fell": r - w counts. "gained": w - b counts.

    collapsed           reward stays below b + (r - b) / 2 and fell, and the training reward, where recorded, stays
                        below the middle of its own start and best (else the run overfits, which a fit names); or
                        groups without variance stay at .95 or more, having begun below .8, and nothing was gained
    entropy_exploded    entropy stays above twice that of the first interval, and reward fell
    entropy_collapsed   entropy stays below 2% of that of the first interval, and w < b + .1 (1 - b): little is
                        learned, nothing explored
    length_exploded     responses stay over three times as long as in the first interval, and reward fell or nothing
                        was gained
    truncated           half of all responses or more stay cut off, .25 more than in the first interval, and reward
                        fell or nothing was gained
    nonfinite_update    the run broke off, a loss or gradient norm is not finite, or over 1% of an interval's updates
                        were skipped because theirs was not (a single one is harmless: the policy stays as it was)
    mismatch            the mean |log ratio| of trainer to sampler stays above .1, where no older policy sampled (a
                        pipeline's `staleness_mean`)

A criterion whose numbers were not recorded raises no flag.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import EvalPoint, RunRecord
from isojax.runs.ledger_reader import default_metric
from isojax.scaling.frontier.frontier_evidence import paired_lead
from isojax.scaling.validation_metrics import TRAIN_REWARD, FloatArray, metric_value

PERSISTENCE = 3
MIN_CHANGE, Z_CHANGE = 0.02, 4.0
MIN_POINTS_FOR_SCATTER = 10
ZERO_VARIANCE_COLLAPSED, ZERO_VARIANCE_AT_START = 0.95, 0.8
ENTROPY_EXPLODED_RATIO, ENTROPY_COLLAPSED_RATIO, MIN_LEARNED_SHARE = 2.0, 0.02, 0.1
LENGTH_EXPLODED_RATIO = 3.0
TRUNCATED_SHARE, TRUNCATED_RISE = 0.5, 0.25
MAX_SAMPLER_LOGP_GAP = 0.1
MAX_NONFINITE_SHARE = 0.01


@dataclass(frozen=True)
class HealthFlag:
    """A run is not healthy: by which criterion, from which C in rollouts on, and its numbers in words."""

    name: str
    C: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name} from C = {self.C:,}: {self.reason}"


@dataclass(frozen=True)
class RewardSummary:
    """A run's validation reward: of the base policy, at best, and in the end, and which of these differences count."""

    base: float
    best: float
    last: float
    fell: bool
    gained: bool


def health_flags(run: RunRecord) -> tuple[HealthFlag, ...]:
    """A run's flags, none where it is healthy. The reward is the ledger's avg@k (`records.default_metric`).

    A run of fewer than PERSISTENCE + 1 evaluations can only be `nonfinite_update`.
    """
    flags = _nonfinite(run)
    try:
        R = np.array([metric_value(p, default_metric([run]), run.source) for p in run.points])
    except InputError:  # evaluations without the metric: a fit refuses them and names their place
        return tuple(flags)
    same_problem_count = len({len(p.counts) for p in run.points}) == 1  # else a fit refuses it too
    if len(R) > PERSISTENCE and np.isfinite(R).all() and same_problem_count:
        reward = _summarize_reward(run, R)
        flags += (
            _collapsed(run, R, reward)
            + _entropy(run, reward)
            + _length_and_truncation(run, reward)
            + _sampler_mismatch(run)
        )
    return tuple(flags)


def _metric_series(run: RunRecord, key: str) -> tuple[list[EvalPoint], FloatArray]:
    """The evaluations that recorded a training metric, and its values."""
    points = [p for p in run.points if key in p.train and math.isfinite(p.train[key])]
    return points, np.array([p.train[key] for p in points])


def _persistent_start(mask: np.ndarray) -> int | None:
    """Where the last unbroken stretch of True begins, if it lasts to the end and is STAYED long."""
    start = len(mask) - int(np.argmin(np.append(mask[::-1], False)))
    return start if len(mask) - start >= PERSISTENCE else None


def _running_means(values: FloatArray) -> FloatArray:
    return np.convolve(values, np.full(PERSISTENCE, 1 / PERSISTENCE), mode="valid")


def _scatter(R: FloatArray) -> float:
    """Standard deviation of one value from its neighbours, by a median, which a fall does not move; 0 of too few to
    tell.
    """
    if len(R) < MIN_POINTS_FOR_SCATTER:
        return 0.0
    deviations = R[1:-1] - (R[:-2] + R[2:]) / 2
    return float(
        np.sqrt(np.median(deviations**2) / (0.455 * 1.5))
    )  # .455: the median of chi-square(1); 1.5: the variance of `bent`


def _summarize_reward(run: RunRecord, R: FloatArray) -> RewardSummary:
    running_means = _running_means(R)
    best_start = int(running_means.argmax())
    base_points, last_points = run.points[:1], run.points[-PERSISTENCE:]
    best_points = run.points[best_start : best_start + PERSISTENCE] if running_means[best_start] > R[0] else base_points
    base_reward, best_reward, last_reward = (
        float(R[0]),
        float(max(R[0], running_means[best_start])),
        float(running_means[-1]),
    )
    return RewardSummary(
        base_reward,
        best_reward,
        last_reward,
        _exceeds_noise(run, R, best_points, last_points, best_reward - last_reward),
        _exceeds_noise(run, R, base_points, last_points, last_reward - base_reward),
    )


def _exceeds_noise(
    run: RunRecord, R: FloatArray, a: Sequence[EvalPoint], b: Sequence[EvalPoint], difference: float
) -> bool:
    """Whether the mean reward of evaluations `a` differs from that of `b` by more than noise. Without right answers and
    with too few evaluations for their scatter nothing does."""
    paired_difference = paired_lead(a, b, default_metric([run]))
    scatter = _scatter(R) * math.sqrt(1 / len(a) + 1 / len(b))
    if paired_difference is None and len(R) < MIN_POINTS_FOR_SCATTER:
        return False
    return difference > max(
        MIN_CHANGE, Z_CHANGE * max(scatter, paired_difference.se if paired_difference is not None else 0.0)
    )


def _collapsed(run: RunRecord, R: FloatArray, reward: RewardSummary) -> list[HealthFlag]:
    start = _persistent_start((reward.base + reward.best) / 2 > R)
    if start is not None and reward.fell and _training_reward_fell(run):
        reason = (
            f"reward fell from {reward.best:.3f} to {reward.last:.3f} and stays there (base policy: {reward.base:.3f})"
        )
        return [HealthFlag("collapsed", run.points[start].rollouts, reason)]
    points, zero_variance = _metric_series(run, "zero_variance")
    start = _persistent_start(zero_variance >= ZERO_VARIANCE_COLLAPSED)
    if start is not None and zero_variance[0] < ZERO_VARIANCE_AT_START and not reward.gained:
        reason = (
            f"{np.mean(zero_variance[start:]):.0%} of groups are all right or all wrong, and reward is "
            f"{reward.last:.3f}"
        )
        return [HealthFlag("collapsed", points[start].rollouts, f"{reason} (base policy: {reward.base:.3f})")]
    return []


def _training_reward_fell(run: RunRecord) -> bool:
    """Whether the training reward stays below the middle of its start and its best; True where it was not recorded."""
    _, training_rewards = _metric_series(run, TRAIN_REWARD)
    return (
        len(training_rewards) < PERSISTENCE
        or _running_means(training_rewards)[-1]
        <= (training_rewards[0] + max(training_rewards[0], _running_means(training_rewards).max())) / 2
    )


def _entropy(run: RunRecord, reward: RewardSummary) -> list[HealthFlag]:
    points, entropy = _metric_series(run, "entropy")
    if len(entropy) <= PERSISTENCE:
        return []
    exploded_start, collapsed_start = (
        _persistent_start(entropy > ENTROPY_EXPLODED_RATIO * entropy[0]),
        _persistent_start(entropy < ENTROPY_COLLAPSED_RATIO * entropy[0]),
    )
    reason = f"entropy went from {entropy[0]:.3g} to {entropy[-1]:.3g} nats per token"
    if exploded_start is not None and reward.fell:
        return [
            HealthFlag(
                "entropy_exploded",
                points[exploded_start].rollouts,
                f"{reason} while reward fell from {reward.best:.3f} to {reward.last:.3f}",
            )
        ]
    if collapsed_start is not None and reward.last < reward.base + MIN_LEARNED_SHARE * (1 - reward.base):
        return [
            HealthFlag(
                "entropy_collapsed",
                points[collapsed_start].rollouts,
                f"{reason} at a reward of {reward.last:.3f} (base: {reward.base:.3f})",
            )
        ]
    return []


def _length_and_truncation(run: RunRecord, reward: RewardSummary) -> list[HealthFlag]:
    if reward.gained and not reward.fell:
        return []
    reward_text = f"at a reward of {reward.last:.3f} (base policy: {reward.base:.3f})"
    flags = []
    points, response_lengths = _metric_series(run, "response_length")
    start = (
        _persistent_start(response_lengths > LENGTH_EXPLODED_RATIO * response_lengths[0])
        if len(response_lengths) > PERSISTENCE
        else None
    )
    if start is not None:
        reason = f"responses went from {response_lengths[0]:.1f} to {response_lengths[-1]:.1f} tokens {reward_text}"
        flags.append(HealthFlag("length_exploded", points[start].rollouts, reason))
    points, truncated = _metric_series(run, "truncated")
    start = (
        _persistent_start((truncated >= TRUNCATED_SHARE) & (truncated >= truncated[0] + TRUNCATED_RISE))
        if len(truncated) > PERSISTENCE
        else None
    )
    if start is not None:
        reason = f"cut off are {truncated[-1]:.0%} of responses, {truncated[0]:.0%} in the beginning, {reward_text}"
        flags.append(HealthFlag("truncated", points[start].rollouts, reason))
    return flags


def _nonfinite(run: RunRecord) -> list[HealthFlag]:
    for p in run.points:
        nonfinite_names = [key for key in ("loss", "grad_norm") if not math.isfinite(p.train.get(key, 0.0))]
        if nonfinite_names:
            return [HealthFlag("nonfinite_update", p.rollouts, f"{nonfinite_names[0]} is not finite")]
        if (skipped_share := p.train.get("nonfinite_update", 0.0)) > MAX_NONFINITE_SHARE:
            return [
                HealthFlag(
                    "nonfinite_update",
                    p.rollouts,
                    f"{skipped_share:.1%} of updates were skipped: their loss or gradient was not finite",
                )
            ]
    return (
        [HealthFlag("nonfinite_update", run.points[-1].rollouts, f"the run broke off: {run.failure_reason}")]
        if run.failure_reason
        else []
    )


def _sampler_mismatch(run: RunRecord) -> list[HealthFlag]:
    points, logp_gap = _metric_series(run, "sampler_logp_gap")
    if any(point.train.get("staleness_mean", 0) > 0 for point in points):
        return []
    start = _persistent_start(np.abs(logp_gap) > MAX_SAMPLER_LOGP_GAP)
    if start is None:
        return []
    reason = (
        f"the mean |log ratio| of trainer to sampler is {np.mean(np.abs(logp_gap[start:])):.3f}, expected at most "
        f"{MAX_SAMPLER_LOGP_GAP}"
    )
    return [HealthFlag("mismatch", points[start].rollouts, reason)]
