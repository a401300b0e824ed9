"""Kills at random instants and aimed ones, by benchmarks/chaos.py, which as a script makes many
more of them."""

from __future__ import annotations

import importlib
import os
import random
from pathlib import Path

import pytest

from tests.compiler import QUICK, flags

pytestmark = [pytest.mark.slow, pytest.mark.seconds(65)]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of this copy", allow_module_level=True)


@pytest.mark.nightly
def test_killed_where_chance_seldom_hits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An asynchronous run that leaves out solved problems: while the ledger is written, and with a
    checkpoint half written. test_resampling.py kills one anywhere.
    """
    monkeypatch.syspath_prepend(BENCHMARKS)
    chaos = importlib.import_module("chaos")
    monkeypatch.setenv("XLA_FLAGS", flags(QUICK, devices=1))
    monkeypatch.setenv(
        "JAX_COMPILATION_CACHE_DIR",
        os.environ.get("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "jax")),
    )
    monkeypatch.setattr(chaos, "AIMS", {"resampling": (chaos.LEDGER, chaos.HALF)})
    monkeypatch.setitem(chaos.KINDS, "resampling", [*chaos.KINDS["resampling"], "sweep.budget=300"])
    chaos.prepare(tmp_path)
    output: list[str] = []
    result = chaos.broken(tmp_path, "resampling", 2, random.Random(0), output.append)
    assert result["equal"] and result["kills"] == 2 and result["damaged"] == 0, output
