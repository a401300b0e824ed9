"""What attention projects, norms and rotates. How it is computed, and over which keys, is the caller's
(models/attention.py)."""

from collections.abc import Callable
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from isojax.core.config import ModelConfig
from isojax.models.layers.linear import Linear
from isojax.models.layers.norm import RMSNorm
from isojax.models.layers.rope import CosSin, apply_rope
from isojax.models.spec import Normal

# From queries [b t N H], keys and values [b K t H] to the mixed values [b t N H], and what the caller keeps.
Attend = Callable[[Array, Array, Array], tuple[Array, Any]]


class Attention(nnx.Module):
    """Grouped-query attention (arXiv:2305.13245) with rotary positions."""

    def __init__(self, config: ModelConfig, *, bias: bool = False, head_norm: bool = False):
        """`bias`: of queries, keys and values. `head_norm`: whether each head's queries and keys are normalised before
        they are rotated."""
        D, N, K, H = config.width, config.heads, config.kv_heads, config.head_dim
        embed, queries, keys = {"embed": D}, {"heads": N, "head_dim": H}, {"kv_heads": K, "head_dim": H}

        self.query = Linear("query", embed, queries, "self_attn.q_proj", bias=bias)
        self.key = Linear("key", embed, keys, "self_attn.k_proj", bias=bias)
        self.value = Linear("value", embed, keys, "self_attn.v_proj", bias=bias)
        self.out = Linear("out", queries, embed, "self_attn.o_proj", init=Normal(N * H, residual_gain(config)))

        def norm(name: str, tensor: str) -> RMSNorm | None:
            return RMSNorm(name, {"head_dim": H}, tensor, config.norm_eps) if head_norm else None

        self.query_norm = norm("query_norm", "self_attn.q_norm")
        self.key_norm = norm("key_norm", "self_attn.k_norm")

    def __call__(self, x: Float[Array, "b t D"], cos_sin: CosSin, attend: Attend) -> tuple[Float[Array, "b t D"], Any]:
        """The output projection, and what `attend` returns beside the mixed values."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)

        q, k = apply_rope(q, cos_sin), apply_rope(k, cos_sin)
        mixed, kept = attend(q, k.swapaxes(1, 2), v.swapaxes(1, 2))
        return self.out(mixed), kept


def residual_gain(config: ModelConfig) -> float:
    """Of matrices whose outputs are added to the residual stream, two in each layer."""
    return (2 * config.layers) ** -0.5
