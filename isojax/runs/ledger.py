"""The run ledger: what a run measured, one JSON line a point, append-only and readable by any tool.

A cell's folder holds `records.jsonl` (a header line of kind "cell", then lines of kind "eval"; the same bits whenever
the same run is repeated) and `timing.jsonl` (clocks, which never repeat); once it has ended also `health.json`, whether
it ended well. A torn last line, left by a kill or a full disk, loses that line alone; damage anywhere else is refused
with its place. No jax here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from isojax.core.atomic_files import append_bytes, write_text
from isojax.core.errors import InputError
from isojax.core.nouns import Cell, EvalPoint, RunRecord

RECORDS_FILE = "records.jsonl"
TIMING_FILE = "timing.jsonl"
HEALTH_FILE = "health.json"  # what flags a run, as it ended
SCHEMA = 1
INCLUDE_FLAGGED = (
    "--include-flagged"  # the option of commands that puts back runs flagged as broken (scaling/checks/run_health.py)
)


def _append_row(path: Path, row: Mapping[str, Any]) -> None:
    append_bytes(path, (json.dumps(row) + "\n").encode())


def _read_lines(path: Path) -> tuple[list[dict[str, Any]], int, bool]:
    """(rows, bytes they take, whether a torn last line was left out)."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise InputError(f"cannot read the ledger {path}: {e.strerror or e}") from e
    rows: list[dict[str, Any]] = []
    complete_bytes = 0
    lines = data.split(b"\n")
    for line_number, line in enumerate(lines, 1):
        is_last = line_number >= len(lines) - (lines[-1] == b"")
        if not line and is_last:
            break
        ends_with_newline = line_number < len(lines)
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or "kind" not in row:
                raise ValueError("not a JSON object with a 'kind'")
        except ValueError as e:
            if is_last:
                return rows, complete_bytes, True
            raise InputError(
                f"{path}, line {line_number} is broken ({e}); only a torn last line can be left out. "
                "Restore the file or remove the cell's folder and run it again."
            ) from e
        if not ends_with_newline:
            return rows, complete_bytes, True
        rows.append(row)
        complete_bytes += len(line) + 1
    return rows, complete_bytes, False


class Ledger:
    """A cell's ledger, open for appending.

    Opening cuts a torn last line. `append` writes each target once: a run that resumes from an older checkpoint meets
    points it has already recorded and leaves them as they are. `told` is called after each that was written
    (isojax.runs.loggers).
    """

    def __init__(self, folder: Path, cell: Cell, cell_hash: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / RECORDS_FILE
        self.targets: list[int] = []
        self.on_append: Callable[[], None] = lambda: None
        header = _header_row(cell, cell_hash)
        if self.path.exists():
            for path in (self.path, *([folder / TIMING_FILE] if (folder / TIMING_FILE).exists() else [])):
                _, size, torn = _read_lines(path)
                if torn:
                    os.truncate(path, size)
            rows, _, _ = _read_lines(self.path)
            if rows and rows[0] != header:
                raise InputError(
                    f"{self.path} belongs to another run ({rows[0]}), not to {header}; choose another `name=` or remove it."
                )
            self.targets = [row["target"] for row in rows if row["kind"] == "eval"]
            if rows:
                return
        _append_row(self.path, header)

    def append(self, point: EvalPoint, seconds: float, devices: int) -> None:
        """Record a point (unless its target is there already) and, beside it, the seconds of wall clock it took since
        the last one.
        """
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
        """Record that the run broke off after update M; readers of evaluations pass it by, and the fit hears of it."""
        row = {"kind": "failed", "M": M, "reason": reason}
        if _read_lines(self.path)[0][-1] != row:
            _append_row(self.path, row)


def write_run(folder: Path, run: RunRecord) -> None:
    """A whole run, measured elsewhere, as a ledger: records.jsonl and, where its device hours are known, timing.jsonl
    (on one device).
    """
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


def _write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def _header_row(cell: Cell, cell_hash: str) -> dict[str, Any]:
    return {"kind": "cell", "schema": SCHEMA, "B_p": cell.B_p, "n": cell.n, "seed": cell.seed, "cell_hash": cell_hash}


def _whole_number(row: Mapping[str, Any], key: str) -> int:
    """A whole number, 0 or more."""
    value = row[key]
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value != int(value)
        or value < 0
    ):
        raise ValueError(f"{key} is {value!r}, expected a whole number >= 0")
    return int(value)


def _row_error(e: Exception) -> str:
    """What a row lacks, in words."""
    return f"it has no {e}" if isinstance(e, KeyError) else str(e)


def _parse_point(row: Mapping[str, Any], path: Path, line_number: int) -> EvalPoint:
    try:
        point = EvalPoint(
            target=_whole_number(row, "target"),
            M=_whole_number(row, "M"),
            rollouts=_whole_number(row, "rollouts"),
            tokens=_whole_number(row, "tokens"),
            metrics={str(k): float(v) for k, v in row["metrics"].items()},
            counts=tuple(int(c) for c in row.get("counts", ())),
            samples=int(row.get("samples", 0)),
            train={str(k): float(v) for k, v in row.get("train", {}).items()},
            extra={str(k): tuple(int(c) for c in v) for k, v in row.get("extra", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise InputError(
            f"{path}, line {line_number} is not an evaluation ({_row_error(e)}); expected target, M, rollouts, tokens and metrics. Mend it."
        ) from e
    return point


def read_run(folder: Path, warn: Any = None) -> RunRecord:
    """One cell's folder as a RunRecord; `warn(text)` hears of a torn last line.

    Raises:
        InputError: the ledger is unreadable, broken before its last line, or holds no complete point.
    """
    path = folder / RECORDS_FILE
    rows, _, torn = _read_lines(path)
    if torn and warn is not None:
        warn(f"{path}: the last line is torn and was left out")
    if not rows or rows[0]["kind"] != "cell":
        raise InputError(
            f"{path} holds no complete point: its first line is not a cell header. "
            "Run the cell (`isojax launch ... --resume`) or leave it out."
        )
    header = rows[0]
    try:
        cell = Cell(int(header["B_p"]), int(header["n"]), int(header["seed"]))
    except (KeyError, TypeError, ValueError) as e:
        raise InputError(
            f"{path}, line 1: the cell header needs B_p, n and seed ({_row_error(e)}). Restore it, or import the log again."
        ) from e
    _refuse_second_header(rows, path)
    line_numbers = tuple(i for i, row in enumerate(rows, 1) if row["kind"] == "eval")
    points = [_parse_point(rows[i - 1], path, i) for i in line_numbers]
    if not points:
        raise InputError(
            f"{path} holds no complete point. Run the cell (`isojax launch ... --resume`) or leave it out."
        )
    for i, (a, b) in zip(line_numbers[1:], pairwise(points), strict=True):
        if b.rollouts == a.rollouts:
            raise InputError(
                f"{path}, line {i}: the point at {b.rollouts} rollouts is there twice, expected once. Remove one of the lines."
            )
        if b.rollouts < a.rollouts:
            raise InputError(
                f"{path}, line {i}: rollouts fall from {a.rollouts} to {b.rollouts}; a ledger's points rise in C. Mend the line."
            )
    failure_reason = str(rows[-1].get("reason", "failed")) if rows[-1]["kind"] == "failed" else ""
    return RunRecord(
        cell,
        tuple(points),
        str(path),
        _device_hours(folder, points),
        str(header.get("cell_hash", "")),
        failure_reason,
        line_numbers,
    )


def _refuse_second_header(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    second_header_line = next((i for i, row in enumerate(rows[1:], 2) if row["kind"] == "cell"), None)
    if second_header_line is not None:
        keys = ("B_p", "n", "seed", "cell_hash")
        second_header, first_header = (
            {key: row.get(key) for key in keys} for row in (rows[second_header_line - 1], rows[0])
        )
        raise InputError(
            f"{path}, line {second_header_line} begins another run ({second_header}) in the ledger of {first_header}; expected one run a file. Split it."
        )


def read_timing(folder: Path) -> dict[int, tuple[float, int]]:
    """Of each point by its target: seconds of wall clock since the one before it, and on how many devices; empty where
    not readable.
    """
    try:
        rows, _, _ = _read_lines(folder / TIMING_FILE)
        return {int(r["target"]): (float(r["seconds"]), int(r["devices"])) for r in rows if r["kind"] == "timing"}
    except (InputError, KeyError, TypeError, ValueError):
        # without clocks a run is fitted all the same; who asks for device hours is told that they are missing
        return {}


def _device_hours(folder: Path, points: Iterable[EvalPoint]) -> tuple[float, ...]:
    """Device hours at each point, from timing.jsonl; empty where a clock is missing."""
    timing = read_timing(folder)
    total_hours, hours = 0.0, []
    for p in points:
        if p.target not in timing:
            return ()
        seconds, devices = timing[p.target]
        total_hours += seconds * devices / 3600
        hours.append(total_hours)
    return tuple(hours)


def latest_point(folder: Path) -> tuple[EvalPoint | None, str]:
    """A cell's last complete point and, where the run broke off after it, why; nothing where there is no ledger. Of a
    ledger that is
    being written too: it takes the last lines alone.

    Raises:
        InputError: the last complete line is broken.
    """
    path = folder / RECORDS_FILE
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    failure_reason = ""
    for line_number in range(len(lines), 1, -1):
        try:
            row = json.loads(lines[line_number - 1])
            kind = row["kind"]
        except (ValueError, KeyError, TypeError) as e:
            raise InputError(
                f"{path}, line {line_number} is broken ({_row_error(e)}); expected a JSON object with a 'kind'. Restore the file."
            ) from e
        if kind == "eval":
            return _parse_point(row, path, line_number), failure_reason
        failure_reason = failure_reason or str(row.get("reason", "failed"))
    return None, failure_reason


def ledger_folders(paths: Iterable[Path]) -> list[Path]:
    """The cells' folders below the given sweep folders, cell folders or ledgers.

    Raises:
        InputError: nothing there, or something that is no ledger.
    """
    folders: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InputError(
                f"no such run: {path}. Expected a sweep's folder (runs/NAME), a cell's folder or a {RECORDS_FILE}."
            )
        if path.is_file():
            if path.name != RECORDS_FILE:
                raise InputError(
                    f"{path} is no ledger; expected a sweep's folder (runs/NAME), a cell's folder or a {RECORDS_FILE}."
                )
            folders.append(path.parent)
            continue
        cell_folders = sorted(p.parent for p in path.rglob(RECORDS_FILE))
        if not cell_folders:
            raise InputError(
                f"{path} holds no {RECORDS_FILE}. Expected a sweep's folder with cells/<B_p>x<n>-s<seed>/{RECORDS_FILE}."
            )
        folders += cell_folders
    return folders


def read_runs(paths: Iterable[Path], warn: Any = None) -> list[RunRecord]:
    """Every cell below the given sweep folders, cell folders or ledgers, sorted by cell.

    Raises:
        InputError: nothing there, a ledger that cannot be used, or two ledgers that clash.
    """
    runs = sorted((read_run(folder, warn) for folder in ledger_folders(paths)), key=lambda r: r.cell)
    conflict = next(run_conflicts(runs), None)
    if conflict is not None:
        raise InputError(conflict)
    return runs


def default_metric(runs: Sequence[RunRecord]) -> str:
    """The metric a fit takes where none is asked for: avg@k of the evaluations' k samples, else the first recorded."""
    first_point = runs[0].points[0]
    avg_metric = f"avg@{first_point.samples}"
    return avg_metric if avg_metric in first_point.metrics else next(iter(first_point.metrics), avg_metric)


def run_conflicts(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Why sorted runs cannot be fitted together: two of one cell, or different `cell` settings."""
    for a, b in pairwise(runs):
        both_sources = f"{a.source}, line 1 and {b.source}, line 1"
        if a.cell == b.cell:
            yield f"two ledgers for the cell {a.cell.name}: {both_sources}. Fit one sweep at a time, or give each its own seeds."
        if a.cell_hash != b.cell_hash:
            yield (
                f"{both_sources} were run with different `cell` settings ({a.cell_hash!r} and {b.cell_hash!r}), expected one; "
                "one law cannot describe both. Fit them apart."
            )
