"""The transformer: a decoder, as its family describes it (architecture.py), run over whole
sequences.

`Decoder` holds no arrays: its functions take the parameters, {"embed": [V D], "blocks": {name: [L
...]}, "norm": [D], "unembed": [D V], unless the model is tied}. A plan of several kinds of layers
has a stack for each layer of a period: "blocks", "blocks_1", ... (stack.py). Dimension letters, as
in distributed/sharding.py: b rows (sequences), t tokens of a row, g prompts, P prompt positions, L
layers, V vocabulary, D width, K key/value heads, H head dimension.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.distributed import sharding
from isojax.distributed.sharding import PROMPT_AXIS
from isojax.models.architecture import LAYER_PREFIX, Architecture, find_ropes
from isojax.models.attention import self_attention, sequence_sharded_attention
from isojax.models.families import family
from isojax.models.fsdp import resolve_anchors
from isojax.models.kernels.prefix import PrefixKV
from isojax.models.layers.attention_layer import Rotations
from isojax.models.layers.block import Block
from isojax.models.layers.mixture import RouterShape
from isojax.models.layers.unembedding import Unembedding, gather_unembedding
from isojax.models.lora import check_targets, policy_params, split_adapters
from isojax.models.remat import remat_policy
from isojax.models.routing import RouterPass, run_with_router
from isojax.models.segments import change_segments, describe_layers, init_layer
from isojax.models.spec import LayerDescription, fuse_specs, rename_tensor, specs_of, stack_spec
from isojax.models.split_positions import map_over_positions
from isojax.models.stack import FIRST_STACK, Stack

Params = dict[str, Any]
KV = tuple[Array, Array]  # keys and values of a stack, each [L b K positions H]


class PrefixCache(NamedTuple):
    """Prompts as responses continue them: their keys and values, and last tokens' hidden states."""

    kv: list[KV]  # [L b K P H] each
    last_hidden: Array  # [b D]
    routed: Any = None  # by stack, what a `RouterPass` has observed, where one was given


class LayerRecord(NamedTuple):
    """What a layer gives besides the hidden states."""

    kv: KV  # new keys and values
    routed: Any  # what a `RouterPass` has observed


class LayersPass(NamedTuple):
    """What comes out of the layers; of each stack, its layers' records stacked."""

    x: Float[Array, "b t D"]  # before the final norm
    kv: list[KV]
    routed: list[Any]


class TokenStates(NamedTuple):
    """Hidden states of tokens, and by stack what a `RouterPass` has observed."""

    hidden: Float[Array, "b t D"]
    routed: list[Any]


class JointStates(NamedTuple):
    """Hidden states of prompts' last tokens and of responses, and by stack what a `RouterPass` has
    observed."""

    last_of_prompts: Float[Array, "g D"]
    of_responses: Float[Array, "m t D"]
    routed: list[Any]


class ComputeOptions(NamedTuple):
    """How a decoder is computed, which decides rounding, speed and memory."""

    compute_dtype: str = "float32"  # of products and activations
    cache_dtype: str = "float32"  # of the sampler's keys and values
    decode_attention: str = "plain"  # the sampler's (models/attention.py)
    forward_attention: str = "plain"  # the trainer's
    # "layer" computes all of a layer again for its gradient, "none" keeps the products
    remat: str = "none"
    # the sampler's matrices in layers: as products are computed, or "int8"
    rollout_weights: str = "compute"


class Decoder:
    """A policy's description, and the functions of its parameters.

    Hashable, by identity: it may be a static argument of a jitted function, and must not be changed
    once it has been one. `with_options` and `with_layers` give changed copies."""

    options = ComputeOptions()  # the defaults, until `with_options` sets a copy's and its base's

    def __init__(self, config: ModelConfig, vocab: int | None = None):
        """Describe the policy of a config; no arrays are made.

        `vocab`: how many tokens the embedding has; None: the config's. `base` is the same policy
        without adapters, and the decoder itself where there are none. InputError where there is no
        family of the config's name, or the config does not fit it."""
        check_model(config)
        vocab = config.vocab if vocab is None else vocab
        assert vocab is not None, "a model without a vocabulary of its own takes the task's"
        self.config = config
        self.vocab = vocab

        architecture: Architecture = family.load(config.family)(config, vocab)
        self.architecture = architecture
        self._embedding = LayerDescription(architecture.embedding)
        self._norm = LayerDescription(architecture.norm)
        # list[Spec]: of the parameters outside of the layers
        self._outer_specs = [*specs_of(architecture.embedding), *specs_of(architecture.norm)]
        if architecture.head is not None:
            self._outer_specs += specs_of(architecture.head)

        layers = describe_layers(architecture, config)
        self.segments = layers.segments  # list[Segment], periods of layers with their repeats

        # The base policy's: the same without adapters.
        self.base = self
        if config.lora is not None:
            check_targets(config.lora, layers.adapted_targets)
            self.base = Decoder(config.model_copy(update={"lora": None}), vocab)

    @property
    def stacks(self) -> list[Stack]:
        return [stack for segment in self.segments for stack in segment.stacks]

    @property
    def router(self) -> RouterShape | None:
        """Of the layers with experts; None where there are none."""
        shapes = dict.fromkeys(stack.router for stack in self.stacks if stack.router is not None)
        if len(shapes) > 1:
            raise InputError(
                where="cell.model",
                found=f"layers have routers of {', '.join(map(str, shapes))}",
                expected="one shape",
            )
        return next(iter(shapes), None)

    @property
    def layers(self) -> list[tuple[Stack, int]]:
        """The stack of each layer of the model, and its place there."""
        places = {}
        for stack in self.stacks:
            for i, layer in enumerate(stack.layers):
                # every layer of the model is in exactly one stack
                places[layer] = (stack, i)
        return [places[layer] for layer in range(len(places))]

    def with_options(self, options: ComputeOptions) -> "Decoder":
        decoder = copy.copy(self)
        decoder.options = options
        decoder.base = decoder if self.base is self else self.base.with_options(options)
        return decoder

    def with_layers(
        self, describe_again: Callable[[LayerDescription], LayerDescription]
    ) -> "Decoder":
        """Return the decoder with another description of each layer.

        `describe_again`: such as one of weights in another form (weight_forms.py)."""
        decoder = copy.copy(self)
        decoder.segments = change_segments(self.segments, describe_again)
        decoder.base = decoder if self.base is self else self.base.with_layers(describe_again)
        return decoder

    def specs(self) -> Params:
        """What there is to know of each parameter, in the parameters' own tree."""
        renamed = self.architecture.renamed
        specs: Params = {spec.name: rename_tensor(spec, renamed) for spec in self._outer_specs}
        for stack in self.stacks:
            # fused by their names in a layer, so before the prefix
            of_layer = fuse_specs(stack.specs, self.architecture.fused)
            stacked = [stack_spec(spec, stack.layers, LAYER_PREFIX) for spec in of_layer]
            specs[stack.name] = {spec.name: rename_tensor(spec, renamed) for spec in stacked}
        return specs

    def init(self, key: Array) -> Params:
        """Draw the initial parameters, as the tree above.

        `key`: of jax.random.key. Embedding, layers and head have keys of one split each, and a
        layer's key is that of its number in the model: how layers are stacked does not change
        values. The order of the three keys must not change, or a seed would give another policy."""
        embed_key, layers_key, head_key = jax.random.split(key, 3)
        layer_keys = jax.random.split(layers_key, len(self.layers))
        head = self.architecture.head

        params: Params = {}
        for spec in self._outer_specs:
            is_head = head is not None and spec.name == head.spec.name
            params[spec.name] = spec.init(head_key if is_head else embed_key, spec.shape)
        for stack in self.stacks:
            keys = layer_keys[jnp.asarray(stack.layers)]
            params[stack.name] = jax.vmap(partial(init_layer, stack.specs))(keys)
        return params

    def logical_axes(self) -> Params:
        """The logical axes of each parameter, in the parameters' own tree."""
        return jax.tree.map(lambda spec: spec.axes, self.specs())

    def shapes(self) -> Params:
        """Return ShapeDtypeStructs of the parameters, in their tree.

        All are float32; but with adapters, what they leave as it is has the precision of products.
        """
        shapes = self._described_shapes()
        if self.config.lora is None:
            return shapes
        adapters, _ = split_adapters(shapes)
        return policy_params(adapters, self.frozen_shapes())

    def frozen_shapes(self) -> Params:
        """Return ShapeDtypeStructs of the base policy's parameters where nothing trains them.

        They have the precision of products."""
        return jax.eval_shape(self.cast_params, self.base._described_shapes())

    def _described_shapes(self) -> Params:
        return jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), self.specs())

    def trained(self, params: Params) -> Params:
        """Of the parameters, or of a tree like theirs, those that training changes."""
        if self.config.lora is None:
            return params
        adapters, _ = split_adapters(params)
        return adapters

    def shardings(self, mesh: Mesh) -> Params:
        """NamedSharding of each parameter by distributed/sharding.py's table."""
        return sharding.param_shardings(self.shapes(), self.logical_axes(), mesh)

    def cast_params(self, params: Params) -> Params:
        """The parameters in the precision that products are computed in."""
        return jax.tree.map(lambda w: w.astype(self.options.compute_dtype), params)

    def bind_block(self, stack: Stack, weights: Params) -> Block:
        """A layer with these weights, which adapters are a part of or not."""
        has_adapters = any(spec.is_adapter and spec.name in weights for spec in stack.specs)
        described = stack.described if has_adapters else stack.base
        # a weight whose gradient is taken elsewhere (`GradAnchor`) is replaced by its value
        return described.bind(resolve_anchors(weights))

    @property
    def ropes(self) -> list[Any]:
        """The rotary tables, each once."""
        ropes: dict[Any, None] = {}
        for stack in self.stacks:
            ropes |= dict.fromkeys(find_ropes(stack.base.layer))
        return list(ropes)

    def rotations(self, positions: Int[Array, "*b"]) -> Rotations:
        """Return cosines and sines of the positions by each rotary table.

        They serve all layers and heads: [*b H/2] each."""
        return {rope: rope.cos_sin(positions) for rope in self.ropes}

    def embed(self, params: Params, tokens: Int[Array, "b t"]) -> Float[Array, "b t D"]:
        return self._embedding.bind(params)(tokens)

    def run_layers(
        self,
        params: Params,
        tokens: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        attention: Callable[..., Array],
        layer_inputs: Sequence[Any] | None = None,
        first_tokens: slice | None = None,
        routers: RouterPass | None = None,
    ) -> LayersPass:
        """Run embedding and layers over tokens at these positions.

        `attention(q, k, v, window, layer_input)` mixes values: queries [b t N H], keys and values
        [b K t H] -> [b t N H]. `layer_inputs`: of each stack, in the decoder's order, something
        with a first axis of layers, of which each layer's attention gets its own, such as a
        prompt's keys and values; None: each gets None. `first_tokens`: the tokens on axis 1 that
        begin sequences, such as slice(1), for `sum_in_blocks`; None: none is corrected. `routers`:
        what is read of routers, and given to them."""
        rotations = self.rotations(positions)

        # One layer on x [b t D], which `_run_scanned` differentiates and may compute again.
        # `sampled`: the experts that a sampler chose in this layer, [b t k], or None. From outside:
        # rotations, attention, first_tokens, routers.
        def run_layer(
            stack: Stack, x: Array, weights: Params, layer_input: Any, sampled: Array | None
        ) -> tuple[Array, LayerRecord]:

            def attend(q: Array, k: Array, v: Array, window: int | None) -> tuple[Array, KV]:
                return attention(q, k, v, window, layer_input), (k, v)

            block = self.bind_block(stack, weights)
            run_block = partial(block, x, rotations, attend, first_tokens)
            output = run_with_router(block, routers, sampled, run_block)
            x, kv = output.result
            return x, LayerRecord(kv, output.routed)

        # where a gradient follows, each device over `tensor` has a part of the tokens from here on
        x = sharding.split_tokens(self.embed(params, tokens), True)
        if isinstance(params[FIRST_STACK], list):
            assert layer_inputs is None, "a sampler's unrolled layers prefill whole prompts"
            return self._run_unrolled(params, x, run_layer)

        # Each stack's, where there are any.
        nothing = [None] * len(self.stacks)
        sampled = nothing
        if routers is not None and routers.sampled is not None:
            sampled = routers.sampled
        return self._run_scanned(params, x, run_layer, layer_inputs or nothing, sampled)

    def _run_unrolled(self, params: Params, x: Array, run_layer: Callable[..., Any]) -> LayersPass:
        """Run a sampler's unrolled layers: params[stack name] is a list of layers' weights.

        `run_layer(stack, x, weights, layer_input, sampled)`: of `run_layers`."""
        records: dict[str, list[LayerRecord]] = {stack.name: [] for stack in self.stacks}
        for stack, i in self.layers:
            x, record = run_layer(stack, x, params[stack.name][i], None, None)
            records[stack.name].append(record)

        kv_by_stack, routed_by_stack = [], []
        for of_layers in records.values():
            stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *of_layers)
            kv_by_stack.append(stacked.kv)
            routed_by_stack.append(stacked.routed)
        return LayersPass(x, kv_by_stack, routed_by_stack)

    def _run_scanned(
        self,
        params: Params,
        x: Array,
        run_layer: Callable[..., Any],
        layer_inputs: Sequence[Any],
        sampled: Sequence[Any],
    ) -> LayersPass:
        """Scan each segment, a period of layers, over its repeats.

        `run_layer(stack, x, weights, layer_input, sampled)`: of `run_layers`. `layer_inputs`, and
        the `sampled` choices of experts [L b t k]: one entry for each stack, in the decoder's
        order, each with a first axis of layers; None where a stack has none."""
        stack_names = [stack.name for stack in self.stacks]
        input_of = dict(zip(stack_names, layer_inputs, strict=True))
        sampled_of = dict(zip(stack_names, sampled, strict=True))
        lora = self.config.lora
        policy = remat_policy(self.options.remat, None if lora is None else lora.rank)

        kv_by_stack, routed_by_stack = [], []
        for segment in self.segments:
            # Each layer of the period by itself, so that only one is computed again at a time.
            run_period = [
                jax.checkpoint(partial(run_layer, stack), prevent_cse=False, policy=policy)
                for stack in segment.stacks
            ]

            # One layer of each of the segment's stacks. `scanned`: three lists, of weights, layer
            # inputs and choices by stack, without their axis of layers. `run_period` is a default
            # so that the loop's next pass does not replace it.
            def run_repeat(
                x: Array, scanned: Any, run_period: Any = run_period
            ) -> tuple[Array, list[LayerRecord]]:
                records = []
                for run, weights, layer_input, chosen in zip(run_period, *scanned, strict=True):
                    x, record = run(x, weights, layer_input, chosen)
                    records.append(record)
                return x, records

            names = [stack.name for stack in segment.stacks]
            scanned = (
                [params[name] for name in names],
                [input_of[name] for name in names],
                [sampled_of[name] for name in names],
            )
            x, stacked_records = lax.scan(run_repeat, x, scanned)
            kv_by_stack += [record.kv for record in stacked_records]
            routed_by_stack += [record.routed for record in stacked_records]

        return LayersPass(sharding.split_tokens(x, False), kv_by_stack, routed_by_stack)

    def final_norm(self, params: Params, x: Float[Array, "*b D"]) -> Float[Array, "*b D"]:
        return self._norm.bind(params)(x)

    def prefill(
        self,
        params: Params,
        prompts: Int[Array, "b P"],
        lengths: Int[Array, " b"],
        routers: RouterPass | None = None,
    ) -> PrefixCache:
        """Run prompts through the layers, and keep what responses need to continue them.

        `prompts`: token ids, padded on the right to P, which needs no mask because attention is
        causal. `lengths`: tokens of each, at least 1. `routers`: what is read of routers; must be
        None where devices split positions."""
        if sharding.positions_are_split(jax.sharding.get_abstract_mesh()):
            assert routers is None, (
                "devices that share a prompt's positions do not collect its experts"
            )
            return self._prefill_over_devices(params, prompts, lengths)

        def take_last(x: Array) -> Array:
            return jnp.take_along_axis(x, (lengths - 1)[:, None, None], 1)[:, 0]

        positions = jnp.broadcast_to(jnp.arange(prompts.shape[1])[None], prompts.shape)
        causal_attention = partial(self_attention, self.options.forward_attention)
        return self._prefill_tokens(
            params,
            prompts,
            positions,
            causal_attention,
            take_last,
            # of every row
            first_tokens=slice(1),
            routers=routers,
        )

    def _prefill_over_devices(
        self, params: Params, prompts: Int[Array, "b P"], lengths: Int[Array, " b"]
    ) -> PrefixCache:
        """Compute `prefill` on a mesh that splits positions over `sequence`.

        Devices gather keys and values layer by layer. Prompts are padded from P to C positions, so
        that devices share them evenly; the keys and values that come back have C positions, split
        over the devices."""

        # `token_positions` [b t]: where this device's t tokens are in their prompts.
        # `last_positions` [b]: of the last tokens, which only one device has.
        def prefill_shard(
            params: Params, tokens: Array, token_positions: Array, last_positions: Array
        ) -> PrefixCache:
            def take_last(x: Float[Array, "b t D"]) -> Float[Array, "b D"]:
                is_last = (token_positions == last_positions[:, None])[..., None]
                # In float32, because XLA:CPU cannot compile the sum of bfloat16 over devices.
                of_device = jnp.where(is_last, x, 0).sum(1, keepdims=True, dtype=jnp.float32)
                return lax.psum(of_device, PROMPT_AXIS).astype(x.dtype)[:, 0]

            # no first_tokens: of the devices that share a row, only one has its first token
            causal_attention = partial(sequence_sharded_attention, token_positions)
            return self._prefill_tokens(
                params, tokens, token_positions, causal_attention, take_last
            )

        whole: Any = PartitionSpec()
        kv_spec: Any = PartitionSpec(None, None, None, PROMPT_AXIS)
        out_specs = PrefixCache([(kv_spec, kv_spec)] * len(self.stacks), whole)
        return map_over_positions(prefill_shard, out_specs, params, prompts, lengths - 1)

    def _prefill_tokens(
        self,
        params: Params,
        tokens: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        causal_attention: Callable[..., Array],
        take_last: Callable[[Array], Array],
        first_tokens: slice | None = None,
        routers: RouterPass | None = None,
    ) -> PrefixCache:
        """Run prompts through the layers, as `prefill` and a device's part of it have in common.

        `causal_attention(q, k, v, window=...)`: of tokens at these positions. `take_last`: from the
        states of all tokens [b t D] to those of the prompts' last tokens [b D]."""

        def attention(q: Array, k: Array, v: Array, window: int | None, _: None) -> Array:
            return causal_attention(q, k, v, window=window)

        after_layers = self.run_layers(
            params, tokens, positions, attention, first_tokens=first_tokens, routers=routers
        )
        last_hidden = self.final_norm(params, take_last(after_layers.x))
        routed = None if routers is None else after_layers.routed
        return PrefixCache(after_layers.kv, last_hidden, routed)

    def forward(
        self,
        params: Params,
        tokens: Int[Array, "b t"],
        start_position: Int[Array, " b"],
        prefix: Sequence[KV] | None = None,
        prompt_index: Int[Array, " b"] | None = None,
    ) -> Float[Array, "b t D"]:
        """Compute hidden states of tokens from `start_position` on, after the final norm.

        `tokens`: ids; row i has positions start_position[i], + 1, ... `prefix`: by stack, keys and
        values [L g K P H] of g prompts, of which row i continues the `prompt_index[i]`-th;
        start_position is then that prompt's length. None: tokens are whole sequences,
        start_position is 0 and prompt_index None."""
        states = self.forward_with_routers(params, tokens, start_position, prefix, prompt_index)
        return states.hidden

    def forward_with_routers(
        self,
        params: Params,
        tokens: Int[Array, "b t"],
        start_position: Int[Array, " b"],
        prefix: Sequence[KV] | None = None,
        prompt_index: Int[Array, " b"] | None = None,
        routers: RouterPass | None = None,
    ) -> TokenStates:
        """Compute `forward`, and what `routers` observes, by stack.

        `routers` must be None where devices split the positions of whole sequences."""
        if prefix is None and sharding.positions_are_split(jax.sharding.get_abstract_mesh()):
            assert routers is None, (
                "devices that share a sequence's positions do not collect its experts"
            )
            return TokenStates(self._forward_over_devices(params, tokens), routed=[])

        # From outside: prompt_index, start_position. `prefix_kv`: the layer's keys and values of
        # the prompts, [g K P H] each, maybe as `GradAnchor`s, whose gradients are taken elsewhere;
        # `resolve_anchors` gives their values.
        def attention(
            q: Array, k: Array, v: Array, window: int | None, prefix_kv: KV | None
        ) -> Array:
            continued = None
            if prefix_kv is not None:
                assert prompt_index is not None, "each row continues a prompt of the prefix"
                keys, values = (take_prompts(x, prompt_index) for x in resolve_anchors(prefix_kv))
                continued = PrefixKV(keys, values, start_position)
            return self_attention(self.options.forward_attention, q, k, v, continued, window)

        positions = start_position[:, None] + jnp.arange(tokens.shape[1])[None]
        first_tokens = slice(1) if prefix is None else None
        after_layers = self.run_layers(
            params, tokens, positions, attention, prefix, first_tokens, routers
        )
        return TokenStates(self.final_norm(params, after_layers.x), after_layers.routed)

    def _forward_over_devices(
        self, params: Params, tokens: Int[Array, "b t"]
    ) -> Float[Array, "b t D"]:
        """Hidden states of whole sequences, where a mesh splits positions over `sequence`."""

        def forward_shard(params: Params, tokens: Array, token_positions: Array) -> Array:
            def attention(q: Array, k: Array, v: Array, window: int | None, _: None) -> Array:
                return sequence_sharded_attention(token_positions, q, k, v, window)

            after_layers = self.run_layers(params, tokens, token_positions, attention)
            return self.final_norm(params, after_layers.x)

        hidden = map_over_positions(forward_shard, PartitionSpec(None, PROMPT_AXIS), params, tokens)
        return hidden[:, : tokens.shape[1]]

    def forward_prompts_and_responses(
        self,
        params: Params,
        prompts: Int[Array, "g P"],
        lengths: Int[Array, " g"],
        tokens: Int[Array, "m t"],
        prompt_index: Int[Array, " m"],
    ) -> tuple[Float[Array, "g D"], Float[Array, "m t D"]]:
        """Return last hidden states of prompts [g D], and those of responses to them [m t D].

        They are `prefill`'s and `forward`'s up to rounding, in one pass: each weight is gathered
        and read, and its gradient added up, once for both. Row i of `tokens` continues prompt
        `prompt_index[i]`."""
        states = self.joint_forward_with_routers(params, prompts, lengths, tokens, prompt_index)
        return states.last_of_prompts, states.of_responses

    def joint_forward_with_routers(
        self,
        params: Params,
        prompts: Int[Array, "g P"],
        lengths: Int[Array, " g"],
        tokens: Int[Array, "m t"],
        prompt_index: Int[Array, " m"],
        routers: RouterPass | None = None,
    ) -> JointStates:
        """Compute `forward_prompts_and_responses`, and what `routers` observes, by stack.

        `prompts`: ids padded on the right to P, of these `lengths`. `tokens`: ids of m responses,
        row i of which continues prompt `prompt_index[i]`. What routers observe is of one row of r =
        g P + m t tokens: those of prompt 0, prompt 1, ..., then those of response 0, response 1,
        ..."""
        g, P = prompts.shape
        m, t = tokens.shape
        num_prompt_tokens = prompts.size
        start_position = lengths[prompt_index]  # of responses

        # All but attention works token by token, and sees one row of all tokens, r = g P + m t.
        def concatenate(of_prompts: Array, of_responses: Array) -> Array:
            parts = [x.reshape(-1, *x.shape[2:]) for x in (of_prompts, of_responses)]
            return jnp.concatenate(parts)[None]

        def split(
            x: Float[Array, "1 r *d"],
        ) -> tuple[Float[Array, "g P *d"], Float[Array, "m t *d"]]:
            of_prompts = x[0, :num_prompt_tokens]
            of_responses = x[0, num_prompt_tokens:]
            return of_prompts.reshape(g, P, *x.shape[2:]), of_responses.reshape(m, t, *x.shape[2:])

        def split_heads(
            kv: Float[Array, "1 K r H"],
        ) -> tuple[Float[Array, "g K P H"], Float[Array, "m K t H"]]:
            of_prompts, of_responses = split(kv.swapaxes(1, 2))
            return of_prompts.swapaxes(1, 2), of_responses.swapaxes(1, 2)

        def attention(q: Array, k: Array, v: Array, window: int | None, _: None) -> Array:
            prompt_queries, response_queries = split(q)
            prompt_keys, response_keys = split_heads(k)
            prompt_values, response_values = split_heads(v)
            prefix = PrefixKV(
                take_prompts(prompt_keys, prompt_index),
                take_prompts(prompt_values, prompt_index),
                start_position,
            )

            attend = partial(self_attention, self.options.forward_attention, window=window)
            of_prompts = attend(prompt_queries, prompt_keys, prompt_values)
            of_responses = attend(response_queries, response_keys, response_values, prefix)
            return concatenate(of_prompts, of_responses)

        prompt_positions = jnp.broadcast_to(jnp.arange(P)[None], (g, P))
        response_positions = start_position[:, None] + jnp.arange(t)[None]
        positions = concatenate(prompt_positions, response_positions)
        after_layers = self.run_layers(
            params,
            concatenate(prompts, tokens),
            positions,
            attention,
            # in the one row, each prompt's first token; responses begin no sequence
            first_tokens=slice(0, num_prompt_tokens, P),
            routers=routers,
        )

        prompt_states, response_states = split(after_layers.x)
        last_states = jnp.take_along_axis(prompt_states, (lengths - 1)[:, None, None], 1)[:, 0]
        norm = self._norm.bind(params)
        scale = norm.gathered_scale()  # once for both
        return JointStates(
            norm.apply(scale, last_states), norm.apply(scale, response_states), after_layers.routed
        )

    def logits(self, params: Params, hidden: Float[Array, "*b D"]) -> Float[Array, "*b V"]:
        return self.unembedding(params).logits(hidden)

    def unembedding(self, params: Params) -> Unembedding:
        spec = self.architecture.unembedding
        return gather_unembedding(params[spec.name], spec)


def take_prompts(
    kv: Float[Array, "g K P H"], prompt_index: Int[Array, " m"]
) -> Float[Array, "m K P H"]:
    """Keys or values of the prompt that each of m responses continues."""
    return sharding.take_rows(kv, prompt_index, (None, "kv_heads", None, None))


def check_model(config: ModelConfig) -> None:
    """Raise InputError where heads do not fit each other, or stretched positions do not.

    Heads must be a multiple of kv_heads, head_dim even, and of Llama 3's stretched positions
    high_freq_factor above low_freq_factor."""
    if config.heads % config.kv_heads or config.head_dim % 2:
        sizes = f"heads={config.heads}, kv_heads={config.kv_heads}, head_dim={config.head_dim}"
        raise InputError(
            where="cell.model",
            found=sizes,
            expected=(
                "heads to be a multiple of kv_heads, and an even head_dim (rotary positions "
                "rotate it in halves)"
            ),
        )

    scaling = config.rope_scaling
    # equal ones would divide by 0 in `rope_frequencies`
    if scaling is not None and scaling.high_freq_factor <= scaling.low_freq_factor:
        raise InputError(
            where="cell.model.rope_scaling",
            found=(
                f"high_freq_factor={scaling.high_freq_factor}, "
                f"low_freq_factor={scaling.low_freq_factor}"
            ),
            expected="the high one above the low one, as 4 and 1",
        )
