"""What becomes of a run's flags when it ends: shown, and written beside its ledger for others to read. No jax here.

isojax itself computes them anew whenever it reads a ledger (scaling/checks/run_health.py), so that old and imported
ledgers have them too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.runs.ledger import HEALTH_FILE
from isojax.runs.ledger_reader import read_run
from isojax.scaling.checks.run_health import health_flags


def write_health(folder: Path, cell: Cell, on_flags: Callable[[Cell, list[str]], None]) -> None:
    """Write `folder`/health.json and tell what it says; nothing for a run that broke before its first evaluation, whose
    error says why.
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
