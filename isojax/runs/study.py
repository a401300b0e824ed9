"""The open data: the runs behind docs/reproduction.md, one row for each evaluation of study.parquet
next to this file.

Columns: sweep, B_p, n, seed, cell_hash; target, M, rollouts, tokens and samples, as of EvalPoint
(core/nouns.py); `metrics/NAME` of validation and `train/NAME` of training, null where they were not
measured; `counts`, the sum of each validation problem's rewards, and `extra/NAME` those of further
problem sets. The file's metadata hold the licence, and of each sweep the commit that published it
(`commit/SWEEP`) and the config as YAML (`config/SWEEP`)."""

from itertools import groupby
from pathlib import Path
from typing import Any

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.core.registry import import_extra

STUDY_FILE = Path(__file__).with_name("study.parquet")
POINT_COLUMNS = ("target", "M", "rollouts", "tokens", "samples")
RUN_COLUMNS = ("sweep", "B_p", "n", "seed", "cell_hash")


def load_study(path: Path = STUDY_FILE) -> dict[str, list[RunRecord]]:
    """The runs of each sweep by its name, as isojax.read_runs gives them.

    Rows of a run have to follow one another in the file. InputError without pyarrow (extra
    parquet).
    """
    parquet = import_extra("parquet", "isojax.load_study", "pyarrow.parquet")
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()

    study: dict[str, list[RunRecord]] = {}
    for run_values, rows_of_run in groupby(rows, lambda row: [row[k] for k in RUN_COLUMNS]):
        sweep, B_p, n, seed, cell_hash = run_values
        points = tuple(_read_point(row) for row in rows_of_run)
        run = RunRecord(Cell(B_p, n, seed), points, str(path), cell_hash=cell_hash)
        study.setdefault(sweep, []).append(run)
    return study


def _read_point(row: dict[str, Any]) -> EvalPoint:
    """One evaluation from a row of study.parquet, column name to value.

    The columns metrics/NAME, train/NAME and extra/NAME become the point's dicts by NAME; null means
    not measured.
    """
    metrics: dict[str, float] = {}
    train: dict[str, float] = {}
    extra: dict[str, tuple[float, ...]] = {}
    for column, value in row.items():
        group, _, name = column.partition("/")
        if not name or value is None:
            continue
        if group == "extra":
            extra[name] = tuple(value)
        elif group == "train":
            train[name] = value
        elif group == "metrics":
            metrics[name] = value

    return EvalPoint(
        **{column: row[column] for column in POINT_COLUMNS},
        metrics=metrics,
        train=train,
        extra=extra,
        counts=tuple(row["counts"]),
    )
