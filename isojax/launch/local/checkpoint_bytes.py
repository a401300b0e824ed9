"""The size of a checkpoint where no device of the run is here: the policy is only described."""

import jax

from isojax.core.config import Config
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.device_budget import DeviceBudget
from isojax.launch.local.topology_plan import planning_model, planning_task
from isojax.launch.memory_model import SamplingPlan
from isojax.launch.planner import plan_cells
from isojax.models.describe_sizes import describe_sizes
from isojax.tasks.task_defaults import with_task_defaults


def checkpoint_bytes(config: Config) -> int:
    """Bytes of one checkpoint of a config's runs, whatever they run on.

    From here on jax in this process uses the CPU alone. InputError where nothing here says the
    shape of the model.
    """
    jax.config.update("jax_platforms", "cpu")
    model = planning_model(config.cell.model)
    cell = with_task_defaults(config.cell).with_settings(model=model)
    vocab = model.vocab or planning_task(config.model_copy(update={"cell": cell})).vocab

    # Every (B_p, n) of the sweep; a cell has several where its B_p or n may change.
    pairs = sorted({pair for plan in plan_cells(config.sweep) for pair in plan.pairs})
    # What is saved depends on the policy and the recipe alone: mesh, backend and memory are any.
    budget = DeviceBudget(
        cell,
        pairs=pairs,
        mesh=MeshShape(),
        policy=describe_sizes(model, vocab),
        sampling=SamplingPlan(),
        backend="cpu",
        device_memory=0,
    )
    return budget.checkpoint_bytes(budget.resolve_sizes(config.sweep))
