"""The compiler's estimate of a token on a TPU: read from HLO by hand, and of a 7B model's
sampler."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tpu_cost import read_bytes, read_loops
from isojax.core.policy_sizes import WeightSizes
from isojax.distributed.sharding import replicated, shape_on
from tests.device import mesh

REPOSITORY = Path(__file__).resolve().parents[2]
HLO = """\
HloModule jit_f

%inner (x: f32[8]) -> f32[8] {
  %big = bf16[1024,1024]{1,0} copy(%y), backend_config={"estimated_cycles":"30"}
  ROOT %r = f32[8]{0} fusion(%x), kind=kLoop, calls=%c, backend_config={"estimated_cycles":"4"}
}

%cond (x: f32[8]) -> pred[] {
  %layers = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %layers), direction=LT
}

%cond2 (x: f32[8]) -> pred[] {
  ROOT %not = pred[] not(%done)
}

%outer (x: f32[8]) -> f32[8] {
  %a = (f32[8]{0}, s32[]) add(%x, %x), backend_config={"estimated_cycles":"2"}
  ROOT %w = f32[8]{0} while(%a), condition=%cond, body=%inner
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %small = f32[8]{0} copy(%x), backend_config={"estimated_cycles":"1"}
  ROOT %w2 = f32[8]{0} while(%small), condition=%cond2, body=%outer
}
"""


def test_loops_by_hand() -> None:
    program = read_loops(HLO)
    assert (
        program.depth,
        program.cycles,
        program.loops[0].cycles,
        program.most_repeated.cycles,
    ) == (3, 1, 2, 34)
    assert program.calls("fusion(%x)") and not program.calls("flash_decode")
    assert [loop.trips for loop in program.walk()] == [1, 1, 5]  # the second as often as values say
    assert program.cycles_with_loops == 1 + 2 + 5 * 34
    moved = [x.name for loop in program.walk() for x in loop.operations if x.moves_data]
    assert moved == ["big"]  # 2 MiB; the other copy has 32 bytes


def test_bytes_that_a_token_reads_by_hand() -> None:
    """Two slots with half of the experts each read three quarters of them, and of an untied
    embedding only rows."""

    def of_shape(*shape: int) -> Any:
        return shape_on(replicated(mesh()), shape, "bfloat16")

    experts = of_shape(2, 4, 8, 16)
    weights = {
        "embed": of_shape(100, 8),
        "unembed": of_shape(8, 100),
        "blocks": {"query": of_shape(2, 8, 16), "expert_gate": experts},
        "cos_sin": [of_shape(64)],
    }
    sizes = WeightSizes("expert_gate", (("expert", 4), ("embed", 8), ("mlp", 16)), share=0.5)
    of_all_slots = 2 * (800 + 256)
    assert read_bytes(weights, [sizes], slots=2) == of_all_slots + 0.75 * 2 * 1024
    tied = {name: x for name, x in weights.items() if name != "unembed"}
    assert read_bytes(tied, [sizes], slots=2) == of_all_slots + 0.75 * 2 * 1024


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no libtpu")
def test_a_token_of_a_7b_model_on_v5e() -> None:
    """At least 60% of what the memory allows; nothing turns the cache or weights round, between
    tokens or in them."""
    sizes = ("sweep.decode_slots=64", "sweep.microbatch=1", "sweep.prefill_batch=1")
    words = ("gsm8k", "models/qwen2.5-7b-instruct", *sizes, "--top=1")
    lengths = ("cell.sampling.prompt_length=1024", "cell.sampling.response_length=2048")
    # libtpu stays in its process
    command = [sys.executable, "benchmarks/tpu_cost.py", *words, *lengths]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    cost = json.loads(done.stdout.splitlines()[0])
    assert (
        cost["ms_per_token"] <= 11.0
        and cost["share_of_roofline"] >= 0.6
        and cost["hbm_ms_per_token"] > 6
    )
    assert cost["moves_of_cache_or_weights"] == [] and cost["temporaries_mb"] < 50
