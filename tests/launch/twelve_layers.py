"""A model of twelve layers, small enough to count its bytes and operations by hand, and a sweep
whose sizes are all set: what the tests of the memory model and of the time estimate share."""

from __future__ import annotations

from isojax.core.config import CellConfig, ModelConfig, SamplingConfig, SweepConfig
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.device_budget import DeviceBudget
from isojax.launch.memory_model import SamplingPlan
from isojax.models.describe_sizes import describe_sizes

MODEL = ModelConfig(
    family="llama",
    layers=12,
    width=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    mlp=128,
    vocab=1000,
    tied=True,
)
LENGTHS = SamplingConfig(prompt_length=11, response_length=8)
CELL = CellConfig(task="jsonl:none", model=MODEL, sampling=LENGTHS)

# Of a layer: attention 2 * 64 * (4 + 2) * 16 = 12,288; MLP 3 * 64 * 128 = 24,576; norms 128.
LAYER_NUMBERS = 36_992
TABLE_NUMBERS = 64_000  # 1000 x 64, of embedding and unembedding
NUMBERS = 12 * LAYER_NUMBERS + TABLE_NUMBERS + 64  # and the last norm

PAIRS = [(8, 4)]
SWEEP = SweepConfig(
    B_p=(8,),
    n=(4,),
    decode_slots=16,
    microbatch=8,
    prefill_batch=4,
    slots_per_prefix=1,
    remat="none",
)
LOCAL = SamplingPlan()  # a text task, sampled by the devices that train


def make_budget(
    cell: CellConfig = CELL,
    mesh: MeshShape | None = None,
    plan: SamplingPlan = LOCAL,
    backend: str = "cpu",
    memory: int = 0,
) -> DeviceBudget:
    """Of devices of so many bytes."""
    policy = describe_sizes(cell.model, 1000)
    return DeviceBudget(cell, PAIRS, mesh or MeshShape(), policy, plan, backend, memory)
