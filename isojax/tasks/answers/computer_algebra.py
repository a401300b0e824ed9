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
    r"\\(?:int|iint|lim|sum|prod|det|gcd|lcm|frac|sqrt|binom|pi|infty|to|cdot|times|div|pm|mp|sin|cos|tan|cot|sec|csc"
    r"|arcsin|arccos|arctan|sinh|cosh|tanh|ln|log|exp|alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|left|right"
    r"|lfloor|rfloor|lceil|rceil)(?![A-Za-z])"
)


class ComputerAlgebra:
    """math-verify's parser and comparison, of whole expressions only."""

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
        """Whether two normalized answers, of which one at least needs algebra, have the same
        value."""
        texts = (reference, response)
        if not all(map(_is_expression, texts)) or not any(map(_NEEDS_ALGEBRA.search, texts)):
            return False
        parsed = [self._parse(text) for text in texts]
        if not all(parsed):
            return False
        if not self._verify(*parsed, timeout_seconds=None):
            return False
        first, second = (expressions[0] for expressions in parsed)
        if not (first.is_number and second.is_number):
            return True
        # It compares what is below 1e-15 as 0.
        first, second = first.doit(), second.doit()
        if first == second:
            return True
        try:
            values = [complex(expression.evalf(30)) for expression in (first, second)]
        except (TypeError, ValueError, OverflowError):
            return False
        return abs(values[0] - values[1]) <= RELATIVE_TOLERANCE * max(map(abs, values)) and any(
            values
        )


def _is_expression(text: str) -> bool:
    if len(text) > MAX_LENGTH:
        return False
    has_unknown = (
        re.search(r"[\\$_&]", re.sub(r"_(?=[0-9a-zA-Z{])", "", _KNOWN_COMMANDS.sub("", text)))
        is not None
    )
    return not has_unknown and not has_words(text)
