"""From runs to the mixed model of mixed.py: packing, the surface's columns, starts by variable projection, and the model's scales.

The surface over (n, B_p): A is quadratic in log2 n and linear in log2 B_p, log10 C_mid linear in both, ln B linear in log2 n, as far as the
measured (B_p, n) can tell these apart. How far cells depart from it (tau), the noise and the run-to-run effect are estimated with the
curves, from priors worth PRIOR_WEIGHT observations at the values below: few cells say little about their own spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.metrics import FloatArray, Track
from isojax.scaling.mixed import Data, Draw, Scales, State, no_draw, predicted, progress, solve
from isojax.scaling.shapes import FORMS

Cells = Mapping[tuple[int, int], Sequence[Track]]
PRIOR_WEIGHT = 4.0
TAU = np.array([0.02, 0.08, 0.10])  # reward, decades, log
RUN_SD = 0.01
NOISELESS = 1e-6  # below this the points are a computed curve: nothing varies from run to run either
_LN10 = float(np.log(10.0))
ROUNDS = 8


@dataclass(frozen=True)
class Packed:
    """Data and whose they are: keys[j] = (B_p, n); tracks[j][s]; base, the mean reward at C = 0 (None where no run has it)."""

    data: Data
    keys: list[tuple[int, int]]
    tracks: list[list[Track]]
    base: float | None


@dataclass(frozen=True)
class Fitted:
    """The posterior mode of one shape, its scales, and minus twice its log likelihood (up to a constant shared by the shapes)."""

    form: str
    state: State
    scales: Scales
    run_sd_from: str
    deviance: float


def columns(keys: Sequence[tuple[int, int]]) -> FloatArray:
    """float[J, 3, K]: the surface's columns of each cell, those that the measured (B_p, n) can tell apart."""
    b, ell = np.log2(np.array(keys, dtype=np.float64)).T
    one, ell, b = np.ones(len(keys)), (ell - ell.mean()) / 3, (b - b.mean()) / 3
    wanted = ([one, ell, ell**2, b], [one, ell, b], [one, ell])
    blocks = [_independent(block) for block in wanted]
    X = np.zeros((len(keys), 3, sum(block.shape[1] for block in blocks)))
    at = 0
    for c, block in enumerate(blocks):
        X[:, c, at : at + block.shape[1]] = block
        at += block.shape[1]
    return X


def _independent(block: Sequence[FloatArray]) -> FloatArray:
    """Columns that are no combination of the ones before; at least one degree of freedom is left to departures where there can be."""
    kept: list[FloatArray] = []
    most = max(1, len(block[0]) - 1)
    for column in block:
        trial = np.stack([*kept, column], axis=1)
        if np.linalg.matrix_rank(trial, tol=1e-8) == trial.shape[1] and len(kept) < most:
            kept.append(column)
    return np.stack(kept, axis=1)


def pack(cells: Cells) -> Packed:
    """The sweep as arrays; cells in rising order of (B_p, n)."""
    keys = sorted(cells)
    tracks = [list(cells[key]) for key in keys]
    S, P = max(len(t) for t in tracks), max(len(t.C) for seeds in tracks for t in seeds)
    x, y, weight = np.full((len(keys), S, P), -np.inf), np.zeros((1, len(keys), S, P)), np.zeros((len(keys), S, P))
    for j, seeds in enumerate(tracks):
        for s, t in enumerate(seeds):
            with np.errstate(divide="ignore"):
                x[j, s, : len(t.C)] = np.log10(t.C)
            y[0, j, s, : len(t.C)], weight[j, s, : len(t.C)] = t.R, 1.0
    started = np.isfinite(x) & (weight > 0)
    base = [t.R[0] for seeds in tracks for t in seeds if t.C[0] == 0]
    data = Data(x, y, weight, columns(keys), float(x[started].min()), float(x[started].max()))
    return Packed(data, keys, tracks, float(np.mean(base)) if base else None)


def start(form: str, packed: Packed, rng: np.random.Generator | None = None) -> State:
    """Where the polishing starts: for each cell the best of a grid of (mid, lnB), A by least squares there, R0 the base policy's reward (or
    the lowest seen). `rng` takes a corner of the grid at random instead, to test that the end does not depend on it."""
    data = packed.data
    J, S, _ = data.weight.shape
    floor = packed.base if packed.base is not None else float(np.min(data.y[0][data.weight > 0]))
    mids, lnBs = np.meshgrid(np.linspace(data.low - 0.5, data.high + 1.0, 25), np.log([0.4, 0.7, 1.0, 1.5, 2.2]), indexing="ij")
    theta = np.zeros((1, J, 3))
    for j in range(J):
        use = (data.weight[j] > 0) & np.isfinite(data.x[j])
        x, r = data.x[j][use], data.y[0, j][use] - floor
        s = FORMS[form](_LN10 * np.exp(lnBs)[..., None] * (x - mids[..., None]))[0]
        gain = np.clip((s * r).sum(-1) / np.maximum((s * s).sum(-1), 1e-12), -1.0, 1.0 - floor)
        error = ((gain[..., None] * s - r) ** 2).sum(-1)
        at = int(rng.integers(error.size)) if rng is not None else int(error.argmin())
        theta[0, j] = floor + gain.flat[at], mids.flat[at], lnBs.flat[at]
    return State(theta, np.zeros((1, J, S)), np.concatenate([[[floor]], _gamma(data.X, theta)], axis=1))


def _gamma(X: FloatArray, theta: FloatArray) -> FloatArray:
    """float[1, K]: the surface nearest to the cells."""
    J, _, K = X.shape
    return np.linalg.lstsq(X.reshape(3 * J, K), theta[0].reshape(-1), rcond=None)[0][None]


def noise_sd(data: Data, residual: FloatArray, parameters: int) -> float:
    """A robust standard deviation of residuals float[J, S, P]: large ones are cut at two (Huber's second proposal)."""
    r2 = residual[data.weight > 0] ** 2
    scale = float(np.median(r2)) / 0.455
    for _ in range(30):
        scale = float(np.mean(np.minimum(r2, 4 * scale))) / 0.9205
    return float(np.sqrt(max(scale * len(r2) / max(1, len(r2) - parameters), 1e-24)))


def run_sd(form: str, data: Data, state: State, sd: float, stated: float | None) -> tuple[float, str, float]:
    """(run-to-run standard deviation, where it is from in words, its degrees of freedom).

    From the spread of the seeds' offsets within cells, less what the noise explains, with a prior worth PRIOR_WEIGHT seeds at RUN_SD.
    """
    if stated is not None:
        return stated, "as stated", 100.0
    s = progress(form, data, state.theta)[0][0]
    residual = (data.y - predicted(form, data, state, with_run=False))[0]
    weight = (data.weight * s * s).sum(-1)
    there = weight > 0.2
    offset = np.where(there, (data.weight * s * residual).sum(-1) / np.maximum(weight, 1e-9), 0.0)
    count = there.sum(1)
    mean = offset.sum(1) / np.maximum(count, 1)
    spread = (there * (offset - mean[:, None]) ** 2 - there * (1 - 1 / np.maximum(count, 1))[:, None] * sd**2 / np.maximum(weight, 0.2)).sum()
    freedom = float(np.maximum(count - 1, 0).sum())
    if sd < NOISELESS:
        return (float(np.sqrt(max(spread, 0.0) / freedom)) if freedom else 0.0), "none: the points have no noise", 100.0
    if not freedom:
        return RUN_SD, f"assumed ({RUN_SD:g} of reward): one seed a cell cannot show it; state yours with --run-sd", PRIOR_WEIGHT
    found = np.sqrt((PRIOR_WEIGHT * RUN_SD**2 + max(spread, 0.0)) / (PRIOR_WEIGHT + freedom))
    return float(found), f"estimated from the seeds ({freedom:.0f} degrees of freedom)", PRIOR_WEIGHT + freedom


def _tau(form: str, data: Data, state: State, scales: Scales) -> FloatArray:
    """float[3]: how far cells lie from the surface (one step of expectation-maximisation)."""
    off = state.theta[0] - np.einsum("jck,k->jc", data.X, state.u[0, 1:])
    variance = cell_covariance(form, data, state, scales)
    J, freedom = len(off), max(len(off) - data.X.any(0).sum(1).mean(), 1.0)
    total = (off**2).sum(0) * J / freedom + np.einsum("jcc->c", variance)
    floor = 1e-8 if scales.noise_sd < NOISELESS else 1e-4
    return np.maximum(np.sqrt((PRIOR_WEIGHT * TAU**2 + total) / (PRIOR_WEIGHT + J)), floor)


def cell_covariance(form: str, data: Data, state: State, scales: Scales) -> FloatArray:
    """float[J, 3, 3]: the posterior covariance of each cell's (A, mid, lnB), the surface, R0 held."""
    s, slope, z = progress(form, data, state.theta)
    gain = state.theta[:, :, 0, None, None] + state.e[..., None] - state.R0[:, None, None, None]
    B = np.exp(state.theta[:, :, 2])[..., None, None]
    J = np.stack([s, -gain * slope * _LN10 * B, gain * slope * z], axis=2)[0]
    W = data.weight / scales.noise_sd**2
    H = np.einsum("jasp,jbsp,jsp->jab", J, J, W)
    cross = np.einsum("jasp,jsp,jsp->jas", J, s[0], W)
    h_e = (W * s[0] ** 2).sum(-1) + 1 / max(float(scales.run_sd[0]), 1e-9) ** 2
    return np.linalg.inv(H - np.einsum("jas,jbs,js->jab", cross, cross, 1 / h_e) + np.diag(1 / scales.tau**2))


def fit_form(form: str, packed: Packed, stated_run_sd: float | None = None, rng: np.random.Generator | None = None) -> Fitted:
    """The posterior mode of one shape, scales and curves found in turn."""
    data, state = packed.data, start(form, packed, rng)
    first = np.sqrt(np.mean((data.y - predicted(form, data, state))[0][data.weight > 0] ** 2)) + 1e-4
    scales = Scales(float(first), np.array([RUN_SD]), TAU)
    words = ""
    for i in range(60):
        state = solve(form, data, state, scales, iterations=12 if i < ROUNDS else 40)
        before = scales.noise_sd
        sd = noise_sd(data, (data.y - predicted(form, data, state))[0], _parameters(data))
        run, words, _ = run_sd(form, data, state, sd, stated_run_sd)
        scales = Scales(max(sd, 1e-9), np.array([run]), scales.tau)
        if i < ROUNDS:
            scales = replace(scales, tau=_tau(form, data, state, scales))
        elif sd <= 1e-9 or abs(np.log(sd / before)) < 1e-3:
            break
    state = solve(form, data, state, scales, iterations=200)
    residual = (data.y - predicted(form, data, state))[0]
    count = float(data.weight.sum())
    return Fitted(form, state, scales, words, float(count * np.log(max(noise_sd(data, residual, 0) ** 2, 1e-24))))


def _parameters(data: Data) -> int:
    """Parameters that the points of a sweep have to carry: R0, three a cell, and one more a further seed."""
    runs = (data.weight.sum(-1) > 0).sum()
    return int(1 + 2 * len(data.X) + runs)


def replicates(
    fitted: Fitted, packed: Packed, y: FloatArray, freedom: float, rng: np.random.Generator, mask: NDArray[np.bool_] | None = None
) -> State:
    """The model refitted to bootstrap rewards y (float[Q, J, S, P]), each run's luck and each cell's departure from the surface drawn anew."""
    data = replace(packed.data, y=y)
    Q, J, S, _ = y.shape
    run = np.broadcast_to(fitted.scales.run_sd, (Q,)) * np.sqrt(freedom / rng.chisquare(freedom, Q))
    draw = Draw(rng.normal(size=(Q, J, S)) * run[:, None, None], rng.normal(size=(Q, J, 3)) * fitted.scales.tau)
    state = State(*(np.repeat(v, Q, axis=0) for v in (fitted.state.theta, fitted.state.e, fitted.state.u)))
    return solve(fitted.form, data, state, replace(fitted.scales, run_sd=run), draw, iterations=25, tolerance=1e-6)


__all__ = ["Cells", "Fitted", "Packed", "cell_covariance", "columns", "fit_form", "no_draw", "pack", "replicates", "run_sd", "start"]
