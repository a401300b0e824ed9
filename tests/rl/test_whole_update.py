"""What an update does with the gradients of policy and critic: steps of AdamW, what is skipped, and
the metrics; with gradients of two numbers in the place of the models'."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import CellConfig, RLConfig
from isojax.core.config.rl import CriticConfig
from isojax.rl import critic
from isojax.rl.critic import CriticInputs, CriticObjective, ValueEstimates, values_of_rows
from isojax.rl.gradient import GradientAccumulator, ResponseBatch
from isojax.rl.metric import Metric, total, values
from isojax.rl.objective import (
    LossWeights,
    Microbatch,
    UpdateInputs,
    make_coefficients,
)
from isojax.rl.optimizer import ADAM, CriticState, TrainState
from isojax.rl.train_step import BatchSignals, TrainStep
from isojax.sampling.batch import RolloutBatch
from isojax.sampling.layout import Layout
from tests.device import CONFIG, DECODER, Parity, mesh, quick_jit
from tests.rl.test_update_parts import T, batch_of, shapes

B_P, N = 3, 4  # of a batch; 12 rollouts are half of the learning rate's reference
SETTINGS: dict[str, Any] = {"lr_scaling": "linear", "lr_reference_batch": 24, "warmup": 10}
START = np.float32([1.0, 2.0])


class Gradients:
    """In the place of `build_gradient`'s function: a gradient and a loss that are set; what it was
    called with last."""

    def __init__(self, gradient: list[float], loss: float):
        self.gradient, self.loss = {"w": jnp.asarray(gradient, jnp.float32)}, loss
        self.called_with: Any = None

    def __call__(self, *arguments: Any) -> tuple[Any, dict[str, Metric]]:
        self.called_with = arguments
        entropy = Metric(jnp.float32(6), jnp.float32(4), "mean")
        return self.gradient, {"loss": total(jnp.float32(self.loss)), "entropy": entropy}


def state_at(step: int, with_critic: bool) -> TrainState:
    params = {"w": jnp.asarray(START)}
    state = TrainState(params, ADAM.init(params), jnp.int32(step), None, jnp.int32(3))
    return state._replace(critic=CriticState(params, ADAM.init(params))) if with_critic else state


def update(
    rl: RLConfig, state: TrainState, policy: Gradients, of_critic: Gradients | None = None
) -> tuple[TrainState, dict[str, float], RolloutBatch]:
    """(the state after an update, its metrics, the batch). The rollouts of the second group have no
    advantage."""
    step = TrainStep(CellConfig(model=CONFIG, rl=rl), DECODER, Parity.stops, shapes(1), mesh())
    step._policy_gradient = policy
    step._critic = SimpleNamespace(gradient=of_critic)
    batch = batch_of(1, B_P, N)
    rows = shapes(1).buffer_rows
    valid = jnp.arange(rows)[None] < B_P * N
    batch = batch._replace(
        rollouts=batch.rollouts._replace(mask=batch.rollouts.mask & valid[..., None])
    )
    is_second = (jnp.arange(rows)[None] >= N) & (jnp.arange(rows)[None] < 2 * N)
    advantages = jnp.where(valid & ~is_second, 1.0, 0.0)
    weights = LossWeights(advantages, *(jnp.full((1, rows), w) for w in (0.1, 0.2, 0.3)))
    by_token = jnp.ones((1, rows, T))
    estimates = ValueEstimates(2 * by_token, 3 * by_token) if of_critic else None
    signals = BatchSignals(weights, valid, estimates)
    after, metrics = step.update(state, {}, batch, signals, make_coefficients(rl))
    return after, values(jax.tree.map(float, metrics)), batch


def moved(params: Any) -> np.ndarray:
    return np.asarray(params["w"]) - START


@pytest.mark.parametrize(
    ("step", "policy_rate", "critic_rate"), [(1, 0, 0.2), (2, 0.1, 0.3), (5, 0.4, 0.6)]
)
def test_the_critic_learns_first(step: int, policy_rate: float, critic_rate: float) -> None:
    """Two updates long alone. Both learning rates are warmed up over ten updates, the policy's from
    its own first one. From moments of 0 AdamW takes a step of the rate in the gradient's sign."""
    rl = RLConfig(
        loss="ppo",
        learning_rate=2.0,
        critic=CriticConfig(warmup=2, learning_rate=4.0),
        max_grad_norm=2.5,
        **SETTINGS,
    )
    of_policy, of_critic = Gradients([3, -4], 0.5), Gradients([-6, 8], 0.25)
    after, metrics, batch = update(rl, state_at(step, True), of_policy, of_critic)

    assert after.critic is not None
    signs = np.array([-1, 1])
    np.testing.assert_allclose(moved(after.params), 2 / 2 * policy_rate * signs, rtol=1e-5)
    np.testing.assert_allclose(moved(after.critic.params), -4 / 2 * critic_rate * signs, rtol=1e-5)
    if policy_rate:  # the gradients are clipped to the norm 2.5, from 5 and from 10
        np.testing.assert_allclose(after.moments.mu["w"], [0.15, -0.2], rtol=1e-5)
    np.testing.assert_allclose(after.critic.moments.mu["w"], [-0.15, 0.2], rtol=1e-5)
    assert (int(after.step), int(after.consecutive_nonfinite)) == (step + 1, 0)
    assert metrics == pytest.approx(
        {
            "loss": 0.5,
            "entropy": 1.5,
            "grad_norm": 5.0,
            "critic_loss": 0.25,
            "critic_entropy": 1.5,
            "critic_grad_norm": 10.0,
            "nonfinite_update": 0.0,
        }
    )

    # Both see the whole batch: the critic learns from groups without an advantage too.
    _, responses, B_p, n = of_critic.called_with
    inputs: CriticInputs = responses.objective_inputs
    assert (int(B_p), int(n)) == (B_P, N)
    assert (
        (inputs.values == 2).all() and (inputs.returns == 3).all() and (inputs.weight == 0.1).all()
    )
    assert (responses.mask == batch.rollouts.mask).all()


@pytest.mark.parametrize(
    ("policy_loss", "critic_loss", "critic_gradient"),
    [(np.nan, 0.5, 1.0), (0.5, np.inf, 1.0), (0.5, 0.5, np.nan), (np.nan, np.nan, np.nan)],
)
def test_where_one_is_not_finite_neither_moves(
    policy_loss: float, critic_loss: float, critic_gradient: float
) -> None:
    rl = RLConfig(loss="ppo", critic=CriticConfig(), **SETTINGS)
    before = state_at(5, True)
    after, metrics, _ = update(
        rl, before, Gradients([3, 4], policy_loss), Gradients([critic_gradient, 1], critic_loss)
    )
    expected = before._replace(step=jnp.int32(6), consecutive_nonfinite=jnp.int32(4))
    assert jax.tree.all(jax.tree.map(np.array_equal, after, expected))
    assert set(metrics.values()) == {0.0, 1.0} and metrics.pop("nonfinite_update") == 1
    assert not any(metrics.values())


@pytest.mark.parametrize(("settings", "share"), [({}, "groups"), ({"kl": 0.1}, None)])
def test_what_is_trained_on_is_measured(settings: dict[str, Any], share: str | None) -> None:
    """Of three groups the second has no advantage: without a term that needs it, it is left out,
    and metrics of tokens count by the share of the others' tokens."""
    rl = RLConfig(learning_rate=2.0, **SETTINGS, **settings)
    gradients = Gradients([3, -4], 0.5)
    after, metrics, batch = update(rl, state_at(1, False), gradients)
    np.testing.assert_allclose(moved(after.params), [-0.2, 0.2], rtol=1e-5)
    assert after.critic is None
    assert metrics["loss"] == 0.5 and metrics["entropy"] == 1.5 and metrics["grad_norm"] == 5

    _, responses, B_p, n = gradients.called_with
    drawn = Layout(B_P, N, 1).in_order(batch.rollouts.mask)
    kept = drawn if share is None else np.delete(drawn, range(N, 2 * N), 0)
    assert (int(B_p), int(n)) == (len(kept) // N, N)
    assert (np.asarray(responses.mask[0, : len(kept)]) == kept).all()
    assert not np.asarray(responses.mask[0, len(kept) :]).any()
    fraction = None if share is None else pytest.approx(kept.sum() / drawn.sum())
    assert metrics.get("trained_token_fraction") == fraction

    _, metrics, _ = update(rl, state_at(1, False), Gradients([np.nan, 1], 0.5))
    assert metrics.pop("nonfinite_update") == 1 and not any(metrics.values())


def test_a_value_is_a_product_and_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last layer's output before each token."""
    states = np.random.default_rng(0).normal(size=(2, T, DECODER.config.width)).astype(np.float32)
    hidden = SimpleNamespace(states=lambda T: jnp.asarray(states[:, :T]))
    monkeypatch.setattr(critic, "hidden_states", lambda *arguments: hidden)
    head = np.random.default_rng(1).normal(size=DECODER.config.width).astype(np.float32)
    params = {"value": jnp.asarray(head), "value_bias": jnp.array([0.75])}
    rows: Any = SimpleNamespace(tokens=np.zeros((2, T)))
    nothing: Any = None
    got = CriticObjective(DECODER).values(params, nothing, nothing, rows)
    np.testing.assert_allclose(got, states @ head + 0.75, rtol=1e-5, atol=1e-5)


class NumberedValues:
    """A critic whose value of a token is the token."""

    decoder = SimpleNamespace(cast_params=lambda params: params, prefill=lambda *prompts: None)

    def values(self, params: Any, prefix: Any, problems: Any, microbatch: Microbatch) -> Any:
        return microbatch.tokens.astype(jnp.float32)


@pytest.mark.parametrize("shard", [0, 1])
def test_values_go_back_to_the_rows_of_their_responses(shard: int) -> None:
    """Rows that pad the buffers, or hold no token that counts, have none."""
    batch, sizes = batch_of(2, 3, 5), shapes(2)
    mask = np.array(batch.rollouts.mask[shard])
    mask[1] = False
    responses = ResponseBatch(batch.rollouts.tokens[shard], mask, np.arange(sizes.buffer_rows))
    objective: Any = NumberedValues()
    accumulator = GradientAccumulator(objective, sizes)
    inputs: Any = UpdateInputs({}, {}, batch.problems, ())

    @quick_jit
    def values_of(responses: Any, shard: Any, inputs: Any) -> Any:
        shard_batch = accumulator.shard_batch(responses, shard, jnp.int32(3), jnp.int32(5))
        return values_of_rows(objective, accumulator, inputs, shard_batch)

    of_shard = jax.tree.map(lambda x: x[None], responses)
    got = np.asarray(values_of(of_shard, np.array([shard]), inputs))
    counts = mask.any(-1) & (np.arange(len(mask)) < (8 if shard == 0 else 7))
    expected = np.where(counts[:, None], batch.rollouts.tokens[shard], 0)
    assert got.tolist() == expected.tolist()
