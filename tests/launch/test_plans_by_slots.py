"""Plans of ten configs by their slots, for the chips of a v6e slice: slots beyond a cell's rollouts
make nothing faster."""

from __future__ import annotations

import pytest

from isojax.core.config import load_config
from isojax.launch.local.topology_plan import SliceDevices, TopologyPlan, plan_topology
from isojax.launch.time_estimate import find_chip, program_times, rollout_rates

pytestmark = pytest.mark.slow

SLOTS = (8, 16, 32, 64, 128, 256)
CHIPS = SliceDevices("TPU v6 lite", 16)
CONFIGS = (
    ("quickstart",),
    ("guess",),
    ("hard",),
    ("gsm8k", "models/smollm2-135m"),
    ("gsm8k", "models/qwen2.5-7b-instruct"),
    ("paper/easy", "models/qwen2.5-7b-instruct"),
    ("paper/hard", "models/qwen2.5-7b-instruct"),
    ("tpu/qwen2.5-0.5b", "models/qwen2.5-0.5b-instruct"),
    ("tpu/gemma3-270m", "models/gemma3-270m-it"),
    ("tpu/qwen2.5-1.5b-lora", "models/qwen2.5-1.5b-instruct"),
)


def seconds_by_slots(plan: TopologyPlan, pair: tuple[int, int]) -> dict[int, float]:
    """Seconds of an update of (B_p, n) and its sampling, by slots."""
    _, rates = find_chip(plan.devices.kind)
    seconds = {}
    for slots in SLOTS:
        sweep = plan.config.sweep.model_copy(
            update={"decode_slots": slots, "slots_per_prefix": 1, "remat": "layer"}
        )
        s = plan.budget.sizes(plan.budget.resolve_sizes(sweep))
        B_p, n = pair
        seconds[slots] = B_p * n / rollout_rates(s, [pair], program_times(s, rates))[pair]
    return seconds


@pytest.mark.parametrize("names", CONFIGS, ids="+".join)
def test_slots_beyond_the_rollouts_make_no_plan_faster(names: tuple[str, ...]) -> None:
    plan = plan_topology(load_config(list(names), ["run.mesh=fsdp=2"]), "v6e:4x4", CHIPS)
    for pair in (min(plan.budget.pairs), max(plan.budget.pairs)):
        B_p, n = pair
        seconds = seconds_by_slots(plan, pair)
        shard_rollouts = B_p * n / plan.budget.mesh.shards
        beyond = [seconds[slots] for slots in SLOTS if slots >= shard_rollouts]
        assert beyond == sorted(beyond)
        # as long as all slots are filled twice, more of them are faster
        filled = [seconds[slots] for slots in SLOTS if 2 * slots <= shard_rollouts]
        assert filled == sorted(filled, reverse=True)
