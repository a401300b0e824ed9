"""`run`: where and how to run. It changes no result and is not hashed."""

from pydantic import Field

from isojax.core.config.section import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section


class ProcessGroupConfig(Section):
    """The processes that run one cell together on a Ray cluster, placed together or not at all."""

    # How many, each on a node of its own where there are enough; null: as few as hold the mesh's devices.
    processes: PositiveInt | None = None
    tpu: str | None = None  # the TPU slice whose hosts they are, such as v5e:4x4
    slices: PositiveInt = 1  # of how many such slices
    gpus: PositiveInt | None = None  # GPUs per process; null: what the mesh takes
    cpus: PositiveFloat | None = None  # cores per process; null: what the mesh takes
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)  # what else a node must have, by Ray's names
    labels: dict[str, str] = Field(default_factory=dict)  # labels that a node must have, by Ray's names
    share: PositiveInt = 1  # cells on one accelerator at a time
    # How often a cell is started again, after its process group has died, without getting further.
    retries: NonNegativeInt = 3


class RunConfig(Section):
    """Where and how to run. It changes no result, except that a cell that goes on with another mesh agrees to rounding
    only, and that timing decides how far a sampler with devices of its own runs ahead."""

    dir: str = "runs"  # the folder that holds runs, or a URL of one (gs://bucket/runs: docs/hosts.md)
    mesh: str = "auto"  # how devices are divided, such as data=2,tensor=4; auto: one per cell, of several processes all
    # Devices of its own for an asynchronous sampler, in addition to those of `mesh`; null: sampler and trainer take
    # turns on the same devices.
    sampler_mesh: str | None = None
    cells_at_once: PositiveInt | None = None  # cells that run at a time; null: as many as there are devices for
    verifier_workers: PositiveInt | None = None  # processes that check responses; null: one per core
    # A cell's state is saved after the first update after so many seconds, at its end, and when the run is asked to end
    # (SIGTERM).
    checkpoint_seconds: NonNegativeFloat = 60.0
    keep_checkpoints: PositiveInt = 2  # how many of a cell's newest checkpoints are kept
    # GiB of a device, of which the planner may fill 85%; null asks the accelerator, and on a CPU divides what the
    # machine (or its cgroup) has by the devices in use.
    device_memory: PositiveFloat | None = None
    compilation_cache: bool = True  # whether compiled programs are kept on disk
    ray: str | None = None  # run the cells on a Ray cluster (local, auto or its address), each by a process group
    process_group: ProcessGroupConfig = ProcessGroupConfig()
    loggers: tuple[str, ...] = ("tensorboard",)  # where curves go besides the ledger: tensorboard, wandb, your module
    # Where a plug-in that is one file is looked up, before the working directory; commands add their configs' folders.
    plugin_folders: tuple[str, ...] = ()
