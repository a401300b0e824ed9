"""`isojax records import`: logs in, a sweep's folder of ledgers out, whole or not at all."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isojax.core.atomic_files import atomic_folder, write_text
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.core.registry import load
from isojax.runs.ledger import write_run
from isojax.runs.logs.log_runs import LogRun, group_rows, to_run_records
from isojax.runs.logs.map_columns import map_columns

MANIFEST_FILE = "import.json"


@dataclass(frozen=True)
class ImportedRuns:
    """What was read: the runs by cell, and what had to be assumed or left out."""

    runs: tuple[RunRecord, ...]
    notes: tuple[str, ...]


def read_logs(files: Sequence[Path], log_format: str, field_map: Mapping[str, str]) -> ImportedRuns:
    """Logs of one format as runs; InputError, with its place, for whatever cannot be used.

    Args:
        files: the logs; a folder where the format has runs as folders (wandb, tensorboard, trl).
        log_format: an importer's name, or the module path of one.
        field_map: field -> column or constant, from `parse_field_map`."""
    importer = load("runs.importers", log_format, "read")
    path_by_target: dict[Path, Path] = {}
    log_runs: list[LogRun] = []
    table_notes: list[str] = []
    for path in files:
        if not path.exists():
            raise InputError(f"no such log: {path}. Expected a file that exists; check its name.")
        earlier_path = path_by_target.setdefault(path.resolve(), path)
        if earlier_path is not path:
            raise InputError(f"{path} is given twice (as {earlier_path} too), expected once; leave one out.")
        try:
            tables = importer.read(path)
        except OSError as e:
            raise InputError(f"cannot read {path}: {e.strerror or e}. Check who may read it.") from e
        for table in tables:
            log_runs += group_rows(table, map_columns(table, field_map, importer.FIELDS))
            table_notes += [f"{table.source}: {note}" for note in table.notes]
    runs, notes = to_run_records(log_runs)
    return ImportedRuns(tuple(runs), tuple(table_notes + notes))


def check_output_folder(out: Path) -> None:
    """InputError where the folder to write is a file, or holds something."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InputError(f"--out {out} is there and is no folder; it is kept. Give another name.")
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"--out {out} is there and is not empty; it is kept. Give another name, or remove it.")


def write_ledgers(imported: ImportedRuns, out: Path, manifest: Mapping[str, object]) -> None:
    """Write the runs as cells/<B_p>x<n>-s<seed>/records.jsonl below `out`, and import.json: `manifest` (files, format,
    map), the log of each cell, and the notes. InputError where `out` holds something, or cannot be written; it is
    then as it was."""
    check_output_folder(out)
    with atomic_folder(out) as temp:
        for run in imported.runs:
            write_run(temp / "cells" / run.cell.name, run)
        cells = {run.cell.name: run.source for run in imported.runs}
        document = {**manifest, "cells": cells, "notes": imported.notes}
        write_text(temp / MANIFEST_FILE, json.dumps(document, indent=1) + "\n")
