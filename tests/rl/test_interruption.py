"""What an interruption forces on a response is context: in no gradient, denominator or advantage,
and not counted as tokens drawn.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import CellConfig, RLConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.rl.advantages import RewardedBatch
from isojax.rl.advantages.gae import gae
from isojax.rl.critic import generalised_advantages
from isojax.rl.metric import values
from isojax.rl.objective import make_coefficients
from isojax.rl.optimizer import ADAM, TrainState
from isojax.rl.train_step import TrainStep
from isojax.sampling.batch import ProblemArrays, RolloutBatch, Rollouts
from isojax.tasks.protocol import Interruption
from tests.device import (
    CONFIG,
    DECODER,
    P,
    Parity,
    log_softmax,
    mesh,
    policy,
    quick_jit,
    random_problems,
    response_logits,
    scatter,
)

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

T, AFTER, PHRASE = 7, 2, (9, 17)
B_P, N = 3, 4
B = B_P * N
STOPS = replace(Parity.stops, interruption=Interruption(AFTER, PHRASE, None))
PROBLEMS = random_problems(B_P, seed=2)
rng = np.random.default_rng(0)
LENGTHS = np.array(
    [7, 1, 5, 2, 6, 7, 3, 7, 2, 5, 7, 4], np.int32
)  # 3 and 4: a stop string ended them in, or with, the phrase
TOKENS = rng.integers(4, 24, (B, T)).astype(np.int32)
TOKENS[LENGTHS > AFTER, AFTER : AFTER + 2] = PHRASE
THERE = np.arange(T)[None] < LENGTHS[:, None]
MASK = THERE & ~(
    (np.arange(T)[None] >= AFTER) & (np.arange(T)[None] < AFTER + 2) & (LENGTHS > AFTER)[:, None]
)
REWARDS = np.array([1, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0, 0], np.float32)
GROUP = np.arange(B) // N


def own_logps(params: object) -> jax.Array:
    logits = response_logits(jnp, params, PROBLEMS, GROUP, TOKENS)  # type: ignore[arg-type]
    return jnp.take_along_axis(log_softmax(jnp, logits), TOKENS[..., None], -1)[..., 0]


def sampled() -> np.ndarray:
    """A sampler's log-probabilities, a little off; the phrase's are 0, as the sampler leaves
    them."""
    return np.where(MASK, np.asarray(own_logps(policy())) + rng.normal(0, 0.05, (B, T)), 0).astype(
        np.float32
    )


@pytest.mark.parametrize("aggregation", ["token", "sequence", "prompt"])
def test_the_gradient_is_that_of_the_tokens_that_were_drawn(aggregation: str) -> None:
    """GRPO, scored whole and summed by hand, each aggregation over drawn tokens alone."""
    rl = RLConfig(aggregation=aggregation, max_grad_norm=1e9, clip=10.0)  # type: ignore[arg-type]
    sampler_shapes = SamplerShapes([(B_P, N)], 1, N, 4, P, T)
    sampling = SamplingConfig(prompt_length=P, response_length=T)
    step = TrainStep(
        CellConfig(model=CONFIG, sampling=sampling, rl=rl), DECODER, STOPS, sampler_shapes, mesh()
    )
    logps = sampled()

    @quick_jit
    def update(rollouts: Rollouts, rewards: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        problems = ProblemArrays(
            *(
                jnp.asarray(np.resize(x, (sampler_shapes.problem_rows, *x.shape[1:])))
                for x in PROBLEMS
            )
        )
        state = TrainState(policy(), ADAM.init(policy()), jnp.int32(0))
        key_data = jax.random.key_data(jax.random.key(0))
        batch = RolloutBatch(problems, rollouts, rewards, jnp.int32(B_P), jnp.int32(N), key_data)
        signals, metrics = step.compute_advantages(state, batch, make_coefficients(rl))
        state, more = step.update(state, {}, batch, signals, make_coefficients(rl))
        return state, metrics | more

    rows = TOKENS, logps, MASK, np.ones((B, 1), np.float32), np.ones(B, bool), LENGTHS
    state, metrics = update(
        Rollouts(*(scatter(sampler_shapes, x) for x in rows)), scatter(sampler_shapes, REWARDS)
    )
    metrics = values(metrics)

    groups = REWARDS.reshape(B_P, N)
    advantages = (
        (groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-6)
    ).reshape(-1)
    drawn = MASK.sum(1)
    share = {
        "token": np.full(B, 1 / drawn.sum()),
        "sequence": 1 / (drawn * B),
        "prompt": 1 / (drawn.reshape(B_P, N).sum(1)[GROUP] * B_P),
    }[aggregation]

    def loss(params: object) -> jax.Array:
        ratio = jnp.exp(jnp.where(MASK, own_logps(params) - logps, 0.0))
        return jnp.where(MASK, -(share * advantages)[:, None] * ratio, 0.0).sum()

    value, slope = jax.value_and_grad(loss)(jax.tree.map(jnp.asarray, policy()))
    for moment, expected in zip(
        jax.tree.leaves(state.moments.mu), jax.tree.leaves(slope), strict=True
    ):
        np.testing.assert_allclose(
            moment / np.float32(0.1), expected, atol=1e-5 * float(jnp.linalg.norm(expected))
        )
    assert float(metrics["loss"]) == pytest.approx(float(value), abs=1e-6)
    assert float(metrics["tokens"]) == drawn.sum()
    assert float(metrics["response_length"]) == pytest.approx(drawn.mean())
    assert float(metrics["context_length"]) == pytest.approx((LENGTHS - drawn).mean())
    assert float(metrics["interrupted"]) == pytest.approx((LENGTHS > AFTER).mean())
    gap = np.abs(np.where(MASK, np.asarray(own_logps(policy())) - logps, 0))
    assert float(metrics["sampler_logp_gap"]) == pytest.approx(gap.sum() / drawn.sum(), rel=1e-4)
    assert float(metrics["sampler_logp_gap_max"]) == pytest.approx(gap.max(), rel=1e-4)


def test_the_critics_step_leads_over_the_phrase() -> None:
    """From the last token before it to the first after it; the reward comes with the last token
    that was drawn."""
    values, gamma, lam = rng.normal(size=(B, T)).astype(np.float32), 0.9, 0.8
    mask, rewards, rows = jnp.asarray(MASK), jnp.asarray(REWARDS), jnp.arange(B)
    token_advantages, estimated = generalised_advantages(
        rewards, jnp.asarray(values), mask, gamma, lam
    )
    batch = RewardedBatch(
        rewards, mask.sum(-1), rows, mask.any(-1), jnp.int32(1), B, False, token_advantages, mask
    )
    advantages = gae(batch)
    plain, returns = np.zeros((B, T)), np.zeros((B, T))
    for r in range(B):
        after = following = 0.0
        for i, t in enumerate(reversed(np.nonzero(MASK[r])[0])):
            delta = (REWARDS[r] if i == 0 else 0.0) + gamma * following - values[r, t]
            after = delta + gamma * lam * after
            following = values[r, t]
            plain[r, t], returns[r, t] = after, after + values[r, t]
    np.testing.assert_allclose(estimated, returns, atol=1e-5)
    expected = np.where(MASK, (plain - plain[MASK].mean()) / plain[MASK].std(ddof=1), 0)
    np.testing.assert_allclose(advantages, expected, atol=1e-4)
