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
    """What the host sends back to the slots [S R] that wait; nothing to the others."""

    context: Any  # i32[S R T]
    counts: Any  # i32[S R], tokens of context; 0: none
    ended_rows: Any  # i32[S R], the buffer row of a response that is done now; -1 where none is


class WaitingSlot(NamedTuple):
    """A slot whose turn has ended, which waits for the task's reply."""

    shard: int
    slot: int
    buffer_row: int
    length: int  # tokens in the response so far


@dataclass(frozen=True)
class SlotReply:
    """The reply to a slot, as processes send it to each other."""

    slot: WaitingSlot
    context: SentArray  # i32[its length]


def receive(
    outputs: tuple[Array, ...], slots: Slots, replies: Replies
) -> tuple[tuple[Array, ...], Slots]:
    """One shard's buffers [rows ...] and slots [R ...], with the replies to its slots."""
    # A slot that gets context goes on after it.
    slots, _ = slots.write_ahead(replies.context, replies.counts)
    slots = slots._replace(stopped=slots.stopped & (replies.counts == 0))

    # A slot whose response has ended writes it, and is free. Others write to a row out of range,
    # which is dropped.
    is_done = replies.ended_rows >= 0
    buffer_rows = outputs[0].shape[0]
    outputs = slots.write_outputs(outputs, jnp.where(is_done, replies.ended_rows, buffer_rows))
    return outputs, slots._replace(row=jnp.where(is_done, -1, slots.row))


def build_receive(mesh: Mesh) -> Program:
    """`receive(outputs, slots, replies) -> (outputs, slots)` of all shards; outputs and slots are
    donated."""

    def receive_shard(*by_shard: Any) -> Any:
        """`receive` of one shard, whose arrays are [1 ...]."""
        outputs, slots, replies = jax.tree.map(lambda x: x[0], by_shard)
        return jax.tree.map(lambda x: x[None], receive(outputs, slots, replies))

    rows: Any = P(ROLLOUT_AXES)
    receive_all = map_over_shards(receive_shard, mesh, (rows, rows, rows), (rows, rows))
    by_row = NamedSharding(mesh, P(ROLLOUT_AXES))
    return Program(jax.jit(receive_all, donate_argnums=(0, 1), out_shardings=by_row))


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
    shape: tuple[int, int, int],
    waiting: Sequence[WaitingSlot],
    contexts: Sequence[np.ndarray],
) -> Replies:
    """The replies to the waiting slots of all processes, as arrays on the devices.

    shape: (S, R, T). waiting: this process's slots; contexts: the reply to each, i32[its length],
    of no tokens where the response is done. All processes must call it together.
    """
    S, R, T = shape
    context = np.zeros((S, R, T), np.int32)
    counts = np.zeros((S, R), np.int32)
    ended_rows = np.full((S, R), -1, np.int32)

    own_replies = [SlotReply(*reply) for reply in zip(waiting, contexts, strict=True)]
    for replies_of_process in multiprocess.allgather(own_replies, list[SlotReply]):
        for reply in replies_of_process:
            slot = reply.slot
            tokens = reply.context
            index = slot.shard, slot.slot
            # One of more than T tokens is cut for the array alone: `has_ended` is true of it, and
            # `write_ahead` finds no room.
            fitting = tokens[:T]
            context[index][: len(fitting)] = fitting
            counts[index] = len(fitting)
            if has_ended(slot, tokens, T):
                ended_rows[index] = slot.buffer_row

    sharding = NamedSharding(mesh, P(ROLLOUT_AXES))
    return Replies(*(array_on(sharding, x) for x in (context, counts, ended_rows)))
