"""Expressions that need algebra, such as integrals, limits and endless sums: math-verify reads and
compares them."""

import re
from functools import lru_cache
from types import ModuleType
from typing import Any

from isojax.tasks.answers.spelling import has_words

MAX_LENGTH = 200  # characters; its parser takes time that grows with their square
RELATIVE_TOLERANCE = 1e-9
_NEEDS_ALGEBRA = re.compile(r"\\(?:int|iint|lim|sum|prod|det|gcd|lcm)(?![A-Za-z])")
# All that may stand beside them. What math-verify leaves out, such as units and dots, is not here.
_KNOWN_COMMANDS = re.compile(
    r"""
    \\
    (?:
          int|iint|lim|sum|prod|det|gcd|lcm|frac|sqrt|binom|pi|infty|to|cdot|times|div|pm|mp|sin
        | cos|tan|cot|sec|csc
        | arcsin|arccos|arctan|sinh|cosh|tanh|ln|log|exp|alpha|beta|gamma|delta|theta|lambda|mu
        | phi|omega|left|right
        | lfloor|rfloor|lceil|rceil
    )(?![A-Za-z])
    """,
    re.VERBOSE,
)
_SUBSCRIPT = re.compile(r"_(?=[0-9a-zA-Z{])")


class ComputerAlgebra:
    """math-verify's parser and comparison, of whole expressions only. math_verify: the imported
    package, whose functions `parse` and `verify` are used."""

    def __init__(self, math_verify: ModuleType) -> None:
        self._verify = math_verify.verify

        @lru_cache(256)
        def parse(text: str) -> list[Any]:
            # The brackets: its parser stops without a word at what it does not know, and then
            # misses the closing one. Its own timeouts are signals, which do not reach into C code;
            # the deadline of a worker process does.
            return math_verify.parse(
                f"$({text})$", fallback_mode="no_fallback", parsing_timeout=None
            )

        self._parse = parse

    def same(self, reference: str, response: str) -> bool:
        r"""Whether two normalized answers, such as "\int_0^1 x dx" and "\frac{1}{2}", have the same
        value. False where neither needs algebra, which other code compares better, or where one
        cannot be read. reference and response may be swapped."""
        texts = (reference, response)
        # Both must be short and of known commands alone, since the parser skips what it does not
        # know.
        if not all(_is_expression(text) for text in texts):
            return False
        if not any(_NEEDS_ALGEBRA.search(text) for text in texts):
            return False

        # For each text a list that begins with its expression of SymPy; empty where it is no math.
        parsed = [self._parse(text) for text in texts]
        if not all(parsed):
            return False

        # math-verify takes all numbers below 1e-15 for equal: compare numbers once more.
        if not self._verify(*parsed, timeout_seconds=None):
            return False
        first, second = (expressions[0] for expressions in parsed)
        if not (first.is_number and second.is_number):
            return True
        return _are_same_numbers(first, second)


def _are_same_numbers(first: Any, second: Any) -> bool:
    """Whether two numbers of SymPy are equal to nine digits: math-verify takes all below 1e-15 for
    0. False where one has no finite value."""
    first = first.doit()
    second = second.doit()
    if first == second:
        return True
    try:
        first_value = complex(first.evalf(30))
        second_value = complex(second.evalf(30))
    except (TypeError, ValueError, OverflowError):
        return False
    # Numbers that both become 0 as floats count as different.
    size = max(abs(first_value), abs(second_value))
    return size != 0 and abs(first_value - second_value) <= RELATIVE_TOLERANCE * size


def _is_expression(text: str) -> bool:
    """Whether a text has at most MAX_LENGTH characters, and no words or unknown commands."""
    if len(text) > MAX_LENGTH:
        return False
    rest = _SUBSCRIPT.sub("", _KNOWN_COMMANDS.sub("", text))
    has_unknown_commands = re.search(r"[\\$_&]", rest) is not None
    return not has_unknown_commands and not has_words(text)
