"""The gradient of a batch of rollouts: every prompt forward and backward once, its n responses in microbatches beside it.

For each block of g prompts what responses continue (`Prefix`) is computed under `jax.vjp`; an inner loop over microbatches of m
responses accumulates d(params) and d(prefix); the pull-back of the latter is added at the end. That is P + n (T - 1) tokens a group
instead of n (P + T - 1). Where no block has more than one microbatch, its prompts and responses go through the layers together
(`Unread`): a weight is then gathered, read, and its gradient added up once for both. All add to one float32 gradient through references
(`VJP.with_refs`), each layer in its place, so that no second gradient of all parameters is ever held. Loops have traced trip counts, so
one program serves every B_p and n. Each response comes with its weights in the whole batch's loss (rl/terms.py), so microbatches, their
widths (rl/packing.py), padding and shards change nothing but rounding. Parameters and their gradient lie as fsdp splits them; a weight is
whole only where it is used (models/parts.py). What is differentiated is an objective: the policy's here, the critic's in rl/critic.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from isojax.models.decoder import Params, Prefix
from isojax.models.parts import Anchored, used
from isojax.rl.objective import MAX, Coefficients, Fixed, Objective, Rows, Sums, Unread, merge
from isojax.rl.packing import lengths, order, width_choices, widths
from isojax.sampling.batch import Geometry, Problems, Share, share
from isojax.sharding import PARTS, ROWS, manual_specs, shard_count, splits_positions

TOKEN_SUMS = ("loss",)  # what carries its denominators in it; other metrics are told as means over tokens


class Responses(NamedTuple):
    """A batch of responses to be differentiated, by shard: tokens i32[S rows T], mask bool[S rows T], and what the objective wants of each,
    [S rows ...] arrays."""

    tokens: Array
    mask: Array
    own: Any


class Own(NamedTuple):
    """A shard's rollouts, each block's longest first, and the batch they are a part of."""

    part: Share
    every: Share  # of all shards
    responses: Responses
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

    @property
    def one_pass(self) -> bool:
        """Whether prompts go through the layers with the responses to them."""
        split = splits_positions(jax.sharding.get_abstract_mesh())
        return self.geometry.one_pass(self.objective.decoder.config.layers, split)

    def own(self, responses: Responses, shard: Array, B_p: Array, n: Array) -> Own:
        """The shard's rollouts in the order in which they are computed. With one width alone nothing is moved."""
        shards = self.geometry.shards
        part, every = share(shard, shards, B_p, n), share(jnp.arange(shards), shards, B_p, n)
        row, length = jnp.arange(self.geometry.rows), lengths(responses.mask)
        if len(self.widths) > 1:
            row = order(length, part, n, self.geometry.prompts, self.widths[-1])
            responses, length = jax.tree.map(lambda x: x[row], responses), length[row]
        return Own(part, every, responses, (part.first + row) // n, length, n)

    def bounds(self, part: Share, n: Array, block: Array) -> tuple[Array, Array]:
        """Local rows [low, high) of the responses to the block's prompts."""
        low = (part.group + block * self.geometry.prompts) * n - part.first
        return jnp.clip(low, 0, part.count), jnp.clip(low + self.geometry.prompts * n, 0, part.count)

    def prompts(self, problems: Problems, first: Array) -> tuple[Array, Array]:
        """The prompts of a block, from this group on, and their lengths."""
        prompts, lengths = (lax.dynamic_slice_in_dim(x, first, self.geometry.prompts) for x in (problems.prompts, problems.lengths))
        return prompts, lengths

    def microbatch(self, own: Own, start: Array, low: Array, high: Array, first_group: Array) -> Rows:
        """The m rows from `start` on, of which those inside [low, high) count."""
        m, g = self.geometry.microbatch, self.geometry.prompts
        start = jnp.minimum(start, self.geometry.rows - m)
        row = start + jnp.arange(m)
        (tokens, mask, own_columns), group = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, m), (own.responses, own.group))
        mask = mask & (row < high)[:, None] & (row >= low)[:, None]
        group = jnp.clip(group, first_group, first_group + g - 1)
        return Rows(tokens, mask, own_columns, group, group - first_group)

    def add(
        self, totals: tuple, fixed: Fixed, prefix: Prefix | Unread, base_prefix: Prefix | Unread | None, rows: Rows, choice: Array
    ) -> Sums:
        """Adds d params and d prefix of a microbatch, at the width that `choice` says, to the references `totals`; its metrics. Of prompts
        that have not been read there is no d prefix."""

        def at_width(width: int, rows: Rows) -> Sums:
            cut = jax.tree.map(lambda x: x[:, :width] if x.ndim > 1 else x, rows)

            def objective(params: Params, *own_prefix: Prefix) -> tuple[Array, Sums]:
                anchored = jax.tree.map(Anchored, *own_prefix, prefix) if own_prefix else prefix
                return self.objective(_anchored(params, fixed.params), anchored, base_prefix, fixed, cut)

            differentiated = (fixed.params,) if isinstance(prefix, Unread) else (fixed.params, prefix)
            loss, pull, metrics = jax.vjp(objective, *jax.tree.map(_anchor, differentiated), has_aux=True)
            pull.with_refs(*totals)(jnp.ones_like(loss))
            return metrics

        return lax.switch(choice, [partial(at_width, width) for width in self.widths], rows)

    def block(self, b: Array, sums: Sums, d_params: Params, fixed: Fixed, own: Own) -> Sums:
        """Adds a block of g prompts and all responses to them: the gradient to the references `d_params`, the metrics to `sums`."""
        m, decoder = self.geometry.microbatch, self.objective.decoder
        first_group = jnp.minimum(own.part.group + b * self.geometry.prompts, self.geometry.Q_cap)
        prompts = self.prompts(fixed.problems, first_group)
        low, high = self.bounds(own.part, own.n, b)
        choices = width_choices(own.length, low, high, m, self.widths, self.geometry.shards)
        if self.one_pass:
            unread, rows = Unread(*prompts), self.microbatch(own, low, low, high, first_group)
            base_unread = unread if self.objective.needs_base else None
            return merge(sums, self.add((d_params,), fixed, unread, base_unread, rows, choices[0]))

        anchors = jax.tree.map(_anchor, fixed.params)
        prefix, pull = jax.vjp(lambda params: decoder.prefill(_anchored(params, fixed.params), *prompts), anchors)
        base_prefix = decoder.prefill(fixed.base, *prompts) if self.objective.needs_base else None
        d_prefix = jax.tree.map(lambda x: jax.new_ref(_anchor(x)), prefix)
        lows, highs = self.bounds(own.every, own.n, b)

        def add(i: Array, sums: Sums) -> Sums:
            rows = self.microbatch(own, low + i * m, low, high, first_group)
            return merge(sums, self.add((d_params, d_prefix), fixed, prefix, base_prefix, rows, choices[i]))

        sums = lax.fori_loop(0, ((highs - lows + m - 1) // m).max(), add, sums)
        pull.with_refs(d_params)(jax.tree.map(lambda d, x: jax.freeze(d).astype(x.dtype), d_prefix, prefix))
        return sums

    def __call__(self, fixed: Fixed, own: Own) -> tuple[Params, Sums]:
        """Sums over the shard's rollouts: the gradient in float32, and the metrics."""
        blocks = ((own.every.groups + self.geometry.prompts - 1) // self.geometry.prompts).max()
        sums = {name: jnp.float32(0) for name in self.objective.names}
        d_params = jax.tree.map(lambda p: jax.new_ref(_anchor(p)), fixed.params)
        sums = lax.fori_loop(0, blocks, lambda b, sums: self.block(b, sums, d_params, fixed, own), sums)
        return jax.tree.map(jax.freeze, d_params), sums


def build_gradient(
    objective: Objective, geometry: Geometry, mesh: Mesh, axes: Params, shapes: Params
) -> Callable[..., tuple[Params, Sums]]:
    """`gradient(params, base, problems, responses, B_p, n, coefficients) -> (gradient, metrics)`, inside a jit.

    axes, shapes: logical axes and ShapeDtypeStruct of each parameter. `base` is read only where the objective needs it. Metrics but the
    loss are means over the tokens that are there, or their maxima.
    """
    shards, decoder = geometry.shards, objective.decoder
    assert shards == shard_count(mesh), (shards, mesh)
    accumulate = Accumulator(objective, geometry)
    specs = manual_specs(shapes, axes, mesh)

    def shard_gradient(fixed: Fixed, responses: Responses, shard: Array, B_p: Array, n: Array) -> tuple[Params, Sums]:
        own = accumulate.own(jax.tree.map(lambda x: x[0], responses), shard[0], B_p, n)
        tokens = jnp.maximum(_add_up(responses.mask.sum(), shards), 1).astype(jnp.float32)
        cast = fixed._replace(params=decoder.cast(fixed.params), base=decoder.cast(fixed.base))  # once, not in every microbatch
        d_params, sums = accumulate(cast, own)

        def whole(name: str, x: Array) -> Array:
            if name.startswith(MAX):
                return lax.pmax(x, ROWS) if shards > 1 else x
            return _add_up(x, shards) / (1 if name in TOKEN_SUMS else tokens)

        d_params = jax.tree.map(lambda d, spec: _sum_over_shards(d, spec, mesh), d_params, specs)
        return d_params, {k: whole(k, v) for k, v in sums.items()}

    rows, everywhere = P(ROWS), P()  # as are the problems, the coefficients, and a base that is not read
    lies: Any = (specs, specs if objective.needs_base else everywhere, everywhere, everywhere)
    sharded = shard_map(
        shard_gradient,
        mesh=mesh,
        in_specs=(Fixed(*lies), rows, rows, P(), P()),
        out_specs=(specs, P()),
        axis_names=set(ROWS),
        check_vma=False,
    )

    def gradient(
        params: Params, base: Params, problems: Problems, responses: Responses, B_p: Array, n: Array, coefficients: Coefficients
    ) -> tuple[Params, Sums]:
        shard = jnp.arange(shards, dtype=jnp.int32)
        return sharded(Fixed(params, base, problems, coefficients), responses, shard, B_p, n)

    return gradient


def _anchor(x: Array) -> Array:
    """What the gradient of x is of, and where it begins to be added up: in float32, whatever x is computed in."""
    return jnp.zeros(x.shape, jnp.float32)


def _anchored(anchors: Params, params: Params) -> Params:
    """Parameters with the gradient of their anchors: layers' each in its own place, where it is used."""
    pairs = jax.tree.map(Anchored, anchors, params)
    return {name: pair if name == "blocks" else used(pair) for name, pair in pairs.items()}


def _add_up(x: Array, shards: int) -> Array:
    """Summed over data and fsdp. Over one shard that is x: with tensor alone split, XLA cannot compile the sum."""
    return lax.psum(x, ROWS) if shards > 1 else x


def _sum_over_shards(gradient: Array, spec: P, mesh: Mesh) -> Array:
    """`_add_up`; of a parameter in parts over what has not been added up yet (models/parts.py)."""
    if not any(spec):
        return _add_up(gradient, shard_count(mesh))
    rest = tuple(axis for axis in ROWS if axis != PARTS and mesh.shape[axis] > 1)
    return lax.psum(gradient, rest) if rest else gradient
