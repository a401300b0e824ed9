"""One run's rows as its evaluations: training metrics averaged since the last evaluation, C from
steps where a log has no rollouts, tokens from mean lengths where it has no tokens."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from isojax.core.columns import Mask, is_missing, rows_where
from isojax.core.errors import InputError
from isojax.core.nouns import IMPORTED, Cell, EvalPoint, RunRecord
from isojax.core.tabular import RowTable, list_some
from isojax.runs.logs.column_map import ColumnMap, is_training, is_validation, rewards_within_one
from isojax.runs.logs.log_table import DROPPED_FIELDS, FIELD_HELP, STEP_FIELDS
from isojax.runs.logs.reward_rounding import clip_rounding
from isojax.runs.logs.run_seconds import check_durations, seconds_so_far
from isojax.runs.logs.run_steps import NO_ROW, RunSteps, join_steps
from isojax.runs.logs.typed_options import leave_out_option, map_option


@dataclass(frozen=True)
class UnloggedCells:
    """What stands for "not logged" in a column of a log, such as NaN."""

    source: str
    column: str
    text: str


@dataclass(frozen=True)
class ReadRun:
    record: RunRecord
    notes: list[str]  # what was left out, or taken for granted
    not_finite: list[str]  # the values that are not finite, and what may have been meant as one
    unlogged: Counter[UnloggedCells]  # at how many steps


def read_run_record(rows: RowTable, column_map: ColumnMap, cell: Cell, source: str) -> ReadRun:
    """One run as a record, and what was left out; InputError with the place of what is unusable."""
    steps = join_steps(rows, column_map)
    C = _cumulative_rollouts(steps, cell)
    tokens = _estimated_tokens(steps, C)
    hours, clock_notes = _hours_of_steps(steps)

    is_evaluation = steps.any_known([column_map.main_metric])
    not_finite = _describe_not_finite(steps)
    if not is_evaluation.any():
        _refuse_run_without_evaluation(steps, not_finite)
    _reject_empty_cells(steps, is_evaluation)
    evaluated = np.flatnonzero(is_evaluation).tolist()
    metrics = _evaluation_metrics(steps, evaluated)
    train = _mean_train_metrics(steps, evaluated)
    samples = _samples_per_problem(steps, evaluated)
    counts = steps.values("counts")

    _require_rising_rollouts(steps, evaluated, C, cell)
    if "tokens" in column_map:
        tokens_so_far = _cumulative_sums("tokens", steps, evaluated)
    else:
        tokens_so_far = [round(tokens[step]) for step in evaluated]
    device_hours: list[float] = []
    if "device_hours" in column_map:
        device_hours = _cumulative_sums("device_hours", steps, evaluated)
    elif hours is not None:
        device_hours = [hours[step] for step in evaluated]

    has_steps = "step" in column_map
    points = [
        EvalPoint(
            target=C[step],
            M=steps.clocks[step] if has_steps else round(C[step] / cell.B),
            rollouts=C[step],
            tokens=tokens_so_far[i],
            metrics=metrics[i],
            counts=counts[step] or (),
            samples=samples[i],
            train=train[i],
        )
        for i, step in enumerate(evaluated)
    ]

    notes = (
        _conflicting_rollouts(points, cell, column_map)
        + _metrics_without_steps(steps)
        + clock_notes
    )
    is_training_step = steps.any_known(filter(is_training, column_map.columns))
    if training_rows := int(is_training_step[evaluated[-1] + 1 :].sum()):
        notes.append(f"{training_rows} training rows after the last evaluation are left out")
    is_unlogged = steps.fields[column_map.main_metric].nan_rows != NO_ROW
    if others := int(
        (~steps.any_known([*column_map.metric_fields, *STEP_FIELDS]) & ~is_unlogged).sum()
    ):
        metric = column_map.columns[column_map.main_metric]
        notes.append(f"{others} rows without {metric}, which hold other values, are left out")

    devices = column_map.read("devices", rows[0]) if device_hours and "devices" in column_map else 1
    record = RunRecord(cell, tuple(points), source, tuple(device_hours), IMPORTED, devices=devices)
    not_finite += _describe_last_cells(steps, is_evaluation)
    return ReadRun(record, notes, not_finite, _count_unlogged(steps))


def _location(steps: RunSteps, step: int) -> str:
    return steps.rows.place(steps.first_row(step)).location


def _validation_fields(column_map: ColumnMap) -> list[str]:
    """The main metric, which is fitted by default, and the others."""
    return sorted(
        filter(is_validation, column_map.columns), key=lambda name: name != column_map.main_metric
    )


def _refuse_run_without_evaluation(steps: RunSteps, not_finite: Sequence[str]) -> None:
    column_map = steps.column_map
    _reject_empty_cells(steps, np.zeros(len(steps), np.bool_))
    columns = ", ".join(column_map.columns[name] for name in _validation_fields(column_map))
    problem = f"{_location(steps, 0)}: the run from there on has no {columns}"
    nan_rows = steps.fields[column_map.main_metric].nan_rows
    if not_finite:
        problem = not_finite[0]
    elif (nan_rows != NO_ROW).any():
        row = steps.rows[nan_rows[nan_rows != NO_ROW][0]]
        cell = column_map.describe_cell(column_map.main_metric, row)
        value = column_map.cell_value(column_map.main_metric, row)
        problem = f"{cell} is {value}, and the run has no other value of it"
    name = str(column_map.cell_value("run", steps.rows[0]) or column_map.table.run)
    fix = (
        f" Leave the run out: {leave_out_option(name, [column_map.table.source])}." if name else ""
    )
    raise InputError(f"{problem}; expected an evaluation.{fix}")


def _reject_empty_cells(steps: RunSteps, is_evaluation: Mask) -> None:
    """InputError for an empty cell of an evaluation, or alone in its step: somebody forgot to fill
    it in."""
    column_map = steps.column_map
    fields = {name: steps.fields[name] for name in _validation_fields(column_map)}
    training_fields = [
        name for name in column_map.columns if is_training(name) or name in STEP_FIELDS
    ]
    has_empty_cell = np.logical_or.reduce([field.blank_rows != NO_ROW for field in fields.values()])
    is_alone = has_empty_cell & ~is_evaluation & ~steps.any_known(training_fields)
    is_alone &= ~steps.has_other_values(is_alone)
    for step in rows_where(has_empty_cell & (is_evaluation | is_alone)):
        for name, field in fields.items():
            if field.blank_rows[step] != NO_ROW and field.value_rows[step] == NO_ROW:
                cell = column_map.describe_cell(name, steps.rows.place(field.blank_rows[step]))
                problem = f"{cell} is missing or empty; expected {FIELD_HELP.get(name, 'a number')}"
                fix = "Fill the cell in, or remove the row"
                fix += (
                    "; where it was not evaluated, write NaN" if column_map.table.is_export else ""
                )
                raise InputError(f"{problem}. {fix}.")


def _describe_not_finite(steps: RunSteps) -> list[str]:
    """Of each field that is not finite somewhere: the first such cell, and the steps of the
    others."""
    column_map = steps.column_map
    steps_of_field = {
        name: np.flatnonzero(field.not_finite_rows != NO_ROW)
        for name, field in steps.fields.items()
    }
    sentences = []
    for name in sorted(
        (name for name, at in steps_of_field.items() if len(at)), key=lambda x: steps_of_field[x][0]
    ):
        first, *others = steps_of_field[name].tolist()
        row = steps.rows[steps.fields[name].not_finite_rows[first]]
        clocks = list_some([str(steps.clocks[step]) for step in others])
        more = f", and at {column_map.clock_field} {clocks}" if others else ""
        sentences.append(
            f"{column_map.describe_cell(name, row)} is {column_map.cell_value(name, row)}{more}"
        )
    return sentences


def _describe_last_cells(steps: RunSteps, is_evaluation: Mask) -> list[str]:
    """Cells that say NaN to the end of the run, where an evaluation was due: the run may have
    diverged."""
    column_map, name = steps.column_map, steps.column_map.main_metric
    evaluated = np.flatnonzero(is_evaluation)
    longest_gap = np.diff(evaluated, prepend=-1).max()
    nan_rows = steps.fields[name].nan_rows[evaluated[-1] + 1 :]
    if len(nan_rows) < longest_gap or not (nan_rows != NO_ROW).any():
        return []
    nan_rows = nan_rows[nan_rows != NO_ROW]
    row = steps.rows[nan_rows[0]]
    cell, value = column_map.describe_cell(name, row), column_map.cell_value(name, row)
    until = (
        f"from there to the end of the run ({len(nan_rows)} steps), though an evaluation was due"
    )
    fix = "Where the run diverged, write what its policy scored there, such as 0"
    return [f"{cell} is {value} {until}: taken as not logged. {fix}"]


def _count_unlogged(steps: RunSteps) -> Counter[UnloggedCells]:
    """The cells of validation metrics that say that a step was not evaluated."""
    column_map, counts = steps.column_map, Counter[UnloggedCells]()
    for name in _validation_fields(column_map):
        field, column = steps.fields[name], column_map.columns[name]
        nan_rows = field.nan_rows[(field.nan_rows != NO_ROW) & ~field.is_known]
        if len(nan_rows):
            text = str(steps.rows.column(column)[nan_rows[0]])
            counts[UnloggedCells(column_map.table.source, column, text)] = len(nan_rows)
    return counts


def _evaluation_metrics(steps: RunSteps, evaluated: Sequence[int]) -> list[dict[str, float]]:
    """The metrics of each evaluation by their names in the ledger, each in [0, 1], the main one
    first."""
    column_map = steps.column_map
    scale = float(column_map.constants.get("scale", 1))
    metrics: list[dict[str, float]] = [{} for _ in evaluated]
    for name in _validation_fields(column_map):
        if name == "counts":
            continue
        ledger_name, field = column_map.ledger_name(name), steps.fields[name]
        for metrics_of_step, step in zip(metrics, evaluated, strict=True):
            if field.values[step] is None:
                continue
            value = clip_rounding(field.values[step] * scale)
            if not 0 <= value <= 1:
                cell = column_map.describe_cell(name, steps.rows.place(field.value_rows[step]))
                others = rewards_within_one(column_map.table)
                problem = f"{cell} is {value:.12g}, expected a number in [0, 1]. {others}Percent: --map scale=0.01"
                raise InputError(f"{problem}; otherwise correct it, or name another column.")
            metrics_of_step[ledger_name] = value
    if "counts" in steps.fields:
        samples = _samples_per_problem(steps, evaluated)
        for metrics_of_step, step, k in zip(metrics, evaluated, samples, strict=True):
            if counts := steps.fields["counts"].values[step]:
                metrics_of_step.setdefault(f"avg@{k}", sum(counts) / (k * len(counts)))
    return metrics


def _samples_per_problem(steps: RunSteps, evaluated: Sequence[int]) -> list[int]:
    """At each evaluation; 0 where nothing says them."""
    column_map = steps.column_map
    if "samples" not in column_map:
        match = re.fullmatch(r"avg@(\d+)", column_map.ledger_name(column_map.main_metric))
        return [int(match[1]) if match else 0] * len(evaluated)
    rows = np.searchsorted(steps.step_of_row, evaluated)
    if "counts" in steps.fields:
        counts = steps.fields["counts"]
        rows_of_counts = np.where(counts.is_known, counts.value_rows, counts.blank_rows)[evaluated]
        rows = np.where(rows_of_counts == NO_ROW, rows, rows_of_counts)
    return column_map.read_all("samples", steps.rows.take(rows))


def _mean_train_metrics(steps: RunSteps, evaluated: Sequence[int]) -> list[dict[str, float]]:
    """At each evaluation, the means of the training metrics over the steps since the one before, in
    the order in which the log has them there."""
    column_map = steps.column_map
    fields = {
        column_map.ledger_name(name): field
        for name, field in steps.fields.items()
        if is_training(name)
    }
    if not fields:
        return [{} for _ in evaluated]
    means_of_points = []
    for last, step in pairwise([-1, *evaluated]):
        since = slice(last + 1, step + 1)
        means, first_rows = dict[str, float](), dict[str, int]()
        for name, field in fields.items():
            known = [value for value in field.values[since] if value is not None]
            if known:
                means[name] = sum(known) / len(known)
                rows = field.value_rows[since]
                first_rows[name] = int(rows[rows != NO_ROW][0])
        means_of_points.append(
            {name: means[name] for name in sorted(means, key=first_rows.__getitem__)}
        )
    return means_of_points


def _cumulative_rollouts(steps: RunSteps, cell: Cell) -> list[int]:
    """C at each step: as logged (of a training row without it, as before), else sampled batches, or
    steps and the problems that they dropped, x B_p n."""
    column_map = steps.column_map
    if "rollouts" not in column_map:
        batches = _sum_over_steps(steps, "sampled_batches")
        if not batches:
            dropped = _dropped_problems(steps)
            return [
                step * cell.B + round(problems * cell.n)
                for step, problems in zip(steps.clocks, dropped, strict=True)
            ]
        prompts = column_map.read("sampled_B_p", steps.rows[0])
        return [round(x * prompts * cell.n) for x in batches]
    C: list[int] = []
    is_evaluated = steps.any_known(_validation_fields(column_map)).tolist()
    for step, rollouts in enumerate(steps.values("rollouts")):
        if rollouts is not None:
            C.append(rollouts)
        else:
            C.append(steps.require("rollouts", step) if is_evaluated[step] else (C or [0])[-1])
    return C


def _dropped_problems(steps: RunSteps) -> list[float]:
    """The problems up to each step that were sampled and not trained on. A step that is not in the
    log has the mean of the others."""
    by_field = [steps.values(name) for name in DROPPED_FIELDS]
    of_steps = [sum(value or 0.0 for value in values) for values in zip(*by_field, strict=True)]
    mean = sum(of_steps) / max(1, sum(clock > 0 for clock in steps.clocks))

    so_far, total, last_step = list[float](), 0.0, 0
    for clock, dropped in zip(steps.clocks, of_steps, strict=True):
        missing = max(clock - last_step - 1, 0)
        total, last_step = total + dropped + missing * mean, clock
        so_far.append(total)
    return so_far


def _estimated_tokens(steps: RunSteps, C: Sequence[int]) -> list[float]:
    """Response tokens at each step: mean length x rollouts, each length standing for the rollouts
    since the last one logged. Where the evaluation comes between two logged lengths, the earlier
    one still holds."""
    if "response_length" not in steps.fields:
        return [0.0] * len(steps)
    tokens: list[float] = []
    total_tokens, counted_rollouts, mean_length = 0.0, 0, 0.0
    for length, rollouts in zip(steps.values("response_length"), C, strict=True):
        if length is not None:
            mean_length = length
            total_tokens += mean_length * (rollouts - counted_rollouts)
            counted_rollouts = rollouts
        tokens.append(
            max([total_tokens + mean_length * (rollouts - counted_rollouts), *tokens[-1:]])
        )
    return tokens


def _hours_of_steps(steps: RunSteps) -> tuple[list[float] | None, list[str]]:
    """(device hours at each step, notes), from the seconds so far or those of each step; a step
    without them took as long as the others. None where they, or the devices, are not known, or the
    clock is no step. InputError where a column that the user mapped is of the other kind."""
    column_map = steps.column_map
    seconds, notes = _seconds_of_steps(steps)
    mapped = column_map.columns.keys() - column_map.detected
    if "devices" not in column_map and "device_hours" in column_map:
        devices = "--map devices=COLUMN, or =8; or say it later: isojax recommend --devices 8"
        return None, [f"device hours without the devices count as those of one: {devices}"]
    if "devices" not in column_map:
        is_asked = mapped & {"step_seconds", "elapsed_seconds"}
        missing = (
            "the seconds give no device hours without the devices: --map devices=COLUMN, or =8"
        )
        return None, [missing] if is_asked else []
    if not seconds:
        return None, notes
    devices = column_map.read("devices", steps.rows[0])
    return [total * devices / 3600 for total in seconds], notes


def _seconds_of_steps(steps: RunSteps) -> tuple[list[float], list[str]]:
    """(seconds from the start to each step, notes); [] where they are not known."""
    column_map = steps.column_map
    mapped = column_map.columns.keys() - column_map.detected
    if mapped >= {"step_seconds", "elapsed_seconds"}:
        problem = f"{_location(steps, 0)}: both step_seconds and elapsed_seconds are mapped"
        raise InputError(f"{problem}; expected one. Leave one out.")
    note = ""
    durations = [seconds for seconds in steps.values("step_seconds") if seconds is not None]
    may_be_elapsed = (
        "step_seconds" in mapped or column_map.columns.get("step_seconds") == "step_seconds"
    )
    if durations and may_be_elapsed:
        note = check_durations(durations, _describe_first(steps, "step_seconds"))
    has_durations = bool(durations) and "step" in column_map and "elapsed_seconds" not in mapped
    elapsed = steps.values("elapsed_seconds")
    if has_durations or not any(seconds is not None for seconds in elapsed):
        seconds = _sum_over_steps(steps, "step_seconds") if "step" in column_map else []
        return seconds, [note] if note else []
    try:
        seconds, note = seconds_so_far(
            steps.clocks, elapsed, _describe_first(steps, "elapsed_seconds")
        )
    except InputError:
        if "elapsed_seconds" in mapped:
            raise
        return [], []  # a known name, of something else
    return seconds, [note] if note else []


def _describe_first(steps: RunSteps, name: str) -> str:
    """The place and name of a field, in the first step that has it."""
    step = int(np.argmax(steps.fields[name].is_known))
    return steps.column_map.describe_cell(name, steps.rows.place(steps.first_row(step)))


def _sum_over_steps(steps: RunSteps, name: str) -> list[float]:
    """The sum of a field's values up to each step, the mean for a step without one; empty where
    none is known."""
    values = steps.values(name)
    known = [value for value in values if value is not None]
    if min(known, default=-1) < 0:
        return []
    # Step 0 trains nothing, so what it took stands for no other step.
    pairs = zip(steps.clocks, values, strict=True)
    of_updates = [value for clock, value in pairs if value is not None and clock > 0] or known
    mean = sum(of_updates) / len(of_updates)
    sums = list[float]()
    total = 0.0
    last_step = 0
    for clock, value in zip(steps.clocks, values, strict=True):
        missing = max(clock - last_step - 1, 0)  # steps that are not in the log
        if value is None:
            value = mean if clock > last_step else 0.0
        total, last_step = total + value + missing * mean, clock
        sums.append(total)
    return sums


def _require_rising_rollouts(
    steps: RunSteps, evaluated: Sequence[int], C: Sequence[int], cell: Cell
) -> None:
    """InputError for an evaluation at the C of the one before, or a lower one, or within the first
    update."""
    rollouts_per_update, before = cell.B, -1
    for step in evaluated:
        rollouts = C[step]
        if rollouts <= before:
            problem = "is there twice" if rollouts == before else f"comes after {before}"
            problem = f"{_location(steps, step)}: compute of {rollouts} rollouts {problem}; expected it to rise"
            raise InputError(
                f"{problem}. Remove one point, or separate the runs with --map run=COLUMN."
            )
        if 0 < rollouts < rollouts_per_update:
            problem = (
                f"{rollouts} rollouts are less than one update's B_p n = {rollouts_per_update}"
            )
            fix = "expected C in rollouts, in full. Correct rollouts, step, n or B_p"
            raise InputError(f"{_location(steps, step)}: {problem}; {fix}.")
        before = rollouts


def _cumulative_sums(name: str, steps: RunSteps, evaluated: Sequence[int]) -> list[Any]:
    """A logged sum at each evaluation; InputError where it is missing, or below that of the
    evaluation before."""
    sums, before = [], 0
    for step in evaluated:
        value = steps.require(name, step)
        if value < before:
            cell = steps.column_map.describe_cell(name, steps.rows.place(steps.first_row(step)))
            raise InputError(
                f"{cell} is {value:g} after {before:g}; expected a cumulative sum, which never falls."
            )
        sums.append(value)
        before = value
    return sums


def _metrics_without_steps(steps: RunSteps) -> list[str]:
    """A note of each training metric of a --map that no step has, as its rows have another column
    for the step."""
    column_map, table = steps.column_map, steps.column_map.table
    known = {
        name for name, field in steps.fields.items() if field.is_known.any()
    } | column_map.detected
    step, notes = column_map.columns[column_map.clock_field], list[str]()
    for column in (
        x for name, x in column_map.columns.items() if is_training(name) and name not in known
    ):
        rows = table.cells.take(~table.is_unlogged(table.cells.column(column)))
        if len(rows) and table.is_unlogged(rows.column(step)).all():
            first = rows[0].values
            others = [
                x
                for x in rows.names
                if "step" in x and x != "_step" and not is_missing(first.get(x))
            ]
            use = f"to use them: {map_option('step', (*others, 'COLUMN')[0])}"
            notes.append(f"{len(rows)} rows with {column} have no {step} and are left out; {use}")
    return notes


def _conflicting_rollouts(
    points: Sequence[EvalPoint], cell: Cell, column_map: ColumnMap
) -> list[str]:
    is_comparable = "rollouts" in column_map and "step" in column_map
    first = [p for p in points if is_comparable and p.rollouts != p.M * cell.B][:1]
    text = "rollouts are taken from the log, though they are not steps x B_p x n"
    return [
        f"{text} ({p.rollouts} at step {p.M}, not {p.M} x {cell.B_p} x {cell.n} = {p.M * cell.B})"
        for p in first
    ]
