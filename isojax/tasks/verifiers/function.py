"""`function:rewards.py:my_reward` or `function:my_pkg.my_mod:my_reward`: a user's reward function as TRL calls it.

    def my_reward(prompts, completions, answer, **columns) -> list[float]

It is called with lists of one: the prompt as the model reads it, with the markup of its chat and what the chat template
has begun for the policy (a <think>); the response's text, the reference answer, and every column of the problem that it
names (all where it takes `**columns`). Where it names `problem_text`, it gets the problem's own text. Binary rewards: a
score of 1 is correct, any other is not.
"""

import importlib
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from isojax.core import registry
from isojax.core.errors import InputError
from isojax.core.nouns import MAIN_SCORE, Problem
from isojax.core.user_code import describe_exception
from isojax.tasks.verifiers import SCORE_TOLERANCE, Check, Verdict

ISOLATED, PURE = True, False
PROBLEM_TEXT = "problem_text"  # a parameter beside TRL's
NO_SCORE = {MAIN_SCORE: math.nan}  # what the function returned is none, whatever the response


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
        if PROBLEM_TEXT in parameter_names:
            arguments.setdefault(PROBLEM_TEXT, problem.prompt)
        if missing := [name for name in required_names if name not in arguments]:
            lack = f"which problem {problem.id} does not have; it has {', '.join(sorted(arguments))}"
            raise InputError(f"cell.verifier.use: {argument} takes {', '.join(missing)}, {lack}.")
        passed = {name: [value] for name, value in arguments.items() if takes_all_columns or name in parameter_names}
        scores: Any = function(**passed)
        is_list = isinstance(scores, Iterable) and not isinstance(scores, str)
        scores = list(scores) if is_list else scores
        if not is_list or len(scores) != 1:
            received = len(scores) if is_list else type(scores).__name__
            return Verdict(False, False, "error", f"expected a list of one score, given {received}", NO_SCORE)
        return score_to_verdict(scores[0], response)

    return check


def load_function(verifier: str, argument: str, default_name: str = "") -> Callable[..., Any]:
    """The function of `file.py:name` or `package.module:name`; InputError says where and why there is none."""
    module_or_file, _, name = argument.partition(":")
    name = name or default_name
    expected_form = f"{verifier}:FILE.py:{default_name or 'NAME'} or {verifier}:PACKAGE.MODULE:{default_name or 'NAME'}"
    if not module_or_file or not name:
        raise InputError(f"cell.verifier.use: given {verifier + ':' + argument!r}, expected {expected_form}.")
    is_file = module_or_file.endswith(".py")
    if is_file and not Path(module_or_file).is_file():
        raise InputError(f"cell.verifier.use: no such file: {module_or_file} (in {Path.cwd()}).")
    try:
        module = registry.import_file(Path(module_or_file)) if is_file else importlib.import_module(module_or_file)
    except BaseException as e:  # whatever a user's file does when it runs, SystemExit included
        reason = describe_exception(e)
        raise InputError(f"cell.verifier.use: the module {module_or_file} cannot be imported: {reason}.") from e
    function = vars(module).get(name)
    if not callable(function):
        names = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        known = ", ".join(names) or "none"
        raise InputError(f"cell.verifier.use: {module_or_file} has no function {name!r}; it has {known}.")
    return function


def score_to_verdict(score: Any, response: str) -> Verdict:
    """1 (or True) is correct, any other number is not; those but 0, 1 and -1 are `partial` where rewards are binary."""
    try:
        if isinstance(score, str):
            raise TypeError("a text is no score")
        value = float(score)
    except (TypeError, ValueError, OverflowError) as e:
        received = textwrap.shorten(f"{type(score).__name__} {score!r}", 80, placeholder="...")
        return Verdict(False, False, "error", f"expected a number for a score, given {received} ({e})", NO_SCORE)
    if not math.isfinite(value):
        return Verdict(False, False, "error", f"expected a finite score, given {value}", {MAIN_SCORE: value})
    parsed = bool(response.strip())
    if all(abs(value - plain) > SCORE_TOLERANCE for plain in (-1, 0, 1)):
        message = f"a score of {value:g} counts as 0: cell.reward.kind = binary"
        return Verdict(False, parsed, "partial", message, {MAIN_SCORE: value})
    return Verdict(abs(value - 1) <= SCORE_TOLERANCE, parsed, scores={MAIN_SCORE: value})
