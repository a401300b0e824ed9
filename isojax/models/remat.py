"""What a layer keeps for its gradient."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax

from isojax.models.layers.block import MLP_INPUT
from isojax.models.layers.mixture import EXPERT_PRODUCT


@cache  # what is traced with a policy is found again by the policy itself
def remat_policy(remat: str, adapter_rank: int | None) -> Callable[..., Any] | None:
    """Return a policy for jax.checkpoint: what a layer keeps for its gradient.

    `remat`: "layer": nothing, and the policy is None; "none": products. `adapter_rank`: of LoRA;
    None: no adapters.

    Of products, in the place of attention's output projection its sum with the hidden states is
    kept, which the MLP reads. Norms, activations and a prompt's keys and values by response are
    computed again, and so are an adapter's outputs, as large as the product that they are added to.
    XLA does not count products of experts with their own rows as products: they are kept by a name,
    EXPERT_PRODUCT."""
    if remat == "layer":
        return None
    policies = jax.checkpoint_policies
    named = policies.save_only_these_names(MLP_INPUT, EXPERT_PRODUCT)
    products = policies.save_from_both_policies(policies.dots_saveable, named)
    if adapter_rank is None:
        return products

    def all_but_adapters(primitive: Any, *inputs: Any, **params: Any) -> Any:
        # x A B ends with a product by B [rank, outputs]
        is_adapter_product = (
            len(inputs) == 2 and inputs[1].ndim == 2 and inputs[1].shape[0] == adapter_rank
        )
        return products(primitive, *inputs, **params) and not is_adapter_product

    return all_but_adapters
