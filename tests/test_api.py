"""The Python API of a notebook: what docs/laws.md shows runs, returns typed results and loads no
jax."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isojax
from isojax.core.nouns import Cell
from isojax.core.schedule import Stage
from isojax.runs.ledger import Ledger
from isojax.scaling.allocate.recommendation import Recommendation
from isojax.scaling.comparison import SweepComparison
from isojax.scaling.result import FitResult
from tests.refusals import refused
from tests.scaling.synthetic import world

ROOT = Path(__file__).parents[1]


def write_sweep(folder: Path, seed: int) -> None:
    for run in world(n=(2, 8, 32), problems=60, seed=seed).runs:
        ledger = Ledger(folder / "cells" / run.cell.name, run.cell, "x")
        for point in run.points:
            ledger.append(point, seconds=1.0, devices=1)


def test_the_notebook_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sweep(tmp_path / "runs/many", 0)
    write_sweep(tmp_path / "runs/few", 1)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"```python\n(import (?:isojax|pandas)\n.*?)```", (ROOT / "docs/laws.md").read_text(), re.S
    )
    names: dict[str, Any] = {}
    assert len(blocks) == 2
    for code in blocks:
        exec(code, names)
    fit, same_fit = names["fit"], names["same_fit"]
    assert isinstance(fit, FitResult) and isinstance(names["advice"], Recommendation)
    # The same curves; the counts of single problems, which widen intervals, are not in the table.
    assert [c.A for c in same_fit.curves] == pytest.approx([c.A for c in fit.curves], abs=0.01)
    assert [run.cell for run in names["runs"]] == [
        run.cell for run in isojax.read_runs("runs/many")
    ]
    assert names["runs"][0].points[3].metrics == {"val_acc": names["evaluations"]["avg@4"][3]}
    assert (
        isinstance(names["comparison"], SweepComparison)
        and Path("n_star.png").stat().st_size > 1000
    )


def test_the_lines_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sweep(tmp_path / "runs/quickstart", 0)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    advice = names["advice"]
    assert isinstance(advice, Recommendation) and advice.allocation.n in (2, 8, 32)
    assert advice.interval[0] < advice.expected_reward < advice.interval[1]


def test_a_figure_that_is_not_there_is_refused() -> None:
    runs = world(n=(2, 8), problems=60).runs
    fit = isojax.fit(runs, options=isojax.FitOptions(mode="paper"))
    with refused():
        isojax.plot(fit, runs, "n-star")
    with refused():
        isojax.plot(fit, runs, "fixed_batch")


def test_a_fit_of_no_runs_is_refused() -> None:
    with refused():
        isojax.fit([])


@pytest.mark.parametrize(
    "path", [" " * 300 + "x", "x\0y", "\ud800", "no such folder", None, 7, [["runs"]], [None]]
)
def test_what_is_no_path_of_a_run_is_refused(path: Any) -> None:
    with refused():
        isojax.read_runs(path)
    with refused():
        isojax.fit(path)


def test_names_are_imported_when_used_and_without_jax() -> None:
    program = (
        "import sys, isojax\n"
        "print('numpy' in sys.modules)\n"
        "[getattr(isojax, name) for name in ('read_runs', 'fit', 'recommend', 'compare', 'plot')]\n"
        "print(sorted({'jax', 'flax', 'optax', 'orbax'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "[]"]
    with pytest.raises(AttributeError, match="has no attribute 'fits'"):
        _ = isojax.fits


def test_frames_of_a_fit() -> None:
    law = isojax.fit(world(n=(2, 8), problems=60).runs, options=isojax.FitOptions(replicates=40))
    for name, rows in (
        ("runs", law.runs),
        ("curves", law.curves),
        ("frontier", law.joint.frontier),
    ):
        assert len(law.frame(name)) == len(rows)
    assert list(law.frame("runs").columns[:3]) == ["B_p", "n", "seed"]
    with refused():
        law.frame("law")  # pyright: ignore[reportArgumentType]
    assert law.recommend(2e4, B_max=64).allocation.B <= 64


def test_runs_that_a_fit_leaves_out_are_in_none_of_its_tables_and_figures() -> None:
    """One whose n grows is no run of its first n; what shows that a run broke is not in the table
    of evaluations."""
    runs = world(n=(8, 32), problems=60).runs
    nonfinite = tuple(
        replace(p, train={"nonfinite_update": 0.5} if p.M else {}) for p in runs[0].points
    )
    broken = replace(runs[0], cell=replace(runs[0].cell, seed=7), points=nonfinite)
    B_p = runs[0].cell.B_p
    growing = replace(runs[0], cell=Cell(B_p, 2, 0, "growing", (Stage(0, B_p, 2),)))
    law = isojax.fit([*runs, growing, broken], options=isojax.FitOptions(mode="paper"))
    rows = law.frame("evaluations")
    assert set(rows["n"]) == {8, 32} and 7 not in set(rows["seed"])
    isojax.plot(law, [*runs, growing, broken])  # n = 2 has no colour


def test_frames_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    with refused():
        isojax.read_runs(pandas.DataFrame())
    frame = pandas.DataFrame({"n": [2, 2], "B_p": [4, 4], "step": [0, 1], "reward": [0.1, 1.5]})
    with refused(where="DataFrame, row 1: reward"):
        isojax.read_runs(frame)
    arrays = pandas.DataFrame({"n": [2], "B_p": [4], "step": [0], "reward": [np.array([0.1, 0.2])]})
    with refused(where="DataFrame, row 0: reward"):
        isojax.fit(arrays)
    for no_frame in (pandas.Series(["nowhere"]), "nowhere"):
        with refused():
            isojax.fit(no_frame)
    with refused():
        isojax.fit("a" * 300)
    for given in (5, [5], ["runs", []]):
        with refused():
            isojax.read_runs(given)
    law = isojax.fit(world(n=(2, 8), problems=60).runs, options=isojax.FitOptions(replicates=0))
    with refused():
        law.recommend("1e6")  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused():
        law.frame()
