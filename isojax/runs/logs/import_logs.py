"""`isojax records import`: logs in, a sweep's folder of ledgers out, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.core.registry import load
from isojax.core.table_files import BytesReadCallback
from isojax.runs.ledger import write_run
from isojax.runs.logs.log_runs import LogRun, group_rows
from isojax.runs.logs.log_seeds import to_run_records
from isojax.runs.logs.log_table import other_format_hint
from isojax.runs.logs.map_columns import map_columns

MANIFEST_FILE = "import.json"


@dataclass(frozen=True)
class ImportedRuns:
    """What was read: the runs by cell, and what had to be assumed or left out."""

    runs: tuple[RunRecord, ...]
    notes: tuple[str, ...]


def read_logs(
    files: Sequence[Path], log_format: str, field_map: Mapping[str, str], on_bytes_read: BytesReadCallback
) -> ImportedRuns:
    """Logs of one format as runs.

    Args:
        files: the logs; a folder where the format has runs as folders (wandb, tensorboard, trl).
        log_format: an importer's name, or the module path of one.
        field_map: field -> column or constant, from `parse_field_map`.
        on_bytes_read: called with the number of bytes read since the last call.

    Raises:
        InputError: an unknown format; a file that cannot be used, with its place; a column that is not there; runs that
        clash.
    """
    importer = load("runs.importers", log_format, "read")
    _reject_duplicate_files(files)
    log_runs: list[LogRun] = []
    table_notes: list[str] = []
    for path in files:
        if not path.exists():
            raise InputError(f"no such log: {path}. Expected a file that exists; check its name.")
        try:
            tables = [
                (table, map_columns(table, field_map, importer.FIELDS)) for table in importer.read(path, on_bytes_read)
            ]
        except InputError as e:
            raise InputError(f"{e}{other_format_hint(path, log_format)}") from e
        except OSError as e:
            raise InputError(f"cannot read {path}: {e.strerror or e}. Check who may read it.") from e
        for table, column_map in tables:
            log_runs += group_rows(table, column_map)
            table_notes += [f"{table.source}: {note}" for note in table.notes]
    runs, notes = to_run_records(log_runs)
    return ImportedRuns(tuple(runs), tuple(table_notes + notes))


def _reject_duplicate_files(files: Sequence[Path]) -> None:
    path_by_target: dict[Path, Path] = {}
    for path in files:
        earlier = path_by_target.setdefault(path.resolve(), path)
        if earlier is not path:
            raise InputError(f"{path} is given twice (as {earlier} too), expected once; leave one out.")


def check_output_folder(out: Path) -> None:
    """Refuse a folder to write that exists and holds something.

    Raises:
        InputError: `out` is a file, or a folder that is not empty.
    """
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InputError(f"--out {out} is there and is no folder; it is kept. Give another name.")
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"--out {out} is there and is not empty; it is kept. Give another name, or remove it.")


@contextmanager
def _atomic_folder(out: Path) -> Iterator[Path]:
    """A temporary folder that takes the name `out` in one step when all went well, and is removed otherwise."""
    temp = out.with_name(f".{out.name}.{os.getpid()}")
    missing = [folder for folder in out.parents if not folder.exists()]
    try:
        temp.mkdir(parents=True)
        yield temp
        check_output_folder(out)
        os.replace(temp, out)
    except OSError as e:
        raise InputError(f"cannot write {out}: {e.strerror or e}. Choose a folder you may write.") from e
    finally:
        shutil.rmtree(temp, ignore_errors=True)
        with suppress(OSError):  # folders that are not empty hold what was written, and stay
            for folder in missing:
                folder.rmdir()


def write_ledgers(
    imported: ImportedRuns, out: Path, manifest: Mapping[str, object], on_run_written: Callable[[], None]
) -> None:
    """Write the runs as cells/<B_p>x<n>-s<seed>/records.jsonl below `out`, and import.json, which says what they were
    made from.

    Args:
        imported: the runs.
        out: a folder that does not exist, or is empty.
        manifest: what import.json says besides the runs: files, format, map.
        on_run_written: called after every run.

    Raises:
        InputError: `out` holds something, or cannot be written; nothing is left behind.
    """
    out = out.absolute()
    check_output_folder(out)
    with _atomic_folder(out) as temp:
        for run in imported.runs:
            write_run(temp / "cells" / run.cell.name, run)
            on_run_written()
        cells = {run.cell.name: run.source for run in imported.runs}
        document = {**manifest, "cells": cells, "notes": imported.notes}
        write_text(temp / MANIFEST_FILE, json.dumps(document, indent=1) + "\n")
