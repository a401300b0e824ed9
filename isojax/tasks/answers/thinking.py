"""Where a response thinks, between tags such as <think> and </think>: what it says there is no
answer. A chat template, or a raw prompt, may write the first tag itself, so that the response
begins within its thinking."""

import re

_NAMES = r"think(?:ing)?|thoughts?|reasoning|scratchpad|reflection"
_TAG = re.compile(rf"<(/?)(?:{_NAMES})>|<\|(?:(end)|begin)_of_thought\|>", re.IGNORECASE)
_BEGUN_AT_END = re.compile(rf"(?:<(?:{_NAMES})>|<\|begin_of_thought\|>)$", re.IGNORECASE)
_MAX_TAG_LENGTH = 24


def behind_thinking(response: str) -> str:
    """What follows the last end of thinking; nothing where the thinking does not end."""
    tags = list(_TAG.finditer(response)) if "<" in response else []
    if not tags:
        return response
    is_end = tags[-1][1] or tags[-1][2]
    return response[tags[-1].end() :] if is_end else ""


def never_ends_thinking(prompt: str, response: str) -> bool:
    """Whether a prompt, as the model reads it, ends with the tag that begins thinking, and the
    response has no tag at all: it was cut off, or it ended, in its thoughts."""
    if not _BEGUN_AT_END.search(prompt.rstrip()[-_MAX_TAG_LENGTH:]):
        return False
    return _TAG.search(response) is None


def is_thinking_tag(token: str) -> bool:
    """Whether a token is such a tag and nothing else."""
    return _TAG.fullmatch(token.strip()) is not None
