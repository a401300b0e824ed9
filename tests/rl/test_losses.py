"""Every loss, advantage, aggregation, filter, regulariser and importance weight against the loops
of reference_losses.py, on random ragged batches that lie in padded buffers of two shards: value,
and gradient by central differences. And the policy losses against TRL and verl directly, on the
batch of loss_references.json."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import RLConfig, SamplingConfig
from isojax.core.nouns import Cell
from isojax.rl import advantages, aggregations, algorithm
from isojax.rl import objective as objective_module
from isojax.rl.advantages import RewardedBatch
from isojax.rl.algorithm import loss_metrics
from isojax.rl.kl_estimators import kl_estimator
from isojax.rl.logprobs import entropy
from isojax.rl.losses import Clip, loss
from isojax.rl.objective import (
    Coefficients,
    LossWeights,
    Microbatch,
    PolicyInputs,
    PolicyObjective,
    make_coefficients,
    make_loss_weights,
    response_weights,
)
from isojax.rl.recipe_checks import check_algorithm
from tests.device import DECODER, quick_jit
from tests.refusals import refused
from tests.rl import reference_losses as loops
from tests.rl.reference_losses import Response

SEEDS = range(3)
N, B_P, T = 3, 5, 8
SHAPE = 2, 12  # of the buffers: two shards with rows to spare
DISTINCT = ("grpo", "gspo", "cispo", "rloo")  # the others are GRPO's function, which a test holds
MEANS = ("token", "sequence", "prompt", "constant")
LOW, HIGH = 0.2, 0.3
GROUPS = 8  # a bound of their number


@dataclass(frozen=True)
class Ragged:
    """A batch as the loops read it; `rows` puts one of its lists into buffers [shards, rows, T],
    nonsense where no token is.
    """

    logps: list[Response]
    sampler: list[Response]
    base: list[Response]
    advantages: list[Response]
    rewards: list[float]
    groups: list[int]
    n: int

    def rows(
        self, values: list[Response] | list[float] | list[int], fill: float = 50.0
    ) -> np.ndarray:
        """[S rows T] of ragged lists, [S rows] of numbers."""
        block, one = -(-len(self.rewards) // SHAPE[0]), np.ndim(values[0]) == 0
        out = np.full(SHAPE if one else (*SHAPE, T), fill, np.float64)
        for r, x in enumerate(values):
            out[
                (r // block, r % block)
                if one
                else (r // block, r % block, slice(0, len(np.atleast_1d(x))))
            ] = x
        return out.astype(np.float32)

    def ragged(self, buffer: Any) -> list[np.ndarray]:
        """The inverse; what is elsewhere must be 0."""
        buffer = np.asarray(buffer)
        assert not np.any(buffer[~self.mask]), "something comes of padding"
        return [
            row[remaining]
            for row, remaining in zip(buffer[self.live], self.mask[self.live], strict=True)
        ]

    @property
    def lengths(self) -> np.ndarray:
        return self.rows([len(x) for x in self.logps], 0).astype(np.int32)

    @property
    def live(self) -> np.ndarray:
        return self.lengths > 0

    @property
    def mask(self) -> np.ndarray:
        return np.arange(T) < self.lengths[..., None]

    @property
    def rewarded(self) -> RewardedBatch:
        groups = self.rows(self.groups, 0).astype(np.int32)
        return RewardedBatch(
            self.rows(self.rewards, 0), self.lengths, groups, self.live, np.int32(self.n), GROUPS
        )  # type: ignore[arg-type]


@cache
def batch(seed: int) -> Ragged:
    """Responses of 1..T tokens; the second problem's rewards are all alike; ratios to either side
    of the clip."""
    rng = np.random.default_rng(seed)
    lengths = rng.permutation([1, T, *rng.integers(1, T + 1, B_P * N - 2)])
    logps = [rng.normal(-1.5, 0.5, k) for k in lengths]
    sampler, base = ([x + rng.normal(0, spread, len(x)) for x in logps] for spread in (0.3, 0.5))
    rewards = rng.choice([0.0, 0.25, 1.0], B_P * N)
    rewards[N : 2 * N], rewards[:2] = 0.1, (0, 1)
    advantages = [np.full(k, a) for k, a in zip(lengths, rng.normal(size=B_P * N), strict=True)]
    return Ragged(
        logps, sampler, base, advantages, rewards.tolist(), [i // N for i in range(B_P * N)], N
    )


@cache
def peers() -> tuple[dict[str, Any], Ragged]:
    result = json.loads((Path(__file__).parent / "loss_references.json").read_text())
    inputs = result["batch"]
    lists = [[np.array(row) for row in inputs[name]] for name in ("logps", "sampler", "base")]
    advantages = [
        np.full(len(row), a) for row, a in zip(lists[0], inputs["advantages"], strict=True)
    ]
    return result, Ragged(*lists, advantages, inputs["rewards"], inputs["groups"], inputs["n"])


def aggregation(name: str) -> Any:
    return aggregations.aggregation.load(name)


@partial(jax.jit, static_argnames="name")
def weights_of(name: str, given: RewardedBatch, counted: Any) -> Any:
    """Each response's weight by an aggregation."""
    return response_weights(aggregation(name), given._replace(num_groups=GROUPS), counted, T)


@jax.jit
def estimate(given: RewardedBatch) -> dict[str, Any]:
    """Every advantage of a batch."""
    return {
        name: advantages.advantage.load(name)(given._replace(num_groups=GROUPS))
        for name in advantages.advantage.names()
        if name != "gae"  # test_critic.py
    }


@quick_jit
def penalties(logps: Any, base: Any) -> dict[str, Any]:
    """Of each KL estimate, the values and the gradient of their sum."""
    return {
        name: (f(logps, base), jax.grad(lambda x, f=f: f(x, base).sum())(logps))
        for name in kl_estimator.names()
        for f in [kl_estimator.load(name)]
    }


def coefficients_of(
    low: float = LOW, high: float = HIGH, cap: float = 1.3, tis_low: float | None = None
) -> Coefficients:
    lower = None if tis_low is None else np.float32(tis_low)
    values = dict.fromkeys(Coefficients._fields, np.float32(0)) | {
        "tis_cap": np.float32(cap),
        "tis_low": lower,
    }
    return Coefficients(**values)._replace(clip=np.float32(low), clip_high=np.float32(high))


@cache
def program(name: str, level: str, over: str) -> Callable[..., Any]:
    """(value, gradient) of the weighted policy term of rows [m T], through the objective that the
    update differentiates.
    """
    objective = PolicyObjective(
        DECODER, RLConfig(loss=name, tis=level, tis_mode=over), SamplingConfig(), False
    )

    def value(
        logps: Any,
        sampler: Any,
        advantages: Any,
        mask: Any,
        weight: Any,
        coefficients: Coefficients,
    ) -> Any:
        specific = PolicyInputs(
            sampler, jnp.ones_like(logps), LossWeights(advantages, weight, weight, weight)
        )
        none = jnp.zeros(len(logps), jnp.int32)
        return (
            weight[:, None]
            * objective.policy_loss(
                logps, Microbatch(none, mask, specific, none, none), coefficients
            )[0]
        ).sum()

    return quick_jit(jax.value_and_grad(value))


def ours(
    name: str,
    given: Ragged,
    mean: str,
    low: float,
    high: float,
    tis: tuple[Any, ...] = ("none", "truncate", 2.0),
) -> Any:
    """The aggregated policy term and its ragged gradient."""
    level, over, cap, *lower = tis
    parts = [
        x.reshape(-1, T)
        for x in (
            given.rows(given.logps),
            given.rows(given.sampler, fill=-50.0),  # a ratio of padding overflows
            given.rows(given.advantages),
            given.mask,
        )
    ]
    weight = weights_of(mean, given.rewarded, given.live).reshape(-1)
    value, slope = program(name, level, over)(
        *parts, weight, coefficients_of(low, high, cap, *lower)
    )
    return float(value), given.ragged(np.asarray(slope).reshape(given.mask.shape))


def expected(name: str, given: Ragged, mean: str, tis: tuple[Any, ...] | None = None) -> Any:
    """The same by the loops."""

    def f(logps: list[Response]) -> float:
        values = []
        for x, held, s, a in zip(logps, given.logps, given.sampler, given.advantages, strict=True):
            one = (loops.LOSSES[name], x, held, s, a, loops.Clip(LOW, HIGH))
            values.append(loops.corrected(*one, *tis) if tis else one[0](*one[1:]))
        return loops.aggregate(mean, values, given.groups, [True] * len(values), T)

    return f(given.logps), loops.slope(f, given.logps)


def agree(got: Any, wanted: Any) -> None:
    """float32 against float64; differences are good to 1e-9 of values near 1."""
    assert got[0] == pytest.approx(wanted[0], rel=1e-5, abs=1e-6)
    for a, b in zip(got[1], wanted[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-7)


def bounds(name: str) -> tuple[float, float]:
    """CISPO has a lower bound here, which its paper has not: 1 - 1 is none."""
    return (1.0 if name == "cispo" else LOW), HIGH


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", DISTINCT)
def test_losses_and_aggregation(name: str, seed: int) -> None:
    for mean in MEANS:
        agree(ours(name, batch(seed), mean, *bounds(name)), expected(name, batch(seed), mean))


def test_the_other_losses_are_grpos_function() -> None:
    grpo = loss.load("grpo").function
    for name in set(loops.LOSSES) - set(DISTINCT):
        assert loss.load(name).function is grpo


@pytest.mark.parametrize(
    ("name", "stopped"), [("grpo", [0, 0, 1, 1, 0, 0]), ("cispo", [1, 0, 1, 1, 1, 0])]
)
def test_which_tokens_a_clip_stops(name: str, stopped: list[int]) -> None:
    """Ratios 1/2, 1 and 2 with the advantage 1, then 1/2 and 2 with -1, bounds .8 and 1.3. PPO's
    bound stops a token that has gone its way far enough; CISPO's cuts whatever is outside."""
    ratios = np.float32([[0.5, 1, 2, 0.5, 2, 9]])
    advantages = np.float32([[1, 1, 1, -1, -1, 1]])
    mask = np.arange(6)[None] < 5
    bound = Clip(np.float32(LOW), np.float32(HIGH))
    _, metrics = loss.load(name)(np.log(ratios), np.zeros_like(ratios), advantages, mask, bound)
    assert np.asarray(metrics["clip_fraction"]).tolist() == [stopped]


@pytest.mark.parametrize(("bound", "capped", "below"), [(1.0, 0, 0), (0.99, 1, 0), (1.01, 0, 1)])
def test_an_importance_weight_at_its_bound_stays(bound: float, capped: int, below: int) -> None:
    """A token that trainer and sampler find as likely, with one bound as both."""
    settings = RLConfig(tis="token", tis_mode="mask", tis_cap=2, tis_low=0.5)
    objective = PolicyObjective(DECODER, settings, SamplingConfig(), False)
    one = jnp.ones((1, 1))
    inputs = PolicyInputs(-one, one, LossWeights(*[one[0]] * 4))
    none = jnp.zeros(1, jnp.int32)
    microbatch = Microbatch(none, one > 0, inputs, none, none)
    value, metrics = objective.policy_loss(
        -one, microbatch, coefficients_of(cap=bound, tis_low=bound)
    )
    assert (float(metrics["tis_capped"][0, 0]), float(metrics["tis_below"][0, 0])) == (
        capped,
        below,
    )
    assert float(metrics["tis_weight"][0, 0]) == 1 - capped - below == -float(value[0, 0])


def test_what_a_plain_recipe_does_not_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base policy, a nucleus, and the entropy's gradient."""
    plain = PolicyObjective(DECODER, RLConfig(), SamplingConfig(top_p=1.0), False)
    assert not plain.needs_base
    for words in ({"kl": 0.1}, {"measure_kl": True}):
        assert PolicyObjective(DECODER, RLConfig(**words), SamplingConfig(), False).needs_base
    calls: list[tuple[str, Any]] = []
    for name in ("token_stats", "nucleus_token_stats"):
        monkeypatch.setattr(
            objective_module, name, lambda *x, name=name: calls.append((name, x[-2:])) or (1, 2)
        )
    microbatch: Any = SimpleNamespace(
        tokens=None, objective_inputs=SimpleNamespace(nucleus_mass=None)
    )
    hidden: Any = None
    for entropy_bonus, top_p in ((0.0, 1.0), (0.1, 1.0), (0.1, 0.9)):
        recipe = RLConfig(entropy=entropy_bonus)
        objective = PolicyObjective(DECODER, recipe, SamplingConfig(top_p=top_p), False)
        objective.token_stats(hidden, None, microbatch)
    assert calls == [
        ("token_stats", (False, False)),
        ("token_stats", (True, False)),
        ("nucleus_token_stats", (1.0, True)),
    ]


@pytest.mark.parametrize("over", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("name", DISTINCT)
def test_truncated_importance_sampling(name: str, level: str, over: str) -> None:
    inputs, tis = batch(2), (level, over, 1.1)
    weights = np.concatenate(
        [loops.importance(x, s, *tis) for x, s in zip(inputs.logps, inputs.sampler, strict=True)]
    )
    assert (weights == (0 if over == "mask" else 1.1)).any()
    assert ((weights > 0) & (weights < 1.1)).any()
    agree(
        ours(name, inputs, "sequence", *bounds(name), tis), expected(name, inputs, "sequence", tis)
    )


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("name", DISTINCT)
def test_icepop_masks_weights_outside_two_bounds(name: str, level: str) -> None:
    inputs, tis = batch(2), (level, "mask", 1.1, 0.9)
    ratios = [
        loops.importance(x, s, level, "mask", math.inf)
        for x, s in zip(inputs.logps, inputs.sampler, strict=True)
    ]
    below = (np.concatenate(ratios) < 0.9).any()
    above = (np.concatenate(ratios) > 1.1).any()
    assert below and above
    agree(
        ours(name, inputs, "sequence", *bounds(name), tis), expected(name, inputs, "sequence", tis)
    )


def test_without_a_lower_bound_programs_have_no_argument_for_it() -> None:
    """So they are compiled from the text that they had before there was one. The same holds for the
    loss of experts."""
    without = make_coefficients(RLConfig(tis="token", tis_mode="mask"))
    assert without.tis_low is None and without.expert_balance is None
    assert len(jax.tree.leaves(without)) == len(Coefficients._fields) - 2
    with_it = make_coefficients(RLConfig(tis="token", tis_mode="mask", tis_low=0.5, tis_cap=5))
    assert with_it.tis_low == 0.5 and len(jax.tree.leaves(with_it)) == len(Coefficients._fields) - 1


@pytest.mark.parametrize(
    "words", [{}, {"tis": "token"}, {"tis": "token", "tis_mode": "mask", "tis_cap": 0.5}]
)
def test_a_lower_bound_needs_a_mask(words: dict[str, Any]) -> None:
    with refused(where="cell.rl.tis_low"):
        check_algorithm(RLConfig(tis_low=0.5, **words), [Cell(4, 4, 0)])


def test_losses_equal_trl_and_verl_themselves() -> None:
    result, inputs = peers()
    theirs = result["trl"]["losses"] | {
        f"{k} ": v for k, v in result["verl"]["losses"].items() if k.startswith(("gspo", "cispo"))
    }
    low, high, cap = (result["batch"]["numbers"][k] for k in ("low", "high", "cap"))
    done = 0
    for name, wanted in theirs.items():
        loss, mean, *tis = name.split()
        if loss in loops.LOSSES and mean in MEANS and (not tis or tis[0] == "tis"):
            setting = [(tis[1], tis[2], cap)] if tis else []
            got = ours(loss, inputs, mean, 1.0 if loss == "cispo" else low, high, *setting)
            agree(got, (wanted["loss"], wanted["gradient"]))
            done += 1
    assert done == 21


LOOPS: dict[str, Callable[..., list[float]]] = {
    "group": loops.group,
    "mean": loops.centred,
    "leave_one_out": loops.leave_one_out,
    "batch": loops.batch,
}


@pytest.mark.parametrize("seed", SEEDS)
def test_advantages(seed: int) -> None:
    inputs = batch(seed)
    assert sum(loops.zero_variance(inputs.rewards, inputs.groups)) >= N
    result = estimate(inputs.rewarded)
    for name, loop in LOOPS.items():
        got = np.asarray(result[name])
        assert not got[~inputs.live].any(), name
        np.testing.assert_allclose(
            got[inputs.live],
            loop(inputs.rewards, inputs.groups),
            rtol=1e-5,
            atol=1e-6,
            err_msg=name,
        )
    got = np.asarray(result["whiten"])
    per_token = loops.whiten(
        [np.full(len(x), r) for x, r in zip(inputs.logps, inputs.rewards, strict=True)]
    )
    np.testing.assert_allclose(got[inputs.live], [x[0] for x in per_token], rtol=1e-5, atol=1e-6)
    assert set(result) == {*LOOPS, "whiten"}, (
        "a new estimator needs a loop that computes the same, in LOOPS"
    )


@pytest.mark.parametrize("mean", MEANS)
def test_filters(mean: str) -> None:
    """A zero-variance group is left out of the terms that filter it, their denominators included;
    so is a rollout that was not chosen.
    """
    inputs = batch(1)
    every = [True] * len(inputs.rewards)
    same_rewards = loops.zero_variance(inputs.rewards, inputs.groups)
    selected = [i % N != 1 for i in range(len(every))]
    counts = inputs.rows(selected, 0) > 0
    for terms in ((), ("policy",), ("kl", "entropy"), ("policy", "kl", "entropy")):
        rl = RLConfig(zero_variance_filter=terms, aggregation=mean)
        for used, remaining in ((inputs.live, every), (counts, selected)):
            result = make_loss_weights(rl, np.zeros(SHAPE), inputs.rewarded, used, T)
            for term in ("policy", "kl", "entropy"):
                keep = [
                    k and not (term in terms and s)
                    for k, s in zip(remaining, same_rewards, strict=True)
                ]
                wanted = loops.aggregate(mean, inputs.base, inputs.groups, keep, T)
                got = (
                    np.asarray(getattr(result, term))[..., None] * inputs.rows(inputs.base, 0)
                ).sum()
                assert got == pytest.approx(wanted, rel=1e-5), (term, terms)


def test_nothing_kept_is_nothing() -> None:
    inputs = batch(0)
    for mean in MEANS:
        weight = weights_of(mean, inputs.rewarded, np.zeros(SHAPE, bool))
        assert not np.asarray(weight).any()


def test_kl() -> None:
    inputs = batch(0)
    result = penalties(inputs.rows(inputs.logps), inputs.rows(inputs.base))
    assert set(result) == {"k1", "k2", "k3"}
    for kind, parts in result.items():
        value, slope = (inputs.ragged(np.where(inputs.mask, x, 0)) for x in parts)

        def f(moved: list[Response], kind: str = kind) -> float:
            return sum(loops.kl(kind, x, b).sum() for x, b in zip(moved, inputs.base, strict=True))

        for a, x, b in zip(value, inputs.logps, inputs.base, strict=True):
            np.testing.assert_allclose(a, loops.kl(kind, x, b), rtol=1e-5, atol=1e-6)
        for a, b in zip(slope, loops.slope(f, inputs.logps), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_entropy() -> None:
    x = np.random.default_rng(0).normal(0, 2, (7, 5))

    @quick_jit
    @jax.grad
    def slope(x: Any) -> Any:
        return entropy(jax.nn.log_softmax(x)).sum()

    log_p = x - np.log(np.exp(x).sum(-1, keepdims=True))
    np.testing.assert_allclose(entropy(log_p.astype(np.float32)), loops.entropy(x), rtol=1e-5)
    wanted = loops.slope(lambda rows: float(loops.entropy(np.array(rows)).sum()), list(x))
    np.testing.assert_allclose(slope(x.astype(np.float32)), wanted, rtol=1e-5, atol=1e-6)


def test_the_clip_of_the_loops_is_that_of_the_losses() -> None:
    assert Clip._fields == loops.Clip._fields


def test_a_loss_without_metrics_is_told_what_it_lacks() -> None:
    plugin = loss(lambda logps, old_logps, advantages, mask, clip: -logps * advantages)
    with refused(where="cell.rl.loss = mine"):
        loss_metrics(plugin, "mine")


def measuring(*names: str) -> Any:
    """A loss with metrics of these names."""

    @loss
    def measured(logps: Any, old_logps: Any, advantages: Any, mask: Any, clip: Clip) -> Any:
        return -logps * advantages, dict.fromkeys(names, logps - old_logps)

    return measured


@pytest.mark.parametrize(
    "name", ["reward", "tokens", "zero_variance", "entropy", "kl", "loss", "grad_norm"]
)
def test_a_metric_of_a_loss_has_a_name_of_its_own(name: str) -> None:
    """Else it takes the place of isojax's metric, or is lost."""
    assert loss_metrics(measuring("mine", "clip_fraction"), "mine") == ["clip_fraction", "mine"]
    with refused(where="cell.rl.loss = mine"):
        loss_metrics(measuring("mine", name), "mine")
    with refused(where="cell.rl.loss = mine"):
        loss_metrics(measuring("turns", "mine", "parsed_fraction"), "mine")


def test_the_names_that_no_loss_may_take_are_those_of_the_objective() -> None:
    rl = RLConfig(kl=0.1, tis="token", tis_low=0.5)
    objective = PolicyObjective(DECODER, rl, SamplingConfig(), False)
    own = objective.metric_reductions.keys() - set(loss_metrics(objective.algorithm.loss, rl.loss))
    assert (
        {"loss", "entropy", "kl", "tis_weight", "tis_below", "sampler_logp_gap_max"}
        <= own
        <= algorithm.OWN_METRICS
    )


@pytest.mark.parametrize(
    ("settings", "n", "is_allowed"),
    [
        ({"loss": "grpo"}, 2, True),
        ({"loss": "grpo"}, 1, False),
        ({"loss": "reinforce_pp"}, 1, True),
        ({"loss": "reinforce_pp", "zero_variance_filter": ("policy",)}, 2, True),
        ({"loss": "reinforce_pp", "zero_variance_filter": ("policy",)}, 1, False),
        ({"n_train": 3}, 3, True),
        ({"n_train": 4}, 3, False),
        ({"kl": 0.1, "zero_variance_filter": ("kl",)}, 4, True),
        ({"zero_variance_filter": ("kl",)}, 4, False),
        ({"entropy": 0.1, "zero_variance_filter": ("entropy",)}, 4, True),
        ({"zero_variance_filter": ("entropy",)}, 4, False),
        ({"loss": "rloo"}, 4, True),
        ({"loss": "rloo", "clip": 0.1}, 4, False),
        ({"loss": "rloo", "clip_high": 0.1}, 4, False),
        ({"advantage": "gae"}, 4, False),
        ({"tis": "token", "tis_mode": "mask", "tis_cap": 2.0, "tis_low": 1.99}, 4, True),
        ({"tis": "token", "tis_mode": "mask", "tis_cap": 2.0, "tis_low": 2.0}, 4, False),
        ({"dynamic_sampling": 3}, 2, True),
        ({"dynamic_sampling": 3, "loss": "reinforce_pp"}, 1, False),
    ],
)
def test_recipes_at_the_limits_of_what_is_allowed(
    settings: dict[str, Any], n: int, is_allowed: bool
) -> None:
    """Of a grid whose smallest n this is."""
    cells = [Cell(4, n, 0), Cell(4, 8, 0)]
    if is_allowed:
        check_algorithm(RLConfig(**settings), cells)
        return
    with refused():
        check_algorithm(RLConfig(**settings), cells)
