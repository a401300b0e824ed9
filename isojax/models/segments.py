"""A model's layers as segments of stacks (stack.py): from the family's description, with LoRA's
adapters where the config has some."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import jax
from jaxtyping import Array

from isojax.core.config import ModelConfig
from isojax.models.architecture import Architecture, Kind
from isojax.models.lora import add_adapters
from isojax.models.spec import LayerDescription, Spec, specs_of
from isojax.models.stack import (
    FIRST_STACK,
    AttentionShape,
    Segment,
    Stack,
    plan,
    probe_attention,
    router_shape,
)


@dataclass(frozen=True)
class DescribedLayers:
    segments: list[Segment]
    adapted_targets: list[str]  # of LoRA, in any layer; each once, in the order of layers


def describe_layers(architecture: Architecture, config: ModelConfig) -> DescribedLayers:
    """Describe all layers of a model as segments: periods of layers, each with its repeats.

    The i-th layer of a period and those at the same place of its repeats are one stack. Stacks are
    named "blocks", "blocks_1", ... in this order, by which parameters and checkpoints know them.
    InputError where `probe_attention` or LoRA's targets refuse a layer."""
    described = {}
    targets: dict[str, None] = {}
    for kind in dict.fromkeys(architecture.kinds):
        described[kind] = _describe_kind(architecture, config, kind)
        targets |= dict.fromkeys(described[kind].adapted_targets)

    segments: list[Segment] = []
    first_layer = num_stacks = 0
    for period, repeats in plan(architecture.kinds):
        end = first_layer + len(period) * repeats
        stacks = []
        for i, kind in enumerate(period):
            name = FIRST_STACK if num_stacks == 0 else f"{FIRST_STACK}_{num_stacks}"
            num_stacks += 1

            # the i-th layer of each repeat
            layers = range(first_layer + i, end, len(period))
            stacks.append(described[kind].stack(name, layers))

        segments.append(Segment(tuple(stacks), repeats))
        first_layer = end
    return DescribedLayers(segments, list(targets))


@dataclass(frozen=True)
class DescribedKind:
    """A layer of a kind, which all stacks of the kind share."""

    described: LayerDescription  # with adapters, where there are any
    base: LayerDescription  # without
    attention: AttentionShape
    specs: tuple[Spec, ...]
    adapted_targets: list[str]  # those of LoRA's that the layer has

    def stack(self, name: str, layers: range) -> Stack:
        """These layers of the model as a stack: "blocks", "blocks_1", ..."""
        return Stack(
            name=name,
            layers=layers,
            described=self.described,
            base=self.base,
            attention=self.attention,
            router=router_shape(self.base),
            specs=self.specs,
        )


def _describe_kind(architecture: Architecture, config: ModelConfig, kind: Kind) -> DescribedKind:
    """Describe a layer of a kind, as `architecture.block` takes it."""
    block = architecture.block(kind)
    # the same where there are no adapters
    base = adapted = LayerDescription(block)
    specs = list(specs_of(block))
    targets: list[str] = []
    if config.lora is not None:
        with_adapters, specs_by_target = add_adapters(block, config.lora)
        adapted = LayerDescription(with_adapters)
        # after those of the base policy, whose initial values they leave as they are
        specs += chain.from_iterable(specs_by_target.values())
        targets = list(specs_by_target)

    return DescribedKind(
        described=adapted,
        base=base,
        attention=probe_attention(base, config.width),
        specs=tuple(specs),
        adapted_targets=targets,
    )


def change_segments(
    segments: Sequence[Segment], describe_again: Callable[[LayerDescription], LayerDescription]
) -> list[Segment]:
    """The same layers, each described in another way."""
    changed = []
    for segment in segments:
        stacks = tuple(_change_stack(stack, describe_again) for stack in segment.stacks)
        changed.append(replace(segment, stacks=stacks))
    return changed


def _change_stack(
    stack: Stack, describe_again: Callable[[LayerDescription], LayerDescription]
) -> Stack:
    described = describe_again(stack.described)
    base = describe_again(stack.base)
    return replace(stack, described=described, base=base, specs=tuple(described.specs.values()))


def init_layer(specs: Sequence[Spec], key: Array) -> dict[str, Array]:
    """Draw a layer's initial values, by the names of its Specs.

    Each drawn parameter has its key by its number among the drawn ones: so an added constant
    changes no other value, and the Specs' order must not change."""
    values = {}
    num_drawn = 0
    for spec in specs:
        values[spec.name] = spec.init(jax.random.fold_in(key, num_drawn), spec.shape)
        num_drawn += spec.init.is_drawn
    return values
