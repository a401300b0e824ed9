"""The gradient of a batch of rollouts: every prompt forward and backward once, its n responses in microbatches beside it.

For each block of g prompts the prompts' keys and values are computed under `jax.vjp`; an inner loop over microbatches of m
responses accumulates d(params) and d(keys, values); the pull-back of the latter is added at the end. That is P + n T tokens a group
instead of n (P + T). Loops have traced trip counts, so one program serves every B_p and n. The batch has one denominator, its number
of response tokens, divided by once, so microbatches, padding and shards change nothing but rounding.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array

from isojax.config import SamplingConfig
from isojax.models.decoder import Decoder, Params
from isojax.rl.regularizers import entropy, k3
from isojax.sampling.logits import EDGE, log_probs, nucleus, within
from isojax.sampling.batch import Geometry, Problems, Rollouts, share
from isojax.sharding import ROWS, manual_part, partition, shard_count


class Coefficients(NamedTuple):
    """The numbers of a recipe, each a float32 scalar and traced: changing one compiles nothing."""

    clip: ArrayLike
    kl: ArrayLike
    entropy: ArrayLike
    learning_rate: ArrayLike
    weight_decay: ArrayLike
    max_grad_norm: ArrayLike


def response_logits(decoder: Decoder, params: Params, prefix: Any, problems: Problems, group: Array, entry: Array, tokens: Array) -> Array:
    """Logits of every token at each position of the responses [m T V].

    `group` is each row's problem, `entry` its place in `prefix`.
    """
    last = problems.lengths[group] - 1
    inputs = jnp.concatenate([problems.prompts[group, last][:, None], tokens[:, :-1]], 1)
    hidden = decoder.score(params, inputs, last, prefix, entry)
    return decoder.logits(params, hidden)


def chosen(log_p: Array, tokens: Array) -> Array:
    """The log-probability of each response token [m T]."""
    return jnp.take_along_axis(log_p, tokens[..., None], -1)[..., 0]


def build_gradient(
    decoder: Decoder, geometry: Geometry, mesh: Mesh, loss: ModuleType, sampling: SamplingConfig, use_kl: bool
) -> Callable[..., tuple[Params, dict[str, Array]]]:
    """`gradient(params, base, problems, rollouts, advantages, total, B_p, n, coefficients) -> (gradient, metrics)`, inside a jit.

    advantages: f32[S rows]. total: the number of response tokens that the loss and the gradient are divided by; the other metrics are
    means over the tokens that are there. `base` is read only where `use_kl`.
    """
    m, g, shards = geometry.microbatch, geometry.prompts, geometry.shards
    specs = jax.tree.map(
        lambda s, axes: manual_part(partition(axes, s.shape, mesh)),
        decoder.shapes(),
        decoder.logical_axes(),
        is_leaf=lambda x: isinstance(x, tuple),
    )

    def row_loss(
        params: Params, prefix: Any, base: Params, base_prefix: Any, problems: Problems, rows: tuple, coefficients: Coefficients
    ) -> tuple:
        tokens, sampler_logps, mask, kept, advantages, group, entry = rows
        logits = response_logits(decoder, params, prefix, problems, group, entry, tokens)
        log_p = base_log_p = log_probs(logits, sampling.temperature)
        if use_kl:
            base_log_p = log_probs(response_logits(decoder, base, base_prefix, problems, group, entry, tokens), sampling.temperature)
        if sampling.top_p < 1:  # the nucleus is where the sampler drew from, no function of what is differentiated here
            inside, _ = nucleus(*lax.stop_gradient((logits, log_p)), kept - EDGE)
            inside |= jnp.arange(log_p.shape[-1])[None, None] == tokens[..., None]
            log_p, base_log_p = within(log_p, inside), within(base_log_p, inside)
        logps = chosen(log_p, tokens)
        value, metrics = loss.loss(logps, sampler_logps, advantages, mask, coefficients.clip)
        spread = entropy(log_p)
        value = value - coefficients.entropy * spread
        metrics |= {"entropy": spread, "log_ratio": jnp.abs(logps - sampler_logps)}
        if use_kl:
            metrics["kl"] = k3(logps, chosen(base_log_p, tokens))
            value = value + coefficients.kl * metrics["kl"]
        metrics["loss"] = value
        return (value * mask).sum(), {k: (v * mask).sum() for k, v in metrics.items()}

    def add_up(x: Array) -> Array:
        """Summed over data and fsdp. Over one shard that is x: with tensor alone split, XLA cannot compile the sum."""
        return lax.psum(x, ROWS) if shards > 1 else x

    def sum_over_shards(gradient: Array, spec: P) -> Array:
        """`add_up`; where fsdp splits the parameter, each shard keeps its part."""
        for dimension, axes in enumerate(spec):
            if shards > 1 and axes in ("fsdp", ("fsdp",)):
                gradient = lax.psum_scatter(gradient, "fsdp", scatter_dimension=dimension, tiled=True)
                return lax.psum(gradient, "data")
        return add_up(gradient)

    def bounds(part: Any, n: Array, block: Array) -> tuple[Array, Array]:
        """Local rows [low, high) of the responses to the block's prompts."""
        low = (part.group + block * g) * n - part.first
        return jnp.clip(low, 0, part.count), jnp.clip(low + g * n, 0, part.count)

    def shard_gradient(
        params: Params,
        base: Params,
        problems: Problems,
        rollouts: Rollouts,
        advantages: Array,
        total: Array,
        shard: Array,
        B_p: Array,
        n: Array,
        coefficients: Coefficients,
    ) -> tuple[Params, dict[str, Array]]:
        tokens, sampler_logps, mask, kept, gains = (x[0] for x in (*rollouts[:4], advantages))
        part, every = share(shard[0], shards, B_p, n), share(jnp.arange(shards), shards, B_p, n)
        here, total = (jnp.maximum(x, 1).astype(jnp.float32) for x in (add_up(mask.sum()), total))

        def microbatch(i: Array, carry: tuple, low: Array, high: Array, first_group: Array, prefix: Any, base_prefix: Any) -> tuple:
            d_params, d_prefix, sums = carry
            start = jnp.minimum(low + i * m, geometry.rows - m)
            row = start + jnp.arange(m)
            group = jnp.clip((part.first + row) // n, first_group, first_group + g - 1)
            cut = [lax.dynamic_slice_in_dim(x, start, m) for x in (tokens, sampler_logps, mask, kept, gains)]
            cut[2] = cut[2] & (row < high)[:, None] & (row >= low)[:, None]
            rows = (*cut, group, group - first_group)
            (d_rows, d_kv), metrics = jax.grad(row_loss, (0, 1), has_aux=True)(
                params, prefix, base, base_prefix, problems, rows, coefficients
            )
            add = jnp.add
            return jax.tree.map(add, d_params, d_rows), jax.tree.map(add, d_prefix, d_kv), jax.tree.map(add, sums, metrics)

        def block(b: Array, carry: tuple) -> tuple:
            d_params, sums = carry
            first_group = jnp.minimum(part.group + b * g, geometry.Q_cap)
            prompts = lax.dynamic_slice_in_dim(problems.prompts, first_group, g)
            prefix, pull = jax.vjp(lambda p: decoder.prefix_cache(p, prompts), params)
            base_prefix = decoder.prefix_cache(base, prompts) if use_kl else None
            low, high = bounds(part, n, b)
            lows, highs = bounds(every, n, b)
            trips = ((highs - lows + m - 1) // m).max()
            carry = (d_params, jax.tree.map(jnp.zeros_like, prefix), sums)
            d_params, d_prefix, sums = lax.fori_loop(
                0, trips, lambda i, c: microbatch(i, c, low, high, first_group, prefix, base_prefix), carry
            )
            return jax.tree.map(jnp.add, d_params, pull(d_prefix)[0]), sums

        names = ["loss", "entropy", "log_ratio", *(["kl"] if use_kl else []), *_loss_metrics(loss)]
        zeros = (jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params), {k: jnp.float32(0) for k in names})
        blocks = ((every.groups + g - 1) // g).max()
        d_params, sums = lax.fori_loop(0, blocks, block, zeros)
        d_params = jax.tree.map(lambda d, spec: sum_over_shards(d / total, spec), d_params, specs)
        return d_params, {k: add_up(v) / (total if k == "loss" else here) for k, v in sums.items()}

    rows = P(ROWS)
    sharded = shard_map(
        shard_gradient,
        mesh=mesh,
        in_specs=(P(), P(), P(), rows, rows, P(), rows, P(), P(), P()),
        out_specs=(specs, P()),
        axis_names=set(ROWS),
        check_vma=False,
    )
    assert shards == shard_count(mesh), (shards, mesh)

    def gradient(
        params: Params,
        base: Params,
        problems: Problems,
        rollouts: Rollouts,
        advantages: Array,
        total: Array,
        B_p: Array,
        n: Array,
        coefficients: Coefficients,
    ) -> tuple[Params, dict[str, Array]]:
        shard = jnp.arange(shards, dtype=jnp.int32)
        return sharded(params, base, problems, rollouts, advantages, total, shard, B_p, n, coefficients)

    return gradient


def _loss_metrics(loss: ModuleType) -> list[str]:
    """The names of a loss's own metrics, found by tracing it on one token."""
    one = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    _, metrics = jax.eval_shape(
        loss.loss,
        one,
        one,
        jax.ShapeDtypeStruct((1,), jnp.float32),
        jax.ShapeDtypeStruct((1, 1), jnp.bool_),
        jax.ShapeDtypeStruct((), jnp.float32),
    )
    return sorted(metrics)
