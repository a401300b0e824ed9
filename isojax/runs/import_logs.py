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
from isojax.runs.ledger import write_run
from isojax.runs.log_fields import map_columns
from isojax.runs.log_runs import group_rows, to_run_records
from isojax.runs.log_table import BytesReadCallback, other_format_hint

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
        format: a plug-in's name, or the module path of one.
        asked: field -> column or constant, from `fields.parse_map`.
        tick: hears of bytes as they are read.

    Raises:
        InputError: an unknown format; a file that cannot be used, with its place; a column that is not there; runs that
        clash.
    """
    plugin = load("runs.importers", log_format, "read")
    _reject_duplicate_files(files)
    log_runs, table_notes = [], []
    for path in files:
        if not path.exists():
            raise InputError(f"no such log: {path}. Expected a file that exists; check its name.")
        try:
            tables = plugin.read(path, on_bytes_read)
        except OSError as e:
            raise InputError(f"cannot read {path}: {e.strerror or e}. Check who may read it.") from e
        for table in tables:
            try:
                column_map = map_columns(table, field_map, plugin.FIELDS)
            except InputError as e:
                raise InputError(f"{e}{other_format_hint(path, log_format)}") from e
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
    """Refuse a folder to write that is there and holds something.

    Raises:
        InputError: `out` is a file, or a folder that is not empty.
    """
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InputError(f"--out {out} is there and is no folder; it is kept. Give another name.")
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"--out {out} is there and is not empty; it is kept. Give another name, or remove it.")


@contextmanager
def _atomic_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name in one step when all went well, and is gone otherwise."""
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
        with suppress(OSError):  # those that are not empty hold what was written
            for folder in missing:
                folder.rmdir()


def write_ledgers(
    imported: ImportedRuns, out: Path, manifest: Mapping[str, object], on_run_written: Callable[[], None]
) -> None:
    """The runs as cells/<B_p>x<n>-s<seed>/records.jsonl below `out`, and import.json, which says what they were made
    from.

    Args:
        imported: the runs.
        out: a folder that is not there, or is empty.
        said: what import.json says beside the runs: files, format, map.
        done: hears of every run written.

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
        write_text(
            temp / MANIFEST_FILE, json.dumps({**manifest, "cells": cells, "notes": imported.notes}, indent=1) + "\n"
        )
