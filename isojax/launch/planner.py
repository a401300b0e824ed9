"""From a sweep's grid to its cells, in their order, and to the static sizes that they share.

C = B_p n M and B = B_p n (IsoCompute Playbook, arXiv:2603.12151, section 2). Sizes that a sweep
leaves null are chosen so that what memory_model.py estimates fits a device: those for speed, else
of all smaller ones, with remat or without, the fastest by time_estimate.py. Where none fits,
`suggest_fit` names the nearest setting or mesh that would.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from isojax.core.config import CellConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.core.limits import MAX_CELLS
from isojax.core.nouns import Cell
from isojax.core.policy_sizes import PolicySizes
from isojax.core.schedule import FittedSchedule, GradientSchedule, Stage, parse_schedule
from isojax.core.shapes import SamplerShapes
from isojax.core.terminal import warn
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.device_sizes import DeviceSizes
from isojax.launch.memory_model import MEMORY_MARGIN, MemoryEstimate, estimate_memory
from isojax.launch.time_estimate import GIB, TYPICAL_RATES, cell_cost, rates_from_probe

# The largest R (slots) and m (rows of a microbatch) per shard: more gain no speed on a CPU and cost
# memory everywhere.
MAX_SHARD_ROWS = 256
MAX_PREFILL_BATCH = 16  # the largest g (prompts prefilled at once) per shard
# Response positions of a microbatch, by the type of products: on a CPU more gain no speed and cost
# memory.
MICROBATCH_TOKENS = {"float32": 512}
LONG_PROMPT_RATIO = 4  # from P = 4 T on, prompts are long enough for slots to share them
MEMORY_UTILIZATION = 1 - MEMORY_MARGIN  # of a device's memory that a plan may take
MAX_MESH_GROWTH = 64  # times as many devices are considered where a sweep does not fit
MIN_SHOWN_GIB = 0.001  # a smaller size is shown as less than this
SIZES = ("decode_slots", "microbatch", "prefill_batch", "slots_per_prefix", "remat")
CGROUP_LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def _cells_of_one_seed(sweep: SweepConfig) -> list[Cell]:
    """The grid's cells and schedules, or those of `isojax spend`; InputError where none, too many,
    or some twice."""
    for name, values in (("B_p", sweep.B_p), ("n", sweep.n)):
        is_missing = not values and not (sweep.schedules and not sweep.B_p and not sweep.n)
        if is_missing or len(set(values)) < len(values):
            raise InputError(
                f"sweep.{name}: given {list(values)}, expected at least one value, and each of them once."
            )
    if sweep.strategy == "spend":
        cells = [
            Cell(sweep.B_p[0], n, 0, f"from-n{n}", (Stage(0, sweep.B_p[0], n),))
            for n in sorted(sweep.n)
        ]
    else:
        kinds = len(sweep.B_p) * len(sweep.n) + len(sweep.schedules)
        if (runs := kinds * sweep.seeds) > MAX_CELLS:
            raise InputError(
                f"sweep: B_p, n and seeds make {runs:,} runs, expected at most {MAX_CELLS:,}; take fewer."
            )
        smallest_pairs = [(B_p, min(sweep.n)) for B_p in sweep.B_p] + [
            (min(sweep.B_p), n) for n in sweep.n
        ]
        _refuse_over_limit(sweep, smallest_pairs)
        cells = [
            Cell(B_p, n, 0) for B_p, n in product(sweep.B_p, sweep.n) if B_p * n <= sweep.B_max
        ]
        cells += [_scheduled_cell(name, text) for name, text in sweep.schedules.items()]
    _refuse_over_limit(sweep, [pair for cell in cells for pair in cell.pairs])
    return cells


def _refuse_over_limit(sweep: SweepConfig, pairs: list[tuple[int, int]]) -> None:
    """InputError for values of B_p and n, or stages of schedules, of which sweep.B_max leaves
    nothing."""
    if over := [
        f"{B_p} x {n} = {B_p * n}" for B_p, n in dict.fromkeys(pairs) if B_p * n > sweep.B_max
    ]:
        problem = f"B_p x n is over sweep.B_max = {sweep.B_max}: {', '.join(over)}"
        raise InputError(f"{problem}; raise it or take smaller values.")


def _scheduled_cell(name: str, text: str) -> Cell:
    schedule = parse_schedule(text)
    if isinstance(schedule, FittedSchedule):
        raise InputError(
            f"sweep.schedules.{name}: {text!r} needs the fit of {schedule.run}; expected explicit stages."
        )
    if isinstance(schedule, GradientSchedule):
        return Cell(
            schedule.first.B_p, schedule.first.n, 0, name, (schedule.first,), schedule.n_max
        )
    return Cell(schedule[0].B_p, schedule[0].n, 0, name, schedule)


def plan_cells(sweep: SweepConfig) -> list[Cell]:
    """The cells of a sweep, longest first; InputError where the grid contradicts itself, B_max or
    the budget."""
    one_seed = _cells_of_one_seed(sweep)
    B_p, n = max(
        (pair for cell in one_seed for pair in cell.pairs), key=lambda pair: pair[0] * pair[1]
    )
    if sweep.budget < B_p * n:
        largest = f"the largest cell, {B_p} x {n} = {B_p * n} rollouts"
        raise InputError(
            f"sweep.budget: given {sweep.budget}, expected at least one update of {largest}."
        )
    cells = [
        replace(cell, seed=1000 * sweep.seed + i) for cell in one_seed for i in range(sweep.seeds)
    ]
    return sorted(cells, key=lambda cell: (-cell_cost(cell, sweep.budget), cell))


def resolve_sweep_sizes(sweep: SweepConfig, shards: int, cell: CellConfig) -> SweepConfig:
    """The sweep with slots R, microbatch m, prefill batch g and slots per prefix W of a shard,
    where they are not set; layers keep what their gradient needs, where remat is not set.

    R is the smallest ceil(B / shards), so that no cell begins with empty slots; g the smallest
    ceil(B_p / shards); m is R, but at most the g n rollouts of a block of prompts, since a
    microbatch does not reach into the next block.
    """
    pairs = {pair for cell in _cells_of_one_seed(sweep) for pair in cell.pairs}
    n = min(n for _, n in pairs)
    g = min(MAX_PREFILL_BATCH, *(math.ceil(B_p / shards) for B_p, _ in pairs))
    shard_rows = min(MAX_SHARD_ROWS, *(math.ceil(B_p * n / shards) for B_p, n in pairs))
    m = min(shard_rows, (sweep.prefill_batch or g) * n)
    if max_tokens := MICROBATCH_TOKENS.get(cell.precision.compute):
        m = min(m, max(1, max_tokens // cell.sampling.response_length))
    R = sweep.decode_slots or shard_rows
    sizes = {
        "decode_slots": R,
        "microbatch": sweep.microbatch or m,
        "prefill_batch": sweep.prefill_batch or g,
        "slots_per_prefix": _resolve_slots_per_prefix(sweep, R, n, cell),
        "remat": sweep.remat or "none",
    }
    return sweep.model_copy(update=sizes)


def _resolve_slots_per_prefix(sweep: SweepConfig, R: int, n: int, cell: CellConfig) -> int:
    """W, slots that share one prompt's keys and values: as set, else what divides R and fits n for
    long prompts."""
    plain_attention = sweep.decode_attention in (None, "plain") and cell.precision.cache != "int8"
    W = sweep.slots_per_prefix
    if W is None:
        has_long_prompts = (
            cell.sampling.prompt_length >= LONG_PROMPT_RATIO * cell.sampling.response_length
        )
        widths = (1, 2, 4, 8, 16) if has_long_prompts and plain_attention else (1,)
        return max(W for W in widths if R % W == 0 and min(n, R) >= W)
    if R % W or W > n or (W > 1 and not plain_attention):
        raise InputError(
            f"sweep.slots_per_prefix = {W} with sweep.decode_slots = {R}, sweep.n = {n}, sweep.decode_attention ="
            f" {sweep.decode_attention}, cell.precision.cache = {cell.precision.cache}: the"
            " slots share one prompt's cache. Expected 1, null, or a divisor of decode_slots that is at most n, with"
            " plain attention and no int8 cache."
        )
    return W


def with_kernels(
    sweep: SweepConfig, mesh: MeshShape, backend: str, cell: CellConfig
) -> SweepConfig:
    """The sweep with the backend's kernels of attention where it leaves them open, and they
    serve."""
    kernel = {"tpu": "pallas", "gpu": "cudnn"}.get(backend)
    is_float32 = cell.precision.for_platform(backend).compute == "float32"
    if (
        kernel is None
        or mesh.sequence > 1
        or (kernel == "cudnn" and (is_float32 or cell.model.head_dim % 8))
    ):
        return sweep
    serves_decode = kernel == "pallas" and sweep.slots_per_prefix in (None, 1)
    return sweep.model_copy(
        update={
            "forward_attention": sweep.forward_attention or kernel,
            "decode_attention": sweep.decode_attention or ("pallas" if serves_decode else "plain"),
        }
    )


@dataclass(frozen=True)
class DeviceBudget:
    """What a sweep has to fit. `on_device`: where responses are verified."""

    cell: CellConfig
    pairs: Sequence[tuple[int, int]]
    mesh: MeshShape
    policy: PolicySizes
    on_device: bool
    backend: str
    device_memory: int
    # bytes that may be estimated for these programs
    program_limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def usable_memory(self) -> int:
        return int(MEMORY_UTILIZATION * self.device_memory)

    def sizes(
        self, sweep: SweepConfig, pairs: Sequence[tuple[int, int]] | None = None
    ) -> DeviceSizes:
        """A device's part of a sweep whose sizes are chosen; with other (B_p, n) than the sweep's
        if they are given."""
        P, T = self.cell.sampling.prompt_length, self.cell.sampling.response_length
        R = sweep.decode_slots
        m = sweep.microbatch
        g = sweep.prefill_batch
        W = sweep.slots_per_prefix
        assert R and m and g and W, "the planner chooses them"
        pairs = pairs or self.pairs
        W = W if all(n >= W for _, n in pairs) else 1
        shapes = SamplerShapes(pairs, self.mesh.shards, R, m, P, T, g, W)
        kernels = with_kernels(sweep, self.mesh, self.backend, self.cell)
        return DeviceSizes(
            self.cell,
            sweep.remat == "layer",
            shapes,
            self.mesh,
            self.policy,
            self.backend,
            attention=kernels.forward_attention or "plain",
            decode_attention=kernels.decode_attention or "plain",
        )

    def estimate(self, sweep: SweepConfig) -> MemoryEstimate:
        # whose devices have the host's memory
        moments_leave = sweep.moments_on_host and self.backend != "cpu"
        evaluation = self.sizes(sweep, [(self.cell.data.validation, self.cell.eval.samples)])
        return estimate_memory(self.sizes(sweep), evaluation, self.on_device, moments_leave)

    def checkpoint_bytes(self, sweep: SweepConfig) -> int:
        """Of what is trained, in one file for all devices: its parameters, those of a critic, and
        Adam's moments."""
        whole = replace(self, mesh=MeshShape()).sizes(sweep)
        return 3 * (whole.trained_bytes + whole.critic_bytes)

    def fits(self, sweep: SweepConfig) -> bool:
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
        """On a typical device of the backend, summed over the sweep's (B_p, n): it decides an
        order, not a forecast."""
        rollout_rates = rates_from_probe(self.sizes(sweep), self.pairs, TYPICAL_RATES[self.backend])
        return sum(1 / rate for rate in rollout_rates.values())

    def resolve_sizes(self, sweep: SweepConfig) -> SweepConfig:
        """The sweep with its sizes chosen for speed, where they are not set."""
        return resolve_sweep_sizes(sweep, self.mesh.shards, self.cell)

    def smallest_sizes(self, requested: SweepConfig) -> SweepConfig:
        """The sweep with the sizes that are not set chosen for memory alone."""
        smallest = dict(
            zip(SIZES, (requested.slots_per_prefix or 1, 1, 1, None, "layer"), strict=True)
        )
        unset = {key: size for key, size in smallest.items() if getattr(requested, key) is None}
        return self.resolve_sizes(requested.model_copy(update=unset))

    def all_sizes(self, requested: SweepConfig) -> Iterator[SweepConfig]:
        """The sweep with every choice of the sizes that are not set: those for speed, and halves of
        them."""

        def with_halves(sweep: SweepConfig, key: str, step: int = 1) -> Iterator[SweepConfig]:
            size = getattr(self.resolve_sizes(sweep), key)
            yield sweep.model_copy(update={key: size})
            while getattr(requested, key) is None and size >= 2 * step:
                size = size // 2 // step * step
                yield sweep.model_copy(update={key: size})

        for remat in (requested.remat,) if requested.remat else ("none", "layer"):
            with_remat = requested.model_copy(update={"remat": remat})
            for with_slots in with_halves(
                with_remat, "decode_slots", requested.slots_per_prefix or 1
            ):
                for with_prompts in with_halves(with_slots, "prefill_batch"):
                    yield from map(self.resolve_sizes, with_halves(with_prompts, "microbatch"))


def fit_to_memory(requested: SweepConfig, budget: DeviceBudget) -> SweepConfig | None:
    """The sweep, its open sizes chosen for speed if they fit, else the fastest that do; None where
    none does."""
    sweep = budget.resolve_sizes(requested)
    if budget.fits(sweep) or not budget.fits(budget.smallest_sizes(requested)):
        return sweep if budget.fits(sweep) else None
    return min(filter(budget.fits, budget.all_sizes(requested)), key=budget.seconds_per_rollout)


def describe_shortage(sweep: SweepConfig, budget: DeviceBudget) -> str:
    memory = budget.estimate(sweep)
    needed = format_bytes(max(memory.peak, memory.weights_peak))
    usable = f"{format_bytes(budget.usable_memory)} of its {format_bytes(budget.device_memory)}"
    return f"{format_sizes(sweep)} are estimated to take {needed} of each device, and {usable} may be planned with."


def suggest_fit(
    requested: SweepConfig, budget: DeviceBudget, device_counts: Iterable[tuple[str, int]]
) -> str:
    """What would fit, as a sentence: this mesh with other settings than those that are set, else
    `suggest_mesh`."""
    if sizes_that_fit := fit_to_memory(_without_sizes(requested), budget):
        return f"It would fit with {format_sizes(sizes_that_fit)}."
    return suggest_mesh(requested, budget, device_counts)


def suggest_mesh(
    requested: SweepConfig, budget: DeviceBudget, device_counts: Iterable[tuple[str, int]]
) -> str:
    """The fastest other mesh of the first of these (description, number of devices) where one
    fits."""
    for description, num_devices in device_counts:
        meshes_that_fit: list[tuple[float, str]] = []
        for mesh in _even_meshes(budget, num_devices):
            other = replace(budget, mesh=mesh)
            if mesh != budget.mesh and (sweep := fit_to_memory(_without_sizes(requested), other)):
                changes = [
                    key
                    for key in SIZES
                    if getattr(requested, key) not in (None, getattr(sweep, key))
                ]
                words = f"--mesh {mesh} {format_sizes(sweep, changes)}".strip()
                meshes_that_fit.append((other.seconds_per_rollout(sweep), words))
        if meshes_that_fit:
            return f"The nearest mesh that would fit: {min(meshes_that_fit)[1]} on {description}."
    return (
        "No mesh of more such devices would fit it: lower cell.sampling.response_length or prompt_length, take devices "
        "with more memory, or say how much they have by run.device_memory=GIB."
    )


def _without_sizes(sweep: SweepConfig) -> SweepConfig:
    return sweep.model_copy(update=dict.fromkeys(SIZES))


def _even_meshes(budget: DeviceBudget, num_devices: int) -> Iterator[MeshShape]:
    """The meshes of so many devices that split the model evenly, with the budget's part of
    `sequence`."""
    policy, sequence = budget.policy, budget.mesh.sequence
    devices = num_devices // sequence
    kv_heads = math.gcd(*(attention.kv_heads for attention in policy.attention))
    for tensor in (
        size for size in range(1, devices + 1) if devices % size == kv_heads % size == 0
    ):
        for fsdp in (
            size for size in range(1, devices // tensor + 1) if devices // tensor % size == 0
        ):
            mesh = MeshShape(
                data=devices // tensor // fsdp, fsdp=fsdp, sequence=sequence, tensor=tensor
            )
            if policy.width % fsdp == 0 and splits_mlps(policy, mesh):
                yield mesh


def splits_mlps(policy: PolicySizes, mesh: MeshShape) -> bool:
    """Whether the devices of `tensor` share every MLP, by its hidden values or by whole experts."""
    split = mesh.split("tensor")
    matrices = [weight.axes for weight in policy.weights if "mlp" in dict(weight.axes)]
    return all(
        split.size(axes) * mesh.tensor == math.prod(size for _, size in axes) for axes in matrices
    )


def check_moments(sweep: SweepConfig, budget: DeviceBudget) -> None:
    """InputError where moments cannot be in the host's memory while a device samples."""
    if sweep.moments_on_host and (budget.on_device or budget.cell.rl.max_staleness is not None):
        reason = (
            "the task is verified on device" if budget.on_device else "cell.rl.max_staleness is set"
        )
        problem = f"sweep.moments_on_host=true, but {reason}, so that a device samples and trains at the same time"
        raise InputError(f"{problem}. Expected false, or a synchronous run of a text task.")


def autosize_sweep(requested: SweepConfig, budget: DeviceBudget, is_new_run: bool) -> SweepConfig:
    """The sweep with sizes that fit, where the run is new. Where nothing fits, InputError if the
    planner chose all; a warning if some are set, for estimates may be wrong."""
    check_moments(requested, budget)
    sweep = (
        (fit_to_memory(requested, budget) or budget.smallest_sizes(requested))
        if is_new_run
        else requested
    )
    if not budget.fits(sweep):
        # A CPU's devices share its memory.
        doublings = range(MAX_MESH_GROWTH.bit_length()) if budget.backend != "cpu" else ()
        counts = [budget.mesh.devices << k for k in doublings]
        suggestion = suggest_fit(
            requested, budget, [(f"{count} such devices", count) for count in counts]
        )
        shortage = f"{describe_shortage(sweep, budget)} {suggestion}"
        if is_new_run and requested.decode_slots is None and requested.microbatch is None:
            raise InputError(shortage)
        warn(shortage)
    return sweep


def format_bytes(num_bytes: float) -> str:
    """In GiB, whatever the size, so that sizes of one plan can be compared at a glance."""
    gib = num_bytes / GIB
    if 0 < gib < MIN_SHOWN_GIB:
        return f"under {MIN_SHOWN_GIB} GiB"
    return f"{gib:.3g} GiB" if gib < 1000 else f"{gib:,.0f} GiB"


def format_sizes(sweep: SweepConfig, keys: Iterable[str] = SIZES) -> str:
    return " ".join(f"sweep.{key}={getattr(sweep, key)}" for key in keys)


def host_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or its cgroup's where that is
    less."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cgroup_limits = [path.read_text().strip() for path in CGROUP_LIMIT_FILES if path.is_file()]
    return min([machine_bytes, *(int(limit) for limit in cgroup_limits if limit.isdigit())])
