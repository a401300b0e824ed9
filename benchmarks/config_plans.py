"""What the configs of configs/paper take of a TPU slice, by the planner: the table of docs/reproduction.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isojax.core.config import load_configs
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.memory_model import MemoryEstimate
from isojax.launch.planner import DeviceBudget, fit_to_memory, plan_cells
from isojax.launch.time_estimate import find_chip, forecast_from_rates

ROOT = Path(__file__).parents[1]
DEVICE_VOCAB = 32  # at least the tokens of tasks that the device verifies
MODELS = ("models/qwen2.5-7b-instruct", "models/qwen3-4b-instruct", "models/llama-3.1-8b-instruct")
POD, POD_CHIP, POD_MESH = "v5p:4x4x4", "TPU v5", MeshShape(fsdp=16, tensor=4)


def plan(configs: Sequence[str], chip: str, mesh: MeshShape, chips: int) -> tuple[int, MemoryEstimate, float]:
    """(runs, memory of a chip, hours) of a sweep on a slice, by the planner; ValueError where it does not fit."""
    config = load_configs(configs)
    gib, rates = find_chip(chip)
    cell = config.cell.model_copy(update={"precision": config.cell.precision.for_platform("tpu")})
    cells = plan_cells(config.sweep)
    pairs = sorted({pair for c in cells for pair in c.pairs})
    is_device_task = cell.model.vocab is None
    vocab = cell.model.vocab or DEVICE_VOCAB
    budget = DeviceBudget(cell, pairs, mesh, vocab, is_device_task, "tpu", int(2**30 * gib))
    sweep = fit_to_memory(config.sweep, budget)
    if sweep is None:
        raise ValueError(f"{', '.join(configs)} does not fit on {chips} chips of {chip}, mesh {mesh}")
    at_once = min(len(cells), chips // mesh.devices)
    forecast = forecast_from_rates(budget.sizes(sweep), cells, config.sweep.budget, at_once, rates)
    return len(cells), budget.estimate(sweep), forecast.sweep_seconds / 3600


def plan_rows() -> list[list[str]]:
    """The page's table of the configs at the paper's scale."""
    rows = []
    for path in sorted((ROOT / "configs" / "paper").glob("*.yaml")):
        plans = [plan([f"paper/{path.stem}", model], POD_CHIP, POD_MESH, 64) for model in MODELS]
        memory = ", ".join(f"{memory.peak / 2**30:.0f}" for _, memory, _ in plans)
        days = ", ".join(f"{hours / 24:,.1f}" for _, _, hours in plans)
        rows.append([f"[`paper/{path.stem}`](../configs/paper/{path.name})", str(plans[0][0]), memory, days])
    return rows
