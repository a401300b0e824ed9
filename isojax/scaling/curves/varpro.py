"""Variable projection of ScaleRL's curve (arXiv:2510.13786), many data sets at once:

    R(C) = R0 + G s,    s = 1 / (1 + (C_mid / C)^B),    G = A - R0 >= 0.

Given phi = (ln B, log10 C_mid) the best R0 and G are linear least squares in closed form, so that only two numbers are
searched (Golub and Pereyra 1973, with Kaufman's Jacobian and Levenberg's damping). The loss is Huber's: each step is
one of least squares towards targets whose residuals are clipped at a bound (Huber's modified residuals, which never
raise his loss and rest where it is least).

Dimensions: R data sets, N points of each, G corners of the grid of starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.validation_metrics import FloatArray

B_BOUNDS = (0.05, 10.0)
# C_mid may lie this many decades outside the points.
C_MID_DECADES = 2.0
GRID_SHAPE = (16, 40)  # starts in ln B and log10 C_mid
MAX_STEPS = 200
PHI_TOLERANCE = 1e-12
MAX_DAMPING = 1e12
ERROR_ROUNDING = 1e-12
_LN10 = np.log(10.0)
_TINY = 1e-300


@dataclass(frozen=True)
class ComputeAxis:
    """Where the points lie, the same for all data sets.

    Attributes:
        x: float[N], log10 C; anything where C = 0. at_zero: bool[N], C = 0, where s is 0.
        lower, upper: float[2], bounds of phi.
        range: of R0 and of R0 + G; None where rewards have no natural bounds.
    """

    log10_C: FloatArray
    at_zero: NDArray[np.bool]
    phi_lower: FloatArray
    phi_upper: FloatArray
    reward_range: tuple[float, float] | None


@dataclass(frozen=True)
class VarproSolution:
    """The best parameters of each data set: phi float[R 2], R0, G float[R], and fit float[R N], the curve at the
    points.
    """

    phi: FloatArray
    R0: FloatArray
    G: FloatArray
    fitted_rewards: FloatArray


def make_axis(C: FloatArray, reward_range: tuple[float, float] | None) -> ComputeAxis:
    """The axis of points at C >= 0, float[N], of which some lie at C > 0."""
    log10_C = np.log10(np.where(C > 0, C, C[C > 0].min()))
    lower = np.array([np.log(B_BOUNDS[0]), log10_C.min() - C_MID_DECADES])
    upper = np.array([np.log(B_BOUNDS[1]), log10_C.max() + C_MID_DECADES])
    return ComputeAxis(log10_C, C == 0, lower, upper, reward_range)


def hill_progress(axis: ComputeAxis, phi: FloatArray) -> FloatArray:
    """s at the points, float[R 2] -> float[R N]."""
    z = _LN10 * np.exp(phi[:, :1]) * (axis.log10_C - phi[:, 1:])
    return np.where(axis.at_zero, 0.0, 0.5 * (1 + np.tanh(0.5 * z)))


def _progress_jacobian(axis: ComputeAxis, phi: FloatArray, s: FloatArray) -> FloatArray:
    """ds / dphi, float[R 2 N]."""
    rate = s * (1 - s) * _LN10 * np.exp(phi[:, :1])
    return np.stack([rate * (axis.log10_C - phi[:, 1:]), -rate], axis=1)


def _solve_linear(
    s: FloatArray, y: FloatArray, reward_range: tuple[float, float] | None
) -> tuple[FloatArray, FloatArray, NDArray[np.intp]]:
    """(R0, G, edge) of least squares, float[R]; edge: 0 free, 1 G = 0, 2 R0 at its lower bound, 3 R0 + G at the upper
    one.
    """
    mean_s, mean_y = s.mean(-1), y.mean(-1)
    ds = s - mean_s[..., None]
    G = (ds * (y - mean_y[..., None])).sum(-1) / ((ds * ds).sum(-1) + _TINY)
    R0 = mean_y - G * mean_s
    low, high = (-np.inf, np.inf) if reward_range is None else reward_range
    is_interior = (G >= 0) & (R0 >= low) & (R0 + G <= high)
    if np.all(is_interior):
        return R0, G, np.zeros(R0.shape, dtype=int)
    edge_solutions = [(np.clip(mean_y, low, high), np.zeros_like(G))]
    if reward_range is not None:
        G_at_lower = np.clip((s * (y - low)).sum(-1) / ((s * s).sum(-1) + _TINY), 0, high - low)
        G_at_upper = np.clip(((1 - s) * (high - y)).sum(-1) / (((1 - s) ** 2).sum(-1) + _TINY), 0, high - low)
        edge_solutions += [(np.full_like(G, low), G_at_lower), (high - G_at_upper, G_at_upper)]
    errors = np.stack([((y - a[..., None] - g[..., None] * s) ** 2).sum(-1) for a, g in edge_solutions])
    best_edge = errors.argmin(0)
    edge_R0, edge_G = (
        np.take_along_axis(np.stack([e[i] for e in edge_solutions]), best_edge[None], 0)[0] for i in (0, 1)
    )
    return np.where(is_interior, R0, edge_R0), np.where(is_interior, G, edge_G), np.where(is_interior, 0, best_edge + 1)


def _project_out_linear(J: FloatArray, s: FloatArray, edge: NDArray[np.intp]) -> FloatArray:
    """J, float[R 2 N], without what the linear parameters that are free can follow."""
    free = (edge == 0)[:, None, None]
    edge_code = edge[:, None]
    free_direction = np.where(
        edge_code == 0, s - s.mean(-1, keepdims=True), np.where(edge_code == 2, s, np.where(edge_code == 3, 1 - s, 0.0))
    )[:, None, :]
    J = J - free * J.mean(-1, keepdims=True)
    return J - free_direction * (free_direction * J).sum(-1, keepdims=True) / (
        (free_direction * free_direction).sum(-1, keepdims=True) + _TINY
    )


def start_grid(axis: ComputeAxis) -> FloatArray:
    """The corners that a search may start from, float[G 2]."""
    B, mid = (
        np.linspace(low, high, count + 2)[1:-1]
        for low, high, count in zip(axis.phi_lower, axis.phi_upper, GRID_SHAPE, strict=True)
    )
    return np.stack(np.meshgrid(B, mid, indexing="ij"), axis=-1).reshape(-1, 2)


def corner_errors(axis: ComputeAxis, y: FloatArray, corners: FloatArray) -> FloatArray:
    """Least sum of squares of each data set at each corner, G >= 0 the only bound; float[R N], float[G 2] -> float[R
    G].
    """
    s = hill_progress(axis, corners)
    ds = s - s.mean(-1, keepdims=True)
    dy = y - y.mean(-1, keepdims=True)
    explained = np.maximum(dy @ ds.T, 0.0) ** 2 / ((ds * ds).sum(-1) + _TINY)
    return (dy * dy).sum(-1, keepdims=True) - explained


def fit_huber(
    axis: ComputeAxis, y: FloatArray, phi: FloatArray, residual_clip: float = np.inf, tolerance: float = PHI_TOLERANCE
) -> VarproSolution:
    """The nearest optimum of Huber's loss from a start.

    Args:
        y: float[R N], rewards. phi: float[R 2], starts within the bounds.
        clip: residuals beyond this count as if they lay at it, in reward.
        tolerance: a data set is done once phi moves by less.
    """
    phi = np.clip(phi, axis.phi_lower, axis.phi_upper)
    fitted_rewards, damping = _fit_at(axis, y, phi)[0], np.full(len(y), 1e-3)
    active = np.arange(len(y))
    for _ in range(MAX_STEPS):
        target = fitted_rewards[active] + np.clip(y[active] - fitted_rewards[active], -residual_clip, residual_clip)
        new_phi, fitted_rewards[active], accepted, damping[active] = _damped_step(
            axis, target, phi[active], damping[active]
        )
        converged = (accepted & (np.abs(new_phi - phi[active]).max(-1) < tolerance)) | (damping[active] > MAX_DAMPING)
        phi[active] = new_phi
        active = active[~converged]
        if not len(active):
            break
    target = fitted_rewards + np.clip(y - fitted_rewards, -residual_clip, residual_clip)
    fitted_rewards, R0, G, _, _ = _fit_at(axis, target, phi)
    return VarproSolution(phi, R0, G, fitted_rewards)


def _fit_at(
    axis: ComputeAxis, y: FloatArray, phi: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.intp], FloatArray]:
    """(fit, R0, G, edge, s) of least squares at phi."""
    s = hill_progress(axis, phi)
    R0, G, edge = _solve_linear(s, y, axis.reward_range)
    return R0[:, None] + G[:, None] * s, R0, G, edge, s


def _damped_step(
    axis: ComputeAxis, y: FloatArray, phi: FloatArray, damping: FloatArray
) -> tuple[FloatArray, FloatArray, NDArray[np.bool], FloatArray]:
    """One damped step of each data set towards y: (phi, fit there, whether taken, damping); one that would not help is
    not taken.
    """
    fitted_rewards, _, G, edge, s = _fit_at(axis, y, phi)
    residual = y - fitted_rewards
    J = G[:, None, None] * _progress_jacobian(axis, phi, s)
    gradient = (J * residual[:, None, :]).sum(-1)
    at_bound = ((phi <= axis.phi_lower) & (gradient < 0)) | ((phi >= axis.phi_upper) & (gradient > 0))
    gradient = np.where(at_bound, 0.0, gradient)
    J_projected = _project_out_linear(J, s, edge)
    H = J_projected @ J_projected.transpose(0, 2, 1) * ~(at_bound[:, :, None] | at_bound[:, None, :])
    scale = np.trace(H, axis1=1, axis2=2)[:, None, None] + _TINY
    H = H / scale + (damping[:, None, None] + at_bound[:, :, None]) * np.eye(2) + 1e-14 * np.eye(2)
    proposed_phi = np.clip(
        phi + np.linalg.solve(H, gradient[..., None] / scale)[..., 0], axis.phi_lower, axis.phi_upper
    )
    proposed_rewards = _fit_at(axis, y, proposed_phi)[0]
    # At the optimum only rounding tells the two apart; the last steps, which find it to all digits, are taken all the
    # same.
    accepted = ((y - proposed_rewards) ** 2).sum(-1) <= (residual**2).sum(-1) * (1 + ERROR_ROUNDING)
    damping = np.where(accepted, np.maximum(damping / 10, 1e-12), damping * 10)
    return (
        np.where(accepted[:, None], proposed_phi, phi),
        np.where(accepted[:, None], proposed_rewards, fitted_rewards),
        accepted,
        damping,
    )
