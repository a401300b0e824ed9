"""Dynamic sampling: which groups replace which, against a loop over lists; a run's count of
rollouts."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from isojax.core.config import RLConfig
from isojax.core.nouns import Cell
from isojax.core.schedule import Stage
from isojax.core.shapes import SamplerShapes
from isojax.rl.advantages import EPS
from isojax.rl.dynamic_sampling import build_merge, has_equal_rewards
from isojax.rl.recipe_checks import check_algorithm
from isojax.sampling.batch import ProblemArrays, RolloutBatch, Rollouts
from isojax.sampling.layout import Layout
from tests.device import MESHES, mesh, quick_jit
from tests.refusals import refused

B_p, n, T, P = 6, 3, 4, 2


def make_batch(shapes: SamplerShapes, first_id: int, rewards: list[list[float]]) -> RolloutBatch:
    """B_p problems with ids from `first_id` on; rollout i of problem q has the token 100 * id + i
    throughout."""
    rows = (shapes.shards, shapes.buffer_rows)
    where = Layout(B_p, n, shapes.shards).place(np.arange(B_p * n))
    tokens = np.full((*rows, T), -7, np.int32)
    reward_buffer = np.full(rows, 0.5, np.float32)
    tokens[where] = np.array([[100 * (first_id + q) + i] * T for q in range(B_p) for i in range(n)])
    reward_buffer[where] = np.concatenate(rewards)
    ids = np.resize(first_id + np.arange(B_p), shapes.problem_rows).astype(np.int32)
    problems = ProblemArrays(
        np.repeat(ids[:, None], P, 1), np.full(len(ids), P, np.int32), ids[:, None], ids
    )
    rollouts = Rollouts(
        tokens,
        logps=-tokens.astype(np.float32),
        mask=tokens > 0,
        nucleus_mass=np.ones((*rows, 1), np.float32),
        stopped=np.ones(rows, bool),
        lengths=np.full(rows, T, np.int32),
    )  # pyright: ignore[reportArgumentType]
    return RolloutBatch(
        problems, rollouts, reward_buffer, np.int32(B_p), np.int32(n), np.zeros(2, np.uint32)
    )


RIGHT, WRONG, MIXED = [1.0] * n, [0.0] * n, [1.0, 0.0, 0.0]
HALF = [0.5] * n  # of graded rewards


@pytest.mark.parametrize("axes", ["auto", MESHES[0]])
@pytest.mark.parametrize(
    ("first", "further", "expected_ids"),
    [
        # Groups 0, 2 and 5 are equal; of the further batch 21 and 24 are of use.
        (
            [RIGHT, MIXED, WRONG, MIXED, MIXED, HALF],
            [WRONG, MIXED, RIGHT, WRONG, MIXED, HALF],
            [21, 11, 24, 13, 14, 15],
        ),
        # More are of use than are wanted: the first of them.
        (
            [MIXED, WRONG, MIXED, MIXED, MIXED, MIXED],
            [WRONG, MIXED, MIXED, MIXED, MIXED, MIXED],
            [10, 21, 12, 13, 14, 15],
        ),
        # None is.
        ([WRONG] * B_p, [RIGHT] * B_p, [10, 11, 12, 13, 14, 15]),
        # All are replaced.
        ([WRONG] * B_p, [MIXED] * B_p, [20, 21, 22, 23, 24, 25]),
    ],
)
def test_equal_groups_are_replaced(
    axes: str, first: list[list[float]], further: list[list[float]], expected_ids: list[int]
) -> None:
    on = mesh(axes)
    shards = on.shape["data"] * on.shape["fsdp"]
    shapes = SamplerShapes([(B_p, n)], shards, 8, 4, P, T)
    merged = build_merge(shapes, on)(make_batch(shapes, 10, first), make_batch(shapes, 20, further))
    batch = jax.device_get(merged.batch)
    np.testing.assert_array_equal(batch.problems.ids[:B_p], expected_ids)
    np.testing.assert_array_equal(batch.problems.prompts[:B_p, 0], expected_ids)

    where = Layout(B_p, n, shards).place(np.arange(B_p * n))
    expected_tokens = [100 * i + k for i in expected_ids for k in range(n)]
    np.testing.assert_array_equal(
        batch.rollouts.tokens[where], np.repeat(np.array(expected_tokens)[:, None], T, 1)
    )
    np.testing.assert_array_equal(
        batch.rollouts.logps[where][:, 0], -np.array(expected_tokens, np.float32)
    )
    rewards = {10 + q: r for q, r in enumerate(first)} | {20 + q: r for q, r in enumerate(further)}
    np.testing.assert_array_equal(
        batch.rewards[where], np.concatenate([rewards[i] for i in expected_ids])
    )

    is_equal = [len(set(rewards[i])) == 1 for i in expected_ids]
    assert int(merged.equal_groups) == sum(is_equal)
    np.testing.assert_array_equal(np.asarray(has_equal_rewards(shapes, batch))[:B_p], is_equal)


def test_rewards_that_are_nearly_equal() -> None:
    """1e-6 apart they differ, nearer they do not; rows of padding are of no problem."""
    shapes = SamplerShapes([(B_p, n)], 1, 8, 4, P, T)
    near = [[0.5, 0.5, x] for x in (0.5, 0.75, 0.5 + 2e-6)] + [
        [0.0, 0.0, x] for x in (EPS, 0.9e-6, 0.0)
    ]
    is_equal = quick_jit(partial(has_equal_rewards, shapes))(make_batch(shapes, 10, near))
    assert is_equal.tolist() == [True, False, False, False, True, True] + [False] * 4


@pytest.mark.parametrize(
    ("words", "cells"),
    [
        ({"loss": "reinforce_pp"}, [Cell(4, 1, 0)]),
        ({"max_staleness": 1}, [Cell(4, 4, 0)]),
        ({}, [Cell(4, 2, 0, "auto", (Stage(0, 4, 2),), n_max=8)]),
    ],
)
def test_what_dynamic_sampling_contradicts(words: dict[str, Any], cells: list[Cell]) -> None:
    with refused():
        check_algorithm(RLConfig(dynamic_sampling=3, **words), cells)
