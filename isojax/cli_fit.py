"""Fits as the commands use them: made from ledgers and kept beside them, read back, and made again where the ledgers have grown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from isojax.cli_words import plain, rows_text
from isojax.files import write_text
from isojax.records import INCLUDE_FLAGGED, default_metric
from isojax.storage import shown
from isojax.types import InputError, RunRecord

if TYPE_CHECKING:
    from isojax.config import Config

MODE = "debiased"
UNTOLD: Mapping[str, Any] = {"left_out": True, "runs": []}  # what fits from before runs were flagged say of them
IncludeFlagged = Annotated[bool, typer.Option(INCLUDE_FLAGGED, help="Fit the runs that are flagged as broken too; else they are left out.")]


@dataclass(frozen=True)
class FitOptions:
    """What a fit may be asked for: mode, replicates behind the intervals, their seed, a stated run-to-run standard deviation, and to take
    the runs that are flagged as broken (scaling/health.py) too."""

    mode: str = MODE
    replicates: int = 500
    seed: int = 0
    run_sd: float | None = None
    include_flagged: bool = False

    @property
    def differing(self) -> dict[str, bool]:
        """Option of the intervals -> whether it is not its default."""
        default = FitOptions()
        return {
            "--bootstrap": self.replicates != default.replicates,
            "--seed": self.seed != default.seed,
            "--run-sd": self.run_sd != default.run_sd,
            INCLUDE_FLAGGED: self.include_flagged,
        }


MOST_OTHER_METRICS = 6
OTHER_REPLICATES = 200
NO_REWARDS = {"answered", "truncated", "verifier_failures"}  # what an evaluation records of its rollouts besides rewards (told.metrics_of)
# What every command that reads a fit counts on, in schema 1 and 2.
NEEDED = ("mode", "metric", "compute", "runs", "curves", "frontier", "crossovers", "segments", "n_star", "by_B_p", "stability", "flags")


def warn(text: str) -> None:
    """One line on standard error."""
    print(f"warning: {shown(text)}", file=sys.stderr)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """advance(done, of how many) as a bar on standard error, where that is a terminal; it vanishes when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def file_name(stem: str, metric: str | None, compute: str, mode: str = MODE, include_flagged: bool = False) -> str:
    """fit.json; where another metric, compute or mode was asked, or flagged runs too, fit-METRIC-COMPUTE-MODE-with-flagged.json."""
    asked = [
        *([metric.replace("/", "-")] if metric else []),
        *([compute] if compute != "rollouts" else []),
        *([mode] if mode != MODE else []),
        *(["with-flagged"] if include_flagged else []),
    ]
    return "-".join([stem, *asked]) + ".json"


def make_fit(paths: Sequence[Path], metric: str | None, compute: str, options: FitOptions = FitOptions()) -> dict[str, Any]:
    """Fit the runs; a single sweep's folder gets its fit.json, or a file named after another metric, compute or mode where one was
    asked."""
    from isojax.records import read_runs

    runs = read_runs(paths, warn)
    document = fit_runs(runs, metric or default_metric(runs), compute, options)
    if len(paths) == 1 and is_sweep(paths[0]):
        write_text(paths[0] / file_name("fit", metric, compute, options.mode, options.include_flagged), rows_text(document))
    return document


def fit_runs(runs: Sequence[RunRecord], metric: str, compute: str, options: FitOptions, what: str = "fitting") -> dict[str, Any]:
    """The content of fit.json, its progress shown; runs that are flagged as broken are left out, unless asked for, and named.

    Raises:
        InputError: every run is flagged, or as `fit`.
    """
    from isojax.scaling.fit import fit
    from isojax.scaling.health import flagged, healthy, with_health

    chosen = {"mode": options.mode, "replicates": options.replicates, "seed": options.seed, "run_sd": options.run_sd}
    kept = runs if options.include_flagged else healthy(runs)
    with progress(what) as advance:
        document = plain(fit(kept, metric, compute, **chosen, advance=advance))
    return with_health(document, flagged(runs), not options.include_flagged)


def fitted_runs(runs: Sequence[RunRecord], document: Mapping[str, Any]) -> list[RunRecord]:
    """Those of the runs that a fit was made from."""
    cells = {(r["B_p"], r["n"], r["seed"]) for r in document["runs"]}
    return [r for r in runs if (r.cell.B_p, r.cell.n, r.cell.seed) in cells]


def other_fits(runs: Sequence[RunRecord], main: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The other views of a report: the paper's procedure, best@k and worst@k where the counts give them, training reward, then
    other recorded metrics, the means of extra sets first. Metrics that are no rewards (NO_REWARDS, of any set) and views that these
    runs cannot give are left out."""
    first = runs[0].points[-1]
    samples = min(p.samples for r in runs for p in r.points)
    other_mode = "paper" if main["mode"] != "paper" else MODE
    wanted = [(main["metric"], other_mode)]
    if samples >= 2 and first.counts:
        wanted += [(f"{kind}@{samples}", MODE) for kind in ("best", "worst")]
    wanted += [("train/reward", MODE)] if "reward" in first.train else []
    rewards = {name for name in first.metrics if name.rpartition("/")[2] not in NO_REWARDS}
    rest = sorted(rewards - {metric for metric, _ in wanted}, key=lambda name: ("avg@" not in name, name))
    wanted += [(name, MODE) for name in rest[:MOST_OTHER_METRICS]]
    found = []
    for metric, mode in wanted:
        options = FitOptions(mode, replicates=OTHER_REPLICATES, include_flagged=_options_of(main).include_flagged)
        try:
            found.append(fit_runs(runs, metric, main["compute"], options, f"fitting {metric} ({mode})"))
        except InputError as e:
            warn(f"the report has no view of {metric} ({mode}): {e}")
    return found


def is_sweep(path: Path) -> bool:
    """Whether a folder holds cells/."""
    return path.is_dir() and (path / "cells").is_dir()


def sweep_folder(run: Path) -> Path:
    """The folder itself, once it is known to hold a sweep."""
    if not is_sweep(run):
        raise InputError(f"{run} is no sweep's folder; expected one that holds cells/, such as runs/quickstart.")
    return run


def read_fit(run: Path, include_flagged: bool = False) -> dict[str, Any]:
    """A sweep's fit.json, or that file itself; a sweep that has none is fitted. `include_flagged`: the fit of all runs of a folder."""
    if include_flagged and not run.is_dir():
        raise InputError(f"{INCLUDE_FLAGGED} asks for another fit of a sweep, and {run} is a file; expected the sweep's folder.")
    path = run / file_name("fit", None, "rollouts", MODE, include_flagged) if run.is_dir() else run
    if run.is_dir() and not path.exists():
        return make_fit([sweep_folder(run)], None, "rollouts", FitOptions(include_flagged=include_flagged))
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as e:
        raise InputError(f"cannot read {path}: {e}. Expected a sweep's folder or a fit.json; `isojax fit RUN` writes one.") from e
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in (1, 2):
        given = "no fit" if schema is None else f"a fit of schema {schema!r}"
        raise InputError(f"{path} is {given}; expected one of schema 1 or 2. `isojax fit RUN` with this isojax writes one.")
    missing = [key for key in NEEDED if key not in document]
    if missing:
        raise InputError(f"{path} is incomplete, it has no {', '.join(missing)}; expected what `isojax fit RUN` writes. Make it again.")
    if run.is_dir() and is_sweep(run) and _is_stale(document, run):
        warn(f"{path} is older than the ledgers beside it and is made again")
        return make_fit([run], None, "rollouts", _options_of(document))
    if run.is_dir():
        document.setdefault("health", dict(UNTOLD))  # a fit that says nothing of flags and is not stale: no run has one
    if schema == 1:
        warn(f"{path} is of schema 1: the paper's procedure, without intervals; `isojax fit RUN` makes one with them")
    return document


def _options_of(document: Mapping[str, Any]) -> FitOptions:
    """What a fit was asked for, so that one made again answers the same question."""
    mode, how = document.get("mode", MODE), document.get("intervals")
    include = not document.get("health", UNTOLD)["left_out"]
    if how is None:
        return FitOptions(mode, replicates=0 if mode == MODE else FitOptions.replicates, include_flagged=include)
    stated = how["run_sd"] if how["run_sd_source"] == "as stated" else None
    return FitOptions(mode, how["replicates"], how["seed"], stated, include)


def _is_stale(document: dict[str, Any], run: Path) -> bool:
    """Whether the ledgers hold other points than the fit was made from, or other runs of them are flagged as broken."""
    from isojax.records import read_runs
    from isojax.scaling.health import flagged

    def points(rows: Iterable[Mapping[str, Any]]) -> set[tuple[int, ...]]:
        return {(r["B_p"], r["n"], r["seed"], r["points"]) for r in rows}

    runs, told = read_runs([run]), document.get("health", UNTOLD)
    there = {(r.cell.B_p, r.cell.n, r.cell.seed, len(r.points)) for r in runs}
    known = points(document["runs"]) | (points(told["runs"]) if told["left_out"] else set())
    return there != known or points(flagged(runs)) != points(told["runs"])


def saved_config(run: Path) -> Config | None:
    """The config.yaml beside a sweep's fit; None where there is none, as for imported logs."""
    from isojax.config import read_saved

    path = (run if run.is_dir() else run.parent) / "config.yaml"
    return read_saved(path) if path.exists() else None
