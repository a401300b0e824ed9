"""What the command line reads and says: numbers typed by a person, a fit as tables, results as plain JSON data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isojax.core.errors import InputError

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
            raise InputError(
                f"--fix: given {assignment!r}, expected one of {', '.join(f'{k}=NUMBER' for k in FIXABLE)}."
            )
        if key in fixed:
            raise InputError(f"--fix: {key} is given twice, expected once.")
        fixed[key] = parse_count(value, f"--fix {key}")
    return fixed


def to_json_value(value: Any) -> Any:
    """Plain data for JSON: dataclasses and mappings as objects, NumPy numbers as numbers, a number that is not finite
    as null.
    """
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
    import numpy as np

    return to_json_value(np.asarray(value).tolist())


def json_line_per_row(document: Mapping[str, Any]) -> str:
    """JSON to read and to diff: a line for each key, and for each row of a list of objects."""

    def value_text(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n  " + ",\n  ".join(json.dumps(row, allow_nan=False) for row in value) + "\n ]"
        return json.dumps(value, allow_nan=False)

    return "{\n " + ",\n ".join(f"{json.dumps(key)}: {value_text(value)}" for key, value in document.items()) + "\n}\n"


def _format_number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float) and abs(value) < 1000 and value != int(value):
        return f"{value:.4g}"
    return f"{round(value):,}" if isinstance(value, (int, float)) else str(value)


def _number_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(_format_number(v) for v in row))
    return table


def print_fit(console: Console, fit_document: Mapping[str, Any]) -> None:
    """The curves, which n leads where, the crossovers, n*(C) and the flags, each with its 90% interval where the fit
    has one.
    """
    columns = ("B_p", "n", "R0", "A", "90%", "exponent", "C_mid")
    rows = [
        [
            curve["B_p"],
            curve["n"],
            curve["R0"],
            curve["A"] if curve.get("determined", True) else f"{_format_number(curve['A'])} ?",
            _format_interval(curve.get("A_interval")),
            curve["exponent"],
            curve["C_mid"],
        ]
        for curve in fit_document["curves"]
    ]
    console.print(
        _number_table("reward(C) from R0 to the plateau A, half way at C_mid (? : plateau not reached)", columns, rows)
    )
    rows = []
    for (n, B_p), points in groupby(fit_document["frontier"], key=lambda p: (p["n"], p["B_p"])):
        group = list(points)
        first_point, last_point = group[0], group[-1]
        rows.append(
            [
                first_point["C"],
                last_point["C"],
                n,
                B_p,
                first_point["reward"],
                last_point["reward"],
                _format_interval((last_point.get("low"), last_point.get("high"))),
            ]
        )
    console.print(
        _number_table("frontier: which n leads", ("from C", "to C", "n", "B_p", "reward", "to reward", "90%"), rows)
    )
    for crossing in fit_document["crossovers"]:
        interval_text = _format_interval((crossing.get("low"), crossing.get("high")))
        location = f"{_format_number(crossing['C'])}" + (f" ({interval_text})" if interval_text != "-" else "")
        console.print(
            f"n = {crossing['n_low']} gives way to n = {crossing['n_high']} at C = {location}", highlight=False
        )
    _print_law(console, fit_document["n_star"])
    for flag in fit_document["flags"]:
        console.print(f"[yellow]note:[/yellow] {escape(str(flag))}", highlight=False)


def _print_law(console: Console, law: Mapping[str, Any]) -> None:
    if law.get("no_effect"):
        console.print("[bold]n*(C)[/bold]: n makes no difference here", highlight=False)
        return
    parameters = {"constant": (), "linear": ("k", "log10_C0", "b")}.get(law["form"], ("L", "k", "log10_C0", "b"))
    law_text = (
        ", ".join(f"{key} = {_format_number(law[key])}" for key in parameters)
        or f"n* = {_format_number(2 ** law['b'])}"
    )
    console.print(f"[bold]n*(C)[/bold]: {law['form']}; {law_text}", highlight=False)
    for name, interval in (law.get("intervals") or {}).items():
        console.print(
            f"  n* {name.removeprefix('n_').replace('_', ' ')}: {_format_interval(interval)}", highlight=False
        )


def _format_interval(interval: Sequence[Any] | None) -> str:
    """A 90% interval in short; a bound of None is an open end."""
    if interval is None or all(v is None for v in interval):
        return "-"
    low, high = interval
    return f"{'<' if low is None else _format_number(low)} to {'>' if high is None else _format_number(high)}"


def print_notes(console: Console, notes: Sequence[str]) -> None:
    """What a reader must know, one line each."""
    for note in notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False)


def format_bounds(bounds: Sequence[float | None] | None) -> str:
    """An interval such as "0.1 to 0.4"; a bound of None is open."""
    if bounds is None:
        return "-"
    return " to ".join("open" if bound is None else f"{bound:.4g}" for bound in bounds)
