"""A transformer's layer: attention and MLP, each added to the residual stream.

Where it is differentiated, each device over `tensor` has a part of the tokens' hidden states,
normalizes it, and gets those of all tokens for a product (`split_tokens`): sequence parallelism, as
in Megatron-LM (arXiv:2205.05198)."""

from collections.abc import Callable
from typing import Any

from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from isojax.core.config import ModelConfig
from isojax.distributed.sharding import split_tokens
from isojax.models.layers.attention_layer import Attend, Rotations
from isojax.models.layers.norm import RMSNorm

AttentionModule = Callable[[Array, Rotations, Attend], tuple[Array, Any]]
MLPModule = Callable[[Array, slice | None], Array]
NormModule = Callable[[Array], Array]

# the name of the hidden states after attention, which a checkpoint may keep
MLP_INPUT = "mlp_input"


class Block(nnx.Module):
    """One layer, with norms before attention and the MLP, after them, or both."""

    def __init__(
        self,
        attention: AttentionModule,
        mlp: MLPModule,
        *,
        attention_norm: NormModule | None = None,
        attention_out_norm: NormModule | None = None,
        mlp_norm: NormModule | None = None,
        mlp_out_norm: NormModule | None = None,
    ):
        """Put a layer together; modules have the calls of `Attention`, `GatedMLP` and `RMSNorm`.

        `attention_norm` and `mlp_norm` are of the hidden states that attention and the MLP read,
        the `out` norms of what is added to the hidden states after them; None: there is none."""
        self.attention_norm = attention_norm
        self.attention = attention
        self.attention_out_norm = attention_out_norm
        self.mlp_norm, self.mlp, self.mlp_out_norm = mlp_norm, mlp, mlp_out_norm

    def __call__(
        self,
        x: Float[Array, "b t D"],
        rotations: Rotations,
        attend: Attend,
        first_tokens: slice | None = None,
    ) -> tuple[Float[Array, "b t D"], Any]:
        """Return the hidden states after the layer, and what else `attend` returns.

        `rotations`, `attend`: as `Attention` takes them. `first_tokens`: the tokens on axis 1 that
        begin sequences, such as slice(1), for `sum_in_blocks`; None: none is corrected."""
        attention_input = sublayer_input(self.attention_norm, x)
        attention_out, from_attend = self.attention(attention_input, rotations, attend)
        x = checkpoint_name(add_output(x, self.attention_out_norm, attention_out), MLP_INPUT)

        mlp_out = self.mlp(sublayer_input(self.mlp_norm, x), first_tokens)
        return add_output(x, self.mlp_out_norm, mlp_out), from_attend


class ParallelBlock(Block):
    """One layer whose attention and MLP both read the hidden states before it, as in Cohere's and
    GPT-NeoX. Without an `mlp_norm`, both read what `attention_norm` makes of them."""

    def __call__(
        self,
        x: Float[Array, "b t D"],
        rotations: Rotations,
        attend: Attend,
        first_tokens: slice | None = None,
    ) -> tuple[Float[Array, "b t D"], Any]:
        """Return the hidden states after the layer, and what else `attend` returns.

        Arguments are those of `Block`. Attention and MLP both read x, and both outputs are added to
        it."""
        attention_input = sublayer_input(self.attention_norm, x)
        mlp_input = attention_input if self.mlp_norm is None else sublayer_input(self.mlp_norm, x)

        attention_out, from_attend = self.attention(attention_input, rotations, attend)
        mlp_out = self.mlp(mlp_input, first_tokens)

        x = add_output(x, self.attention_out_norm, attention_out)
        return add_output(x, self.mlp_out_norm, mlp_out), from_attend


def sublayer_input(norm: NormModule | None, x: Float[Array, "b t D"]) -> Float[Array, "b t D"]:
    """Return the normalised hidden states of all tokens, [b t D].

    Each device over `tensor` may have had a part of the tokens."""
    # False: from a part of the tokens to all of them, for a product
    return split_tokens(x if norm is None else norm(x), False)


def add_output(
    x: Float[Array, "b t D"], norm: NormModule | None, output: Float[Array, "b t D"]
) -> Float[Array, "b t D"]:
    """The hidden states with what attention or the MLP made of all tokens."""
    # True: from all tokens to the device's part
    output = split_tokens(output, True)
    return x + (output if norm is None else norm(output))


def pre_norm_block(config: ModelConfig, attention: AttentionModule, mlp: MLPModule) -> Block:
    """Llama's layer, with the names of its norms."""
    embed = {"embed": config.width}
    return Block(
        attention,
        mlp,
        attention_norm=RMSNorm("attention_norm", embed, "input_layernorm", config.norm_eps),
        mlp_norm=RMSNorm("mlp_norm", embed, "post_attention_layernorm", config.norm_eps),
    )
