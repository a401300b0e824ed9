"""`isojax fit --frontier FILE` and `isojax curve FILE`: laws and curves from columns of a file, without a sweep's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isojax.cli_words import plain
from isojax.types import InputError

Frontier = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Fit n*(C) to points alone: a CSV, TSV or JSONL with columns n and rollouts.")
]
Where = Annotated[list[str] | None, typer.Option(metavar="COL=VALUE", help="Take these rows of the file only; may be repeated.")]


def fitted_frontier(runs: Sequence[Path] | None, path: Path | None, filters: Sequence[str] | None, mode: str | None, as_json: bool) -> bool:
    """`isojax fit --frontier FILE`: fit n*(C) to the points of a file and print it; False where runs are to be fitted instead.

    Raises:
        BadParameter: neither runs nor a file.
        InputError: both, --where without a file, or whatever the file has wrong, with file and line.
    """
    if path is None:
        if filters:
            raise InputError(f"--where {filters[0]} filters the rows of a file; expected --frontier FILE with it.")
        if not runs:
            raise typer.BadParameter("give a sweep's folder, such as runs/quickstart, or --frontier FILE (columns n, rollouts).")
        return False
    if runs:
        raise InputError(f"given {runs[0]} and --frontier {path}; expected runs or points, one of them. Fit them apart.")
    from isojax.scaling.points import fit_points_file

    document = plain(fit_points_file(path, filters or (), mode or "debiased"))
    if as_json:
        print(json.dumps(document, indent=1, allow_nan=False))
    else:
        _print_law(Console(), document)
    return True


def _print_law(console: Console, document: Mapping[str, Any]) -> None:
    law, intervals = document["n_star"], document["n_star"]["intervals"] or {}
    counts = ", ".join(f"{n} ({points})" for n, points in document["distinct_n"].items())
    span = f"C = {document['C_low']:.4g} to {document['C_high']:.4g}"
    console.print(f"{document['points']} points, {span}; n (points): {counts}", highlight=False)
    table = Table(title=f"n*(C): {law['form']}, rms residual {document['rmse']:.3g} of log2 n", title_justify="left")
    for name in ("parameter", "value", "90% interval"):
        table.add_column(name, justify="right")
    for name in ("L", "k", "log10_C0", "b"):
        if law[name] is not None and (name in intervals or not intervals):
            table.add_row(name, f"{law[name]:.4g}", _interval(intervals.get(name)))
    console.print(table)
    if law["aicc"]:
        scores = (f"{form} {'too few points' if a is None else f'{a:.1f}'}" for form, a in law["aicc"].items())
        console.print(f"AICc (smallest best): {', '.join(scores)}", highlight=False)
    if document["intervals"]:
        how = document["intervals"]
        console.print(f"intervals: {how['method']}, {how['replicates']} replicates, seed {how['seed']}", highlight=False)
    print_flags(console, document["flags"])


def print_flags(console: Console, flags: Sequence[str]) -> None:
    """What a reader must know, one line each."""
    for flag in flags:
        console.print(f"[yellow]note:[/yellow] {escape(flag)}", highlight=False)


def _interval(bounds: Sequence[float | None] | None) -> str:
    if bounds is None:
        return "-"
    return " to ".join("open" if bound is None else f"{bound:.4g}" for bound in bounds)
