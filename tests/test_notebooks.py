"""The notebooks of a fit run, cell by cell, from their folder; so does the program of
docs/reproduction.md. That of the first TPU has its tests in tests/e2e/test_first_notebook.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest

DOCS = Path(__file__).parents[1] / "docs"
NOTEBOOKS = sorted(set((DOCS / "notebooks").glob("*.ipynb")) - {DOCS / "notebooks/first_tpu.ipynb"})


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    matplotlib.use("Agg")
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
    assert names["fit"].plot()._repr_png_().startswith(b"\x89PNG")  # which a notebook shows
    assert names["advice"].allocation.n in {run.n for run in names["fit"].runs}


def test_the_program_that_reads_the_open_data_runs() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / "reproduction.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(program, names)
    assert len(names["study"]) == 16 and names["fit"].joint.crossovers
