"""`isojax records import`: logs in, a sweep's folder of ledgers out, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from isojax.files import write_text
from isojax.logs.fields import bind
from isojax.logs.runs import gather, records
from isojax.logs.table import Tick, other_format
from isojax.records import write_run
from isojax.registry import load
from isojax.types import InputError, RunRecord

MANIFEST = "import.json"


@dataclass(frozen=True)
class Imported:
    """What was read: the runs by cell, and what had to be assumed or left out."""

    runs: tuple[RunRecord, ...]
    notes: tuple[str, ...]


def read_logs(files: Sequence[Path], format: str, asked: Mapping[str, str], tick: Tick) -> Imported:
    """Logs of one format as runs.

    Args:
        files: the logs; a folder where the format has runs as folders (wandb, tensorboard, trl).
        format: a plug-in's name, or the module path of one.
        asked: field -> column or constant, from `fields.parse_map`.
        tick: hears of bytes as they are read.

    Raises:
        InputError: an unknown format; a file that cannot be used, with its place; a column that is not there; runs that clash.
    """
    plugin = load("logs", format, "read")
    _refuse_twice(files)
    gathered, said = [], []
    for path in files:
        if not path.exists():
            raise InputError(f"no such log: {path}. Expected a file that exists; check its name.")
        try:
            tables = plugin.read(path, tick)
        except OSError as e:
            raise InputError(f"cannot read {path}: {e.strerror or e}. Check who may read it.") from e
        for table in tables:
            try:
                bound = bind(table, asked, plugin.FIELDS)
            except InputError as e:
                raise InputError(f"{e}{other_format(path, format)}") from e
            gathered += gather(table, bound)
            said += [f"{table.source}: {note}" for note in table.notes]
    runs, notes = records(gathered)
    return Imported(tuple(runs), tuple(said + notes))


def _refuse_twice(files: Sequence[Path]) -> None:
    seen: dict[Path, Path] = {}
    for path in files:
        before = seen.setdefault(path.resolve(), path)
        if before is not path:
            raise InputError(f"{path} is given twice (as {before} too), expected once; leave one out.")


def check_out(out: Path) -> None:
    """Refuse a folder to write that is there and holds something.

    Raises:
        InputError: `out` is a file, or a folder that is not empty.
    """
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InputError(f"--out {out} is there and is no folder; it is kept. Give another name.")
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"--out {out} is there and is not empty; it is kept. Give another name, or remove it.")


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name in one step when all went well, and is gone otherwise."""
    temp = out.with_name(f".{out.name}.{os.getpid()}")
    missing = [folder for folder in out.parents if not folder.exists()]
    try:
        temp.mkdir(parents=True)
        yield temp
        check_out(out)
        os.replace(temp, out)
    except OSError as e:
        raise InputError(f"cannot write {out}: {e.strerror or e}. Choose a folder you may write.") from e
    finally:
        shutil.rmtree(temp, ignore_errors=True)
        with suppress(OSError):  # those that are not empty hold what was written
            for folder in missing:
                folder.rmdir()


def write_ledgers(imported: Imported, out: Path, said: Mapping[str, object], done: Callable[[], None]) -> None:
    """The runs as cells/<B_p>x<n>-s<seed>/records.jsonl below `out`, and import.json, which says what they were made from.

    Args:
        imported: the runs.
        out: a folder that is not there, or is empty.
        said: what import.json says beside the runs: files, format, map.
        done: hears of every run written.

    Raises:
        InputError: `out` holds something, or cannot be written; nothing is left behind.
    """
    out = out.absolute()
    check_out(out)
    with _beside(out) as temp:
        for run in imported.runs:
            write_run(temp / "cells" / run.cell.name, run)
            done()
        cells = {run.cell.name: run.source for run in imported.runs}
        write_text(temp / MANIFEST, json.dumps({**said, "cells": cells, "notes": imported.notes}, indent=1) + "\n")
