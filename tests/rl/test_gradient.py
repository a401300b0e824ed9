"""The gradient and the update of ragged cells against a plain program: whole sequences, no shared
prompts, no microbatches, no padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isojax.core.config import CellConfig, RLConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.models.transformer import ComputeOptions, Params
from isojax.rl.advantages import RewardedBatch
from isojax.rl.metric import values
from isojax.rl.objective import Coefficients, make_coefficients, make_loss_weights
from isojax.rl.optimizer import (
    TrainState,
    build_init_state,
    train_state_shardings,
)
from isojax.rl.train_step import BatchSignals, TrainStep
from isojax.sampling.batch import ProblemArrays, RolloutBatch, Rollouts
from isojax.sampling.engine import build_sampler
from isojax.sampling.layout import Layout
from tests.device import (
    CONFIG,
    DECODER,
    EOS,
    MESHES,
    P,
    Parity,
    T,
    gather,
    log_softmax,
    mesh,
    placed,
    policy,
    quick_jit,
    random_problems,
    response_logits,
    scatter,
)

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

CELLS = [(13, 7), (3, 5), (1, 1)]
PROBLEMS = random_problems(13, seed=4)
COEFFICIENTS = {
    "clip": 0.2,
    "clip_high": 0.2,
    "kl": 0.3,
    "entropy": 0.05,
    "learning_rate": 2e-2,
    "weight_decay": 0.1,
    "max_grad_norm": 1e30,
}


class Batch(NamedTuple):
    """B rollouts in the order of their numbers; nucleus_mass [B T] where there is a nucleus, else
    [B 1]."""

    tokens: np.ndarray
    logps: np.ndarray
    mask: np.ndarray
    advantages: np.ndarray
    nucleus_mass: np.ndarray


def coefficients_with(**changes: float) -> Coefficients:
    """COEFFICIENTS with changes."""
    return make_coefficients(RLConfig())._replace(
        **{k: np.float32(v) for k, v in (COEFFICIENTS | changes).items()}
    )


@dataclass
class Program:
    """A `TrainStep` for one mesh and one set of shapes, its two halves compiled."""

    axes: str = "auto"
    slots: int = 26
    microbatch: int = 8
    prompts: int = 4
    temperature: float = 1.0
    top_p: float = 1.0
    kl: float = COEFFICIENTS["kl"]
    entropy: float = COEFFICIENTS["entropy"]
    compute: str = "float32"
    remat: str = "none"

    def __post_init__(self) -> None:
        self.mesh = mesh(self.axes)
        on = shard_count(self.mesh)
        self.sampler_shapes = SamplerShapes(
            CELLS, on, self.slots, self.microbatch, P, T, self.prompts
        )
        sampling = SamplingConfig(temperature=self.temperature, top_p=self.top_p)
        cell = CellConfig(
            model=CONFIG, sampling=sampling, rl=RLConfig(kl=self.kl, entropy=self.entropy)
        )
        decoder = DECODER.with_options(ComputeOptions(compute_dtype=self.compute, remat=self.remat))
        step = TrainStep(cell, decoder, Parity.stops, self.sampler_shapes, self.mesh)
        coefficients = make_coefficients(cell.rl)
        sample = build_sampler(decoder, self.sampler_shapes, self.mesh, sampling, Parity.stops)

        def rollout(
            params: Params, problems: ProblemArrays, B_p: Any, n: Any, key: Any
        ) -> tuple[Rollouts, Any, dict[str, Any]]:
            rollouts = sample(params, problems, B_p, n, key)
            rewards = Parity().verify(None, rollouts.tokens, rollouts.mask)
            batch = RolloutBatch(problems, rollouts, rewards, B_p, n, jax.random.key_data(key))
            signals, metrics = step.compute_advantages(
                TrainState(params, None, 0), batch, coefficients
            )
            return rollouts, signals.loss_weights.advantages, metrics

        def update(
            state: TrainState,
            base: Params,
            problems: ProblemArrays,
            rollouts: Rollouts,
            advantages: Any,
            B_p: Any,
            n: Any,
            coefficients: Any,
        ) -> Any:
            groups, live = Layout(B_p, n, self.sampler_shapes.shards).row_groups(
                self.sampler_shapes.buffer_rows
            )
            rewarded = RewardedBatch(
                advantages,
                jnp.where(live, rollouts.mask.sum(-1), 0),
                groups,
                live,
                n,
                self.sampler_shapes.problem_rows,
            )
            loss_weights = make_loss_weights(cell.rl, advantages, rewarded, live, T)
            batch = RolloutBatch(problems, rollouts, None, B_p, n, None)
            return step.update(
                state, base, batch, BatchSignals(loss_weights, live, None), coefficients
            )

        self.rollout, self.init = quick_jit(rollout), build_init_state(DECODER, self.mesh)
        self.update = quick_jit(
            update, out_shardings=(train_state_shardings(DECODER, self.mesh), None)
        )  # one program, whatever came before
        self.problems = ProblemArrays(
            *(np.resize(x, (self.sampler_shapes.problem_rows, *x.shape[1:])) for x in PROBLEMS)
        )

    def arguments(
        self, state: TrainState, batch: Batch, B_p: int, n: int, **changes: float
    ) -> tuple[Any, ...]:
        parts = [scatter(self.sampler_shapes, x) for x in (batch.tokens, batch.logps, batch.mask)]
        parts += [
            scatter(self.sampler_shapes, batch.nucleus_mass, fill=1.0),
            parts[2].any(-1),
            parts[2].sum(-1, dtype=np.int32),
        ]
        # rows beyond the batch must not be read
        advantages = scatter(self.sampler_shapes, batch.advantages, fill=50.0)
        scalars = (np.int32(B_p), np.int32(n), coefficients_with(**changes))
        return (
            state,
            placed(policy(1), self.mesh),
            self.problems,
            Rollouts(*parts),
            advantages,
            *scalars,
        )

    def step(
        self, state: TrainState, batch: Batch, B_p: int, n: int, **changes: float
    ) -> tuple[TrainState, dict[str, Any]]:
        return self.update(*self.arguments(state, batch, B_p, n, **changes))

    def gradient(
        self, batch: Batch, B_p: int, n: int, **changes: float
    ) -> tuple[Params, dict[str, float]]:
        """Adam's first moment after one step is (1 - b1) times the gradient."""
        state, metrics = self.step(self.init(placed(policy(), self.mesh)), batch, B_p, n, **changes)
        return jax.tree.map(lambda m: np.asarray(m) / np.float32(0.1), state.moments.mu), values(
            metrics
        )


PROGRAMS = {
    "m=8": Program(),
    MESHES[0]: Program(axes=MESHES[0], slots=6, prompts=3),
    "tensor=2, top-p .9, temperature .6": Program(axes="tensor=2", temperature=0.6, top_p=0.9),
    f"{MESHES[1]}, m=22, no KL, no entropy, temperature .7": Program(
        axes=MESHES[1], slots=6, microbatch=22, prompts=16, temperature=0.7, kl=0.0, entropy=0.0
    ),
    "m=28, prompts and responses in one pass, top-p .9, temperature .6": Program(
        microbatch=28, temperature=0.6, top_p=0.9, remat="layer"
    ),
    f"{MESHES[1]}, m=16, prompts and responses in one pass": Program(
        axes=MESHES[1], slots=6, microbatch=16, prompts=2
    ),
}


@cache
def batch(B_p: int, n: int, temperature: float, top_p: float = 1.0) -> Batch:
    """Random tokens under the log-probabilities of a policy a little off, so that ratios leave [.8,
    1.2] here and there.

    Where there is a nucleus, four of five are of it; the trainer is to count the others in, as it
    does where rounding moved the edge."""
    rng = np.random.default_rng([B_p, n])
    B = B_p * n
    group, lengths = np.arange(B) // n, rng.integers(1, T + 1, B)
    tokens = rng.integers(0, 24, (B, T)).astype(np.int32)
    for t in range(T if top_p < 1 else 0):
        among = rng.permuted(
            np.where(nuclei(group, tokens, temperature, top_p)[0][:, t], np.arange(24)[None], -1),
            axis=1,
        ).max(1)
        tokens[:, t] = np.where(rng.random(B) < 0.8, among, tokens[:, t])
    tokens[np.arange(B), lengths - 1] = EOS
    mask = np.arange(T)[None] < lengths[:, None]
    inside, remaining = nuclei(group, tokens, temperature, top_p)
    logps = reference_logps(np, policy(), PROBLEMS, temperature, group, tokens, inside)[
        0
    ] + rng.normal(0, 0.2, (B, T))
    parts = (
        np.where(mask, tokens, 0),
        np.where(mask, logps, 0).astype(np.float32),
        mask,
        rng.normal(size=B).astype(np.float32),
    )
    return Batch(*parts, remaining if top_p < 1 else np.ones_like(remaining[:, :1]))


def nuclei(
    group: np.ndarray, tokens: np.ndarray, temperature: float, top_p: float
) -> tuple[np.ndarray, np.ndarray]:
    """By sorting: which tokens are drawn from at each position, and the chosen one, bool[B T V];
    the mass of the former, f32[B T].
    """
    p = np.exp(
        log_softmax(
            np, response_logits(np, policy(), PROBLEMS, group, tokens) / temperature
        ).astype(np.float64)
    )
    order = np.argsort(-p, -1)
    ranked = np.take_along_axis(p, order, -1)
    inside = np.empty(p.shape, bool)
    np.put_along_axis(inside, order, (np.cumsum(ranked, -1) - ranked < top_p) | (top_p == 1), -1)
    remaining = (p * inside).sum(-1).astype(np.float32)
    np.put_along_axis(inside, tokens[..., None], True, -1)
    return inside, remaining


def reference_logps(
    xp: Any,
    params: Params,
    problems: ProblemArrays,
    temperature: Any,
    group: np.ndarray,
    tokens: Any,
    inside: Any,
) -> tuple[Any, Any]:
    """Log-probabilities of the tokens, and of every token, among those `inside`."""
    log_p = log_softmax(
        xp,
        xp.where(inside, response_logits(xp, params, problems, group, tokens) / temperature, -1e30),
    )
    return xp.take_along_axis(log_p, tokens[..., None], -1)[..., 0], log_p


@quick_jit
@partial(jax.grad, has_aux=True)
def rollout_gradient(
    params: Params,
    problem: ProblemArrays,
    row: Batch,
    inside: Any,
    temperature: Any,
    kl: Any,
    entropy: Any,
) -> tuple[Any, dict[str, Any]]:
    """The objective of one rollout as one writes it down, a sum over its tokens; entropy and KL are
    of the policy that is drawn from.
    """
    zero = np.array([0])
    logps, log_p = reference_logps(jnp, params, problem, temperature, zero, row.tokens, inside)
    base, _ = reference_logps(jnp, policy(1), problem, temperature, zero, row.tokens, inside)
    ratio = jnp.exp(logps - row.logps)
    terms = {
        "entropy": -(jnp.exp(log_p) * log_p).sum(-1),
        "kl": jnp.exp(base - logps) - (base - logps) - 1,
        "clip_fraction": 1.0 * jnp.where(row.advantages[:, None] > 0, ratio > 1.2, ratio < 0.8),
        "sampler_logp_gap": jnp.abs(logps - row.logps),
    }
    surrogate = jnp.minimum(
        ratio * row.advantages[:, None], jnp.clip(ratio, 0.8, 1.2) * row.advantages[:, None]
    )
    terms["loss"] = -surrogate + kl * terms["kl"] - entropy * terms["entropy"]
    sums = {k: (v * row.mask).sum() for k, v in terms.items()}
    return sums["loss"], sums


def plain(
    B_p: int, n: int, program: Program, kl: float, entropy: float
) -> tuple[Params, dict[str, float]]:
    """Gradient and metrics of a batch: one rollout after the other, each a whole sequence; then
    divided by all tokens.
    """
    rows = batch(B_p, n, program.temperature, program.top_p)
    inside, _ = nuclei(np.arange(B_p * n) // n, rows.tokens, program.temperature, program.top_p)
    each = []
    for r in range(B_p * n):
        problem = ProblemArrays(*(x[r // n : r // n + 1] for x in PROBLEMS))
        row = Batch(*(x[r : r + 1] for x in rows))
        each.append(
            rollout_gradient(
                policy(), problem, row, inside[r : r + 1], program.temperature, kl, entropy
            )
        )
    return jax.tree.map(lambda *x: np.sum(np.stack(x), 0, np.float64) / rows.mask.sum(), *each)


def relative(one: Params, two: Params) -> dict[str, float]:
    """|one - two| / |two| of each parameter."""
    flat, _ = jax.tree_util.tree_flatten_with_path(
        jax.tree.map(lambda a, b: float(np.linalg.norm(a - b) / np.linalg.norm(b)), one, two)
    )
    return {jax.tree_util.keystr(k): v for k, v in flat}


@pytest.mark.parametrize(("B_p", "n"), CELLS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_equal_a_plain_program(name: str, B_p: int, n: int) -> None:
    """For microbatches of 8 to 28, larger than some batches, with 2 to 16 prompts, in two passes or
    one: nothing changes but rounding.
    """
    program = PROGRAMS[name]
    rows = batch(B_p, n, program.temperature, program.top_p)
    expected, means = plain(B_p, n, program, program.kl, program.entropy)
    got, metrics = program.gradient(rows, B_p, n)
    assert max(relative(got, expected).values()) < 1e-5, relative(got, expected)
    for k, v in means.items():
        assert (k == "kl" and not program.kl) or metrics[k] == pytest.approx(
            float(v), rel=1e-5, abs=1e-5
        ), k
    assert metrics["grad_norm"] == pytest.approx(float(optax.tree.norm(expected)), rel=1e-5)
    assert metrics["nonfinite_update"] == 0
    # the terms are at work
    assert B_p == 1 or (0 < means["clip_fraction"] < 1 and means["kl"] > 0.1)
    assert program.update._cache_size() <= 1


def test_in_one_pass_a_weight_is_gathered_once_for_prompts_and_responses() -> None:
    """On a mesh with fsdp, forwards and backwards, and its gradient added up once: blocks of 1 x 7
    in a microbatch of 8, and of 4 x 7.
    """
    result = {}
    for prompts in (1, 4):
        program = Program(
            axes="data=2,fsdp=4", slots=8, microbatch=8, prompts=prompts, kl=0.0, entropy=0.0
        )
        arguments = program.arguments(
            program.init(placed(policy(), program.mesh)), batch(13, 7, 1.0), 13, 7
        )
        text = program.update.lower(*arguments).as_text()
        result[program.sampler_shapes.joint_forward(positions_split=False)] = {
            name: text.count(f"stablehlo.{name}") for name in ("all_gather", "reduce_scatter")
        }
    assert min(result[True].values()) > 0
    assert all(
        2 * result[True][name] <= separate + 2 for name, separate in result[False].items()
    ), result


def test_no_live_token_gives_no_nan() -> None:
    rows = batch(3, 5, 1.0)
    got, metrics = PROGRAMS["m=8"].gradient(rows._replace(mask=np.zeros_like(rows.mask)), 3, 5)
    assert all((x == 0).all() for x in jax.tree.leaves(got))
    assert metrics["loss"] == 0


def test_rewards_and_advantages_of_a_rollout_by_numpy() -> None:
    """The sampling half of the update: what it says of its rollouts, from the rollouts
    themselves."""
    program = PROGRAMS["m=8"]
    rollouts, advantages, metrics = program.rollout(
        policy(), program.problems, np.int32(13), np.int32(7), jax.random.key(3)
    )
    tokens, mask, advantages = (
        gather(program.sampler_shapes, 91, x) for x in (rollouts.tokens, rollouts.mask, advantages)
    )
    rewards = (tokens[:, 0] % 2 == 0).astype(np.float64)
    groups = rewards.reshape(13, 7)
    std = groups.std(1, ddof=1, keepdims=True)
    np.testing.assert_allclose(
        advantages.reshape(13, 7),
        (groups - groups.mean(1, keepdims=True)) / (std + 1e-6),
        atol=1e-5,
    )
    ended = np.array([EOS in row[remaining] for row, remaining in zip(tokens, mask, strict=True)])
    expected = {
        "reward": rewards.mean(),
        "tokens": mask.sum(),
        "truncated": (~ended).mean(),
        "zero_variance": (std == 0).mean(),
    }
    for k, v in expected.items():
        assert values(metrics)[k] == pytest.approx(float(v), rel=1e-6), k
    assert 0 < rewards.mean() < 1 and 0 < (~ended).mean() < 1


def test_ten_steps_on_one_and_on_eight_devices() -> None:
    """From the same recorded temperature-1 rollouts."""
    one, eight = PROGRAMS["m=8"], PROGRAMS[MESHES[0]]
    recorded = []
    for key in range(10):
        rollouts, advantages, _ = one.rollout(
            policy(), one.problems, np.int32(13), np.int32(7), jax.random.key(key)
        )
        recorded.append(
            Batch(
                *(
                    gather(one.sampler_shapes, 91, x)
                    for x in (*rollouts[:3], advantages, rollouts.nucleus_mass)
                )
            )
        )
    ends = []
    for program in (one, eight):
        state = program.init(placed(policy(), program.mesh))
        for i, rows in enumerate(recorded):
            state, metrics = program.step(state, rows, 13, 7, max_grad_norm=1.0)
            assert (
                i or values(metrics)["sampler_logp_gap"] < 1e-5
            )  # sampler's and trainer's log-probabilities before the first update
        assert int(state.step) == 10
        ends.append(jax.device_get(state.params))
    start = policy()
    moved = jax.tree.map(lambda a, b: a - b, ends[0], start)
    assert max(relative(ends[1], ends[0]).values()) < 1e-5
    assert optax.tree.norm(moved) > 0.02 * optax.tree.norm(start)
    mesh_gradients = [p.gradient(recorded[0], 13, 7)[0] for p in (one, eight)]
    assert max(relative(*mesh_gradients).values()) < 1e-5


@pytest.mark.parametrize("microbatch", [2, 28])  # 28: prompts and responses in one pass
def test_in_bfloat16_the_gradient_is_float32(microbatch: int) -> None:
    """Weights and activations are rounded; what the microbatches add up is not rounded again."""
    exact, _ = PROGRAMS["m=8"].gradient(batch(13, 7, 1.0), 13, 7)
    rounded, _ = Program(compute="bfloat16", microbatch=microbatch).gradient(
        batch(13, 7, 1.0), 13, 7
    )
    for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(rounded), strict=True):
        assert b.dtype == np.float32 and np.linalg.norm(a - b) < 0.04 * np.linalg.norm(a)
