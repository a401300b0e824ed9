"""The posterior of one run's learning curve (hill.py), or of the curve that several seeds share.

Evaluation i of seed r, at compute C_i, is

    y = R0 + (A - R0) s(C_i) + e_r + noise,     e_r ~ N(0, run_sd^2); e_r = 0 if there is one seed

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
from scipy.special import ndtr

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.posterior_mode import TAIL_PRIOR
from isojax.scaling.curves.sweep_estimate import PosteriorSamples
from isojax.scaling.intervals import SEED
from isojax.scaling.tracks import FloatArray

MIN_POINTS = 3  # distinct C
MAX_FITTED_POINTS = 200  # of more, neighbours are averaged
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
    run_levels: FloatArray  # [Q, seeds], e_r

    def rewards(self, C: FloatArray) -> FloatArray:
        """The curves at C >= 0, float[points] -> float[Q, points]."""
        columns = (v[:, None] for v in (self.R0, self.A, self.exponent, self.C_mid, self.tail))
        return np.where(C > 0, curve_value(np.where(C > 0, C, 1.0), *columns), self.R0[:, None])


@dataclass(frozen=True)
class RunPosterior:
    parameters: _Parameters
    # beyond it the draws depart from their curves by departure_sd, at four times C_high
    C_high: float
    reward_range: tuple[float, float]  # of the rewards that _Parameters counts as 0 and 1
    departure_sd: float | None = None

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
            C_peak=none,
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
    C_high: float,
    levels: FloatArray,
    evaluation_sd: float,
    seeds: int,
    reward_range: tuple[float, float],
) -> RunPosterior:
    """Flat curves at levels float[Q], without an effect of seeds; levels and evaluation_sd are of
    rewards in [0, 1]."""
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
        run_levels=np.zeros((count, seeds)),
    )
    return RunPosterior(parameters, C_high, reward_range)


def sample_posterior(points: RunPoints) -> RunPosterior:
    """Draws given points of at least MIN_POINTS distinct C >= 0."""
    reward_range = find_reward_range(points.R)
    unit_rewards = (points.R - reward_range[0]) / (reward_range[1] - reward_range[0])
    means = _average_neighbours(replace(points, R=unit_rewards))
    return RunPosterior(_temper(means), float(points.C.max()), reward_range)


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


def _temper(points: RunPoints) -> _Parameters:
    """PARTICLES draws, rewards in [0, 1]."""
    rng, seeds = np.random.default_rng(SEED), points.seeds
    log10_C = np.log10(points.C[points.C > 0])
    middle = float(log10_C.min() + log10_C.max()) / 2
    block = max(1, BLOCK_VALUES // len(points.C))

    def log_likelihood(u: FloatArray) -> FloatArray:
        blocks = [_from_normal(u[i : i + block], middle, seeds) for i in range(0, len(u), block)]
        return np.concatenate([_log_likelihood(points, parameters) for parameters in blocks])

    u = rng.normal(size=(PARTICLES, 7 if seeds == 1 else 8 + seeds))
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
    return _from_normal(u, middle, seeds)


def _from_normal(u: FloatArray, middle: float, seeds: int) -> _Parameters:
    """Parameters from coordinates float[Q, D] that are standard normal under the prior; middle: of
    log10 C."""
    R0 = ndtr(u[:, 0])
    tails = np.array(sorted(TAIL_PRIOR))
    cumulative_prior = np.cumsum([TAIL_PRIOR[t] for t in tails])[:-1]

    def log_normal(coordinate: FloatArray, prior: tuple[float, float]) -> FloatArray:
        return np.exp(prior[0] + prior[1] * coordinate)

    return _Parameters(
        R0=R0,
        A=R0 + (1 - R0) * ndtr(u[:, 1]),
        exponent=log_normal(u[:, 2], PRIOR_LN_EXPONENT),
        C_mid=10 ** (middle + PRIOR_MID_SD * u[:, 3]),
        tail=tails[np.searchsorted(cumulative_prior, ndtr(u[:, 4]))],
        noise_scale=log_normal(u[:, 5], PRIOR_LN_NOISE_SCALE),
        autocorrelation=MAX_AUTOCORRELATION * ndtr(u[:, 6]),
        run_levels=log_normal(u[:, 7:8], PRIOR_LN_RUN_SD) * u[:, 8:]
        if seeds > 1
        else np.zeros((len(u), 1)),
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
