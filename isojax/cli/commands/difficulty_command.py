"""`isojax difficulty`: how hard problems are for a base model, and the data set split by it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from isojax.cli.config_options import ConfigArguments, MeshOption, read_config
from isojax.cli.lazy_commands import load_module, new_app

app = new_app()


@app.command()
def difficulty(
    words: ConfigArguments = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write.", show_default="difficulty/NAME")
    ] = None,
    held_out: Annotated[
        int, typer.Option(metavar="N", min=0, help="Problems of each part held out for validation, at most half.")
    ] = 300,
    extremely_hard: Annotated[
        bool,
        typer.Option(
            "--extremely-hard",
            help="Sample problems with none right up to 128 times; none right of 128 is Extremely Hard.",
        ),
    ] = False,
    mesh: MeshOption = None,
) -> None:
    """Label problems by the base model's avg@k, and split them by difficulty.

    The splits are Easy, [.3, .6], Hard, [0, .0625], and Very Easy, (.6, .9]. cell.data.candidates problems get
    cell.data.attempts rollouts each (16 where that is 0). Called again after a kill it goes on where it was. DIR gets
    labels.csv (with 90% intervals), the histogram difficulty.png, and splits/, a data set to train on.

    \b
    [bold]Examples[/bold]
      isojax difficulty smollm2_cpu cell.data.candidates=500
      isojax difficulty gsm8k models/qwen2.5-7b-instruct cell.model.path=FOLDER --extremely-hard
      isojax launch my.yaml cell.task=tfds:difficulty/gsm8k/splits 'cell.data.mixture={hard: 0.5, easy: 0.5}'
    """
    config = read_config(words, mesh, None)
    folder = out or Path("difficulty") / config.name
    difficulty_run = load_module("isojax.launch.local.difficulty_run")
    stderr_console = Console(stderr=True)
    with Progress(console=stderr_console, disable=not stderr_console.is_terminal) as progress:
        progress_task = progress.add_task("reading the model and the problems", total=1.0)
        splits = difficulty_run.label_difficulty(
            config,
            folder,
            held_out,
            extremely_hard,
            lambda text, done: progress.update(progress_task, description=text, completed=done),
        )
        progress.update(progress_task, completed=1.0)
    all_problems = splits.pop("all")
    mean_difficulty = sum(p.difficulty for p in all_problems) / len(all_problems)
    table = Table(title=f"{len(all_problems)} problems, mean avg@{all_problems[0].attempts} {mean_difficulty:.3f}")
    for header in ("split", "problems", "of all"):
        table.add_column(header, justify="left" if header == "split" else "right")
    for name, problems in splits.items():
        table.add_row(name, str(len(problems)), f"{len(problems) / len(all_problems):.1%}")
    console = Console()
    console.print(table)
    console.print(
        f"data set: {folder / difficulty_run.SPLITS_FOLDER}; histogram: {folder / 'difficulty.png'}",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
