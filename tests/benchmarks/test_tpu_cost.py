"""The compiler's estimate of a token on a TPU: read from HLO by hand, and of a 7B model's
sampler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tpu_cost import moves_data, read_bytes
from isojax.core.policy_sizes import WeightSizes
from isojax.distributed.sharding import replicated, shape_on
from isojax.launch.hlo_cycles import read_loops
from tests.device import mesh
from tests.libtpu import needs_libtpu

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
    """The second loop runs as often as values say, and counts once."""
    program = read_loops(HLO)
    outer, inner = list(program.walk())[1:]
    assert (program.own_cycles, outer.own_cycles, inner.own_cycles) == (1, 2, 34)
    assert [loop.trips for loop in program.walk()] == [1, None, 5]
    assert program.cycles == 1 + 2 + 5 * 34
    moved = [x.name for loop in program.walk() for x in loop.operations if moves_data(x)]
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


def costs(*words: str) -> list[dict[str, Any]]:
    """The lines of the benchmark; libtpu stays in its process."""
    command = [sys.executable, "benchmarks/tpu_cost.py", *words]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.nightly
@needs_libtpu
def test_a_token_of_a_7b_model_on_v5e() -> None:
    """At least 60% of what the memory allows; nothing turns the cache or weights round, between
    tokens or in them."""
    sizes = ("sweep.decode_slots=64", "sweep.microbatch=1", "sweep.prefill_batch=1")
    lengths = ("cell.sampling.prompt_length=1024", "cell.sampling.response_length=2048")
    words = ("gsm8k", "models/qwen2.5-7b-instruct", *sizes, *lengths)
    mesh_words = ("--mesh", "fsdp=4,tensor=4", "--programs", "decode")
    cost = costs(*words, *mesh_words)[0]
    assert cost["part"] == "decode_step"
    assert (
        cost["compiled_ms"] <= 11.0
        and cost["share_of_roofline"] >= 0.6
        and cost["memory_bound_ms"] > 6
    )
    assert cost["moves_of_cache_or_weights"] == [] and cost["temporaries_mb"] < 50


@pytest.mark.nightly
@needs_libtpu
def test_plans_take_what_the_compiler_says() -> None:
    """Within a quarter: a decode step by its slots, and an update with one width of responses."""
    words = ("gsm8k", "models/qwen2.5-0.5b-instruct", "cell.sampling.response_length=511")
    topology = ("--topology", "v5e:1x1", "--mesh", "auto")
    steps = costs(*words, *topology, "--programs", "decode", "--slots", "8", "64", "256")
    steps = [cost for cost in steps if cost["part"] == "decode_step"]
    update = costs(*words, *topology, "--programs", "learn")
    microbatches = [cost for cost in update if cost["part"] == "microbatch"]
    assert len(steps) == 3 and len(microbatches) == 1
    assert all(0.75 <= cost["planned_of_compiled"] <= 1.25 for cost in steps + microbatches)
