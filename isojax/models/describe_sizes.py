"""A policy's sizes, for the planner, from its description."""

from isojax.core.config import ModelConfig
from isojax.core.policy_sizes import AttentionSizes, PolicySizes, WeightSizes
from isojax.models.spec import Spec
from isojax.models.stack import is_stack
from isojax.models.transformer import Decoder


def describe_sizes(model: ModelConfig, vocab: int | None = None) -> PolicySizes:
    """`vocab`: None is the model's own. InputError where the model fits no family."""
    decoder = Decoder(model, vocab)
    weights: list[WeightSizes] = []
    for name, entry in decoder.specs().items():
        specs = list(entry.values()) if is_stack(entry) else [entry]
        weights += [weight_sizes(spec, name if is_stack(entry) else "") for spec in specs]

    attention = tuple(
        AttentionSizes(len(stack.layers), s.heads, s.kv_heads, s.head_dim, s.window)
        for stack in decoder.stacks
        for s in (stack.attention,)
    )
    return PolicySizes(decoder.vocab, model.width, max(map(mlp_values, weights)), tuple(weights), attention)


def weight_sizes(spec: Spec, stack: str) -> WeightSizes:
    axes = tuple((name, size) for name, size in spec.stacked + spec.inputs + spec.outputs if name != "layer")
    int8_outputs = spec.outputs if spec.quantises else ()
    return WeightSizes(
        spec.name, axes, stack, max(len(spec.layers), 1), spec.is_adapter, spec.share, int8_outputs=int8_outputs
    )


def mlp_values(weight: WeightSizes) -> int:
    """Hidden values of an MLP that a token meets at a weight; 0 where it is no MLP's. A token's copies for its experts
    count among them."""
    axes = dict(weight.axes)
    if "mlp" not in axes:
        return 0
    if "expert" not in axes:
        return axes["mlp"]
    return round(weight.share * axes["expert"]) * (axes["mlp"] + axes["embed"])
