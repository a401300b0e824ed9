"""`isojax records import|check`: other trainers' logs into ledgers, and what ledgers hold before anything is fitted to
them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from isojax.cli.formatting import to_json_value
from isojax.cli.lazy_commands import new_app
from isojax.cli.options import JsonOption
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.runs.ledger_reader import ledger_folders
from isojax.runs.logs.column_map import FIELD_HELP, parse_field_map
from isojax.runs.logs.import_logs import check_output_folder, read_logs, write_ledgers
from isojax.scaling.checks.ledger_check import check_ledgers

app = new_app(no_args_is_help=True)

_FIELDS_HELP = "\n".join(f"  {name:17}{words.replace('[', chr(92) + '[')}" for name, words in FIELD_HELP.items())


@app.callback()
def _root() -> None:
    """Import other trainers' logs, and check ledgers before a fit."""


def _progress_bar() -> Progress:
    """A bar on standard error, gone when done; nothing where that is no terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


_IMPORT_HELP = f"""
Turn other trainers' logs into ledgers, so that `isojax fit DIR` takes them like runs of its own.

Columns named as the fields below, or as verl and TRL name them, need no --map. Several runs may come in several files,
or in one, separated by B_p, n and seed, or by a column (run=COLUMN). DIR is written whole or not at all.

\b
[bold]Examples[/bold]
  isojax records import runs.csv --from csv --map reward=val_acc --out runs/real
  isojax records import n8.jsonl n16.jsonl --from verl --map B_p=512,n=n{{}} --out runs/verl
  isojax records import out/checkpoint-500 --from trl --out runs/trl
  isojax records import wandb/offline-run-* --from wandb --map avg@4=val/acc,B=2048 --out runs/wb
  isojax records import tb/ --from tensorboard --map reward=val/acc,n=n{{}},B_p=64 --out runs/tb

\b
[bold]Fields[/bold]
{_FIELDS_HELP}
  metric:NAME      a further validation metric; avg@4=COLUMN is short for metric:avg@4=COLUMN
  train:NAME       a further training metric, averaged between evaluations
"""


@app.command("import", help=_IMPORT_HELP)
def import_logs(
    files: Annotated[
        list[Path], typer.Argument(help="Logs of one format. wandb, tensorboard and trl take a run's folder too.")
    ],
    log_format: Annotated[
        str,
        typer.Option(
            "--from", metavar="FORMAT", help="csv, jsonl, verl, trl, wandb, tensorboard, or a module of yours."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="The folder to write, as runs/NAME; one that holds something is kept."
        ),
    ],
    map_options: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="FIELD=COLUMN,...",
            help="Which column is what; n=16 holds for every row, n=n{} is read from the file's name. Repeatable.",
        ),
    ] = None,
) -> None:
    """Logs in, a sweep's folder of ledgers out."""
    field_map = parse_field_map(map_options or [])
    check_output_folder(out)
    with Console(stderr=True).status("reading and writing"):
        imported = read_logs(files, log_format, field_map)
        manifest = {"format": log_format, "files": [str(path) for path in files], "map": field_map}
        write_ledgers(imported, out, manifest)
    for note in imported.notes:
        print(f"note: {note}", file=sys.stderr)
    console = Console()
    console.print(_runs_table(imported.runs, f"{_count_noun(len(imported.runs), 'run')} in {out}"))
    console.print(
        f"next: isojax records check {out}, then isojax fit {out}", soft_wrap=True, highlight=False, markup=False
    )


@app.command()
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Sweep folders, cell folders or ledgers.")],
    as_json: JsonOption = False,
) -> None:
    """Look at ledgers before a fit: what is there, what is missing, and what `isojax fit` would refuse (exit code 2,
    with file and line).

    \b
    [bold]Examples[/bold]
      isojax records check runs/real
      isojax records check runs/a runs/b --json | jq .problems
    """
    with _progress_bar() as progress:
        task = progress.add_task("reading", total=len(ledger_folders(paths)))
        ledger_check = check_ledgers(paths, lambda: progress.advance(task))
    if as_json:
        document = {
            "metric": ledger_check.metric,
            "cells": [_run_json(run) for run in ledger_check.runs],
            "problems": ledger_check.errors,
            "notes": ledger_check.notes,
        }
        print(json.dumps(to_json_value(document), indent=1, allow_nan=False))
    else:
        console = Console()
        if ledger_check.runs:
            console.print(
                _runs_table(
                    ledger_check.runs, f"{_count_noun(len(ledger_check.runs), 'run')}, metric {ledger_check.metric}"
                )
            )
        for label, style, lines in (("problem", "red", ledger_check.errors), ("note", "yellow", ledger_check.notes)):
            for line in lines:
                console.print(f"[{style}]{label}:[/{style}] {escape(line)}", soft_wrap=True, highlight=False)
    if ledger_check.errors:
        summary = f"{_count_noun(len(ledger_check.errors), 'problem')} that `isojax fit` would refuse"
        raise InputError(f"{summary}; the first: {ledger_check.errors[0]}")


def _run_json(run: RunRecord) -> dict[str, Any]:
    """What one ledger holds; right_answers is [problems, samples], null where there are none."""
    first_point, last_point = run.points[0], run.points[-1]
    return {
        "B_p": run.cell.B_p,
        "n": run.cell.n,
        "seed": run.cell.seed,
        "points": len(run.points),
        "C": [first_point.rollouts, last_point.rollouts],
        "M": [first_point.M, last_point.M],
        "metrics": sorted({name for point in run.points for name in point.metrics}),
        "right_answers": [len(last_point.counts), last_point.samples] if last_point.counts else None,
        "tokens": last_point.tokens > 0,
        "device_hours": bool(run.device_hours),
        "source": run.source,
    }


def _runs_table(runs: Sequence[RunRecord], title: str) -> Table:
    """One line a run: its cell, how far it goes, and what was measured."""
    table = Table(title=escape(title), title_justify="left")
    for column in ("B_p", "n", "seed", "points", "C", "M"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("measured", overflow="fold")
    for run in runs:
        cell = _run_json(run)
        correct_counts = cell["right_answers"]
        measured = [f"right answers {correct_counts[0]} x {correct_counts[1]}"] if correct_counts else []
        measured += [
            label
            for label, is_measured in (("tokens", cell["tokens"]), ("device hours", cell["device_hours"]))
            if is_measured
        ]
        cell_numbers = (f"{cell[key]:,}" for key in ("B_p", "n", "seed", "points"))
        ranges = (" - ".join(f"{v:,}" for v in cell[key]) for key in ("C", "M"))
        table.add_row(*cell_numbers, *ranges, escape(", ".join([*cell["metrics"], *measured])))
    return table


def _count_noun(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
