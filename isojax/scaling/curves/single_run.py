"""The posterior of one run's learning curve (hill.py), or of the curve that several seeds share.

Evaluation i of seed r, at compute C_i, is

    y = R0 + (A - R0) s(C_i) + e_r + noise,     e_r ~ N(0, run_sd^2)

Of one seed e_r is 0, unless run_sd is stated: the curve is then that run's own. `isojax fit-curve`,
`isojax watch` and the fit of a sweep that has one cell (one_cell.py) are views of these draws.

The noise is AR(1) with Student's t innovations, so that an outlier hardly moves the curve. The
curve, its tail (with the prior of a sweep, TAIL_PRIOR), the noise and the levels e_r are drawn by
tempered sequential Monte Carlo (Del Moral, Doucet and Jasra 2006): particles start as draws from
the prior; then the power of the likelihood rises in steps from 0 to 1, and each step resamples the
particles and moves them by random-walk Metropolis. A plateau that the run has not shown therefore
stays as uncertain as the prior.

Departures from ScaleRL (arXiv:2510.13786): no early point is skipped, and R0 and the tail are
fitted. Rewards outside [0, 1] are scaled linearly to [1/3, 2/3]."""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares
from scipy.special import ndtr

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.posterior_mode import TAIL_PRIOR
from isojax.scaling.curves.sweep_estimate import MAX_EXTRAPOLATION, PosteriorSamples
from isojax.scaling.intervals import SEED
from isojax.scaling.tracks import FloatArray, RewardPoints

METHOD = "posterior of the curve, its tail and the noise, by sequential Monte Carlo"
MIN_POINTS = 3  # distinct C
MAX_FITTED_POINTS = 200  # of more, neighbours are averaged
MEAN_CURVE_POINTS = 64  # at which the mean curve is nearest to the draws
PARTICLES = 1000
MIN_EFFECTIVE_SHARE = 0.5  # of the particles, after a step of the likelihood's power
MOVES = 10  # of each particle at each power below 1
LAST_MOVES = 100  # at the full power
ACCEPTED_SHARE = 0.25  # of the moves, to which their length adapts
BLOCK_VALUES = 50_000  # rewards that are computed at once: more do not fit a processor's cache
NOISE_FREEDOM = 5  # degrees of freedom of Student's t
ROUNDING = 1e-9  # a relative difference of rewards that means nothing
# The prior, for rewards in [0, 1]. R0 is uniform on [0, 1], A on [R0, 1], the autocorrelation on
# [0, .9]; the tail is TAIL_PRIOR's. ln exponent, log10 C_mid, ln noise_scale and ln run_sd are
# normal, by mean and standard deviation.
MAX_AUTOCORRELATION = 0.9
PRIOR_LN_EXPONENT = (0.0, 1.0)
PRIOR_MID_SD = 0.7  # of log10 C_mid, around the middle of the run's log C
PRIOR_LN_NOISE_SCALE = (float(np.log(0.01)), 0.7)
PRIOR_LN_RUN_SD = (float(np.log(0.01)), 0.7)


@dataclass(frozen=True)
class RunPoints:
    """Points of one run or of several seeds, sorted by run and C."""

    C: FloatArray  # [points]
    R: FloatArray  # [points]
    run_index: NDArray[np.intp]  # [points]
    seeds: int = 1  # of which some may have no points here
    averaged: ArrayLike = 1  # [points] or of all, the evaluations of which each point is the mean

    def select(self, mask: NDArray[np.bool_]) -> Self:
        return replace(self, C=self.C[mask], R=self.R[mask], run_index=self.run_index[mask])

    @property
    def is_first(self) -> NDArray[np.bool_]:
        """bool[points], which points are the first of their run."""
        return np.diff(self.run_index, prepend=-1) != 0

    @property
    def base_reward(self) -> float | None:
        """The mean reward at C = 0; None without such a point."""
        at_zero = self.R[self.C == 0]
        return float(at_zero.mean()) if at_zero.size else None

    def by_seed(self) -> list[RewardPoints]:
        """The points of each seed that has some."""
        masks = [self.run_index == i for i in np.unique(self.run_index)]
        return [RewardPoints(self.C[mask], self.R[mask]) for mask in masks]


@dataclass(frozen=True)
class _Parameters:
    """Of Q particles, for rewards in [0, 1]."""

    R0: FloatArray  # [Q]
    A: FloatArray  # [Q]
    exponent: FloatArray  # [Q]
    C_mid: FloatArray  # [Q]
    tail: FloatArray  # [Q]
    noise_scale: FloatArray  # [Q], of Student's t
    autocorrelation: FloatArray  # [Q]
    run_sd: FloatArray  # [Q], of run_levels; 0 where they are
    run_levels: FloatArray  # [Q, seeds], e_r

    def rewards(self, C: FloatArray) -> FloatArray:
        """The curves at C >= 0, float[points] -> float[Q, points]."""
        columns = (v[:, None] for v in (self.R0, self.A, self.exponent, self.C_mid, self.tail))
        return np.where(C > 0, curve_value(np.where(C > 0, C, 1.0), *columns), self.R0[:, None])


@dataclass(frozen=True)
class MeanCurve:
    """One curve for all draws (hill.py), in rewards of the file."""

    R0: float
    A: float
    exponent: float
    C_mid: float
    tail: float


@dataclass(frozen=True)
class RunPosterior:
    parameters: _Parameters
    C_low: float  # the smallest C > 0 that was measured
    # beyond it the draws depart from their curves by departure_sd, at four times C_high
    C_high: float
    reward_range: tuple[float, float]  # of the rewards that _Parameters counts as 0 and 1
    departure_sd: float | None = None
    C_peak: float = math.inf  # beyond it the curves stay at the reward that they have there

    @property
    def draws(self) -> dict[str, FloatArray]:
        """float[Q] of each parameter of the curve."""
        p = self.parameters
        return {
            "R0": self._to_rewards(p.R0),
            "A": self._to_rewards(p.A),
            "exponent": p.exponent,
            "C_mid": p.C_mid,
        }

    @property
    def run_sd(self) -> FloatArray:
        """float[Q], the standard deviation of the reward between runs that differ in their seed."""
        low, high = self.reward_range
        return (high - low) * self.parameters.run_sd

    @property
    def noise_sd(self) -> FloatArray:
        """float[Q], the standard deviation of the noise of one evaluation; where means were fitted,
        theirs, scaled as if evaluations were independent."""
        low, high = self.reward_range
        return (
            (high - low)
            * np.sqrt(NOISE_FREEDOM / (NOISE_FREEDOM - 2))
            * self.parameters.noise_scale
        )

    def rewards(self, C: FloatArray) -> FloatArray:
        """The expected rewards of new runs at C >= 0, with their departures: float[points] ->
        float[Q, points]."""
        return self._to_rewards(self._unit_rewards(C))

    def evaluations(self, points: RunPoints) -> FloatArray:
        """New evaluations of the same runs, with their noise, at the C of `points`: float[Q,
        points]."""
        p, rng = self.parameters, np.random.default_rng(SEED)
        noise = p.noise_scale[:, None] * rng.standard_t(NOISE_FREEDOM, (len(p.R0), len(points.C)))
        rho = p.autocorrelation
        for i in np.flatnonzero(~points.is_first):
            noise[:, i] = rho * noise[:, i - 1] + np.sqrt(1 - rho**2) * noise[:, i]
        return self._to_rewards(
            self._unit_rewards(points.C) + p.run_levels[:, points.run_index] + noise
        )

    def mean_curve(self) -> MeanCurve:
        """The curve nearest to the draws' mean rewards (without departures), from the first point
        to MAX_EXTRAPOLATION times the last one.

        The means or medians of the parameters are no such curve: where the draws' tails, exponents
        and C_mid go together, it misses the points by more than their noise."""
        p = self.parameters
        C = np.geomspace(self.C_low, MAX_EXTRAPOLATION * self.C_high, MEAN_CURVE_POINTS)
        mean_rewards = p.rewards(C).mean(0)
        R0 = float(p.R0.mean())

        def residual(values: FloatArray) -> FloatArray:
            A, log10_mid, ln_exponent, tail = values
            return curve_value(C, R0, A, np.exp(ln_exponent), 10**log10_mid, tail) - mean_rewards

        start = np.array(
            [p.A.mean(), np.log10(p.C_mid).mean(), np.log(p.exponent).mean(), p.tail.mean()]
        )
        lower = np.array([0.0, start[1] - 3, start[2] - 3, min(TAIL_PRIOR)])
        upper = np.array([1.0, start[1] + 3, start[2] + 3, max(TAIL_PRIOR)])
        scale = np.array([0.1, 0.3, 0.3, 0.5])  # about the width of each in the prior
        bounds = (lower, upper)
        fitted = least_squares(residual, np.clip(start, *bounds), bounds=bounds, x_scale=scale)
        A, log10_mid, ln_exponent, tail = fitted.x.tolist()
        low, high = self.reward_range
        return MeanCurve(
            R0=low + (high - low) * R0,
            A=low + (high - low) * A,
            exponent=math.exp(ln_exponent),
            C_mid=10**log10_mid,
            tail=tail,
        )

    def _unit_rewards(self, C: FloatArray) -> FloatArray:
        p, none = self.parameters, np.array([np.inf])
        low, high = self.reward_range
        run = PosteriorSamples(
            tail=p.tail,
            keys=((1, 1),),
            A=p.A[:, None],
            exponent=p.exponent[:, None],
            C_mid=p.C_mid[:, None],
            R0=p.R0,
            shift=np.zeros((len(p.R0), 2)),
            C_peak=np.array([self.C_peak]),
            C_low=none,
            C_high=np.array([self.C_high]),
            departure_sd=None if self.departure_sd is None else self.departure_sd / (high - low),
        )
        return np.where(
            C > 0, run.curves_at(np.where(C > 0, C, 1.0)[:, None])[:, :, 0].T, p.R0[:, None]
        )

    def _to_rewards(self, values: FloatArray) -> FloatArray:
        low, high = self.reward_range
        return low + (high - low) * values


def find_reward_range(R: FloatArray) -> tuple[float, float]:
    """What is scaled to 0 and 1."""
    low, high = float(R.min()), float(R.max())
    spread = high - low if high - low > ROUNDING * abs(high) else max(abs(high), 1.0)
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low - spread, high + spread)


def flat_posterior(
    C_range: tuple[float, float],
    levels: FloatArray,
    evaluation_sd: float,
    seeds: int,
    reward_range: tuple[float, float],
) -> RunPosterior:
    """Flat curves at levels float[Q], without an effect of seeds; levels and evaluation_sd are of
    rewards in [0, 1]. C_range: the smallest C > 0 and the largest that were measured."""
    C_low, C_high = C_range
    ones, count = np.ones(len(levels)), len(levels)
    scale = evaluation_sd / np.sqrt(NOISE_FREEDOM / (NOISE_FREEDOM - 2))
    parameters = _Parameters(
        R0=levels,
        A=levels,
        exponent=ones,
        C_mid=C_high * ones,
        tail=ones,
        noise_scale=scale * ones,
        autocorrelation=0 * ones,
        run_sd=0 * ones,
        run_levels=np.zeros((count, seeds)),
    )
    return RunPosterior(parameters, C_low, C_high, reward_range)


def sample_posterior(
    points: RunPoints, stated_run_sd: float | None = None, seed: int = SEED
) -> RunPosterior:
    """Draws given points of at least MIN_POINTS distinct C >= 0.

    stated_run_sd: of the reward between runs that differ in their seed; None: estimated where there
    are several seeds. seed: of the draws."""
    low, high = find_reward_range(points.R)
    unit_points = replace(points, R=(points.R - low) / (high - low))
    unit_run_sd = None if stated_run_sd is None else stated_run_sd / (high - low)

    parameters = _temper(_average_neighbours(unit_points), unit_run_sd, seed)
    C_low = float(points.C[points.C > 0].min())
    return RunPosterior(parameters, C_low, float(points.C.max()), reward_range=(low, high))


def _average_neighbours(points: RunPoints) -> RunPoints:
    """Means of as many neighbouring points of a run as leave about MAX_FITTED_POINTS; the point at
    C = 0 stays."""
    size = math.ceil(len(points.C) / MAX_FITTED_POINTS)
    if size == 1:
        return points
    run_start = np.flatnonzero(points.is_first)
    first_trained = (run_start + (points.C[run_start] == 0))[np.cumsum(points.is_first) - 1]
    starts_group = points.is_first | ((np.arange(len(points.C)) - first_trained) % size == 0)
    group = np.cumsum(starts_group) - 1
    counts = np.bincount(group)
    C, R = (np.bincount(group, values) / counts for values in (points.C, points.R))
    return RunPoints(C, R, points.run_index[starts_group], points.seeds, averaged=counts)


def _temper(points: RunPoints, stated_run_sd: float | None, seed: int) -> _Parameters:
    """PARTICLES draws, rewards in [0, 1]."""
    rng = np.random.default_rng(seed)
    log10_C = np.log10(points.C[points.C > 0])
    middle = float(log10_C.min() + log10_C.max()) / 2
    coordinates = _PriorCoordinates(middle, points.seeds, stated_run_sd)
    block = max(1, BLOCK_VALUES // len(points.C))

    def log_likelihood(u: FloatArray) -> FloatArray:
        blocks = [coordinates.parameters(u[i : i + block]) for i in range(0, len(u), block)]
        return np.concatenate([_log_likelihood(points, parameters) for parameters in blocks])

    u = rng.normal(size=(PARTICLES, coordinates.count))
    value, power, move_length = log_likelihood(u), 0.0, 1.0
    while power < 1:
        step = _next_step(value, 1 - power)
        power += step
        weight = np.cumsum(np.exp(step * (value - value.max())))
        picked = np.searchsorted(
            weight / weight[-1], (rng.uniform() + np.arange(PARTICLES)) / PARTICLES
        )
        u, value = u[picked], value[picked]
        for _ in range(MOVES if power < 1 else LAST_MOVES):
            # Moves of many lengths: the posterior is wide where noise explains the rewards, and
            # narrow elsewhere.
            root = np.linalg.cholesky(np.cov(u.T) + 1e-9 * np.eye(u.shape[1]))
            lengths = move_length * np.exp(rng.normal(size=(PARTICLES, 1)))
            proposed = u + lengths * rng.normal(size=u.shape) @ root.T
            proposed_value = log_likelihood(proposed)
            gain = power * (proposed_value - value) + 0.5 * ((u**2).sum(1) - (proposed**2).sum(1))
            accepted = np.log(rng.uniform(size=PARTICLES)) < gain
            u[accepted], value[accepted] = proposed[accepted], proposed_value[accepted]
            move_length *= np.exp(accepted.mean() - ACCEPTED_SHARE)
    return coordinates.parameters(u)


@dataclass(frozen=True)
class _PriorCoordinates:
    """The coordinates in which particles move: float[Q, count], standard normal under the prior.

    The first seven are the curve's and the noise's. Where runs have levels of their own, the
    logarithm of their standard deviation follows, unless it is stated, and then the levels."""

    middle: float  # of the run's log10 C
    seeds: int
    stated_run_sd: float | None

    @property
    def has_run_levels(self) -> bool:
        return self.seeds > 1 or self.stated_run_sd is not None

    @property
    def first_level(self) -> int:
        return 8 if self.stated_run_sd is None else 7

    @property
    def count(self) -> int:
        return self.first_level + self.seeds if self.has_run_levels else 7

    def parameters(self, u: FloatArray) -> _Parameters:
        """The parameters that coordinates float[Q, count] stand for."""
        R0 = ndtr(u[:, 0])
        tails = np.array(sorted(TAIL_PRIOR))
        cumulative_prior = np.cumsum([TAIL_PRIOR[t] for t in tails])[:-1]

        def log_normal(coordinate: FloatArray, prior: tuple[float, float]) -> FloatArray:
            return np.exp(prior[0] + prior[1] * coordinate)

        run_sd, unit_levels = np.zeros(len(u)), np.zeros((len(u), self.seeds))
        if self.has_run_levels:
            unit_levels = u[:, self.first_level :]
            run_sd = (
                log_normal(u[:, 7], PRIOR_LN_RUN_SD)
                if self.stated_run_sd is None
                else np.full(len(u), self.stated_run_sd)
            )

        return _Parameters(
            R0=R0,
            A=R0 + (1 - R0) * ndtr(u[:, 1]),
            exponent=log_normal(u[:, 2], PRIOR_LN_EXPONENT),
            C_mid=10 ** (self.middle + PRIOR_MID_SD * u[:, 3]),
            tail=tails[np.searchsorted(cumulative_prior, ndtr(u[:, 4]))],
            noise_scale=log_normal(u[:, 5], PRIOR_LN_NOISE_SCALE),
            autocorrelation=MAX_AUTOCORRELATION * ndtr(u[:, 6]),
            run_sd=run_sd,
            run_levels=run_sd[:, None] * unit_levels,
        )


def _log_likelihood(points: RunPoints, parameters: _Parameters) -> FloatArray:
    """float[Q], up to a constant."""
    residuals = points.R - parameters.rewards(points.C) - parameters.run_levels[:, points.run_index]
    follows = ~points.is_first
    rho = parameters.autocorrelation[:, None]
    scale = parameters.noise_scale[:, None] / np.sqrt(points.averaged)
    innovation_share = np.sqrt(1 - rho**2)  # of the noise's scale
    innovations = (residuals - rho * (np.roll(residuals, 1, axis=1) * follows)) / scale
    innovations /= np.where(follows, innovation_share, 1.0)
    log_scales = np.log(np.broadcast_to(scale, residuals.shape)).sum(1)
    log_scales += follows.sum() * np.log(innovation_share[:, 0])
    return -log_scales - (NOISE_FREEDOM + 1) / 2 * np.log1p(innovations**2 / NOISE_FREEDOM).sum(1)


def _next_step(value: FloatArray, largest: float) -> float:
    """The step of the likelihood's power, `largest` at most, that leaves MIN_EFFECTIVE_SHARE of the
    particles."""

    def effective_share(step: float) -> float:
        weight = np.exp(step * (value - value.max()))
        return float(weight.sum() ** 2 / (weight**2).sum() / len(weight))

    if effective_share(largest) >= MIN_EFFECTIVE_SHARE:
        return largest
    low, high = 0.0, largest
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if effective_share(middle) >= MIN_EFFECTIVE_SHARE else (low, middle)
        )
    return high
