"""One pass through the layers for prompts and the responses to them, for the trainer's gradient.

A weight is gathered and read, and its gradient added up, once for both. Products with weights are of all tokens in one
row; attention is within prompts, and of responses to themselves and their prompt.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from isojax.models.attention import self_attention
from isojax.models.block import rms_norm
from isojax.models.fsdp import all_gather_weight
from isojax.models.transformer import Decoder, Params


def forward_prompts_and_responses(
    decoder: Decoder,
    params: Params,
    prompts: Int[Array, "g P"],
    lengths: Int[Array, " g"],
    tokens: Int[Array, "m t"],
    prompt_index: Int[Array, " m"],
) -> tuple[Float[Array, "g D"], Float[Array, "m t D"]]:
    """Hidden states of prompts' last tokens, and of the tokens of responses, of which the i-th continues prompt
    `prompt_index[i]`. The same numbers as `prefill` and `forward` of a `Decoder`, up to rounding.
    """
    (g, P), (m, t), num_prompt_tokens = prompts.shape, tokens.shape, prompts.size
    start_position = lengths[prompt_index]

    def concatenate(of_prompts: Array, of_responses: Array) -> Array:
        return jnp.concatenate([x.reshape(-1, *x.shape[2:]) for x in (of_prompts, of_responses)])[None]

    def split(x: Float[Array, "1 r *d"]) -> tuple[Float[Array, "g P *d"], Float[Array, "m t *d"]]:
        of_prompts, of_responses = x[0, :num_prompt_tokens], x[0, num_prompt_tokens:]
        return of_prompts.reshape(g, P, *x.shape[2:]), of_responses.reshape(m, t, *x.shape[2:])

    def split_heads(kv: Float[Array, "1 K r H"]) -> tuple[Float[Array, "g K P H"], Float[Array, "m K t H"]]:
        of_prompts, of_responses = split(kv.swapaxes(1, 2))
        return of_prompts.swapaxes(1, 2), of_responses.swapaxes(1, 2)

    def attention(q: Array, k: Array, v: Array, _: None) -> Array:
        prompt_queries, response_queries = split(q)
        (prompt_keys, response_keys), (prompt_values, response_values) = split_heads(k), split_heads(v)
        implementation = decoder.options.forward_attention
        prefix = prompt_keys[prompt_index], prompt_values[prompt_index], start_position
        return concatenate(
            self_attention(implementation, prompt_queries, prompt_keys, prompt_values),
            self_attention(implementation, response_queries, response_keys, response_values, prefix),
        )

    prompt_positions = jnp.broadcast_to(jnp.arange(P)[None], (g, P))
    positions = concatenate(prompt_positions, start_position[:, None] + jnp.arange(t)[None])
    first_tokens = slice(0, num_prompt_tokens, P)
    x, _ = decoder.run_layers(params, concatenate(prompts, tokens), positions, attention, first_tokens=first_tokens)
    prompt_states, response_states = split(x)
    last_states = jnp.take_along_axis(prompt_states, (lengths - 1)[:, None, None], 1)[:, 0]
    norm_scale, eps = all_gather_weight(params["norm"], 0, decoder.config.width), decoder.config.norm_eps
    return rms_norm(last_states, norm_scale, eps), rms_norm(response_states, norm_scale, eps)
