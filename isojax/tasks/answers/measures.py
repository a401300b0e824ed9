"""Reads what makes a quantity of a number: a currency sign before it; a unit, "million" or a
percent sign after it. Each take_... function reads at the cursor and moves it behind what it has
read."""

import re
from dataclasses import dataclass

from isojax.tasks.answers.cursor import Cursor
from isojax.tasks.answers.units import Unit, currency, read_unit
from isojax.tasks.answers.vocabulary import TEXT

_CURRENCY = re.compile(r"\s*(-?)\s*\\?([$€£¥₹])\s*(?=[-0-9.\\])")
# The million of 5 million, 5\text{ million}, 5-million
_SCALE = re.compile(
    r"""
    [\s~-]*(?:\\(?:text|mathrm|mbox)\s*\{[\s-]*)?\b
    (hundred|thousand|million|billion|trillion|dozen)s?\b\s*(\}?)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_SCALES = {
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_PER_CENT = re.compile(
    r"\s*(?:%|\\(?:text|mathrm|mbox)\s*\{\s*(?:%|per ?cent)\s*\}|per ?cent\b)", re.IGNORECASE
)
# What ends a unit: brackets, commas, relations, other commands, "and"
_UNIT_END = re.compile(
    r"[,;=<>(){}\[\]|]|\\(?!text|mathrm|mbox|cdot)|(?<![A-Za-z])(?:and|or)(?![A-Za-z])"
)
_BRACED_POWER = re.compile(r"\^\s*\{\s*(-?[0-9])\s*\}")  # cm^{2}
_POWER = re.compile(r"\^-?[1-4]")  # cm^2
_BEFORE_BRACE = re.compile(r"(?:\\(?:text[a-z]*|mathrm|mathbf|mbox)\s*|\^\s*)$")


@dataclass(frozen=True)
class Money:
    """A currency sign before a number, which may stand behind its minus sign."""

    unit: Unit
    is_negative: bool


def take_money(cursor: Cursor) -> Money | None:
    """The currency sign at the cursor, also behind a minus sign; None where there is none."""
    match = cursor.take(_CURRENCY)
    return None if match is None else Money(currency(match[2]), is_negative=bool(match[1]))


def take_per_cent(cursor: Cursor) -> bool:
    """Whether a percent sign stands here."""
    return cursor.take(_PER_CENT) is not None


def is_scale(letters: str) -> bool:
    """Whether a word is a number: million, dozen."""
    return _SCALE.match(letters) is not None


def take_scale(cursor: Cursor) -> int | None:
    """The number that a word at the cursor is: 10**6 of "million"; None where there is none. Text
    after the word in its \\text{...} is kept, as a \\text{...} again."""
    match = _SCALE.match(cursor.text, cursor.position)
    if match is None:
        return None
    cursor.position = match.end()
    is_open_text = "{" in match[0] and not match[2]
    if is_open_text:  # \text{ million dollars}: the rest, \text{ dollars}, is a unit
        cursor.text = cursor.text[: cursor.position] + r"\text{" + cursor.text[cursor.position :]
    return _SCALES[match[1].lower()]


def take_unit(cursor: Cursor) -> Unit | None:
    r"""The unit at the cursor: cm, \text{ m/s}, cm^{2}. It must reach up to the end of the item (a
    bracket, a comma, a sign, "and"); None where something else is there, and the cursor stays. An
    unknown word, such as apples, is a unit too (`read_unit`)."""
    start = cursor.position
    end = _end_of_unit(cursor.text, start)
    source = cursor.text[start:end]
    if not source.strip():
        return None

    # The unit without its commands: "m/s" of \text{ m/s}, "cm^2" of cm^{2}.
    plain = TEXT.sub(lambda match: f" {match[1]} ", source)
    plain = _BRACED_POWER.sub(r"^\1", plain)
    has_commands = "\\" in plain.replace(r"\cdot", "") or "{" in plain
    has_numbers = re.search(r"[0-9]", _POWER.sub("", plain)) is not None
    if has_commands or has_numbers:
        return None

    unit = read_unit(" ".join(plain.split()))
    if unit is not None:
        cursor.position = end
    return unit


def _end_of_unit(text: str, start: int) -> int:
    """Where the words behind `start` end: at a bracket, a comma, a sign or "and", but not at the
    braces of \\text{...} and ^{2}."""
    for match in _UNIT_END.finditer(text, start):
        is_brace = match[0] in "{}"
        if not is_brace or not _is_of_text_or_power(text, start, match.start()):
            return match.start()
    return len(text)


def is_unit_next(cursor: Cursor) -> bool:
    """Whether the rest of the item is a unit: 25 m, 3 m/s, 12 sq. ft."""
    start = cursor.position
    unit = take_unit(cursor)
    cursor.position = start
    return unit is not None


def _is_of_text_or_power(text: str, start: int, brace: int) -> bool:
    """Whether a brace belongs to \\text{...} or ^{2} behind `start`."""
    opening = text.rfind("{", start, brace + 1)
    return opening >= 0 and _BEFORE_BRACE.search(text[start:opening]) is not None
