"""Variable projection of ScaleRL's curve (arXiv:2510.13786), many data sets at once:

    R(C) = R0 + G s,    s = 1 / (1 + (C_mid / C)^B),    G = A - R0 >= 0.

Given phi = (ln B, log10 C_mid) the best R0 and G are linear least squares in closed form, so that only two numbers are searched (Golub and
Pereyra 1973, with Kaufman's Jacobian and Levenberg's damping). The loss is Huber's: each step is one of least squares towards targets whose
residuals are clipped at a bound (Huber's modified residuals, which never raise his loss and rest where it is least).

Dimensions: R data sets, N points of each, G corners of the grid of starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.metrics import FloatArray

B_BOUNDS = (0.05, 10.0)
# C_mid may lie this many decades outside the points.
C_MID_DECADES = 2.0
GRID = (16, 40)  # starts in ln B and log10 C_mid
STEPS = 200
TOLERANCE = 1e-12
MOST_DAMPING = 1e12
ROUNDING = 1e-12
_LN10 = np.log(10.0)
_TINY = 1e-300


@dataclass(frozen=True)
class Axis:
    """Where the points lie, the same for all data sets.

    Attributes:
        x: float[N], log10 C; anything where C = 0. at_zero: bool[N], C = 0, where s is 0.
        lower, upper: float[2], bounds of phi.
        range: of R0 and of R0 + G; None where rewards have no natural bounds.
    """

    x: FloatArray
    at_zero: NDArray[np.bool]
    lower: FloatArray
    upper: FloatArray
    range: tuple[float, float] | None


@dataclass(frozen=True)
class Solution:
    """The best parameters of each data set: phi float[R 2], R0, G float[R], and fit float[R N], the curve at the points."""

    phi: FloatArray
    R0: FloatArray
    G: FloatArray
    fit: FloatArray


def make_axis(C: FloatArray, range: tuple[float, float] | None) -> Axis:
    """The axis of points at C >= 0, float[N], of which some lie at C > 0."""
    x = np.log10(np.where(C > 0, C, C[C > 0].min()))
    lower = np.array([np.log(B_BOUNDS[0]), x.min() - C_MID_DECADES])
    upper = np.array([np.log(B_BOUNDS[1]), x.max() + C_MID_DECADES])
    return Axis(x, C == 0, lower, upper, range)


def shape(axis: Axis, phi: FloatArray) -> FloatArray:
    """s at the points, float[R 2] -> float[R N]."""
    z = _LN10 * np.exp(phi[:, :1]) * (axis.x - phi[:, 1:])
    return np.where(axis.at_zero, 0.0, 0.5 * (1 + np.tanh(0.5 * z)))


def _slopes(axis: Axis, phi: FloatArray, s: FloatArray) -> FloatArray:
    """ds / dphi, float[R 2 N]."""
    rate = s * (1 - s) * _LN10 * np.exp(phi[:, :1])
    return np.stack([rate * (axis.x - phi[:, 1:]), -rate], axis=1)


def _linear(s: FloatArray, y: FloatArray, range: tuple[float, float] | None) -> tuple[FloatArray, FloatArray, NDArray[np.intp]]:
    """(R0, G, edge) of least squares, float[R]; edge: 0 free, 1 G = 0, 2 R0 at its lower bound, 3 R0 + G at the upper one."""
    mean_s, mean_y = s.mean(-1), y.mean(-1)
    ds = s - mean_s[..., None]
    G = (ds * (y - mean_y[..., None])).sum(-1) / ((ds * ds).sum(-1) + _TINY)
    R0 = mean_y - G * mean_s
    low, high = (-np.inf, np.inf) if range is None else range
    ok = (G >= 0) & (R0 >= low) & (R0 + G <= high)
    if np.all(ok):
        return R0, G, np.zeros(R0.shape, dtype=int)
    ends = [(np.clip(mean_y, low, high), np.zeros_like(G))]
    if range is not None:
        up = np.clip((s * (y - low)).sum(-1) / ((s * s).sum(-1) + _TINY), 0, high - low)
        down = np.clip(((1 - s) * (high - y)).sum(-1) / (((1 - s) ** 2).sum(-1) + _TINY), 0, high - low)
        ends += [(np.full_like(G, low), up), (high - down, down)]
    errors = np.stack([((y - a[..., None] - g[..., None] * s) ** 2).sum(-1) for a, g in ends])
    best = errors.argmin(0)
    edge_R0, edge_G = (np.take_along_axis(np.stack([e[i] for e in ends]), best[None], 0)[0] for i in (0, 1))
    return np.where(ok, R0, edge_R0), np.where(ok, G, edge_G), np.where(ok, 0, best + 1)


def _off_linear(J: FloatArray, s: FloatArray, edge: NDArray[np.intp]) -> FloatArray:
    """J, float[R 2 N], without what the linear parameters that are free can follow."""
    free = (edge == 0)[:, None, None]
    at = edge[:, None]
    q = np.where(at == 0, s - s.mean(-1, keepdims=True), np.where(at == 2, s, np.where(at == 3, 1 - s, 0.0)))[:, None, :]
    J = J - free * J.mean(-1, keepdims=True)
    return J - q * (q * J).sum(-1, keepdims=True) / ((q * q).sum(-1, keepdims=True) + _TINY)


def grid(axis: Axis) -> FloatArray:
    """The corners that a search may start from, float[G 2]."""
    B, mid = (np.linspace(low, high, count + 2)[1:-1] for low, high, count in zip(axis.lower, axis.upper, GRID, strict=True))
    return np.stack(np.meshgrid(B, mid, indexing="ij"), axis=-1).reshape(-1, 2)


def errors_at(axis: Axis, y: FloatArray, corners: FloatArray) -> FloatArray:
    """Least sum of squares of each data set at each corner, G >= 0 the only bound; float[R N], float[G 2] -> float[R G]."""
    s = shape(axis, corners)
    ds = s - s.mean(-1, keepdims=True)
    dy = y - y.mean(-1, keepdims=True)
    explained = np.maximum(dy @ ds.T, 0.0) ** 2 / ((ds * ds).sum(-1) + _TINY)
    return (dy * dy).sum(-1, keepdims=True) - explained


def solve(axis: Axis, y: FloatArray, phi: FloatArray, clip: float = np.inf, tolerance: float = TOLERANCE) -> Solution:
    """The nearest optimum of Huber's loss from a start.

    Args:
        y: float[R N], rewards. phi: float[R 2], starts within the bounds.
        clip: residuals beyond this count as if they lay at it, in reward.
        tolerance: a data set is done once phi moves by less.
    """
    phi = np.clip(phi, axis.lower, axis.upper)
    fit, damping = _fitted(axis, y, phi)[0], np.full(len(y), 1e-3)
    open_ = np.arange(len(y))
    for _ in range(STEPS):
        target = fit[open_] + np.clip(y[open_] - fit[open_], -clip, clip)
        moved, fit[open_], taken, damping[open_] = _step(axis, target, phi[open_], damping[open_])
        done = (taken & (np.abs(moved - phi[open_]).max(-1) < tolerance)) | (damping[open_] > MOST_DAMPING)
        phi[open_] = moved
        open_ = open_[~done]
        if not len(open_):
            break
    target = fit + np.clip(y - fit, -clip, clip)
    fit, R0, G, _, _ = _fitted(axis, target, phi)
    return Solution(phi, R0, G, fit)


def _fitted(axis: Axis, y: FloatArray, phi: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.intp], FloatArray]:
    """(fit, R0, G, edge, s) of least squares at phi."""
    s = shape(axis, phi)
    R0, G, edge = _linear(s, y, axis.range)
    return R0[:, None] + G[:, None] * s, R0, G, edge, s


def _step(axis: Axis, y: FloatArray, phi: FloatArray, damping: FloatArray) -> tuple[FloatArray, FloatArray, NDArray[np.bool], FloatArray]:
    """One damped step of each data set towards y: (phi, fit there, whether taken, damping); one that would not help is not taken."""
    fit, _, G, edge, s = _fitted(axis, y, phi)
    residual = y - fit
    J = G[:, None, None] * _slopes(axis, phi, s)
    gradient = (J * residual[:, None, :]).sum(-1)
    held = ((phi <= axis.lower) & (gradient < 0)) | ((phi >= axis.upper) & (gradient > 0))
    gradient = np.where(held, 0.0, gradient)
    K = _off_linear(J, s, edge)
    H = K @ K.transpose(0, 2, 1) * ~(held[:, :, None] | held[:, None, :])
    scale = np.trace(H, axis1=1, axis2=2)[:, None, None] + _TINY
    H = H / scale + (damping[:, None, None] + held[:, :, None]) * np.eye(2) + 1e-14 * np.eye(2)
    proposal = np.clip(phi + np.linalg.solve(H, gradient[..., None] / scale)[..., 0], axis.lower, axis.upper)
    there = _fitted(axis, y, proposal)[0]
    # At the optimum only rounding tells the two apart; the last steps, which find it to all digits, are taken all the same.
    better = ((y - there) ** 2).sum(-1) <= (residual**2).sum(-1) * (1 + ROUNDING)
    damping = np.where(better, np.maximum(damping / 10, 1e-12), damping * 10)
    return np.where(better[:, None], proposal, phi), np.where(better[:, None], there, fit), better, damping
