"""Quantities in several units: 2 hours and 30 minutes, 5 feet 3 inches, 1 lb 4 oz."""

import re
from dataclasses import dataclass
from fractions import Fraction

from isojax.tasks.answers.tree import Number, Quantity
from isojax.tasks.answers.units import Unit, read_unit
from isojax.tasks.answers.vocabulary import TEXT

MAX_LENGTH = 100  # characters

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PART = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]+)\.?\s*")  # 2 hours
_JOINED = re.compile(r"(?:,\s*)?(?:and\b)?")


@dataclass(frozen=True)
class _Part:
    """2 hours."""

    number: Fraction
    unit: Unit


def compound_quantity(text: str) -> Quantity | None:
    """The quantity that an answer states in several units of one kind, in the first of these units:
    "2 hours and 30 minutes" is 2.5 hours.

    None for any other text, for a single quantity such as "5 cm", and where a part is one unit of
    the part before it or more ("2 hours 75 minutes"), or is in a larger unit than that.
    """
    if len(text) > MAX_LENGTH or not text[:1].isdigit():
        return None

    # Read part by part, each a number and its unit, up to the end of the text.
    plain = TEXT.sub(r" \1 ", text)
    parts: list[_Part] = []
    position = 0
    while True:
        match = _PART.match(plain, position)
        if match is None:
            return None

        unit = read_unit(match[2])
        # One dimension, as of hours, and no word that is in no table.
        if unit is None or len(unit.dimensions) != 1 or unit.words:
            return None
        parts.append(_Part(Fraction(match[1]), unit))

        position = match.end()
        if position == len(plain):
            return _sum_of(parts)
        joined = _JOINED.match(plain, position)
        position = joined.end() if joined else position


def _sum_of(parts: list[_Part]) -> Quantity | None:
    """The sum of the parts, largest unit first, in the unit of the first; None where there is one
    part alone, or where they do not follow each other as in `compound_quantity`."""
    if len(parts) < 2:
        return None

    # From the smallest unit up: the sum of what follows must be less than one of each unit.
    unit = parts[-1].unit
    total = parts[-1].number  # in `unit`
    for part in reversed(parts[:-1]):
        ratio = part.unit.scale / unit.scale
        if part.unit.dimensions != unit.dimensions or ratio <= 1 or total >= ratio:
            return None
        total = part.number + total / ratio
        unit = part.unit
    return Quantity(Number(total), unit)
