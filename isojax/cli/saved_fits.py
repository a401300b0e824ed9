"""Fits as the commands use them.

They are saved in the sweep's folder, and made again where its ledgers have grown.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from isojax.cli.formatting import json_line_per_row
from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.core.terminal import printable, warn
from isojax.report.console import SafeConsole
from isojax.runs.ledger import INCLUDE_FLAGGED, default_metric, read_runs
from isojax.scaling.checks.run_health import flagged_runs, health_flags
from isojax.scaling.curves.sweep_estimate import DEFAULT_MODE, DEFAULT_OPTIONS, FitOptions
from isojax.scaling.fit import fit, with_clocks
from isojax.scaling.intervals import REPLICATES
from isojax.scaling.result import FitResult, FittedRun, FlaggedRun, read_fit_file


def fit_file_name(stem: str, metric: str | None, compute: str, options: FitOptions) -> str:
    """The file of a fit: fit.json, of stem "fit", where nothing but defaults was asked for.

    Else the name says what was: fit-METRIC-COMPUTE-MODE-with-flagged.json.
    """
    words = [stem]
    for word in (metric, compute, options.mode):
        if word not in (None, "rollouts", DEFAULT_MODE):
            words.append(str(word))
    if options.include_flagged:
        words.append("with-flagged")

    # A metric such as train/reward has a slash.
    return "-".join(words).replace("/", "-") + ".json"


def make_fit(
    paths: Sequence[Path], metric: str | None, compute: str, options: FitOptions = DEFAULT_OPTIONS
) -> FitResult:
    """Fit the runs of these paths; a single sweep's folder gets the result as a file.

    paths: sweep folders, cell folders or ledgers.
    metric: such as "best@4" or "train/reward"; None: the ledger's avg@k.
    compute: what it is counted in: "rollouts", "tokens" or "device_hours".

    The file is named by `fit_file_name`, but an earlier fit of the same runs with more replicates
    (draws behind its intervals) is kept, and this one gets another name. InputError for ledgers
    that cannot be read or fitted.
    """
    runs = read_runs(paths, warn)
    metric_name = default_metric(runs) if metric is None else metric
    result = fit_runs(runs, metric_name, compute, options)

    if len(paths) == 1 and is_sweep_folder(paths[0]):
        path = paths[0] / fit_file_name("fit", metric, compute, options)
        if _has_more_replicates(path, runs, options.replicates):
            earlier_path = path
            path = path.with_stem(f"{path.stem}-{options.replicates}-replicates")
            warn(f"{earlier_path} has more replicates and is kept; this fit is {path}")

        try:
            write_text(path, json_line_per_row(result.model_dump(mode="json")))
        except InputError as e:
            # Somebody else's folder may be read only; the fit is still good for an answer.
            warn(f"{e} This fit is not kept.")
    return result


def _has_more_replicates(path: Path, runs: Sequence[RunRecord], replicates: int) -> bool:
    """Whether the fit in a file is of these runs as they are now, and took longer to make."""
    try:
        earlier = read_fit_file(path)
    except InputError:
        return False  # There is none, or one that cannot be used.

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
    """Fit runs, with a bar of this description while it takes."""
    with progress_bar(options, description) as options_with_bar:
        return fit(runs, metric, compute, options_with_bar)


@contextmanager
def progress_bar(options: FitOptions, description: str) -> Iterator[FitOptions]:
    """A context with a bar on standard error, where that is a terminal; it vanishes at the end.

    It gives the same options with an `on_progress` that moves the bar: pass these to the fit.
    `description`: of what is fitted, to stand before the bar.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = SafeConsole(stderr=True)
    is_hidden = not console.is_terminal

    with Progress(*columns, console=console, transient=True, disable=is_hidden) as progress:
        task = progress.add_task(escape(printable(description)), total=None)

        def on_progress(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield replace(options, on_progress=on_progress)


def is_sweep_folder(path: Path) -> bool:
    """Whether a path is the folder of a sweep, or of imported runs: one that holds cells/."""
    return path.is_dir() and (path / "cells").is_dir()


def sweep_folder(run: Path) -> Path:
    """The folder itself, once it is known to hold a sweep; InputError where it does not."""
    if not is_sweep_folder(run):
        raise InputError(
            where=run,
            found="no sweep's folder",
            expected="one that holds cells/, such as runs/quickstart",
        )
    return run


def read_fit(run: Path, include_flagged: bool = False) -> FitResult:
    """The fit of a sweep's folder, or of a fit.json.

    run: the folder, or the file. A folder is fitted where it has no fit, and again where its
        ledgers have grown since.
    include_flagged: whether runs that are flagged as broken are fitted too; not with a file.

    With the times of the runs as the ledgers have them now. InputError for a path that is neither.
    """
    if not run.is_dir():
        return _read_named_fit(run, include_flagged)

    options = FitOptions(include_flagged=include_flagged)
    path = run / fit_file_name("fit", None, "rollouts", options)
    if not path.exists():
        return make_fit([sweep_folder(run)], None, "rollouts", options)

    result = read_fit_file(path)
    if not is_sweep_folder(run):
        return result  # A folder of fits alone: there are no ledgers to compare it with.

    runs = read_runs([run])
    if _is_stale(result, runs):
        warn(f"{path} is older than the ledgers of its sweep and is made again")
        return make_fit([run], None, "rollouts", _options_of_fit(result))
    return with_clocks(result, runs)


def _read_named_fit(path: Path, include_flagged: bool) -> FitResult:
    """The fit in a file, with the clocks of the runs in its folder where there are any."""
    if include_flagged:
        raise InputError(
            found=f"{INCLUDE_FLAGGED} needs another fit, and {path} is a file",
            expected="the sweep's folder",
        )

    result = read_fit_file(path)
    if is_sweep_folder(path.parent):
        return with_clocks(result, read_runs([path.parent]))
    return result


def _options_of_fit(result: FitResult) -> FitOptions:
    """The options that a fit was made with, so that one made again answers the same question."""
    include_flagged = not result.health.left_out  # `left_out`: whether flagged runs are
    intervals = result.intervals  # how they were made; None where the fit has none

    if intervals is None:
        # The default mode has intervals unless it was asked for 0 replicates. In the paper's mode
        # a fit may lack them in any case, so that the number asked for is not known: the default.
        replicates = 0 if result.mode == DEFAULT_MODE else REPLICATES
        return FitOptions(result.mode, replicates, include_flagged=include_flagged)

    # The standard deviation between seeds: one that was estimated is estimated again.
    stated_run_sd = intervals.run_sd if intervals.run_sd_source == "as stated" else None
    return FitOptions(
        mode=result.mode,
        replicates=intervals.replicates,
        seed=intervals.seed,
        run_sd=stated_run_sd,
        include_flagged=include_flagged,
    )


class EvaluatedRun(NamedTuple):
    """How many evaluations a run has, of which a ledger only ever gets more."""

    kind: str  # the cell's: 32x8, or the name of its schedule
    seed: int
    evaluations: int


def _evaluated_runs(rows: Sequence[FittedRun | FlaggedRun]) -> set[EvaluatedRun]:
    return {EvaluatedRun(f"{row.B_p}x{row.n}", row.seed, row.points) for row in rows}


def _is_stale(result: FitResult, runs: Sequence[RunRecord]) -> bool:
    """Whether a fit is no longer that of the ledgers' runs.

    They have other points than the fit was made from, or other runs are flagged as broken. A ledger
    only ever grows, so it is enough to compare the numbers of points.
    """
    health = result.health

    runs_in_ledgers: set[EvaluatedRun] = set()
    for run in runs:
        is_left_out = health.left_out and health_flags(run)  # () of a run that did not break
        if not is_left_out:
            runs_in_ledgers.add(EvaluatedRun(run.cell.kind, run.cell.seed, len(run.points)))

    # Runs with a schedule are listed apart from those with a fixed n; in `seeds` and `evaluations`
    # index i is the same run.
    runs_in_fit = _evaluated_runs(result.runs)
    for schedule in result.schedules:
        for seed, evaluations in zip(schedule.seeds, schedule.evaluations, strict=True):
            runs_in_fit.add(EvaluatedRun(schedule.name, seed, evaluations))

    is_flagged_otherwise = _evaluated_runs(flagged_runs(runs)) != _evaluated_runs(health.runs)
    return runs_in_ledgers != runs_in_fit or is_flagged_otherwise
