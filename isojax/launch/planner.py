"""From a sweep's grid to its cells, in their order, and to the static sizes that they share.

C = B_p n M and B = B_p n (IsoCompute Playbook, arXiv:2603.12151, section 2).
"""

import math
from itertools import product

from isojax.core.config import CellConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.core.limits import MAX_CELLS
from isojax.core.nouns import Cell

# The largest R (slots) and m (rows of a microbatch) per shard: more gain no speed on a CPU and cost memory everywhere.
MAX_SHARD_ROWS = 256
MAX_PREFILL_BATCH = 16  # the largest g (prompts prefilled at once) per shard
# Response positions of a microbatch, by the type of products: on a CPU more gain no speed and cost memory.
MICROBATCH_TOKENS = {"float32": 512}
LONG_PROMPT_RATIO = 4  # from P = 4 T on, prompts are long enough for slots to share them
# The overheads that do not shrink with B, in the time of one rollout: of an update, and of a prompt's prefill.
UPDATE_COST = 32
PROMPT_COST = 1


def cell_cost(cell: Cell, budget: int) -> float:
    """A cell's expected time, in the time of one rollout: it decides an order, not a forecast."""
    updates = math.ceil(budget / cell.B)
    return updates * (UPDATE_COST + PROMPT_COST * cell.B_p + cell.B)


def _valid_pairs(sweep: SweepConfig) -> list[tuple[int, int]]:
    for name, values in (("B_p", sweep.B_p), ("n", sweep.n)):
        if not values or len(set(values)) < len(values):
            raise InputError(f"sweep.{name}: given {list(values)}, expected at least one value, and each of them once.")
    if (cells := len(sweep.B_p) * len(sweep.n) * sweep.seeds) > MAX_CELLS:
        raise InputError(f"sweep: B_p, n and seeds make {cells:,} cells, expected at most {MAX_CELLS:,}; take fewer.")
    pairs = list(product(sweep.B_p, sweep.n))
    pairs_over_limit = [(B_p, n) for B_p, n in pairs if B_p * n > sweep.B_max]
    all_over_limit = len(pairs_over_limit) == len(pairs)
    if pairs_over_limit and (sweep.over_B_max == "refuse" or all_over_limit):
        pairs_text = ", ".join(f"{B_p} x {n} = {B_p * n}" for B_p, n in pairs_over_limit)
        drop_hint = "" if all_over_limit else ", or leave these pairs out with sweep.over_B_max=drop"
        raise InputError(
            f"B_p x n is over sweep.B_max = {sweep.B_max}: {pairs_text}; "
            f"raise sweep.B_max or take smaller values{drop_hint}."
        )
    return [pair for pair in pairs if pair not in pairs_over_limit]


def plan_cells(sweep: SweepConfig) -> list[Cell]:
    """The cells of a sweep, longest first; InputError where the grid contradicts itself, B_max or the budget."""
    pairs = _valid_pairs(sweep)
    B_p, n = max(pairs, key=lambda pair: pair[0] * pair[1])
    if sweep.budget < B_p * n:
        raise InputError(
            f"sweep.budget: given {sweep.budget}, expected at least one update of the largest cell, "
            f"{B_p} x {n} = {B_p * n} rollouts."
        )
    cells = [Cell(B_p, n, 1000 * sweep.seed + i) for B_p, n in pairs for i in range(sweep.seeds)]
    return sorted(cells, key=lambda cell: (-cell_cost(cell, sweep.budget), cell))


def resolve_sweep_sizes(sweep: SweepConfig, shards: int, cell: CellConfig) -> SweepConfig:
    """The sweep with slots R, microbatch m, prefill batch g and slots per prefix W of a shard, where they are not set;
    layers keep what their gradient needs, where remat is not set.

    R is the smallest ceil(B / shards), so that no cell begins with empty slots; g the smallest ceil(B_p / shards); m is
    R, but at most the g n rollouts of a block of prompts, since a microbatch does not reach into the next block.
    """
    pairs = _valid_pairs(sweep)
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
    """W, slots that share one prompt's keys and values: as set, else what divides R and fits n for long prompts."""
    plain_attention = sweep.decode_attention in (None, "plain") and cell.precision.cache != "int8"
    W = sweep.slots_per_prefix
    if W is None:
        has_long_prompts = cell.sampling.prompt_length >= LONG_PROMPT_RATIO * cell.sampling.response_length
        widths = (1, 2, 4, 8, 16) if has_long_prompts and plain_attention else (1,)
        return max(W for W in widths if R % W == 0 and min(n, R) >= W)
    if R % W:
        raise InputError(
            f"sweep.slots_per_prefix = {W} does not divide sweep.decode_slots = {R}; a prefix group is W of the slots. "
            "Choose a divisor, or none."
        )
    if W > n:
        raise InputError(
            f"sweep.slots_per_prefix = {W} is more than sweep.n = {n}: a prefix group holds rollouts of one prompt, "
            f"so {W - n} of its slots would stay empty. Lower it, or leave it out."
        )
    if W > 1 and not plain_attention:
        raise InputError(
            f"sweep.slots_per_prefix = {W} with sweep.decode_attention = {sweep.decode_attention}, "
            f"cell.precision.cache = {cell.precision.cache}: "
            "kernels and int8 caches are for slots of their own; expected sweep.slots_per_prefix=1, or neither of them."
        )
    return W
