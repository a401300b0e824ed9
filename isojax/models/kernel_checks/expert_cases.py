"""Products of a mixture of experts on inputs that show mistakes at borders of groups and blocks."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from isojax.core.policy_sizes import PolicySizes
from isojax.models.kernel_checks.kernel_errors import PLAIN
from isojax.models.kernels.tpu_experts import multiply_by_all_experts
from isojax.models.kernels.tpu_grouped import grouped_product
from isojax.models.layers.mixture import EXPERT_MATRICES, add_all_experts, weights_by_expert

LAYERS = 2  # of a stack of which the kernel reads the second
# At a run's shapes, more of these are compared by fewer: the kernels' blocks are no larger.
MAX_ROWS = 64
MAX_EXPERTS = 8
MAX_HIDDEN = 512
INTERPRET = "interpret"


@dataclass(frozen=True)
class ExpertsCase:
    """What all experts of a layer make of a few rows (models/kernels/tpu_experts.py)."""

    rows: int  # r
    width: int  # D
    hidden: int  # F
    experts: int  # E
    top_k: int  # experts of a row
    dtype: str

    @property
    def is_float32(self) -> bool:
        return self.dtype == "float32"

    def outputs(self, implementation: str, in_float32: bool, key: Array) -> Mapping[str, Array]:
        """As of `KernelCase`; vectors of `width` numbers."""
        E, D, F = self.experts, self.width, self.hidden
        dtype = jnp.dtype("float32" if in_float32 else self.dtype)

        def draw(number: int, *shape: int, size: float = 1.0) -> Array:
            x = size * jax.random.normal(jax.random.fold_in(key, number), shape)
            return x.astype(self.dtype).astype(dtype)

        rows = draw(0, self.rows, D)
        matrices = (
            draw(1, LAYERS, E, D, F, size=D**-0.5),
            draw(2, LAYERS, E, D, F, size=D**-0.5),
            draw(3, LAYERS, E, F, D, size=F**-0.5),
        )
        preferences = jax.random.uniform(jax.random.fold_in(key, 4), (self.rows, E))
        _, chosen = lax.top_k(preferences, self.top_k)
        weights = jnp.full(chosen.shape, 1 / self.top_k, jnp.float32)

        if implementation == PLAIN:
            of_layer = [x[1] for x in matrices]
            out = add_all_experts(0, of_layer, rows, chosen, weights)
        else:
            by_expert = weights_by_expert(0, E, chosen, weights)
            interpret = implementation == INTERPRET
            out = multiply_by_all_experts(rows, by_expert, matrices, jnp.int32(1), interpret)
        return {"rows": out}


def experts_case(policy: PolicySizes, rows: int, dtype: str) -> ExpertsCase | None:
    """The comparison for the experts of a policy; None for a policy without any.

    rows: the slots of its sampler. dtype: of products."""
    sizes = _expert_axes(policy)
    if sizes is None:
        return None
    experts = min(sizes["expert"], MAX_EXPERTS)
    return ExpertsCase(
        rows=min(rows, MAX_ROWS),
        width=sizes["embed"],
        hidden=min(sizes["mlp"], MAX_HIDDEN),
        experts=experts,
        top_k=min(2, experts),
        dtype=dtype,
    )


def grouped_case(policy: PolicySizes, dtype: str) -> "GroupedCase | None":
    """The comparison for the update of a policy's experts; None for a policy without any."""
    sizes = _expert_axes(policy)
    if sizes is None:
        return None
    return GroupedCase(
        rows=1024,  # two tiles
        inputs=sizes["embed"],
        outputs_per_row=min(sizes["mlp"], MAX_HIDDEN),
        experts=min(max(sizes["expert"], 4), MAX_EXPERTS),
        dtype=dtype,
    )


def _expert_axes(policy: PolicySizes) -> dict[str, int] | None:
    """The sizes of `expert`, `embed` and `mlp`, of the first matrix of the policy's experts."""
    first_matrix = EXPERT_MATRICES[0]
    return next((dict(w.axes) for w in policy.weights if w.name == first_matrix), None)


@dataclass(frozen=True)
class GroupedCase:
    """Products of groups of rows, and their gradients (models/kernels/tpu_grouped.py).

    Groups end around borders of tiles, one has no rows, and some rows are of no group.
    """

    rows: int  # r, a multiple of 64
    inputs: int
    outputs_per_row: int
    experts: int
    dtype: str

    @property
    def is_float32(self) -> bool:
        return self.dtype == "float32"

    @property
    def group_sizes(self) -> np.ndarray:
        """The first two groups end one before and one behind a quarter and a half of the rows."""
        sizes = np.zeros(self.experts, np.int32)
        quarter = self.rows // 4
        ends = [quarter - 1, quarter - 1, 2 * quarter + 1]  # the second is empty
        last = self.rows - self.rows // 8  # the rest is of no group
        more = np.linspace(ends[-1], last, self.experts - len(ends) + 1)[1:].astype(int)
        sizes[:] = np.diff([0, *ends, *more])
        return sizes

    def outputs(self, implementation: str, in_float32: bool, key: Array) -> Mapping[str, Array]:
        """As of `KernelCase`; vectors along the products' outputs, or inputs."""
        dtype = jnp.dtype("float32" if in_float32 else self.dtype)
        sizes = jnp.asarray(self.group_sizes)
        is_in_group = (jnp.arange(self.rows) < sizes.sum())[:, None]

        def draw(number: int, *shape: int, size: float = 1.0) -> Array:
            x = size * jax.random.normal(jax.random.fold_in(key, number), shape)
            return x.astype(self.dtype).astype(dtype)

        x = jnp.where(is_in_group, draw(0, self.rows, self.inputs), 0)
        matrices = draw(1, self.experts, self.inputs, self.outputs_per_row, size=self.inputs**-0.5)
        cotangent = jnp.where(is_in_group, draw(2, self.rows, self.outputs_per_row), 0)

        def product(x: Array, matrices: Array) -> Array:
            if implementation == PLAIN:
                return lax.ragged_dot(x, matrices, sizes)
            return grouped_product(x, matrices, sizes, implementation == INTERPRET)

        out, vjp = jax.vjp(product, x, matrices)
        of_rows, of_matrices = vjp(cotangent)
        # Rows of no group may hold anything.
        return {
            "products": jnp.where(is_in_group, out, 0),
            "gradient of rows": jnp.where(is_in_group, of_rows, 0),
            "gradient of matrices": of_matrices,
        }
