"""The curves of a fit and their replicates over the measured cells (B_p, n), also beyond their data.

A cell's expected reward at C is its curve's at min(C, C_peak), because early stopping keeps what overfitting would
lose. That a curve levels off beyond its data is an assumption. Learning may as well go on at the rate per decade at
which it last went: the quickstart's policies, run on for 4 times the compute, gained .04 where their curves predicted
.01. So beyond the data each replicate is somewhere between its curve and a straight line in log C, as steep as the
frontier was over its last TREND_DECADES decades (or as the curve itself, if that was less steep).

Point estimates come from the fit's curves, intervals from its draws; a fit without draws (mode "paper") has no
interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isojax.core.errors import InputError
from isojax.scaling.curves.hill import FittedCurve, curve_reward
from isojax.scaling.curves.posterior_samples import PosteriorSamples, from_curve_draws
from isojax.scaling.curves.problem_resampling import apply_problem_shift
from isojax.scaling.intervals import LEVEL, central_band
from isojax.scaling.result import FitResult

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
ClosedInterval = tuple[float, float]

TREND_DECADES = 0.5  # the last decades of a cell's data, whose slope the line beyond them has


@dataclass(frozen=True)
class CurveEnsemble:
    """The curves of a fit and their replicates; cells in order of (n, B_p).

    Attributes:
        curves: of each cell. samples: their replicates.
        noise_sd: float[cells], of one evaluation: the fit's estimate, else the rmse of the curve, in reward.
        stable: bool[cells], whether the cell's B_p is.
        level: of the intervals.
        run_sd: run-to-run standard deviation of the reward; 0 where the fit knows none.
        C_measured_max: the largest C measured.
        no_effect: the fit cannot distinguish any two n.
    """

    curves: tuple[FittedCurve, ...]
    samples: PosteriorSamples
    noise_sd: FloatArray
    stable: BoolArray
    level: float
    run_sd: float
    C_measured_max: float
    no_effect: bool

    @cached_property
    def B_p(self) -> IntArray:
        """int[cells]."""
        return np.array([c.B_p for c in self.curves], dtype=np.int64)

    @cached_property
    def n(self) -> IntArray:
        """int[cells]."""
        return np.array([c.n for c in self.curves], dtype=np.int64)

    @cached_property
    def determined(self) -> BoolArray:
        """bool[cells], whether the data determine the plateau A."""
        return np.array([c.determined for c in self.curves])

    @property
    def B(self) -> IntArray:
        """int[cells], rollouts per update."""
        return self.B_p * self.n

    @property
    def C_low(self) -> FloatArray:
        """float[cells], the start of the measured range."""
        return self.samples.C_low

    @property
    def C_high(self) -> FloatArray:
        """float[cells], the end of the measured range."""
        return self.samples.C_high

    @property
    def C_peak(self) -> FloatArray:
        """float[cells], infinite where reward never falls."""
        return self.samples.C_peak

    @property
    def replicates(self) -> int:
        """How many replicates; 0 where the fit has none."""
        return len(self.samples.R0)

    def expected_rewards(self, C: ArrayLike) -> FloatArray:
        """The curves' rewards at budgets C > 0: float[...] -> float[..., cells]."""
        return self.expected_at_cell_budgets(np.asarray(C, dtype=np.float64)[..., None])

    def sampled_rewards(self, C: ArrayLike) -> FloatArray:
        """The replicates' rewards at budgets C > 0: float[...] -> float[..., replicates, cells]."""
        return self.sampled_at_cell_budgets(np.asarray(C, dtype=np.float64)[..., None])

    def expected_at_cell_budgets(self, spent: FloatArray) -> FloatArray:
        """The curves' rewards where each cell spends its own compute: float[..., cells] -> float[..., cells]."""
        by_cell = np.broadcast_to(spent, (*spent.shape[:-1], len(self.curves)))
        return np.stack([curve_reward(c, by_cell[..., i]) for i, c in enumerate(self.curves)], axis=-1)

    def sampled_at_cell_budgets(self, spent: FloatArray, same_problems: bool = False) -> FloatArray:
        """The same of each replicate, on resampled problems or on the same: float[..., cells] -> float[..., replicates,
        cells].
        """
        rewards = self._extrapolate(self.samples.curves_at(spent), spent)
        return rewards if same_problems else apply_problem_shift(self.samples.shift, rewards)

    def _extrapolate(self, curve_rewards: FloatArray, spent: FloatArray) -> FloatArray:
        """The replicates' curves, float[..., replicates, cells], plus what continued learning would add beyond the
        data.
        """
        C_capped = np.minimum(spent, self.C_peak)
        decades_beyond = np.maximum(np.log10(C_capped / self.C_high), 0.0)[..., None, :]
        if not self.replicates or not decades_beyond.any():
            return curve_rewards
        before = 10**-TREND_DECADES
        own_end, own_before = (self.samples.shapes_at(self.C_high * back) for back in (1.0, before))
        all_end = np.full(len(self.curves), self.C_measured_max)
        best_end, best_before = (self.samples.shapes_at(all_end * back).max(1, keepdims=True) for back in (1.0, before))
        slope = np.minimum(own_end - own_before, best_end - best_before) / TREND_DECADES
        trend_line = own_end + np.maximum(slope, 0.0) * decades_beyond
        trend_share = np.random.default_rng(0).uniform(size=self.replicates)[:, None] ** 2  # small ones are likelier
        extrapolated = curve_rewards + trend_share * np.maximum(trend_line - curve_rewards, 0.0)
        return np.where(decades_beyond > 0, np.minimum(extrapolated, 1.0), curve_rewards)

    def cell_rewards(self, i: int, C: float, same_problems: bool = False) -> tuple[float, FloatArray]:
        """Cell i after C rollouts: (its curve's reward, float[replicates] of each replicate)."""
        cell_budgets = np.full(len(self.curves), C)
        draws = self.sampled_at_cell_budgets(cell_budgets, same_problems)[:, i]
        return float(curve_reward(self.curves[i], C)), draws

    def nearest_cell(self, B_p: int, n: int) -> int:
        """The cell nearest in log n, then in log B_p."""
        distances = [
            (abs(np.log2(m / n)), abs(np.log2(b / B_p)), i)
            for i, (b, m) in enumerate(zip(self.B_p, self.n, strict=True))
        ]
        return min(distances)[-1]

    def new_run_sd(self, i: int) -> float:
        """Standard deviation of one new run's measured reward in cell i around its expectation: the spread between runs
        and the noise of one evaluation, sqrt(mean p (1 - p) / (N k)) where problems are answered k times."""
        return float(np.hypot(self.run_sd, self.noise_sd[i]))

    def interval(self, values: FloatArray) -> ClosedInterval | None:
        """The central `level` of draws, float[replicates]; None where there are none."""
        if not np.size(values):
            return None
        low, high = central_band(values, self.level)
        return float(low), float(high)


def load_ensemble(fit: FitResult) -> CurveEnsemble:
    """The curves of a fit and their replicates.

    Raises:
        InputError: the fit has no curve or no run.
    """
    curves = tuple(sorted(fit.curves, key=lambda c: (c.n, c.B_p)))
    if not curves or not fit.runs:
        raise InputError("the fit holds no curve or no run; expected at least one of each. Run `isojax fit` again.")
    stable_by_B_p = {v.B_p: v.stable for v in fit.stability}
    noise_sd = [c.rmse for c in curves] if fit.intervals is None else [fit.intervals.noise_sd] * len(curves)
    return CurveEnsemble(
        curves=curves,
        samples=from_curve_draws(fit.draws, curves),
        noise_sd=np.array(noise_sd),
        stable=np.array([stable_by_B_p.get(c.B_p, True) for c in curves]),
        level=LEVEL if fit.intervals is None else fit.intervals.level,
        run_sd=0.0 if fit.intervals is None else fit.intervals.run_sd,
        C_measured_max=max(run.C_max for run in fit.runs),
        no_effect=fit.joint.n_star.no_effect,
    )
