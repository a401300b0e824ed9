"""A mixture of experts from end to end: it learns the small task."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler import AS_USERS_DO, flags
from tests.e2e.conftest import Isojax

MOE = (
    "tiny.yaml",
    "cell.model.family=qwen3_moe",
    "cell.model.qk_norm=true",
    "cell.model.options={experts: 4, top_k: 2, expert_mlp: 32}",
    "sweep.n=[4]",
    "sweep.seeds=1",
)
CELL = "8x4-s0"


def rewards(place: Isojax, name: str) -> list[float]:
    """The share of correct samples at each evaluation."""
    return [sum(row["counts"]) / (row["samples"] * len(row["counts"])) for row in place.rows(CELL, name)]


@pytest.mark.slow
def test_a_mixture_of_experts_learns_as_the_dense_policy_does(isojax: Isojax) -> None:
    """Over twice as well in the end as in the beginning, as the dense policy of the same sizes."""
    isojax.swept("train", *MOE, "name=moe", XLA_FLAGS=flags(AS_USERS_DO))
    isojax.swept("train", "tiny.yaml", "sweep.n=[4]", "sweep.seeds=1", "name=dense", XLA_FLAGS=flags(AS_USERS_DO))
    for name in ("moe", "dense"):
        curve = rewards(isojax, name)
        assert np.mean(curve[-2:]) > 2 * curve[0], (name, curve)

    for row in isojax.rows(CELL, "moe")[1:]:
        assert row["train"]["expert_agreement"] == 1.0 and 0.25 <= row["train"]["expert_share_max"] <= 0.5
        assert 0 < row["train"]["router_entropy"] < np.log(4)
    assert not any("expert" in key for row in isojax.rows(CELL, "dense")[1:] for key in row["train"])


def test_a_dense_model_has_no_experts_to_replay(isojax: Isojax) -> None:
    words = ("train", "tiny.yaml", "sweep.n=[4]", "sweep.seeds=1", "cell.rl.replay_experts=true")
    isojax.refused(*words, saying=["cell.rl.replay_experts", "no experts"])
