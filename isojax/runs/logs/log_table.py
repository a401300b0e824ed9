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
    """One log."""

    source: str  # the file, as the user named it
    rows: tuple[DataRow, ...]  # its entries in order; values are as the log has them (text, number, list or None)
    config: Mapping[str, Any] = field(default_factory=dict)  # what it says once for all its rows, as further columns
    one_run: bool = True  # whether the format holds one run per log, so that n and B_p cannot change in it
    notes: tuple[str, ...] = ()  # what was left out in reading

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
