"""`gym`: the scorer of the reasoning-gym generator that made the problem.

It is given the last <answer>...</answer> of a response, else all of it. Some scorers run that
through Python's `eval`, in the worker process, with the user's rights.
"""

import functools
import json
import re
from collections.abc import Callable
from typing import Any

from isojax.core.errors import InputError
from isojax.core.nouns import MAIN_SCORE, Problem
from isojax.core.registry import import_extra
from isojax.tasks.verifiers import Check, Verdict, refuse_argument, verifier

_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@verifier(isolated=True, pure=True)
def build(argument: str) -> Check:
    """The check; InputError where an argument is given or reasoning-gym is not installed."""
    refuse_argument("gym", argument)
    # Here, so that its seconds count for the worker's start and not for the first check's deadline.
    import_extra("gym", "cell.verifier.use = gym", "reasoning_gym")
    return check


def check(problem: Problem, prompt: str, response: str) -> Verdict:
    """Judge a response by the scorer of the problem's generator: correct where the score is 1,
    parsed where there is any answer. InputError for a problem of another source. The problem's
    columns "gym", "settings" and "entry" name the generator, its settings and its item
    (sources/gym.py)."""
    columns = problem.columns
    if not {"gym", "settings", "entry"} <= set(columns):
        raise InputError(
            where=f"problem {problem.id}",
            found="the verifier gym judges what cell.task=gym:NAME makes",
            fix="Set another.",
        )

    tagged_answers = _ANSWER_TAG.findall(response)
    answer = (tagged_answers[-1] if tagged_answers else response).strip()
    # Settings as text: the cache of scorers needs arguments that can be hashed.
    scorer = _scorer(columns["gym"], json.dumps(columns["settings"], sort_keys=True))
    score = scorer(answer, from_tagged_json(columns["entry"])) if answer else 0.0
    is_correct = abs(score - 1) < 1e-6  # 1 but for rounding errors
    return Verdict(is_correct, parsed=bool(answer), scores={MAIN_SCORE: score})


@functools.cache
def _scorer(name: str, settings: str) -> Callable[[str, dict[str, Any]], float]:
    """A generator's scorer; a few score by the settings, which are JSON."""
    import reasoning_gym  # pyright: ignore[reportMissingImports]

    dataset = reasoning_gym.create_dataset(name, **{**json.loads(settings), "size": 1})
    return dataset.score_answer


def to_tagged_json(value: Any) -> Any:
    """A generator's entry as JSON that `from_tagged_json` gives back equal: two scorers tell tuples
    from lists."""
    if isinstance(value, tuple):
        return {"(tuple)": [to_tagged_json(v) for v in value]}
    if isinstance(value, list):
        return [to_tagged_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): to_tagged_json(v) for k, v in value.items()}
    is_json = value is None or isinstance(value, str | bool | int | float)
    return value if is_json else str(value)


def from_tagged_json(value: Any) -> Any:
    """What `to_tagged_json` was given; keys and values that JSON does not have are text."""

    def untagged(decoded: dict[str, Any]) -> Any:
        return tuple(decoded["(tuple)"]) if set(decoded) == {"(tuple)"} else decoded

    return json.loads(json.dumps(value), object_hook=untagged)
