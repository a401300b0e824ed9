"""Multiple choice: an option's letter, with or without the option's value, and lists of letters."""

import re

from isojax.tasks.answers.vocabulary import TEXT

_LETTER = r"(?:\(\s*([A-J])\s*\)|([A-J]))"
_NOUN = (
    r"(?:(?:the\s+)?(?:correct\s+|right\s+)?(?:options?|choices?|answers?|letters?|statements?)\s*(?:is|are)?\s*:?\s*)?"
)
_ALONE = re.compile(rf"{_NOUN}{_LETTER}", re.IGNORECASE)
# (C) 12, C) 12, C. 12, C: 12
_WITH_VALUE = re.compile(rf"{_NOUN}(?:\(\s*([A-J])\s*\)\s*[.:]?|([A-J])\s*[).:])\s*(?=\S)(.+)", re.DOTALL)
_ANOTHER_OPTION = re.compile(
    r"\(\s*[A-Z]\s*\)|(?<![A-Za-z\\])[A-J](?:[).:]|(?![A-Za-z0-9_=({]))|\b(?:or|and|not|wrong|incorrect|false|maybe|nor|but)\b"
)
_STATED = re.compile(r"(?:^|(?<=[.!?] ))([^.!?]*)\b(?:correct|right)\s+(?:option|choice)\s+is:?\s*([^?]*)$")
_DENIED = re.compile(r"\b(?:not|never|doubt|wrong|false|if|whether|unless|think|guess|maybe|perhaps)\b|n['’]t\b")
_SEPARATOR = re.compile(r"\s*(?:[,;]|,?\s*\band\b)\s*")


def option_alone(text: str) -> str | None:
    """The letter of an answer that is nothing but an option: C, (C), option C."""
    alone = _ALONE.fullmatch(_plain(text))
    letter = (alone[1] or alone[2]) if alone else ""
    return letter if letter.isupper() else None


def option_with_value(text: str) -> str | None:
    """The letter of an answer that is an option, which may have its value: C. 12; None where it is none, or several."""
    if (letter := option_alone(text)) is not None:
        return letter
    match = _WITH_VALUE.fullmatch(_plain(text))
    if match is None or _ANOTHER_OPTION.search(match[3]):
        return None
    return match[1] or match[2]


def stated_option(text: str) -> str | None:
    """The option that the end of a text calls the correct one; None where that is denied, or asked."""
    match = _STATED.search(_plain(text))
    if match is None or _DENIED.search(match[1]):
        return None
    return option_with_value(match[2])


def option_letters(text: str) -> frozenset[str] | None:
    """The letters of an answer that is a list of options: A, C or (A) and (C)."""
    plain = re.sub(rf"^{_NOUN}", "", _plain(text), flags=re.IGNORECASE)
    items = [re.fullmatch(_LETTER, item) for item in _SEPARATOR.split(plain)]
    if len(items) < 2:
        return None
    letters = [item[1] or item[2] for item in items if item is not None]
    return frozenset(letters) if len(letters) == len(items) else None


def _plain(text: str) -> str:
    text = TEXT.sub(r" \1 ", text.replace("\\ ", " ").replace("**", "").replace("$", " "))
    return " ".join(text.split()).strip(". ")
