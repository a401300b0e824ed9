"""The cells of a sweep as the scheduler sees them: which wait, how often each was lost, and how each has ended."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from isojax.core.errors import RunFailed
from isojax.core.nouns import Cell
from isojax.launch.strategy import CellTarget
from isojax.launch.sweep_status import CellStatus


@dataclass
class CellQueue:
    rounds: Iterator[Sequence[CellTarget]]  # the targets of each, longest cell first
    status: dict[Cell, CellStatus]
    failures: list[tuple[Cell, Exception]]  # the cells that failed, with their errors
    waiting: deque[CellTarget] = field(default_factory=deque)  # targets of this round that nobody trains
    finished: bool = False  # whether no round is left
    _losses: dict[Cell, tuple[int, int]] = field(default_factory=dict)  # C at the last loss, losses without progress

    @property
    def is_training(self) -> bool:
        return any(status.state == "running" for status in self.status.values())

    @property
    def round_ended(self) -> bool:
        """Whether every cell of this round has ended, and another round may follow."""
        return not (self.finished or self.waiting or self.is_training)

    def next_round(self) -> list[CellTarget]:
        targets = list(next(self.rounds, []))
        self.finished = not targets
        self.waiting.extend(targets)
        for target in targets:
            self._update(target.cell, state="waiting")
        return targets

    def take(self, where: str, log: str) -> CellTarget:
        """The next waiting cell, for a group on the nodes `where`, which prints to `log`."""
        target = self.waiting.popleft()
        attempts = self.status[target.cell].attempts + 1
        self._update(target.cell, state="running", where=where, log=log, attempts=attempts)
        return target

    def report(self, cell: Cell, rollouts: int, reward: float | None) -> None:
        self._update(cell, rollouts=rollouts, reward=self.status[cell].reward if reward is None else reward)

    def end(self, cell: Cell, error: str) -> None:
        self._update(cell, state="failed" if error else "done", error=error)
        if error:
            self.failures.append((cell, RunFailed(error)))

    def count_loss(self, cell: Cell) -> int:
        """Count that a cell was lost; returns how often it was since it last made progress."""
        last_rollouts, losses = self._losses.get(cell, (-1, 0))
        rollouts = self.status[cell].rollouts
        losses = 1 if rollouts > last_rollouts else losses + 1
        self._losses[cell] = max(last_rollouts, rollouts), losses
        return losses

    def put_back(self, target: CellTarget) -> None:
        """A cell that has not ended is the next to be trained, from its checkpoint."""
        self.waiting.appendleft(target)
        self._update(target.cell, state="waiting")

    def _update(self, cell: Cell, **changes: object) -> None:
        self.status[cell] = self.status[cell].model_copy(update=changes)
