"""The one decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU. Every family is a configuration of it.

Flax NNX defines a block and its sharding; from there on the parameters are a pytree of arrays, layers stacked on a leading axis:

    {"embed": [V, D], "blocks": {...: [L, ...]}, "norm": [D], "unembed": [D, V]}

and the functions below are pure; a tied model has no "unembed", embed's transpose serves. Three ways to run it share the block:
`prefill` (prompts, once a problem), `score` (responses given their prompts, for the trainer) and decoding.py's `step` (one token a slot,
for the sampler). What passes from prompt to response is a `Prefix`: keys and values, and the hidden state of the prompt's last token, from
which the first response token is drawn; so that no token of a prompt is computed more than once for a group. `continued` is `prefill` and
`score` in one pass, for the trainer's gradient where all responses are at hand.
"""

import copy
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax, shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Float, Int, PRNGKeyArray

from isojax.config import ModelConfig
from isojax.geometry import LAST_APART
from isojax.models.attention import attention_at, self_attention, split_attention
from isojax.models.parts import product, rows, used, whole
from isojax.models.rope import Turns, frequencies, rope, turned
from isojax.sharding import PROMPTS, padded, partition, splits_positions, splits_weights
from isojax.types import InputError

Params = dict[str, Any]

# What of a layer is kept for its gradient. What costs little is computed again in any case: norms, activations, a prompt's keys and values
# laid out for each response, weights in another shape. That takes a third of the memory, and no more time (docs/performance.md).
KEPT = {"none": jax.checkpoint_policies.dots_saveable, "layer": None}
SUMMED = 384  # inputs of a block, at most, in `summed_in_blocks`
Product = Callable[..., Array]  # of rows and a weight, as models/parts.py has them
KV = tuple[Array, Array]  # keys and values, each [L, rows, K, positions, H]


class Prefix(NamedTuple):
    """Prompts, as responses continue them: keys and values [L b K P H], and the hidden states of their last tokens [b D]."""

    keys: Array
    values: Array
    last: Array


def rms_norm(x: Float[Array, "*b D"], scale: Float[Array, " D"], eps: float) -> Float[Array, "*b D"]:
    """x / rms(x) * scale: rms in float32, the scale in x's own precision, as the published models do it."""
    y = x.astype(jnp.float32)
    return (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)).astype(x.dtype) * scale.reshape((1,) * (x.ndim - 1) + (-1,))


def param(value: Array, axes: tuple[str, ...]) -> nnx.Param:
    """A parameter that knows its logical axes; where it lies is decided later, by sharding.py."""
    return nnx.Param(value, out_sharding=axes, eager_sharding=False)


class Block(nnx.Module):
    """One layer: its weights, and the work before and after attention."""

    def __init__(self, config: ModelConfig, key: PRNGKeyArray):
        self.config = config
        width, head, scale = config.width, config.head_dim, (2 * config.layers) ** -0.5
        number = itertools.count()

        def weight(shape: tuple[int, ...], axes: tuple[str, ...], fan_in: int, gain: float = 1.0) -> nnx.Param:
            return param(jax.random.normal(jax.random.fold_in(key, next(number)), shape) * gain * fan_in**-0.5, axes)

        self.attention_norm = param(jnp.ones(width), ("embed",))
        self.query = weight((width, config.heads, head), ("embed", "heads", "head_dim"), width)
        self.key = weight((width, config.kv_heads, head), ("embed", "kv_heads", "head_dim"), width)
        self.value = weight((width, config.kv_heads, head), ("embed", "kv_heads", "head_dim"), width)
        self.out = weight((config.heads, head, width), ("heads", "head_dim", "embed"), config.heads * head, scale)
        self.mlp_norm = param(jnp.ones(width), ("embed",))
        self.gate = weight((width, config.mlp), ("embed", "mlp"), width)
        self.up = weight((width, config.mlp), ("embed", "mlp"), width)
        self.down = weight((config.mlp, width), ("mlp", "embed"), config.mlp, scale)
        if config.qkv_bias:
            self.query_bias = param(jnp.zeros((config.heads, head)), ("heads", "head_dim"))
            self.key_bias = param(jnp.zeros((config.kv_heads, head)), ("kv_heads", "head_dim"))
            self.value_bias = param(jnp.zeros((config.kv_heads, head)), ("kv_heads", "head_dim"))
        if config.qk_norm:
            self.query_norm = param(jnp.ones(head), ("head_dim",))
            self.key_norm = param(jnp.ones(head), ("head_dim",))

    def project(self, x: Float[Array, "b t D"], turns: Turns, product: Product = product) -> tuple[Array, Array, Array]:
        """Queries [b t N H], keys and values [b K t H] of the rows, turned by their positions."""
        config = self.config
        h = flat(rms_norm(x, whole(self.attention_norm[...], 0, config.width), config.norm_eps))
        q, k, v = (product(h, flat(w[...], 1)).reshape(*x.shape[:2], *w.shape[1:]) for w in (self.query, self.key, self.value))
        if config.qkv_bias:
            q, k, v = q + self.query_bias[...][None, None], k + self.key_bias[...][None, None], v + self.value_bias[...][None, None]
        if config.qk_norm:
            q, k = rms_norm(q, self.query_norm[...], config.norm_eps), rms_norm(k, self.key_norm[...], config.norm_eps)
        return rope(q, turns), rope(k, turns).swapaxes(1, 2), v.swapaxes(1, 2)

    def finish(
        self, x: Float[Array, "b t D"], attended: Float[Array, "b t N H"], product: Product = product, first: slice | None = None
    ) -> Float[Array, "b t D"]:
        """Output projection and MLP, both residual. `first`: which positions of t are sequences' first tokens, for `summed_in_blocks`."""
        width = self.config.width
        mixed = product(attended.reshape(-1, self.out.shape[0] * self.out.shape[1]), flat(self.out[...]), width)
        x = x + mixed.reshape(x.shape)
        h = flat(rms_norm(x, whole(self.mlp_norm[...], 0, width), self.config.norm_eps))
        gated = jax.nn.silu(product(h, self.gate[...])) * product(h, self.up[...])
        added = product(gated, self.down[...], width).reshape(x.shape)
        return x + (added if first is None else summed_in_blocks(added, gated.reshape(*x.shape[:2], -1), self.down[...], first))


def summed_in_blocks(
    added: Float[Array, "b t D"], gated: Float[Array, "b t F"], down: Float[Array, "F D"], first: slice
) -> Float[Array, "b t D"]:
    """`added` = gated @ down, of first tokens once more in blocks of `SUMMED` inputs, which rounds less; for the values alone.

    Some models (SmolLM2: 20,000) have activations at a sequence's first token as large as nowhere else, which cancel again: what one sum
    over all inputs rounds off there is most of what float32 costs a log-probability. Where devices share weights or positions it stays as
    it is, in the sampler as in the trainer.
    """
    inputs, outputs = down.shape
    if inputs <= SUMMED or added.dtype != jnp.float32 or splits_weights(jax.sharding.get_abstract_mesh()):
        return added
    blocks = next(count for count in range(-(-inputs // SUMMED), inputs + 1) if inputs % count == 0)
    x, w = gated[:, first], down.reshape(blocks, -1, outputs)
    again = jnp.einsum("btki,kio->btko", x.reshape(*x.shape[:2], blocks, -1), w).sum(2)
    return added.at[:, first].add(lax.stop_gradient(again - added[:, first]))


def flat(x: Array, axes: int = -1) -> Array:
    """x as a matrix: its first `axes` axes (by default all but the last) against the others.

    Every product with weights is one of matrices: of more axes, XLA:CPU transposes weights or activations, forwards or backwards.
    """
    return x.reshape(math.prod(x.shape[:axes]), -1)


class Options(NamedTuple):
    """How a decoder is computed: it decides rounding, speed and memory.

    compute: dtype of products and activations. cache: dtype of the sampler's keys and values. decode, score: which attention the sampler
    and the trainer use (models/attention.py). remat: layer, all of a layer is computed again for its gradient; none, products are not.
    """

    compute: str = "float32"
    cache: str = "float32"
    decode: str = "plain"
    score: str = "plain"
    remat: str = "none"


class Decoder:
    """A decoder's shape, and the functions of its parameters. Holds no arrays; hashable, so it may be a static argument."""

    options = Options()

    def __init__(self, config: ModelConfig, vocab: int):
        if config.heads % config.kv_heads or config.head_dim % 2:
            raise InputError(
                f"cell.model: heads={config.heads}, kv_heads={config.kv_heads}, head_dim={config.head_dim}; expected heads to be a "
                "multiple of kv_heads, and an even head_dim (rotary positions turn it in halves)."
            )
        stretch = config.rope_scaling
        if stretch is not None and stretch.high_freq_factor <= stretch.low_freq_factor:
            raise InputError(
                f"cell.model.rope_scaling: high_freq_factor={stretch.high_freq_factor}, low_freq_factor={stretch.low_freq_factor}; "
                "expected the high one above the low one, as 4 and 1."
            )
        self.config = config
        self.vocab = vocab
        abstract = nnx.eval_shape(lambda: Block(config, jax.random.key(0)))
        self._graph, self._abstract = nnx.split(abstract)
        self._shapes = jax.eval_shape(lambda: self.init(jax.random.key(0)))

    @property
    def last_apart(self) -> bool:
        """Whether a prompt's last layer is run apart from those below."""
        return self.config.layers in LAST_APART

    def computed(self, options: Options) -> "Decoder":
        """The same decoder, computed in another way."""
        other = copy.copy(self)
        other.options = options
        return other

    def cast(self, params: Params) -> Params:
        """The parameters in the precision that products are computed in."""
        return jax.tree.map(lambda w: w.astype(self.options.compute), params)

    def init(self, key: Array) -> Params:
        """Fresh float32 parameters."""
        config = self.config
        k_embed, k_blocks, k_out = jax.random.split(key, 3)
        blocks = jax.vmap(lambda k: nnx.to_pure_dict(nnx.split(Block(config, k))[1]))(jax.random.split(k_blocks, config.layers))
        params = {
            "embed": jax.random.normal(k_embed, (self.vocab, config.width)) * 0.5,
            "blocks": blocks,
            "norm": jnp.ones(config.width),
        }
        if config.tied:
            return params
        return {**params, "unembed": jax.random.normal(k_out, (config.width, self.vocab)) * config.width**-0.5}

    def logical_axes(self) -> Params:
        """The logical axes of each parameter, in the parameters' own tree."""
        names = {k: ("layer", *v.get_metadata()["out_sharding"]) for k, v in self._abstract.items()}
        axes = {"embed": ("vocab", "embed"), "blocks": names, "norm": ("embed",)}
        return axes if self.config.tied else {**axes, "unembed": ("embed", "vocab")}

    def shapes(self) -> Params:
        """ShapeDtypeStruct of each parameter."""
        return self._shapes

    def shardings(self, mesh: Mesh) -> Params:
        """NamedSharding of each parameter by sharding.py's table."""
        return jax.tree.map(
            lambda shape, axes: NamedSharding(mesh, partition(axes, shape.shape, mesh)),
            self.shapes(),
            self.logical_axes(),
            is_leaf=lambda x: isinstance(x, tuple),
        )

    def block(self, weights: Params) -> Block:
        """One layer with its weights."""
        state = jax.tree.map(lambda x: x, self._abstract)
        nnx.replace_by_pure_dict(state, used(weights))
        return nnx.merge(self._graph, state)

    def outputs_first(self, weights: Params) -> Params:
        """One layer's weights with each matrix [inputs outputs] held as its transpose, for `product_of_few`."""
        return {name: flat(w, inputs).T if (inputs := self._inputs(name)) else w for name, w in weights.items()}

    def inputs_first(self, held: Params) -> Params:
        """The inverse of `outputs_first`."""
        return {name: w.T.reshape(self._abstract[name].shape) if self._inputs(name) else w for name, w in held.items()}

    def outputs_first_specs(self, specs: Params) -> Params:
        """How what `outputs_first` makes lies, by how a layer's weights do: of axes in a row the first is the one that devices split."""
        return {name: Spec(spec[inputs], spec[0]) if (inputs := self._inputs(name)) else spec for name, spec in specs.items()}

    def _inputs(self, name: str) -> int:
        """How many axes of a layer's weight count inputs; 0 of what is no matrix."""
        _, *axes = self.logical_axes()["blocks"][name]
        return len(axes) - 1 if axes[-1] == "embed" else int(axes[0] == "embed")

    def turned(self, positions: Int[Array, "*b"]) -> Turns:
        """Cosines and sines of the rotary positions, each f32[*b H/2]."""
        return turned(positions, frequencies(self.config.head_dim, self.config.rope_base, self.config.rope_scaling))

    def _layers(
        self, params: Params, x: Array, turns: Turns, attention: Callable[..., Array], context: Any, first: slice | None = None
    ) -> tuple[Array, KV]:
        """Run all layers; `attention(q, k, v, context of the layer)`; `first` as in `Block.finish`. Returns the last hidden states and the
        new keys and values."""

        def layer(x: Array, scanned: tuple[Params, Any]) -> tuple[Array, KV]:
            weights, layer_context = scanned
            block = self.block(weights)
            q, k, v = block.project(x, turns)
            return block.finish(x, attention(q, k, v, layer_context), first=first), (k, v)

        rematerialised = jax.checkpoint(layer, prevent_cse=False, policy=KEPT[self.options.remat])
        return lax.scan(rematerialised, x, (params["blocks"], context))

    def prefill(self, params: Params, prompts: Int[Array, "b P"], lengths: Int[Array, " b"]) -> Prefix:
        """Prompts of these lengths as responses continue them; right padding needs no mask (attention is causal).

        Where a mesh splits positions, here in a shard_map that leaves them automatic, these are padded until its devices can share them
        evenly. Each has its part of every layer's rows, and gathers nothing but keys and values, of a layer at a time; what the devices add
        up is each prompt's last hidden state.
        """
        mesh = jax.sharding.get_abstract_mesh()
        last, positions = lengths - 1, jnp.arange(padded(prompts.shape[1], mesh))
        if not splits_positions(mesh):
            causal = partial(self_attention, self.options.score)
            return self._prefix(
                params, prompts, positions, last, causal, attention_at, lambda x: jnp.take_along_axis(x, last[:, None, None], 1), slice(1)
            )

        def own(params: Params, prompts: Array, last: Array, positions: Array) -> Prefix:
            def of_last(x: Array) -> Array:
                here = (positions[None] == last[:, None])[..., None]
                # In float32: the sum of bfloat16 over devices XLA:CPU cannot compile.
                return lax.psum(jnp.where(here, x, 0).sum(1, keepdims=True, dtype=jnp.float32), PROMPTS).astype(x.dtype)

            tokens = jnp.take(prompts, positions, axis=1, mode="clip")  # prompts are whole: to share them out moves more than they are
            causal = partial(split_attention, jnp.broadcast_to(positions[None], tokens.shape))
            return self._prefix(params, tokens, positions, last, causal, split_attention, of_last)

        specs, cache = (Spec(), Spec(), Spec(), Spec(PROMPTS)), Spec(None, None, None, PROMPTS)
        lies = Prefix(cache, cache, Spec())  # pyright: ignore[reportArgumentType]  # in arrays' places
        split = shard_map(own, in_specs=specs, out_specs=lies, axis_names={PROMPTS}, check_vma=False)
        return split(params, prompts, last, positions)

    def _prefix(
        self,
        params: Params,
        tokens: Int[Array, "b t"],
        positions: Int[Array, " t"],
        last: Int[Array, " b"],
        causal: Callable[..., Array],
        attend_at: Callable[..., Array],
        of_last: Callable[[Array], Array],
        first: slice | None = None,
    ) -> Prefix:
        """Prompts' tokens at these positions, whose attention is `causal(q, k, v)`; `of_last` takes [b t D] to [b 1 D] of the tokens at
        `last`, whose attention is `attend_at(their positions, q, k, v)`; `first`: as in `Block.finish`."""
        turns = self.turned(jnp.broadcast_to(positions[None], tokens.shape))
        scale = whole(params["norm"], 0, self.config.width)

        def attention(q: Array, k: Array, v: Array, _: None) -> Array:
            return causal(q, k, v)

        x = rows(params["embed"], tokens, self.config.width)
        if not self.last_apart:
            x, (keys, values) = self._layers(params, x, turns, attention, None, first)
            return Prefix(keys, values, rms_norm(of_last(x)[:, 0], scale, self.config.norm_eps))
        # Cut off dynamically: references, to which gradients are added, know no other slices.
        below = jax.tree.map(lambda w: lax.dynamic_slice_in_dim(w, 0, self.config.layers - 1), params["blocks"])
        top = self.block(jax.tree.map(lambda w: lax.dynamic_index_in_dim(w, self.config.layers - 1, keepdims=False), params["blocks"]))
        x, (keys, values) = self._layers({**params, "blocks": below}, x, turns, attention, None, first)
        _, k, v = top.project(x, turns)
        x, at = of_last(x), last[:, None]
        q, _, _ = top.project(x, self.turned(at))
        x = top.finish(x, attend_at(at, q, k, v))
        return Prefix(jnp.concatenate([keys, k[None]]), jnp.concatenate([values, v[None]]), rms_norm(x[:, 0], scale, self.config.norm_eps))

    def score(
        self,
        params: Params,
        tokens: Int[Array, "b T"],
        start: Int[Array, " b"],
        prefix: KV | None = None,
        row: Int[Array, " b"] | None = None,
    ) -> Float[Array, "b T D"]:
        """Hidden states of tokens whose first position is `start`; without a prefix, of whole sequences.

        `prefix` holds keys and values of some prompts [L, g, K, P, H]; `row` says which of them each row continues.
        """
        turns = self.turned(start[:, None] + jnp.arange(tokens.shape[1])[None])

        def attention(q: Array, k: Array, v: Array, context: KV | None) -> Array:
            if context is None:
                return self_attention(self.options.score, q, k, v)
            keys, values = used(context)
            return self_attention(self.options.score, q, k, v, (keys[row], values[row], start))

        x = rows(params["embed"], tokens, self.config.width)
        scale = whole(params["norm"], 0, self.config.width)
        states, _ = self._layers(params, x, turns, attention, prefix, slice(1) if prefix is None else None)
        return rms_norm(states, scale, self.config.norm_eps)

    def continued(
        self, params: Params, prompts: Int[Array, "g P"], lengths: Int[Array, " g"], tokens: Int[Array, "m t"], row: Int[Array, " m"]
    ) -> tuple[Float[Array, "g D"], Float[Array, "m t D"]]:
        """What `prefill` and `score` find, in one pass over the layers: hidden states of prompts' last tokens, and of tokens that continue
        the prompt that `row` says. Products with weights are of all of them, attention is of either."""
        (g, P), (m, t), of_prompts = prompts.shape, tokens.shape, prompts.size
        start = lengths[row]

        def joined(prompts: Array, tokens: Array) -> Array:
            return jnp.concatenate([x.reshape(-1, *x.shape[2:]) for x in (prompts, tokens)])[None]

        def parted(x: Float[Array, "1 r *d"]) -> tuple[Float[Array, "g P *d"], Float[Array, "m t *d"]]:
            return x[0, :of_prompts].reshape(g, P, *x.shape[2:]), x[0, of_prompts:].reshape(m, t, *x.shape[2:])

        def attention(q: Array, k: Array, v: Array, _: None) -> Array:
            queries, own_queries = parted(q)
            (keys, own_keys), (values, own_values) = ((x.swapaxes(1, 2) for x in parted(kv.swapaxes(1, 2))) for kv in (k, v))
            mixed = self_attention(self.options.score, queries, keys, values)
            return joined(mixed, self_attention(self.options.score, own_queries, own_keys, own_values, (keys[row], values[row], start)))

        positions = joined(jnp.broadcast_to(jnp.arange(P)[None], (g, P)), start[:, None] + jnp.arange(t)[None])
        x = rows(params["embed"], joined(prompts, tokens), self.config.width)
        prompt_states, own = parted(self._layers(params, x, self.turned(positions), attention, None, slice(0, of_prompts, P))[0])
        last = jnp.take_along_axis(prompt_states, (lengths - 1)[:, None, None], 1)[:, 0]
        scale = whole(params["norm"], 0, self.config.width)
        return rms_norm(last, scale, self.config.norm_eps), rms_norm(own, scale, self.config.norm_eps)

    def logits(self, params: Params, hidden: Float[Array, "*b D"]) -> Float[Array, "*b V"]:
        """Float32 logits."""
        matrix, axis = self.unembedding(params)
        return jnp.einsum("...d,vd->...v" if axis == 0 else "...d,dv->...v", hidden, matrix, preferred_element_type=jnp.float32)

    def unembedding(self, params: Params) -> tuple[Array, int]:
        """The matrix that makes logits of hidden states, [V D] or [D V], and which of its axes counts the vocabulary."""
        if self.config.tied:
            return whole(params["embed"], 1, self.config.width), 0
        return whole(params["unembed"], 0, self.config.width), 1
