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
    """C at each step: the rollouts that the run had sampled for training by then.

    It is taken from a column of rollouts, if the log has one; else computed from the batches that
    were sampled, each of sampled_B_p problems with n rollouts; else from the steps, each of B_p n
    rollouts, and the n rollouts of each problem that was sampled but not trained on (DAPO)."""
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
    """C at each step as logged.

    A step without it has that of the step before, or 0, if it has no evaluation; one with an
    evaluation is an InputError.
    """
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
    """The problems up to each step that were sampled and not trained on.

    A step that is not in the log counts as the mean of the others.
    """
    by_field = [steps.values(name) for name in DROPPED_FIELDS]
    of_steps = [sum(value or 0.0 for value in values) for values in zip(*by_field, strict=True)]
    update_count = sum(clock > 0 for clock in steps.clocks)
    return _running_sums(steps, of_steps, mean=sum(of_steps) / max(1, update_count))


def _sum_over_steps(steps: RunSteps, name: str) -> list[float]:
    """The sum of a field's values up to each step: [1, 3, 6] of 1, 2, 3.

    A step without a value, and one that is not in the log, counts as the mean of the others. Empty
    where no step has one, or one is negative.
    """
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

    # The value of each step in the log; step 0 without one took nothing.
    of_steps: list[float] = []
    for clock, value in zip(steps.clocks, values, strict=True):
        default = mean if clock > 0 else 0.0
        of_steps.append(default if value is None else value)
    return _running_sums(steps, of_steps, mean)


def _running_sums(steps: RunSteps, of_steps: Sequence[float], mean: float) -> list[float]:
    """The sum of values up to each step of the log, with those between that the log lacks.

    of_steps: a value for each step in the log; mean: what each step counts that is between two of
    these and not in the log.
    """
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
    """The response tokens that a run had sampled by each step, as mean length x rollouts.

    0 everywhere where no length is logged. C: the rollouts by each step.

    A logged mean length holds for the rollouts since the one logged before it. At a step between
    two logged lengths, the earlier one is used for the rollouts since then."""
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
    """The device hours that a run had used by each step, seconds x devices / 3600.

    The seconds are from a column of seconds since the start or of each step's seconds, of which a
    step without counts as the mean of the others. None where the seconds or the number of devices
    are not known, with a note on how to give the devices. InputError where a column that the user
    mapped as one kind of seconds is surely the other.
    """
    column_map = steps.column_map
    seconds = _seconds_of_steps(steps)
    if "devices" in column_map:
        if not seconds.so_far:
            return NotedHours(None, seconds.notes)
        devices = column_map.read("devices", steps.rows[0])
        return NotedHours([total * devices / 3600 for total in seconds.so_far], seconds.notes)

    # Without the devices, the notes show how to give them.
    if "device_hours" in column_map:
        devices = "--map devices=COLUMN, or =8; or say it later: isojax recommend --devices 8"
        note = f"device hours without the devices count as those of one: {devices}"
        return NotedHours(None, [note])
    if column_map.mapped & {"step_seconds", "elapsed_seconds"}:
        note = "the seconds give no device hours without the devices: --map devices=COLUMN, or =8"
        return NotedHours(None, [note])
    return NotedHours(None, [])


def _seconds_of_steps(steps: RunSteps) -> NotedSeconds:
    """The seconds from a run's start to each step, and notes; empty where they are not known.

    They are sums of the column step_seconds if it has values and the clock is the step, else the
    column elapsed_seconds. InputError where a column that the user mapped does not hold what its
    name says; where one was only recognized by its name, that is passed over.
    """
    column_map = steps.column_map
    if column_map.mapped >= {"step_seconds", "elapsed_seconds"}:
        raise InputError(
            where=steps.location(0),
            found="both step_seconds and elapsed_seconds are mapped",
            expected="one",
            fix="Leave one out.",
        )

    # A column that the user mapped as step_seconds, or that has this name, may hold seconds since
    # the start; those that trainers are known to write hold each step's.
    notes: list[str] = []
    durations = [seconds for seconds in steps.values("step_seconds") if seconds is not None]
    may_be_elapsed = (
        "step_seconds" in column_map.mapped
        or column_map.columns.get("step_seconds") == "step_seconds"
    )
    if durations and may_be_elapsed:
        # InputError if they surely are since the start; a note if they may be; else ""
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
        return NotedSeconds([], [])  # a column with a known name that holds something else


def _describe_first(steps: RunSteps, name: str) -> str:
    """The place and name of a field, in the first step that has it."""
    step = int(np.argmax(steps.fields[name].is_known))
    return steps.column_map.describe_cell(name, steps.rows.place(steps.first_row(step)))


def cumulative_sums(name: str, steps: RunSteps, evaluated: Sequence[int]) -> list[Any]:
    """A logged cumulative field, such as tokens, at each evaluation.

    name: of the field; evaluated: the indices of the steps with an evaluation, rising. InputError
    where an evaluation lacks it, or where it falls.
    """
    sums: list[Any] = []
    before = 0
    for step in evaluated:
        value = steps.require(name, step)
        if value < before:
            cell = steps.column_map.describe_cell(name, steps.rows.place(steps.first_row(step)))
            raise InputError(
                where=cell,
                found=f"given {value:g} after {before:g}",
                expected="a cumulative sum, which never falls",
            )
        sums.append(value)
        before = value
    return sums
