"""Rows of a file as problems: which columns hold prompt and answer, what may stand in them, and rows met twice. No jax here."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from isojax.config import DataConfig
from isojax.tasks.sources import asked
from isojax.types import InputError, Problem

PROMPT_KEYS = ("prompt", "question", "problem", "query", "input", "instruction")
# A dot leads into an object. verl's schema comes first: a file in it may hold the solution's text under another of these names.
ANSWER_KEYS = ("reward_model.ground_truth", "answer", "ground_truth", "solution", "final_answer", "target", "output")


class Row(NamedTuple):
    """One row: its number in the source (the problem's id), where it stands, for messages, and its columns."""

    number: int
    place: str
    columns: Mapping[str, Any]


class Keys(NamedTuple):
    """The columns that hold the prompt and the answer; a dot leads into an object."""

    prompt: str
    answer: str


def read_rows(rows: Iterable[Row], data: DataConfig, source: str) -> list[Problem]:
    """The rows as distinct problems; the first row decides which columns are read.

    Raises:
        InputError: no row, no such column, or a value that cannot be used, with its place.
    """
    found: list[Problem] = []
    keys = None
    for row in rows:
        keys = keys or find_keys(row, data)
        found.append(read_row(row, keys))
    if not found:
        raise InputError(f"{source} holds no problem; expected at least one row with a prompt and an answer.")
    return distinct(found, source)


def find_keys(row: Row, data: DataConfig) -> Keys:
    """The columns named by cell.data, else the first of the usual names that this row has.

    Raises:
        InputError: none is there; says which columns there are.
    """

    def find(setting: str, given: str | None, usual: tuple[str, ...]) -> str:
        names = (given,) if given else usual
        filled = [name for name in names if look(row.columns, name) is not None]
        there = filled or [name for name in names if name in row.columns]  # an empty one is told of as empty, not as missing
        if there:
            return there[0]
        wanted = repr(given) if given else f"one of {', '.join(usual)}"
        raise InputError(
            f"{row.place}: no {setting}: there are the columns {', '.join(row.columns) or '(none)'}; expected {wanted}."
            f" Name it by cell.data.{setting}_key=COLUMN."
        )

    return Keys(find("prompt", data.prompt_key, PROMPT_KEYS), find("answer", data.answer_key, ANSWER_KEYS))


def look(columns: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or of a.b within an object; None where there is none."""
    value: Any = columns.get(name)
    if value is None and "." in name:
        first, _, rest = name.partition(".")
        inner = columns.get(first)
        value = look(inner, rest) if isinstance(inner, Mapping) else None
    return value


def read_row(row: Row, keys: Keys) -> Problem:
    """One row as a problem. A prompt that is a list of {role, content} becomes `messages`; columns of other names are kept.

    Where the answer stands within an object, as verl's does, column `ground_truth` is it as it was (it may be a list).
    """
    given, answer = look(row.columns, keys.prompt), look(row.columns, keys.answer)
    messages = conversation(given, row, keys.prompt) if isinstance(given, list) else ()
    prompt = messages[-1]["content"] if messages else text(given, row, keys.prompt)
    columns = {k: v for k, v in row.columns.items() if k not in keys}
    if "." in keys.answer:
        columns.setdefault("ground_truth", answer)
    if isinstance(answer, list):
        answer = answer[0] if len(answer) == 1 else json.dumps(answer, ensure_ascii=False)
    return Problem(row.number, prompt, text(answer, row, keys.answer), messages=messages, columns=columns)


def conversation(given: list[Any], row: Row, key: str) -> tuple[dict[str, str], ...]:
    """A list of {role, content} that ends with the user's turn; what others say may be empty."""
    found = []
    for message in given:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise InputError(
                f"{row.place}: {key!r} holds {str(message)[:80]!r}, expected text or a list of {{role, content}}, both text. Mend it."
            )
        content = text(message["content"], row, f"content of {key}") if message["role"] == "user" else message["content"]
        found.append({"role": message["role"], "content": content})
    if not found or found[-1]["role"] != "user":
        last = found[-1]["role"] if found else "nothing"
        raise InputError(f"{row.place}: the conversation in {key!r} ends with {last}, expected a message of role user. Mend it.")
    return tuple(found)


def text(value: Any, row: Row, key: str) -> str:
    """A value as text: text as it is, a number written out (72.0 as 72)."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    if value is None or value == "" or (isinstance(value, str) and not value.strip()):
        raise InputError(f"{row.place}: {key!r} is missing or empty, expected text or a number. Mend the row or remove it.")
    if not isinstance(value, str):
        raise InputError(
            f"{row.place}: {key!r} is {str(value)[:80]!r} ({type(value).__name__}), expected text or a number. Mend the row or remove it."
        )
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise InputError(f"{row.place}: {key!r} holds half a surrogate pair ({value[e.start]!r}), which is no text. Mend it.") from e
    return value


def distinct(problems: Iterable[Problem], source: str) -> list[Problem]:
    """The problems, each prompt once: the first row of it counts. How many were left out is said on stderr."""
    kept: dict[str, Problem] = {}
    same = other = 0
    for problem in problems:
        first = kept.setdefault(asked(problem), problem)
        same += first is not problem and first.answer == problem.answer
        other += first.answer != problem.answer
    if same:
        _say(f"note: {source}: {same} rows repeat a prompt met before, with its answer; each prompt is kept once.")
    if other:
        _say(f"warning: {source}: {other} rows repeat a prompt met before with ANOTHER answer; the first answer is kept.")
    return list(kept.values())


@functools.cache  # a run opens a source several times: what is said of it is said once
def _say(text: str) -> None:
    print(text, file=sys.stderr)


def plain(value: Any) -> Any:
    """What a reader of tables gives, as plain JSON: bytes as text, arrays as lists, dates and decimals as they print."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)
