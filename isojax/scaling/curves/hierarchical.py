"""All curves of a sweep together: a hierarchical model and its posterior mode (docs/laws.md, "The model").

Run r of cell j = (B_p, n) follows, at log10 C = x,

    y = R0 + (A_j + e_r - R0) s(z) + noise,   z = ln10 exp(lnB_j) (x - mid_j),     (s: hill.py)
    e_r ~ N(0, run_sd^2)                         the run-to-run effect, which grows with the run's progress
    (A_j, mid_j, lnB_j) ~ N(X_j gamma, tau^2)    a surface over (n, B_p); cells depart from it by tau
    gamma ~ N(gamma0, gamma_sd^2)                wide for the surface's level and slopes, narrow for its roughness

with one R0; mid is log10 C_mid, lnB the logarithm of the exponent. Damped Gauss-Newton steps with soft-L1 weights
improve all parameters together: the normal matrix is an arrow, of which e is eliminated first and the cells second.
Dimensions: J cells, S seeds, P points of a run, K columns of the surface.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.curves.hill import progress_gradient
from isojax.scaling.tracks import FloatArray, as_float64

ROBUST_THRESHOLD_SD = 3.0  # residuals beyond this many noise_sd count less
LNB_RANGE = (float(np.log(0.1)), float(np.log(12.0)))
MID_DECADES = 2.5  # mid may be this many decades outside the points
COST_TOLERANCE = 1e-13
_TINY = 1e-9  # stands for a standard deviation of 0


@dataclass(frozen=True)
class SweepArrays:
    """The evaluations of a sweep."""

    x: FloatArray  # [J, S, P], log10 C; -inf at C = 0
    y: FloatArray  # [J, S, P], rewards
    weight: FloatArray  # [J, S, P], 1 where there is a point, 0 where there is none
    X: FloatArray  # [J, 3, K], the surface's columns for (A, mid, lnB) of each cell
    x_low: float  # the range of x over all points at C > 0
    x_high: float

    @property
    def trained(self) -> NDArray[np.bool_]:
        """bool[J, S, P], where there is a point at C > 0."""
        return (self.weight > 0) & np.isfinite(self.x)

    @property
    def theta_bounds(self) -> tuple[FloatArray, FloatArray]:
        """float[3] each, lower and upper, of (A, mid, lnB): 0 <= A <= 1, as rewards are."""
        lower = np.array([0.0, self.x_low - MID_DECADES, LNB_RANGE[0]])
        return lower, np.array([1.0, self.x_high + MID_DECADES, LNB_RANGE[1]])


@dataclass(frozen=True)
class Scales:
    """The model's standard deviations."""

    noise_sd: float  # of one evaluation
    run_sd: float  # of the reward between runs of one cell, at the plateau
    tau: FloatArray  # [3], of cells around the surface (A, mid, lnB)
    u_mean: FloatArray  # [1 + K], the prior of u = (R0, gamma)
    u_sd: FloatArray


@dataclass(frozen=True)
class HierarchicalState:
    """A solution: theta float[J, 3] = (A, mid, lnB); e float[J, S]; u float[1 + K] = (R0, gamma)."""

    theta: FloatArray
    e: FloatArray
    u: FloatArray

    @property
    def R0(self) -> float:
        """The base policy's reward."""
        return float(self.u[0])


def progress_at_points(tail: float, data: SweepArrays, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(s, ds/d mid, ds/d lnB), each float[J, S, P]; 0 at C = 0."""
    return progress_gradient(data.x, theta[:, 1, None, None], theta[:, 2, None, None], tail)


def predict_rewards(
    tail: float, data: SweepArrays, state: HierarchicalState, with_run_effect: bool = True
) -> FloatArray:
    """float[J, S, P]: the model's reward at every point, of each run or, without its run effect, of its cell."""
    s = progress_at_points(tail, data, state.theta)[0]
    e = state.e[..., None] if with_run_effect else 0.0
    return state.R0 + (state.theta[:, 0, None, None] + e - state.R0) * s


def robust_precision(tail: float, data: SweepArrays, state: HierarchicalState, scales: Scales) -> FloatArray:
    """float[J, S, P]: the precision of each point, less for outliers."""
    residual = data.y - predict_rewards(tail, data, state)
    return data.weight / (scales.noise_sd**2 * np.sqrt(1 + (residual / (ROBUST_THRESHOLD_SD * scales.noise_sd)) ** 2))


def minus_two_log_posterior(tail: float, data: SweepArrays, state: HierarchicalState, scales: Scales) -> float:
    """Minus twice the log posterior, up to a constant."""
    scaled_residual = (data.y - predict_rewards(tail, data, state)) / scales.noise_sd
    loss = 2 * ROBUST_THRESHOLD_SD**2 * (np.sqrt(1 + (scaled_residual / ROBUST_THRESHOLD_SD) ** 2) - 1)
    surface_residual = state.theta - data.X @ state.u[1:]
    prior = (surface_residual**2 / scales.tau**2).sum() + (((state.u - scales.u_mean) / scales.u_sd) ** 2).sum()
    return float((data.weight * loss).sum() + prior + (state.e**2).sum() / max(scales.run_sd, _TINY) ** 2)


@dataclass(frozen=True)
class _NormalEquations:
    """Normal equations of (A, mid, lnB, R0) with e eliminated, and the terms from which e's own step follows."""

    H: FloatArray  # [J, 4, 4]
    g: FloatArray  # [J, 4]
    cross: FloatArray  # [J, 4, S]
    h_e: FloatArray  # [J, S]
    g_e: FloatArray  # [J, S]


def _normal_equations(tail: float, data: SweepArrays, state: HierarchicalState, scales: Scales) -> _NormalEquations:
    s, ds_d_mid, ds_d_lnB = progress_at_points(tail, data, state.theta)
    gain = state.theta[:, 0, None, None] + state.e[..., None] - state.R0
    residual = data.y - state.R0 - gain * s
    W = robust_precision(tail, data, state, scales)
    J = np.stack([s, gain * ds_d_mid, gain * ds_d_lnB, 1 - s], axis=1)  # [J, 4, S, P]
    WJ = J * W[:, None]
    e_precision = 1 / max(scales.run_sd, _TINY) ** 2
    cross = np.einsum("jasp,jsp->jas", WJ, s)  # the derivative by e is that by A, run by run
    h_e = (W * s * s).sum(-1) + e_precision
    g_e = (W * s * residual).sum(-1) - state.e * e_precision
    H = np.einsum("jasp,jbsp->jab", WJ, J) - np.einsum("jas,jbs,js->jab", cross, cross, 1 / h_e)
    g = np.einsum("jasp,jsp->ja", WJ, residual) - np.einsum("jas,js->ja", cross, g_e / h_e)
    return _NormalEquations(H, g, cross, h_e, g_e)


def _solve_arrow(
    data: SweepArrays, state: HierarchicalState, scales: Scales, damping: float, normal: _NormalEquations
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """(step of theta, step of u, D^-1 border, the Schur complement of u): u = (R0, gamma) alone couples the cells."""
    H, g, surface_precision = normal.H, normal.g, scales.tau**-2.0
    PX = surface_precision[:, None] * data.X  # [J, 3, K]
    surface_residual = state.theta - data.X @ state.u[1:]
    block = H[:, :3, :3] + np.diag(surface_precision)
    block = block + damping * block * np.eye(3)
    border = np.concatenate([H[:, :3, 3:], -PX], axis=2)  # [J, 3, 1 + K]
    schur = np.diag(scales.u_sd**-2.0)
    schur[0, 0] += H[:, 3, 3].sum()
    schur[1:, 1:] += np.einsum("jck,jcl->kl", PX, data.X)
    u_gradient = np.concatenate([[g[:, 3].sum()], np.einsum("jck,jc->k", PX, surface_residual)])
    u_gradient = u_gradient - (state.u - scales.u_mean) / scales.u_sd**2
    theta_gradient = g[:, :3] - surface_precision * surface_residual
    solutions = np.linalg.solve(block, np.concatenate([border, theta_gradient[..., None]], axis=2))
    F, f = as_float64(solutions[..., :-1]), as_float64(solutions[..., -1])
    schur = schur - np.einsum("jak,jal->kl", border, F)
    du = as_float64(np.linalg.solve(schur, u_gradient - np.einsum("jak,ja->k", border, f)))
    return f - F @ du, du, F, schur


def _gauss_newton_step(
    tail: float, data: SweepArrays, state: HierarchicalState, scales: Scales, damping: float
) -> HierarchicalState:
    """One damped Gauss-Newton step, clipped to the bounds of theta."""
    normal = _normal_equations(tail, data, state, scales)
    d_theta, du, _, _ = _solve_arrow(data, state, scales, damping, normal)
    theta_R0_step = np.column_stack([d_theta, np.full(len(d_theta), du[0])])
    de = (normal.g_e - np.einsum("jas,ja->js", normal.cross, theta_R0_step)) / normal.h_e
    return HierarchicalState(np.clip(state.theta + d_theta, *data.theta_bounds), state.e + de, state.u + du)


def find_mode(
    tail: float, data: SweepArrays, initial_state: HierarchicalState, scales: Scales, iterations: int = 60
) -> HierarchicalState:
    """The posterior mode near `initial_state`; stops when the cost falls by less than COST_TOLERANCE of itself."""
    state, current_cost, damping = initial_state, minus_two_log_posterior(tail, data, initial_state, scales), 1e-4
    for _ in range(iterations):
        trial = _gauss_newton_step(tail, data, state, scales, damping)
        trial_cost = minus_two_log_posterior(tail, data, trial, scales)
        if trial_cost > current_cost or not np.isfinite(trial_cost):
            damping = damping * 10 + 1e-12
            if damping > 1e8:
                break
            continue
        converged = current_cost - trial_cost <= COST_TOLERANCE * (1 + abs(current_cost))
        state, current_cost, damping = trial, trial_cost, damping * 0.1
        if converged:
            break
    return state


def posterior_covariances(
    tail: float, data: SweepArrays, state: HierarchicalState, scales: Scales
) -> tuple[FloatArray, FloatArray]:
    """Covariances at the mode: float[J, 3, 3] of each cell's theta minus its surface, float[1 + K, 1 + K] of u."""
    normal = _normal_equations(tail, data, state, scales)
    _, _, F, schur = _solve_arrow(data, state, scales, 0.0, normal)
    u_covariance = as_float64(np.linalg.inv(schur))
    u_sensitivity = F.copy()  # theta - X gamma moves by -(F + X) du
    u_sensitivity[:, :, 1:] += data.X
    cell_covariance = np.linalg.inv(normal.H[:, :3, :3] + np.diag(scales.tau**-2.0))
    shared_covariance = np.einsum("jak,kl,jbl->jab", u_sensitivity, u_covariance, u_sensitivity)
    return cell_covariance + shared_covariance, u_covariance
