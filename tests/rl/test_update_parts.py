"""Parts of an update against loops in NumPy: the choice of n_train rollouts, what is measured of a
batch, and the gradient's signal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import CellConfig, RLConfig
from isojax.core.shapes import SamplerShapes
from isojax.rl.advantages import RewardedBatch
from isojax.rl.metric import value
from isojax.rl.objective import LossWeights
from isojax.rl.train_step import (
    BatchSignals,
    TrainStep,
    choose_train_rollouts,
    gradient_signal,
    measure_rollouts,
    rewarded_batch,
)
from isojax.sampling.batch import ProblemArrays, RolloutBatch, Rollouts
from isojax.sampling.layout import Layout
from isojax.sampling.logits import rollout_keys, uniforms
from isojax.tasks.protocol import Interruption, StopConditions
from tests.device import CONFIG, DECODER, Parity, mesh, quick_jit

T = 5
CELLS = [(4, 3), (3, 5)]


def shapes(shards: int) -> SamplerShapes:
    return SamplerShapes(CELLS, shards, 4, 4, 2, T)


def batch_of(shards: int, B_p: int, n: int) -> RolloutBatch:
    """Random rollouts, some of them with context tokens that the policy did not draw; the rows that
    pad them hold rollouts too."""
    rng = np.random.default_rng([shards, B_p, n])
    rows = (shards, shapes(shards).buffer_rows)
    lengths = rng.integers(1, T + 1, rows).astype(np.int32)
    in_response = np.arange(T) < lengths[..., None]
    drawn = in_response & (rng.random((*rows, T)) < 0.7)
    arrays: dict[str, Any] = {
        "tokens": rng.integers(0, 9, (*rows, T)).astype(np.int32),
        "logps": rng.normal(size=(*rows, T)).astype(np.float32),
        "mask": drawn,
        "nucleus_mass": np.ones((*rows, 1), np.float32),
        "stopped": rng.random(rows) < 0.6,
        "lengths": lengths,
    }
    rewards = rng.integers(0, 2, rows).astype(np.float32)
    place = Layout(B_p, n, shards).place
    rewards[place(np.arange(n))] = 1  # the first group's are equal
    rewards[place(np.array([n, n + 1]))] = 0, 1
    ids = (10 + 7 * np.arange(shapes(shards).problem_rows)).astype(np.int32)
    problems = ProblemArrays(np.zeros((len(ids), 2), np.int32), ids * 0 + 1, ids[:, None] * 0, ids)
    return RolloutBatch(
        problems, Rollouts(**arrays), rewards, np.int32(B_p), np.int32(n), np.zeros(2, np.uint32)
    )


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(("B_p", "n"), CELLS)
def test_n_train_rollouts_are_those_with_the_smallest_random_numbers(
    shards: int, B_p: int, n: int
) -> None:
    """By a loop over the problems. The numbers belong to the problem and the rollout: shards and
    padding change nothing."""
    n_train = 2
    batch = batch_of(shards, B_p, n)
    layout = Layout(B_p, n, shards)
    key = jax.random.key(3)

    group, rollout = np.divmod(np.arange(B_p * n), n)
    ids = jnp.asarray(batch.problems.ids[group])
    keys = rollout_keys(jax.random.fold_in(key, 1), ids, jnp.asarray(rollout, jnp.int32))
    numbers = np.asarray(uniforms(keys, jnp.zeros(B_p * n, jnp.int32))).reshape(B_p, n)
    expected = np.zeros((B_p, n), bool)
    for p in range(B_p):
        expected[p, np.argsort(numbers[p])[:n_train]] = True

    def choose(batch: RolloutBatch) -> jax.Array:
        rewarded = rewarded_batch(shapes(shards), batch, False)
        row_ids = jnp.asarray(batch.problems.ids)[rewarded.groups.reshape(-1)]
        return choose_train_rollouts(key, row_ids, rewarded, n_train)

    chosen = np.asarray(quick_jit(choose)(batch))

    assert chosen.sum() == B_p * n_train  # no row of padding
    assert layout.in_order(chosen).reshape(B_p, n).tolist() == expected.tolist()


@pytest.mark.parametrize("shards", [1, 2])
def test_what_is_measured_of_a_batch(shards: int) -> None:
    """Means over the rollouts, whatever the padding rows hold."""
    B_p, n = 4, 3
    batch = batch_of(shards, B_p, n)
    layout = Layout(B_p, n, shards)
    lengths, stopped, rewards = (
        layout.in_order(x).astype(np.float64)
        for x in (batch.rollouts.lengths, batch.rollouts.stopped, batch.rewards)
    )
    mask = layout.in_order(batch.rollouts.mask)
    drawn = mask.sum(-1)
    turns = [sum(row[t] and not (t and row[t - 1]) for t in range(T)) for row in mask]
    is_level = np.repeat(np.ptp(rewards.reshape(B_p, n), axis=1) == 0, n)

    def measured(stops: Any) -> dict[str, float]:
        rewarded = rewarded_batch(shapes(shards), batch, False)
        assert layout.in_order(rewarded.lengths).tolist() == drawn.tolist()
        metrics = measure_rollouts(stops, batch, rewarded)
        return {name: float(value(metric)) for name, metric in metrics.items()}

    expected = {
        "reward": rewards.mean(),
        "truncated": 1 - stopped.mean(),
        "response_length": lengths.mean(),
        "zero_variance": is_level.mean(),
        "tokens": lengths.sum(),
    }
    assert 0 < is_level.mean() < 1
    assert measured(StopConditions((3,), None)) == pytest.approx(expected, rel=1e-6)

    of_context = {
        "response_length": drawn.mean(),
        "context_length": (lengths - drawn).mean(),
        "tokens": drawn.sum(),
    }
    interruption = Interruption(tokens=(1, 2), after=2, unless_token=None)
    interrupting = StopConditions((3,), None, interruption=interruption)
    assert measured(interrupting) == pytest.approx(
        expected | of_context | {"interrupted": (drawn < lengths).mean()}, rel=1e-6
    )
    in_turns = SimpleNamespace(adds_context=True, interruption=None, has_turns=True)
    assert measured(in_turns) == pytest.approx(
        expected | of_context | {"turns": np.mean(turns)}, rel=1e-6
    )


def test_a_gradients_signal_by_hand() -> None:
    """Gradient (3, 4), of norm 5, is clipped to half its length. Adam's first moment after two
    updates is .1 (.9 g1 + g2); over 1 - .9^2 it is their mean."""
    gradient = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    g1, g2 = np.array([1.0, 2.0]), np.array([3.0, -1.0])
    first_moment = 0.1 * (0.9 * g1 + g2)
    mean_gradient = (0.9 * g1 + g2) / 1.9
    moments = SimpleNamespace(
        mu={"a": jnp.array(first_moment[:1]), "b": jnp.array(first_moment[1:])}, count=jnp.int32(2)
    )

    metrics = gradient_signal(gradient, jnp.float32(5), moments, 2.5)

    expected = 0.5 * float(mean_gradient @ np.array([3.0, 4.0]))
    assert {name: float(value(metric)) for name, metric in metrics.items()} == {
        "grad_signal": pytest.approx(expected, rel=1e-5),
        "grad_signal_square": pytest.approx(expected**2, rel=1e-5),
        "grad_square": pytest.approx(6.25, rel=1e-5),
    }
    unclipped = gradient_signal(gradient, jnp.float32(5), moments, 10.0)
    assert float(value(unclipped["grad_square"])) == pytest.approx(25)
    nothing = SimpleNamespace(mu=jax.tree.map(jnp.zeros_like, gradient), count=jnp.int32(0))
    assert (
        float(value(gradient_signal(gradient, jnp.float32(5), nothing, 10.0)["grad_signal"])) == 0
    )


def test_a_group_that_lies_in_two_shards_is_one_group() -> None:
    """Rows 2 and 3 of a group of 3 are in the next shard, and padding is of no group."""
    batch = batch_of(2, 3, 5)  # 8 rollouts on the first shard, 7 on the second
    rewarded: RewardedBatch = rewarded_batch(shapes(2), batch, True)
    rows = shapes(2).buffer_rows
    groups = [[r // 5 for r in range(8)], [r // 5 for r in range(8, 15)]]
    for shard, expected in enumerate(groups):
        padding = rows - len(expected)
        assert rewarded.groups[shard].tolist() == expected + [0] * padding
        assert rewarded.valid[shard].tolist() == [True] * len(expected) + [False] * padding
        assert not np.asarray(rewarded.rewards)[shard, len(expected) :].any()
        assert not np.asarray(rewarded.lengths)[shard, len(expected) :].any()
    assert rewarded.filters_zero_variance and int(rewarded.n) == 5


@pytest.mark.parametrize(
    ("settings", "drops"),
    [
        ({}, True),
        ({"kl": 0.1}, False),
        ({"entropy": 0.1}, False),
        ({"kl": 0.1, "zero_variance_filter": ("kl",)}, True),
        ({"kl": 0.1, "entropy": 0.1, "zero_variance_filter": ("kl",)}, False),
        ({"kl": 0.1, "entropy": 0.1, "zero_variance_filter": ("kl", "entropy")}, True),
        ({"measure_kl": True}, True),
        ({"loss": "rloo"}, True),
    ],
)
def test_groups_without_an_advantage_are_left_out_where_no_term_reads_them(
    settings: dict[str, Any], drops: bool
) -> None:
    cell = CellConfig(model=CONFIG, rl=RLConfig(**settings))
    step = TrainStep(cell, DECODER, Parity.stops, shapes(1), mesh("auto"))
    assert step.drops_zero_variance == drops


def test_a_group_whose_tokens_have_an_advantage_stays() -> None:
    """Advantages of tokens leave out the same groups as advantages of whole rollouts."""
    cell = CellConfig(model=CONFIG, rl=RLConfig())
    step = TrainStep(cell, DECODER, Parity.stops, shapes(1), mesh("auto"))
    batch = batch_of(1, 3, 4)
    rows = shapes(1).buffer_rows
    valid = np.arange(rows)[None] < 12
    of_rollouts = np.zeros((1, rows), np.float32)
    of_rollouts[0, 6] = 1.0  # of the second group alone
    of_tokens = np.zeros((1, rows, T), np.float32)
    of_tokens[0, 6, T - 1] = 1.0

    def kept(advantages: np.ndarray) -> list[int]:
        weights = LossWeights(jnp.asarray(advantages), *[jnp.ones((1, rows))] * 3)
        part = step._trained_part(batch, BatchSignals(weights, jnp.asarray(valid), None))
        assert int(part.B_p) == 1
        return part.responses.tokens[0, :4].tolist()

    assert kept(of_tokens) == kept(of_rollouts) == batch.rollouts.tokens[0, 4:8].tolist()
