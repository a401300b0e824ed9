"""Rewards in percent beside rewards in [0, 1]: one scale for all logs would be wrong for some. Each
run's own rewards decide where the user says scale=auto, and a mixture that nobody spoke of is
refused."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from isojax.core.errors import InputError
from isojax.core.tabular import list_some
from isojax.runs.logs.resumed_runs import LogRun
from isojax.runs.logs.reward_rounding import ROUNDING

AUTO_SCALE = "auto"  # of --map scale=auto
PERCENT = 0.01


def scale_runs(runs: Sequence[LogRun]) -> tuple[list[LogRun], list[str]]:
    """The runs, those of percent with their scale where the user says scale=auto, and notes of
    which these are. InputError where some runs have percent and others do not, and one scale, or
    none, is for all."""
    scaled, percent_sources = list[LogRun](), list[str]()
    for run in runs:
        if run.scale_is_auto and _is_percent(_rewards(run)):
            constants = {**run.column_map.constants, "scale": PERCENT}
            run = replace(run, column_map=replace(run.column_map, constants=constants))
            percent_sources.append(run.label)
        scaled.append(run)
    _reject_mixed_scales([run for run in runs if not (run.scale_is_auto or run.scale_is_stated)])
    notes = (
        [f"scale=auto: rewards are percent in {list_some(percent_sources)}"]
        if percent_sources
        else []
    )
    highest = max((_rewards(run).max(initial=0) for run in runs), default=0)
    scales = {run.column_map.constants.get("scale", 1) for run in runs if not run.scale_is_stated}
    if PERCENT in scales and 0 < highest <= 1 + ROUNDING:
        notes.append(
            f"the highest reward is {highest:g} before scale={PERCENT:g} makes it less: are these percent?"
        )
    return scaled, notes


def _reject_mixed_scales(runs: Sequence[LogRun]) -> None:
    rewards = [_rewards(run) for run in runs]
    of_percent = [(run, x) for run, x in zip(runs, rewards, strict=True) if _is_percent(x)]
    # All 0 is the same in percent.
    within_one = [
        (run, x)
        for run, x in zip(runs, rewards, strict=True)
        if 0 < x.max(initial=0) <= 1 + ROUNDING
    ]
    if not of_percent or not within_one:
        return
    percent_run, percents = of_percent[0]
    other_run, fractions = within_one[0]
    scale = percent_run.column_map.constants.get("scale")
    for_all = "no scale" if scale is None else f"scale={scale:g}"
    problem = (
        f"{percent_run.named_location}: rewards reach {percents.max():g}, as of percent, and those of"
        f" {other_run.named_location} reach {fractions.max():g}; {for_all} is for all"
    )
    fix = "Add --map scale=auto, by which each run's own rewards decide, or a column scale to the --settings TABLE"
    raise InputError(f"{problem}; expected one unit. {fix}.")


def _rewards(run: LogRun) -> NDArray[np.float64]:
    """The finite numbers of the metric that is fitted, as they are logged."""
    column = run.column_map.columns[run.column_map.main_metric]
    rewards = run.rows.column(column).numbers
    return rewards[np.isfinite(rewards)]


def _is_percent(rewards: NDArray[np.float64]) -> bool:
    """Whether most rewards above 0 exceed 1, and none 100; a single one that does is a mistake of
    its row."""
    positive = rewards[rewards > 0]
    highest = positive.max(initial=0)
    return (
        len(positive) > 0
        and bool(np.median(positive) > 1 + ROUNDING)
        and bool(highest <= 100 * (1 + ROUNDING))
    )
