"""`cell.sampling`: lengths, temperature, top-p, and forced length interruption."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from isojax.core.config.section import Section


class InterruptConfig(Section):
    """What is said to a response that goes on for too long; the default text is ScaleRL's (arXiv:2510.13786).

    A response that has `after` tokens and has not met the token `unless` (empty: every one) gets the tokens of `text`,
    and goes on from there. They count as the response's for the verifier and for its length, never in the loss.
    """

    after: PositiveInt
    text: Annotated[str, Field(min_length=1)] = (
        "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
    )
    unless: str = "</think>"


class SamplingConfig(Section):
    """How rollouts are drawn: P prompt positions, T response positions, temperature, and the probability mass of the
    nucleus (top-p).
    """

    prompt_length: PositiveInt = 6
    response_length: PositiveInt = 4
    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    interrupt: InterruptConfig | None = None
