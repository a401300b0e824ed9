"""status.json of a sweep's folder: what the process that drives a sweep says of it.

Written by the driver of a sweep on a Ray cluster every few seconds, and by a sweep on one machine
once nobody reads what it prints. sweep_status.py reads it, beside all other files of the folder.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isojax.core import terminal
from isojax.core.atomic_files import read_file, write_text
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT

STATUS_FILE = "status.json"
OUTPUT_CHECK_SECONDS = 1.0  # between two looks at whether somebody reads what this process prints
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class CellStatus(BaseModel):
    """What a driver knows of a cell."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    state: Literal["waiting", "running", "failed", "done"] = "waiting"
    rollouts: Count = 0  # C, by the newest report of the cell
    reward: float | None = None  # of the newest evaluation
    attempts: Count = 0  # how often its training was started
    where: str = ""  # the nodes that it runs on
    log: str = ""  # the file that its first process prints to
    error: str = ""  # why it failed


class DriverStatus(BaseModel):
    """What a driver says of its sweep. Without cells it is the process of a sweep on one machine,
    of which the ledgers and the folder's lock say the rest."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    time: float  # of writing, in Unix seconds
    host: str  # of the driver's process
    pid: int
    ended: bool  # whether the driver has ended
    cells: dict[str, CellStatus]  # by the cell's name
    # since when nobody reads what the driver prints, in Unix seconds
    output_lost: float | None = None


def driver_status(ended: bool, cells: dict[str, CellStatus]) -> DriverStatus:
    """Of this process, now."""
    return DriverStatus(
        time=time.time(),
        host=socket.gethostname(),
        pid=os.getpid(),
        ended=ended,
        cells=cells,
        output_lost=terminal.output_lost,
    )


@contextmanager
def lost_output_recorded(folder: Path) -> Iterator[None]:
    """Write status.json once nobody reads what this process prints, and again at the end.

    For a sweep on one machine, in its folder. While somebody reads it, nothing is written, but that
    an earlier process of this sweep has ended. terminal.output_lost: None while somebody reads;
    then since when nobody does, in Unix seconds.
    """
    # What an earlier process said that nobody read: this one goes on with its sweep.
    before = read_status(folder)
    if before is not None and before.output_lost is not None:
        write_status(folder, before.model_copy(update={"ended": True, "output_lost": None}))

    ended = threading.Event()

    # Captures `ended` and `folder`. After its first writing it has nothing left to do.
    def watch() -> None:
        while not ended.wait(OUTPUT_CHECK_SECONDS):
            if terminal.output_lost is not None:
                return write_status(folder, driver_status(ended=False, cells={}))

    watcher = threading.Thread(target=watch, daemon=True, name="lost output")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        if terminal.output_lost is not None:
            write_status(folder, driver_status(ended=True, cells={}))


def write_status(folder: Path, status: DriverStatus) -> None:
    write_text(folder / STATUS_FILE, status.model_dump_json(indent=1) + "\n")


def read_status(folder: Path) -> DriverStatus | None:
    """The newest status of the driver; None where none has written one.

    InputError where it cannot be read.
    """
    path = folder / STATUS_FILE
    try:
        return DriverStatus.model_validate_json(read_file(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as e:
        raise InputError(
            where=path,
            found=f"cannot be read: {str(e).splitlines()[0]}",
            fix="Remove it: the driver writes it again every few seconds.",
        ) from e
