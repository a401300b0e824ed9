"""Solved problems left out of later epochs, on the command line: a run killed and resumed is the
unbroken one, and so is that of an asynchronous run at k = 0."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.seconds(50)]

# 48 training problems are 6 updates an epoch; a cell of 78 updates
WORDS = (
    "train",
    "tiny.yaml",
    "cell.data.size=48",
    "cell.rl.no_positive_resampling=0.25",
    "sweep.n=[4]",
    "sweep.seeds=1",
)
LINES = 6


def ledger(isojax: Any, name: str) -> Path:
    return isojax.folder / "runs" / name / "cells" / "8x4-s0" / "records.jsonl"


def points(isojax: Any, name: str) -> list[dict[str, Any]]:
    return [
        row
        for line in ledger(isojax, name).read_text().splitlines()
        if (row := json.loads(line))["kind"] == "eval"
    ]


def test_killed_and_resumed_and_asynchronous(isojax: Any) -> None:
    isojax.swept(*WORDS, "name=whole")
    full = points(isojax, "whole")
    dropped = [point["train"]["dropped"] for point in full if point["M"]]
    assert [point["M"] for point in full[:4]] == [0, 2, 3, 4] and dropped[:3] == [
        0,
        0,
        0,
    ]  # nothing is known before an epoch's end
    assert dropped[-1] > 0.1 and all(later >= before for before, later in pairwise(dropped))

    process = isojax.fork(*WORDS, "name=killed", "run.checkpoint_seconds=0")
    last = time.monotonic() + 200
    path = ledger(isojax, "killed")
    try:
        while not path.exists() or path.read_bytes().count(b"\n") < LINES:
            assert process.poll() is None and time.monotonic() < last, process.communicate()
            time.sleep(0.002)
    finally:
        process.kill()
        process.communicate()
    assert LINES <= path.read_bytes().count(b"\n") < len(full) + 1, (
        "the cell was finished before the kill"
    )
    half = [p for p in (path.parent / "checkpoint").iterdir() if p.name.isdigit()]
    assert half
    isojax.swept(*WORDS, "name=killed", "--resume")
    assert path.read_bytes() == ledger(isojax, "whole").read_bytes()

    isojax.swept(*WORDS, "name=turns", "cell.rl.max_staleness=0")
    for one, other in zip(points(isojax, "turns"), full, strict=True):
        assert (one["M"], one["counts"], one["metrics"]) == (
            other["M"],
            other["counts"],
            other["metrics"],
        )
        assert one["train"] == pytest.approx(
            other["train"], rel=1e-5, abs=1e-5
        )  # sums of the same numbers, in other parts
