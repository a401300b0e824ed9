"""A mixture of experts whose responses have turns: the experts that a sampler records of drawn
tokens and of replies, and their replay in an update. Turns and replies are those of
tests/sampling/test_turns.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import ModelConfig, RLConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.models.routing import RouterPass, join_choices, sum_routing, to_recorded
from isojax.models.transformer import ComputeOptions, Decoder
from isojax.rl import experts as rl_experts
from isojax.rl.gradient import ResponseBatch, build_gradient
from isojax.rl.metric import values
from isojax.rl.objective import (
    LossWeights,
    PolicyInputs,
    PolicyObjective,
    UpdateInputs,
    make_coefficients,
)
from isojax.sampling import engine
from isojax.sampling.batch import ProblemArrays, RoutedRollouts
from isojax.sampling.engine import build_sampler
from isojax.sampling.stream import build_stream
from tests.device import VOCAB, P, gather, mesh, quick_jit, scatter
from tests.sampling.test_turns import CONTEXT, COUNTS, DEVICE, HOST, PROBLEMS, T

B_P, N, E, K = 5, 4, 16, 4
B = B_P * N
CONFIG = ModelConfig(
    family="qwen3_moe",
    layers=4,
    width=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp=24,
    qk_norm=True,
    options={"experts": E, "top_k": K, "expert_mlp": 12, "dense_layers": [1]},
)
DECODER = Decoder(CONFIG, VOCAB)
SAMPLING = SamplingConfig(prompt_length=P, response_length=T)
# responses of a microbatch: prompts go first, or together with the responses
IN_BLOCKS = 4
TOGETHER = 32


def shapes(axes: str, microbatch: int = IN_BLOCKS) -> SamplerShapes:
    """Fewer slots than rollouts, so that a slot's next rollout follows one that was longer or
    shorter."""
    return SamplerShapes([(B_P, N)], shard_count(mesh(axes)), 8, microbatch, P, T, prefill_batch=4)


def problems(axes: str) -> ProblemArrays:
    return ProblemArrays(
        *(np.resize(x[:B_P], (shapes(axes).problem_rows, *x.shape[1:])) for x in PROBLEMS)
    )


@cache
def params(axes: str) -> Any:
    return jax.device_put(DECODER.init(jax.random.key(1)), DECODER.shardings(mesh(axes)))


def host_reply(rollouts: np.ndarray, tokens: list[np.ndarray]) -> list[np.ndarray]:
    pairs = [(r // N, len(row)) for r, row in zip(rollouts.tolist(), tokens, strict=True)]
    return [CONTEXT[pair][: COUNTS[pair]] for pair in pairs]


@cache
def sampled(axes: str, replies: str, weights: str = "compute") -> RoutedRollouts:
    """Rollouts [S rows ...] of a sampler with weights as they are, or in int8; two tokens in a
    chunk."""
    decoder = DECODER.with_options(ComputeOptions(rollout_weights=weights))
    on = mesh(axes)
    arguments = params(axes), problems(axes), np.int32(B_P), np.int32(N), jax.random.key(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "CHUNK_TOKENS", 2)
        if replies == "on device":
            sample = build_sampler(
                decoder, shapes(axes), on, SAMPLING, DEVICE, records_experts=True
            )
            return quick_jit(sample)(*arguments)

        patch.setattr(jax, "jit", quick_jit)
        stream = build_stream(decoder, shapes(axes), on, SAMPLING, HOST, records_experts=True)
        rollouts = stream.run(*arguments, lambda *finished: None, host_reply)
        assert isinstance(rollouts, RoutedRollouts)
        return rollouts


def in_order(axes: str, rollouts: RoutedRollouts) -> RoutedRollouts:
    """[B ...], on the host."""
    return RoutedRollouts(*(gather(shapes(axes), B, x) for x in rollouts))


def experts_of_whole_sequences(rollouts: RoutedRollouts) -> tuple[np.ndarray, np.ndarray]:
    """The experts [B P l k] and [B T l k] that one pass over each prompt and response chooses,
    replies included."""
    prompt_lengths = PROBLEMS.lengths[:B_P].repeat(N)
    rows = np.zeros((B, P + T), np.int32)
    for row, (length, tokens) in enumerate(zip(prompt_lengths, rollouts.tokens, strict=True)):
        rows[row, :length] = PROBLEMS.prompts[row // N, :length]
        rows[row, length : length + T] = tokens

    @quick_jit
    def route(params: Any) -> Any:
        start = jnp.zeros(B, jnp.int32)
        _, routed = DECODER.forward_with_routers(
            params, jnp.asarray(rows), start, routers=RouterPass(to_recorded)
        )
        by_stack = [x if x is None else x.reshape(len(x), *rows.shape, K) for x in routed]
        return join_choices(DECODER.stacks, by_stack)

    experts = np.asarray(route(params("auto")))
    responses = [
        of_row[length : length + T] for of_row, length in zip(experts, prompt_lengths, strict=True)
    ]
    return experts[:, :P], np.stack(responses)


def tokens_that_layers_read(rollouts: RoutedRollouts) -> tuple[np.ndarray, np.ndarray]:
    """bool[B P] and bool[B T]: prompts, and responses without their last tokens."""
    of_prompts = np.arange(P)[None] < PROBLEMS.lengths[:B_P].repeat(N)[:, None]
    return of_prompts, np.arange(T)[None] < rollouts.lengths[:, None] - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axes", "replies"),
    [("auto", "on device"), ("auto", "on the host"), ("data=2,fsdp=2,tensor=2", "on the host")],
)
def test_recorded_experts_are_those_of_each_token_in_its_place(axes: str, replies: str) -> None:
    rollouts = in_order(axes, sampled(axes, replies))
    of_prompts, of_responses = tokens_that_layers_read(rollouts)
    is_reply = of_responses & ~rollouts.mask
    assert is_reply.sum() > 10 and (of_responses & rollouts.mask).sum() > 50

    prompt_experts, experts = experts_of_whole_sequences(rollouts)
    np.testing.assert_array_equal(rollouts.prompt_experts[of_prompts], prompt_experts[of_prompts])
    np.testing.assert_array_equal(rollouts.experts[of_responses], experts[of_responses])


@cache
def metrics_program(microbatch: int, replays: bool, sums: Callable[..., Any]) -> Any:
    """The metrics of an update, in which `sums` are what is said of the experts."""
    of_batch, on = shapes("auto", microbatch), mesh("auto")
    rl = RLConfig(replay_experts=replays)
    objective = PolicyObjective(DECODER, rl, SAMPLING, vocab_split=False)
    gradient = build_gradient(objective, of_batch, on, DECODER.logical_axes(), DECODER.shapes())

    def metrics(*given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rl_experts, "sum_routing", sums)
            return gradient(*given)[1]

    return quick_jit(metrics)


def update_metrics(
    rollouts: RoutedRollouts,
    microbatch: int,
    replays: bool,
    sums: Callable[..., Any] = sum_routing,
) -> dict[str, Any]:
    """Of an update on these rollouts [B ...], without advantages: its gradient is not read."""
    axes, rl = "auto", RLConfig(replay_experts=replays)
    rollouts = RoutedRollouts(*(scatter(shapes(axes, microbatch), x) for x in rollouts))
    loss_weights = LossWeights(*[jnp.zeros(rollouts.lengths.shape)] * 4)
    inputs = PolicyInputs(rollouts.logps, rollouts.nucleus_mass, loss_weights)
    responses = ResponseBatch(
        rollouts.tokens, rollouts.mask, inputs, rollouts.prompt_experts, rollouts.experts
    )
    update = UpdateInputs(params(axes), {}, problems(axes), make_coefficients(rl))
    program = metrics_program(microbatch, replays, sums)
    metrics = program(update, responses, np.int32(B_P), np.int32(N))
    return values(jax.tree.map(float, metrics))


def compare_met_experts(weights: Any, routing: Any, sampled: Any) -> Any:
    """`sum_routing`, which counts tokens whose own choice is the sampler's; this one, those that
    met its experts."""
    sums = sum_routing(weights, routing, sampled)
    is_same = (jnp.sort(routing.experts, -1) == jnp.sort(sampled, -1)).all(-1)
    return sums._replace(agreeing=jnp.where(is_same, weights.reshape(-1), 0.0).sum())


@pytest.mark.slow
@pytest.mark.parametrize("microbatch", [IN_BLOCKS, TOGETHER])
def test_an_update_meets_the_samplers_experts(microbatch: int) -> None:
    """Of a sampler that rounds as the update does, all experts agree, so that each token is
    compared with its own. Of one in int8 many differ; replayed, they are those of every token, and
    log-probabilities are no further apart."""
    for replies in ("on device", "on the host"):
        rollouts = in_order("auto", sampled("auto", replies))
        alike = update_metrics(rollouts, microbatch, replays=False)
        assert alike["expert_agreement"] == 1.0 and alike["sampler_logp_gap_max"] < 1e-4, replies

    rounded = in_order("auto", sampled("auto", "on device", "int8"))
    own = update_metrics(rounded, microbatch, replays=False)
    assert own["expert_agreement"] < 0.99
    replayed = update_metrics(rounded, microbatch, replays=True)
    for name in ("sampler_logp_gap", "sampler_logp_gap_max"):
        assert replayed[name] <= own[name], (name, replayed[name], own[name])

    met = update_metrics(rounded, microbatch, replays=True, sums=compare_met_experts)
    assert met["expert_agreement"] == 1.0
