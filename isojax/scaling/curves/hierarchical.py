"""All curves of a sweep together: the hierarchical model (docs/laws.md, "The model"), from runs to
its arrays.

Run r of cell j = (B_p, n) follows, at log10 C = x,

    y = R0 + (A_j + e_r - R0) s(z) + noise,   z = ln10 exp(lnB_j) (x - mid_j),     (s: hill.py)
    e_r ~ N(0, run_sd^2)                        the run-to-run effect, which grows with progress
    (A_j, mid_j, lnB_j) ~ N(X_j gamma, tau^2)   a surface over (n, B_p); tau: cells' departures
    gamma ~ N(gamma0, gamma_sd^2)               wide for the surface's level and slopes, narrow
                                                for its roughness

with one R0; mid is log10 C_mid, lnB the logarithm of the exponent. run_sd and the tau and gamma_sd
of A are drawn too (plateau_scales.py). Outliers count by a soft-L1 loss. Dimensions: J cells, S
seeds, P points of a run, K columns of the surface."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.curves.condensed_runs import (
    MAX_POINTS,
    CondensedRun,
    condense_run,
    single_evaluations,
)
from isojax.scaling.curves.hill import progress_gradient
from isojax.scaling.tracks import FloatArray, RunTrack, TracksByCell, base_reward

ROBUST_THRESHOLD_SD = 3.0  # residuals beyond this many noise_sd count less
LNB_RANGE = (float(np.log(0.1)), float(np.log(12.0)))
MID_DECADES = 2.5  # mid may be this many decades outside the points
TINY_SD = 1e-9  # stands for a standard deviation of 0
# of the surface from one n to the next, around a line: reward, decades
PRIOR_STEP_SD = np.array([0.02, 0.02])
# of A's curvature: reward gained or lost against a line over three doublings of n
PRIOR_CURVATURE_SD = 0.03
MOSTLY_EQUAL, MAX_UNSEEN_NOISE_SD = 0.5, 0.01  # a share of the evaluations; reward
PRIOR_SLOPE_LNB_SD = 0.10  # of ln B over three doublings of n


@dataclass(frozen=True)
class SweepArrays:
    x: FloatArray  # [J, S, P], log10 C; -inf at C = 0
    y: FloatArray  # [J, S, P], rewards
    # [J, S, P], the evaluations of each point: 1, or more in a condensed run; 0: no point
    weight: FloatArray
    # [J, S, P], the variance of a point's evaluations around the run's course; 0 of a single one
    scatter: FloatArray
    X: FloatArray  # [J, 3, K], the surface's columns for (A, mid, lnB) of each cell
    x_low: float  # the range of x over all points at C > 0
    x_high: float

    @property
    def trained(self) -> NDArray[np.bool_]:
        """bool[J, S, P], where there is a point at C > 0."""
        return (self.weight > 0) & np.isfinite(self.x)

    @cached_property
    def x_of_cells(self) -> FloatArray:
        """float[J, 1, P], log10 C of the points of a cell, where its runs were evaluated at the
        same C, as those of one sweep are; else x, float[J, S, P].

        A cell's progress along its curve is then computed once for all its runs."""
        x = self.x.max(axis=1, keepdims=True)
        is_shared = (self.x == x) | (self.weight == 0)
        return x if is_shared.all() else self.x

    @property
    def theta_bounds(self) -> tuple[FloatArray, FloatArray]:
        """float[3] each, lower and upper, of (A, mid, lnB): 0 <= A <= 1, as rewards are."""
        lower = np.array([0.0, self.x_low - MID_DECADES, LNB_RANGE[0]])
        return lower, np.array([1.0, self.x_high + MID_DECADES, LNB_RANGE[1]])


@dataclass(frozen=True)
class SurfacePrior:
    """The prior of u = (R0, gamma)."""

    mean: FloatArray  # [1 + K]
    sd: FloatArray  # [1 + K]
    # [1 + K], an index of PRIOR_STEP_SD where the sd is estimated, else -1
    sd_group: NDArray[np.intp]


@dataclass(frozen=True)
class PackedSweep:
    data: SweepArrays  # a point for each evaluation
    # The same in at most condensed_runs.MAX_POINTS points a run: what is computed again and again
    # takes these. `data` itself where no run has more.
    condensed: SweepArrays
    # [J, S, P], where there is a point; data.weight is 0 at those that the fit leaves out
    has_point: NDArray[np.bool_]
    prior: SurfacePrior
    keys: list[tuple[int, int]]  # (B_p, n) of each cell
    tracks: list[list[RunTrack]]  # the seeds of each cell
    base_reward: float | None  # the mean reward at C = 0; None where no run was evaluated there
    # where most rewards are equal, as before the first right answers, noise cannot be seen
    min_noise_sd: float = 0.0


def pack_sweep(cells: TracksByCell) -> PackedSweep:
    """The sweep as arrays; cells in rising order of (B_p, n)."""
    keys = sorted(cells)
    tracks = [list(cells[key]) for key in keys]
    all_tracks = [t for seeds in tracks for t in seeds]
    x_of_all = np.log10(np.concatenate([t.C[t.C > 0] for t in all_tracks]))
    x_low, x_high = float(x_of_all.min()), float(x_of_all.max())
    X, prior = surface_columns(keys, (x_low + x_high) / 2)

    def pack(runs: list[list[CondensedRun]]) -> SweepArrays:
        return SweepArrays(
            x=_pad([[run.x for run in seeds] for seeds in runs], -np.inf),
            y=_pad([[run.y for run in seeds] for seeds in runs], 0.0),
            weight=_pad([[run.count for run in seeds] for seeds in runs], 0.0),
            scatter=_pad([[run.scatter for run in seeds] for seeds in runs], 0.0),
            X=X,
            x_low=x_low,
            x_high=x_high,
        )

    data = pack([[single_evaluations(t.C, t.R) for t in seeds] for seeds in tracks])
    condensed = data
    if max(len(t.C) for t in all_tracks) > MAX_POINTS:
        condensed = pack([[condense_run(t.C, t.R) for t in seeds] for seeds in tracks])

    min_noise_sd = _unseen_noise_sd(np.concatenate([t.R for t in all_tracks]))
    return PackedSweep(
        data,
        condensed,
        has_point=data.weight > 0,
        prior=prior,
        keys=keys,
        tracks=tracks,
        base_reward=base_reward(all_tracks),
        min_noise_sd=min_noise_sd,
    )


def _pad(values: Sequence[Sequence[FloatArray]], fill: float) -> FloatArray:
    """float[J, S, P] of the values float[points] of each cell's seeds, with `fill` after them."""
    S = max(len(seeds) for seeds in values)
    P = max(len(of_run) for seeds in values for of_run in seeds)
    padded = np.full((len(values), S, P), fill)
    for j, seeds in enumerate(values):
        for s, of_run in enumerate(seeds):
            padded[j, s, : len(of_run)] = of_run
    return padded


def _unseen_noise_sd(rewards: FloatArray) -> float:
    """One step of an evaluation's resolution where half of the rewards are one value, so that a
    robust estimate of noise is 0 and any difference would count as certain; 0 elsewhere."""
    values, counts = np.unique(rewards, return_counts=True)
    if len(values) < 2 or counts.max() < MOSTLY_EQUAL * len(rewards):
        return 0.0
    return min(float(np.diff(values).min()), MAX_UNSEEN_NOISE_SD)


def surface_columns(
    keys: Sequence[tuple[int, int]], mid_prior_mean: float
) -> tuple[FloatArray, SurfacePrior]:
    """The surface's columns X float[J, 3, K] for the cells (B_p, n), linearly independent, and
    their prior: A is quadratic in log2 n and linear in log2 B_p, mid is linear in both, lnB is
    linear in log2 n."""
    log_B_p, log_n = np.log2(np.array(keys, dtype=np.float64)).T
    log_n_scaled, log_B_p_scaled = ((v - v.mean()) / 3 for v in (log_n, log_B_p))
    constant = np.ones(len(keys))
    n_steps = [(log_n >= level).astype(np.float64) for level in np.unique(log_n)[1:]]
    log_n_scaled = log_n_scaled * (_rank(constant, log_n_scaled) == 2)
    log_B_p_scaled = log_B_p_scaled * (
        _rank(constant, log_n_scaled, log_B_p_scaled) > _rank(constant, log_n_scaled)
    )
    A_steps, mid_steps = (
        [(step, 0.0, sd, i) for step in n_steps] for i, sd in enumerate(PRIOR_STEP_SD)
    )
    # Of A, mid and lnB: (column, prior mean, prior sd, sd_group).
    parameter_blocks = (
        [
            (constant, 0.0, 3.0, -1),
            (log_n_scaled, 0.0, 1.0, -1),
            (log_B_p_scaled, 0.0, 0.1, -1),
            (log_n_scaled**2, 0.0, PRIOR_CURVATURE_SD, -1),
            *A_steps,
        ],
        [
            (constant, mid_prior_mean, 3.0, -1),
            (log_n_scaled, 0.0, 2.0, -1),
            (log_B_p_scaled, 0.0, 0.5, -1),
            *mid_steps,
        ],
        [(constant, 0.0, 0.7, -1), (log_n_scaled, 0.0, PRIOR_SLOPE_LNB_SD, -1)],
    )
    columns = [
        (c, *entry) for c, block in enumerate(parameter_blocks) for entry in block if entry[0].any()
    ]
    parameter_index, columns_of_cells, means, sds, groups = zip(*columns, strict=True)
    X = np.zeros((len(keys), 3, len(columns)))
    X[:, parameter_index, np.arange(len(columns))] = np.stack(columns_of_cells, axis=1)
    return X, SurfacePrior(np.array([0.0, *means]), np.array([3.0, *sds]), np.array([-1, *groups]))


def _rank(*columns: FloatArray) -> int:
    return int(np.linalg.matrix_rank(np.stack(columns, axis=1), tol=1e-8))


@dataclass(frozen=True)
class Scales:
    noise_sd: float  # of one evaluation
    run_sd: float  # of the reward between runs of one cell, at the plateau
    tau: FloatArray  # [3], of cells around the surface (A, mid, lnB)
    u_mean: FloatArray  # [1 + K], the prior of u = (R0, gamma)
    u_sd: FloatArray


@dataclass(frozen=True)
class HierarchicalState:
    """A solution: theta float[J, 3] = (A, mid, lnB); e float[J, S]; u float[1 + K] = (R0, gamma);
    the curves' tail."""

    theta: FloatArray
    e: FloatArray
    u: FloatArray
    tail: float

    @property
    def R0(self) -> float:
        """The base policy's reward."""
        return float(self.u[0])


def progress_at_points(
    tail: float, data: SweepArrays, theta: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(s, ds/d mid, ds/d lnB), each float[J, S, P]; 0 at C = 0."""
    mid, lnB = theta[:, 1, None, None], theta[:, 2, None, None]
    s, ds_d_mid, ds_d_lnB = (
        np.broadcast_to(values, data.x.shape)
        for values in progress_gradient(data.x_of_cells, mid, lnB, tail)
    )
    return s, ds_d_mid, ds_d_lnB


def predict_rewards(
    data: SweepArrays, state: HierarchicalState, with_run_effect: bool = True
) -> FloatArray:
    """float[J, S, P]: the model's reward at every point, of each run or, without its run effect, of
    its cell."""
    s = progress_at_points(state.tail, data, state.theta)[0]
    e = state.e[..., None] if with_run_effect else 0.0
    return state.R0 + (state.theta[:, 0, None, None] + e - state.R0) * s


def robust_precision(data: SweepArrays, state: HierarchicalState, scales: Scales) -> FloatArray:
    """float[J, S, P]: the precision of each point, less for outliers."""
    residual = data.y - predict_rewards(data, state)
    return data.weight / (
        scales.noise_sd**2 * np.sqrt(1 + (residual / (ROBUST_THRESHOLD_SD * scales.noise_sd)) ** 2)
    )


def minus_two_log_posterior(data: SweepArrays, state: HierarchicalState, scales: Scales) -> float:
    """Minus twice the log posterior, up to a constant."""
    scaled_residual = (data.y - predict_rewards(data, state)) / scales.noise_sd
    loss = (
        2 * ROBUST_THRESHOLD_SD**2 * (np.sqrt(1 + (scaled_residual / ROBUST_THRESHOLD_SD) ** 2) - 1)
    )
    surface_residual = state.theta - data.X @ state.u[1:]
    prior = (surface_residual**2 / scales.tau**2).sum() + (
        ((state.u - scales.u_mean) / scales.u_sd) ** 2
    ).sum()
    return float(
        (data.weight * loss).sum() + prior + (state.e**2).sum() / max(scales.run_sd, TINY_SD) ** 2
    )
