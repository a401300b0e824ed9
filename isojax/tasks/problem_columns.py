"""Chooses the columns of a file that hold the prompt and the answer, by all of its rows and not
only the first."""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from isojax.core.columns import is_blank
from isojax.core.errors import InputError
from isojax.core.tabular import DataRow
from isojax.core.terminal import note
from isojax.tasks.answers.final_answer import reference_answer
from isojax.tasks.text_literals import parse_literal

PROMPT_COLUMNS = ("prompt", "question", "problem", "query", "input", "instruction")
# A dot leads into an object. verl's schema comes first: its files may hold the solution under
# another of these names.
ANSWER_COLUMNS = (
    "reward_model.ground_truth",
    "answer",
    "ground_truth",
    "solution",
    "final_answer",
    "target",
    "output",
)
# Of these, the ones whose names say that they hold the answer itself: no draft, and no whole
# solution alone.
FINAL_ANSWER_COLUMNS = ("reward_model.ground_truth", "answer", "ground_truth", "final_answer")
MAX_NAMED_ROWS = 4  # of the rows that lack a value, in a message

_note_once = functools.cache(note)  # a run opens a source several times


def choose_column(
    rows: Sequence[DataRow], setting: str, configured_name: str | None, usual_names: Sequence[str]
) -> str:
    """The name of the column to read: configured_name if it is given (cell.data.prompt_key or
    answer_key), otherwise the first of the usual names that is filled in any row.

    setting: "prompt" or "answer"; usual_names: PROMPT_COLUMNS or ANSWER_COLUMNS, in the order in
    which they are tried; rows: all of the file, at least one. InputError where there is no such
    column, and where some rows have a value only in another column of the usual names, which may
    hold something else.
    """
    names = (configured_name,) if configured_name else usual_names
    column = next((name for name in names if _is_filled_in_any(rows, name)), None)
    if column is None:
        # A column that is there but empty is reported as empty later, not as missing here.
        for name in names:
            if any(name in row.values for row in rows):
                return name
        raise _no_column_error(rows[0], setting, configured_name, usual_names)

    # Rivals: other columns with a value in rows that have none in this one.
    lacking = [row for row in rows if not _is_filled(row, column)]
    rivals = [name for name in names if name != column and _is_filled_in_any(lacking, name)]
    if rivals:
        raise _rivals_error(rows, lacking, setting, column, rivals)

    # Columns that would come first, but are empty.
    for name in names[: names.index(column)]:
        if name in rows[0].values:
            _note_once(
                f"{rows[0].source}: {name!r} is empty in every row; the {setting} is read from"
                f" {column!r}."
            )
    return column


def column_value(columns: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or of a.b within an object, which may be written as text; None where
    there is none."""
    value: Any = columns.get(name)
    if value is not None or "." not in name:
        return value

    object_name, _, inner_name = name.partition(".")
    inner = columns.get(object_name)
    if isinstance(inner, str) and inner.lstrip().startswith("{"):
        inner = parse_literal(inner)
    return column_value(inner, inner_name) if isinstance(inner, Mapping) else None


def note_other_answers(rows: Sequence[DataRow], answer_column: str) -> None:
    """Print a note for each other column of answers whose value differs from the chosen column's in
    some row, since only the user knows which of them is right. answer_column: the chosen one; the
    others are those of FINAL_ANSWER_COLUMNS."""
    for name in FINAL_ANSWER_COLUMNS:
        if name == answer_column:
            continue
        differing = [row for row in rows if _says_another(row, answer_column, name)]
        if not differing:
            continue

        first = differing[0]
        answer = _shorten(str(column_value(first.values, answer_column)))
        other = _shorten(str(column_value(first.values, name)))
        _note_once(
            f"{first.source}: the answer is read from {answer_column!r}, and {name!r} differs from"
            f" it in {len(differing)} of {len(rows)} rows, the first of them {first.position}:"
            f" {answer} and {other}. cell.data.answer_key={name} takes the other."
        )


def _says_another(row: DataRow, answer_column: str, other_column: str) -> bool:
    """Whether both are filled and differ, also as the final answers of two solutions."""
    if not (_is_filled(row, answer_column) and _is_filled(row, other_column)):
        return False
    answer = _comparable_text(column_value(row.values, answer_column))
    other = _comparable_text(column_value(row.values, other_column))
    if answer is None or other is None:
        return False
    if _without_spaces(answer) == _without_spaces(other):
        return False
    return _without_spaces(reference_answer(answer)) != _without_spaces(reference_answer(other))


def _comparable_text(value: Any) -> str | None:
    """A value as its problem's answer has it; None of objects and of several answers."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, str | int | float) else None


def _without_spaces(text: str) -> str:
    """The text without white space, nor the separators of thousands."""
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", "".join(text.split()))


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= 40 else f"{text[:20]} ... {text[-15:]}")


def _is_filled(row: DataRow, name: str) -> bool:
    value = column_value(row.values, name)
    # How pandas writes a cell that is empty.
    is_nan = isinstance(value, float) and math.isnan(value)
    return not (is_blank(value) or is_nan or value == [])


def _is_filled_in_any(rows: Sequence[DataRow], name: str) -> bool:
    return any(_is_filled(row, name) for row in rows)


def _no_column_error(
    row: DataRow, setting: str, configured_name: str | None, usual_names: Sequence[str]
) -> InputError:
    """The error that there is no column of the given name, or of the usual names."""
    expected = repr(configured_name) if configured_name else f"one of {', '.join(usual_names)}"
    columns = ", ".join(row.values) or "(none)"
    return InputError(
        where=row.location,
        found=f"no {setting}: there are the columns {columns}",
        expected=expected,
        fix=f"Name it by cell.data.{setting}_key=COLUMN.",
    )


def _rivals_error(
    rows: Sequence[DataRow],
    lacking: Sequence[DataRow],
    setting: str,
    column: str,
    rivals: Sequence[str],
) -> InputError:
    """The error that some rows (`lacking`, at least one) have no value in the column, but one in a
    rival of it. setting: "prompt" or "answer"; rivals: names of other columns, at least one."""
    # The first of these rows is the error's place; a few of the others are named.
    positions = ", ".join(row.position for row in lacking[1:MAX_NAMED_ROWS])
    if len(lacking) > MAX_NAMED_ROWS:
        positions += f", and of {len(lacking) - MAX_NAMED_ROWS} more rows"
    others = f" (so is that of {positions})" if positions else ""

    counts: list[str] = []
    for name in rivals:
        num_filled = sum(_is_filled(row, name) for row in rows)
        counts.append(f"{name!r} (in {num_filled} of {len(rows)} rows)")
    return InputError(
        where=lacking[0].location,
        found=(
            f"the {setting} {column!r} is missing or empty{others}, and there is "
            f"{', '.join(counts)}, which may hold something else"
        ),
        fix=(
            f"Fill {column!r} in or remove the rows, or name the column of every row by "
            f"cell.data.{setting}_key=COLUMN, such as {rivals[0]}."
        ),
    )
