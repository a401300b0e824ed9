"""The static sizes of a sweep's programs, which the planner chooses and sampling/batch.py fills."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# The most tokens of the vocabulary at a time (rl/logprobs.py); from 1024 to 8192 the time is the
# same.
VOCABULARY_BLOCK = 4096

# When a CPU's sampler holds transposed weights. Up to so many slots it computes faster by them
# (measured on matrices of SmolLM2-135M), ...
TRANSPOSE_MAX_SLOTS = 64
# ... and where each slot writes so many tokens in a call, that saves more time than transposing
# takes.
TRANSPOSE_MIN_STEPS = 12

CHUNK_TOKENS = 32  # tokens that a slot decodes at most before the queue is looked at again

# A tile of a TPU's matrices.
TILE_ROWS = 8
TPU_LANES = 128
PALLAS = ("pallas", "interpret")  # a TPU's attention kernels, compiled or interpreted

# How many logits of a microbatch may be in memory (rl/logprobs.py): so many are computed at once,
# 16 MiB in float32; ...
MAX_DENSE_LOGITS = 2**22
# ... and of those computed in blocks, so many are saved for the gradient, 128 MiB.
MAX_SAVED_LOGITS = 2**25

# Widths of microbatches (rl/gradient.py): the smallest, in tokens, and the most of them.
MIN_BUCKET_WIDTH = 16
MAX_BUCKETS = 4

# Of a program that verifies on device (rl/fused_rollouts.py): updates in a call, and rows of its
# problem table before problems are chosen.
MAX_UPDATES_PER_CALL = 64
ASSUMED_TRAINING_PROBLEMS = 1000


@dataclass(frozen=True)
class SamplerShapes:
    """The static shapes of a sweep's programs, which serve every (B_p, n) of `cells`."""

    cells: Sequence[tuple[int, int]]
    shards: int  # parts of the mesh that each sample and train on rollouts of their own
    slots: int  # R, rollouts that a shard samples at a time
    microbatch: int  # m, rollouts of a shard in one forward and backward pass
    prompt_length: int  # P, tokens
    response_length: int  # T, tokens
    prefill_batch: int = 4  # g, problems that a shard prefills at once
    # W, slots of a prefix group, which share one prompt's keys and values (models/decode.py)
    slots_per_prefix: int = 1

    def __post_init__(self) -> None:
        assert self.slots % self.slots_per_prefix == 0, (self.slots, self.slots_per_prefix)

    @property
    def B_cap(self) -> int:
        """The most rollouts of a batch, over all shards."""
        return max(B_p * n for B_p, n in self.cells)

    @property
    def Q_cap(self) -> int:
        """The most problems of a batch, over all shards."""
        return max(B_p for B_p, _ in self.cells)

    @property
    def prefix_entries(self) -> int:
        """G, the entries of a shard's table of prompts: each holds the keys and values of one.

        It is a multiple of g, so that a prefill batch, whose g rows begin at a multiple of g, never
        reaches past the table's end; and at least g more than are in use at a time, so that the
        next batch has room.
        """
        g = self.prefill_batch
        W = self.slots_per_prefix

        # The most prompts that the slots need at a time. They are filled problem by problem.
        if W > 1:
            # A prefix group has rollouts of one problem: there are at most as many prompts as
            # groups; or, where a problem takes several groups, at most half as many and 2, because
            # the first and the last problem may have only some of theirs. Neither is above
            # groups + 1.
            in_slots = self.slots // W + 1
        else:
            # Again 2 for the first and the last problem, with only a part of their n rollouts.
            smallest_n = min(n for _, n in self.cells)
            in_slots = self.slots // smallest_n + 2

        problems_per_shard = -(-self.Q_cap // self.shards)
        if self.shards > 1:
            # Shards divide a batch's rollouts, and not its problems: one may be of two shards.
            problems_per_shard += 1

        in_use = min(in_slots, problems_per_shard)
        return g * -(-(in_use + g) // g)  # g more, rounded up to a multiple of g

    @property
    def buffer_rows(self) -> int:
        """Rows of a shard's rollout buffers, padding included."""
        return -(-self.B_cap // self.shards) + max(self.slots, self.microbatch)

    @property
    def problem_rows(self) -> int:
        """Rows of the problem buffers, padding included."""
        return self.Q_cap + self.prefill_batch

    def joint_forward(self, positions_split: bool) -> bool:
        """Whether the update takes prompts and the responses to them through the layers together.

        That is, of a block of g prompts, where the responses are one microbatch, unless devices
        split prompts' positions or responses have one token.
        """
        n_cap = max(n for _, n in self.cells)
        rows_per_shard = -(-self.B_cap // self.shards)
        # A block has g prompts.
        most_responses = min(self.prefill_batch * n_cap, rows_per_shard)
        is_one_microbatch = most_responses <= self.microbatch
        return is_one_microbatch and self.response_length > 1 and not positions_split

    @property
    def transpose_weights(self) -> bool:
        """Whether a CPU's sampler holds transposed weights.

        That is for few slots, and many tokens of each in a call.
        """
        slot_refills = -(-self.B_cap // (self.shards * self.slots))
        steps = slot_refills * self.response_length
        return self.slots <= TRANSPOSE_MAX_SLOTS and steps >= TRANSPOSE_MIN_STEPS


def layers_are_unrolled(platform: str, cache_dtype: str) -> bool:
    """Whether a sampler unrolls its layers, and has no scan over their stack (models/decode.py)."""
    return platform != "tpu" and cache_dtype != "int8"


def vocabulary_block(vocab: int, max_block: int = VOCABULARY_BLOCK) -> int:
    """Tokens per block, at most `max_block`, of which whole blocks leave little over.

    XLA computes the remainder outside the loop over blocks, and holds both in memory.
    """
    size = vocab // -(-vocab // max_block)
    if size in (vocab, size % TPU_LANES):
        return size  # The whole vocabulary, or less than one row of lanes.
    return size - size % TPU_LANES


def row_padding(attention: str, rows: int, tokens: int, parts: int = 1) -> int:
    """How many tokens to add to each of `rows` rows of `tokens`.

    So that `parts` devices share rows, or else tokens, evenly; and, where a TPU's kernels attend,
    that whole tiles hold them. Where other rows become one matrix, XLA moves each tile by code of
    its own, so that programs grow with the rows.
    """
    tile = TILE_ROWS if attention in PALLAS else 1
    token_parts = 1 if rows % parts == 0 else parts
    return -tokens % math.lcm(tile, token_parts)


def bucket_widths(T: int) -> tuple[int, ...]:
    """The compiled widths of microbatches, rising: T, T/2, T/4, T/8.

    Those that are whole, and at least MIN_BUCKET_WIDTH; T in any case.
    """
    widths = [T]
    for k in range(1, MAX_BUCKETS):
        divisor = 2**k
        if T % divisor == 0 and T // divisor >= MIN_BUCKET_WIDTH:
            widths.append(T // divisor)
    return tuple(reversed(widths))
