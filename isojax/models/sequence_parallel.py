"""Prefill where a mesh splits positions of prompts over `sequence`: devices gather keys and values layer by layer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from isojax.distributed.sharding import PROMPT_AXIS, padded_positions
from isojax.models.attention import RowHeads, RowQueries, attend, shard_over_heads


def prefill_over_devices(
    prefill_tokens: Callable[..., tuple[Array, Array, Array]],
    params: Any,
    prompts: Int[Array, "b P"],
    lengths: Int[Array, " b"],
) -> tuple[Float[Array, "L b K C H"], Float[Array, "L b K C H"], Float[Array, "b D"]]:
    """(keys, values, last hidden states) of prompts, padded from P to C positions so that devices share them evenly.

    `prefill_tokens(params, tokens, positions, causal_attention, take_last)` runs the layers on a device's positions."""
    positions = jnp.arange(padded_positions(prompts.shape[1], jax.sharding.get_abstract_mesh()))

    def prefill_shard(params: Any, prompts: Array, last_positions: Array, positions: Array) -> tuple[Array, ...]:
        # Every device has whole prompts: splitting them would move more than they are.
        tokens = jnp.take(prompts, positions, axis=1, mode="clip")
        token_positions = jnp.broadcast_to(positions[None], tokens.shape)

        def take_last(x: Float[Array, "b t D"]) -> Float[Array, "b D"]:
            is_last = (positions[None] == last_positions[:, None])[..., None]
            # In float32, because XLA:CPU cannot compile the sum of bfloat16 over devices.
            last = lax.psum(jnp.where(is_last, x, 0).sum(1, keepdims=True, dtype=jnp.float32), PROMPT_AXIS)
            return last.astype(x.dtype)[:, 0]

        causal_attention = partial(sequence_sharded_attention, token_positions)
        return prefill_tokens(params, tokens, token_positions, causal_attention, take_last)

    kv_spec = P(None, None, None, PROMPT_AXIS)
    sharded_prefill: Callable[..., Any] = shard_map(
        prefill_shard,
        in_specs=(P(), P(), P(), P(PROMPT_AXIS)),
        out_specs=(kv_spec, kv_spec, P()),
        axis_names={PROMPT_AXIS},
        check_vma=False,
    )
    return sharded_prefill(params, prompts, lengths - 1, positions)


def sequence_sharded_attention(positions: Int[Array, "b t"], q: RowQueries, k: RowHeads, v: RowHeads) -> RowQueries:
    """Causal attention of a device's queries, at these positions, to the keys of all devices."""

    def attention(positions: Array, q: Array, k: Array, v: Array) -> tuple[Array]:
        keys, values = (lax.all_gather(x, PROMPT_AXIS, axis=2, tiled=True) for x in (k, v))
        return (attend(q, [(keys, values, jnp.arange(keys.shape[2])[None, None] <= positions[..., None])]),)

    return shard_over_heads(attention, k.shape[1], (None, 2, 1, 1), (2,))(positions, q, k, v)[0]
