"""status.json, for `isojax status` to read: the driver of a sweep on a Ray cluster writes it every few seconds, and a
sweep on one machine once nobody reads what it prints."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.terminal import output_lost_at

STATUS_FILE = "status.json"
OUTPUT_CHECK_SECONDS = 1.0  # between two looks at whether somebody reads what this process prints


class CellStatus(BaseModel):
    """What a driver knows of a cell."""

    model_config = ConfigDict(frozen=True)

    state: Literal["waiting", "running", "failed", "done"] = "waiting"
    rollouts: int = 0  # C, by the newest report of the cell
    reward: float | None = None  # of the newest evaluation
    attempts: int = 0  # how often its training was started
    where: str = ""  # the nodes that it runs on
    log: str = ""  # the file that its first process prints to
    error: str = ""  # why it failed


class DriverStatus(BaseModel):
    """What a driver says of its sweep; `host` and `pid` are the driver's process. Without cells it is the process of a
    sweep on one machine, of which the ledgers and the folder's lock say the rest."""

    model_config = ConfigDict(frozen=True)

    time: float  # of writing, in Unix seconds
    host: str
    pid: int
    ended: bool  # whether the driver has ended
    cells: dict[str, CellStatus]  # by the cell's name
    output_lost: float | None = None  # since when nobody reads what the driver prints, in Unix seconds


def driver_status(ended: bool, cells: dict[str, CellStatus]) -> DriverStatus:
    """The status of this process, now."""
    host, pid = socket.gethostname(), os.getpid()
    return DriverStatus(time=time.time(), host=host, pid=pid, ended=ended, cells=cells, output_lost=output_lost_at())


@contextmanager
def lost_output_recorded(folder: Path) -> Iterator[None]:
    """While a sweep on this machine runs: write status.json once nobody reads what this process prints, and at the end
    of such a sweep."""
    before, ended = read_status(folder), threading.Event()
    if before is not None and before.output_lost is not None:
        write_status(folder, before.model_copy(update={"ended": True, "output_lost": None}))

    def watch() -> None:
        while not ended.wait(OUTPUT_CHECK_SECONDS):
            if output_lost_at() is not None:
                return write_status(folder, driver_status(ended=False, cells={}))

    watcher = threading.Thread(target=watch, daemon=True, name="lost output")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        if output_lost_at() is not None:
            write_status(folder, driver_status(ended=True, cells={}))


def write_status(folder: Path, status: DriverStatus) -> None:
    """Write `folder`/status.json, whole or not at all."""
    write_text(folder / STATUS_FILE, status.model_dump_json(indent=1) + "\n")


def read_status(folder: Path) -> DriverStatus | None:
    """The newest status of the driver; None where none has written one. InputError where it cannot be read."""
    path = folder / STATUS_FILE
    try:
        return DriverStatus.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as e:
        raise InputError(
            f"cannot read {path}: {str(e).splitlines()[0]}. Remove it: the driver writes it again every few seconds."
        ) from e
