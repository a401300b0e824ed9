"""The solver of every fit of one sigmoid: variable projection with a robust loss, many data sets at once.

    R(C) = R0 + G s,    s = 1 / (1 + (C_mid / C)^exponent),    G = A - R0 >= 0        (hill.py with tail 1)

Only phi = (ln exponent, log10 C_mid) is searched, because R0 and G follow by linear least squares (Golub and Pereyra
1973, with Kaufman's Jacobian and Levenberg's damping). Each step fits targets whose residuals are replaced by the
loss's influence, its derivative (Huber's modified residuals): that never raises a loss whose second derivative is at
most 1.

Dimensions: R data sets, N points of each, G corners of the grid of starts."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.curves.hill import C_MID_MARGIN_DECADES, EXPONENT_BOUNDS, progress_gradient
from isojax.scaling.tracks import FloatArray

GRID_SHAPE = (16, 40)  # starts in ln exponent and log10 C_mid
START_COUNT = 8  # the best corners of the grid, from each of which a search starts
MAX_STEPS = 200
PHI_TOLERANCE = 1e-12
MAX_DAMPING = 1e12
ERROR_ROUNDING = 1e-12
BOUND_MARGIN = 1e-3  # of the range of phi: nearer to its end than this, phi is at its bound
_TINY = 1e-300
_FREE, _FIXED, _AT_LOWER, _AT_UPPER = range(4)  # bounds of (R0, G): none, both fixed, R0 at its lower, A at its upper

Influence = Callable[[FloatArray], FloatArray]  # the derivative of a loss, element by element, by its residuals


def squared_influence(r: FloatArray) -> FloatArray:
    """Of r^2 / 2."""
    return r


def soft_l1_influence(scale: float) -> Influence:
    """Of scale^2 (sqrt(1 + (r / scale)^2) - 1): quadratic near 0, linear far beyond `scale`."""
    return lambda r: r / np.sqrt(1 + (r / scale) ** 2)


@dataclass(frozen=True)
class SearchSpace:
    """The points' compute, the same for all data sets, and what the parameters may be."""

    log10_C: FloatArray  # [N]; -inf at C = 0, where s is 0
    weight: FloatArray  # [N], > 0, of each point's loss
    phi_lower: FloatArray  # [2], of (ln exponent, log10 C_mid)
    phi_upper: FloatArray
    reward_range: tuple[float, float]  # of R0 and of R0 + G
    R0: float | None = None  # where it is known; None where it is fitted too

    def weighted_sum(self, values: FloatArray) -> FloatArray:
        """Over points, float[..., N] -> float[...]."""
        return values @ self.weight

    def weighted_mean(self, values: FloatArray) -> FloatArray:
        """Over points, float[..., N] -> float[...]."""
        return values @ self.weight / self.weight.sum()

    def slope(self, x: FloatArray, y: FloatArray) -> FloatArray:
        """The line y = slope x of least squares through 0, float[..., N] each -> float[...]."""
        return self.weighted_sum(x * y) / (self.weighted_sum(x * x) + _TINY)


@dataclass(frozen=True)
class VarproSolution:
    """The best parameters of each data set, and the curve at its points."""

    phi: FloatArray  # [R, 2]
    R0: FloatArray  # [R]
    G: FloatArray  # [R]
    A: FloatArray  # [R]
    exponent: FloatArray  # [R]
    C_mid: FloatArray  # [R]
    fitted_rewards: FloatArray  # [R, N]


def search_space(C: FloatArray, reward_range: tuple[float, float], R0: float | None = None) -> SearchSpace:
    """The space for a curve through points at C >= 0, float[N], of which some lie at C > 0."""
    with np.errstate(divide="ignore"):
        log10_C = np.log10(C)
    positive = log10_C[C > 0]
    lower = np.array([np.log(EXPONENT_BOUNDS[0]), positive.min() - C_MID_MARGIN_DECADES])
    upper = np.array([np.log(EXPONENT_BOUNDS[1]), positive.max() + C_MID_MARGIN_DECADES])
    return SearchSpace(log10_C, np.ones_like(log10_C), lower, upper, reward_range, R0)


def hill_progress(log10_C: FloatArray, phi: FloatArray) -> FloatArray:
    """s at the points, float[N], float[R 2] -> float[R N]."""
    return progress_gradient(log10_C, phi[:, 1:], phi[:, :1])[0]


def corner_errors(space: SearchSpace, y: FloatArray, corners: FloatArray) -> FloatArray:
    """float[R G]: least squares of each data set float[R N] at each corner float[G 2], G >= 0 the only bound."""
    s = hill_progress(space.log10_C, corners)
    mean_s, mean_y = space.weighted_mean(s)[:, None], space.weighted_mean(y)[:, None]
    ds, dy = (s - mean_s, y - mean_y) if space.R0 is None else (s, y - space.R0)
    explained = np.maximum((dy * space.weight) @ ds.T, 0.0) ** 2 / (space.weighted_sum(ds * ds) + _TINY)
    return space.weighted_sum(dy * dy)[:, None] - explained


def fit_least_squares(space: SearchSpace, y: FloatArray, max_steps: int = MAX_STEPS) -> VarproSolution:
    """The curve of least squares of one data set, float[N], from the best corners of the grid."""
    axes = [
        np.linspace(low, high, count + 2)[1:-1]
        for low, high, count in zip(space.phi_lower, space.phi_upper, GRID_SHAPE, strict=True)
    ]
    corners = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)  # float[G 2]
    best_corners = corners[np.argsort(corner_errors(space, y[None], corners)[0], kind="stable")[:START_COUNT]]
    solutions = fit_robust(space, np.repeat(y[None], len(best_corners), 0), best_corners, squared_influence, max_steps)
    best = int(space.weighted_sum((y - solutions.fitted_rewards) ** 2).argmin())
    return fit_at(space, y[None], solutions.phi[best : best + 1])


def fit_robust(
    space: SearchSpace, y: FloatArray, phi: FloatArray, influence: Influence, max_steps: int = MAX_STEPS
) -> VarproSolution:
    """The optimum nearest to a start phi float[R 2], of each data set y float[R N]; best started where
    least squares ended, because steps are small where all residuals count as outliers."""
    phi = np.clip(phi, space.phi_lower, space.phi_upper)
    fitted_rewards, damping = fit_at(space, y, phi).fitted_rewards, np.full(len(y), 1e-3)
    active = np.arange(len(y))
    for _ in range(max_steps):
        target = fitted_rewards[active] + influence(y[active] - fitted_rewards[active])
        new_phi, fitted_rewards[active], accepted, damping[active] = _damped_step(
            space, target, phi[active], damping[active]
        )
        converged = (accepted & (np.abs(new_phi - phi[active]).max(-1) < PHI_TOLERANCE)) | (
            damping[active] > MAX_DAMPING
        )
        phi[active] = new_phi
        active = active[~converged]
        if not len(active):
            break
    return fit_at(space, fitted_rewards + influence(y - fitted_rewards), phi)


def parameters_at_bounds(solution: VarproSolution, space: SearchSpace) -> tuple[str, ...]:
    """The parameters of a solution of one data set that ended at a bound. R0 = 0 is a reward, no failure."""
    margin = BOUND_MARGIN * (space.phi_upper - space.phi_lower)
    at_lower, at_upper = solution.phi[0] - space.phi_lower < margin, space.phi_upper - solution.phi[0] < margin
    at_bound = {
        # A is open too where C_mid has gone as far as it may.
        "A": solution.A[0] >= space.reward_range[1] - 1e-9 or at_upper[1],
        "exponent": at_lower[0] or at_upper[0],
        "C_mid": at_lower[1] or at_upper[1],
    }
    return tuple(name for name, is_at_bound in at_bound.items() if is_at_bound)


def fit_at(space: SearchSpace, y: FloatArray, phi: FloatArray) -> VarproSolution:
    """Least squares of the linear parameters at phi; float[R N], float[R 2]."""
    s = hill_progress(space.log10_C, phi)
    R0, G, _ = _solve_linear(space, s, y)
    return VarproSolution(phi, R0, G, R0 + G, np.exp(phi[:, 0]), 10 ** phi[:, 1], R0[:, None] + G[:, None] * s)


def _solve_linear(space: SearchSpace, s: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray, NDArray[np.intp]]:
    """(R0, G, edge) of least squares, float[R]; edge: which bound they are at."""
    low, high = space.reward_range
    if space.R0 is not None:
        G, largest_G = space.slope(s, y - space.R0), high - space.R0
        edge = np.where((G < 0) | (G > largest_G), _FIXED, _AT_LOWER)
        return np.full_like(G, space.R0), np.clip(G, 0.0, largest_G), edge
    mean_s, mean_y = space.weighted_mean(s), space.weighted_mean(y)
    G = space.slope(s - mean_s[:, None], y - mean_y[:, None])
    R0 = mean_y - G * mean_s
    is_interior = (G >= 0) & (R0 >= low) & (R0 + G <= high)
    if np.all(is_interior):
        return R0, G, np.full(R0.shape, _FREE)
    G_at_upper = np.clip(space.slope(1 - s, high - y), 0, high - low)
    edge_R0 = [np.clip(mean_y, low, high), np.full_like(G, low), high - G_at_upper]
    edge_G = [np.zeros_like(G), np.clip(space.slope(s, y - low), 0, high - low), G_at_upper]
    errors = [space.weighted_sum((y - a[:, None] - g[:, None] * s) ** 2) for a, g in zip(edge_R0, edge_G, strict=True)]
    best_edge = np.argmin(errors, axis=0)
    edge = np.where(is_interior, _FREE, best_edge + _FIXED)
    return (
        np.where(is_interior, R0, np.choose(best_edge, edge_R0)),
        np.where(is_interior, G, np.choose(best_edge, edge_G)),
        edge,
    )


def _damped_step(
    space: SearchSpace, y: FloatArray, phi: FloatArray, damping: FloatArray
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_], FloatArray]:
    """One step of each data set towards y, unless it would raise the sum of squares: (phi, curve, taken, damping)."""
    s, ds_d_mid, ds_d_ln_exponent = progress_gradient(space.log10_C, phi[:, 1:], phi[:, :1])
    R0, G, edge = _solve_linear(space, s, y)
    rewards = R0[:, None] + G[:, None] * s
    residual = y - rewards
    J = G[:, None, None] * np.stack([ds_d_ln_exponent, ds_d_mid], axis=1)
    gradient = space.weighted_sum(J * residual[:, None, :])
    at_bound = ((phi <= space.phi_lower) & (gradient < 0)) | ((phi >= space.phi_upper) & (gradient > 0))
    gradient = np.where(at_bound, 0.0, gradient)
    # The Jacobian without what the linear parameters that are free can follow.
    edge = edge[:, None]
    edge_directions = [s - space.weighted_mean(s)[:, None], s, 1 - s]
    direction = np.select([edge == _FREE, edge == _AT_LOWER, edge == _AT_UPPER], edge_directions)[:, None, :]
    J_projected = J - np.where(edge == _FREE, space.weighted_mean(J), 0.0)[..., None]
    J_projected = J_projected - direction * space.slope(direction, J_projected)[..., None]
    H = (J_projected * space.weight) @ J_projected.transpose(0, 2, 1)
    H = H * ~(at_bound[:, :, None] | at_bound[:, None, :])
    scale = np.trace(H, axis1=1, axis2=2)[:, None, None] + _TINY
    H = H / scale + (damping[:, None, None] + at_bound[:, :, None]) * np.eye(2) + 1e-14 * np.eye(2)
    step = np.linalg.solve(H, gradient[..., None] / scale)[..., 0]
    proposed = fit_at(space, y, np.clip(phi + step, space.phi_lower, space.phi_upper))
    # At the optimum the two differ by rounding alone; the last steps, which find it to all digits, are still taken.
    proposed_error = space.weighted_sum((y - proposed.fitted_rewards) ** 2)
    accepted = proposed_error <= space.weighted_sum(residual**2) * (1 + ERROR_ROUNDING)
    return (
        np.where(accepted[:, None], proposed.phi, phi),
        np.where(accepted[:, None], proposed.fitted_rewards, rewards),
        accepted,
        np.where(accepted, np.maximum(damping / 10, 1e-12), damping * 10),
    )
