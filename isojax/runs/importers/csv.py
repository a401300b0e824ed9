"""CSV with a header line, of one run or of many, in one of three forms:

plain   one row per evaluation or training step, a column for each metric
long    one row per value, as columns run, metric, step and value (or the names of METRIC_NAMES and VALUE_NAMES)
wide    W&B's export of a chart: a column of steps, then RUN - METRIC for each run, and its __MIN and __MAX"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from isojax.core.errors import InputError
from isojax.core.table_files import read_csv, read_lines
from isojax.core.tabular import DataTable, is_blank
from isojax.runs.importers import wandb
from isojax.runs.logs.log_table import LEDGER_FIELDS, LogTable, check_log_file

FIELDS = LEDGER_FIELDS | {
    "step": ("step", *wandb.FIELDS["step"], "global_step/max_steps", "Step"),
    "reward": (*LEDGER_FIELDS["reward"], *wandb.FIELDS["reward"]),
    "sampled_batches": wandb.FIELDS["sampled_batches"],
    "run": (*LEDGER_FIELDS["run"], "run_name", "run_id", "Run", "Name"),
}
SUFFIXES = (".csv", ".tsv")

# The columns of the long form, as MLflow, TensorBoard, pandas.melt, Comet and Aim name them, in small letters.
METRIC_NAMES = ("metric", "key", "tag", "variable", "metricname", "metric.name")
VALUE_NAMES = ("value", "metricvalue")
BOUND_SUFFIXES = ("__MIN", "__MAX")  # of W&B's export
MEANS_NOTE = "its values are means over runs, or over buckets of steps; else export it ungrouped, with full fidelity"


def read(path: Path, whole_lines: bool = False) -> list[LogTable]:
    """A table, in the wide form one per run; `whole_lines`: no last line without its end; InputError as `read_csv`."""
    check_log_file(path)
    table = read_csv(path, (line for line in read_lines(path) if line[1].endswith("\n") or not whole_lines))
    is_chart = len(table.columns) > 1 and all(" - " in name for name in table.columns[1:])
    if is_chart or any(name.endswith(BOUND_SUFFIXES) for name in table.columns):
        return list(_read_wide(table))
    columns = {name.lower(): name for name in reversed(table.columns)}
    metric, value = (next((columns[x] for x in names if x in columns), None) for names in (METRIC_NAMES, VALUE_NAMES))
    if metric is not None and value is not None:
        return [_read_long(table, metric, value)]
    return [LogTable(table.source, table.rows, one_run=False)]


def _read_long(table: DataTable, metric: str, value: str) -> LogTable:
    """Each row's value in a column of its metric's name, the other columns as they are."""
    rows, metrics = [], dict[str, None]()
    for row in table.rows:
        name = str(row.values.get(metric, "")).strip()
        if not name:
            raise InputError(f"{row.location}: {metric} is empty; expected the name of a metric. Fill it in.")
        others = {key: cell for key, cell in row.values.items() if key not in (metric, value)}
        rows.append(replace(row, values={**others, name: row.values.get(value)}))
        metrics[name] = None
    return LogTable(table.source, tuple(rows), one_run=False, only_metric=next(iter(metrics)) * (len(metrics) == 1))


def _read_wide(table: DataTable) -> Iterator[LogTable]:
    """A table of each run; a run has no row for a step at which its cells are empty."""
    steps, *others = table.columns
    if not steps or steps.endswith(BOUND_SUFFIXES) or "time" in steps.lower():
        problem = f"{table.source}, {table.header_position}: the first column is {steps!r}, expected the steps"
        raise InputError(f"{problem}, as in W&B's export. Export the chart over Step, or the trainer's own step.")
    metrics_of_run: dict[str, dict[str, str]] = defaultdict(dict)  # run -> column -> metric
    for column in others:
        if not column.endswith((*BOUND_SUFFIXES, " - _step")):  # W&B adds its step where the chart is over another
            run, separator, metric = column.rpartition(" - ")
            metrics_of_run[run if separator else metric][column] = metric if separator else "reward"
    clock = "step" if re.search("step|update|iter", steps.lower()) else steps  # a chart may be over rollouts
    all_metrics = {metric for metrics in metrics_of_run.values() for metric in metrics.values()}
    only_metric = all_metrics.pop() if len(all_metrics) == 1 else ""
    bounds = [(x, x.removesuffix("__MIN").removesuffix("__MAX")) for x in others]
    is_mean = any(row.values[x] != row.values.get(mean, row.values[x]) for row in table.rows for x, mean in bounds)
    for run, metrics in metrics_of_run.items():
        rows = []
        for row in table.rows:
            values = {name: row.values[column] for column, name in metrics.items() if not is_blank(row.values[column])}
            rows += [replace(row, values={clock: row.values[steps], **values})] if values else []
        if rows:
            yield LogTable(table.source, tuple(rows), notes=(MEANS_NOTE,) * is_mean, run=run, only_metric=only_metric)
