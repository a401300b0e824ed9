"""A whole plan, `launch --dry-run`, in a narrow terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from isojax.core.yaml_files import yaml_text
from isojax.launch import display
from isojax.report.console import SafeConsole
from tests.cli.conftest import Isojax

TINY = {
    "cell": {
        "model": {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "head_dim": 16, "mlp": 64},
        "base": {"steps": 20, "batch": 64},
        "data": {"candidates": 600, "validation": 40, "difficulty": [0.0, 1.0]},
    },
    "sweep": {"B_p": [8, 16], "n": [2, 4], "B_max": 64, "budget": 2500},
}


@pytest.mark.parametrize("width", [60, 80])
def test_no_line_of_a_plan_is_wider_than_the_terminal(
    isojax: Isojax, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    # A console knows its width from the start.
    monkeypatch.setattr(display, "console", SafeConsole(stderr=True))
    Path("tiny.yaml").write_text(yaml_text(TINY))
    code, out, err = isojax(
        "launch", "tiny.yaml", "--dry-run", "sweep.schedules={a: '8x2, 8x4 from 1000'}"
    )
    lines = (out + err).splitlines()
    assert code == 0 and max(map(cell_len, lines)) <= width, lines
    words = " ".join(" ".join(lines).split())
    for part in (
        "rollouts/s",
        "memory of a device",
        "GiB at the peak of sampling",
        "time of",
        "recipe: loss grpo",
    ):
        assert part in words
    # The grid of C is 1024, 1332, 1731, 2250, 2925, ...
    assert "of sweep.budget = 2,500 the last 250 rollouts are not trained" in words
    assert "sweep.budget=2250 leaves none, sweep.budget=2925 has one more evaluation" in words
    # 1e-3 * sqrt(B / 1024) for B = 16 and 64; with a schedule from B = 16 to 32.
    assert "0.00013" in words and "0.00025" in words and "0.00013 to 0.00018" in words
    assert "\\n" not in words and any(line.startswith("sizes of each shard") for line in lines)
