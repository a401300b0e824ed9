"""`cell` as a whole, with its grid of evaluations; `sweep`, the grid of (B_p, n); and `run`."""

import math
import re
from collections.abc import Iterator
from itertools import count, takewhile
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from isojax.core.config.data import (
    RESERVED_NAMES,
    DataConfig,
    PromptConfig,
    RewardConfig,
    VerifierConfig,
    check_names,
)
from isojax.core.config.marks import PlainText, PluginName
from isojax.core.config.model import BasePolicyConfig, ModelConfig, PrecisionConfig, SamplingConfig
from isojax.core.config.rl import RLConfig
from isojax.core.config.section import (
    HostFolder,
    NonNegativeFloat,
    NonNegativeInt,
    PluginFolderPath,
    PositiveFloat,
    PositiveInt,
    ReadPath,
    Section,
    SweepFolder,
    TaskName,
    Text,
)
from isojax.core.durations import parse_duration
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT, MAX_EVALUATIONS, MAX_SAMPLES, MAX_SETTING, MAX_WORKERS
from isojax.core.nouns import SPEND_PREFIX
from isojax.core.schedule import parse_schedule

Rollouts = Annotated[int, Field(gt=0, le=MAX_COUNT)]

WHOLE_GRID = {"strategy": "grid", "total_rollouts": None}  # every run of the grid to its end
# Settings of a sweep that the planner chooses once, where they are null, and that are stored with
# the sweep.
AUTOSIZED_SETTINGS = (
    "decode_slots",
    "microbatch",
    "prefill_batch",
    "slots_per_prefix",
    "decode_attention",
    "forward_attention",
    "remat",
)


class EvalConfig(Section):
    """Validation by avg@`samples` at C = 0 and at the first update that reaches each C in start *
    ratio^k."""

    samples: Annotated[int, Field(gt=0, le=MAX_SAMPLES)] = 4  # rollouts per validation problem
    # Further problem sets to evaluate on, by name: task strings such as {hard:
    # "tfds:splits#hard_validation"}; their metrics are called hard/avg@4 and so on.
    extra: dict[str, TaskName] = Field(default_factory=dict)
    # At most so many training problems, the same for all cells, are evaluated each time too, and
    # their correct rollouts recorded, which shows how training moves single problems (the paper's
    # Figs. 11 and 27).
    panel: NonNegativeInt = 0
    start: Annotated[float, Field(ge=1, le=MAX_COUNT)] = 1024  # the first C, in rollouts
    ratio: Annotated[float, Field(gt=1, le=MAX_SETTING)] = 1.3  # of one C to the next

    @field_validator("extra")
    @classmethod
    def _check_set_names(cls, extra: dict[str, str]) -> dict[str, str]:
        check_names(extra, "set", reserved=RESERVED_NAMES)
        return extra

    def evaluation_targets(self, budget: int) -> list[int]:
        """The C at which a run of `budget` rollouts is evaluated, rising.

        0, then every distinct ceil(start * ratio^k), k = 0, 1, ..., within the budget. So the
        values of a smaller budget are the first ones of a larger. InputError where that is none, or
        too many.
        """
        if budget < self.start:
            raise InputError(
                where="sweep.budget",
                found=f"given {budget}, which is below the first evaluation",
                expected=f"at least cell.eval.start = {self.start}",
            )

        # Of a ratio next to 1 there would be billions, most of them at the same C.
        steps = math.log(budget / self.start) / math.log(self.ratio)
        if steps > MAX_EVALUATIONS:
            span = f"from cell.eval.start = {self.start} to sweep.budget = {budget}"
            raise InputError(
                where="cell.eval.ratio",
                found=f"given {self.ratio}, which takes {steps:.3g} steps {span}",
                expected=f"at most {MAX_EVALUATIONS:,} steps",
                fix="The usual ratio is 1.3.",
            )

        within_budget = takewhile(lambda target: target <= budget, self._grid())
        return [0, *dict.fromkeys(within_budget)]

    def next_target(self, budget: int) -> int:
        """The first C beyond the budget at which an evaluation would be due."""
        return next(target for target in self._grid() if target > budget)

    def _grid(self) -> Iterator[int]:
        """Every C of the grid, without end; some of the first may be there twice."""
        # Rounded before it is rounded up, as 1024 * 1.25**2 may be a little more than 1600.
        return (math.ceil(round(self.start * self.ratio**k, 6)) for k in count())


class CellConfig(Section):
    """Everything that decides what a run of given (B_p, n, seed) measures. Hashed."""

    task: TaskName = "solvers"  # the source of problems, such as jsonl:FILE (docs/problems.md)
    model: ModelConfig = ModelConfig()
    base: BasePolicyConfig = BasePolicyConfig()
    data: DataConfig = DataConfig()
    prompt: PromptConfig = PromptConfig()
    verifier: VerifierConfig = VerifierConfig()
    reward: RewardConfig = RewardConfig()
    sampling: SamplingConfig = SamplingConfig()
    precision: PrecisionConfig = PrecisionConfig()
    rl: RLConfig = RLConfig()
    eval: EvalConfig = EvalConfig()


class SweepConfig(Section):
    """The grid of (B_p, n), seeds, each cell's budget, and the programs' static sizes (null: the
    planner chooses)."""

    B_p: tuple[PositiveInt, ...] = (16,)  # problems per batch
    n: tuple[PositiveInt, ...] = (2, 4, 8, 16, 32)  # rollouts per problem
    B_max: PositiveInt = 1024  # the largest B_p * n; larger cells of the grid are left out
    # Runs whose B_p and n change along C, besides those of the grid, by name (core/schedule.py has
    # all forms): {growing: "32x4, 32x8 from 5000, 32x16 from 15000"}. With B_p=[] and n=[] they are
    # the whole sweep.
    schedules: dict[str, Text] = Field(default_factory=dict)
    # of each pair and schedule; they are 1000 * seed + 0, 1, ...
    seeds: Annotated[int, Field(ge=1, le=1000)] = 1
    seed: int = Field(default=0, ge=0, le=2_000_000)  # of the sweep
    budget: Rollouts = 250_000  # C of each run, in rollouts; its last evaluation is due within it
    decode_slots: PositiveInt | None = None  # R, rollouts that a shard samples at a time
    microbatch: PositiveInt | None = None  # m, rollouts per shard in one forward and backward pass
    prefill_batch: PositiveInt | None = None  # g, problems that a shard prefills at once
    # W, slots that share one prompt's keys and values, which pays for long prompts.
    slots_per_prefix: PositiveInt | None = None
    # The sampler's attention: plain, or a kernel of this backend (pallas on a TPU, triton on an
    # NVIDIA GPU).
    decode_attention: Literal["plain", "pallas", "triton"] | None = None
    # the trainer's, of a TPU or an NVIDIA GPU
    forward_attention: Literal["plain", "pallas", "cudnn"] | None = None
    # layer computes a layer's inner values again for its gradient, which takes less memory and a
    # third more time in the update; null: layer where none does not fit, or only in smaller
    # microbatches that take longer.
    remat: Literal["none", "layer"] | None = None
    # Whether Adam's moments and a critic are in the host's memory while a device samples and
    # evaluates, so that more slots fit; each update then waits for two copies. Not for tasks
    # verified on device or asynchronous runs.
    moments_on_host: bool = False
    # grid runs every cell to `budget`; adaptive spends `total_rollouts` where n*(C) is least
    # certain; spend, which `isojax spend` sets, spends `budget` on one policy, whose n it chooses
    # on the way; or a file or module of yours (docs/extending.md).
    strategy: Annotated[str, PluginName(("launch.strategies",))] = "grid"
    # rollouts that a strategy which chooses runs, as adaptive, spends in all at most; null: half of
    # what the grid takes for adaptive, no limit for yours
    total_rollouts: Rollouts | None = None

    @property
    def trains_one_policy(self) -> bool:
        """Whether the whole budget is for one policy, whose n is chosen on the way, and not for the
        runs of a grid, to which a law is fitted."""
        return self.strategy == "spend"

    @property
    def chooses_runs(self) -> bool:
        """Whether its strategy chooses on the way which runs of the grid are trained, and how
        far."""
        return self.strategy != "grid" and not self.trains_one_policy

    @field_validator("schedules")
    @classmethod
    def _check_schedules(cls, schedules: dict[str, str]) -> dict[str, str]:
        check_names(schedules, "schedule")
        for name, text in schedules.items():
            # Names of cells without a schedule, of runs of `isojax spend`, and of cells' folders.
            if re.fullmatch(rf"\d+x\d+|{SPEND_PREFIX}\d+|.*-s\d+", name):
                raise PydanticCustomError(
                    "name", "{rule}", {"rule": f"a schedule's name that is no cell's; {name} is"}
                )
            try:
                parse_schedule(text)
            except InputError as e:
                raise PydanticCustomError("schedule", "{problem}", {"problem": str(e)}) from e
        return schedules


class ProcessGroupConfig(Section):
    """The processes that run one cell together on a Ray cluster, placed together or not at all."""

    # How many, each on another node if there are enough; null: as few as hold the mesh's
    # devices.
    processes: PositiveInt | None = None
    tpu: Text | None = None  # the TPU slice whose hosts they are, such as v5e:4x4
    slices: PositiveInt = 1  # of how many such slices
    gpus: PositiveInt | None = None  # GPUs per process; null: what the mesh takes
    cpus: PositiveFloat | None = None  # cores per process; null: what the mesh takes
    # what else a node must have, by Ray's names
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    # labels that a node must have, by Ray's names
    labels: dict[str, Text] = Field(default_factory=dict)
    # How often a run is started again, after its process group has died, without getting further.
    retries: NonNegativeInt = 3


# Checkpoints of each run, where the setting is left open and the disk has room: if the newest is
# damaged, a resumed run goes on from the one before.
DEFAULT_KEPT_CHECKPOINTS = 2
LOCAL_ROLLOUTS = "local"  # isojax's own engine
SERVER_ROLLOUTS = "server"  # the engine that asks the server of `run.server`


class ServerConfig(Section):
    """A server of language models that samples with the policy as it is trained
    (docs/servers.md)."""

    # of the server that samples the rollouts of training, such as http://localhost:8000
    url: Text | None = None
    # A folder that isojax writes and the server reads: each policy becomes a folder of weights in
    # it.
    weights: HostFolder | None = None
    dtype: Literal["bfloat16", "float32"] = "bfloat16"  # what these weights are stored in
    # The requests that make the server load them, by path: {/update_weights_from_disk: {model_path:
    # "{path}"}}. {path} stands for the folder, {version} for the number of the update. null: as
    # vLLM or SGLang takes them.
    update: Annotated[dict[str, dict[str, Any]], PlainText()] | None = None
    requests: PositiveInt = 32  # to the server, at a time
    timeout: PositiveFloat = 600.0  # seconds until a request is answered


class RunConfig(Section):
    """Where and how to run. It changes no result, except that a run that goes on with another mesh
    agrees to rounding only, and that timing decides how far a sampler with separate devices runs
    ahead."""

    # the folder that holds runs, or a URL of one (gs://bucket/runs: docs/hosts.md)
    dir: HostFolder = "runs"
    # how devices are divided, such as data=2,tensor=4; auto: one per cell, of several processes all
    mesh: Text = "auto"
    # A sweep's folder, whose base policy and labels a new run with the same settings takes over;
    # null: makes its own.
    base_from: SweepFolder | None = None
    # Separate devices for an asynchronous sampler, in addition to those of `mesh`; null: sampler
    # and trainer take turns.
    sampler_mesh: Text | None = None
    # with ray: how many of a run's processes only sample, its last ones
    sampler_processes: NonNegativeInt = 0
    # runs that train at a time; null: as many as there are devices for
    cells_at_once: PositiveInt | None = None
    # processes; null: one per core
    verifier_workers: Annotated[int, Field(gt=0, le=MAX_WORKERS)] | None = None
    # A run's state is saved after the first update after so many seconds, at its end, and at a
    # SIGTERM. null: every 60 s or more, up to an hour, so that training waits for its saves at most
    # 5% of the time, and never for the checkpoint before to be written.
    checkpoint_seconds: NonNegativeFloat | None = None
    # How many of a run's newest checkpoints are kept. null: 2, or 1 where the disk has no room for
    # those of all runs.
    keep_checkpoints: PositiveInt | None = None
    # MB/s at which a plan expects checkpoints to be written. null: a test write says so where
    # run.dir is on this machine, and elsewhere 100 MB/s are assumed.
    disk_rate: PositiveFloat | None = None
    # So long after the command began, such as 8h or 90m, runs save their state and end, as at a
    # SIGTERM; --resume goes on. `isojax difficulty` keeps its labels and ends. For a session that
    # ends by itself: leave minutes for an update and a save. Null: no limit.
    time_limit: Text | None = None
    # After so many starts in a row that recorded nothing, a sweep is refused: for a script that
    # starts it again after every preemption, and pays for each start. Null: no limit.
    max_idle_starts: PositiveInt | None = None
    # GiB of a device, of which the planner may fill 85%; null asks the accelerator, and on a CPU
    # divides what the machine (or its cgroup) has by the devices in use.
    device_memory: PositiveFloat | None = None
    compilation_cache: bool = True  # whether compiled programs are kept on disk
    # run the cells on a Ray cluster (local, auto or its address), each by a process group
    ray: Text | None = None
    process_group: ProcessGroupConfig = ProcessGroupConfig()
    # where curves go besides the ledger: tensorboard, wandb, your module
    loggers: tuple[Annotated[str, PluginName(("runs.loggers",))], ...] = ("tensorboard",)
    # The engine that samples the rollouts of training: local, isojax's own; server, that of
    # run.server; or a file or module of yours.
    rollouts: Annotated[str, PluginName(("rl.engines",))] = LOCAL_ROLLOUTS
    server: ServerConfig = ServerConfig()
    # The URL of a server that samples evaluations, in the place of isojax's own sampler; run.server
    # has its settings.
    eval_server: Text | None = None
    # A hook that sees every update, its rollouts and its metrics: save_rollouts, or a file or
    # module of yours.
    on_update: Annotated[str, PluginName(("train.update_hooks",))] | None = None
    # Where a plug-in that is one file is looked up, before the working directory; commands add
    # their configs' folders.
    plugin_folders: tuple[PluginFolderPath, ...] = ()
    # Further files and folders that go to the hosts with the config (`isojax pack`), such as what
    # your plug-ins read.
    files: tuple[ReadPath, ...] = ()
    # Folders that the hosts have, such as [/mnt/models]: what the config names in them is not sent.
    host_folders: tuple[HostFolder, ...] = ()

    @field_validator("time_limit")
    @classmethod
    def _check_time_limit(cls, time_limit: str | None) -> str | None:
        if time_limit is not None and parse_duration(time_limit) is None:
            raise PydanticCustomError("duration", "a time in one unit, such as 8h or 90m")
        return time_limit

    @property
    def time_limit_seconds(self) -> float | None:
        """`time_limit` in seconds; None: no limit."""
        return None if self.time_limit is None else parse_duration(self.time_limit)

    @property
    def evaluations(self) -> str:
        """The engine that samples evaluations."""
        return LOCAL_ROLLOUTS if self.eval_server is None else SERVER_ROLLOUTS
