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
    """function(params, tokens, token_positions, *inputs), of each device over `sequence` with its
    part of the tokens, which are padded so that devices share them evenly."""
    mesh = jax.sharding.get_abstract_mesh()
    positions = jnp.arange(padded_positions(tokens.shape[1], mesh))

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
