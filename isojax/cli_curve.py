"""`isojax fit --frontier FILE` and `isojax curve FILE`: laws and curves from columns of a file, without a sweep's folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isojax.cli_drawing import check_drawing, write_drawing
from isojax.cli_words import plain
from isojax.types import InputError

Frontier = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Fit n*(C) to points alone: a CSV, TSV or JSONL with columns n and rollouts.")
]
Where = Annotated[list[str] | None, typer.Option(metavar="COL=VALUE", help="Take these rows of the file only; may be repeated.")]


def refuse_for_points(options: Iterable[str]) -> None:
    """Refuse what was asked of runs together with --frontier, where it would do nothing."""
    asked = list(options)
    if asked:
        given = f"given {', '.join(asked)} with --frontier"
        raise InputError(f"{given}; expected --where, --mode or --json only, for points alone have no runs. Leave it out.")


def fitted_frontier(runs: Sequence[Path] | None, path: Path | None, filters: Sequence[str] | None, mode: str, as_json: bool) -> bool:
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

    document = plain(fit_points_file(path, filters or (), mode))
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


def curve(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, TSV or JSON lines: a row an evaluation.")],
    x: Annotated[str, typer.Option("--x", metavar="COL", help="The column of compute, >= 0: rollouts, tokens, steps, ...")],
    y: Annotated[str, typer.Option("--y", metavar="COL", help="The column of rewards. Rows where it is empty are left out.")],
    below: Annotated[
        float | None, typer.Option("--fit-below", metavar="X", help="Fit points up to X only, and show the error of the curve beyond.")
    ] = None,
    where: Where = None,
    group: Annotated[str | None, typer.Option("--group", metavar="COL", help="The column that tells seeds of one run apart.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png|pdf", help="Draw the fit with its interval; an existing file is kept.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else there.")] = False,
) -> None:
    """Fit ScaleRL's curve R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B) to one run, or to several seeds of it.

    A is where the reward levels off, C_mid the compute of half the gain, B how sharply it comes, R0 the reward at C = 0. Intervals are 90%,
    from a moving-block bootstrap of the residuals. --fit-below asks whether the first part would have foretold the rest.

    \b
    [bold]Examples[/bold]
      isojax curve log.csv --x rollouts --y val_acc
      isojax curve log.csv --x rollouts --y val_acc --fit-below 250000
      isojax curve runs.jsonl --x step --y val.acc --where n=16 --group seed --plot curve.pdf
      isojax curve log.tsv --x tokens --y reward --json | jq .intervals.A
    """
    if plot is not None:
        check_drawing(plot, "--plot")
    from isojax.scaling.curve_file import fit_curve_file

    document, read = fit_curve_file(file, x, y, below, where or (), group)
    if plot is not None:
        from isojax.report.single_curve import single_curve

        drawing = single_curve(document, read.runs.C, read.runs.R, read.runs.run, read.names)
        write_drawing(plot, drawing.png, drawing.pdf, "--plot")
    if as_json:
        print(json.dumps(plain(document), indent=1, allow_nan=False))
        return
    console = Console()
    _print_curve(console, document)
    if plot is not None:
        console.print(f"wrote {plot}", soft_wrap=True, highlight=False, markup=False)


def _print_curve(console: Console, document: Mapping[str, Any]) -> None:
    seeds = f" of {document['seeds']} seeds" if document["seeds"] > 1 else ""
    title = f"{document['y']} against {document['x']}: {document['points']} points{seeds}, rms residual {document['rmse']:.3g}"
    console.print(escape(title), highlight=False)
    table = Table("parameter", "value", "90% interval")
    for name, meaning in (("R0", "at C = 0"), ("A", "plateau"), ("B", "sharpness"), ("C_mid", "half the gain")):
        table.add_row(f"{name} ({meaning})", f"{document[name]:.4g}", _interval(document["intervals"][name]))
    console.print(table)
    how = document["bootstrap"]
    console.print(f"intervals: {how['method']}, {how['replicates']} replicates, seed {how['seed']}", highlight=False)
    beyond = document["beyond"]
    if beyond is not None:
        console.print(
            f"beyond {document['fit_below']:.4g}: {beyond['points']} points; curve minus measured {beyond['mean_error']:+.4f} on average, "
            f"{beyond['mean_absolute_error']:.4f} in absolute value, {beyond['max_absolute_error']:.4f} at most; at the end "
            f"{beyond['predicted_at_end']:.4f} ({_interval(beyond['interval_at_end'])}) against {beyond['measured_at_end']:.4f} measured",
            highlight=False,
        )
    print_flags(console, document["flags"])


def print_flags(console: Console, flags: Sequence[str]) -> None:
    """What a reader must know, one line each."""
    for flag in flags:
        console.print(f"[yellow]note:[/yellow] {escape(flag)}", highlight=False)


def _interval(bounds: Sequence[float | None] | None) -> str:
    if bounds is None:
        return "-"
    return " to ".join("open" if bound is None else f"{bound:.4g}" for bound in bounds)
