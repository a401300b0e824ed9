"""The gradient of whole updates, a recipe of each loss, against a plain program: every response
scored alone, its sequence unpadded, and the recipe written in the loops of reference_losses.py. On
four devices, which split responses and vocabulary; and one recipe each on one device and on two,
with other microbatches and padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import CellConfig, RLConfig, SamplingConfig
from isojax.core.config.rl import CriticConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.models.transformer import Params
from isojax.rl import critic
from isojax.rl.algorithm import resolve_algorithm
from isojax.rl.metric import values as metric_values
from isojax.rl.objective import make_coefficients
from isojax.rl.optimizer import ADAM, CriticState, TrainState
from isojax.rl.train_step import TrainStep
from isojax.sampling.batch import ProblemArrays, RolloutBatch, Rollouts
from tests.device import (
    CONFIG,
    DECODER,
    EOS,
    P,
    Parity,
    T,
    gather,
    log_softmax,
    logits,
    mesh,
    policy,
    quick_jit,
    random_problems,
    scatter,
)
from tests.rl import reference_losses as loops
from tests.rl.reference_losses import Response

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

B_P, N, TEMPERATURE = 5, 4, 0.8
B, GROUPS = B_P * N, [r // N for r in range(B_P * N)]
PROBLEMS = random_problems(B_P, seed=2)
# The second problem's rewards are all alike.
REWARDS = np.array(
    [0, 1, 0, 0, 0.5, 0.5, 0.5, 0.5, 1, 0.25, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1], np.float32
)
EVERY_TERM = ("policy", "kl", "entropy")
HUGE = 1e30  # of the gradient's norm: never clipped

RECIPES = {
    "grpo": RLConfig(loss="grpo", kl=0.3, entropy=0.05, zero_variance_filter=("policy",)),
    "dr_grpo": RLConfig(loss="dr_grpo"),
    "dapo": RLConfig(loss="dapo", kl=0.2, kl_estimator="k2", zero_variance_filter=("policy", "kl")),
    "gspo": RLConfig(
        loss="gspo", clip=0.1, clip_high=0.15, entropy=0.1, tis="sequence", tis_cap=1.2
    ),
    "cispo": RLConfig(
        loss="cispo",
        advantage="batch",
        aggregation="prompt",
        clip_high=0.1,
        zero_variance_filter=("policy",),
        tis="token",
        tis_cap=1.1,
    ),
    "rloo": RLConfig(
        loss="rloo", kl=0.3, kl_estimator="k1", entropy=0.05, zero_variance_filter=EVERY_TERM
    ),
    "reinforce_pp": RLConfig(loss="reinforce_pp", kl=0.1),
    "ppo": RLConfig(loss="ppo", entropy=0.05, critic=CriticConfig(gamma=0.97, gae_lambda=0.9)),
    "3 of 4": RLConfig(
        loss="grpo", aggregation="prompt", n_train=3, tis="token", tis_mode="mask", tis_cap=1.2
    ),
}
# mesh, microbatch, prompts of a block, and the largest B_p of the sweep, which is what the buffers
# are for
ONE, TWO, FOUR = ("auto", 3, 2, 5), ("data=2", 16, 4, 7), ("data=2,tensor=2", 5, 3, 6)
CASES = [*((name, FOUR) for name in RECIPES), ("grpo", ONE), ("ppo", TWO)]


class Alone:
    """The batch scored a response at a time: log-probabilities of policy and base, entropies and
    values, in float64."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.lengths = rng.integers(1, T + 1, B)
        self.tokens = [rng.integers(4, 24, k).astype(np.int32) for k in self.lengths]
        for tokens in self.tokens:
            tokens[-1] = EOS
        self.prompts = [PROBLEMS.prompts[g][: PROBLEMS.lengths[g]] for g in GROUPS]
        self.sequences = [
            np.concatenate(parts).astype(np.int32)
            for parts in zip(self.prompts, self.tokens, strict=True)
        ]
        read = [self.read(policy(), r) for r in range(B)]
        self.logps, self.entropies = [x for x, _ in read], [x for _, x in read]
        self.base = [self.read(policy(1), r)[0] for r in range(B)]
        self.sampler = [x + rng.normal(0, 0.2, len(x)) for x in self.logps]
        self.values = [
            predictions(np, doubled(values()), s)[len(p) - 1 :]
            for s, p in zip(self.sequences, self.prompts, strict=True)
        ]

    def read(self, params: Params, r: int) -> tuple[Response, Response]:
        result = said(np, doubled(params), self.sequences[r])
        return tuple(np.asarray(x)[len(self.prompts[r]) - 1 :] for x in result)  # type: ignore[return-value]

    def pull(self, push: Callable[..., Any], params: Params, *slopes: list[Response]) -> Params:
        """The gradient in the parameters, given that of the loss in what is said of each response
        token."""
        each = []
        for r in range(B):
            before = np.zeros(len(self.prompts[r]) - 1)
            each.append(
                push(
                    params,
                    self.sequences[r],
                    *(np.concatenate([before, x[r]]).astype(np.float32) for x in slopes),
                )
            )
        return jax.tree.map(lambda *x: np.sum(np.stack(x), 0, np.float64), *each)


def doubled(params: Params) -> Params:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), params)


@cache
def values() -> Params:
    """A critic whose values are no longer all 0."""
    rng = np.random.default_rng(3)
    grown = critic.critic_params(DECODER, policy(2))
    return jax.device_get(
        grown
        | {
            "value": rng.normal(0, 0.1, grown["value"].shape).astype(np.float32),
            "value_bias": np.float32([0.2]),
        }
    )


def said(xp: Any, params: Params, sequence: Any) -> tuple[Any, Any]:
    """Of each token of a sequence [L] but the first, its log-probability; and the entropy there."""
    log_p = log_softmax(xp, logits(xp, params, sequence[None, :-1])[0] / TEMPERATURE)
    return xp.take_along_axis(log_p, sequence[1:, None], -1)[:, 0], -(xp.exp(log_p) * log_p).sum(-1)


def predictions(xp: Any, params: Params, sequence: Any) -> Any:
    """The critic's values before each token but the first: the decoder with the value head for its
    unembedding."""
    return (
        logits(xp, params | {"unembed": params["value"][:, None]}, sequence[None, :-1])[0, :, 0]
        + params["value_bias"]
    )


@quick_jit
def push_policy(params: Params, sequence: Any, of_logps: Any, of_entropies: Any) -> Params:
    return jax.vjp(lambda p: said(jnp, p, sequence), params)[1]((of_logps, of_entropies))[0]


@quick_jit
def push_critic(params: Params, sequence: Any, of_values: Any) -> Params:
    return jax.vjp(lambda p: predictions(jnp, p, sequence), params)[1](of_values)[0]


alone = cache(Alone)


def recipe_loss(
    rl: RLConfig, chosen: list[bool]
) -> tuple[float, list[Response], list[Response], list[Response]]:
    """By the loops: the loss, its slopes in log-probabilities and entropies, and the critic's in
    values."""
    batch, recipe, of_critic = alone(), resolve_algorithm(rl), []
    same_rewards = loops.zero_variance(REWARDS.tolist(), GROUPS)
    advantage, aggregation = recipe.advantage.name, recipe.aggregation.name

    def total(term: str, per_token: list[Response]) -> float:
        keep = [
            c and not (term in rl.zero_variance_filter and s)
            for c, s in zip(chosen, same_rewards, strict=True)
        ]
        return loops.aggregate(aggregation, per_token, GROUPS, keep, T)

    if rl.critic:
        pairs = [
            loops.gae(float(r), v, rl.critic.gamma, rl.critic.gae_lambda)
            for r, v in zip(REWARDS, batch.values, strict=True)
        ]
        advantages = loops.whiten([a for a, _ in pairs])

        def error(now: list[Response]) -> float:
            rows = zip(now, batch.values, pairs, strict=True)
            return total(
                "policy", [loops.value_loss(v, old, returns, 0.2) for v, old, (_, returns) in rows]
            )

        of_critic = loops.slope(error, batch.values)
    elif advantage == "whiten":
        advantages = loops.whiten(
            [np.full(k, r) for k, r in zip(batch.lengths, REWARDS.astype(float), strict=True)]
        )
    else:
        estimate = {"mean": loops.centred}.get(advantage) or getattr(loops, advantage)
        if advantage == "batch":
            estimate = partial(loops.batch, effective="policy" in rl.zero_variance_filter)
        advantages = [
            np.full(k, a)
            for k, a in zip(batch.lengths, estimate(REWARDS.tolist(), GROUPS), strict=True)
        ]

    def of_policy(logps: list[Response]) -> float:
        clip, loss = loops.Clip(recipe.clip, recipe.clip_high), loops.LOSSES[rl.loss]
        rows = list(zip(logps, batch.logps, batch.sampler, advantages, strict=True))
        tis = (rl.tis, rl.tis_mode, rl.tis_cap)
        value = total(
            "policy",
            [
                loops.corrected(loss, *row, clip, *tis) if rl.tis != "none" else loss(*row, clip)
                for row in rows
            ],
        )
        penalty = [loops.kl(rl.kl_estimator, x, b) for x, b in zip(logps, batch.base, strict=True)]
        return value + rl.kl * total("kl", penalty)

    def of_entropy(entropies: list[Response]) -> float:
        return -rl.entropy * total("entropy", entropies)

    value = of_policy(batch.logps) + of_entropy(batch.entropies)
    return (
        value,
        loops.slope(of_policy, batch.logps),
        loops.slope(of_entropy, batch.entropies),
        of_critic,
    )


@dataclass(frozen=True)
class Update:
    """A recipe's update on one mesh and one set of shapes, from rewards to the gradients of policy
    and critic."""

    rl: RLConfig
    axes: str
    microbatch: int
    prompts: int
    largest: int

    @property
    def sampler_shapes(self) -> SamplerShapes:
        shards = shard_count(mesh(self.axes))
        return SamplerShapes([(self.largest, N)], shards, N, self.microbatch, P, T, self.prompts)

    def __call__(self) -> tuple[Params, Params | None, dict[str, float], list[bool]]:
        """Adam's first moment after one step is (1 - b1) times the gradient."""
        sampler_shapes, on, batch = self.sampler_shapes, mesh(self.axes), alone()
        cell = CellConfig(
            model=CONFIG, sampling=SamplingConfig(temperature=TEMPERATURE), rl=self.rl
        )
        step = TrainStep(cell, DECODER, Parity.stops, sampler_shapes, on)

        @quick_jit
        def update(
            state: TrainState,
            base: Params,
            problems: ProblemArrays,
            rollouts: Rollouts,
            rewards: Any,
            coefficients: Any,
            key: Any,
        ) -> Any:
            B_p, n = jnp.int32(B_P), jnp.int32(N)
            batch = RolloutBatch(problems, rollouts, rewards, B_p, n, jax.random.key_data(key))
            signals, _ = step.compute_advantages(state, batch, coefficients)
            state, metrics = step.update(state, base, batch, signals, coefficients)
            return state, metrics, signals.train_mask

        state = TrainState(policy(), ADAM.init(policy()), np.int32(0))
        if self.rl.critic:
            state = state._replace(critic=CriticState(values(), ADAM.init(values())))
        problems = ProblemArrays(
            *(np.resize(x, (sampler_shapes.problem_rows, *x.shape[1:])) for x in PROBLEMS)
        )
        rows = [
            self.pad(batch.tokens, 7),
            self.pad(batch.sampler, 50.0),
            self.pad([np.ones(k, bool) for k in batch.lengths], False),
        ]
        rollouts = Rollouts(
            *rows,
            np.ones((*rows[0].shape[:2], 1), np.float32),
            rows[2].any(-1),
            rows[2].sum(-1, dtype=np.int32),
        )
        coefficients = make_coefficients(self.rl)._replace(max_grad_norm=np.float32(HUGE))
        rewards = scatter(sampler_shapes, REWARDS, fill=77.0)
        state, metrics, used = update(
            state, policy(1), problems, rollouts, rewards, coefficients, jax.random.key(5)
        )
        moments = [state.moments.mu, state.critic.moments.mu if state.critic else None]
        gradients = jax.tree.map(lambda m: np.asarray(m) / np.float32(0.1), moments)
        return *gradients, metric_values(metrics), gather(sampler_shapes, B, used).tolist()

    def pad(self, rows: list[Any], fill: Any) -> np.ndarray:
        out = np.full(
            (B, T),
            fill,
            np.result_type(rows[0], np.float32) if isinstance(fill, float) else rows[0].dtype,
        )
        for r, row in enumerate(rows):
            out[r, : len(row)] = row
        return scatter(
            self.sampler_shapes, out.astype(np.float32) if isinstance(fill, float) else out, fill
        )


def distances(one: Params, two: Params) -> dict[str, float]:
    """|one - two| / |two| of each parameter."""
    flat, _ = jax.tree_util.tree_flatten_with_path(
        jax.tree.map(lambda a, b: float(np.linalg.norm(a - b) / np.linalg.norm(b)), one, two)
    )
    return {jax.tree_util.keystr(k): v for k, v in flat}


@cache
def reference(name: str, chosen: tuple[bool, ...]) -> tuple[float, Params, Params | None]:
    value, of_logps, of_entropies, of_values = recipe_loss(RECIPES[name], list(chosen))
    gradient = alone().pull(push_policy, policy(), of_logps, of_entropies)
    return value, gradient, alone().pull(push_critic, values(), of_values) if of_values else None


@pytest.mark.parametrize(
    ("name", "layout"), CASES, ids=[f"{name}, {layout[0]}" for name, layout in CASES]
)
def test_gradients_equal_a_plain_program(name: str, layout: tuple[str, int, int, int]) -> None:
    rl = RECIPES[name]
    gradient, of_critic, metrics, selected = Update(rl, *layout)()
    remaining = np.array(selected).reshape(B_P, N).sum(1)
    assert (remaining == (rl.n_train or N)).all()
    value, wanted, critics = reference(name, tuple(selected))
    assert metrics["loss"] == pytest.approx(value, rel=1e-5, abs=1e-6)
    assert max(distances(gradient, wanted).values()) < 1e-5, distances(gradient, wanted)
    assert (of_critic is None) == (critics is None)
    if of_critic is not None and critics is not None:
        assert max(distances(of_critic, critics).values()) < 1e-5, distances(of_critic, critics)


def test_the_batch_has_what_the_recipes_differ_in() -> None:
    """Ratios beyond each clip and weights beyond each cap, some responses of every length, a group
    of one reward."""
    ratios = np.exp(np.concatenate(alone().logps) - np.concatenate(alone().sampler))
    assert (ratios < 0.8).sum() >= 3
    assert (ratios > 1.28).any()
    assert ((ratios > 1.1).sum() >= 5) and ((ratios < 1.1).sum() >= 5)
    assert set(alone().lengths) == set(range(1, T + 1))
    assert sum(loops.zero_variance(REWARDS.tolist(), GROUPS)) == N
