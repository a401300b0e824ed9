"""Glosses: remarks that state a sentence's value once more, in brackets or after "i.e.": 160
minutes (2 hours and 40 minutes), 12 (a dozen), 17 (8 + 9).

A remark with the same value is no second answer; with another value it is one.
"""

import re
from dataclasses import dataclass

from isojax.tasks.answers.compound import compound_quantity
from isojax.tasks.answers.number_words import number_in_words
from isojax.tasks.answers.units import read_unit

_OPENING = (
    r"(?:or|i\.e\.|that\s+is|that['’]s|which\s+is|equal\s+to|equivalently|equivalent\s+to|also|=)"
    r"[,:]?\s+"
)
_IN_BRACKETS = re.compile(rf"\s+\((?:{_OPENING})?([^()]+)\)")
# 160 minutes, i.e. 2 hours and 40 minutes
_BEHIND_I_E = re.compile(
    r"""
    ,?\s+(?:\(?i\.e\.|that\s+is|which\s+is|or\s+equivalently|equivalently)[,:]?\s+([^(),;]+?)
    [\s.!)]*$
    """,
    re.VERBOSE,
)
_NUMBER = r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?"
_CALCULATION = re.compile(rf"\$?{_NUMBER}(?:\s*[-+*/×÷·]\s*\$?{_NUMBER})+")
# The value that a remark is about, with up to two words: 160 minutes, 12 red apples, $x$
_VALUE_BEFORE = re.compile(
    r"""
    (?:^|(?<=[\s(*]))(?:\$([^$]+)\$|(\$?-?[0-9][0-9,]*(?:\.[0-9]+|/[0-9]+)?%?))
    ((?:\s+[A-Za-z]+){0,2})$
    """,
    re.VERBOSE,
)
_OTHER_SPELLING = re.compile(
    rf"-?{_NUMBER}(?:\s*/\s*[0-9]+)?\s*%?|\$\s*{_NUMBER}|{_NUMBER}\s+dozen"
)
_ONE_QUANTITY = re.compile(rf"{_NUMBER}\s*([A-Za-z]+)")
MAX_LENGTH = 100  # characters


@dataclass(frozen=True)
class Gloss:
    """A sentence without the remark, the value before it with its words, and what the remark says
    of it."""

    sentence: str
    value: str
    remark: str

    def is_about(self, values: list[str]) -> bool:
        """Whether the first of these values is the one that the remark explains."""
        return bool(values) and values[0].split()[:1] == self.value.split()[:1]


def find_gloss(sentence: str) -> Gloss | None:
    """The first remark of a sentence that restates a number before it, as a calculation, a quantity
    or a number in words; None where there is none. Remarks in brackets come before those behind
    "i.e.". The Gloss has the sentence without the remark."""
    for match in (*_IN_BRACKETS.finditer(sentence), *_BEHIND_I_E.finditer(sentence)):
        before = sentence[: match.start()]
        behind = sentence[match.end() :]
        remark = " ".join(match[1].split())
        value = _VALUE_BEFORE.search(before[-MAX_LENGTH:])
        if value is None or len(remark) > MAX_LENGTH:
            continue

        number = value[1] or value[2]
        words = value[3]
        # Whether both are equal is not asked here: read as an equation, they are compared later.
        # The words decide whether a remark with a unit is of the same kind: 3 hours after 180
        # minutes.
        if _says_a_value(remark, words):
            return Gloss(sentence=before + behind, value=f"{number}{words}", remark=remark)
    return None


def _says_a_value(remark: str, value_words: str) -> bool:
    """Whether a remark states a value: 8 + 9, 2 hours and 40 minutes, a dozen. A number with a unit
    does only where value_words, the words after the value in the sentence, are a unit of the same
    kind: 3 hours after 180 minutes. Digits followed by number words, as in "5 out of 8", do not
    count."""
    if _CALCULATION.fullmatch(remark) or _OTHER_SPELLING.fullmatch(remark):
        return True
    if compound_quantity(remark) is not None:
        return True

    quantity = _ONE_QUANTITY.fullmatch(remark)
    if quantity is not None:
        unit = read_unit(quantity[1])
        value_unit = read_unit(value_words.strip())
        if unit is None or value_unit is None or not unit.dimensions:
            return False
        return unit.dimensions == value_unit.dimensions

    in_words = number_in_words(remark)
    return in_words is not None and not remark[:1].isdigit()
