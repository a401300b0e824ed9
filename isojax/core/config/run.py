"""`run`: where and how to run. It changes no result and is not hashed."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from isojax.core.config.section import Section


class ProcessGroupConfig(Section):
    """The processes that are one cell's run on a Ray cluster, placed together or not at all.

    `processes`: how many, each on a node of its own where there are enough; null: as few as hold the mesh's devices.
    `tpu`: they are the hosts of a TPU slice, such as v5e:4x4 (of `slices` slices). `gpus`: GPUs of a process; `cpus`:
    cores; null: what the mesh takes.
    `resources` and `labels`: what else a process's node must have, by Ray's names. `share`: cells on one accelerator at
    a time.
    `retries`: how often a cell is begun again, after its gang has died, without getting further.
    """

    processes: PositiveInt | None = None
    tpu: str | None = None
    slices: PositiveInt = 1
    gpus: PositiveInt | None = None
    cpus: PositiveFloat | None = None
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    share: PositiveInt = 1
    retries: NonNegativeInt = 3


class RunConfig(Section):
    """Where and how to run; changes no result (but for rounding, where a half-done cell goes on with another mesh, and
    for how far a pipeline runs ahead, where its sampler has devices of its own).

    `dir`: the folder that holds runs, or a URL of one (gs://bucket/runs: docs/hosts.md).
    `sampler_mesh`: devices of its own for the sampler of a pipeline, beside those of `mesh`; null: they take turns on
    the same ones.
    `sampler_process`: the sampler is a process of its own, which simulates `sampler_mesh` (null: one device); on a CPU.
    `cells_at_once`: null runs as many cells side by side as the mesh fits into the devices. `checkpoint_seconds`: a
    cell's state is saved after the first update after this long, at its end, and when the run is told to end (SIGTERM);
    the newest `keep_checkpoints` are kept. `verifier_workers`: processes that check responses; null takes one for each
    core. `device_memory`: GB that a device has, of which the planner may fill 85%; null asks the accelerator, and on a
    CPU shares what the machine (or its cgroup) has among the devices at work. `ray`: run the cells on a Ray cluster
    (local, auto or its address), each by a gang of processes.
    `loggers`: where the curves of each cell go beside its ledger: tensorboard, wandb, or a module of your own; [] for
    nowhere.
    """

    dir: str = "runs"
    mesh: str = "auto"
    sampler_mesh: str | None = None
    sampler_process: bool = False
    cells_at_once: PositiveInt | None = None
    verifier_workers: PositiveInt | None = None
    checkpoint_seconds: NonNegativeFloat = 60.0
    keep_checkpoints: PositiveInt = 2
    device_memory: PositiveFloat | None = None
    compilation_cache: bool = True
    ray: str | None = None
    gang: ProcessGroupConfig = ProcessGroupConfig()
    loggers: tuple[str, ...] = ("tensorboard",)
