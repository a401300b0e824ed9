"""The transformer: a decoder of RMSNorm, rotary positions, grouped-query attention and SwiGLU. A family configures it.

`Decoder` stacks L of `Block` (layers/block.py) and holds no arrays: its functions take the parameters,
{"embed": [V D], "blocks": {name: [L ...]}, "norm": [D], "unembed": [D V], unless the model is tied}.
Dimension letters, as in distributed/sharding.py: b rows (sequences), t tokens of a row, g prompts, P prompt positions,
L layers, V vocabulary, D width, K key/value heads, H head dimension.
"""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.distributed import sharding
from isojax.distributed.sharding import PROMPT_AXIS
from isojax.models.attention import self_attention, sequence_sharded_attention
from isojax.models.fsdp import all_gather_weight, embedding_lookup, resolve_anchors
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import Block, pre_norm_block
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.norm import rms_norm
from isojax.models.layers.rope import CosSin, rope_frequencies
from isojax.models.lora import add_adapters, is_adapter, policy_params, split_adapters
from isojax.models.remat import remat_policy
from isojax.models.spec import Constant, LayerDescription, Normal, Spec, rename_tensor, specs_of, stack_spec

Params = dict[str, Any]
# Names in a published checkpoint. A layer's tensors have its number, and their layers' own names after it.
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LAYER_PREFIX = "model.layers.{layer}."
NO_NAMES: Mapping[str, str] = {}
KV = tuple[Array, Array]  # keys and values, each [L b K positions H]


class PrefixCache(NamedTuple):
    """Prompts as responses continue them: keys and values [L b K P H], hidden states of their last tokens [b D]."""

    keys: Array
    values: Array
    last_hidden: Array


class ComputeOptions(NamedTuple):
    """How a decoder is computed, which decides rounding, speed and memory."""

    compute_dtype: str = "float32"  # of products and activations
    cache_dtype: str = "float32"  # of the sampler's keys and values
    decode_attention: str = "plain"  # the sampler's (models/attention.py)
    forward_attention: str = "plain"  # the trainer's
    remat: str = "none"  # "layer" computes all of a layer again for its gradient, "none" keeps the products


class Decoder:
    """A decoder's configuration, and the functions of its parameters. Hashable: it may be a static argument."""

    options = ComputeOptions()

    def __init__(self, config: ModelConfig, vocab: int, renamed: Mapping[str, str] = NO_NAMES):
        """`renamed`: parts of tensors' names here -> what a family's checkpoints have in their place."""
        check_model(config)
        self.config, self.vocab, self._renamed = config, vocab, renamed
        attention = Attention(config, bias=config.qkv_bias, head_norm=config.qk_norm)
        block = pre_norm_block(config, attention, GatedMLP(config))
        layer_specs = list(specs_of(block))
        if config.lora is not None:
            block, adapter_specs = add_adapters(block, config.lora)
            layer_specs += adapter_specs
        self.layer = LayerDescription(block)
        self._layer_specs = tuple(layer_specs)  # in the order in which their values are drawn
        # The base policy's: the same without adapters.
        self.base = Decoder(config.model_copy(update={"lora": None}), vocab, renamed) if config.lora else self

    def with_options(self, options: ComputeOptions) -> "Decoder":
        decoder = copy.copy(self)
        decoder.options = options
        decoder.base = decoder if self.base is self else self.base.with_options(options)
        return decoder

    def specs(self) -> Params:
        """What there is to know of each parameter, in the parameters' own tree."""
        config, width, vocab = self.config, ("embed", self.config.width), ("vocab", self.vocab)
        embed = Spec("embed", (vocab,), (width,), Normal(1, 0.5), EMBEDDING)
        norm = Spec("norm", (), (width,), Constant(1.0), FINAL_NORM)
        unembed = Spec("unembed", (width,), (vocab,), Normal(config.width), HEAD, transposed=True)

        outer_specs = [embed, norm] if config.tied else [embed, norm, unembed]
        layer_specs = [stack_spec(spec, config.layers, LAYER_PREFIX) for spec in self._layer_specs]
        return {
            **{spec.name: rename_tensor(spec, self._renamed) for spec in outer_specs},
            "blocks": {spec.name: rename_tensor(spec, self._renamed) for spec in layer_specs},
        }

    def init(self, key: Array) -> Params:
        specs = self.specs()
        embed_key, blocks_key, unembed_key = jax.random.split(key, 3)
        layer_keys = jax.random.split(blocks_key, self.config.layers)
        keys = {"embed": embed_key, "norm": key, "unembed": unembed_key}
        params = {name: specs[name].init(keys[name], specs[name].shape) for name in specs if name != "blocks"}
        return {**params, "blocks": jax.vmap(self._init_layer)(layer_keys)}

    def _init_layer(self, key: Array) -> Params:
        """Each drawn parameter has a key of its own, by its number among these."""
        values, num_drawn = {}, 0
        for spec in self._layer_specs:
            values[spec.name] = spec.init(jax.random.fold_in(key, num_drawn), spec.shape)
            num_drawn += spec.init.is_drawn
        return values

    def logical_axes(self) -> Params:
        """The logical axes of each parameter, in the parameters' own tree."""
        return jax.tree.map(lambda spec: spec.axes, self.specs())

    def shapes(self) -> Params:
        """ShapeDtypeStructs of the parameters: float32, but what adapters leave as it is as products are computed."""
        shapes = self._float32_shapes()
        return shapes if self.config.lora is None else policy_params(split_adapters(shapes)[0], self.frozen_shapes())

    def frozen_shapes(self) -> Params:
        """ShapeDtypeStructs of the base policy's parameters where nothing trains them: as products are computed."""
        return jax.eval_shape(self.cast_params, self.base._float32_shapes())

    def _float32_shapes(self) -> Params:
        return jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, jnp.float32), self.specs())

    def trained(self, params: Params) -> Params:
        """Of the parameters, or of a tree like theirs, those that training changes."""
        return params if self.config.lora is None else split_adapters(params)[0]

    def shardings(self, mesh: Mesh) -> Params:
        """NamedSharding of each parameter by distributed/sharding.py's table."""
        return sharding.param_shardings(self.shapes(), self.logical_axes(), mesh)

    def cast_params(self, params: Params) -> Params:
        """The parameters in the precision that products are computed in."""
        return jax.tree.map(lambda w: w.astype(self.options.compute_dtype), params)

    def bind_block(self, weights: Params) -> Block:
        """A layer with these weights, which adapters are a part of or not."""
        layer = self.layer if any(map(is_adapter, weights)) else self.base.layer
        return layer.bind(resolve_anchors(weights))

    def cos_sin(self, positions: Int[Array, "*b"]) -> CosSin:
        """Cosines and sines of the rotary positions, each f32[*b H/2]; once for all layers and heads."""
        config = self.config
        frequencies = rope_frequencies(config.head_dim, config.rope_base, config.rope_scaling)
        angle = positions[..., None].astype(jnp.float32) * frequencies.reshape((1,) * positions.ndim + (-1,))
        return jnp.cos(angle), jnp.sin(angle)

    def run_layers(
        self,
        params: Params,
        tokens: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        attention: Callable[..., Array],
        layer_inputs: Any = None,
        first_tokens: slice | None = None,
    ) -> tuple[Float[Array, "b t D"], KV]:
        """Hidden states before the final norm, and the new keys and values. `attention(q, k, v, layer_input)` gets one
        of `layer_inputs` for each layer; `first_tokens`: as in `Block`."""
        cos_sin = self.cos_sin(positions)

        def run_layer(x: Array, scanned: tuple[Params, Any]) -> tuple[Array, KV]:
            weights, layer_input = scanned

            def attend(q: Array, k: Array, v: Array) -> tuple[Array, KV]:
                return attention(q, k, v, layer_input), (k, v)

            return self.bind_block(weights)(x, cos_sin, attend, first_tokens)

        x = sharding.split_tokens(embedding_lookup(params["embed"], tokens, self.config.width), True)
        policy = remat_policy(self.options.remat, self.config.lora.rank if self.config.lora else None)
        rematerialised = jax.checkpoint(run_layer, prevent_cse=False, policy=policy)
        if not isinstance(params["blocks"], list):
            x, kv = lax.scan(rematerialised, x, (params["blocks"], layer_inputs))
            return sharding.split_tokens(x, False), kv
        assert layer_inputs is None, "a sampler's unrolled layers prefill whole prompts"
        new_kv = []
        for weights in params["blocks"]:
            x, kv = run_layer(x, (weights, None))
            new_kv.append(kv)
        return x, jax.tree.map(lambda *kv: jnp.stack(kv), *new_kv)

    def final_norm(self, params: Params, x: Float[Array, "*b D"]) -> Float[Array, "*b D"]:
        return rms_norm(x, all_gather_weight(params["norm"], 0, self.config.width), self.config.norm_eps)

    def prefill(self, params: Params, prompts: Int[Array, "b P"], lengths: Int[Array, " b"]) -> PrefixCache:
        """Prompts of these lengths as responses continue them. Right padding needs no mask: attention is causal."""
        if sharding.positions_are_split(jax.sharding.get_abstract_mesh()):
            return self._prefill_over_devices(params, prompts, lengths)

        def take_last(x: Array) -> Array:
            return jnp.take_along_axis(x, (lengths - 1)[:, None, None], 1)[:, 0]

        positions = jnp.broadcast_to(jnp.arange(prompts.shape[1])[None], prompts.shape)
        causal_attention = partial(self_attention, self.options.forward_attention)
        return self._prefill_tokens(params, prompts, positions, causal_attention, take_last, slice(1))

    def _prefill_over_devices(
        self, params: Params, prompts: Int[Array, "b P"], lengths: Int[Array, " b"]
    ) -> PrefixCache:
        """Where a mesh splits positions over `sequence`: devices gather keys and values layer by layer. Prompts are
        padded from P to C positions, so that devices share them evenly."""
        positions = jnp.arange(sharding.padded_positions(prompts.shape[1], jax.sharding.get_abstract_mesh()))

        def prefill_shard(params: Params, prompts: Array, last_positions: Array, positions: Array) -> PrefixCache:
            # Every device has whole prompts: splitting them would move more than they are.
            tokens = jnp.take(prompts, positions, axis=1, mode="clip")
            token_positions = jnp.broadcast_to(positions[None], tokens.shape)

            def take_last(x: Float[Array, "b t D"]) -> Float[Array, "b D"]:
                is_last = (positions[None] == last_positions[:, None])[..., None]
                # In float32, because XLA:CPU cannot compile the sum of bfloat16 over devices.
                last = lax.psum(jnp.where(is_last, x, 0).sum(1, keepdims=True, dtype=jnp.float32), PROMPT_AXIS)
                return last.astype(x.dtype)[:, 0]

            causal_attention = partial(sequence_sharded_attention, token_positions)
            return self._prefill_tokens(params, tokens, token_positions, causal_attention, take_last)

        whole: Any = PartitionSpec()
        kv_spec: Any = PartitionSpec(None, None, None, PROMPT_AXIS)
        sharded_prefill: Callable[..., PrefixCache] = shard_map(
            prefill_shard,
            in_specs=(whole, whole, whole, PartitionSpec(PROMPT_AXIS)),
            out_specs=PrefixCache(kv_spec, kv_spec, whole),
            axis_names={PROMPT_AXIS},
            check_vma=False,
        )
        return sharded_prefill(params, prompts, lengths - 1, positions)

    def _prefill_tokens(
        self,
        params: Params,
        tokens: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        causal_attention: Callable[..., Array],
        take_last: Callable[[Array], Array],
        first_tokens: slice | None = None,
    ) -> PrefixCache:
        """Prompts through the layers. `take_last`: from [b t D] to [b D] of the last tokens."""
        x, (keys, values) = self.run_layers(
            params, tokens, positions, lambda q, k, v, _: causal_attention(q, k, v), first_tokens=first_tokens
        )
        return PrefixCache(keys, values, self.final_norm(params, take_last(x)))

    def forward(
        self,
        params: Params,
        tokens: Int[Array, "b t"],
        start_position: Int[Array, " b"],
        prefix: KV | None = None,
        prompt_index: Int[Array, " b"] | None = None,
    ) -> Float[Array, "b t D"]:
        """Hidden states of tokens from `start_position` on. `prefix`: keys and values of g prompts [L g K P H], of
        which row i continues the `prompt_index[i]`-th; without one, tokens are whole sequences."""

        def attention(q: Array, k: Array, v: Array, prefix_kv: KV | None) -> Array:
            if prefix_kv is None:
                return self_attention(self.options.forward_attention, q, k, v)
            keys, values = resolve_anchors(prefix_kv)
            continued = keys[prompt_index], values[prompt_index], start_position
            return self_attention(self.options.forward_attention, q, k, v, continued)

        positions = start_position[:, None] + jnp.arange(tokens.shape[1])[None]
        first_tokens = slice(1) if prefix is None else None
        x, _ = self.run_layers(params, tokens, positions, attention, prefix, first_tokens)
        return self.final_norm(params, x)

    def forward_prompts_and_responses(
        self,
        params: Params,
        prompts: Int[Array, "g P"],
        lengths: Int[Array, " g"],
        tokens: Int[Array, "m t"],
        prompt_index: Int[Array, " m"],
    ) -> tuple[Float[Array, "g D"], Float[Array, "m t D"]]:
        """`prefill`'s last hidden states of prompts and `forward`'s of responses to prompts `prompt_index`, up to
        rounding, in one pass: each weight is gathered and read, and its gradient added up, once for both."""
        (g, P), (m, t), num_prompt_tokens = prompts.shape, tokens.shape, prompts.size
        start_position = lengths[prompt_index]

        def concatenate(of_prompts: Array, of_responses: Array) -> Array:
            return jnp.concatenate([x.reshape(-1, *x.shape[2:]) for x in (of_prompts, of_responses)])[None]

        def split(x: Float[Array, "1 r *d"]) -> tuple[Float[Array, "g P *d"], Float[Array, "m t *d"]]:
            of_prompts, of_responses = x[0, :num_prompt_tokens], x[0, num_prompt_tokens:]
            return of_prompts.reshape(g, P, *x.shape[2:]), of_responses.reshape(m, t, *x.shape[2:])

        def split_heads(kv: Float[Array, "1 K r H"]) -> tuple[Float[Array, "g K P H"], Float[Array, "m K t H"]]:
            of_prompts, of_responses = split(kv.swapaxes(1, 2))
            return of_prompts.swapaxes(1, 2), of_responses.swapaxes(1, 2)

        def attention(q: Array, k: Array, v: Array, _: None) -> Array:
            prompt_queries, response_queries = split(q)
            (prompt_keys, response_keys), (prompt_values, response_values) = split_heads(k), split_heads(v)
            implementation = self.options.forward_attention
            prefix = prompt_keys[prompt_index], prompt_values[prompt_index], start_position
            return concatenate(
                self_attention(implementation, prompt_queries, prompt_keys, prompt_values),
                self_attention(implementation, response_queries, response_keys, response_values, prefix),
            )

        prompt_positions = jnp.broadcast_to(jnp.arange(P)[None], (g, P))
        positions = concatenate(prompt_positions, start_position[:, None] + jnp.arange(t)[None])
        first_tokens = slice(0, num_prompt_tokens, P)
        x, _ = self.run_layers(params, concatenate(prompts, tokens), positions, attention, first_tokens=first_tokens)
        prompt_states, response_states = split(x)
        last_states = jnp.take_along_axis(prompt_states, (lengths - 1)[:, None, None], 1)[:, 0]
        norm_scale, eps = all_gather_weight(params["norm"], 0, self.config.width), self.config.norm_eps  # once for both
        return rms_norm(last_states, norm_scale, eps), rms_norm(response_states, norm_scale, eps)

    def logits(self, params: Params, hidden: Float[Array, "*b D"]) -> Float[Array, "*b V"]:
        matrix, vocab_axis = self.unembedding_matrix(params)
        equation = "...d,vd->...v" if vocab_axis == 0 else "...d,dv->...v"
        return jnp.einsum(equation, hidden, matrix, preferred_element_type=jnp.float32)

    def unembedding_matrix(self, params: Params) -> tuple[Array, int]:
        """The matrix that makes logits of hidden states, [V D] or [D V], and which of its axes is the vocabulary."""
        if self.config.tied:
            return all_gather_weight(params["embed"], 1, self.config.width), 0
        return all_gather_weight(params["unembed"], 0, self.config.width), 1


def check_model(config: ModelConfig) -> None:
    if config.heads % config.kv_heads or config.head_dim % 2:
        raise InputError(
            f"cell.model: heads={config.heads}, kv_heads={config.kv_heads}, head_dim={config.head_dim}; expected heads "
            "to be a multiple of kv_heads, and an even head_dim (rotary positions rotate it in halves)."
        )
    scaling = config.rope_scaling
    if scaling is not None and scaling.high_freq_factor <= scaling.low_freq_factor:
        raise InputError(
            f"cell.model.rope_scaling: high_freq_factor={scaling.high_freq_factor}, "
            f"low_freq_factor={scaling.low_freq_factor}; expected the high one above the low one, as 4 and 1."
        )
