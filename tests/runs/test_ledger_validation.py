"""One validation of a ledger, by whatever reads or writes it: what no run can measure is refused
with its line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.core.schedule import Stage
from isojax.runs.ledger import read_run, read_runs, read_timing, recorded_points, write_run
from isojax.scaling.checks.ledger_check import check_ledgers
from isojax.scaling.fit import fit_all_runs
from tests.refusals import refused

POINT = EvalPoint(
    64,
    4,
    64,
    100,
    {"avg@4": 0.5, "hard/best@2": 0.25},
    (0, 4, 2),
    4,
    {"reward": 0.5},
    {"hard": (1, 4)},
)
POINTS = {
    "avg@4 = 7": {"metrics": {"avg@4": 7}},
    "a set's metric below 0": {"metrics": {"avg@4": 0.5, "hard/best@2": -0.1}},
    "a metric of 1e308": {"metrics": {"worst@4": 1e308}},
    "a metric that is NaN": {"metrics": {"avg@4": float("nan")}},
    "counts above samples": {"counts": [0, 5, 2]},
    "counts of a set above samples": {"extra": {"hard": [9]}},
    "avg@4 that its counts contradict": {"metrics": {"avg@4": 0.52}},
    "avg@4 of a set that its counts contradict": {"metrics": {"hard/avg@4": 0.1}},
    "negative counts": {"counts": [-1]},
    "negative samples": {"samples": -4, "counts": [], "extra": {}},
    "samples beyond the limit": {"samples": 10**9},
    "tokens beyond int64": {"tokens": 10**30},
    "rollouts of 5,000 digits": {"rollouts": "@"},
    "a metric nested 3,000 deep": {"metrics": "@@"},
}
HEADERS: dict[str, dict[str, Any]] = {
    "schema 99": {"schema": 99}, "no schema": {"schema": None}, "n = -4": {"n": -4},
    "B_p = 0": {"B_p": 0},
    "a seed below 0": {"seed": -1}, "n as text": {"n": "4"}, "n beyond int64": {"n": 10**30},
    "n = true": {"n": True},
}  # fmt: skip


def ledger(
    folder: Path, header: dict[str, Any] | None = None, point: dict[str, Any] | None = None
) -> Path:
    """A cell's folder with one evaluation, some of its values replaced; @ and @@ by what json.dumps
    cannot write."""
    write_run(folder, RunRecord(Cell(4, 4, 0), (POINT,)))
    rows = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    rows[0] |= header or {}
    rows[1] |= point or {}
    text = "".join(json.dumps(row) + "\n" for row in rows)
    text = text.replace('"@@"', "[" * 3000 + "]" * 3000).replace('"@"', "9" * 5000)
    (folder / "records.jsonl").write_text(text)
    return folder


def test_what_a_run_measures_is_accepted(tmp_path: Path) -> None:
    folder = ledger(tmp_path / "cell")
    assert read_run(folder).points == (POINT,) and recorded_points(folder)[0][-1] == POINT


@pytest.mark.parametrize("case", POINTS)
def test_points(tmp_path: Path, case: str) -> None:
    changed = POINTS[case]
    folder = ledger(tmp_path / "cell", point=changed)
    for read in (read_run, lambda f: read_runs([f]), recorded_points):
        with refused(where="records.jsonl, line 2"):
            read(folder)
    (error,) = check_ledgers([folder]).errors
    assert "line 2" in error
    if "@" not in str(changed.values()):
        point = replace(
            POINT, **{k: tuple(v) if isinstance(v, list) else v for k, v in changed.items()}
        )
        with refused(where="log.csv"):
            write_run(tmp_path / "new", RunRecord(Cell(4, 4, 0), (point,), "log.csv"))
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("case", HEADERS)
def test_headers(tmp_path: Path, case: str) -> None:
    folder = ledger(tmp_path / "cell", HEADERS[case])
    for read in (read_run, recorded_points):
        with refused(where="records.jsonl, line 1"):
            read(folder)
    assert "needs schema = 1" in check_ledgers([folder]).errors[0]


def test_runs_with_a_schedule_are_no_cells_of_their_first_n(tmp_path: Path) -> None:
    """A fit refuses such runs alone, and they are no second seed of a cell."""
    points = tuple(replace(POINT, target=C, rollouts=C, M=C // 16) for C in (16, 32, 48, 64, 80))
    growing = Cell(4, 4, 0, "growing", (Stage(0, 4, 4), Stage(64, 4, 8)))
    write_run(tmp_path / "growing", RunRecord(growing, points))
    checked = check_ledgers([tmp_path])
    assert checked.errors == [
        "all runs have a schedule (growing); expected some of a fixed n. Add sweep.B_p and sweep.n."
    ]
    assert not any("only one n" in note for note in checked.notes)
    spent = Cell.of_spend(4, 4)
    write_run(tmp_path / "spent" / "cells" / spent.name, RunRecord(spent, points))
    assert check_ledgers([tmp_path / "spent"]).errors == [
        "all runs have a schedule (from-n4); expected some of a fixed n. `isojax spend` chose "
        "their n on the way: its answer is spend.html. For a law, launch a sweep."
    ]
    rmtree(tmp_path / "spent")
    write_run(tmp_path / "fixed", RunRecord(Cell(4, 4, 0), points))
    checked = check_ledgers([tmp_path])
    assert not checked.errors and any(
        "only one seed for every cell" in note for note in checked.notes
    )


LATER = replace(POINT, target=128, rollouts=128)


@pytest.mark.parametrize("case", ["point", "kind", "repeated", "header", "M"])
def test_every_line_counts_for_every_reader(tmp_path: Path, case: str) -> None:
    """Not the last line alone: `isojax status` shows the last point, and says no less about the
    ones before."""
    folder = tmp_path / "cell"
    write_run(folder, RunRecord(Cell(4, 4, 0), (POINT, LATER)))
    header, first, last = (
        json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()
    )
    rows = {
        "point": [header, first | {"metrics": {"avg@4": 7}}, last],
        "kind": [header, first | {"kind": "evil"}, last],
        "repeated": [header, first, first, last],
        "header": [header, first, header, last],
        "M": [header, first | {"M": 9}, last | {"M": 8}],
    }[case]
    assert recorded_points(folder)[0][-1] == LATER
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for read in (read_run, recorded_points):
        with refused(where="records.jsonl"):
            read(folder)


def test_times_of_any_size_are_times_or_none(tmp_path: Path) -> None:
    for value in ("1e999", "9" * 4000, "[]", "NaN"):
        (tmp_path / "timing.jsonl").write_text(
            f'{{"kind": "timing", "target": 8, "seconds": 1, "devices": {value}}}\n'
        )
        assert read_timing(tmp_path) in ({}, {8: (1.0, int(value) if value.isdigit() else 0)})


@pytest.mark.parametrize(
    ("seconds", "devices"), [("1", "9" * 400), ("NaN", "1"), ("-5", "1"), ("1e308", "1")]
)
def test_a_run_with_impossible_times_is_fitted_without_them(
    tmp_path: Path, seconds: str, devices: str
) -> None:
    folder = ledger(tmp_path / "cell")
    row = f'{{"kind": "timing", "target": 64, "seconds": {seconds}, "devices": {devices}}}\n'
    (folder / "timing.jsonl").write_text(row)
    assert read_run(folder).device_hours == ()


def test_a_single_run_of_three_evaluations_is_refused_by_check_as_by_fit(tmp_path: Path) -> None:
    points = tuple(EvalPoint(64 * i, 4 * i, 64 * i, 0, {"avg@4": 0.2 + 0.1 * i}) for i in range(4))
    write_run(tmp_path / "cells" / "16x1-s0", RunRecord(Cell(16, 1, 0), points, "by hand"))
    message = "16x1: fewer than 4 points at C > 0 in all"
    (error,) = check_ledgers([tmp_path]).errors
    assert message in error
    with refused():
        fit_all_runs(read_runs([tmp_path]), "avg@4")
