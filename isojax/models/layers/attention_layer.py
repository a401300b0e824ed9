"""What attention projects, norms and rotates, and how far it sees. How it is computed, and over
which keys, is the caller's (models/attention.py)."""

from collections.abc import Callable, Mapping
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from isojax.core.config import ModelConfig
from isojax.distributed.sharding import devices_of_a_layer, keep_heads_whole
from isojax.models.layers.linear import Linear
from isojax.models.layers.rope import CosSin, Rope
from isojax.models.spec import Normal

# From queries [b t N H], keys and values [b K t H], and the window (None: all positions before) to
# the mixed values [b t N H], and what the caller keeps. Scores are divided by sqrt(H).
Attend = Callable[[Array, Array, Array, int | None], tuple[Array, Any]]
Rotations = Mapping[Rope, CosSin]  # of the tokens' positions, by table


class Attention(nnx.Module):
    """Grouped-query attention (arXiv:2305.13245) with rotary positions."""

    def __init__(
        self,
        config: ModelConfig,
        rope: Rope | None,
        *,
        window: int | None = None,
        scale: float | None = None,
        bias: bool = False,
        out_bias: bool = False,
        query_norm: Callable[[Array], Array] | None = None,
        key_norm: Callable[[Array], Array] | None = None,
    ):
        """Describe the projections, norms and positions of a layer's attention.

        `config`: its width D, heads N, kv_heads K, head_dim H and layers are read; K divides N.
        `rope`: the table of rotary positions; None: without positions. `window`: a token sees
        itself and window - 1 positions before it; None: all. `scale`: of scores; None: 1 /
        sqrt(head_dim). `bias`: whether queries, keys and values have one; `out_bias`: whether the
        output projection does. `query_norm`, `key_norm`: from [b t N H] or [b t K H] to the same
        shape, before the rotation; both or neither, as one alone is not applied."""
        D, N, K, H = config.width, config.heads, config.kv_heads, config.head_dim
        embed = {"embed": D}
        queries = {"heads": N, "head_dim": H}
        keys = {"kv_heads": K, "head_dim": H}
        out_init = Normal(N * H, residual_gain(config))

        # The last argument is the name in a layer of a published checkpoint, without ".weight".
        self.query = Linear("query", embed, queries, "self_attn.q_proj", bias=bias)
        self.key = Linear("key", embed, keys, "self_attn.k_proj", bias=bias)
        self.value = Linear("value", embed, keys, "self_attn.v_proj", bias=bias)
        self.out = Linear("out", queries, embed, "self_attn.o_proj", bias=out_bias, init=out_init)
        self.query_norm = query_norm
        self.key_norm = key_norm

        self.rope = rope
        self.window = window
        # What attention is computed by divides scores by sqrt(H); the rest of the scale is the
        # queries'.
        self.query_factor = 1.0 if scale is None else scale * H**0.5

    def __call__(
        self, x: Float[Array, "b t D"], rotations: Rotations, attend: Attend
    ) -> tuple[Float[Array, "b t D"], Any]:
        """Return the output projection of the mixed values, and what `attend` returns with them.

        `x`: the normalised hidden states. `rotations`: cosines and sines of the tokens' positions
        by table, in which `rope` must be. `attend`: mixes values, as above; it is called exactly
        once."""
        q, k, v = whole_where_undivided(self.query(x), self.key(x), self.value(x))
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)

        if self.rope is not None:
            cos_sin = rotations[self.rope]
            q, k = self.rope.rotate(q, cos_sin), self.rope.rotate(k, cos_sin)
        if self.query_factor != 1:
            q = q * self.query_factor

        # queries stay [b t N H], keys and values become [b K t H]
        mixed, from_attend = attend(q, k.swapaxes(1, 2), v.swapaxes(1, 2), self.window)
        return self.out(mixed), from_attend


def whole_where_undivided(
    q: Float[Array, "b t N H"], k: Float[Array, "b t K H"], v: Float[Array, "b t K H"]
) -> tuple[Array, Array, Array]:
    """Return queries, keys and values of which each device has whole heads.

    A device has its share of them where the number of devices divides them, else all heads that
    belong to its share of the keys. On one device they come back as they are."""
    num_heads = q.shape[2]
    num_kv_heads = k.shape[2]
    devices = devices_of_a_layer()
    if devices == 1:  # also where a plan looks at one device's part of a layer (describe_sizes.py)
        return q, k, v

    splits_kv_heads = num_kv_heads % devices == 0
    splits_heads = num_heads % devices == 0 and queries_align(
        num_heads // devices, num_heads // num_kv_heads
    )
    # With True as the second argument, a device gets all heads of its share of the keys; with
    # False, it has its share of the heads.
    return (
        keep_heads_whole(q, not splits_heads, num_kv_heads),
        keep_heads_whole(k, not splits_kv_heads, num_kv_heads),
        keep_heads_whole(v, not splits_kv_heads, num_kv_heads),
    )


def queries_align(heads_of_device: int, heads_of_key: int) -> bool:
    """Say whether each device's queries are those of whole keys, or of a part of one key.

    With 3 queries on a device and 2 for each key they are not."""
    return heads_of_device % heads_of_key == 0 or heads_of_key % heads_of_device == 0


def residual_gain(config: ModelConfig) -> float:
    """Of matrices whose outputs are added to the residual stream, two in each layer."""
    return (2 * config.layers) ** -0.5
