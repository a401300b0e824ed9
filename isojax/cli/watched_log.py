"""The log of a run that `isojax watch` looks at, while its trainer writes to it."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from isojax.core import terminal
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.runs.importers import importer
from isojax.runs.ledger import RECORDS_FILE, read_runs
from isojax.runs.logs.find_logs import detect_format
from isojax.runs.logs.import_logs import read_logs
from isojax.runs.spend_file import read_spending


class FileStamp(NamedTuple):
    """What changes of a file when it is written to."""

    path: str
    size: int  # bytes
    modified_ns: int


@dataclass(frozen=True)
class WatchedLog:
    """A ledger, a sweep's folder, or another trainer's log, and which run of it is watched."""

    path: Path
    log_format: str | None  # None: a ledger, or else as the log looks
    field_map: dict[str, str]  # as of --map
    run_name: str | None  # None: the only one, or the one that `isojax spend` goes on with
    resumed: bool = False

    def read(self, is_first: bool = False) -> RunRecord:
        """The run as it is now, with the evaluations that the log has so far.

        is_first: also warn of what is left out of the log; True at the first call alone.
        InputError where the log cannot be read, holds several runs, or none of that name.
        """
        # A path that is not there is read as a ledger, whose reader refuses it.
        is_ledger = self.log_format is None and (_holds_ledger(self.path) or not self.path.exists())
        runs = read_runs([self.path]) if is_ledger else self._read_log(is_first)

        run_name = _run_of_spend(self.path) if self.run_name is None else self.run_name
        matches = [run for run in runs if run_name in (None, run.cell.name)]
        if len(matches) != 1:
            request = "no --run" if run_name is None else f"--run {run_name}"
            names = ", ".join(run.cell.name for run in runs)
            raise InputError(
                where=self.path,
                found=f"holds {len(runs)} runs, given {request}",
                expected=f"one of {names}",
            )
        return matches[0]

    def _read_log(self, is_first: bool) -> list[RunRecord]:
        """The runs of another trainer's log, whose last line may not be whole yet."""
        log_format = self.log_format or detect_format([self.path])
        imported = read_logs(
            [self.path], log_format, self.field_map, resumed=self.resumed, whole_lines=True
        )
        if is_first:
            for text in imported.skipped:
                terminal.warn(f"skipped: {text}")
            self._note_torn_line(log_format)
        return list(imported.runs)

    def _note_torn_line(self, log_format: str) -> None:
        """Say that the last line is left out, where the log ends without a line end."""
        may_be_torn = importer.load(log_format).traits.read_growing is not None
        is_plain = may_be_torn and self.path.is_file() and self.path.suffix != ".gz"
        if is_plain and not self.path.read_bytes().endswith(b"\n"):
            terminal.note(
                f"the last line of {self.path} has no line end, so it is left out: "
                "it may not be whole yet"
            )

    def signature(self) -> tuple[FileStamp, ...]:
        """A value that differs when the log has changed: the stamps of its files. () where there
        is none."""
        files = sorted(self.path.rglob("*")) if self.path.is_dir() else [self.path]
        stamps: list[FileStamp] = []
        for file in files:
            with suppress(FileNotFoundError):  # It may go at any time.
                stat = file.stat()
                stamps.append(FileStamp(str(file), stat.st_size, stat.st_mtime_ns))
        return tuple(stamps)


def _holds_ledger(path: Path) -> bool:
    """Whether a path is a ledger, a run's folder, or a sweep's."""
    if path.name == RECORDS_FILE:
        return True
    return (path / RECORDS_FILE).exists() or (path / "cells").exists()


def _run_of_spend(folder: Path) -> str | None:
    """The run that `isojax spend` goes on with in a folder; None before its pilots have ended."""
    spending = read_spending(folder) if folder.is_dir() else None
    if spending is None or not spending.legs[-1].expected:
        return None
    return spending.cell.name
