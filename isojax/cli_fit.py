"""Fits as the commands use them: made from ledgers and kept beside them, read back, and made again where the ledgers have grown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from isojax.cli_words import plain
from isojax.files import write_text
from isojax.records import default_metric
from isojax.types import InputError

if TYPE_CHECKING:
    from isojax.config import Config

MODE = "paper"


def warn(text: str) -> None:
    """One line on standard error."""
    print(f"warning: {text}", file=sys.stderr)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """advance(done, of how many) as a bar on standard error, where that is a terminal; it vanishes when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def file_name(stem: str, metric: str | None, compute: str) -> str:
    """fit.json; where another metric or compute was asked, fit-METRIC-COMPUTE.json."""
    asked = [*([metric.replace("/", "-")] if metric else []), *([compute] if compute != "rollouts" else [])]
    return "-".join([stem, *asked]) + ".json"


def make_fit(paths: Sequence[Path], metric: str | None, compute: str, mode: str) -> dict[str, Any]:
    """Fit the runs; a single sweep's folder gets its fit.json, or fit-METRIC-COMPUTE.json where another metric or compute was asked."""
    from isojax.records import read_runs
    from isojax.scaling.fit import fit

    runs = read_runs(paths, warn)
    with progress("bootstrap") as advance:
        document = plain(fit(runs, metric or default_metric(runs), compute, mode, advance=advance))
    if len(paths) == 1 and is_sweep(paths[0]):
        write_text(paths[0] / file_name("fit", metric, compute), json.dumps(document, indent=1, allow_nan=False) + "\n")
    return document


def is_sweep(path: Path) -> bool:
    """Whether a folder holds cells/."""
    return path.is_dir() and (path / "cells").is_dir()


def sweep_folder(run: Path) -> Path:
    """The folder itself, once it is known to hold a sweep."""
    if not is_sweep(run):
        raise InputError(f"{run} is no sweep's folder; expected one that holds cells/, such as runs/quickstart.")
    return run


def read_fit(run: Path) -> dict[str, Any]:
    """A sweep's fit.json, or that file itself; a sweep that has none is fitted."""
    path = run / "fit.json" if run.is_dir() else run
    if run.is_dir() and not path.exists():
        return make_fit([sweep_folder(run)], None, "rollouts", MODE)
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as e:
        raise InputError(f"cannot read {path}: {e}. Expected a sweep's folder or a fit.json; `isojax fit RUN` writes one.") from e
    if not isinstance(document, dict) or document.get("schema") not in (1, 2):
        raise InputError(f"{path} is no fit: expected an object with curves, frontier and n_star; `isojax fit RUN` writes one.")
    if run.is_dir() and is_sweep(run) and _is_stale(document, run):
        warn(f"{path} is older than the ledgers beside it and is made again")
        return make_fit([run], None, "rollouts", document.get("mode", MODE))
    return document


def _is_stale(document: dict[str, Any], run: Path) -> bool:
    """Whether the ledgers hold other points than the fit was made from."""
    from isojax.records import read_runs

    there = {(r.cell.B_p, r.cell.n, r.cell.seed, len(r.points)) for r in read_runs([run])}
    return there != {(r["B_p"], r["n"], r["seed"], r["points"]) for r in document["runs"]}


def saved_config(run: Path) -> Config | None:
    """The config.yaml beside a sweep's fit; None where there is none, as for imported logs."""
    from isojax.config import read_saved

    path = (run if run.is_dir() else run.parent) / "config.yaml"
    return read_saved(path) if path.exists() else None
