"""What else the paper asks of a sweep: how much n matters against B_p (IsoCompute Playbook, arXiv:2603.12151, Fig. 10), where training
overfits (section 5.2), where evaluations cannot tell n apart (ties)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from isojax.scaling.curves import Curve, reward
from isojax.scaling.draws import Draws, interval
from isojax.scaling.metrics import TRAIN_REWARD, FloatArray, Track

# A rise of training reward and a fall of validation reward count from here on, in standard errors of the difference and in reward.
Z_CHANGE, MIN_CHANGE = 3.0, 0.01
WINDOW = 4
TIE_LEVEL = 0.9
TIE_POINTS = 40


def sensitivity(curves: Sequence[Curve], draws: Draws | None) -> dict[str, Any] | None:
    """The spread of reward over n (at one B_p) and over B_p (at one n) at the largest C that most cells share; None for one cell."""
    if len(curves) < 2:
        return None
    C = float(np.median([c.C_high for c in curves])) * (1 - 1e-9)
    there = [c for c in curves if c.C_low <= C <= c.C_high * (1 + 1e-6)]

    def spread(groups: Mapping[int, list[Curve]], fixed: str) -> dict[str, Any] | None:
        groups = {key: group for key, group in groups.items() if len(group) > 1}
        if not groups:
            return None
        key = max(groups, key=lambda k: (len(groups[k]), -k))
        values = [float(reward(c, C)) for c in groups[key]]
        low = high = None
        if draws is not None:
            R = draws.of([c.key for c in groups[key]]).rewards([C])[:, :, 0]
            low, high = interval(np.ptp(R, axis=1))
        return {"range": max(values) - min(values), "low": low, "high": high, fixed: key, "cells": len(values)}

    by_B_p = {b: [c for c in there if c.B_p == b] for b in sorted({c.B_p for c in there})}
    by_n = {n: [c for c in there if c.n == n] for n in sorted({c.n for c in there})}
    return {"C": C, "over_n": spread(by_B_p, "at_B_p"), "over_B_p": spread(by_n, "at_n")}


def overfitting(tracks: Sequence[Track], noise_sd: float | None) -> list[dict[str, Any]]:
    """Runs whose training reward rises while validation falls, from validation's best stretch to the end, each by Z_CHANGE errors."""
    found = []
    for t in tracks:
        train = np.array([p.train.get(TRAIN_REWARD, np.nan) for p in t.run.points])
        use = np.isfinite(train) & (t.C > 0)
        C, R, train = t.C[use], t.R[use], train[use]
        if len(R) < 3 * WINDOW:
            continue
        smooth, smooth_train = _means(R), _means(train)
        top = int(smooth[: len(smooth) - WINDOW + 1].argmax())
        sd = noise_sd if noise_sd is not None else _noise(R)
        fall, rise = float(smooth[top] - smooth[-1]), float(smooth_train[-1] - smooth_train[top])
        error = max(Z_CHANGE * np.sqrt(2 / WINDOW), MIN_CHANGE)
        if fall > max(error * sd, MIN_CHANGE) and rise > max(error * _noise(train), MIN_CHANGE):
            cell = t.run.cell
            found.append(
                {
                    "B_p": cell.B_p, "n": cell.n, "seed": cell.seed, "C": float(C[top + WINDOW // 2]),
                    "train_from": float(smooth_train[top]), "train_to": float(smooth_train[-1]),
                    "validation_from": float(smooth[top]), "validation_to": float(smooth[-1]),
                    "reason": f"training reward rises by {rise:.3f} while validation falls by {fall:.3f}",
                }
            )  # fmt: skip
    return found


def _means(values: FloatArray) -> FloatArray:
    return np.convolve(values, np.full(WINDOW, 1 / WINDOW), mode="valid")


def _noise(values: FloatArray) -> float:
    """Standard deviation of one value, from its neighbours."""
    return float(np.std(values[1:-1] - (values[:-2] + values[2:]) / 2) / np.sqrt(1.5)) if len(values) > 3 else 0.0


def ties(draws: Draws | None) -> list[dict[str, Any]]:
    """Ranges of C where no n leads in TIE_LEVEL of the replicates: the values of n that together do, by rising C."""
    if draws is None or len({n for _, n in draws.keys}) < 2:
        return []
    C = np.geomspace(draws.low.min(), draws.high.max(), TIE_POINTS)
    measured = draws.measured(C)
    R = np.where(measured, draws.rewards(C), -np.inf)
    ns = np.array([n for _, n in draws.keys])
    winner = ns[R.argmax(1)]
    groups: list[tuple[tuple[int, ...], float]] = []
    for g in range(len(C)):
        if not measured[:, g].any():
            continue
        values, counts = np.unique(winner[:, g], return_counts=True)
        order = np.argsort(-counts)
        need = int(np.searchsorted(np.cumsum(counts[order]) / len(winner), TIE_LEVEL)) + 1
        groups.append((tuple(sorted(values[order[:need]].tolist())), float(C[g])))
    rows = []
    for names, group in groupby(groups, key=lambda item: item[0]):
        span = [c for _, c in group]
        if len(names) > 1:
            rows.append({"n": list(names), "C_low": span[0], "C_high": span[-1]})
    return rows
