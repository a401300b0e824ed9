"""The curves of a fit and their replicates, as NumPy arrays over the measured cells (B_p, n).

A cell's expected reward at C is its curve's at min(C, C_peak), because early stopping keeps what overfitting would
lose. Beyond its data, that a curve levels off is an assumption: learning may as well go on by as much a decade as it
last did (the quickstart's policies, run on for 4 times the compute, gained .04 where their curves promised .01). So
beyond the data each replicate lies somewhere between its curve and a straight line in log C, as steep as the frontier
was over its last SPAN decades (or as the curve itself, if that was less steep).

Point estimates come from `curves`, intervals from `draws`, the replicates of their parameters; a fit without draws
(mode "paper") gives point estimates and no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isojax.core.errors import InputError
from isojax.scaling.curves.fitted_curve import FittedCurve
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.problem_resampling import apply_problem_shift
from isojax.scaling.curves.residual_correction import ResidualCorrection, correlated_normals
from isojax.scaling.intervals import LEVEL
from isojax.scaling.result import CurveDraws, FitResult

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Interval = tuple[float, float]

TREND_DECADES = 0.5  # decades before the end of a cell's data from which the line beyond them is drawn
PARAMETER_NAMES = ("R0", "A", "exponent", "C_mid")


@dataclass(frozen=True)
class CurveEnsemble:
    """The curves of a fit and their replicates; cells in order of (n, B_p).

    Attributes:
        B_p, n: int[cells].
        tail: float[cells], the curves' shape; draw_tail: float[replicates], that of each replicate
        (scaling/curves/hill.py).
        bends: what is added to each cell's curve inside its measured range (scaling/curves/residual_correction.py);
        None where nothing is.
        point: float[4, 1, cells], the curves' R0, A, exponent, C_mid.
        draws: float[4, replicates, cells], the same of each replicate; 0 replicates where the fit has none.
        shift: float[replicates, 2], what other validation problems would add in each replicate (problems.shift).
        C_low, C_high: float[cells], the measured range. C_peak: float[cells], infinite where reward never falls.
        noise_sd: float[cells], of one evaluation: the fit's estimate, else the residual of the curve, in reward.
        determined: bool[cells], whether the data determine the plateau A.
        stable: bool[cells], whether the cell's B_p is.
        level: of the intervals. run_sd: run-to-run standard deviation of the reward (0 where the fit knows none).
        measured: the largest C measured.
        no_effect: the fit cannot tell any n from another.
    """

    B_p: IntArray
    n: IntArray
    tail: FloatArray
    draw_tail: FloatArray
    corrections: tuple[ResidualCorrection | None, ...]
    curve_parameters: FloatArray
    draw_parameters: FloatArray
    shift: FloatArray
    C_low: FloatArray
    C_high: FloatArray
    C_peak: FloatArray
    noise_sd: FloatArray
    determined: BoolArray
    stable: BoolArray
    level: float
    run_sd: float
    C_measured_max: float
    no_effect: bool

    @property
    def B(self) -> IntArray:
        """int[cells], rollouts an update."""
        return self.B_p * self.n

    @property
    def replicates(self) -> int:
        """How many replicates; 0 where the fit has none."""
        return self.draw_parameters.shape[1]

    def expected_rewards(self, C: ArrayLike) -> FloatArray:
        """The curves' rewards at budgets C > 0: float[...] -> float[..., cells]."""
        return self.expected_at_cell_budgets(np.asarray(C, dtype=np.float64)[..., None])

    def sampled_rewards(self, C: ArrayLike) -> FloatArray:
        """The replicates' rewards at budgets C > 0: float[...] -> float[..., replicates, cells]."""
        return self.sampled_at_cell_budgets(np.asarray(C, dtype=np.float64)[..., None])

    def expected_at_cell_budgets(self, spent: FloatArray) -> FloatArray:
        """The curves' rewards where each cell spends its own compute: float[..., cells] -> float[..., cells]."""
        C_capped = np.minimum(spent, self.C_peak)
        curve_rewards = _curve_rewards(self.curve_parameters, self.tail, C_capped[..., None, :])[..., 0, :]
        return curve_rewards + self._corrections_at(C_capped, curve_rewards.shape)

    def sampled_at_cell_budgets(self, spent: FloatArray, same_problems: bool = False) -> FloatArray:
        """The same of each replicate, on problems drawn anew or on the same: float[..., cells] -> float[...,
        replicates, cells].
        """
        C_capped = np.minimum(spent, self.C_peak)
        curve_rewards = _curve_rewards(self.draw_parameters, self.draw_tail[:, None], C_capped[..., None, :])
        for i, correction in enumerate(self.corrections):
            if correction is not None:
                cell_C = np.broadcast_to(C_capped, (*curve_rewards.shape[:-2], len(self.n)))[..., i]
                normal_draws = correlated_normals(
                    self.replicates, len(correction.value), (int(self.B_p[i]), int(self.n[i]))
                )
                curve_rewards[..., i] += np.moveaxis(
                    correction.sample(cell_C.reshape(-1), normal_draws), 0, -1
                ).reshape(*cell_C.shape, self.replicates)
        curve_rewards = self._extrapolate(curve_rewards, C_capped)
        return curve_rewards if same_problems else apply_problem_shift(self.shift, curve_rewards)

    def _extrapolate(self, curve_rewards: FloatArray, C_capped: FloatArray) -> FloatArray:
        """Replicates of the curves, float[..., replicates, cells], with what learning that goes on would add beyond the
        data.
        """
        decades_beyond = np.maximum(np.log10(C_capped / self.C_high), 0.0)[..., None, :]
        if not self.replicates or not decades_beyond.any():
            return curve_rewards
        own_rewards = [self._sampled_curves(self.C_high * back) for back in (1.0, 10**-TREND_DECADES)]
        best_rewards = [
            self._sampled_curves(np.full(len(self.n), self.C_measured_max * back)).max(1, keepdims=True)
            for back in (1.0, 10**-TREND_DECADES)
        ]
        slope = np.minimum(own_rewards[0] - own_rewards[1], best_rewards[0] - best_rewards[1]) / TREND_DECADES
        trend_line = own_rewards[0] + np.maximum(slope, 0.0) * decades_beyond
        trend_share = np.random.default_rng(0).uniform(size=self.replicates)[:, None] ** 2  # small ones are likelier
        return np.where(
            decades_beyond > 0,
            np.minimum(curve_rewards + trend_share * np.maximum(trend_line - curve_rewards, 0.0), 1.0),
            curve_rewards,
        )

    def _sampled_curves(self, C: FloatArray) -> FloatArray:
        """float[replicates, cells]: the replicates' curves, each cell at its own compute."""
        return _curve_rewards(self.draw_parameters, self.draw_tail[:, None], np.minimum(C, self.C_peak))

    def _corrections_at(self, C_capped: FloatArray, shape: tuple[int, ...]) -> FloatArray:
        """float[..., cells]: the bends of all cells."""
        correction_by_cell, C_capped = np.zeros(shape), np.broadcast_to(C_capped, shape)
        for i, correction in enumerate(self.corrections):
            if correction is not None:
                correction_by_cell[..., i] = correction.evaluate(C_capped[..., i])
        return correction_by_cell

    def cell_rewards(self, i: int, C: float, same_problems: bool = False) -> tuple[float, FloatArray]:
        """Cell i after C rollouts: (its curve's reward, float[replicates] of each replicate)."""
        cell_budgets = np.full(len(self.n), C)
        return float(self.expected_at_cell_budgets(cell_budgets)[i]), self.sampled_at_cell_budgets(
            cell_budgets, same_problems
        )[:, i]

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

    def interval(self, values: ArrayLike) -> Interval | None:
        """The central `level` of draws, float[replicates]; None where there are none."""
        if not np.size(values):
            return None
        tail_percent = 50 * (1 - self.level)
        low, high = np.percentile(np.asarray(values, dtype=np.float64), [tail_percent, 100 - tail_percent])
        return float(low), float(high)


def load_ensemble(fit: FitResult) -> CurveEnsemble:
    """The curves of a fit and their replicates.

    Raises:
        InputError: the fit has no curve or no run.
    """
    curves = sorted(fit.curves, key=lambda c: (c.n, c.B_p))
    if not curves or not fit.runs:
        raise InputError("the fit holds no curve or no run; expected at least one of each. Run `isojax fit` again.")
    stable_by_B_p = {v.B_p: v.stable for v in fit.stability}
    draw_parameters, draw_tail, shifts = _draw_arrays(fit.draws, curves)
    noise_sd = [c.rmse for c in curves] if fit.intervals is None else [fit.intervals.noise_sd] * len(curves)
    return CurveEnsemble(
        B_p=np.array([c.B_p for c in curves], dtype=np.int64),
        n=np.array([c.n for c in curves], dtype=np.int64),
        tail=np.array([c.tail for c in curves], dtype=np.float64),
        draw_tail=draw_tail,
        corrections=tuple(c.correction for c in curves),
        curve_parameters=np.array([[[getattr(c, key) for c in curves]] for key in PARAMETER_NAMES], dtype=np.float64),
        draw_parameters=draw_parameters,
        shift=shifts,
        C_low=np.array([c.C_low for c in curves]),
        C_high=np.array([c.C_high for c in curves]),
        C_peak=np.array([np.inf if c.C_peak is None else c.C_peak for c in curves]),
        noise_sd=np.array(noise_sd),
        determined=np.array([c.determined for c in curves]),
        stable=np.array([stable_by_B_p.get(c.B_p, True) for c in curves]),
        level=LEVEL if fit.intervals is None else fit.intervals.level,
        run_sd=0.0 if fit.intervals is None else fit.intervals.run_sd,
        C_measured_max=max(run.C_max for run in fit.runs),
        no_effect=fit.joint.n_star.no_effect,
    )


def _draw_arrays(draws: CurveDraws | None, curves: Sequence[FittedCurve]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(float[4, replicates, cells] in the curves' order, float[replicates] tails, float[replicates, 2] shifts)."""
    if draws is None:
        return np.zeros((len(PARAMETER_NAMES), 0, len(curves))), np.zeros(0), np.zeros((0, 2))
    cell_order = [draws.cells.index(c.key) for c in curves]
    R0 = np.broadcast_to(np.array(draws.R0)[:, None], (len(draws.R0), len(curves)))
    by_cell = [np.array(values)[cell_order].T for values in (draws.A, draws.exponent, draws.C_mid)]
    return np.stack([R0, *by_cell]), np.array(draws.tail), np.array(draws.shift).T


def _curve_rewards(theta: FloatArray, tail: Any, C: Any) -> FloatArray:
    """R(C) of parameters theta float[4, ...] = (R0, A, exponent, C_mid); the rest broadcasts."""
    R0, A, exponent, C_mid = theta
    return curve_value(C, R0, A, exponent, C_mid, tail)
