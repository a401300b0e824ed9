"""The devices that sample, where they are not those that train; and what cannot be sampled there."""

from collections.abc import Sequence

from isojax.core.config import RLConfig, RunConfig
from isojax.core.errors import InputError
from isojax.distributed.mesh_spec import MeshShape, parse_mesh


def sampler_mesh_shape(
    rl: RLConfig, run: RunConfig, devices: int, trainer_devices: int, backend: str
) -> MeshShape | None:
    """The sampler's own mesh, or None where it shares the trainer's.

    It is made of the devices that the trainer leaves; or, in a process of its own, of as many simulated devices as this
    process has.

    Raises:
        InputError: rollouts are not asynchronous, there are too few devices, or a second process cannot have devices.
    """
    if run.sampler_mesh is None and not run.sampler_process:
        return None
    if not rl.max_staleness:
        setting = "run.sampler_process = true" if run.sampler_process else f"run.sampler_mesh = {run.sampler_mesh}"
        raise InputError(
            f"{setting} with cell.rl.max_staleness = {rl.max_staleness}: one of sampler and trainer would always wait "
            "for the other. Expected cell.rl.max_staleness of 1 or more, or a sampler that shares the trainer's mesh."
        )
    if run.sampler_process and backend != "cpu":
        raise InputError(
            f"run.sampler_process = true on this machine's {backend}: expected a CPU, as this process holds the "
            "accelerators. Give the sampler some of them: run.sampler_process=false run.sampler_mesh=data=1."
        )
    return parse_mesh(run.sampler_mesh or "auto", devices, 0 if run.sampler_process else trainer_devices)


def check_divisible_batches(pairs: Sequence[tuple[int, int]], shards: int) -> None:
    """InputError where a batch's problems cannot be divided among the sampler's shards."""
    if uneven_B_p := next((B_p for B_p, _ in pairs if B_p % shards), None):
        raise InputError(
            f"cell.rl.max_staleness: sweep.B_p = {uneven_B_p} is no multiple of the {shards} shards (data x fsdp) of "
            "the mesh that samples; asynchronous rollouts assign whole groups to shards. Change B_p or the mesh."
        )
