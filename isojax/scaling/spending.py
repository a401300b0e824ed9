"""How `isojax spend` spends one budget on one policy (docs/growing-n.md). Pilots of several n take
a tenth of it. The pilot from which most is expected goes on from its own checkpoint, and at every
evaluation the model of allocate/growth_model.py is fitted again and says which n comes next, or
that the rest of the budget gains nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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
class _Continuation:
    """A run that goes on with an n, as the model forecasts it."""

    cell: Cell
    n: int
    end: FloatArray  # [Q], rewards when the budget is spent
    gain: FloatArray  # [Q], over the run's reward now

    @property
    def expected(self) -> float:
        return float(self.end.mean())


@dataclass(frozen=True)
class SpendPolicy:
    """What it asks for follows from the budget and the evaluations so far alone."""

    cells: Sequence[Cell]  # one for each n, that begins with it
    C_grid: Sequence[int]  # where a run may be evaluated
    total_rollouts: int
    metric: str  # the reward that is to be high

    def __post_init__(self) -> None:
        count = len([C for C in self.C_grid if C > 0])
        if count < MIN_EVALUATIONS:
            problem = f"a budget of {self.total_rollouts:,} rollouts has {count} evaluations"
            fix = "Raise the budget, or lower cell.eval.start or cell.eval.ratio."
            raise InputError(
                f"{problem}, expected at least {MIN_EVALUATIONS} to choose n by. {fix}"
            )

    @cached_property
    def by_n(self) -> Mapping[int, Cell]:
        """The cell that begins with each n, by rising cell. An index into it is the model's."""
        return {cell.n: cell for cell in sorted(self.cells)}

    def pilots(self) -> list[Leg]:
        """One for each n that can make enough updates; where none can, the beginning of a run of
        the smallest n."""
        cells = list(self.by_n.values())
        # Fewer pilots have larger shares: the most for which each can make enough updates.
        for count in range(len(cells), 0, -1):
            share = PILOT_SHARE * self.total_rollouts / count
            C_end = max(C for C in self.C_grid if C <= share)
            able = [cell for cell in cells if C_end > 0 and share >= MIN_PILOT_UPDATES * cell.B]
            if len(able) >= count:
                return [Leg(cell, cell.n, C_start=0, C_end=C_end) for cell in able[:count]]

        C_first = next(C for C in self.C_grid if C > 0)
        return [Leg(cells[0], cells[0].n, C_start=0, C_end=C_first)]

    def next_leg(self, runs: Sequence[RunRecord], legs: Sequence[Leg]) -> Leg | None:
        """The run that goes on, with which n, and to where; None at the end. legs: all before; each
        has ended."""
        C_reached = {run.cell: run.points[-1].rollouts for run in runs if run.points}
        failed = {run.cell for run in runs if run.failure_reason}
        candidates = [
            cell for cell in _cells_to_go_on(legs) if cell in C_reached and cell not in failed
        ]
        # A leg that ends between evaluations is the last: what was left is less than an update.
        ended_early = legs[-1].C_end not in self.C_grid
        is_pilot = legs[-1].expected is None
        if not candidates or (ended_early and not is_pilot):
            return None

        C_left = self.total_rollouts - sum(C_reached.values())
        draws = self.fit(runs)
        run_of_cell = {run.cell: run for run in runs}
        continuations = [
            self._best_continuation(draws, run_of_cell[cell], C_left) for cell in candidates
        ]
        best = max(continuations, key=lambda continuation: continuation.expected)

        C_now = C_reached[best.cell]
        B = best.cell.B_p * best.n
        C_affordable = C_now + C_left // B * B  # after whole updates
        if C_affordable <= C_now or np.quantile(best.gain, STOP_QUANTILE) < STOP_GAIN:
            return None

        C_last = LAST_SHARE * (C_now + C_left)
        evaluations = (C for C in self.C_grid if MIN_GROWTH * C_now <= C <= C_last)
        C_next = next(evaluations, C_affordable)
        return Leg(
            cell=best.cell,
            n=best.n,
            C_start=C_now,
            C_end=min(C_next, C_affordable),
            expected=best.expected,
            interval=_interval(best.end),
        )

    def _best_continuation(self, draws: GrowthDraws, run: RunRecord, C_left: int) -> _Continuation:
        """How a run goes on best, with the rollouts that are left of the budget."""
        cell = run.cell
        now = draws.along(self._path(run))[:, -1]
        # the less is left, the less a trial of another n can pay
        optimism = OPTIMISM * max(C_left, 0) / self.total_rollouts
        # the others, which are larger, have no update left
        affordable_n = sum(cell.B_p * n <= C_left for n in self.by_n)
        best = draws.best_next(now, max(C_left, 0), max(1, affordable_n), optimism)
        n = list(self.by_n)[best.n_index]
        return _Continuation(cell, n, end=best.end, gain=best.end - now)

    def fit(self, runs: Sequence[RunRecord]) -> GrowthDraws:
        """The model of all runs so far."""
        evaluated = [run for run in runs if run.points]
        # All runs begin with one policy: its evaluations count once.
        base_rewards = [p.metrics[self.metric] for p in evaluated[0].points if p.rollouts == 0]
        paths = [self._path(run) for run in evaluated if run.points[-1].rollouts]
        return fit_growth(list(self.by_n), base_rewards, paths, self.total_rollouts)

    def fixed_forecasts(self, runs: Sequence[RunRecord]) -> tuple[FixedForecast, ...]:
        """What each fixed n would have reached with the whole budget, by the model."""
        draws = self.fit(runs)
        forecasts = []
        for i, n in enumerate(self.by_n):
            end = draws.go_on(draws.R0, i, float(self.total_rollouts))
            forecasts.append(FixedForecast(n, float(end.mean()), _interval(end)))
        return tuple(forecasts)

    def _path(self, run: RunRecord) -> RunPath:
        """The run's evaluations at C > 0; n changes at evaluations alone."""
        points = [p for p in run.points if p.rollouts]
        C = np.array([0, *(p.rollouts for p in points)])
        M = np.array([0, *(p.M for p in points)])
        # of the updates between two evaluations: rollouts over updates is B_p n
        n = np.diff(C) // np.diff(M) // run.cell.B_p
        return RunPath(
            n_index=np.searchsorted(list(self.by_n), n),
            C=C[1:].astype(np.float64),
            R=np.array([p.metrics[self.metric] for p in points]),
        )


def _cells_to_go_on(legs: Sequence[Leg]) -> list[Cell]:
    """The run of the last leg; after the pilots, which have no forecast, each of them."""
    if legs[-1:] and legs[-1].expected is not None:
        return [legs[-1].cell]
    return sorted({leg.cell for leg in legs if leg.expected is None})


def _interval(rewards: FloatArray) -> Interval:
    """The central interval of rewards float[Q], widened about their mean."""
    mean = rewards.mean()
    low, high = central_band(mean + INTERVAL_FACTOR * (rewards - mean))
    return float(max(0.0, low)), float(min(1.0, high))
