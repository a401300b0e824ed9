"""What the trainer reads off the policy's next-token distributions: each chosen token's log-probability, and the exact
entropy.

Two forms of the same numbers. The plain one holds the logits [m T V] several times over. The other walks over the
vocabulary in blocks with an online log-sum-exp, as flash attention does over keys (arXiv:2205.14135, algorithm 1):

    log p(y) = x_y - lse          d log p(y) / d x_v = [v = y] - p_v
    H = lse - sum_v p_v x_v       d H / d x_v = -p_v (log p_v + H)

with x the logits over the temperature. A prompt's state, which its responses share, is read once a microbatch. Where
the logits are no more than `KEPT`, all are kept for the gradient; else each block is worked out again: at V = 152k and
512 tokens that takes a twentieth of the plain form's temporary memory, and less time, because blocks stay in the cache
(benchmarks/vocabulary_blocks.py).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from isojax.core.shapes import VOCABULARY_BLOCK, vocabulary_block
from isojax.models.transformer import Decoder, Params
from isojax.sampling.logits import NEG_INF, NUCLEUS_MASS_TOLERANCE, log_probs, nucleus, renormalize

MAX_BLOCK_TOKENS = VOCABULARY_BLOCK
MAX_DENSE_LOGITS = 2**22  # logits of a microbatch up to which the plain form is taken: 16 MB
MAX_SAVED_LOGITS = 2**25  # up to which blocks keep theirs for the gradient: 134 MB


class TokenStats(NamedTuple):
    """Of each response token: its log-probability, and the entropy in nats of the distribution it was drawn from; f32[m
    T] each.
    """

    logps: Array
    entropy: Array


class HiddenStates(NamedTuple):
    """A policy's parameters, and its hidden states before response tokens: after the prompts [g D], of which each
    response continues that of its `entry` i32[m], and after each response's own tokens but the last [m T-1 D]."""

    params: Params
    prompt_hidden: Array
    prefix_entry: Array
    response_hidden: Array

    @property
    def states(self) -> Float[Array, "m T D"]:
        """The state before each token."""
        return jnp.concatenate([self.prompt_hidden[self.prefix_entry][:, None], self.response_hidden], 1)

    def unique_states(self) -> tuple[Float[Array, "r D"], Int[Array, " m"]]:
        """Each state once, prompts' first, of which there are at most m; and which of these is before each response's
        first token.
        """
        m, D = len(self.prefix_entry), self.response_hidden.shape[-1]
        prompt_hidden, prefix_entry = (
            (self.prompt_hidden, self.prefix_entry)
            if m > len(self.prompt_hidden)
            else (self.prompt_hidden[self.prefix_entry], jnp.arange(m))
        )
        return jnp.concatenate([prompt_hidden, self.response_hidden.reshape(-1, D)]), prefix_entry


def token_logps(log_p: Float[Array, "m T V"], tokens: Int[Array, "m T"]) -> Float[Array, "m T"]:
    """The log-probability of each response token."""
    return jnp.take_along_axis(log_p, tokens[..., None], -1)[..., 0]


def entropy(log_p: Float[Array, "*b V"]) -> Float[Array, "*b"]:
    """Exact entropy of the next-token distribution, in nats."""
    return -(jnp.exp(log_p) * log_p).sum(-1)


def token_stats(
    decoder: Decoder,
    hidden: HiddenStates,
    tokens: Int[Array, "m T"],
    temperature: float,
    use_entropy: bool,
    vocab_split: bool = False,
) -> TokenStats:
    """Of the whole distributions (top-p 1).

    use_entropy: whether the entropy is differentiated. split: whether devices share the vocabulary; they keep the plain
    form, whose logits are split as well, because a block of the vocabulary would have to be gathered from them.
    """
    if vocab_split or tokens.size * decoder.vocab <= MAX_DENSE_LOGITS:
        log_p = log_probs(decoder.logits(hidden.params, hidden.states), temperature)
        return TokenStats(token_logps(log_p, tokens), entropy(log_p if use_entropy else lax.stop_gradient(log_p)))
    unembedding, axis = decoder.unembedding_matrix(hidden.params)
    states, prefix_entry = hidden.unique_states()
    logps_and_entropy: Any = blockwise_token_stats(
        states,
        unembedding,
        tokens,
        prefix_entry,
        axis,
        temperature,
        use_entropy,
        vocabulary_block(decoder.vocab, MAX_BLOCK_TOKENS),
    )
    return TokenStats(*logps_and_entropy)


def nucleus_token_stats(
    decoder: Decoder,
    hidden: HiddenStates,
    base_hidden: HiddenStates | None,
    tokens: Int[Array, "m T"],
    nucleus_mass: Float[Array, "m T"],
    temperature: float,
    use_entropy: bool,
) -> tuple[TokenStats, Array | None]:
    """Of the distributions over the nuclei that the sampler kept, of mass `kept`; and the base's log-probabilities
    within them.

    A nucleus is where the sampler drew from, no function of what is differentiated here. It takes all logits of a row
    to find, so there is no walk over blocks.
    """
    logits = decoder.logits(hidden.params, hidden.states)
    log_p = log_probs(logits, temperature)
    in_nucleus, _ = nucleus(*lax.stop_gradient((logits, log_p)), nucleus_mass - NUCLEUS_MASS_TOLERANCE)
    in_nucleus |= jnp.arange(log_p.shape[-1])[None, None] == tokens[..., None]
    log_p = renormalize(log_p, in_nucleus)
    policy_stats = TokenStats(token_logps(log_p, tokens), entropy(log_p if use_entropy else lax.stop_gradient(log_p)))
    if base_hidden is None:
        return policy_stats, None
    return policy_stats, token_logps(
        renormalize(log_probs(decoder.logits(base_hidden.params, base_hidden.states), temperature), in_nucleus), tokens
    )


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def blockwise_token_stats(
    states: Float[Array, "r D"],
    unembedding: Float[Array, "_ _"],
    tokens: Int[Array, "m T"],
    prefix_entry: Int[Array, " m"],
    vocab_axis: int,
    temperature: float,
    use_entropy: bool,
    block: int,
) -> tuple[Float[Array, "m T"], Float[Array, "m T"]]:
    """(log-probabilities of the tokens, entropies), by blocks of the logits [r V].

    `rows` and `entry` are those of `Hidden.once`. `axis` of the unembedding `matrix` counts the vocabulary: 0 of [V D],
    1 of [D V].
    """
    return _forward(
        states, unembedding, tokens, prefix_entry, vocab_axis, temperature, use_entropy, block, save_logits=False
    )[0]


def _forward(
    states: Array,
    unembedding: Array,
    tokens: Array,
    prefix_entry: Array,
    vocab_axis: int,
    temperature: float,
    use_entropy: bool,
    block: int,
    save_logits: bool = True,
) -> tuple:
    zeros, vocab, first_tokens, state_tokens = (
        jnp.zeros(len(states), jnp.float32),
        unembedding.shape[vocab_axis],
        tokens[:, 0],
        _state_tokens(tokens, len(states)),
    )
    save_logits = save_logits and len(states) * vocab <= MAX_SAVED_LOGITS

    def step(start: Array, size: int, carry: tuple) -> tuple:
        # The largest logit so far; the sums of exp(x - top) and of exp(x - top) x; the logits of the tokens, the first
        # apart; all of them.
        max_logit, exp_sum, weighted_sum, first_logits, state_logits, saved_logits = carry
        x = _block_logits(states, _unembedding_block(unembedding, start, size, vocab_axis), vocab_axis, temperature)
        new_max = jnp.maximum(max_logit, x.max(-1))
        rescale, weight = jnp.exp(max_logit - new_max), jnp.exp(x - new_max[:, None])
        first_logits = first_logits + jnp.where(_token_in_block(first_tokens, start, size), x[prefix_entry], 0.0).sum(
            -1
        )
        state_logits = state_logits + jnp.where(_token_in_block(state_tokens, start, size), x, 0.0).sum(-1)
        saved_logits = lax.dynamic_update_slice_in_dim(saved_logits, x, start, 1) if save_logits else saved_logits
        return (
            new_max,
            exp_sum * rescale + weight.sum(-1),
            weighted_sum * rescale + (weight * x).sum(-1),
            first_logits,
            state_logits,
            saved_logits,
        )

    saved_logits = jnp.zeros((len(states), vocab), jnp.float32) if save_logits else None
    carry = zeros + NEG_INF, zeros, zeros, jnp.zeros(len(tokens), jnp.float32), zeros, saved_logits
    max_logit, exp_sum, weighted_sum, first_logits, state_logits, saved_logits = _loop_over_blocks(
        vocab, block, step, carry
    )
    lse = max_logit + jnp.log(exp_sum)
    state_entropy = lse - weighted_sum / exp_sum
    logps = _states_to_tokens(first_logits - lse[prefix_entry], state_logits - lse, tokens)
    return (logps, _states_to_tokens(state_entropy[prefix_entry], state_entropy, tokens)), (
        states,
        unembedding,
        tokens,
        prefix_entry,
        lse,
        state_entropy,
        saved_logits,
    )


def _backward(
    vocab_axis: int,
    temperature: float,
    use_entropy: bool,
    block: int,
    residuals: tuple,
    cotangents: tuple[Array, Array],
) -> tuple:
    states, unembedding, tokens, prefix_entry, lse, state_entropy, saved_logits = residuals
    first_tokens, state_tokens, num_prompts = (
        tokens[:, 0],
        _state_tokens(tokens, len(states)),
        _num_prompt_states(tokens, len(states)),
    )
    # Of prompts' rows sums over their responses: products, whose order is always the same, as a scatter's of rows is
    # not on a GPU.
    sum_by_prompt = partial(jnp.dot, jax.nn.one_hot(prefix_entry, num_prompts, axis=0), precision=lax.Precision.HIGHEST)
    d_first_logps = cotangents[0][:, :1] / temperature
    d_logps, d_entropy = (
        jnp.concatenate([sum_by_prompt(d[:, 0]), d[:, 1:].reshape(-1)])[:, None] / temperature for d in cotangents
    )

    def step(start: Array, size: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        d_states, d_unembedding = carry
        unembedding_block = _unembedding_block(unembedding, start, size, vocab_axis)
        x = (
            _block_logits(states, unembedding_block, vocab_axis, temperature)
            if saved_logits is None
            else lax.dynamic_slice_in_dim(saved_logits, start, size, 1)
        )
        log_p = x - lse[:, None]
        p = jnp.exp(log_p)
        d_logits = jnp.where(_token_in_block(state_tokens, start, size), d_logps, 0.0) - p * d_logps
        d_logits = d_logits.at[:num_prompts].add(
            sum_by_prompt(jnp.where(_token_in_block(first_tokens, start, size), d_first_logps, 0.0))
        )
        if use_entropy:
            d_logits = d_logits - p * (log_p + state_entropy[:, None]) * d_entropy
        d_logits = d_logits.astype(unembedding.dtype)
        d_block = jnp.einsum("rv,rd->vd" if vocab_axis == 0 else "rv,rd->dv", d_logits, states)
        d_unembedding = lax.dynamic_update_slice_in_dim(
            d_unembedding, d_block.astype(unembedding.dtype), start, vocab_axis
        )
        d_states = d_states + jnp.einsum(
            "rv,vd->rd" if vocab_axis == 0 else "rv,dv->rd",
            d_logits,
            unembedding_block,
            preferred_element_type=jnp.float32,
        )
        return d_states, d_unembedding

    zeros = (jnp.zeros(states.shape, jnp.float32), jnp.zeros_like(unembedding))
    d_states, d_unembedding = _loop_over_blocks(unembedding.shape[vocab_axis], block, step, zeros)
    return d_states.astype(states.dtype), d_unembedding, None, None


blockwise_token_stats.defvjp(_forward, _backward)


def _num_prompt_states(tokens: Array, num_states: int) -> int:
    """How many of the rows are prompts', which come first."""
    return num_states - tokens[:, 1:].size


def _state_tokens(tokens: Array, num_states: int) -> Int[Array, " r"]:
    """The token that each row alone is read for; none (-1) of prompts' rows."""
    return jnp.concatenate(
        [jnp.full(_num_prompt_states(tokens, num_states), -1, tokens.dtype), tokens[:, 1:].reshape(-1)]
    )


def _states_to_tokens(
    first_values: Float[Array, " m"], state_values: Float[Array, " r"], tokens: Int[Array, "m T"]
) -> Float[Array, "m T"]:
    """What was found for first tokens, and in responses' own rows for the others."""
    return jnp.concatenate(
        [
            first_values[:, None],
            state_values[_num_prompt_states(tokens, len(state_values)) :].reshape(tokens[:, 1:].shape),
        ],
        1,
    )


def _loop_over_blocks(vocab: int, block: int, step: Callable[[Any, int, Any], Any], carry: Any) -> Any:
    """`step(start, size of the block, carry)` over whole blocks, then over what is left of the vocabulary."""
    num_blocks = vocab // block
    carry = lax.fori_loop(0, num_blocks, lambda i, carry: step(i * block, block, carry), carry)
    return step(jnp.int32(num_blocks * block), vocab % block, carry) if vocab % block else carry


def _unembedding_block(unembedding: Array, start: Array, size: int, vocab_axis: int) -> Array:
    """A block of the unembedding; nothing is transposed."""
    return lax.dynamic_slice_in_dim(unembedding, start, size, vocab_axis)


def _token_in_block(tokens: Array, start: Array, size: int) -> Bool[Array, "r v"]:
    """Where in a block the chosen tokens are."""
    return tokens[:, None] - start == jnp.arange(size)[None]


def _block_logits(states: Array, unembedding_block: Array, vocab_axis: int, temperature: float) -> Float[Array, "r v"]:
    return (
        jnp.einsum(
            "rd,vd->rv" if vocab_axis == 0 else "rd,dv->rv",
            states,
            unembedding_block,
            preferred_element_type=jnp.float32,
        )
        / temperature
    )
