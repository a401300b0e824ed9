"""What the policy's gradient is of: a recipe's loss and regularisers, of one microbatch.

An objective is called with m responses to prompts that have been read (`Prefix`), or are to be read with them (`Unread`), and returns a
sum over them, with metrics. Another one, the critic's, is in rl/critic.py; rl/update.py adds up either.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from isojax.config import RLConfig, SamplingConfig
from isojax.models.decoder import Decoder, Params, Prefix
from isojax.models.parts import used
from isojax.rl.logprobs import Hidden, Read, read, read_nucleus
from isojax.rl.losses import Clip
from isojax.rl.recipe import Recipe, loss_metrics, resolve
from isojax.rl.regularizers import KL
from isojax.rl.terms import Terms
from isojax.sampling.batch import Problems

Sums = dict[str, Array]
MAX = "max_"  # opens a metric of which the largest is kept; of the others, sums are


class Coefficients(NamedTuple):
    """The numbers of a recipe, each a float32 scalar and traced: changing one compiles nothing."""

    clip: ArrayLike
    clip_high: ArrayLike
    kl: ArrayLike
    entropy: ArrayLike
    tis_cap: ArrayLike
    learning_rate: ArrayLike
    weight_decay: ArrayLike
    max_grad_norm: ArrayLike
    critic_learning_rate: ArrayLike
    critic_clip: ArrayLike
    gamma: ArrayLike
    gae_lambda: ArrayLike


class Fixed(NamedTuple):
    """What a whole update reads and does not change."""

    params: Params
    base: Params
    problems: Problems
    coefficients: Coefficients


class Rows(NamedTuple):
    """A microbatch of responses: tokens i32[m T], mask bool[m T]; `own`, what the objective wants of each, [m ...] or [m T] arrays; `group`
    i32[m], each response's problem, and `entry` i32[m], its place in the prefix."""

    tokens: Array
    mask: Array
    own: Any
    group: Array
    entry: Array


class Unread(NamedTuple):
    """Prompts i32[g P] of these lengths, in a prefix's place: they go through the layers with the responses to them."""

    prompts: Array
    lengths: Array


class Objective(Protocol):
    """A sum over the responses of a microbatch, to be differentiated in params, and in the prefix where there is one.

    names: its metrics'; those that open with `max_` are maxima, the others sums over tokens. needs_base: whether `fixed.base` is read.
    """

    @property
    def decoder(self) -> Decoder: ...

    @property
    def names(self) -> list[str]: ...

    @property
    def needs_base(self) -> bool: ...

    def __call__(
        self, params: Params, prefix: Prefix | Unread, base_prefix: Prefix | Unread | None, fixed: Fixed, rows: Rows
    ) -> tuple[Array, Sums]: ...


def hidden_states(decoder: Decoder, params: Params, prefix: Prefix | Unread, problems: Problems, rows: Rows) -> Hidden:
    """Hidden states before each response token: that of the prompt's last token, which a group shares, then those of the response's own."""
    if isinstance(prefix, Unread):
        last, own = decoder.continued(params, *prefix, rows.tokens[:, :-1], rows.entry)
        return Hidden(params, last, rows.entry, own)
    last, start = used(prefix.last), problems.lengths[rows.group]
    if rows.tokens.shape[1] == 1:
        return Hidden(params, last, rows.entry, jnp.zeros((len(rows.tokens), 0, last.shape[-1]), last.dtype))
    own = decoder.score(params, rows.tokens[:, :-1], start, (prefix.keys, prefix.values), rows.entry)
    return Hidden(params, last, rows.entry, own)


def merge(sums: Sums, more: Sums) -> Sums:
    """Metrics of two parts, together."""
    return {k: jnp.maximum(sums[k], more[k]) if k.startswith(MAX) else sums[k] + more[k] for k in sums}


class Sampled(NamedTuple):
    """What the policy's objective wants of each response: the sampler's log-probabilities f32[m T], the mass of each token's nucleus
    f32[m T] (or [m 1]), and its terms."""

    logps: Array
    kept: Array
    terms: Terms


@dataclass(frozen=True)
class PolicyObjective:
    """The loss of a recipe. split: whether devices share the vocabulary."""

    decoder: Decoder
    rl: RLConfig
    sampling: SamplingConfig
    split: bool

    @property
    def recipe(self) -> Recipe:
        """The recipe, with nothing left null."""
        return resolve(self.rl)

    @property
    def needs_base(self) -> bool:
        """Whether the base policy is read."""
        return self.rl.kl > 0 or self.rl.measure_kl

    @property
    def names(self) -> list[str]:
        """The metrics'."""
        kl, tis = ["kl"] if self.needs_base else [], ["tis_weight", "tis_capped"] if self.rl.tis != "none" else []
        return ["loss", "entropy", "log_ratio", "max_log_ratio", *kl, *tis, *loss_metrics(self.recipe.loss, self.rl.loss)]

    def read(self, policy: Hidden, base: Hidden | None, rows: Rows) -> tuple[Read, Array | None]:
        """What the policy, and of its tokens what the base, says of each response token."""
        temperature, use_entropy = self.sampling.temperature, self.rl.entropy > 0
        if self.sampling.top_p < 1:
            return read_nucleus(self.decoder, policy, base, rows.tokens, rows.own.kept, temperature, use_entropy)
        found = read(self.decoder, policy, rows.tokens, temperature, use_entropy, self.split)
        return found, None if base is None else read(self.decoder, base, rows.tokens, temperature, False, self.split).logps

    def __call__(
        self, params: Params, prefix: Prefix | Unread, base_prefix: Prefix | Unread | None, fixed: Fixed, rows: Rows
    ) -> tuple[Array, Sums]:
        """(the sum over the responses of their weighted terms, the metrics)."""
        own, numbers, mask = rows.own, fixed.coefficients, rows.mask
        policy, base = (
            hidden_states(self.decoder, p, read, fixed.problems, rows) if read is not None else None
            for p, read in ((params, prefix), (fixed.base, base_prefix))
        )
        assert policy is not None
        found, base_logps = self.read(policy, base, rows)
        value, metrics = self.surrogate(found.logps, rows, numbers)
        value = own.terms.policy[:, None] * value
        mismatch = jnp.abs(jnp.where(mask, lax.stop_gradient(found.logps) - own.logps, 0.0))
        metrics |= {"entropy": found.entropy, "log_ratio": mismatch, "max_log_ratio": mismatch}
        if self.rl.entropy > 0:
            value = value - numbers.entropy * own.terms.entropy[:, None] * found.entropy
        if base_logps is not None:
            metrics["kl"] = KL[self.rl.kl_estimator](found.logps, base_logps)
        if self.rl.kl > 0:
            value = value + numbers.kl * own.terms.kl[:, None] * metrics["kl"]
        metrics["loss"] = value
        return jnp.where(mask, value, 0.0).sum(), {
            k: (jnp.max if k.startswith(MAX) else jnp.sum)(jnp.where(mask, v, 0.0)) for k, v in metrics.items()
        }

    def surrogate(self, logps: Float[Array, "m T"], rows: Rows, numbers: Coefficients) -> tuple[Float[Array, "m T"], Sums]:
        """The policy term of each token, with its metrics.

        With truncated importance sampling (TIS) the ratio is taken against the trainer's own log-probabilities, which with one update a
        batch are those of now, and what parts these from the sampler's is a weight without gradient, of a token or of the response.
        """
        own, mask = rows.own, rows.mask
        gains = jnp.broadcast_to(own.terms.gains.reshape(len(mask), -1), mask.shape)
        clip, loss = Clip(numbers.clip, numbers.clip_high), self.recipe.loss.loss
        if self.rl.tis == "none":
            return loss(logps, own.logps, gains, mask, clip)
        before = lax.stop_gradient(logps)
        apart = jnp.where(mask, before - own.logps, 0.0)
        if self.rl.tis == "sequence":
            apart = jnp.broadcast_to(apart.sum(-1, keepdims=True), mask.shape)
        raw = jnp.exp(apart)
        over = raw > numbers.tis_cap
        weight = jnp.where(over, numbers.tis_cap if self.rl.tis_over == "truncate" else 0.0, raw)
        value, metrics = loss(logps, before, gains, mask, clip)
        return weight * value, metrics | {"tis_weight": weight, "tis_capped": over.astype(jnp.float32)}
