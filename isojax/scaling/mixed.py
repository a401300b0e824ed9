"""All curves of a sweep at once: a mixed model, solved for one data set or for a batch of bootstrap replicates.

Run r of cell j = (B_p, n) follows, at log10 C = x,

    y = R0 + (A_j + e_r - R0) s(z) + noise,   z = ln10 exp(lnB_j) (x - mid_j),
    e_r ~ N(0, run_sd^2)                      one run's luck, in proportion to its progress
    (A_j, mid_j, lnB_j) ~ N(X_j gamma, tau^2) a joint surface over (n, B_p), from which a cell departs as far as its data say

with one R0 for all. Where a cell's data determine its curve, the surface changes nothing that matters; where they do not (a plateau not
reached, one seed), it says what its neighbours say, and so reaches beyond the data. R0, A, e and gamma enter linearly, mid and lnB do
not. Starts come from a grid of (mid, lnB), the linear ones solved at each (variable projection); then all are polished together by damped
Gauss-Newton steps whose e, then cells, are eliminated (the normal matrix is an arrow), with soft-L1 weights against outliers.

Dimension letters: Q replicates, J cells, S seeds, P points of a run, K columns of the surface.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.metrics import FloatArray
from isojax.scaling.shapes import FORMS

_LN10 = float(np.log(10.0))
ROBUST = 3.0  # residuals beyond this many noise_sd count less
LNB_RANGE = (float(np.log(0.1)), float(np.log(12.0)))
MID_DECADES = 2.5  # mid may lie this far outside the points
TINY = 1e-300


@dataclass(frozen=True)
class Data:
    """What was measured.

    Attributes:
        x: float[J, S, P], log10 C; -inf at C = 0.
        y: float[Q, J, S, P], rewards; Q = 1 for the sweep itself.
        weight: float[J, S, P], 1 where there is a point, 0 where there is none.
        X: float[J, 3, K], the surface's columns for (A, mid, lnB) of each cell.
        low, high: the range of x over all points at C > 0.
    """

    x: FloatArray
    y: FloatArray
    weight: FloatArray
    X: FloatArray
    low: float
    high: float


@dataclass(frozen=True)
class Scales:
    """The model's standard deviations; run_sd may be float[Q]."""

    noise_sd: float
    run_sd: FloatArray
    tau: FloatArray  # float[3]: A, mid, lnB


@dataclass(frozen=True)
class State:
    """A solution: theta float[Q, J, 3] = (A, mid, lnB); e float[Q, J, S]; u float[Q, 1 + K] = (R0, gamma)."""

    theta: FloatArray
    e: FloatArray
    u: FloatArray

    @property
    def R0(self) -> FloatArray:
        """float[Q]."""
        return self.u[:, 0]


@dataclass(frozen=True)
class Draw:
    """How a replicate's priors are moved: e0 float[Q, J, S], theta0 float[Q, J, 3]; zero for the fit itself."""

    e0: FloatArray
    theta0: FloatArray


def no_draw(data: Data) -> Draw:
    """Priors where they are."""
    Q, J, S, _ = data.y.shape
    return Draw(np.zeros((Q, J, S)), np.zeros((Q, J, 3)))


def progress(form: str, data: Data, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(s, ds/dz, z), each float[Q, J, S, P]; s = 0 at C = 0."""
    B = np.exp(theta[:, :, 2])[..., None, None]
    started = np.isfinite(data.x)
    x = np.where(started, data.x, data.low - 4.0)
    z = _LN10 * B * (x - theta[:, :, 1, None, None])
    s, slope = FORMS[form](z)
    return s * started, slope * started, z


def predicted(form: str, data: Data, state: State, with_run: bool = True) -> FloatArray:
    """float[Q, J, S, P]: the model's reward at every point, of each run or (with_run False) of its cell."""
    s = progress(form, data, state.theta)[0]
    e = state.e[..., None] if with_run else 0.0
    R0 = state.R0[:, None, None, None]
    return R0 + (state.theta[:, :, 0, None, None] + e - R0) * s


def _penalty(data: Data, state: State, draw: Draw, scales: Scales, hyper: FloatArray) -> FloatArray:
    """float[Q]: minus twice the log prior of e, theta and gamma, up to a constant."""
    off = state.theta - np.einsum("jck,qk->qjc", data.X, state.u[:, 1:]) - draw.theta0
    runs = ((state.e - draw.e0) ** 2).sum((1, 2)) / np.maximum(scales.run_sd, 1e-9) ** 2
    return (off**2 / scales.tau**2).sum((1, 2)) + runs + (hyper[1] * (state.u - hyper[0]) ** 2).sum(1)


def cost(form: str, data: Data, state: State, draw: Draw, scales: Scales, hyper: FloatArray) -> FloatArray:
    """float[Q]: minus twice the log posterior, up to a constant."""
    u = (data.y - predicted(form, data, state)) / scales.noise_sd
    loss = 2 * ROBUST**2 * (np.sqrt(1 + (u / ROBUST) ** 2) - 1)
    return (data.weight * loss).sum((1, 2, 3)) + _penalty(data, state, draw, scales, hyper)


def hyper_prior(data: Data) -> FloatArray:
    """float[2, 1 + K]: means and precisions of a very weak prior on (R0, gamma), so that an empty direction stays where it is."""
    K = data.X.shape[2]
    mean = np.zeros(1 + K)
    is_mid = data.X[:, 1].any(0)
    first_mid = int(np.argmax(is_mid)) if is_mid.any() else 0
    mean[1 + first_mid] = 0.5 * (data.low + data.high)
    return np.stack([mean, np.full(1 + K, 0.1)])


def _step(
    form: str, data: Data, state: State, draw: Draw, scales: Scales, hyper: FloatArray, damping: FloatArray
) -> State:
    """One damped Gauss-Newton step; damping float[Q]."""
    s, slope, z = progress(form, data, state.theta)
    R0 = state.R0[:, None, None, None]
    gain = state.theta[:, :, 0, None, None] + state.e[..., None] - R0
    residual = data.y - R0 - gain * s
    W = data.weight / (scales.noise_sd**2 * np.sqrt(1 + (residual / (ROBUST * scales.noise_sd)) ** 2))
    B = np.exp(state.theta[:, :, 2])[..., None, None]
    J = np.stack([s, -gain * slope * _LN10 * B, gain * slope * z, 1 - s], axis=2)  # [Q, J, 4, S, P]: A, mid, lnB, R0
    WJ = J * W[:, :, None]
    H = np.einsum("qjasp,qjbsp->qjab", WJ, J, optimize=True)  # [Q, J, 4, 4]
    g = np.einsum("qjasp,qjsp->qja", WJ, residual, optimize=True)
    # Eliminate e: its column is that of A, run by run.
    cross = np.einsum("qjasp,qjsp->qjas", WJ, s, optimize=True)  # [Q, J, 4, S]
    prior = 1 / np.maximum(scales.run_sd, 1e-9)[:, None, None] ** 2
    h_e = (W * s * s).sum(-1) + prior
    g_e = (W * s * residual).sum(-1) - (state.e - draw.e0) * prior
    H = H - np.einsum("qjas,qjbs,qjs->qjab", cross, cross, 1 / h_e, optimize=True)
    g = g - np.einsum("qjas,qjs->qja", cross, g_e / h_e)
    d_theta, du = _arrow(data, state, draw, scales, hyper, damping, H, g)
    joint = np.concatenate([d_theta, np.broadcast_to(du[:, None, :1], (*d_theta.shape[:2], 1))], axis=2)
    de = (g_e - np.einsum("qjas,qja->qjs", cross, joint)) / h_e
    return State(_within(data, state.theta + d_theta), state.e + de, state.u + du)


def _arrow(
    data: Data, state: State, draw: Draw, scales: Scales, hyper: FloatArray, damping: FloatArray, H: FloatArray, g: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Solve for (d theta, d u): cells are coupled through u = (R0, gamma) alone."""
    Q, J = g.shape[:2]
    pull = 1 / scales.tau**2  # [3]
    PX = pull[:, None] * data.X  # [J, 3, K]
    off = state.theta - np.einsum("jck,qk->qjc", data.X, state.u[:, 1:]) - draw.theta0
    D = H[:, :, :3, :3] + np.diag(pull)
    D = D + damping[:, None, None, None] * np.einsum("qjaa->qja", D)[..., None] * np.eye(3)
    side = np.concatenate([H[:, :, :3, 3:], np.broadcast_to(-PX, (Q, *PX.shape))], axis=3)  # [Q, J, 3, 1 + K]
    g_cell = g[:, :, :3] - pull * off
    top = np.zeros((Q, side.shape[3], side.shape[3]))
    top[:, 0, 0] = H[:, :, 3, 3].sum(1)
    top[:, 1:, 1:] = np.einsum("jck,jcl->kl", PX, data.X)
    top = top + np.diag(hyper[1])
    g_top = np.concatenate([g[:, :, 3].sum(1)[:, None], np.einsum("jck,qjc->qk", PX, off)], axis=1)
    g_top = g_top - hyper[1] * (state.u - hyper[0])
    both = np.linalg.solve(D, np.concatenate([side, g_cell[..., None]], axis=3))  # [Q, J, 3, 2 + K]
    F, f = both[..., :-1], both[..., -1]
    top = top - np.einsum("qjak,qjal->qkl", side, F, optimize=True)
    g_top = g_top - np.einsum("qjak,qja->qk", side, f, optimize=True)
    du = np.linalg.solve(top, g_top[..., None])[..., 0]
    return f - np.einsum("qjak,qk->qja", F, du), du


def _within(data: Data, theta: FloatArray) -> FloatArray:
    """theta with A <= 1 (rewards are), mid and lnB in their ranges."""
    low = np.array([-1.0, data.low - MID_DECADES, LNB_RANGE[0]])
    high = np.array([1.0, data.high + MID_DECADES, LNB_RANGE[1]])
    return np.clip(theta, low, high)


def solve(
    form: str, data: Data, start: State, scales: Scales, draw: Draw | None = None, iterations: int = 60, tolerance: float = 1e-13
) -> State:
    """The posterior mode near `start`, for all replicates at once; stops when no cost falls by more than `tolerance` of itself."""
    draw, hyper = draw or no_draw(data), hyper_prior(data)
    state, now = start, cost(form, data, start, draw, scales, hyper)
    damping = np.full(len(now), 1e-4)
    for _ in range(iterations):
        trial = _step(form, data, state, draw, scales, hyper, damping)
        then = cost(form, data, trial, draw, scales, hyper)
        better = then <= now
        pick = better[:, None, None]
        state = State(
            np.where(pick, trial.theta, state.theta), np.where(pick, trial.e, state.e), np.where(better[:, None], trial.u, state.u)
        )
        gained = np.where(better, now - then, 0.0)
        now = np.where(better, then, now)
        damping = np.where(better, damping * 0.1, np.minimum(damping * 10 + 1e-12, 1e8))
        if np.all((better & (gained <= tolerance * (1 + np.abs(now)))) | (damping >= 1e8)):
            break
    return state


def select(data: Data, keep: NDArray[np.bool_]) -> Data:
    """The same data with the points outside `keep` (bool[J, S, P]) left out."""
    return replace(data, weight=data.weight * keep)
