"""`function:rewards.py:my_reward` or `function:my_pkg.my_mod:my_reward`: a user's reward function as TRL calls it.

    def my_reward(prompts, completions, answer, **columns) -> list[float]

It is called with lists of one: the prompt's and the response's text, the reference answer, and every column of the
problem that it names (all where it takes `**columns`). A score of 1 is correct, any other is not.
"""

import inspect
from collections.abc import Iterable
from typing import Any

from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.grading.user_functions import load_function, score_to_verdict
from isojax.tasks.verifiers import Check, Verdict

ISOLATED, PURE = True, False


def build(argument: str) -> Check:
    """The check that calls the function; InputError where it cannot be found or imported."""
    function = load_function("function", argument)
    parameters = inspect.signature(function).parameters.values()
    takes_all_columns = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named_parameters = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    parameter_names = {p.name for p in named_parameters}
    required_names = [p.name for p in named_parameters if p.default is p.empty]

    def check(problem: Problem, prompt: str, response: str) -> Verdict:
        arguments = {**problem.columns, "prompts": prompt, "completions": response, "answer": problem.answer}
        if missing := [name for name in required_names if name not in arguments]:
            raise InputError(
                f"cell.verifier.use: {argument} takes {', '.join(missing)}, which problem {problem.id} does not have;"
                f" it has {', '.join(sorted(arguments))}. Add the column, or give the parameter a default."
            )
        passed = {name: [value] for name, value in arguments.items() if takes_all_columns or name in parameter_names}
        scores: Any = function(**passed)
        is_list = isinstance(scores, Iterable) and not isinstance(scores, str)
        scores = list(scores) if is_list else scores
        if not is_list or len(scores) != 1:
            given = len(scores) if is_list else type(scores).__name__
            return Verdict(False, False, "error", f"expected a list of one score, given {given}")
        return score_to_verdict(scores[0], response)

    return check
