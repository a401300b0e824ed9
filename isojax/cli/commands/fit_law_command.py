"""Fit n*(C) to the points of a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from isojax.cli.formatting import json_text, print_interval_method, print_notes, to_json_value
from isojax.cli.options import JsonOption, ModeOption, WhereOption
from isojax.report.console import SafeConsole, TextTable
from isojax.report.wording import LAW_PARAMETERS, format_estimate, format_number, join_commas
from isojax.scaling.curves.sweep_estimate import DEFAULT_MODE
from isojax.scaling.law.law_from_file import fit_law_file

FILE_HELP = "A CSV, TSV or JSON-lines file with columns n and rollouts."


def fit_law(
    points_file: Annotated[Path, Argument(metavar="FILE", help=FILE_HELP)],
    where: WhereOption = None,
    mode: ModeOption = DEFAULT_MODE,
    as_json: JsonOption = False,
) -> None:
    """Fit n*(C) to the points of a file.

    A point says that n was best at C rollouts, as read off a published figure.

    \b
    Examples
      isojax fit-law points.csv --where set=easy
      isojax fit-law points.csv --mode paper --json | jq .n_star
    """
    fit_document = to_json_value(fit_law_file(points_file, where or (), mode))
    if as_json:
        print(json_text(fit_document))
        return
    _print_law(SafeConsole(), fit_document)


def _print_law(console: SafeConsole, document: Mapping[str, Any]) -> None:
    """Print the points, the law with its parameters, and the notes of a fit.

    document: by `fit_law_file`, as --json prints it. Its "n_star" is None where there is no law;
    its "intervals", and the "aicc" of "n_star" (form of the law -> score), are so in mode "paper".
    """
    points_of_n = join_commas(f"{n} ({points})" for n, points in document["distinct_n"].items())
    C_range = f"C = {format_number(document['C_low'])} to {format_number(document['C_high'])}"
    console.print(f"{document['points']} points, {C_range}; n (points): {points_of_n}")

    law = document["n_star"]
    if law is not None:
        _print_parameters(console, law, document["rmse"])
        if law["aicc"]:
            _print_scores(console, law["aicc"])
        if document["intervals"]:
            print_interval_method(console, document["intervals"])

    print_notes(console, document["flags"])


def _print_parameters(console: SafeConsole, law: Mapping[str, Any], rmse: float) -> None:
    intervals = law["intervals"] or {}
    rows = []
    for name in LAW_PARAMETERS[law["form"]]:
        value, interval = format_estimate(law[name], intervals.get(name))
        rows.append([name, value, interval])

    title = f"n*(C): {law['form']}, rms residual {rmse:.3g} of log2 n"
    console.print(TextTable(title, ("parameter", "value", "90% interval"), rows, text_columns=1))


def _print_scores(console: SafeConsole, aicc: Mapping[str, float | None]) -> None:
    """How the forms of the law compare.

    `aicc`: null for a form with more parameters than the points can decide.
    """
    scores = [
        f"{form} {'too few points' if score is None else f'{score:.1f}'}"
        for form, score in aicc.items()
    ]
    console.print(f"AICc (smallest best): {join_commas(scores)}")
