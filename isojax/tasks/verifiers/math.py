"""`math`: GSM8K's and MATH's answers, compared as text and numbers first (tasks/grading/math_answers.py), then by
math-verify (extra [verify]), which also searches a response that states no answer for its last expression."""

from functools import lru_cache
from typing import Any

from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.grading import math_answers
from isojax.tasks.verifiers import Check, Verdict, refuse_argument

ISOLATED, PURE = True, True


def build(argument: str) -> Check:
    """The check; InputError where an argument is given, or math-verify is missing."""
    refuse_argument("math", argument)
    try:
        import math_verify
    except ImportError as e:
        raise InputError(f'cell.verifier.use = math needs math-verify ({e}); pip install "isojax[verify]".') from e

    # Its own timeouts are signals, which do not reach into C code; the deadline of a worker process does.
    def parse(text: str) -> list[Any]:
        return math_verify.parse(text, parsing_timeout=None)  # pyright: ignore[reportArgumentType]

    @lru_cache(1024)
    def parse_reference(reference_answer: str) -> list[Any]:
        return parse(_in_math_mode(reference_answer))

    def check(problem: Problem, prompt: str, response: str) -> Verdict:
        reference_answer = math_answers.reference_answer(problem.answer)
        stated_answer = math_answers.stated_answer(response)
        if stated_answer == "":
            return Verdict(False, False)
        response_answer = math_answers.normalize_answer(response) if stated_answer is None else stated_answer
        is_same = math_answers.answers_equal(reference_answer, response_answer)
        parsed = stated_answer is not None or is_same is True or math_answers.parse_number(response_answer) is not None
        if is_same is None or not parsed:
            response_expressions = parse(response if stated_answer is None else _in_math_mode(stated_answer))
            parsed = parsed or bool(response_expressions)
            reference = parse_reference(reference_answer)
            is_same = math_verify.verify(
                reference, response_expressions, allow_set_relation_comp=True, timeout_seconds=None
            )
        return Verdict(bool(is_same), parsed)

    check(Problem(0, "", r"\frac{1}{2}"), "", r"\boxed{2^{-1}}")  # loads its parser, which takes longer than any check
    return check


def _in_math_mode(text: str) -> str:
    """An answer as math-verify finds it: between dollars, unless there are some in it or it is words."""
    return text if "$" in text or math_answers.has_words(text) else f"${' '.join(text.split())}$"
