"""The open data: rows of Parquet are the runs that they were made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isojax.core import registry
from isojax.core.errors import InputError
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.runs import study


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    point = EvalPoint(8, 1, 8, 20, {"avg@4": 0.5, "any/avg@4": 0.25}, (2, 2), 4, {"entropy": 0.5}, {"any": (1, 1)})
    base = replace(point, target=0, M=0, rollouts=0, tokens=0, train={})
    runs = [RunRecord(Cell(4, 2, seed), (base, point), cell_hash="x") for seed in (0, 1)]
    other = RunRecord(Cell(4, 2, 0), (replace(base, extra={}),), cell_hash="y")
    sweeps = {"a": runs, "b": [other]}
    rows = [study.study_row(name, run, p) for name, sweep in sweeps.items() for run in sweep for p in run.points]
    names = list(dict.fromkeys(name for row in rows for name in row))
    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), tmp_path / "s.parquet")
    read = study.load_study(tmp_path / "s.parquet")
    assert {name: [replace(run, source="") for run in sweep] for name, sweep in read.items()} == sweeps


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="pyarrow")

    monkeypatch.setitem(registry.__builtins__, "__import__", missing)  # type: ignore[index]
    with pytest.raises(
        InputError, match=r"isojax\.load_study needs the package pyarrow; pip install \"isojax\[parquet\]"
    ):
        study.load_study()
