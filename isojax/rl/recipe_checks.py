"""What a recipe is refused for before any work: plug-ins that cannot be traced or return another
shape, and settings of `cell.rl` that contradict each other or the grid of (B_p, n)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from isojax.core.config import RLConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.core.plugins import Plugin
from isojax.rl.advantages import RewardedBatch
from isojax.rl.aggregations import CountedResponses
from isojax.rl.algorithm import Algorithm, loss_metrics, resolve_algorithm, trace_plugin

# The batch that plug-ins are traced with: all sizes differ, so that no wrong axis has the right
# one. Plug-ins are traced on its shapes alone; its values, all 1, are never computed with.
EXAMPLE_ROWS = (2, 5)  # the shape [S rows] of arrays by rollout: shards, and rows of a shard
EXAMPLE_T = 7  # tokens of a response
EXAMPLE_GROUPS = 3


def check_algorithm(rl: RLConfig, cells: Sequence[Cell]) -> None:
    """Raise InputError where settings of a recipe contradict each other, or the grid.

    rl: `cell.rl`. cells: every cell of the sweep, whose (B_p, n) are the grid.
    """
    algorithm = resolve_algorithm(rl)
    loss_metrics(algorithm.loss, rl.loss)
    check_plugins(algorithm)

    smallest_n = min(n for cell in cells for _, n in cell.pairs)
    check_critic(rl, algorithm)
    check_group_size(rl, algorithm, smallest_n)
    check_dynamic_sampling(rl, cells)
    check_n_train(rl, smallest_n)
    check_importance_sampling(rl)
    check_filtered_terms(rl)
    check_clip(rl, algorithm)


def check_plugins(algorithm: Algorithm) -> None:
    """Raise InputError unless advantage, aggregation and KL estimator return the right shapes.

    Each is traced once, on an example. An advantage sees the number n of rollouts as a traced
    array, as in training: Python code that needs its value, such as `reshape(-1, n)`, fails.
    """
    has_critic = algorithm.advantage.traits.needs_critic
    check_shape(
        "advantage",
        algorithm.advantage,
        "advantage(batch), where n is traced, -> f32 of the shape of batch.rewards, or a number "
        "for each token",
        lambda: algorithm.advantage(example_batch(has_critic)),
        EXAMPLE_ROWS,
        (*EXAMPLE_ROWS, EXAMPLE_T),
    )
    check_shape(
        "aggregation",
        algorithm.aggregation,
        "weight(responses) -> f32 of the shape of responses.lengths, or one number",
        lambda: algorithm.aggregation(example_responses()),
        EXAMPLE_ROWS,
        (),
    )
    # KL estimators see a microbatch of m responses, [m T], and no axis of shards.
    m, T = EXAMPLE_ROWS[1], EXAMPLE_T
    check_shape(
        "kl_estimator",
        algorithm.kl_estimator,
        "estimate(logps, base_logps) -> f32[m T], one number for each token",
        lambda: algorithm.kl_estimator(jnp.ones((m, T)), jnp.ones((m, T))),
        (m, T),
    )


def example_batch(has_critic: bool) -> RewardedBatch:
    """An example of what an advantage reads.

    It is called inside the function that is traced, so that n is a traced array. has_critic:
    whether the fields by token, which a critic computes, are there.
    """
    integers = jnp.ones(EXAMPLE_ROWS, jnp.int32)
    tokens = jnp.ones((*EXAMPLE_ROWS, EXAMPLE_T))
    return RewardedBatch(
        rewards=jnp.ones(EXAMPLE_ROWS),
        lengths=integers,
        groups=integers,
        valid=integers > 0,
        n=jnp.ones((), jnp.int32),
        num_groups=EXAMPLE_GROUPS,
        filters_zero_variance=True,
        token_advantages=tokens if has_critic else None,
        token_mask=tokens > 0 if has_critic else None,
    )


def example_responses() -> CountedResponses:
    """What an aggregation reads."""
    integers = jnp.ones(EXAMPLE_ROWS, jnp.int32)
    return CountedResponses(
        lengths=integers,
        tokens=jnp.ones(EXAMPLE_ROWS),
        groups=integers,
        counted=integers > 0,
        num_counted=jnp.ones(()),
        num_groups=EXAMPLE_GROUPS,
        response_length=EXAMPLE_T,
    )


def check_shape(
    setting: str, plugin: Plugin, expected: str, call: Callable[[], Any], *shapes: tuple[int, ...]
) -> None:
    """Raise InputError unless a call of a plug-in returns an array of one of these shapes.

    setting: "advantage", "aggregation" or "kl_estimator", the key of `cell.rl` that names the
    plug-in. expected: the plug-in's signature, for the message. call: calls it on an example.
    """
    setting = f"cell.rl.{setting} = {plugin.name}"
    output = trace_plugin(setting, expected, call)
    if isinstance(output, jax.ShapeDtypeStruct) and output.shape in shapes:
        return

    actual = f"a {type(output).__name__}"
    if hasattr(output, "shape"):
        actual = f"an array of shape {output.shape}"
    raise InputError(
        where=setting,
        found=(
            f"for rollouts of shape {EXAMPLE_ROWS}, {EXAMPLE_GROUPS} groups and {EXAMPLE_T} tokens "
            f"it returns {actual}"
        ),
        expected=f"{expected}: {' or '.join(map(str, shapes))}",
    )


def check_critic(rl: RLConfig, algorithm: Algorithm) -> None:
    """Raise InputError unless a critic is trained where the advantage reads it, and only there."""
    has_critic = rl.critic is not None
    advantage_agrees = algorithm.advantage.traits.needs_critic == has_critic
    loss_agrees = has_critic or not algorithm.loss.traits.needs_critic
    if not (advantage_agrees and loss_agrees):
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


def check_group_size(rl: RLConfig, algorithm: Algorithm, smallest_n: int) -> None:
    """Raise InputError where something compares rollouts of a problem, and a problem has one.

    smallest_n: the smallest n of the sweep.
    """
    if smallest_n >= 2:
        return
    if algorithm.advantage.traits.needs_group:
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
    if rl.zero_variance_filter:
        raise InputError(
            where="cell.rl.zero_variance_filter",
            found=(
                f"given {list(rl.zero_variance_filter)} and n = 1: a group of one never "
                "disagrees, so that these terms would have no rollout left"
            ),
            expected="n of 2 or more, or no filter",
        )


def check_n_train(rl: RLConfig, smallest_n: int) -> None:
    if rl.n_train is not None and rl.n_train > smallest_n:
        raise InputError(
            where="cell.rl.n_train",
            found=(
                f"given {rl.n_train} rollouts of a group in the gradient, "
                f"and sweep.n holds {smallest_n}"
            ),
            expected="n_train <= n (n counts the rollouts that estimate the baseline)",
        )


def check_importance_sampling(rl: RLConfig) -> None:
    """Raise InputError where `tis_low`, the lower bound of TIS, is set and cannot be used.

    TIS is truncated importance sampling. Its lower bound belongs to the mode `mask`, and is below
    the cap.
    """
    if rl.tis_low is None:
        return
    is_masking = rl.tis != "none" and rl.tis_mode == "mask"
    if not is_masking or rl.tis_low >= rl.tis_cap:
        raise InputError(
            where="cell.rl.tis_low",
            found=(
                f"given {rl.tis_low:g} with tis = {rl.tis}, tis_mode = {rl.tis_mode} and "
                f"tis_cap = {rl.tis_cap:g}"
            ),
            expected="tis=token or tis=sequence, tis_mode=mask, and tis_low below tis_cap",
        )


def check_filtered_terms(rl: RLConfig) -> None:
    """Raise InputError where the zero-variance filter names a term that the loss does not have."""
    for term, coefficient in (("kl", rl.kl), ("entropy", rl.entropy)):
        if term in rl.zero_variance_filter and coefficient == 0:
            raise InputError(
                where="cell.rl.zero_variance_filter",
                found=f"holds {term} and cell.rl.{term} = 0: there is no such term to filter",
                fix=f"Set it, or leave {term} out of the filter.",
            )


def check_clip(rl: RLConfig, algorithm: Algorithm) -> None:
    has_bound = rl.clip is not None or rl.clip_high is not None
    if has_bound and not algorithm.loss.traits.clips:
        raise InputError(
            where="cell.rl.loss",
            found=f"given {rl.loss}, which never clips",
            expected="neither cell.rl.clip nor cell.rl.clip_high",
        )


def check_dynamic_sampling(rl: RLConfig, cells: Sequence[Cell]) -> None:
    """Raise InputError where dynamic sampling contradicts the recipe or the grid.

    Dynamic sampling replaces groups whose rewards are all equal (rl/dynamic_sampling.py).
    """
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
        raise InputError(
            found=(
                f"{setting} and cell.rl.max_staleness = {rl.max_staleness}: batches of a sampler "
                "that runs ahead have begun before it is known what they replace"
            ),
            fix="Leave one of them out.",
        )
    if any(cell.n_max or cell.is_of_spend for cell in cells):
        raise InputError(
            found=(
                f"{setting} where n is chosen on the way, by gradient or by `isojax spend`: both "
                "read how many groups have equal rewards at B_p n rollouts an update"
            ),
            fix="Leave it out, or fix n by sweep.n.",
        )
