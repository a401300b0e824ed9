"""What a user is told where memory is not enough."""

from __future__ import annotations

import re

import jax
import pytest

from isojax.config import CellConfig, SweepConfig
from isojax.launch.fitting import Axes, Room
from isojax.launch.workers import out_of_memory
from isojax.types import lacks_memory

SWEEP = SweepConfig(B_p=(8,), n=(512,), B_max=4096, slots=64, microbatch=4096, prompts=8, lane_width=1)


@pytest.mark.parametrize("memory", [8e9, 1e9])
def test_the_microbatch_that_would_fit(memory: float) -> None:
    """A power of two below the present one, which by the planner's own estimate takes less than the device has and than what failed."""
    room = Room(CellConfig(), [(8, 512)], Axes(1, 1, 1), 32, True, "cpu", int(memory))
    said = out_of_memory(SWEEP, room)
    found = re.search(r"sweep\.microbatch=(\d+) would fit", said)
    assert found and "sweep.microbatch = 4096" in said and "name=NAME" in said and "remat=layer" in said
    m = int(found[1])
    takes = room.takes(SWEEP.model_copy(update={"microbatch": m})).peak
    assert m in (1 << i for i in range(12)) and takes < memory and takes < room.takes(SWEEP).peak


def test_where_none_would(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(CellConfig(), [(8, 512)], Axes(1, 1, 1), 32, True, "cpu", 1000)
    assert "no smaller one would fit" in out_of_memory(SWEEP, room)


def test_what_lacks_memory() -> None:
    """A real failure of XLA's allocator says so; other errors do not."""
    with pytest.raises(jax.errors.JaxRuntimeError) as real:
        jax.block_until_ready(jax.numpy.zeros(2**46, "int8"))
    assert lacks_memory(real.value) and lacks_memory(MemoryError())
    assert not lacks_memory(ValueError("B_p is larger")) and not lacks_memory(FloatingPointError("loss not finite"))
