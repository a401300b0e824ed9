"""The MLP of two halves, one of which gates the other."""

from collections.abc import Callable

import jax
from flax import nnx
from jaxtyping import Array, Float

from isojax.core.config import ModelConfig
from isojax.models.layers.attention_layer import residual_gain
from isojax.models.layers.linear import Linear
from isojax.models.spec import Normal


class GatedMLP(nnx.Module):
    """down(activation(gate(x)) * up(x)): SwiGLU, or with gelu_tanh GEGLU (arXiv:2002.05202)."""

    def __init__(
        self,
        config: ModelConfig,
        activation: Callable[[Array], Array] = jax.nn.silu,
        *,
        bias: bool = False,
    ):
        embed, mlp = {"embed": config.width}, {"mlp": config.mlp}
        down_init = Normal(config.mlp, residual_gain(config))

        self.activation = activation
        self.gate = Linear("gate", embed, mlp, "mlp.gate_proj", bias=bias)
        self.up = Linear("up", embed, mlp, "mlp.up_proj", bias=bias)
        self.down = Linear("down", mlp, embed, "mlp.down_proj", bias=bias, init=down_init)

    def __call__(
        self, x: Float[Array, "b t D"], first_tokens: slice | None = None
    ) -> Float[Array, "b t D"]:
        """`first_tokens`: those that begin sequences, for `sum_in_blocks`."""
        gated = self.activation(self.gate(x)) * self.up(x)
        return self.down(gated, first_tokens)


def gelu_tanh(x: Array) -> Array:
    """GELU by tanh, as Gemma has it."""
    return jax.nn.gelu(x, approximate=True)
