"""The MLP without a gate."""

from collections.abc import Callable

from flax import nnx
from jaxtyping import Array, Float

from isojax.core.config import ModelConfig
from isojax.models.layers.attention_layer import residual_gain
from isojax.models.layers.linear import Linear
from isojax.models.spec import Normal


class MLP(nnx.Module):
    """down(activation(up(x))), as in StarCoder2 and Phi-2."""

    def __init__(
        self, config: ModelConfig, activation: Callable[[Array], Array], *, bias: bool = False
    ):
        embed, mlp = {"embed": config.width}, {"mlp": config.mlp}
        down_init = Normal(config.mlp, residual_gain(config))

        self.activation = activation
        self.up = Linear("up", embed, mlp, "mlp.up_proj", bias=bias)
        self.down = Linear("down", mlp, embed, "mlp.down_proj", bias=bias, init=down_init)

    def __call__(
        self, x: Float[Array, "b t D"], first_tokens: slice | None = None
    ) -> Float[Array, "b t D"]:
        """`first_tokens`: those that begin sequences, for `sum_in_blocks`."""
        return self.down(self.activation(self.up(x)), first_tokens)
