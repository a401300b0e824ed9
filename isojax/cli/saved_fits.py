"""Fits as the commands use them: made from ledgers and kept beside them, read back, and made again where the ledgers
have grown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from isojax.cli.formatting import json_line_per_row
from isojax.core.atomic_files import write_text
from isojax.core.config import Config, read_saved_config
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.runs.ledger import INCLUDE_FLAGGED, default_metric, read_runs
from isojax.runs.workspace import display_path
from isojax.scaling.checks.flagged_runs import add_health, flagged_runs, healthy_runs
from isojax.scaling.fit import fit
from isojax.scaling.flat_document import flatten
from isojax.scaling.result import RunHealth

DEFAULT_MODE = "hierarchical"
NO_HEALTH: Mapping[str, Any] = {"left_out": True, "runs": []}  # what fits from before runs were flagged say of them


@dataclass(frozen=True)
class FitOptions:
    """What a fit may be asked for: mode, replicates behind the intervals, their seed, a stated run-to-run standard
    deviation, and to take the runs that are flagged as broken (scaling/checks/run_health.py) too."""

    mode: str = DEFAULT_MODE
    replicates: int = 500
    seed: int = 0
    run_sd: float | None = None
    include_flagged: bool = False

    @property
    def non_default_options(self) -> dict[str, bool]:
        """Option of the intervals -> whether it is not its default."""
        default = FitOptions()
        return {
            "--bootstrap": self.replicates != default.replicates,
            "--seed": self.seed != default.seed,
            "--run-sd": self.run_sd != default.run_sd,
            INCLUDE_FLAGGED: self.include_flagged,
        }


MAX_OTHER_METRICS = 6
OTHER_REPLICATES = 200
NON_REWARD_METRICS = {
    "parsed_fraction",
    "truncated",
    "verifier_failures",
}  # what an evaluation records of its rollouts besides rewards (told.metrics_of)
# What every command that reads a fit counts on, in schema 1 and 2.
REQUIRED_KEYS = (
    "mode",
    "metric",
    "compute",
    "runs",
    "curves",
    "frontier",
    "crossovers",
    "segments",
    "n_star",
    "by_B_p",
    "stability",
    "flags",
)


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
    paths: Sequence[Path], metric: str | None, compute: str, options: FitOptions = FitOptions()
) -> dict[str, Any]:
    """Fit the runs; a single sweep's folder gets its fit.json, or a file named after another metric, compute or mode
    where one was asked."""
    runs = read_runs(paths, warn)
    fit_document = fit_runs(runs, metric or default_metric(runs), compute, options)
    if len(paths) == 1 and is_sweep_folder(paths[0]):
        write_text(
            paths[0] / fit_file_name("fit", metric, compute, options.mode, options.include_flagged),
            json_line_per_row(fit_document),
        )
    return fit_document


def fit_runs(
    runs: Sequence[RunRecord], metric: str, compute: str, options: FitOptions, description: str = "fitting"
) -> dict[str, Any]:
    """The content of fit.json, its progress shown; runs that are flagged as broken are left out, unless asked for, and
    named.

    Raises:
        InputError: every run is flagged, or as `fit`.
    """
    fit_arguments = {
        "mode": options.mode,
        "replicates": options.replicates,
        "seed": options.seed,
        "run_sd": options.run_sd,
    }
    fitted = runs if options.include_flagged else healthy_runs(runs)
    with progress_bar(description) as advance:
        fit_result = fit(fitted, metric, compute, **fit_arguments, on_progress=advance)
    health = RunHealth(left_out=not options.include_flagged, runs=flagged_runs(runs))
    return flatten(add_health(fit_result, health))


def fitted_runs(runs: Sequence[RunRecord], fit_document: Mapping[str, Any]) -> list[RunRecord]:
    """Those of the runs that a fit was made from."""
    fitted_cells = {(r["B_p"], r["n"], r["seed"]) for r in fit_document["runs"]}
    return [r for r in runs if (r.cell.B_p, r.cell.n, r.cell.seed) in fitted_cells]


def other_fits(runs: Sequence[RunRecord], main_fit: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The other views of a report: the paper's procedure, best@k and worst@k where the counts give them, training
    reward, then other recorded metrics, the means of extra sets first. Metrics that are no rewards (NO_REWARDS, of any
    set) and views that these runs cannot give are left out."""
    last_point = runs[0].points[-1]
    samples = min(p.samples for r in runs for p in r.points)
    other_mode = "paper" if main_fit["mode"] != "paper" else DEFAULT_MODE
    views = [(main_fit["metric"], other_mode)]
    if samples >= 2 and last_point.counts:
        views += [(f"{kind}@{samples}", DEFAULT_MODE) for kind in ("best", "worst")]
    views += [("train/reward", DEFAULT_MODE)] if "reward" in last_point.train else []
    reward_metrics = {name for name in last_point.metrics if name.rpartition("/")[2] not in NON_REWARD_METRICS}
    other_metrics = sorted(
        reward_metrics - {metric for metric, _ in views}, key=lambda name: ("avg@" not in name, name)
    )
    views += [(name, DEFAULT_MODE) for name in other_metrics[:MAX_OTHER_METRICS]]
    fits = []
    for metric, mode in views:
        options = FitOptions(
            mode, replicates=OTHER_REPLICATES, include_flagged=_options_of_fit(main_fit).include_flagged
        )
        try:
            fits.append(fit_runs(runs, metric, main_fit["compute"], options, f"fitting {metric} ({mode})"))
        except InputError as e:
            warn(f"the report has no view of {metric} ({mode}): {e}")
    return fits


def is_sweep_folder(path: Path) -> bool:
    """Whether a folder holds cells/."""
    return path.is_dir() and (path / "cells").is_dir()


def sweep_folder(run: Path) -> Path:
    """The folder itself, once it is known to hold a sweep."""
    if not is_sweep_folder(run):
        raise InputError(f"{run} is no sweep's folder; expected one that holds cells/, such as runs/quickstart.")
    return run


def read_fit(run: Path, include_flagged: bool = False) -> dict[str, Any]:
    """A sweep's fit.json, or that file itself; a sweep that has none is fitted. `include_flagged`: the fit of all runs
    of a folder.
    """
    if include_flagged and not run.is_dir():
        raise InputError(
            f"{INCLUDE_FLAGGED} asks for another fit of a sweep, and {run} is a file; expected the sweep's folder."
        )
    path = run / fit_file_name("fit", None, "rollouts", DEFAULT_MODE, include_flagged) if run.is_dir() else run
    if run.is_dir() and not path.exists():
        return make_fit([sweep_folder(run)], None, "rollouts", FitOptions(include_flagged=include_flagged))
    try:
        fit_document = json.loads(path.read_bytes())
    except (OSError, ValueError) as e:
        raise InputError(
            f"cannot read {path}: {e}. Expected a sweep's folder or a fit.json; `isojax fit RUN` writes one."
        ) from e
    schema = fit_document.get("schema") if isinstance(fit_document, dict) else None
    if schema not in (1, 2):
        actual = "no fit" if schema is None else f"a fit of schema {schema!r}"
        raise InputError(
            f"{path} is {actual}; expected one of schema 1 or 2. `isojax fit RUN` with this isojax writes one."
        )
    missing_keys = [key for key in REQUIRED_KEYS if key not in fit_document]
    if missing_keys:
        raise InputError(
            f"{path} is incomplete, it has no {', '.join(missing_keys)}; expected what `isojax fit RUN` writes. Make it again."
        )
    if run.is_dir() and is_sweep_folder(run) and _is_stale(fit_document, run):
        warn(f"{path} is older than the ledgers beside it and is made again")
        return make_fit([run], None, "rollouts", _options_of_fit(fit_document))
    if run.is_dir():
        fit_document.setdefault(
            "health", dict(NO_HEALTH)
        )  # a fit that says nothing of flags and is not stale: no run has one
    if schema == 1:
        warn(f"{path} is of schema 1: the paper's procedure, without intervals; `isojax fit RUN` makes one with them")
    return fit_document


def _options_of_fit(fit_document: Mapping[str, Any]) -> FitOptions:
    """What a fit was asked for, so that one made again answers the same question."""
    mode, interval_settings = fit_document.get("mode", DEFAULT_MODE), fit_document.get("intervals")
    include_flagged = not fit_document.get("health", NO_HEALTH)["left_out"]
    if interval_settings is None:
        return FitOptions(
            mode, replicates=0 if mode == DEFAULT_MODE else FitOptions.replicates, include_flagged=include_flagged
        )
    stated_run_sd = interval_settings["run_sd"] if interval_settings["run_sd_source"] == "as stated" else None
    return FitOptions(mode, interval_settings["replicates"], interval_settings["seed"], stated_run_sd, include_flagged)


def _is_stale(fit_document: dict[str, Any], run: Path) -> bool:
    """Whether the ledgers hold other points than the fit was made from, or other runs of them are flagged as broken."""

    def point_keys(rows: Iterable[Mapping[str, Any]]) -> set[tuple[int, ...]]:
        return {(r["B_p"], r["n"], r["seed"], r["points"]) for r in rows}

    runs, fit_health = read_runs([run]), fit_document.get("health", NO_HEALTH)
    ledger_points = {(r.cell.B_p, r.cell.n, r.cell.seed, len(r.points)) for r in runs}
    fitted_points = point_keys(fit_document["runs"]) | (
        point_keys(fit_health["runs"]) if fit_health["left_out"] else set()
    )
    return ledger_points != fitted_points or {(r.B_p, r.n, r.seed, r.points) for r in flagged_runs(runs)} != point_keys(
        fit_health["runs"]
    )


def saved_sweep_config(run: Path) -> Config | None:
    """The config.yaml beside a sweep's fit; None where there is none, as for imported logs."""
    path = (run if run.is_dir() else run.parent) / "config.yaml"
    return read_saved_config(path) if path.exists() else None
