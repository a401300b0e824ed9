"""Label problems by the base model's avg@k, and split them by difficulty."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from rich.progress import Progress
from typer import Option

from isojax.cli.formatting import print_line
from isojax.cli.options import ConfigArguments, DryRunOption, MeshOption, read_config
from isojax.core.nouns import Problem
from isojax.core.start_file import LABELS_FOLDER, describe_warning, read_start_report
from isojax.core.terminal import warn
from isojax.report.console import SafeConsole, TextTable

IS_RUN = True  # for command_files.py

HELD_OUT_HELP = "Problems of each part held out for validation, at most half."
SERVER_HELP = (
    "A server of the base model samples (vLLM, SGLang, llama.cpp; docs/servers.md), "
    "such as http://host:8000."
)
REQUESTS_HELP = "Requests to the server at a time."
TIMEOUT_HELP = "Until a request is answered, by the server."
HARD_HELP = "Sample problems with none right up to 128 times; none right of 128 is Extremely Hard."


IMPLAUSIBLE_DIFFICULTY = 0.02  # a mean avg@k below which prompt or verifier are likely wrong


def difficulty(
    words: ConfigArguments = None,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="Where to write.", show_default="difficulty/NAME")
    ] = None,
    held_out: Annotated[int, Option(metavar="N", min=0, help=HELD_OUT_HELP)] = 300,
    extremely_hard: Annotated[bool, Option("--extremely-hard", help=HARD_HELP)] = False,
    server: Annotated[str | None, Option(metavar="URL", help=SERVER_HELP)] = None,
    server_requests: Annotated[int, Option(metavar="N", min=1, help=REQUESTS_HELP)] = 32,
    server_timeout: Annotated[
        float, Option(metavar="SECONDS", min=0.001, help=TIMEOUT_HELP)
    ] = 600.0,
    mesh: MeshOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Label problems by the base model's avg@k, and split them by difficulty.

    The splits are Easy, [0.3, 0.6], Hard, [0, 0.0625], and Very Easy, (0.6, 0.9].
    cell.data.candidates problems get cell.data.attempts rollouts each (16 where that is 0). Called
    again after a kill it goes on where it was. DIR gets labels.csv (with 90% intervals),
    samples.txt (responses to a few problems of each part), the histogram difficulty.png, and
    splits/, a data set to train on.

    \b
    Examples
      isojax difficulty smollm2_cpu cell.data.candidates=500
      isojax difficulty smollm2_cpu --dry-run                     how many problems and rollouts
      isojax difficulty gsm8k models/qwen2.5-7b-instruct cell.model.path=FOLDER --extremely-hard
      isojax difficulty gsm8k cell.model.path=FOLDER --server http://localhost:8000
      isojax launch my.yaml cell.task=tfds:difficulty/gsm8k/splits\
 'cell.data.mixture={hard: 0.5, easy: 0.5}'
    """
    config = read_config(words, mesh, None)  # None: no default, a config must be named
    folder = out or Path("difficulty") / config.name

    # Imported here, because it imports jax.
    difficulty_run = importlib.import_module("isojax.launch.local.difficulty_run")
    server_options = None
    if server is not None:
        server_options = difficulty_run.ServerOptions(
            server, timeout=server_timeout, in_flight=server_requests
        )
    if dry_run:
        difficulty_run.print_labelling_plan(config, folder, server_options)
        return

    with _progress() as on_progress:
        splits = difficulty_run.label_difficulty(
            config, folder, held_out, extremely_hard, on_progress, server_options
        )

    # {"all": every labelled problem, "easy_train": some of them, ...}; "all" is always there. A
    # problem between the ranges of difficulty is in no other split.
    labelled = splits.pop("all")
    _print_splits(labelled, splits)
    label_samples = importlib.import_module("isojax.launch.local.label_samples")
    print_line(f"responses to a few problems of each part: {folder / label_samples.SAMPLES_FILE}")
    data_set = folder / difficulty_run.SPLITS_FOLDER
    print_line(f"data set: {data_set}; histogram: {folder / 'difficulty.png'}")

    # The report of the labels' first responses; None where the folder has none. The sentences begin
    # with "of the first labels: ".
    report = read_start_report(folder)
    for warning in report.warnings if report else ():
        warn(describe_warning(LABELS_FOLDER, warning.text))


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error, where that is a terminal, and what moves it: (text, part done)."""
    console = SafeConsole(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading the model and the problems", total=1.0)

        def on_progress(text: str, done: float) -> None:
            progress.update(task, description=text, completed=done)

        yield on_progress
        progress.update(task, completed=1.0)


def _print_splits(labelled: Sequence[Problem], splits: Mapping[str, Sequence[Problem]]) -> None:
    """How many problems each split has, and how hard all are for the base model."""
    mean_difficulty = sum(problem.difficulty for problem in labelled) / len(labelled)
    title = f"{len(labelled)} problems, mean avg@{labelled[0].attempts} {mean_difficulty:.3f}"
    rows = [
        [name, str(len(part)), f"{len(part) / len(labelled):.1%}"] for name, part in splits.items()
    ]
    SafeConsole().print(TextTable(title, ("split", "problems", "of all"), rows, text_columns=1))

    if mean_difficulty < IMPLAUSIBLE_DIFFICULTY:
        print_line(
            "almost no response is right: see docs/when-a-run-does-not-learn.md before you train"
        )
