"""What the command line reads and writes: numbers typed by a person, tables and notes, results as plain JSON data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isojax.core.errors import InputError
from isojax.report.wording import format_number, format_range

FIXABLE = ("M", "B", "B_p")


def parse_count(text: str, option: str = "--budget") -> int:
    """A count typed as 250000, 250_000 or 2.5e5."""
    try:
        value = float(text.replace("_", ""))
        count = int(text.replace("_", "")) if text.replace("_", "").isdigit() else int(value)
    except (ValueError, OverflowError):
        value, count = math.nan, 0
    if not (value >= 1 and value == int(value)):
        raise InputError(f"{option}: given {text!r}, expected a positive whole number, such as 250000 or 1e6.")
    return count


def parse_fixed_values(assignments: Iterable[str]) -> dict[str, int]:
    """["M=100", "B_p=16"] -> {"M": 100, "B_p": 16}."""
    fixed: dict[str, int] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or key not in FIXABLE:
            expected = ", ".join(f"{name}=NUMBER" for name in FIXABLE)
            raise InputError(f"--fix: given {assignment!r}, expected one of {expected}.")
        if key in fixed:
            raise InputError(f"--fix: {key} is given twice, expected once.")
        fixed[key] = parse_count(value, f"--fix {key}")
    return fixed


def to_json_value(value: Any) -> Any:
    """Plain data for JSON: models, dataclasses and mappings as objects, NumPy numbers as numbers, a number that is not
    finite as null.
    """
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return to_json_value(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): to_json_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_value(v) for v in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return to_json_value(np.asarray(value).tolist())


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(to_json_value(value), indent=1, allow_nan=False))


def json_line_per_row(document: Mapping[str, Any]) -> str:
    """JSON to read and to diff: a line for each key, and for each row of a list of objects."""

    def value_text(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n  " + ",\n  ".join(json.dumps(row, allow_nan=False) for row in value) + "\n ]"
        return json.dumps(value, allow_nan=False)

    return "{\n " + ",\n ".join(f"{json.dumps(key)}: {value_text(value)}" for key, value in document.items()) + "\n}\n"


def text_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 0) -> Table:
    """A table of the command line: the first `text_columns` columns are text, the others right-aligned numbers."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < text_columns else "right")
    for row in rows:
        table.add_row(*row)
    return table


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """What a reader must know, one line each."""
    for note in notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False)


def format_estimate(value: float, bounds: Sequence[float | None] | None) -> tuple[str, str]:
    """A number and its interval, for two columns of a table."""
    return format_number(value), format_range(bounds, format_number)


def print_bootstrap(console: Console, settings: Mapping[str, Any]) -> None:
    """How intervals were made: method, replicates and seed."""
    how = f"{settings['method']}, {settings['replicates']} replicates, seed {settings['seed']}"
    console.print(f"intervals: {how}", highlight=False)
