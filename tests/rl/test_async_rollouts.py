"""Asynchronous rollouts: k = 0 is the synchronous run; no token is older than k updates; what is
older is really sampled by older weights.

That k = 0 leaves the same bits is shown where both are compiled as users do:
tests/e2e/test_async.py.
"""

from __future__ import annotations

from contextlib import closing
from functools import cache, partial
from typing import Any, Literal

import jax
import numpy as np
import pytest

from isojax.core.config import CellConfig, RLConfig, SamplingConfig
from isojax.core.nouns import Cell, Problem
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import MeshShape
from isojax.distributed.sharding import make_mesh, replicated, shapes_with_shardings, shard_count
from isojax.rl.async_rl.async_rollouts import AsyncPrograms, AsyncRollouts
from isojax.rl.async_rl.rollout_worker import BackgroundWorker, RolloutJob, RolloutWorker
from isojax.rl.fused_rollouts import ProblemBatches, build_fused_update
from isojax.rl.metric import Metrics, merge
from isojax.rl.objective import make_coefficients
from isojax.rl.optimizer import TrainState, build_init_state
from isojax.rl.rollout_source import CellProblems, UpdateShapes
from isojax.sampling.batch import ProblemArrays
from tests.device import (
    CONFIG,
    DECODER,
    P,
    Parity,
    T,
    mesh,
    placed,
    policy,
    random_problems,
    shapes_of,
)
from tests.refusals import refused
from tests.rl.test_inline_rollouts import FixedOrder, Spoken, train_on

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

Way = Literal["turns", "thread"]
PAIRS = [(6, 4), (4, 9)]
COUNT, UPDATES, SEED = 11, 5, 17
TABLE = random_problems(COUNT, seed=4)
PROBLEMS = [Problem(int(i), f"{i:03d}", "even") for i in TABLE.ids]
FROZEN = 1e-30  # a learning rate under which the policy stays what it is


def recipe(k: int | None, learning_rate: float = 2e-2) -> CellConfig:
    rl = RLConfig(
        kl=0.1, learning_rate=learning_rate, lr_reference_batch=35, warmup=2, max_staleness=k
    )
    return CellConfig(
        model=CONFIG,
        sampling=SamplingConfig(prompt_length=P, response_length=T, temperature=0.8),
        rl=rl,
    )


def order(B_p: int) -> FixedOrder:
    return FixedOrder(
        np.array(
            [
                np.random.default_rng(step).permutation(COUNT)[:B_p].astype(np.int32)
                for step in range(20)
            ]
        )
    )


def sampler_shapes(axes: str):
    return SamplerShapes(PAIRS, shard_count(mesh(axes)), 40, 8, P, T, prefill_batch=2)


def programs_of(task: Any, axes: str, k: int, way: Way = "turns") -> AsyncPrograms:
    """By turns, or with a sampler of two shards on other devices than the trainer's."""
    sampler_mesh = make_mesh(MeshShape(data=2), jax.devices()[2:]) if way == "thread" else None
    return AsyncPrograms(
        recipe(k), DECODER, task, sampler_shapes(axes), PAIRS, mesh(axes), sampler_mesh
    )


programs = cache(partial(programs_of, Parity()))
compiled = set[AsyncPrograms]()


def asynchronous(
    axes: str,
    k: int,
    pair: tuple[int, int],
    learning_rate: float = 2e-2,
    task: Spoken | None = None,
    way: Way = "turns",
):
    on, cell = mesh(axes), Cell(*pair, SEED)
    made = programs(axes, k, way) if task is None else programs_of(task, axes, k, way)
    state = build_init_state(DECODER, on)(placed(policy(), on))
    # as text tasks have none
    host_table = TABLE if task is None else TABLE._replace(answers=TABLE.answers[:, :0])
    table = ProblemArrays(*(jax.device_put(x, replicated(on)) for x in host_table))
    values = make_coefficients(recipe(k, learning_rate).rl)
    base, problem_order = placed(policy(1), on), order(pair[0])

    # one compilation is for all pairs and learning rates: they are arguments of the programs
    if made not in compiled:
        made.compile(
            UpdateShapes(
                state=shapes_of(state),
                base_params=shapes_of(base),
                problem_table=shapes_of(table),
                coefficients=shapes_with_shardings(values, replicated(on)),
            )
        )
        compiled.add(made)

    source = AsyncRollouts(made, CellProblems(cell, PROBLEMS, table, problem_order, first_update=0))
    with closing(source):
        sums: Metrics = {}
        for count in (2, UPDATES - 2):  # it goes on where it stood
            state, more = train_on(source, made.update, state, base, values, problem_order, count)
            sums = merge(sums, more)
    return state, {name: metric.sum for name, metric in sums.items()}


@cache
def fused(axes: str) -> Any:
    return build_fused_update(recipe(None), DECODER, Parity(), sampler_shapes(axes), mesh(axes))


@cache
def synchronous(
    axes: str, pair: tuple[int, int], learning_rate: float = 2e-2
) -> tuple[TrainState, dict[str, float]]:
    on = mesh(axes)
    state, sums = build_init_state(DECODER, on)(placed(policy(), on)), {}
    selected, base = order(pair[0]), placed(policy(1), on)
    for count in (2, UPDATES - 2):
        index = np.zeros((UPDATES, sampler_shapes(axes).problem_rows), np.int32)
        for i in range(count):
            index[i, : pair[0]] = next(selected)
        batches = ProblemBatches(
            ProblemArrays(*(jax.numpy.asarray(x) for x in TABLE)),
            index,
            num_updates=np.int32(count),
            B_p=np.int32(pair[0]),
            n=np.int32(pair[1]),
            seed=np.int32(SEED),
        )
        coefficients = make_coefficients(recipe(None, learning_rate).rl)
        state, result = fused(axes)(state, base, batches, coefficients)
        sums = merge(sums, jax.tree.map(float, result.metrics))
    return state, {name: metric.sum for name, metric in sums.items()}


def test_k_0_is_the_synchronous_run() -> None:
    for pair in PAIRS:
        (state, metrics), (expected, known) = (
            asynchronous("auto", 0, pair),
            synchronous("auto", pair),
        )
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
            jax.device_get(state),
            jax.device_get(expected),
        )
        assert metrics == pytest.approx(known, rel=1e-5, abs=1e-5)
        assert (metrics["reward"], metrics["tokens"]) == (known["reward"], known["tokens"])
        # nothing is off-policy: the trainer's log-probabilities are the sampler's
        assert metrics["sampler_logp_gap_max"] < 1e-5
        moved = jax.tree.map(
            lambda a, b: float(np.abs(np.asarray(a) - b).max()), state.params, policy()
        )
        assert min(jax.tree.leaves(moved)) > 1e-3


def test_under_a_policy_that_stays_rollouts_ahead_are_the_same() -> None:
    """Draws belong to (update, problem, rollout): not to what else was in the slots, nor to the
    chunk."""
    axes, k = "data=2", 2
    for pair in PAIRS:
        _, metrics = asynchronous(axes, k, pair, FROZEN)
        _, known = synchronous(axes, pair, FROZEN)
        for name, value in known.items():
            assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
        assert metrics["reward"] == known["reward"] and metrics["tokens"] == known["tokens"]
        assert 0 < metrics["staleness_mean"] <= k * UPDATES and 1 <= metrics["staleness_max"] <= k
        shares = [metrics[f"staleness_share_{age}"] for age in range(k + 1)]
        assert sum(shares) == pytest.approx(UPDATES, rel=1e-6)
        assert sum(age * share for age, share in enumerate(shares)) == pytest.approx(
            metrics["staleness_mean"], rel=1e-5
        )


def test_older_tokens_are_of_older_policies() -> None:
    """The trainer's log-probabilities are the sampler's while the policy stays, and not where it
    has moved since.
    """
    _, same_policy = asynchronous("data=2", 2, PAIRS[0], FROZEN)
    _, off_policy = asynchronous("data=2", 2, PAIRS[0])
    assert same_policy["sampler_logp_gap_max"] < 1e-5
    assert off_policy["sampler_logp_gap"] > 100 * same_policy["sampler_logp_gap"]
    assert off_policy["staleness_max"] >= 1


def test_sampler_and_trainer_on_two_meshes() -> None:
    """A sampler of two shards and a trainer of one: all rollouts reach the trainer."""
    for pair in PAIRS:
        _, metrics = asynchronous("auto", 2, pair, FROZEN, way="thread")
        _, known = synchronous("auto", pair, FROZEN)
        assert metrics["reward"] == known["reward"] and metrics["tokens"] == known["tokens"]
        assert metrics["loss"] == pytest.approx(known["loss"], rel=1e-4, abs=1e-5)
        assert metrics["staleness_max"] <= 2
        assert 0 < metrics["sampler_busy"] <= UPDATES and 0 < metrics["trainer_busy"] <= UPDATES


@pytest.mark.parametrize(("k", "way"), [(0, "turns"), (2, "thread")])
def test_text_is_graded_as_it_finishes(k: int, way: Way) -> None:
    task = Spoken()
    _, metrics = asynchronous("auto", k, PAIRS[0], FROZEN, task, way)
    _, known = synchronous("auto", PAIRS[0], FROZEN)
    assert (
        metrics["reward"] == pytest.approx(known["reward"], rel=1e-6)
        and metrics["tokens"] == known["tokens"]
    )
    requested = [
        int(TABLE.ids[q])
        for _, index in zip(range(UPDATES), order(6).batches, strict=False)
        for q in index
        for _ in range(4)
    ]
    # with k > 0 later batches are among them
    assert sorted(task.graded[: len(requested)]) == sorted(requested) or k
    assert metrics["parsed_fraction"] == UPDATES


def test_what_the_verifier_raises_arrives() -> None:
    refused_id = int(TABLE.ids[next(order(6))[0]])
    with refused():
        asynchronous("auto", 1, PAIRS[0], FROZEN, Spoken(refused=refused_id))


def test_groups_that_do_not_divide_among_shards_are_refused() -> None:
    on = mesh("data=4")
    with refused():
        AsyncPrograms(recipe(1), DECODER, Parity(), SamplerShapes(PAIRS, 4, 12, 8, P, T), PAIRS, on)


def test_rollouts_in_progress_go_on_only_where_the_samplers_arrays_are_as_they_were() -> None:
    """A resumed sweep may have grown, or have another mesh, also one of as many shards."""

    def others(pairs: list[tuple[int, int]], axes: str) -> AsyncPrograms:
        shapes = SamplerShapes(pairs, shard_count(mesh(axes)), 40, 8, P, T, prefill_batch=2)
        return AsyncPrograms(recipe(2), DECODER, Parity(), shapes, pairs, mesh(axes))

    made = programs("auto", 2)
    table = ProblemArrays(*(jax.numpy.asarray(x) for x in TABLE))
    problems = CellProblems(
        Cell(*PAIRS[0], SEED), PROBLEMS, table, order(PAIRS[0][0]), first_update=0
    )
    source = AsyncRollouts(made, problems)
    source._publish_and_begin(policy())
    saved, _ = source.save()
    assert (
        saved is not None and made.can_restore(saved) and others(PAIRS, "auto").can_restore(saved)
    )
    assert others([*PAIRS, (4, 4)], "auto").can_restore(saved)  # within the sizes that there were
    assert not others([*PAIRS, (6, 8)], "auto").can_restore(saved)
    assert not others(PAIRS, "sequence=4").can_restore(saved) and not others(
        PAIRS, "data=2"
    ).can_restore(saved)


def test_what_the_sampler_raises_arrives() -> None:
    """Here: batch 7 is not the first one."""
    filler = ProblemArrays(*(x[:1] for x in TABLE))
    job = RolloutJob(*PAIRS[0], first_batch=0, filler_problem=filler, on_finished=None)
    worker = BackgroundWorker(RolloutWorker(programs("auto", 2, "thread").sampler, job))
    worker.begin_batch(7, ProblemArrays(*(x[:6] for x in TABLE)), np.zeros(2, np.uint32))
    with pytest.raises(AssertionError, match=r"\(7, 0\)"):
        worker.take_batch(7)
    worker.close()
