"""The run ledger: what a run measured, one JSON line a point, append-only and readable by any tool.

A cell's folder holds `records.jsonl` (a header line of kind "cell", then lines of kind "eval"; the same bits whenever the same run
is repeated) and `timing.jsonl` (clocks, which never repeat); once it has ended also `health.json`, whether it ended well. A torn last
line, left by a kill or a full disk, loses that line alone; damage anywhere else is refused with its place. No jax here.
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

from isojax.files import append_bytes, write_text
from isojax.types import Cell, EvalPoint, InputError, RunRecord

RECORDS = "records.jsonl"
TIMING = "timing.jsonl"
HEALTH = "health.json"  # what flags a run, as it ended
SCHEMA = 1
INCLUDE_FLAGGED = "--include-flagged"  # the option of commands that puts back runs flagged as broken (scaling/health.py)


def _append(path: Path, row: Mapping[str, Any]) -> None:
    append_bytes(path, (json.dumps(row) + "\n").encode())


def _read_lines(path: Path) -> tuple[list[dict[str, Any]], int, bool]:
    """(rows, bytes they take, whether a torn last line was left out)."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise InputError(f"cannot read the ledger {path}: {e.strerror or e}") from e
    rows: list[dict[str, Any]] = []
    good = 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        last = number >= len(lines) - (lines[-1] == b"")
        if not line and last:
            break
        complete = number < len(lines)
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or "kind" not in row:
                raise ValueError("not a JSON object with a 'kind'")
        except ValueError as e:
            if last:
                return rows, good, True
            raise InputError(
                f"{path}, line {number} is broken ({e}); only a torn last line can be left out. "
                "Restore the file or remove the cell's folder and run it again."
            ) from e
        if not complete:
            return rows, good, True
        rows.append(row)
        good += len(line) + 1
    return rows, good, False


class Ledger:
    """A cell's ledger, open for appending.

    Opening cuts a torn last line. `append` writes each target once: a run that resumes from an older checkpoint meets points it
    has already recorded and leaves them as they are. `told` is called after each that was written (isojax.loggers).
    """

    def __init__(self, folder: Path, cell: Cell, cell_hash: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / RECORDS
        self.targets: list[int] = []
        self.told: Callable[[], None] = lambda: None
        header = _header(cell, cell_hash)
        if self.path.exists():
            for path in (self.path, *([folder / TIMING] if (folder / TIMING).exists() else [])):
                _, size, torn = _read_lines(path)
                if torn:
                    os.truncate(path, size)
            rows, _, _ = _read_lines(self.path)
            if rows and rows[0] != header:
                raise InputError(f"{self.path} belongs to another run ({rows[0]}), not to {header}; choose another `name=` or remove it.")
            self.targets = [row["target"] for row in rows if row["kind"] == "eval"]
            if rows:
                return
        _append(self.path, header)

    def append(self, point: EvalPoint, seconds: float, devices: int) -> None:
        """Record a point (unless its target is there already) and, beside it, the seconds of wall clock it took since the last one."""
        if point.target in self.targets:
            return
        _append(self.folder / TIMING, {"kind": "timing", "target": point.target, "seconds": round(seconds, 6), "devices": devices})
        _append(self.path, {"kind": "eval", **asdict(point)})
        self.targets.append(point.target)
        self.told()

    def fail(self, M: int, reason: str) -> None:
        """Record that the run broke off after update M; readers of evaluations pass it by, and the fit hears of it."""
        row = {"kind": "failed", "M": M, "reason": reason}
        if _read_lines(self.path)[0][-1] != row:
            _append(self.path, row)


def write_run(folder: Path, run: RunRecord) -> None:
    """A whole run, measured elsewhere, as a ledger: records.jsonl and, where its device hours are known, timing.jsonl (on one device)."""
    folder.mkdir(parents=True)
    points = [{"kind": "eval", **asdict(point)} for point in run.points]
    _write(folder / RECORDS, [_header(run.cell, run.cell_hash), *points])
    if run.device_hours:
        spent = [b - a for a, b in pairwise((0.0, *run.device_hours))]
        clocks = zip(run.points, spent, strict=True)
        _write(folder / TIMING, [{"kind": "timing", "target": p.target, "seconds": 3600 * h, "devices": 1} for p, h in clocks])


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def _header(cell: Cell, cell_hash: str) -> dict[str, Any]:
    return {"kind": "cell", "schema": SCHEMA, "B_p": cell.B_p, "n": cell.n, "seed": cell.seed, "cell_hash": cell_hash}


def _count(row: Mapping[str, Any], key: str) -> int:
    """A whole number, 0 or more."""
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value != int(value) or value < 0:
        raise ValueError(f"{key} is {value!r}, expected a whole number >= 0")
    return int(value)


def _why(e: Exception) -> str:
    """What a row lacks, in words."""
    return f"it has no {e}" if isinstance(e, KeyError) else str(e)


def _point(row: Mapping[str, Any], path: Path, number: int) -> EvalPoint:
    try:
        point = EvalPoint(
            target=_count(row, "target"),
            M=_count(row, "M"),
            rollouts=_count(row, "rollouts"),
            tokens=_count(row, "tokens"),
            metrics={str(k): float(v) for k, v in row["metrics"].items()},
            counts=tuple(int(c) for c in row.get("counts", ())),
            samples=int(row.get("samples", 0)),
            train={str(k): float(v) for k, v in row.get("train", {}).items()},
            extra={str(k): tuple(int(c) for c in v) for k, v in row.get("extra", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise InputError(
            f"{path}, line {number} is not an evaluation ({_why(e)}); expected target, M, rollouts, tokens and metrics. Mend it."
        ) from e
    return point


def read_run(folder: Path, warn: Any = None) -> RunRecord:
    """One cell's folder as a RunRecord; `warn(text)` hears of a torn last line.

    Raises:
        InputError: the ledger is unreadable, broken before its last line, or holds no complete point.
    """
    path = folder / RECORDS
    rows, _, torn = _read_lines(path)
    if torn and warn is not None:
        warn(f"{path}: the last line is torn and was left out")
    if not rows or rows[0]["kind"] != "cell":
        raise InputError(
            f"{path} holds no complete point: its first line is not a cell header. "
            "Run the cell (`isojax launch ... --resume`) or leave it out."
        )
    head = rows[0]
    try:
        cell = Cell(int(head["B_p"]), int(head["n"]), int(head["seed"]))
    except (KeyError, TypeError, ValueError) as e:
        raise InputError(f"{path}, line 1: the cell header needs B_p, n and seed ({_why(e)}). Restore it, or import the log again.") from e
    _refuse_second_header(rows, path)
    lines = tuple(i for i, row in enumerate(rows, 1) if row["kind"] == "eval")
    points = [_point(rows[i - 1], path, i) for i in lines]
    if not points:
        raise InputError(f"{path} holds no complete point. Run the cell (`isojax launch ... --resume`) or leave it out.")
    for i, (a, b) in zip(lines[1:], pairwise(points), strict=True):
        if b.rollouts == a.rollouts:
            raise InputError(
                f"{path}, line {i}: the point at {b.rollouts} rollouts is there twice, expected once. Remove one of the lines."
            )
        if b.rollouts < a.rollouts:
            raise InputError(
                f"{path}, line {i}: rollouts fall from {a.rollouts} to {b.rollouts}; a ledger's points rise in C. Mend the line."
            )
    failed = str(rows[-1].get("reason", "failed")) if rows[-1]["kind"] == "failed" else ""
    return RunRecord(cell, tuple(points), str(path), _device_hours(folder, points), str(head.get("cell_hash", "")), failed, lines)


def _refuse_second_header(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    second = next((i for i, row in enumerate(rows[1:], 2) if row["kind"] == "cell"), None)
    if second is not None:
        keys = ("B_p", "n", "seed", "cell_hash")
        given, first = ({key: row.get(key) for key in keys} for row in (rows[second - 1], rows[0]))
        raise InputError(f"{path}, line {second} begins another run ({given}) in the ledger of {first}; expected one run a file. Split it.")


def clocks(folder: Path) -> dict[int, tuple[float, int]]:
    """Of each point by its target: seconds of wall clock since the one before it, and on how many devices; empty where not readable."""
    try:
        rows, _, _ = _read_lines(folder / TIMING)
        return {int(r["target"]): (float(r["seconds"]), int(r["devices"])) for r in rows if r["kind"] == "timing"}
    except (InputError, KeyError, TypeError, ValueError):
        return {}  # without clocks a run is fitted all the same; who asks for device hours is told that they are missing


def _device_hours(folder: Path, points: Iterable[EvalPoint]) -> tuple[float, ...]:
    """Device hours at each point, from timing.jsonl; empty where a clock is missing."""
    spent = clocks(folder)
    total, hours = 0.0, []
    for p in points:
        if p.target not in spent:
            return ()
        seconds, devices = spent[p.target]
        total += seconds * devices / 3600
        hours.append(total)
    return tuple(hours)


def newest(folder: Path) -> tuple[EvalPoint | None, str]:
    """A cell's last complete point and, where the run broke off after it, why; nothing where there is no ledger. Of a ledger that is
    being written too: it takes the last lines alone.

    Raises:
        InputError: the last complete line is broken.
    """
    path = folder / RECORDS
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    failed = ""
    for number in range(len(lines), 1, -1):
        try:
            row = json.loads(lines[number - 1])
            kind = row["kind"]
        except (ValueError, KeyError, TypeError) as e:
            raise InputError(f"{path}, line {number} is broken ({_why(e)}); expected a JSON object with a 'kind'. Restore the file.") from e
        if kind == "eval":
            return _point(row, path, number), failed
        failed = failed or str(row.get("reason", "failed"))
    return None, failed


def ledger_folders(paths: Iterable[Path]) -> list[Path]:
    """The cells' folders below the given sweep folders, cell folders or ledgers.

    Raises:
        InputError: nothing there, or something that is no ledger.
    """
    folders: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InputError(f"no such run: {path}. Expected a sweep's folder (runs/NAME), a cell's folder or a {RECORDS}.")
        if path.is_file():
            if path.name != RECORDS:
                raise InputError(f"{path} is no ledger; expected a sweep's folder (runs/NAME), a cell's folder or a {RECORDS}.")
            folders.append(path.parent)
            continue
        found = sorted(p.parent for p in path.rglob(RECORDS))
        if not found:
            raise InputError(f"{path} holds no {RECORDS}. Expected a sweep's folder with cells/<B_p>x<n>-s<seed>/{RECORDS}.")
        folders += found
    return folders


def read_runs(paths: Iterable[Path], warn: Any = None) -> list[RunRecord]:
    """Every cell below the given sweep folders, cell folders or ledgers, sorted by cell.

    Raises:
        InputError: nothing there, a ledger that cannot be used, or two ledgers that clash.
    """
    runs = sorted((read_run(folder, warn) for folder in ledger_folders(paths)), key=lambda r: r.cell)
    clash = next(clashes(runs), None)
    if clash is not None:
        raise InputError(clash)
    return runs


def default_metric(runs: Sequence[RunRecord]) -> str:
    """The metric a fit takes where none is asked for: avg@k of the evaluations' k samples, else the first recorded."""
    first = runs[0].points[0]
    own = f"avg@{first.samples}"
    return own if own in first.metrics else next(iter(first.metrics), own)


def clashes(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Why sorted runs cannot be fitted together: two of one cell, or different `cell` settings."""
    for a, b in pairwise(runs):
        both = f"{a.source}, line 1 and {b.source}, line 1"
        if a.cell == b.cell:
            yield f"two ledgers for the cell {a.cell.name}: {both}. Fit one sweep at a time, or give each its own seeds."
        if a.cell_hash != b.cell_hash:
            yield (
                f"{both} were run with different `cell` settings ({a.cell_hash!r} and {b.cell_hash!r}), expected one; "
                "one law cannot describe both. Fit them apart."
            )
