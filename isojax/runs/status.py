"""status.json: what the driver of a sweep on a Ray cluster writes every few seconds, for `isojax status` to read."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError

STATUS_FILE = "status.json"


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
    """What a driver says of its sweep; `host` and `pid` are the driver's process."""

    model_config = ConfigDict(frozen=True)

    time: float  # of writing, in Unix seconds
    host: str
    pid: int
    ended: bool  # whether the driver has ended
    cells: dict[str, CellStatus]  # by the cell's name


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
