"""One run's rows joined by step: what each step has of each field, and in which row of the log that
stands.

CUMULATIVE_FIELDS are sums since the start (rollouts, tokens, device_hours), STEP_FIELDS what a step
has besides metrics, such as step_seconds. In a trainer's log NaN is a value that was not finite; in
a table that people exported it says, as an empty cell does, that nothing was logged."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from isojax.core.columns import Mask, parse_number, rows_where
from isojax.core.errors import InputError
from isojax.core.tabular import RowTable
from isojax.runs.logs.column_map import ColumnMap, is_training
from isojax.runs.logs.log_table import CUMULATIVE_FIELDS, STEP_FIELDS

RowNumbers = NDArray[np.integer]
NO_ROW = -1
ELAPSED = "elapsed_seconds"  # a field: a column of seconds since the start


@dataclass(frozen=True)
class StepValues:
    """A field of a run: at each step its value, or None, and the row of each kind of cell, or
    NO_ROW."""

    values: list[Any]
    value_rows: RowNumbers
    blank_rows: RowNumbers  # the first empty cell
    nan_rows: RowNumbers  # the first cell that says NaN, NA or the like, for "not logged"
    not_finite_rows: RowNumbers  # the last cell that a trainer wrote as NaN or infinite

    @property
    def is_known(self) -> Mask:
        return self.value_rows != NO_ROW


@dataclass(frozen=True)
class RunSteps:
    """The steps of a run, one or more, in order."""

    column_map: ColumnMap
    rows: RowTable
    step_of_row: RowNumbers  # in 0..steps-1
    clocks: list[int]  # the steps as logged, or the rollouts where a log has no steps; rising
    # metrics, sums and what each step has, of those that are columns
    fields: Mapping[str, StepValues]

    def __len__(self) -> int:
        return len(self.clocks)

    def first_row(self, step: int) -> int:
        return int(np.searchsorted(self.step_of_row, step))

    def location(self, step: int) -> str:
        """Of its first row, as "runs.csv, line 7"."""
        return self.rows.place(self.first_row(step)).location

    def values(self, name: str) -> list[Any]:
        """A field at each step; None where a step, or the whole log, has no value of it."""
        return self.fields[name].values if name in self.fields else [None] * len(self)

    def any_known(self, names: Iterable[str]) -> Mask:
        """bool[steps]: where a step has a value of one of these fields."""
        is_known = np.zeros(len(self), np.bool_)
        for name in names:
            if name in self.fields:
                is_known |= self.fields[name].is_known
        return is_known

    def require(self, name: str, step: int) -> Any:
        """The value of a field at a step (an index); InputError, with its place, without one."""
        row = self.first_row(step)
        if name in self.fields:
            field = self.fields[name]
            if field.value_rows[step] != NO_ROW:
                return field.values[step]
            unlogged_rows = [field.blank_rows[step], field.nan_rows[step]]
            row = min((other for other in unlogged_rows if other != NO_ROW), default=row)
        return self.column_map.read(name, self.rows[row])

    def has_other_values(self, is_asked: Mask) -> Mask:
        """bool[steps]: which of the asked steps have a value in a column that the import ignores.

        is_asked: bool[steps]; the result is False at the other steps. An elapsed time is such a
        value, though it is read.
        """
        table = self.column_map.table
        # Fields that are read do not count, but for the elapsed time: all rows may have it, so it
        # does not tell what a row is.
        field_columns = {
            column for name, column in self.column_map.columns.items() if name != ELAPSED
        }
        is_row_asked = is_asked[self.step_of_row]
        rows = self.rows.take(is_row_asked)
        step_of_row = self.step_of_row[is_row_asked]

        has_value = np.zeros(len(self), np.bool_)
        for column in rows.names:
            if column in field_columns:
                continue
            is_logged = ~table.is_unlogged(rows.column(column))
            has_value[step_of_row[is_logged]] = True
            if has_value[is_asked].all():
                break  # as by the first such column of most logs
        return has_value


def join_steps(rows: RowTable, column_map: ColumnMap) -> RunSteps:
    """A run's rows joined by step: for each field that is a column, its value at each step.

    A log may have several rows of a step, as one of training and one of an evaluation. rows: one or
    more, of one run, in the order of the log. InputError where the steps (or rollouts, in a log
    without steps) fall, or a step has two values of a field.
    """
    clocks = np.array(column_map.read_all(column_map.clock_field, rows))
    changes = np.diff(clocks)
    if (changes < 0).any():
        _refuse_fall(rows, clocks, row=int(np.argmax(changes < 0)) + 1, column_map=column_map)

    # Rows with the same clock are one step; steps are numbered 0, 1, ...
    begins_step = np.concatenate([[True], changes > 0])
    step_of_row = np.cumsum(begins_step) - 1
    steps = clocks[begins_step].tolist()
    names = (*column_map.metric_fields, *CUMULATIVE_FIELDS, *STEP_FIELDS, ELAPSED)
    fields = {
        name: _join_field(name, rows, step_of_row, steps, column_map)
        for name in names
        if name in column_map.columns
    }
    return RunSteps(column_map, rows, step_of_row, steps, fields)


def _refuse_fall(rows: RowTable, clocks: NDArray[Any], row: int, column_map: ColumnMap) -> NoReturn:
    """InputError for a row whose step (or rollouts) is below that of the row before.

    clocks: of all rows; row: the index of the one that falls. The message gives both places.
    """
    first_row = row - 1  # of the step before
    while first_row and clocks[first_row - 1] == clocks[row - 1]:
        first_row -= 1
    before = f"{clocks[row - 1]} ({rows.place(first_row).position})"
    if column_map.table.one_run:
        split = "split it where a run starts"
    else:
        split = "split runs by --map run=COLUMN"
    raise InputError(
        where=rows.place(row).location,
        found=f"{column_map.clock_field} falls from {before} to {clocks[row]} within a run",
        fix=f"Sort the file, {split}, or add --resumed where the run was resumed.",
    )


class _PassedOver(NamedTuple):
    """bool[rows]: the cells of a field without a number that are neither read nor refused."""

    is_ignored: Mask  # all of them
    is_noted: Mask  # those that a note to the user names


def _cells_to_pass_over(
    name: str, rows: RowTable, is_nan: Mask, is_not_finite: Mask, column_map: ColumnMap
) -> _PassedOver:
    """Which cells of a field are passed over, as nobody can be asked to correct them.

    Those that are not finite: of any field but a cumulative one in a trainer's own log, and of
    training metrics and the elapsed time in a column that no --map names.
    is_nan, is_not_finite: bool[rows], as of `_join_field`. InputError where nothing is passed over,
    and a column with cells that say NaN has no number at all: it was mapped by mistake (another
    field than the main metric).
    """
    nowhere = np.zeros(len(rows), np.bool_)
    is_detected = name in column_map.detected
    if is_training(name) and is_detected:
        return _PassedOver(is_not_finite, nowhere)
    if name == ELAPSED and is_detected:
        # a column that was taken for a time by its name may hold dates
        numbers = rows.column(column_map.columns[name]).numbers
        return _PassedOver(~np.isfinite(numbers), nowhere)
    if column_map.table.one_run and name not in CUMULATIVE_FIELDS:  # a trainer's log
        return _PassedOver(is_not_finite, is_not_finite)

    whole_column = column_map.table.cells.column(column_map.columns[name])
    has_no_number = not np.isfinite(whole_column.numbers).any()
    # A main metric without numbers is refused later, with a message of its own (unlogged_cells.py).
    if name != column_map.main_metric and is_nan.any() and has_no_number:
        column_map.read(name, rows[int(np.argmax(is_nan))])  # always raises here
    return _PassedOver(nowhere, nowhere)


def _join_field(
    name: str, rows: RowTable, step_of_row: RowNumbers, steps: Sequence[int], column_map: ColumnMap
) -> StepValues:
    """One field at each step, with the rows of its empty, NaN and not finite cells.

    name: of the field; step_of_row: int[rows], the step of each row, from 0 and never falling;
    steps: each step's number in the log. InputError where a step has two values, or a cell is not
    valid, unless `_cells_to_pass_over` has it."""
    cells = rows.column(column_map.columns[name])
    # bool[rows]; a row that lacks the column is blank in it
    is_blank = cells.is_blank
    is_unlogged = column_map.table.is_unlogged(cells)
    is_nan = is_unlogged & ~is_blank  # in an exported table alone
    is_not_finite = cells.ask(_is_not_finite) & ~is_unlogged
    passed_over = _cells_to_pass_over(name, rows, is_nan, is_not_finite, column_map)

    # The rows that have the value, and no second value within a step.
    value_rows = np.flatnonzero(~is_unlogged & ~passed_over.is_ignored)
    if name in STEP_FIELDS:  # of several at a step, the first counts
        value_rows = value_rows[np.diff(step_of_row[value_rows], prepend=-1) > 0]
    values = column_map.read_all(name, rows.take(value_rows))
    if name != ELAPSED:  # several times within a step are no mistake: the last counts
        _reject_second_values(
            name, values, rows.take(value_rows), step_of_row[value_rows], steps, column_map
        )

    value_at_step: list[Any] = [None] * len(steps)
    for step, value in zip(step_of_row[value_rows].tolist(), values, strict=True):
        value_at_step[step] = value

    def last_rows(some_rows: RowNumbers) -> RowNumbers:
        """int[steps]: for each step the last of these rows that is in it, or NO_ROW.

        Last in the order given. Captures steps and step_of_row.
        """
        row_at_step = np.full(len(steps), NO_ROW)
        row_at_step[step_of_row[some_rows]] = some_rows
        return row_at_step

    return StepValues(
        value_at_step,
        value_rows=last_rows(value_rows),
        # The first one is the last in reverse.
        blank_rows=last_rows(np.flatnonzero(is_blank & cells.is_present)[::-1]),
        nan_rows=last_rows(np.flatnonzero(is_nan)[::-1]),
        not_finite_rows=last_rows(np.flatnonzero(passed_over.is_noted)),
    )


def _is_not_finite(value: Any) -> bool:
    """Whether a cell is NaN, or infinite, or too large for a float."""
    number = parse_number(value)
    return number is not None and not math.isfinite(number)


def _reject_second_values(
    name: str,
    values: Sequence[Any],
    rows: RowTable,
    step_of_value: RowNumbers,
    steps: Sequence[int],
    column_map: ColumnMap,
) -> None:
    """InputError where a step has two values of the field `name`.

    A cumulative sum that is the same in both rows is allowed. values, rows and step_of_value have
    an entry for each value: the value, its row, and its step as an index into `steps`, which holds
    the steps' numbers in the log; step_of_value never falls.
    """
    for second in rows_where(np.append(False, np.diff(step_of_value) == 0)):
        if name in CUMULATIVE_FIELDS and values[second] == values[second - 1]:
            continue
        cell = column_map.describe_cell(name, rows.place(second))
        step = steps[step_of_value[second]]
        first_place = rows.place(second - 1).position
        raise InputError(
            where=cell,
            found=(
                f"the point at {column_map.clock_field} {step} is there twice "
                f"({values[second - 1]!r} at {first_place} and {values[second]!r} here)"
            ),
            expected="once",
            fix=(
                "Remove one, add --resumed where the run was resumed, or separate runs with "
                "--map run=COLUMN or seed=COLUMN."
            ),
        )
