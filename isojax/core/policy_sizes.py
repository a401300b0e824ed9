"""What a planner needs to know of a policy: the axes of its weights and what its attention keeps. models/ makes it of
the policy's description."""

from dataclasses import dataclass

SizedAxes = tuple[tuple[str, int], ...]  # logical names and sizes, as distributed/mesh_spec.py splits them


@dataclass(frozen=True)
class WeightSizes:
    """A parameter; of layers that are alike, one layer's."""

    name: str
    axes: SizedAxes
    stack: str = ""  # of its layers in the parameters' tree; empty outside of layers
    layers: int = 1
    is_adapter: bool = False
    share: float = 1.0  # of its entries, how many a token is multiplied by
    int8_outputs: SizedAxes = ()  # of which an int8 form has a scale each; empty: it is never int8


@dataclass(frozen=True)
class AttentionSizes:
    """Of layers whose attention is alike."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None  # positions that a token sees, its own included; None: all


@dataclass(frozen=True)
class PolicySizes:
    vocab: int
    width: int  # of the residual stream
    mlp: int  # hidden values of an MLP that a token meets, in the layer with most
    weights: tuple[WeightSizes, ...]
    attention: tuple[AttentionSizes, ...]

    @property
    def layers(self) -> int:
        return sum(sizes.layers for sizes in self.attention)
