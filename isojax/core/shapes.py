"""The static sizes of a sweep's programs, which the planner chooses and sampling/batch.py fills."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# The most tokens of the vocabulary at a time (rl/logprobs.py); from 1024 to 8192 the time is the
# same.
VOCABULARY_BLOCK = 4096
# Up to so many slots the sampler's weights are transposed on a CPU
# (benchmarks/small_batch_matmul.py), ...
TRANSPOSE_MAX_SLOTS = 64
# ... where each slot writes so many tokens in a call that this saves more time than transposing
# takes.
TRANSPOSE_MIN_STEPS = 12
TILE_ROWS, TPU_LANES = 8, 128  # of a TPU's tiles
# a TPU's attention kernels, compiled or interpreted (models/attention.py)
PALLAS = ("pallas", "interpret")
# Up to so many logits of a microbatch, they are computed at once (rl/logprobs.py); 16 MiB in
# float32.
MAX_DENSE_LOGITS = 2**22
# Up to so many logits, those computed in blocks are saved for the gradient (rl/logprobs.py); 128
# MiB.
MAX_SAVED_LOGITS = 2**25
MIN_BUCKET_WIDTH, MAX_BUCKETS = 16, 4  # widths of microbatches (rl/gradient.py)
MAX_UPDATES_PER_CALL = 64  # of a program that verifies on device (rl/fused_rollouts.py)
ASSUMED_TRAINING_PROBLEMS = 1000  # rows of that program's problem table, before problems are chosen


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
        """G, prompts whose keys and values a shard holds, with room for one prefill batch to
        spare."""
        g = self.prefill_batch
        W = self.slots_per_prefix
        problems_per_shard = -(-self.Q_cap // self.shards)
        # Each prefix group may need a prompt of its own.
        most = self.slots // W + 1 if W > 1 else self.slots // min(n for _, n in self.cells) + 2
        return g * -(-(min(most, problems_per_shard + (self.shards > 1)) + g) // g)

    @property
    def buffer_rows(self) -> int:
        """Rows of a shard's rollout buffers, padding included."""
        return -(-self.B_cap // self.shards) + max(self.slots, self.microbatch)

    @property
    def problem_rows(self) -> int:
        """Rows of the problem buffers, padding included."""
        return self.Q_cap + self.prefill_batch

    def joint_forward(self, positions_split: bool) -> bool:
        """Whether the update takes a block of prompts through the layers together with the
        responses to them: where these are one microbatch, unless devices split prompts' positions
        or responses have one token."""
        n_cap = max(n for _, n in self.cells)
        rows_per_shard = -(-self.B_cap // self.shards)
        most_responses = min(self.prefill_batch * n_cap, rows_per_shard)  # of g prompts, on a shard
        return (
            most_responses <= self.microbatch and self.response_length > 1 and not positions_split
        )

    @property
    def transpose_weights(self) -> bool:
        """Whether a CPU's sampler holds transposed weights: few slots, and many tokens of each in a
        call."""
        slot_refills = -(-self.B_cap // (self.shards * self.slots))
        return (
            self.slots <= TRANSPOSE_MAX_SLOTS
            and slot_refills * self.response_length >= TRANSPOSE_MIN_STEPS
        )


def layers_are_unrolled(platform: str, cache_dtype: str) -> bool:
    """Whether a sampler unrolls its layers, instead of a scan over their stack
    (models/decode.py)."""
    return platform != "tpu" and cache_dtype != "int8"


def vocabulary_block(vocab: int, max_block: int = VOCABULARY_BLOCK) -> int:
    """Tokens per block, at most `max_block`, such that whole blocks leave little of the vocabulary
    over: XLA computes the remainder outside the loop over blocks, and holds both in memory."""
    size = vocab // -(-vocab // max_block)
    return size if size in (vocab, size % TPU_LANES) else size - size % TPU_LANES


def row_padding(attention: str, rows: int, tokens: int, parts: int = 1) -> int:
    """How many tokens to add to each of `rows` rows of `tokens`, so that `parts` devices share
    rows, or else tokens, evenly; and, where a TPU's kernels attend, that whole tiles hold them.
    Where other rows become one matrix, XLA moves each tile by code of its own, so that programs
    grow with the rows."""
    return -tokens % math.lcm(TILE_ROWS if attention in PALLAS else 1, parts if rows % parts else 1)


def bucket_widths(T: int) -> tuple[int, ...]:
    """The compiled widths of microbatches, rising: T, T/2, T/4, T/8, if whole and at least
    MIN_BUCKET_WIDTH."""
    divisors = [
        2**k for k in range(1, MAX_BUCKETS) if T % 2**k == 0 and T // 2**k >= MIN_BUCKET_WIDTH
    ]
    return (*(T // divisor for divisor in reversed(divisors)), T)
