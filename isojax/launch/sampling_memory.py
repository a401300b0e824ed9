"""Bytes of one device while the sampler's weights are made, and while it samples: weights as the
sampler reads them, its slots, and what a step takes. Keys and values are `DeviceSizes.cache_bytes`.

The run keeps parameters in float32, layers in stacks, split over fsdp. The sampler reads them
gathered, as products are computed, as int8 or with adapters merged, and on CPUs and GPUs each
layer as arrays of its own (`Decoding`); a program called `weights` makes these of those.
"""

from isojax.core import shapes
from isojax.launch.device_sizes import DeviceSizes
from isojax.launch.device_weights import FLOAT_BYTES

# Of a slot, besides the tokens that it writes: the small fields of `Slots` (sampling/slots.py).
SLOT_STATE_BYTES = 40

# ------------------------------------------------------------------ the sampler's weights


def stored_weight_bytes(s: DeviceSizes) -> int:
    """Bytes of the weights that the program `weights` makes, each once."""
    return s.weights.sampler_bytes


def moving_weight_bytes(s: DeviceSizes) -> int:
    """Bytes of weights on their way to the sampler's: gathered over fsdp, or cast.

    They are in addition to those that the sampler reads, and 0 where weights are neither gathered
    nor cast. All of them; but where layers are gathered one by one (sampling/stream.py), one layer,
    and the device's part of all, which XLA casts before it gathers.
    """
    # The base policy that is kept with adapters has the type of products already.
    is_cast = s.compute_bytes < FLOAT_BYTES and not s.weights.frozen_bytes
    is_gathered = s.weights.fsdp_shards > 1
    is_unrolled = shapes.layers_are_unrolled(s.backend, s.precision.cache)
    are_gathered_singly = is_gathered and not is_unrolled

    if are_gathered_singly:
        cast_part = s.weights.base_bytes if is_cast else 0
        return s.compute_bytes * s.weights.layer_params + cast_part
    return stored_weight_bytes(s) if is_cast or is_gathered else 0


def merged_layer_bytes(s: DeviceSizes) -> int:
    """Bytes of the layers with adapters merged, of which int8 weights are made; else 0."""
    is_merged = s.weights.adapters and not s.weights.sampler_has_adapters
    if not is_merged or not s.weights.quantises:
        return 0
    return s.compute_bytes * s.weights.layers_params


def transposed_layer_bytes(s: DeviceSizes) -> int:
    """Bytes of layers on their way from a stack to the matrices that a CPU's sampler reads.

    XLA:CPU moves one layer of each stack at a time, and holds one more. 0 on other backends.
    """
    if s.backend != "cpu" or not s.has_unrolled_copy:
        return 0
    layers_on_their_way = 1 + len(s.layers)
    return layers_on_their_way * s.compute_bytes * s.weights.layer_params


def sampling_weight_bytes(s: DeviceSizes) -> int:
    """Bytes of the weights that the sampler reads, in addition to the run's own.

    Each once, gathered and cast, or as int8. Where decoding reads each layer by itself and prompts
    read the stack, both; the stack is the run's own where it is neither cast nor gathered.
    """
    if not s.has_unrolled_copy:
        return stored_weight_bytes(s)

    unrolled_values = s.weights.layers_params + len(s.weights.tables) * s.weights.table_params
    reads_own_stack = s.compute_bytes == FLOAT_BYTES and s.weights.fsdp_shards == 1
    stacked_bytes = 0 if reads_own_stack else stored_weight_bytes(s)
    return stacked_bytes + s.compute_bytes * unrolled_values


# ------------------------------------------------------------------ while it samples


def slot_bytes(s: DeviceSizes) -> int:
    """Bytes of the rows that slots write, and of the hidden states that they begin from."""
    T = s.shapes.response_length
    slots = s.shapes.slots

    # A state after each prompt in the table, and after that of each prefix group.
    prompts = s.shapes.prefix_entries + slots // s.shapes.slots_per_prefix
    last_hidden_states = s.compute_bytes * s.D * prompts

    token_bytes = 8 * T  # a token and its log-probability
    nucleus_bytes = FLOAT_BYTES * (T if s.has_nucleus else 1)  # the mass of each nucleus
    return last_hidden_states + slots * (token_bytes + nucleus_bytes + SLOT_STATE_BYTES)


def sampling_work_bytes(s: DeviceSizes) -> int:
    """Bytes in use while sampling, without weights, cache and slots.

    Of a block of g prompts, or of a step that draws a token for each slot, whichever is more.
    """
    return converted_weight_bytes(s) + max(_prefill_bytes(s), _decode_step_bytes(s))


def converted_weight_bytes(s: DeviceSizes) -> int:
    """Bytes of weights that XLA:CPU converts to float32 before it multiplies, all at once."""
    if s.backend != "cpu":
        return 0
    return FLOAT_BYTES * s.weights.converted_params


def _prefill_bytes(s: DeviceSizes) -> int:
    """Bytes of a block of g prompts on their way through the layers.

    Their keys and values in all layers, two arrays of hidden states, and what the widest layer
    takes in its MLP, or in attention, where scores and weights are there at the same time.
    """
    keys_and_values = s.compute_bytes * s.prefill_tokens * s.kv_values
    hidden_states = s.compute_bytes * s.prefill_tokens * 2 * s.D

    in_mlp = s.compute_bytes * s.prefill_tokens * s.most_mlp_values
    score_bytes = max(layer.score_bytes for layer in s.layers)
    in_attention = 2 * score_bytes * s.prefill_tokens * s.shapes.prompt_length
    return keys_and_values + hidden_states + max(in_mlp, in_attention)


def _decode_step_bytes(s: DeviceSizes) -> int:
    """Bytes of a step, in which each slot takes a token.

    Hidden states, the widest layer's MLP, and for the draw two arrays f32[slots V], or four where
    it is from a nucleus (top_p < 1).
    """
    slots = s.shapes.slots
    arrays = 4 if s.has_nucleus else 2
    draw_bytes = FLOAT_BYTES * slots * s.V * arrays
    return draw_bytes + s.compute_bytes * slots * (s.most_mlp_values + 2 * s.D)
