"""Draws of all curves given the evaluations: Hamiltonian Monte Carlo on the mixed model of mixed.py, one chain a replicate.

Where a plateau is not reached, the posterior is wide and lopsided: it may lie far above its mode, not far below, and a bootstrap of the
mode inherits the mode's bias (on 32 worlds the mode erred by .018 at four times the data's compute, its bootstrap mean by .017, the
posterior mean by .013). So the curves reported are posterior means, and the replicates posterior draws.

Each run's luck e and the surface's gamma are integrated out exactly; what is left, v = (theta of every cell, R0), is whitened by the
curvature at the mode. A run's points are averaged in at most BINS bins of log C, with the little that this changes at the mode taken off:
exact where curves are straight within a bin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isojax.scaling.metrics import FloatArray, floats
from isojax.scaling.mixed import LNB_RANGE, MID_DECADES, Data, Scales, State, predicted, robust_weights
from isojax.scaling.shapes import shape

BINS = 12
LEAPS, STEP = 7, 1.1
ROUNDS = 30
HALVINGS = 20
_LN10 = float(np.log(10.0))


@dataclass(frozen=True)
class _Target:
    """Minus the log posterior of v, ready to be evaluated for many chains.

    Attributes:
        x, y, W: float[J, S, K], bins: log10 C, reward, precision (0: an empty bin). y0, W0: the evaluations at C = 0, all together.
        mean, precision: float[3J], float[3J, 3J], the prior of theta, gamma integrated out.
        run_precision: 1 / run_sd^2, float[1 or Q, 1, 1].
        low, high: float[3], the bounds of (A, mid, lnB).
    """

    tail: float
    x: FloatArray
    y: FloatArray
    W: FloatArray
    y0: float
    W0: float
    mean: FloatArray
    precision: FloatArray
    run_precision: FloatArray
    low: FloatArray
    high: FloatArray

    def value(self, v: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(float[Q], its gradient float[Q, 3J + 1]) at v float[Q, 3J + 1]; infinite outside the bounds."""
        Q, J = len(v), len(self.x)
        theta, R0 = v[:, :-1].reshape(Q, J, 3), v[:, -1]
        outside = ((theta < self.low) | (theta > self.high)).any((1, 2))
        theta = np.clip(theta, self.low - 1, self.high + 1)  # no overflow on the way to being refused
        A, mid, B = (t[..., None, None] for t in (theta[..., 0], theta[..., 1], np.exp(theta[..., 2])))
        z = _LN10 * B * (self.x - mid)
        s, slope = shape(z, self.tail)
        gain = A - R0[:, None, None, None]
        residual = self.y - R0[:, None, None, None] - gain * s
        Ws = self.W * s
        h = (Ws * s).sum(-1) + self.run_precision
        e = (Ws * residual).sum(-1) / h
        left = self.W * (residual - e[..., None] * s)
        off = theta.reshape(Q, -1) - self.mean
        pull = off @ self.precision
        fit = (left * residual).sum((1, 2, 3)) + np.log(h).sum((1, 2))
        total = 0.5 * (fit + (off * pull).sum(1) + self.W0 * (self.y0 - R0) ** 2)
        # d/dtheta: e is at its own optimum, so only its share of the slope and log h count.
        bend = (Ws / h[..., None] - left * (gain + e[..., None])) * slope
        along = np.stack([-(left * s).sum((2, 3)), -_LN10 * B[..., 0, 0] * bend.sum((2, 3)), (bend * z).sum((2, 3))], axis=2)
        by_R0 = -(left * (1 - s)).sum((1, 2, 3)) - self.W0 * (self.y0 - R0)
        gradient = np.concatenate([along.reshape(Q, -1) + pull, by_R0[:, None]], axis=1)
        return np.where(outside, np.inf, total), gradient


def _target(tail: float, data: Data, state: State, scales: Scales, run_sds: FloatArray) -> _Target:
    J, S, _ = data.weight.shape
    weight = robust_weights(tail, data, state, scales)
    at_mode = predicted(tail, data, state, with_run=False)
    x, y, W = np.zeros((J, S, BINS)), np.zeros((J, S, BINS)), np.zeros((J, S, BINS))
    base = ~np.isfinite(data.x) & (data.weight > 0)
    for j, s in np.ndindex(J, S):
        use = (weight[j, s] > 0) & np.isfinite(data.x[j, s])
        if not use.any():
            continue
        own, w = data.x[j, s, use], weight[j, s, use]
        bins = np.minimum(((own - own[0]) / max(np.ptp(own), 1e-9) * BINS).astype(int), BINS - 1)
        W[j, s] = np.bincount(bins, w, BINS)
        filled = np.maximum(W[j, s], 1e-300)
        x[j, s] = np.bincount(bins, w * own, BINS) / filled
        residual = np.bincount(bins, w * (data.y[j, s, use] - at_mode[j, s, use]), BINS) / filled
        z = _LN10 * np.exp(state.theta[j, 2]) * (x[j, s] - state.theta[j, 1])
        R0 = state.R0
        y[j, s] = R0 + (state.theta[j, 0] - R0) * shape(z, tail)[0] + residual
    flat = data.X.reshape(3 * J, -1)
    covariance = np.diag(np.tile(scales.tau**2, J)) + (flat * scales.u_sd[1:] ** 2) @ flat.T
    W0 = float(weight[base].sum())
    y0 = float((weight[base] * data.y[base]).sum() / W0) if W0 else 0.0
    low = np.array([0.0, data.low - MID_DECADES, LNB_RANGE[0]])
    high = np.array([1.0, data.high + MID_DECADES, LNB_RANGE[1]])
    prior = (flat @ scales.u_mean[1:], floats(np.linalg.inv(covariance)))
    return _Target(tail, x, y, W, y0, W0, *prior, np.maximum(run_sds, 1e-9)[:, None, None] ** -2.0, low, high)


def _whitener(target: _Target, v: FloatArray) -> FloatArray:
    """float[d, d] T with T T' the inverse curvature at v, by central differences of the gradient."""
    steps = 1e-4 / np.sqrt(np.maximum(np.concatenate([np.diag(target.precision), [max(target.W0, 1.0)]]), 1.0))
    ahead, back = (target.value(v + sign * np.diag(steps))[1] for sign in (1, -1))
    H = (ahead - back) / (2 * steps[:, None])
    values, vectors = np.linalg.eigh((H + H.T) / 2)
    return vectors / np.sqrt(np.maximum(values, 1e-3 * np.median(np.abs(values))))


def sample(
    tail: float, data: Data, state: State, scales: Scales, run_sds: FloatArray, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """(theta float[Q, J, 3], R0 float[Q]): one draw from each of Q chains that start from the normal approximation at the mode `state`.

    Args:
        run_sds: float[Q], the run-to-run standard deviation of each chain, which carries how uncertain it is itself.
    """
    target, chains = _target(tail, data, state, scales, run_sds), len(run_sds)
    mode = np.concatenate([state.theta.reshape(-1), state.u[:1]])
    T = _whitener(_target(tail, data, state, scales, np.array([scales.run_sd])), mode)
    q = rng.normal(size=(chains, len(mode))) * 0.7
    U, slope = _at(target, mode, T, q)
    for _ in range(HALVINGS):  # a chain that begins outside the bounds would never come in; the mode is inside, so begin nearer to it
        if np.isfinite(U).all():
            break
        q = np.where(np.isfinite(U)[:, None], q, 0.5 * q)
        U, slope = _at(target, mode, T, q)
    for _ in range(ROUNDS):
        p = rng.normal(size=q.shape)
        size = STEP / len(mode) ** 0.25 * rng.uniform(0.6, 1.1, size=(chains, 1))
        trial, moved, force = q, p - 0.5 * size * slope, slope
        for leap in range(LEAPS):
            trial = trial + size * moved
            U_trial, force = _at(target, mode, T, trial)
            moved = moved - (size if leap < LEAPS - 1 else 0.5 * size) * force
        with np.errstate(invalid="ignore"):
            accept = np.log(rng.random(chains)) < U - U_trial + 0.5 * ((p**2).sum(1) - (moved**2).sum(1))
        q, U = np.where(accept[:, None], trial, q), np.where(accept, U_trial, U)
        slope = np.where(accept[:, None], force, slope)
    v = mode + q @ T.T
    return v[:, :-1].reshape(chains, -1, 3), v[:, -1]


def _at(target: _Target, mode: FloatArray, T: FloatArray, q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The target and its gradient in whitened coordinates, v = mode + T q."""
    U, gradient = target.value(mode + q @ T.T)
    return U, gradient @ T
