"""The rollout worker's accounts, with a sampler of a few lines in the place of the compiled one:
what the ring holds, which rollouts are done, and with which weights their tokens were drawn."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isojax.core.nouns import Cell
from isojax.rl.async_rl import async_rollouts
from isojax.rl.async_rl.async_rollouts import staleness_metrics
from isojax.rl.async_rl.rollout_buffer import ChunkOutputs
from isojax.rl.async_rl.rollout_worker import RolloutJob, RolloutWorker
from isojax.rl.metric import value
from isojax.sampling.batch import ProblemArrays
from tests.rl.test_inline_rollouts import FixedOrder

B_p, n, SHARDS, SLOTS, T = 6, 2, 2, 4, 9
GROUPS = B_p // SHARDS  # of a batch on a shard
FIRST_BATCH = 3
CHUNK_TOKENS = 2


def length_of(shard: int, row: int) -> int:
    """Of the response in a row, which is counted from the first batch on."""
    return 1 + (5 * shard + 3 * row) % (T - 1)


def problems_of(batch: int) -> ProblemArrays:
    """The problems of a batch have ids from 100 times its number on."""
    ids = (100 * batch + np.arange(B_p)).astype(np.int32)
    return ProblemArrays(ids[:, None] + 1000, np.ones(B_p, np.int32), np.zeros((B_p, 0)), ids)


class FakeSampler:
    """Decodes up to CHUNK_TOKENS tokens in each slot, as `SamplerPrograms.decode_chunk` does, and
    counts what it draws: by batch and version of the weights. Token t of a response is 100 row +
    t."""

    shards, mesh, state_layout = SHARDS, None, 7

    def __init__(self, ring_batches: int = 2) -> None:
        self.ring_batches = ring_batches
        self.ring_shapes = SimpleNamespace(problem_rows=GROUPS * ring_batches + 1, slots=SLOTS)
        self.drawn: dict[int, Counter[int]] = defaultdict(Counter)
        self.changes: list[bool] = []
        self.read_ids: dict[tuple[int, int], int] = {}  # by shard and row

    def init_state(self) -> Any:
        slots = [[None] * SLOTS for _ in range(SHARDS)]  # of each slot [row, tokens so far]
        return SimpleNamespace(slots=slots, next_row=[0] * SHARDS, outputs="the buffers")

    def prepare_weights(self, params: int) -> int:
        return params

    def extract_batch(self, outputs: str, first_row: int) -> tuple[str, int]:
        return outputs, int(first_row)

    def decode_chunk(
        self, weights: int, ring: Any, progress: Any, state: Any
    ) -> tuple[Any, ChunkOutputs]:
        assert (progress.n, progress.groups_per_batch) == (n, GROUPS)
        self.changes.append(bool(progress.weights_changed))
        finished = np.full((SHARDS, SLOTS), -1)
        rows = np.full((SHARDS, SLOTS), -1)
        lengths = np.zeros((SHARDS, SLOTS), np.int32)
        tokens = np.zeros((SHARDS, SLOTS, T), np.int32)
        for shard, slots in enumerate(state.slots):
            for slot in range(SLOTS):
                row = state.next_row[shard]
                if slots[slot] is None and row < progress.group_limit * n:
                    slots[slot] = [row, 0]
                    state.next_row[shard] += 1
                    entry = row // n % (GROUPS * self.ring_batches)
                    self.read_ids[shard, row] = int(ring.problems.ids[shard, entry])
                    assert ring.problems.prompts[shard, entry] == 1000 + self.read_ids[shard, row]
                    assert (ring.keys[shard, entry] == self.read_ids[shard, row] // 100).all()
                if slots[slot] is None:
                    continue
                row, before = slots[slot]
                after = min(before + CHUNK_TOKENS, length_of(shard, row))
                self.drawn[FIRST_BATCH + row // (GROUPS * n)][weights] += after - before
                rows[shard, slot], lengths[shard, slot] = row, after
                tokens[shard, slot] = 100 * row + np.arange(T)
                slots[slot] = [row, after]
                if after == length_of(shard, row):
                    finished[shard, slot] = row
                    slots[slot] = None
        return state, ChunkOutputs(finished, rows, lengths, tokens)


def start(sampler: FakeSampler, finished: dict[int, dict[int, np.ndarray]]) -> RolloutWorker:
    def on_finished(batch: int, index: np.ndarray, responses: list[np.ndarray]) -> None:
        for i, response in zip(index.tolist(), responses, strict=True):
            assert i not in finished[batch]
            finished[batch][i] = response

    filler = ProblemArrays(*(np.zeros_like(x[:1]) for x in problems_of(0)))
    job = RolloutJob(B_p, n, FIRST_BATCH, filler, on_finished)
    programs: Any = sampler
    return RolloutWorker(programs, job)


def begin(worker: RolloutWorker, batch: int) -> None:
    worker.begin_batch(batch, problems_of(batch), np.full(2, batch, np.uint32))


def publish(worker: RolloutWorker, version: int) -> None:
    """Weights that are no more than their version."""
    params: Any = version
    worker.publish_weights(version, params)


def test_five_batches_of_a_ring_of_two() -> None:
    """New weights come after each batch and in the middle of one; batches begin as parts of the
    ring are free."""
    sampler, finished = FakeSampler(), defaultdict[int, dict[int, np.ndarray]](dict)
    worker = start(sampler, finished)
    publish(worker, 0)
    begin(worker, FIRST_BATCH)
    assert worker.has_work and worker.ready_batches == []

    taken = {}
    for version, batch in enumerate(range(FIRST_BATCH, FIRST_BATCH + 5)):
        begin(worker, batch + 1)
        worker.decode_chunk()
        worker.decode_chunk()
        publish(worker, 10 * version + 5)
        (buffers, first_row), taken[batch] = worker.take_batch(batch)
        publish(worker, 10 * version + 10)

        assert buffers == "the buffers"
        assert first_row == (batch - FIRST_BATCH) % 2 * GROUPS * n
        # Row r of shard s is rollout s b + r of its batch, with b = GROUPS n.
        shard, row = np.divmod(np.arange(B_p * n), GROUPS * n)
        row += (batch - FIRST_BATCH) * GROUPS * n
        assert sorted(finished[batch]) == list(range(B_p * n))
        for i, (s, r) in enumerate(zip(shard.tolist(), row.tolist(), strict=True)):
            assert finished[batch][i].tolist() == (100 * r + np.arange(length_of(s, r))).tolist()
            assert sampler.read_ids[s, r] == 100 * batch + i // n
        assert sum(taken[batch].values()) == sum(map(len, finished[batch].values()))

    assert taken == {batch: sampler.drawn[batch] for batch in taken}
    assert max(len(versions) for versions in taken.values()) > 2
    assert sum(sampler.changes) <= 10 and sampler.changes[:3] == [True, False, True]

    # The rest of the batch that has begun; then there is nothing left to sample.
    assert worker.has_work
    while FIRST_BATCH + 5 not in worker.ready_batches:
        worker.decode_chunk()
    assert not worker.has_work
    worker.take_batch(FIRST_BATCH + 5)
    assert not worker.has_work and 0 < worker.busy_seconds < 60


def test_batches_begin_in_their_order() -> None:
    worker = start(FakeSampler(), defaultdict(dict))
    with pytest.raises(AssertionError):
        begin(worker, FIRST_BATCH + 1)


def test_the_age_of_tokens_by_hand() -> None:
    """Before update 7, with k = 2: 10 tokens of the newest weights, 20 of one update less, 30 of
    two: 0 * 10 + 1 * 20 + 2 * 30 = 80 of 60."""
    metrics = staleness_metrics({7: 10, 6: 20, 5: 30}, update=7, max_staleness=2)
    assert {name: value(metric) for name, metric in metrics.items()} == {
        "staleness_mean": pytest.approx(80 / 60),
        "staleness_max": 2.0,
        "staleness_share_0": pytest.approx(1 / 6),
        "staleness_share_1": pytest.approx(1 / 3),
        "staleness_share_2": pytest.approx(1 / 2),
    }
    fresh = staleness_metrics({7: 10}, update=7, max_staleness=1)
    assert value(fresh["staleness_share_1"]) == 0 and value(fresh["staleness_max"]) == 0
    assert staleness_metrics({7: 10}, update=7, max_staleness=0) == {}


def async_programs(sampler: FakeSampler, max_staleness: int) -> Any:
    """What `AsyncRollouts` reads of `AsyncPrograms`, for a task verified on device: the reward of a
    rollout is its row."""

    def gather_problems(table: Any, rows: np.ndarray, seed: int, batch: int) -> Any:
        return SimpleNamespace(
            problems=problems_of(int(batch)), key_data=np.full(2, batch, np.uint32)
        )

    return SimpleNamespace(
        sampler=sampler,
        mesh=None,
        role=None,
        disaggregated=False,
        max_staleness=max_staleness,
        cast_to_send=None,
        task=SimpleNamespace(on_device=True),
        shapes=SimpleNamespace(problem_rows=B_p + 2, shards=1, buffer_rows=B_p * n + 3),
        gather_problems=gather_problems,
        to_trainer_layout=lambda rollouts, B_p, n: rollouts,
        verify=lambda problems, rollouts, B_p, n: np.arange(15.0)[None],
    )


@pytest.mark.parametrize(
    ("max_staleness", "end_update"), [(1, None), (1, FIRST_BATCH + 3), (0, None)]
)
def test_batches_begin_at_most_k_updates_ahead(
    max_staleness: int, end_update: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before update v, batches up to v + k have begun, and none from the last update on; each is
    sampled with weights of at most k updates before, and arrives with its own problems."""
    monkeypatch.setattr(async_rollouts.sharding, "copy_to_mesh", lambda rollouts, _: rollouts)
    monkeypatch.setattr(async_rollouts, "replicated", lambda mesh: None)
    sampler = FakeSampler(ring_batches=max_staleness + 1)
    monkeypatch.setattr(sampler, "extract_batch", lambda outputs, first_row: np.array([first_row]))
    order = FixedOrder(np.arange(20 * B_p).reshape(20, B_p))
    problems: Any = SimpleNamespace(
        cell=Cell(B_p, n, 0),
        problems=None,
        problem_table=problems_of(0),
        problem_order=order,
        first_update=FIRST_BATCH,
        end_update=end_update,
    )
    source = async_rollouts.AsyncRollouts(async_programs(sampler, max_staleness), problems)
    updates = range(FIRST_BATCH, end_update or FIRST_BATCH + 5)
    for update in updates:
        state: Any = SimpleNamespace(params=update)
        sourced = source.next_batch(state, max_updates=1)
        begun = min(update + max_staleness, (end_update or 99) - 1)
        assert isinstance(source.worker, RolloutWorker)
        assert source.worker.next_batch - 1 == begun == source.next_batch_to_begin - 1
        assert sorted(source.pending_batches) == list(range(update + 1, begun + 1))
        batch: Any = sourced.inputs
        assert batch.key_data.tolist() == [update] * 2
        assert batch.problems.ids.tolist() == problems_of(update).ids.tolist()
        place = update - FIRST_BATCH
        assert sourced.problem_index.tolist() == list(range(place * B_p, (place + 1) * B_p))
        assert sourced.reward_sums is None and batch.rewards[0, 3] == 3
        newest, oldest = max(sampler.drawn[update]), min(sampler.drawn[update])
        assert update - max_staleness <= oldest <= newest <= update
        ages = {
            int(name[-1]): float(value(m)) for name, m in sourced.metrics.items() if "share" in name
        }
        total = sum(sampler.drawn[update].values())
        assert ages == pytest.approx(
            {age: sampler.drawn[update][update - age] / total for age in range(max_staleness + 1)}
            if max_staleness
            else {}
        )
        next_state: Any = SimpleNamespace(params=update + 1)
        assert source.finish_update(next_state) == {}
    assert source.updates_done == updates[-1] + 1 and source.busy_seconds > 0
    # what has begun is in progress; nothing has where the last update is done
    meta, _ = source.save()
    if end_update is not None:
        assert meta is None
    else:
        assert meta is not None and meta["next_batch"] == updates[-1] + 2 + max_staleness
        assert meta["layout"] == 7 and set(meta["batches"]) == {*map(str, source.pending_batches)}
    source.close()
