"""Import other trainers' logs, join imports, and check ledgers before a fit."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from typer import Argument, Option

from isojax.cli.formatting import json_text, print_line
from isojax.cli.options import (
    FormatOption,
    JsonOption,
    MapOption,
    ResumedOption,
    RunsArgument,
    complete_run,
    new_app,
)
from isojax.core import terminal
from isojax.core.errors import InputError
from isojax.core.nouns import Cell, RunRecord
from isojax.core.schedule import schedule_text
from isojax.report.console import SafeConsole, TextTable
from isojax.report.wording import format_count
from isojax.runs.importers import importer
from isojax.runs.logs.column_map import parse_field_map
from isojax.runs.logs.import_logs import check_output_folder, read_logs, write_ledgers
from isojax.runs.logs.log_table import FIELD_HELP, read_settings
from isojax.runs.logs.source_words import SourceChoice
from isojax.runs.merge_runs import merge_runs, write_merged
from isojax.scaling.checks.ledger_check import LedgerCheck, check_ledgers

FIELDS_HELP = "\n".join(f"  {name:17}{words}" for name, words in FIELD_HELP.items())
EXAMPLES_OF_FORMATS = "\n".join(
    f"  {one.traits.example}" for one in importer.load_own() if one.traits.example
)
IMPORT_HELP = f"""
Turn other trainers' logs into ledgers, so that `isojax fit DIR` takes them like isojax's runs.

Columns named as the fields below need no --map, nor do those of verl's and TRL's own files.
Several runs may come in several files, or in one, separated by B_p, n and seed, or by a column
(run=COLUMN). DIR is written whole or not at all.

\b
Examples
  isojax records import runs.csv --map reward=val_acc --out runs/real
  isojax records import wandb_export.csv --settings runs.csv --out runs/chart
  isojax records import pivot.csv --map 'reward=*,n=n{{}},B_p=64' --out runs/pivot
  isojax records import logs/ --map reward=acc,n=n{{}},B_p=64 --leave-out train --out runs/val
{EXAMPLES_OF_FORMATS}

\b
Fields
{FIELDS_HELP}
  metric:NAME      a further validation metric; avg@4=COLUMN is short for metric:avg@4=COLUMN
  train:NAME       a further training metric, averaged between evaluations
"""
FILES_HELP = (
    "Logs of one format, or folders of them; a log of a folder that cannot be read is skipped."
)
SETTINGS_HELP = (
    "A table of what the logs do not say: run, and some of n, B_p, B, seed, devices, scale."
)
ONLY_HELP = (
    "Take only logs and runs with this word, or pattern with *, in their path or name, as val. "
    "Repeatable."
)
LEAVE_OUT_HELP = (
    "Leave out logs and runs with this word, or pattern with *, in their path or name. Repeatable."
)
MAX_SHOWN_PROBLEMS = 20  # problems, and notes, that `check` prints
MERGE_HELP = "Folders that `isojax records import` wrote."
OUT_HELP = "The folder to write, as runs/NAME; one that holds something is kept."

app = new_app(
    no_args_is_help=True,
    help="Import other trainers' logs, join imports, and check ledgers before a fit.",
)


@app.command("import", help=IMPORT_HELP)
def import_logs(
    files: Annotated[list[Path], Argument(help=FILES_HELP)],
    out: Annotated[Path, Option(metavar="DIR", help=OUT_HELP)],
    log_format: FormatOption = None,
    map_options: MapOption = None,
    settings_file: Annotated[
        Path | None, Option("--settings", metavar="FILE", help=SETTINGS_HELP)
    ] = None,
    resumed: ResumedOption = False,
    only: Annotated[list[str] | None, Option(metavar="WORD", help=ONLY_HELP)] = None,
    leave_out: Annotated[
        list[str] | None, Option("--leave-out", metavar="WORD", help=LEAVE_OUT_HELP)
    ] = None,
) -> None:
    field_map = parse_field_map(map_options or [])
    check_output_folder(out)
    settings = {} if settings_file is None else read_settings(settings_file)
    choice = SourceChoice(tuple(only or ()), tuple(leave_out or ()))

    with SafeConsole(stderr=True).status("reading and writing"):
        imported = read_logs(files, log_format, field_map, settings, resumed, choice=choice)

        # How the ledgers were made, so that somebody can make them again.
        manifest = {
            "format": log_format,
            "files": [str(path) for path in files],
            "map": field_map,
            "settings": settings,
            "resumed": resumed,
            "only": choice.only,
            "leave_out": choice.leave_out,
        }
        write_ledgers(imported, out, manifest)

    for text in imported.skipped:
        terminal.warn(f"skipped: {text}")
    for note in imported.notes:
        terminal.note(note)
    _print_written(imported.runs, out)


def _print_written(runs: Sequence[RunRecord], out: Path) -> None:
    """What a folder of ledgers holds now, and what to do with it."""
    SafeConsole().print(_runs_table(runs, f"{format_count(len(runs), 'run')} in {out}"))
    folder = shlex.quote(str(out))
    print_line(f"next: isojax records check {folder}, then isojax fit {folder}")


@app.command()
def merge(
    paths: Annotated[
        list[Path], Argument(metavar="RUN", help=MERGE_HELP, autocompletion=complete_run)
    ],
    out: Annotated[Path, Option(metavar="DIR", help=OUT_HELP)],
) -> None:
    """Join imports into one folder, which `isojax recommend` and every other command takes like a
    sweep: logs of several formats, or with several maps. Seeds that both have get new numbers.
    DIR is written whole or not at all.

    \b
    Examples
      isojax records merge runs/verl runs/wandb --out runs/both
    """
    check_output_folder(out)
    with SafeConsole(stderr=True).status("reading and writing"):
        runs, notes = merge_runs(paths)
        write_merged(runs, out, paths, notes)
    for note in notes:
        terminal.note(note)
    _print_written(runs, out)


@app.command()
def check(paths: RunsArgument, as_json: JsonOption = False) -> None:
    """Look at ledgers before a fit: what is there, what is missing, and what `isojax fit` would
    refuse (exit code 2, with file and line).

    \b
    Examples
      isojax records check runs/real
      isojax records check runs/a runs/b --json | jq .problems
    """
    with SafeConsole(stderr=True).status("reading"):
        checked = check_ledgers(paths)

    if as_json:
        document = {
            "metric": checked.metric,
            "cells": [summarize_ledger(run).to_json() for run in checked.runs],
            "problems": checked.errors,
            "notes": checked.notes,
        }
        print(json_text(document))
    else:
        _print_check(SafeConsole(), checked)

    if checked.errors:
        problems = format_count(len(checked.errors), "problem")
        raise InputError(
            found=f"{problems} that `isojax fit` would refuse; the first: {checked.errors[0]}",
        )


def _print_check(console: SafeConsole, checked: LedgerCheck) -> None:
    if checked.runs:
        title = f"{format_count(len(checked.runs), 'run')}, metric {checked.metric}"
        console.print(_runs_table(checked.runs, title))
    _print_some(console, "[red]problem:[/red]", checked.errors)
    _print_some(console, "[yellow]note:[/yellow]", checked.notes)


def _print_some(console: SafeConsole, label: str, lines: Sequence[str]) -> None:
    """The first of the lines, each behind the `label`, and how many more there are."""
    for line in lines[:MAX_SHOWN_PROBLEMS]:
        console.print(f"{label} {escape(line)}", soft_wrap=True)
    if len(lines) > MAX_SHOWN_PROBLEMS:
        more = len(lines) - MAX_SHOWN_PROBLEMS
        console.print(f"{label} and {more:,} more; --json has all of them")


@dataclass(frozen=True)
class LedgerSummary:
    """What one ledger holds."""

    cell: Cell
    points: int  # evaluations
    C: tuple[int, int]  # of the first and of the last evaluation
    M: tuple[int, int]
    metrics: list[str]
    problems: int  # whose rewards each evaluation has, one by one; 0 where it has means alone
    samples: int  # rollouts per problem of an evaluation
    is_graded: bool  # whether the rewards of problems are not only 0 and 1
    has_tokens: bool
    has_device_hours: bool
    source: str  # its file

    @property
    def schedule(self) -> str:
        """The stages of B_p and n, as sweep.schedules takes them; "" where both are fixed."""
        return schedule_text(self.cell.stages, self.cell.n_max)

    @property
    def measured(self) -> list[str]:
        """What the evaluations hold, in words."""
        words = [f"schedule {self.schedule}"] if self.schedule else []
        words += self.metrics
        if self.problems:
            kind = "graded rewards" if self.is_graded else "right answers"
            words.append(f"{kind} {self.problems} x {self.samples}")
        if self.has_tokens:
            words.append("tokens")
        if self.has_device_hours:
            words.append("device hours")
        return words

    def to_json(self) -> dict[str, Any]:
        """The ledger as `check --json` prints it.

        "C" and "M" are [first, last]; "schedule" is a text or null; "right_answers" is [problems,
        samples], or null where the ledger has means alone.
        """
        return {
            "B_p": self.cell.B_p,
            "n": self.cell.n,
            "seed": self.cell.seed,
            "schedule": self.schedule or None,
            "points": self.points,
            "C": self.C,
            "M": self.M,
            "metrics": self.metrics,
            "right_answers": [self.problems, self.samples] if self.problems else None,
            "tokens": self.has_tokens,
            "device_hours": self.has_device_hours,
            "source": self.source,
        }


def summarize_ledger(run: RunRecord) -> LedgerSummary:
    """What one ledger holds; `run` has at least one evaluation."""
    first = run.points[0]
    last = run.points[-1]
    return LedgerSummary(
        cell=run.cell,
        points=len(run.points),
        C=(first.rollouts, last.rollouts),
        M=(first.M, last.M),
        metrics=sorted({name for point in run.points for name in point.metrics}),
        problems=len(last.counts),
        samples=last.samples,
        is_graded=last.graded,
        has_tokens=last.tokens > 0,
        has_device_hours=bool(run.device_hours),
        source=run.source,
    )


def _runs_table(runs: Sequence[RunRecord], title: str) -> TextTable:
    rows = []
    for ledger in map(summarize_ledger, runs):
        cell = ledger.cell
        row = [f"{number:,}" for number in (cell.B_p, cell.n, cell.seed, ledger.points)]
        row += [" - ".join(f"{C:,}" for C in ledger.C), " - ".join(f"{M:,}" for M in ledger.M)]
        row.append(", ".join(ledger.measured))
        rows.append(row)

    columns = ("B_p", "n", "seed", "points", "C", "M", "measured")
    return TextTable(title, columns, rows, last_is_text=True)
