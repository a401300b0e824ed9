"""How cells have ended: the flags of runs that broke, in health.json and for the display, and the error of a sweep in
which cells failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import Cell
from isojax.runs.ledger import HEALTH_FILE
from isojax.runs.ledger_reader import read_run
from isojax.scaling.checks.run_health import health_flags


def write_health(folder: Path, cell: Cell, on_flags: Callable[[Cell, list[str]], None]) -> None:
    """Write `folder`/health.json and report its flags; nothing for a run that broke before its first evaluation.

    isojax itself computes the flags whenever it reads a ledger: the file is for other programs.
    """
    try:
        run = read_run(folder)
    except InputError:
        return
    flags = health_flags(run)
    document = {"cell": cell.name, "C": run.points[-1].rollouts, "flags": [asdict(flag) for flag in flags]}
    text = json.dumps(document, indent=1) + "\n"
    path = folder / HEALTH_FILE
    if not path.exists() or path.read_text() != text:
        write_text(path, text)
    on_flags(cell, [str(flag) for flag in flags])


def raise_cell_failures(failures: Sequence[tuple[Cell, Exception]], num_cells: int, folder: Path) -> None:
    """Raise one error for all cells of a sweep that failed: an InputError where every cell failed by one, else
    RunFailed."""
    if not failures:
        return
    if len(failures) == num_cells and all(isinstance(error, InputError) for _, error in failures):
        raise InputError(" ".join(dict.fromkeys(str(error) for _, error in failures)))
    errors = [f"{cell.name}: {error}" for cell, error in failures]
    if num_cells == 1:
        raise RunFailed(errors[0])
    summary = f"{len(failures)} of {num_cells} cells failed; the others are recorded in {folder}."
    raise RunFailed("\n  ".join([summary, *errors]))
