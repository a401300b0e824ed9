"""`cell.sampling`: lengths, temperature, top-p, and forced length interruption."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from isojax.core.config.section import Section


class InterruptConfig(Section):
    """What is written into a response that goes on for too long; the default text is ScaleRL's (arXiv:2510.13786).

    A response that has `after` tokens, and `unless` not among them, gets the tokens of `text` next and goes on from
    there. These count for the verifier and for the response's length, never in the loss.

    Attributes:
        after: tokens.
        text: what is inserted.
        unless: one token that exempts a response; empty: every long response is interrupted.
    """

    after: PositiveInt
    text: Annotated[str, Field(min_length=1)] = (
        "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
    )
    unless: str = "</think>"


class SamplingConfig(Section):
    """How rollouts are drawn.

    Attributes:
        prompt_length: P, the most tokens of a prompt; a task in text must set it.
        response_length: T, the most tokens of a response; a task in text must set it.
        temperature: of the softmax.
        top_p: the probability mass of the nucleus.
        interrupt: what ends a response that goes on for too long.
    """

    prompt_length: PositiveInt = 6
    response_length: PositiveInt = 4
    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    interrupt: InterruptConfig | None = None
