"""Turns the rows of one run into its evaluations: training metrics are averaged since the last
evaluation, C follows from the steps where a log has no rollouts, and tokens from mean lengths where
it has no tokens.

A step of a run has one row of the log or more, and an index from 0. `steps.fields[NAME]` has for
each step the value of a field, or None, and which row has it (`value_rows`), or has a cell without
a number: `blank_rows` an empty one, `nan_rows` one that says "not logged", such as NaN in a table
that people exported, `not_finite_rows` NaN or infinity as a trainer measured it. These are indices
of rows, NO_ROW where a step has no such cell. STEP_FIELDS are what a step may have besides metrics,
such as step_seconds."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from isojax.core.columns import Mask, is_missing
from isojax.core.errors import InputError
from isojax.core.nouns import IMPORTED, Cell, EvalPoint, RunRecord
from isojax.core.tabular import RowTable
from isojax.runs.logs.column_detection import rewards_within_one
from isojax.runs.logs.column_map import ColumnMap, is_training
from isojax.runs.logs.log_table import STEP_FIELDS
from isojax.runs.logs.reward_rounding import clip_rounding
from isojax.runs.logs.run_steps import NO_ROW, RunSteps, join_steps
from isojax.runs.logs.step_totals import (
    cumulative_rollouts,
    cumulative_sums,
    device_hours_of_steps,
    estimated_tokens,
)
from isojax.runs.logs.typed_options import map_option
from isojax.runs.logs.unlogged_cells import (
    UnloggedCells,
    count_unlogged,
    describe_last_cells,
    describe_not_finite,
    refuse_run_without_evaluation,
    reject_empty_cells,
)


@dataclass(frozen=True)
class ReadRun:
    """A run's record, and what to tell the user about it."""

    record: RunRecord
    notes: list[str]  # what was left out, or taken for granted
    not_finite: list[str]  # the values that are not finite, and what may have been meant as one
    unlogged: Counter[UnloggedCells]  # at how many steps


def read_run_record(rows: RowTable, column_map: ColumnMap, cell: Cell, source: str) -> ReadRun:
    """The rows of one run as a record of its evaluations, with notes on what was left out.

    cell: its B_p, n and seed; source: the log, as messages name it. InputError, with file and line,
    where the run cannot be used.
    """
    # C, tokens, hours, counts and is_evaluation have an entry for each step; `evaluated` are the
    # indices of the steps with the main metric; metrics, train, samples, tokens_so_far and
    # device_hours have an entry for each of these.
    steps = join_steps(rows, column_map)
    C = cumulative_rollouts(steps, cell)
    tokens = estimated_tokens(steps, C)
    hours = device_hours_of_steps(steps)

    is_evaluation = steps.any_known([column_map.main_metric])
    not_finite = describe_not_finite(steps)
    if not is_evaluation.any():
        refuse_run_without_evaluation(steps, not_finite)
    reject_empty_cells(steps, is_evaluation)

    evaluated = np.flatnonzero(is_evaluation).tolist()
    metrics = _evaluation_metrics(steps, evaluated)
    train = _mean_train_metrics(steps, evaluated)
    samples = _samples_per_problem(steps, evaluated)
    counts = steps.values("counts")

    _require_rising_rollouts(steps, evaluated, C, cell)
    if "tokens" in column_map:
        tokens_so_far = cumulative_sums("tokens", steps, evaluated)
    else:
        tokens_so_far = [round(tokens[step]) for step in evaluated]

    device_hours: list[float] = []
    if "device_hours" in column_map:
        device_hours = cumulative_sums("device_hours", steps, evaluated)
    elif hours.hours is not None:
        device_hours = [hours.hours[step] for step in evaluated]

    has_steps = "step" in column_map
    points = [
        EvalPoint(
            target=C[step],  # other trainers have no grid of C at which to evaluate
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
    notes = [
        *_conflicting_rollouts(points, cell, column_map),
        *_metrics_without_steps(steps),
        *hours.notes,
        *_describe_rows_left_out(steps, evaluated),
    ]
    devices = column_map.read("devices", rows[0]) if device_hours and "devices" in column_map else 1
    record = RunRecord(
        cell,
        tuple(points),
        source,
        tuple(device_hours),
        cell_hash=IMPORTED,  # in place of a hash of settings, which a log need not have
        devices=devices,
    )
    not_finite += describe_last_cells(steps, is_evaluation)  # where the run may have diverged
    return ReadRun(record, notes, not_finite, count_unlogged(steps))


def _evaluation_metrics(steps: RunSteps, evaluated: Sequence[int]) -> list[dict[str, float]]:
    """The validation metrics of each evaluation, such as {"avg@4": 0.25}, the main one first.

    They have their names in the ledger, and are scaled to [0, 1]; avg@k may come from counts.
    evaluated: indices of steps. InputError for a value outside [0, 1].
    """
    column_map = steps.column_map
    scale = float(column_map.constants.get("scale", 1))
    metrics: list[dict[str, float]] = [{} for _ in evaluated]
    for name in column_map.validation_fields:
        if name == "counts":
            continue
        ledger_name = column_map.ledger_name(name)
        field = steps.fields[name]
        for metrics_of_step, step in zip(metrics, evaluated, strict=True):
            if field.values[step] is None:
                continue
            value = clip_rounding(field.values[step] * scale)
            if not 0 <= value <= 1:
                cell = column_map.describe_cell(name, steps.rows.place(field.value_rows[step]))
                # "Name one that is: --map reward=...", or ""
                advice = rewards_within_one(column_map.table)
                raise InputError(
                    where=cell,
                    found=f"given {value:.12g}",
                    expected="a number in [0, 1]",
                    fix=(
                        f"{advice}Percent: --map scale=0.01; otherwise correct it, or name "
                        "another column."
                    ),
                )
            metrics_of_step[ledger_name] = value

    if "counts" in steps.fields:
        samples = _samples_per_problem(steps, evaluated)
        for metrics_of_step, step, k in zip(metrics, evaluated, samples, strict=True):
            counts = steps.fields["counts"].values[step]
            if counts:
                metrics_of_step.setdefault(f"avg@{k}", sum(counts) / (k * len(counts)))
    return metrics


def _samples_per_problem(steps: RunSteps, evaluated: Sequence[int]) -> list[int]:
    """The rollouts per validation problem at each evaluation; 0 where nothing says them.

    evaluated: indices of steps.
    """
    column_map = steps.column_map
    if "samples" not in column_map:
        match = re.fullmatch(r"avg@(\d+)", column_map.ledger_name(column_map.main_metric))
        return [int(match[1]) if match else 0] * len(evaluated)

    # In the row that has the counts, or an empty cell for them (`blank_rows`), where a step has
    # one, else in the step's first row. The arrays are int[evaluated], indices of rows.
    rows = np.searchsorted(steps.step_of_row, evaluated)
    if "counts" in steps.fields:
        counts = steps.fields["counts"]
        rows_of_counts = np.where(counts.is_known, counts.value_rows, counts.blank_rows)[evaluated]
        rows = np.where(rows_of_counts == NO_ROW, rows, rows_of_counts)
    return column_map.read_all("samples", steps.rows.take(rows))


def _mean_train_metrics(steps: RunSteps, evaluated: Sequence[int]) -> list[dict[str, float]]:
    """The training metrics of each evaluation, by their names in the ledger.

    They are means over the steps since the evaluation before; those that are logged first come
    first. evaluated: indices of steps. A metric without a value since then is left out.
    """
    fields = {
        steps.column_map.ledger_name(name): field
        for name, field in steps.fields.items()
        if is_training(name)
    }
    if not fields:
        return [{} for _ in evaluated]

    means_of_points = []
    for last, step in pairwise([-1, *evaluated]):
        since_last = slice(last + 1, step + 1)
        means: dict[str, float] = {}
        first_rows: dict[str, int] = {}
        for name, field in fields.items():
            known = [value for value in field.values[since_last] if value is not None]
            if known:
                means[name] = sum(known) / len(known)
                rows = field.value_rows[since_last]
                first_rows[name] = int(rows[rows != NO_ROW][0])
        names_in_order = sorted(means, key=first_rows.__getitem__)
        means_of_points.append({name: means[name] for name in names_in_order})
    return means_of_points


def _require_rising_rollouts(
    steps: RunSteps, evaluated: Sequence[int], C: Sequence[int], cell: Cell
) -> None:
    """InputError where C does not rise from one evaluation to the next.

    Also where an evaluation is within the first update. evaluated: indices of steps; C: rollouts so
    far, at each step.
    """
    before = -1
    for step in evaluated:
        rollouts = C[step]
        if rollouts <= before:
            problem = "is there twice" if rollouts == before else f"comes after {before}"
            raise InputError(
                where=steps.location(step),
                found=f"compute of {rollouts} rollouts {problem}",
                expected="it to rise",
                fix="Remove one point, or separate the runs with --map run=COLUMN.",
            )

        if 0 < rollouts < cell.B:
            raise InputError(
                where=steps.location(step),
                found=f"{rollouts} rollouts are less than one update's B_p n = {cell.B}",
                expected="C in rollouts, in full",
                fix="Correct rollouts, step, n or B_p.",
            )
        before = rollouts


def _describe_rows_left_out(steps: RunSteps, evaluated: Sequence[int]) -> list[str]:
    """Notes on rows of the log that are of no use.

    Those are training rows after the last evaluation, and rows without any metric. The rows of one
    step are counted as one. evaluated: indices of steps.
    """
    column_map = steps.column_map
    notes = []
    is_training_step = steps.any_known(filter(is_training, column_map.columns))
    training_steps = int(is_training_step[evaluated[-1] + 1 :].sum())
    if training_steps:
        notes.append(f"{training_steps} training rows after the last evaluation are left out")

    has_value: Mask = steps.any_known([*column_map.metric_fields, *STEP_FIELDS])
    # Other notes (`count_unlogged`, `describe_not_finite`) count the steps at which the main metric
    # has a cell without a number.
    main_field = steps.fields[column_map.main_metric]
    is_nan = main_field.nan_rows != NO_ROW
    is_not_finite = main_field.not_finite_rows != NO_ROW
    other_steps = int((~has_value & ~is_nan & ~is_not_finite).sum())
    if other_steps:
        metric = column_map.columns[column_map.main_metric]
        notes.append(f"{other_steps} rows without {metric}, which hold other values, are left out")
    return notes


def _metrics_without_steps(steps: RunSteps) -> list[str]:
    """A note for each training metric of the user's --map with values only in rows without a step.

    It is left out; the note suggests another column for the step.
    """
    column_map = steps.column_map
    # The whole log: a row without a step is in the `steps` of no run.
    table = column_map.table
    # The column of "step", or of "rollouts" in a log without steps.
    step_column = column_map.columns[column_map.clock_field]
    notes = []
    for name, column in column_map.columns.items():
        is_known = name in steps.fields and steps.fields[name].is_known.any()
        if not is_training(name) or name not in column_map.mapped or is_known:
            continue
        rows = table.cells.take(~table.is_unlogged(table.cells.column(column)))
        if len(rows) == 0 or not table.is_unlogged(rows.column(step_column)).all():
            continue

        first_row = rows[0].values
        # "_step" is W&B's counter of calls of `log`, which counts no updates.
        other_steps = [
            other
            for other in rows.names
            if "step" in other and other != "_step" and not is_missing(first_row.get(other))
        ]
        option = map_option("step", other_steps[0] if other_steps else "COLUMN")
        notes.append(
            f"{len(rows)} rows with {column} have no {step_column} and are left out; "
            f"to use them: {option}"
        )
    return notes


def _conflicting_rollouts(
    points: Sequence[EvalPoint], cell: Cell, column_map: ColumnMap
) -> list[str]:
    """A note, or [], where a log's rollouts are not its steps x B_p x n.

    It names the first such evaluation.
    """
    if "rollouts" not in column_map or "step" not in column_map:
        return []
    for point in points:
        by_steps = point.M * cell.B
        if point.rollouts != by_steps:
            return [
                "rollouts are taken from the log, though they are not steps x B_p x n "
                f"({point.rollouts} at step {point.M}, "
                f"not {point.M} x {cell.B_p} x {cell.n} = {by_steps})"
            ]
    return []
