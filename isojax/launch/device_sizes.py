"""A device's part of a sweep: the numbers of its weights and tokens, from the policy's description
and a plan's sizes. memory_model.py adds up what of it is held at the same time, time_estimate.py
what is multiplied and moved.

Letters are those of distributed/sharding.py.
"""

from functools import cached_property

from isojax.core.config import CellConfig
from isojax.core.policy_sizes import (
    AttentionSizes,
    CacheShape,
    LayerSizes,
    PolicySizes,
    WeightSizes,
)
from isojax.core.shapes import SamplerShapes, layers_are_unrolled, row_padding
from isojax.distributed.mesh_spec import WEIGHT_AXES, MeshShape

FLOAT_BYTES = 4
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
# of a token and a key: what is masked, the bias that cuDNN takes for it, and the gradient of that
MASK_BYTES = 5
# The mesh axis that splits parameters, gradients and moments, and of which a product gathers each
# weight that it reads.
GATHERED_AXIS = "fsdp"


class DeviceSizes:
    """`attention`: of prefill and update; `plain` holds the scores of all queries at once, `cudnn`
    a mask. `decode_attention`: the sampler's."""

    def __init__(
        self,
        cell: CellConfig,
        remat: bool,
        shapes: SamplerShapes,
        mesh: MeshShape,
        policy: PolicySizes,
        backend: str,
        attention: str = "plain",
        decode_attention: str = "plain",
    ):
        self.cell = cell
        self.remat = remat
        self.shapes = shapes
        self.mesh = mesh
        self.policy = policy
        self.backend, self.decode_attention = backend, decode_attention
        self.precision = cell.precision.for_platform(backend)
        # of a number that products are computed in
        self.compute_bytes = ITEM_BYTES[self.precision.compute]
        self.holds_scores = attention == "plain"
        self.mask_bytes = MASK_BYTES if attention == "cudnn" else 0  # of one token and one key

        # Of products: gathered over fsdp. Of what a run keeps: split by fsdp as well.
        self.split = mesh.split(*WEIGHT_AXES)
        self.kept_split = mesh.split(*WEIGHT_AXES, GATHERED_AXIS)
        self.layers: list[DeviceLayer] = []
        stacks = zip(
            policy.layer_sizes(self.precision.compute, backend, self.split),
            policy.attention,
            strict=True,
        )
        for sizes, attention_sizes in stacks:
            self.layers.append(DeviceLayer(self, sizes, attention_sizes))

        # Positions of a prompt, padded until sequence divides them; of a block of prompts; of a
        # microbatch, without the last ones; and those that a response's last one attends to.
        self.prompt_positions = -(-shapes.prompt_length // mesh.sequence)
        self.prefill_tokens = shapes.prefill_batch * self.prompt_positions
        m, positions = shapes.microbatch, max(1, shapes.response_length - 1)
        self.microbatch_tokens = m * (
            positions + row_padding(attention, m, positions, mesh.weight_parts)
        )
        self.key_positions = self.prompt_positions + shapes.response_length - 1

        self.has_reference = cell.rl.kl > 0 or cell.rl.measure_kl
        self.has_nucleus = cell.sampling.top_p < 1

    # ------------------------------------------------------------------ weights

    @cached_property
    def base_weights(self) -> list[WeightSizes]:
        return [weight for weight in self.policy.weights if not weight.is_adapter]

    @cached_property
    def adapters(self) -> list[WeightSizes]:
        return [weight for weight in self.policy.weights if weight.is_adapter]

    @cached_property
    def tables(self) -> list[WeightSizes]:
        """The matrices between tokens and hidden states: an embedding, and an unembedding unless it
        is tied."""
        return [
            weight
            for weight in self.base_weights
            if not weight.stack and "vocab" in dict(weight.axes)
        ]

    def numbers(self, weights: list[WeightSizes]) -> int:
        """Of the weights as products read them."""
        return sum(weight.layers * self.split.size(weight.axes) for weight in weights)

    @cached_property
    def num_params(self) -> int:
        return self.numbers(self.base_weights)

    @cached_property
    def layers_params(self) -> int:
        return self.numbers([weight for weight in self.base_weights if weight.stack])

    @cached_property
    def layer_params(self) -> int:
        """Of the largest layer."""
        by_stack: dict[str, int] = {}
        for weight in self.base_weights:
            if weight.stack:
                by_stack[weight.stack] = by_stack.get(weight.stack, 0) + self.split.size(
                    weight.axes
                )
        return max(by_stack.values())

    @cached_property
    def active_params(self) -> float:
        """Of the layers' parameters, those that a token is multiplied by."""
        in_layers = [weight for weight in self.base_weights if weight.stack]
        return sum(
            weight.layers * self.split.size(weight.axes) * weight.share for weight in in_layers
        )

    @cached_property
    def table_params(self) -> int:
        """Of the matrix that makes logits."""
        return max(self.split.size(weight.axes) for weight in self.tables)

    @property
    def fsdp_shards(self) -> int:
        """Devices that share parameters and their gradients."""
        return self.mesh.fsdp if self.policy.width % self.mesh.fsdp == 0 else 1

    # ------------------------------------------------------------------ what a run keeps

    @cached_property
    def param_bytes(self) -> int:
        """Of the policy's parameters in float32."""
        return FLOAT_BYTES * self.num_params // self.fsdp_shards

    @cached_property
    def base_bytes(self) -> int:
        """Of the base policy's, as products are computed: what LoRA leaves, or what a KL term
        compares with."""
        return self.compute_bytes * self.num_params // self.fsdp_shards

    @cached_property
    def trained_bytes(self) -> int:
        if not self.adapters:
            return self.param_bytes
        return FLOAT_BYTES * sum(
            weight.layers * self.kept_split.size(weight.axes) for weight in self.adapters
        )

    @property
    def frozen_bytes(self) -> int:
        return self.base_bytes if self.adapters else 0

    @property
    def reference_bytes(self) -> int:
        return self.base_bytes if self.has_reference and not self.adapters else 0

    @cached_property
    def critic_bytes(self) -> int:
        """A critic is the policy without an unembedding."""
        if self.cell.rl.critic is None:
            return 0
        unembedding_bytes = (
            (len(self.tables) - 1) * FLOAT_BYTES * self.table_params // self.fsdp_shards
        )
        return self.param_bytes - unembedding_bytes

    @cached_property
    def rollout_bytes(self) -> int:
        """A shard's rollouts: tokens, log-probabilities, mask, nuclei, ends and lengths."""
        T = self.shapes.response_length
        return self.shapes.buffer_rows * (9 * T + FLOAT_BYTES * (T if self.has_nucleus else 1) + 5)

    @property
    def expert_record_bytes(self) -> int:
        """Of the experts of the rollouts' tokens, which the update compares or replays; and of the
        prompts in use."""
        rl, P = self.cell.rl, self.shapes.prompt_length
        if self.mesh.sequence > 1 or not (rl.replay_experts or rl.measure_expert_agreement):
            return 0
        tokens = self.shapes.buffer_rows * (P + self.shapes.response_length)
        prompts = self.shapes.prefix_entries + self.shapes.slots // self.shapes.slots_per_prefix
        return (tokens + prompts * P) * self.policy.recorded_bytes

    # ------------------------------------------------------------------ the sampler

    @cached_property
    def sampler_weights(self) -> list[WeightSizes]:
        return list(self.policy.sampler_weights(self.precision))

    def stored_bytes(self, weight: WeightSizes) -> int:
        """Of one layer's weight, as the sampler stores it."""
        return ITEM_BYTES[weight.dtype] * self.split.size(weight.axes)

    @property
    def quantises_weights(self) -> bool:
        return self.precision.rollout_weights == "int8"

    @property
    def has_unrolled_copy(self) -> bool:
        """Whether the sampler holds its layers both stacked and unrolled
        (`Decoding.prefills_stacked`)."""
        transposes = self.backend == "cpu" and self.shapes.transpose_weights
        needs_both = self.precision.compute == "float32" or transposes
        is_unrolled = layers_are_unrolled(self.backend, self.precision.cache)
        return needs_both and is_unrolled and not self.quantises_weights

    def cache_bytes(self) -> int:
        """Of the sampler's keys and values: of the slots, and of the table of prompts."""
        shape = CacheShape(
            slots=self.shapes.slots,
            slots_per_prefix=self.shapes.slots_per_prefix,
            prefix_entries=self.shapes.prefix_entries,
            prompt_positions=self.prompt_positions,
            response_length=self.shapes.response_length,
            positions_split=self.mesh.sequence > 1,
        )
        return self.policy.cache_bytes(shape, self.precision, self.decode_attention, self.split)

    # ------------------------------------------------------------------ layers and logits

    @property
    def V(self) -> int:
        """Tokens of the vocabulary whose logits the device makes."""
        return self.split.size((("vocab", self.policy.vocab),))

    @property
    def D(self) -> int:
        return self.policy.width

    @property
    def mlp_width(self) -> int:
        """Values of a token between the products of the widest MLP."""
        return max(layer.mlp_values for layer in self.layers) // 2

    def tokens_of_device(self, tokens: int) -> int:
        """Of hidden states between products, which devices share by tokens."""
        return self.split.size((("token", tokens),))

    @property
    def num_layers(self) -> int:
        return sum(layer.count for layer in self.layers)

    @property
    def kv_values(self) -> int:
        """Numbers of a position's keys and values, in all layers."""
        return sum(layer.count * layer.kv_values for layer in self.layers)

    def attended_values(self, positions: float) -> float:
        """Numbers of a token's queries times the positions that they see, in all layers: all of
        these before it, or those within a window."""
        return sum(
            layer.count * layer.query_values * layer.seen(positions) for layer in self.layers
        )


class DeviceLayer:
    """A layer of a stack."""

    def __init__(self, device: DeviceSizes, sizes: LayerSizes, attention: AttentionSizes):
        split = device.split
        self.device, self.sizes, self.count = device, sizes, sizes.layers
        self.mlp_values, self.window = sizes.mlp_values, attention.window

        heads = split.size((("heads", attention.heads),))
        kv_heads = split.size((("kv_heads", attention.kv_heads),))
        # Heads that attention is computed of: XLA splits queries over the heads of keys or of one
        # key, else not at all.
        key_parts = attention.kv_heads // kv_heads
        computed_heads = heads if attention.kv_heads == 1 else attention.heads // key_parts
        self.query_values = heads * attention.head_dim
        self.computed_values = computed_heads * attention.head_dim  # of queries, or mixed of values
        self.kv_values = 2 * kv_heads * attention.head_dim
        # of one token and one key
        self.score_bytes = FLOAT_BYTES * computed_heads if device.holds_scores else 0

    def seen(self, positions: float) -> float:
        return positions if self.window is None else min(positions, self.window)

    def all_kept(self, tokens: int, key_positions: int, key_parts: int) -> int:
        """Bytes of all that the gradient reads of tokens that attend to `key_positions` each: the
        products, the mixed values of each part of the keys, and scores in float32."""
        device, kept = self.device, self.sizes.kept
        products = device.tokens_of_device(tokens) * kept.states + tokens * kept.products
        mixed = device.compute_bytes * tokens * key_parts * self.computed_values
        return products + mixed + self.score_bytes * tokens * key_positions

    def kept(self, tokens: int, key_positions: int, key_parts: int) -> int:
        """Bytes that the layer keeps of it. What attention kernels return is computed again
        anyway."""
        if not self.device.remat:
            return self.all_kept(
                tokens, key_positions, key_parts if self.device.holds_scores else 0
            )
        kept = self.sizes.kept_by_remat
        return self.device.tokens_of_device(tokens) * kept.states + tokens * kept.products

    def backward(self, tokens: int, key_positions: int, key_parts: int) -> int:
        """Bytes in use while the layer is differentiated, in addition to what it has kept:
        gradients inside the MLP, or attention's weights and their gradient; arrays between
        products, of the MLP's or attention's alone where kernels leave little else; and what a
        layer computed again would have kept."""
        device = self.device
        mlp_values = self.sizes.mlp_gradient_values
        computed_values = self.computed_values
        layer = (tokens, key_positions, key_parts)
        recomputed = self.all_kept(*layer) - self.kept(*layer)
        if not device.holds_scores:
            values = tokens * max(mlp_values + 2 * device.D, 7 * device.D + 4 * computed_values)
            return (
                recomputed
                + device.compute_bytes * values
                + device.mask_bytes * tokens * key_positions
            )

        mlp_bytes = device.compute_bytes * tokens * mlp_values
        width_factor, heads_factor = (7, 4) if device.remat else (8, 6)
        intermediates = (
            device.compute_bytes
            * tokens
            * (width_factor * device.D + heads_factor * computed_values)
        )
        return (
            recomputed
            + intermediates
            + max(mlp_bytes, 2 * self.score_bytes * tokens * key_positions)
        )


def layer_bytes_read(s: DeviceSizes, rows: int) -> float:
    """Of the layers' weights, what a sampler's step of so many rows reads: of experts, all that any
    row chose."""
    read = 0.0
    for weight in s.sampler_weights:
        if weight.stack:
            part = 1 - (1 - weight.share) ** rows
            read += weight.layers * s.stored_bytes(weight) * part
    return read


def prompt_activations(s: DeviceSizes) -> int:
    """Bytes kept for the gradient of a block of prompts, in all layers."""
    return sum(
        layer.count * layer.kept(s.prefill_tokens, s.shapes.prompt_length, 1) for layer in s.layers
    )


def response_activations(s: DeviceSizes) -> int:
    """Bytes kept for the gradient of a microbatch, in all layers."""
    return sum(
        layer.count * layer.kept(s.microbatch_tokens, s.key_positions, 2) for layer in s.layers
    )


def prompt_backward_bytes(s: DeviceSizes) -> int:
    """Bytes in use while a layer is differentiated at a block of prompts."""
    return max(layer.backward(s.prefill_tokens, s.shapes.prompt_length, 1) for layer in s.layers)


def response_backward_bytes(s: DeviceSizes) -> int:
    """Bytes in use while a layer is differentiated at a microbatch."""
    return max(layer.backward(s.microbatch_tokens, s.key_positions, 2) for layer in s.layers)
