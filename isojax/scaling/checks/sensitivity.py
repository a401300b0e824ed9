"""How much n matters against B_p (IsoCompute Playbook, arXiv:2603.12151, Fig. 10), which runs overfit (section 5.2),
and where evaluations cannot tell values of n from one another (ties)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from isojax.scaling.curves.hill import FittedCurve, curve_reward
from isojax.scaling.curves.posterior_samples import PosteriorSamples
from isojax.scaling.intervals import central_interval
from isojax.scaling.result import OverfittedRun, RewardSensitivity, RewardSpread, TiedRange
from isojax.scaling.validation_metrics import TRAIN_REWARD, FloatArray, RunTrack

# A rise of training reward and a fall of validation reward count from here on, in standard errors of the difference and
# in reward.
Z_CHANGE, MIN_CHANGE = 3.0, 0.01
AVERAGING_WINDOW = 4
TIE_LEVEL = 0.9
TIE_POINTS = 40


def reward_sensitivity(curves: Sequence[FittedCurve], draws: PosteriorSamples | None) -> RewardSensitivity | None:
    """The spread of reward over n (at one B_p) and over B_p (at one n) at the largest C that most cells share; None for
    one cell.
    """
    if len(curves) < 2:
        return None
    C = float(np.median([c.C_high for c in curves])) * (1 - 1e-9)
    measured_curves = [c for c in curves if c.C_low <= C <= c.C_high * (1 + 1e-6)]
    curves_by_B_p = {b: [c for c in measured_curves if c.B_p == b] for b in sorted({c.B_p for c in measured_curves})}
    curves_by_n = {n: [c for c in measured_curves if c.n == n] for n in sorted({c.n for c in measured_curves})}
    return RewardSensitivity(
        C=C, over_n=_reward_spread(curves_by_B_p, C, draws), over_B_p=_reward_spread(curves_by_n, C, draws)
    )


def _reward_spread(
    curves_by_shared_value: Mapping[int, Sequence[FittedCurve]], C: float, draws: PosteriorSamples | None
) -> RewardSpread | None:
    """The spread of reward at C within the largest group of curves that share a value; None where none has two."""
    groups = {value: curves for value, curves in curves_by_shared_value.items() if len(curves) > 1}
    if not groups:
        return None
    shared_value = max(groups, key=lambda value: (len(groups[value]), -value))
    curves = groups[shared_value]
    rewards = [float(curve_reward(c, C)) for c in curves]
    low = high = None
    if draws is not None:
        replicate_rewards = draws.for_cells([c.key for c in curves]).rewards([C])[:, :, 0]
        low, high = central_interval(np.ptp(replicate_rewards, axis=1))
    spread = max(rewards) - min(rewards)
    return RewardSpread(spread=spread, low=low, high=high, shared_value=shared_value, cells=len(curves))


def find_overfitting(tracks: Sequence[RunTrack], noise_sd: float | None) -> tuple[OverfittedRun, ...]:
    """Runs whose training reward rises while validation falls, from validation's best stretch to the end, each by
    Z_CHANGE standard errors.
    """
    overfitted_runs = (_overfitted_run(t, noise_sd) for t in tracks)
    return tuple(run for run in overfitted_runs if run is not None)


def _overfitted_run(track: RunTrack, noise_sd: float | None) -> OverfittedRun | None:
    training_rewards = np.array([p.train.get(TRAIN_REWARD, np.nan) for p in track.run.points])
    usable = np.isfinite(training_rewards) & (track.C > 0)
    C, R, training_rewards = track.C[usable], track.R[usable], training_rewards[usable]
    if len(R) < 3 * AVERAGING_WINDOW:
        return None
    validation_means, training_means = _running_means(R), _running_means(training_rewards)
    peak = int(validation_means[: len(validation_means) - AVERAGING_WINDOW + 1].argmax())
    fall = float(validation_means[peak] - validation_means[-1])
    rise = float(training_means[-1] - training_means[peak])
    validation_sd = noise_sd if noise_sd is not None else _noise_sd(R)
    z_limit = max(Z_CHANGE * np.sqrt(2 / AVERAGING_WINDOW), MIN_CHANGE)
    validation_falls = fall > max(z_limit * validation_sd, MIN_CHANGE)
    training_rises = rise > max(z_limit * _noise_sd(training_rewards), MIN_CHANGE)
    if not (validation_falls and training_rises):
        return None
    return OverfittedRun(
        B_p=track.run.cell.B_p,
        n=track.run.cell.n,
        seed=track.run.cell.seed,
        C=float(C[peak + AVERAGING_WINDOW // 2]),
        train_from=float(training_means[peak]),
        train_to=float(training_means[-1]),
        validation_from=float(validation_means[peak]),
        validation_to=float(validation_means[-1]),
        reason=f"training reward rises by {rise:.3f} while validation falls by {fall:.3f}",
    )


def _running_means(values: FloatArray) -> FloatArray:
    return np.convolve(values, np.full(AVERAGING_WINDOW, 1 / AVERAGING_WINDOW), mode="valid")


def _noise_sd(values: FloatArray) -> float:
    """Standard deviation of one value, from its neighbours."""
    return float(np.std(values[1:-1] - (values[:-2] + values[2:]) / 2) / np.sqrt(1.5)) if len(values) > 3 else 0.0


def find_ties(draws: PosteriorSamples | None) -> tuple[TiedRange, ...]:
    """Ranges of C where no n leads in TIE_LEVEL of the replicates: the values of n that together do, by rising C."""
    if draws is None or len({n for _, n in draws.keys}) < 2:
        return ()
    C = np.geomspace(draws.C_low.min(), draws.C_high.max(), TIE_POINTS)
    measured = draws.is_measured(C)
    R = np.where(measured, draws.rewards(C), -np.inf)
    cell_n = np.array([n for _, n in draws.keys])
    best_n = cell_n[R.argmax(1)]
    tied_n_at_C: list[tuple[tuple[int, ...], float]] = []
    for g in range(len(C)):
        if not measured[:, g].any():
            continue
        values, counts = np.unique(best_n[:, g], return_counts=True)
        order = np.argsort(-counts)
        n_count = int(np.searchsorted(np.cumsum(counts[order]) / len(best_n), TIE_LEVEL)) + 1
        tied_n_at_C.append((tuple(sorted(values[order[:n_count]].tolist())), float(C[g])))
    rows = []
    for tied_n, group in groupby(tied_n_at_C, key=lambda item: item[0]):
        C_values = [c for _, c in group]
        if len(tied_n) > 1:
            rows.append(TiedRange(n=tied_n, C_low=C_values[0], C_high=C_values[-1]))
    return tuple(rows)
