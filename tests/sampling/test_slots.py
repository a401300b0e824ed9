"""Slots by hand: context written ahead, interruptions, work items against a loop, and the host's
replies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import ROLLOUT_AXES, map_over_shards
from isojax.sampling.batch import SamplingBatch
from isojax.sampling.engine import Engine
from isojax.sampling.layout import Layout
from isojax.sampling.replies import Replies, WaitingSlot, has_ended, make_replies, receive
from isojax.sampling.slots import Slots, work_items
from isojax.tasks.protocol import Interruption, StopConditions
from tests.device import mesh, quick_jit

T = 6


def slots_of(tokens: list[list[int]], t: list[int], **others: Any) -> Slots:
    R = len(tokens)
    zeros = jnp.zeros(R, jnp.int32)
    fields: dict[str, Any] = {
        "row": jnp.arange(R, dtype=jnp.int32),
        "position": zeros,
        "token": zeros,
        "t": jnp.array(t, jnp.int32),
        "stop_state": zeros,
        "stopped": jnp.ones(R, bool),
        "key": jnp.zeros((R, 2), jnp.uint32),
        "tokens": jnp.array(tokens, jnp.int32),
        "logps": jnp.zeros((R, T)),
        "nucleus_mass": jnp.ones((R, 1)),
    }
    return Slots(**(fields | others))


def test_context_is_written_from_the_next_token_on_if_a_token_fits_after_it() -> None:
    """Of T = 6: after 1 token, 2 of context; after 3, 2 leave room for one more; after 4 they do
    not, and nothing is written; a slot that gets none stays."""
    slots = slots_of([[7] * T] * 5, t=[1, 3, 4, 2, 5])
    context = jnp.array([[11, 12, 13]])
    after, overflow = slots.write_ahead(context, jnp.array([2, 2, 2, 0, 0]))
    assert overflow.tolist() == [False, False, True, False, False]
    assert after.tokens.tolist() == [
        [7, ~11, ~12, 7, 7, 7],
        [7, 7, 7, ~11, ~12, 7],
        [7] * T,
        [7] * T,
        [7] * T,
    ]
    own, overflow = slots_of([[7] * T] * 2, t=[0, 5]).write_ahead(
        jnp.array([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]]), jnp.array([5, 1])
    )
    assert overflow.tolist() == [False, True]
    assert own.tokens[0].tolist() == [~1, ~2, ~3, ~4, ~5, 7]
    assert after.token_ahead().tolist() == [~11, ~11, 7, 7, 7]
    # a slot that is full, and is to get nothing
    full, overflow = slots_of([[7] * T], t=[T]).write_ahead(context, jnp.array([0]))
    assert overflow.tolist() == [False] and full.tokens.tolist() == [[7] * T]


def test_a_response_is_interrupted_at_its_length_unless_it_has_ended_its_thinking() -> None:
    slots = slots_of([[9, 4, 1, 0, 0, 0], [4, 4, 9, 0, 0, 0], [4, 4, 4, 9, 0, 0]], t=[3, 2, 3])
    after_three = Interruption(tokens=(1,), after=3, unless_token=None)
    assert slots.interrupted(after_three).tolist() == [True, False, True]
    unless = Interruption(tokens=(1,), after=3, unless_token=9)
    assert slots.interrupted(unless).tolist() == [False, False, True]


@pytest.mark.parametrize(("slots", "width"), [(6, 1), (6, 2), (12, 4), (8, 8)])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(("B_p", "n"), [(5, 7), (4, 3), (1, 1), (2, 16)])
def test_work_items_hold_every_rollout_once(
    slots: int, width: int, shards: int, B_p: int, n: int
) -> None:
    """Cut n rollouts of each problem into items of one size; an item that another shard shares
    counts for both. One rollout an item where a slot is a prefix group; else at least as many as
    the group has slots, and not more items than keep all groups at work."""
    shapes = SamplerShapes([(B_p, n)], shards, slots, 4, 2, T, slots_per_prefix=width)
    problems: Any = None
    layout = Layout(B_p, n, shards)
    for shard in range(shards):
        share = layout.shard_slice(jnp.int32(shard))
        batch = SamplingBatch(problems, share, jnp.int32(n), jax.random.key(0))
        items = work_items(shapes, batch)
        first, count = int(share.first_rollout), int(share.rollout_count)
        groups = slots // width
        size = 1 if width == 1 else min(n, max(width, -(-count // groups)))
        assert int(items.size) == size and int(items.per_problem) == -(-n // size)
        if not count:
            assert int(items.end) == 0
            continue
        owned = range(first, first + count)
        of_rollouts = [(r // n - first // n) * -(-n // size) + r % n // size for r in owned]
        assert (int(items.first), int(items.end)) == (min(of_rollouts), max(of_rollouts) + 1)


def test_a_reply_ends_a_response_where_no_token_fits_after_it() -> None:
    context = np.array([1, 2])
    waiting = [WaitingSlot(0, 0, 5, length) for length in (1, 3, 4, 6)]
    assert [has_ended(slot, context, T) for slot in waiting] == [False, False, True, True]
    assert has_ended(waiting[0], context[:0], T)


def test_replies_are_laid_out_by_slot_and_received() -> None:
    """Three of four slots wait: one goes on with its reply, one gets none, and one has no room; the
    last two are written to their buffer rows."""
    waiting = [WaitingSlot(0, 0, 7, 2), WaitingSlot(0, 1, 3, 4), WaitingSlot(0, 3, 1, 5)]
    contexts = [np.array([21, 22], np.int32), np.zeros(0, np.int32), np.arange(9, dtype=np.int32)]
    made = make_replies(mesh("data=1"), (1, 4, T), waiting, contexts)
    assert np.asarray(made.counts).tolist() == [[2, 0, 0, 6]]
    assert np.asarray(made.ended_rows).tolist() == [[-1, 3, -1, 1]]
    assert np.asarray(made.context)[0, 0].tolist() == [21, 22, 0, 0, 0, 0]

    slots = slots_of([[7] * T] * 4, t=[2, 4, 3, 5], stopped=jnp.array([True, True, False, True]))
    slots = slots._replace(row=jnp.array([7, 3, 4, 1], jnp.int32))
    buffers = tuple(jnp.zeros((8, *x.shape[1:]), x.dtype) for x in slots.outputs())
    one_shard = Replies(*(np.asarray(x)[0] for x in made))
    outputs, after = receive(buffers, slots, one_shard)
    assert after.row.tolist() == [7, -1, 4, -1]
    assert after.stopped.tolist() == [False, True, False, False]
    assert after.tokens[0].tolist() == [7, 7, ~21, ~22, 7, 7]
    tokens, _, _, _, lengths = outputs
    assert lengths.tolist() == [0, 5, 0, 4, 0, 0, 0, 0]
    assert np.asarray(tokens).any(1).tolist() == [r in (1, 3) for r in range(8)]


def test_a_reply_ends_no_turn_and_no_stop_string() -> None:
    """Of the stop string 0 1 and the end token 3: a string is found at its last drawn token, and a
    reply's tokens, held as ~token, never count for one. Where no task replies, all tokens are
    drawn."""
    transitions = np.array([[1, 0, 0, 0], [1, 2, 0, 0]])
    stops = StopConditions((3,), transitions, host_replies=True)
    token = jnp.array([0, 1, 1, 1, 3, 3, 0, 0])
    is_context = jnp.array([False, False, False, True, True, False, False, True])
    slots = slots_of([[0] * T] * 8, t=[0] * 8, stop_state=jnp.array([0, 0, 1, 1, 0, 0, 1, 1]))
    engine: Any = SimpleNamespace(stops=stops)
    met, state = Engine._meet_stops(engine, slots, token, jnp.where(is_context, ~token, token))
    assert met.tolist() == [False, False, True, False, False, True, False, False]
    assert state.tolist() == [1, 0, 2, 0, 0, 0, 1, 0]
    engine.stops = StopConditions((3,), transitions)
    met, state = Engine._meet_stops(engine, slots, token, token)
    assert met.tolist() == [False, False, True, True, True, True, False, False]
    assert state.tolist() == [1, 0, 2, 2, 0, 0, 1, 1]


def test_what_follows_a_token_is_written_ahead_or_the_response_is_done() -> None:
    """Six slots of T = 6: one whose turn has ended gets two tokens and goes on; another has no room
    for them; to a third there is no reply; one was done before; one is full; one just goes on."""
    replies = jnp.array([2, 2, 0, 2, 2, 2])
    context = jnp.broadcast_to(jnp.array([11, 12, 13]), (6, 3))
    seen: list[Any] = []

    def reply(answers: Any, tokens: Any, lengths: Any) -> Any:
        seen.append((answers, tokens.tolist(), lengths.tolist()))
        return context, replies

    t = [2, 5, 2, 2, 6, 3]
    stopped = jnp.array([True, True, True, True, False, False])
    slots = slots_of([[7, ~8, 7, 7, 7, 7]] * 6, t, stopped=stopped)
    was_done = jnp.array([False, False, False, True, False, False])
    engine: Any = SimpleNamespace(
        shapes=SimpleNamespace(response_length=T), stops=StopConditions((3,), None, reply=reply)
    )
    answers: Any = "answers"
    after, done = Engine._write_context(engine, slots, was_done, answers)
    assert done.tolist() == [False, True, True, True, True, False]
    assert after.stopped.tolist() == [False, False, True, True, False, False]
    assert after.tokens[0].tolist() == [7, ~8, ~11, ~12, 7, 7]
    assert (after.tokens[1:] == slots.tokens[1:]).all()
    assert seen == [("answers", [[7, 8, 7, 7, 7, 7]] * 6, t)]

    # Without replies, a response that has stopped is done.
    engine.stops = StopConditions((3,), None)
    after, done = Engine._write_context(engine, slots, was_done, None)
    assert done.tolist() == [True, True, True, True, True, False]
    assert (after.tokens == slots.tokens).all()


def test_a_phrase_is_written_where_a_response_is_due_and_not_done() -> None:
    """After 3 tokens: one is interrupted, one has stopped, one is not due; and after 4 the phrase
    does not fit, and the response goes on without it."""
    stops = StopConditions((), None, interruption=Interruption(3, (21, 22), None))
    engine: Any = SimpleNamespace(shapes=SimpleNamespace(response_length=T), stops=stops)
    slots = slots_of([[7] * T] * 3, [3, 3, 2], stopped=jnp.array([False, True, False]))
    after, done = Engine._write_context(engine, slots, jnp.zeros(3, bool), None)
    assert done.tolist() == [False, True, False]
    assert after.tokens.tolist() == [[7, 7, 7, ~21, ~22, 7], [7] * T, [7] * T]
    engine.stops = StopConditions((), None, interruption=Interruption(4, (21, 22), None))
    slots = slots_of([[7] * T], [4], stopped=jnp.array([False]))
    after, done = Engine._write_context(engine, slots, jnp.zeros(1, bool), None)
    assert not done.any() and after.tokens.tolist() == [[7] * T]


def test_all_shards_have_work_while_one_has() -> None:
    """Else they would not meet at the end of a chunk."""
    on, by_shard = mesh("data=2"), PartitionSpec(ROLLOUT_AXES)
    shapes = SamplerShapes([(4, 3)], 2, 2, 4, 2, T)
    share = Layout(4, 3, 2).shard_slice(jnp.int32(0))
    problems: Any = None
    batch = SamplingBatch(problems, share, jnp.int32(3), jax.random.key(0))
    end = int(work_items(shapes, batch).end)
    engine: Any = SimpleNamespace(shapes=shapes)

    def has_work(next_item: Any, row: Any) -> Any:
        queue = SimpleNamespace(
            next_item=next_item[0], next_rollout=jnp.zeros(2), end_rollout=jnp.zeros(2)
        )
        state: Any = SimpleNamespace(queue=queue, slots=SimpleNamespace(row=row))
        return Engine.has_work(engine, batch, state)[None]

    of_shards = quick_jit(map_over_shards(has_work, on, (by_shard, by_shard), by_shard))
    for items_left, rows, expected in (([0, 0], -1, False), ([0, 1], -1, True), ([0, 0], 0, True)):
        next_item = end - np.array(items_left)
        assert of_shards(next_item, np.array([-1, rows])).tolist() == [expected] * 2
