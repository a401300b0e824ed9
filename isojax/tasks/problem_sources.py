"""Sources of problems in text: a file per kind in tasks/sources/, with a function `(argument, data)
-> ProblemSource`.

They share how rows of a file become distinct problems, and how settings of a source that generates
problems are read.
"""

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import yaml

from isojax.core.columns import is_blank
from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.core.tabular import DataRow
from isojax.core.terminal import note, warn
from isojax.core.yaml_files import YAML_ERRORS, check_yaml, first_line
from isojax.tasks import sources
from isojax.tasks.problem_columns import (
    ANSWER_COLUMNS,
    PROMPT_COLUMNS,
    choose_column,
    column_value,
    note_other_answers,
)
from isojax.tasks.repeated_prompts import check_prompts_differ
from isojax.tasks.text_literals import parse_messages

MAX_CONFLICTS = 3  # of the rows with a prompt met before and another answer, in a message

# Each message once: a run opens a source several times.
_note_once = functools.cache(note)
_warn_once = functools.cache(warn)


class ProblemSource(Protocol):
    """Where a text task's problems come from."""

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """At most `count` distinct ones, a random choice in random order; ids are int32, the same
        in every run."""
        ...


def open_source(task: str, data: DataConfig) -> ProblemSource:
    """The source that `name` or `name:argument` means; whatever is wrong with it is an InputError
    before any work."""
    name, _, argument = task.partition(":")
    return sources.source.load(name)(argument, data)


@dataclass(frozen=True)
class InMemorySource:
    """A source whose problems are all read."""

    all_problems: Sequence[Problem]

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """At most `count` of the problems."""
        return random_subset(self.all_problems, count, rng)


def random_subset(
    problems: Sequence[Problem], count: int, rng: np.random.Generator
) -> list[Problem]:
    """At most `count` of the problems, a random choice in random order."""
    return [problems[i] for i in rng.permutation(len(problems))[:count]]


def rows_to_problems(rows: Iterable[DataRow], data: DataConfig, source: str) -> list[Problem]:
    """The rows of a file as problems, each prompt once. The columns of prompt and answer are chosen
    by all rows together. source: the file, for messages; an InputError names the row. Prints notes
    and warnings on columns and answers that look wrong."""
    all_rows = list(rows)
    if not all_rows:
        raise InputError(
            where=source,
            found="no problem",
            expected="at least one row with a prompt and an answer",
        )

    # prompt_key and answer_key: the columns that the user names; None: those of usual names.
    prompt_column = choose_column(all_rows, "prompt", data.prompt_key, PROMPT_COLUMNS)
    answer_column = choose_column(all_rows, "answer", data.answer_key, ANSWER_COLUMNS)
    check_prompts_differ(all_rows, prompt_column, answer_column, data.prompt_key)
    if data.answer_key is None:
        note_other_answers(all_rows, answer_column)
    _warn_of_number_lists(all_rows, answer_column)

    problems = [_row_to_problem(row, prompt_column, answer_column) for row in all_rows]
    return drop_duplicates(problems, source)


def _warn_of_number_lists(rows: Sequence[DataRow], column: str) -> None:
    """Warn of answers that are lists of several numbers, [1, 5]: as text they look like an interval
    or a vector, which would be a single answer (tasks/reference_check.py). column: that of the
    answers."""

    def is_number_list(value: Any) -> bool:
        if not isinstance(value, list) or len(value) < 2:
            return False
        return all(isinstance(entry, int | float) for entry in value)

    listed = [row for row in rows if is_number_list(column_value(row.values, column))]
    if listed:
        _warn_once(
            f"{listed[0].location}: {column!r} is a list of several numbers, as in {len(listed)} of"
            f" {len(rows)} rows; isojax's verifiers compare a response with the list as it stands."
            f" Name a column with one answer by cell.data.answer_key=COLUMN, or judge by a function"
            f" of your own."
        )


def _row_to_problem(row: DataRow, prompt_column: str, answer_column: str) -> Problem:
    """One row as a problem. A prompt that is a list of {role, content} becomes its `messages`.
    Other columns are kept in `columns`, for verifiers; an answer out of an object, as verl's files
    have it, is there unchanged as `ground_truth`. prompt_column, answer_column: such as "question"
    and "answer"; "reward_model.ground_truth" is an entry of an object in the column reward_model.
    InputError where a value is no text and no number."""
    prompt = column_value(row.values, prompt_column)
    if isinstance(prompt, str):
        # A text that writes out a list of messages is read as that list.
        prompt = _messages_in_text(prompt, row, prompt_column) or prompt
    messages: tuple[dict[str, str], ...] = ()
    if isinstance(prompt, list):
        messages = _read_conversation(prompt, row, prompt_column)
        prompt_text = messages[-1]["content"]
    else:
        prompt_text = _value_as_text(prompt, row, prompt_column)

    columns = {
        name: value
        for name, value in row.values.items()
        if name not in (prompt_column, answer_column)
    }
    answer = column_value(row.values, answer_column)
    if "." in answer_column:  # reward_model.ground_truth; the file's own ground_truth is kept
        columns.setdefault("ground_truth", answer)
    if isinstance(answer, list):
        answer = answer[0] if len(answer) == 1 else json.dumps(answer, ensure_ascii=False)
    return Problem(
        row.index,
        prompt_text,
        _value_as_text(answer, row, answer_column),
        messages=messages,
        columns=columns,
        location=row.location,
    )


def _messages_in_text(text: str, row: DataRow, column: str) -> list[Any] | None:
    """The list of messages that a prompt in text writes out, as tables of text have it:
    '[{"role": "user", "content": "..."}]'; None for any other text. InputError where it looks like
    such a list and cannot be read."""
    try:
        messages = parse_messages(text)
    except ValueError as e:
        raise InputError(
            where=row.location,
            found=f"{column!r} is {e}: {text[:80]!r}",
            fix=(
                "Write the list itself in the row, with a role and a content for each "
                "message, or the text alone."
            ),
        ) from e
    if messages is not None:
        _note_once(
            f"{row.source}: texts in {column!r} that write a list of messages are read as messages."
        )
    return messages


def _read_conversation(
    messages: list[Any], row: DataRow, column: str
) -> tuple[dict[str, str], ...]:
    """The messages of a conversation, each {"role": "user", "content": "12 + 7 ="} without other
    entries. InputError where one has another form, where a user's content is empty, or where the
    last one is not the user's. column: where it stands, for messages."""
    turns: list[dict[str, str]] = []
    for message in messages:
        fields = message if isinstance(message, Mapping) else {}
        role = fields.get("role")
        content = fields.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            raise InputError(
                where=row.location,
                found=f"{column!r} holds {str(message)[:80]!r}",
                expected="text or a list of {role, content}",
            )
        if role == "user":
            content = _value_as_text(content, row, f"content of {column}")
        turns.append({"role": role, "content": content})

    if not turns or turns[-1]["role"] != "user":
        last = turns[-1]["role"] if turns else "nothing"
        raise InputError(
            where=row.location,
            found=f"the conversation in {column!r} ends with {last}",
            expected="the role user",
        )
    return tuple(turns)


def _value_as_text(value: Any, row: DataRow, column: str) -> str:
    """A value of a prompt or an answer as text: text unchanged, a number written out (72.0 as
    "72"). InputError with its place for anything else: empty, true or false, a list, NaN, broken
    Unicode. row, column: where it stands, for messages."""
    # Below 1e15 a float has all the digits of its integer.
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)

    location = f"{row.location}: {column!r}"
    fix = "Correct the row or remove it."
    if is_blank(value):
        raise InputError(
            where=location,
            found="missing or empty",
            expected="text or a number",
            fix=fix,
        )
    if isinstance(value, bool):
        fix = f'Write it as text, in every row that has one: "{str(value).lower()}".'
    if not isinstance(value, str):
        received = f"{str(value)[:80]!r} ({type(value).__name__})"
        raise InputError(
            where=location,
            found=f"given {received}",
            expected="text or a number",
            fix=fix,
        )
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise InputError(
            where=location,
            found=f"holds half a surrogate pair ({value[e.start]!r}), which is no text",
            fix=fix,
        ) from e
    return value


def drop_duplicates(problems: Iterable[Problem], source: str) -> list[Problem]:
    """The problems, each prompt once, by its first row. How many rows were left out, and those
    whose answers differ from the first, is printed on stderr. source: the file, for messages. Two
    prompts are the same where `dedup_text` is."""
    problem_by_prompt: dict[str, Problem] = {}
    same_answer = 0  # rows that repeat a prompt with its answer
    other_answer = 0  # ... with another one
    conflicts: list[str] = []  # the first of these
    for problem in problems:
        first_problem = problem_by_prompt.setdefault(dedup_text(problem), problem)
        if first_problem is problem:
            continue

        if first_problem.answer == problem.answer:
            same_answer += 1
            continue
        other_answer += 1
        if other_answer <= MAX_CONFLICTS:
            conflicts.append(_conflict(problem, first_problem))

    repeated = "rows repeat an earlier prompt with"
    if same_answer:
        _note_once(f"{source}: {same_answer} {repeated} the same answer; each prompt is kept once.")
    if other_answer:
        hidden = other_answer - len(conflicts)
        if hidden:
            conflicts.append(f"and {hidden} more")
        listed = "; ".join(conflicts)
        effect = "ANOTHER answer; the first answer is kept"
        _warn_once(f"{source}: {other_answer} {repeated} {effect}: {listed}.")
    return list(problem_by_prompt.values())


def _conflict(problem: Problem, first_problem: Problem) -> str:
    """Both places with their answers, the repetition first."""

    def shown(answer: str) -> str:
        text = " ".join(answer.split())
        return repr(text if len(text) <= 40 else f"{text[:20]} ... {text[-15:]}")

    first = f"where {first_problem.name} has {shown(first_problem.answer)}"
    return f"{problem.name} has {shown(problem.answer)}, {first}"


def dedup_text(problem: Problem) -> str:
    """The text by which two problems are compared: the prompt, or all of the user's turns of a
    conversation."""
    user_turns = [message["content"] for message in problem.messages if message["role"] == "user"]
    return "\n".join(user_turns) or problem.prompt


def to_plain_json(value: Any) -> Any:
    """What a reader of tables gives, as plain JSON: bytes as text, arrays as lists, dates and
    decimals as printed."""

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray | np.generic):
            return leaf.tolist()
        return leaf.decode(errors="backslashreplace") if isinstance(leaf, bytes) else str(leaf)

    return json.loads(json.dumps(value, default=plain))


def read_settings(text: str, task: str) -> dict[str, Any]:
    """The settings in the argument of a source, `key=value,key=value`, as a dict whose values are
    read as YAML: {"lengths": [1, 2]} for "lengths=[1,2]", {} for "". task: such as "gym:NAME", for
    messages. InputError for any other form."""
    settings: dict[str, Any] = {}
    if not text:
        return settings

    # Commas separate settings, but not those of a list: lengths=[1,2]
    for assignment in re.split(r",(?![^\[]*\])", text):
        key, equals, value = (piece.strip() for piece in assignment.partition("="))
        if not equals or not key or key in settings:
            raise InputError(
                where=f"cell.task: {task}",
                found=f"given {assignment!r}",
                expected="key=value with every key once",
            )

        try:
            # check_yaml returns the text, but refuses one that is too long or nested too deep.
            settings[key] = to_plain_json(yaml.safe_load(check_yaml(value, aliases=False)))
        except YAML_ERRORS as e:
            problem = f"the value of {assignment[:200]!r} is not YAML ({first_line(e)})"
            raise InputError(
                where="cell.task",
                found=f"{task}: {problem}",
            ) from e
    return settings
