"""A recipe resolved: what `cell.rl` leaves null takes its loss's default, plug-ins are loaded, and
settings that contradict each other are refused before any work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from isojax.core.config import RLConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.core.plugins import NoTraits, Plugin, PluginKind
from isojax.core.user_code import describe_exception
from isojax.rl.advantages import AdvantageTraits, RewardedBatch, advantage
from isojax.rl.aggregations import CountedResponses, aggregation
from isojax.rl.kl_estimators import kl_estimator
from isojax.rl.losses import Clip, LossTraits, loss

# isojax's own metrics; those of a loss have other names and prefixes.
OWN_METRICS = {
    "reward",
    "tokens",
    "truncated",
    "response_length",
    "zero_variance",
    "context_length",
    "interrupted",
}
OWN_METRICS |= {
    "turns",
    "parsed_fraction",
    "dropped",
    "loss",
    "entropy",
    "kl",
    "grad_norm",
    "nonfinite_update",
}
OWN_METRICS |= {"sampler_logp_gap", "sampler_logp_gap_max", "tis_weight", "tis_capped", "tis_below"}
OWN_METRICS |= {"router_entropy", "expert_share_max", "expert_balance", "expert_agreement"}
OWN_PREFIXES = (
    "critic_",
    "grad_",
    "reward/",
    "sampler_",
    "staleness_",
    "trained_",
    "trainer_",
    "verifier_",
)

Traits = TypeVar("Traits")


@dataclass(frozen=True)
class Algorithm:
    """The plug-ins of a recipe and the bounds of its ratio."""

    loss: Plugin[..., Any, LossTraits]
    advantage: Plugin[..., Any, AdvantageTraits]
    aggregation: Plugin[..., Any, NoTraits]
    kl_estimator: Plugin[..., Any, NoTraits]
    clip: float
    clip_high: float


def resolve_algorithm(rl: RLConfig) -> Algorithm:
    """The recipe of `cell.rl`; InputError where there is no such plug-in, with the names there
    are."""

    loss_plugin = _load(loss, "loss", rl.loss)
    recipe = loss_plugin.traits
    clip = recipe.clip if rl.clip is None else rl.clip
    clip_high = rl.clip_high
    if clip_high is None:
        clip_high = clip if recipe.clip_high is None else recipe.clip_high
    return Algorithm(
        loss=loss_plugin,
        advantage=_load(advantage, "advantage", rl.advantage or recipe.advantage),
        aggregation=_load(aggregation, "aggregation", rl.aggregation or recipe.aggregation),
        kl_estimator=_load(kl_estimator, "kl_estimator", rl.kl_estimator),
        clip=float(clip),
        clip_high=float(clip_high),
    )


def _load(kind: PluginKind[Traits], setting: str, name: str) -> Plugin[..., Any, Traits]:
    try:
        return kind.load(name)
    except InputError as e:
        raise e.within(f"cell.rl.{setting}") from e


def describe_algorithm(rl: RLConfig) -> str:
    """The plug-ins of a recipe in a line, those that the loss brings among them."""
    algorithm = resolve_algorithm(rl)
    names = f"loss {algorithm.loss.name}, advantage {algorithm.advantage.name}"
    return f"recipe: {names}, aggregation {algorithm.aggregation.name}"


def trace_plugin(setting: str, expected: str, function: Callable[[], Any]) -> Any:
    """The abstract outputs of a call of a plug-in; InputError where it cannot be traced."""
    try:
        return jax.eval_shape(function)
    except Exception as e:  # whatever a user's own function raises
        raise InputError(
            where=setting,
            found=describe_exception(e).rstrip("."),
            expected=expected,
        ) from e


def loss_metrics(plugin: Plugin[..., Any, LossTraits], name: str) -> list[str]:
    """The names of a loss's own metrics; InputError unless it returns a loss and metrics for each
    token."""
    setting = f"cell.rl.loss = {name}"
    expected = (
        "loss(logps, old_logps, advantages, mask, clip) -> (per-token loss f32[m T], {metric: "
        "f32[m T]})"
    )

    def loss_and_metrics() -> tuple[Any, dict[str, Any]]:
        tokens, bound = jnp.ones((2, 3)), jnp.ones(())
        result = plugin(tokens, tokens, tokens, tokens > 0, Clip(bound, bound))
        if not isinstance(result, tuple):  # an array of two rows would unpack, too
            raise TypeError("it returns a loss without metrics, which may be {}")
        return result[0], dict(result[1])

    value, metrics = trace_plugin(setting, expected, loss_and_metrics)
    shapes = {value.shape, *(x.shape for x in metrics.values())}
    if shapes != {(2, 3)}:
        raise InputError(
            where=setting,
            found=f"returns shapes {sorted(shapes)} for 2 responses of 3 tokens",
            expected=expected,
        )
    if taken := sorted(
        name for name in metrics if name in OWN_METRICS or name.startswith(OWN_PREFIXES)
    ):
        raise InputError(
            where=setting,
            found=f"isojax has metrics {', '.join(taken)} of its own",
            expected="other names",
        )
    return sorted(metrics)


def check_plugins(algorithm: Algorithm) -> None:
    """InputError unless advantage, aggregation and KL estimator can be traced and return arrays of
    the right shape."""
    # rows have two axes, shards and rows of a shard; all sizes differ
    rows = (2, 5)
    T = 7
    num_groups = 3
    has_critic = algorithm.advantage.traits.needs_critic

    def call_advantage() -> Any:
        integers, tokens = jnp.ones(rows, jnp.int32), jnp.ones((*rows, T))
        batch = RewardedBatch(
            rewards=jnp.ones(rows),
            lengths=integers,
            groups=integers,
            valid=integers > 0,
            n=jnp.ones((), jnp.int32),
            num_groups=num_groups,
            filters_zero_variance=True,
            token_advantages=tokens if has_critic else None,
            token_mask=tokens > 0 if has_critic else None,
        )
        return algorithm.advantage(batch)

    def call_aggregation() -> Any:
        integers = jnp.ones(rows, jnp.int32)
        responses = CountedResponses(
            lengths=integers,
            tokens=jnp.ones(rows),
            groups=integers,
            counted=integers > 0,
            num_counted=jnp.ones(()),
            num_groups=num_groups,
            response_length=T,
        )
        return algorithm.aggregation(responses)

    def check_shape(
        setting: str, plugin: Plugin, expected: str, call: Callable[[], Any], *shapes: tuple
    ) -> None:
        setting = f"cell.rl.{setting} = {plugin.name}"
        output = trace_plugin(setting, expected, call)
        if not isinstance(output, jax.ShapeDtypeStruct) or output.shape not in shapes:
            actual = (
                f"an array of shape {output.shape}"
                if hasattr(output, "shape")
                else f"a {type(output).__name__}"
            )
            raise InputError(
                where=setting,
                found=(
                    f"for rollouts of shape {rows}, {num_groups} groups and {T} tokens it "
                    f"returns {actual}"
                ),
                expected=f"{expected}: {' or '.join(map(str, shapes))}",
            )

    expected = (
        "advantage(batch), where n is traced, -> f32 of the shape of batch.rewards, or a number "
        "for each token"
    )
    check_shape("advantage", algorithm.advantage, expected, call_advantage, rows, (*rows, T))
    expected = "weight(responses) -> f32 of the shape of responses.lengths, or one number"
    check_shape("aggregation", algorithm.aggregation, expected, call_aggregation, rows, ())
    expected = "estimate(logps, base_logps) -> f32[m T], one number for each token"
    estimator = algorithm.kl_estimator
    check_shape(
        "kl_estimator", estimator, expected, lambda: estimator(*jnp.ones((2, 5, T))), (5, T)
    )


def check_algorithm(rl: RLConfig, cells: Sequence[Cell]) -> None:
    """InputError where settings of a recipe, or of a recipe and a grid, contradict each other."""
    algorithm = resolve_algorithm(rl)
    loss_metrics(algorithm.loss, rl.loss)
    check_plugins(algorithm)
    smallest_n = min(n for cell in cells for _, n in cell.pairs)
    loss_traits, advantage_traits = algorithm.loss.traits, algorithm.advantage.traits
    has_critic = rl.critic is not None
    if advantage_traits.needs_critic != has_critic or (loss_traits.needs_critic and not has_critic):
        raise InputError(
            where="cell.rl.loss",
            found=(
                f"given {rl.loss}, cell.rl.advantage = {algorithm.advantage.name} and "
                f"cell.rl.critic is {'set' if has_critic else 'null'}"
            ),
            expected=(
                "the advantage gae and a critic (the config recipes/ppo, or "
                "cell.rl.critic={}), which the loss ppo needs, or neither"
            ),
        )
    if advantage_traits.needs_group and smallest_n < 2:
        raise InputError(
            where="cell.rl.advantage",
            found=(
                f"given {algorithm.advantage.name}, which compares a rollout with others of "
                f"its problem and sweep.n holds {smallest_n}: every advantage would be 0"
            ),
            expected=(
                "n of 2 or more, or an advantage without groups (cell.rl.loss=reinforce_pp, or ppo)"
            ),
        )
    if rl.zero_variance_filter and smallest_n < 2:
        raise InputError(
            where="cell.rl.zero_variance_filter",
            found=(
                f"given {list(rl.zero_variance_filter)} and n = 1: a group of one never "
                "disagrees, so that these terms would have no rollout left"
            ),
            expected="n of 2 or more, or no filter",
        )
    check_dynamic_sampling(rl, cells)
    if rl.n_train is not None and rl.n_train > smallest_n:
        raise InputError(
            where="cell.rl.n_train",
            found=(
                f"given {rl.n_train} rollouts of a group in the gradient, "
                f"and sweep.n holds {smallest_n}"
            ),
            expected="n_train <= n (n counts the rollouts that estimate the baseline)",
        )
    if rl.tis_low is not None and (
        rl.tis == "none" or rl.tis_mode != "mask" or rl.tis_low >= rl.tis_cap
    ):
        raise InputError(
            where="cell.rl.tis_low",
            found=(
                f"given {rl.tis_low:g} with tis = {rl.tis}, tis_mode = {rl.tis_mode} and "
                f"tis_cap = {rl.tis_cap:g}"
            ),
            expected="tis=token or tis=sequence, tis_mode=mask, and tis_low below tis_cap",
        )
    for term, coefficient in (("kl", rl.kl), ("entropy", rl.entropy)):
        if term in rl.zero_variance_filter and coefficient == 0:
            raise InputError(
                where="cell.rl.zero_variance_filter",
                found=f"holds {term} and cell.rl.{term} = 0: there is no such term to filter",
                fix=f"Set it, or leave {term} out of the filter.",
            )
    if not loss_traits.clips and (rl.clip is not None or rl.clip_high is not None):
        raise InputError(
            where="cell.rl.loss",
            found=f"given {rl.loss}, which never clips",
            expected="neither cell.rl.clip nor cell.rl.clip_high",
        )


def check_dynamic_sampling(rl: RLConfig, cells: Sequence[Cell]) -> None:
    """InputError where dynamic sampling contradicts the recipe or the grid."""
    if rl.dynamic_sampling is None:
        return
    setting = f"cell.rl.dynamic_sampling = {rl.dynamic_sampling}"
    if any(n < 2 for cell in cells for _, n in cell.pairs):
        raise InputError(
            where=setting,
            found=(
                "given n = 1: the rewards of a group of one are always equal, "
                "and every group would be replaced"
            ),
            expected="n of 2 or more",
        )
    if rl.max_staleness is not None:
        problem = (
            f"{setting} and cell.rl.max_staleness = {rl.max_staleness}: batches of a "
            f"sampler that runs ahead have begun"
        )
        raise InputError(
            found=f"{problem} before it is known what they replace",
            fix="Leave one of them out.",
        )
    if any(cell.n_max or cell.is_of_spend for cell in cells):
        problem = (
            f"{setting} where n is chosen on the way, by gradient or by `isojax spend`: both read "
            "how many groups"
        )
        raise InputError(
            found=f"{problem} have equal rewards at B_p n rollouts an update",
            fix="Leave it out, or fix n by sweep.n.",
        )
