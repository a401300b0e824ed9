"""Every YAML that isojax brings is a config, and its sweep has a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.config import load_config
from isojax.launch.planner import plan, resolve

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(CONFIGS).as_posix())
def test_it_parses_and_plans(path: Path) -> None:
    config = load_config(str(path))
    cells = plan(resolve(config.sweep, 1))
    assert cells
    assert len(config.cell.eval.grid(config.sweep.budget)) > 3


def test_there_is_a_quickstart() -> None:
    assert CONFIGS / "quickstart.yaml" in FILES


def test_no_config_has_another_ending() -> None:
    assert not list(CONFIGS.rglob("*.yml"))
