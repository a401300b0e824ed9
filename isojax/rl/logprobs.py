"""What the trainer reads off the policy's next-token distributions: each chosen token's log-probability, and the exact entropy.

Two forms of the same numbers. The plain one holds the logits [m T V] several times over. The other walks over the vocabulary in blocks
with an online log-sum-exp, as flash attention does over keys (arXiv:2205.14135, algorithm 1):

    log p(y) = x_y - lse          d log p(y) / d x_v = [v = y] - p_v
    H = lse - sum_v p_v x_v       d H / d x_v = -p_v (log p_v + H)

with x the logits over the temperature. A prompt's state, which its responses share, is read once a microbatch. Where the logits are no more
than `KEPT`, all are kept for the gradient; else each block is worked out again: at V = 152k and 512 tokens that takes a twentieth of the
plain form's temporary memory, and less time, because blocks stay in the cache (benchmarks/vocabulary_blocks.py).
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
KEPT = 2**25  # up to which blocks keep theirs for the gradient: 134 MB


class Read(NamedTuple):
    """Of each response token: its log-probability, and the entropy in nats of the distribution it was drawn from; f32[m T] each."""

    logps: Array
    entropy: Array


class Hidden(NamedTuple):
    """A policy's parameters, and its hidden states before response tokens: after the prompts [g D], of which each response continues that
    of its `entry` i32[m], and after each response's own tokens but the last [m T-1 D]."""

    params: Params
    prompts: Array
    entry: Array
    own: Array

    @property
    def states(self) -> Float[Array, "m T D"]:
        """The state before each token."""
        return jnp.concatenate([self.prompts[self.entry][:, None], self.own], 1)

    def once(self) -> tuple[Float[Array, "r D"], Int[Array, " m"]]:
        """Each state once, prompts' first, of which there are at most m; and which of these is before each response's first token."""
        m, D = len(self.entry), self.own.shape[-1]
        prompts, entry = (self.prompts, self.entry) if m > len(self.prompts) else (self.prompts[self.entry], jnp.arange(m))
        return jnp.concatenate([prompts, self.own.reshape(-1, D)]), entry


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
    rows, entry = hidden.once()
    found: Any = blockwise(rows, matrix, tokens, entry, axis, temperature, use_entropy, vocabulary_block(decoder.vocab, BLOCK))
    return Read(*found)


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


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def blockwise(
    rows: Float[Array, "r D"],
    matrix: Float[Array, "_ _"],
    tokens: Int[Array, "m T"],
    entry: Int[Array, " m"],
    axis: int,
    temperature: float,
    use_entropy: bool,
    block: int,
) -> tuple[Float[Array, "m T"], Float[Array, "m T"]]:
    """(log-probabilities of the tokens, entropies), by blocks of the logits [r V].

    `rows` and `entry` are those of `Hidden.once`. `axis` of the unembedding `matrix` counts the vocabulary: 0 of [V D], 1 of [D V].
    """
    return _forward(rows, matrix, tokens, entry, axis, temperature, use_entropy, block, keep=False)[0]


def _forward(
    rows: Array, matrix: Array, tokens: Array, entry: Array, axis: int, temperature: float, use_entropy: bool, block: int, keep: bool = True
) -> tuple:
    none, vocab, first, own = jnp.zeros(len(rows), jnp.float32), matrix.shape[axis], tokens[:, 0], _own(tokens, len(rows))
    keep = keep and len(rows) * vocab <= KEPT

    def step(start: Array, size: int, carry: tuple) -> tuple:
        # The largest logit so far; the sums of exp(x - top) and of exp(x - top) x; the logits of the tokens, the first apart; all of them.
        top, total, mean, of_first, of_own, kept = carry
        x = _logits(rows, _cut(matrix, start, size, axis), axis, temperature)
        new = jnp.maximum(top, x.max(-1))
        shrink, weight = jnp.exp(top - new), jnp.exp(x - new[:, None])
        of_first = of_first + jnp.where(_hit(first, start, size), x[entry], 0.0).sum(-1)
        of_own = of_own + jnp.where(_hit(own, start, size), x, 0.0).sum(-1)
        kept = lax.dynamic_update_slice_in_dim(kept, x, start, 1) if keep else kept
        return new, total * shrink + weight.sum(-1), mean * shrink + (weight * x).sum(-1), of_first, of_own, kept

    kept = jnp.zeros((len(rows), vocab), jnp.float32) if keep else None
    carry = none + NEVER, none, none, jnp.zeros(len(tokens), jnp.float32), none, kept
    top, total, mean, of_first, of_own, kept = _walk(vocab, block, step, carry)
    lse = top + jnp.log(total)
    spread = lse - mean / total
    logps = _by_token(of_first - lse[entry], of_own - lse, tokens)
    return (logps, _by_token(spread[entry], spread, tokens)), (rows, matrix, tokens, entry, lse, spread, kept)


def _backward(axis: int, temperature: float, use_entropy: bool, block: int, saved: tuple, pulled: tuple[Array, Array]) -> tuple:
    rows, matrix, tokens, entry, lse, spread, kept = saved
    first, own, g = tokens[:, 0], _own(tokens, len(rows)), _shared(tokens, len(rows))
    # Of prompts' rows sums over their responses: products, whose order is always the same, as a scatter's of rows is not on a GPU.
    add_up = partial(jnp.dot, jax.nn.one_hot(entry, g, axis=0), precision=lax.Precision.HIGHEST)
    d_first = pulled[0][:, :1] / temperature
    d_logps, d_spread = (jnp.concatenate([add_up(d[:, 0]), d[:, 1:].reshape(-1)])[:, None] / temperature for d in pulled)

    def step(start: Array, size: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        d_rows, d_matrix = carry
        part = _cut(matrix, start, size, axis)
        x = _logits(rows, part, axis, temperature) if kept is None else lax.dynamic_slice_in_dim(kept, start, size, 1)
        log_p = x - lse[:, None]
        p = jnp.exp(log_p)
        d = jnp.where(_hit(own, start, size), d_logps, 0.0) - p * d_logps
        d = d.at[:g].add(add_up(jnp.where(_hit(first, start, size), d_first, 0.0)))
        if use_entropy:
            d = d - p * (log_p + spread[:, None]) * d_spread
        d = d.astype(matrix.dtype)
        d_part = jnp.einsum("rv,rd->vd" if axis == 0 else "rv,rd->dv", d, rows)
        d_matrix = lax.dynamic_update_slice_in_dim(d_matrix, d_part.astype(matrix.dtype), start, axis)
        d_rows = d_rows + jnp.einsum("rv,vd->rd" if axis == 0 else "rv,dv->rd", d, part, preferred_element_type=jnp.float32)
        return d_rows, d_matrix

    zeros = (jnp.zeros(rows.shape, jnp.float32), jnp.zeros_like(matrix))
    d_rows, d_matrix = _walk(matrix.shape[axis], block, step, zeros)
    return d_rows.astype(rows.dtype), d_matrix, None, None


blockwise.defvjp(_forward, _backward)


def _shared(tokens: Array, rows: int) -> int:
    """How many of the rows are prompts', which come first."""
    return rows - tokens[:, 1:].size


def _own(tokens: Array, rows: int) -> Int[Array, " r"]:
    """The token that each row alone is read for; none (-1) of prompts' rows."""
    return jnp.concatenate([jnp.full(_shared(tokens, rows), -1, tokens.dtype), tokens[:, 1:].reshape(-1)])


def _by_token(first: Float[Array, " m"], rows: Float[Array, " r"], tokens: Int[Array, "m T"]) -> Float[Array, "m T"]:
    """What was found for first tokens, and in responses' own rows for the others."""
    return jnp.concatenate([first[:, None], rows[_shared(tokens, len(rows)) :].reshape(tokens[:, 1:].shape)], 1)


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


def _logits(rows: Array, part: Array, axis: int, temperature: float) -> Float[Array, "r v"]:
    return jnp.einsum("rd,vd->rv" if axis == 0 else "rd,dv->rv", rows, part, preferred_element_type=jnp.float32) / temperature
