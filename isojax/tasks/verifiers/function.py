"""`function:rewards.py:my_reward` or `function:my_pkg.my_mod:my_reward`: a user's reward function
as TRL calls it.

    def my_reward(prompts, completions, answer, **columns) -> list[float]

It is called with lists of one: the prompt as the model reads it, with the markup of its chat and
what the chat template has begun for the policy (a <think>); the response's text, the reference
answer, and every column of the problem that it names (all where it takes `**columns`). Where it
names `problem_text`, it gets the problem's own text. Binary rewards: a score of 1 is correct, any
other is not. A score of None says that the function does not apply to this problem. A function may
be `async def`.
"""

import asyncio
import importlib
import inspect
import math
import textwrap
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from isojax.core import registry
from isojax.core.errors import InputError
from isojax.core.nouns import MAIN_SCORE, Problem
from isojax.core.user_code import describe_exception
from isojax.tasks.verifiers import SCORE_TOLERANCE, Check, Verdict, function_path, verifier

PROBLEM_TEXT = "problem_text"  # a parameter beside TRL's
NO_SCORE = {MAIN_SCORE: math.nan}  # what the function returned is none, whatever the response


@verifier(isolated=True, pure=False, path=function_path)
def build(argument: str) -> Check:
    """A check that calls the function of `argument`, FILE.py:NAME or MODULE:NAME, with the
    arguments that it names (top of this file); InputError where it cannot be found or imported.

    The check uses parameter_names (of what the function names, without *args and **columns),
    required_names (those of them without a default) and takes_all_columns (it has **columns)."""
    function = load_function("function", argument)
    parameters = inspect.signature(function).parameters.values()
    takes_all_columns = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named_parameters = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    parameter_names = {p.name for p in named_parameters}
    required_names = [p.name for p in named_parameters if p.default is p.empty]
    call = wait_for_coroutines(function)
    place = describe_function(function)

    def check(problem: Problem, prompt: str, response: str) -> Verdict:
        """The verdict of the function's score; InputError where it needs a column that the problem
        does not have. A column named prompts, completions or answer is not passed, since these are
        the function's own arguments."""
        arguments = {
            **problem.columns,
            "prompts": prompt,
            "completions": response,
            "answer": problem.answer,
        }
        if PROBLEM_TEXT in parameter_names:
            arguments.setdefault(PROBLEM_TEXT, problem.prompt)
        missing = [name for name in required_names if name not in arguments]
        if missing:
            raise InputError(
                where="cell.verifier.use",
                found=(
                    f"{argument} takes {', '.join(missing)}, "
                    f"which problem {problem.id} does not have"
                ),
                expected=f"some of {', '.join(sorted(arguments))}",
            )

        # Lists of one, as TRL passes a batch.
        passed: dict[str, list[Any]] = {}
        for name, value in arguments.items():
            if takes_all_columns or name in parameter_names:
                passed[name] = [value]
        return _read_scores(call(**passed), response, place)

    return check


def _read_scores(returned: Any, response: str, place: str) -> Verdict:
    """The verdict of what a function returned, which should be a list of one score, [1.0]. None as
    the score: the function does not apply to the problem. Anything else is a failure, whose message
    describes it. response: its text, which `score_to_verdict` looks at; place: where the function
    is defined, such as "rewards.py:12 (reward)", for messages."""
    is_list = isinstance(returned, Iterable) and not isinstance(returned, str | bytes | Mapping)
    scores = list(returned) if is_list else []
    if len(scores) != 1:
        received = f"{len(scores)} scores" if is_list else describe_value(returned)
        expected = "expected a list with a score for the one completion, such as [1.0]"
        return _error(f"{place} returned {received}, {expected}", NO_SCORE)

    score = scores[0]
    if score is None:
        reason = f"{place} returned [None]: it does not apply to this problem"
        return Verdict(
            correct=False,
            parsed=False,
            failure="none",
            message=reason,
            scores={},
            not_applicable=(MAIN_SCORE,),
        )
    return score_to_verdict(score, response, place)


def _error(message: str, scores: Mapping[str, float]) -> Verdict:
    return Verdict(correct=False, parsed=False, failure="error", message=message, scores=scores)


def wait_for_coroutines(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls this one and, where it is `async def`, waits for its result. It takes
    keyword arguments alone.

    One event loop serves all calls: an HTTP client that the function keeps can only be used in the
    loop in which it was used first.
    """
    runner = asyncio.Runner()  # it makes the loop when it is first used

    async def result_of(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    def call(**arguments: Any) -> Any:
        returned = function(**arguments)
        return runner.run(result_of(returned)) if inspect.isawaitable(returned) else returned

    weakref.finalize(call, runner.close)
    return call


def describe_function(function: Callable[..., Any]) -> str:
    """Where a function of the user's is defined: rewards.py:12 (reward)."""
    code = getattr(inspect.unwrap(function), "__code__", None)  # an object that is called has none
    name = getattr(function, "__name__", type(function).__name__)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno} ({name})" if code else name


def describe_value(value: Any) -> str:
    """A value's type, and the value where that says more, in at most 80 characters."""
    if value is None:
        return "None"
    return textwrap.shorten(f"{type(value).__name__} {value!r}", 80, placeholder="...")


def load_function(verifier: str, argument: str, default_name: str = "") -> Callable[..., Any]:
    """The user's function that `argument`, FILE.py:NAME or PACKAGE.MODULE:NAME, refers to; without
    a NAME that of default_name ("": a NAME is needed). verifier: such as "function", for messages.
    InputError where it cannot be imported or found. The file or module is run by this import."""
    module_or_file, _, name = argument.partition(":")
    name = name or default_name
    if not module_or_file or not name:
        form = default_name or "NAME"
        raise InputError(
            where="cell.verifier.use",
            found=f"given {verifier + ':' + argument!r}",
            expected=f"{verifier}:FILE.py:{form} or {verifier}:PACKAGE.MODULE:{form}",
        )
    is_file = module_or_file.endswith(".py")
    if is_file and not Path(module_or_file).is_file():
        raise InputError(
            where="cell.verifier.use",
            found=f"no such file: {module_or_file} (in {Path.cwd()})",
        )

    try:
        if is_file:
            module = registry.import_file(Path(module_or_file))
        else:
            module = importlib.import_module(module_or_file)
    except BaseException as e:  # whatever a user's file does when it runs, SystemExit included
        reason = describe_exception(e)
        raise InputError(
            where="cell.verifier.use",
            found=f"the module {module_or_file} cannot be imported: {reason}",
        ) from e

    function = vars(module).get(name)
    if not callable(function):
        own_functions = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        known = ", ".join(own_functions) or "none"
        raise InputError(
            where="cell.verifier.use",
            found=f"{module_or_file} has no function {name!r}",
            expected=f"one that it has ({known})",
        )
    return function


def score_to_verdict(score: Any, response: str, place: str = "") -> Verdict:
    """The verdict of a score that a user's function gave: 1 (or True) is correct, any other number
    is not. No number, or one that is not finite, is the failure `error`.

    For binary rewards, numbers other than 0, 1 and -1 are suspect: the failure `partial`, or
    `score` above 1, where the function probably means something else by 1. place: where the
    function is defined, for messages. response: an empty one counts as not parsed. The score itself
    is in `scores`, for graded rewards, also after a failure.
    """
    giver = place or "the function"
    try:
        if isinstance(score, str):
            raise TypeError("a text is no score")
        value = float(score)
    except (TypeError, ValueError, OverflowError) as e:
        problem = f"{giver} returned {describe_value(score)} for a score, expected a number ({e})"
        return _error(problem, NO_SCORE)

    if not math.isfinite(value):
        problem = f"{giver} returned {value} for a score, expected a finite number"
        return _error(problem, {MAIN_SCORE: value})
    parsed = bool(response.strip())
    is_plain = any(abs(value - plain) <= SCORE_TOLERANCE for plain in (-1, 0, 1))
    if not is_plain:
        message = (
            f"{giver} returned a score of {value:g}, which counts as 0: cell.reward.kind = binary"
        )
        return Verdict(
            correct=False,
            parsed=parsed,
            failure="score" if value > 1 else "partial",
            message=message,
            scores={MAIN_SCORE: value},
            place=place,
        )
    is_correct = abs(value - 1) <= SCORE_TOLERANCE
    return Verdict(is_correct, parsed=parsed, scores={MAIN_SCORE: value}, place=place)
