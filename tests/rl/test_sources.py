"""What a training loop gets of its rollout sources, with fakes of the programs: problems, rewards
by problem, metrics and how many updates."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import CellConfig, RLConfig
from isojax.core.nouns import Cell
from isojax.core.shapes import MAX_UPDATES_PER_CALL, SamplerShapes
from isojax.rl.async_rl import async_rollouts, rollout_buffer
from isojax.rl.async_rl.async_rollouts import AsyncPrograms, AsyncRollouts
from isojax.rl.async_rl.rollout_buffer import ProblemRing, SamplerPrograms, SamplerProgress
from isojax.rl.fused_rollouts import FusedRollouts, FusedUpdate
from isojax.rl.graded_sampler import listen_from
from isojax.rl.inline_rollouts import InlinePrograms, InlineRollouts
from isojax.rl.metric import mean, total, value
from isojax.rl.rollout_source import SourcedBatch, finish_batch, sum_rewards, verifier_metrics
from isojax.rl.train_step import UpdateResult
from isojax.sampling.batch import ProblemArrays, Rollouts, SamplingBatch
from isojax.sampling.layout import Layout
from isojax.tasks.protocol import Grades
from tests.device import CONFIG, DECODER, Parity, mesh, quick_jit
from tests.refusals import refused
from tests.rl.test_update_parts import batch_of, shapes

B_P, N = 3, 5


class Order:
    """In the place of an EpochOrder: batches of B_P problems, from 10, 20, 30, ... on."""

    dropped_fraction = 0.25

    def __init__(self, drop_above: float | None, batches_left: int = 99):
        self.drop_above, self.batches_left_in_epoch = drop_above, batches_left
        self.taken = 0
        self.recorded: list[tuple[list[int], list[float], int]] = []

    def __next__(self) -> np.ndarray:
        self.taken += 1
        return 10 * self.taken + np.arange(B_P)

    def record_rewards(self, index: np.ndarray, sums: np.ndarray, n: int) -> None:
        self.recorded.append((index.tolist(), np.asarray(sums).tolist(), n))


def test_rewards_are_summed_by_problem() -> None:
    """On the host and in the fused program; padding rows have rewards too, and do not count. Two
    rows of the batch are one problem of the table."""
    batch = batch_of(2, B_P, N)
    layout = Layout(B_P, N, 2)
    by_problem = layout.in_order(batch.rewards).reshape(B_P, N).sum(1)
    order: Any = Order(0.9)
    assert by_problem.tolist() == np.asarray(sum_rewards(batch.rewards, layout, order)).tolist()
    order.drop_above = None
    assert sum_rewards(batch.rewards, layout, order) is None

    table_index = jnp.array([4, 0, 4, *[1] * (shapes(2).problem_rows - B_P)])
    update: Any = SimpleNamespace(shapes=shapes(2))
    sums = quick_jit(lambda batch: FusedUpdate._sum_rewards(update, batch, table_index, 6))(batch)
    assert sums.tolist() == [by_problem[1], 0, 0, 0, by_problem[0] + by_problem[2], 0]


@pytest.mark.parametrize("drop_above", [None, 0.9])
@pytest.mark.parametrize("on_device", [False, True])
def test_what_a_batch_came_to(drop_above: float | None, on_device: bool) -> None:
    """Rewards are recorded where the order of problems reads them, from the host or from the sums
    over all problems that the program returned."""
    order: Any = Order(drop_above)
    index = np.array([2, 0, 5])
    inputs: Any = None
    reward_sums = None if on_device else np.array([1.0, 2.0, 3.0])
    batch = SourcedBatch(inputs, index, reward_sums, {"host": mean(0.5)}, updates=4)
    of_all = jnp.array([20.0, 0, 10, 0, 0, 30])
    result = UpdateResult({"loss": total(jnp.float32(2))}, of_all if on_device else None)
    metrics = finish_batch(batch, result, order, n=7)
    sums = [10.0, 20.0, 30.0] if on_device else [1.0, 2.0, 3.0]
    assert order.recorded == ([] if drop_above is None else [([2, 0, 5], sums, 7)])
    expected = {"host": 0.5, "loss": 2.0} | ({} if drop_above is None else {"dropped": 0.25})
    assert {name: value(metric) for name, metric in metrics.items()} == expected
    assert drop_above is None or metrics["dropped"].weight == 4


def test_what_a_verifier_found() -> None:
    grades = Grades(
        np.ones(4),
        np.array([1, 0, 1, 1], bool),
        {"timeout": 2, "error": 1},
        {"a": np.array([0.5, 1])},
    )
    assert {name: value(metric) for name, metric in verifier_metrics(grades).items()} == {
        "parsed_fraction": 0.75,
        "reward/a": 0.75,
        "verifier_failures": 3,
        "verifier_timeout": 2,
        "verifier_error": 1,
    }


@pytest.mark.parametrize(
    ("resampling", "batches_left", "skipped", "updates"),
    [(None, 1, 7, 6), (0.9, 99, 0, 6), (0.9, 2, 0, 2), (0.9, 99, 5, 3), (0.9, 99, 2, 6)],
)
def test_how_many_updates_a_call_has(
    resampling: float | None, batches_left: int, skipped: int, updates: int
) -> None:
    """As many as it may, 6; but where the rewards of this epoch decide the next, none beyond it,
    nor more than may still be skipped, of 8 in a row."""
    rl = RLConfig(no_positive_resampling=resampling, max_consecutive_nonfinite=8)
    programs: Any = SimpleNamespace(rl=rl, shapes=SimpleNamespace(problem_rows=B_P + 2))
    order: Any = Order(resampling, batches_left)
    problems: Any = SimpleNamespace(
        problem_order=order, cell=Cell(B_P, N, 3), problem_table="table"
    )
    state: Any = SimpleNamespace(consecutive_nonfinite=np.int32(skipped))
    sourced = FusedRollouts(programs, problems).next_batch(state, max_updates=6)
    batches: Any = sourced.inputs
    assert sourced.updates == int(batches.num_updates) == order.taken == updates
    assert (batches.B_p, batches.n, batches.seed, batches.problem_table) == (B_P, N, 3, "table")
    rows = [[10 * i, 10 * i + 1, 10 * i + 2, 0, 0] for i in range(1, updates + 1)]
    assert batches.problem_index.tolist() == rows + [[0] * 5] * (MAX_UPDATES_PER_CALL - updates)
    assert sourced.problem_index.tolist() == [q for row in rows for q in row[:B_P]]


class FurtherBatches:
    """The programs of dynamic sampling: batch i, a number, leaves so many groups equal once it is
    merged."""

    def __init__(self, equal_groups: list[int], max_batches: int):
        self.equal_groups, self.max_batches = equal_groups, max_batches
        engine = SimpleNamespace(begin_run=lambda *_: None, publish=lambda *_: None)
        self.graded_sampler = SimpleNamespace(engine=engine)
        self.shapes = SimpleNamespace(shards=1)

    def examine(self, batch: int) -> Any:
        metrics = {"reward": mean(jnp.float32(batch))}
        return SimpleNamespace(equal_groups=self.equal_groups[0], metrics=metrics)

    def merge(self, batch: int, further: int) -> Any:
        return SimpleNamespace(batch=further, equal_groups=self.equal_groups[further])


@pytest.mark.parametrize(
    ("equal_groups", "max_batches", "sampled"),
    [([0], 3, 1), ([2, 0, 0, 0], 4, 2), ([2, 1, 1, 1], 3, 3), ([2], 1, 1)],
)
def test_dynamic_sampling_ends_where_no_group_is_equal_or_at_its_limit(
    equal_groups: list[int], max_batches: int, sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample(self: Any, state: Any, number: int) -> Any:
        index = 10 * number + np.arange(B_P)
        sums = index + 0.5
        of_engine = {"engine": mean(10.0 + number)}
        return number, SimpleNamespace(problem_index=index, reward_sums=sums, metrics=of_engine)

    monkeypatch.setattr(InlineRollouts, "_sample_batch", sample)
    programs: Any = FurtherBatches(equal_groups, max_batches)
    problems: Any = SimpleNamespace(cell=Cell(B_P, N, 0), first_update=0)
    state: Any = SimpleNamespace(params={}, step=0)
    sourced = InlineRollouts(programs, problems).next_batch(state, 1)

    expected = [10 * i + k for i in range(sampled) for k in range(B_P)]
    assert sourced.problem_index.tolist() == expected
    assert np.asarray(sourced.reward_sums).tolist() == [q + 0.5 for q in expected]
    assert sourced.extra_batches == sampled - 1 and sourced.inputs == sampled - 1
    metrics = {name: float(value(metric)) for name, metric in sourced.metrics.items()}
    if max_batches == 1:
        assert metrics == {"engine": 10.0}
        return
    middle = (sampled - 1) / 2  # the mean of the numbers 0, 1, ...
    assert metrics == {
        "engine": 10 + middle,
        "reward": middle,
        "sampled_batches": sampled,
        "equal_groups": pytest.approx(equal_groups[sampled - 1] / B_P),
    }


@pytest.mark.parametrize(("dynamic", "updates"), [(None, MAX_UPDATES_PER_CALL), (2, 1)])
def test_how_often_the_loop_looks_at_its_clock(dynamic: int | None, updates: int) -> None:
    cell = CellConfig(model=CONFIG, rl=RLConfig(dynamic_sampling=dynamic))
    engine: Any = None
    programs = InlinePrograms(cell, DECODER, Parity(), shapes(1), mesh("data=1"), engine)
    assert programs.updates_per_call == updates and programs.max_batches == (dynamic or 1)


def test_the_shares_of_time_in_which_sampler_and_trainer_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An update from 10 to 18, whose batch came at 12; the sampler worked for 3 of these 8 seconds,
    or for more, in a chunk that had begun before."""
    monkeypatch.setattr(async_rollouts.time, "monotonic", lambda: 18.0)
    source: Any = object.__new__(AsyncRollouts)
    source.programs = SimpleNamespace(disaggregated=True)
    source.updates_done, source.busy_seconds = 4, 1.0
    source.update_began_at, source.batch_arrived_at = 10.0, 12.0
    source.sampler_seconds_before = 5.0
    source._publish_and_begin = lambda params: None
    state: Any = SimpleNamespace(params={})
    for sampler_seconds, share in ((8.0, 3 / 8), (99.0, 1.0)):
        source.worker = SimpleNamespace(busy_seconds=sampler_seconds)
        metrics = {k: value(metric) for k, metric in source.finish_update(state).items()}
        assert metrics == {"sampler_busy": share, "trainer_busy": 6 / 8}
    assert (source.updates_done, source.busy_seconds) == (6, 13.0)
    source.programs.disaggregated = False
    assert source.finish_update(state) == {}


def test_rollouts_move_to_the_rows_of_the_trainers_shards() -> None:
    """Each into its row; what pads them has no token."""
    sampler_shards, shards = 2, 3
    there = Layout(4, 5, sampler_shards)
    rows = there.rollouts_per_shard
    number = np.arange(sampler_shards)[:, None] * rows + np.arange(rows)
    tokens = np.broadcast_to(number[..., None], (sampler_shards, rows, 3)).astype(np.int32)
    sampled = Rollouts(
        *(tokens, -tokens * 1.0, tokens >= 0, tokens[..., :1] * 2.0),
        stopped=number % 2 == 0,
        lengths=1 + number % 3,
    )
    buffer_rows = 23
    programs: Any = SimpleNamespace(
        shapes=SimpleNamespace(shards=shards, buffer_rows=buffer_rows),
        sampler_shards=sampler_shards,
    )
    move = quick_jit(partial(AsyncPrograms._to_trainer_layout, programs))
    moved = move(sampled, np.int32(4), np.int32(5))
    here = Layout(4, 5, shards)
    order = np.arange(20)
    assert here.in_order(moved.tokens)[:, 0].tolist() == order.tolist()
    assert here.in_order(moved.logps)[:, 2].tolist() == (-order).tolist()
    assert here.in_order(moved.stopped).tolist() == (order % 2 == 0).tolist()
    assert here.in_order(moved.lengths).tolist() == (1 + order % 3).tolist()
    assert here.in_order(moved.mask).all()
    padding = ~np.asarray(here.holds_rollout(buffer_rows))
    for x in (moved.mask, moved.stopped, moved.lengths):
        assert not np.asarray(x)[padding].any()


def test_which_rollouts_in_progress_can_be_continued() -> None:
    """Those of a sampler that takes turns with the trainer, and of the same layout."""
    programs: Any = SimpleNamespace(disaggregated=False, sampler=SimpleNamespace(state_layout=7))
    assert AsyncPrograms.can_restore(programs, {"layout": 7})
    assert not AsyncPrograms.can_restore(programs, {"layout": 8})
    assert not AsyncPrograms.can_restore(programs, {})
    programs.disaggregated = True
    assert not AsyncPrograms.can_restore(programs, {"layout": 7})


def test_rollouts_of_a_request_are_counted_behind_those_before() -> None:
    calls: list[tuple[str, list[int], Any]] = []
    grading: Any = SimpleNamespace(
        add_responses=lambda index, responses: calls.append(("add", index.tolist(), responses)),
        reply=lambda index, responses: calls.append(("reply", index.tolist(), responses)),
    )
    listener = listen_from(30, grading)
    listener.on_finished(np.array([2, 0]), ["a", "b"])  # type: ignore[list-item]
    assert listener.reply is not None
    listener.reply(np.array([1]), ["c"])  # type: ignore[list-item]
    assert calls == [("add", [32, 30], ["a", "b"]), ("reply", [31], ["c"])]


PAIRS = [(8, 2), (4, 5)]


def sampler_programs() -> SamplerPrograms:
    cell = CellConfig(model=CONFIG, rl=RLConfig(max_staleness=2))
    of_trainer = SamplerShapes(PAIRS, 1, 4, 4, 2, 3, prefill_batch=6)
    return SamplerPrograms(cell, DECODER, Parity(), of_trainer, PAIRS, mesh("data=2"))


def test_a_ring_of_three_batches_on_two_shards() -> None:
    """k = 2. Of 4 or 2 groups on a shard, and blocks of at most 6 prompts, two divides all."""
    programs = sampler_programs()
    assert (programs.ring_batches, programs.shards, programs.rows_per_shard) == (3, 2, 10)
    ring = programs.ring_shapes
    assert ring.cells == [(24, 2), (12, 5)] and (ring.shards, ring.prefill_batch) == (2, 2)
    queue = jax.eval_shape(programs.init_state.jitted).queue
    assert {(x.shape[0], str(x.dtype)) for x in queue} == {(2, "int32")}


@pytest.mark.parametrize(
    ("changed", "next_item", "prefilled", "left"),
    [(False, 17, 6, 6), (True, 17, 6, 2), (True, 17, 2, 2), (True, 22, 6, 4)],
)
def test_prompts_that_have_not_begun_are_prefilled_with_new_weights(
    changed: bool, next_item: int, prefilled: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whole blocks of two, of n = 5: item 17 is of problem 3, and item 22 of problem 4."""
    seen: list[SamplingBatch] = []

    def decode_chunk(weights: Any, batch: SamplingBatch, state: Any) -> tuple[Any, Any]:
        seen.append(batch)
        return state, jnp.array([7, -1, -1])

    programs = sampler_programs()
    programs.engine = SimpleNamespace(decode_chunk=decode_chunk)  # type: ignore[assignment]
    monkeypatch.setattr(rollout_buffer.stream, "squeeze_shard_axis", lambda state: state)
    monkeypatch.setattr(rollout_buffer.stream, "add_shard_axis", lambda state: state)

    class State(SimpleNamespace):
        def _replace(self, **changes: Any) -> Any:
            return State(**{**vars(self), **changes})

    slots = SimpleNamespace(row=jnp.array([-1, 8, -1]), t=jnp.arange(3), tokens=jnp.zeros((3, 3)))
    queue = State(next_item=jnp.int32(next_item), num_prefilled=jnp.int32(prefilled))
    entries = programs.ring_shapes.problem_rows
    ring = ProblemRing(
        ProblemArrays(*[jnp.zeros((1, entries))] * 4), jnp.zeros((1, entries, 2), jnp.uint32)
    )
    progress = SamplerProgress(*map(jnp.int32, (11, 2, 5)), weights_changed=jnp.bool_(changed))
    weights: Any = None
    after, outputs = programs._decode_chunk(
        weights, ring, progress, State(queue=queue, slots=slots)
    )

    assert int(after.queue.num_prefilled) == left
    [batch] = seen
    assert (int(batch.ring_groups), int(batch.ring_rows)) == (6, 30)  # type: ignore[arg-type]
    assert [int(x) for x in batch.share] == [0, 55, 0, 11]
    # the slot that has finished decoded row 7, and the one that goes on 8
    assert outputs.slot_rows.tolist() == [[7, 8, -1]]
    assert outputs.finished_rows.tolist() == [[7, -1, -1]]
    assert jax.tree.map(jnp.shape, outputs.tokens) == (1, 3, 3)


def test_shards_of_an_asynchronous_sampler_divide_the_problems() -> None:
    def build(B_p: int) -> AsyncPrograms:
        cell = CellConfig(model=CONFIG, rl=RLConfig(max_staleness=1))
        pairs = [(4, 2), (B_p, 2)]
        return AsyncPrograms(
            cell, DECODER, Parity(), shapes(1), pairs, mesh("data=1"), mesh("data=2")
        )

    assert build(6).sampler_shards == 2 and build(6).disaggregated
    with refused(where="cell.rl.max_staleness"):
        build(5)
