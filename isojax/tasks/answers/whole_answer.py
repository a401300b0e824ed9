"""A whole answer as a tree: as an expression (expression.py), or in a form that is no expression,
such as 52 (base 8), 2 hours and 30 minutes, twenty-five.
"""

import re

from isojax.tasks.answers.compound import compound_quantity
from isojax.tasks.answers.cursor import Cursor, Unreadable
from isojax.tasks.answers.expression import ExpressionReader
from isojax.tasks.answers.number_words import number_in_words
from isojax.tasks.answers.numerals import whole_base_numeral
from isojax.tasks.answers.spelling import MATH_IN_TEXT
from isojax.tasks.answers.tree import Node, Number, Relation
from isojax.tasks.answers.vocabulary import UNICODE

MAX_LENGTH = 2000  # characters of an answer
# \text{42}, \text{$}
_NUMBER_IN_TEXT = re.compile(
    r"\\(?:text|textbf|mathrm|mbox)\s*\{\s*(-?\\?[$€£]?-?[0-9][^{}]*|\\?[$€£]|-)\s*\}"
)
_SPACED_THOUSANDS = re.compile(r"(?<=[0-9]),\\!\s*(?=[0-9]{3})")  # the ,\! of 1,\!000


def read_answer(text: str, *, with_exponents: bool = True) -> Node:
    """The tree of a normalized answer, such as "x = 5" or "2 hours and 30 minutes"; Unreadable
    where a part of it cannot be read.

    with_exponents: whether 3e-1 is 0.3; otherwise it is 3 e - 1.
    """
    if len(text) > MAX_LENGTH:
        raise Unreadable("too long")

    # Bring the text to the characters and commands that the readers know.
    if "$" in text:
        text = MATH_IN_TEXT.sub(_math_content, text)
    text = _NUMBER_IN_TEXT.sub(r" \1 ", text)
    for character, command in UNICODE.items():
        text = text.replace(character, command)
    text = _SPACED_THOUSANDS.sub(",", text).strip()

    # Forms of a whole answer that are no expressions; ExpressionReader reads anything else.
    numeral = whole_base_numeral(text)
    if numeral is not None:
        return numeral
    quantity = compound_quantity(text)
    if quantity is not None:
        return quantity
    number = number_in_words(text)
    if number is not None:
        return Number(number)
    value_in_words_too = _value_in_words_too(text, with_exponents)
    if value_in_words_too is not None:
        return value_in_words_too
    return ExpressionReader(Cursor(text, with_exponents)).read_all()


def _value_in_words_too(text: str, with_exponents: bool) -> Relation | None:
    """A value behind the same in several units, or in words: 2 hours and 40 minutes = 160 minutes,
    a dozen = 12."""
    words, equals, value = text.partition(" = ")
    if not equals:
        return None

    in_words: Node | None = compound_quantity(words)
    if in_words is None:
        number = number_in_words(words)
        in_words = None if number is None else Number(number)
    if in_words is None:
        return None
    return Relation(("=",), (in_words, ExpressionReader(Cursor(value, with_exponents)).read_all()))


def _math_content(match: re.Match[str]) -> str:
    """What stands between the dollars of a match of MATH_IN_TEXT."""
    content = next(group for group in match.groups() if group is not None)
    return f" {content.strip()} "
