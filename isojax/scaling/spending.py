"""How `isojax spend` spends one budget on one policy (docs/growing-n.md). Pilots of several n take
a tenth of it. The pilot from which most is expected goes on from its own checkpoint, and at every
evaluation the model of allocate/growth_model.py is fitted again and says which n comes next, or
that the rest of the budget gains nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import Cell, FixedForecast, Interval, Leg, RunRecord
from isojax.scaling.allocate.growth_model import GrowthDraws, RunPath, fit_growth
from isojax.scaling.intervals import central_band
from isojax.scaling.tracks import FloatArray

PILOT_SHARE = 0.1  # of the budget, for all pilots together
MIN_PILOT_UPDATES = 8  # an n that has fewer within its share has no pilot; it may be chosen later
MIN_EVALUATIONS = 5  # at C > 0 within the budget
MIN_GROWTH = 1.2  # of C, from one choice of n to the next
# standard deviations, times the share of the budget that is left: an n that may be better is tried
OPTIMISM = 0.4
LAST_SHARE = 0.95  # of the budget: an evaluation beyond is left out, the end follows
# of reward: where it is unlikely that the rest of the budget gains more, the run ends
STOP_GAIN = 0.001
STOP_QUANTILE = 0.9
# Draws know no other forms of curves: so many times as wide, intervals hold as often as they say
# (spend_worlds.py).
INTERVAL_FACTOR = 1.6


@dataclass(frozen=True)
class SpendPolicy:
    """What it asks for follows from the budget and the evaluations so far alone."""

    cells: Sequence[Cell]  # one for each n, that begins with it
    C_grid: Sequence[int]  # where a run may be evaluated
    total_rollouts: int
    metric: str  # the reward that is to be high
    by_n: Mapping[int, Cell] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_n", {cell.n: cell for cell in sorted(self.cells)})
        if (count := len([C for C in self.C_grid if C > 0])) < MIN_EVALUATIONS:
            raise InputError(
                f"a budget of {self.total_rollouts:,} rollouts has {count} evaluations, expected at least "
                f"{MIN_EVALUATIONS} to choose n by. Raise the budget, or lower cell.eval.start or cell.eval.ratio."
            )

    def pilots(self) -> list[Leg]:
        """One for each n that can make enough updates; where none can, the beginning of a run of
        the smallest n."""
        cells = list(self.by_n.values())
        for count in range(len(cells), 0, -1):
            share = PILOT_SHARE * self.total_rollouts / count
            C_end = max(C for C in self.C_grid if C <= share)
            able = [cell for cell in cells if C_end > 0 and share >= MIN_PILOT_UPDATES * cell.B]
            if len(able) >= count:
                return [Leg(cell, cell.n, 0, C_end) for cell in able[:count]]
        return [Leg(cells[0], cells[0].n, 0, next(C for C in self.C_grid if C > 0))]

    def next_leg(self, runs: Sequence[RunRecord], legs: Sequence[Leg]) -> Leg | None:
        """The run that goes on, with which n, and to where; None at the end. legs: all before; each
        has ended."""
        reached = {run.cell: run.points[-1].rollouts for run in runs if run.points}
        pilot_cells = {leg.cell for leg in legs if leg.expected is None}
        going_on = [leg.cell for leg in legs[-1:] if leg.expected is not None] or sorted(
            pilot_cells
        )
        failed = {run.cell for run in runs if run.failure_reason}
        candidates = [cell for cell in going_on if cell in reached and cell not in failed]
        ended_early = legs[-1].C_end not in self.C_grid  # what was left is less than an update
        if not candidates or (legs[-1].expected is not None and ended_early):
            return None
        draws, C_left = self.fit(runs), self.total_rollouts - sum(reached.values())
        paths = {run.cell: self._path(run) for run in runs}
        plans: list[tuple[float, Cell, int, FloatArray, FloatArray]] = []
        for cell in candidates:
            now = draws.along(paths[cell])[:, -1]
            optimism = OPTIMISM * max(C_left, 0) / self.total_rollouts
            # the others have no update left
            affordable_n = sum(cell.B_p * n <= C_left for n in self.by_n)
            i, end = draws.best_next(now, max(C_left, 0), max(1, affordable_n), optimism)
            plans.append((float(end.mean()), cell, list(self.by_n)[i], end, end - now))
        expected, cell, n, end, gain = max(plans, key=lambda plan: plan[0])
        C_now = reached[cell]
        affordable = C_now + C_left // (cell.B_p * n) * cell.B_p * n
        if affordable <= C_now or np.quantile(gain, STOP_QUANTILE) < STOP_GAIN:
            return None
        C_next = next(
            (C for C in self.C_grid if MIN_GROWTH * C_now <= C <= LAST_SHARE * (C_now + C_left)),
            affordable,
        )
        return Leg(cell, n, C_now, min(C_next, affordable), expected, _interval(end))

    def fit(self, runs: Sequence[RunRecord]) -> GrowthDraws:
        evaluated = [run for run in runs if run.points]
        base_rewards = [p.metrics[self.metric] for p in evaluated[0].points if p.rollouts == 0]
        paths = [self._path(run) for run in evaluated if run.points[-1].rollouts]
        return fit_growth(list(self.by_n), base_rewards, paths, self.total_rollouts)

    def fixed_forecasts(self, runs: Sequence[RunRecord]) -> tuple[FixedForecast, ...]:
        """What each fixed n would have reached with the whole budget, by the model."""
        draws = self.fit(runs)
        ends = {
            n: draws.go_on(draws.R0, i, float(self.total_rollouts)) for i, n in enumerate(self.by_n)
        }
        return tuple(FixedForecast(n, float(end.mean()), _interval(end)) for n, end in ends.items())

    def _path(self, run: RunRecord) -> RunPath:
        """The run's evaluations at C > 0; n changes at evaluations alone."""
        points = [p for p in run.points if p.rollouts]
        C, M = (np.array([0, *(getattr(p, name) for p in points)]) for name in ("rollouts", "M"))
        n_index = np.searchsorted(list(self.by_n), np.diff(C) // np.diff(M) // run.cell.B_p)
        return RunPath(
            n_index, C[1:].astype(np.float64), np.array([p.metrics[self.metric] for p in points])
        )


def _interval(rewards: FloatArray) -> Interval:
    low, high = central_band(rewards.mean() + INTERVAL_FACTOR * (rewards - rewards.mean()))
    return float(max(0.0, low)), float(min(1.0, high))
