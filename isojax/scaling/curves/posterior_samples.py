"""Replicates of all curves of a sweep, and the intervals that follow. A replicate is one posterior draw of all curves,
on N validation problems drawn with replacement, which shift all curves alike, by about R (1 - R) (a + b R): 0 at R = 0
and R = 1, where problems cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isojax.scaling.curves.hierarchical_prior import PackedSweep
from isojax.scaling.curves.hill import FittedCurve, curve_value
from isojax.scaling.curves.residual_correction import ResidualCorrection
from isojax.scaling.frontier.envelope import MIN_DECADES
from isojax.scaling.intervals import Interval, central_interval
from isojax.scaling.result import CurveDraws
from isojax.scaling.tracks import FloatArray, as_float64, correct_counts, metric_per_problem

_SEARCH_PER_DECADE = 40
CURVE_REACH_DECADES = float(np.log10(4.0))
MAX_METRIC_ROUNDING = 5e-4  # a recorded metric further from that of its counts was not computed from them


@dataclass(frozen=True)
class PosteriorSamples:
    """Replicates of all curves: Q replicates of J cells, on the problems that were used."""

    tail: FloatArray  # [Q], the shape of each replicate
    keys: tuple[tuple[int, int], ...]  # (B_p, n) of each cell
    A: FloatArray  # [Q, J]
    exponent: FloatArray  # [Q, J]
    C_mid: FloatArray  # [Q, J]
    R0: FloatArray  # [Q]
    shift: FloatArray  # [Q, 2], (a, b) of what other problems would add; 0 where that is unknown
    C_peak: FloatArray  # [J], C where a cell's reward starts to fall; inf where it does not
    C_low: FloatArray  # [J], the measured range of C
    C_high: FloatArray
    corrections: tuple[ResidualCorrection | None, ...] = ()  # of each cell; empty where no cell has one

    @staticmethod
    def of_curves(curves: Sequence[FittedCurve], **draws: FloatArray) -> PosteriorSamples:
        """Draws (tail, A, exponent, C_mid, R0, shift) of the fitted curves."""
        return PosteriorSamples(
            keys=tuple(c.key for c in curves),
            C_peak=np.array([np.inf if c.C_peak is None else c.C_peak for c in curves]),
            C_low=np.array([c.C_low for c in curves]),
            C_high=np.array([c.C_high for c in curves]),
            corrections=tuple(c.correction for c in curves),
            **draws,
        )

    def rewards(self, C: ArrayLike) -> FloatArray:
        """float[Q, J, G] at compute C, float[G] > 0, each replicate on validation problems of its own."""
        curves = self.curves_at(np.asarray(C, dtype=np.float64)[:, None])
        return np.moveaxis(apply_problem_shift(self.shift, curves), 0, 2)

    def curves_at(self, C: FloatArray) -> FloatArray:
        """The replicates' curves on the problems that were used, each cell at its own compute C > 0: float[..., J] or
        float[..., 1] -> float[..., Q, J]. A curve with a peak gives the best reward up to C.
        """
        C_capped = np.minimum(C, self.C_peak)
        R = self.shapes_at(C_capped)
        for j, correction in enumerate(self.corrections):
            if correction is not None:
                sampled = correction.sample(C_capped[..., j].reshape(-1), len(self.R0), self.keys[j])
                R[..., j] += sampled.T.reshape(R.shape[:-1])
        return R

    def shapes_at(self, C: FloatArray) -> FloatArray:
        """The same without the residual corrections."""
        C_capped = np.minimum(C, self.C_peak)[..., None, :]
        return curve_value(C_capped, self.R0[:, None], self.A, self.exponent, self.C_mid, self.tail[:, None])

    def for_cells(self, keys: Sequence[tuple[int, int]]) -> PosteriorSamples:
        """The same replicates of some cells."""
        cell_index = [self.keys.index(key) for key in keys]
        of_replicates = {name: getattr(self, name)[:, cell_index] for name in ("A", "exponent", "C_mid")}
        of_cells = {name: getattr(self, name)[cell_index] for name in ("C_peak", "C_low", "C_high")}
        corrections = tuple(self.corrections[j] for j in cell_index) if self.corrections else ()
        return replace(self, keys=tuple(keys), corrections=corrections, **of_replicates, **of_cells)

    def is_measured(self, C: ArrayLike, slack: float = MIN_DECADES) -> NDArray[np.bool_]:
        """bool[J, G]: which cells were measured to within `slack` decades of C."""
        C = np.asarray(C, dtype=np.float64)[None, :]
        return (self.C_low[:, None] <= C * 10**slack) & (self.C_high[:, None] * 10**slack >= C)


def apply_problem_shift(shifts: FloatArray, R: FloatArray) -> FloatArray:
    """Rewards R, float[..., Q, cells], on each replicate's problems; shifts float[Q, 2] are its (a, b)."""
    a, b = shifts[:, 0, None], shifts[:, 1, None]
    R_clipped = np.clip(R, 0.0, 1.0)
    return R + R_clipped * (1 - R_clipped) * (a + b * R_clipped)


def sample_problem_shifts(contributions: FloatArray, replicates: int, rng: np.random.Generator) -> FloatArray:
    """(a, b) of each replicate, float[Q, 2]; contributions as `problem_contributions` gives them."""
    N = contributions.shape[1]
    return (rng.multinomial(N, np.full(N, 1 / N), size=replicates) / N - 1 / N) @ contributions.T


def problem_contributions(packed: PackedSweep, metric: str, fitted_rewards: FloatArray) -> FloatArray | None:
    """float[2, N]: what each problem contributes to (a, b), by least squares over all evaluations, where the curves'
    rewards are float[J, S, P]; None unless each has the counts from which its metric was computed.
    """
    rewards_per_problem = []
    evaluations = [pair for seeds in packed.tracks for t in seeds for pair in zip(t.run.points, t.R, strict=True)]
    for point, recorded_reward in evaluations:
        counts = correct_counts(point, metric)
        problem_rewards = metric_per_problem(counts, point.samples, metric) if counts else None
        if problem_rewards is None or abs(float(problem_rewards.mean()) - recorded_reward) > MAX_METRIC_ROUNDING:
            return None
        rewards_per_problem.append(problem_rewards)
    R = np.clip(fitted_rewards[packed.has_point], 0.0, 1.0)
    basis = (R * (1 - R))[:, None] * np.stack([np.ones_like(R), R], axis=1)
    return as_float64(np.linalg.pinv(basis) @ np.stack(rewards_per_problem))


def best_cells(
    draws: PosteriorSamples, C: ArrayLike, slack: float = MIN_DECADES
) -> tuple[FloatArray, NDArray[np.intp]]:
    """(float[Q, G] the frontier's reward, int[Q, G] which cell attains it) among the cells measured within `slack`."""
    R = np.where(draws.is_measured(C, slack), draws.rewards(C), -np.inf)
    return R.max(1), R.argmax(1)


def frontier_band(draws: PosteriorSamples, C: ArrayLike) -> list[dict[str, Any]]:
    """For each C: low and high of the frontier's reward, and in which share of the replicates each n leads."""
    best_rewards, winner = best_cells(draws, C)
    best_n = np.array([n for _, n in draws.keys])[winner]
    rows = []
    for rewards, n_values in zip(best_rewards.T, best_n.T, strict=True):
        low, high = central_interval(rewards)
        n, counts = np.unique(n_values, return_counts=True)
        shares = dict(zip(n.tolist(), (counts / len(n_values)).round(4).tolist(), strict=True))
        rows.append({"low": low, "high": high, "n_probability": shares})
    return rows


def crossover_interval(
    draws: PosteriorSamples, low_cell: tuple[int, int], high_cell: tuple[int, int], fitted_crossing: float
) -> Interval:
    """Where high_cell overtakes low_cell within their data; of several crossings nearest to that of the fitted curves.
    A replicate in which high_cell leads throughout counts as -inf, one in which it never leads as +inf.
    """
    pair = draws.for_cells([low_cell, high_cell])
    log10_C_from, log10_C_to = float(np.log10(pair.C_low.max())), float(np.log10(pair.C_high.min()))
    if not log10_C_from < log10_C_to:
        return None, None
    grid_points = max(8, int(np.ceil(_SEARCH_PER_DECADE * (log10_C_to - log10_C_from))) + 1)
    log10_C = np.linspace(log10_C_from, log10_C_to, grid_points)
    R = pair.rewards(10**log10_C)
    lead = R[:, 1] - R[:, 0]
    crosses = (lead[:, :-1] <= 0) & (lead[:, 1:] > 0)
    fraction = np.abs(lead[:, :-1]) / np.maximum(np.abs(lead[:, :-1]) + np.abs(lead[:, 1:]), 1e-300)
    crossings = np.where(crosses, log10_C[:-1] + fraction * np.diff(log10_C), np.inf)
    nearest_crossing = crossings[np.arange(len(crossings)), np.abs(crossings - np.log10(fitted_crossing)).argmin(1)]
    outside_range = np.where(lead[:, -1] > 0, -np.inf, np.inf)
    low, high = central_interval(np.where(crosses.any(1), nearest_crossing, outside_range))
    return None if low is None else 10**low, None if high is None else 10**high


def log2_best_n(draws: PosteriorSamples, C: ArrayLike) -> FloatArray:
    """float[Q, G]: log2 of the best n; a cell competes by its curve up to CURVE_REACH_DECADES beyond its data."""
    return np.log2([n for _, n in draws.keys])[best_cells(draws, C, CURVE_REACH_DECADES)[1]]


def to_curve_draws(draws: PosteriorSamples) -> CurveDraws:
    """Five significant digits of every replicate that is finite: what fit.json holds."""
    is_finite = np.isfinite(draws.A + draws.exponent + draws.C_mid).all(1) & np.isfinite(draws.R0)

    def rounded(values: FloatArray) -> tuple[float, ...]:
        return tuple(float(f"{v:.5g}") for v in values[is_finite])

    A, exponent, C_mid = (tuple(map(rounded, values.T)) for values in (draws.A, draws.exponent, draws.C_mid))
    a, b = map(rounded, draws.shift.T)
    R0, tail = rounded(draws.R0), rounded(draws.tail)
    return CurveDraws(cells=draws.keys, A=A, exponent=exponent, C_mid=C_mid, R0=R0, tail=tail, shift=(a, b))


def from_curve_draws(draws: CurveDraws | None, curves: Sequence[FittedCurve]) -> PosteriorSamples:
    """The replicates of a saved fit, cells in the curves' order; no replicate where the fit has none (mode "paper")."""
    keys = tuple(c.key for c in curves)
    if draws is None:
        none = ((),) * len(keys)
        draws = CurveDraws(cells=keys, A=none, exponent=none, C_mid=none, R0=(), tail=(), shift=((), ()))
    order = [draws.cells.index(key) for key in keys]
    A, exponent, C_mid = (np.array(values)[order].T for values in (draws.A, draws.exponent, draws.C_mid))
    tail, R0, shift = np.array(draws.tail), np.array(draws.R0), np.array(draws.shift).T
    return PosteriorSamples.of_curves(curves, tail=tail, A=A, exponent=exponent, C_mid=C_mid, R0=R0, shift=shift)
