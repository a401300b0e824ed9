"""Which B_p train stably, and which runs overfit (IsoCompute Playbook, arXiv:2603.12151, section
4.3, appendix C and section 5.2). The paper gives no test of stability; ours is in docs/laws.md."""

import math
from collections.abc import Collection, Sequence

import numpy as np

from isojax.scaling.checks.run_health import TRAIN_REWARD, training_reward_fell
from isojax.scaling.evaluation_noise import noise_sd, paired_lead, running_means
from isojax.scaling.result import OverfittedRun, StabilityVerdict
from isojax.scaling.tracks import RunTrack, TracksByCell, evaluations_by_target

LAST_EVALUATIONS = 3  # evaluations averaged, at the end and at the best place
# A cell is unstable whose reward has fallen by more than both: this much, and so many standard
# errors.
MIN_DROP = 0.05
Z_DROP = 4.0
# So many evaluations of a cell show by their scatter how noisy one is, where there are no counts.
MIN_EVALUATIONS = 10
OVERFITTING_WINDOW = 4  # evaluations averaged
# The training reward must rise and the validation reward fall by more than both: this much, and so
# many standard errors.
MIN_CHANGE = 0.01
Z_CHANGE = 3.0


def assess_stability(
    cells: TracksByCell, metric: str, peaked_cells: Collection[tuple[int, int]] = ()
) -> tuple[StabilityVerdict, ...]:
    """Whether each B_p trains stably, a verdict for each, by rising B_p.

    It does not where a run of any of its cells broke, or where a cell's reward fell. A fall past a
    fitted peak does not count unless the training reward falls too: it is overfitting, which
    stopping early avoids. metric: such as "avg@4"; peaked_cells: the (B_p, n) whose fitted curve
    has a peak, such as {(32, 8)}."""
    reasons_by_B_p: dict[int, list[str]] = {}
    for (B_p, n), seeds in sorted(cells.items()):
        reason = _broken_reason(seeds)
        training_fell = any(training_reward_fell(t.run) for t in seeds)
        is_overfitting = (B_p, n) in peaked_cells and not training_fell
        if not reason and not is_overfitting:
            reason = _drop_reason(seeds, metric)

        reasons = reasons_by_B_p.setdefault(B_p, [])
        if reason:
            reasons.append(reason)

    return tuple(
        StabilityVerdict(B_p, stable=not reasons, reason="; ".join(reasons))
        for B_p, reasons in reasons_by_B_p.items()
    )


def _broken_reason(seeds: Sequence[RunTrack]) -> str:
    """The first run of a cell that broke off or had a training metric that is not finite, in words.

    Such as "n=8 seed 1: loss is nan at C = 4096"; "" where no run did."""
    for run in (t.run for t in seeds):
        where = f"n={run.cell.n} seed {run.cell.seed}"
        if run.failure_reason:
            return f"{where}: {run.failure_reason}"
        for p in run.points:
            for name, value in sorted(p.train.items()):
                if not math.isfinite(value):
                    return f"{where}: {name} is {value} at C = {p.rollouts}"
    return ""


def _drop_reason(seeds: Sequence[RunTrack], metric: str) -> str:
    """Why a cell counts as unstable because its reward fell, in words; "" where it did not.

    The last mean of LAST_EVALUATIONS evaluations in a row is compared with the best such mean; each
    evaluation is the mean of the cell's seeds at one C."""
    evaluations = list(evaluations_by_target(seeds).values())
    if len(evaluations) < 2:
        return ""

    mean_rewards = np.array([evaluation.R for evaluation in evaluations])
    width = min(LAST_EVALUATIONS, len(evaluations))
    means = running_means(mean_rewards, width)
    best_start = int(means.argmax())
    drop = float(means[best_start] - means[-1])

    best = evaluations[best_start : best_start + width]
    last = evaluations[len(evaluations) - width :]
    paired = paired_lead(
        [point for evaluation in best for point in evaluation.points],
        [point for evaluation in last for point in evaluation.points],
        metric,
    )
    if paired is not None:
        se = paired.se
    else:
        # Without counts per problem the noise of an evaluation follows from how much neighbouring
        # ones differ, if there are enough. A difference of two means of `width` evaluations has
        # 2 / width times their variance.
        scatter = noise_sd([mean_rewards]) if len(mean_rewards) >= MIN_EVALUATIONS else 0.0
        se = scatter * math.sqrt(2 / width)

    limit = max(MIN_DROP, Z_DROP * se)
    if drop <= limit:
        return ""

    below = f"{drop:.3f} below its best {means[best_start]:.3f} (limit {limit:.3f})"
    return f"n={seeds[0].run.cell.n} ends at {means[-1]:.3f}, {below}"


def find_overfitting(
    tracks: Sequence[RunTrack], validation_sd: float | None
) -> tuple[OverfittedRun, ...]:
    """The runs whose training reward rises while their validation reward falls.

    validation_sd: the standard deviation of an evaluation's reward; None: estimated from each run's
    scatter."""
    candidates = [_overfitted_run(track, validation_sd) for track in tracks]
    return tuple(run for run in candidates if run is not None)


def _overfitted_run(track: RunTrack, validation_sd: float | None) -> OverfittedRun | None:
    """The run with the C from which on it overfits; None where it does not.

    Also None where it has too few evaluations with a training reward to tell. validation_sd: as in
    `find_overfitting`."""
    training_rewards = np.array([p.train.get(TRAIN_REWARD, np.nan) for p in track.run.points])
    usable = np.isfinite(training_rewards) & (track.C > 0)
    training_rewards = training_rewards[usable]
    C = track.C[usable]
    R = track.R[usable]
    if len(R) < 3 * OVERFITTING_WINDOW:
        return None

    validation_means = running_means(R, OVERFITTING_WINDOW)
    training_means = running_means(training_rewards, OVERFITTING_WINDOW)
    # The peak's window and the last one must not share an evaluation: leave out the last ones. peak
    # is the index of the first evaluation in its window.
    peak = int(validation_means[: 1 - OVERFITTING_WINDOW].argmax())
    fall = float(validation_means[peak] - validation_means[-1])
    rise = float(training_means[-1] - training_means[peak])

    # Z_CHANGE standard errors of a difference of two means, in standard deviations of one
    # evaluation
    z = Z_CHANGE * math.sqrt(2 / OVERFITTING_WINDOW)
    if validation_sd is None:
        validation_sd = noise_sd([R])  # from how far each value is from its two neighbours
    if fall <= max(z * validation_sd, MIN_CHANGE):
        return None
    if rise <= max(z * noise_sd([training_rewards]), MIN_CHANGE):
        return None

    cell = track.run.cell
    return OverfittedRun(
        B_p=cell.B_p,
        n=cell.n,
        seed=cell.seed,
        C=float(C[peak + OVERFITTING_WINDOW // 2]),  # the middle of the peak's window
        reason=f"training reward rises by {rise:.3f} while validation falls by {fall:.3f}",
    )
