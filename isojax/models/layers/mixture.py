"""A mixture of experts (arXiv:2101.03961): a router chooses k of E small MLPs for each token."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from isojax.core.config import ModelConfig
from isojax.core.config.model import LoraConfig
from isojax.core.errors import InputError
from isojax.distributed.sharding import sum_over_experts, traced_platform
from isojax.models.fsdp import all_gather_weight
from isojax.models.layers.attention_layer import residual_gain
from isojax.models.layers.linear import ADAPTER_A, ADAPTER_B, Float32Linear
from isojax.models.spec import Constant, Normal, Sizes, Spec, Uniform, param, spec_of

# Rows up to which all experts multiply all rows on any platform: the memory of a TPU or GPU takes
# longer to deliver a weight in bfloat16 than its units to multiply so many rows by it.
MAX_ROWS_OF_ALL_EXPERTS = 128

# of which there are a whole number where a TPU's kernel multiplies groups of rows
MIN_KERNEL_ROWS = 64

EXPERTS_TARGET = "experts"  # in cell.model.lora.targets: adapters of each expert's three matrices
EXPERT_MATRICES = ("expert_gate", "expert_up", "expert_down")

# the name of products with the experts' first matrices, which a checkpoint may keep
EXPERT_PRODUCT = "expert_product"


class Routing(NamedTuple):
    """What a router decided for each of r tokens."""

    logits: Float[Array, "r E"]
    experts: Int[Array, "r k"]  # by falling weight, unless they are replayed
    weights: Float[Array, "r k"]


class RouterShape(NamedTuple):
    experts: int  # E
    top_k: int  # k, experts of a token


class ExpertMLP(nnx.Module):
    """The gated MLPs of E experts, whose matrices are stacked, and their adapters where
    there are any."""

    def __init__(self, config: ModelConfig, hidden: int, experts: int, share: float):
        """Describe gate, up and down of all experts, [E D F] and [E F D].

        `hidden`: F, the width of an expert's MLP. `experts`: E. `share`: the part of all experts
        that a token meets, k / E, by which a planner counts products."""
        embed, mlp = {"embed": config.width}, {"mlp": hidden}

        def matrices(
            name: str, inputs: Sizes, outputs: Sizes, tensor: str, init: Normal
        ) -> nnx.Param:
            """Make the parameter of one matrix of each expert, [E, *inputs, *outputs].

            `tensor`: such as "gate_proj"; in a checkpoint each expert's matrix is a tensor, whose
            number stands in the name. From outside: experts and share."""
            return param(
                Spec(
                    name=name,
                    stacked=(("expert", experts),),
                    inputs=tuple(inputs.items()),
                    outputs=tuple(outputs.items()),
                    init=init,
                    tensor=f"mlp.experts.{{expert}}.{tensor}.weight",
                    transposed=True,
                    share=share,
                    adapts=EXPERTS_TARGET,
                )
            )

        gate, up, down = EXPERT_MATRICES
        self.gate = matrices(gate, embed, mlp, "gate_proj", Normal(config.width))
        self.up = matrices(up, embed, mlp, "up_proj", Normal(config.width))
        self.down = matrices(down, mlp, embed, "down_proj", Normal(hidden, residual_gain(config)))

        self.adapter_scale = 0.0
        # A and B of gate, up and down, where there are any
        self.adapters: list[nnx.Param] = nnx.data([])

    def with_adapters(self, lora: LoraConfig) -> "ExpertMLP":
        """The same, with adapters of all three matrices."""
        adapted: ExpertMLP = jax.tree.unflatten(jax.tree.structure(self), jax.tree.leaves(self))
        adapted.adapter_scale = lora.alpha / lora.rank
        adapters: list[nnx.Param] = []
        for matrices in (self.gate, self.up, self.down):
            adapters += make_adapter(spec_of(matrices), lora.rank)
        adapted.adapters = nnx.data(adapters)
        return adapted

    def __call__(self, rows: Float[Array, "r D"], routing: Routing) -> Float[Array, "r D"]:
        """What each row's experts make of it, added up by the router's weights."""
        return sum_over_experts(
            add_experts,
            self.gathered(),
            self.axes,
            rows,
            routing.experts,
            routing.weights,
            is_kernel=traced_platform() == "tpu",  # `product_by_group`
        )

    def gathered(self) -> list[Array]:
        """Return gate, up and down, [E D F] twice and [E F D], then the adapters with B scaled.

        All are whole along the axis that fsdp splits. The order is that of `axes`."""
        whole = []
        for parameter in (self.gate, self.up, self.down, *self.adapters):
            spec = spec_of(parameter)
            w = parameter[...]
            if "embed" in spec.axes:  # the axis that fsdp splits
                axis = spec.axes.index("embed")
                w = all_gather_weight(w, axis, spec.shape[axis], spec.axes)
            if spec.name.endswith(ADAPTER_B):
                w = w * self.adapter_scale
            whole.append(w)
        return whole

    @property
    def axes(self) -> list[tuple[str, ...]]:
        return [
            spec_of(parameter).axes for parameter in (self.gate, self.up, self.down, *self.adapters)
        ]


def make_adapter(of: Spec, rank: int) -> tuple[nnx.Param, nnx.Param]:
    """Describe the adapter of the experts' matrices `of`: A [E, inputs, rank], B [E, rank, out].

    They begin as those of a Linear: A uniform within 1 / sqrt(inputs), and B as 0."""
    tensor = of.tensor.removesuffix(".weight")
    between = (("rank", rank),)
    num_inputs, _ = of.matrix_shape

    part = replace(of, adapts="", is_adapter=True)
    a = replace(
        part,
        name=of.name + ADAPTER_A,
        outputs=between,
        init=Uniform(num_inputs**-0.5),
        tensor=f"{tensor}.lora_A.weight",
    )
    b = replace(
        part,
        name=of.name + ADAPTER_B,
        inputs=between,
        init=Constant(0.0),
        tensor=f"{tensor}.lora_B.weight",
    )
    return param(a), param(b)


class MixtureOfExperts(nnx.Module):
    """The experts that a token's router chose, added up by its weights.

    Besides the hidden states, what its caller's caller may want goes through two attributes
    (models/routing.py): `replayed`, experts i32[r k] that are set before a call and that tokens
    meet instead of those of their own choice; and `routing`, the call's Routing."""

    def __init__(
        self, config: ModelConfig, *, experts: int, hidden: int, top_k: int, renormalises: bool
    ):
        """Describe a router and its experts.

        `experts`: E. `hidden`: the width of an expert's MLP. `top_k`: k, the experts that a token
        meets, 1 to E. `renormalises`: whether the chosen ones' weights are divided by their sum.
        InputError where top_k is more than the experts."""
        if top_k > experts:
            raise InputError(
                found=f"a token meets {top_k} experts of {experts} (top_k, in cell.model.options)",
                expected="at most as many as there are",
            )

        self.top_k, self.renormalises = top_k, renormalises
        self.replayed: Array | None = nnx.data(None)
        self.routing: Routing | None = nnx.data(None)
        # A router decides much and is small: every device has it whole, and its product is in
        # float32. Rounded to bfloat16, as transformers rounds the logits of a model in bfloat16,
        # experts would often have equal logits.
        self.router = Float32Linear(
            "router",
            {"embed": config.width},
            {"choice": experts},
            "mlp.gate",
            adapts=False,
            quantises=False,
        )
        self.experts = ExpertMLP(config, hidden, experts, top_k / experts)

    @property
    def shape(self) -> RouterShape:
        [(_, experts)] = self.router.spec.outputs
        return RouterShape(experts, self.top_k)

    def __call__(
        self, x: Float[Array, "b t D"], first_tokens: slice | None = None
    ) -> Float[Array, "b t D"]:
        rows = x.reshape(-1, x.shape[-1])
        routing = self.routing = self.route(rows, self.replayed)
        return self.experts(rows, routing).reshape(x.shape)

    def route(
        self, rows: Float[Array, "r D"], replayed: Int[Array, "r k"] | None = None
    ) -> Routing:
        """Choose each row's experts: softmax over all in float32, then the k largest.

        `rows` [r D]. `replayed`: the numbers of the experts to take instead, of which the router
        gives the weights; None: it chooses."""
        logits = self.router(rows)
        probabilities = jax.nn.softmax(logits, -1)
        if replayed is None:
            weights, experts = lax.top_k(probabilities, self.top_k)
        else:
            weights = jnp.take_along_axis(probabilities, replayed, -1)
            experts = replayed

        if self.renormalises:
            weights = weights / weights.sum(-1, keepdims=True)
        return Routing(logits, experts, weights)


def find_mixture(layer: Any) -> MixtureOfExperts | None:
    """The experts of a layer; None in a dense one."""
    mixtures = [x for _, x in nnx.iter_modules(layer) if isinstance(x, MixtureOfExperts)]
    assert len(mixtures) <= 1, "a layer has one router, whose experts are recorded and counted"
    return mixtures[0] if mixtures else None


def add_experts(
    first_expert: int | Array,
    weights: list[Array],
    rows: Float[Array, "r D"],
    chosen: Int[Array, "r k"],
    chosen_weights: Float[Array, "r k"],
) -> Float[Array, "r D"]:
    """Add up what the experts on this device make of the rows that chose them.

    `first_expert`: the number of the first one here; `weights`: gate, up and down of those here, [E
    D F] twice and [E F D], and maybe adapters: A and B of gate, then of up, then of down. `chosen`,
    `chosen_weights`: each row's experts, of all devices', and their weights. Experts that are not
    here add nothing."""
    # XLA:CPU computes products of each expert's rows expert by expert for all rows, so that it is
    # faster to multiply all experts' matrices at once. So it is elsewhere for few rows, which
    # choose most experts together.
    #
    # It is decided here and not by `lax.platform_dependent`, of which a gradient keeps room for
    # what either way keeps, in every layer.
    is_for_all = traced_platform() == "cpu" or len(rows) <= MAX_ROWS_OF_ALL_EXPERTS
    add = add_all_experts if is_for_all else add_own_experts
    return add(first_expert, weights, rows, chosen, chosen_weights)


def add_own_experts(
    first_expert: int | Array,
    weights: list[Array],
    rows: Float[Array, "r D"],
    chosen: Int[Array, "r k"],
    chosen_weights: Float[Array, "r k"],
) -> Float[Array, "r D"]:
    """Compute `add_experts` by products of each expert's rows with its own matrices.

    The arguments are those of `add_experts`. Every matrix product sees the rows sorted by expert.
    """
    gate, up, down, *adapters = weights
    gate_adapter = adapters[0:2]
    up_adapter = adapters[2:4]
    down_adapter = adapters[4:6]
    count = gate.shape[0]
    k = chosen.shape[1]

    # Each row comes k times. Sorted by expert, each expert's rows are together, and those of
    # experts elsewhere come last, where no group counts them, and where a kernel may leave
    # anything.
    expert_of_choice = chosen.reshape(-1) - first_expert
    is_here = (expert_of_choice >= 0) & (expert_of_choice < count)
    expert_of_choice = jnp.where(is_here, expert_of_choice, count)
    order = jnp.argsort(expert_of_choice)
    # the last bin counts the choices of experts elsewhere, and is dropped
    group_sizes = jnp.bincount(expert_of_choice, length=count + 1)[:count].astype(jnp.int32)

    # From here on one entry for each choice, [rk ...], sorted by expert.
    sorted_here = is_here[order][:, None]
    x = jnp.where(sorted_here, rows[order // k], 0)
    sorted_weights = chosen_weights.reshape(-1)[order][:, None]
    weight = jnp.where(sorted_here, sorted_weights, 0).astype(rows.dtype)

    def add_adapter(y: Array, x: Array, adapter: list[Array]) -> Array:
        """y + x A B; y alone where there is no adapter."""
        if not adapter:
            return y
        a, b = adapter
        return y + lax.ragged_dot(lax.ragged_dot(x, a, group_sizes), b, group_sizes)

    gate_product = checkpoint_name(product_by_group(x, gate, group_sizes), EXPERT_PRODUCT)
    gate_out = add_adapter(gate_product, x, gate_adapter)
    up_product = checkpoint_name(product_by_group(x, up, group_sizes), EXPERT_PRODUCT)
    up_out = add_adapter(up_product, x, up_adapter)

    # Weighted before the last product, so that no gradient needs what comes out of it.
    weighted = jnp.where(sorted_here, jax.nn.silu(gate_out) * up_out * weight, 0)
    down_product = product_by_group(weighted, down, group_sizes)
    outputs = add_adapter(down_product, weighted, down_adapter)

    # Back in the order of rows, and each row's k added up.
    by_choice = jnp.where(is_here[:, None], outputs[jnp.argsort(order)], 0)
    return by_choice.reshape(*chosen.shape, -1).sum(1)


def product_by_group(
    x: Float[Array, "r i"], matrices: Float[Array, "E i o"], group_sizes: Int[Array, " E"]
) -> Float[Array, "r o"]:
    """Multiply each row by its group's matrix; rows of no group may hold anything.

    group_sizes[e] rows are of matrix e, in order; the rest is of no group."""
    if traced_platform() != "tpu" or len(x) % MIN_KERNEL_ROWS:
        return lax.ragged_dot(x, matrices, group_sizes)
    from isojax.models.kernels.tpu_grouped import grouped_product  # loads Pallas

    return grouped_product(x, matrices, group_sizes)


def add_all_experts(
    first_expert: int | Array,
    weights: list[Array],
    rows: Float[Array, "r D"],
    chosen: Int[Array, "r k"],
    chosen_weights: Float[Array, "r k"],
) -> Float[Array, "r D"]:
    """Compute `add_experts` by products of all rows with all matrices, times 0 if not chosen.

    The arguments are those of `add_experts`."""
    gate, up, down, *adapters = weights
    expert_weights = weights_by_expert(first_expert, len(gate), chosen, chosen_weights)
    expert_weights = expert_weights.astype(rows.dtype)  # [r E]

    def of_each(matrices: Float[Array, "E d f"]) -> Float[Array, "E r f"]:
        return jnp.einsum("rd,edf->erf", rows, matrices)

    gate_out, up_out = of_each(gate), of_each(up)
    if adapters:
        # in einsums with adapters, k is the rank
        gate_a, gate_b, up_a, up_b = adapters[:4]
        gate_out = gate_out + jnp.einsum("erk,ekf->erf", of_each(gate_a), gate_b)
        up_out = up_out + jnp.einsum("erk,ekf->erf", of_each(up_a), up_b)

    # The last product sums over the experts too. Reshaped to one matrix, `down` would be copied by
    # a TPU.
    weighted = jax.nn.silu(gate_out) * up_out * expert_weights.T[..., None]
    out = jnp.einsum("erf,efd->rd", weighted, down)
    if adapters:
        down_a, down_b = adapters[4:]
        between = jnp.einsum("erf,efk->erk", weighted, down_a)
        out = out + jnp.einsum("erk,ekd->rd", between, down_b)
    return out


def weights_by_expert(
    first_expert: int | Array,
    count: int,
    chosen: Int[Array, "r k"],
    chosen_weights: Float[Array, "r k"],
) -> Float[Array, "r E"]:
    """Return each row's weight of the `count` experts from `first_expert` on, 0 if not chosen.

    Chosen experts outside of these have no place in it: `one_hot` gives zeros for them."""
    by_choice = jax.nn.one_hot(chosen - first_expert, count) * chosen_weights[..., None]
    return by_choice.sum(1)
