"""`isojax fit --frontier FILE` and `isojax curve FILE`: laws and curves from columns of a file, without a sweep's
folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isojax.cli.figure_files import check_figure_path, write_figure
from isojax.cli.formatting import to_json_value
from isojax.core.errors import InputError

FrontierOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Fit n*(C) to points alone: a CSV, TSV or JSONL with columns n and rollouts."),
]
WhereOption = Annotated[
    list[str] | None, typer.Option(metavar="COL=VALUE", help="Take these rows of the file only; may be repeated.")
]


def reject_run_options(options: Iterable[str]) -> None:
    """Refuse what was asked of runs together with --frontier, where it would do nothing."""
    given_options = list(options)
    if given_options:
        problem = f"given {', '.join(given_options)} with --frontier"
        raise InputError(
            f"{problem}; expected --where, --mode or --json only, for points alone have no runs. Leave it out."
        )


def fit_frontier_file(
    runs: Sequence[Path] | None, path: Path | None, row_filters: Sequence[str] | None, mode: str, as_json: bool
) -> bool:
    """`isojax fit --frontier FILE`: fit n*(C) to the points of a file and print it; False where runs are to be fitted
    instead.

    Raises:
        BadParameter: neither runs nor a file.
        InputError: both, --where without a file, or whatever the file has wrong, with file and line.
    """
    if path is None:
        if row_filters:
            raise InputError(f"--where {row_filters[0]} filters the rows of a file; expected --frontier FILE with it.")
        if not runs:
            raise typer.BadParameter(
                "give a sweep's folder, such as runs/quickstart, or --frontier FILE (columns n, rollouts)."
            )
        return False
    if runs:
        raise InputError(
            f"given {runs[0]} and --frontier {path}; expected runs or points, one of them. Fit them apart."
        )
    from isojax.scaling.law.frontier_points import fit_points_file

    fit_document = to_json_value(fit_points_file(path, row_filters or (), mode))
    if as_json:
        print(json.dumps(fit_document, indent=1, allow_nan=False))
    else:
        _print_law(Console(), fit_document)
    return True


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
            table.add_row(name, f"{law[name]:.4g}", _format_interval(intervals.get(name)))
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
    print_flags(console, fit_document["flags"])


def curve(
    data_file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, TSV or JSON lines: a row an evaluation.")],
    x_column: Annotated[
        str, typer.Option("--x", metavar="COL", help="The column of compute, >= 0: rollouts, tokens, steps, ...")
    ],
    y_column: Annotated[
        str, typer.Option("--y", metavar="COL", help="The column of rewards. Rows where it is empty are left out.")
    ],
    fit_below: Annotated[
        float | None,
        typer.Option(
            "--fit-below", metavar="X", help="Fit points up to X only, and show the error of the curve beyond."
        ),
    ] = None,
    where: WhereOption = None,
    group_column: Annotated[
        str | None, typer.Option("--group", metavar="COL", help="The column that tells seeds of one run apart.")
    ] = None,
    plot_path: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE.png|pdf", help="Draw the fit with its interval; an existing file is kept."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else there.")
    ] = False,
) -> None:
    """Fit ScaleRL's curve R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B) to one run, or to several seeds of it.

    A is where the reward levels off, C_mid the compute of half the gain, B how sharply it comes, R0 the reward at C =
    0. Intervals are 90%, from a moving-block bootstrap of the residuals. --fit-below asks whether the first part would
    have foretold the rest.

    \b
    [bold]Examples[/bold]
      isojax curve log.csv --x rollouts --y val_acc
      isojax curve log.csv --x rollouts --y val_acc --fit-below 250000
      isojax curve runs.jsonl --x step --y val.acc --where n=16 --group seed --plot curve.pdf
      isojax curve log.tsv --x tokens --y reward --json | jq .intervals.A
    """
    if plot_path is not None:
        check_figure_path(plot_path, "--plot")
    from isojax.scaling.curve_file import fit_curve_file

    fit_document, curve_data = fit_curve_file(data_file, x_column, y_column, fit_below, where or (), group_column)
    if plot_path is not None:
        from isojax.report.figures.single_curve import single_curve_figure

        drawing = single_curve_figure(
            fit_document, curve_data.points.C, curve_data.points.R, curve_data.points.run_index, curve_data.seed_names
        )
        write_figure(plot_path, drawing.png, drawing.pdf, "--plot")
    if as_json:
        print(json.dumps(to_json_value(fit_document), indent=1, allow_nan=False))
        return
    console = Console()
    _print_curve(console, fit_document)
    if plot_path is not None:
        console.print(f"wrote {plot_path}", soft_wrap=True, highlight=False, markup=False)


def _print_curve(console: Console, fit_document: Mapping[str, Any]) -> None:
    seeds = f" of {fit_document['seeds']} seeds" if fit_document["seeds"] > 1 else ""
    title = f"{fit_document['y']} against {fit_document['x']}: {fit_document['points']} points{seeds}, rms residual {fit_document['rmse']:.3g}"
    console.print(escape(title), highlight=False)
    table = Table("parameter", "value", "90% interval")
    for name, meaning in (("R0", "at C = 0"), ("A", "plateau"), ("exponent", "sharpness"), ("C_mid", "half the gain")):
        table.add_row(
            f"{name} ({meaning})", f"{fit_document[name]:.4g}", _format_interval(fit_document["intervals"][name])
        )
    console.print(table)
    bootstrap = fit_document["bootstrap"]
    console.print(
        f"intervals: {bootstrap['method']}, {bootstrap['replicates']} replicates, seed {bootstrap['seed']}",
        highlight=False,
    )
    held_out = fit_document["beyond"]
    if held_out is not None:
        console.print(
            f"beyond {fit_document['fit_below']:.4g}: {held_out['points']} points; curve minus measured {held_out['mean_error']:+.4f} on average, "
            f"{held_out['mean_absolute_error']:.4f} in absolute value, {held_out['max_absolute_error']:.4f} at most; at the end "
            f"{held_out['predicted_at_end']:.4f} ({_format_interval(held_out['interval_at_end'])}) against {held_out['measured_at_end']:.4f} measured",
            highlight=False,
        )
    print_flags(console, fit_document["flags"])


def print_flags(console: Console, flags: Sequence[str]) -> None:
    """What a reader must know, one line each."""
    for flag in flags:
        console.print(f"[yellow]note:[/yellow] {escape(flag)}", highlight=False)


def _format_interval(bounds: Sequence[float | None] | None) -> str:
    if bounds is None:
        return "-"
    return " to ".join("open" if bound is None else f"{bound:.4g}" for bound in bounds)
