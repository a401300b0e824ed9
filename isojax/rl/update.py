"""The gradient of a batch of rollouts: every prompt forward and backward once, its n responses in microbatches beside it.

For each block of g prompts the prompts' keys and values are computed under `jax.vjp`; an inner loop over microbatches of m
responses accumulates d(params) and d(keys, values); the pull-back of the latter is added at the end. That is P + n T tokens a group
instead of n (P + T). Loops have traced trip counts, so one program serves every B_p and n. The batch has one denominator, its number
of response tokens, divided by once, so microbatches, their widths (rl/packing.py), padding and shards change nothing but rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array

from isojax.config import SamplingConfig
from isojax.models.decoder import KV, Decoder, Params
from isojax.rl.logprobs import Hidden, Read, read, read_nucleus
from isojax.rl.packing import lengths, order, width_choices, widths
from isojax.rl.regularizers import k3
from isojax.sampling.batch import Geometry, Problems, Rollouts, Share, share
from isojax.sharding import ROWS, manual_part, partition, shard_count

Sums = dict[str, Array]


class Coefficients(NamedTuple):
    """The numbers of a recipe, each a float32 scalar and traced: changing one compiles nothing."""

    clip: ArrayLike
    kl: ArrayLike
    entropy: ArrayLike
    learning_rate: ArrayLike
    weight_decay: ArrayLike
    max_grad_norm: ArrayLike


class Rows(NamedTuple):
    """A microbatch: m rows of the rollouts and their advantages; `group` is each row's problem, `entry` its place in the prefix."""

    tokens: Array
    sampler_logps: Array
    mask: Array
    kept: Array
    gains: Array
    group: Array
    entry: Array


class Fixed(NamedTuple):
    """What a whole update reads and does not change."""

    params: Params
    base: Params
    problems: Problems
    coefficients: Coefficients


@dataclass(frozen=True)
class Objective:
    """The loss of a microbatch, a sum over its tokens.

    use_kl: whether the base is read. use_entropy: whether the entropy is differentiated; its value is told in any case. split: whether
    devices share the vocabulary.
    """

    decoder: Decoder
    loss: ModuleType
    sampling: SamplingConfig
    use_kl: bool
    use_entropy: bool
    split: bool

    @property
    def names(self) -> list[str]:
        """The metrics'."""
        return ["loss", "entropy", "log_ratio", *(["kl"] if self.use_kl else []), *_loss_metrics(self.loss)]

    def hidden(self, params: Params, prefix: KV, problems: Problems, rows: Rows) -> Hidden:
        """Hidden states before each response token."""
        last = problems.lengths[rows.group] - 1
        inputs = jnp.concatenate([problems.prompts[rows.group, last][:, None], rows.tokens[:, :-1]], 1)
        return Hidden(params, self.decoder.score(params, inputs, last, prefix, rows.entry))

    def read(self, policy: Hidden, base: Hidden | None, rows: Rows) -> tuple[Read, Array | None]:
        """What the policy, and of its tokens what the base, says of each response token."""
        temperature = self.sampling.temperature
        if self.sampling.top_p < 1:
            return read_nucleus(self.decoder, policy, base, rows.tokens, rows.kept, temperature, self.use_entropy)
        found = read(self.decoder, policy, rows.tokens, temperature, self.use_entropy, self.split)
        return found, None if base is None else read(self.decoder, base, rows.tokens, temperature, False, self.split).logps

    def __call__(self, params: Params, prefix: KV, base_prefix: KV | None, fixed: Fixed, rows: Rows) -> tuple[Array, Sums]:
        """(the sum of the loss, the sums of the metrics) over the tokens of the mask."""
        policy = self.hidden(params, prefix, fixed.problems, rows)
        base = None if base_prefix is None else self.hidden(fixed.base, base_prefix, fixed.problems, rows)
        found, base_logps = self.read(policy, base, rows)
        value, metrics = self.loss.loss(found.logps, rows.sampler_logps, rows.gains, rows.mask, fixed.coefficients.clip)
        if self.use_entropy:
            value = value - fixed.coefficients.entropy * found.entropy
        metrics |= {"entropy": found.entropy, "log_ratio": jnp.abs(found.logps - rows.sampler_logps)}
        if base_logps is not None:
            metrics["kl"] = k3(found.logps, base_logps)
            value = value + fixed.coefficients.kl * metrics["kl"]
        metrics["loss"] = value
        return (value * rows.mask).sum(), {k: (v * rows.mask).sum() for k, v in metrics.items()}


class Own(NamedTuple):
    """A shard's rollouts, each block's longest first, and the batch they are a part of."""

    part: Share
    every: Share  # of all shards
    rollouts: tuple[Array, ...]  # tokens, sampler_logps, mask, kept, gains
    group: Array
    length: Array
    n: Array


@dataclass(frozen=True)
class Accumulator:
    """Adds up the gradient of one shard's rollouts."""

    objective: Objective
    geometry: Geometry

    @property
    def widths(self) -> tuple[int, ...]:
        """Those a microbatch may have."""
        return widths(self.geometry.response_length)

    def own(self, rollouts: tuple[Array, ...], shard: Array, B_p: Array, n: Array) -> Own:
        """The shard's rollouts in the order in which they are computed. With one width alone nothing is moved."""
        shards = self.geometry.shards
        part, every = share(shard, shards, B_p, n), share(jnp.arange(shards), shards, B_p, n)
        row, length = jnp.arange(self.geometry.rows), lengths(rollouts[2])
        if len(self.widths) > 1:
            row = order(length, part, n, self.geometry.prompts, self.widths[-1])
            rollouts, length = tuple(x[row] for x in rollouts), length[row]
        return Own(part, every, rollouts, (part.first + row) // n, length, n)

    def bounds(self, part: Share, n: Array, block: Array) -> tuple[Array, Array]:
        """Local rows [low, high) of the responses to the block's prompts."""
        low = (part.group + block * self.geometry.prompts) * n - part.first
        return jnp.clip(low, 0, part.count), jnp.clip(low + self.geometry.prompts * n, 0, part.count)

    def microbatch(self, own: Own, start: Array, low: Array, high: Array, first_group: Array) -> Rows:
        """The m rows from `start` on, of which those inside [low, high) count."""
        m, g = self.geometry.microbatch, self.geometry.prompts
        start = jnp.minimum(start, self.geometry.rows - m)
        row = start + jnp.arange(m)
        tokens, sampler_logps, mask, kept, gains, group = (lax.dynamic_slice_in_dim(x, start, m) for x in (*own.rollouts, own.group))
        mask = mask & (row < high)[:, None] & (row >= low)[:, None]
        group = jnp.clip(group, first_group, first_group + g - 1)
        return Rows(tokens, sampler_logps, mask, kept, gains, group, group - first_group)

    def gradient(self, fixed: Fixed, prefix: KV, base_prefix: KV | None, rows: Rows, choice: Array) -> tuple:
        """((d params, d prefix), metrics) of a microbatch, at the width that `choice` says."""

        def at_width(width: int) -> Callable[[Rows], tuple]:
            def compute(rows: Rows) -> tuple:
                cut = rows._replace(**{name: getattr(rows, name)[:, :width] for name in ("tokens", "sampler_logps", "mask", "kept")})
                return jax.grad(self.objective, (0, 1), has_aux=True)(fixed.params, prefix, base_prefix, fixed, cut)

            return compute

        return lax.switch(choice, [at_width(width) for width in self.widths], rows)

    def block(self, b: Array, carry: tuple[Params, Sums], fixed: Fixed, own: Own) -> tuple[Params, Sums]:
        """Adds a block of g prompts and all responses to them."""
        d_params, sums = carry
        m, g, decoder = self.geometry.microbatch, self.geometry.prompts, self.objective.decoder
        first_group = jnp.minimum(own.part.group + b * g, self.geometry.Q_cap)
        prompts = lax.dynamic_slice_in_dim(fixed.problems.prompts, first_group, g)
        prefix, pull = jax.vjp(lambda p: decoder.prefix_cache(p, prompts), fixed.params)
        base_prefix = decoder.prefix_cache(fixed.base, prompts) if self.objective.use_kl else None
        low, high = self.bounds(own.part, own.n, b)
        lows, highs = self.bounds(own.every, own.n, b)
        choices = width_choices(own.length, low, high, m, self.widths, self.geometry.shards)

        def add(i: Array, carry: tuple) -> tuple:
            rows = self.microbatch(own, low + i * m, low, high, first_group)
            (d_rows, d_kv), metrics = self.gradient(fixed, prefix, base_prefix, rows, choices[i])
            return jax.tree.map(jnp.add, carry, (d_rows, d_kv, metrics))

        start = (d_params, jax.tree.map(_zeros, prefix), sums)
        d_params, d_prefix, sums = lax.fori_loop(0, ((highs - lows + m - 1) // m).max(), add, start)
        (d_prompts,) = pull(jax.tree.map(lambda d, kv: d.astype(kv.dtype), d_prefix, prefix))
        return jax.tree.map(jnp.add, d_params, d_prompts), sums

    def __call__(self, fixed: Fixed, own: Own) -> tuple[Params, Sums]:
        """Sums over the shard's rollouts: the gradient in float32, and the metrics."""
        blocks = ((own.every.groups + self.geometry.prompts - 1) // self.geometry.prompts).max()
        sums = {name: jnp.float32(0) for name in self.objective.names}
        return lax.fori_loop(0, blocks, lambda b, carry: self.block(b, carry, fixed, own), (jax.tree.map(_zeros, fixed.params), sums))


def build_gradient(
    decoder: Decoder,
    geometry: Geometry,
    mesh: Mesh,
    loss: ModuleType,
    sampling: SamplingConfig,
    use_kl: bool,
    use_entropy: bool = True,
) -> Callable[..., tuple[Params, dict[str, Array]]]:
    """`gradient(params, base, problems, rollouts, advantages, total, B_p, n, coefficients) -> (gradient, metrics)`, inside a jit.

    advantages: f32[S rows]. total: the number of response tokens that the loss and the gradient are divided by; the other metrics are
    means over the tokens that are there. `base` is read only where `use_kl`, the entropy's coefficient only where `use_entropy`.
    """
    shards = geometry.shards
    assert shards == shard_count(mesh), (shards, mesh)
    objective = Objective(decoder, loss, sampling, use_kl, use_entropy, split=mesh.shape["tensor"] > 1)
    accumulate = Accumulator(objective, geometry)
    specs = jax.tree.map(
        lambda s, axes: manual_part(partition(axes, s.shape, mesh)),
        decoder.shapes(),
        decoder.logical_axes(),
        is_leaf=lambda x: isinstance(x, tuple),
    )

    def shard_gradient(
        fixed: Fixed, rollouts: Rollouts, advantages: Array, total: Array, shard: Array, B_p: Array, n: Array
    ) -> tuple[Params, dict[str, Array]]:
        own = accumulate.own(tuple(x[0] for x in (*rollouts[:4], advantages)), shard[0], B_p, n)
        here, total = (jnp.maximum(x, 1).astype(jnp.float32) for x in (_add_up(rollouts.mask.sum(), shards), total))
        cast = fixed._replace(params=decoder.cast(fixed.params), base=decoder.cast(fixed.base))  # once, not in every microbatch
        d_params, sums = accumulate(cast, own)
        d_params = jax.tree.map(lambda d, spec: _sum_over_shards(d / total, spec, shards), d_params, specs)
        return d_params, {k: _add_up(v, shards) / (total if k == "loss" else here) for k, v in sums.items()}

    rows = P(ROWS)
    sharded = shard_map(
        shard_gradient,
        mesh=mesh,
        in_specs=(P(), rows, rows, P(), rows, P(), P()),
        out_specs=(specs, P()),
        axis_names=set(ROWS),
        check_vma=False,
    )

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
        return sharded(Fixed(params, base, problems, coefficients), rollouts, advantages, total, shard, B_p, n)

    return gradient


def _zeros(x: Array) -> Array:
    """Where gradients of x are added up: in float32, whatever they are computed in."""
    return jnp.zeros(x.shape, jnp.float32)


def _add_up(x: Array, shards: int) -> Array:
    """Summed over data and fsdp. Over one shard that is x: with tensor alone split, XLA cannot compile the sum."""
    return lax.psum(x, ROWS) if shards > 1 else x


def _sum_over_shards(gradient: Array, spec: P, shards: int) -> Array:
    """`_add_up`; where fsdp splits the parameter, each shard keeps its part."""
    for dimension, axes in enumerate(spec):
        if shards > 1 and axes in ("fsdp", ("fsdp",)):
            gradient = lax.psum_scatter(gradient, "fsdp", scatter_dimension=dimension, tiled=True)
            return lax.psum(gradient, "data")
    return _add_up(gradient, shards)


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
