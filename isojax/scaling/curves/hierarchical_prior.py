"""From runs to the model of hierarchical.py: arrays, the surface's columns, starting points, and standard deviations.

On the surface over (n, B_p) A is quadratic in log2 n and linear in log2 B_p, log10 C_mid is linear in both, and the
logarithm of the exponent is linear in log2 n, as far as the measured (B_p, n) can distinguish these. The departure of
cells from it (tau), the noise and the run-to-run effect are estimated together with the curves, under priors worth
PRIOR_WEIGHT observations at the values below, because few cells say little about their own spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.curves.hierarchical import (
    HierarchicalState,
    Scales,
    SweepArrays,
    find_mode,
    posterior_covariances,
    predict_rewards,
    progress_at_points,
)
from isojax.scaling.curves.hill import progress_gradient
from isojax.scaling.validation_metrics import FloatArray, RunTrack

Cells = Mapping[tuple[int, int], Sequence[RunTrack]]
PRIOR_WEIGHT = 4.0
PRIOR_TAU = np.array([0.005, 0.01, 0.04])  # of a cell around the surface: reward, decades, log
PRIOR_STEP_SD = np.array([0.02, 0.02])  # of the surface from one n to the next, around a line: reward, decades
PRIOR_CURVATURE_SD = 0.03  # of A's curvature: reward gained or lost against a line over three doublings of n
PRIOR_SLOPE_LNB_SD = 0.10  # of ln B over three doublings of n
PRIOR_RUN_SD = 0.01
NOISELESS_SD = 1e-6  # below this the points are a computed curve, without variation between runs either
SCALE_ROUNDS = 8
POOLED_TAU = 1e-4  # tau of cells that share one curve


@dataclass(frozen=True)
class SurfacePrior:
    """The prior of u = (R0, gamma): mean and sd float[1 + K]; sd_group int[1 + K] numbers the standard deviations that
    are estimated together (-1: not estimated).
    """

    mean: FloatArray
    sd: FloatArray
    sd_group: NDArray[np.intp]


@dataclass(frozen=True)
class PackedSweep:
    """A sweep's evaluations and prior.

    Attributes:
        data: the evaluations.
        has_point: bool[J, S, P], where there is a point; data.weight is 0 at those that the fit leaves out.
        prior: of the surface. tau: float[3], the prior of Scales.tau.
        keys: (B_p, n) of each cell. tracks: its seeds.
        base_reward: the mean reward at C = 0; None where no run was evaluated there.
    """

    data: SweepArrays
    has_point: NDArray[np.bool_]
    prior: SurfacePrior
    keys: list[tuple[int, int]]
    tracks: list[list[RunTrack]]
    base_reward: float | None
    tau: FloatArray


@dataclass(frozen=True)
class ShapeFit:
    """The posterior mode of one shape, its standard deviations, and where run_sd comes from, in words."""

    tail: float
    state: HierarchicalState
    scales: Scales
    run_sd_from: str


def surface_columns(
    keys: Sequence[tuple[int, int]], mid_prior_mean: float
) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.intp]]:
    """The surface's columns for the cells (B_p, n), without those that are combinations of others.

    Args:
        mid_prior_mean: log10 C in the middle of the data.

    Returns:
        X float[J, 3, K]; prior means and standard deviations float[1 + K] of (R0, gamma); sd_group int[1 + K]: 0 and 1
        for the columns whose standard deviation is estimated (steps of A and of mid from one n to the next), -1 for
        the rest.
    """
    log_b, log_n = np.log2(np.array(keys, dtype=np.float64)).T
    constant, log_n_scaled, log_B_p_scaled = np.ones(len(keys)), (log_n - log_n.mean()) / 3, (log_b - log_b.mean()) / 3
    n_steps = [(log_n >= level).astype(np.float64) for level in np.unique(log_n)[1:]]
    is_independent = _linearly_independent([constant, log_n_scaled, log_B_p_scaled])
    log_n_scaled, log_B_p_scaled = (
        column if use else np.zeros(len(keys))
        for column, use in zip((log_n_scaled, log_B_p_scaled), is_independent[1:], strict=True)
    )
    a_steps, mid_steps = ([(c, 0.0, sd, sd_group) for c in n_steps] for sd_group, sd in enumerate(PRIOR_STEP_SD))
    parameter_blocks = (
        [
            (constant, 0.0, 3.0, -1),
            (log_n_scaled, 0.0, 1.0, -1),
            (log_B_p_scaled, 0.0, 0.1, -1),
            (log_n_scaled**2 * is_independent[1], 0.0, PRIOR_CURVATURE_SD, -1),
            *a_steps,
        ],
        [(constant, mid_prior_mean, 3.0, -1), (log_n_scaled, 0.0, 2.0, -1), (log_B_p_scaled, 0.0, 0.5, -1), *mid_steps],
        [(constant, 0.0, 0.7, -1), (log_n_scaled, 0.0, PRIOR_SLOPE_LNB_SD, -1)],
    )
    column_specs = [(c, *entry) for c, block in enumerate(parameter_blocks) for entry in block if entry[0].any()]
    X = np.zeros((len(keys), 3, len(column_specs)))
    for k, (c, column, *_) in enumerate(column_specs):
        X[:, c, k] = column
    mean, sd, sd_group = (
        np.array([first, *(row[i] for row in column_specs)]) for i, first in ((2, 0.0), (3, 3.0), (4, -1))
    )
    return X, mean, sd, sd_group.astype(np.intp)


def _linearly_independent(candidates: Sequence[FloatArray]) -> list[bool]:
    """For each column, whether it is not a linear combination of the ones before."""
    independent_columns: list[FloatArray] = []
    is_independent = []
    for column in candidates:
        trial = np.stack([*independent_columns, column], axis=1)
        is_independent.append(bool(np.linalg.matrix_rank(trial, tol=1e-8) == trial.shape[1]))
        independent_columns += [column] if is_independent[-1] else []
    return is_independent


def pack_sweep(cells: Cells) -> PackedSweep:
    """The sweep as arrays; cells in rising order of (B_p, n)."""
    keys = sorted(cells)
    tracks = [list(cells[key]) for key in keys]
    S, P = max(len(t) for t in tracks), max(len(t.C) for seeds in tracks for t in seeds)
    x, y, weight = np.full((len(keys), S, P), -np.inf), np.zeros((len(keys), S, P)), np.zeros((len(keys), S, P))
    for j, seeds in enumerate(tracks):
        for s, t in enumerate(seeds):
            with np.errstate(divide="ignore"):
                x[j, s, : len(t.C)] = np.log10(t.C)
            y[j, s, : len(t.C)], weight[j, s, : len(t.C)] = t.R, 1.0
    has_compute = np.isfinite(x) & (weight > 0)
    base_rewards = [t.R[0] for seeds in tracks for t in seeds if t.C[0] == 0]
    x_low, x_high = float(x[has_compute].min()), float(x[has_compute].max())
    X, mean, sd, sd_group = surface_columns(keys, (x_low + x_high) / 2)
    data = SweepArrays(x, y, weight, X, x_low, x_high)
    return PackedSweep(
        data,
        weight > 0,
        SurfacePrior(mean, sd, sd_group),
        keys,
        tracks,
        float(np.mean(base_rewards)) if base_rewards else None,
        PRIOR_TAU,
    )


def initial_state(tail: float, packed: PackedSweep, rng: np.random.Generator | None = None) -> HierarchicalState:
    """Where the search for the mode starts: for each cell the best corner of a grid of (mid, lnB) with A by least
    squares there, R0 the base policy's reward (or the lowest seen). `rng` takes a random corner instead, to test that
    the mode does not depend on the start.
    """
    data = packed.data
    J, S, _ = data.weight.shape
    floor = packed.base_reward if packed.base_reward is not None else float(np.min(data.y[data.weight > 0]))
    mids, lnBs = np.meshgrid(
        np.linspace(data.x_low - 0.5, data.x_high + 1.0, 25), np.log([0.4, 0.7, 1.0, 1.5, 2.2]), indexing="ij"
    )
    theta = np.zeros((J, 3))
    for j in range(J):
        usable = (data.weight[j] > 0) & np.isfinite(data.x[j])
        x, rewards_above_floor = data.x[j][usable], data.y[j][usable] - floor
        s = progress_gradient(x, mids[..., None], lnBs[..., None], tail)[0]
        gain = np.clip((s * rewards_above_floor).sum(-1) / np.maximum((s * s).sum(-1), 1e-12), -floor, 1.0 - floor)
        squared_error = ((gain[..., None] * s - rewards_above_floor) ** 2).sum(-1)
        corner = int(rng.integers(squared_error.size)) if rng is not None else int(squared_error.argmin())
        theta[j] = floor + gain.flat[corner], mids.flat[corner], lnBs.flat[corner]
    return HierarchicalState(theta, np.zeros((J, S)), np.concatenate([[floor], _nearest_surface(packed, theta)]))


def _nearest_surface(packed: PackedSweep, theta: FloatArray) -> FloatArray:
    """float[K]: the surface nearest to the cells under its prior."""
    J, _, K = packed.data.X.shape
    scale = packed.prior.sd[1:] / 0.01
    design = np.concatenate([packed.data.X.reshape(3 * J, K) * scale, np.eye(K)])
    targets = np.concatenate([theta.reshape(-1), packed.prior.mean[1:] / scale])
    return np.linalg.lstsq(design, targets, rcond=None)[0] * scale


def robust_noise_sd(data: SweepArrays, residuals: FloatArray, parameter_count: int) -> float:
    """A robust standard deviation of residuals float[J, S, P], clipped at two of them (Huber's second proposal)."""
    squared_residuals = residuals[data.weight > 0] ** 2
    variance = float(np.median(squared_residuals)) / 0.455
    for _ in range(30):
        variance = float(np.mean(np.minimum(squared_residuals, 4 * variance))) / 0.9205
    return float(
        np.sqrt(max(variance * len(squared_residuals) / max(1, len(squared_residuals) - parameter_count), 1e-24))
    )


def estimate_run_sd(
    tail: float, data: SweepArrays, state: HierarchicalState, noise_sd: float, stated_run_sd: float | None
) -> tuple[float, str, float]:
    """(run-to-run standard deviation, where it comes from in words, its degrees of freedom).

    It is estimated from the spread of the seeds' offsets within cells, minus what the noise explains, under a prior
    worth PRIOR_WEIGHT seeds at PRIOR_RUN_SD.
    """
    if stated_run_sd is not None:
        return stated_run_sd, "as stated", 100.0
    s = progress_at_points(tail, data, state.theta)[0]
    residuals = data.y - predict_rewards(tail, data, state, with_run_effect=False)
    weight = (data.weight * s * s).sum(-1)
    is_informative = weight > 0.2
    offset = np.where(is_informative, (data.weight * s * residuals).sum(-1) / np.maximum(weight, 1e-9), 0.0)
    seed_count = is_informative.sum(1)
    cell_mean = offset.sum(1) / np.maximum(seed_count, 1)
    excess_spread = (
        is_informative * (offset - cell_mean[:, None]) ** 2
        - is_informative * (1 - 1 / np.maximum(seed_count, 1))[:, None] * noise_sd**2 / np.maximum(weight, 0.2)
    ).sum()
    degrees_of_freedom = float(np.maximum(seed_count - 1, 0).sum())
    if noise_sd < NOISELESS_SD:
        return (
            (float(np.sqrt(max(excess_spread, 0.0) / degrees_of_freedom)) if degrees_of_freedom else 0.0),
            "none: the points have no noise",
            100.0,
        )
    if not degrees_of_freedom:
        return (
            PRIOR_RUN_SD,
            f"assumed ({PRIOR_RUN_SD:g} of reward): one seed per cell cannot show it; state yours with --run-sd",
            PRIOR_WEIGHT,
        )
    estimated_sd = np.sqrt(
        (PRIOR_WEIGHT * PRIOR_RUN_SD**2 + max(excess_spread, 0.0)) / (PRIOR_WEIGHT + degrees_of_freedom)
    )
    return (
        float(estimated_sd),
        f"estimated from the seeds ({degrees_of_freedom:.0f} degrees of freedom)",
        PRIOR_WEIGHT + degrees_of_freedom,
    )


def _update_scales(tail: float, packed: PackedSweep, state: HierarchicalState, scales: Scales) -> Scales:
    """tau and the standard deviations of the surface's steps: one step of expectation maximisation."""
    cell_covariance, u_covariance = posterior_covariances(tail, packed.data, state, scales)
    surface_residual = state.theta - packed.data.X @ state.u[1:]
    sum_of_squares = (surface_residual**2).sum(0) + np.einsum("jcc->c", cell_covariance)
    tau = np.sqrt((PRIOR_WEIGHT * packed.tau**2 + sum_of_squares) / (PRIOR_WEIGHT + len(surface_residual)))
    u_sd, second_moment = scales.u_sd.copy(), state.u**2 + np.diag(u_covariance)
    for i, prior_sd in enumerate(PRIOR_STEP_SD):
        in_group = packed.prior.sd_group == i
        u_sd[in_group] = np.sqrt(
            (PRIOR_WEIGHT * prior_sd**2 + second_moment[in_group].sum()) / (PRIOR_WEIGHT + in_group.sum())
        )
    return replace(scales, tau=tau, u_sd=u_sd)


def fit_shape(
    tail: float, packed: PackedSweep, stated_run_sd: float | None = None, rng: np.random.Generator | None = None
) -> ShapeFit:
    """The posterior mode of one shape; its standard deviations and its curves are estimated in turn."""
    data, state = packed.data, initial_state(tail, packed, rng)
    initial_noise_sd = np.sqrt(np.mean((data.y - predict_rewards(tail, data, state))[data.weight > 0] ** 2)) + 1e-4
    scales = Scales(float(initial_noise_sd), PRIOR_RUN_SD, packed.tau, packed.prior.mean, packed.prior.sd)
    run_sd_from = ""
    for i in range(60):
        state = find_mode(tail, data, state, scales, iterations=12 if i < SCALE_ROUNDS else 40)
        previous_noise_sd = scales.noise_sd
        sd = robust_noise_sd(data, data.y - predict_rewards(tail, data, state), _count_parameters(data))
        run_to_run_sd, run_sd_from, _ = estimate_run_sd(tail, data, state, sd, stated_run_sd)
        scales = replace(scales, noise_sd=max(sd, 1e-9), run_sd=run_to_run_sd)
        if i < SCALE_ROUNDS:
            scales = _update_scales(tail, packed, state, scales)
        elif sd <= 1e-9 or abs(np.log(sd / previous_noise_sd)) < 1e-3:
            break
    return ShapeFit(tail, find_mode(tail, data, state, scales, iterations=200), scales, run_sd_from)


def pool_over_n(packed: PackedSweep) -> PackedSweep:
    """The same data under the assumption that n makes no difference: one curve for each B_p, or a single curve where
    every cell has a B_p of its own (a fixed batch B_p n).
    """
    B_ps = sorted({B_p for B_p, _ in packed.keys})
    B_p_columns = np.array([[float(B_p == b) for b in B_ps] for B_p, _ in packed.keys])
    if len(B_ps) == len(packed.keys):
        B_p_columns = np.ones((len(packed.keys), 1))
    X = np.zeros((len(packed.keys), 3, 3 * B_p_columns.shape[1]))
    for c in range(3):
        X[:, c, c * B_p_columns.shape[1] : (c + 1) * B_p_columns.shape[1]] = B_p_columns
    mean = np.concatenate(
        [[0.0], np.repeat([0.0, (packed.data.x_low + packed.data.x_high) / 2, 0.0], B_p_columns.shape[1])]
    )
    sd = np.concatenate([[3.0], np.repeat([3.0, 3.0, 0.7], B_p_columns.shape[1])])
    prior = SurfacePrior(mean, sd, np.full(len(mean), -1))
    return replace(packed, data=replace(packed.data, X=X), prior=prior, tau=np.full(3, POOLED_TAU))


def _count_parameters(data: SweepArrays) -> int:
    """How many parameters the points determine: R0, three per cell, and one for each further seed of a cell."""
    run_count = (data.weight.sum(-1) > 0).sum()
    return int(1 + 2 * len(data.X) + run_count)
