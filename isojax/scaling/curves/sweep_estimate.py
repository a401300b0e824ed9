"""What a mode of fitting takes and gives. A mode is a function (cells, metric, options) ->
SweepEstimate, registered in fit.MODES: the curves and, where it has them, replicates of all curves.
A replicate is one posterior draw, on N validation problems drawn with replacement, which shift all
curves alike, by about R (1 - R) (a + b R): 0 at R = 0 and R = 1, where problems cannot differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.intervals import REPLICATES, SEED, share_draws, share_interval
from isojax.scaling.result import (
    CurveDraws,
    FittedCurve,
    FlatStart,
    IntervalSettings,
    ResidualCorrection,
)
from isojax.scaling.tracks import FloatArray

DEFAULT_MODE = "hierarchical"
# times the largest measured C: how far a curve may be read; trials hide as much
MAX_EXTRAPOLATION = 4.0
# By how much outside its measured range a cell counts: about the distance of two evaluations (less
# was not measured), or, where cells compete for the law, as far as a curve may be read.
MIN_DECADES = 0.1
CURVE_REACH_DECADES = float(np.log10(MAX_EXTRAPOLATION))
DEPARTURE_FREEDOM = 5  # degrees of freedom of Student's t, which departures beyond the data follow
# Runs depart from their curve further upwards, by a second rise that the data do not show, than
# downwards: so many times departure_sd, below the curve and above it. With these, simulated runs of
# 14 other forms are outside their interval as often on either side (docs/laws.md).
DEPARTURES_DOWN_UP = (0.5, 1.3)
# A cell below this reward at the end of its data, where other cells are above it, has hardly
# scored. What it may learn beyond its data is then known from the others alone: it is left to the
# highest draws, so that the interval reaches as far as they do, and the expected reward stays near
# what the cell itself has shown.
HARDLY_SCORED = 0.01
SHARE_THAT_RISES = 0.06  # of the draws, which holds the bound of a central 90%
# So has one that came from no right answer at all to no more than a few, whose number is known to a
# third: how they go on nobody can tell. Of three times as many all draws count.
FEW_HITS = 8
MAX_FEW = 0.03  # of reward: more than that are not few where the first evaluations were not at 0
LEVEL_SEED = 4


@dataclass(frozen=True)
class FitOptions:
    """What a user may ask of a fit."""

    mode: str = DEFAULT_MODE  # a key of fit.MODES
    replicates: int = REPLICATES  # draws of all curves behind the intervals; 0: no intervals
    seed: int = SEED  # of these draws
    # Standard deviation of the reward at the plateau between runs that differ in their seed alone;
    # None: estimated, or .01 assumed where no cell has two seeds.
    run_sd: float | None = None
    # fit the runs that are flagged as broken (checks/run_health.py) too
    include_flagged: bool = False
    # called with (replicates done, of how many)
    on_progress: Callable[[int, int], None] | None = None


DEFAULT_OPTIONS = FitOptions()


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
    # of each cell; empty where no cell has one
    corrections: tuple[ResidualCorrection | None, ...] = ()
    # Of a reward at four times its cell's data, from the curve; None: the curves go on alone beyond
    # the data.
    departure_sd: float | None = None
    flat_starts: tuple[FlatStart | None, ...] = ()  # of each cell; empty where no cell has one
    rollouts: float | None = None  # of one evaluation of a sweep
    departures_down_up: tuple[float, float] = DEPARTURES_DOWN_UP

    @classmethod
    def of_curves(
        cls,
        curves: Sequence[FittedCurve],
        departure_sd: float | None = None,
        rollouts: float | None = None,
        **draws: FloatArray,
    ) -> Self:
        """Draws (tail, A, exponent, C_mid, R0, shift) of the fitted curves."""
        return cls(
            departure_sd=departure_sd,
            departures_down_up=DEPARTURES_DOWN_UP,
            rollouts=rollouts,
            keys=tuple(c.key for c in curves),
            C_peak=np.array([np.inf if c.C_peak is None else c.C_peak for c in curves]),
            C_low=np.array([c.C_low for c in curves]),
            C_high=np.array([c.C_high for c in curves]),
            corrections=tuple(c.correction for c in curves),
            flat_starts=tuple(c.flat_start for c in curves),
            **draws,
        )

    def rewards(self, C: ArrayLike) -> FloatArray:
        """float[Q, J, G] at compute C, float[G] > 0, each replicate on validation problems of its
        own."""
        curves = self.curves_at(np.asarray(C, dtype=np.float64)[:, None], same_problems=False)
        return np.moveaxis(curves, 0, 2)

    def curves_at(self, C: FloatArray, same_problems: bool = True) -> FloatArray:
        """The replicates' rewards on the problems that were used, or on those of each replicate,
        each cell at its own compute C > 0: float[..., J] or float[..., 1] -> float[..., Q, J]. A
        curve with a peak gives the best reward up to C."""
        seen = self.curves_as_seen(C)
        if not same_problems:
            seen = apply_problem_shift(self.shift, seen)
        return self._doubt_levels(seen, np.minimum(C, self.C_peak))

    def expected_at(self, C: FloatArray) -> FloatArray:
        """Their mean, float[..., J], as if they departed as far downwards as upwards: nobody is
        promised a rise that the data do not show.

        Where a cell stands at a level, the level that its evaluations show: how far off that may be
        is no part of what to expect. Nor are, beyond the data of a cell that has hardly scored, the
        few draws that rise all the same: they say how far it may get."""
        seen = replace(self, departures_down_up=(1.0, 1.0)).curves_as_seen(C)
        expected = seen.mean(-2)
        is_beyond = np.broadcast_to(np.minimum(C, self.C_peak) > self.C_high, expected.shape)
        kept = int((1 - SHARE_THAT_RISES) * len(self.R0))
        for j in np.flatnonzero(self.hardly_scored()).tolist():
            lower = np.sort(seen[..., j], axis=-1)[..., :kept].mean(-1)
            expected[..., j] = np.where(is_beyond[..., j], lower, expected[..., j])
        return expected

    def curves_as_seen(self, C: FloatArray) -> FloatArray:
        """`curves_at` without what evaluations leave open of the level at which cells stand."""
        C_capped = np.minimum(C, self.C_peak)
        R0, tail = self.R0[:, None], self.tail[:, None]
        R = curve_value(C_capped[..., None, :], R0, self.A, self.exponent, self.C_mid, tail)
        for j, correction in enumerate(self.corrections):
            if correction is not None:
                sampled = correction.sample(
                    C_capped[..., j].reshape(-1), len(self.R0), self.keys[j]
                )
                R[..., j] = np.clip(R[..., j] + sampled.T.reshape(R.shape[:-1]), 0.0, 1.0)
        # of a sweep, whose rewards are in [0, 1]; the prior of R0 has no bounds
        if self.rollouts is not None:
            R = np.clip(R, 0.0, 1.0)
        for j, flat in enumerate(self.flat_starts):
            if flat is not None:
                R[..., j] = np.where(
                    flat.holds_at(C_capped[..., j])[..., None], flat.level, R[..., j]
                )
        decades_beyond = np.maximum(np.log10(C_capped / self.C_high), 0.0)[..., None, :]
        if self.departure_sd is None or not decades_beyond.any() or not len(self.R0):
            return R
        return self._depart(R, decades_beyond, self.departure_sd)

    def _depart(
        self, curve_rewards: FloatArray, decades_beyond: FloatArray, departure_sd: float
    ) -> FloatArray:
        """Rewards beyond the cells' data: the curve's and a departure from it that grows with the
        distance in log C; half of its variance all cells of a replicate share."""
        rng, replicates = np.random.default_rng(0), len(self.R0)
        spread = np.sqrt(
            (DEPARTURE_FREEDOM - 2) / rng.chisquare(DEPARTURE_FREEDOM, (replicates, 1))
        )
        own_parts = [np.random.default_rng([0, *key]).normal(size=replicates) for key in self.keys]
        departure = (
            spread * (rng.normal(size=(replicates, 1)) + np.stack(own_parts, axis=1)) / np.sqrt(2)
        )
        departure -= departure.mean(0)  # so that no cell gains by chance
        down, up = self.departures_down_up
        departure *= np.where(departure < 0, down, up)
        rewards = np.clip(
            curve_rewards + departure * departure_sd * decades_beyond / CURVE_REACH_DECADES,
            0.0,
            1.0,
        )
        ends = self.curves_as_seen(np.minimum(self.C_high, self.C_peak))  # [Q, J]
        for j, share in enumerate(self._shares_that_rise(ends.mean(0)).tolist()):
            if share < 1:
                of_cell = rewards[..., j]
                highest = of_cell >= np.quantile(of_cell, 1 - share, axis=-1, keepdims=True)
                rewards[..., j] = np.where(highest, of_cell, np.minimum(of_cell, ends[:, j]))
        return np.where(decades_beyond > 0, rewards, curve_rewards)

    def hardly_scored(self) -> NDArray[np.bool_]:
        """bool[J], of which cells so little was seen that beyond their data nothing follows from
        it."""
        if self.departure_sd is None or not len(self.R0):
            return np.zeros(len(self.keys), dtype=bool)
        ends = self.curves_as_seen(np.minimum(self.C_high, self.C_peak)).mean(0)
        return self._shares_that_rise(ends) <= SHARE_THAT_RISES

    def _shares_that_rise(self, ends: FloatArray) -> FloatArray:
        """float[J]: the share of the draws that follow their curve beyond the data of each cell, by
        the cells' rewards float[J] at the end of these."""
        hardly = (ends < HARDLY_SCORED) & (ends.max() >= HARDLY_SCORED)
        shares = np.where(hardly, SHARE_THAT_RISES, 1.0)
        if self.rollouts is None:
            return shares
        began = np.array(
            [0.0 if flat is None else flat.level for flat in self.flat_starts or [None] * len(ends)]
        )
        is_flat = np.array([flat is not None for flat in self.flat_starts or [None] * len(ends)])
        known = np.clip(((ends - began) * self.rollouts - FEW_HITS) / (2 * FEW_HITS), 0.0, 1.0)
        known = np.where((began < 0.5) & (is_flat | (ends < MAX_FEW)), known, 1.0)
        return np.minimum(shares, SHARE_THAT_RISES + (1 - SHARE_THAT_RISES) * known)

    def _doubt_levels(self, R: FloatArray, C_capped: FloatArray) -> FloatArray:
        """Rewards float[..., Q, J] at C float[..., J], with what an evaluation of N rollouts leaves
        open of the level at which cells stand; all cells of a replicate share it, so that it puts
        none ahead of another."""
        for j, flat in enumerate(self.flat_starts):
            if flat is not None:
                doubt = flat.doubt_at(C_capped[..., j])[..., None] * _level_doubt(
                    flat.level, flat.rollouts, len(self.R0)
                )
                R[..., j] = np.clip(R[..., j] + doubt, 0.0, 1.0)
        return R

    def for_cells(self, keys: Sequence[tuple[int, int]]) -> Self:
        """The same replicates of some cells."""
        cell_index = [self.keys.index(key) for key in keys]
        of_replicates = {
            name: getattr(self, name)[:, cell_index] for name in ("A", "exponent", "C_mid")
        }
        of_cells = {name: getattr(self, name)[cell_index] for name in ("C_peak", "C_low", "C_high")}
        corrections = tuple(self.corrections[j] for j in cell_index) if self.corrections else ()
        flat_starts = tuple(self.flat_starts[j] for j in cell_index) if self.flat_starts else ()
        return replace(
            self,
            keys=tuple(keys),
            corrections=corrections,
            flat_starts=flat_starts,
            **of_replicates,
            **of_cells,
        )

    def is_best(
        self, rewards: FloatArray, allowed: NDArray[np.bool_], axis: int
    ) -> NDArray[np.bool_]:
        """bool[...], which of the allowed cells along `axis` have the highest reward; the
        difference of less than one hit is none, where the highest is only a few hits above the
        level at which cells began."""
        allowed_rewards = np.where(allowed, rewards, -np.inf)
        best = allowed_rewards.max(axis, keepdims=True)
        if self.rollouts is None:
            return allowed_rewards == best
        level = next((flat.level for flat in self.flat_starts if flat is not None), 0.0)
        is_few = best - level < FEW_HITS / self.rollouts
        return allowed_rewards >= np.where(is_few, best - 1 / self.rollouts, best)

    def is_measured(
        self, C: ArrayLike, slack: float = MIN_DECADES, reach: float | None = None
    ) -> NDArray[np.bool_]:
        """bool[J, G]: which cells were measured to within `slack` decades of C, or end at most
        `reach` before it."""
        C = np.asarray(C, dtype=np.float64)[None, :]
        reach = slack if reach is None else reach
        return (self.C_low[:, None] <= C * 10**slack) & (self.C_high[:, None] * 10**reach >= C)


@dataclass(frozen=True)
class SweepEstimate:
    curves: list[FittedCurve]  # of the cells that can carry one
    unfitted_cells: list[tuple[int, int, str]]  # (B_p, n, reason) of the others
    draws: PosteriorSamples | None = None  # replicates of the curves
    intervals: IntervalSettings | None = None  # how the intervals are made from the draws
    # n makes no difference that the data can show; None where the mode cannot say
    no_effect: bool | None = None
    # of each run at C > 0, by rising C, where they are kept
    residuals: list[FloatArray] = field(default_factory=list)
    noise_sd: float | None = None  # standard deviation of the reward of one evaluation
    parameter_count: int = 0  # of all curves together
    # no run learnt anything (learning.py): all cells stand at one reward
    is_flat: bool = False


def apply_problem_shift(shifts: FloatArray, R: FloatArray) -> FloatArray:
    """Rewards R, float[..., Q, cells], on each replicate's problems; shifts float[Q, 2] are its (a,
    b)."""
    a, b = shifts[:, 0, None], shifts[:, 1, None]
    R_clipped = np.clip(R, 0.0, 1.0)
    return R + R_clipped * (1 - R_clipped) * (a + b * R_clipped)


def best_cells(
    draws: PosteriorSamples, C: ArrayLike, slack: float = MIN_DECADES
) -> tuple[FloatArray, NDArray[np.intp]]:
    """(float[Q, J, G] the cells' rewards, int[Q, G] which is the best of the cells measured within
    `slack`)."""
    R = draws.rewards(C)
    return R, any_of(draws.is_best(R, draws.is_measured(C, slack), axis=1), axis=1)


def any_of(is_best: NDArray[np.bool_], axis: int) -> NDArray[np.intp]:
    """One of those along an axis that are the best; of several each is as likely, not the first."""
    if not (is_best.sum(axis) > 1).any():
        return is_best.argmax(axis)
    order = np.random.default_rng(0).random(is_best.shape)
    return np.where(is_best, order, -1.0).argmax(axis)


@lru_cache(maxsize=64)
def _level_doubt(level: float, rollouts: float, count: int) -> FloatArray:
    """float[count]: how far the true level may be from the one seen, in an order that has nothing
    to do with that of the replicates."""
    draws = share_draws(level, rollouts, count, share_interval(level, rollouts))
    return np.random.default_rng(LEVEL_SEED).permutation(draws) - level


def to_curve_draws(draws: PosteriorSamples) -> CurveDraws:
    """Five significant digits of every replicate: what fit.json holds."""

    def rounded(values: FloatArray) -> tuple[float, ...]:
        return tuple(float(f"{v:.5g}") for v in values)

    A, exponent, C_mid = (
        tuple(map(rounded, values.T)) for values in (draws.A, draws.exponent, draws.C_mid)
    )
    a, b = map(rounded, draws.shift.T)
    return CurveDraws(
        cells=draws.keys,
        A=A,
        exponent=exponent,
        C_mid=C_mid,
        R0=rounded(draws.R0),
        tail=rounded(draws.tail),
        shift=(a, b),
        departure_sd=draws.departure_sd,
        rollouts=draws.rollouts,
    )


def from_curve_draws(draws: CurveDraws | None, curves: Sequence[FittedCurve]) -> PosteriorSamples:
    """The replicates of a saved fit, cells in the curves' order; no replicate where the fit has
    none (mode "paper")."""
    if draws is None:
        R0, A = np.zeros(0), np.zeros((0, len(curves)))
        return PosteriorSamples.of_curves(
            curves, tail=R0, A=A, exponent=A, C_mid=A, R0=R0, shift=np.zeros((0, 2))
        )
    order = [draws.cells.index(c.key) for c in curves]
    A, exponent, C_mid = (
        np.array(values)[order].T for values in (draws.A, draws.exponent, draws.C_mid)
    )
    tail, R0, shift = np.array(draws.tail), np.array(draws.R0), np.array(draws.shift).T
    beyond = draws.departure_sd, draws.rollouts
    return PosteriorSamples.of_curves(
        curves, *beyond, tail=tail, A=A, exponent=exponent, C_mid=C_mid, R0=R0, shift=shift
    )
