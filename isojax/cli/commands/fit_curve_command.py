"""Fit a reward curve to one run, or to several seeds of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from typer import Argument, Option

from isojax.cli import formatting
from isojax.cli.nothing_learnt import print_nothing_learnt
from isojax.cli.options import JsonOption, WhereOption
from isojax.report.command_figures.single_curve import single_curve_figure
from isojax.report.console import SafeConsole, TextTable
from isojax.report.wording import format_estimate, format_number
from isojax.scaling.curve_from_file import fit_curve_file

FILE_HELP = "CSV, TSV or JSON lines: a row for each evaluation."
X_HELP = "The column of compute, >= 0: rollouts, tokens, steps, ..."
Y_HELP = "The column of rewards. Rows where it is empty are left out."
BELOW_HELP = "Fit points up to X only, and show the error of the curve beyond."
GROUP_HELP = "The column that distinguishes the seeds of one run."
PLOT_HELP = "Draw the fit with its interval; an existing file is kept."


# The parameters of a curve, in the order of the table, and what they are.
PARAMETERS = {"R0": "at C = 0", "A": "plateau", "exponent": "steepness", "C_mid": "half the gain"}


def fit_curve(
    data_file: Annotated[Path, Argument(metavar="FILE", help=FILE_HELP)],
    x_column: Annotated[str, Option("--x", metavar="COL", help=X_HELP)],
    y_column: Annotated[str, Option("--y", metavar="COL", help=Y_HELP)],
    fit_below: Annotated[float | None, Option(metavar="X", help=BELOW_HELP)] = None,
    where: WhereOption = None,
    group_column: Annotated[str | None, Option("--group", metavar="COL", help=GROUP_HELP)] = None,
    plot_path: Annotated[
        Path | None, Option("--plot", metavar="FILE.png|pdf", help=PLOT_HELP)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a reward curve to one run, or to several seeds of it.

    The curve rises from R0 to A: R(C) = R0 + (A - R0) / (1 + (C_mid / C)^exponent), or a form that
    levels off sooner or later.

    A is where the reward levels off, C_mid the compute of half the gain, the exponent how steep the
    curve is, R0 the reward at C = 0. The curve is the nearest to the mean of the posterior's draws;
    intervals hold 90% of these.
    --fit-below shows whether the first part would have predicted the rest.

    \b
    Examples
      isojax fit-curve log.csv --x rollouts --y val_acc
      isojax fit-curve log.csv --x rollouts --y val_acc --fit-below 250000
      isojax fit-curve runs.jsonl --x step --y val.acc --where n=16 --group seed --plot curve.pdf
      isojax fit-curve log.tsv --x tokens --y reward --json | jq .intervals.A
    """
    formatting.check_figure_path(plot_path, "--plot")

    # The document for --json, and the points as they were read, for the figure.
    fit_document, data = fit_curve_file(
        data_file, x_column, y_column, fit_below, where or (), group_column
    )
    if plot_path is not None:
        single_curve_figure(fit_document, data).write(plot_path)

    if as_json:
        print(formatting.json_text(fit_document))
        return
    _print_curve(SafeConsole(), fit_document)
    if plot_path is not None:
        formatting.print_line(f"wrote {plot_path}")


def _print_curve(console: SafeConsole, document: Mapping[str, Any]) -> None:
    """Print the parameters, how well the curve predicts what it has not seen, and notes.

    document: by `fit_curve_file`, as --json prints it. Its "trial" is what the first quarter of the
    points predicts of the rest, None with too few points; its "beyond", what the points up to
    --fit-below predict of the others, None without that option.
    """
    print_nothing_learnt(console, document["nothing_learnt"])
    seeds = f" of {document['seeds']} seeds" if document["seeds"] > 1 else ""
    points = f"{document['points']} points{seeds}, rms residual {document['rmse']:.3g}"
    console.print(escape(f"{document['y']} against {document['x']}: {points}"))

    _print_parameters(console, document)
    formatting.print_interval_method(console, document["draws"])

    trial = document["trial"]
    if trial is not None:
        C_limit = format_number(trial["C_limit"])
        console.print(f"trial: fitted up to {C_limit} alone, {_describe_end(trial)}")

    held_out = document["beyond"]
    if held_out is not None:
        _print_errors_beyond(console, held_out, document["fit_below"])

    # The flag that says why nothing was learnt was printed first.
    notes = [flag for flag in document["flags"] if flag != document["nothing_learnt"]]
    formatting.print_notes(console, notes)


def _print_parameters(console: SafeConsole, document: Mapping[str, Any]) -> None:
    rows = []
    for name, meaning in PARAMETERS.items():
        if document[name] is not None:  # A curve without a gain has R0 and A alone.
            value, interval = format_estimate(document[name], document["intervals"][name])
            rows.append([f"{name} ({meaning})", value, interval])
    console.print(TextTable("", ("parameter", "value", "90% interval"), rows, text_columns=1))


def _print_errors_beyond(
    console: SafeConsole, held_out: Mapping[str, Any], fit_below: float
) -> None:
    """What the curve of the points up to `fit_below` says of those beyond."""
    points = f"beyond {format_number(fit_below)}: {held_out['points']} points"
    errors = (
        f"curve minus measured {held_out['mean_error']:+.4f} on average, "
        f"{held_out['mean_absolute_error']:.4f} in absolute value, "
        f"{held_out['max_absolute_error']:.4f} at most"
    )
    console.print(f"{points}; {errors}; {_describe_end(held_out)}")


def _describe_end(prediction: Mapping[str, Any]) -> str:
    """The predicted and the measured reward of the last point."""
    predicted, interval = format_estimate(
        prediction["predicted_at_end"], prediction["interval_at_end"]
    )
    measured = format_number(prediction["measured_at_end"])
    return f"at the end {predicted} ({interval}) predicted, {measured} measured"
