"""A mixture of experts from end to end: it learns the small task, and is the same on 1 and 8
devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler import AS_USERS_DO, flags
from tests.e2e.command_line import Isojax
from tests.e2e.test_text import FLAGS
from tests.e2e.test_turns import HOST_CELL, ON_DEVICE, ON_HOST, prepare_chat
from tests.e2e.tiny_lm import SHAPE, make_model

MOE = (
    "tiny.yaml",
    "cell.model.family=qwen3_moe",
    "cell.model.qk_norm=true",
    "cell.model.options={experts: 4, top_k: 2, expert_mlp: 32}",
    "sweep.n=[4]",
    "sweep.seeds=1",
)
CELL = "8x4-s0"


# With weights in int8, the sampler chooses other experts than the trainer for many tokens.
INT8 = "cell.precision.rollout_weights=int8"


def rewards(place: Isojax, name: str) -> list[float]:
    """The share of correct samples at each evaluation."""
    return [
        sum(row["counts"]) / (row["samples"] * len(row["counts"])) for row in place.rows(CELL, name)
    ]


@pytest.mark.slow
def test_a_mixture_of_experts_learns_as_the_dense_policy_does(isojax: Isojax) -> None:
    """Over twice as well in the end as in the beginning, as the dense policy of the same sizes."""
    isojax.swept("train", *MOE, "name=moe", XLA_FLAGS=flags(AS_USERS_DO))
    isojax.swept(
        "train",
        "tiny.yaml",
        "sweep.n=[4]",
        "sweep.seeds=1",
        "name=dense",
        XLA_FLAGS=flags(AS_USERS_DO),
    )
    for name in ("moe", "dense"):
        curve = rewards(isojax, name)
        assert np.mean(curve[-2:]) > 2 * curve[0], (name, curve)

    for row in isojax.rows(CELL, "moe")[1:]:
        assert (
            row["train"]["expert_agreement"] == 1.0
            and 0.25 <= row["train"]["expert_share_max"] <= 0.5
        )
        assert 0 < row["train"]["router_entropy"] < np.log(4)
    assert not any(
        "expert" in key for row in isojax.rows(CELL, "dense")[1:] for key in row["train"]
    )


@pytest.mark.slow
def test_a_cell_of_experts_on_eight_devices(isojax: Isojax) -> None:
    """As of dense models (test_mesh.py): C and targets are the same, and evaluations differ by
    rounding alone."""
    words = (*MOE, "sweep.budget=200", "cell.rl.expert_balance=0.01", "cell.rl.replay_experts=true")
    isojax.swept("train", *words, "name=one", XLA_FLAGS=flags(AS_USERS_DO))
    isojax.swept(
        "train", *words, "name=eight", "--mesh", "data=4,tensor=2", XLA_FLAGS=flags(AS_USERS_DO)
    )
    one, eight = isojax.rows(CELL, "one"), isojax.rows(CELL, "eight")
    assert [(row["target"], row["M"]) for row in one] == [
        (row["target"], row["M"]) for row in eight
    ]
    assert np.abs(np.subtract(one[0]["counts"], eight[0]["counts"])).sum() <= 3  # of 320 rollouts
    for key in ("expert_balance", "router_entropy", "loss"):
        assert eight[1]["train"][key] == pytest.approx(one[1]["train"][key], abs=2e-3), key
    assert eight[1]["train"]["sampler_logp_gap"] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("replies", ["on device", "on the host"])
def test_experts_are_replayed_where_a_task_replies(isojax: Isojax, replies: str) -> None:
    """The first evaluation after the base policy's shows one update, whose rollouts are the same
    with replay and without: with it, log-probabilities are no further apart. The sampler's experts
    are compared in rl/test_replay_of_turns.py."""
    if replies == "on device":
        cell = CELL
        words = (*ON_DEVICE, *MOE[1:4], "cell.eval={samples: 2, start: 32, ratio: 2}")
    else:
        moe: dict[str, Any] = {"family": "qwen3_moe", "qk_norm": True}
        options = {"experts": 4, "top_k": 2, "expert_mlp": 16}
        prepare_chat(isojax)
        make_model(isojax.folder / "lm", SHAPE.model_copy(update=moe | {"options": options}))
        cell, words = HOST_CELL, ("train", *ON_HOST)

    rows = {}
    for name, replays in (("own", "false"), ("replayed", "true")):
        isojax.swept(
            *words, INT8, f"cell.rl.replay_experts={replays}", f"name={name}", XLA_FLAGS=FLAGS
        )
        rows[name] = isojax.rows(cell, name)
    own, replayed = rows["own"][1], rows["replayed"][1]
    assert own["M"] == replayed["M"] == 1 and own["metrics"]["turns"] > 1.2
    assert own["train"]["reward"] == replayed["train"]["reward"]
    assert own["train"]["expert_agreement"] < 0.999
    for key in ("sampler_logp_gap", "sampler_logp_gap_max"):
        assert replayed["train"][key] <= own["train"][key], key
    assert all(row["train"]["grad_norm"] > 0 for row in rows["replayed"][1:])


def test_a_dense_model_has_no_experts_to_replay(isojax: Isojax) -> None:
    words = ("train", "tiny.yaml", "sweep.n=[4]", "sweep.seeds=1", "cell.rl.replay_experts=true")
    isojax.refused(*words, saying=["cell.rl.replay_experts", "no experts"])
