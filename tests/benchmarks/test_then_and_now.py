"""The table of what command lines did and do: one of its rows, with the newest commit in the place
of the old one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_row() -> None:
    if subprocess.run(
        ["git", "-C", str(BENCHMARKS), "rev-parse", "HEAD"], capture_output=True, check=False
    ).returncode:
        pytest.skip("no history to compare with")
    words = ["--commit", "HEAD", "--only", "stauts"]
    call = [sys.executable, str(BENCHMARKS / "then_and_now.py"), *words]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    heading, _, row, *not_tried = done.stdout.splitlines()
    outcome = "exit code 2, \"Error: No such command 'stauts'. Did you mean 'status'?\""
    assert heading == "| item | claim | command | at HEAD | now |"
    assert row == f"| 6 | did you mean | `'stauts'` | {outcome} | {outcome} |"
    assert all("| not tried here |" in line for line in not_tried)
