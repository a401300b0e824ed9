"""What an importer reads a log into."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.tabular import DataRow


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


def check_log_file(path: Path) -> None:
    """InputError where a log is a folder, or an empty file."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected a file; name the log in it.")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (line 1 is missing); expected a log with at least one row. Leave it out.")


def parse_message(message_class: Any, data: bytes, path: Path) -> Any:
    """A protobuf message of a log; InputError where the bytes are none."""
    from google.protobuf.message import DecodeError

    try:
        return message_class.FromString(data)
    except DecodeError as e:
        raise InputError(f"{path} is damaged ({e}); copy it again from where the run was.") from e
