"""Quantities in several units: 2 hours and 30 minutes, 5 feet 3 inches, 1 lb 4 oz."""

import re
from fractions import Fraction

from isojax.tasks.answers.tree import Number, Quantity
from isojax.tasks.answers.units import Unit, read_unit
from isojax.tasks.answers.vocabulary import TEXT

MAX_LENGTH = 100  # characters

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PART = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]+)\.?\s*")
_JOINED = re.compile(r"(?:,\s*)?(?:and\b)?")


def compound_quantity(text: str) -> Quantity | None:
    """An answer that is a quantity in several units of one kind, each less than one of the unit
    before it."""
    if len(text) > MAX_LENGTH or not text[:1].isdigit():
        return None
    plain = TEXT.sub(r" \1 ", text)
    parts: list[tuple[Fraction, Unit]] = []
    position = 0
    while part := _PART.match(plain, position):
        unit = read_unit(part[2])
        if unit is None or len(unit.dimensions) != 1 or unit.words:
            return None
        parts.append((Fraction(part[1]), unit))
        position = part.end()
        if position == len(plain):
            return _sum_of(parts)
        joined = _JOINED.match(plain, position)
        position = joined.end() if joined else position
    return None


def _sum_of(parts: list[tuple[Fraction, Unit]]) -> Quantity | None:
    if len(parts) < 2:
        return None
    total, last_unit = parts[-1]
    for number, unit in reversed(parts[:-1]):
        ratio = unit.scale / last_unit.scale
        if unit.dimensions != last_unit.dimensions or ratio <= 1 or total >= ratio:
            return None
        total = number + total / ratio
        last_unit = unit
    return Quantity(Number(total), last_unit)
