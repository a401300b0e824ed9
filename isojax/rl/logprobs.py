"""The log-probability of each response token and the exact entropy: from the logits [m T V], or,
where these are many, over blocks of the vocabulary, so that the logits are never held at once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from isojax.core.shapes import (
    MAX_DENSE_LOGITS,
    MAX_SAVED_LOGITS,
    VOCABULARY_BLOCK,
    vocabulary_block,
)
from isojax.distributed.sharding import axes_that_split, count_parts, map_over_parts
from isojax.models.layers.unembedding import Unembedding
from isojax.models.routing import RoutingSums
from isojax.models.transformer import Decoder, Params
from isojax.sampling.logits import NEG_INF, NUCLEUS_MASS_TOLERANCE, log_probs, nucleus, renormalize

MAX_BLOCK_TOKENS = VOCABULARY_BLOCK


class TokenStats(NamedTuple):
    """f32[m T] each: a token's log-probability, and the entropy in nats of the distribution it was
    drawn from."""

    logps: Array
    entropy: Array


class HiddenStates(NamedTuple):
    """A policy's parameters, and its hidden states before response tokens.

    Letters: m responses of T tokens, to g prompts; D the model's width. The state before a
    response's first token is its prompt's last, which the responses to a prompt share.
    """

    params: Params
    prompt_hidden: Array  # [g D], after each prompt
    prefix_entry: Array  # i32[m], the row of `prompt_hidden` that each response continues
    # [m t D], after each response's own tokens but the last, and after padding
    response_hidden: Array
    routing: RoutingSums | None = None  # of the routers that made them, where these are read

    def states(self, T: int) -> Float[Array, "m T D"]:
        """The state before each of T tokens."""
        before_first_tokens = self.prompt_hidden[self.prefix_entry][:, None]
        return jnp.concatenate([before_first_tokens, self.response_hidden], 1)[:, :T]

    def unique_states(self) -> tuple[Float[Array, "r D"], Int[Array, " m"]]:
        """Return (each state once f32[r D], the row i32[m] of the state before each first token).

        Rows 0 .. p-1 are prompts' last states; then come those of `response_hidden`, row by row,
        so that r = p + m t. p is g, or m where m <= g: then only continued prompts are held.
        """
        m, D = len(self.prefix_entry), self.response_hidden.shape[-1]
        prompt_hidden = self.prompt_hidden
        prefix_entry = self.prefix_entry
        if m <= len(prompt_hidden):  # fewer responses than prompts: only theirs
            prompt_hidden = prompt_hidden[prefix_entry]
            prefix_entry = jnp.arange(m)
        return jnp.concatenate([prompt_hidden, self.response_hidden.reshape(-1, D)]), prefix_entry


def token_logps(log_p: Float[Array, "m T V"], tokens: Int[Array, "m T"]) -> Float[Array, "m T"]:
    return jnp.take_along_axis(log_p, tokens[..., None], -1)[..., 0]


def entropy(log_p: Float[Array, "*b V"]) -> Float[Array, "*b"]:
    """Exact entropy of the next-token distribution, in nats."""
    return -(jnp.exp(log_p) * log_p).sum(-1)


def stats_of_logps(
    log_p: Float[Array, "m T V"], tokens: Int[Array, "m T"], use_entropy: bool
) -> TokenStats:
    """The statistics of tokens, from all log-probabilities of the vocabulary.

    use_entropy: whether the entropy is differentiated; it is computed in either case.
    """
    of_entropy = log_p if use_entropy else lax.stop_gradient(log_p)
    return TokenStats(token_logps(log_p, tokens), entropy(of_entropy))


def token_stats(
    decoder: Decoder,
    hidden: HiddenStates,
    tokens: Int[Array, "m T"],
    temperature: float,
    use_entropy: bool,
    vocab_split: bool = False,
) -> TokenStats:
    """Log-probabilities and entropies f32[m T] of the whole distributions (top-p 1).

    hidden: of the same m responses; `response_hidden` [m t D] may be padded, t >= T - 1.
    temperature: above 0, what logits are divided by. use_entropy: whether the entropy is
    differentiated. vocab_split: whether devices share the vocabulary; then each walks over the
    blocks of its part.
    """
    T = tokens.shape[1]
    mesh_shape = jax.sharding.get_abstract_mesh().shape
    mesh_axes = axes_that_split("vocab", decoder.vocab, mesh_shape) if vocab_split else ()
    num_parts = count_parts(mesh_axes, mesh_shape)

    # Few logits, m T V on each device, are computed at once.
    if tokens.size * decoder.vocab <= MAX_DENSE_LOGITS * num_parts:
        log_p = log_probs(decoder.logits(hidden.params, hidden.states(T)), temperature)
        return stats_of_logps(log_p, tokens, use_entropy)

    # Many, block by block. Hidden states may be padded (`hidden_states` of rl/objective.py).
    unembedding, vocab_axis = decoder.unembedding(hidden.params)
    states, prefix_entry = hidden.unique_states()
    size = vocabulary_block(decoder.vocab // num_parts, MAX_BLOCK_TOKENS)
    blocks = VocabularyBlocks(
        vocab_axis=vocab_axis,
        temperature=temperature,
        use_entropy=use_entropy,
        size=size,
        num_parts=num_parts,
        mesh_axes=mesh_axes,
    )
    padding = hidden.response_hidden.shape[1] - (T - 1)
    padded_tokens = jnp.pad(tokens, ((0, 0), (0, padding)))
    logps_and_entropy: Any = blockwise_token_stats(
        states, unembedding, padded_tokens, prefix_entry, blocks
    )
    return TokenStats(*(x[:, :T] for x in logps_and_entropy))


def nucleus_token_stats(
    decoder: Decoder,
    hidden: HiddenStates,
    base_hidden: HiddenStates | None,
    tokens: Int[Array, "m T"],
    nucleus_mass: Float[Array, "m T"],
    temperature: float,
    use_entropy: bool,
) -> tuple[TokenStats, Float[Array, "m T"] | None]:
    """Return (the policy's statistics, the base policy's log-probabilities) under top-p.

    Distributions are cut to the nuclei that the sampler drew from, which are constants here:
    nucleus_mass, 0 to 1, is the probability mass of each token's. The base policy's are cut to
    the same nuclei; they are f32[m T]. base_hidden: its states; None where it is not read, and
    then so is the second result.
    """
    logits = decoder.logits(hidden.params, hidden.states(tokens.shape[1]))
    log_p = log_probs(logits, temperature)

    # The likeliest tokens of that mass, up to rounding; and the sampled one, wherever rounding puts
    # it.
    constant_logits, constant_log_p = lax.stop_gradient((logits, log_p))
    min_mass = nucleus_mass - NUCLEUS_MASS_TOLERANCE
    in_nucleus, _ = nucleus(constant_logits, constant_log_p, min_mass)  # bool[m T V], its mass
    in_nucleus |= jnp.arange(log_p.shape[-1])[None, None] == tokens[..., None]

    log_p = renormalize(log_p, in_nucleus)
    policy_stats = stats_of_logps(log_p, tokens, use_entropy)
    if base_hidden is None:
        return policy_stats, None

    base_logits = decoder.logits(base_hidden.params, base_hidden.states(tokens.shape[1]))
    base_log_p = log_probs(base_logits, temperature)
    return policy_stats, token_logps(renormalize(base_log_p, in_nucleus), tokens)


@dataclass(frozen=True)
class VocabularyBlocks:
    """Blocks of the vocabulary, over which an online log-sum-exp walks as flash attention does over
    keys (arXiv:2205.14135, algorithm 1):

        log p(y) = x_y - lse          d log p(y) / d x_v = [v = y] - p_v
        H = lse - sum_v p_v x_v       d H / d x_v = -p_v (log p_v + H)

    with x the logits over the temperature. Of more than MAX_SAVED_LOGITS, the gradient computes
    each block again. Where devices share the vocabulary, each has the sums of its part [r], which
    are then added up. Letters: m responses of T tokens; r hidden states, prompts' first, then those
    before the other tokens; v of a block.
    """

    vocab_axis: int  # of the unembedding: 0 of [V D], 1 of [D V]
    temperature: float  # what logits are divided by
    use_entropy: bool  # whether the entropy is differentiated
    size: int  # tokens of a block
    num_parts: int = 1  # devices that share the vocabulary; it divides V
    mesh_axes: tuple[str, ...] = ()  # along which they do, such as ("tensor",)

    def on_parts(self, function: Callable[..., Any], inputs: Any, outputs: Any) -> Any:
        """Run `function(number, ...)` on each device's part of the vocabulary, 0 .. num_parts - 1.

        inputs: a tree like the arguments after the number, such as (None, 0, None); outputs: one
        like what the function returns. In the place of each array they have the axis of it that is
        the vocabulary's, which is then cut to the part, or None: the array is given whole.
        """
        if self.num_parts == 1:
            return partial(function, 0)

        def spec(axis: int | None) -> PartitionSpec:
            """Of an array whose `axis` the devices share: axes before it are whole."""
            return (
                PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, self.mesh_axes)
            )

        def specs(axes: Any) -> Any:
            return jax.tree.map(spec, axes, is_leaf=lambda axis: axis is None)

        return map_over_parts(
            function,
            split_axes=self.mesh_axes,  # `number` counts the parts along these
            in_specs=specs(inputs),
            out_specs=specs(outputs),
            manual_axes=self.mesh_axes,  # the function sees its part of the arrays along these
        )

    def add_parts(self, x: Any) -> Any:
        """The sum over devices of what each has of its part."""
        return lax.psum(x, self.mesh_axes) if self.num_parts > 1 else x

    def loop(self, vocab: int, step: Callable[[Any, int, Any], Any], carry: Any) -> Any:
        """The carry after `step(start, size, carry)` over all blocks of `vocab` tokens.

        start: i32[], the block's first token; size: how many it has, which is `self.size` but for
        a last, smaller block where this does not divide `vocab`. It has a call after the loop,
        because a block's size is static.
        """
        num_blocks, remainder = divmod(vocab, self.size)

        def whole_block(i: Array, carry: Any) -> Any:
            return step(i * self.size, self.size, carry)

        carry = lax.fori_loop(0, num_blocks, whole_block, carry)
        if not remainder:
            return carry
        return step(jnp.int32(num_blocks * self.size), remainder, carry)

    def logits(
        self, states: Float[Array, "r D"], unembedding_block: Float[Array, "_ _"]
    ) -> Float[Array, "r v"]:
        """A block of logits over the temperature, in float32."""
        return Unembedding(unembedding_block, self.vocab_axis).logits(states) / self.temperature


class ForwardCarry(NamedTuple):
    """What the loop over blocks adds up: over the vocabulary's tokens v so far, x their logits."""

    max_logit: Float[Array, " r"]  # the largest so far
    exp_sum: Float[Array, " r"]  # of exp(x - max)
    weighted_sum: Float[Array, " r"]  # of exp(x - max) x
    first_logits: Float[Array, " m"]  # of responses' first tokens; 0 until their block has come
    state_logits: Float[Array, " r"]  # of the token after each response's state, alike
    saved_logits: Float[Array, "r V"] | None  # all, where they are kept


class StateStats(NamedTuple):
    """What is known of each state after a walk over the vocabulary."""

    lse: Float[Array, " r"]  # the log-sum-exp of the logits
    entropy: Float[Array, " r"]
    first_logits: Float[Array, " m"]  # of responses' first tokens
    state_logits: Float[Array, " r"]  # of the token after each state, where it is the only one
    saved_logits: Float[Array, "r V"] | None


class Residuals(NamedTuple):
    """What the gradient reads; r = p + m (T - 1) states, as in `_stats_over_blocks`."""

    states: Float[Array, "r D"]
    unembedding: Float[Array, "_ _"]
    tokens: Int[Array, "m T"]
    prefix_entry: Int[Array, " m"]
    lse: Float[Array, " r"]
    entropy: Float[Array, " r"]
    saved_logits: Float[Array, "r V"] | None


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def blockwise_token_stats(
    states: Float[Array, "r D"],
    unembedding: Float[Array, "_ _"],
    tokens: Int[Array, "m T"],
    prefix_entry: Int[Array, " m"],
    blocks: VocabularyBlocks,
) -> tuple[Float[Array, "m T"], Float[Array, "m T"]]:
    """Return (log-probabilities, entropies) of tokens, f32[m T], without all logits at once.

    states, prefix_entry: of `HiddenStates.unique_states`, whose order is relied on. unembedding:
    [V D] or [D V] (`blocks.vocab_axis`). tokens: padded like the states, so that r = p + m (T - 1)
    with p states of prompts. Differentiable in states and unembedding.
    """
    return _forward(states, unembedding, tokens, prefix_entry, blocks, save_logits=False)[0]


def _forward(
    states: Array,
    unembedding: Array,
    tokens: Array,
    prefix_entry: Array,
    blocks: VocabularyBlocks,
    save_logits: bool = True,
) -> tuple[tuple[Array, Array], Residuals]:
    """Return ((log-probabilities [m T], entropies [m T]), what the gradient reads).

    Arguments: as of `blockwise_token_stats`. save_logits: whether all logits may be kept for the
    gradient; they are where a device has at most MAX_SAVED_LOGITS.
    """
    vocab = unembedding.shape[blocks.vocab_axis] // blocks.num_parts
    save_logits = save_logits and len(states) * vocab <= MAX_SAVED_LOGITS
    compute_stats = blocks.on_parts(
        partial(_stats_over_blocks, blocks, save_logits),
        inputs=(None, blocks.vocab_axis, None, None),
        # of all fields, only the last, saved_logits, is divided among parts
        outputs=StateStats._make([None, None, None, None, 1 if save_logits else None]),
    )
    stats: StateStats = compute_stats(states, unembedding, tokens, prefix_entry)

    first_logps = stats.first_logits - stats.lse[prefix_entry]
    logps = _states_to_tokens(first_logps, stats.state_logits - stats.lse, tokens)
    entropies = _states_to_tokens(stats.entropy[prefix_entry], stats.entropy, tokens)
    residuals = Residuals(
        states, unembedding, tokens, prefix_entry, stats.lse, stats.entropy, stats.saved_logits
    )
    return (logps, entropies), residuals


def _stats_over_blocks(
    blocks: VocabularyBlocks,
    save_logits: bool,
    number: int | Array,
    states: Array,
    unembedding: Array,
    tokens: Array,
    prefix_entry: Array,
) -> StateStats:
    """The statistics of all states, from a walk over one device's part of the vocabulary.

    The device walks over the blocks of part `number`, 0 .. num_parts - 1; then the sums of all
    parts are added up, so that each device returns the same numbers, but for `saved_logits`, which
    are [r V / num_parts] of its part alone.

    states: [r D], p prompts' last states first, then those before tokens 1 .. T-1 of each response,
    r = p + m (T - 1). unembedding: of the part, [V / num_parts, D] or [D, V / num_parts]. tokens:
    i32[m T], of the whole vocabulary. prefix_entry: i32[m], of each response the row of `states`,
    below p, that its first token is drawn from.
    """
    zeros = jnp.zeros(len(states), jnp.float32)
    vocab = unembedding.shape[blocks.vocab_axis]
    # From here on tokens are counted from the part's first; one of another part is in no block.
    part_start = number * vocab
    first_tokens = tokens[:, 0] - part_start  # i32[m]
    # i32[r], the one token after each response's state. A prompt's state is before several first
    # tokens: it has -1, and `first_tokens` stand for them.
    state_tokens = _state_tokens(tokens, len(states)) - part_start

    def step(start: Array, size: int, carry: ForwardCarry) -> ForwardCarry:
        """Adds the block of tokens start .. start + size - 1; x [r size] are its logits."""
        unembedding_block = lax.dynamic_slice_in_dim(unembedding, start, size, blocks.vocab_axis)
        x = blocks.logits(states, unembedding_block)

        # Sums so far are of exp(x - the largest so far): a larger one rescales them.
        max_logit = jnp.maximum(carry.max_logit, x.max(-1))
        rescale = jnp.exp(carry.max_logit - max_logit)
        weight = jnp.exp(x - max_logit[:, None])

        # The logits of the tokens that are in this block; each token is in one.
        is_first = _token_in_block(first_tokens, start, size)
        first_logits = jnp.where(is_first, x[prefix_entry], 0.0).sum(-1)
        is_next = _token_in_block(state_tokens, start, size)
        state_logits = jnp.where(is_next, x, 0.0).sum(-1)

        saved_logits = carry.saved_logits
        if saved_logits is not None:
            saved_logits = lax.dynamic_update_slice_in_dim(saved_logits, x, start, 1)
        return ForwardCarry(
            max_logit=max_logit,
            exp_sum=carry.exp_sum * rescale + weight.sum(-1),
            weighted_sum=carry.weighted_sum * rescale + (weight * x).sum(-1),
            first_logits=carry.first_logits + first_logits,
            state_logits=carry.state_logits + state_logits,
            saved_logits=saved_logits,
        )

    carry = ForwardCarry(
        max_logit=zeros + NEG_INF,
        exp_sum=zeros,
        weighted_sum=zeros,
        first_logits=jnp.zeros(len(tokens), jnp.float32),
        state_logits=zeros,
        saved_logits=jnp.zeros((len(states), vocab), jnp.float32) if save_logits else None,
    )
    sums = blocks.loop(vocab, step, carry)

    # Sums of all parts, rescaled from the largest logit of a part to the largest of all.
    max_logit, exp_sum, weighted_sum = sums.max_logit, sums.exp_sum, sums.weighted_sum
    if blocks.num_parts > 1:
        max_logit = lax.pmax(sums.max_logit, blocks.mesh_axes)
        rescale = jnp.exp(sums.max_logit - max_logit)
        exp_sum, weighted_sum = blocks.add_parts((exp_sum * rescale, weighted_sum * rescale))
    first_logits, state_logits = blocks.add_parts((sums.first_logits, sums.state_logits))

    lse = max_logit + jnp.log(exp_sum)
    return StateStats(
        lse=lse,
        entropy=lse - weighted_sum / exp_sum,
        first_logits=first_logits,
        state_logits=state_logits,
        saved_logits=sums.saved_logits,
    )


def _backward(
    blocks: VocabularyBlocks, residuals: Residuals, cotangents: tuple[Array, Array]
) -> tuple[Array, Array, None, None]:
    """Return (d states, d unembedding, None, None): tokens and prefix_entry have no gradient.

    cotangents: the loss's gradients of the log-probabilities and of the entropies, [m T] each.
    d states is [r D]; d unembedding has the axes of the unembedding, of which `blocks.vocab_axis`
    is the vocabulary's.
    """
    vocab_axis = blocks.vocab_axis
    logits_axis = None if residuals.saved_logits is None else 1
    # of all fields, only the unembedding and the last, saved_logits, are divided among parts
    axes = Residuals._make([None, vocab_axis, None, None, None, None, logits_axis])
    compute_gradient = blocks.on_parts(
        partial(_gradient_over_blocks, blocks),
        inputs=(axes, None, None),
        outputs=(None, vocab_axis),
    )
    d_logps, d_entropies = cotangents
    d_states, d_unembedding = compute_gradient(residuals, d_logps, d_entropies)
    return d_states, d_unembedding, None, None


def _gradient_over_blocks(
    blocks: VocabularyBlocks,
    number: int | Array,
    residuals: Residuals,
    d_token_logps: Float[Array, "m T"],
    d_token_entropies: Float[Array, "m T"],
) -> tuple[Array, Array]:
    """Return (d states [r D] of all parts, d unembedding of one part of the vocabulary).

    number: of the part, 0 .. num_parts - 1. residuals: with the part's unembedding and saved
    logits, all else whole. d_token_*: the loss's gradients of what the forward pass returned.
    """
    states, unembedding, tokens, prefix_entry, lse, state_entropy, saved_logits = residuals
    vocab_axis = blocks.vocab_axis
    part_start = number * unembedding.shape[vocab_axis]  # tokens are counted from there on
    first_tokens = tokens[:, 0] - part_start
    state_tokens = _state_tokens(tokens, len(states)) - part_start
    num_prompts = _num_prompt_states(tokens, len(states))

    # Sums over the responses of each prompt are products: on a GPU the order of a scatter's sums
    # differs between runs.
    sum_by_prompt = partial(
        jnp.dot, jax.nn.one_hot(prefix_entry, num_prompts, axis=0), precision=lax.Precision.HIGHEST
    )

    def by_state(cotangent: Array) -> Float[Array, "r 1"]:
        """Values of tokens [m T], added up by the state before each, over the temperature."""
        of_states = [sum_by_prompt(cotangent[:, 0]), cotangent[:, 1:].reshape(-1)]
        return jnp.concatenate(of_states)[:, None] / blocks.temperature

    # f32[m 1] of first tokens alone, for [v = y]; [r 1] by state, of a prompt's the sum over its
    # responses, for p_v.
    d_first_logps = d_token_logps[:, :1] / blocks.temperature
    d_logps = by_state(d_token_logps)
    d_entropy = by_state(d_token_entropies)

    def step(start: Array, size: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        """Adds what tokens start .. start + size - 1 bring to (d states, d unembedding)."""
        d_states, d_unembedding = carry
        unembedding_block = lax.dynamic_slice_in_dim(unembedding, start, size, vocab_axis)
        if saved_logits is None:
            logits = blocks.logits(states, unembedding_block)
        else:
            logits = lax.dynamic_slice_in_dim(saved_logits, start, size, 1)
        log_p = logits - lse[:, None]
        p = jnp.exp(log_p)

        # [v = y] - p_v. A prompt's state is before the first tokens of several responses.
        is_next = _token_in_block(state_tokens, start, size)
        d_logits = jnp.where(is_next, d_logps, 0.0) - p * d_logps
        is_first = _token_in_block(first_tokens, start, size)
        d_first = jnp.where(is_first, d_first_logps, 0.0)
        d_logits = d_logits.at[:num_prompts].add(sum_by_prompt(d_first))
        if blocks.use_entropy:
            d_logits = d_logits - p * (log_p + state_entropy[:, None]) * d_entropy
        d_logits = d_logits.astype(unembedding.dtype)

        # logits = states @ unembedding: the gradients of both.
        d_block = jnp.einsum("rv,rd->vd" if vocab_axis == 0 else "rv,rd->dv", d_logits, states)
        d_block = d_block.astype(unembedding.dtype)
        d_unembedding = lax.dynamic_update_slice_in_dim(d_unembedding, d_block, start, vocab_axis)
        equation = "rv,vd->rd" if vocab_axis == 0 else "rv,dv->rd"
        from_block = jnp.einsum(
            equation, d_logits, unembedding_block, preferred_element_type=jnp.float32
        )
        return d_states + from_block, d_unembedding

    zeros = jnp.zeros(states.shape, jnp.float32), jnp.zeros_like(unembedding)
    d_states, d_unembedding = blocks.loop(unembedding.shape[vocab_axis], step, zeros)
    return blocks.add_parts(d_states).astype(states.dtype), d_unembedding


blockwise_token_stats.defvjp(_forward, _backward)


def _num_prompt_states(tokens: Array, num_states: int) -> int:
    """How many of the states are prompts', which come first."""
    return num_states - tokens[:, 1:].size


def _state_tokens(tokens: Array, num_states: int) -> Int[Array, " r"]:
    """The token that follows each state, where it is the only one; -1 for prompts' states.

    tokens: i32[m T]. Of the states, those behind the prompts' are before tokens 1 .. T-1 of
    response 0, then of response 1, and so on.
    """
    of_prompts = jnp.full(_num_prompt_states(tokens, num_states), -1, tokens.dtype)
    return jnp.concatenate([of_prompts, tokens[:, 1:].reshape(-1)])


def _states_to_tokens(
    first_values: Float[Array, " m"], state_values: Float[Array, " r"], tokens: Int[Array, "m T"]
) -> Float[Array, "m T"]:
    """Values by token, from those of responses' first tokens and those by state.

    state_values of prompts' states are left out; the others are of the tokens after the first.
    """
    num_prompts = _num_prompt_states(tokens, len(state_values))
    other_values = state_values[num_prompts:].reshape(tokens[:, 1:].shape)
    return jnp.concatenate([first_values[:, None], other_values], 1)


def _token_in_block(tokens: Int[Array, " r"], start: Array, size: int) -> Bool[Array, "r v"]:
    return tokens[:, None] - start == jnp.arange(size)[None]
