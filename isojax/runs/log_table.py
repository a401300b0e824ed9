"""What a format reads a log into: rows with their places. And how text is read, so that every refusal names its file
and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError

MAX_LOG_BYTES = 2 * 1024**3  # bytes; beyond it, a log holds far more than metrics, and its rows would not fit in memory

BytesReadCallback = Callable[[int], None]  # hears how many bytes were read since the last call


@dataclass(frozen=True)
class LogRow:
    """One entry of a log.

    Attributes:
        place: where it stands, for messages: "line 12", or "step 40" where a format has no lines.
        values: column -> value as the log has it (text, number, list or None); a column that the entry does not have is
        absent.
    """

    location: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class LogTable:
    """One log.

    Attributes:
        source: the file, as the user named it.
        rows: its entries in order.
        config: what the log says once for all its rows (a run's settings), as further columns.
        one_run: whether the format holds one run a log, so that n and B_p cannot change in it.
        notes: what was left out of it in reading.
    """

    source: str
    rows: tuple[LogRow, ...]
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
        InputError: no such file, a folder, empty, or larger than LARGEST.
    """
    if not path.exists():
        raise InputError(f"no such log: {path}. Expected a file that exists; check its name.")
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected a file; name the log in it.")
    size = path.stat().st_size
    if size == 0:
        raise InputError(f"{path} is empty (line 1 is missing); expected a log with at least one row. Leave it out.")
    if size > MAX_LOG_BYTES:
        problem = f"{path} holds {size / 1024**3:.1f} GiB"
        raise InputError(
            f"{problem}, expected at most {MAX_LOG_BYTES / 1024**3:.0f} GiB; export the metrics alone, without texts or samples."
        )
    return size


def read_lines(path: Path, on_bytes_read: BytesReadCallback) -> Iterator[tuple[int, str]]:
    """(number, text with its line end) of each line of UTF-8 text, a byte-order mark left out.

    Raises:
        InputError: as `file_size`; not UTF-8, or a NUL byte, with the line.
    """
    checked_file_size(path)
    with path.open("rb") as f:
        for line_number, data in enumerate(f, 1):
            on_bytes_read(len(data))
            yield (
                line_number,
                _decode(data, f"{path}, line {line_number}").removeprefix("\ufeff" if line_number == 1 else ""),
            )


def _decode(data: bytes, location: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        bad_byte = f"byte 0x{data[e.start]:02x} at position {e.start + 1}"
        raise InputError(f"{location} is not UTF-8 text ({bad_byte}). Save the file as UTF-8; {_binary_hint()}") from e
    if "\0" in text:
        raise InputError(f"{location} holds a NUL byte, expected text; {_binary_hint()}")
    return text


def _binary_hint() -> str:
    return "event files and .wandb files are read with --from tensorboard and --from wandb."


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
    if head.startswith(b"{"):
        first_line = head.split(b"\n", 1)[0]
        if first_line.rstrip().endswith(b"}"):
            return "verl" if first_line.startswith(b'{"step":') and b'"data":' in first_line else "jsonl"
        return "trl"
    first_line = head.split(b"\n", 1)[0]
    return (
        "csv"
        if any(mark in first_line for mark in (b",", b"\t", b";")) and not head.startswith(b"[") and b"\0" not in head
        else None
    )


def other_format_hint(path: Path, log_format: str) -> str:
    """A sentence that names the format a log looks like, or nothing where it looks like the one given."""
    guessed_format = guess_format(path)
    return (
        f" It looks like {guessed_format}: try --from {guessed_format}."
        if guessed_format is not None and guessed_format != log_format
        else ""
    )
