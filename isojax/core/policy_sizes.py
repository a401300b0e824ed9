"""What a planner needs to know of a policy: what its weights, its layers and its cache take.

models/describe_sizes.py answers from the policy's description, so that nothing here or in launch/
says what a layer consists of.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from isojax.core.config import PrecisionConfig

# An array's axes: logical names and sizes, as distributed/mesh_spec.py splits them, such as
# (("embed", 576), ("mlp", 1536)).
SizedAxes = tuple[tuple[str, int], ...]
# From an array's axes to those of a device's part of it. Hashable, as what follows from it is kept.
Split = Callable[[SizedAxes], SizedAxes]


@dataclass(frozen=True)
class WeightSizes:
    """A weight; of layers that are alike, one layer's."""

    name: str
    axes: SizedAxes
    stack: str = ""  # of its layers in the parameters' tree; empty outside of layers
    layers: int = 1  # that have such a weight
    is_adapter: bool = False  # of LoRA
    # of its entries, how many a token is multiplied by: of 8 experts' weights with 2 of them for
    # each token, 0.25
    share: float = 1.0
    dtype: str = "float32"


@dataclass(frozen=True)
class AttentionSizes:
    """Of layers whose attention is alike."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None  # positions that a token sees, its own included; None: all


@dataclass(frozen=True)
class KeptBytes:
    """What a layer keeps of each token for its gradient, besides what attention keeps."""

    states: int  # of hidden states between products, which devices share by tokens
    products: int  # of what they have of all tokens


@dataclass(frozen=True)
class LayerSizes:
    """A layer of a stack, as a device holds it."""

    layers: int  # of the stack
    # values of a token inside an MLP; of experts, of the token's copies for each of its experts
    mlp_values: int
    # values of a token, and their gradients, while the MLP is differentiated
    mlp_gradient_values: int
    kept: KeptBytes  # where products are kept
    kept_by_remat: KeptBytes  # where the layer is computed again


@dataclass(frozen=True)
class CacheShape:
    """The rows and positions of a sampler's keys and values."""

    slots: int
    slots_per_prefix: int
    prefix_entries: int  # prompts in the table
    prompt_positions: int  # of a prompt, those that a device holds
    response_length: int
    positions_split: bool  # whether devices share the positions of prompts


class PolicySizes(Protocol):
    @property
    def vocab(self) -> int: ...

    @property
    def width(self) -> int:
        """Of the residual stream."""
        ...

    @property
    def weights(self) -> Sequence[WeightSizes]:
        """The parameters, those of the base policy and adapters."""
        ...

    @property
    def recorded_bytes(self) -> int:
        """Of the experts that a token meets, as a sampler records them; 0 where there are none."""
        ...

    @property
    def attention(self) -> Sequence[AttentionSizes]:
        """Of each stack of layers."""
        ...

    def sampler_weights(self, precision: PrecisionConfig) -> Sequence[WeightSizes]:
        """The weights as a sampler stores them.

        Cast, with adapters merged or apart, or as int8 with scales.
        """
        ...

    def layer_sizes(self, compute: str, platform: str, split: Split) -> Sequence[LayerSizes]:
        """A layer of each stack, as products are computed in `compute` on a platform."""
        ...

    def cache_bytes(
        self, shape: CacheShape, precision: PrecisionConfig, attention: str, split: Split
    ) -> int:
        """Of the sampler's keys and values on a device, the table of prompts included. `attention`:
        which decodes."""
        ...
