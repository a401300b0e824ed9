"""What else the paper asks of a sweep: how much n matters against B_p (IsoCompute Playbook, arXiv:2603.12151, Fig. 10),
where training overfits (section 5.2), where evaluations cannot tell n apart (ties)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from isojax.scaling.curves.fitted_curve import FittedCurve, curve_reward
from isojax.scaling.curves.posterior_samples import PosteriorSamples
from isojax.scaling.intervals import central_interval
from isojax.scaling.validation_metrics import TRAIN_REWARD, FloatArray, RunTrack

# A rise of training reward and a fall of validation reward count from here on, in standard errors of the difference and
# in reward.
Z_CHANGE, MIN_CHANGE = 3.0, 0.01
AVERAGING_WINDOW = 4
TIE_LEVEL = 0.9
TIE_POINTS = 40


def reward_sensitivity(curves: Sequence[FittedCurve], draws: PosteriorSamples | None) -> dict[str, Any] | None:
    """The spread of reward over n (at one B_p) and over B_p (at one n) at the largest C that most cells share; None for
    one cell.
    """
    if len(curves) < 2:
        return None
    C = float(np.median([c.C_high for c in curves])) * (1 - 1e-9)
    measured_curves = [c for c in curves if c.C_low <= C <= c.C_high * (1 + 1e-6)]

    def reward_spread(groups: Mapping[int, list[FittedCurve]], fixed: str) -> dict[str, Any] | None:
        groups = {key: group for key, group in groups.items() if len(group) > 1}
        if not groups:
            return None
        key = max(groups, key=lambda k: (len(groups[k]), -k))
        values = [float(curve_reward(c, C)) for c in groups[key]]
        low = high = None
        if draws is not None:
            R = draws.for_cells([c.key for c in groups[key]]).rewards([C])[:, :, 0]
            low, high = central_interval(np.ptp(R, axis=1))
        return {"range": max(values) - min(values), "low": low, "high": high, fixed: key, "cells": len(values)}

    curves_by_B_p = {b: [c for c in measured_curves if c.B_p == b] for b in sorted({c.B_p for c in measured_curves})}
    curves_by_n = {n: [c for c in measured_curves if c.n == n] for n in sorted({c.n for c in measured_curves})}
    return {"C": C, "over_n": reward_spread(curves_by_B_p, "at_B_p"), "over_B_p": reward_spread(curves_by_n, "at_n")}


def find_overfitting(tracks: Sequence[RunTrack], noise_sd: float | None) -> list[dict[str, Any]]:
    """Runs whose training reward rises while validation falls, from validation's best stretch to the end, each by
    Z_CHANGE errors.
    """
    rows = []
    for t in tracks:
        training_rewards = np.array([p.train.get(TRAIN_REWARD, np.nan) for p in t.run.points])
        usable = np.isfinite(training_rewards) & (t.C > 0)
        C, R, training_rewards = t.C[usable], t.R[usable], training_rewards[usable]
        if len(R) < 3 * AVERAGING_WINDOW:
            continue
        validation_means, training_means = _running_means(R), _running_means(training_rewards)
        peak = int(validation_means[: len(validation_means) - AVERAGING_WINDOW + 1].argmax())
        sd = noise_sd if noise_sd is not None else _noise_sd(R)
        fall, rise = (
            float(validation_means[peak] - validation_means[-1]),
            float(training_means[-1] - training_means[peak]),
        )
        z_limit = max(Z_CHANGE * np.sqrt(2 / AVERAGING_WINDOW), MIN_CHANGE)
        if fall > max(z_limit * sd, MIN_CHANGE) and rise > max(z_limit * _noise_sd(training_rewards), MIN_CHANGE):
            cell = t.run.cell
            rows.append(
                {
                    "B_p": cell.B_p, "n": cell.n, "seed": cell.seed, "C": float(C[peak + AVERAGING_WINDOW // 2]),
                    "train_from": float(training_means[peak]), "train_to": float(training_means[-1]),
                    "validation_from": float(validation_means[peak]), "validation_to": float(validation_means[-1]),
                    "reason": f"training reward rises by {rise:.3f} while validation falls by {fall:.3f}",
                }
            )  # fmt: skip
    return rows


def _running_means(values: FloatArray) -> FloatArray:
    return np.convolve(values, np.full(AVERAGING_WINDOW, 1 / AVERAGING_WINDOW), mode="valid")


def _noise_sd(values: FloatArray) -> float:
    """Standard deviation of one value, from its neighbours."""
    return float(np.std(values[1:-1] - (values[:-2] + values[2:]) / 2) / np.sqrt(1.5)) if len(values) > 3 else 0.0


def find_ties(draws: PosteriorSamples | None) -> list[dict[str, Any]]:
    """Ranges of C where no n leads in TIE_LEVEL of the replicates: the values of n that together do, by rising C."""
    if draws is None or len({n for _, n in draws.keys}) < 2:
        return []
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
            rows.append({"n": list(tied_n), "C_low": C_values[0], "C_high": C_values[-1]})
    return rows
