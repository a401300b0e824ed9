"""CSV with a header line, of one run or of many, in one of three forms:

plain   one row per evaluation or training step, a column for each metric
long    one row per value, as columns run, metric, step and value (or the names of METRIC_NAMES and VALUE_NAMES)
wide    W&B's export of a chart: a column of steps, then RUN - METRIC for each run, and its __MIN and __MAX"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from operator import eq
from pathlib import Path
from typing import NoReturn

import numpy as np

from isojax.core.columns import rows_where
from isojax.core.csv_header import reject_further_headers
from isojax.core.csv_text import parse_csv
from isojax.core.errors import InputError
from isojax.core.table_files import read_text
from isojax.core.tabular import DataTable, RowTable, list_some
from isojax.runs.importers import importer, verl, wandb
from isojax.runs.logs.log_table import LEDGER_FIELDS, LogTable, check_log_file

FIELDS = LEDGER_FIELDS | {
    "step": ("step", *wandb.FIELDS["step"], "global_step/max_steps", "Step"),
    "reward": (*LEDGER_FIELDS["reward"], *wandb.FIELDS["reward"]),
    **{name: wandb.FIELDS[name] for name in verl.OF_FILTERED_STEPS},
    "elapsed_seconds": (
        "elapsed_seconds",
        *wandb.FIELDS["elapsed_seconds"],
        "wall_time",
        "Wall time",
    ),
    "run": (*LEDGER_FIELDS["run"], "run_name", "run_id", "Run", "Name"),
}
SUFFIXES = (".csv", ".tsv")

# The columns of the long form, as MLflow, TensorBoard, pandas.melt, Comet and Aim name them, in
# small letters.
METRIC_NAMES = ("metric", "key", "tag", "variable", "metricname", "metric.name")
VALUE_NAMES = ("value", "metricvalue")
BOUND_SUFFIXES = ("__MIN", "__MAX")  # of W&B's export
MEANS_NOTE = "its values are means over runs, or over buckets of steps; else export it ungrouped, with full fidelity"


@importer(fields=FIELDS, suffixes=SUFFIXES)
def read(path: Path, whole_lines: bool = False) -> list[LogTable]:
    """A table, in the wide form one per run; `whole_lines`: no last line without its end;
    InputError as `parse_csv`."""
    check_log_file(path)
    text = read_text(path)
    table = parse_csv(path, text[: text.rfind("\n") + 1] if whole_lines else text)
    reject_further_headers(table.source, text)
    if len(table.columns) == 1:
        _refuse_lone_column(table)
    is_chart = len(table.columns) > 1 and all(" - " in name for name in table.columns[1:])
    if is_chart or any(name.endswith(BOUND_SUFFIXES) for name in table.columns):
        return list(_read_wide(table))
    columns = {name.lower(): name for name in reversed(table.columns)}
    metric, value = (
        next((columns[x] for x in names if x in columns), None)
        for names in (METRIC_NAMES, VALUE_NAMES)
    )
    if metric is not None and value is not None:
        return [_read_long(table, metric, value)]
    return [LogTable(table.source, table.rows, one_run=False, is_export=True)]


def _refuse_lone_column(table: DataTable) -> NoReturn:
    """InputError: no log has one column, but a file has one whose columns another mark divides, as
    spaces or colons."""
    (name,) = table.columns
    problem = (
        f"{table.source}, {table.header_position}: one column, {name[:80]!r}; expected several"
    )
    fix = "Divide them by commas, tabs, semicolons or |"
    if len(name.split()) > 1:
        fix += r", as by pandas.read_csv(FILE, sep=r'\s+').to_csv(OTHER, index=False)"
    raise InputError(f"{problem}. {fix}.")


def _read_long(table: DataTable, metric: str, value: str) -> LogTable:
    """Each row's value in a column of its metric's name, the other columns as they are."""
    rows = table.rows
    names = table.rows.column(metric)
    values = table.rows.column(value)
    for row in rows_where(names.is_blank):
        raise InputError(
            f"{rows.place(row).location}: {metric} is empty; expected the name of a metric. Fill it in."
        )
    columns = {name: rows.column(name) for name in table.columns if name not in (metric, value)}
    metrics = list(dict.fromkeys(names))
    columns |= {name: values.where(names.ask(partial(eq, name))) for name in metrics}
    only_metric = metrics[0] if len(metrics) == 1 else ""
    return LogTable(
        table.source,
        rows.with_columns(columns),
        one_run=False,
        is_export=True,
        only_metric=only_metric,
    )


def _read_wide(table: DataTable) -> Iterator[LogTable]:
    """A table of each run; a run has no row for a step at which its cells are empty, or say NaN."""
    steps, *others = table.columns
    if not steps or steps.endswith(BOUND_SUFFIXES) or "time" in steps.lower():
        problem = f"{table.source}, {table.header_position}: the first column is {steps!r}, expected the steps"
        raise InputError(
            f"{problem}, as in W&B's export. Export the chart over Step, or the trainer's own step."
        )
    metrics_of_run: dict[str, dict[str, str]] = defaultdict(dict)  # run -> column -> metric
    for column in others:
        # W&B adds its step where the chart is over another
        if not column.endswith((*BOUND_SUFFIXES, " - _step")):
            run, separator, metric = column.rpartition(" - ")
            metrics_of_run[run if separator else metric][column] = metric if separator else "reward"
    # a chart may be over rollouts
    clock = "step" if re.search("step|update|iter", steps.lower()) else steps
    all_metrics = {metric for metrics in metrics_of_run.values() for metric in metrics.values()}
    only_metric = all_metrics.pop() if len(all_metrics) == 1 else ""
    notes = (MEANS_NOTE,) * _has_means(table.rows, others)
    of_runs = [
        table.rows.column(column) for metrics in metrics_of_run.values() for column in metrics
    ]
    if nan_count := sum(int((column.is_missing & ~column.is_blank).sum()) for column in of_runs):
        notes += (f"{nan_count} cells that say NaN are taken as not logged",)
    rows_of_run: dict[str, RowTable] = {}
    for run, metrics in metrics_of_run.items():
        columns = {name: table.rows.column(column) for column, name in metrics.items()}
        columns = {name: column.where(~column.is_missing) for name, column in columns.items()}
        is_logged = np.logical_or.reduce([column.is_present for column in columns.values()])
        rows_of_run[run] = table.rows.with_columns(
            {clock: table.rows.column(steps), **columns}
        ).take(is_logged)
    if without := [run for run, rows in rows_of_run.items() if not rows]:
        notes += (
            f"without {list_some(without)}, which {'has' if len(without) == 1 else 'have'} no value",
        )
    for run, rows in rows_of_run.items():
        if rows:
            yield LogTable(
                table.source, rows, is_export=True, notes=notes, run=run, only_metric=only_metric
            )


def _has_means(rows: RowTable, names: Sequence[str]) -> bool:
    """Whether a bound of W&B's export differs from its curve somewhere, which then is a mean."""
    bounds = [name for name in names if name.endswith(BOUND_SUFFIXES)]
    curves = [name.removesuffix("__MIN").removesuffix("__MAX") for name in bounds]
    pairs = [
        (rows.column(a), rows.column(b)) for a, b in zip(bounds, curves, strict=True) if b in names
    ]
    return any(x != y for bound, curve in pairs for x, y in zip(bound, curve, strict=True))
