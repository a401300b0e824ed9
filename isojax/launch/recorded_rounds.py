"""Rounds that are in rounds.json before they are trained, so that a kill changes none of them.

A kill within a round leaves some of its runs short of their targets. A strategy that was asked then
would answer by other evidence than without the kill: first the round is completed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.launch.rounds import Round, Stop
from isojax.launch.strategies import CellStrategy, CellTarget, SweepHistory
from isojax.runs.rounds_file import (
    ROUNDS_FILE,
    RecordedStop,
    RoundsRecord,
    read_rounds,
    rounds_text,
)


@dataclass(frozen=True)
class RecordedRounds:
    """A strategy that completes the last round of the process before, and then asks `strategy`.

    The history of `strategy` counts all recorded rounds, of whatever process.
    """

    strategy: CellStrategy
    config: Config

    def ask(self, history: SweepHistory) -> Round[CellTarget] | Stop:
        """InputError where rounds.json is broken, or is not of this sweep."""
        name = self.config.sweep.strategy
        record = read_rounds(history.folder)
        # A grid may become an adaptive sweep and the other way round: a record of another strategy
        # says nothing.
        if record is None or record.strategy != name:
            record = RoundsRecord(name)
        if history.rounds == 0 and record.rounds:
            interrupted = self._interrupted(record.rounds[-1], history)
            if interrupted:
                # Where it had stopped, as by failures that may be gone, it has not any more.
                record = replace(record, stop=None)
                return Round(interrupted, files={ROUNDS_FILE: rounds_text(record)})

        answer = self.strategy.ask(replace(history, rounds=len(record.rounds)))
        if isinstance(answer, Stop):
            failed = {cell.name: reason for cell, reason in history.failures.items()}
            stop = RecordedStop(answer.reason, answer.explanation, failed)
            record = replace(record, stop=stop)
        else:
            targets = {target.cell.name: target.C for target in answer.items}
            record = replace(record, rounds=(*record.rounds, targets), stop=None)
        return replace(answer, files={**answer.files, ROUNDS_FILE: rounds_text(record)})

    def _interrupted(
        self, recorded_targets: Mapping[str, int], history: SweepHistory
    ) -> tuple[CellTarget, ...]:
        """What is left to train of a recorded round, cell name to C; () where nothing is.

        Runs that diverged are not trained further.
        """
        cell_by_name = {cell.name: cell for cell in history.cells}
        unknown = sorted(recorded_targets.keys() - cell_by_name.keys())
        if unknown:
            raise InputError(
                where=history.folder / ROUNDS_FILE,
                found=f"has the run {unknown[0]}, which the config does not plan",
                fix="Restore it; without it, --resume goes on with another round.",
            )

        C_reached = {run.cell: run.points[-1].rollouts for run in history.runs if run.points}
        targets = [CellTarget(cell_by_name[name], C) for name, C in recorded_targets.items()]
        return tuple(
            target
            for target in targets
            if C_reached.get(target.cell, 0) < target.rollouts(self.config)
            and target.cell not in history.diverged
        )
