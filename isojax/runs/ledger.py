"""The run ledger: what a run measured, one JSON line per point, append-only and readable by any tool.

A cell's folder holds `records.jsonl` (a header line of kind "cell", then lines of kind "eval"; the same bits whenever
the same run is repeated), `timing.jsonl` (wall-clock times) and, once it has ended, `health.json`, whether it ended
well. A torn last line, left by a kill or a full disk, loses that line alone."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from isojax.core.atomic_files import append_bytes, write_text
from isojax.core.errors import InputError
from isojax.core.nouns import Cell, EvalPoint, RunRecord

RECORDS_FILE = "records.jsonl"
TIMING_FILE = "timing.jsonl"
HEALTH_FILE = "health.json"  # what flags a run as broken, written as it ends
SCHEMA = 1
# The option of commands that puts back runs flagged as broken (scaling/checks/run_health.py).
INCLUDE_FLAGGED = "--include-flagged"


class LedgerLines(NamedTuple):
    """The rows of a ledger's file, the bytes they take, and whether a torn last line was left out."""

    rows: list[dict[str, Any]]
    complete_bytes: int
    torn: bool


def read_ledger_lines(path: Path) -> LedgerLines:
    """The rows of records.jsonl or timing.jsonl, without a torn last line; InputError where another line is broken."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise InputError(f"cannot read the ledger {path}: {e.strerror or e}") from e
    complete, _, torn = data.rpartition(b"\n")
    rows: list[dict[str, Any]] = []
    for line_number, line in enumerate(complete.split(b"\n") if complete else [], 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or "kind" not in row:
                raise ValueError("not a JSON object with a 'kind'")
        except ValueError as e:
            raise InputError(
                f"{path}, line {line_number} is broken ({e}); only a torn last line can be left out. Restore the file,"
                " or remove the cell's folder and run it again."
            ) from e
        rows.append(row)
    return LedgerLines(rows, len(data) - len(torn), bool(torn))


class Ledger:
    """A cell's ledger, open for appending; opening cuts a torn last line. A run that resumes from an older checkpoint
    comes to points that are recorded already, and leaves them as they are. `on_append` is called after each new
    point."""

    def __init__(self, folder: Path, cell: Cell, cell_hash: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / RECORDS_FILE
        self.on_append: Callable[[], None] = lambda: None
        for path in (self.path, folder / TIMING_FILE):
            if path.exists() and (lines := read_ledger_lines(path)).torn:
                os.truncate(path, lines.complete_bytes)
        header = _header_row(cell, cell_hash)
        rows = read_ledger_lines(self.path).rows if self.path.exists() else []
        if not rows:
            _append_row(self.path, header)
        elif rows[0] != header:
            raise InputError(
                f"{self.path} belongs to another run ({rows[0]}), not to {header}; choose another `name=`, or"
                " remove it."
            )
        self.targets: list[int] = [row["target"] for row in rows if row["kind"] == "eval"]

    def append(self, point: EvalPoint, seconds: float, devices: int) -> None:
        """Record a point and the seconds of wall clock since the one before, unless its target is recorded already."""
        if point.target in self.targets:
            return
        _append_row(
            self.folder / TIMING_FILE,
            {"kind": "timing", "target": point.target, "seconds": round(seconds, 6), "devices": devices},
        )
        _append_row(self.path, {"kind": "eval", **asdict(point)})
        self.targets.append(point.target)
        self.on_append()

    def record_failure(self, M: int, reason: str) -> None:
        """Record that the run broke off after update M, and why."""
        row = {"kind": "failed", "M": M, "reason": reason}
        if read_ledger_lines(self.path).rows[-1] != row:
            _append_row(self.path, row)


def write_run(folder: Path, run: RunRecord) -> None:
    """A whole run, measured elsewhere, as records.jsonl and, where its device hours are known, timing.jsonl."""
    folder.mkdir(parents=True)
    points = [{"kind": "eval", **asdict(point)} for point in run.points]
    _write_rows(folder / RECORDS_FILE, [_header_row(run.cell, run.cell_hash), *points])
    if run.device_hours:
        interval_hours = [b - a for a, b in pairwise((0.0, *run.device_hours))]
        timed_points = zip(run.points, interval_hours, strict=True)
        _write_rows(
            folder / TIMING_FILE,
            [{"kind": "timing", "target": p.target, "seconds": 3600 * h, "devices": 1} for p, h in timed_points],
        )


def _append_row(path: Path, row: Mapping[str, Any]) -> None:
    append_bytes(path, (json.dumps(row) + "\n").encode())


def _write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def _header_row(cell: Cell, cell_hash: str) -> dict[str, Any]:
    return {"kind": "cell", "schema": SCHEMA, "B_p": cell.B_p, "n": cell.n, "seed": cell.seed, "cell_hash": cell_hash}
