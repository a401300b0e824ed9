"""The curves of a fit and their replicates over the measured cells (B_p, n): every reward, interval
and probability that a recommendation or a comparison states comes from these replicates; and how
long runs of the cells take."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isojax.core.errors import InputError
from isojax.core.nouns import Interval
from isojax.scaling.allocate.constraints import AllocationRequest, TimeBudget
from isojax.scaling.curves.hill import MEASURED_TOLERANCE, curve_reward
from isojax.scaling.curves.sweep_estimate import PosteriorSamples, from_curve_draws
from isojax.scaling.intervals import LEVEL, central_band
from isojax.scaling.result import FitResult, FittedCurve
from isojax.scaling.run_clock import Clock
from isojax.scaling.tracks import FloatArray
from isojax.scaling.update_counts import UpdateCounts

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
# How the times of runs that were imported become known.
TIMES_HINT = (
    "import logs with --map devices=8 and step_seconds=COLUMN, of each step, "
    "or elapsed_seconds=COLUMN, so far"
)


class RewardForecast(NamedTuple):
    """An expected reward."""

    reward: float
    interval: Interval | None  # None without replicates


class RunHours(NamedTuple):
    """How long a run takes, in hours; None without a clock."""

    wall_clock: float | None
    of_devices: float | None


class CellBudgets(NamedTuple):
    """What a request leaves of the cells: what each would spend, and whether it is allowed."""

    C: FloatArray  # [cells]
    allowed: BoolArray  # [cells]


@dataclass(frozen=True)
class CurveEnsemble:
    """The curves of a fit and their replicates; cells in order of (n, B_p), arrays are [cells]."""

    fit: FitResult
    curves: tuple[FittedCurve, ...]
    samples: PosteriorSamples  # replicates of the curves
    B_p: IntArray
    n: IntArray
    stable: BoolArray  # whether the cell's B_p is
    clock: Clock  # float[cells] each, the mean of a cell's runs
    counts: tuple[UpdateCounts, ...]  # of each cell, by its runs

    @property
    def B(self) -> IntArray:
        return self.B_p * self.n

    @property
    def replicates(self) -> int:
        """How many replicates; 0 where the fit has none."""
        return len(self.samples.R0)

    @property
    def C_measured_max(self) -> float:
        return max(run.C_max for run in self.fit.runs)

    def nearest_cell(self, B_p: int, n: int) -> int:
        """The nearest in log n, then in log B_p."""
        distance_in_B_p = np.abs(np.log2(self.B_p / B_p))
        distance_in_n = np.abs(np.log2(self.n / n))
        # lexsort takes the last key first
        return int(np.lexsort((distance_in_B_p, distance_in_n))[0])

    def counts_of(self, B_p: int, n: int) -> UpdateCounts:
        """How many updates C rollouts are, in this (B_p, n): as in the nearest cell, by batches."""
        return self.counts[self.nearest_cell(B_p, n)].for_batch(B_p * n)

    def updates_within(self, C: FloatArray) -> IntArray:
        """i64[cells]: whole updates that C rollouts, float[cells], are enough for."""
        return np.array(
            [counts.updates(float(c)) for counts, c in zip(self.counts, C, strict=True)],
            dtype=np.int64,
        )

    def rollouts_after(self, M: ArrayLike) -> FloatArray:
        """float[cells]: C after M updates, i64[cells] or one number for all."""
        by_cell = np.broadcast_to(M, (len(self.counts),)).tolist()
        return np.array(
            [counts.rollouts(m) for counts, m in zip(self.counts, by_cell, strict=True)],
            dtype=np.float64,
        )

    def most_batches(self, C: float) -> float:
        """The most that an update of a measured cell takes on average up to C."""
        return max(counts.batches(C) for counts in self.counts)

    def expected_rewards(self, C: ArrayLike) -> FloatArray:
        """The expected rewards at budgets C > 0: float[...] -> float[..., cells]."""
        return self.expected_at_cell_budgets(np.asarray(C, dtype=np.float64)[..., None])

    def sampled_rewards(self, C: ArrayLike) -> FloatArray:
        """The replicates' rewards at budgets C > 0: float[...] -> float[..., replicates, cells]."""
        return self.sampled_at_cell_budgets(np.asarray(C, dtype=np.float64)[..., None])

    def expected_at_cell_budgets(self, spent: FloatArray) -> FloatArray:
        """The mean of the replicates, or the curves' rewards where there are none, each cell at the
        compute that it spends: float[..., cells] -> float[..., cells]. Of a sweep that shows
        nothing, the mean of its evaluations: that of the replicates, which say how far off it may
        be, is above 0 where no response was right."""
        if self.replicates and not self.fit.nothing_learnt:
            return self.samples.expected_at(spent)
        by_cell = np.broadcast_to(spent, (*spent.shape[:-1], len(self.curves)))
        return np.stack(
            [curve_reward(c, by_cell[..., i]) for i, c in enumerate(self.curves)], axis=-1
        )

    def sampled_at_cell_budgets(self, spent: FloatArray, same_problems: bool = False) -> FloatArray:
        """The same of each replicate, on resampled or equal problems: float[..., cells] -> [...,
        replicates, cells]."""
        return self.samples.curves_at(spent, same_problems)

    def predict_reward(self, i: int, C: float, same_problems: bool = False) -> RewardForecast:
        """The expected reward of cell i after C rollouts and its interval, on resampled problems or
        on the same."""
        cell_budgets = np.full(len(self.curves), float(C))
        expected = float(self.expected_at_cell_budgets(cell_budgets)[i])
        draws = self.sampled_at_cell_budgets(cell_budgets, same_problems)[:, i]
        return RewardForecast(expected, self.interval(draws))

    def predict_new_run(self, i: int, C: float) -> RewardForecast:
        """The expected reward of cell i after C rollouts, and the interval of one new run's
        measurement on the same problems: the expectation's spread on each side, in quadrature with
        run-to-run and evaluation noise."""
        reward, interval = self.predict_reward(i, C, same_problems=True)
        noise = self.fit.intervals
        if interval is None or noise is None:
            return RewardForecast(reward, None)

        # Noise is normal, and the interval of the expectation is not symmetric: each side alone.
        noise_sd = float(np.hypot(noise.run_sd, noise.noise_sd))
        noise_half_width = NormalDist().inv_cdf(0.5 + LEVEL / 2) * noise_sd
        low, high = interval
        width_below = np.hypot(max(0.0, reward - low), noise_half_width)
        width_above = np.hypot(max(0.0, high - reward), noise_half_width)
        new_run = (
            float(max(0.0, reward - width_below)),
            float(min(1.0, reward + width_above)),
        )
        return RewardForecast(reward, new_run)

    def predict_hours(self, i: int, C: float, C_done: float = 0.0) -> RunHours:
        """Of a run of cell i from C_done to C rollouts."""
        seconds_done = self.clock.seconds(C_done)[i] if C_done else 0.0
        hours = float(self.clock.seconds(C)[i] - seconds_done) / 3600
        if np.isnan(hours):
            return RunHours(None, None)
        return RunHours(wall_clock=hours, of_devices=hours * float(self.clock.devices[i]))

    def affordable_rollouts(self, budget: TimeBudget) -> FloatArray:
        """float[cells]: whole rollouts that a budget affords; 0 where a cell has no clock.
        InputError if none has."""
        if np.isnan(self.clock.per_rollout).all():
            times = "timing.jsonl, or the log's own step times"
            problem = f"no run of this fit says how long its steps took ({times})"
            fix = f"Name a sweep's folder, not its fit.json, or {TIMES_HINT}."
            raise InputError(f"{problem}; expected a budget of rollouts. {fix}")

        # A second of all devices together is as many times less wall clock.
        devices = self.clock.devices if budget.of_devices else 1.0
        return self.clock.rollouts(budget.seconds / devices)

    def is_beyond_data(self, i: int, C: float) -> bool:
        return bool(C > self.samples.C_high[i] * (1 + 1e-9))

    def interval(self, values: FloatArray) -> Interval | None:
        """The central LEVEL of draws, float[replicates]; None where there are none."""
        if not np.size(values):
            return None
        low, high = central_band(values)
        return float(max(0.0, low)), float(min(1.0, high))

    def affordable_cells(self, request: AllocationRequest) -> CellBudgets:
        """What each cell would spend (where M is fixed, as many rollouts as that takes, else all),
        and whether the request allows it, be it stable or not."""
        fix = request.fix
        limit = np.full(len(self.n), float(request.C))
        if request.time is not None:
            limit = self.affordable_rollouts(request.time)

        C_spent = self.rollouts_after(fix["M"]) if "M" in fix else np.maximum(limit, 1.0)
        affordable = (C_spent <= limit) & (self.rollouts_after(1) <= limit)
        if request.B_max is not None:
            affordable &= self.B <= request.B_max
        if "B" in fix:
            affordable &= self.B == fix["B"]
        if "B_p" in fix:
            affordable &= self.B_p == fix["B_p"]
        return CellBudgets(C_spent, affordable)

    def allowed_cells(self, request: AllocationRequest) -> CellBudgets:
        """The same without the unstable cells, unless the user has fixed B_p."""
        C_spent, affordable = self.affordable_cells(request)
        allowed = affordable if "B_p" in request.fix else affordable & self.stable
        return CellBudgets(C_spent, allowed)

    def level_of_all(self, C_spent: FloatArray, allowed: BoolArray) -> float | None:
        """Where the allowed cells, at what each would spend, float[cells], all stand at the level
        at which they began: that level, else None."""
        level = None
        for i in np.flatnonzero(allowed).tolist():
            flat_start = self.curves[i].flat_start
            if flat_start is None or not flat_start.holds_at(C_spent[i]):
                return None
            if level is None:
                level = flat_start.level
        return level

    def choose_cell(self, C_spent: FloatArray, allowed: BoolArray, epsilon: float) -> int:
        """The best n of the allowed cells (at least one; the smaller of equals), and the smallest
        B_p at it within `epsilon` of the best, measured ones first; each cell would spend
        float[cells]."""
        expected_rewards = np.where(allowed, self.expected_at_cell_budgets(C_spent), -np.inf)
        same_n = self.n == self.n[expected_rewards.argmax()]
        within_epsilon = allowed & same_n & (expected_rewards >= expected_rewards.max() - epsilon)
        measured = within_epsilon & (C_spent <= self.samples.C_high * MEASURED_TOLERANCE)
        # Cells are in order of B_p at one n: the first is the smallest.
        return int((measured if measured.any() else within_epsilon).argmax())


def load_ensemble(fit: FitResult) -> CurveEnsemble:
    """The cells of a fit, in the unit of its C."""
    curves = tuple(sorted(fit.curves, key=lambda c: (c.n, c.B_p)))
    stable_by_B_p = {v.B_p: v.stable for v in fit.stability}
    return CurveEnsemble(
        fit=fit,
        curves=curves,
        samples=from_curve_draws(fit.draws, curves),
        B_p=np.array([c.B_p for c in curves], dtype=np.int64),
        n=np.array([c.n for c in curves], dtype=np.int64),
        stable=np.array([stable_by_B_p.get(c.B_p, True) for c in curves]),
        clock=_mean_clocks(fit, curves),
        counts=tuple(_counts_of_cell(fit, *curve.key) for curve in curves),
    )


def _mean_clocks(fit: FitResult, curves: Sequence[FittedCurve]) -> Clock:
    """float[cells] of each term: the mean over a cell's runs that have a clock, NaN without one."""
    terms = fields(Clock)
    by_cell = []  # [cells, terms]
    for curve in curves:
        clocks = [
            astuple(run.clock)
            for run in fit.runs
            if run.clock is not None and (run.B_p, run.n) == curve.key
        ]
        by_cell.append(np.mean(clocks, axis=0) if clocks else np.full(len(terms), np.nan))

    columns = np.transpose(by_cell)
    return Clock(**{term.name: column for term, column in zip(terms, columns, strict=True)})


def _counts_of_cell(fit: FitResult, B_p: int, n: int) -> UpdateCounts:
    runs_of_cell = [run for run in fit.runs if (run.B_p, run.n) == (B_p, n)]
    return UpdateCounts.of(B_p * n, [run.updates for run in runs_of_cell])


def load_rollout_ensemble(fit: FitResult) -> CurveEnsemble:
    """The same, of a fit whose C counts rollouts; InputError for another unit."""
    if fit.compute != "rollouts":
        raise InputError(
            f"a fit in {fit.compute}; expected compute 'rollouts'. Fit the same runs with that."
        )
    return load_ensemble(fit)
