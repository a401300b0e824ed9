"""What a cell's run writes to, as its launcher hands it over; the training code opens none of it."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from isojax.core.nouns import CellProgress, EvalPoint

CHECKPOINT_FOLDER = "checkpoint"  # in a cell's folder


class PointLedger(Protocol):
    """Records evaluations: isojax/runs/ledger.py. `targets`: the values of the grid of C that are recorded so far."""

    @property
    def targets(self) -> list[int]: ...

    def append(self, point: EvalPoint, seconds: float, devices: int) -> None: ...

    def record_failure(self, M: int, reason: str) -> None: ...


# Starts to copy a checkpoint elsewhere once the function says that it is no longer being written (runs/mirror.py).
StartUpload = Callable[[Path, Callable[[], bool]], Future[None]]


@dataclass(frozen=True)
class CellOutputs:
    """A cell's folder, its ledger (None in a process that does not write it), what copies its checkpoints, and what
    shows its progress."""

    folder: Path
    ledger: PointLedger | None
    start_upload: StartUpload | None
    on_progress: Callable[[CellProgress], None]
