"""From a sweep's grid to its cells, before anything runs: which, in which order, and the static sizes they share. No
jax here.

C = B_p n M (IsoCompute Playbook, arXiv:2603.12151, section 2); B = B_p n. A cell spends `sweep.budget` rollouts
whatever its B, so its time differs by what does not shrink with B: the M = C / B updates' own overhead, and one prefill
for each of the C / n prompts.
"""

from __future__ import annotations

import math
from itertools import product

from isojax.core.config import CellConfig, SamplingConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Cell

MAX_SHARD_ROWS = 256
"""The largest R (slots) and m (rows a microbatch) a shard is given: wider batches gain no speed on a CPU and cost
memory everywhere.
"""

MICROBATCH_TOKENS = {"float32": 512}
"""Response positions of a microbatch, by what products are computed in: on a CPU more gain no speed and take memory."""

MAX_PREFILL_BATCH = 16
"""The largest g (prompts prefilled at once) a shard is given."""

LONG_PROMPT_RATIO = 4
"""From so many times T on, prompts are long enough for slots to share them."""

UPDATE_COST = 32
"""What an update costs beside its rollouts (dispatch, optimizer step), in rollouts."""

PROMPT_COST = 1
"""What a prompt's prefill costs, in rollouts (a prompt is about as long as a response)."""


def cell_cost(cell: Cell, budget: int) -> float:
    """A cell's expected time, in the time of one rollout: it decides an order, not a forecast."""
    updates = math.ceil(budget / cell.B)
    return updates * (UPDATE_COST + PROMPT_COST * cell.B_p + cell.B)


def _valid_pairs(sweep: SweepConfig) -> list[tuple[int, int]]:
    """The pairs (B_p, n) under B_max."""
    for name, values in (("B_p", sweep.B_p), ("n", sweep.n)):
        if not values or len(set(values)) < len(values):
            raise InputError(f"sweep.{name}: given {list(values)}, expected at least one value, and each of them once.")
    pairs = list(product(sweep.B_p, sweep.n))
    pairs_over_limit = [(B_p, n) for B_p, n in pairs if B_p * n > sweep.B_max]
    if pairs_over_limit and (sweep.over_B_max == "refuse" or len(pairs_over_limit) == len(pairs)):
        pairs_text = ", ".join(f"{B_p} x {n} = {B_p * n}" for B_p, n in pairs_over_limit)
        hint = "raise sweep.B_max or take smaller values" + (
            "" if len(pairs_over_limit) == len(pairs) else ", or leave these pairs out with sweep.over_B_max=drop"
        )
        raise InputError(f"B_p x n is over sweep.B_max = {sweep.B_max}: {pairs_text}; {hint}.")
    return [pair for pair in pairs if pair not in pairs_over_limit]


def plan_cells(sweep: SweepConfig) -> list[Cell]:
    """The cells of a sweep, longest first; the seeds are 1000 * sweep.seed + 0, 1, ...

    Raises:
        InputError: a pair over B_max (unless dropped), no pair left, a value twice, or a budget below the largest B.
    """
    pairs = _valid_pairs(sweep)
    B_p, n = max(pairs, key=lambda pair: pair[0] * pair[1])
    if sweep.budget < B_p * n:
        raise InputError(
            f"sweep.budget: given {sweep.budget}, expected at least one update of the largest cell, "
            f"{B_p} x {n} = {B_p * n} rollouts."
        )
    cells = [Cell(B_p, n, 1000 * sweep.seed + i) for B_p, n in pairs for i in range(sweep.seeds)]
    return sorted(cells, key=lambda cell: (-cell_cost(cell, sweep.budget), cell))


def choose_slots_per_prefix(decode_slots: int, n: int, sampling: SamplingConfig) -> int:
    """W, slots that share one prompt's keys and values: 1, or where prompts are long as many as divide R and n rollouts
    can fill.

    Measured by benchmarks/lanes.py: on a CPU lanes of 16 gain 2% at P = T, 9% at 4 T and 27% at 16 T.
    """
    if sampling.prompt_length < LONG_PROMPT_RATIO * sampling.response_length:
        return 1
    return max(W for W in (1, 2, 4, 8, 16) if decode_slots % W == 0 and min(n, decode_slots) >= W)


def resolve_sweep_sizes(sweep: SweepConfig, shards: int, cell: CellConfig | None = None) -> SweepConfig:
    """The sweep with its slots (R), microbatch (m), prompts (g) and lanes (W) filled in, where they are not set.

    All count rows of a shard and are chosen once a sweep and stored with it. R is the smallest ceil(B / shards) of its
    cells, at most MAX_ROWS, so that no cell decodes empty slots from its first step on; g the smallest ceil(B_p /
    shards), at most MAX_PROMPTS; m is R, but no more than the g n rollouts that the smallest n gives a block of
    prompts, since a microbatch does not reach into the next, and no more than MICROBATCH_TOKENS hold.

    Raises:
        InputError: lanes that do not divide the slots, or that the chosen kernel cannot serve.
    """
    pairs = _valid_pairs(sweep)
    g = min(MAX_PREFILL_BATCH, *(math.ceil(B_p / shards) for B_p, _ in pairs))
    shard_rows = min(MAX_SHARD_ROWS, *(math.ceil(B_p * n / shards) for B_p, n in pairs))
    n = min(n for _, n in pairs)
    R = sweep.decode_slots or shard_rows
    plain_attention = sweep.decode_attention in (None, "plain") and (cell is None or cell.precision.cache != "int8")
    W = sweep.slots_per_prefix or (choose_slots_per_prefix(R, n, cell.sampling) if cell and plain_attention else 1)
    if R % W:
        raise InputError(
            f"sweep.slots_per_prefix = {W} does not divide sweep.decode_slots = {R}; a lane is W of the slots. "
            "Choose a divisor, or none."
        )
    if W > max(n, 1) and sweep.slots_per_prefix:
        raise InputError(
            f"sweep.slots_per_prefix = {W} is more than sweep.n = {n}: a lane holds rollouts of one prompt, "
            f"so {W - n} of its slots would stay empty. Lower it, or leave it out."
        )
    if W > 1 and not plain_attention:
        raise InputError(
            f"sweep.slots_per_prefix = {W} with sweep.decode_attention = {sweep.decode_attention}, "
            f"cell.precision.cache = {cell.precision.cache if cell else 'auto'}: "
            "kernels and int8 caches are for slots of their own; expected sweep.slots_per_prefix=1, or neither of them."
        )
    max_tokens = MICROBATCH_TOKENS.get(cell.precision.compute) if cell else None
    m = min(
        shard_rows, g * n, max(1, max_tokens // cell.sampling.response_length) if cell and max_tokens else shard_rows
    )
    sizes = {
        "decode_slots": R,
        "microbatch": sweep.microbatch or m,
        "prefill_batch": sweep.prefill_batch or g,
        "slots_per_prefix": W,
    }
    return sweep.model_copy(update=sizes)
