"""From a sweep's grid to its cells, in their order, and to the static sizes that they share.

C = B_p n M and B = B_p n (IsoCompute Playbook, arXiv:2603.12151, section 2). Sizes that a sweep
leaves null are chosen for speed here; device_budget.py chooses smaller ones where memory asks for
it.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from isojax.core.config import CellConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.core.limits import MAX_CELLS
from isojax.core.nouns import Cell
from isojax.core.schedule import FittedSchedule, GradientSchedule, Stage, parse_schedule
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.time_estimate import cell_cost

# The largest R (slots) and m (rows of a microbatch) per shard: more gain no speed on a CPU and cost
# memory everywhere.
MAX_SHARD_ROWS = 256
MAX_PREFILL_BATCH = 16  # the largest g (prompts prefilled at once) per shard
# Response positions of a microbatch, by the type of products: on a CPU more gain no speed and cost
# memory.
MICROBATCH_TOKENS = {"float32": 512}
LONG_PROMPT_RATIO = 4  # from P = 4 T on, prompts are long enough for slots to share them
PREFIX_WIDTHS = (1, 2, 4, 8, 16)  # slots that may share a prompt, where that is chosen

# ------------------------------------------------------------------ the grid


def plan_cells(sweep: SweepConfig) -> list[Cell]:
    """The cells of a sweep, longest first; a cell is one run, with its B_p, n and seed.

    InputError where the grid contradicts itself, B_max or the budget.
    """
    one_seed = _cells_of_one_seed(sweep)
    B_p, n = max(_pairs(one_seed), key=lambda pair: pair[0] * pair[1])
    if sweep.budget < B_p * n:
        largest = f"the largest cell, {B_p} x {n} = {B_p * n} rollouts"
        raise InputError(
            where="sweep.budget",
            found=f"given {sweep.budget}",
            expected=f"at least one update of {largest}",
        )

    # A sweep has at most 1000 seeds, so that sweeps with different sweep.seed share none.
    seeds = [1000 * sweep.seed + i for i in range(sweep.seeds)]
    cells = [replace(cell, seed=seed) for cell in one_seed for seed in seeds]
    # Of equal cost in the order of their fields, so that every process has the same order.
    return sorted(cells, key=lambda cell: (-cell_cost(cell, sweep.budget), cell))


def _pairs(cells: Iterable[Cell]) -> list[tuple[int, int]]:
    """Every (B_p, n) that an update of these cells may have; several of a cell with a schedule."""
    return [pair for cell in cells for pair in cell.pairs]


def _cells_of_one_seed(sweep: SweepConfig) -> list[Cell]:
    """The cells of the grid and its schedules, or those of `isojax spend`, each with seed 0.

    InputError where there are none, too many, or some twice, or where one exceeds B_max.
    """
    _check_values("B_p", sweep.B_p, sweep)
    _check_values("n", sweep.n, sweep)

    if sweep.trains_one_policy:
        B_p = sweep.B_p[0]  # all its runs have one B_p; further ones are not used
        cells = [Cell.of_spend(B_p, n) for n in sorted(sweep.n)]
    else:
        cells = _grid_cells(sweep)

    _refuse_over_limit(sweep, _pairs(cells))
    return cells


def _check_values(name: str, values: tuple[int, ...], sweep: SweepConfig) -> None:
    """InputError where an axis of the grid is empty, or has a value twice.

    name: "B_p" or "n", whose values these are. A sweep of schedules alone needs no grid, but
    values of only one axis are a mistake.
    """
    has_schedules_alone = bool(sweep.schedules) and not sweep.B_p and not sweep.n
    is_missing = not values and not has_schedules_alone
    if is_missing or len(set(values)) < len(values):
        raise InputError(
            where=f"sweep.{name}",
            found=f"given {list(values)}",
            expected="at least one value, and each of them once",
        )


def _grid_cells(sweep: SweepConfig) -> list[Cell]:
    """The cells of B_p x n up to B_max, then one for each schedule, all with seed 0.

    InputError where there are too many, or B_max leaves out a value of B_p or n altogether.
    """
    num_runs = (len(sweep.B_p) * len(sweep.n) + len(sweep.schedules)) * sweep.seeds
    if num_runs > MAX_CELLS:
        raise InputError(
            where="sweep",
            found=f"B_p, n and seeds make {num_runs:,} runs",
            expected=f"at most {MAX_CELLS:,}",
            fix="Take fewer.",
        )

    # B_max leaves out combinations, but no value altogether: the smallest of each must be there.
    with_smallest_n = [(B_p, min(sweep.n)) for B_p in sweep.B_p]
    with_smallest_B_p = [(min(sweep.B_p), n) for n in sweep.n]
    _refuse_over_limit(sweep, with_smallest_n + with_smallest_B_p)

    grid = product(sweep.B_p, sweep.n)
    fixed_cells = [Cell(B_p, n, 0) for B_p, n in grid if B_p * n <= sweep.B_max]
    scheduled_cells = [_scheduled_cell(name, text) for name, text in sweep.schedules.items()]
    return fixed_cells + scheduled_cells


def _refuse_over_limit(sweep: SweepConfig, pairs: list[tuple[int, int]]) -> None:
    """InputError that names those (B_p, n) of `pairs` with more than sweep.B_max rollouts."""
    over_limit = [
        f"{B_p} x {n} = {B_p * n}" for B_p, n in dict.fromkeys(pairs) if B_p * n > sweep.B_max
    ]
    if over_limit:
        raise InputError(
            found=f"B_p x n is over sweep.B_max = {sweep.B_max}: {', '.join(over_limit)}",
            fix="Raise it or take smaller values.",
        )


def _scheduled_cell(name: str, text: str) -> Cell:
    """The cell of a schedule of sweep.schedules, with seed 0; InputError where it needs a fit.

    text: as a config writes it (core/schedule.py, SCHEDULE_FORMS). `resolve_schedules`
    (launch/fitted_schedules.py) has replaced those that need a fit before a sweep is planned.
    """
    schedule = parse_schedule(text)
    if isinstance(schedule, FittedSchedule):
        raise InputError(
            where=f"sweep.schedules.{name}",
            found=f"{text!r} needs the fit of {schedule.run}",
            expected="explicit stages",
        )
    if isinstance(schedule, GradientSchedule):
        stages: tuple[Stage, ...] = (schedule.first,)  # its run adds further ones
        n_max = schedule.n_max
    else:
        stages = schedule  # explicit ones, from C = 0 on
        n_max = 0  # the gradient decides nothing

    first = stages[0]
    return Cell(first.B_p, first.n, seed=0, schedule=name, stages=stages, n_max=n_max)


# ------------------------------------------------------------------ static sizes


def resolve_sweep_sizes(sweep: SweepConfig, shards: int, cell: CellConfig) -> SweepConfig:
    """The sweep with those of its sizes chosen for speed that are not set; set ones stay.

    shards: into how many parts the mesh divides the rollouts. cell: the settings that all runs of
    the sweep share, config.cell. Sizes are of one shard:

    decode_slots R: the smallest ceil(B / shards) of the sweep's B = B_p n, so that no run begins
    with empty slots; at most MAX_SHARD_ROWS. prefill_batch g: the smallest ceil(B_p / shards); at
    most MAX_PREFILL_BATCH. microbatch m: as R is chosen, whatever R is set to, but at most g n, the
    rollouts of a block of g prompts with the smallest n, as a microbatch does not reach into the
    next block; and at most MICROBATCH_TOKENS positions where products are in float32.
    slots_per_prefix W: see `_resolve_slots_per_prefix`. remat: "none", so that layers keep what
    their gradient needs. InputError where slots_per_prefix is set and cannot be used.
    """
    # Sizes are the same for all seeds. Minima, so that they serve the smallest cell.
    pairs = set(_pairs(_cells_of_one_seed(sweep)))
    n = min(n for _, n in pairs)

    g = min(MAX_PREFILL_BATCH, *(math.ceil(B_p / shards) for B_p, _ in pairs))
    shard_rows = min(MAX_SHARD_ROWS, *(math.ceil(B_p * n / shards) for B_p, n in pairs))
    R = sweep.decode_slots or shard_rows

    m = min(shard_rows, (sweep.prefill_batch or g) * n)
    max_tokens = MICROBATCH_TOKENS.get(cell.precision.compute)
    if max_tokens is not None:
        m = min(m, max(1, max_tokens // cell.sampling.response_length))

    return sweep.model_copy(
        update={
            "decode_slots": R,
            "microbatch": sweep.microbatch or m,
            "prefill_batch": sweep.prefill_batch or g,
            "slots_per_prefix": _resolve_slots_per_prefix(sweep, R, n, cell),
            "remat": sweep.remat or "none",
        }
    )


def _resolve_slots_per_prefix(sweep: SweepConfig, R: int, n: int, cell: CellConfig) -> int:
    """W, how many slots share one prompt's keys and values: as set, else the most that serves.

    Not set, it is 1, but for prompts of P >= LONG_PROMPT_RATIO T and plain attention the largest of
    PREFIX_WIDTHS that divides R and is at most n. n: the sweep's smallest. InputError where W is
    set and does not divide R, exceeds n, or is over 1 with an attention that cannot share.
    """
    plain_attention = sweep.decode_attention in (None, "plain") and cell.precision.cache != "int8"
    W = sweep.slots_per_prefix
    if W is None:
        P = cell.sampling.prompt_length
        T = cell.sampling.response_length
        has_long_prompts = P >= LONG_PROMPT_RATIO * T
        widths = PREFIX_WIDTHS if has_long_prompts and plain_attention else (1,)
        return max(W for W in widths if R % W == 0 and min(n, R) >= W)

    if R % W or W > n or (W > 1 and not plain_attention):
        raise InputError(
            where="sweep.slots_per_prefix",
            found=(
                f"given {W} with sweep.decode_slots = {R}, sweep.n = {n}, "
                f"sweep.decode_attention = {sweep.decode_attention}, cell.precision.cache = "
                f"{cell.precision.cache}: the slots share one prompt's cache"
            ),
            expected=(
                "1, null, or a divisor of decode_slots that is at most n, with plain "
                "attention and no int8 cache"
            ),
        )
    return W


def with_kernels(
    sweep: SweepConfig, mesh: MeshShape, backend: str, cell: CellConfig
) -> SweepConfig:
    """The sweep with the backend's kernels of attention, where it leaves them open and they serve.

    backend: "cpu", which has none, "gpu" or "tpu". An attention that is set stays; one for which no
    kernel serves is plain, that is "plain" or still None.
    """
    kernel = {"tpu": "pallas", "gpu": "cudnn"}.get(backend)
    if kernel is None or mesh.sequence > 1:  # no kernel attends to keys on other devices
        return sweep
    if kernel == "cudnn":
        # cuDNN takes no float32, and heads only of multiples of 8.
        is_float32 = cell.precision.for_platform(backend).compute == "float32"
        if is_float32 or cell.model.head_dim % 8:
            return sweep

    # The kernel that decodes reads a cache of each slot's own prompt.
    serves_decode = kernel == "pallas" and sweep.slots_per_prefix in (None, 1)
    decode_kernel = "pallas" if serves_decode else "plain"
    return sweep.model_copy(
        update={
            "forward_attention": sweep.forward_attention or kernel,
            "decode_attention": sweep.decode_attention or decode_kernel,
        }
    )
