"""What the kernels of the trainer's attention know of the prompts that rows continue."""

from typing import NamedTuple

from jaxtyping import Array, Float, Int


class PrefixKV(NamedTuple):
    """Keys and values of each row's prompt, which is as long as `lengths` says; what is behind
    that is padding, and seen by no query."""

    keys: Float[Array, "b K p H"]
    values: Float[Array, "b K p H"]
    lengths: Int[Array, " b"]
