"""A recipe resolved: what `cell.rl` leaves null takes its loss's default, and plug-ins are loaded.
What a recipe is refused for: rl/recipe_checks.py."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from isojax.core.config import RLConfig
from isojax.core.errors import InputError
from isojax.core.plugins import NoTraits, Plugin, PluginKind
from isojax.core.user_code import describe_exception
from isojax.rl.advantages import AdvantageTraits, advantage
from isojax.rl.aggregations import aggregation
from isojax.rl.kl_estimators import kl_estimator
from isojax.rl.losses import Clip, LossTraits, loss

# isojax's own metrics. Those of a loss have other names and prefixes.
OWN_METRICS = frozenset(
    {
        # of the rollouts of a batch
        "reward",
        "tokens",
        "truncated",
        "response_length",
        "zero_variance",
        "context_length",
        "interrupted",
        "turns",
        "parsed_fraction",
        "dropped",
        # of loss and gradient
        "loss",
        "entropy",
        "kl",
        "grad_norm",
        "nonfinite_update",
        # of the difference between sampler and trainer
        "sampler_logp_gap",
        "sampler_logp_gap_max",
        "tis_weight",
        "tis_capped",
        "tis_below",
        # of a model with experts
        "router_entropy",
        "expert_share_max",
        "expert_balance",
        "expert_agreement",
    }
)
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
    """The plug-ins of a recipe, and by how much its ratio may fall below 1 (clip) and rise above it
    (clip_high)."""

    loss: Plugin[..., Any, LossTraits]
    advantage: Plugin[..., Any, AdvantageTraits]
    aggregation: Plugin[..., Any, NoTraits]
    kl_estimator: Plugin[..., Any, NoTraits]
    clip: float
    clip_high: float


def resolve_algorithm(rl: RLConfig) -> Algorithm:
    """Resolve `cell.rl`: load its plug-ins, and fill in what is null from the loss's defaults.

    `clip_high` falls back on the loss's, and then on `clip`. Raises InputError, with the names that
    there are, where there is no such plug-in.
    """
    loss_plugin = _load(loss, "loss", rl.loss)
    defaults = loss_plugin.traits

    clip = defaults.clip if rl.clip is None else rl.clip
    clip_high = rl.clip_high
    if clip_high is None:
        clip_high = clip if defaults.clip_high is None else defaults.clip_high

    return Algorithm(
        loss=loss_plugin,
        advantage=_load(advantage, "advantage", rl.advantage or defaults.advantage),
        aggregation=_load(aggregation, "aggregation", rl.aggregation or defaults.aggregation),
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
    """Trace a call of a plug-in, and return ShapeDtypeStructs in the place of its arrays.

    setting: for the message, such as "cell.rl.loss = grpo". expected: the plug-in's signature.
    function: makes the call. Raises InputError where it cannot be traced.
    """
    try:
        return jax.eval_shape(function)
    except InputError as e:  # such as of other arguments than isojax's
        raise e.within(setting) from e
    except Exception as e:  # whatever a user's own function raises
        raise InputError(
            where=setting,
            found=describe_exception(e).rstrip("."),
            expected=expected,
        ) from e


def loss_metrics(plugin: Plugin[..., Any, LossTraits], name: str) -> list[str]:
    """The names of a loss's own metrics, sorted, such as ["clip_fraction"].

    name: as `cell.rl.loss` has it. Raises InputError unless the loss returns (f32[m T],
    {metric: f32[m T]}), with names that isojax's own metrics do not have.
    """
    setting = f"cell.rl.loss = {name}"
    expected = (
        "loss(logps, old_logps, advantages, mask, clip) -> (per-token loss f32[m T], "
        "{metric: f32[m T]})"
    )

    def loss_and_metrics() -> tuple[Any, dict[str, Any]]:
        """Call the loss on an example of m = 2 responses of T = 3 tokens."""
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

    clashing = [n for n in metrics if n in OWN_METRICS or n.startswith(OWN_PREFIXES)]
    if clashing:
        raise InputError(
            where=setting,
            found=f"isojax has metrics {', '.join(sorted(clashing))} of its own",
            expected="other names",
        )
    return sorted(metrics)
