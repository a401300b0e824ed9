"""What stands behind a number, or before it, and makes a quantity of it: a unit, a currency,
million, per cent."""

import re
from dataclasses import dataclass

from isojax.tasks.answers.cursor import Cursor
from isojax.tasks.answers.units import Unit, currency, read_unit
from isojax.tasks.answers.vocabulary import TEXT

_CURRENCY = re.compile(r"\s*(-?)\s*\\?([$€£¥₹])\s*(?=[-0-9.\\])")
_SCALE = re.compile(
    r"""
    [\s~-]*(?:\\(?:text|mathrm|mbox)\s*\{[\s-]*)?\b
    (hundred|thousand|million|billion|trillion|dozen)s?\b\s*(\}?)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_SCALES = {
    "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
}  # fmt: skip
_PER_CENT = re.compile(
    r"\s*(?:%|\\(?:text|mathrm|mbox)\s*\{\s*(?:%|per ?cent)\s*\}|per ?cent\b)", re.IGNORECASE
)
_UNIT_END = re.compile(
    r"[,;=<>(){}\[\]|]|\\(?!text|mathrm|mbox|cdot)|(?<![A-Za-z])(?:and|or)(?![A-Za-z])"
)


@dataclass(frozen=True)
class Money:
    """A currency sign before a number, which may stand behind its minus sign."""

    unit: Unit
    is_negative: bool


def take_money(cursor: Cursor) -> Money | None:
    """The currency sign that stands here."""
    match = cursor.take(_CURRENCY)
    return None if match is None else Money(currency(match[2]), is_negative=bool(match[1]))


def take_per_cent(cursor: Cursor) -> bool:
    """Whether a percent sign stands here."""
    return cursor.take(_PER_CENT) is not None


def is_scale(letters: str) -> bool:
    """Whether a word is a number: million, dozen."""
    return _SCALE.match(letters) is not None


def take_scale(cursor: Cursor) -> int | None:
    """The number that a word here is: a million."""
    match = _SCALE.match(cursor.text, cursor.position)
    if match is None:
        return None
    is_in_text = "{" in match[0]
    cursor.position = match.end()
    if is_in_text and not match[2]:  # \text{ million dollars}: its rest is a unit
        cursor.text = cursor.text[: cursor.position] + r"\text{" + cursor.text[cursor.position :]
    return _SCALES[match[1].lower()]


def take_unit(cursor: Cursor) -> Unit | None:
    """The unit that stands here, up to what ends the item."""
    start = cursor.position
    end_match = None
    for end_match in _UNIT_END.finditer(cursor.text, start):
        if end_match[0] not in "{}" or not _in_text_command(cursor, start, end_match.start()):
            break
    else:
        end_match = None
    end = end_match.start() if end_match else len(cursor.text)
    source = cursor.text[start:end]
    if not source.strip():
        return None
    plain = TEXT.sub(lambda match: f" {match[1]} ", source)
    plain = re.sub(r"\^\s*\{\s*(-?[0-9])\s*\}", r"^\1", plain)
    if (
        "\\" in plain.replace(r"\cdot", "")
        or "{" in plain
        or re.search(r"[0-9]", re.sub(r"\^-?[1-4]", "", plain))
    ):
        return None
    unit = read_unit(" ".join(plain.split()))
    if unit is not None:
        cursor.position = end
    return unit


def is_unit_next(cursor: Cursor) -> bool:
    """Whether the rest of the item is a unit: 25 m, 3 m/s, 12 sq. ft."""
    start = cursor.position
    unit = take_unit(cursor)
    cursor.position = start
    return unit is not None


def _in_text_command(cursor: Cursor, start: int, brace: int) -> bool:
    """Whether a brace belongs to \\text{...} or ^{2} behind `start`."""
    opening = cursor.text.rfind("{", start, brace + 1)
    if opening < 0:
        return False
    before = cursor.text[start:opening]
    return re.search(r"(?:\\(?:text[a-z]*|mathrm|mathbf|mbox)\s*|\^\s*)$", before) is not None
