"""status.json: what the driver of a sweep on a Ray cluster writes every few seconds, for `isojax status` to read."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError

STATUS_FILE = "status.json"


class CellStatus(BaseModel):
    """What a driver knows of a cell.

    Attributes:
        rollouts: C, by the newest report of the cell.
        reward: of the newest evaluation; None before the first.
        attempts: how often its training was started.
        where: the nodes that it runs on.
        log: the file that its first process prints to.
        error: why it failed; else empty.
    """

    model_config = ConfigDict(frozen=True)

    state: Literal["waiting", "running", "failed", "done"] = "waiting"
    rollouts: int = 0
    reward: float | None = None
    attempts: int = 0
    where: str = ""
    log: str = ""
    error: str = ""


class DriverStatus(BaseModel):
    """What a driver says of its sweep.

    Attributes:
        time: of writing, in Unix seconds.
        host, pid: the driver's process.
        ended: whether the driver has ended.
        cells: each cell, by its name.
    """

    model_config = ConfigDict(frozen=True)

    time: float
    host: str
    pid: int
    ended: bool
    cells: dict[str, CellStatus]


def write_status(folder: Path, status: DriverStatus) -> None:
    """Write `folder`/status.json, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    write_text(folder / STATUS_FILE, status.model_dump_json(indent=1) + "\n")


def read_status(folder: Path) -> DriverStatus | None:
    """The newest status of the driver; None where none has written one.

    Raises:
        InputError: the file cannot be read.
    """
    path = folder / STATUS_FILE
    try:
        return DriverStatus.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as e:
        raise InputError(
            f"cannot read {path}: {str(e).splitlines()[0]}. Remove it: the driver writes it again every few seconds."
        ) from e
