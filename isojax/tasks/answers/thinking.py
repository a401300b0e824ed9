"""Leaves out a response's thinking, between tags such as <think> and </think>: a value in there is
no answer.

A chat template, or a raw prompt, may write the first tag itself, so that the response begins within
its thinking.
"""

import re

_NAMES = r"think(?:ing)?|thoughts?|reasoning|scratchpad|reflection"
# <think>, </think>, <|begin_of_thought|>, <|end_of_thought|>; the groups say that it ends thinking
_TAG = re.compile(rf"<(/?)(?:{_NAMES})>|<\|(?:(end)|begin)_of_thought\|>", re.IGNORECASE)
_BEGUN_AT_END = re.compile(rf"(?:<(?:{_NAMES})>|<\|begin_of_thought\|>)$", re.IGNORECASE)
_MAX_TAG_LENGTH = 24


def behind_thinking(response: str) -> str:
    """The response after its thinking; "" where the thinking does not end."""
    tags = list(_TAG.finditer(response)) if "<" in response else []
    if not tags:
        return response
    last_tag = tags[-1]
    ends_thinking = last_tag[1] or last_tag[2]
    return response[last_tag.end() :] if ends_thinking else ""


def never_ends_thinking(prompt: str, response: str) -> bool:
    """Whether a prompt, as the model reads it, ends with the tag that begins thinking, and the
    response has no tag at all: it was cut off, or it ended, in its thoughts."""
    end_of_prompt = prompt.rstrip()[-_MAX_TAG_LENGTH:]
    return _BEGUN_AT_END.search(end_of_prompt) is not None and _TAG.search(response) is None


def is_thinking_tag(token: str) -> bool:
    """Whether a token is such a tag and nothing else."""
    return _TAG.fullmatch(token.strip()) is not None
