"""The learning curves of a fit and their replicates (draws) over the measured cells (B_p, n), and
how long runs of the cells take.

Every reward, interval and probability that a recommendation or a comparison states comes from these
replicates."""

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
# To the user of imported runs: how their times become known.
TIMES_HINT = (
    "import logs with --map devices=8 and step_seconds=COLUMN, of each step, "
    "or elapsed_seconds=COLUMN, so far"
)


class RewardForecast(NamedTuple):
    """An expected reward and the interval around it, (low, high)."""

    reward: float
    interval: Interval | None  # None without replicates


class RunHours(NamedTuple):
    """How long a run takes, in hours; None without a clock."""

    wall_clock: float | None
    of_devices: float | None


class CellBudgets(NamedTuple):
    """For each cell, the rollouts that a run of it would spend by a request, and whether the
    request's limits allow this cell."""

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
    stable: BoolArray  # whether runs with the cell's B_p were stable
    # How long C rollouts take in each cell: fields float[cells], the mean of the cell's runs.
    clock: Clock
    counts: tuple[UpdateCounts, ...]  # of each cell: how many rollouts its updates take

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
        """The index of the measured cell that is nearest in log n; of these, in log B_p."""
        distance_in_B_p = np.abs(np.log2(self.B_p / B_p))
        distance_in_n = np.abs(np.log2(self.n / n))
        # lexsort takes the last key first
        return int(np.lexsort((distance_in_B_p, distance_in_n))[0])

    def counts_of(self, B_p: int, n: int) -> UpdateCounts:
        """How C and updates convert in this (B_p, n), measured or not: an update samples as many
        batches of B_p n rollouts as in the nearest measured cell."""
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
        """How many batches of B_p n rollouts an update samples on average up to C, in the cell
        where that is most; 1.0 without dynamic sampling."""
        return max(counts.batches(C) for counts in self.counts)

    def expected_rewards(self, C: ArrayLike) -> FloatArray:
        """The expected rewards at budgets C > 0: float[...] -> float[..., cells]."""
        return self.expected_at_cell_budgets(np.asarray(C, dtype=np.float64)[..., None])

    def sampled_rewards(self, C: ArrayLike) -> FloatArray:
        """The replicates' rewards at budgets C > 0: float[...] -> float[..., replicates, cells]."""
        return self.sampled_at_cell_budgets(np.asarray(C, dtype=np.float64)[..., None])

    def expected_at_cell_budgets(self, spent: FloatArray) -> FloatArray:
        """The expected reward of each cell, each at its C: float[..., cells] -> float[..., cells].

        spent: rollouts > 0; a last axis of 1 means one C for all cells. The reward is the mean of
        the replicates; without replicates, that of the fitted curves.

        Where nothing was learnt in the sweep the fitted curves count too. They are the mean of the
        evaluations, 0 where no response was right; the replicates spread above 0, and so would
        their mean be."""
        if self.replicates and not self.fit.nothing_learnt:
            return self.samples.expected_at(spent)

        by_cell = np.broadcast_to(spent, (*spent.shape[:-1], len(self.curves)))
        return np.stack(
            [curve_reward(c, by_cell[..., i]) for i, c in enumerate(self.curves)], axis=-1
        )

    def sampled_at_cell_budgets(
        self, spent: FloatArray, on_sweep_problems: bool = False
    ) -> FloatArray:
        """The rewards of each replicate, each cell at its own C: float[..., cells] ->
        float[..., replicates, cells]. on_sweep_problems: on the validation problems of the sweep;
        otherwise each replicate is on problems drawn from them, and varies by these too."""
        return self.samples.curves_at(spent, same_problems=on_sweep_problems)

    def predict_reward(self, i: int, C: float, on_sweep_problems: bool = False) -> RewardForecast:
        """The expected reward of cell i (an index of `curves`) after C rollouts, and its interval.

        The interval is for other problems of the same kind or, with on_sweep_problems, for the
        validation problems of the sweep."""
        cell_budgets = np.full(len(self.curves), float(C))
        expected = float(self.expected_at_cell_budgets(cell_budgets)[i])
        draws = self.sampled_at_cell_budgets(cell_budgets, on_sweep_problems)[:, i]
        return RewardForecast(expected, self.interval(draws))

    def predict_new_run(self, i: int, C: float) -> RewardForecast:
        """The expected reward of cell i after C rollouts, and the interval of what one run shows.

        That is one new run, on the same problems. The interval's half widths: those of the expected
        reward's interval and of the noise (between runs, and of an evaluation), added in
        quadrature. i: an index of `curves`. The interval is None without replicates."""
        reward, interval = self.predict_reward(i, C, on_sweep_problems=True)
        noise = self.fit.intervals  # has the standard deviations of a run and of an evaluation
        if interval is None or noise is None:
            return RewardForecast(reward, None)

        # The interval of the expected reward is not symmetric: each side is widened alone.
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
        """How long a run of cell i takes from C_done to C rollouts; None in both fields without
        a clock of the cell."""
        seconds_done = self.clock.seconds(C_done)[i] if C_done else 0.0
        hours = float(self.clock.seconds(C)[i] - seconds_done) / 3600
        if np.isnan(hours):
            return RunHours(None, None)
        return RunHours(wall_clock=hours, of_devices=hours * float(self.clock.devices[i]))

    def affordable_rollouts(self, budget: TimeBudget) -> FloatArray:
        """The whole rollouts that a budget in time is enough for in each cell, float[cells].

        0 where it is unknown how long the cell's runs took. InputError if it is unknown for all."""
        if np.isnan(self.clock.per_rollout).all():
            times = "timing.jsonl, or the log's own step times"
            fix = f"Name a sweep's folder, not its fit.json, or {TIMES_HINT}."
            raise InputError(
                found=f"no run of this fit says how long its steps took ({times})",
                expected="a budget of rollouts",
                fix=fix,
            )

        # Device seconds / devices = seconds of wall clock. A clock gives whole rollouts, 0 where it
        # is unknown.
        devices = self.clock.devices if budget.of_devices else 1.0
        return self.clock.rollouts(budget.seconds / devices)

    def is_beyond_data(self, i: int, C: float) -> bool:
        """Whether C is above the largest C at which cell i was evaluated, by more than rounding."""
        return bool(C > self.samples.C_high[i] * (1 + 1e-9))

    def interval(self, values: FloatArray) -> Interval | None:
        """The interval of the central share LEVEL of draws of a reward, float[replicates], within
        0 to 1; None where there are no draws."""
        if not np.size(values):
            return None
        low, high = central_band(values)
        return float(max(0.0, low)), float(min(1.0, high))

    def affordable_cells(self, request: AllocationRequest) -> CellBudgets:
        """For each cell, the rollouts that it would spend, and whether the request allows them.

        It does where they are within the budget and the limits; unstable cells are not left out. A
        cell spends the whole budget, or with a fixed M what M updates take. The C of a cell that is
        not allowed is above 0 too, as curves need it."""
        fix = request.fix
        limit = np.full(len(self.n), float(request.C))
        if request.time is not None:
            limit = self.affordable_rollouts(request.time)

        # A cell must be able to pay for what it spends, and for one update at least.
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
        """As `affordable_cells`, but unstable cells are not allowed, unless the user fixed B_p."""
        C_spent, affordable = self.affordable_cells(request)
        allowed = affordable if "B_p" in request.fix else affordable & self.stable
        return CellBudgets(C_spent, allowed)

    def reward_if_none_rose(self, C_spent: FloatArray, allowed: BoolArray) -> float | None:
        """The reward at which all allowed cells still are after C_spent, as none has begun to rise.

        None where some cell has, or has no flat start (a first part at one reward), or where no
        cell is allowed. C_spent: float[cells] rollouts; allowed: bool[cells]."""
        level = None
        for i in np.flatnonzero(allowed).tolist():
            flat_start = self.curves[i].flat_start
            if flat_start is None or not flat_start.holds_at(C_spent[i]):
                return None
            if level is None:
                level = flat_start.level
        return level

    def choose_cell(self, C_spent: FloatArray, allowed: BoolArray, epsilon: float) -> int:
        """The index of the cell to recommend, among the allowed ones, if each spends C_spent.

        Its n is that of the highest expected reward (of equals the smaller). Its B_p is the
        smallest at this n whose reward is at most `epsilon` lower; cells that were measured at this
        C come before those whose reward is extrapolated. C_spent: float[cells] rollouts; allowed:
        bool[cells], at least one."""
        expected_rewards = np.where(allowed, self.expected_at_cell_budgets(C_spent), -np.inf)
        same_n = self.n == self.n[expected_rewards.argmax()]
        within_epsilon = allowed & same_n & (expected_rewards >= expected_rewards.max() - epsilon)
        measured = within_epsilon & (C_spent <= self.samples.C_high * MEASURED_TOLERANCE)
        # Cells are in order of B_p at one n: the first is the smallest.
        return int((measured if measured.any() else within_epsilon).argmax())


def load_ensemble(fit: FitResult) -> CurveEnsemble:
    """The curves and draws of a fit, by cell; C in the fit's unit (rollouts, tokens, ...)."""
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
    """How long C rollouts take in each cell: a Clock whose terms are float[cells].

    Each term is the mean over the cell's runs with a clock; NaN for a cell without such a run."""
    terms = fields(Clock)  # in the order of astuple
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
    """The curves and draws of a fit whose C counts rollouts, by cell; InputError for another
    unit."""
    if fit.compute != "rollouts":
        raise InputError(
            found=f"a fit in {fit.compute}",
            expected="compute 'rollouts'",
            fix="Fit the same runs with that.",
        )
    return load_ensemble(fit)
