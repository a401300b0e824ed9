"""The log-probability of each response token and the exact entropy: from the logits [m T V], or, where these are many,
over blocks of the vocabulary (rl/blockwise_logprobs.py)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from isojax.core.shapes import MAX_DENSE_LOGITS, VOCABULARY_BLOCK, vocabulary_block
from isojax.models.transformer import Decoder, Params
from isojax.rl.blockwise_logprobs import VocabularyBlocks, blockwise_token_stats
from isojax.sampling.logits import NUCLEUS_MASS_TOLERANCE, log_probs, nucleus, renormalize

MAX_BLOCK_TOKENS = VOCABULARY_BLOCK


class TokenStats(NamedTuple):
    """For each response token, f32[m T] each: its log-probability, and the entropy in nats of the distribution it was
    drawn from."""

    logps: Array
    entropy: Array


class HiddenStates(NamedTuple):
    """A policy's parameters, and its hidden states before response tokens."""

    params: Params
    prompt_hidden: Array  # [g D], after each prompt
    prefix_entry: Array  # i32[m], the prompt that each response continues
    response_hidden: Array  # [m T-1 D], after each response's own tokens but the last

    @property
    def states(self) -> Float[Array, "m T D"]:
        """The state before each token."""
        return jnp.concatenate([self.prompt_hidden[self.prefix_entry][:, None], self.response_hidden], 1)

    def unique_states(self) -> tuple[Float[Array, "r D"], Int[Array, " m"]]:
        """Each state once, prompts' first, of which there are at most m; and the index of the state before each
        response's first token."""
        m, D = len(self.prefix_entry), self.response_hidden.shape[-1]
        prompt_hidden, prefix_entry = self.prompt_hidden, self.prefix_entry
        if m <= len(prompt_hidden):
            prompt_hidden, prefix_entry = prompt_hidden[prefix_entry], jnp.arange(m)
        return jnp.concatenate([prompt_hidden, self.response_hidden.reshape(-1, D)]), prefix_entry


def token_logps(log_p: Float[Array, "m T V"], tokens: Int[Array, "m T"]) -> Float[Array, "m T"]:
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
    """Log-probabilities and entropies of the whole distributions (top-p 1). use_entropy: whether the entropy is
    differentiated. vocab_split: whether devices share the vocabulary; they keep the plain form, whose logits are split
    as well."""
    if vocab_split or tokens.size * decoder.vocab <= MAX_DENSE_LOGITS:
        log_p = log_probs(decoder.logits(hidden.params, hidden.states), temperature)
        return TokenStats(token_logps(log_p, tokens), entropy(log_p if use_entropy else lax.stop_gradient(log_p)))
    unembedding, vocab_axis = decoder.unembedding_matrix(hidden.params)
    states, prefix_entry = hidden.unique_states()
    blocks = VocabularyBlocks(vocab_axis, temperature, use_entropy, vocabulary_block(decoder.vocab, MAX_BLOCK_TOKENS))
    logps_and_entropy: Any = blockwise_token_stats(states, unembedding, tokens, prefix_entry, blocks)
    return TokenStats(*logps_and_entropy)


def nucleus_token_stats(
    decoder: Decoder,
    hidden: HiddenStates,
    base_hidden: HiddenStates | None,
    tokens: Int[Array, "m T"],
    nucleus_mass: Float[Array, "m T"],
    temperature: float,
    use_entropy: bool,
) -> tuple[TokenStats, Float[Array, "m T"] | None]:
    """The same within the nuclei that the sampler drew from, of mass `nucleus_mass`, which are constants here; and the
    base policy's log-probabilities within them."""
    logits = decoder.logits(hidden.params, hidden.states)
    log_p = log_probs(logits, temperature)
    in_nucleus, _ = nucleus(*lax.stop_gradient((logits, log_p)), nucleus_mass - NUCLEUS_MASS_TOLERANCE)
    in_nucleus |= jnp.arange(log_p.shape[-1])[None, None] == tokens[..., None]
    log_p = renormalize(log_p, in_nucleus)
    policy_stats = TokenStats(token_logps(log_p, tokens), entropy(log_p if use_entropy else lax.stop_gradient(log_p)))
    if base_hidden is None:
        return policy_stats, None
    base_log_p = log_probs(decoder.logits(base_hidden.params, base_hidden.states), temperature)
    return policy_stats, token_logps(renormalize(base_log_p, in_nucleus), tokens)
