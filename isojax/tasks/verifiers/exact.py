"""`exact`: correct where the response is the answer, without surrounding white space."""

from isojax.core.nouns import Problem
from isojax.tasks.verifiers import Check, Verdict, refuse_argument, verifier


@verifier(isolated=False, pure=True)
def build(argument: str) -> Check:
    refuse_argument("exact", argument)
    return check


def check(problem: Problem, prompt: str, response: str) -> Verdict:
    """Correct where both texts are equal; parsed where the response is not empty."""
    text = response.strip()
    return Verdict(text == problem.answer.strip(), bool(text))
