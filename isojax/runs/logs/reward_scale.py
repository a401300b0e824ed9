"""Rewards in percent beside rewards in [0, 1]: one scale for all logs would be wrong for some. Each
run's own rewards decide where the user says scale=auto, and a mixture that nobody spoke of is
refused."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from isojax.core.errors import InputError
from isojax.core.tabular import list_some
from isojax.runs.logs.log_run import LogRun, NotedRuns
from isojax.runs.logs.reward_rounding import ROUNDING

AUTO_SCALE = "auto"  # of --map scale=auto
PERCENT = 0.01
_HIGHEST_FRACTION = 1 + ROUNDING  # 1, with what a sum in float32 may be off by


def scale_runs(runs: Sequence[LogRun]) -> NotedRuns:
    """The runs, each with the scale of its rewards where the user gave --map scale=auto.

    That is 0.01 for a run whose rewards are percent. The notes name those runs, and doubt a scale
    of 0.01 that seems wrong.

    InputError where the rewards of some runs are percent and those of others are in [0, 1], but
    all would get the same scale, or none; runs with a scale from the user's table are left out of
    that check."""
    scaled: list[LogRun] = []
    percent_labels: list[str] = []
    for run in runs:
        if run.scale_is_auto and _is_percent(_rewards(run)):
            constants = {**run.column_map.constants, "scale": PERCENT}
            run = replace(run, column_map=replace(run.column_map, constants=constants))
            percent_labels.append(run.label)
        scaled.append(run)

    _reject_mixed_scales([run for run in runs if not (run.scale_is_auto or run.scale_is_stated)])

    notes = []
    if percent_labels:
        notes.append(f"scale=auto: rewards are percent in {list_some(percent_labels)}")

    # The user's --map scale=0.01 on rewards that are already in [0, 1] gets a question.
    highest = max((_rewards(run).max(initial=0) for run in runs), default=0)
    scales = {run.column_map.constants.get("scale", 1) for run in runs if not run.scale_is_stated}
    if PERCENT in scales and 0 < highest <= _HIGHEST_FRACTION:
        notes.append(
            f"the highest reward is {highest:g} before scale={PERCENT:g} makes it less: "
            "are these percent?"
        )
    return NotedRuns(scaled, notes)


def _reject_mixed_scales(runs: Sequence[LogRun]) -> None:
    """InputError where some runs' rewards are percent and others' are in [0, 1].

    runs: those that would all get the same scale; the message shows the first run of each kind.
    """
    percent_run = next((run for run in runs if _is_percent(_rewards(run))), None)
    # Rewards that are all 0 are the same in percent.
    fraction_run = next(
        (run for run in runs if 0 < _rewards(run).max(initial=0) <= _HIGHEST_FRACTION), None
    )
    if percent_run is None or fraction_run is None:
        return

    scale = percent_run.column_map.constants.get("scale")
    for_all = "no scale" if scale is None else f"scale={scale:g}"
    raise InputError(
        where=percent_run.named_location,
        found=(
            f"rewards reach {_rewards(percent_run).max():g}, as of percent, and those of "
            f"{fraction_run.named_location} reach {_rewards(fraction_run).max():g}; {for_all} "
            "is for all"
        ),
        expected="one unit",
        fix=(
            "Add --map scale=auto, by which each run's own rewards decide, or a column scale "
            "to the --settings TABLE."
        ),
    )


def _rewards(run: LogRun) -> NDArray[np.float64]:
    """f64[rewards]: the finite numbers of the metric that is fitted, as they are logged."""
    column = run.column_map.columns[run.column_map.main_metric]
    rewards = run.rows.column(column).numbers
    return rewards[np.isfinite(rewards)]


def _is_percent(rewards: NDArray[np.float64]) -> bool:
    """Whether most rewards above 0 exceed 1, and none 100.

    A single one that exceeds 1 is a mistake of its row. rewards: f64[any], all finite.
    """
    positive = rewards[rewards > 0]
    if len(positive) == 0:
        return False
    exceed_one = np.median(positive) > _HIGHEST_FRACTION
    return bool(exceed_one and positive.max() <= 100 * _HIGHEST_FRACTION)
