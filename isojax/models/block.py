"""A transformer's layer as a Flax NNX module: RMSNorm, RoPE (arXiv:2104.09864), grouped-query projections, SwiGLU.

Where it is differentiated, each device over `tensor` has a part of the tokens' hidden states, normalizes it, and gets
those of all tokens for a product (`split_tokens`): sequence parallelism, as in Megatron-LM (arXiv:2205.05198)."""

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, PRNGKeyArray

from isojax.core.config import ModelConfig, RopeScaling
from isojax.distributed.sharding import num_input_axes, split_tokens
from isojax.models import fsdp
from isojax.models.cpu import sum_in_blocks
from isojax.models.fsdp import all_gather_weight
from isojax.models.lora import ADAPTER_A, ADAPTER_B

MLP_INPUT = "mlp_input"  # the name of the hidden states after attention, which a checkpoint may keep
CosSin = tuple[Float[Array, "*b half"], Float[Array, "*b half"]]  # cosines and sines, by position
Matmul = Callable[..., Array]  # (rows, weight, outputs) -> rows, as fsdp.matmul


def rms_norm(x: Float[Array, "*b D"], scale: Float[Array, " D"], eps: float) -> Float[Array, "*b D"]:
    """x / rms(x) * scale: rms in float32, the scale in x's own precision, as the published models do it."""
    y = x.astype(jnp.float32)
    normed = (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)).astype(x.dtype)
    return normed * scale.reshape((1,) * (x.ndim - 1) + (-1,))


def as_matrix(x: Array, leading_axes: int = -1) -> Array:
    """x as a matrix: XLA:CPU transposes weights or activations in products of more axes."""
    return x.reshape(math.prod(x.shape[:leading_axes]), -1)


def rope_frequencies(head_dim: int, base: float, scaling: RopeScaling | None) -> Float[np.ndarray, " half"]:
    """Radians per position of each pair of head dimensions: base^(-2i / head_dim), rounded to float32 at each step as
    transformers does, with which published models were trained.

    With `scaling`, as in Llama 3.1, a wavelength beyond original / low_freq_factor grows by `factor`, one below
    original / high_freq_factor stays, and between them the frequency is linear in original / wavelength."""
    f32 = np.float32
    exponents = np.arange(0, head_dim, 2, dtype=f32) / f32(head_dim)
    powers = (np.float64(f32(base)) ** exponents).astype(f32)  # a power in float32 is off by a unit here and there
    unscaled = f32(1) / powers
    if scaling is None:
        return unscaled
    low, high, factor = (f32(x) for x in (scaling.low_freq_factor, scaling.high_freq_factor, scaling.factor))
    wavelengths = f32(2 * np.pi) / unscaled
    rotations = f32(scaling.original_max_position_embeddings) / wavelengths  # within the original context
    unscaled_weight = np.clip((rotations - low) / (high - low), f32(0), f32(1))
    return (1 - unscaled_weight) * unscaled / factor + unscaled_weight * unscaled


def apply_rope(x: Float[Array, "b t heads H"], cos_sin: CosSin) -> Float[Array, "b t heads H"]:
    """x rotated by the angles of its positions, the halves of a head against each other."""
    half = x.shape[-1] // 2
    cos, sin = (y[:, :, None].astype(x.dtype) for y in cos_sin)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def param(value: Array, *axes: str) -> nnx.Param:
    return nnx.Param(value, out_sharding=axes, eager_sharding=False)


@cache  # what is traced with a policy is found again by the policy itself
def remat_policy(remat: str, adapter_rank: int | None) -> Callable[..., Any] | None:
    """What a layer keeps for its gradient: nothing, or products, but instead of attention's output projection its sum
    with the hidden states, which the MLP reads. Norms, activations and a prompt's keys and values by response are
    computed again, and so are an adapter's outputs, as large as the product that they are added to."""
    policies = jax.checkpoint_policies
    products = policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names(MLP_INPUT))
    if adapter_rank is None or remat == "layer":
        return None if remat == "layer" else products

    def all_but_adapters(primitive: Any, *inputs: Any, **params: Any) -> Any:
        is_adapter_product = len(inputs) == 2 and inputs[1].ndim == 2 and inputs[1].shape[0] == adapter_rank
        return products(primitive, *inputs, **params) and not is_adapter_product

    return all_but_adapters


class Block(nnx.Module):
    """One layer: its weights, and the work before and after attention."""

    def __init__(self, config: ModelConfig, key: PRNGKeyArray):
        self.config = config
        D, N, K, H, F = config.width, config.heads, config.kv_heads, config.head_dim, config.mlp
        residual_scale, key_index = (2 * config.layers) ** -0.5, itertools.count()

        def weight(shape: tuple[int, ...], *axes: str, fan_in: int, gain: float = 1.0) -> nnx.Param:
            normal = jax.random.normal(jax.random.fold_in(key, next(key_index)), shape)
            return param(normal * gain * fan_in**-0.5, *axes)

        self.attention_norm = param(jnp.ones(D), "embed")
        self.query = weight((D, N, H), "embed", "heads", "head_dim", fan_in=D)
        self.key = weight((D, K, H), "embed", "kv_heads", "head_dim", fan_in=D)
        self.value = weight((D, K, H), "embed", "kv_heads", "head_dim", fan_in=D)
        self.out = weight((N, H, D), "heads", "head_dim", "embed", fan_in=N * H, gain=residual_scale)
        self.mlp_norm = param(jnp.ones(D), "embed")
        self.gate = weight((D, F), "embed", "mlp", fan_in=D)
        self.up = weight((D, F), "embed", "mlp", fan_in=D)
        self.down = weight((F, D), "mlp", "embed", fan_in=F, gain=residual_scale)
        if config.qkv_bias:
            self.query_bias = param(jnp.zeros((N, H)), "heads", "head_dim")
            self.key_bias = param(jnp.zeros((K, H)), "kv_heads", "head_dim")
            self.value_bias = param(jnp.zeros((K, H)), "kv_heads", "head_dim")
        if config.qk_norm:
            self.query_norm = param(jnp.ones(H), "head_dim")
            self.key_norm = param(jnp.ones(H), "head_dim")
        for name in config.lora.targets if config.lora else ():
            self._add_adapter(name, jax.random.fold_in(key, next(key_index)))

    def _add_adapter(self, name: str, key: PRNGKeyArray) -> None:
        """A as PEFT draws it, uniform within 1 / sqrt(inputs), and B of zeros."""
        w, lora = getattr(self, name), self.config.lora
        assert lora is not None
        axes = w.get_metadata()["out_sharding"]
        inputs = num_input_axes(axes)
        a_shape, b_shape = (*w.shape[:inputs], lora.rank), (lora.rank, *w.shape[inputs:])
        bound = math.prod(w.shape[:inputs]) ** -0.5
        a, b = jax.random.uniform(key, a_shape, minval=-bound, maxval=bound), jnp.zeros(b_shape)
        setattr(self, name + ADAPTER_A, param(a, *axes[:inputs], "rank"))
        setattr(self, name + ADAPTER_B, param(b, "rank", *axes[inputs:]))

    def _product(self, x: Float[Array, "r i"], name: str, matmul: Matmul, outputs: int | None = None) -> Array:
        leading_axes = -1 if name == "out" else 1  # those of inputs, or all but the last
        product = matmul(x, as_matrix(getattr(self, name)[...], leading_axes), outputs)
        return self._with_adapter(product, x, name, matmul, outputs)

    def _with_adapter(
        self, product: Array, x: Float[Array, "r i"], name: str, matmul: Matmul, outputs: int | None
    ) -> Array:
        """What x times the matrix `name` is, in any shape, and the adapter's product, if it has one."""
        lora = self.config.lora
        if lora is None or name not in lora.targets:
            return product
        a, b = getattr(self, name + ADAPTER_A)[...], getattr(self, name + ADAPTER_B)[...]
        adapter_product = matmul(matmul(x, as_matrix(a)), as_matrix(b, 1), outputs)
        return product + lora.alpha / lora.rank * adapter_product.reshape(product.shape)

    def project_qkv(
        self, x: Float[Array, "b t D"], cos_sin: CosSin, matmul: Matmul = fsdp.matmul
    ) -> tuple[Float[Array, "b t N H"], Float[Array, "b K t H"], Float[Array, "b K t H"]]:
        """Queries, keys and values, with rotary positions applied to queries and keys."""
        config = self.config
        norm_scale = all_gather_weight(self.attention_norm[...], 0, config.width)
        normed = as_matrix(split_tokens(rms_norm(x, norm_scale, config.norm_eps), False))
        q, k, v = (
            self._product(normed, name, matmul).reshape(*x.shape[:2], -1, config.head_dim)
            for name in ("query", "key", "value")
        )
        if config.qkv_bias:
            q = q + self.query_bias[...][None, None]
            k = k + self.key_bias[...][None, None]
            v = v + self.value_bias[...][None, None]
        if config.qk_norm:
            q = rms_norm(q, self.query_norm[...], config.norm_eps)
            k = rms_norm(k, self.key_norm[...], config.norm_eps)
        return apply_rope(q, cos_sin), apply_rope(k, cos_sin).swapaxes(1, 2), v.swapaxes(1, 2)

    def attention_output_and_mlp(
        self,
        x: Float[Array, "b t D"],
        attention_out: Float[Array, "b t N H"],
        matmul: Matmul = fsdp.matmul,
        first_tokens: slice | None = None,
    ) -> Float[Array, "b t D"]:
        """Output projection and MLP, both residual. `first_tokens`: those that begin sequences, for `sum_in_blocks`."""
        D = self.config.width
        out = self._product(as_matrix(attention_out, 2), "out", matmul, D).reshape(x.shape)
        x = checkpoint_name(x + split_tokens(out, True), MLP_INPUT)
        normed = rms_norm(x, all_gather_weight(self.mlp_norm[...], 0, D), self.config.norm_eps)
        normed = as_matrix(split_tokens(normed, False))
        gated = jax.nn.silu(self._product(normed, "gate", matmul)) * self._product(normed, "up", matmul)
        mlp_out = matmul(gated, self.down[...], D).reshape(x.shape)
        if first_tokens is not None:
            mlp_out = sum_in_blocks(mlp_out, gated.reshape(*x.shape[:2], -1), self.down[...], first_tokens)
        return x + split_tokens(self._with_adapter(mlp_out, gated, "down", matmul, D), True)
