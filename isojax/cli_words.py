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

from isojax.types import InputError

FIXABLE = ("M", "B", "B_p")


def budget_number(text: str, name: str = "--budget") -> int:
    """A count typed as 250000, 250_000 or 2.5e5."""
    try:
        value = float(text.replace("_", ""))
        whole = int(text.replace("_", "")) if text.replace("_", "").isdigit() else int(value)
    except (ValueError, OverflowError):
        value, whole = math.nan, 0
    if not (value >= 1 and value == int(value)):
        raise InputError(f"{name}: given {text!r}, expected a positive whole number, such as 250000 or 1e6.")
    return whole


def fixed_values(texts: Iterable[str]) -> dict[str, int]:
    """["M=100", "B_p=16"] -> {"M": 100, "B_p": 16}."""
    fixed: dict[str, int] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in FIXABLE:
            raise InputError(f"--fix: given {text!r}, expected one of {', '.join(f'{k}=NUMBER' for k in FIXABLE)}.")
        if key in fixed:
            raise InputError(f"--fix: {key} is given twice, expected once.")
        fixed[key] = budget_number(value, f"--fix {key}")
    return fixed


def plain(value: Any) -> Any:
    """Plain data for JSON: dataclasses and mappings as objects, NumPy numbers as numbers, a number that is not finite as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    import numpy as np

    return plain(np.asarray(value).tolist())


def rows_text(document: Mapping[str, Any]) -> str:
    """JSON to read and to diff: a line for each key, and for each row of a list of objects."""

    def text(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n  " + ",\n  ".join(json.dumps(row, allow_nan=False) for row in value) + "\n ]"
        return json.dumps(value, allow_nan=False)

    return "{\n " + ",\n ".join(f"{json.dumps(key)}: {text(value)}" for key, value in document.items()) + "\n}\n"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float) and abs(value) < 1000 and value != int(value):
        return f"{value:.4g}"
    return f"{round(value):,}" if isinstance(value, (int, float)) else str(value)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(_number(v) for v in row))
    return table


def print_fit(console: Console, document: Mapping[str, Any]) -> None:
    """The curves, which n leads where, the crossovers, n*(C) and the flags."""
    keys = ("B_p", "n", "R0", "A", "B", "C_mid")
    console.print(_table("reward(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)", keys, ([c[k] for k in keys] for c in document["curves"])))
    rows = []
    for (n, B_p), points in groupby(document["frontier"], key=lambda p: (p["n"], p["B_p"])):
        group = list(points)
        rows.append((group[0]["C"], group[-1]["C"], n, B_p, group[0]["reward"], group[-1]["reward"]))
    console.print(_table("frontier: which n leads", ("from C", "to C", "n", "B_p", "reward", "to reward"), rows))
    for crossing in document["crossovers"]:
        console.print(f"n = {crossing['n_low']} gives way to n = {crossing['n_high']} at C = {_number(crossing['C'])}", highlight=False)
    law = document["n_star"]
    if law:
        rest = ", ".join(f"{key} = {_number(law[key])}" for key in ("L", "k", "log10_C0", "b") if law[key] is not None)
        console.print(f"[bold]n*(C)[/bold]: {law['form']}; {rest}", highlight=False)
    for flag in document["flags"]:
        console.print(f"[yellow]note:[/yellow] {escape(str(flag))}", highlight=False)
