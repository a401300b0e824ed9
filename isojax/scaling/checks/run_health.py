"""Which runs broke, from their records alone, by the criteria of docs/recipes.md ("Runs that
broke"). A criterion sets in where it holds at every evaluation to the end, at least the last
PERSISTENCE; without its numbers it raises no flag.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isojax.core.errors import InputError
from isojax.core.nouns import EvalPoint, RunRecord
from isojax.runs.ledger import INCLUDE_FLAGGED, default_metric
from isojax.scaling.checks.learning import sampling_sd
from isojax.scaling.tracks import FloatArray, metric_value, noise_sd, paired_lead, running_means

TRAIN_REWARD = "reward"  # among EvalPoint.train
PERSISTENCE = 3
# a change of reward counts beyond both, in reward and in standard errors
MIN_CHANGE = 0.02
Z_CHANGE = 4.0
MIN_POINTS_FOR_SCATTER = 10
ZERO_VARIANCE_COLLAPSED, ZERO_VARIANCE_AT_START = 0.95, 0.8
ENTROPY_EXPLODED_RATIO, ENTROPY_COLLAPSED_RATIO, MIN_LEARNED_SHARE = 2.0, 0.02, 0.1
LENGTH_EXPLODED_RATIO = 3.0
TRUNCATED_SHARE, TRUNCATED_RISE = 0.5, 0.25
MAX_SAMPLER_LOGP_GAP = 0.1
MAX_NONFINITE_SHARE = 0.01


@dataclass(frozen=True)
class HealthFlag:
    """A run is not healthy: by which criterion, from which C in rollouts on, and its numbers in
    words."""

    name: str
    C: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name} from C = {self.C:,}: {self.reason}"


@dataclass(frozen=True)
class FlaggedRun:
    """A run that is flagged as broken: its evaluations, the C it reached, and its flags."""

    B_p: int
    n: int
    seed: int
    points: int
    C: float
    flags: tuple[HealthFlag, ...]
    schedule: str = ""  # its name, where B_p and n change


@dataclass(frozen=True)
class RunHealth:
    """The flagged runs, and whether they were left out of the fit."""

    left_out: bool = True
    runs: tuple[FlaggedRun, ...] = ()


@dataclass(frozen=True)
class RewardSummary:
    """A run's validation reward: of the base policy (else the first evaluation), the best mean of
    three in a row (at least base), and the last such mean; whether the last differs by more than
    noise."""

    base: float
    best: float
    last: float
    fell: bool
    gained: bool


def health_flags(run: RunRecord) -> tuple[HealthFlag, ...]:
    """A run's flags, by `default_metric`; a run of at most PERSISTENCE evaluations can only be
    `nonfinite_update`."""
    broken_update = tuple(_nonfinite(run))
    metric = default_metric([run])
    try:
        R = np.array([metric_value(p, metric, run.source) for p in run.points])
    except InputError:  # evaluations without the metric: a fit refuses them and names their place
        return broken_update
    same_problem_count = len({len(p.counts) for p in run.points}) == 1  # else a fit refuses it too
    if len(R) <= PERSISTENCE or not np.isfinite(R).all() or not same_problem_count:
        return broken_update
    reward = _summarize_reward(run, R, metric)
    by_reward = (*_collapsed(run, R, reward), *_entropy(run, reward), *_length(run, reward))
    return (*broken_update, *by_reward, *_sampler_mismatch(run))


def healthy_runs(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs without a flag, in their order; refused where every one is flagged."""
    unflagged_runs = [run for run in runs if not health_flags(run)]
    if runs and not unflagged_runs:
        first_flag = f"{runs[0].source or runs[0].cell.name}: {health_flags(runs[0])[0]}"
        problem = f"every run is flagged as broken ({len(runs)}; {first_flag}), expected at least one that is not"
        raise InputError(
            f"{problem}. Lower cell.rl.learning_rate, or fit them with {INCLUDE_FLAGGED}."
        )
    return unflagged_runs


def flagged_runs(runs: Sequence[RunRecord]) -> tuple[FlaggedRun, ...]:
    """The flagged ones of the runs, by cell."""
    judged_runs = [(run, run.cell, health_flags(run)) for run in sorted(runs, key=lambda r: r.cell)]
    return tuple(
        FlaggedRun(c.B_p, c.n, c.seed, len(run.points), run.points[-1].rollouts, flags, c.schedule)
        for run, c, flags in judged_runs
        if flags
    )


def flag_sentences(health: RunHealth) -> list[str]:
    left_out_text = f"left out of the fit ({INCLUDE_FLAGGED} puts it back)"
    status = left_out_text if health.left_out else "fitted all the same, as asked"
    return [
        f"{run.schedule or f'B_p={run.B_p} n={run.n}'} seed {run.seed} is {status}: {'; '.join(map(str, run.flags))}"
        for run in health.runs
    ]


def _training_metric(run: RunRecord, key: str) -> tuple[FloatArray, list[int]]:
    """(its values, C of each) where it was recorded and is finite."""
    points = [p for p in run.points if math.isfinite(p.train.get(key, math.nan))]
    return np.array([p.train[key] for p in points]), [p.rollouts for p in points]


def _set_in(holds: NDArray[np.bool_], C: Sequence[int]) -> int | None:
    """The C from which a criterion holds to the end; None where it does not, or for too short."""
    start = len(holds) - int(np.argmin(np.append(holds[::-1], False)))
    return C[start] if len(holds) - start >= PERSISTENCE else None


def _summarize_reward(run: RunRecord, R: FloatArray, metric: str) -> RewardSummary:
    means = running_means(R, PERSISTENCE)
    best_start = int(means.argmax())
    base = float(R[0])
    best = float(max(R[0], means[best_start]))
    last = float(means[-1])
    base_points, last_points = run.points[:1], run.points[-PERSISTENCE:]
    best_points = run.points[best_start : best_start + PERSISTENCE] if best > base else base_points
    scatter = noise_sd([R]) if len(R) >= MIN_POINTS_FOR_SCATTER else sampling_sd(R)

    def exceeds_noise(difference: float, a: Sequence[EvalPoint], b: Sequence[EvalPoint]) -> bool:
        """By the standard error paired over problems, and not below what the scatter of many
        neighbours says."""
        paired = paired_lead(a, b, metric)
        if paired is None and scatter is None:
            return False
        counts_scatter = paired is None or len(R) >= MIN_POINTS_FOR_SCATTER
        unpaired_se = (
            (scatter or 0.0) * math.sqrt(1 / len(a) + 1 / len(b)) if counts_scatter else 0.0
        )
        return difference > max(
            MIN_CHANGE, Z_CHANGE * max(unpaired_se, paired.se if paired else 0.0)
        )

    # Where one evaluation alone was high, a run that is back at its base policy's reward has lost
    # nothing.
    was_held = float(np.median(R[best_start : best_start + PERSISTENCE])) >= (base + best) / 2
    fell = exceeds_noise(best - last, best_points, last_points) and (
        was_held or base - last > MIN_CHANGE
    )
    return RewardSummary(
        base, best, last, fell, exceeds_noise(last - base, base_points, last_points)
    )


def _collapsed(run: RunRecord, R: FloatArray, reward: RewardSummary) -> Iterator[HealthFlag]:
    """Half of the gain is lost for good, or hardly any group has an advantage left and nothing was
    gained."""
    C = _set_in((reward.base + reward.best) / 2 > R, [p.rollouts for p in run.points])
    if C is not None and reward.fell and training_reward_fell(run) is not False:
        fall = f"reward fell from {reward.best:.3f} to {reward.last:.3f} and stays there"
        yield HealthFlag("collapsed", C, f"{fall} (base policy: {reward.base:.3f})")
        return
    zero_variance, C_points = _training_metric(run, "zero_variance")
    C = _set_in(zero_variance >= ZERO_VARIANCE_COLLAPSED, C_points)
    if C is not None and zero_variance[0] < ZERO_VARIANCE_AT_START and not reward.gained:
        share = f"{np.mean(zero_variance[C_points.index(C) :]):.0%} of groups have rewards that are all equal"
        reason = f"{share}, and reward is {reward.last:.3f} (base policy: {reward.base:.3f})"
        yield HealthFlag("collapsed", C, reason)


def training_reward_fell(run: RunRecord) -> bool | None:
    """Whether the training reward ends below the middle of its start and its best; None where it
    was not recorded."""
    R, _ = _training_metric(run, TRAIN_REWARD)
    if len(R) < PERSISTENCE:
        return None
    means = running_means(R, PERSISTENCE)
    return bool(means[-1] <= (R[0] + max(R[0], means.max())) / 2)


def _entropy(run: RunRecord, reward: RewardSummary) -> Iterator[HealthFlag]:
    """Entropy far above its start while reward fell, or far below it with little learned."""
    entropy, C_points = _training_metric(run, "entropy")
    C_exploded = _set_in(entropy > ENTROPY_EXPLODED_RATIO * entropy[:1], C_points)
    C_collapsed = _set_in(entropy < ENTROPY_COLLAPSED_RATIO * entropy[:1], C_points)
    change = (
        f"entropy went from {entropy[0]:.3g} to {entropy[-1]:.3g} nats per token"
        if len(entropy)
        else ""
    )
    if C_exploded is not None and reward.fell:
        reason = f"{change} while reward fell from {reward.best:.3f} to {reward.last:.3f}"
        yield HealthFlag("entropy_exploded", C_exploded, reason)
    elif C_collapsed is not None and reward.last < reward.base + MIN_LEARNED_SHARE * (
        1 - reward.base
    ):
        reason = f"{change} at a reward of {reward.last:.3f} (base: {reward.base:.3f})"
        yield HealthFlag("entropy_collapsed", C_collapsed, reason)


def _length(run: RunRecord, reward: RewardSummary) -> Iterator[HealthFlag]:
    """Responses far longer than at first, or far more of them cut off, where reward fell or nothing
    was gained."""
    if reward.gained and not reward.fell:
        return
    reward_text = f"at a reward of {reward.last:.3f} (base policy: {reward.base:.3f})"
    length, C_points = _training_metric(run, "response_length")
    C = _set_in(length > LENGTH_EXPLODED_RATIO * length[:1], C_points)
    if C is not None:
        reason = f"responses went from {length[0]:.1f} to {length[-1]:.1f} tokens {reward_text}"
        yield HealthFlag("length_exploded", C, reason)
    truncated, C_points = _training_metric(run, "truncated")
    C = _set_in(
        (truncated >= TRUNCATED_SHARE) & (truncated >= truncated[:1] + TRUNCATED_RISE), C_points
    )
    if C is not None:
        reason = f"cut off are {truncated[-1]:.0%} of responses, {truncated[0]:.0%} in the beginning, {reward_text}"
        yield HealthFlag("truncated", C, reason)


def _nonfinite(run: RunRecord) -> Iterator[HealthFlag]:
    """The run broke off, or updates were not finite; a single one that was skipped left the policy
    as it was."""
    for p in run.points:
        reasons = [
            f"{key} is not finite"
            for key in ("loss", "grad_norm")
            if not math.isfinite(p.train.get(key, 0.0))
        ]
        if (skipped_share := p.train.get("nonfinite_update", 0.0)) > MAX_NONFINITE_SHARE:
            reasons.append(
                f"{skipped_share:.1%} of updates were skipped: their loss or gradient was not finite"
            )
        if reasons:
            yield HealthFlag("nonfinite_update", p.rollouts, reasons[0])
            return
    if run.failure_reason:
        yield HealthFlag(
            "nonfinite_update", run.points[-1].rollouts, f"the run broke off: {run.failure_reason}"
        )


def _sampler_mismatch(run: RunRecord) -> Iterator[HealthFlag]:
    """Trainer and sampler disagree about log-probabilities where no older policy sampled."""
    gap, C_points = _training_metric(run, "sampler_logp_gap")
    C = _set_in(np.abs(gap) > MAX_SAMPLER_LOGP_GAP, C_points)
    if C is not None and not any(p.train.get("staleness_mean", 0) > 0 for p in run.points):
        ratio = f"the mean |log ratio| of trainer to sampler is {np.mean(np.abs(gap[C_points.index(C) :])):.3f}"
        yield HealthFlag("mismatch", C, f"{ratio}, expected at most {MAX_SAMPLER_LOGP_GAP}")
