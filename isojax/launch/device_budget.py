"""Whether a sweep fits a device, with which sizes, and what would fit where it does not.

Sizes that a sweep leaves null are chosen so that what memory_model.py estimates fits a device:
those for speed (planner.py), else of all smaller ones, with remat or without, the fastest by
time_estimate.py. Where none fits, `suggest_fit` names the nearest setting or mesh that would.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from isojax.core.config import CellConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.core.policy_sizes import PolicySizes
from isojax.core.shapes import SamplerShapes
from isojax.core.terminal import warn
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.device_sizes import DeviceSizes
from isojax.launch.device_weights import DeviceWeights
from isojax.launch.memory_model import MEMORY_MARGIN, MemoryEstimate, SamplingPlan, estimate_memory
from isojax.launch.planner import MAX_SHARD_ROWS, resolve_sweep_sizes, with_kernels
from isojax.launch.time_estimate import GIB, TYPICAL_RATES, program_times, rollout_rates

MEMORY_UTILIZATION = 1 - MEMORY_MARGIN  # share of a device's memory that a plan may take
MAX_MESH_GROWTH = 64  # times as many devices are considered where a sweep does not fit
MIN_SHOWN_GIB = 0.001  # a smaller size is shown as less than this
# The settings of a sweep that decide what it takes of a device.
SIZE_SETTINGS = ("decode_slots", "microbatch", "prefill_batch", "slots_per_prefix", "remat")
CGROUP_LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True)
class DeviceBudget:
    """What a sweep has to fit: its settings, its mesh, and the memory of a device."""

    cell: CellConfig
    pairs: Sequence[tuple[int, int]]  # every (B_p, n) of the sweep
    mesh: MeshShape
    policy: PolicySizes
    sampling: SamplingPlan
    backend: str  # as jax names it: cpu, gpu or tpu
    device_memory: int  # bytes
    # By name of a program ("train", "weights", "decode" or "learn"), the most bytes that its
    # estimate may be, where a compiler has found the estimate too small.
    program_limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def usable_memory(self) -> int:
        return int(MEMORY_UTILIZATION * self.device_memory)

    @cached_property
    def weights(self) -> DeviceWeights:
        """A device's part of the policy's weights."""
        return DeviceWeights(self.policy, self.mesh, self.cell.precision.for_platform(self.backend))

    def sizes(
        self, sweep: SweepConfig, pairs: Sequence[tuple[int, int]] | None = None
    ) -> DeviceSizes:
        """A device's part of a sweep whose sizes are chosen (none of the four below is None).

        pairs: other (B_p, n) than the sweep's, such as those of an evaluation.
        """
        R = sweep.decode_slots
        m = sweep.microbatch
        g = sweep.prefill_batch
        W = sweep.slots_per_prefix
        assert R and m and g and W, "the planner chooses them"

        pairs = pairs or self.pairs
        # An evaluation may have fewer rollouts of a problem than slots that share a prompt in
        # training; then no slots share one in it.
        can_share = all(n >= W for _, n in pairs)
        shapes = SamplerShapes(
            pairs,
            shards=self.mesh.shards,
            slots=R,
            microbatch=m,
            prompt_length=self.cell.sampling.prompt_length,
            response_length=self.cell.sampling.response_length,
            prefill_batch=g,
            slots_per_prefix=W if can_share else 1,
        )
        # The kinds of attention, where they are not set: the backend's, or None for the plain one.
        kernels = with_kernels(sweep, self.mesh, self.backend, self.cell)
        return DeviceSizes(
            self.cell,
            remat=sweep.remat == "layer",
            shapes=shapes,
            weights=self.weights,
            backend=self.backend,
            attention=kernels.forward_attention or "plain",
            decode_attention=kernels.decode_attention or "plain",
        )

    def estimate(self, sweep: SweepConfig) -> MemoryEstimate:
        """The bytes that a sweep with all sizes chosen takes of each device."""
        # A CPU's devices have the host's memory: moments that leave them stay where they were.
        moments_leave = sweep.moments_on_host and self.backend != "cpu"
        evaluated = [(self.cell.data.validation, self.cell.eval.samples)]
        evaluation_sizes = self.sizes(sweep, evaluated)
        return estimate_memory(self.sizes(sweep), evaluation_sizes, self.sampling, moments_leave)

    def checkpoint_bytes(self, sweep: SweepConfig) -> int:
        """Bytes of one checkpoint, a file for all devices together.

        It has the trained parameters, those of a critic, and Adam's two moments of each.
        """
        whole = replace(self, mesh=MeshShape()).sizes(sweep)
        return 3 * (whole.weights.trained_bytes + whole.critic_bytes)

    def fits(self, sweep: SweepConfig) -> bool:
        """Whether a sweep with all sizes chosen is estimated to fit a device, with the margin."""
        memory = self.estimate(sweep)
        within_limits = all(
            memory.program_bytes[name] <= limit for name, limit in self.program_limits.items()
        )
        # The weights' peak is a sum of whole arrays, and so no estimate that needs a margin.
        return (
            memory.peak <= self.usable_memory
            and memory.weights_peak <= self.device_memory
            and within_limits
        )

    def seconds_per_rollout(self, sweep: SweepConfig) -> float:
        """Seconds on a typical device of the backend, summed over the sweep's (B_p, n).

        It decides which sizes are faster; it is no forecast.
        """
        s = self.sizes(sweep)
        times = program_times(s, TYPICAL_RATES[self.backend])
        return sum(1 / rate for rate in rollout_rates(s, self.pairs, times).values())

    def resolve_sizes(self, sweep: SweepConfig) -> SweepConfig:
        """The sweep with its sizes chosen for speed, where they are not set."""
        return resolve_sweep_sizes(sweep, self.mesh.shards, self.cell)

    def smallest_sizes(self, requested: SweepConfig) -> SweepConfig:
        """The sweep with the smallest sizes where they are not set: if it does not fit, none do."""
        smallest = {
            "decode_slots": requested.slots_per_prefix or 1,  # one prefix group
            "microbatch": 1,
            "prefill_batch": 1,
            "remat": "layer",
        }
        unset = {key: size for key, size in smallest.items() if getattr(requested, key) is None}
        return self.resolve_sizes(requested.model_copy(update=unset))

    def all_sizes(self, requested: SweepConfig) -> Iterator[SweepConfig]:
        """The sweep with each combination of sizes: those for speed, and halves of them.

        Sizes that are set in `requested` stay.
        """
        remats = (requested.remat,) if requested.remat else ("none", "layer")
        slots_step = requested.slots_per_prefix or 1  # whole prefix groups
        for remat in remats:
            with_remat = requested.model_copy(update={"remat": remat})
            for with_slots in self._halves(requested, with_remat, "decode_slots", slots_step):
                # The microbatch comes last: which is chosen for speed depends on prefill_batch.
                for with_prompts in self._halves(requested, with_slots, "prefill_batch"):
                    for sizes in self._halves(requested, with_prompts, "microbatch"):
                        yield self.resolve_sizes(sizes)

    def _halves(
        self, requested: SweepConfig, sweep: SweepConfig, key: str, step: int = 1
    ) -> Iterator[SweepConfig]:
        """The sweep with one of its sizes chosen for speed, then half of that, and so on.

        sweep: `requested` with some sizes chosen already. key: the size's name, such as
        "decode_slots". Halves are rounded down to multiples of `step` and end at it. Where
        `requested` sets the size, only that one comes.
        """
        size = getattr(self.resolve_sizes(sweep), key)
        yield sweep.model_copy(update={key: size})

        is_open = getattr(requested, key) is None
        while is_open and size >= 2 * step:
            size = size // 2 // step * step
            yield sweep.model_copy(update={key: size})


# ------------------------------------------------------------------ sizes that fit


def fit_to_memory(requested: SweepConfig, budget: DeviceBudget) -> SweepConfig | None:
    """The sweep, its open sizes chosen for speed if they fit, else the fastest sizes that do.

    Open sizes are those that are None in `requested`. None where nothing fits. Sizes for speed
    serve the smallest cell; larger cells may want more slots, which are tried last.
    """
    sized_for_speed = budget.resolve_sizes(requested)
    if budget.fits(sized_for_speed):
        return _with_most_useful_slots(requested, sized_for_speed, budget)
    if not budget.fits(budget.smallest_sizes(requested)):
        return None

    fitting = [sweep for sweep in budget.all_sizes(requested) if budget.fits(sweep)]
    fastest = min(fitting, key=budget.seconds_per_rollout)
    return _with_most_useful_slots(requested, fastest, budget)


def _with_most_useful_slots(
    requested: SweepConfig, sweep: SweepConfig, budget: DeviceBudget
) -> SweepConfig:
    """The sweep with the slots, of those that fit, that make the rollouts of all cells fastest.

    sweep: sizes that fit, chosen for `requested`. The numbers tried are those with which some cell
    begins without empty slots. A step of more slots takes longer, also for smaller cells, which
    leave some of them empty; the estimate includes both effects. On a CPU more slots gain no speed.
    """
    slots, prefix_width = sweep.decode_slots, sweep.slots_per_prefix
    if requested.decode_slots is not None or budget.backend == "cpu" or not slots:
        return sweep

    shards = budget.mesh.shards
    rollouts_of_cells = {math.ceil(B_p * n / shards) for B_p, n in budget.pairs}
    candidates = [sweep]
    for more_slots in sorted({min(rows, MAX_SHARD_ROWS) for rows in rollouts_of_cells}):
        larger = sweep.model_copy(update={"decode_slots": more_slots})
        is_whole = prefix_width is None or more_slots % prefix_width == 0
        if more_slots > slots and is_whole and budget.fits(larger):
            candidates.append(larger)
    return min(candidates, key=budget.seconds_per_rollout)  # of equal ones, the fewest slots


def fewest_devices_that_fit(
    requested: SweepConfig, budget: DeviceBudget, num_devices: int
) -> MeshShape | None:
    """The fastest mesh of the fewest devices, 1, 2, 4, ... up to `num_devices`, that fits.

    requested: whose sizes stay where they are set. None where none fits.
    """
    count = 1
    while count <= num_devices:
        fitting = []
        for mesh in _even_meshes(budget, count):
            on_mesh = replace(budget, mesh=mesh)
            sweep = fit_to_memory(requested, on_mesh)
            if sweep is not None:
                fitting.append((on_mesh.seconds_per_rollout(sweep), mesh))
        if fitting:
            return min(fitting, key=itemgetter(0))[1]
        count *= 2
    return None


def check_moments(sweep: SweepConfig, budget: DeviceBudget) -> None:
    """InputError where Adam's moments cannot leave for the host's memory while a device samples."""
    is_asynchronous = budget.cell.rl.max_staleness is not None
    if not sweep.moments_on_host or not (budget.sampling.on_device or is_asynchronous):
        return
    reason = (
        "the task is verified on device"
        if budget.sampling.on_device
        else "cell.rl.max_staleness is set"
    )
    raise InputError(
        where="sweep.moments_on_host",
        found=f"given true, but {reason}, so that a device samples and trains at the same time",
        expected="false, or a synchronous run of a text task",
    )


def autosize_sweep(requested: SweepConfig, budget: DeviceBudget, is_new_run: bool) -> SweepConfig:
    """The sweep with sizes that fit; those of a run that goes on stay as they are.

    requested: the sweep as its config has it. is_new_run: False where the folder holds a run, whose
    sizes `requested` has then. Where nothing fits: InputError for a new run whose decode_slots and
    microbatch were left to the planner, else a warning, as the estimate may be wrong.
    """
    check_moments(requested, budget)
    sweep = requested
    if is_new_run:
        sweep = fit_to_memory(requested, budget) or budget.smallest_sizes(requested)
    if budget.fits(sweep):
        return sweep

    # A CPU's devices share its memory, so that more of them are no help.
    doublings = range(MAX_MESH_GROWTH.bit_length()) if budget.backend != "cpu" else ()
    device_counts = [budget.mesh.devices << k for k in doublings]
    larger_meshes = [(f"{count} such devices", count) for count in device_counts]
    shortage = describe_shortage(sweep, budget)
    suggestion = suggest_fit(requested, budget, larger_meshes)

    if is_new_run and requested.decode_slots is None and requested.microbatch is None:
        raise InputError(found=shortage, fix=suggestion)
    warn(f"{shortage} {suggestion}")
    return sweep


def describe_shortage(sweep: SweepConfig, budget: DeviceBudget) -> str:
    """A sentence: which sizes take how much, and how much may be planned with."""
    memory = budget.estimate(sweep)
    needed = format_bytes(max(memory.peak, memory.weights_peak))
    usable = f"{format_bytes(budget.usable_memory)} of its {format_bytes(budget.device_memory)}"
    return (
        f"{format_sizes(sweep)} are estimated to take {needed} of each device, and {usable} may be"
        " planned with."
    )


# ------------------------------------------------------------------ what else would fit


def suggest_fit(
    requested: SweepConfig, budget: DeviceBudget, device_counts: Iterable[tuple[str, int]]
) -> str:
    """What would fit, as a sentence: this mesh with other sizes than are set, else another mesh.

    device_counts: as `suggest_mesh` takes them.
    """
    sizes_that_fit = fit_to_memory(_without_sizes(requested), budget)
    if sizes_that_fit is not None:
        return f"It would fit with {format_sizes(sizes_that_fit)}."
    return suggest_mesh(requested, budget, device_counts)


def suggest_mesh(
    requested: SweepConfig, budget: DeviceBudget, device_counts: Iterable[tuple[str, int]]
) -> str:
    """A sentence that names the fastest mesh other than the budget's on which the sweep would fit.

    device_counts: (description, number of devices), such as ("16 such devices", 16), in the order
    in which they are tried; the first with a mesh that fits is taken.
    """
    for description, num_devices in device_counts:
        suggestions = []
        for mesh in _even_meshes(budget, num_devices):
            if mesh != budget.mesh:
                suggestion = _suggest_settings(requested, replace(budget, mesh=mesh))
                if suggestion is not None:
                    suggestions.append(suggestion)
        if suggestions:
            fastest = min(suggestions)
            return f"The nearest mesh that would fit: {fastest.words} on {description}."

    return (
        "No mesh of more such devices would fit it: lower cell.sampling.response_length or"
        " prompt_length, take devices with more memory, or say how much they have by"
        " run.device_memory=GIB."
    )


class MeshSuggestion(NamedTuple):
    """In the order of speed."""

    seconds_per_rollout: float
    words: str  # what to type


def _suggest_settings(requested: SweepConfig, budget: DeviceBudget) -> MeshSuggestion | None:
    """The budget's mesh, and those of the set sizes that would have to change on it.

    None where nothing fits there, whatever the sizes.
    """
    sweep = fit_to_memory(_without_sizes(requested), budget)
    if sweep is None:
        return None
    sizes_to_change = [
        key for key in SIZE_SETTINGS if getattr(requested, key) not in (None, getattr(sweep, key))
    ]
    words = f"--mesh {budget.mesh} {format_sizes(sweep, sizes_to_change)}".strip()
    return MeshSuggestion(budget.seconds_per_rollout(sweep), words)


def _without_sizes(sweep: SweepConfig) -> SweepConfig:
    """The sweep with all sizes None, that is for the planner to choose."""
    return sweep.model_copy(update=dict.fromkeys(SIZE_SETTINGS))


def _even_meshes(budget: DeviceBudget, num_devices: int) -> Iterator[MeshShape]:
    """The meshes of so many devices that split the model evenly: heads, width and MLPs.

    `sequence` is as in the budget's mesh; data, fsdp and tensor vary.
    """
    policy = budget.policy
    sequence = budget.mesh.sequence
    devices = num_devices // sequence
    kv_heads = math.gcd(*(attention.kv_heads for attention in policy.attention))

    for tensor in _divisors(devices):
        if kv_heads % tensor:
            continue
        for fsdp in _divisors(devices // tensor):
            data = devices // tensor // fsdp
            mesh = MeshShape(data=data, fsdp=fsdp, sequence=sequence, tensor=tensor)
            if policy.width % fsdp == 0 and splits_mlps(policy, mesh):
                yield mesh


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def splits_mlps(policy: PolicySizes, mesh: MeshShape) -> bool:
    """Whether the devices of `tensor` split every MLP's weights evenly among them.

    By hidden values or by whole experts.
    """
    split = mesh.split("tensor")
    for weight in policy.weights:
        if "mlp" in dict(weight.axes):
            numbers = math.prod(size for _, size in weight.axes)
            if split.size(weight.axes) * mesh.tensor != numbers:
                return False
    return True


# ------------------------------------------------------------------ text, and the host's memory


def format_bytes(num_bytes: float) -> str:
    """A text such as "3.21 GiB": always in GiB, so that sizes of a plan compare at a glance."""
    gib = num_bytes / GIB
    if 0 < gib < MIN_SHOWN_GIB:
        return f"under {MIN_SHOWN_GIB} GiB"
    return f"{gib:.3g} GiB" if gib < 1000 else f"{gib:,.0f} GiB"


def format_sizes(sweep: SweepConfig, keys: Iterable[str] = SIZE_SETTINGS) -> str:
    """Settings as one types them, such as "sweep.decode_slots=64 sweep.microbatch=16"."""
    return " ".join(f"sweep.{key}={getattr(sweep, key)}" for key in keys)


def host_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or its cgroup's limit if less."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cgroup_limits = [path.read_text().strip() for path in CGROUP_LIMIT_FILES if path.is_file()]
    # A cgroup without a limit says "max".
    limits = [int(limit) for limit in cgroup_limits if limit.isdigit()]
    return min([machine_bytes, *limits])
