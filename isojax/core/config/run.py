"""`run`: where and how to run. It changes no result and is not hashed."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from isojax.core.config.section import Section


class ProcessGroupConfig(Section):
    """The processes that run one cell together on a Ray cluster, placed together or not at all.

    Attributes:
        processes: how many, each on a node of its own where there are enough; null: as few as hold the mesh's devices.
        tpu: the TPU slice whose hosts they are, such as v5e:4x4.
        slices: of how many such slices.
        gpus: GPUs per process; null: what the mesh takes.
        cpus: cores per process; null: what the mesh takes.
        resources: what else a process's node must have, by Ray's names.
        labels: labels that a process's node must have, by Ray's names.
        share: cells on one accelerator at a time.
        retries: how often a cell is started again, after its process group has died, without getting further.
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
    """Where and how to run. It changes no result, except that a cell that goes on with another mesh agrees to rounding
    only, and that timing decides how far a sampler with devices of its own runs ahead.

    Attributes:
        dir: the folder that holds runs, or a URL of one (gs://bucket/runs: docs/hosts.md).
        mesh: how devices are divided, such as data=2,tensor=4; auto: all devices to data.
        sampler_mesh: devices of its own for an asynchronous sampler, besides those of `mesh`; null: sampler and trainer
            take turns on the same devices.
        sampler_process: whether the sampler is a process of its own, which simulates `sampler_mesh` (null: one device)
            on a CPU.
        cells_at_once: how many cells run at a time; null: as many as the mesh fits into the devices.
        verifier_workers: processes that check responses; null: one per core.
        checkpoint_seconds: a cell's state is saved after the first update after so many seconds, at its end, and when
            the run is asked to end (SIGTERM).
        keep_checkpoints: how many of a cell's newest checkpoints are kept.
        device_memory: GB of a device, of which the planner may fill 85%; null asks the accelerator, and on a CPU
            divides what the machine (or its cgroup) has by the devices in use.
        compilation_cache: whether compiled programs are kept on disk.
        ray: run the cells on a Ray cluster (local, auto or its address), each by a process group.
        process_group: those processes.
        loggers: where the curves of each cell go besides its ledger: tensorboard, wandb, or a module of yours; [] for
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
    process_group: ProcessGroupConfig = ProcessGroupConfig()
    loggers: tuple[str, ...] = ("tensorboard",)
