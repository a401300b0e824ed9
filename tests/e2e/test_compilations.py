"""Nothing recompiles from cell to cell of a sweep, counted by JAX's own log from an empty cache,
eager operations included.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.compiler import QUICK, flags

pytestmark = [pytest.mark.slow, pytest.mark.seconds(20)]

FINISHED = "Finished XLA compilation of "
GROW = "sweep.schedules={1-growing: '13x2, 13x4 from 50, 13x8 from 100, 16x16 from 200'}"
FLAGS = flags(QUICK, devices=1)


def programs(isojax: Any, cache: Path, name: str, *grid: str) -> Counter[str]:
    """How often each program was compiled by a sweep; no cell of it starts another process."""
    words = (
        "tiny.yaml",
        f"name={name}",
        *grid,
        "sweep.B_max=256",
        "sweep.seeds=1",
        "sweep.budget=300",
    )
    words += ("cell.base.steps=20", "cell.data.candidates=100", "cell.eval.samples=2")
    empty = str(cache)
    options = {"jax_log_compiles": True, "jax_compilation_cache_dir": empty, "XLA_FLAGS": FLAGS}
    done = isojax.quick("isojax.launch", *words, fit=False, report=False, **options)
    cells = len(isojax.ledgers(name))
    # all ran
    assert done.stderr.count("run 1") == cells == (7 if "16" in grid[1] else 2), done.stderr
    return Counter(
        line.split(FINISHED)[1].split(" in ")[0]
        for line in done.stderr.splitlines()
        if FINISHED in line
    )


def test_six_cells_and_a_growing_n_compile_no_more_programs_than_two(
    isojax: Any, tmp_path: Path
) -> None:
    """Among the six are batches that neither R = m = 26 nor g = 16 divides, such as 13 x 7."""
    two = programs(isojax, tmp_path / "cache2", "two", "sweep.B_p=[13]", "sweep.n=[2,7]")
    six = programs(
        isojax, tmp_path / "cache6", "six", "sweep.B_p=[13,16]", "sweep.n=[2,7,16]", GROW
    )
    assert two["jit(update)"] == 1, two
    assert six.total() <= two.total(), f"more: {six - two}; fewer: {two - six}"
