"""Broken ledgers at the command line: each is named with file and line, exit code 2, nothing
written, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isojax.cli import app
from isojax.runs.ledger import write_run
from tests.scaling.synthetic import world

ROOT = Path(__file__).resolve().parents[2]
# the ledger that gets broken; its line 1 is the header, line 2 the base policy's evaluation
BAD = "16x8-s0"
LINE = 6


@pytest.fixture
def fit(tmp_path, monkeypatch, capsys):
    """Ledgers of n = 2 and 8, one line of one of them changed, fitted: (exit code, standard output,
    standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(change=None, n=(2, 8), *words):
        for record in world(n=n, seeds=1, problems=50).runs:
            write_run(Path("runs/x/cells") / record.cell.name, record)
        if change is not None:
            path = Path("runs/x/cells") / BAD / "records.jsonl"
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            change(rows)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        monkeypatch.setattr(sys, "argv", ["isojax", "fit", "runs/x", "--replicates", "20", *words])
        with pytest.raises(SystemExit) as e:
            app.main()
        return (e.value.code, *capsys.readouterr())

    return run


def at(**values: Any):
    return lambda rows: rows[LINE - 1].update(values)


def reward(value: float):
    return lambda rows: rows[LINE - 1]["metrics"].update({"avg@4": value})


def twice(rows):
    rows.insert(LINE - 1, dict(rows[LINE - 2]))


def another_setting(rows):
    rows[0]["cell_hash"] = "other"


def two_runs(rows):
    rows.insert(LINE - 1, rows[0] | {"n": 16})


BROKEN = {
    "NaN": (
        reward(float("nan")),
        f"line {LINE}: ",
        "avg@4 is nan: it should be at least 0 and at most 1",
    ),
    "above 1": (
        reward(1.5),
        f"line {LINE}: ",
        "avg@4 is 1.5: it should be at least 0 and at most 1",
    ),
    "below 0": (reward(-0.1), f"line {LINE}: ", "avg@4 is -0.1: it should be at least 0"),
    "negative compute": (
        at(rollouts=-5),
        f"line {LINE}: ",
        "rollouts is -5: it should be at least 0",
    ),
    "compute that falls": (at(rollouts=7), f"line {LINE}: rollouts fall from", "rise in C"),
    "a point twice": (twice, f"line {LINE}: the point at", "is there twice"),
    "two configs mixed": (another_setting, "16x2-s0", "different `cell` settings"),
    "two runs in a file": (two_runs, f"line {LINE}: begins another run", "Split the file"),
    "no such metric": (
        lambda rows: rows[LINE - 1].update(metrics={}, counts=[], samples=0),
        f"line {LINE}",
        "has no metric 'avg@4'",
    ),
}


@pytest.mark.parametrize("mode", ["hierarchical", "paper"])
@pytest.mark.parametrize("name", BROKEN)
def test_broken_ledgers(fit, name, mode):
    change, where, why = BROKEN[name]
    code, out, err = fit(change, (2, 8), "--mode", mode)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err
    assert f"runs/x/cells/{BAD}/records.jsonl" in err and where in err and why in err
    assert sorted(p.name for p in Path("runs/x").iterdir()) == ["cells"]


def test_one_n_is_flagged_not_refused(fit):
    code, out, err = fit(None, (8,), "--json")
    assert code == 0, err
    assert [
        f for f in json.loads(out)["flags"] if f["text"].startswith("only one n was measured (8)")
    ]


def test_a_run_to_run_spread_of_all_there_is(fit):
    code, out, err = fit(None, (2, 8), "--run-sd", "1")
    assert (
        (code, out) == (2, "")
        and err.startswith("error: ")
        and "expected replicates from 0 to 10,000, and 0 <= run_sd < 1" in err
    )


def test_no_module_of_scaling_loads_jax():
    """Each alone in what it brings in: the package is read by a fresh interpreter, module by
    module."""
    folder = ROOT / "isojax" / "scaling"
    names = sorted(
        ".".join(p.relative_to(folder).with_suffix("").parts) for p in folder.rglob("[a-z]*.py")
    )
    assert len(names) > 30
    program = f"""
import importlib, sys
for name in ("", *{[f".{n}" for n in names]!r}):
    importlib.import_module("isojax.scaling" + name)
    heavy = {{"jax", "jaxlib", "flax", "optax", "pandas", "matplotlib"}} & set(sys.modules)
    assert not heavy, (name, heavy)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=ROOT, env=environment, timeout=120
    )
