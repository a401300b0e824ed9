"""`isojax report`: the figures and the page of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from isojax.cli.lazy_commands import new_app
from isojax.cli.options import IncludeFlaggedOption
from isojax.cli.other_fits import other_fits
from isojax.cli.saved_fits import fitted_runs, read_fit, sweep_folder, warn
from isojax.report.gains import report_gains
from isojax.report.write import write_report
from isojax.runs.ledger_reader import read_runs
from isojax.runs.workspace import display_path
from isojax.scaling.result import FitResult

app = new_app()


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A sweep's folder.")], include_flagged: IncludeFlaggedOption = False
) -> None:
    """Rebuild a sweep's figures and report.html from its ledgers and its fit.json.

    \b
    [bold]Example[/bold]
      isojax report runs/quickstart
    """
    folder = sweep_folder(run)
    report_path = draw_report(folder, read_fit(folder, include_flagged))
    Console().print(f"report: {display_path(report_path)}", soft_wrap=True, highlight=False, markup=False)


def draw_report(folder: Path, fit: FitResult) -> Path:
    """Write the report of a sweep's fit and of its other views; returns the path of the page."""
    run_records = read_runs([folder], warn)
    return write_report(folder, [fit, *other_fits(run_records, fit)], fitted_runs(run_records, fit))


def print_gains(console: Console, folder: Path) -> None:
    """Print how much each run of a sweep gained over the base policy."""
    report_gains(console, folder, read_runs([folder], warn))
