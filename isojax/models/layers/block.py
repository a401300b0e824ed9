"""A transformer's layer: attention and MLP, each added to the residual stream.

Where it is differentiated, each device over `tensor` has a part of the tokens' hidden states, normalizes it, and gets
those of all tokens for a product (`split_tokens`): sequence parallelism, as in Megatron-LM (arXiv:2205.05198)."""

from typing import Any

from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from isojax.core.config import ModelConfig
from isojax.distributed.sharding import split_tokens
from isojax.models.layers.attention_layer import Attend, Attention
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.norm import RMSNorm
from isojax.models.layers.rope import CosSin

MLP_INPUT = "mlp_input"  # the name of the hidden states after attention, which a checkpoint may keep


class Block(nnx.Module):
    """One layer, with a norm before attention and one before the MLP."""

    def __init__(self, attention_norm: RMSNorm, attention: Attention, mlp_norm: RMSNorm, mlp: GatedMLP):
        self.attention_norm, self.attention = attention_norm, attention
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def __call__(
        self, x: Float[Array, "b t D"], cos_sin: CosSin, attend: Attend, first_tokens: slice | None = None
    ) -> tuple[Float[Array, "b t D"], Any]:
        """The hidden states after the layer, and what `attend` returns beside the mixed values. `first_tokens`: those
        that begin sequences, for `sum_in_blocks`."""
        normed = split_tokens(self.attention_norm(x), False)
        attention_out, kept = self.attention(normed, cos_sin, attend)
        x = checkpoint_name(x + split_tokens(attention_out, True), MLP_INPUT)

        normed = split_tokens(self.mlp_norm(x), False)
        return x + split_tokens(self.mlp(normed, first_tokens), True), kept


def pre_norm_block(config: ModelConfig, attention: Attention, mlp: GatedMLP) -> Block:
    """Llama's layer, with the names of its norms."""
    embed = {"embed": config.width}
    return Block(
        RMSNorm("attention_norm", embed, "input_layernorm", config.norm_eps),
        attention,
        RMSNorm("mlp_norm", embed, "post_attention_layernorm", config.norm_eps),
        mlp,
    )
