"""The host's replies to turns. A slot whose turn has ended is `stopped` and waits; the host reads
its tokens between chunks and asks the task. Then `receive` writes the reply ahead of the slot, or
finishes the response."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from isojax.distributed import multiprocess
from isojax.distributed.messages import SentArray
from isojax.distributed.sharding import ROLLOUT_AXES, Program, array_on, map_over_shards, shape_on
from isojax.sampling.slots import Slots

# reply(rollouts i32[k], tokens of each) -> the context i32[...] that each gets; of no tokens where
# it is done.
Reply = Callable[[np.ndarray, list[np.ndarray]], list[np.ndarray]]


class Replies(NamedTuple):
    context: Any  # i32[S R T]
    counts: Any  # i32[S R], tokens of context; 0: none
    ended_rows: Any  # i32[S R], the buffer row of a response that is done now; -1 where none is


class WaitingSlot(NamedTuple):
    shard: int
    slot: int
    buffer_row: int
    length: int  # tokens in the response so far


@dataclass(frozen=True)
class SlotReply:
    slot: WaitingSlot
    context: SentArray  # i32[its length]


def receive(
    outputs: tuple[Array, ...], slots: Slots, replies: Replies
) -> tuple[tuple[Array, ...], Slots]:
    """One shard's buffers and slots, with the replies."""
    slots, _ = slots.write_ahead(replies.context, replies.counts)
    slots = slots._replace(stopped=slots.stopped & (replies.counts == 0))
    has_ended = replies.ended_rows >= 0
    buffer_row = jnp.where(has_ended, replies.ended_rows, outputs[0].shape[0])
    return slots.write_outputs(outputs, buffer_row), slots._replace(
        row=jnp.where(has_ended, -1, slots.row)
    )


def build_receive(mesh: Mesh) -> Program:
    """`receive(outputs, slots, replies) -> (outputs, slots)` of all shards; outputs and slots are
    donated."""
    rows: Any = P(ROLLOUT_AXES)

    def receive_shard(*shard_arrays: Any) -> Any:
        return jax.tree.map(lambda x: x[None], receive(*jax.tree.map(lambda x: x[0], shard_arrays)))

    sharded = map_over_shards(receive_shard, mesh, (rows, rows, rows), (rows, rows))
    return Program(
        jax.jit(sharded, donate_argnums=(0, 1), out_shardings=NamedSharding(mesh, P(ROLLOUT_AXES)))
    )


def reply_shapes(mesh: Mesh, slots: Slots) -> Replies:
    """ShapeDtypeStructs of the replies to slots [S R ...]."""
    sharding = NamedSharding(mesh, P(ROLLOUT_AXES))
    by_slot = shape_on(sharding, slots.row.shape)
    return Replies(shape_on(sharding, slots.tokens.shape), by_slot, by_slot)


def has_ended(waiting: WaitingSlot, context: np.ndarray, T: int) -> bool:
    """Whether a response is done after this reply: there is none, or no room for it and for a token
    after it."""
    return len(context) == 0 or waiting.length + len(context) >= T


def make_replies(
    mesh: Mesh,
    shape: tuple[int, ...],
    waiting: Sequence[WaitingSlot],
    contexts: Sequence[np.ndarray],
) -> Replies:
    """The replies to the waiting slots of all processes, of which `waiting` are this one's; shape:
    (S, R, T)."""
    context, counts = np.zeros(shape, np.int32), np.zeros(shape[:2], np.int32)
    ended_rows = np.full(shape[:2], -1, np.int32)

    own_replies = [SlotReply(*reply) for reply in zip(waiting, contexts, strict=True)]
    for process_replies in multiprocess.allgather(own_replies, list[SlotReply]):
        for reply in process_replies:
            slot = reply.slot
            tokens = reply.context
            row = (slot.shard, slot.slot)
            fitting = tokens[: shape[-1]]
            context[row][: len(fitting)] = fitting
            counts[row] = len(fitting)
            if has_ended(slot, tokens, shape[-1]):
                ended_rows[row] = slot.buffer_row

    sharding = NamedSharding(mesh, P(ROLLOUT_AXES))
    return Replies(*(array_on(sharding, x) for x in (context, counts, ended_rows)))
