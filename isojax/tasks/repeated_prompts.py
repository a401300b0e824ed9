"""Recognizes a column of prompts that has the same text in every row, such as a system prompt or an
instruction, while another column holds the problems."""

import functools
import json
from collections.abc import Sequence

from isojax.core.errors import InputError
from isojax.core.tabular import DataRow
from isojax.core.terminal import warn
from isojax.tasks.problem_columns import PROMPT_COLUMNS, column_value

MAX_NAMED_COLUMNS = 4
MAX_SHOWN_CHARACTERS = 60
_warn_once = functools.cache(warn)  # a run opens a source several times


def check_prompts_differ(
    rows: Sequence[DataRow], prompt_column: str, answer_column: str, configured_name: str | None
) -> None:
    """Refuse or warn where the prompts hardly differ, and another column seems to hold the
    problems: it has at least twice as many texts.

    "Hardly differ": there are at most half as many texts as rows. Where all rows have the same
    prompt, a warning; InputError if the other column has a usual name for prompts, and the user has
    not named the prompt column (configured_name is None). Where there are a few different prompts,
    a warning in this last case, and nothing otherwise.
    """
    texts = [_text_of(row, prompt_column) for row in rows]
    count = len(set(texts))  # how many different prompts
    are_all_same = count == 1
    if len(rows) < 2 or 2 * count > len(rows):
        return

    # Rivals: other columns with at least twice as many texts.
    rivals: list[str] = []
    for name in rows[0].values:
        is_other = name not in (prompt_column, answer_column.partition(".")[0])
        if is_other and _distinct_texts(rows, name) >= 2 * count:
            rivals.append(name)
    usual_rivals = [name for name in rivals if name.lower() in PROMPT_COLUMNS]
    if not rivals or not (usual_rivals or are_all_same):
        return

    shown = texts[0]
    if len(shown) > MAX_SHOWN_CHARACTERS:
        shown = f"{shown[:MAX_SHOWN_CHARACTERS]}..."
    repeated = f"the same in all {len(rows)} rows ({shown!r})"
    if not are_all_same:
        repeated = f"one of {count} texts in all {len(rows)} rows, such as {shown!r}"
    named = (usual_rivals or rivals)[:MAX_NAMED_COLUMNS]
    verb, key = ("differs", named[0]) if len(named) == 1 else ("differ", "COLUMN")
    message = (
        f"{rows[0].source}: the prompt {prompt_column!r} is {repeated}, and"
        f" {', '.join(map(repr, named))} {verb} from row to row. If that holds the problems, set"
        f" cell.data.prompt_key={key}; the text of {prompt_column!r} can go into"
        f" cell.prompt.system or cell.prompt.template"
    )

    if are_all_same and usual_rivals and configured_name is None:
        raise InputError(
            found=message,
            fix=f"To keep this one prompt, set cell.data.prompt_key={prompt_column}.",
        )
    if are_all_same or configured_name is None:
        _warn_once(f"{message}.")


def _text_of(row: DataRow, column: str) -> str:
    value = column_value(row.values, column)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _distinct_texts(rows: Sequence[DataRow], column: str) -> int:
    """How many texts or conversations the column holds, blank ones left out; 0 where most rows have
    none."""
    texts = [_text_of(row, column) for row in rows if _is_text(row.values.get(column))]
    return len(set(texts)) if 2 * len(texts) > len(rows) else 0


def _is_text(value: object) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, list) and bool(value)
