"""Passes over whole sequences on a mesh that splits their positions over `sequence`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import shard_map
from jax.sharding import PartitionSpec
from jaxtyping import Array, Int

from isojax.distributed.sharding import PROMPT_AXIS, padded_positions


def map_over_positions(
    function: Callable[..., Any],
    out_specs: Any,
    params: Any,
    tokens: Int[Array, "b t"],
    *inputs: Array,
) -> Any:
    """Run `function` on each device over `sequence`, with its part of the sequences' tokens.

    It is called as function(params, tokens, token_positions, *inputs), with tokens and their
    positions [b t'], where t' is t, padded so that devices share it evenly, over the number of
    devices. `inputs`: more arrays, of which each device gets the whole. `out_specs`: PartitionSpecs
    of what it returns, as shard_map takes them. Padding repeats a sequence's last token, at
    positions from t on."""
    mesh = jax.sharding.get_abstract_mesh()
    positions = jnp.arange(padded_positions(tokens.shape[1], mesh))

    # `positions`: this device's part of 0 .. t padded; the other arguments are whole.
    def of_device(positions: Array, params: Any, tokens: Array, *inputs: Array) -> Any:
        # Every device has whole sequences: splitting them would move more than they are.
        device_tokens = jnp.take(tokens, positions, axis=1, mode="clip")
        token_positions = jnp.broadcast_to(positions[None], device_tokens.shape)
        return function(params, device_tokens, token_positions, *inputs)

    whole = PartitionSpec()
    in_specs = (PartitionSpec(PROMPT_AXIS), whole, whole, *[whole] * len(inputs))
    mapped: Callable[..., Any] = shard_map(
        of_device, in_specs=in_specs, out_specs=out_specs, axis_names={PROMPT_AXIS}, check_vma=False
    )
    return mapped(positions, params, tokens, *inputs)
