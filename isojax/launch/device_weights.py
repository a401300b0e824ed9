"""A device's part of a policy's weights: counts of numbers, and bytes of what a run keeps of them.

They are the same for all sizes (slots, rows of a microbatch, ...) that a plan tries on one mesh, so
each is counted once for all of them.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

from isojax.core.config import PrecisionConfig
from isojax.core.policy_sizes import PolicySizes, WeightSizes
from isojax.distributed.mesh_spec import WEIGHT_AXES, MeshShape

FLOAT_BYTES = 4
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
# The mesh axis that splits parameters, gradients and moments, and of which a product gathers each
# weight that it reads.
GATHERED_AXIS = "fsdp"


class DeviceWeights:
    """The weights of one device; D is the policy's width."""

    def __init__(self, policy: PolicySizes, mesh: MeshShape, precision: PrecisionConfig):
        """policy: shapes of its weights. precision: of the device's platform."""
        self.policy = policy
        self.mesh = mesh
        self.precision = precision
        self.compute_bytes = ITEM_BYTES[precision.compute]  # of a number in products

        # What products read is gathered over fsdp; what a run keeps is split by fsdp as well.
        self.split = mesh.split(*WEIGHT_AXES)
        self.kept_split = mesh.split(*WEIGHT_AXES, GATHERED_AXIS)

    # ------------------------------------------------------------------ as products read them

    @cached_property
    def base(self) -> list[WeightSizes]:
        return [weight for weight in self.policy.weights if not weight.is_adapter]

    @cached_property
    def adapters(self) -> list[WeightSizes]:
        return [weight for weight in self.policy.weights if weight.is_adapter]

    @cached_property
    def tables(self) -> list[WeightSizes]:
        """The matrices between tokens and hidden states: an embedding, and an unembedding unless it
        is tied."""
        outside_layers = [weight for weight in self.base if not weight.stack]
        return [weight for weight in outside_layers if "vocab" in dict(weight.axes)]

    def numbers(self, weights: Iterable[WeightSizes]) -> int:
        """How many numbers these weights have on the device, as products read them.

        That is after fsdp's parts were gathered.
        """
        return sum(weight.layers * self.split.size(weight.axes) for weight in weights)

    @cached_property
    def num_params(self) -> int:
        return self.numbers(self.base)

    @cached_property
    def layers_params(self) -> int:
        """How many parameters all layers have on the device, without embeddings."""
        return self.numbers(weight for weight in self.base if weight.stack)

    @cached_property
    def layer_params(self) -> int:
        """How many parameters the largest layer has on the device."""
        layer_of_stack: dict[str, int] = {}
        for weight in self.base:
            if weight.stack:
                before = layer_of_stack.get(weight.stack, 0)
                layer_of_stack[weight.stack] = before + self.split.size(weight.axes)
        return max(layer_of_stack.values())

    @cached_property
    def active_params(self) -> float:
        """Of the layers' parameters, how many a token is multiplied by: of experts, its own."""
        in_layers = [weight for weight in self.base if weight.stack]
        return sum(
            weight.layers * self.split.size(weight.axes) * weight.share for weight in in_layers
        )

    @cached_property
    def table_params(self) -> int:
        """How many numbers the matrix that makes logits has on the device."""
        return max(self.split.size(weight.axes) for weight in self.tables)

    @cached_property
    def gradient_params(self) -> int:
        """How many numbers the gradient of what is trained has, before fsdp splits it."""
        return self.numbers(self.adapters) if self.adapters else self.num_params

    # ------------------------------------------------------------------ what a run keeps

    @property
    def fsdp_shards(self) -> int:
        """Devices that share parameters and their gradients: 1 where fsdp does not divide D."""
        return self.mesh.fsdp if self.policy.width % self.mesh.fsdp == 0 else 1

    @cached_property
    def param_bytes(self) -> int:
        """Of the policy's parameters in float32."""
        return FLOAT_BYTES * self.num_params // self.fsdp_shards

    @cached_property
    def base_bytes(self) -> int:
        """Bytes of the base policy's parameters, in the type in which products are computed.

        The base policy is what LoRA leaves as it is, or what a KL term compares with.
        """
        return self.compute_bytes * self.num_params // self.fsdp_shards

    @cached_property
    def trained_bytes(self) -> int:
        """Bytes of the parameters that are trained, in float32: all, or LoRA's adapters."""
        if not self.adapters:
            return self.param_bytes
        return FLOAT_BYTES * sum(
            weight.layers * self.kept_split.size(weight.axes) for weight in self.adapters
        )

    @property
    def frozen_bytes(self) -> int:
        """Bytes of the base policy that is kept with adapters; 0 where all is trained."""
        return self.base_bytes if self.adapters else 0

    # ------------------------------------------------------------------ the sampler's

    @cached_property
    def of_sampler(self) -> list[WeightSizes]:
        return list(self.policy.sampler_weights(self.precision))

    @cached_property
    def sampler_bytes(self) -> int:
        """Of the weights that the sampler stores, each once."""
        return sum(weight.layers * self._stored_bytes(weight) for weight in self.of_sampler)

    @cached_property
    def sampler_has_adapters(self) -> bool:
        return any(weight.is_adapter for weight in self.of_sampler)

    @cached_property
    def converted_params(self) -> int:
        """How many numbers the sampler stores in less than float32."""
        return self.numbers(weight for weight in self.of_sampler if weight.dtype != "float32")

    @cached_property
    def layer_bytes_by_share(self) -> Mapping[float, int]:
        """Bytes of all layers' weights as the sampler stores them, by `WeightSizes.share`."""
        stored: dict[float, int] = {}
        for weight in self.of_sampler:
            if weight.stack:
                weight_bytes = weight.layers * self._stored_bytes(weight)
                stored[weight.share] = stored.get(weight.share, 0) + weight_bytes
        return stored

    def _stored_bytes(self, weight: WeightSizes) -> int:
        """Of one layer's weight, as the sampler stores it."""
        return ITEM_BYTES[weight.dtype] * self.split.size(weight.axes)

    @property
    def quantises(self) -> bool:
        return self.precision.rollout_weights == "int8"
