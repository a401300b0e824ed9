"""The one decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU. Every family is a configuration of it.

Flax NNX defines a block and its sharding; from there on the parameters are a pytree of arrays, layers stacked on a
leading axis:

    {"embed": [V, D], "blocks": {...: [L, ...]}, "norm": [D], "unembed": [D, V]}

and the functions below are pure; a tied model has no "unembed", embed's transpose serves. Three ways to run it share
the block:
`prefill` (prompts, once a problem), `score` (responses given their prompts, for the trainer) and decode.py's `step`
(one token a slot, for the sampler). What passes from prompt to response is a `Prefix`: keys and values, and the hidden
state of the prompt's last token, from which the first response token is drawn; so that no token of a prompt is computed
more than once for a group. `continued` is `prefill` and
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

from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.core.shapes import SEPARATE_LAST_LAYER_COUNTS
from isojax.distributed.sharding import (
    PROMPT_AXIS,
    padded_positions,
    partition_spec,
    positions_are_split,
    weights_are_split,
)
from isojax.models.attention import attention_at_positions, self_attention, sequence_sharded_attention
from isojax.models.fsdp import all_gather_weight, embedding_lookup, matmul, resolve_anchors
from isojax.models.rope import CosSin, apply_rope, rope_frequencies, rotary_cos_sin

Params = dict[str, Any]

# What of a layer is kept for its gradient. What costs little is computed again in any case: norms, activations, a
# prompt's keys and values
# laid out for each response, weights in another shape. That takes a third of the memory, and no more time
# (docs/performance.md).
REMAT_POLICIES = {"none": jax.checkpoint_policies.dots_saveable, "layer": None}
MAX_SUMMED_INPUTS = 384  # inputs of a block, at most, in `summed_in_blocks`
Matmul = Callable[..., Array]  # of rows and a weight, as models/fsdp.py has them
KV = tuple[Array, Array]  # keys and values, each [L, rows, K, positions, H]


class PrefixCache(NamedTuple):
    """Prompts, as responses continue them: keys and values [L b K P H], and the hidden states of their last tokens [b
    D].
    """

    keys: Array
    values: Array
    last_hidden: Array


def rms_norm(x: Float[Array, "*b D"], scale: Float[Array, " D"], eps: float) -> Float[Array, "*b D"]:
    """x / rms(x) * scale: rms in float32, the scale in x's own precision, as the published models do it."""
    y = x.astype(jnp.float32)
    return (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)).astype(x.dtype) * scale.reshape(
        (1,) * (x.ndim - 1) + (-1,)
    )


def logical_param(value: Array, axes: tuple[str, ...]) -> nnx.Param:
    """A parameter that knows its logical axes; where it lies is decided later, by distributed/sharding.py."""
    return nnx.Param(value, out_sharding=axes, eager_sharding=False)


class Block(nnx.Module):
    """One layer: its weights, and the work before and after attention."""

    def __init__(self, config: ModelConfig, key: PRNGKeyArray):
        self.config = config
        width, head_dim, residual_scale = config.width, config.head_dim, (2 * config.layers) ** -0.5
        key_index = itertools.count()

        def weight(shape: tuple[int, ...], axes: tuple[str, ...], fan_in: int, gain: float = 1.0) -> nnx.Param:
            return logical_param(
                jax.random.normal(jax.random.fold_in(key, next(key_index)), shape) * gain * fan_in**-0.5, axes
            )

        self.attention_norm = logical_param(jnp.ones(width), ("embed",))
        self.query = weight((width, config.heads, head_dim), ("embed", "heads", "head_dim"), width)
        self.key = weight((width, config.kv_heads, head_dim), ("embed", "kv_heads", "head_dim"), width)
        self.value = weight((width, config.kv_heads, head_dim), ("embed", "kv_heads", "head_dim"), width)
        self.out = weight(
            (config.heads, head_dim, width), ("heads", "head_dim", "embed"), config.heads * head_dim, residual_scale
        )
        self.mlp_norm = logical_param(jnp.ones(width), ("embed",))
        self.gate = weight((width, config.mlp), ("embed", "mlp"), width)
        self.up = weight((width, config.mlp), ("embed", "mlp"), width)
        self.down = weight((config.mlp, width), ("mlp", "embed"), config.mlp, residual_scale)
        if config.qkv_bias:
            self.query_bias = logical_param(jnp.zeros((config.heads, head_dim)), ("heads", "head_dim"))
            self.key_bias = logical_param(jnp.zeros((config.kv_heads, head_dim)), ("kv_heads", "head_dim"))
            self.value_bias = logical_param(jnp.zeros((config.kv_heads, head_dim)), ("kv_heads", "head_dim"))
        if config.qk_norm:
            self.query_norm = logical_param(jnp.ones(head_dim), ("head_dim",))
            self.key_norm = logical_param(jnp.ones(head_dim), ("head_dim",))

    def project_qkv(
        self, x: Float[Array, "b t D"], cos_sin: CosSin, matmul: Matmul = matmul
    ) -> tuple[Array, Array, Array]:
        """Queries [b t N H], keys and values [b K t H] of the rows, turned by their positions."""
        config = self.config
        normed = as_matrix(rms_norm(x, all_gather_weight(self.attention_norm[...], 0, config.width), config.norm_eps))
        q, k, v = (
            matmul(normed, as_matrix(w[...], 1)).reshape(*x.shape[:2], *w.shape[1:])
            for w in (self.query, self.key, self.value)
        )
        if config.qkv_bias:
            q, k, v = (
                q + self.query_bias[...][None, None],
                k + self.key_bias[...][None, None],
                v + self.value_bias[...][None, None],
            )
        if config.qk_norm:
            q, k = rms_norm(q, self.query_norm[...], config.norm_eps), rms_norm(k, self.key_norm[...], config.norm_eps)
        return apply_rope(q, cos_sin), apply_rope(k, cos_sin).swapaxes(1, 2), v.swapaxes(1, 2)

    def attention_output_and_mlp(
        self,
        x: Float[Array, "b t D"],
        attention_out: Float[Array, "b t N H"],
        matmul: Matmul = matmul,
        first_tokens: slice | None = None,
    ) -> Float[Array, "b t D"]:
        """Output projection and MLP, both residual. `first`: which positions of t are sequences' first tokens, for
        `summed_in_blocks`.
        """
        width = self.config.width
        projected = matmul(
            attention_out.reshape(-1, self.out.shape[0] * self.out.shape[1]), as_matrix(self.out[...]), width
        )
        x = x + projected.reshape(x.shape)
        normed = as_matrix(rms_norm(x, all_gather_weight(self.mlp_norm[...], 0, width), self.config.norm_eps))
        gated = jax.nn.silu(matmul(normed, self.gate[...])) * matmul(normed, self.up[...])
        mlp_out = matmul(gated, self.down[...], width).reshape(x.shape)
        return x + (
            mlp_out
            if first_tokens is None
            else sum_in_blocks(mlp_out, gated.reshape(*x.shape[:2], -1), self.down[...], first_tokens)
        )


def sum_in_blocks(
    mlp_out: Float[Array, "b t D"], gated: Float[Array, "b t F"], down: Float[Array, "F D"], first_tokens: slice
) -> Float[Array, "b t D"]:
    """`added` = gated @ down, of first tokens once more in blocks of `SUMMED` inputs, which rounds less; for the values
    alone.

    Some models (SmolLM2: 20,000) have activations at a sequence's first token as large as nowhere else, which cancel
    again: what one sum over all inputs rounds off there is most of what float32 costs a log-probability. Where devices
    share weights or positions it stays as it is, in the sampler as in the trainer.
    """
    inputs, outputs = down.shape
    if (
        inputs <= MAX_SUMMED_INPUTS
        or mlp_out.dtype != jnp.float32
        or weights_are_split(jax.sharding.get_abstract_mesh())
    ):
        return mlp_out
    block_count = next(count for count in range(-(-inputs // MAX_SUMMED_INPUTS), inputs + 1) if inputs % count == 0)
    x, w = gated[:, first_tokens], down.reshape(block_count, -1, outputs)
    blocked_sum = jnp.einsum("btki,kio->btko", x.reshape(*x.shape[:2], block_count, -1), w).sum(2)
    return mlp_out.at[:, first_tokens].add(lax.stop_gradient(blocked_sum - mlp_out[:, first_tokens]))


def as_matrix(x: Array, leading_axes: int = -1) -> Array:
    """x as a matrix: its first `axes` axes (by default all but the last) against the others.

    Every product with weights is one of matrices: of more axes, XLA:CPU transposes weights or activations, forwards or
    backwards.
    """
    return x.reshape(math.prod(x.shape[:leading_axes]), -1)


class ComputeOptions(NamedTuple):
    """How a decoder is computed: it decides rounding, speed and memory.

    compute: dtype of products and activations. cache: dtype of the sampler's keys and values. decode, score: which
    attention the sampler and the trainer use (models/attention.py). remat: layer, all of a layer is computed again for
    its gradient; none, products are not.
    """

    compute_dtype: str = "float32"
    cache_dtype: str = "float32"
    decode_attention: str = "plain"
    forward_attention: str = "plain"
    remat: str = "none"


class Decoder:
    """A decoder's shape, and the functions of its parameters. Holds no arrays; hashable, so it may be a static
    argument.
    """

    options = ComputeOptions()

    def __init__(self, config: ModelConfig, vocab: int):
        if config.heads % config.kv_heads or config.head_dim % 2:
            raise InputError(
                f"cell.model: heads={config.heads}, kv_heads={config.kv_heads}, head_dim={config.head_dim}; expected heads to be a "
                "multiple of kv_heads, and an even head_dim (rotary positions turn it in halves)."
            )
        scaling = config.rope_scaling
        if scaling is not None and scaling.high_freq_factor <= scaling.low_freq_factor:
            raise InputError(
                f"cell.model.rope_scaling: high_freq_factor={scaling.high_freq_factor}, low_freq_factor={scaling.low_freq_factor}; "
                "expected the high one above the low one, as 4 and 1."
            )
        self.config = config
        self.vocab = vocab
        abstract_block = nnx.eval_shape(lambda: Block(config, jax.random.key(0)))
        self._graph, self._abstract_block = nnx.split(abstract_block)
        self._shapes = jax.eval_shape(lambda: self.init(jax.random.key(0)))

    @property
    def separate_last_layer(self) -> bool:
        """Whether a prompt's last layer is run apart from those below."""
        return self.config.layers in SEPARATE_LAST_LAYER_COUNTS

    def with_options(self, options: ComputeOptions) -> "Decoder":
        """The same decoder, computed in another way."""
        decoder = copy.copy(self)
        decoder.options = options
        return decoder

    def cast_params(self, params: Params) -> Params:
        """The parameters in the precision that products are computed in."""
        return jax.tree.map(lambda w: w.astype(self.options.compute_dtype), params)

    def init(self, key: Array) -> Params:
        """Fresh float32 parameters."""
        config = self.config
        k_embed, k_blocks, k_out = jax.random.split(key, 3)
        blocks = jax.vmap(lambda k: nnx.to_pure_dict(nnx.split(Block(config, k))[1]))(
            jax.random.split(k_blocks, config.layers)
        )
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
        names = {k: ("layer", *v.get_metadata()["out_sharding"]) for k, v in self._abstract_block.items()}
        axes = {"embed": ("vocab", "embed"), "blocks": names, "norm": ("embed",)}
        return axes if self.config.tied else {**axes, "unembed": ("embed", "vocab")}

    def shapes(self) -> Params:
        """ShapeDtypeStruct of each parameter."""
        return self._shapes

    def shardings(self, mesh: Mesh) -> Params:
        """NamedSharding of each parameter by distributed/sharding.py's table."""
        return jax.tree.map(
            lambda shape, axes: NamedSharding(mesh, partition_spec(axes, shape.shape, mesh)),
            self.shapes(),
            self.logical_axes(),
            is_leaf=lambda x: isinstance(x, tuple),
        )

    def bind_block(self, weights: Params) -> Block:
        """One layer with its weights."""
        state = jax.tree.map(lambda x: x, self._abstract_block)
        nnx.replace_by_pure_dict(state, resolve_anchors(weights))
        return nnx.merge(self._graph, state)

    def to_output_major(self, weights: Params) -> Params:
        """One layer's weights with each matrix [inputs outputs] held as its transpose, for `product_of_few`."""
        return {
            name: as_matrix(w, inputs).T if (inputs := self._input_axes(name)) else w for name, w in weights.items()
        }

    def from_output_major(self, output_major: Params) -> Params:
        """The inverse of `outputs_first`."""
        return {
            name: w.T.reshape(self._abstract_block[name].shape) if self._input_axes(name) else w
            for name, w in output_major.items()
        }

    def output_major_specs(self, specs: Params) -> Params:
        """How what `outputs_first` makes lies, by how a layer's weights do: of axes in a row the first is the one that
        devices split.
        """
        return {
            name: Spec(spec[inputs], spec[0]) if (inputs := self._input_axes(name)) else spec
            for name, spec in specs.items()
        }

    def _input_axes(self, name: str) -> int:
        """How many axes of a layer's weight count inputs; 0 of what is no matrix."""
        _, *axes = self.logical_axes()["blocks"][name]
        return len(axes) - 1 if axes[-1] == "embed" else int(axes[0] == "embed")

    def cos_sin(self, positions: Int[Array, "*b"]) -> CosSin:
        """Cosines and sines of the rotary positions, each f32[*b H/2]."""
        return rotary_cos_sin(
            positions, rope_frequencies(self.config.head_dim, self.config.rope_base, self.config.rope_scaling)
        )

    def _run_layers(
        self,
        params: Params,
        x: Array,
        cos_sin: CosSin,
        attention: Callable[..., Array],
        layer_inputs: Any,
        first_tokens: slice | None = None,
    ) -> tuple[Array, KV]:
        """Run all layers; `attention(q, k, v, context of the layer)`; `first` as in `Block.finish`. Returns the last
        hidden states and the new keys and values."""

        def run_layer(x: Array, scanned_inputs: tuple[Params, Any]) -> tuple[Array, KV]:
            weights, layer_input = scanned_inputs
            block = self.bind_block(weights)
            q, k, v = block.project_qkv(x, cos_sin)
            return block.attention_output_and_mlp(x, attention(q, k, v, layer_input), first_tokens=first_tokens), (k, v)

        rematerialised = jax.checkpoint(run_layer, prevent_cse=False, policy=REMAT_POLICIES[self.options.remat])
        return lax.scan(rematerialised, x, (params["blocks"], layer_inputs))

    def prefill(self, params: Params, prompts: Int[Array, "b P"], lengths: Int[Array, " b"]) -> PrefixCache:
        """Prompts of these lengths as responses continue them; right padding needs no mask (attention is causal).

        Where a mesh splits positions, here in a shard_map that leaves them automatic, these are padded until its
        devices can share them evenly. Each has its part of every layer's rows, and gathers nothing but keys and values,
        of a layer at a time; what the devices add up is each prompt's last hidden state.
        """
        mesh = jax.sharding.get_abstract_mesh()
        last_positions, positions = lengths - 1, jnp.arange(padded_positions(prompts.shape[1], mesh))
        if not positions_are_split(mesh):
            causal_attention = partial(self_attention, self.options.forward_attention)
            return self._prefill_tokens(
                params,
                prompts,
                positions,
                last_positions,
                causal_attention,
                attention_at_positions,
                lambda x: jnp.take_along_axis(x, last_positions[:, None, None], 1),
                slice(1),
            )

        def prefill_shard(params: Params, prompts: Array, last_positions: Array, positions: Array) -> PrefixCache:
            def take_last(x: Array) -> Array:
                is_last = (positions[None] == last_positions[:, None])[..., None]
                # In float32: the sum of bfloat16 over devices XLA:CPU cannot compile.
                return lax.psum(jnp.where(is_last, x, 0).sum(1, keepdims=True, dtype=jnp.float32), PROMPT_AXIS).astype(
                    x.dtype
                )

            tokens = jnp.take(
                prompts, positions, axis=1, mode="clip"
            )  # prompts are whole: to share them out moves more than they are
            causal_attention = partial(sequence_sharded_attention, jnp.broadcast_to(positions[None], tokens.shape))
            return self._prefill_tokens(
                params, tokens, positions, last_positions, causal_attention, sequence_sharded_attention, take_last
            )

        in_specs, kv_spec = (Spec(), Spec(), Spec(), Spec(PROMPT_AXIS)), Spec(None, None, None, PROMPT_AXIS)
        out_specs = PrefixCache(kv_spec, kv_spec, Spec())  # pyright: ignore[reportArgumentType]  # in arrays' places
        sharded_prefill = shard_map(
            prefill_shard, in_specs=in_specs, out_specs=out_specs, axis_names={PROMPT_AXIS}, check_vma=False
        )
        return sharded_prefill(params, prompts, last_positions, positions)

    def _prefill_tokens(
        self,
        params: Params,
        tokens: Int[Array, "b t"],
        positions: Int[Array, " t"],
        last_positions: Int[Array, " b"],
        causal_attention: Callable[..., Array],
        attention_at_positions: Callable[..., Array],
        take_last: Callable[[Array], Array],
        first_tokens: slice | None = None,
    ) -> PrefixCache:
        """Prompts' tokens at these positions, whose attention is `causal(q, k, v)`; `of_last` takes [b t D] to [b 1 D]
        of the tokens at
        `last`, whose attention is `attend_at(their positions, q, k, v)`; `first`: as in `Block.finish`."""
        cos_sin = self.cos_sin(jnp.broadcast_to(positions[None], tokens.shape))
        norm_scale = all_gather_weight(params["norm"], 0, self.config.width)

        def attention(q: Array, k: Array, v: Array, _: None) -> Array:
            return causal_attention(q, k, v)

        x = embedding_lookup(params["embed"], tokens, self.config.width)
        if not self.separate_last_layer:
            x, (keys, values) = self._run_layers(params, x, cos_sin, attention, None, first_tokens)
            return PrefixCache(keys, values, rms_norm(take_last(x)[:, 0], norm_scale, self.config.norm_eps))
        # Cut off dynamically: references, to which gradients are added, know no other slices.
        lower_blocks = jax.tree.map(lambda w: lax.dynamic_slice_in_dim(w, 0, self.config.layers - 1), params["blocks"])
        last_block = self.bind_block(
            jax.tree.map(
                lambda w: lax.dynamic_index_in_dim(w, self.config.layers - 1, keepdims=False), params["blocks"]
            )
        )
        x, (keys, values) = self._run_layers(
            {**params, "blocks": lower_blocks}, x, cos_sin, attention, None, first_tokens
        )
        _, k, v = last_block.project_qkv(x, cos_sin)
        x, last_position = take_last(x), last_positions[:, None]
        q, _, _ = last_block.project_qkv(x, self.cos_sin(last_position))
        x = last_block.attention_output_and_mlp(x, attention_at_positions(last_position, q, k, v))
        return PrefixCache(
            jnp.concatenate([keys, k[None]]),
            jnp.concatenate([values, v[None]]),
            rms_norm(x[:, 0], norm_scale, self.config.norm_eps),
        )

    def forward(
        self,
        params: Params,
        tokens: Int[Array, "b T"],
        start_position: Int[Array, " b"],
        prefix: KV | None = None,
        prompt_index: Int[Array, " b"] | None = None,
    ) -> Float[Array, "b T D"]:
        """Hidden states of tokens whose first position is `start`; without a prefix, of whole sequences.

        `prefix` holds keys and values of some prompts [L, g, K, P, H]; `row` says which of them each row continues.
        """
        cos_sin = self.cos_sin(start_position[:, None] + jnp.arange(tokens.shape[1])[None])

        def attention(q: Array, k: Array, v: Array, prefix_kv: KV | None) -> Array:
            if prefix_kv is None:
                return self_attention(self.options.forward_attention, q, k, v)
            keys, values = resolve_anchors(prefix_kv)
            return self_attention(
                self.options.forward_attention, q, k, v, (keys[prompt_index], values[prompt_index], start_position)
            )

        x = embedding_lookup(params["embed"], tokens, self.config.width)
        norm_scale = all_gather_weight(params["norm"], 0, self.config.width)
        hidden, _ = self._run_layers(params, x, cos_sin, attention, prefix, slice(1) if prefix is None else None)
        return rms_norm(hidden, norm_scale, self.config.norm_eps)

    def forward_prompts_and_responses(
        self,
        params: Params,
        prompts: Int[Array, "g P"],
        lengths: Int[Array, " g"],
        tokens: Int[Array, "m t"],
        prompt_index: Int[Array, " m"],
    ) -> tuple[Float[Array, "g D"], Float[Array, "m t D"]]:
        """What `prefill` and `score` find, in one pass over the layers: hidden states of prompts' last tokens, and of
        tokens that continue the prompt that `row` says. Products with weights are of all of them, attention is of
        either."""
        (g, P), (m, t), prompt_token_count = prompts.shape, tokens.shape, prompts.size
        start_position = lengths[prompt_index]

        def concatenate(prompts: Array, tokens: Array) -> Array:
            return jnp.concatenate([x.reshape(-1, *x.shape[2:]) for x in (prompts, tokens)])[None]

        def split_prompts_responses(x: Float[Array, "1 r *d"]) -> tuple[Float[Array, "g P *d"], Float[Array, "m t *d"]]:
            return x[0, :prompt_token_count].reshape(g, P, *x.shape[2:]), x[0, prompt_token_count:].reshape(
                m, t, *x.shape[2:]
            )

        def attention(q: Array, k: Array, v: Array, _: None) -> Array:
            prompt_queries, response_queries = split_prompts_responses(q)
            (prompt_keys, response_keys), (prompt_values, response_values) = (
                (x.swapaxes(1, 2) for x in split_prompts_responses(kv.swapaxes(1, 2))) for kv in (k, v)
            )
            prompt_out = self_attention(self.options.forward_attention, prompt_queries, prompt_keys, prompt_values)
            return concatenate(
                prompt_out,
                self_attention(
                    self.options.forward_attention,
                    response_queries,
                    response_keys,
                    response_values,
                    (prompt_keys[prompt_index], prompt_values[prompt_index], start_position),
                ),
            )

        positions = concatenate(
            jnp.broadcast_to(jnp.arange(P)[None], (g, P)), start_position[:, None] + jnp.arange(t)[None]
        )
        x = embedding_lookup(params["embed"], concatenate(prompts, tokens), self.config.width)
        prompt_states, response_states = split_prompts_responses(
            self._run_layers(params, x, self.cos_sin(positions), attention, None, slice(0, prompt_token_count, P))[0]
        )
        last_states = jnp.take_along_axis(prompt_states, (lengths - 1)[:, None, None], 1)[:, 0]
        norm_scale = all_gather_weight(params["norm"], 0, self.config.width)
        return rms_norm(last_states, norm_scale, self.config.norm_eps), rms_norm(
            response_states, norm_scale, self.config.norm_eps
        )

    def logits(self, params: Params, hidden: Float[Array, "*b D"]) -> Float[Array, "*b V"]:
        """Float32 logits."""
        matrix, axis = self.unembedding_matrix(params)
        return jnp.einsum(
            "...d,vd->...v" if axis == 0 else "...d,dv->...v", hidden, matrix, preferred_element_type=jnp.float32
        )

    def unembedding_matrix(self, params: Params) -> tuple[Array, int]:
        """The matrix that makes logits of hidden states, [V D] or [D V], and which of its axes counts the
        vocabulary.
        """
        if self.config.tied:
            return all_gather_weight(params["embed"], 1, self.config.width), 0
        return all_gather_weight(params["unembed"], 0, self.config.width), 1
