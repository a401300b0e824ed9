"""The MLP of two halves, one of which gates the other."""

import jax
from flax import nnx
from jaxtyping import Array, Float

from isojax.core.config import ModelConfig
from isojax.models.layers.attention_layer import residual_gain
from isojax.models.layers.linear import Linear
from isojax.models.spec import Normal


class GatedMLP(nnx.Module):
    """down(silu(gate(x)) * up(x)), as in SwiGLU (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig):
        embed, mlp = {"embed": config.width}, {"mlp": config.mlp}

        self.gate = Linear("gate", embed, mlp, "mlp.gate_proj")
        self.up = Linear("up", embed, mlp, "mlp.up_proj")
        self.down = Linear("down", mlp, embed, "mlp.down_proj", init=Normal(config.mlp, residual_gain(config)))

    def __call__(self, x: Float[Array, "b t D"], first_tokens: slice | None = None) -> Float[Array, "b t D"]:
        """`first_tokens`: those that begin sequences, for `sum_in_blocks`."""
        gated = jax.nn.silu(self.gate(x)) * self.up(x)
        return self.down(gated, first_tokens)
