"""A sweep made ready: which devices and which programs each cell at a time gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.core.config import load_config
from isojax.core.errors import InputError
from isojax.launch.local.setup import check_problems, open_sweep
from isojax.launch.planner import plan_cells
from isojax.tasks.device import solvers


@pytest.mark.parametrize(("mesh", "devices"), [("data=1", [[0], [0], [0]]), ("data=2", [[0, 1], [2, 3], [4, 5]])])
def test_cells_of_one_cpu_device_share_its_programs(mesh: str, devices: list[list[int]], tmp_path: Path) -> None:
    config = load_config("quickstart", [f"run.dir={tmp_path}", f"run.mesh={mesh}", "run.cells_at_once=3"])
    with open_sweep(config, plan_cells(config.sweep), resume=False) as setup:
        assert [[d.id for d in programs.mesh.devices.flat] for programs in setup.programs] == devices
        assert len({id(programs) for programs in setup.programs}) == (1 if mesh == "data=1" else 3)


def test_held_out_problems_are_not_taken_from_the_candidates() -> None:
    """64 candidates, of which 300 validate unless these have a source of their own."""
    config, task = load_config("quickstart", ["cell.data.candidates=64", "cell.data.validation=300"]), solvers.build()
    held_out = config.with_settings(cell={"data": {"held_out": "solvers"}})
    check_problems(held_out, task, [(64, 4)])
    with pytest.raises(InputError, match="the training set has 64 problems"):
        check_problems(held_out, task, [(65, 4)])
    with pytest.raises(InputError, match="the training set has 0 problems"):
        check_problems(config, task, [(64, 4)])
