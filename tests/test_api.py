"""The Python API of a notebook: what docs/laws.md shows runs, returns typed results and loads no jax."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import isojax
from isojax.core.errors import InputError
from isojax.core.nouns import Recommendation
from isojax.runs.ledger import Ledger
from isojax.scaling.comparison import SweepComparison
from isojax.scaling.result import FitResult
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
    [code] = re.findall(r"```python\n(import isojax\n.*?)```", (ROOT / "docs/laws.md").read_text(), re.S)
    names: dict[str, object] = {}
    exec(code, names)
    assert isinstance(names["fit"], FitResult) and isinstance(names["advice"], Recommendation)
    assert isinstance(names["comparison"], SweepComparison) and Path("n_star.png").stat().st_size > 1000


def test_a_figure_that_is_not_there_is_refused() -> None:
    runs = world(n=(2, 8), problems=60).runs
    fit = isojax.fit(runs, options=isojax.FitOptions(mode="paper"))
    with pytest.raises(InputError, match="no figure is called 'n-star'; expected one of frontier, n_star"):
        isojax.plot(fit, runs, "n-star")
    with pytest.raises(InputError, match="no data for the figure 'fixed_batch'"):
        isojax.plot(fit, runs, "fixed_batch")


def test_a_fit_of_no_runs_is_refused() -> None:
    with pytest.raises(InputError, match="no run to fit"):
        isojax.fit([])


def test_names_are_imported_when_used_and_without_jax() -> None:
    program = (
        "import sys, isojax\n"
        "print('numpy' in sys.modules)\n"
        "[getattr(isojax, name) for name in ('read_runs', 'fit', 'recommend', 'compare', 'plot')]\n"
        "print(sorted({'jax', 'flax', 'optax', 'orbax'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "[]"]
    with pytest.raises(AttributeError, match="has no attribute 'fits'"):
        _ = isojax.fits
