"""`exact`: correct where the response is the answer, apart from surrounding white space."""

from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.verifiers import Check, Verdict

ISOLATED, PURE = False, True


def build(argument: str) -> Check:
    """The check; InputError where an argument is given."""
    if argument:
        raise InputError(f"cell.verifier.use: exact takes no argument, given {argument!r}; write exact.")
    return check


def check(problem: Problem, prompt: str, response: str) -> Verdict:
    """Correct where both texts are equal; parsed where the response is not empty."""
    text = response.strip()
    return Verdict(text == problem.answer.strip(), bool(text))
