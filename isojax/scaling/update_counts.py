"""How many updates M a budget of C rollouts is enough for, in a cell (B_p, n), and the reverse.

An update samples one batch of B_p n rollouts, so that M = C / (B_p n), unless the trainer replaces
groups whose rewards are all equal (dynamic sampling, DAPO, arXiv:2503.14476). Then it samples
several batches, and how many changes as the policy learns. M is in that case read off the records
of the runs, which count both; beyond their data it grows as in the last half of their rollouts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor

import numpy as np

from isojax.core.estimators import FloatArray
from isojax.core.nouns import Allocation, RunRecord
from isojax.scaling.result import CountedUpdates

MAX_POINTS = 64  # of a run that are kept, evenly spread
RECENT_SHARE = 0.5  # of a run's rollouts, the last ones: their rate of updates holds beyond them
ROUNDING = 1e-6  # updates or rollouts: a smaller difference to a whole number is rounding


def count_updates(run: RunRecord) -> CountedUpdates | None:
    """The updates M that a run had made after C rollouts, where updates sample several batches.

    None where an update samples one batch of B_p n rollouts, or less (a logged step is then a part
    of a batch), or where no update was made. A difference of up to one batch is ignored: a log may
    begin to count one update early or late, and round. Long runs are thinned to MAX_POINTS."""
    B = run.cell.B
    points = [point for point in run.points if point.rollouts > 0 and point.M > 0]
    if not points:
        return None

    # rollouts that a log counted before the first update
    C_before = next((point.rollouts for point in run.points if point.M == 0), 0)
    last = points[-1]
    C_beyond_one_batch = last.rollouts - C_before - last.M * B
    if C_beyond_one_batch <= B:
        return None

    # Both counts must rise from point to point: points where one of them stays are left out.
    C = [C_before]
    M = [0]
    for point in points:
        if point.M > M[-1] and point.rollouts > C[-1]:
            C.append(point.rollouts)
            M.append(point.M)
    indices = np.unique(np.linspace(0, len(C) - 1, MAX_POINTS).round().astype(int)).tolist()
    return CountedUpdates(C=tuple(C[i] for i in indices), M=tuple(M[i] for i in indices))


@dataclass(frozen=True)
class MeasuredUpdates:
    """The updates M after C rollouts, the mean of a cell's runs, as a table to interpolate."""

    C: FloatArray  # [knots], rising
    M: FloatArray  # [knots], rising; need not be whole
    rate: float  # updates per rollout beyond the last knot

    @staticmethod
    def of(runs: Sequence[CountedUpdates]) -> "MeasuredUpdates":
        """The mean of runs whose updates were counted, at least one."""
        rates = [_recent_rate(run) for run in runs]
        C = np.unique(np.concatenate([np.asarray(run.C, dtype=np.float64) for run in runs]))
        M_of_runs = [_updates_at(run, rate, C) for run, rate in zip(runs, rates, strict=True)]
        return MeasuredUpdates(C, np.mean(M_of_runs, axis=0), float(np.mean(rates)))

    def updates(self, C: float) -> float:
        """M, which need not be whole, after C rollouts."""
        C_beyond = max(C - self.C[-1], 0.0)
        return float(np.interp(C, self.C, self.M) + C_beyond * self.rate)

    def rollouts(self, M: float) -> float:
        """C after M updates."""
        M_beyond = max(M - self.M[-1], 0.0)
        return float(np.interp(M, self.M, self.C) + M_beyond / self.rate)


def _updates_at(run: CountedUpdates, rate: float, C: FloatArray) -> FloatArray:
    """M of one run at C, float[knots]; beyond its data by its rate."""
    return np.interp(C, run.C, run.M) + np.maximum(C - run.C[-1], 0.0) * rate


def _recent_rate(run: CountedUpdates) -> float:
    """Updates per rollout over the last RECENT_SHARE of a run."""
    C_recent = run.C[0] + (1 - RECENT_SHARE) * (run.C[-1] - run.C[0])
    M_recent = float(np.interp(C_recent, run.C, run.M))
    return (run.M[-1] - M_recent) / (run.C[-1] - C_recent)


@dataclass(frozen=True)
class UpdateCounts:
    """Converts between updates M and rollouts C in a cell (B_p, n)."""

    B: int  # B_p n, the rollouts of a batch
    measured: MeasuredUpdates | None = None  # None: each update takes one batch

    @staticmethod
    def of(B: int, runs: Sequence[CountedUpdates | None]) -> "UpdateCounts":
        """The conversion in a cell with B = B_p n, by the counts of its runs.

        runs: as `count_updates` gives them, None for a run whose updates sample one batch."""
        if all(run is None for run in runs):
            return UpdateCounts(B)
        one_batch = CountedUpdates(C=(0, B), M=(0, 1))
        counted = [one_batch if run is None else run for run in runs]
        return UpdateCounts(B, MeasuredUpdates.of(counted))

    def for_batch(self, B: int) -> "UpdateCounts":
        """The conversion in another cell, of batches of B rollouts.

        Its updates sample as many batches at each C as in this cell."""
        if self.measured is None or self.B == B:
            return UpdateCounts(B, self.measured)
        # An update of larger batches takes as many times more rollouts, so M is as many times less.
        share = self.B / B
        M = self.measured.M * share
        rate = self.measured.rate * share
        return UpdateCounts(B, replace(self.measured, M=M, rate=rate))

    def updates(self, C: float) -> int:
        """Whole updates that C rollouts are enough for."""
        if self.measured is None:
            return int(C // self.B)
        return floor(self.measured.updates(floor(C)) + ROUNDING)

    def updates_to_reach(self, C: float) -> int:
        """Whole updates after which at least C rollouts are sampled."""
        if self.measured is None:
            return -int(-C // self.B)
        return ceil(self.measured.updates(C) - ROUNDING)

    def rollouts(self, M: int) -> int:
        """Whole rollouts that are enough for M updates."""
        if self.measured is None:
            return self.B * M
        return ceil(self.measured.rollouts(M) - ROUNDING)

    def batches(self, C: float, C_start: float = 0.0) -> float:
        """How many batches of B_p n rollouts an update samples on average from C_start to C.

        C > C_start, in rollouts. It need not be whole; 1.0 without dynamic sampling."""
        if self.measured is None:
            return 1.0
        M = self.measured.updates(C) - self.measured.updates(C_start)
        return (C - C_start) / (self.B * max(M, ROUNDING))

    def allocation(self, B_p: int, n: int, M: int) -> Allocation:
        """The allocation of M updates with (B_p, n), whose product is this B."""
        if self.measured is None:
            return Allocation(B_p, n, M)
        return Allocation(B_p, n, M, batches=self.rollouts(M) / (self.B * M))
