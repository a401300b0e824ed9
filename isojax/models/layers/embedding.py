"""The table of tokens' vectors."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from isojax.models.fsdp import embedding_lookup
from isojax.models.spec import Normal, Spec, param, spec_of

INITIAL_SD = 0.5


class Embedding(nnx.Module):
    """Rows of a table [V D], times `scale`. A tied policy makes its logits of the same table."""

    def __init__(self, vocab: int, width: int, tensor: str, scale: float = 1.0):
        spec = Spec(
            name="embed",
            inputs=(("vocab", vocab),),
            outputs=(("embed", width),),
            init=Normal(fan_in=1, gain=INITIAL_SD),
            tensor=f"{tensor}.weight",
        )
        self.table = param(spec)
        self.scale = scale

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t D"]:
        x = embedding_lookup(self.table[...], tokens, spec_of(self.table).shape[1])
        if self.scale == 1:
            return x
        return x * jnp.asarray(self.scale, x.dtype)  # rounded too, as models with it were trained
