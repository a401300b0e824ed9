"""What a run had sampled up to each of its steps, and how long that took: rollouts (C), response
tokens and device hours, as logged or computed from what each step has."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.runs.logs.column_map import is_validation
from isojax.runs.logs.log_table import DROPPED_FIELDS
from isojax.runs.logs.run_seconds import NotedSeconds, check_durations, seconds_so_far
from isojax.runs.logs.run_steps import RunSteps


def cumulative_rollouts(steps: RunSteps, cell: Cell) -> list[int]:
    """C at each step: as logged (of a training row without it, as before), else sampled batches, or
    steps and the problems that they dropped, x B_p n."""
    if "rollouts" in steps.column_map:
        return _logged_rollouts(steps)

    batches = _sum_over_steps(steps, "sampled_batches")
    if batches:
        problems_of_batch = steps.column_map.read("sampled_B_p", steps.rows[0])
        return [round(count * problems_of_batch * cell.n) for count in batches]

    return [
        step * cell.B + round(problems * cell.n)
        for step, problems in zip(steps.clocks, _dropped_problems(steps), strict=True)
    ]


def _logged_rollouts(steps: RunSteps) -> list[int]:
    is_evaluated = steps.any_known(filter(is_validation, steps.column_map.columns)).tolist()
    C: list[int] = []
    for step, rollouts in enumerate(steps.values("rollouts")):
        if rollouts is not None:
            C.append(rollouts)
        elif is_evaluated[step]:
            C.append(steps.require("rollouts", step))  # which refuses it, with its place
        else:
            C.append(C[-1] if C else 0)
    return C


def _dropped_problems(steps: RunSteps) -> list[float]:
    """The problems up to each step that were sampled and not trained on. A step that is not in the
    log has the mean of the others."""
    by_field = [steps.values(name) for name in DROPPED_FIELDS]
    of_steps = [sum(value or 0.0 for value in values) for values in zip(*by_field, strict=True)]
    update_count = sum(clock > 0 for clock in steps.clocks)
    return _running_sums(steps, of_steps, mean=sum(of_steps) / max(1, update_count))


def _sum_over_steps(steps: RunSteps, name: str) -> list[float]:
    """The sum of a field's values up to each step, the mean for a step without one; empty where
    none is known."""
    values = steps.values(name)
    known = [value for value in values if value is not None]
    if not known or min(known) < 0:
        return []

    # Step 0 trains nothing, so what it took stands for no other step.
    of_updates = [
        value
        for clock, value in zip(steps.clocks, values, strict=True)
        if value is not None and clock > 0
    ]
    of_updates = of_updates or known
    mean = sum(of_updates) / len(of_updates)

    of_steps: list[float] = []
    last_clock = 0
    for clock, value in zip(steps.clocks, values, strict=True):
        default = mean if clock > last_clock else 0.0
        of_steps.append(default if value is None else value)
        last_clock = clock
    return _running_sums(steps, of_steps, mean)


def _running_sums(steps: RunSteps, of_steps: Sequence[float], mean: float) -> list[float]:
    """`mean`: of each step that is not in the log."""
    sums: list[float] = []
    total = 0.0
    last_clock = 0
    for clock, value in zip(steps.clocks, of_steps, strict=True):
        missing_steps = max(clock - last_clock - 1, 0)
        total = total + value + missing_steps * mean
        last_clock = clock
        sums.append(total)
    return sums


def estimated_tokens(steps: RunSteps, C: Sequence[int]) -> list[float]:
    """Response tokens at each step: mean length x rollouts, each length standing for the rollouts
    since the last one logged. Where the evaluation comes between two logged lengths, the earlier
    one still holds."""
    if "response_length" not in steps.fields:
        return [0.0] * len(steps)

    tokens: list[float] = []
    mean_length = 0.0
    counted_tokens = 0.0  # up to the last logged length
    counted_rollouts = 0
    for length, rollouts in zip(steps.values("response_length"), C, strict=True):
        if length is not None:
            mean_length = length
            counted_tokens += mean_length * (rollouts - counted_rollouts)
            counted_rollouts = rollouts
        so_far = counted_tokens + mean_length * (rollouts - counted_rollouts)
        # A shorter length, logged later, takes no tokens back.
        tokens.append(max(so_far, tokens[-1]) if tokens else so_far)
    return tokens


class NotedHours(NamedTuple):
    hours: list[float] | None  # of all devices, from the start to each step
    notes: list[str]


def device_hours_of_steps(steps: RunSteps) -> NotedHours:
    """From the seconds so far or those of each step; a step without them took as long as the
    others. None where they, or the devices, are not known, or the clock is no step. InputError
    where a column that the user mapped is of the other kind."""
    column_map = steps.column_map
    seconds = _seconds_of_steps(steps)
    if "devices" in column_map:
        if not seconds.so_far:
            return NotedHours(None, seconds.notes)
        devices = column_map.read("devices", steps.rows[0])
        return NotedHours([total * devices / 3600 for total in seconds.so_far], seconds.notes)

    if "device_hours" in column_map:
        devices = "--map devices=COLUMN, or =8; or say it later: isojax recommend --devices 8"
        note = f"device hours without the devices count as those of one: {devices}"
        return NotedHours(None, [note])
    if column_map.mapped & {"step_seconds", "elapsed_seconds"}:
        note = "the seconds give no device hours without the devices: --map devices=COLUMN, or =8"
        return NotedHours(None, [note])
    return NotedHours(None, [])


def _seconds_of_steps(steps: RunSteps) -> NotedSeconds:
    """Seconds from the start to each step; none where they are not known."""
    column_map = steps.column_map
    if column_map.mapped >= {"step_seconds", "elapsed_seconds"}:
        raise InputError(
            f"{steps.location(0)}: both step_seconds and elapsed_seconds are mapped; "
            "expected one. Leave one out."
        )

    # A column that the user calls seconds of steps, or that is named so by chance, may be another.
    notes: list[str] = []
    durations = [seconds for seconds in steps.values("step_seconds") if seconds is not None]
    may_be_elapsed = (
        "step_seconds" in column_map.mapped
        or column_map.columns.get("step_seconds") == "step_seconds"
    )
    if durations and may_be_elapsed:
        note = check_durations(durations, _describe_first(steps, "step_seconds"))
        notes += [note] if note else []

    has_steps = "step" in column_map
    elapsed = steps.values("elapsed_seconds")
    are_durations = bool(durations) and has_steps and "elapsed_seconds" not in column_map.mapped
    if are_durations or all(seconds is None for seconds in elapsed):
        so_far = _sum_over_steps(steps, "step_seconds") if has_steps else []
        return NotedSeconds(so_far, notes)
    try:
        return seconds_so_far(steps.clocks, elapsed, _describe_first(steps, "elapsed_seconds"))
    except InputError:
        if "elapsed_seconds" in column_map.mapped:
            raise
        return NotedSeconds([], [])  # a known name, of something else


def _describe_first(steps: RunSteps, name: str) -> str:
    """The place and name of a field, in the first step that has it."""
    step = int(np.argmax(steps.fields[name].is_known))
    return steps.column_map.describe_cell(name, steps.rows.place(steps.first_row(step)))


def cumulative_sums(name: str, steps: RunSteps, evaluated: Sequence[int]) -> list[Any]:
    """A logged sum at each evaluation; InputError where it is missing, or below that of the
    evaluation before."""
    sums: list[Any] = []
    before = 0
    for step in evaluated:
        value = steps.require(name, step)
        if value < before:
            cell = steps.column_map.describe_cell(name, steps.rows.place(steps.first_row(step)))
            raise InputError(
                f"{cell} is {value:g} after {before:g}; "
                "expected a cumulative sum, which never falls."
            )
        sums.append(value)
        before = value
    return sums
