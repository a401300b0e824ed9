"""Responses as host lists, and as the rollout buffers of a request: what an engine needs that
samples elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from isojax.core.errors import InputError
from isojax.rl.engines import EngineSetup, SampleRequest
from isojax.sampling.batch import (
    Rollouts,
    RoutedRollouts,
    response_logps,
    response_nucleus_mass,
    response_tokens,
)
from isojax.sampling.layout import Layout


@dataclass(frozen=True)
class SampledResponse:
    """One response of l tokens."""

    # i32[l], the one that ended it is the last; context as ~token
    tokens: Sequence[int] | np.ndarray
    logps: Sequence[float] | np.ndarray  # f32[l], as in Rollouts; 0 of context
    stopped: bool  # whether a stop condition ended it
    # f32[l], with top_p < 1; None: all ones
    nucleus_mass: Sequence[float] | np.ndarray | None = None


class _Buffers(NamedTuple):
    """The arrays of Rollouts, on the host."""

    tokens: np.ndarray
    logps: np.ndarray
    mask: np.ndarray
    nucleus_mass: np.ndarray
    stopped: np.ndarray
    lengths: np.ndarray


def rollouts_from_lists(
    setup: EngineSetup, request: SampleRequest, responses: Sequence[SampledResponse]
) -> Rollouts:
    """The buffers of a request's rollouts, from one response for each, in their order.

    Rollout r answers problem r // n of `request.problems`. The buffers [S rows ...] are split over
    the mesh of `setup` as the local sampler's. A response of more than T tokens is cut to T, and
    then does not count as stopped.

    Raises:
        InputError: another number of responses than B_p n, of log-probs than of tokens, a token
            outside the vocabulary, or experts to be recorded, which lists have none of.
    """
    shapes = setup.rollout_shapes
    if isinstance(shapes, RoutedRollouts):
        settings = "cell.rl.replay_experts and cell.rl.measure_expert_agreement"
        raise InputError(
            found="responses as lists do not say which experts their tokens met",
            fix=f"Leave out {settings}.",
        )
    if len(responses) != request.B:
        raise InputError(
            found=f"{len(responses)} responses",
            expected=f"{request.B_p} problems x {request.n}",
        )

    vocab = setup.task.vocab
    T = shapes.tokens.shape[-1]
    for number, response in enumerate(responses):
        _check_response(number, response, vocab)

    buffers = _Buffers(*(np.zeros(x.shape, x.dtype) for x in shapes))
    buffers.nucleus_mass[:] = 1  # of all that is not set below: the whole distribution

    layout = Layout(request.B_p, request.n, setup.shapes.shards)
    for number, response in enumerate(responses):
        row = layout.place(number)  # (shard, row of the shard), which index the buffers
        length = min(len(response.tokens), T)
        tokens = np.asarray(response.tokens, np.int32)[:length]
        is_drawn = tokens >= 0

        buffers.tokens[row][:length] = np.where(is_drawn, tokens, ~tokens)
        buffers.mask[row][:length] = is_drawn
        buffers.logps[row][:length] = response.logps[:length]
        if response.nucleus_mass is not None and setup.sampling.top_p < 1:
            buffers.nucleus_mass[row][:length] = response.nucleus_mass[:length]
        buffers.stopped[row] = response.stopped and len(response.tokens) <= T
        buffers.lengths[row] = length

    return Rollouts(
        *(jax.device_put(x, shape.sharding) for x, shape in zip(buffers, shapes, strict=True))
    )


def lists_from_rollouts(rollouts: Rollouts, layout: Layout) -> list[SampledResponse]:
    """The responses of a request's rollouts, in their order: `rollouts_from_lists` inverted.

    layout: of the request's B_p and n on the shards of the buffers.
    """
    columns = zip(
        response_tokens(rollouts, layout),
        response_logps(rollouts, layout),
        layout.in_order(rollouts.stopped).tolist(),
        response_nucleus_mass(rollouts, layout),
        strict=True,
    )
    return [
        SampledResponse(tokens, logps, stopped, nucleus_mass=masses)
        for tokens, logps, stopped, masses in columns
    ]


def _check_response(number: int, response: SampledResponse, vocab: int) -> None:
    """Raise InputError where a response's tokens are not of the vocabulary, or lack log-probs.

    Tokens are 0 .. vocab - 1, or ~token of context. number: of the rollout, for the message.
    """
    if len(response.logps) != len(response.tokens):
        sizes = f"{len(response.tokens)} tokens and {len(response.logps)} log-probs"
        raise InputError(found=f"response {number} has {sizes}", expected="as many")

    tokens = np.asarray(response.tokens, np.int64)  # context as ~token
    outside = np.flatnonzero((tokens >= vocab) | (~tokens >= vocab))
    if outside.size:
        token = f"token {tokens[outside[0]]} at position {outside[0]}"
        raise InputError(
            found=f"response {number} has {token}",
            expected=f"one of a vocabulary of {vocab}",
        )
