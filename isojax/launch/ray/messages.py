"""What a driver and the processes on a Ray cluster exchange, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isojax.core.config import Config
from isojax.core.nouns import Cell, CellProgress
from isojax.launch.process_group import ProcessGroup

TOKEN_FILE = ".sweep"  # only a process that sees the driver's folder can read it
# How a call of a worker has ended.
FINISHED = "finished"
PREEMPTED = "preempted"  # the cell's state is saved
CELL_FAILED = "cell failed"  # by the cell's own fault, which it would meet again
INPUT_REFUSED = "input refused"  # by a mistake of the user
WORKER_LOST = "worker lost"  # the process is of no more use


@dataclass(frozen=True)
class CallResult:
    """How a call of a worker has ended, and why."""

    kind: str = FINISHED
    message: str = ""


@dataclass(frozen=True)
class WorkerArguments:
    """What a worker opens a sweep with."""

    config: Config
    cells: list[Cell]
    token: str  # the content of TOKEN_FILE in the driver's folder
    cpu_devices: int | None  # that a CPU simulates; None on accelerators
    process_group: ProcessGroup


@dataclass
class StatusUpdate:
    """News of a worker since the last update."""

    preparation: tuple[str, float] | None = None  # what is prepared for the first cell, and the fraction done
    progress: CellProgress | None = None
    verifier_failures: dict[str, str] = field(default_factory=dict)  # the first of each kind
    flags: list[str] = field(default_factory=list)  # of a cell that has ended


class StatusCollector:
    """Collects what a display would show, until the driver asks for it."""

    def __init__(self) -> None:
        self.pending = StatusUpdate()

    def show_preparation(self, text: str, fraction: float) -> None:
        self.pending.preparation = text, fraction

    def show_verifier_failures(self, examples: Mapping[str, str]) -> None:
        self.pending.verifier_failures |= examples

    def update_cell(self, progress: CellProgress) -> None:
        self.pending.progress = progress

    def show_flags(self, cell: Cell, flags: Sequence[str]) -> None:
        self.pending.flags += flags

    def drain(self) -> StatusUpdate:
        """The news since the last call."""
        status_update, self.pending = self.pending, StatusUpdate()
        return status_update
