"""`isojax records import|check`: other trainers' logs into ledgers, and what ledgers hold before anything is fitted to them."""

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

from isojax.cli_words import plain
from isojax.logs.fields import HELP, parse_map
from isojax.types import InputError, RunRecord

_STYLE: dict[str, Any] = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False, "add_completion": False}

app = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}, **_STYLE)

_FIELDS = "\n".join(f"  {name:17}{words.replace('[', chr(92) + '[')}" for name, words in HELP.items())


@app.callback()
def _root() -> None:
    """Bring other trainers' logs in ([bold]import[/bold]), and look at ledgers before a fit ([bold]check[/bold])."""


def _progress() -> Progress:
    """A bar on standard error, gone when done; nothing where that is no terminal."""
    console = Console(stderr=True)
    parts = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeRemainingColumn())
    return Progress(*parts, console=console, transient=True, disable=not console.is_terminal)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


_IMPORT_HELP = f"""
Turn other trainers' logs into ledgers, so that `isojax fit DIR` takes them like runs of its own.

Columns named as the fields below, or as verl and TRL name them, need no --map. Several runs may come in several files, or in one, told
apart by B_p, n and seed, or by a column (run=COLUMN). DIR is written whole or not at all.

\b
[bold]Examples[/bold]
  isojax records import runs.csv --from csv --map reward=val_acc --out runs/real
  isojax records import n8.jsonl n16.jsonl --from verl --map B_p=512,n=n{{}} --out runs/verl
  isojax records import out/checkpoint-500 --from trl --out runs/trl
  isojax records import wandb/offline-run-* --from wandb --map avg@4=val/acc,B=2048 --out runs/wb
  isojax records import tb/ --from tensorboard --map reward=val/acc,n=n{{}},B_p=64 --out runs/tb

\b
[bold]Fields[/bold]
{_FIELDS}
  metric:NAME      a further validation metric; avg@4=COLUMN is short for metric:avg@4=COLUMN
  train:NAME       a further training metric, averaged between evaluations
"""


@app.command("import", help=_IMPORT_HELP)
def import_logs(
    files: Annotated[list[Path], typer.Argument(help="Logs of one format. wandb, tensorboard and trl take a run's folder too.")],
    format: Annotated[
        str, typer.Option("--from", metavar="FORMAT", help="csv, jsonl, verl, trl, wandb, tensorboard, or a module of yours.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write, as runs/NAME; one that holds something is kept.")],
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="FIELD=COLUMN,...",
            help="Which column is what; n=16 holds for every row, n=n{} is read from the file's name. Repeatable.",
        ),
    ] = None,
) -> None:
    """Logs in, a sweep's folder of ledgers out."""
    from isojax.logs.importing import check_out, read_logs, write_ledgers

    asked = parse_map(mapping or [])
    check_out(out)
    with _progress() as bar:
        task = bar.add_task("reading", total=sum(map(_size, files)) or 1)
        imported = read_logs(files, format, asked, lambda size: bar.advance(task, size))
        writing = bar.add_task("writing", total=len(imported.runs))
        said = {"format": format, "files": [str(path) for path in files], "map": asked}
        write_ledgers(imported, out, said, lambda: bar.advance(writing))
    for note in imported.notes:
        print(f"note: {note}", file=sys.stderr)
    console = Console()
    console.print(_table(imported.runs, f"{_count(len(imported.runs), 'run')} in {out}"))
    console.print(f"next: isojax records check {out}, then isojax fit {out}", soft_wrap=True, highlight=False, markup=False)


@app.command()
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Sweep folders, cell folders or ledgers.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else there.")] = False,
) -> None:
    """Look at ledgers before a fit: what is there, what is missing, and what `isojax fit` would refuse (exit code 2, with file and line).

    \b
    [bold]Examples[/bold]
      isojax records check runs/real
      isojax records check runs/a runs/b --json | jq .problems
    """
    from isojax.logs.check import check as look
    from isojax.records import ledger_folders

    with _progress() as bar:
        task = bar.add_task("reading", total=len(ledger_folders(paths)))
        found = look(paths, lambda: bar.advance(task))
    if as_json:
        document = {
            "metric": found.metric,
            "cells": [_cell_json(run) for run in found.runs],
            "problems": found.problems,
            "notes": found.notes,
        }
        print(json.dumps(plain(document), indent=1, allow_nan=False))
    else:
        console = Console()
        if found.runs:
            console.print(_table(found.runs, f"{_count(len(found.runs), 'run')}, metric {found.metric}"))
        for words, style, lines in (("problem", "red", found.problems), ("note", "yellow", found.notes)):
            for line in lines:
                console.print(f"[{style}]{words}:[/{style}] {escape(line)}", soft_wrap=True, highlight=False)
    if found.problems:
        given = f"{_count(len(found.problems), 'problem')} that `isojax fit` would refuse"
        raise InputError(f"{given}; the first: {found.problems[0]}")


def _cell_json(run: RunRecord) -> dict[str, Any]:
    """What one ledger holds; right_answers is [problems, samples], null where there are none."""
    first, last = run.points[0], run.points[-1]
    return {
        "B_p": run.cell.B_p,
        "n": run.cell.n,
        "seed": run.cell.seed,
        "points": len(run.points),
        "C": [first.rollouts, last.rollouts],
        "M": [first.M, last.M],
        "metrics": sorted({name for point in run.points for name in point.metrics}),
        "right_answers": [len(last.counts), last.samples] if last.counts else None,
        "tokens": last.tokens > 0,
        "device_hours": bool(run.device_hours),
        "source": run.source,
    }


def _table(runs: Sequence[RunRecord], title: str) -> Table:
    """One line a run: its cell, how far it goes, and what was measured."""
    table = Table(title=escape(title), title_justify="left")
    for column in ("B_p", "n", "seed", "points", "C", "M"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("measured", overflow="fold")
    for run in runs:
        cell = _cell_json(run)
        counts = cell["right_answers"]
        also = [f"right answers {counts[0]} x {counts[1]}"] if counts else []
        also += [words for words, there in (("tokens", cell["tokens"]), ("device hours", cell["device_hours"])) if there]
        numbers = (f"{cell[key]:,}" for key in ("B_p", "n", "seed", "points"))
        ranges = (" - ".join(f"{v:,}" for v in cell[key]) for key in ("C", "M"))
        table.add_row(*numbers, *ranges, escape(", ".join([*cell["metrics"], *also])))
    return table


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
