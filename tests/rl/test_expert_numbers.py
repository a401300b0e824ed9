"""The load-balancing loss and the metrics of experts, and which tokens count how often, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import ModelConfig, RLConfig
from isojax.models.routing import RoutingSums
from isojax.models.transformer import Decoder
from isojax.rl.experts import (
    expert_loads,
    join_rows,
    pad_experts,
    records_experts,
    routing_metrics,
    weigh_prompt_tokens,
    weigh_response_tokens,
)
from isojax.rl.metric import values
from isojax.rl.objective import Microbatch, PromptTokens, balance_term, read_routers
from tests.device import DECODER, mesh

# Three experts, of which each of 5 pairs of a token and a layer chose two.
SUMS = RoutingSums(
    choices=jnp.array([5.0, 1.0, 4.0]),
    probabilities=jnp.array([2.0, 0.5, 2.5]),
    tokens=jnp.float32(5),
    entropy=jnp.float32(4),
    agreeing=jnp.float32(3),
)


def test_the_balance_loss_by_hand() -> None:
    """E sum f P with f = (1, .2, .8) and P = (.4, .1, .5): 3 (.4 + .02 + .4)."""
    loss = 3 * (0.4 + 0.02 + 0.4)
    metrics = values(routing_metrics(SUMS, knows_sampler=True))
    assert metrics == pytest.approx(
        {
            "router_entropy": 0.8,
            "expert_share_max": 0.5,
            "expert_balance": loss,
            "expert_agreement": 0.6,
        }
    )
    assert "expert_agreement" not in routing_metrics(SUMS, knows_sampler=False)
    loads = expert_loads(SUMS, jnp.float32(0.5))
    np.testing.assert_allclose(loads, 0.5 * 3 * np.array([5, 1, 4]) / 25, rtol=1e-6)
    inputs: Any = SimpleNamespace(expert_loads=loads)
    assert float(balance_term(SUMS, inputs)) == pytest.approx(0.5 * loss)
    inputs.expert_loads = None
    assert float(balance_term(SUMS, inputs)) == 0


def test_tokens_that_layers_read() -> None:
    """Of a response all before the last one that counts; of a prompt all, once for each response
    to it."""
    mask = jnp.array([[1, 1, 1, 0], [0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]], bool)
    expected = [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [0] * 5]
    assert weigh_response_tokens(mask, 5).tolist() == expected
    of_prompts = weigh_prompt_tokens(jnp.array([2, 3, 1]), jnp.array([4, 0, 1]), 3)
    assert of_prompts.tolist() == [[4, 4, 0], [0, 0, 0], [1, 0, 0]]


def test_experts_of_columns() -> None:
    experts = jnp.arange(1, 13).reshape(2, 3, 1, 2)
    assert pad_experts(None, 4) is None
    cropped, padded = pad_experts(experts, 2), pad_experts(experts, 5)
    assert cropped is not None and padded is not None
    assert cropped[:, :, 0].tolist() == [[[1, 2], [3, 4]], [[7, 8], [9, 10]]]
    assert padded.shape == (2, 5, 1, 2) and (padded[:, :3] == experts).all()
    both = join_rows(jnp.array([[1, 2], [3, 4]]), jnp.array([[5, 6, 7]]))
    assert both.tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert join_rows(experts, experts).shape == (1, 12, 1, 2)


def test_what_is_read_of_prompts_and_the_responses_to_them() -> None:
    """Two prompts, of 2 tokens and of 1, with two responses that count and with none; the third
    response, to the second prompt, has no token that counts."""
    routers: Any = SimpleNamespace(read=lambda weights, experts: (weights, experts))
    mask = jnp.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]], bool)
    experts = jnp.arange(9).reshape(3, 3, 1, 1)
    none: Any = None
    microbatch = Microbatch(none, mask, none, none, jnp.array([0, 0, 1]), experts)
    weights, chosen = read_routers(routers, None, microbatch, 2)
    assert weights.tolist() == [[1, 0], [0, 0], [0, 0]]
    assert chosen[..., 0, 0].tolist() == [[0, 1], [3, 4], [6, 7]]
    prompts = PromptTokens(
        jnp.zeros((2, 2)), jnp.array([2, 1]), 100 + jnp.arange(4).reshape(2, 2, 1, 1)
    )
    weights, chosen = read_routers(routers, prompts, microbatch, 2)
    assert weights.tolist() == [[2, 2, 0, 0, 1, 0, 0, 0, 0, 0]]
    assert chosen[..., 0, 0].tolist() == [[100, 101, 102, 103, 0, 1, 3, 4, 6, 7]]


def test_whose_choices_are_recorded() -> None:
    """Of a model with experts, where something reads them and no device has a part of a prompt."""
    options = {"experts": 4, "top_k": 2, "expert_mlp": 8}
    sizes: Any = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp": 8}
    sparse = Decoder(ModelConfig(family="qwen3_moe", qk_norm=True, options=options, **sizes), 24)
    reading = RLConfig(measure_expert_agreement=True)
    assert records_experts(reading, sparse, mesh("data=2"))
    assert records_experts(RLConfig(replay_experts=True), sparse, mesh("data=2"))
    assert not records_experts(RLConfig(measure_expert_agreement=False), sparse, mesh("data=2"))
    assert not records_experts(reading, DECODER, mesh("data=2"))
    assert not records_experts(reading, sparse, mesh("sequence=2"))
