"""Fits as the commands use them: made from ledgers, saved in the sweep's folder, read again, and made again where the
ledgers have grown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from isojax.cli.formatting import json_line_per_row
from isojax.core.atomic_files import write_text
from isojax.core.config import Config, read_saved_config
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.runs.ledger import INCLUDE_FLAGGED
from isojax.runs.ledger_reader import default_metric, read_runs
from isojax.runs.workspace import display_path
from isojax.scaling.checks.run_health import FlaggedRun, flagged_runs
from isojax.scaling.fit_sweep import DEFAULT_MODE, DEFAULT_OPTIONS, FitOptions, fit_sweep
from isojax.scaling.intervals import REPLICATES
from isojax.scaling.result import FitResult, FittedRun, read_fit_file


def warn(message: str) -> None:
    """One line on standard error."""
    print(f"warning: {display_path(message)}", file=sys.stderr)


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """advance(done, of how many) as a bar on standard error, where that is a terminal; it vanishes when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def fit_file_name(
    stem: str, metric: str | None, compute: str, mode: str = DEFAULT_MODE, include_flagged: bool = False
) -> str:
    """fit.json; where another metric, compute or mode was asked, or flagged runs too,
    fit-METRIC-COMPUTE-MODE-with-flagged.json.
    """
    name_parts = [
        *([metric.replace("/", "-")] if metric else []),
        *([compute] if compute != "rollouts" else []),
        *([mode] if mode != DEFAULT_MODE else []),
        *(["with-flagged"] if include_flagged else []),
    ]
    return "-".join([stem, *name_parts]) + ".json"


def make_fit(
    paths: Sequence[Path], metric: str | None, compute: str, options: FitOptions = DEFAULT_OPTIONS
) -> FitResult:
    """Fit the runs; a single sweep's folder gets its fit.json, or a file named after another metric, compute or mode
    where one was asked.
    """
    runs = read_runs(paths, warn)
    result = fit_runs(runs, metric or default_metric(runs), compute, options)
    if len(paths) == 1 and is_sweep_folder(paths[0]):
        name = fit_file_name("fit", metric, compute, options.mode, options.include_flagged)
        write_text(paths[0] / name, json_line_per_row(result.model_dump(mode="json")))
    return result


def fit_runs(
    runs: Sequence[RunRecord], metric: str, compute: str, options: FitOptions, description: str = "fitting"
) -> FitResult:
    """A fit, its progress shown; runs that are flagged as broken are left out, unless asked for, and named."""
    with progress_bar(description) as advance:
        return fit_sweep(runs, metric, compute, options, advance)


def fitted_runs(runs: Sequence[RunRecord], result: FitResult) -> list[RunRecord]:
    """Those of the runs that a fit was made from."""
    fitted_cells = {(run.B_p, run.n, run.seed) for run in result.runs}
    return [run for run in runs if (run.cell.B_p, run.cell.n, run.cell.seed) in fitted_cells]


def is_sweep_folder(path: Path) -> bool:
    """Whether a folder holds cells/."""
    return path.is_dir() and (path / "cells").is_dir()


def sweep_folder(run: Path) -> Path:
    """The folder itself, once it is known to hold a sweep."""
    if not is_sweep_folder(run):
        raise InputError(f"{run} is no sweep's folder; expected one that holds cells/, such as runs/quickstart.")
    return run


def read_fit(run: Path, include_flagged: bool = False) -> FitResult:
    """A sweep's fit.json, or that file itself; a sweep that has none is fitted, and fitted again where its ledgers have
    grown. `include_flagged`: the fit of all runs of a folder.
    """
    if include_flagged and not run.is_dir():
        request = f"{INCLUDE_FLAGGED} asks for another fit of a sweep"
        raise InputError(f"{request}, and {run} is a file; expected the sweep's folder.")
    path = run / fit_file_name("fit", None, "rollouts", DEFAULT_MODE, include_flagged) if run.is_dir() else run
    if run.is_dir() and not path.exists():
        return make_fit([sweep_folder(run)], None, "rollouts", FitOptions(include_flagged=include_flagged))
    result = read_fit_file(path)
    if run.is_dir() and is_sweep_folder(run) and _is_stale(result, run):
        warn(f"{path} is older than the ledgers beside it and is made again")
        return make_fit([run], None, "rollouts", options_of_fit(result))
    return result


def options_of_fit(result: FitResult) -> FitOptions:
    """What a fit was asked for, so that one made again answers the same question."""
    include_flagged, settings = not result.health.left_out, result.intervals
    if settings is None:
        replicates = 0 if result.mode == DEFAULT_MODE else REPLICATES
        return FitOptions(result.mode, replicates, include_flagged=include_flagged)
    stated_run_sd = settings.run_sd if settings.run_sd_source == "as stated" else None
    return FitOptions(result.mode, settings.replicates, settings.seed, stated_run_sd, include_flagged)


def _is_stale(result: FitResult, run: Path) -> bool:
    """Whether the ledgers hold other points than the fit was made from, or other runs of them are flagged as broken."""

    def point_keys(rows: Sequence[FittedRun | FlaggedRun]) -> set[tuple[int, ...]]:
        return {(row.B_p, row.n, row.seed, row.points) for row in rows}

    runs, health = read_runs([run]), result.health
    ledger_points = {(r.cell.B_p, r.cell.n, r.cell.seed, len(r.points)) for r in runs}
    fitted_points = point_keys(result.runs) | (point_keys(health.runs) if health.left_out else set())
    return ledger_points != fitted_points or point_keys(flagged_runs(runs)) != point_keys(health.runs)


def saved_sweep_config(run: Path) -> Config | None:
    """The config.yaml beside a sweep's fit; None where there is none, as for imported logs."""
    path = (run if run.is_dir() else run.parent) / "config.yaml"
    return read_saved_config(path) if path.exists() else None
