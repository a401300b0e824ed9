"""`verl:rewards.py` or `verl:my_pkg.my_mod[:NAME]`: a reward function written for verl.

    def compute_score(data_source, solution_str, ground_truth, extra_info=None) -> float | dict

A function that also has a parameter `prompt_str` gets the prompt as the model reads it, with the
markup of its chat. data_source, ground_truth (or reward_model's, else the answer) and extra_info
are the problem's columns. Of a dict, binary rewards take "acc" where there is one, else "score": 1
is correct, any other is not. Graded rewards take "score", or the entries that `cell.reward.weights`
names. The function may be `async def`.
"""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from isojax.core.errors import InputError
from isojax.core.nouns import MAIN_SCORE, Problem
from isojax.tasks.verifiers import Check, Verdict, function_path, verifier
from isojax.tasks.verifiers.function import (
    describe_function,
    load_function,
    score_to_verdict,
    wait_for_coroutines,
)

PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")
PROMPT_PARAMETER = "prompt_str"  # which verl does not pass


@verifier(isolated=True, pure=False, path=function_path)
def build(argument: str) -> Check:
    """A check that calls a reward function written for verl; argument: FILE.py or MODULE, with
    :NAME where it is not called compute_score. InputError where it cannot be imported, or does not
    take verl's arguments."""
    compute_score = load_function("verl", argument, default_name="compute_score")
    takes_prompt = False
    try:
        with suppress(ValueError):  # some functions written in C do not name their parameters
            signature = inspect.signature(compute_score)  # ValueError where it is not known
            takes_prompt = PROMPT_PARAMETER in signature.parameters
            optional = (PROMPT_PARAMETER,) if takes_prompt else ()
            signature.bind(**dict.fromkeys((*PARAMETERS, *optional)))
    except TypeError as e:
        problem = f"the function cannot be called as verl calls it ({e})"
        raise InputError(
            where="cell.verifier.use",
            found=f"{argument}: {problem}",
            expected=f"{', '.join(PARAMETERS)}",
        ) from e
    call = wait_for_coroutines(compute_score)
    place = describe_function(compute_score)

    def check(problem: Problem, prompt: str, response: str) -> Verdict:
        """Call the function as verl does, with the problem's columns, and read what it returns: a
        score, (score, a comment), or a dict with "score" or "acc". Uses `call` (the function),
        takes_prompt and place."""
        columns = problem.columns
        reward_model = columns.get("reward_model") or {}
        answer = reward_model.get("ground_truth", problem.answer)
        prompt_argument = {PROMPT_PARAMETER: prompt} if takes_prompt else {}
        returned: Any = call(
            data_source=columns.get("data_source", ""),
            solution_str=response,
            ground_truth=columns.get("ground_truth", answer),
            extra_info=columns.get("extra_info"),
            **prompt_argument,
        )

        if isinstance(returned, Mapping):
            return _read_dict(returned, response, place)
        if isinstance(returned, tuple | list) and returned:
            returned = returned[0]  # as verl reads them: (score, a comment)
        return score_to_verdict(returned, response, place)

    return check


def _read_dict(scores: Mapping[Any, Any], response: str, place: str) -> Verdict:
    """The verdict of {"score": 1.0, "acc": 1, ...}, with all entries that are numbers as scores;
    the failure `error` where it has neither "score" nor "acc"."""
    if "acc" not in scores and "score" not in scores:
        keys = ", ".join(map(str, scores)) or "nothing"
        message = f'{place} returned a dict with {keys}, expected one with "score"'
        return Verdict(correct=False, parsed=False, failure="error", message=message)
    binary_score = scores["acc"] if "acc" in scores else scores["score"]
    verdict = score_to_verdict(binary_score, response, place)
    return verdict._replace(scores=_numbers(scores))


def _numbers(score: Mapping[Any, Any]) -> dict[str, float]:
    """The entries that are numbers; "acc" is the main score where "score" is none."""
    numbers: dict[str, float] = {}
    for name, value in score.items():
        with suppress(TypeError, ValueError, OverflowError):
            if not isinstance(value, str):
                numbers[str(name)] = float(value)
    return {MAIN_SCORE: numbers["acc"], **numbers} if "acc" in numbers else numbers
