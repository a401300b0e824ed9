"""What a user reads where memory is not enough, and where a sweep is asked to end."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from isojax.core import preemption
from isojax.core.config import CellConfig, Config, SweepConfig
from isojax.core.errors import RunFailed, is_out_of_memory
from isojax.core.nouns import Cell
from isojax.core.preemption import Preempted
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.autosize import DeviceBudget
from isojax.launch.display import Display
from isojax.launch.local import cell_training
from isojax.launch.local.cell_training import out_of_memory_message, train_cells
from isojax.launch.strategy import CellTarget

SWEEP = SweepConfig(
    B_p=(8,), n=(512,), B_max=4096, decode_slots=64, microbatch=4096, prefill_batch=8, slots_per_prefix=1
)


@pytest.mark.parametrize("memory", [8e9, 1e9])
def test_the_microbatch_that_would_fit(memory: float) -> None:
    """A power of two below the present one, which by the planner's own estimate takes less than the device has and than
    what failed.
    """
    room = DeviceBudget(CellConfig(), [(8, 512)], MeshShape(), 32, True, "cpu", int(memory))
    said = out_of_memory_message(SWEEP, room)
    found = re.search(r"sweep\.microbatch=(\d+) would fit", said)
    assert found and "sweep.microbatch = 4096" in said and "name=NAME" in said and "remat=layer" in said
    m = int(found[1])
    takes = room.estimate(SWEEP.model_copy(update={"microbatch": m})).peak
    assert m in (1 << i for i in range(12)) and takes < memory and takes < room.estimate(SWEEP).peak


def test_where_none_would(monkeypatch: pytest.MonkeyPatch) -> None:
    room = DeviceBudget(CellConfig(), [(8, 512)], MeshShape(), 32, True, "cpu", 1000)
    assert "no smaller one would fit" in out_of_memory_message(SWEEP, room)


def test_what_lacks_memory() -> None:
    """A real failure of XLA's allocator says so; other errors do not, a checkpoint's on a full disk among them."""
    with pytest.raises(jax.errors.JaxRuntimeError) as real:
        jax.block_until_ready(jax.numpy.zeros(2**46, "int8"))
    assert is_out_of_memory(real.value) and is_out_of_memory(MemoryError())
    assert not is_out_of_memory(ValueError("B_p is larger")) and not is_out_of_memory(
        FloatingPointError("loss not finite")
    )
    assert not is_out_of_memory(
        RunFailed("cannot be written (RESOURCE_EXHAUSTED: ... [OS error 28: ENOSPC No space left on device])")
    )


def test_asked_to_end_at_the_end_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells that are left are not begun, nor those of the next round; the message names the one that failed too."""
    site: Any = SimpleNamespace(folder=Path("runs/x"), programs=[None])
    goals = [CellTarget(Cell(8, 4, seed), 1024) for seed in range(2)]

    def one_cell(*_: object) -> Exception:
        preemption.request_preemption()
        return RuntimeError("no such luck")

    monkeypatch.setattr(cell_training, "train_cell", one_cell)
    base: Any = None
    with Display(Config()) as display, preemption.handle_sigterm():
        with pytest.raises(Preempted, match=r"; 8x4-s0 had failed before \(no such luck\)\. Go on by --resume\.$"):
            train_cells(site, base, goals, display)
        with pytest.raises(Preempted):
            train_cells(site, base, goals[1:], display)
    assert not preemption.requested()
