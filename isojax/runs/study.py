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
    """The runs of each sweep by name, as isojax.read_runs gives them; InputError without pyarrow
    (extra parquet)."""
    table = import_extra("parquet", "isojax.load_study", "pyarrow.parquet").read_table(path)
    study: dict[str, list[RunRecord]] = {}
    for (sweep, *sizes, cell_hash), rows in groupby(
        table.to_pylist(), lambda row: [row[k] for k in RUN_COLUMNS]
    ):
        run = RunRecord(
            Cell(*sizes), tuple(_read_point(row) for row in rows), str(path), cell_hash=cell_hash
        )
        study.setdefault(sweep, []).append(run)
    return study


def _read_point(row: dict[str, Any]) -> EvalPoint:
    values: dict[str, Any] = {
        "metrics": {},
        "train": {},
        "extra": {},
        "counts": tuple(row["counts"]),
    }
    for name, value in row.items():
        group, _, key = name.partition("/")
        if key and value is not None:
            values[group][key] = tuple(value) if group == "extra" else value
    return EvalPoint(**values, **{k: row[k] for k in POINT_COLUMNS})
