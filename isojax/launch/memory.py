"""Bytes a device takes for a sweep, from its sizes alone. No jax here.

What is counted are the arrays that XLA holds at the same time, as its buffer assignment has them (benchmarks/memory.py compares the two):

    always     parameters, Adam's moments, the KL's reference, the critic and its moments, in float32; the batch's rollouts
    sampling   weights as the sampler reads them, keys and values of slots and of the prompts' table, the rows being written
    update     the gradient, once as a sum, once of a microbatch and once of the prompts, or of both in one pass; what the layers keep for
               it, of a block of prompts and of a microbatch of responses; logits; then the new parameters and moments

Letters are those of sizes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from isojax.config import CellConfig, SweepConfig
from isojax.geometry import LAST_APART, make_geometry, vocabulary_block
from isojax.launch.sizes import FLOAT, MeshSizes, Sizes

PLAIN_LOGITS = 2**22  # logits of a microbatch up to which they are held whole (rl/logprobs.py)
KEPT_LOGITS = 2**25  # up to which blocks keep theirs for the gradient
NARROWEST, WIDTHS = 16, 4  # of microbatches (rl/packing.py)
UPDATES_A_CALL = 64  # of a program that verifies on device (rl/step.py)
TRAINING_PROBLEMS = 1000


@dataclass(frozen=True)
class Memory:
    """Bytes of one device. `parts`: what they are for; `programs`: what each compiled program must be given; `sampling`, `update`: the most
    at once in either half of an update, with all that a run holds."""

    parts: dict[str, int]
    programs: dict[str, int]
    sampling: int
    update: int

    @property
    def peak(self) -> int:
        """The most at once."""
        return max(self.sampling, self.update)


def keys_and_values(s: Sizes, rows: int, positions: int, size: int) -> int:
    """Bytes of the keys and values of so many positions, `size` bytes a number, in all layers; of int8 ones their scales too."""
    scales = FLOAT if size == 1 else 0
    return 2 * s.L * rows * s.K * positions * (s.H * size + scales)


def cache(s: Sizes) -> int:
    """Bytes of the sampler's keys and values: of the slots, and of the table of prompts."""
    geometry = s.geometry
    p, T, lanes = s.prefix, geometry.response_length, geometry.slots // geometry.width
    table = keys_and_values(s, geometry.prefixes, p, s.cache)
    if not s.apart:
        return table + keys_and_values(s, geometry.slots, p + T, s.cache)
    return table + keys_and_values(s, geometry.slots, T, s.cache) + keys_and_values(s, lanes, p, s.cache)


def kept(s: Sizes, tokens: int, keys: int, parts: int) -> int:
    """Bytes that a layer keeps for its gradient (models/decoder.py): of so many tokens, each of which attends to `keys` positions.

    Its input and the output projection (2 D); queries, and the mixed values of each part of its keys (N H each); keys and values (2 K H);
    both halves of the MLP (2 F); scores in float32. Where the layer is computed again: its input.
    """
    if s.remat:
        return s.compute * tokens * s.D
    numbers = 2 * s.D + (s.N + parts * s.attending) * s.H + 2 * s.K * s.H + 2 * s.F
    return s.compute * tokens * numbers + FLOAT * s.attending * tokens * keys


def prompts_kept(s: Sizes) -> int:
    """Bytes kept for the gradient of a block of prompts, in all layers that it goes back through."""
    layers = s.L - 1 if s.L in LAST_APART else s.L
    copied = s.compute * layers * s.layer // s.ways if s.L in LAST_APART else 0
    return copied + layers * kept(s, s.p, s.geometry.prompt_length, 1)


def responses_kept(s: Sizes) -> int:
    """Bytes kept for the gradient of a microbatch, in all layers."""
    return s.L * kept(s, s.t, s.keys, 2)


def layer_backwards(s: Sizes, tokens: int, keys: int, parts: int) -> int:
    """Bytes at work while a layer is differentiated, beside what it has kept.

    Of the MLP the product of its halves and the gradients (4 F), or of attention the weights and their gradient, which come after it; what
    goes between products (XLA lays few of these on each other). Where the layer is computed again, what it would have kept.
    """
    mlp, scores = 4 * s.compute * tokens * s.F, FLOAT * s.attending * tokens * keys
    of_width, of_heads = (7, 4) if s.remat else (8, 6)
    between = s.compute * tokens * (of_width * s.D + of_heads * s.attending * s.H)
    again = kept(replace(s, remat=False), tokens, keys, parts) - kept(s, tokens, keys, parts)
    return again + between + max(mlp, 2 * scores)


def logits(s: Sizes) -> int:
    """Bytes of the logits of a microbatch, as often as they are held, at the width that takes most: narrow microbatches hold them whole
    where wide ones do not (rl/packing.py)."""
    widths = {s.geometry.response_length}
    while len(widths) < WIDTHS and min(widths) % 2 == 0 and min(widths) // 2 >= NARROWEST:
        widths.add(min(widths) // 2)
    return max(_logits(s, width, len(widths) > 1) for width in widths)


def _logits(s: Sizes, width: int, branches: bool) -> int:
    """Of responses of so many tokens: logits, log-probabilities, probabilities, their gradient; the reference's; a nucleus's ranks, and its
    log-probabilities where the entropy has no gradient.

    Or blocks of the vocabulary (rl/logprobs.py), beside the gradient of the whole unembedding: two, and what is left of the vocabulary,
    which XLA works out early, for the policy and the reference (logits, and those of the chosen tokens). Of one block it makes no loop, and
    holds the logits once more where `branches` choose a width. Of first tokens a block more. The policy's logits, where they are so few
    that they are kept.
    """
    m = s.geometry.microbatch
    tokens, rows = m * width, min(m, s.geometry.prompts) + m * (width - 1)
    policies = 1 + (s.reference > 0)
    nucleus = 0 if s.cell.sampling.top_p == 1 else 1 if s.cell.rl.entropy else 2
    if nucleus or s.mesh.tensor > 1 or tokens * s.vocab <= PLAIN_LOGITS:
        return FLOAT * tokens * s.V * (3 + policies + nucleus)
    block = vocabulary_block(s.vocab)
    held = (2 * policies + branches) * s.vocab if block == s.vocab else 2 * block + 2 * (s.vocab % block) * policies
    whole = s.vocab if rows * s.vocab <= KEPT_LOGITS else 0
    return FLOAT * (rows * (held + whole + 2 * s.D) + m * block) + s.compute * s.table


def update(s: Sizes) -> int:
    """Bytes beside what is always there, at the update's peak."""
    policies = 1 + (s.reference > 0)
    gathered = s.compute * (s.layer + policies * s.table) if s.ways > 1 else 0  # each weight where it is used; of the embedding, rows alone
    cast = 0 if s.compute == FLOAT else s.compute * s.numbers // s.ways * policies
    of_prompts = s.compute * (s.L - 1) * s.layer // s.ways if s.L in LAST_APART else 0
    one_pass = s.geometry.one_pass(s.L, s.mesh.sequence > 1)
    keys_values = 0 if one_pass else 2 * s.L * s.p * s.K * s.H  # of all layers at once
    of_prefix = s.compute * keys_values * policies
    # Hidden states after the layers, alone and joined to those of prompts, and their gradient.
    hidden = (2 * policies + 1) * s.compute * s.geometry.microbatch * s.geometry.response_length * s.D
    dealt = s.rollouts if s.geometry.shards > 1 else 0  # in the order of problems, from the shards that sampled them
    held = gathered + cast + dealt + s.stored + of_prompts + prompts_kept(s) + FLOAT * keys_values  # and the sum of its gradient
    table = s.compute * s.table // s.ways
    micro = responses_kept(s)
    of_responses, of_block = layer_backwards(s, s.t, s.keys, 2), layer_backwards(s, s.p, s.geometry.prompt_length, 1)
    moments = (
        held + of_prefix + micro + hidden + logits(s),
        held + of_prefix + micro + hidden + table + of_responses + (of_block if one_pass else 0),
        held + of_prefix + 2 * table,
        held + (of_prefix if s.reference else 0) + s.tables * table + of_block,
    )
    of_policy = s.stored if s.critic else 0  # the policy's gradient, which waits for the critic's
    return max(of_policy + max(moments), 2 * s.stored + gathered)


def sampling_weights(s: Sizes) -> int:
    """Bytes of the weights that the sampler reads, beside the run's own: gathered and cast as a whole, and each layer's apart; an
    unembedding's transpose, where slots are few."""
    own = s.compute == FLOAT and s.stored == FLOAT * s.numbers  # nothing to gather or cast
    apart = s.L * s.layer + (s.tables - 1) * s.table * s.geometry.few
    return (0 if own else s.compute * s.numbers) + (s.compute * apart if s.unrolled else 0)


def sampling(s: Sizes) -> int:
    """Bytes at work while sampling, beside weights, cache and slots: a block of prompts, or a step and the draw from its logits."""
    geometry = s.geometry
    prefill = keys_and_values(s, geometry.prompts, s.prefix, s.compute)
    scores = FLOAT * s.attending * s.p * geometry.prompt_length
    block = s.compute * s.p * 2 * s.D + max(s.compute * s.p * 2 * s.F, 2 * scores)  # attention, then the MLP
    cut = s.compute * (s.L - 1) * s.layer if s.L in LAST_APART else 0
    of_draw = FLOAT * geometry.slots * s.V * (4 if s.cell.sampling.top_p < 1 else 2)
    step = of_draw + s.compute * geometry.slots * (2 * s.F + 2 * s.D)
    return max(prefill + block + cut, step)


def slots(s: Sizes) -> int:
    """Bytes of the rows that slots write, and of the hidden states that they begin from: the table's, and the lanes'."""
    T = s.geometry.response_length
    last = s.compute * s.D * (s.geometry.prefixes + s.geometry.slots // s.geometry.width)
    return last + s.geometry.slots * (8 * T + FLOAT * (T if s.cell.sampling.top_p < 1 else 1) + 40)


def estimate(
    cell: CellConfig,
    sweep: SweepConfig,
    pairs: Sequence[tuple[int, int]],
    mesh: MeshSizes,
    vocab: int,
    on_device: bool,
    backend: str,
) -> Memory:
    """What a sweep whose slots, microbatch, prompts and lanes are chosen takes of each device. `pairs`: every (B_p, n) of it."""
    assert sweep.slots and sweep.microbatch and sweep.prompts, "the planner chooses them"
    lengths = cell.sampling.prompt_length, cell.sampling.response_length
    sizes = mesh.data * mesh.fsdp, sweep.slots, sweep.microbatch
    geometry = make_geometry(pairs, *sizes, *lengths, sweep.prompts, sweep.lane_width or 1)
    s = Sizes(cell, sweep.remat == "layer", geometry, mesh, vocab, on_device, backend)
    held = 3 * (s.stored + s.critic) + s.reference
    decoding = cache(s) + slots(s) + sampling(s)
    P, T = lengths
    if on_device:
        table = FLOAT * TRAINING_PROBLEMS * (P + T + 2) + FLOAT * UPDATES_A_CALL * geometry.problem_rows
        held += table + s.rollouts
        sample, learn = (
            held + 2 * s.stored + sampling_weights(s) + decoding,
            held + update(s),
        )  # zeros that sums begin with, kept for the loop
        programs = {"train": max(sample, learn)}
    else:
        held += FLOAT * geometry.problem_rows * (P + 2) + s.rollouts
        sample, learn = held + sampling_weights(s) + decoding, held + update(s)
        given = s.compute * (s.numbers + s.L * s.layer + s.table)  # XLA counts what is an argument twice as two
        programs = {"decode": sample - 3 * (s.stored + s.critic) - s.reference - sampling_weights(s) + given, "learn": learn}
    if cell.rl.pipeline is not None:  # the sampler's state outlives an update
        learn += sampling_weights(s) + cache(s) + slots(s)
    parts = {
        "parameters": s.stored,
        "optimizer": 2 * s.stored,
        "reference": s.reference,
        "critic": 3 * s.critic,
        "KV": cache(s),
        "sampling weights": sampling_weights(s),
        "rollouts": s.rollouts,
        "gradient": s.stored,
        "activations": prompts_kept(s) + responses_kept(s) + logits(s),
    }
    return Memory(parts, programs, sample, learn)
