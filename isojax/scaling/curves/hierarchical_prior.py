"""From runs to the model of hierarchical.py. tau, noise and run-to-run effect are estimated together with the curves,
under priors worth PRIOR_WEIGHT observations, because few cells say little about their own spread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.curves import hierarchical
from isojax.scaling.curves.hierarchical import HierarchicalState, Scales, SweepArrays
from isojax.scaling.curves.hill import progress_gradient
from isojax.scaling.tracks import FloatArray, RunTrack, TracksByCell, as_float64

PRIOR_WEIGHT = 4.0
PRIOR_TAU = np.array([0.005, 0.01, 0.04])  # of a cell around the surface: reward, decades, log
PRIOR_STEP_SD = np.array([0.02, 0.02])  # of the surface from one n to the next, around a line: reward, decades
PRIOR_CURVATURE_SD = 0.03  # of A's curvature: reward gained or lost against a line over three doublings of n
PRIOR_SLOPE_LNB_SD = 0.10  # of ln B over three doublings of n
PRIOR_RUN_SD = 0.01
NOISELESS_SD = 1e-6  # below this the points are a computed curve, without variation between runs either
SCALE_ROUNDS, MAX_SCALE_ROUNDS = 8, 60  # tau and the surface's steps are held after the first
POOLED_TAU = 1e-4  # tau of cells that share one curve


@dataclass(frozen=True)
class SurfacePrior:
    """The prior of u = (R0, gamma)."""

    mean: FloatArray  # [1 + K]
    sd: FloatArray  # [1 + K]
    sd_group: NDArray[np.intp]  # [1 + K], an index of PRIOR_STEP_SD where the sd is estimated, else -1


@dataclass(frozen=True)
class PackedSweep:
    """A sweep's evaluations and prior."""

    data: SweepArrays
    has_point: NDArray[np.bool_]  # [J, S, P], where there is a point; data.weight is 0 at those that the fit leaves out
    prior: SurfacePrior
    keys: list[tuple[int, int]]  # (B_p, n) of each cell
    tracks: list[list[RunTrack]]  # the seeds of each cell
    base_reward: float | None  # the mean reward at C = 0; None where no run was evaluated there
    tau: FloatArray  # [3], the prior of Scales.tau


@dataclass(frozen=True)
class ShapeFit:
    """The posterior mode of one shape, its standard deviations, and where run_sd comes from, in words."""

    tail: float
    state: HierarchicalState
    scales: Scales
    run_sd_from: str


def surface_columns(keys: Sequence[tuple[int, int]], mid_prior_mean: float) -> tuple[FloatArray, SurfacePrior]:
    """The surface's columns X float[J, 3, K] for the cells (B_p, n), linearly independent, and their prior: A is
    quadratic in log2 n and linear in log2 B_p, mid is linear in both, lnB is linear in log2 n.
    """
    log_B_p, log_n = np.log2(np.array(keys, dtype=np.float64)).T
    log_n_scaled, log_B_p_scaled = ((v - v.mean()) / 3 for v in (log_n, log_B_p))
    constant = np.ones(len(keys))
    n_steps = [(log_n >= level).astype(np.float64) for level in np.unique(log_n)[1:]]
    log_n_scaled = log_n_scaled * (_rank(constant, log_n_scaled) == 2)
    log_B_p_scaled = log_B_p_scaled * (_rank(constant, log_n_scaled, log_B_p_scaled) > _rank(constant, log_n_scaled))
    A_steps, mid_steps = ([(step, 0.0, sd, i) for step in n_steps] for i, sd in enumerate(PRIOR_STEP_SD))
    # Of A, mid and lnB: (column, prior mean, prior sd, sd_group).
    parameter_blocks = (
        [
            (constant, 0.0, 3.0, -1),
            (log_n_scaled, 0.0, 1.0, -1),
            (log_B_p_scaled, 0.0, 0.1, -1),
            (log_n_scaled**2, 0.0, PRIOR_CURVATURE_SD, -1),
            *A_steps,
        ],
        [(constant, mid_prior_mean, 3.0, -1), (log_n_scaled, 0.0, 2.0, -1), (log_B_p_scaled, 0.0, 0.5, -1), *mid_steps],
        [(constant, 0.0, 0.7, -1), (log_n_scaled, 0.0, PRIOR_SLOPE_LNB_SD, -1)],
    )
    columns = [(c, *entry) for c, block in enumerate(parameter_blocks) for entry in block if entry[0].any()]
    X = np.zeros((len(keys), 3, len(columns)))
    for k, (c, column, *_) in enumerate(columns):
        X[:, c, k] = column
    _, _, means, sds, groups = zip(*columns, strict=True)
    return X, SurfacePrior(np.array([0.0, *means]), np.array([3.0, *sds]), np.array([-1, *groups]))


def _rank(*columns: FloatArray) -> int:
    return int(np.linalg.matrix_rank(np.stack(columns, axis=1), tol=1e-8))


def pack_sweep(cells: TracksByCell) -> PackedSweep:
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
    base_reward = float(np.mean(base_rewards)) if base_rewards else None
    X, prior = surface_columns(keys, (x_low + x_high) / 2)
    data = SweepArrays(x, y, weight, X, x_low, x_high)
    return PackedSweep(data, weight > 0, prior, keys, tracks, base_reward, PRIOR_TAU)


def initial_state(tail: float, packed: PackedSweep) -> HierarchicalState:
    """For each cell the best corner of a grid of (mid, lnB) with A by least squares; R0 at C = 0 or the lowest seen."""
    data = packed.data
    J, S, _ = data.weight.shape
    floor = packed.base_reward if packed.base_reward is not None else float(np.min(data.y[data.weight > 0]))
    mids, lnBs = np.meshgrid(
        np.linspace(data.x_low - 0.5, data.x_high + 1.0, 25), np.log([0.4, 0.7, 1.0, 1.5, 2.2]), indexing="ij"
    )
    theta = np.zeros((J, 3))
    for j in range(J):
        x, rewards_above_floor = data.x[j][data.trained[j]], data.y[j][data.trained[j]] - floor
        s = progress_gradient(x, mids[..., None], lnBs[..., None], tail)[0]
        gain = np.clip((s * rewards_above_floor).sum(-1) / np.maximum((s * s).sum(-1), 1e-12), -floor, 1.0 - floor)
        squared_error = ((gain[..., None] * s - rewards_above_floor) ** 2).sum(-1)
        corner = int(squared_error.argmin())
        theta[j] = floor + gain.flat[corner], mids.flat[corner], lnBs.flat[corner]
    # gamma is that of the surface nearest to the cells under its prior.
    scale = packed.prior.sd[1:] / 0.01
    X_flat = data.X.reshape(3 * J, -1)
    design = np.concatenate([X_flat * scale, np.eye(len(scale))])
    targets = np.concatenate([theta.reshape(-1), packed.prior.mean[1:] / scale])
    gamma = np.linalg.lstsq(design, targets, rcond=None)[0] * scale
    return HierarchicalState(theta, np.zeros((J, S)), np.concatenate([[floor], gamma]))


def robust_noise_sd(data: SweepArrays, residuals: FloatArray, parameter_count: int) -> float:
    """A robust standard deviation of residuals float[J, S, P], clipped at two of them (Huber's second proposal)."""
    squared_residuals = residuals[data.weight > 0] ** 2
    variance = float(np.median(squared_residuals)) / 0.455
    for _ in range(30):
        variance = float(np.mean(np.minimum(squared_residuals, 4 * variance))) / 0.9205
    degrees_of_freedom = max(1, len(squared_residuals) - parameter_count)
    return float(np.sqrt(max(variance * len(squared_residuals) / degrees_of_freedom, 1e-24)))


def estimate_run_sd(
    tail: float, data: SweepArrays, state: HierarchicalState, noise_sd: float, stated_run_sd: float | None
) -> tuple[float, str, float]:
    """(run-to-run sd, its source in words, its degrees of freedom), from the spread of the seeds' offsets within cells
    less that of noise, under a prior worth PRIOR_WEIGHT seeds at PRIOR_RUN_SD.
    """
    if stated_run_sd is not None:
        return stated_run_sd, "as stated", 100.0
    s = hierarchical.progress_at_points(tail, data, state.theta)[0]
    residuals = data.y - hierarchical.predict_rewards(tail, data, state, with_run_effect=False)
    weight = (data.weight * s * s).sum(-1)
    is_informative = weight > 0.2
    offset = np.where(is_informative, (data.weight * s * residuals).sum(-1) / np.maximum(weight, 1e-9), 0.0)
    seed_count = is_informative.sum(1)
    cell_mean = offset.sum(1) / np.maximum(seed_count, 1)
    spread = is_informative * (offset - cell_mean[:, None]) ** 2
    spread_of_noise = is_informative * (1 - 1 / np.maximum(seed_count, 1))[:, None] * noise_sd**2
    excess_spread = max(float((spread - spread_of_noise / np.maximum(weight, 0.2)).sum()), 0.0)
    degrees_of_freedom = float(np.maximum(seed_count - 1, 0).sum())
    if noise_sd < NOISELESS_SD:
        return float(np.sqrt(excess_spread / max(degrees_of_freedom, 1.0))), "none: the points have no noise", 100.0
    if not degrees_of_freedom:
        source = f"assumed ({PRIOR_RUN_SD:g} of reward): one seed per cell cannot show it; state yours with --run-sd"
        return PRIOR_RUN_SD, source, PRIOR_WEIGHT
    variance = (PRIOR_WEIGHT * PRIOR_RUN_SD**2 + excess_spread) / (PRIOR_WEIGHT + degrees_of_freedom)
    source = f"estimated from the seeds ({degrees_of_freedom:.0f} degrees of freedom)"
    return float(np.sqrt(variance)), source, PRIOR_WEIGHT + degrees_of_freedom


def _update_scales(tail: float, packed: PackedSweep, state: HierarchicalState, scales: Scales) -> Scales:
    """tau and the standard deviations of the surface's steps: one step of expectation maximisation."""
    cell_covariance, u_covariance = hierarchical.posterior_covariances(tail, packed.data, state, scales)
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


def fit_shape(tail: float, packed: PackedSweep, stated_run_sd: float | None = None) -> ShapeFit:
    """The posterior mode of one shape; its standard deviations and its curves are estimated in turn."""
    data, state = packed.data, initial_state(tail, packed)
    run_count = int((data.weight.sum(-1) > 0).sum())
    parameter_count = 1 + 2 * len(data.X) + run_count  # R0, three per cell, and one for each further seed of a cell
    initial_noise_sd = (
        np.sqrt(np.mean((data.y - hierarchical.predict_rewards(tail, data, state))[data.weight > 0] ** 2)) + 1e-4
    )
    scales = Scales(float(initial_noise_sd), PRIOR_RUN_SD, packed.tau, packed.prior.mean, packed.prior.sd)
    run_sd_from = ""
    for i in range(MAX_SCALE_ROUNDS):
        state = hierarchical.find_mode(tail, data, state, scales, iterations=12 if i < SCALE_ROUNDS else 40)
        previous_noise_sd = scales.noise_sd
        noise_sd = robust_noise_sd(data, data.y - hierarchical.predict_rewards(tail, data, state), parameter_count)
        run_sd, run_sd_from, _ = estimate_run_sd(tail, data, state, noise_sd, stated_run_sd)
        scales = replace(scales, noise_sd=max(noise_sd, 1e-9), run_sd=run_sd)
        if i < SCALE_ROUNDS:
            scales = _update_scales(tail, packed, state, scales)
        elif noise_sd <= 1e-9 or abs(np.log(noise_sd / previous_noise_sd)) < 1e-3:
            break
    return ShapeFit(tail, hierarchical.find_mode(tail, data, state, scales, iterations=200), scales, run_sd_from)


def pool_over_n(packed: PackedSweep) -> PackedSweep:
    """The same data if n makes no difference: one curve for each B_p, or one in all at a fixed batch B_p n."""
    J, all_B_p = len(packed.keys), sorted({B_p for B_p, _ in packed.keys})
    columns = np.array([[float(B_p == b) for b in all_B_p] for B_p, _ in packed.keys])
    X = block_columns(columns if len(all_B_p) < J else np.ones((J, 1)))
    curve_count = X.shape[2] // 3
    mid_prior_mean = (packed.data.x_low + packed.data.x_high) / 2
    mean = np.concatenate([[0.0], np.repeat([0.0, mid_prior_mean, 0.0], curve_count)])
    sd = np.concatenate([[3.0], np.repeat([3.0, 3.0, 0.7], curve_count)])
    prior = SurfacePrior(mean, sd, np.full(len(mean), -1))
    return replace(packed, data=replace(packed.data, X=X), prior=prior, tau=np.full(3, POOLED_TAU))


def block_columns(columns: FloatArray) -> FloatArray:
    """X float[J, 3, 3 K] of a surface whose A, mid and lnB are each a combination of the columns float[J, K]."""
    return as_float64(np.stack([np.kron(row, columns) for row in np.eye(3)], axis=1))
