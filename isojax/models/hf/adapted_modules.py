"""LoRA's adapters as modules of a published model have them. PEFT adapts a module, and a module may
hold several of our matrices in one (`Spec.part`), each of which has an adapter of its own here.

Of queries W_q and keys W_k in one module, whose outputs are one after the other, the adapters
together are one, of the sum of their ranks:

    x [A_q A_k] [B_q   0 ] = [x A_q B_q, x A_k B_k]
                [ 0   B_k]

PEFT multiplies by alpha / rank, so the module's alpha is as many times that of a part as its rank
is.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isojax.models.layers.linear import ADAPTER_A, ADAPTER_B
from isojax.models.spec import Spec
from isojax.models.stack import stacks_of

WEIGHT = ".weight"


@dataclass(frozen=True)
class AdaptedModule:
    """A module of a published model, and its adapter as PEFT stores it."""

    name: str  # model.layers.0.self_attn.qkv_proj
    a: np.ndarray  # [rank, inputs]
    b: np.ndarray  # [outputs, rank]

    @property
    def kind(self) -> str:
        """The end of its name, by which PEFT finds such modules: qkv_proj."""
        return self.name.rpartition(".")[2]

    @property
    def rank(self) -> int:
        return len(self.a)


@dataclass(frozen=True)
class Adapter:
    """One of our matrices' adapters, in one layer."""

    of: Spec
    a: np.ndarray  # [rank, inputs]
    b: np.ndarray  # [outputs, rank]


def adapted_modules(adapters: Mapping[str, Any], specs: Mapping[str, Any]) -> list[AdaptedModule]:
    """Return the adapted modules of all layers, each with its joint adapter.

    `adapters`: by stack, {"blocks": {"query_lora_a": [L D rank], ...}}. `specs`: those of the
    policy with its adapters, in the same tree."""
    adapters_by_module: dict[str, list[Adapter]] = defaultdict(list)
    for stack, by_name in stacks_of(specs).items():
        for spec in by_name.values():
            if spec.name + ADAPTER_A not in by_name:
                continue
            a = as_stored(adapters[stack], by_name[spec.name + ADAPTER_A])
            b = as_stored(adapters[stack], by_name[spec.name + ADAPTER_B])
            for number, name in enumerate(spec.tensor_names()):
                module = name.removesuffix(WEIGHT)
                adapters_by_module[module].append(Adapter(spec, a[number], b[number]))
    return [join(name, parts) for name, parts in adapters_by_module.items()]


def as_stored(adapters: Mapping[str, Any], spec: Spec) -> np.ndarray:
    """Return an A or a B of all layers and experts as PEFT stores it, [_, outputs, inputs].

    Its first axis is in the order of the Spec's `tensor_names`."""
    value = np.asarray(adapters[spec.name], np.float32)
    return value.reshape(-1, *spec.matrix_shape).swapaxes(1, 2)


def join(name: str, parts: list[Adapter]) -> AdaptedModule:
    """Return the adapter of the module `name`, of which these matrices are adapted.

    `parts`: at least one. In the joint A the parts' ranks follow each other in this order."""
    outputs, _ = parts[0].of.stored_shape  # of the whole module
    a = np.concatenate([part.a for part in parts])
    b = np.zeros((outputs, len(a)), np.float32)

    # each part's B where its outputs meet its columns of the joint A
    column = 0
    for part in parts:
        # the module's output that is the part's first; the whole module is no part
        row = 0 if part.of.part is None else part.of.part.first
        rows, rank = part.b.shape
        b[row : row + rows, column : column + rank] = part.b
        column += rank
    return AdaptedModule(name, a, b)
