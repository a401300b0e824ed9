"""What several commands read and write: counts typed by a person, JSON, notes, paths of figures."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.markup import escape

from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT
from isojax.core.start_file import describe_start
from isojax.core.terminal import warn
from isojax.report.console import SafeConsole


def parse_count(text: str, option: str = "--budget", alternative: str = "") -> int:
    """A count typed as 250000, 250_000 or 2.5e5: a whole number from 1 to MAX_COUNT.

    option: such as "--budget", which the InputError names.
    alternative: ends its sentence on what was expected, where the option takes something else too,
        such as ", or a time in one unit, such as 90m".
    """
    try:
        # Digits are read as an integer, because a float would round those beyond 2^53.
        is_digits = text.replace("_", "").isdecimal()
        number = int(text) if is_digits else float(text)
    except ValueError:
        number = math.nan

    is_count = 1 <= number <= MAX_COUNT and number % 1 == 0
    if not is_count:
        raise InputError(
            where=option,
            found=f"given {text!r}",
            expected=(
                f"a whole number from 1 to {MAX_COUNT:.0e}, such as 250000 or 1e6{alternative}"
            ),
        )
    return int(number)


def to_json_value(value: Any) -> Any:
    """Plain data for JSON: models and dataclasses as objects, NumPy numbers as numbers.

    NaN and infinity, which JSON lacks, are null.
    """
    return to_jsonable_python(
        value, inf_nan_mode="null", fallback=lambda array: np.asarray(array).tolist()
    )


def json_text(value: Any) -> str:
    """What a command prints for --json: indented JSON of `to_json_value`."""
    return json.dumps(to_json_value(value), indent=1, allow_nan=False)


def json_line_per_row(document: Mapping[str, Any]) -> str:
    """JSON to read and to diff: a line for each key, and for each row of a list of objects."""
    entries = [f"{json.dumps(key)}: {_value_text(value)}" for key, value in document.items()]
    return "{\n " + ",\n ".join(entries) + "\n}\n"


def _value_text(value: Any) -> str:
    is_table = isinstance(value, list) and value and isinstance(value[0], dict)
    if not is_table:
        return json.dumps(value, allow_nan=False)

    rows = [json.dumps(row, allow_nan=False) for row in value]
    return "[\n  " + ",\n  ".join(rows) + "\n ]"


def print_line(text: str) -> None:
    """One line on standard output as it is, such as a path to copy."""
    SafeConsole().print(text, soft_wrap=True, highlight=False, markup=False)


def warn_of_start(folder: Path) -> None:
    """Warn of what was doubtful before the first updates of a sweep, or of labels.

    It was said when the runs began; at their end, after hours of output, somebody reads it.
    """
    for sentence in describe_start(folder):
        warn(sentence)


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Each note on a line of its own."""
    for note in notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}")


def print_interval_method(console: Console, settings: Mapping[str, Any]) -> None:
    """How intervals were made: the method, the number of replicates and the seed of a fit."""
    method = f"{settings['method']}, {settings['replicates']} replicates, seed {settings['seed']}"
    console.print(f"intervals: {method}", highlight=False)


def check_new_file(path: Path | None, option: str) -> None:
    """Refuse, before any work, to write a file that exists."""
    if path is not None and path.exists():
        raise InputError(
            where=path,
            found="exists already and is kept",
            fix=f"Give {option} another name, or remove it.",
        )


def check_figure_path(path: Path | None, option: str) -> None:
    """Refuse, before any work, a figure that is not named .png or .pdf, or that exists."""
    if path is not None and path.suffix not in (".png", ".pdf"):
        raise InputError(
            where=f"{option} {path}",
            expected="a file named .png or .pdf",
        )
    check_new_file(path, option)
