"""How long runs take: the wall clock of each measured cell, and budgets in time or money."""

from dataclasses import dataclass

import numpy as np

from isojax.core.errors import InputError
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import FloatArray, group_by

MAX_SECONDS = 1e10
NO_CLOCKS = (
    "no run of this fit says how long its steps took (timing.jsonl, or the log's own step times); expected a budget of"
    " rollouts. Give one, or name the folder of a sweep whose runs have their times; a fit.json without them has none."
)


@dataclass(frozen=True)
class TimeBudget:
    """Seconds of wall clock of one run or, `of_devices`, of all its devices together."""

    seconds: float
    of_devices: bool = False

    def check(self) -> None:
        """Refuse a budget that is no positive finite time."""
        if not 0 < self.seconds <= MAX_SECONDS:
            raise InputError(f"a budget of {self.seconds:g} seconds; expected more than 0 and at most {MAX_SECONDS:g}.")


@dataclass(frozen=True)
class CellClocks:
    """float[cells] each, the mean of a cell's runs: C rollouts take startup + C per_rollout seconds; NaN: not known."""

    startup: FloatArray
    per_rollout: FloatArray
    devices: FloatArray

    def rollouts(self, budget: TimeBudget) -> FloatArray:
        """float[cells]: whole rollouts that a budget affords; 0 where a cell has no clock. InputError if none has."""
        if np.isnan(self.per_rollout).all():
            raise InputError(NO_CLOCKS)
        seconds = budget.seconds / (self.devices if budget.of_devices else 1.0)
        return np.nan_to_num(np.floor(np.maximum(seconds - self.startup, 0.0) / self.per_rollout))


def cell_clocks(fit: FitResult, keys: list[tuple[int, int]]) -> CellClocks:
    timed_runs = (run for run in fit.runs if run.seconds_per_rollout is not None)
    runs = group_by(timed_runs, lambda run: (run.B_p, run.n))
    columns = [
        [float(np.mean([getattr(run, name) for run in runs[key]])) if key in runs else np.nan for key in keys]
        for name in ("startup_seconds", "seconds_per_rollout", "devices")
    ]
    return CellClocks(*map(np.array, columns))
