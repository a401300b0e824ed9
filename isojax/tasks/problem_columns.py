"""Which columns of a file hold prompt and answer: chosen by all of its rows, never by the first
alone."""

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
    """The column that cell.data names, else the first of the usual names that any row fills.
    InputError where no row has one, or where some rows fill this one and others only another: these
    may hold different things."""
    names = (configured_name,) if configured_name else usual_names
    chosen = next((name for name in names if any(_is_filled(row, name) for row in rows)), None)

    if chosen is None:
        # A column that is there but empty is reported as empty later, not as missing here.
        empty = next((name for name in names if any(name in row.values for row in rows)), None)
        if empty is None:
            raise _no_column_error(rows[0], setting, configured_name, usual_names)
        return empty

    lacking = [row for row in rows if not _is_filled(row, chosen)]
    rivals = [
        name for name in names if name != chosen and any(_is_filled(row, name) for row in lacking)
    ]
    if rivals:
        raise _rivals_error(rows, lacking, setting, chosen, rivals)

    for name in names[: names.index(chosen)]:
        if name in rows[0].values:
            _note_once(
                f"{rows[0].source}: {name!r} is empty in every row; the {setting} is read from {chosen!r}."
            )
    return chosen


def column_value(columns: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or of a.b within an object, which may be written as text; None where
    there is none."""
    value: Any = columns.get(name)
    if value is None and "." in name:
        object_name, _, inner_name = name.partition(".")
        inner = columns.get(object_name)
        if isinstance(inner, str) and inner.lstrip().startswith("{"):
            inner = parse_literal(inner)
        value = column_value(inner, inner_name) if isinstance(inner, Mapping) else None
    return value


def note_other_answers(rows: Sequence[DataRow], chosen: str) -> None:
    """A note of each other column of answers that says something else in some row: which of them is
    right, nobody but the user knows."""
    for name in FINAL_ANSWER_COLUMNS:
        if name == chosen:
            continue
        differing = [row for row in rows if _says_another(row, chosen, name)]
        if not differing:
            continue
        first = differing[0]
        texts = (str(column_value(first.values, column)) for column in (chosen, name))
        taken, other = map(_shorten, texts)
        found = f"the answer is read from {chosen!r}, and {name!r} differs from it"
        count = f"in {len(differing)} of {len(rows)} rows"
        example = f"the first of them {first.position}: {taken} and {other}"
        fix = f"cell.data.answer_key={name} takes the other"
        _note_once(f"{first.source}: {found} {count}, {example}. {fix}.")


def _says_another(row: DataRow, chosen: str, name: str) -> bool:
    """Whether both are filled and differ, also as the final answers of two solutions."""
    if not (_is_filled(row, chosen) and _is_filled(row, name)):
        return False
    texts = [_comparable_text(column_value(row.values, column)) for column in (chosen, name)]
    if None in texts:
        return False
    taken, other = map(str, texts)
    if _without_spaces(taken) == _without_spaces(other):
        return False
    return _without_spaces(reference_answer(taken)) != _without_spaces(reference_answer(other))


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
    # how pandas writes a cell that is empty
    is_nan = isinstance(value, float) and math.isnan(value)
    return not (is_blank(value) or is_nan or value == [])


def _no_column_error(
    row: DataRow, setting: str, configured_name: str | None, usual_names: Sequence[str]
) -> InputError:
    expected = repr(configured_name) if configured_name else f"one of {', '.join(usual_names)}"
    columns = ", ".join(row.values) or "(none)"
    message = f"{row.location}: no {setting}: there are the columns {columns}"
    return InputError(f"{message}; expected {expected}. Name it by cell.data.{setting}_key=COLUMN.")


def _rivals_error(
    rows: Sequence[DataRow],
    lacking: Sequence[DataRow],
    setting: str,
    chosen: str,
    rivals: Sequence[str],
) -> InputError:
    positions = ", ".join(row.position for row in lacking[1:MAX_NAMED_ROWS])
    more = (
        f", and of {len(lacking) - MAX_NAMED_ROWS} more rows"
        if len(lacking) > MAX_NAMED_ROWS
        else ""
    )
    others = f" (so is that of {positions}{more})" if positions else ""
    gap = (
        f"{lacking[0].location}: the {setting} {chosen!r} is missing or empty{others}, and there is"
    )

    counts = [
        f"{name!r} (in {sum(_is_filled(row, name) for row in rows)} of {len(rows)} rows)"
        for name in rivals
    ]
    fix = f"Fill {chosen!r} in or remove the rows, or name the column of every row by cell.data.{setting}_key=COLUMN"
    return InputError(
        f"{gap} {', '.join(counts)}, which may hold something else. {fix}, such as {rivals[0]}."
    )
