"""How far record-breaking points, which mode "paper" fits, lie above the evaluations around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isojax.scaling.curves.record_breaking import BIN_WIDTH, record_breaking_indices
from isojax.scaling.result import FitFlag
from isojax.scaling.validation_metrics import RunTrack

# The local mean around a record takes at most this many points on either side.
MAX_NEIGHBOURS = 2


def record_overshoot(tracks: Sequence[RunTrack]) -> tuple[float, float, int]:
    """How far records lie above the mean of the points around them, the same number on both sides, themselves left out.

    Returns:
        (mean residual in reward, the same of each run's last such record alone, number of records used); zeros where
        there is none.
    """
    residuals: list[float] = []
    last_residuals: list[float] = []
    for t in tracks:
        run_residuals = []
        for i in record_breaking_indices(t.R, BIN_WIDTH).tolist():
            neighbours = min(MAX_NEIGHBOURS, i, len(t.R) - 1 - i)
            if neighbours > 0:
                around = np.concatenate([t.R[i - neighbours : i], t.R[i + 1 : i + 1 + neighbours]])
                run_residuals.append(float(t.R[i] - around.mean()))
        residuals += run_residuals
        last_residuals += run_residuals[-1:]
    return (float(np.mean(residuals)), float(np.mean(last_residuals)), len(residuals)) if residuals else (0.0, 0.0, 0)


def overshoot_flags(tracks: Sequence[RunTrack]) -> list[FitFlag]:
    """Mode "paper" fits maxima of noise."""
    mean_overshoot, last_overshoot, record_count = record_overshoot(tracks)
    if not record_count:
        return []
    text = (
        "paper mode fits record-breaking points, which exceed the mean by the largest noise so far: every A is biased "
        f"upward, more for cells with more evaluations; here {record_count} records lie {mean_overshoot:+.4f} of "
        "reward above the points around them on average, the last of each run, which set the plateau, "
        f"{last_overshoot:+.4f}"
    )
    return [FitFlag(code="records_overshoot", severity="warning", text=text)]
