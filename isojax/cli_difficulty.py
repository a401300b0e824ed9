"""`isojax difficulty`: how hard problems are for a base model, and the data set split by it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from isojax.cli_config import Mesh, Words, read_config


def difficulty(
    words: Words = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write.", show_default="difficulty/NAME")] = None,
    held_out: Annotated[int, typer.Option(metavar="N", min=0, help="Problems of each part held out for validation, at most half.")] = 300,
    extremely_hard: Annotated[
        bool, typer.Option("--extremely-hard", help="Sample problems with none right up to 128 times; none right of 128 is Extremely Hard.")
    ] = False,
    mesh: Mesh = None,
) -> None:
    """Label problems by the base model's avg@k, and split them: Easy [.3, .6], Hard [0, .0625], Very Easy (.6, .9].

    cell.data.candidates problems get cell.data.attempts rollouts each (16 where that is 0). Called again after a kill it goes on where it
    was. DIR gets labels.csv (with 90% intervals), the histogram difficulty.png, and splits/, a data set to train on.

    \b
    [bold]Examples[/bold]
      isojax difficulty smollm2_cpu cell.data.candidates=500
      isojax difficulty gsm8k models/qwen2.5-7b-instruct cell.model.path=FOLDER --extremely-hard
      isojax launch my.yaml cell.task=tfds:difficulty/gsm8k/splits 'cell.data.mixture={hard: 0.5, easy: 0.5}'
    """
    settings = read_config(words, mesh, None)
    folder = out or Path("difficulty") / settings.name
    from isojax.launch.difficulty import SPLITS, label

    err = Console(stderr=True)
    with Progress(console=err, disable=not err.is_terminal) as progress:
        bar = progress.add_task("reading the model and the problems", total=1.0)
        splits = label(
            settings, folder, held_out, extremely_hard, lambda text, done: progress.update(bar, description=text, completed=done)
        )
        progress.update(bar, completed=1.0)
    labelled = splits.pop("all")
    table = Table(
        title=f"{len(labelled)} problems, mean avg@{labelled[0].attempts} {sum(p.difficulty for p in labelled) / len(labelled):.3f}"
    )
    for head in ("split", "problems", "of all"):
        table.add_column(head, justify="left" if head == "split" else "right")
    for name, problems in splits.items():
        table.add_row(name, str(len(problems)), f"{len(problems) / len(labelled):.1%}")
    console = Console()
    console.print(table)
    console.print(f"data set: {folder / SPLITS}; histogram: {folder / 'difficulty.png'}", soft_wrap=True, highlight=False, markup=False)
