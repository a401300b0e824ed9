"""`math`: GSM8K's and MATH's answers, compared as text and numbers first, and by math-verify (extra [verify]) where that takes algebra.

Where either side states its answer: answers.py. A response that states none is searched for its last expression, by math-verify too.
"""

from functools import lru_cache
from typing import Any

from isojax.tasks.verifiers import Check, Verdict, answers
from isojax.types import InputError, Problem

ISOLATED, PURE = True, True


def build(argument: str) -> Check:
    """The check; InputError where an argument is given, or math-verify is missing."""
    if argument:
        raise InputError(f"cell.verifier.use: math takes no argument, given {argument!r}; write math.")
    try:
        import math_verify
    except ImportError as e:
        raise InputError(f'cell.verifier.use = math needs math-verify ({e}); pip install "isojax[verify]".') from e

    # Its own timeouts are signals, which do not reach into C code; the deadline of a worker process does.
    def parse(text: str) -> list[Any]:
        return math_verify.parse(text, parsing_timeout=None)  # pyright: ignore[reportArgumentType]

    @lru_cache(1024)
    def reference(gold: str) -> list[Any]:
        return parse(_maths(gold))

    def check(problem: Problem, prompt: str, response: str) -> Verdict:
        gold, stated = answers.gold(problem.answer), answers.final(response)
        if stated == "":
            return Verdict(False, False)
        given = answers.tidy(response) if stated is None else stated
        same = answers.same(gold, given)
        answered = stated is not None or same is True or answers.number(given) is not None
        if same is None or not answered:
            found = parse(response if stated is None else _maths(stated))
            answered = answered or bool(found)
            same = math_verify.verify(reference(gold), found, allow_set_relation_comp=True, timeout_seconds=None)
        return Verdict(bool(same), answered)

    check(Problem(0, "", r"\frac{1}{2}"), "", r"\boxed{2^{-1}}")  # loads its parser, which takes longer than any check
    return check


def _maths(text: str) -> str:
    """An answer as math-verify finds it: between dollars, unless there are some in it or it is words."""
    return text if "$" in text or answers.worded(text) else f"${' '.join(text.split())}$"
