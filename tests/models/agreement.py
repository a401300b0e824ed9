"""The ways of running a decoder, on the same sequences: what test_families.py and
make_references.py compare with transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isojax.models.decode import Decoding
from isojax.models.spec import Spec
from isojax.models.transformer import Decoder, Params

PATHS = ("score", "prefix and score", "prefix and step, stacked", "prefix and step, unrolled")


def from_checkpoint(weights: Mapping[str, np.ndarray], decoder: Decoder) -> Params:
    """Our tree of a checkpoint's arrays by their names in it: matrices turned round (torch's Linear
    is [out, in]), layers stacked.
    """

    def ours(name: str, shape: tuple[int, ...]) -> np.ndarray:
        w = weights[name]
        return (w.T if w.ndim == 2 and "embed_tokens" not in name else w).reshape(shape)

    def param(x: jax.ShapeDtypeStruct, spec: Spec) -> np.ndarray:
        if not spec.stacked:
            return ours(spec.tensor, x.shape)
        of_one = x.shape[len(spec.stacked) :]
        return np.stack([ours(name, of_one) for name in spec.tensor_names()]).reshape(x.shape)

    return jax.tree.map(param, decoder.shapes(), decoder.specs())


# compiles in half the time
@partial(jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
def run(
    decoder: Decoder, params: Params, tokens: Any, prompts: Any, cut: Any, responses: Any, row: Any
) -> tuple[Any, ...]:
    """Logits [b T V] of whole sequences; from the last token of prompts of lengths `cut` on, in
    another order: of what follows that token in `responses`; of this once more, one token at a
    time."""
    start, following = cut[row], responses[:, 1:]
    full = decoder.forward(params, tokens, jnp.zeros_like(start))
    prefix = decoder.prefill(params, prompts, cut)
    after = decoder.forward(params, following, start, prefix.kv, row)

    def stepped(unrolled: bool) -> Any:
        decoding = Decoding(decoder, len(row), 1, prompts.shape[1], tokens.shape[1], unrolled)
        weights = decoding.prepare_weights(params)

        def step(carry: Any, token: Any) -> Any:
            cache, t = carry
            hidden, cache = decoding.step(weights, cache, token, start + t, t)
            return (cache, t + 1), decoding.logits(weights, hidden)

        entries, last = decoding.prefill(params, prompts, cut)
        cache = decoding.admit(decoding.empty_cache(), entries, jnp.asarray(row), row >= 0)
        result = jax.lax.scan(step, (cache, jnp.zeros_like(start)), following.T)[1].swapaxes(0, 1)
        return jnp.concatenate([decoding.logits(weights, last[row])[:, None], result], 1)

    after = jnp.concatenate([prefix.last_hidden[row][:, None], after], 1)
    return (
        decoder.logits(params, full),
        decoder.logits(params, after),
        stepped(False),
        stepped(True),
    )


def differences(
    decoder: Decoder, params: Params, tokens: np.ndarray, lengths: np.ndarray, expected: np.ndarray
) -> dict[str, np.ndarray]:
    """By way of running, our logits minus `expected` [b T V], at every position that it computes
    and that is no padding.

    `tokens` are right-padded. Rows are cut into prompt and response at places of their own, the
    first after one token.
    """
    rows, width = tokens.shape
    cut = np.array(
        [1 + (r * (n - 2)) // max(rows - 1, 1) for r, n in enumerate(lengths)], np.int32
    )  # prompt lengths, 1 .. n - 1
    prompts = np.where(np.arange(cut.max())[None] < cut[:, None], tokens[:, : cut.max()], 0)
    row = np.arange(rows)[::-1].copy()  # responses in another order than their prompts
    start = (cut - 1)[row]
    at = np.minimum(start[:, None] + np.arange(width)[None], width - 1)
    responses = np.take_along_axis(tokens[row], at, 1)
    wanted = expected[row[:, None], at]
    full = np.arange(width)[None] < lengths[:, None]
    live = start[:, None] + np.arange(width)[None] < lengths[row][:, None]
    first, *others = (
        np.asarray(x) for x in run(decoder, params, tokens, prompts, cut, responses, row)
    )
    result = [(first - expected)[full], *((x - wanted)[live] for x in others)]
    return dict(zip(PATHS, result, strict=True))
