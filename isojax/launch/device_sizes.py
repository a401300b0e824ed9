"""A device's part of a sweep: the numbers of its tokens and of what layers make of them, from the
policy's description and a plan's sizes. Those of its weights: device_weights.py.

memory_model.py adds up what of it is held at the same time, time_estimate.py what is multiplied and
moved. Of a sweep: R slots of the sampler, m rows of a microbatch, g prompts prefilled at once and
W slots per prefix, each of one shard; P and T, prompt and response positions; D, the width; V, the
vocabulary; L, layers.
"""

from functools import cached_property

from isojax.core.config import CellConfig
from isojax.core.policy_sizes import AttentionSizes, CacheShape, LayerSizes
from isojax.core.shapes import SamplerShapes, layers_are_unrolled, row_padding
from isojax.launch.device_weights import FLOAT_BYTES, DeviceWeights

# Of a token and a key with cuDNN's attention: what is masked (a byte), the bias in bfloat16 that
# cuDNN takes for it, and the gradient of that.
MASK_BYTES = 5
# Into how many parts the keys that a token attends to are divided, each with its mixed values: a
# prompt's token sees its prompt, a response's token its prompt and the response before it.
PROMPT_KEY_PARTS = 1
RESPONSE_KEY_PARTS = 2


class DeviceSizes:
    """The sizes of one device: counts of numbers and tokens, and bytes of arrays.

    A method `..._bytes` counts one array, or several that are there for the same time; it adds
    nothing else that the device holds meanwhile.
    """

    def __init__(
        self,
        cell: CellConfig,
        remat: bool,
        shapes: SamplerShapes,
        weights: DeviceWeights,
        backend: str,
        attention: str = "plain",
        decode_attention: str = "plain",
    ):
        """Compute the sizes of a sweep with these settings; no array is made.

        remat: whether each layer is computed again for its gradient, instead of kept. shapes: R, m,
        g, W, P and T of a shard. weights: of the policy on the mesh. backend: "cpu", "gpu" or
        "tpu". attention: of prefill and update; "plain" holds the scores of all queries at once,
        "cudnn" a mask, other kernels ("pallas") neither. decode_attention: the sampler's, from the
        same names.
        """
        self.cell = cell
        self.remat = remat
        self.shapes = shapes
        self.weights = weights
        self.mesh = weights.mesh
        self.policy = weights.policy
        self.split = weights.split
        self.backend = backend
        self.decode_attention = decode_attention

        self.precision = weights.precision
        self.compute_bytes = weights.compute_bytes  # of a number in products
        self.holds_scores = attention == "plain"
        self.mask_bytes = MASK_BYTES if attention == "cudnn" else 0  # of one token and one key

        # This device's part of a prompt's positions, rounded up: prompts are padded until the
        # devices of `sequence` divide them.
        self.prompt_positions = -(-shapes.prompt_length // self.mesh.sequence)
        self.prefill_tokens = shapes.prefill_batch * self.prompt_positions

        # A response's last token is drawn, and never goes through the layers: T - 1 positions.
        # Rows are padded until `weight_parts` devices share rows or positions evenly and, for a
        # TPU's kernels, until they fill whole tiles.
        m = shapes.microbatch
        response_positions = max(1, shapes.response_length - 1)
        padding = row_padding(attention, m, response_positions, self.mesh.weight_parts)
        self.microbatch_tokens = m * (response_positions + padding)
        # Positions that the last response position of a row attends to, itself included.
        self.key_positions = self.prompt_positions + shapes.response_length - 1

        self.has_reference = cell.rl.kl > 0 or cell.rl.measure_kl
        self.has_nucleus = cell.sampling.top_p < 1

    @cached_property
    def layers(self) -> list["DeviceLayer"]:
        """One for each stack, that is a run of layers that are alike.

        What a layer keeps for its gradient takes seconds to find, so that it is asked for only
        where it is needed.
        """
        layer_sizes = self.policy.layer_sizes(self.precision.compute, self.backend, self.split)
        return [
            DeviceLayer(self, sizes, attention_sizes)
            for sizes, attention_sizes in zip(layer_sizes, self.policy.attention, strict=True)
        ]

    # ------------------------------------------------------------------ what a run keeps

    @property
    def reference_bytes(self) -> int:
        """Bytes of the KL's reference; 0 with adapters, as `frozen_bytes` counts it then."""
        weights = self.weights
        return weights.base_bytes if self.has_reference and not weights.adapters else 0

    @cached_property
    def critic_bytes(self) -> int:
        """Bytes of the critic's parameters in float32: the policy's without an unembedding."""
        if self.cell.rl.critic is None:
            return 0
        weights = self.weights
        unembeddings = len(weights.tables) - 1  # none where it is tied to the embedding
        values = unembeddings * weights.table_params
        return weights.param_bytes - FLOAT_BYTES * values // weights.fsdp_shards

    @cached_property
    def rollout_bytes(self) -> int:
        """Bytes of a shard's rollouts: arrays [buffer_rows T] and [buffer_rows].

        Tokens, log-probabilities, the mask of the loss and masses of nuclei; ends and lengths.
        """
        T = self.shapes.response_length
        token_bytes = 4 + 4 + 1  # int32 token, float32 log-probability, bool of the loss
        nucleus_bytes = FLOAT_BYTES * (T if self.has_nucleus else 1)
        end_bytes = 1 + 4  # bool of a stop condition, int32 length
        return self.shapes.buffer_rows * (token_bytes * T + nucleus_bytes + end_bytes)

    @property
    def expert_record_bytes(self) -> int:
        """Bytes of the record of which experts the sampler chose for each token.

        That is for the rollouts' tokens with their prompts, which the update compares or replays,
        and for the prompts in use. 0 where no setting asks for it, or devices split prompts'
        positions: then none is made (rl/experts.py).
        """
        rl = self.cell.rl
        if self.mesh.sequence > 1 or not (rl.replay_experts or rl.measure_expert_agreement):
            return 0

        P = self.shapes.prompt_length
        rollout_tokens = self.shapes.buffer_rows * (P + self.shapes.response_length)
        # Prompts of the sampler's table, and of each prefix group.
        prompts = self.shapes.prefix_entries + self.shapes.slots // self.shapes.slots_per_prefix
        token_bytes = self.policy.recorded_bytes  # of the experts of one token, in all layers
        return (rollout_tokens + prompts * P) * token_bytes

    # ------------------------------------------------------------------ the sampler

    @property
    def has_unrolled_copy(self) -> bool:
        """Whether the sampler holds its layers twice: stacked for prompts, unrolled for tokens.

        The same rule as `Decoding.prefills_stacked` (models/decode.py): change both together.
        """
        is_unrolled = layers_are_unrolled(self.backend, self.precision.cache)
        # A CPU's sampler of few slots holds transposed weights.
        transposes = self.backend == "cpu" and self.shapes.transpose_weights
        needs_both = self.precision.compute == "float32" or transposes
        return needs_both and is_unrolled and not self.weights.quantises

    def cache_bytes(self) -> int:
        """Bytes of the sampler's keys and values: of the slots, and of the table of prompts."""
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

    @cached_property
    def V(self) -> int:
        """How many tokens of the vocabulary this device makes logits of."""
        return self.split.size((("vocab", self.policy.vocab),))

    @property
    def D(self) -> int:
        return self.policy.width

    @cached_property
    def most_mlp_values(self) -> int:
        """Values of a token inside the widest MLP: gate and up."""
        return max(layer.mlp_values for layer in self.layers)

    @property
    def mlp_width(self) -> int:
        """Values of a token between the products of the widest MLP."""
        return self.most_mlp_values // 2

    def tokens_of_device(self, tokens: int) -> int:
        """How many of so many tokens this device has, where devices share hidden states by token.

        All, where `weight_parts` does not divide them.
        """
        return self.split.size((("token", tokens),))

    @cached_property
    def num_layers(self) -> int:
        return sum(layer.count for layer in self.layers)

    @cached_property
    def kv_values(self) -> int:
        """Numbers of a position's keys and values, in all layers."""
        return sum(layer.count * layer.kv_values for layer in self.layers)

    def attended_values(self, positions: float) -> float:
        """Query numbers of a token times the positions that they see, summed over all layers.

        positions: how many are before the token; a layer with a window sees at most that many.
        """
        return sum(
            layer.count * layer.query_values * layer.seen(positions) for layer in self.layers
        )


class DeviceLayer:
    """A layer of a stack: what it keeps of its tokens for the gradient, and what that takes.

    In its methods, tokens are those of one array, such as g prompts of P positions; `key_positions`
    is how many positions each attends to; `key_parts` is PROMPT_KEY_PARTS or RESPONSE_KEY_PARTS.
    """

    def __init__(self, device: DeviceSizes, sizes: LayerSizes, attention: AttentionSizes):
        """device: that the layer is on. sizes, attention: those of the same stack."""
        self.device = device
        self.sizes = sizes
        self.count = sizes.layers  # layers of the stack
        self.mlp_values = sizes.mlp_values
        self.window = attention.window

        heads = device.split.size((("heads", attention.heads),))
        kv_heads = device.split.size((("kv_heads", attention.kv_heads),))

        # Query heads of which this device computes attention. XLA splits them into as many parts as
        # the heads of keys; but where all queries share one head of keys, by the query heads.
        devices_of_keys = attention.kv_heads // kv_heads  # that divide the heads of keys
        computed_heads = heads if attention.kv_heads == 1 else attention.heads // devices_of_keys

        self.heads = heads  # of queries
        self.kv_heads = kv_heads
        self.head_dim = attention.head_dim
        # Numbers of a token.
        self.query_values = heads * attention.head_dim
        self.computed_values = computed_heads * attention.head_dim  # of queries, or mixed of values
        self.kv_values = 2 * kv_heads * attention.head_dim
        # Bytes of a token and a key.
        self.score_bytes = FLOAT_BYTES * computed_heads if device.holds_scores else 0

    def seen(self, positions: float) -> float:
        """How many of the positions before a token it attends to."""
        return positions if self.window is None else min(positions, self.window)

    def all_kept(self, tokens: int, key_positions: int, key_parts: int) -> int:
        """Bytes of all that the gradient reads of `tokens` that attend to `key_positions` each.

        Products, the mixed values of each part of the keys, and scores in float32.
        """
        device = self.device
        kept = self.sizes.kept
        products = device.tokens_of_device(tokens) * kept.states + tokens * kept.products
        mixed_values = device.compute_bytes * tokens * key_parts * self.computed_values
        scores = self.score_bytes * tokens * key_positions
        return products + mixed_values + scores

    def kept(self, tokens: int, key_positions: int, key_parts: int) -> int:
        """Bytes of what the layer does keep: with remat, what it is computed again from."""
        if self.device.remat:
            kept = self.sizes.kept_by_remat
            return self.device.tokens_of_device(tokens) * kept.states + tokens * kept.products

        # What attention kernels return is computed again anyway.
        parts_kept = key_parts if self.device.holds_scores else 0
        return self.all_kept(tokens, key_positions, parts_kept)

    def backward(self, tokens: int, key_positions: int, key_parts: int) -> int:
        """Bytes in use while the layer is differentiated, in addition to what it has kept.

        What a layer computed again would have kept; arrays [tokens, D] and [tokens, heads] between
        its products; and gradients inside the MLP, or attention's weights and their gradient. The
        factors count such arrays in XLA's schedules (benchmarks/memory.py).
        """
        device = self.device
        all_kept = self.all_kept(tokens, key_positions, key_parts)
        recomputed = all_kept - self.kept(tokens, key_positions, key_parts)
        mlp_values = self.sizes.mlp_gradient_values

        if device.holds_scores:
            width_factor, heads_factor = (7, 4) if device.remat else (8, 6)
            between = width_factor * device.D + heads_factor * self.computed_values
            intermediates = device.compute_bytes * tokens * between
            in_mlp = device.compute_bytes * tokens * mlp_values
            in_attention = 2 * self.score_bytes * tokens * key_positions
            return recomputed + intermediates + max(in_mlp, in_attention)

        # Kernels leave little between products, so that XLA holds the MLP's arrays or attention's,
        # not both; and cuDNN's mask.
        of_mlp = mlp_values + 2 * device.D
        of_attention = 7 * device.D + 4 * self.computed_values
        intermediates = device.compute_bytes * tokens * max(of_mlp, of_attention)
        mask = device.mask_bytes * tokens * key_positions
        return recomputed + intermediates + mask


def layer_bytes_read(s: DeviceSizes, rows: int) -> float:
    """Bytes of the layers' weights that a sampler's step reads, a step being one token of each row.

    rows: slots that take the step. Of experts, those are read that any row chose.
    """
    # Taken as if rows chose independently, each `share` of the experts: the part that at least one
    # of them chose. Of other weights `share` is 1, and all is read.
    return sum(
        layer_bytes * (1 - (1 - share) ** rows)
        for share, layer_bytes in s.weights.layer_bytes_by_share.items()
    )


def prompt_products(s: DeviceSizes) -> int:
    """Bytes of all that the layers make of a block of prompts, whether it is kept or not."""
    layer_bytes = [
        layer.count * layer.all_kept(s.prefill_tokens, s.shapes.prompt_length, PROMPT_KEY_PARTS)
        for layer in s.layers
    ]
    return sum(layer_bytes)


def response_products(s: DeviceSizes) -> int:
    """Bytes of all that the layers make of a microbatch, whether it is kept or not."""
    layer_bytes = [
        layer.count * layer.all_kept(s.microbatch_tokens, s.key_positions, RESPONSE_KEY_PARTS)
        for layer in s.layers
    ]
    return sum(layer_bytes)


def prompt_activations(s: DeviceSizes) -> int:
    """Bytes kept for the gradient of a block of prompts, in all layers."""
    layer_bytes = [
        layer.count * layer.kept(s.prefill_tokens, s.shapes.prompt_length, PROMPT_KEY_PARTS)
        for layer in s.layers
    ]
    return sum(layer_bytes)


def response_activations(s: DeviceSizes) -> int:
    """Bytes kept for the gradient of a microbatch, in all layers."""
    layer_bytes = [
        layer.count * layer.kept(s.microbatch_tokens, s.key_positions, RESPONSE_KEY_PARTS)
        for layer in s.layers
    ]
    return sum(layer_bytes)


def prompt_backward_bytes(s: DeviceSizes) -> int:
    """Bytes in use while a layer is differentiated at a block of prompts."""
    return max(
        layer.backward(s.prefill_tokens, s.shapes.prompt_length, PROMPT_KEY_PARTS)
        for layer in s.layers
    )


def response_backward_bytes(s: DeviceSizes) -> int:
    """Bytes in use while a layer is differentiated at a microbatch."""
    return max(
        layer.backward(s.microbatch_tokens, s.key_positions, RESPONSE_KEY_PARTS)
        for layer in s.layers
    )
