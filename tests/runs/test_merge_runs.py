"""Imports joined into one folder, for the commands that take one."""

from __future__ import annotations

import json

import pytest

from isojax.core.nouns import Cell
from isojax.runs.ledger import read_runs, write_run
from isojax.runs.logs.import_logs import read_logs, write_ledgers
from isojax.runs.merge_runs import merge_runs, write_merged
from tests.refusals import refused


@pytest.fixture
def imported(tmp_path):
    """`imported(name, {file: rewards}, **maps)`: the folder that an import wrote."""

    def run(name: str, logs: dict[str, list[float]], **maps: str):
        (tmp_path / f"logs-{name}").mkdir()
        for file, rewards in logs.items():
            rows = [f"{10 * i},{reward}\n" for i, reward in enumerate(rewards)]
            (tmp_path / f"logs-{name}" / file).write_text("step,acc\n" + "".join(rows))
        fields = {"n": "n{}", "B_p": "8", "reward": "acc"} | maps
        write_ledgers(read_logs([tmp_path / f"logs-{name}"], None, fields), tmp_path / name, {})
        return tmp_path / name

    return run


def test_a_percent_import_and_another_are_one_sweep(imported, tmp_path):
    """As NEWCOMERS would: each import with a map of its own; a seed that both have is numbered
    anew."""
    a = imported("a", {"n4.csv": [10, 20, 30], "n8.csv": [11, 22, 33]}, scale="0.01")
    b = imported("b", {"n8.csv": [0.12, 0.23, 0.34], "n16.csv": [0.1, 0.3, 0.5]})
    runs, (note,) = merge_runs([a, b])
    write_merged(runs, tmp_path / "both", [a, b], [note])
    read = read_runs([tmp_path / "both"])
    assert [run.cell for run in read] == [
        Cell(8, 4, 0),
        Cell(8, 8, 0),
        Cell(8, 8, 1),
        Cell(8, 16, 0),
    ]
    assert [run.points[-1].metrics["acc"] for run in read] == pytest.approx([0.3, 0.33, 0.34, 0.5])
    assert "b/cells/8x8-s0/records.jsonl is 8x8-s1" in note
    assert json.loads((tmp_path / "both/merge.json").read_text())["cells"]["8x8-s1"] == str(
        b / "cells/8x8-s0/records.jsonl"
    )


def test_the_times_and_devices_stay(imported, tmp_path):
    a = imported("a", {"n4.csv": [0.1, 0.2, 0.3]})
    (run,) = read_runs([a])
    timed = run.__class__(**{**vars(run), "device_hours": (0.0, 8.0, 16.0), "devices": 8})
    write_run(tmp_path / "timed/cells/8x4-s0", timed)
    write_merged(merge_runs([tmp_path / "timed"])[0], tmp_path / "one", [a], [])
    (merged,) = read_runs([tmp_path / "one"])
    assert merged.device_hours == pytest.approx((0.0, 8.0, 16.0)) and merged.devices == 8


def test_one_run_in_both_is_refused(imported):
    a, b = (imported(name, {"n4.csv": [0.1, 0.2, 0.3]}) for name in "ab")
    with refused(where="records.jsonl"):
        merge_runs([a, b])


def test_metrics_of_different_names_are_refused_with_the_option(imported):
    a = imported("a", {"n4.csv": [0.1, 0.2, 0.3]})
    b = imported("b", {"n8.csv": [0.1, 0.2, 0.4]}, **{"reward": "acc", "metric:other": "acc"})
    assert len(merge_runs([a, b])[0]) == 2
    c = imported("c", {"n16.csv": [0.1, 0.2, 0.5]})
    for records in c.glob("cells/*/records.jsonl"):
        records.write_text(records.read_text().replace('"acc"', '"avg@4"'))
    with refused(where="records.jsonl"):
        merge_runs([a, c])


def test_imports_of_training_and_validation_are_no_seeds(imported, tmp_path):
    """Also where one of them was merged before: its merge.json still says which logs they are."""
    a = imported("a", {"n4_val.csv": [0.1, 0.2, 0.3], "n8_val.csv": [0.1, 0.2, 0.35]})
    b = imported("b", {"n4_train.csv": [0.15, 0.25, 0.35]})
    c = imported("c", {"n16_val.csv": [0.1, 0.2, 0.4]})
    with refused():
        merge_runs([a, b])
    write_merged(merge_runs([a, c])[0], tmp_path / "both", [a, c], [])
    with refused():
        merge_runs([tmp_path / "both", b])
    d = imported("d", {"n4.csv": [0.11, 0.22, 0.33]})  # another place, and maybe another seed
    assert "(val), so are they no seeds of one setting?" in merge_runs([a, d])[1][0]


def test_a_trained_sweep_is_refused(imported):
    a = imported("a", {"n4.csv": [0.1, 0.2, 0.3]})
    records = next(a.glob("cells/*/records.jsonl"))
    records.write_text(records.read_text().replace('"imported"', '"8d3f"'))
    with refused(where="records.jsonl"):
        merge_runs([a])
