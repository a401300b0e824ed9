"""A mixture of experts from end to end: it learns the small task, and is the same on one device
and on a mesh."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.e2e.command_line import Isojax, Nursery
from tests.e2e.test_text import FLAGS
from tests.e2e.test_turns import HOST_CELL, ON_DEVICE, ON_HOST, prepare_chat
from tests.e2e.tiny_lm import SHAPE, make_model

pytestmark = [pytest.mark.slow, pytest.mark.seconds(70)]

MOE = (
    "tiny.yaml",
    "cell.model.family=qwen3_moe",
    "cell.model.qk_norm=true",
    "cell.model.options={experts: 4, top_k: 2, expert_mlp: 32}",
    "cell.rl.expert_balance=0.01",
    "cell.rl.replay_experts=true",
    "sweep.n=[4]",
    "sweep.seeds=1",
)
CELL = "8x4-s0"


# With weights in int8, the sampler chooses other experts than the trainer for many tokens.
INT8 = "cell.precision.rollout_weights=int8"


def rewards(place: Isojax) -> list[float]:
    """The share of correct samples at each evaluation."""
    return [sum(row["counts"]) / (row["samples"] * len(row["counts"])) for row in place.rows(CELL)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Isojax:
    """Where a cell of experts has run on one device, with all that experts have settings for; to
    be read only."""
    location = Isojax(tmp_path_factory.mktemp("experts") / "work", nursery)
    location.swept("train", *MOE)
    return location


def test_a_mixture_of_experts_learns_as_the_dense_policy_does(alone: Isojax, whole: Isojax) -> None:
    """Over twice as well in the end as in the beginning, as the dense policy of the same sizes."""
    for place in (alone, whole):
        curve = rewards(place)
        assert np.mean(curve[-2:]) > 2 * curve[0], curve

    for row in alone.rows(CELL)[1:]:
        assert (
            row["train"]["expert_agreement"] == 1.0
            and 0.25 <= row["train"]["expert_share_max"] <= 0.5
        )
        assert 0 < row["train"]["router_entropy"] < np.log(4)
    assert not any("expert" in key for row in whole.rows(CELL)[1:] for key in row["train"])


def test_a_cell_of_experts_on_a_mesh(isojax: Isojax, alone: Isojax) -> None:
    """As of dense models (test_mesh.py): C and targets are the same, and evaluations differ by
    rounding alone."""
    isojax.swept("train", *MOE, "sweep.budget=100", "--mesh", "data=2,tensor=2")
    rows = isojax.rows(CELL)
    one = alone.rows(CELL)[: len(rows)]
    assert len(rows) > 1
    assert [(row["target"], row["M"]) for row in one] == [(row["target"], row["M"]) for row in rows]
    assert np.abs(np.subtract(one[0]["counts"], rows[0]["counts"])).sum() <= 3  # of 320 rollouts
    for key in ("expert_balance", "router_entropy", "loss"):
        assert rows[1]["train"][key] == pytest.approx(one[1]["train"][key], abs=2e-3), key
    assert rows[1]["train"]["sampler_logp_gap"] < 1e-4


@pytest.mark.parametrize(
    "replies", ["on device", pytest.param("on the host", marks=pytest.mark.nightly)]
)
def test_experts_are_replayed_where_a_task_replies(isojax: Isojax, replies: str) -> None:
    """The first evaluation after the base policy's shows one update, whose rollouts are the same
    with replay and without: with it, log-probabilities are no further apart. The sampler's experts
    are compared in rl/test_replay_of_turns.py."""
    if replies == "on device":
        cell = CELL
        few = ("cell.eval={samples: 2, start: 32, ratio: 2}", "sweep.budget=64")
        words = (*ON_DEVICE, *MOE[1:4], *few)
    else:
        moe: dict[str, Any] = {"family": "qwen3_moe", "qk_norm": True}
        options = {"experts": 4, "top_k": 2, "expert_mlp": 16}
        prepare_chat(isojax)
        make_model(isojax.folder / "lm", SHAPE.model_copy(update=moe | {"options": options}))
        cell, words = HOST_CELL, ("train", *ON_HOST, "sweep.budget=48")

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
