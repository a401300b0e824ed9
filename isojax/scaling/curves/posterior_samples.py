"""Replicates of all curves of a sweep, and the intervals of the frontier, of crossovers and of n* that follow.

A replicate is one draw of all curves from their posterior. A bound of an interval that is None is an open end: the
quantity is beyond the data in that many replicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isojax.scaling.curves.fitted_curve import FittedCurve
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.problem_resampling import apply_problem_shift
from isojax.scaling.curves.residual_correction import ResidualCorrection, correlated_normals
from isojax.scaling.frontier.envelope import MIN_DECADES
from isojax.scaling.intervals import Interval, central_interval
from isojax.scaling.result import CurveDraws
from isojax.scaling.validation_metrics import FloatArray

_SEARCH_PER_DECADE = 40
CURVE_REACH_DECADES = float(np.log10(4.0))


@dataclass(frozen=True)
class PosteriorSamples:
    """Replicates of all curves: Q replicates of J cells.

    Attributes:
        tail: float[Q], the shape of each replicate.
        keys: (B_p, n) of each cell.
        A, exponent, C_mid: float[Q, J]. R0: float[Q]. All on the problems that were used.
        shift: float[Q, 2], what other validation problems would add (problem_resampling.py); 0 where that is unknown.
        C_peak: float[J], C where a cell's reward starts to fall; inf where it does not.
        C_low, C_high: float[J], the measured range of C.
        corrections: of each cell; empty where no cell has one.
    """

    tail: FloatArray
    keys: tuple[tuple[int, int], ...]
    A: FloatArray
    exponent: FloatArray
    C_mid: FloatArray
    R0: FloatArray
    shift: FloatArray
    C_peak: FloatArray
    C_low: FloatArray
    C_high: FloatArray
    corrections: tuple[ResidualCorrection | None, ...] = ()

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
                normal_draws = correlated_normals(len(self.R0), len(correction.value), self.keys[j])
                sampled = correction.sample(C_capped[..., j].reshape(-1), normal_draws)
                R[..., j] += sampled.T.reshape(*C_capped.shape[:-1], len(self.R0))
        return R

    def shapes_at(self, C: FloatArray) -> FloatArray:
        """The same without the residual corrections."""
        C_capped = np.minimum(C, self.C_peak)[..., None, :]
        return curve_value(C_capped, self.R0[:, None], self.A, self.exponent, self.C_mid, self.tail[:, None])

    def for_cells(self, keys: Sequence[tuple[int, int]]) -> PosteriorSamples:
        """The same replicates of some cells."""
        cell_index = [self.keys.index(key) for key in keys]
        return replace(
            self,
            keys=tuple(keys),
            A=self.A[:, cell_index],
            exponent=self.exponent[:, cell_index],
            C_mid=self.C_mid[:, cell_index],
            C_peak=self.C_peak[cell_index],
            C_low=self.C_low[cell_index],
            C_high=self.C_high[cell_index],
            corrections=tuple(self.corrections[j] for j in cell_index) if self.corrections else (),
        )

    def is_measured(self, C: ArrayLike, slack: float = MIN_DECADES) -> NDArray[np.bool_]:
        """bool[J, G]: which cells were measured to within `slack` decades of C (they end at different C, since B_p n
        differs).
        """
        C = np.asarray(C, dtype=np.float64)[None, :]
        return (self.C_low[:, None] <= C * 10**slack) & (self.C_high[:, None] * 10**slack >= C)


def best_cells(
    draws: PosteriorSamples, C: ArrayLike, slack: float = MIN_DECADES
) -> tuple[FloatArray, NDArray[np.intp]]:
    """(float[Q, G] the frontier's reward in each replicate, int[Q, G] which cell attains it) among the cells measured
    to within `slack` decades."""
    R = np.where(draws.is_measured(C, slack), draws.rewards(C), -np.inf)
    return R.max(1), R.argmax(1)


def frontier_band(draws: PosteriorSamples, C: ArrayLike) -> list[dict[str, Any]]:
    """For each C: low and high of the frontier's reward, and n_probability, the share of replicates in which each n
    attains it, without those that never do.
    """
    best_rewards, winner = best_cells(draws, C)
    n_of_cell = np.array([n for _, n in draws.keys])
    rows = []
    for g in range(best_rewards.shape[1]):
        low, high = central_interval(best_rewards[:, g])
        n_share = {n: float(np.mean(n_of_cell[winner[:, g]] == n)) for n in sorted(set(n_of_cell.tolist()))}
        rows.append({"low": low, "high": high, "n_probability": {n: round(p, 4) for n, p in n_share.items() if p > 0}})
    return rows


def crossover_interval(
    draws: PosteriorSamples, low_cell: tuple[int, int], high_cell: tuple[int, int], fitted_crossing: float
) -> Interval:
    """Where high_cell overtakes low_cell, searched where both were measured.

    A replicate in which high_cell leads throughout crosses below the range (-inf), one in which it never leads, above
    it (+inf). Of several crossings the one nearest to `fitted_crossing`, that of the fitted curves, counts.
    """
    pair = draws.for_cells([low_cell, high_cell])
    C_from, C_to = float(pair.C_low.max()), float(pair.C_high.min())
    if not C_from < C_to:
        return None, None
    log10_C = np.linspace(
        np.log10(C_from), np.log10(C_to), max(8, int(np.ceil(_SEARCH_PER_DECADE * np.log10(C_to / C_from))) + 1)
    )
    R = pair.rewards(10**log10_C)
    lead = R[:, 1] - R[:, 0]
    crosses = (lead[:, :-1] <= 0) & (lead[:, 1:] > 0)
    fraction = np.abs(lead[:, :-1]) / np.maximum(np.abs(lead[:, :-1]) + np.abs(lead[:, 1:]), 1e-300)
    crossings = np.where(crosses, log10_C[:-1] + fraction * np.diff(log10_C), np.inf)
    nearest_crossing = crossings[np.arange(len(crossings)), np.abs(crossings - np.log10(fitted_crossing)).argmin(1)]
    outside_range = np.where(lead[:, -1] > 0, -np.inf, np.inf)
    log10_interval = central_interval(np.where(crosses.any(1), nearest_crossing, outside_range))
    return (
        None if log10_interval[0] is None else 10 ** log10_interval[0],
        None if log10_interval[1] is None else 10 ** log10_interval[1],
    )


def log2_best_n(draws: PosteriorSamples, C: ArrayLike) -> FloatArray:
    """float[Q, G]: log2 of the best n in each replicate.

    A cell whose data ended earlier still competes, by its curve, up to CURVE_REACH_DECADES further. Otherwise a large
    n, which is alone at large C where all runs have the same number of updates, would seem to win there.
    """
    return np.log2([n for _, n in draws.keys])[best_cells(draws, C, CURVE_REACH_DECADES)[1]]


def to_curve_draws(draws: PosteriorSamples) -> CurveDraws:
    """Five significant digits of every replicate that is finite: what fit.json holds."""
    is_finite = np.isfinite(draws.A + draws.exponent + draws.C_mid).all(1) & np.isfinite(draws.R0)

    def rounded(values: FloatArray) -> tuple[float, ...]:
        return tuple(float(f"{v:.5g}") for v in values[is_finite])

    return CurveDraws(
        cells=draws.keys,
        A=tuple(rounded(row) for row in draws.A.T),
        exponent=tuple(rounded(row) for row in draws.exponent.T),
        C_mid=tuple(rounded(row) for row in draws.C_mid.T),
        R0=rounded(draws.R0),
        tail=rounded(draws.tail),
        shift=(rounded(draws.shift[:, 0]), rounded(draws.shift[:, 1])),
    )


def from_curve_draws(draws: CurveDraws | None, curves: Sequence[FittedCurve]) -> PosteriorSamples:
    """The replicates of a saved fit, cells in the curves' order; no replicate where the fit has none (mode "paper")."""
    none_drawn = np.zeros((0, len(curves)))
    order = [] if draws is None else [draws.cells.index(c.key) for c in curves]
    A, exponent, C_mid = (
        (none_drawn, none_drawn, none_drawn)
        if draws is None
        else (np.array(values)[order].T for values in (draws.A, draws.exponent, draws.C_mid))
    )
    return PosteriorSamples(
        tail=np.array(() if draws is None else draws.tail),
        keys=tuple(c.key for c in curves),
        A=A,
        exponent=exponent,
        C_mid=C_mid,
        R0=np.array(() if draws is None else draws.R0),
        shift=np.zeros((0, 2)) if draws is None else np.array(draws.shift).T,
        C_peak=np.array([np.inf if c.C_peak is None else c.C_peak for c in curves]),
        C_low=np.array([c.C_low for c in curves]),
        C_high=np.array([c.C_high for c in curves]),
        corrections=tuple(c.correction for c in curves),
    )
