"""What an importer reads a log into, and which format a file looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.tabular import DataRow

# Bytes; beyond it, a log holds far more than metrics, and its rows would not fit in memory.
MAX_LOG_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class LogTable:
    """One log.

    Attributes:
        source: the file, as the user named it.
        rows: its entries in order; their values are as the log has them (text, number, list or None).
        config: what the log says once for all its rows (a run's settings), as further columns.
        one_run: whether the format holds one run per log, so that n and B_p cannot change in it.
        notes: what was left out in reading.
    """

    source: str
    rows: tuple[DataRow, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    one_run: bool = True
    notes: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> list[str]:
        """Every column of any row, in the order they first appear, then the config's."""
        return list(dict.fromkeys([*(name for row in self.rows for name in row.values), *self.config]))


def checked_file_size(path: Path) -> int:
    """Bytes of a log file.

    Raises:
        InputError: no such file, a folder, empty, or larger than MAX_LOG_BYTES.
    """
    if not path.exists():
        raise InputError(f"no such log: {path}. Expected a file that exists; check its name.")
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected a file; name the log in it.")
    size = path.stat().st_size
    if size == 0:
        raise InputError(f"{path} is empty (line 1 is missing); expected a log with at least one row. Leave it out.")
    if size > MAX_LOG_BYTES:
        raise InputError(
            f"{path} holds {size / 1024**3:.1f} GiB, expected at most {MAX_LOG_BYTES / 1024**3:.0f} GiB; export the"
            " metrics alone, without texts or samples."
        )
    return size


def guess_format(path: Path) -> str | None:
    """The format a log looks like, by its name and its first bytes; None where nothing is recognised."""
    if path.is_dir():
        return None
    if path.suffix == ".wandb":
        return "wandb"
    if "tfevents" in path.name:
        return "tensorboard"
    try:
        with path.open("rb") as f:
            head = f.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    except OSError:
        return None
    first_line = head.split(b"\n", 1)[0]
    if head.startswith(b"{"):
        if not first_line.rstrip().endswith(b"}"):
            return "trl"
        return "verl" if first_line.startswith(b'{"step":') and b'"data":' in first_line else "jsonl"
    has_delimiter = any(mark in first_line for mark in (b",", b"\t", b";"))
    return "csv" if has_delimiter and not head.startswith(b"[") and b"\0" not in head else None


def other_format_hint(path: Path, log_format: str) -> str:
    """A sentence that names the format a log looks like; empty where it looks like the one given."""
    guessed_format = guess_format(path)
    if guessed_format is None or guessed_format == log_format:
        return ""
    return f" It looks like {guessed_format}: try --from {guessed_format}."
