"""A recipe made definite: what `cell.rl` leaves null is its loss's own; nonsense is refused here, before any work, with
the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import jax
import jax.numpy as jnp

from isojax.core import registry
from isojax.core.config import RLConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.rl.losses import Clip

GRPO_DEFAULTS = {"advantage": "group", "aggregation": "token", "clip": 0.2}
NEEDS_A_GROUP = ("group", "mean", "leave_one_out", "batch")


@dataclass(frozen=True)
class Algorithm:
    """The loss's module and the settings that are its own unless the config sets them."""

    loss: ModuleType
    advantage: str
    aggregation: str
    clip: float
    clip_high: float


def resolve_algorithm(rl: RLConfig) -> Algorithm:
    """The recipe of `cell.rl`.

    Raises:
        InputError: no such loss.
    """
    loss = registry.load("rl.losses", rl.loss, "loss")
    defaults = GRPO_DEFAULTS | vars(loss).get("DEFAULTS", {})
    clip = float(defaults["clip"] if rl.clip is None else rl.clip)
    clip_high = defaults.get("clip_high", clip) if rl.clip_high is None else rl.clip_high
    return Algorithm(
        loss, rl.advantage or defaults["advantage"], rl.aggregation or defaults["aggregation"], clip, float(clip_high)
    )


def loss_metrics(module: ModuleType, name: str) -> list[str]:
    """The names of a loss's own metrics, found by tracing it on 2 responses of 3 tokens.

    Raises:
        InputError: it cannot be traced, or returns something else than a loss a token and metrics a token.
    """
    tokens, mask, scalar = (
        jax.ShapeDtypeStruct(s, d) for s, d in (((2, 3), jnp.float32), ((2, 3), jnp.bool_), ((), jnp.float32))
    )
    expected = "loss(logps, sampler_logps, advantages, mask, clip) -> (per-token loss f32[m T], {metric: f32[m T]})"
    try:
        value, metrics = jax.eval_shape(module.loss, tokens, tokens, tokens, mask, Clip(scalar, scalar))
        shapes = {value.shape, *(x.shape for x in metrics.values())}
    except Exception as e:  # whatever a loss of a user's own raises
        raise InputError(f"cell.rl.loss = {name}: {type(e).__name__}: {e}; expected {expected}.") from e
    if shapes != {(2, 3)}:
        raise InputError(
            f"cell.rl.loss = {name}: for 2 responses of 3 tokens it returns arrays of {sorted(shapes)}; expected {expected}."
        )
    return sorted(metrics)


def check_algorithm(rl: RLConfig, cells: Sequence[Cell]) -> None:
    """InputError where settings of a recipe, or of a recipe and a grid, contradict each other."""
    algorithm = resolve_algorithm(rl)
    loss_metrics(algorithm.loss, rl.loss)
    smallest_n = min(cell.n for cell in cells)
    if vars(algorithm.loss).get("NEEDS_CRITIC") and rl.critic is None:
        raise InputError(
            f"cell.rl.loss = {rl.loss} takes its advantages from a critic and cell.rl.critic is null; add the config recipes/ppo or "
            "cell.rl.critic={}, or choose another loss."
        )
    if (algorithm.advantage == "gae") != (rl.critic is not None):
        critic_setting = "null" if rl.critic is None else "set"
        raise InputError(
            f"cell.rl.advantage = {algorithm.advantage} and cell.rl.critic is {critic_setting}; expected gae with a critic, another without."
        )
    if algorithm.advantage in NEEDS_A_GROUP and smallest_n < 2:
        raise InputError(
            f"cell.rl.advantage = {algorithm.advantage} compares a rollout with others of its problem and sweep.n holds {smallest_n}: every "
            "advantage would be 0. Expected n of 2 or more, or an advantage without groups (cell.rl.loss=reinforce_pp, or ppo)."
        )
    if vars(algorithm.loss).get("CLIPS", True) is False and (rl.clip is not None or rl.clip_high is not None):
        raise InputError(
            f"cell.rl.loss = {rl.loss} never clips, and cell.rl.clip or cell.rl.clip_high is set; expected neither."
        )
    if rl.zero_variance_filter and smallest_n < 2:
        raise InputError(
            f"cell.rl.zero_variance_filter = {list(rl.zero_variance_filter)} and n = 1: a group of one never disagrees, so that "
            "these terms would have no rollout left. Expected n of 2 or more, or no filter."
        )
    if rl.n_train is not None and rl.n_train > smallest_n:
        raise InputError(
            f"cell.rl.n_train = {rl.n_train} rollouts of a group in the gradient and sweep.n holds {smallest_n}; expected n_train <= n (n "
            "counts the rollouts that estimate the baseline)."
        )
    if rl.reference == "none" and (rl.kl > 0 or rl.measure_kl):
        raise InputError(
            f"cell.rl.{f'kl = {rl.kl}' if rl.kl > 0 else 'measure_kl = true'} measures the policy against the base policy and "
            "cell.rl.reference = none keeps none in memory; expected reference=base, or kl=0 and measure_kl=false."
        )
    for term, coefficient in (("kl", rl.kl), ("entropy", rl.entropy)):
        if term in rl.zero_variance_filter and coefficient == 0:
            raise InputError(
                f"cell.rl.zero_variance_filter holds {term} and cell.rl.{term} = 0: there is no such term to filter. Set it, or leave "
                f"{term} out of the filter."
            )
