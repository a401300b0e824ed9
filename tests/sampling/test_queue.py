"""Which rollout gets which slot: `prefill` and `admit` step by step, with slots that end at random,
and a decoder in whose caches a prompt is its first token."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from isojax.core.config import SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.sampling import engine as engine_module
from isojax.sampling.batch import ProblemArrays, SamplingBatch
from isojax.sampling.engine import DecodeResult, Engine, SamplerWeights
from isojax.sampling.layout import Layout
from isojax.sampling.logits import rollout_keys
from isojax.sampling.slots import SamplerState, Slots, WorkQueue, admit, prefill, work_items
from isojax.tasks.protocol import StopConditions
from tests.device import quick_jit

T, P = 3, 2
CELLS = [(9, 4), (2, 11), (1, 1), (5, 6)]
MOST_N = 11


class CopyingDecoder:
    """What `prefill` and `admit` read of a `Decoding` of Z prefix groups."""

    def __init__(self, prefix_groups: int):
        self.prefix_groups = prefix_groups

    def prefill(self, params: Any, prompts: Any, lengths: Any) -> tuple[Any, Any]:
        return prompts[:, 0], prompts[:, :1] + 0.5

    def prefill_with_experts(self, params: Any, prompts: Any, lengths: Any) -> tuple[Any, ...]:
        experts = prompts[:, :, None, None].astype(jnp.uint16)
        return *self.prefill(params, prompts, lengths), experts

    def store_entries(self, table: Any, entries: Any, first: Any) -> Any:
        return lax.dynamic_update_slice_in_dim(table, entries, first, 0)

    def admit(self, cache: Any, table: Any, entry: Any, admitted: Any) -> Any:
        return jnp.where(admitted, table[entry], cache)


def empty_state(shapes: SamplerShapes, first_item: Any, records: bool) -> SamplerState:
    R, G, Z = shapes.slots, shapes.prefix_entries, shapes.slots // shapes.slots_per_prefix
    zeros, zeros_by_group = jnp.zeros(R, jnp.int32), jnp.zeros(Z, jnp.int32)
    slots = Slots(
        row=zeros - 1,
        position=zeros,
        token=zeros,
        t=zeros,
        stop_state=zeros,
        stopped=jnp.zeros(R, bool),
        key=jnp.zeros((R, 2), jnp.uint32),
        tokens=jnp.zeros((R, T), jnp.int32),
        logps=jnp.zeros((R, T)),
        nucleus_mass=jnp.ones((R, 1)),
    )
    queue = WorkQueue(first_item, jnp.int32(0), *[zeros_by_group] * 3)
    rows = shapes.buffer_rows
    experts = [jnp.zeros((k, P, 1, 1), jnp.uint16) for k in (rows, G, Z)] if records else [None] * 3
    return SamplerState(
        outputs=(experts[0], jnp.zeros(0)) if records else (),
        slots=slots,
        cache=zeros_by_group,
        prefix_table=jnp.zeros(G, jnp.int32),
        table_last_hidden=jnp.zeros((G, 1)),
        group_last_hidden=jnp.zeros((Z, 1)),
        queue=queue,
        table_experts=experts[1],
        group_experts=experts[2],
    )


def stepper(shapes: SamplerShapes) -> Any:
    """The state after the table is filled and slots are, jitted."""
    decoding: Any = CopyingDecoder(shapes.slots // shapes.slots_per_prefix)

    @quick_jit
    def step(batch: SamplingBatch, state: SamplerState) -> SamplerState:
        return admit(decoding, shapes, batch, prefill(decoding, shapes, {}, batch, state))

    return step


@quick_jit
def all_keys(key: Any, ids: Any) -> Any:
    """The data of the key of each problem's rollouts, u32[problems MOST_N 2]."""
    problem, rollout = (x.reshape(-1) for x in jnp.mgrid[: len(ids), :MOST_N])
    keys = rollout_keys(key if key.ndim == 0 else key[problem], ids[problem], rollout)
    return jax.random.key_data(keys).reshape(len(ids), MOST_N, 2)


def problems_of(rows: int) -> ProblemArrays:
    """Prompts, lengths and ids that tell problems apart."""
    number = np.arange(rows, dtype=np.int32)
    prompts = np.stack([100 + number, 200 + number], 1)
    return ProblemArrays(prompts, 1 + number % 2, prompts[:, :0], 7 * number + 3)


def follow(step: Any, shapes: SamplerShapes, batch: SamplingBatch, records: bool) -> None:
    """Sample the whole share, and look at each slot that is filled."""
    items, share, n = work_items(shapes, batch), batch.share, int(batch.n)
    first_rollout, count, groups = (
        int(x) for x in (share.first_rollout, share.rollout_count, share.group_count)
    )
    W, g, G = shapes.slots_per_prefix, shapes.prefill_batch, shapes.prefix_entries
    Z, per_problem = shapes.slots // W, int(items.per_problem)
    state = empty_state(shapes, items.first, records)

    rng = np.random.default_rng([count, n])
    ring = None if batch.ring_groups is None else int(batch.ring_groups)
    rows = shapes.buffer_rows if batch.ring_rows is None else int(batch.ring_rows)

    def problem_of(row: int) -> int:
        group = (first_rollout + row) // n
        return group if ring is None else group % ring

    busy = np.zeros(shapes.slots, bool)
    seen: list[int] = []
    keys = np.asarray(all_keys(batch.key, batch.problems.ids))
    engine: Any = SimpleNamespace(shapes=replace(shapes, shards=1))
    assert bool(Engine.has_work(engine, batch, state)) == (count > 0)
    for _ in range(20 + 3 * count):
        next_problem = int(state.queue.next_item) // per_problem
        marked = state.slots._replace(token=np.where(busy, 1 + np.arange(len(busy)), -9))
        state = step(batch, state._replace(slots=marked))
        slots, queue, cache, hidden, outputs = jax.device_get(
            (state.slots, state.queue, state.cache, state.group_last_hidden, state.outputs)
        )
        prompt_experts = outputs[0][:, :, 0, 0] if records else None

        # Prompts are in the table as far as they may be wanted now, and no further than a block
        # beyond; where there are fewer, another block would overwrite one that is wanted.
        wanted = min(groups, next_problem + Z // per_problem + 2)
        done = int(queue.num_prefilled)
        assert done % g == 0 and done <= max(-(-groups // g) * g, 0)
        assert done >= wanted or done + g > next_problem + G
        assert done < next_problem + Z // per_problem + 2 + g
        assert done - G <= next_problem

        new = (slots.row >= 0) & ~busy
        assert (slots.row[busy] >= 0).all()
        assert slots.token.tolist() == [
            0 if filled else 1 + i if old else -9
            for i, (filled, old) in enumerate(zip(new, busy, strict=True))
        ]
        for slot in np.flatnonzero(new):
            row = int(slots.row[slot])
            problem, rollout = problem_of(row), (first_rollout + row) % n
            assert (slots.key[slot] == keys[problem, rollout]).all()
            assert slots.position[slot] == batch.problems.lengths[problem]
            assert slots.t[slot] == 0 and slots.nucleus_mass[slot] == 1
            assert cache[slot // W] == 100 + problem
            assert hidden[slot // W, 0] == 100.5 + problem
            if records:
                assert prompt_experts[row % rows].tolist() == [100 + problem, 200 + problem]
            seen.append(row)
        if W == 1:  # in their order
            assert seen == sorted(seen)

        # No slot is free that could have a rollout: none of a group whose item has some left, and
        # no whole group while items are left.
        is_free = (slots.row < 0).reshape(Z, W)
        assert not (is_free.any(1) & (queue.next_rollout < queue.end_rollout)).any()
        assert not is_free.all(1).any() or queue.next_item >= items.end

        busy = slots.row >= 0
        has_work = Engine.has_work(engine, batch, state)
        assert bool(has_work) == bool(busy.any())
        if not busy.any():
            break
        ends = busy & (rng.random(len(busy)) < 0.5)
        busy &= ~ends
        state = state._replace(slots=state.slots._replace(row=np.where(ends, -1, slots.row)))
    assert sorted(seen) == list(range(count))
    kept = range(count)[-rows:] if records else []  # whose buffer rows no later rollout has taken
    assert [int(prompt_experts[row % rows, 0]) for row in kept] == [
        100 + problem_of(row) for row in kept
    ]


@pytest.mark.parametrize(
    ("slots", "width", "shards", "records"),
    [(5, 1, 1, True), (6, 1, 3, False), (8, 2, 1, False), (6, 3, 2, True)],
)
def test_each_rollout_gets_one_slot_with_its_prompt_and_key(
    slots: int, width: int, shards: int, records: bool
) -> None:
    shapes = SamplerShapes(CELLS, shards, slots, 4, P, T, prefill_batch=2, slots_per_prefix=width)
    step = stepper(shapes)
    for B_p, n in CELLS:
        for shard in range(shards):
            share = Layout(B_p, n, shards).shard_slice(jnp.int32(shard))
            problems = problems_of(shapes.problem_rows)
            batch = SamplingBatch(problems, share, jnp.int32(n), jax.random.key(5))
            follow(step, shapes, batch, records)


def test_an_endless_batch_goes_round_its_rings() -> None:
    """Of 4 groups of 3 rollouts, with a key of each problem; 11 groups have begun."""
    shapes = SamplerShapes([(4, 3)], 1, 5, 4, P, T, prefill_batch=2)
    share = Layout(11, 3, 1).shard_slice(jnp.int32(0))
    batch = SamplingBatch(
        problems_of(shapes.problem_rows),
        share,
        jnp.int32(3),
        jax.random.split(jax.random.key(1), shapes.problem_rows),
        ring_groups=jnp.int32(4),
        ring_rows=jnp.int32(12),
    )
    follow(stepper(shapes), shapes, batch, records=True)


class CountingEngine(Engine):
    """A token is no more than one more: a response has as many as its slot's `position` says."""

    def decode_step(
        self,
        weights: Any,
        slots: Slots,
        cache: Any,
        first_hidden: Any,
        done: Any,
        answers: Any = None,
        record: Any = None,
    ) -> DecodeResult:
        t = slots.t + ~done
        return DecodeResult(slots._replace(t=t), cache, None, done | (t >= slots.position))


@pytest.mark.parametrize(
    ("lengths", "items_left", "group_left", "shards", "steps"),
    [
        # W = 2 slots of a group, R = 4. One slot that could be filled waits for four steps, ...
        ([1, 9, 9, 9], 0, [1, 0], 1, 4),
        ([3, 9, 9, 9], 0, [1, 0], 1, 6),
        # ... two of them for two, and four for one;
        ([1, 1, 9, 9], 0, [1, 0], 1, 2),
        ([1, 1, 9, 9], 1, [0, 0], 1, 2),
        ([1, 1, 9, 1], 0, [1, 1], 1, 2),
        # a slot for which there is no rollout does not count: a new item needs the whole group.
        ([1, 9, 9, 9], 1, [0, 0], 1, 8),
        ([1, 9, 9, 9], 0, [0, 1], 1, 8),
        ([1, 1, 9, 9], 0, [0, 0], 1, 8),
        ([1, 3, 9, 9], 1, [0, 0], 1, 4),
        # Of several shards none ends early, ...
        ([1, 1, 9, 9], 1, [1, 1], 2, 8),
        # ... but where all of its slots are done. A free slot is idle from the start.
        ([1, 2, 3, 2], 0, [0, 0], 1, 3),
        ([1, 2, 3, 0], 0, [0, 0], 2, 3),
        ([5, 0, 0, 0], 1, [1, 1], 1, 5),
        ([0, 0, 0, 0], 0, [0, 0], 1, 0),
    ],
)
def test_a_chunk_ends_where_refilling_is_worth_its_time(
    lengths: list[int],
    items_left: int,
    group_left: list[int],
    shards: int,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of at most 8 tokens. lengths: of the responses in four slots, 0 of a free slot."""
    monkeypatch.setattr(engine_module, "CHUNK_TOKENS", 8)
    shapes = SamplerShapes([(4, 4)], shards, 4, 4, P, 10, slots_per_prefix=2)
    engine = CountingEngine(None, shapes, SamplingConfig(), StopConditions((), None))  # type: ignore[arg-type]
    share = Layout(4, 4, 1).shard_slice(jnp.int32(0))
    batch = SamplingBatch(problems_of(6), share, jnp.int32(4), jax.random.key(0))
    state = empty_state(shapes, work_items(shapes, batch).end - items_left, False)
    active = jnp.array(lengths) > 0
    slots = state.slots._replace(
        row=jnp.where(active, jnp.arange(4), -1), position=jnp.array(lengths)
    )
    queue = state.queue._replace(end_rollout=jnp.array(group_left))
    state = state._replace(slots=slots, queue=queue)
    chunk = engine._decode_tokens({}, batch, state, None, active)
    assert int(chunk.steps) == steps
    t = [min(length, steps) for length in lengths]
    assert chunk.slots.t.tolist() == t
    assert chunk.done.tolist() == [length <= steps for length in lengths]

    # What has finished is written to its row, and its slot is free; all else is as it was.
    for name in ("prefill", "admit"):
        monkeypatch.setattr(engine_module, name, lambda *arguments: arguments[-1])
    rows = shapes.buffer_rows
    state = state._replace(
        outputs=tuple(jnp.zeros((rows, *x.shape[1:]), x.dtype) for x in slots.outputs())
    )
    after, finished = engine.decode_chunk(SamplerWeights({}, None), batch, state)
    is_done = [0 < length <= steps for length in lengths]
    assert finished.tolist() == [i if is_done[i] else -1 for i in range(4)]
    assert after.slots.row.tolist() == [
        i if lengths[i] and not is_done[i] else -1 for i in range(4)
    ]
    written = [t[i] if is_done[i] else 0 for i in range(4)]
    assert after.outputs[-1].tolist() == written + [0] * (rows - 4)
