"""LoRA (arXiv:2106.09685): a matrix W of a layer is used as x W + alpha / rank * (x A) B. Its
adapter, A and B, is trained, and all that the base policy has stays.

An adapter is two more weights of its layer, `query_lora_a` [L D rank] and `query_lora_b` [L rank N
H]. The training state holds them alone; `policy_params` adds the base policy's, with no copy.
Without LoRA the training state holds all parameters, and `policy_params` returns them as they are.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from isojax.core.config.model import LoraConfig
from isojax.core.errors import InputError
from isojax.models.layers.linear import ADAPTER_A, ADAPTER_B, Adapted, Linear
from isojax.models.layers.mixture import EXPERT_MATRICES, EXPERTS_TARGET, ExpertMLP
from isojax.models.spec import Spec, spec_of
from isojax.models.stack import stacks_of


class AdaptedLayer(NamedTuple):
    """A described layer with adapters."""

    layer: Any
    specs_by_target: dict[str, list[Spec]]  # the adapters', in the order of lora.targets


def add_adapters(layer: Any, lora: LoraConfig) -> AdaptedLayer:
    """Put adapters on those of LoRA's targets that a described layer has.

    `layer`: such as a `Block`. Targets name Linears ("query", "gate", ...), or "experts".
    InputError where the layer has none of them."""
    specs_by_target: dict[str, list[Spec]] = {}

    def can_adapt(module: Any) -> bool:
        return isinstance(module, (Linear, ExpertMLP))

    # notes the adapters' Specs in `specs_by_target`, in the order of the layer's modules; below
    # they come in the order of lora.targets
    def adapt(module: Any) -> Any:
        if isinstance(module, ExpertMLP) and EXPERTS_TARGET in lora.targets:
            experts = module.with_adapters(lora)
            specs_by_target[EXPERTS_TARGET] = [spec_of(part) for part in experts.adapters]
            return experts
        if isinstance(module, Linear) and module.spec.adapts in lora.targets:
            adapted = Adapted(module, lora.rank, lora.alpha)
            specs_by_target[module.spec.adapts] = [adapted.a.spec, adapted.b.spec]
            return adapted
        return module

    # parameters outside of such modules, as of norms, come back as they are
    adapted_layer = jax.tree.map(adapt, layer, is_leaf=can_adapt)
    if not specs_by_target:
        targets = ", ".join(lora.targets)
        raise InputError(
            where=f"cell.model.lora.targets = {targets}",
            found="a layer of this family has none of them",
        )
    targets_here = [target for target in lora.targets if target in specs_by_target]
    in_order = {target: specs_by_target[target] for target in targets_here}
    return AdaptedLayer(adapted_layer, in_order)


def check_targets(lora: LoraConfig, adapted_targets: Collection[str]) -> None:
    """Raise InputError where a target that the user has named is in no layer.

    `adapted_targets`: those that some layer has. The default names more than some families have, so
    it is not refused."""
    missing = [target for target in lora.targets if target not in adapted_targets]
    if missing and lora.targets != LoraConfig().targets:
        raise InputError(
            where="cell.model.lora.targets",
            found=f"no layer of this family has {', '.join(missing)}",
            expected=f"some of {', '.join(adapted_targets)}",
        )


def is_adapter(name: str) -> bool:
    return name.endswith((ADAPTER_A, ADAPTER_B))


class SplitTree(NamedTuple):
    """A tree of parameters, or of their shapes or shardings, in two."""

    adapters: dict[str, Any]  # by stack of layers
    base: dict[str, Any]  # what the base policy has


def split_adapters(tree: dict[str, Any]) -> SplitTree:
    """Split a tree of parameters into adapters, by stack, and all else."""
    adapters = {}
    base = dict(tree)
    for stack, weights in stacks_of(tree).items():
        adapters[stack] = {name: x for name, x in weights.items() if is_adapter(name)}
        base[stack] = {name: x for name, x in weights.items() if not is_adapter(name)}
    return SplitTree(adapters, base)


def policy_params(trained: dict[str, Any], base_params: dict[str, Any]) -> dict[str, Any]:
    """Return the policy's parameters from those that are trained.

    `trained`: all of them, known by the embedding, or adapters by stack, with which the base
    policy's are joined."""
    if "embed" in trained:
        return trained
    with_adapters = {stack: base_params[stack] | adapters for stack, adapters in trained.items()}
    return base_params | with_adapters


def merge_adapters(params: dict[str, Any], lora: LoraConfig | None) -> dict[str, Any]:
    """Return the parameters with W + alpha / rank * A B in each W's place, and no adapters.

    `params`: the policy's, adapters included. `lora`: None: there are no adapters, and
    the parameters come back as they are."""
    if lora is None:
        return params
    split = split_adapters(params)

    def merge(name: str, w: Array, of_stack: dict[str, Array]) -> Array:
        """The weight [L ...] of a stack with its adapter, where it has one among these."""
        if name + ADAPTER_A not in of_stack:
            return w

        num_matrices = len(w)  # one for each layer, or for each of its experts
        if name in EXPERT_MATRICES:
            num_matrices *= w.shape[1]
        # [matrices, inputs, rank] and [matrices, rank, outputs]
        a = of_stack[name + ADAPTER_A].reshape(num_matrices, -1, lora.rank)
        b = of_stack[name + ADAPTER_B].reshape(num_matrices, lora.rank, -1)
        product = jnp.einsum("lir,lro->lio", a, b)
        return w + (lora.alpha / lora.rank) * product.reshape(w.shape)

    merged = dict(split.base)
    for stack, of_stack in split.adapters.items():
        weights = split.base[stack]
        merged[stack] = {name: merge(name, w, of_stack) for name, w in weights.items()}
    return merged
