"""Ledgers read as runs: one cell's, a sweep's, or what a status display needs of a cell that is being written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.runs.ledger import RECORDS_FILE, TIMING_FILE, read_ledger_lines


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
            f"{path}, line {line_number} is not an evaluation ({_row_error(e)}); expected target, M, rollouts, tokens"
            " and metrics. Correct it."
        ) from e
    return point


def read_run(folder: Path, warn: Callable[[str], object] | None = None) -> RunRecord:
    """One cell's folder as a RunRecord; `warn` is called with a text where the last line is torn.

    Raises:
        InputError: the ledger is unreadable, broken before its last line, or holds no complete point.
    """
    path = folder / RECORDS_FILE
    rows, _, torn = read_ledger_lines(path)
    if torn and warn is not None:
        warn(f"{path}: the last line is torn and was left out")
    if not rows or rows[0]["kind"] != "cell":
        raise InputError(
            f"{path} holds no complete point: its first line is not a cell header. Run the cell (`isojax launch ..."
            " --resume`), or leave it out."
        )
    header = rows[0]
    try:
        cell = Cell(int(header["B_p"]), int(header["n"]), int(header["seed"]))
    except (KeyError, TypeError, ValueError) as e:
        raise InputError(
            f"{path}, line 1: the cell header needs B_p, n and seed ({_row_error(e)}). Restore it, or import the log"
            " again."
        ) from e
    _refuse_second_header(rows, path)
    line_numbers = tuple(i for i, row in enumerate(rows, 1) if row["kind"] == "eval")
    points = [_parse_point(rows[i - 1], path, i) for i in line_numbers]
    if not points:
        raise InputError(
            f"{path} holds no complete point. Run the cell (`isojax launch ... --resume`), or leave it out."
        )
    for i, (a, b) in zip(line_numbers[1:], pairwise(points), strict=True):
        if b.rollouts == a.rollouts:
            raise InputError(
                f"{path}, line {i}: the point at {b.rollouts} rollouts is there twice, expected once. Remove one of the"
                " lines."
            )
        if b.rollouts < a.rollouts:
            raise InputError(
                f"{path}, line {i}: rollouts fall from {a.rollouts} to {b.rollouts}; a ledger's points rise in C."
                " Correct the line."
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
            f"{path}, line {second_header_line} begins another run ({second_header}) in the ledger of {first_header};"
            " expected one run per file. Split it."
        )


def read_timing(folder: Path) -> dict[int, tuple[float, int]]:
    """target -> (seconds of wall clock since the point before, devices); empty where timing.jsonl cannot be read."""
    try:
        rows, _, _ = read_ledger_lines(folder / TIMING_FILE)
        return {int(r["target"]): (float(r["seconds"]), int(r["devices"])) for r in rows if r["kind"] == "timing"}
    except (InputError, KeyError, TypeError, ValueError):
        # A run without times can be fitted; a command that asks for device hours says that they are missing.
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
    """A cell's last complete point and, where the run broke off after it, why; nothing where there is no ledger. It
    reads the last lines only, also of a ledger that is being written.

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
                f"{path}, line {line_number} is broken ({_row_error(e)}); expected a JSON object with a 'kind'. Restore"
                " the file."
            ) from e
        if kind == "eval":
            return _parse_point(row, path, line_number), failure_reason
        failure_reason = failure_reason or str(row.get("reason", "failed"))
    return None, failure_reason


def ledger_folders(paths: Iterable[str | Path]) -> list[Path]:
    """The cells' folders below the given sweep folders, cell folders or ledgers.

    Raises:
        InputError: nothing there, or something that is no ledger.
    """
    folders: list[Path] = []
    for path in map(Path, paths):
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
                f"{path} holds no {RECORDS_FILE}. Expected a sweep's folder with"
                f" cells/<B_p>x<n>-s<seed>/{RECORDS_FILE}."
            )
        folders += cell_folders
    return folders


def read_runs(paths: Iterable[str | Path], warn: Callable[[str], object] | None = None) -> list[RunRecord]:
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
            yield (
                f"two ledgers for the cell {a.cell.name}: {both_sources}. Fit one sweep at a time, or give each its own"
                " seeds."
            )
        if a.cell_hash != b.cell_hash:
            yield (
                f"{both_sources} were run with different `cell` settings ({a.cell_hash!r} and {b.cell_hash!r}),"
                " expected"
                " one: "
                "one law cannot describe both. Fit them separately."
            )
