"""Fits as the commands use them: saved in the sweep's folder, and fitted again where the ledgers
have grown."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from isojax.cli.formatting import json_line_per_row
from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.core.terminal import printable, warn
from isojax.report.console import SafeConsole
from isojax.runs.ledger import INCLUDE_FLAGGED, default_metric, read_runs
from isojax.scaling.checks.run_health import FlaggedRun, flagged_runs, health_flags
from isojax.scaling.curves.sweep_estimate import DEFAULT_MODE, DEFAULT_OPTIONS, FitOptions
from isojax.scaling.fit import fit, with_clocks
from isojax.scaling.intervals import REPLICATES
from isojax.scaling.result import FitResult, FittedRun, read_fit_file


def fit_file_name(stem: str, metric: str | None, compute: str, options: FitOptions) -> str:
    """fit.json; where something else was asked for, its name says what:
    fit-METRIC-COMPUTE-MODE-with-flagged.json."""
    words = [
        word
        for word in (metric, compute, options.mode)
        if word not in (None, "rollouts", DEFAULT_MODE)
    ]
    if options.include_flagged:
        words.append("with-flagged")
    return "-".join([stem, *map(str, words)]).replace("/", "-") + ".json"


def make_fit(
    paths: Sequence[Path], metric: str | None, compute: str, options: FitOptions = DEFAULT_OPTIONS
) -> FitResult:
    """Fit the runs; a single sweep's folder gets the result as a file."""
    runs = read_runs(paths, warn)
    result = fit_runs(runs, default_metric(runs) if metric is None else metric, compute, options)
    if len(paths) == 1 and is_sweep_folder(paths[0]):
        path = paths[0] / fit_file_name("fit", metric, compute, options)
        if _has_more_replicates(path, runs, options.replicates):
            kept = path
            path = path.with_stem(f"{path.stem}-{options.replicates}-replicates")
            warn(f"{kept} has more replicates and is kept; this fit is {path}")
        try:
            write_text(path, json_line_per_row(result.model_dump(mode="json")))
        except InputError as e:  # a place that is not ours to write
            warn(f"{e} This fit is not kept.")
    return result


def _has_more_replicates(path: Path, runs: Sequence[RunRecord], replicates: int) -> bool:
    try:
        earlier = read_fit_file(path)
    except InputError:  # none, or one that cannot be used
        return False
    return (
        earlier.intervals is not None
        and earlier.intervals.replicates > replicates
        and not _is_stale(earlier, runs)
    )


def fit_runs(
    runs: Sequence[RunRecord],
    metric: str,
    compute: str,
    options: FitOptions,
    description: str = "fitting",
) -> FitResult:
    with progress_bar(options, description) as shown_options:
        return fit(runs, metric, compute, shown_options)


@contextmanager
def progress_bar(options: FitOptions, description: str) -> Iterator[FitOptions]:
    """The options of a fit that moves a bar on standard error, where that is a terminal; it
    vanishes when done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = SafeConsole(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(escape(printable(description)), total=None)
        yield replace(
            options,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )


def is_sweep_folder(path: Path) -> bool:
    return path.is_dir() and (path / "cells").is_dir()


def sweep_folder(run: Path) -> Path:
    """The folder itself, once it is known to hold a sweep."""
    if not is_sweep_folder(run):
        raise InputError(
            f"{run} is no sweep's folder; expected one that holds cells/, such as runs/quickstart."
        )
    return run


def read_fit(run: Path, include_flagged: bool = False) -> FitResult:
    """The fit of a sweep's folder or a fit.json; fitted where there is none, and again where the
    ledgers have grown."""
    if not run.is_dir():
        if include_flagged:
            raise InputError(
                f"{INCLUDE_FLAGGED} needs another fit, and {run} is a file; expected the sweep's folder."
            )
        result = read_fit_file(run)
        return (
            with_clocks(result, read_runs([run.parent])) if is_sweep_folder(run.parent) else result
        )
    options = FitOptions(include_flagged=include_flagged)
    path = run / fit_file_name("fit", None, "rollouts", options)
    if not path.exists():
        return make_fit([sweep_folder(run)], None, "rollouts", options)
    result = read_fit_file(path)
    if not is_sweep_folder(run):
        return result
    runs = read_runs([run])
    if _is_stale(result, runs):
        warn(f"{path} is older than the ledgers of its sweep and is made again")
        return make_fit([run], None, "rollouts", _options_of_fit(result))
    return with_clocks(result, runs)


def _options_of_fit(result: FitResult) -> FitOptions:
    """What a fit was asked for, so that one made again answers the same question."""
    include_flagged, settings = not result.health.left_out, result.intervals
    if settings is None:
        replicates = 0 if result.mode == DEFAULT_MODE else REPLICATES
        return FitOptions(result.mode, replicates, include_flagged=include_flagged)
    stated_run_sd = settings.run_sd if settings.run_sd_source == "as stated" else None
    return FitOptions(
        result.mode, settings.replicates, settings.seed, stated_run_sd, include_flagged
    )


def _is_stale(result: FitResult, runs: Sequence[RunRecord]) -> bool:
    """Whether the ledgers' runs have other points than the fit was made from, or other runs are
    flagged as broken."""

    def point_keys(rows: Sequence[FittedRun | FlaggedRun]) -> set[tuple[str, int, int]]:
        return {(f"{row.B_p}x{row.n}", row.seed, row.points) for row in rows}

    health = result.health
    used = [run for run in runs if not (health.left_out and health_flags(run))]
    scheduled = {
        (s.name, *pair)
        for s in result.schedules
        for pair in zip(s.seeds, s.evaluations, strict=True)
    }
    ledger_points = {(run.cell.kind, run.cell.seed, len(run.points)) for run in used}
    is_grown = ledger_points != point_keys(result.runs) | scheduled
    return is_grown or point_keys(flagged_runs(runs)) != point_keys(health.runs)
