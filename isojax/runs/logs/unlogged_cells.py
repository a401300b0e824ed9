"""Cells of a run's metrics without a number: empty, or NaN. In a table that people exported, NaN
says that nothing was logged; in a trainer's log, that a value was not finite.

`steps.fields[NAME]` has for each step, known by its index from 0, which row of the log has a cell
of a field: `value_rows` with a value, `blank_rows` an empty one, `nan_rows` one that says "not
logged", such as NaN in an exported table, `not_finite_rows` NaN or infinity as a trainer wrote it.
These are indices of rows, NO_ROW where a step has no such cell."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from isojax.core.columns import Mask, rows_where
from isojax.core.errors import InputError
from isojax.core.tabular import list_some
from isojax.runs.logs.column_map import is_training
from isojax.runs.logs.log_table import FIELD_HELP, STEP_FIELDS
from isojax.runs.logs.run_steps import NO_ROW, RunSteps
from isojax.runs.logs.typed_options import leave_out_option


@dataclass(frozen=True)
class UnloggedCells:
    """What stands for "not logged" in a column of a log, such as NaN."""

    source: str
    column: str
    text: str


def refuse_run_without_evaluation(steps: RunSteps, not_finite: Sequence[str]) -> NoReturn:
    """InputError for a run none of whose steps has a value of the main metric.

    The message says what is in its place: an empty cell, a value that is not finite, NaN, or
    nothing. not_finite: the sentences of `describe_not_finite`, [] where all is finite.
    """
    column_map = steps.column_map
    main_metric = column_map.main_metric
    reject_empty_cells(steps, is_evaluation=np.zeros(len(steps), np.bool_))  # may refuse it

    nan_rows = steps.fields[main_metric].nan_rows
    nan_rows = nan_rows[nan_rows != NO_ROW]
    if not_finite:
        problem = not_finite[0]
    elif len(nan_rows):
        row = steps.rows[nan_rows[0]]
        cell = column_map.describe_cell(main_metric, row)
        value = column_map.cell_value(main_metric, row)
        problem = f"{cell} is {value}, and the run has no other value of it"
    else:
        columns = [column_map.columns[name] for name in column_map.validation_fields]
        problem = f"{steps.location(0)}: the run from there on has no {', '.join(columns)}"

    name = str(column_map.cell_value("run", steps.rows[0]) or column_map.table.run)
    fix = ""
    if name:
        fix = f" Leave the run out: {leave_out_option(name, [column_map.table.source])}."
    raise InputError(
        found=problem,
        expected="an evaluation",
        fix=fix.strip(),
    )


def reject_empty_cells(steps: RunSteps, is_evaluation: Mask) -> None:
    """InputError for the first empty cell of a validation metric that seems to be forgotten.

    It is one in a step with an evaluation (other metrics have values), or in a step where nothing
    else was logged. An empty cell among training values only means that the step was not evaluated.
    is_evaluation: bool[steps], where the main validation metric has a value.

    For example, with avg@4 as the main metric:

        step 10: train_reward 0.3, avg@4 0.5, best@4 empty     InputError: other metrics are there
        step 20: train_reward 0.3, avg@4 empty, best@4 empty   not evaluated
        step 30: all three empty                               InputError: nothing else is there
    """
    column_map = steps.column_map
    fields = {name: steps.fields[name] for name in column_map.validation_fields}
    # STEP_FIELDS, such as step_seconds, are of steps with or without metrics: they too tell that a
    # step was logged for something other than its evaluation.
    training_fields = [
        name for name in column_map.columns if is_training(name) or name in STEP_FIELDS
    ]

    # bool[steps]
    has_empty_cell = np.logical_or.reduce([field.blank_rows != NO_ROW for field in fields.values()])
    is_alone = has_empty_cell & ~is_evaluation & ~steps.any_known(training_fields)
    # Read only where still in question: columns that the import ignores, and elapsed time.
    is_alone &= ~steps.has_other_values(is_alone)
    for step in rows_where(has_empty_cell & (is_evaluation | is_alone)):
        for name, field in fields.items():
            is_empty = field.blank_rows[step] != NO_ROW and field.value_rows[step] == NO_ROW
            if not is_empty:
                continue
            cell = column_map.describe_cell(name, steps.rows.place(field.blank_rows[step]))
            if_not_evaluated = ""
            if column_map.table.is_export:
                if_not_evaluated = "; where it was not evaluated, write NaN"
            raise InputError(
                where=cell,
                found="missing or empty",
                expected=f"{FIELD_HELP.get(name, 'a number')}",
                fix=f"Fill the cell in, or remove the row{if_not_evaluated}.",
            )


def describe_not_finite(steps: RunSteps) -> list[str]:
    """A sentence for each field that is NaN or infinite somewhere.

    As "CELL is nan, and at step 20, 30". Fields whose first such cell is earlier come first.
    """
    column_map = steps.column_map
    steps_of_field: dict[str, list[int]] = {}
    for name, field in steps.fields.items():
        at_steps = np.flatnonzero(field.not_finite_rows != NO_ROW).tolist()
        if at_steps:
            steps_of_field[name] = at_steps

    sentences = []
    for name in sorted(steps_of_field, key=lambda field_name: steps_of_field[field_name][0]):
        first, *others = steps_of_field[name]
        row = steps.rows[steps.fields[name].not_finite_rows[first]]
        cell = column_map.describe_cell(name, row)
        more = ""
        if others:
            clocks = list_some([str(steps.clocks[step]) for step in others])
            more = f", and at {column_map.clock_field} {clocks}"
        sentences.append(f"{cell} is {column_map.cell_value(name, row)}{more}")
    return sentences


def describe_last_cells(steps: RunSteps, is_evaluation: Mask) -> list[str]:
    """A sentence in a list, or [], where a run that may have diverged ends in NaN.

    That is where the main metric is NaN after the last evaluation, and at least as many steps
    follow as in the longest gap between two evaluations, so that one was due. is_evaluation:
    bool[steps], some of them True.
    """
    column_map = steps.column_map
    name = column_map.main_metric
    evaluated = np.flatnonzero(is_evaluation)
    # In steps; from index -1 on, so that those before the first evaluation are a gap too.
    longest_gap = np.diff(evaluated, prepend=-1).max()
    rows_after_last = steps.fields[name].nan_rows[evaluated[-1] + 1 :]
    nan_rows = rows_after_last[rows_after_last != NO_ROW]
    if len(rows_after_last) < longest_gap or len(nan_rows) == 0:
        return []

    row = steps.rows[nan_rows[0]]
    cell = column_map.describe_cell(name, row)
    value = column_map.cell_value(name, row)
    return [
        f"{cell} is {value} from there to the end of the run ({len(nan_rows)} steps), "
        "though an evaluation was due: taken as not logged. "
        "Where the run diverged, write what its policy scored there, such as 0"
    ]


def count_unlogged(steps: RunSteps) -> Counter[UnloggedCells]:
    """For each kind of cell that says that a step was not evaluated, at how many steps it is.

    Of validation metrics alone; the text, such as NaN, is that of a column's first such cell.
    """
    column_map = steps.column_map
    counts = Counter[UnloggedCells]()
    for name in column_map.validation_fields:
        field = steps.fields[name]
        nan_rows = field.nan_rows[(field.nan_rows != NO_ROW) & ~field.is_known]
        if len(nan_rows):
            column = column_map.columns[name]
            text = str(steps.rows.column(column)[nan_rows[0]])
            counts[UnloggedCells(column_map.table.source, column, text)] = len(nan_rows)
    return counts
