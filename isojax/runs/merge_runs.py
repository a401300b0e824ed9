"""Folders of imported runs joined into one, which every command takes as a sweep: imports of logs
of several formats, or with several maps."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple, NoReturn

from isojax.core.atomic_files import atomic_folder, write_text
from isojax.core.errors import InputError
from isojax.core.nouns import IMPORTED, Cell, RunRecord
from isojax.core.table_files import read_json_object
from isojax.core.tabular import list_some
from isojax.runs.ledger import default_metric, ledger_folders, read_run, write_run
from isojax.runs.logs.column_map import METRIC_AT_K
from isojax.runs.logs.measured_words import HELD_OUT, is_of_training, words_of_source
from isojax.runs.logs.source_words import depth_of_shared_folder, path_below


class MergedRuns(NamedTuple):
    runs: list[RunRecord]  # of all folders, by cell
    notes: list[str]


def merge_runs(paths: Sequence[Path]) -> MergedRuns:
    """All imported runs of these folders, sorted by cell, and notes.

    A run whose cell (B_p, n, seed) another run has already gets the lowest seed that is free, as
    each import numbered its seeds from 0. InputError where a run is there twice, where isojax
    trained it, and where the runs have no metric in common.
    """
    runs = [read_run(folder) for path in paths for folder in ledger_folders([path])]
    for run in runs:
        if run.cell_hash != IMPORTED:
            _refuse_trained(run, runs, paths)
    _reject_same_run(runs)
    notes = _compare_measurements(runs)

    # Give each run a cell that no run before it has.
    merged: list[RunRecord] = []
    renumbered: list[str] = []
    used_cells: set[Cell] = set()
    for run in runs:
        cell = run.cell
        if cell in used_cells:
            cell = _with_free_seed(cell, used_cells)
            renumbered.append(f"{run.source} is {cell.name}")
        used_cells.add(cell)
        merged.append(replace(run, cell=cell))
    merged.sort(key=lambda run: run.cell)

    _require_metric(merged)
    if renumbered:
        notes.append(f"seeds that were there twice are numbered anew: {list_some(renumbered)}")
    return MergedRuns(merged, notes)


def _with_free_seed(cell: Cell, used_cells: set[Cell]) -> Cell:
    """The cell with the lowest seed with which it is none of `used_cells`."""
    seeds = (replace(cell, seed=seed) for seed in count())
    return next(numbered for numbered in seeds if numbered not in used_cells)


def _refuse_trained(
    trained: RunRecord, runs: Sequence[RunRecord], paths: Sequence[Path]
) -> NoReturn:
    """InputError for a run that isojax trained: a merged folder would lose the config of its sweep.

    trained: one of `runs`, which `paths` hold. The message gives the command that takes these
    folders as they are, by whether their settings, which cell_hash sums up, are the same.
    """
    folders = shlex.join(map(str, paths))
    if len(paths) == 1:
        instead = f"It is a sweep already, which every command takes: isojax recommend {folders}"
    elif len({run.cell_hash for run in runs}) == 1:
        instead = f"Their settings are the same: fit them together by isojax fit {folders}"
    else:
        instead = f"Their settings differ, so no one law holds for all: isojax compare {folders}"
    raise InputError(
        where=trained.source,
        found="was trained by isojax",
        expected="runs that `isojax records import` wrote",
        fix=instead,
    )


def _require_metric(runs: Sequence[RunRecord]) -> None:
    """InputError where a run lacks the metric that a fit of all takes."""
    metric = default_metric(runs)
    for run in runs:
        if all(metric in point.metrics for point in run.points):
            continue
        option = f"--map {_metric_option(metric)}=COLUMN"
        raise InputError(
            where=runs[0].source,
            found=(
                f"has the validation metric {metric}, and {run.source} has {default_metric([run])}"
            ),
            expected="one of all runs",
            fix=f"Where they are one, import these logs again under its name: {option}.",
        )


def _metric_option(metric: str) -> str:
    """The field of --map for a metric: avg@4 as it is, any other NAME as metric:NAME."""
    return metric if METRIC_AT_K.fullmatch(metric) else f"metric:{metric}"


def _reject_same_run(runs: Sequence[RunRecord]) -> None:
    """InputError where two runs have the same points.

    Counted as two seeds, one run would make every confidence interval too narrow.
    """
    earlier_by_points: dict[str, RunRecord] = {}
    for run in runs:
        # Two different runs may agree by chance where every reward is the same, as all 0.
        is_constant = len({repr(point.metrics) for point in run.points}) == 1
        key = f"{run.cell.B_p} {run.cell.n} {run.points}"
        earlier = earlier_by_points.setdefault(key, run)
        if earlier is not run and not is_constant:
            raise InputError(
                where=run.source,
                found=f"holds the same run as {earlier.source}",
                fix="Leave one out.",
            )


def _compare_measurements(runs: Sequence[RunRecord]) -> list[str]:
    """Notes on runs of one (B_p, n) whose logs seem to have measured different things.

    They would count as its seeds, though the names of their logs differ in words such as "gsm8k"
    and "aime" (`words_of_source`). InputError where one is of training and another of validation.
    Only the part of a log's path below the folder that all logs share counts.
    """
    logs = [_log_of_run(run) for run in runs]
    depth = depth_of_shared_folder([Path(log).parent for log in logs])
    first_log_of_setting: dict[tuple[int, int], str] = {}
    notes = []
    for run, log in zip(runs, logs, strict=True):
        first_log = first_log_of_setting.setdefault((run.cell.B_p, run.cell.n), log)
        name = path_below(depth, log)
        first_name = path_below(depth, first_log)
        words = words_of_source(name)
        first_words = words_of_source(first_name)
        if words == first_words:
            continue

        # `^`: the words that only one of the two names has
        differing = " and ".join(sorted(words ^ first_words))
        place = f"B_p = {run.cell.B_p}, n = {run.cell.n}"
        problem = f"{first_log} and {log} differ in what their names say was measured ({differing})"
        only_one_is_of_training = is_of_training(name) != is_of_training(first_name)
        one_is_held_out = bool((words | first_words) & HELD_OUT)  # has a word such as val or eval
        if only_one_is_of_training and one_is_held_out:
            raise InputError(
                where=place,
                found=problem,
                expected="one measurement of each run",
                fix="Leave one import out.",
            )
        notes.append(f"{problem}, so are they no seeds of one setting?")
    return notes


def _log_of_run(run: RunRecord) -> str:
    """The path of the log that a run was imported from, or else of the run's ledger.

    import.json or merge.json of its sweep's folder has the path: an import in "cells", a merge in
    "logs".
    """
    cell_folder = Path(run.source).parent
    sweep_folder = cell_folder.parent.parent
    for name in ("import.json", "merge.json"):
        if not (sweep_folder / name).is_file():
            continue
        document = read_json_object(sweep_folder / name)
        logs = document.get("logs", document.get("cells", {}))
        if isinstance(logs, dict):
            return str(logs.get(cell_folder.name, run.source))
        return run.source
    return run.source


def write_merged(
    runs: Sequence[RunRecord], out: Path, paths: Sequence[Path], notes: Sequence[str]
) -> None:
    """Write merged runs to a folder, `out`, which is new or empty; it appears whole or not at all.

    It has each run's ledger below cells/, and merge.json, which records the merged folders
    (`paths`), the ledger and the log that each cell came from, and the notes.
    """
    with atomic_folder(out) as temp:
        for run in runs:
            write_run(temp / "cells" / run.cell.name, run)

        document = {
            "merged": [str(path) for path in paths],
            "cells": {run.cell.name: run.source for run in runs},
            "logs": {run.cell.name: _log_of_run(run) for run in runs},
            "notes": list(notes),
        }
        write_text(temp / "merge.json", json.dumps(document, indent=1) + "\n")
