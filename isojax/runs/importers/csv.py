"""CSV with a header line, of one run or of many, in one of three forms:

plain   one row per evaluation or training step, a column for each metric
long    one row per value: columns run, metric, step and value (or METRIC_NAMES and VALUE_NAMES)
wide    W&B's export of a chart: a column of steps, then RUN - METRIC for each run, and its __MIN
        and __MAX

A file of TensorBoard's scalars page is one tag of a run (runs/logs/tag_files.py).

A table is read by columns. A row may lack a column; a cell `is_present` if its row has it,
`is_blank` if it is absent or empty, and `is_missing` if it is blank or says NaN, NA or the like.
Of a LogTable, `one_run=False` says that its rows may be of several runs, and `is_export` that
people made it, so that NaN means "not logged"."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import eq
from pathlib import Path
from typing import NoReturn

import numpy as np

from isojax.core.columns import Column, parse_number, rows_where
from isojax.core.csv_header import BAR, DELIMITERS, reject_further_headers
from isojax.core.csv_text import parse_csv
from isojax.core.errors import InputError
from isojax.core.table_files import read_text
from isojax.core.tabular import DataTable, RowTable, list_some
from isojax.runs.importers import importer
from isojax.runs.logs.known_columns import TABLE_FIELDS
from isojax.runs.logs.log_files import LogStart
from isojax.runs.logs.log_table import LogTable, check_log_file
from isojax.runs.logs.tag_files import group_tag_files, join_tags

SUFFIXES = (".csv", ".tsv")

# The columns of the long form, as MLflow, TensorBoard, pandas.melt, Comet and Aim name them, in
# small letters.
METRIC_NAMES = ("metric", "key", "tag", "variable", "metricname", "metric.name")
VALUE_NAMES = ("value", "metricvalue")
BOUND_SUFFIXES = ("__MIN", "__MAX")  # of W&B's export
MEANS_NOTE = (
    "its values are means over runs, or over buckets of steps; "
    "else export it ungrouped, with full fidelity"
)


def detect(log: LogStart) -> bool:
    """Whether a file is CSV: by the end of its name, or by its first two lines.

    These are divided equally often by one mark, and the second contains a number.
    """
    if not log.content or log.is_json:
        return False
    if log.ends_in(SUFFIXES):
        return True

    header, *rows = log.content[:2]
    first_row = rows[0] if rows else header
    for mark in DELIMITERS + BAR:  # comma, tab, semicolon or |
        if header.count(mark) == first_row.count(mark) > 0:
            cells = first_row.split(mark)
            if any(parse_number(cell.strip(' "')) is not None for cell in cells):
                return True
    return False


def read_growing(path: Path) -> list[LogTable]:
    """As `read`, for a log that is still being written.

    A last line without a line end is left out, since nothing else shows whether it is complete.
    """
    check_log_file(path)
    text = read_text(path)
    return _read_tables(path, text[: text.rfind("\n") + 1], text)


@importer(
    fields=TABLE_FIELDS,
    detect=detect,
    is_general=True,
    suffixes=SUFFIXES,
    group_files=group_tag_files,
    join_tables=join_tags,
    read_growing=read_growing,
)
def read(path: Path) -> list[LogTable]:
    """The file as one table, in the wide form as one for each run; InputError as `parse_csv`."""
    check_log_file(path)
    text = read_text(path)
    return _read_tables(path, text, text)


def _read_tables(path: Path, text: str, whole_text: str) -> list[LogTable]:
    """The tables in the text of a CSV file: in the wide form one for each run, else a single one.

    text: the lines to be read, which may lack a last line that is still being written; whole_text:
    all of the file, in which a second header is refused, as of two files that were joined into one.
    """
    table = parse_csv(path, text)
    reject_further_headers(table.source, whole_text)
    if len(table.columns) == 1:
        _refuse_lone_column(table)

    # The form: wide by its names RUN - METRIC, long by its columns, plain otherwise.
    is_chart = len(table.columns) > 1 and all(" - " in name for name in table.columns[1:])
    if is_chart or any(name.endswith(BOUND_SUFFIXES) for name in table.columns):
        return list(_read_wide(table))

    # Of names that differ in capital letters alone, the first column counts.
    columns = {name.lower(): name for name in reversed(table.columns)}
    metric = _first_known(columns, METRIC_NAMES)
    value = _first_known(columns, VALUE_NAMES)
    if metric is not None and value is not None:
        return [_read_long(table, metric, value)]

    return [LogTable(table.source, table.rows, one_run=False, is_export=True)]


def _first_known(columns: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((columns[name] for name in names if name in columns), None)


def _refuse_lone_column(table: DataTable) -> NoReturn:
    """InputError for a file with one column.

    No log has one, but a file seems to whose columns another mark divides, as spaces or colons.
    """
    (name,) = table.columns
    example = ""
    if len(name.split()) > 1:
        example = r", as by pandas.read_csv(FILE, sep=r'\s+').to_csv(OTHER, index=False)"
    raise InputError(
        where=f"{table.source}, {table.header_position}",
        found=f"one column, {name[:80]!r}",
        expected="several",
        fix=f"Divide them by commas, tabs, semicolons or |{example}.",
    )


def _read_long(table: DataTable, metric: str, value: str) -> LogTable:
    """A table in the long form, one row per value, as one with a column for each metric.

    The value of a row moves to the column of its metric's name, so that there are as many rows as
    before. metric, value: the names of these two columns.
    """
    rows = table.rows
    names = rows.column(metric)
    values = rows.column(value)
    for row in rows_where(names.is_blank):  # the first such row is refused
        location = rows.place(row).location
        raise InputError(
            where=location,
            found=f"{metric} is empty",
            expected="the name of a metric",
            fix="Fill it in.",
        )

    columns = {name: rows.column(name) for name in table.columns if name not in (metric, value)}
    metrics = list(dict.fromkeys(names))
    for name in metrics:
        is_of_metric = names.ask(partial(eq, name))  # bool[rows]
        columns[name] = values.where(is_of_metric)  # the other rows lack this column
    return LogTable(
        table.source,
        rows.with_columns(columns),
        one_run=False,
        is_export=True,
        only_metric=metrics[0] if len(metrics) == 1 else "",  # then it may be the reward
    )


def _read_wide(table: DataTable) -> Iterator[LogTable]:
    """A table for each run out of one in W&B's export of a chart, which has a column for each run.

    A run has no row for steps at which its cells are empty or NaN; one without any row is left out,
    and a note says so. InputError where the first column is not of steps.
    """
    steps, *others = table.columns
    if not steps or steps.endswith(BOUND_SUFFIXES) or "time" in steps.lower():
        raise InputError(
            where=f"{table.source}, {table.header_position}",
            found=f"the first column is {steps!r}",
            expected="the steps, as in W&B's export",
            fix="Export the chart over Step, or the trainer's own step.",
        )

    metrics_of_run = _metrics_of_runs(others)
    all_metrics = {metric for metrics in metrics_of_run.values() for metric in metrics.values()}
    only_metric = all_metrics.pop() if len(all_metrics) == 1 else ""
    # The first column counts steps by its name; otherwise it keeps its name, such as rollouts.
    clock = "step" if re.search("step|update|iter", steps.lower()) else steps

    rows_of_run: dict[str, RowTable] = {}
    nan_count = 0
    for run, metrics in metrics_of_run.items():
        values: dict[str, Column] = {}
        for column, metric in metrics.items():
            cells = table.rows.column(column)
            says_nan = cells.is_missing & ~cells.is_blank
            nan_count += int(says_nan.sum())
            values[metric] = cells.where(~cells.is_missing)
        # bool[rows]: where the run has a value of any metric
        is_logged = np.logical_or.reduce([cells.is_present for cells in values.values()])
        rows = table.rows.with_columns({clock: table.rows.column(steps), **values})
        rows_of_run[run] = rows.take(is_logged)

    notes = []
    if _has_means(table.rows, others):
        notes.append(MEANS_NOTE)
    if nan_count:
        notes.append(f"{nan_count} cells that say NaN are taken as not logged")
    runs_without = [run for run, rows in rows_of_run.items() if not rows]
    if runs_without:
        has = "has" if len(runs_without) == 1 else "have"
        notes.append(f"without {list_some(runs_without)}, which {has} no value")

    for run, rows in rows_of_run.items():
        if rows:
            yield LogTable(
                table.source,
                rows,
                is_export=True,
                notes=tuple(notes),
                run=run,
                only_metric=only_metric,
            )


def _metrics_of_runs(columns: Sequence[str]) -> dict[str, dict[str, str]]:
    """Run -> column -> metric: {"n8": {"n8 - val/acc": "val/acc"}}.

    A column whose name has no " - " is a run and its reward.
    """
    metrics_of_run: dict[str, dict[str, str]] = defaultdict(dict)
    for column in columns:
        # W&B adds its step where the chart is over another
        if column.endswith((*BOUND_SUFFIXES, " - _step")):
            continue
        run, separator, metric = column.rpartition(" - ")
        if separator:
            metrics_of_run[run][column] = metric
        else:
            metrics_of_run[column][column] = "reward"
    return metrics_of_run


def _has_means(rows: RowTable, names: Sequence[str]) -> bool:
    """Whether a bound of W&B's export differs from its curve somewhere, which then is a mean."""
    for name in names:
        curve_name = name.removesuffix("__MIN").removesuffix("__MAX")
        if not name.endswith(BOUND_SUFFIXES) or curve_name not in names:
            continue
        bound = rows.column(name)
        curve = rows.column(curve_name)
        if any(x != y for x, y in zip(bound, curve, strict=True)):
            return True
    return False
