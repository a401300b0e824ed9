"""One run's rows as its evaluations: the rows of a step joined, training metrics averaged since the last evaluation, C
from steps where a log has no rollouts, tokens from mean lengths where it has no tokens."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from isojax.core.errors import InputError
from isojax.core.nouns import IMPORTED, Cell, EvalPoint, RunRecord
from isojax.core.tabular import DataRow, is_blank, list_some, parse_number
from isojax.runs.logs.column_map import ColumnMap, is_training, is_validation, rewards_within_one
from isojax.runs.logs.log_table import CUMULATIVE_FIELDS, STEP_FIELDS
from isojax.runs.logs.run_seconds import check_durations, seconds_so_far


@dataclass
class StepEntry:
    """All that a log says of one step of a run; `clock` is the step, or the rollouts where a log has no steps."""

    column_map: ColumnMap
    clock: int
    first_row: DataRow
    values: dict[str, Any] = field(default_factory=dict)  # field -> value
    rows: dict[str, DataRow] = field(default_factory=dict)  # field -> the row of its value, else of its empty cell
    has_other_values: bool = False  # in columns that are no field
    not_finite: dict[str, DataRow] = field(default_factory=dict)  # field -> the row whose NaN is left out

    def require(self, name: str) -> Any:
        """The value of a field; InputError where its cell is empty."""
        if name in self.values:
            return self.values[name]
        return self.column_map.read(name, self.rows.get(name, self.first_row))


def read_run_record(
    rows: Sequence[DataRow], column_map: ColumnMap, cell: Cell, source: str
) -> tuple[RunRecord, list[str], list[str]]:
    """One run as a record, what was left out, and what is not finite; InputError with the place of what is unusable."""
    points, device_hours, entries_since_evaluation = list[EvalPoint](), list[float](), list[StepEntry]()
    entries = _join_steps(rows, column_map)
    C = _cumulative_rollouts(entries, column_map, cell)
    hours_of_entries, clock_notes = _hours_of_entries(entries, column_map)
    estimates = _estimated_tokens(entries, C), hours_of_entries
    for entry, rollouts, estimated_tokens, hours in zip(entries, C, *estimates, strict=True):
        entries_since_evaluation.append(entry)
        metrics = _evaluation_metrics(entry)
        if not metrics:
            continue
        if points and rollouts <= points[-1].rollouts:
            problem = "is there twice" if rollouts == points[-1].rollouts else f"comes after {points[-1].rollouts}"
            problem = f"{entry.first_row.location}: compute of {rollouts} rollouts {problem}; expected it to rise"
            raise InputError(f"{problem}. Remove one point, or separate the runs with --map run=COLUMN.")
        if 0 < rollouts < cell.B:
            problem = f"{entry.first_row.location}: {rollouts} rollouts are less than one update's B_p n = {cell.B}"
            raise InputError(f"{problem}; expected C in rollouts, in full. Correct rollouts, step, n or B_p.")
        tokens = round(estimated_tokens)
        if "tokens" in column_map:
            tokens = _cumulative_sum("tokens", entry, points[-1].tokens if points else 0)
        if "device_hours" in column_map:
            device_hours.append(_cumulative_sum("device_hours", entry, device_hours[-1] if device_hours else 0))
        elif hours is not None:
            device_hours.append(hours)
        point = EvalPoint(
            target=rollouts,
            M=entry.clock if "step" in column_map else round(rollouts / cell.B),
            rollouts=rollouts,
            tokens=tokens,
            metrics=metrics,
            counts=entry.values.get("counts", ()),
            samples=_samples_per_problem(entry),
            train=_mean_train_metrics(entries_since_evaluation),
        )
        points.append(point)
        entries_since_evaluation = []
    not_finite = _describe_not_finite(entries, column_map)
    if not points:
        columns = ", ".join(column for name, column in column_map.columns.items() if is_validation(name))
        where = not_finite[0] if not_finite else f"{rows[0].location}: the run from there on has no {columns}"
        raise InputError(f"{where}; expected an evaluation.")
    notes = _conflicting_rollouts(points, cell, column_map) + _metrics_without_steps(entries, column_map)
    notes += clock_notes
    if training_rows := sum(any(map(is_training, x.values)) for x in entries_since_evaluation):
        notes.append(f"{training_rows} training rows after the last evaluation are left out")
    if others := sum(x.values.keys() <= {*CUMULATIVE_FIELDS, "elapsed_seconds"} for x in entries):
        metric = column_map.columns[column_map.main_metric]
        notes.append(f"{others} rows without {metric}, which hold other values, are left out")
    devices = column_map.read("devices", rows[0]) if device_hours and "devices" in column_map else 1
    return RunRecord(cell, tuple(points), source, tuple(device_hours), IMPORTED, devices=devices), notes, not_finite


def _join_steps(rows: Sequence[DataRow], column_map: ColumnMap) -> list[StepEntry]:
    """The rows of each step joined; InputError for steps (or rollouts) that fall, or a value given twice at a step."""
    clock_field = column_map.clock_field
    # A clock that all rows have does not tell what a row is: it counts as a further value.
    field_columns = {column for name, column in column_map.columns.items() if name != "elapsed_seconds"}
    entries: list[StepEntry] = []
    for row in rows:
        clock = column_map.read(clock_field, row)
        if entries and clock < entries[-1].clock:
            before = f"{entries[-1].clock} ({entries[-1].first_row.position})"
            problem = f"{row.location}: {clock_field} falls from {before} to {clock} within a run. Sort the file,"
            fix = "split it where a run starts" if column_map.table.one_run else "split runs by --map run=COLUMN"
            raise InputError(f"{problem} {fix}, or add --resumed where the run was resumed.")
        if not entries or clock > entries[-1].clock:
            entries.append(StepEntry(column_map, clock, row))
        for name in (*column_map.metric_fields, *CUMULATIVE_FIELDS, *STEP_FIELDS):
            _add_cell(entries[-1], name, row)
        _add_elapsed_seconds(entries[-1], row)
        others = (x for column, x in row.values.items() if column not in field_columns)
        entries[-1].has_other_values |= not all(map(is_blank, others))
    return entries


def _add_cell(entry: StepEntry, name: str, row: DataRow) -> None:
    """Add what a row has of a field, but for a NaN of a metric, or of a time, in a log that a trainer wrote, where
    nobody can correct it, or of a training metric that no --map names."""
    column_map = entry.column_map
    column = column_map.columns.get(name)
    if column is None or column not in row.values or (name in STEP_FIELDS and name in entry.values):
        return
    cell_value = row.values[column]
    if is_blank(cell_value):
        entry.rows.setdefault(name, row)
        return
    number = parse_number(cell_value)
    if number is not None and not math.isfinite(number):
        if is_training(name) and name in column_map.detected:
            return
        if column_map.table.one_run and name not in CUMULATIVE_FIELDS:
            entry.not_finite[name] = row
            return
    value = column_map.read(name, row)
    if name in entry.values and not (name in CUMULATIVE_FIELDS and entry.values[name] == value):
        point = f"{column_map.describe_cell(name, row)}: the point at {column_map.clock_field} {entry.clock}"
        problem = f"{point} is there twice ({entry.values[name]!r} at {entry.rows[name].position} and {value!r} here)"
        fix = "add --resumed where the run was resumed, or separate runs with --map run=COLUMN or seed=COLUMN"
        raise InputError(f"{problem}; expected once. Remove one, {fix}.")
    entry.values[name], entry.rows[name] = value, row


def _add_elapsed_seconds(entry: StepEntry, row: DataRow) -> None:
    """The time of a step is that of its last row; a time that nobody mapped may be of another kind, and left out."""
    column_map, name = entry.column_map, "elapsed_seconds"
    cell_value = row.values.get(column_map.columns.get(name, ""))
    if is_blank(cell_value) or (name in column_map.detected and parse_number(cell_value) is None):
        return
    entry.values[name], entry.rows[name] = column_map.read(name, row), row


def _describe_not_finite(entries: Sequence[StepEntry], column_map: ColumnMap) -> list[str]:
    """Of each field that is not finite somewhere: the first such cell, and the steps of the others."""
    sentences = []
    for name in dict.fromkeys(name for entry in entries for name in entry.not_finite):
        places = {str(entry.clock): entry.not_finite[name] for entry in entries if name in entry.not_finite}
        (_, row), *others = places.items()
        more = f", and at {column_map.clock_field} {list_some([step for step, _ in others])}" if others else ""
        sentences.append(f"{column_map.describe_cell(name, row)} is {column_map.cell_value(name, row)}{more}")
    return sentences


def _evaluation_metrics(entry: StepEntry) -> dict[str, float]:
    """An evaluation's metrics by their names in the ledger, each in [0, 1], the main one first, which is fitted by
    default; none where the entry holds other values only. InputError where one is due and its cell is empty."""
    column_map, main_field = entry.column_map, entry.column_map.main_metric
    validation_fields = sorted(filter(is_validation, column_map.columns), key=lambda name: name != main_field)
    is_of_training = any(is_training(name) or name in STEP_FIELDS for name in entry.values)
    if main_field in entry.values or not (entry.has_other_values or is_of_training):
        for name in (name for name in validation_fields if name in entry.rows):
            entry.require(name)
    if main_field not in entry.values:
        return {}
    metrics: dict[str, float] = {}
    for name in validation_fields:
        if name in entry.values and name != "counts":
            value = entry.values[name] * float(column_map.constants.get("scale", 1))
            if not 0 <= value <= 1:
                cell, others = column_map.describe_cell(name, entry.rows[name]), rewards_within_one(column_map.table)
                problem = f"{cell} is {value:g}, expected a number in [0, 1]. {others}Percent: --map scale=0.01"
                raise InputError(f"{problem}; otherwise correct it, or name another column.")
            metrics[column_map.ledger_name(name)] = value
    if counts := entry.values.get("counts"):
        samples = _samples_per_problem(entry)
        metrics.setdefault(f"avg@{samples}", sum(counts) / (samples * len(counts)))
    return metrics


def _samples_per_problem(entry: StepEntry) -> int:
    column_map = entry.column_map
    if "samples" in column_map:
        return column_map.read("samples", entry.rows.get("counts", entry.first_row))
    match = re.fullmatch(r"avg@(\d+)", column_map.ledger_name(column_map.main_metric))
    return int(match[1]) if match else 0


def _mean_train_metrics(entries: Sequence[StepEntry]) -> dict[str, float]:
    names = dict.fromkeys(name for entry in entries for name in entry.values if is_training(name))
    values = {name: [entry.values[name] for entry in entries if name in entry.values] for name in names}
    return {entries[0].column_map.ledger_name(name): sum(known) / len(known) for name, known in values.items()}


def _cumulative_rollouts(entries: Sequence[StepEntry], column_map: ColumnMap, cell: Cell) -> list[int]:
    """C at each entry: as logged (of a training row without it, as before), else sampled batches, or steps, x B_p n."""
    if "rollouts" not in column_map:
        batches = _sum_over_steps(entries, "sampled_batches")
        prompts = column_map.read("sampled_B_p", entries[0].first_row) if batches else cell.B_p
        return [round(x * prompts * cell.n) for x in batches or [entry.clock for entry in entries]]
    C: list[int] = []
    for entry in entries:
        is_missing = "rollouts" not in entry.values and not any(map(is_validation, entry.values))
        C.append((C or [0])[-1] if is_missing else entry.require("rollouts"))
    return C


def _estimated_tokens(entries: Sequence[StepEntry], C: Sequence[int]) -> list[float]:
    """Response tokens at each entry: mean length x rollouts, each length standing for the rollouts since the last one
    logged. Where the evaluation comes between two logged lengths, the earlier one still holds."""
    tokens: list[float] = []
    total_tokens, counted_rollouts, mean_length = 0.0, 0, 0.0
    for entry, rollouts in zip(entries, C, strict=True):
        if "response_length" in entry.values:
            mean_length = entry.values["response_length"]
            total_tokens += mean_length * (rollouts - counted_rollouts)
            counted_rollouts = rollouts
        tokens.append(max([total_tokens + mean_length * (rollouts - counted_rollouts), *tokens[-1:]]))
    return tokens


def _hours_of_entries(
    entries: Sequence[StepEntry], column_map: ColumnMap
) -> tuple[list[float] | list[None], list[str]]:
    """(device hours at each entry, notes), from the seconds so far or those of each step; a step without them took as
    long as the others. None where they, or the devices, are not known, or the clock is no step. InputError where a
    column that the user mapped is of the other kind."""
    seconds, notes = _seconds_of_entries(entries, column_map)
    mapped = column_map.columns.keys() - column_map.detected
    if "devices" not in column_map and "device_hours" in column_map:
        devices = "--map devices=COLUMN, or =8; or say it later: isojax recommend --devices 8"
        return [None] * len(entries), [f"device hours without the devices count as those of one: {devices}"]
    if "devices" not in column_map:
        is_asked = mapped & {"step_seconds", "elapsed_seconds"}
        missing = "the seconds give no device hours without the devices: --map devices=COLUMN, or =8"
        return [None] * len(entries), [missing] if is_asked else []
    if not seconds:
        return [None] * len(entries), notes
    return [total * column_map.read("devices", entries[0].first_row) / 3600 for total in seconds], notes


def _seconds_of_entries(entries: Sequence[StepEntry], column_map: ColumnMap) -> tuple[list[float], list[str]]:
    """(seconds from the start to each entry, notes); [] where they are not known."""
    mapped = column_map.columns.keys() - column_map.detected
    if mapped >= {"step_seconds", "elapsed_seconds"}:
        problem = f"{entries[0].first_row.location}: both step_seconds and elapsed_seconds are mapped"
        raise InputError(f"{problem}; expected one. Leave one out.")
    note, durations = "", [entry.values["step_seconds"] for entry in entries if "step_seconds" in entry.values]
    may_be_elapsed = "step_seconds" in mapped or column_map.columns.get("step_seconds") == "step_seconds"
    if durations and may_be_elapsed:
        first = next(entry for entry in entries if "step_seconds" in entry.values)
        note = check_durations(durations, column_map.describe_cell("step_seconds", first.first_row))
    has_durations = bool(durations) and "step" in column_map and "elapsed_seconds" not in mapped
    elapsed = [entry for entry in entries if "elapsed_seconds" in entry.values]
    if has_durations or not elapsed:
        seconds = _sum_over_steps(entries, "step_seconds") if "step" in column_map else []
        return seconds, [note] if note else []
    cell = column_map.describe_cell("elapsed_seconds", elapsed[0].first_row)
    logged = [entry.values.get("elapsed_seconds") for entry in entries]
    try:
        seconds, note = seconds_so_far([entry.clock for entry in entries], logged, cell)
    except InputError:
        if "elapsed_seconds" in mapped:
            raise
        return [], []  # a known name, of something else
    return seconds, [note] if note else []


def _sum_over_steps(entries: Sequence[StepEntry], name: str) -> list[float]:
    """The sum of a field's values up to each entry, the mean for a step without one; empty where none is known."""
    known = [entry.values[name] for entry in entries if name in entry.values]
    if min(known, default=-1) < 0:
        return []
    # Step 0 trains nothing, so what it took stands for no other step.
    of_updates = [entry.values[name] for entry in entries if name in entry.values and entry.clock > 0] or known
    mean, sums, total, last_step = sum(of_updates) / len(of_updates), list[float](), 0.0, 0
    for entry in entries:
        missing = max(entry.clock - last_step - 1, 0)  # steps that are not in the log
        own = entry.values.get(name, mean if entry.clock > last_step else 0.0)
        total, last_step = total + own + missing * mean, entry.clock
        sums.append(total)
    return sums


def _cumulative_sum(name: str, entry: StepEntry, earlier_value: float) -> Any:
    """A logged sum at an evaluation; InputError where it is missing, or below that of the evaluation before."""
    value = entry.require(name)
    if value < earlier_value:
        cell = entry.column_map.describe_cell(name, entry.first_row)
        raise InputError(f"{cell} is {value:g} after {earlier_value:g}; expected a cumulative sum, which never falls.")
    return value


def _metrics_without_steps(entries: Sequence[StepEntry], column_map: ColumnMap) -> list[str]:
    """A note of each training metric of a --map that no entry has, as its rows have another column for the step."""
    known = {name for entry in entries for name in entry.values} | column_map.detected
    step, notes = column_map.columns[column_map.clock_field], list[str]()
    for column in (x for name, x in column_map.columns.items() if is_training(name) and name not in known):
        rows = [row.values for row in column_map.table.rows if not is_blank(row.values.get(column))]
        if rows and all(is_blank(values.get(step)) for values in rows):
            others = [x for x, value in rows[0].items() if "step" in x and x != "_step" and not is_blank(value)]
            use = f"to use them: --map step={(*others, 'COLUMN')[0]}"
            notes.append(f"{len(rows)} rows with {column} have no {step} and are left out; {use}")
    return notes


def _conflicting_rollouts(points: Sequence[EvalPoint], cell: Cell, column_map: ColumnMap) -> list[str]:
    is_comparable = "rollouts" in column_map and "step" in column_map
    first = [p for p in points if is_comparable and p.rollouts != p.M * cell.B][:1]
    text = "rollouts are taken from the log, though they are not steps x B_p x n"
    return [f"{text} ({p.rollouts} at step {p.M}, not {p.M} x {cell.B_p} x {cell.n} = {p.M * cell.B})" for p in first]
