"""The fit of one sigmoid by least squares, or by a robust loss, within bounds.

    R(C) = R0 + G s,    s = 1 / (1 + (C_mid / C)^exponent),    G = A - R0 >= 0

It is hill.py's with tail 1.

The search begins at the best corners of a grid of (ln exponent, log10 C_mid), where R0 and G follow
by linear least squares, and is scipy's, over (R0, G / (largest reward - R0), ln exponent, log10
C_mid), which have bounds of their own.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares, root

from isojax.scaling.curves.hill import C_MID_MARGIN_DECADES, EXPONENT_BOUNDS, progress_gradient
from isojax.scaling.tracks import FloatArray

GRID_SHAPE = (16, 40)  # starts in ln exponent and log10 C_mid
START_COUNT = 8  # the best corners of the grid, from each of which a search starts
MAX_STEPS = 200
STEP_TOLERANCE = 1e-12
MAX_CORRECTION = 1e-6  # of a parameter where a search has ended
# of the range of ln exponent and log10 C_mid: nearer to its end than this, they are at their bound
BOUND_MARGIN = 1e-3
_TINY = 1e-300


@dataclass(frozen=True)
class SigmoidPoints:
    """What a sigmoid is fitted to, and what its parameters may be."""

    log10_C: FloatArray  # [N]; -inf at C = 0, where s is 0
    rewards: FloatArray  # [N]
    weight: FloatArray  # [N], > 0, of each squared residual
    phi_lower: FloatArray  # [2], of (ln exponent, log10 C_mid)
    phi_upper: FloatArray
    reward_range: tuple[float, float]  # of R0 and of A
    R0: float | None = None  # where it is known; None where it is fitted too


@dataclass(frozen=True)
class Sigmoid:
    R0: float
    A: float
    exponent: float
    log10_C_mid: float
    fitted_rewards: FloatArray  # [N], at the points
    at_bounds: tuple[str, ...]  # of A, exponent and C_mid; R0 = 0 is a reward, no failure


def curve_points(C: FloatArray, rewards: FloatArray, R0: float | None = None) -> SigmoidPoints:
    """Of a learning curve: rewards float[N] at C >= 0, some of them at C > 0."""
    with np.errstate(divide="ignore"):
        log10_C = np.log10(C)
    positive = log10_C[C > 0]
    lower = np.array([np.log(EXPONENT_BOUNDS[0]), positive.min() - C_MID_MARGIN_DECADES])
    upper = np.array([np.log(EXPONENT_BOUNDS[1]), positive.max() + C_MID_MARGIN_DECADES])
    return SigmoidPoints(log10_C, rewards, np.ones_like(log10_C), lower, upper, (0.0, 1.0), R0)


def fit_sigmoid(
    points: SigmoidPoints, robust_scale: float | None = None, starts: int = START_COUNT
) -> Sigmoid:
    """The best of the searches. robust_scale: residuals beyond count by a soft-L1 loss, searched
    for from where least squares ended, because steps are small where all residuals count as
    outliers."""
    searches = [search(points, start, None) for start in _best_corners(points, starts)]
    if robust_scale is not None:
        searches = [search(points, found.x, robust_scale) for found in searches]
    best = min(searches, key=lambda found: found.cost).x
    R0, G, ln_exponent, log10_C_mid = _parameters(points, best)
    phi = best[-2:]
    margin = BOUND_MARGIN * (points.phi_upper - points.phi_lower)
    at_lower = phi - points.phi_lower < margin
    at_upper = points.phi_upper - phi < margin
    at_bound = {
        # A is open too where C_mid has gone as far as it may.
        "A": R0 + G >= points.reward_range[1] - 1e-9 or at_upper[1],
        "exponent": at_lower[0] or at_upper[0],
        "C_mid": at_lower[1] or at_upper[1],
    }
    return Sigmoid(
        R0=R0,
        A=R0 + G,
        exponent=float(np.exp(ln_exponent)),
        log10_C_mid=log10_C_mid,
        fitted_rewards=R0 + G * progress_gradient(points.log10_C, phi[1], phi[0])[0],
        at_bounds=tuple(name for name, is_at_bound in at_bound.items() if is_at_bound),
    )


def search(points: SigmoidPoints, start: FloatArray, robust_scale: float | None) -> Any:
    """scipy's result, whose x is (R0 unless it is known, G / (largest reward - R0), ln exponent,
    log10 C_mid)."""
    low, high = points.reward_range
    root_weight, R0_known = np.sqrt(points.weight), points.R0 is not None

    def residuals(x: FloatArray) -> FloatArray:
        R0, G, ln_exponent, log10_C_mid = _parameters(points, x)
        return root_weight * (
            R0 + G * progress_gradient(points.log10_C, log10_C_mid, ln_exponent)[0] - points.rewards
        )

    def jacobian(x: FloatArray) -> FloatArray:
        R0, G, ln_exponent, log10_C_mid = _parameters(points, x)
        s, ds_d_mid, ds_d_ln_exponent = progress_gradient(points.log10_C, log10_C_mid, ln_exponent)
        columns = [1 - x[-3] * s, (high - R0) * s, G * ds_d_ln_exponent, G * ds_d_mid][R0_known:]
        return root_weight[:, None] * np.stack(columns, axis=1)

    lower = np.array([low, 0.0, *points.phi_lower])
    upper = np.array([high, 1.0, *points.phi_upper])
    settings: Any = {"method": "dogbox", "jac": jacobian, "x_scale": "jac", "max_nfev": MAX_STEPS}
    settings |= {"ftol": None, "gtol": None, "xtol": STEP_TOLERANCE}
    if robust_scale is not None:
        settings |= {"loss": "soft_l1", "f_scale": robust_scale}
    bounds = lower[R0_known:], upper[R0_known:]
    start = np.clip(start, *bounds)  # a corner of the grid may be beyond a bound by a rounding
    found = least_squares(residuals, start, bounds=bounds, **settings)

    def gradient(x: FloatArray) -> FloatArray:
        r = residuals(x)
        return jacobian(x).T @ (
            r if robust_scale is None else r / np.sqrt(1 + (r / robust_scale) ** 2)
        )

    # The loss is flat to rounding around its minimum, which its gradient gives to more digits.
    zero = root(gradient, found.x, tol=STEP_TOLERANCE).x
    if not found.active_mask.any() and np.abs(zero - found.x).max() < MAX_CORRECTION:
        found.x = zero
    return found


def _parameters(points: SigmoidPoints, x: FloatArray) -> tuple[float, float, float, float]:
    """(R0, G, ln exponent, log10 C_mid)."""
    R0 = float(x[0]) if points.R0 is None else points.R0
    return R0, float(x[-3]) * (points.reward_range[1] - R0), float(x[-2]), float(x[-1])


def _best_corners(points: SigmoidPoints, count: int) -> FloatArray:
    """float[count, 3 or 4]: starts of searches at the best corners of the grid, each with its R0
    and G."""
    axes = [
        np.linspace(low, high, size + 2)[1:-1]
        for low, high, size in zip(points.phi_lower, points.phi_upper, GRID_SHAPE, strict=True)
    ]
    corners = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    (low, high), weight, rewards = (
        points.reward_range,
        points.weight / points.weight.sum(),
        points.rewards,
    )
    s = progress_gradient(points.log10_C, corners[:, 1:], corners[:, :1])[0]  # [corners, N]
    mean_s, mean_reward = (s @ weight, rewards @ weight) if points.R0 is None else (0.0, points.R0)
    ds, d_rewards = s - np.reshape(mean_s, (-1, 1)), rewards - mean_reward
    G = np.maximum((ds * d_rewards) @ weight, 0.0) / (ds**2 @ weight + _TINY)
    R0 = np.clip(mean_reward - G * mean_s, low, high)
    G = np.clip(G, 0.0, high - R0)
    best = np.argsort((R0[:, None] + G[:, None] * s - rewards) ** 2 @ weight, kind="stable")[:count]
    return np.column_stack([R0, G / (high - R0 + _TINY), corners])[best, points.R0 is not None :]
