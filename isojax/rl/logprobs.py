"""What the trainer reads off the policy's next-token distributions: each chosen token's log-probability, and the exact entropy.

Two forms of the same numbers. The plain one holds the logits [m T V]. The other walks over the vocabulary in blocks with an online
log-sum-exp, as flash attention does over keys (arXiv:2205.14135, algorithm 1), and works each block out again for the gradient:

    log p(y) = x_y - lse          d log p(y) / d x_v = [v = y] - p_v
    H = lse - sum_v p_v x_v       d H / d x_v = -p_v (log p_v + H)

with x the logits over the temperature. It holds two blocks of logits and no more: at V = 152k a twentieth of the plain form's
temporary memory, and less time, because the blocks stay in the cache (benchmarks/vocabulary_blocks.py).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from isojax.geometry import VOCABULARY_BLOCK, vocabulary_block
from isojax.models.decoder import Decoder, Params
from isojax.rl.regularizers import entropy
from isojax.sampling.logits import EDGE, NEVER, log_probs, nucleus, within

BLOCK = VOCABULARY_BLOCK
PLAIN = 2**22  # logits of a microbatch up to which the plain form is taken: 16 MB


class Read(NamedTuple):
    """Of each response token: its log-probability, and the entropy in nats of the distribution it was drawn from; f32[m T] each."""

    logps: Array
    entropy: Array


class Hidden(NamedTuple):
    """A policy's parameters and its hidden states before each response token [m T D]."""

    params: Params
    states: Array


def chosen(log_p: Float[Array, "m T V"], tokens: Int[Array, "m T"]) -> Float[Array, "m T"]:
    """The log-probability of each response token."""
    return jnp.take_along_axis(log_p, tokens[..., None], -1)[..., 0]


def read(decoder: Decoder, hidden: Hidden, tokens: Int[Array, "m T"], temperature: float, use_entropy: bool, split: bool = False) -> Read:
    """Of the whole distributions (top-p 1).

    use_entropy: whether the entropy is differentiated. split: whether devices share the vocabulary; they keep the plain form, whose
    logits are split as well, because a block of the vocabulary would have to be gathered from them.
    """
    if split or tokens.size * decoder.vocab <= PLAIN:
        log_p = log_probs(decoder.logits(hidden.params, hidden.states), temperature)
        return Read(chosen(log_p, tokens), entropy(log_p if use_entropy else lax.stop_gradient(log_p)))
    matrix, axis = decoder.unembedding(hidden.params)
    rows = hidden.states.reshape(-1, hidden.states.shape[-1])
    found: Any = blockwise(rows, matrix, tokens.reshape(-1), axis, temperature, use_entropy, vocabulary_block(decoder.vocab, BLOCK))
    return Read(*(x.reshape(tokens.shape) for x in found))


def read_nucleus(
    decoder: Decoder,
    hidden: Hidden,
    base: Hidden | None,
    tokens: Int[Array, "m T"],
    kept: Float[Array, "m T"],
    temperature: float,
    use_entropy: bool,
) -> tuple[Read, Array | None]:
    """Of the distributions over the nuclei that the sampler kept, of mass `kept`; and the base's log-probabilities within them.

    A nucleus is where the sampler drew from, no function of what is differentiated here. It takes all logits of a row to find, so there
    is no walk over blocks.
    """
    logits = decoder.logits(hidden.params, hidden.states)
    log_p = log_probs(logits, temperature)
    inside, _ = nucleus(*lax.stop_gradient((logits, log_p)), kept - EDGE)
    inside |= jnp.arange(log_p.shape[-1])[None, None] == tokens[..., None]
    log_p = within(log_p, inside)
    found = Read(chosen(log_p, tokens), entropy(log_p if use_entropy else lax.stop_gradient(log_p)))
    if base is None:
        return found, None
    return found, chosen(within(log_probs(decoder.logits(base.params, base.states), temperature), inside), tokens)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6))
def blockwise(
    hidden: Float[Array, "r D"],
    matrix: Float[Array, "_ _"],
    tokens: Int[Array, " r"],
    axis: int,
    temperature: float,
    use_entropy: bool,
    block: int,
) -> tuple[Float[Array, " r"], Float[Array, " r"]]:
    """(log-probabilities of the tokens, entropies), without the logits [r V].

    `axis` of the unembedding `matrix` counts the vocabulary: 0 of [V D], 1 of [D V].
    """
    return _forward(hidden, matrix, tokens, axis, temperature, use_entropy, block)[0]


def _forward(hidden: Array, matrix: Array, tokens: Array, axis: int, temperature: float, use_entropy: bool, block: int) -> tuple:
    none = jnp.zeros(tokens.shape, jnp.float32)

    def step(start: Array, size: int, carry: tuple) -> tuple:
        top, total, mean, target = carry  # the largest logit so far; the sums of exp(x - top) and of exp(x - top) x; the token's own
        x = _logits(hidden, _cut(matrix, start, size, axis), axis, temperature)
        new = jnp.maximum(top, x.max(-1))
        shrink, weight = jnp.exp(top - new), jnp.exp(x - new[:, None])
        target = target + jnp.where(_hit(tokens, start, size), x, 0.0).sum(-1)
        return new, total * shrink + weight.sum(-1), mean * shrink + (weight * x).sum(-1), target

    top, total, mean, target = _walk(matrix.shape[axis], block, step, (none + NEVER, none, none, none))
    lse = top + jnp.log(total)
    spread = lse - mean / total
    return (target - lse, spread), (hidden, matrix, tokens, lse, spread)


def _backward(axis: int, temperature: float, use_entropy: bool, block: int, saved: tuple, pulled: tuple[Array, Array]) -> tuple:
    hidden, matrix, tokens, lse, spread = saved
    d_logps, d_spread = (d[:, None] / temperature for d in pulled)

    def step(start: Array, size: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        d_hidden, d_matrix = carry
        part = _cut(matrix, start, size, axis)
        log_p = _logits(hidden, part, axis, temperature) - lse[:, None]
        p = jnp.exp(log_p)
        d = jnp.where(_hit(tokens, start, size), d_logps, 0.0) - p * d_logps
        if use_entropy:
            d = d - p * (log_p + spread[:, None]) * d_spread
        d = d.astype(matrix.dtype)
        d_part = jnp.einsum("rv,rd->vd" if axis == 0 else "rv,rd->dv", d, hidden)
        d_matrix = lax.dynamic_update_slice_in_dim(d_matrix, d_part.astype(matrix.dtype), start, axis)
        d_hidden = d_hidden + jnp.einsum("rv,vd->rd" if axis == 0 else "rv,dv->rd", d, part, preferred_element_type=jnp.float32)
        return d_hidden, d_matrix

    zeros = (jnp.zeros(hidden.shape, jnp.float32), jnp.zeros_like(matrix))
    d_hidden, d_matrix = _walk(matrix.shape[axis], block, step, zeros)
    return d_hidden.astype(hidden.dtype), d_matrix, None


blockwise.defvjp(_forward, _backward)


def _walk(size: int, block: int, step: Callable[[Any, int, Any], Any], carry: Any) -> Any:
    """`step(start, size of the block, carry)` over whole blocks, then over what is left of the vocabulary."""
    whole = size // block
    carry = lax.fori_loop(0, whole, lambda i, carry: step(i * block, block, carry), carry)
    return step(jnp.int32(whole * block), size % block, carry) if size % block else carry


def _cut(matrix: Array, start: Array, size: int, axis: int) -> Array:
    """A block of the unembedding; nothing is transposed."""
    return lax.dynamic_slice_in_dim(matrix, start, size, axis)


def _hit(tokens: Array, start: Array, size: int) -> Bool[Array, "r v"]:
    """Where in a block the chosen tokens are."""
    return tokens[:, None] - start == jnp.arange(size)[None]


def _logits(hidden: Array, part: Array, axis: int, temperature: float) -> Float[Array, "r v"]:
    return jnp.einsum("rd,vd->rv" if axis == 0 else "rd,dv->rv", hidden, part, preferred_element_type=jnp.float32) / temperature
