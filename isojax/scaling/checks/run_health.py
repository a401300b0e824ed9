"""Which runs broke, from their records alone, by the criteria of docs/recipes.md ("Runs that
broke"): reward collapsed, entropy or length exploded, and so on.

A criterion must hold from some evaluation to the end of the run, for PERSISTENCE evaluations at
least; the flag names the C of the first of them. A criterion whose training metric was not recorded
raises no flag."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isojax.core.errors import InputError
from isojax.core.nouns import EvalPoint, RunRecord
from isojax.runs.ledger import INCLUDE_FLAGGED, default_metric
from isojax.scaling.evaluation_noise import noise_sd, paired_lead, running_means
from isojax.scaling.learning import sampling_sd
from isojax.scaling.result import FlaggedRun, HealthFlag, RunHealth
from isojax.scaling.reward_metric import metric_value
from isojax.scaling.tracks import FloatArray

TRAIN_REWARD = "reward"  # among EvalPoint.train
PERSISTENCE = 3
# A change of reward counts where it exceeds both: this much reward, and so many standard errors.
MIN_CHANGE = 0.02
Z_CHANGE = 4.0
MIN_POINTS_FOR_SCATTER = 10  # evaluations from whose differences the noise of one is estimated

# Shares of groups whose rewards are all equal: a run that began below the second and has come to
# the first has lost its gradient.
ZERO_VARIANCE_COLLAPSED = 0.95
ZERO_VARIANCE_AT_START = 0.8
# Multiples of the entropy, and of the response length, at the first evaluation.
ENTROPY_EXPLODED_RATIO = 2.0
ENTROPY_COLLAPSED_RATIO = 0.02
LENGTH_EXPLODED_RATIO = 3.0
# A low entropy is fine in a policy that has learned at least this share of 1 - base reward.
MIN_LEARNED_SHARE = 0.1
# The share of responses that are cut off at their longest length: at least the first, and by at
# least the second above that at the first evaluation.
TRUNCATED_SHARE = 0.5
TRUNCATED_RISE = 0.25
MAX_SAMPLER_LOGP_GAP = 0.1  # nats, between trainer's and sampler's log-probability of a token
MAX_NONFINITE_SHARE = 0.01  # of the updates since the evaluation before


@dataclass(frozen=True)
class RewardSummary:
    """A run's validation reward in three numbers, and whether it changed by more than noise."""

    base: float  # at the first evaluation, usually that of the base policy
    best: float  # the highest mean of PERSISTENCE evaluations in a row; at least `base`
    last: float  # the mean of the last PERSISTENCE evaluations
    fell: bool  # from best to last
    gained: bool  # from base to last


@dataclass(frozen=True)
class TrainingMetric:
    """A training metric at the evaluations at which it was recorded and is finite."""

    values: FloatArray  # [points]
    C: list[int]  # rollouts at each of these evaluations

    def set_in(self, holds: NDArray[np.bool_]) -> int | None:
        """The C from which on a criterion, bool[points], holds to the end (`_set_in`)."""
        return _set_in(holds, self.C)

    def mean_from(self, C: int) -> float:
        """Its mean from the evaluation at C on."""
        return float(np.mean(self.values[self.C.index(C) :]))


def health_flags(run: RunRecord) -> tuple[HealthFlag, ...]:
    """How a run broke: a flag for each criterion that holds, () for a healthy run.

    The reward is the metric that a fit takes by default, such as avg@4 (`default_metric`). With at
    most PERSISTENCE evaluations only the criterion of updates that were not finite can hold. run:
    with at least one evaluation."""
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
    return (
        *broken_update,
        *_collapsed(run, R, reward),
        *_entropy(run, reward),
        *_length(run, reward),
        *_sampler_mismatch(run),
    )


def healthy_runs(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs without a flag, in their order; InputError where every run is flagged."""
    unflagged_runs = [run for run in runs if not health_flags(run)]
    if runs and not unflagged_runs:
        first_flag = f"{runs[0].source or runs[0].cell.name}: {health_flags(runs[0])[0]}"
        fix = f"Lower cell.rl.learning_rate, or fit them with {INCLUDE_FLAGGED}."
        raise InputError(
            found=f"every run is flagged as broken ({len(runs)}; {first_flag})",
            expected="at least one that is not",
            fix=fix,
        )
    return unflagged_runs


def flagged_runs(runs: Sequence[RunRecord]) -> tuple[FlaggedRun, ...]:
    """The runs that are flagged, with their flags, by cell; runs without a flag are left out."""
    flagged = []
    for run in sorted(runs, key=lambda r: r.cell):
        flags = health_flags(run)
        if not flags:
            continue

        flagged.append(
            FlaggedRun(
                B_p=run.cell.B_p,
                n=run.cell.n,
                seed=run.cell.seed,
                points=len(run.points),
                C=run.points[-1].rollouts,
                flags=flags,
                schedule=run.cell.schedule,
            )
        )
    return tuple(flagged)


def flag_sentences(health: RunHealth) -> list[str]:
    """A sentence for each flagged run: what became of it, and why it is flagged."""
    left_out_text = f"left out of the fit ({INCLUDE_FLAGGED} puts it back)"
    status = left_out_text if health.left_out else "fitted all the same, as asked"

    sentences = []
    for run in health.runs:
        name = run.schedule or f"B_p={run.B_p} n={run.n}"
        reasons = "; ".join(map(str, run.flags))
        sentences.append(f"{name} seed {run.seed} is {status}: {reasons}")
    return sentences


def _training_metric(run: RunRecord, key: str) -> TrainingMetric:
    """The training metric of this name, such as "entropy"; without points where none has it."""
    points = [p for p in run.points if key in p.train and math.isfinite(p.train[key])]
    return TrainingMetric(np.array([p.train[key] for p in points]), [p.rollouts for p in points])


def _set_in(holds: NDArray[np.bool_], C: Sequence[int]) -> int | None:
    """The C of the evaluation from which on a criterion holds to the end of the run.

    holds: bool[points], whether it holds at each evaluation, by rising C; C: of these evaluations.
    None where it holds for fewer than PERSISTENCE evaluations at the end."""
    # start: the index of the first evaluation from which on it holds; len(holds) where it does not
    # at the last. Count backwards to the last evaluation at which it does not hold; the appended
    # False serves a criterion that holds at all of them.
    start = len(holds) - int(np.argmin(np.append(holds[::-1], False)))
    return C[start] if len(holds) - start >= PERSISTENCE else None


def _summarize_reward(run: RunRecord, R: FloatArray, metric: str) -> RewardSummary:
    """Base, best and last reward of a run, and whether it fell or gained by more than noise.

    R: float[points], the metric at each evaluation of the run; more than PERSISTENCE of them."""
    means = running_means(R, PERSISTENCE)
    best_start = int(means.argmax())
    base = float(R[0])
    best = float(max(R[0], means[best_start]))
    last = float(means[-1])

    base_points = run.points[:1]
    best_points = run.points[best_start : best_start + PERSISTENCE] if best > base else base_points
    last_points = run.points[-PERSISTENCE:]

    has_scatter = len(R) >= MIN_POINTS_FOR_SCATTER
    # The standard deviation of one evaluation; None where it is unknown.
    scatter = noise_sd([R]) if has_scatter else sampling_sd(R)

    # From above: metric, scatter and has_scatter.
    def exceeds_noise(difference: float, a: Sequence[EvalPoint], b: Sequence[EvalPoint]) -> bool:
        """Whether a difference between the mean rewards of evaluations a and b is more than noise.

        Its standard error is that paired over problems; where a run has many evaluations, at least
        that by their scatter. False where neither is known."""
        paired = paired_lead(a, b, metric)
        if paired is None and scatter is None:
            return False

        unpaired_se = 0.0
        if paired is None or has_scatter:
            unpaired_se = (scatter or 0.0) * math.sqrt(1 / len(a) + 1 / len(b))
        se = max(unpaired_se, paired.se if paired else 0.0)
        return difference > max(MIN_CHANGE, Z_CHANGE * se)

    # The best mean may be high for a single lucky evaluation. Then a run that is back at its base
    # reward has lost nothing: the median tells whether the high reward was held.
    was_held = float(np.median(R[best_start : best_start + PERSISTENCE])) >= (base + best) / 2
    is_below_best = exceeds_noise(best - last, best_points, last_points)
    return RewardSummary(
        base=base,
        best=best,
        last=last,
        fell=is_below_best and (was_held or base - last > MIN_CHANGE),
        gained=exceeds_noise(last - base, base_points, last_points),
    )


def _collapsed(run: RunRecord, R: FloatArray, reward: RewardSummary) -> Iterator[HealthFlag]:
    """The flag of a run that lost half of its gain for good, or has come to have no gradient.

    There is no gradient where almost all groups (the n rollouts of a problem) have equal rewards;
    that counts only where nothing was gained. R: float[points], the metric at each evaluation."""
    lost_half = (reward.base + reward.best) / 2 > R
    C = _set_in(lost_half, [p.rollouts for p in run.points])
    # Where the training reward did not fall the policy overfits, which is no collapse. None (not
    # recorded) counts as fallen.
    if C is not None and reward.fell and training_reward_fell(run) is not False:
        fall = f"reward fell from {reward.best:.3f} to {reward.last:.3f} and stays there"
        yield HealthFlag("collapsed", C, f"{fall} (base policy: {reward.base:.3f})")
        return

    zero_variance = _training_metric(run, "zero_variance")
    C = zero_variance.set_in(zero_variance.values >= ZERO_VARIANCE_COLLAPSED)
    if C is not None and zero_variance.values[0] < ZERO_VARIANCE_AT_START and not reward.gained:
        share = f"{zero_variance.mean_from(C):.0%} of groups have rewards that are all equal"
        reason = f"{share}, and reward is {reward.last:.3f} (base policy: {reward.base:.3f})"
        yield HealthFlag("collapsed", C, reason)


def training_reward_fell(run: RunRecord) -> bool | None:
    """Whether the training reward ends at or below the middle between its start and its best.

    None where it was recorded fewer than PERSISTENCE times."""
    R = _training_metric(run, TRAIN_REWARD).values
    if len(R) < PERSISTENCE:
        return None
    means = running_means(R, PERSISTENCE)
    return bool(means[-1] <= (R[0] + max(R[0], means.max())) / 2)


def _entropy(run: RunRecord, reward: RewardSummary) -> Iterator[HealthFlag]:
    """The flag of an entropy that exploded while the reward fell, or collapsed with little learned.

    Exploded and collapsed: from some evaluation to the end above ENTROPY_EXPLODED_RATIO, or below
    ENTROPY_COLLAPSED_RATIO, times that of the first evaluation."""
    entropy = _training_metric(run, "entropy")
    first = entropy.values[:1]  # empty where it was not recorded
    C_exploded = entropy.set_in(entropy.values > ENTROPY_EXPLODED_RATIO * first)
    C_collapsed = entropy.set_in(entropy.values < ENTROPY_COLLAPSED_RATIO * first)
    if C_exploded is None and C_collapsed is None:
        return

    change = f"entropy went from {first[0]:.3g} to {entropy.values[-1]:.3g} nats per token"
    enough_learned = reward.base + MIN_LEARNED_SHARE * (1 - reward.base)
    if C_exploded is not None and reward.fell:
        reason = f"{change} while reward fell from {reward.best:.3f} to {reward.last:.3f}"
        yield HealthFlag("entropy_exploded", C_exploded, reason)
    elif C_collapsed is not None and reward.last < enough_learned:
        reason = f"{change} at a reward of {reward.last:.3f} (base: {reward.base:.3f})"
        yield HealthFlag("entropy_collapsed", C_collapsed, reason)


def _length(run: RunRecord, reward: RewardSummary) -> Iterator[HealthFlag]:
    """The flags of much longer responses, and of many more that are cut off, than at first.

    Only in a run whose reward fell or did not rise."""
    if reward.gained and not reward.fell:
        return

    reward_text = f"at a reward of {reward.last:.3f} (base policy: {reward.base:.3f})"

    length = _training_metric(run, "response_length")
    C = length.set_in(length.values > LENGTH_EXPLODED_RATIO * length.values[:1])
    if C is not None:
        change = f"responses went from {length.values[0]:.1f} to {length.values[-1]:.1f} tokens"
        yield HealthFlag("length_exploded", C, f"{change} {reward_text}")

    truncated = _training_metric(run, "truncated")
    is_large = truncated.values >= TRUNCATED_SHARE
    has_risen = truncated.values >= truncated.values[:1] + TRUNCATED_RISE
    C = truncated.set_in(is_large & has_risen)
    if C is not None:
        shares = (
            f"{truncated.values[-1]:.0%} of responses, {truncated.values[0]:.0%} in the beginning"
        )
        yield HealthFlag("truncated", C, f"cut off are {shares}, {reward_text}")


def _nonfinite(run: RunRecord) -> Iterator[HealthFlag]:
    """The flag of a run that broke off, or had losses or gradients that were not finite.

    Single updates that were skipped for that, up to MAX_NONFINITE_SHARE, do not count: they left
    the policy as it was."""
    for p in run.points:
        if not p.train:  # as in a log of rewards alone
            continue
        reasons = [
            f"{key} is not finite"
            for key in ("loss", "grad_norm")
            if not math.isfinite(p.train.get(key, 0.0))
        ]
        skipped_share = p.train.get("nonfinite_update", 0.0)
        if skipped_share > MAX_NONFINITE_SHARE:
            reasons.append(
                f"{skipped_share:.1%} of updates were skipped: "
                "their loss or gradient was not finite"
            )
        if reasons:
            yield HealthFlag("nonfinite_update", p.rollouts, reasons[0])
            return

    if run.failure_reason:
        yield HealthFlag(
            "nonfinite_update", run.points[-1].rollouts, f"the run broke off: {run.failure_reason}"
        )


def _sampler_mismatch(run: RunRecord) -> Iterator[HealthFlag]:
    """The flag of a trainer and a sampler that give the same tokens different log-probabilities.

    In asynchronous runs, where an older policy samples, that is no fault."""
    gap = _training_metric(run, "sampler_logp_gap")
    C = gap.set_in(np.abs(gap.values) > MAX_SAMPLER_LOGP_GAP)
    if C is None:
        return
    sampled_by_older_policy = any(p.train.get("staleness_mean", 0) > 0 for p in run.points)
    if sampled_by_older_policy:
        return

    mean_gap = np.mean(np.abs(gap.values[gap.C.index(C) :]))
    ratio = f"the mean |log ratio| of trainer to sampler is {mean_gap:.3f}"
    yield HealthFlag("mismatch", C, f"{ratio}, expected at most {MAX_SAMPLER_LOGP_GAP}")
