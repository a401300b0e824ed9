"""What configs take of TPU slices and GPUs that are not here, by the planner: the table of
configs/paper in docs/reproduction.md, and that of long responses in docs/performance.md.

    python benchmarks/config_plans.py        both tables
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from isojax.core.config import SweepConfig, load_config
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.device_budget import DeviceBudget, fit_to_memory
from isojax.launch.forecast import Forecast, forecast_sweep_times
from isojax.launch.memory_model import MemoryEstimate, SamplingPlan
from isojax.launch.planner import plan_cells
from isojax.launch.time_estimate import (
    TYPICAL_RATES,
    DeviceRates,
    find_chip,
    program_times,
)
from isojax.models.describe_sizes import describe_sizes

ROOT = Path(__file__).parents[1]
DEVICE_VOCAB = 32  # at least the tokens of tasks that the device verifies
MODELS = ("models/qwen2.5-7b-instruct", "models/qwen3-4b-instruct", "models/llama-3.1-8b-instruct")
POD, POD_CHIP, POD_MESH = "v5p:4x4x4", "TPU v5", MeshShape(fsdp=16, tensor=4)
H100 = "H100"
H100_GIB = 0.9 * 80e9 / 2**30  # what isojax lets jax take of 80 GB
SLICES = (
    ("v5e:4x4", "TPU v5 lite", 16),
    ("v6e:4x4", "TPU v6 lite", 16),
    ("v5p:2x2x1", "TPU v5", 4),
    ("8 x H100", H100, 8),
)
LONG_PROMPTS = 1024
RESPONSE_LENGTHS = (2048, 16_384, 32_768)
LONG_COLUMNS = [
    "`response_length`",
    "devices",
    "mesh",
    "slots per shard",
    "microbatch",
    "remat",
    "GiB",
    "rollouts/s",
]


class Plan(NamedTuple):
    """Of a sweep on a slice."""

    runs: int
    sweep: SweepConfig  # with its sizes
    memory: MemoryEstimate  # of a chip
    forecast: Forecast


def device(chip: str) -> tuple[str, float, DeviceRates]:
    """Platform, GiB and rates."""
    return ("gpu", H100_GIB, TYPICAL_RATES["gpu"]) if chip == H100 else ("tpu", *find_chip(chip))


def plan(
    configs: Sequence[str], chip: str, mesh: MeshShape, chips: int, words: Sequence[str] = ()
) -> Plan | None:
    """By the planner; None where it does not fit."""
    config = load_config(configs, words)
    platform, gib, rates = device(chip)
    precision = config.cell.precision.for_platform(platform)
    cell = config.cell.model_copy(update={"precision": precision})
    cells = plan_cells(config.sweep)
    pairs = sorted({pair for planned in cells for pair in planned.pairs})

    is_device_task = cell.model.vocab is None
    budget = DeviceBudget(
        cell,
        pairs,
        mesh,
        describe_sizes(cell.model, cell.model.vocab or DEVICE_VOCAB),
        SamplingPlan(is_device_task),
        platform,
        int(2**30 * gib),
    )
    sweep = fit_to_memory(config.sweep, budget)
    if sweep is None:
        return None

    at_once = min(len(cells), chips // mesh.devices)
    s = budget.sizes(sweep)
    times = program_times(s, rates)
    forecast = forecast_sweep_times(s, cells, config.sweep.budget, at_once, times, str(rates))
    return Plan(len(cells), sweep, budget.estimate(sweep), forecast)


def plan_rows() -> list[list[str]]:
    """The page's table of the configs at the paper's scale."""
    rows = []
    for path in sorted((ROOT / "configs" / "paper").glob("*.yaml")):
        plans = [plan([f"paper/{path.stem}", model], POD_CHIP, POD_MESH, 64) for model in MODELS]
        fitting = [p for p in plans if p is not None]
        assert len(fitting) == len(plans), f"{path.stem} does not fit on {POD}"
        memory = ", ".join(f"{p.memory.peak / 2**30:.0f}" for p in fitting)
        days = ", ".join(f"{p.forecast.sweep_seconds / 86_400:,.1f}" for p in fitting)
        link = f"[`paper/{path.stem}`](../configs/paper/{path.name})"
        rows.append([link, str(fitting[0].runs), memory, days])
    return rows


def long_rows() -> list[list[str]]:
    """Of Qwen2.5-7B, by response length and slice, on the mesh of fsdp and tensor with the most
    rollouts per second."""
    rows = []
    for T in RESPONSE_LENGTHS:
        words = [
            f"cell.sampling.prompt_length={LONG_PROMPTS}",
            f"cell.sampling.response_length={T}",
        ]
        for name, chip, chips in SLICES:
            plans: dict[MeshShape, Plan] = {}
            for tensor in (1, 2, 4):
                mesh = MeshShape(fsdp=chips // tensor, tensor=tensor)
                planned = plan(["gsm8k", MODELS[0]], chip, mesh, chips, words)
                if planned is not None:
                    plans[mesh] = planned
            if not plans:
                rows.append([f"{T:,}", name, "does not fit", "", "", "", "", ""])
                continue

            fastest = max(plans, key=lambda mesh: most_rollouts_per_second(plans[mesh]))
            best = plans[fastest]
            gib = f"{best.memory.sampling_peak / 2**30:.1f}, {best.memory.update_peak / 2**30:.1f}"
            row = [
                f"{T:,}",
                name,
                f"`{fastest}`",
                str(best.sweep.decode_slots),
                str(best.sweep.microbatch),
                f"`{best.sweep.remat}`",
                gib,
                f"{most_rollouts_per_second(best):.2g}",
            ]
            rows.append(row)
    return rows


def most_rollouts_per_second(planned: Plan) -> float:
    """Of the sweep's cells."""
    return max(planned.forecast.rollouts_per_second.values())


def main() -> None:
    for row in (*plan_rows(), *long_rows()):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
