"""`isojax fit-law FILE`: n*(C) fitted to the points of a file, without any runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from isojax.cli.formatting import print_json, print_notes, to_json_value
from isojax.cli.lazy_commands import new_app
from isojax.cli.options import JsonOption, ModeOption, WhereOption
from isojax.cli.saved_fits import DEFAULT_MODE
from isojax.report.text import format_number, format_range
from isojax.scaling.law.frontier_points import fit_points_file

app = new_app()


@app.command()
def fit_law(
    points_file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A CSV, TSV or JSON-lines file with columns n and rollouts.")
    ],
    where: WhereOption = None,
    mode: ModeOption = DEFAULT_MODE,
    as_json: JsonOption = False,
) -> None:
    """Fit n*(C) to the points of a file.

    A point says that n was best at C rollouts, as read off a published figure.


    \b
    [bold]Examples[/bold]
      isojax fit-law points.csv --where set=easy
      isojax fit-law points.csv --mode paper --json | jq .n_star
    """
    fit_document = to_json_value(fit_points_file(points_file, where or (), mode))
    if as_json:
        print_json(fit_document)
    else:
        _print_law(Console(), fit_document)


def _print_law(console: Console, fit_document: Mapping[str, Any]) -> None:
    law, intervals = fit_document["n_star"], fit_document["n_star"]["intervals"] or {}
    counts = ", ".join(f"{n} ({points})" for n, points in fit_document["distinct_n"].items())
    range_text = f"C = {fit_document['C_low']:.4g} to {fit_document['C_high']:.4g}"
    console.print(f"{fit_document['points']} points, {range_text}; n (points): {counts}", highlight=False)
    table = Table(
        title=f"n*(C): {law['form']}, rms residual {fit_document['rmse']:.3g} of log2 n", title_justify="left"
    )
    for name in ("parameter", "value", "90% interval"):
        table.add_column(name, justify="right")
    for name in ("L", "k", "log10_C0", "b"):
        if law[name] is not None and (name in intervals or not intervals):
            table.add_row(name, f"{law[name]:.4g}", format_range(intervals.get(name), format_number))
    console.print(table)
    if law["aicc"]:
        aicc_scores = (f"{form} {'too few points' if a is None else f'{a:.1f}'}" for form, a in law["aicc"].items())
        console.print(f"AICc (smallest best): {', '.join(aicc_scores)}", highlight=False)
    if fit_document["intervals"]:
        bootstrap = fit_document["intervals"]
        console.print(
            f"intervals: {bootstrap['method']}, {bootstrap['replicates']} replicates, seed {bootstrap['seed']}",
            highlight=False,
        )
    print_notes(console, fit_document["flags"])
