"""How `isojax spend` spends one budget on one policy (docs/growing-n.md).

First, pilots, short runs of several n, take a tenth of the budget. The pilot that is expected to
reach most goes on from its checkpoint in legs: parts of the run with one n each. Before each leg
the model of allocate/growth_model.py is fitted to all evaluations so far; it chooses the leg's n,
or ends the run where the rest of the budget would gain nothing."""

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
MIN_GROWTH = 1.2  # C grows at least by this factor from one choice of n to the next
# So many standard deviations, times the share of the budget that is left, are added to what an
# uncertain n is expected to reach: an n that may be better is tried.
OPTIMISM = 0.4
LAST_SHARE = 0.95  # a leg that would end beyond this share of the budget goes to its end
# The run ends where, with probability STOP_QUANTILE, the rest of the budget gains less reward.
STOP_GAIN = 0.001
STOP_QUANTILE = 0.9
# The draws' intervals are too narrow, since real curves have other forms too; so many times as
# wide, they hold the truth as often as intended (benchmarks/spend_worlds.py).
INTERVAL_FACTOR = 1.6


@dataclass(frozen=True)
class _Continuation:
    """The best way to go on with a run until the budget is spent, as the model forecasts it."""

    cell: Cell  # names the run
    n: int  # to go on with now
    end: FloatArray  # [Q], rewards when the budget is spent
    gain: FloatArray  # [Q], over the run's reward now

    @property
    def expected(self) -> float:
        return float(self.end.mean())


@dataclass(frozen=True)
class SpendPolicy:
    """Chooses the pilots and legs of `isojax spend`, from the fields below and the evaluations so
    far alone. InputError where the budget has fewer than MIN_EVALUATIONS evaluations."""

    cells: Sequence[Cell]  # one run for each n, which begins with this n
    C_grid: Sequence[int]  # where a run may be evaluated
    total_rollouts: int
    metric: str  # the reward that is to be high

    def __post_init__(self) -> None:
        count = len([C for C in self.C_grid if C > 0])
        if count < MIN_EVALUATIONS:
            fix = "Raise the budget, or lower cell.eval.start or cell.eval.ratio."
            raise InputError(
                found=f"a budget of {self.total_rollouts:,} rollouts has {count} evaluations",
                expected=f"at least {MIN_EVALUATIONS} to choose n by",
                fix=fix,
            )

    @cached_property
    def by_n(self) -> Mapping[int, Cell]:
        """The run that begins with each n, in order of cells. The model numbers the n in this
        order (n_index)."""
        return {cell.n: cell for cell in sorted(self.cells)}

    def pilots(self) -> list[Leg]:
        """The pilots: short runs from C = 0, one for each of as many n as possible, smallest first.

        Each must have MIN_PILOT_UPDATES updates within an equal share of PILOT_SHARE of the budget.
        Where not even one n has, the first part of a run of the smallest n."""
        cells = list(self.by_n.values())
        # Fewer pilots have larger shares: the most for which each can make enough updates.
        for count in range(len(cells), 0, -1):
            share = PILOT_SHARE * self.total_rollouts / count
            # the grid begins at C = 0: a share below its first C > 0 pays for no pilot
            C_end = max(C for C in self.C_grid if C <= share)
            able = [cell for cell in cells if C_end > 0 and share >= MIN_PILOT_UPDATES * cell.B]
            if len(able) >= count:
                return [Leg(cell, cell.n, C_start=0, C_end=C_end) for cell in able[:count]]

        C_first = next(C for C in self.C_grid if C > 0)
        return [Leg(cells[0], cells[0].n, C_start=0, C_end=C_first)]

    def next_leg(self, runs: Sequence[RunRecord], legs: Sequence[Leg]) -> Leg | None:
        """The next leg: which run goes on, with which n, and to which C; None where the run ends.

        runs: the records of all runs so far; legs: all legs so far, in their order, at least one,
        pilots included; they have ended, and the last C of each run is where its last leg ended."""
        C_reached = {run.cell: run.points[-1].rollouts for run in runs if run.points}
        failed = {run.cell for run in runs if run.failure_reason}
        candidates = [
            cell for cell in _cells_to_go_on(legs) if cell in C_reached and cell not in failed
        ]
        # Only the last leg ends between evaluations, where the budget is spent to less than one
        # update. Pilots have no forecast (`expected`), and are never the last.
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

        # Stop where not one more update can be paid for, or the rest most likely gains nothing.
        C_now = C_reached[best.cell]
        B = best.cell.B_p * best.n
        C_affordable = C_now + C_left // B * B  # after whole updates
        if C_affordable <= C_now or np.quantile(best.gain, STOP_QUANTILE) < STOP_GAIN:
            return None

        # To the next evaluation that is far enough; near the end, to the end. There the leg stops
        # after whole updates of its n.
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
        """The n with which a run goes on best for the C_left rollouts that are left.

        With it, what the run then reaches and gains in each of Q draws of the model."""
        cell = run.cell
        now = draws.along(self._path(run))[:, -1]  # [Q], the run's reward so far
        # The less is left, the less can be gained by trying another n.
        optimism = OPTIMISM * max(C_left, 0) / self.total_rollouts
        # How many of the n, from the smallest on, can make one more update.
        affordable_n = sum(cell.B_p * n <= C_left for n in self.by_n)
        best = draws.best_next(now, max(C_left, 0), max(1, affordable_n), optimism)
        n = list(self.by_n)[best.n_index]
        return _Continuation(cell, n, end=best.end, gain=best.end - now)

    def fit(self, runs: Sequence[RunRecord]) -> GrowthDraws:
        """The model of all runs so far: draws of the curve of each n, n in the order of by_n.

        runs: the records of all runs, at least one trained beyond C = 0."""
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
        """The run's evaluations at C > 0, with the n that it had before each, as an index of by_n.

        n changes only at evaluations."""
        points = [p for p in run.points if p.rollouts]
        C = np.array([0, *(p.rollouts for p in points)])
        M = np.array([0, *(p.M for p in points)])
        # Between two evaluations, rollouts / updates = B_p n. searchsorted gives the index of n,
        # since by_n is in rising order of n, all with one B_p.
        n = np.diff(C) // np.diff(M) // run.cell.B_p
        return RunPath(
            n_index=np.searchsorted(list(self.by_n), n),
            C=C[1:].astype(np.float64),
            R=np.array([p.metrics[self.metric] for p in points]),
        )


def _cells_to_go_on(legs: Sequence[Leg]) -> list[Cell]:
    """The runs from which the next leg may go on, given all legs so far.

    After the pilots (legs without a forecast) each of them, later only the run of the last leg."""
    if legs[-1:] and legs[-1].expected is not None:
        return [legs[-1].cell]
    return sorted({leg.cell for leg in legs if leg.expected is None})


def _interval(rewards: FloatArray) -> Interval:
    """The central interval of rewards float[Q], widened about their mean."""
    mean = rewards.mean()
    low, high = central_band(mean + INTERVAL_FACTOR * (rewards - mean))
    return float(max(0.0, low)), float(min(1.0, high))
