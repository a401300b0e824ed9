"""What a process of a process group tells its driver. Both import it, so it loads no jax."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from isojax.core.nouns import Cell, CellProgress, StartWarning

TOKEN_FILE = ".sweep"  # only a process that sees the driver's folder can read it


class WorkerLost(Exception):
    """A process, or its group, is of no more use: it died, or its node did."""


@dataclass
class StatusUpdate:
    """What has happened in a process since its last update; fields without news are empty."""

    # what is prepared for the first cell, and the fraction done
    preparation: tuple[str, float] | None = None
    progress: CellProgress | None = None
    verifier_failures: dict[str, str] = field(default_factory=dict)  # the first of each kind
    start_warnings: list[StartWarning] = field(default_factory=list)  # of a cell that begins
    flags: list[str] = field(default_factory=list)  # of a cell that has ended


class StatusCollector:
    """Collects what a display would show, until the driver asks for it."""

    def __init__(self) -> None:
        self.pending = StatusUpdate()

    def take(self) -> StatusUpdate:
        """What has been collected since the last call."""
        update = self.pending
        self.pending = StatusUpdate()
        return update

    def show_preparation(self, text: str, fraction: float) -> None:
        self.pending.preparation = text, fraction

    def update_cell(self, progress: CellProgress) -> None:
        self.pending.progress = progress

    def show_verifier_failure(self, kind: str, what_happened: str) -> None:
        self.pending.verifier_failures[kind] = what_happened

    def show_start(self, cell: Cell, warnings: Sequence[StartWarning]) -> None:
        self.pending.start_warnings += warnings

    def show_flags(self, cell: Cell, flags: Sequence[str]) -> None:
        self.pending.flags += flags
