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
from isojax.scaling.mixed import Data, Scales, State, covariances, predicted, progress, solve
from isojax.scaling.shapes import shape

Cells = Mapping[tuple[int, int], Sequence[Track]]
PRIOR_WEIGHT = 4.0
TAU = np.array([0.005, 0.01, 0.04])  # of a cell about the surface: reward, decades, log
STEP = np.array([0.02, 0.02])  # of the surface from one n to the next, about a straight line: reward, decades
BEND = 0.03  # of A's curvature: reward gained or lost against a line over three doublings of n
SLOPE_LNB = 0.10  # of ln B over three doublings of n
RUN_SD = 0.01
NOISELESS = 1e-6  # below this the points are a computed curve: nothing varies from run to run either
_LN10 = float(np.log(10.0))
ROUNDS = 8
STIFF = 1e-4  # tau of cells that share one curve


@dataclass(frozen=True)
class Prior:
    """Of u = (R0, gamma): mean and sd float[1 + K]; group int[1 + K], which sd are estimated together (-1: none)."""

    mean: FloatArray
    sd: FloatArray
    group: NDArray[np.intp]


@dataclass(frozen=True)
class Packed:
    """Data and whose they are: keys[j] = (B_p, n); tracks[j][s]; base, the mean reward at C = 0 (None where no run has it); recorded,
    bool[J, S, P], where there is a point (data.weight is 0 at those left out of the fit); tau float[3], the prior of Scales.tau."""

    data: Data
    recorded: NDArray[np.bool_]
    prior: Prior
    keys: list[tuple[int, int]]
    tracks: list[list[Track]]
    base: float | None
    tau: FloatArray


@dataclass(frozen=True)
class Fitted:
    """The posterior mode of one shape and its scales; where the run-to-run one is from, in words."""

    tail: float
    state: State
    scales: Scales
    run_sd_from: str


def columns(keys: Sequence[tuple[int, int]], middle: float) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.intp]]:
    """The surface's columns for the cells (B_p, n), those that can be told apart.

    Args:
        middle: log10 C in the middle of the data, the prior mean of mid.

    Returns:
        X float[J, 3, K]; prior means and standard deviations float[1 + K] of (R0, gamma); group int[1 + K]: 0 and 1 for the columns whose
        spread is estimated (steps of A, of mid from one n to the next), -1 for the rest.
    """
    log_b, log_n = np.log2(np.array(keys, dtype=np.float64)).T
    one, ell, b = np.ones(len(keys)), (log_n - log_n.mean()) / 3, (log_b - log_b.mean()) / 3
    steps = [(log_n >= level).astype(np.float64) for level in np.unique(log_n)[1:]]
    told = _independent([one, ell, b])
    ell, b = (column if use else np.zeros(len(keys)) for column, use in zip((ell, b), told[1:], strict=True))
    a_steps, mid_steps = ([(c, 0.0, sd, group) for c in steps] for group, sd in enumerate(STEP))
    blocks = (
        [(one, 0.0, 3.0, -1), (ell, 0.0, 1.0, -1), (b, 0.0, 0.1, -1), (ell**2 * told[1], 0.0, BEND, -1), *a_steps],
        [(one, middle, 3.0, -1), (ell, 0.0, 2.0, -1), (b, 0.0, 0.5, -1), *mid_steps],
        [(one, 0.0, 0.7, -1), (ell, 0.0, SLOPE_LNB, -1)],
    )
    rows = [(c, *entry) for c, block in enumerate(blocks) for entry in block if entry[0].any()]
    X = np.zeros((len(keys), 3, len(rows)))
    for k, (c, column, *_) in enumerate(rows):
        X[:, c, k] = column
    mean, sd, group = (np.array([first, *(row[i] for row in rows)]) for i, first in ((2, 0.0), (3, 3.0), (4, -1)))
    return X, mean, sd, group.astype(np.intp)


def _independent(block: Sequence[FloatArray]) -> list[bool]:
    """For each column, whether it is no combination of the ones before."""
    kept: list[FloatArray] = []
    told = []
    for column in block:
        trial = np.stack([*kept, column], axis=1)
        told.append(bool(np.linalg.matrix_rank(trial, tol=1e-8) == trial.shape[1]))
        kept += [column] if told[-1] else []
    return told


def pack(cells: Cells) -> Packed:
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
    started = np.isfinite(x) & (weight > 0)
    base = [t.R[0] for seeds in tracks for t in seeds if t.C[0] == 0]
    low, high = float(x[started].min()), float(x[started].max())
    X, mean, sd, group = columns(keys, (low + high) / 2)
    data = Data(x, y, weight, X, low, high)
    return Packed(data, weight > 0, Prior(mean, sd, group), keys, tracks, float(np.mean(base)) if base else None, TAU)


def start(tail: float, packed: Packed, rng: np.random.Generator | None = None) -> State:
    """Where the polishing starts: for each cell the best of a grid of (mid, lnB), A by least squares there, R0 the base policy's reward (or
    the lowest seen). `rng` takes a corner of the grid at random instead, to test that the end does not depend on it."""
    data = packed.data
    J, S, _ = data.weight.shape
    floor = packed.base if packed.base is not None else float(np.min(data.y[data.weight > 0]))
    mids, lnBs = np.meshgrid(np.linspace(data.low - 0.5, data.high + 1.0, 25), np.log([0.4, 0.7, 1.0, 1.5, 2.2]), indexing="ij")
    theta = np.zeros((J, 3))
    for j in range(J):
        use = (data.weight[j] > 0) & np.isfinite(data.x[j])
        x, r = data.x[j][use], data.y[j][use] - floor
        s = shape(_LN10 * np.exp(lnBs)[..., None] * (x - mids[..., None]), tail)[0]
        gain = np.clip((s * r).sum(-1) / np.maximum((s * s).sum(-1), 1e-12), -floor, 1.0 - floor)
        error = ((gain[..., None] * s - r) ** 2).sum(-1)
        at = int(rng.integers(error.size)) if rng is not None else int(error.argmin())
        theta[j] = floor + gain.flat[at], mids.flat[at], lnBs.flat[at]
    return State(theta, np.zeros((J, S)), np.concatenate([[floor], _gamma(packed, theta)]))


def _gamma(packed: Packed, theta: FloatArray) -> FloatArray:
    """float[K]: the surface nearest to the cells, as far as its prior lets it."""
    J, _, K = packed.data.X.shape
    scale = packed.prior.sd[1:] / 0.01
    design = np.concatenate([packed.data.X.reshape(3 * J, K) * scale, np.eye(K)])
    right = np.concatenate([theta.reshape(-1), packed.prior.mean[1:] / scale])
    return np.linalg.lstsq(design, right, rcond=None)[0] * scale


def noise_sd(data: Data, residual: FloatArray, parameters: int) -> float:
    """A robust standard deviation of residuals float[J, S, P]: large ones are cut at two (Huber's second proposal)."""
    r2 = residual[data.weight > 0] ** 2
    scale = float(np.median(r2)) / 0.455
    for _ in range(30):
        scale = float(np.mean(np.minimum(r2, 4 * scale))) / 0.9205
    return float(np.sqrt(max(scale * len(r2) / max(1, len(r2) - parameters), 1e-24)))


def run_sd(tail: float, data: Data, state: State, sd: float, stated: float | None) -> tuple[float, str, float]:
    """(run-to-run standard deviation, where it is from in words, its degrees of freedom).

    From the spread of the seeds' offsets within cells, less what the noise explains, with a prior worth PRIOR_WEIGHT seeds at RUN_SD.
    """
    if stated is not None:
        return stated, "as stated", 100.0
    s = progress(tail, data, state.theta)[0]
    residual = data.y - predicted(tail, data, state, with_run=False)
    weight = (data.weight * s * s).sum(-1)
    there = weight > 0.2
    offset = np.where(there, (data.weight * s * residual).sum(-1) / np.maximum(weight, 1e-9), 0.0)
    count = there.sum(1)
    mean = offset.sum(1) / np.maximum(count, 1)
    spread = (
        there * (offset - mean[:, None]) ** 2 - there * (1 - 1 / np.maximum(count, 1))[:, None] * sd**2 / np.maximum(weight, 0.2)
    ).sum()
    freedom = float(np.maximum(count - 1, 0).sum())
    if sd < NOISELESS:
        return (float(np.sqrt(max(spread, 0.0) / freedom)) if freedom else 0.0), "none: the points have no noise", 100.0
    if not freedom:
        return RUN_SD, f"assumed ({RUN_SD:g} of reward): one seed a cell cannot show it; state yours with --run-sd", PRIOR_WEIGHT
    found = np.sqrt((PRIOR_WEIGHT * RUN_SD**2 + max(spread, 0.0)) / (PRIOR_WEIGHT + freedom))
    return float(found), f"estimated from the seeds ({freedom:.0f} degrees of freedom)", PRIOR_WEIGHT + freedom


def _spread(tail: float, packed: Packed, state: State, scales: Scales) -> Scales:
    """tau and the sd of the surface's steps, one step of expectation-maximisation."""
    of_cells, of_u = covariances(tail, packed.data, state, scales)
    off = state.theta - packed.data.X @ state.u[1:]
    total = (off**2).sum(0) + np.einsum("jcc->c", of_cells)
    tau = np.sqrt((PRIOR_WEIGHT * packed.tau**2 + total) / (PRIOR_WEIGHT + len(off)))
    u_sd, second = scales.u_sd.copy(), state.u**2 + np.diag(of_u)
    for i, first in enumerate(STEP):
        own = packed.prior.group == i
        u_sd[own] = np.sqrt((PRIOR_WEIGHT * first**2 + second[own].sum()) / (PRIOR_WEIGHT + own.sum()))
    return replace(scales, tau=tau, u_sd=u_sd)


def fit_shape(tail: float, packed: Packed, stated_run_sd: float | None = None, rng: np.random.Generator | None = None) -> Fitted:
    """The posterior mode of one shape, scales and curves found in turn."""
    data, state = packed.data, start(tail, packed, rng)
    first = np.sqrt(np.mean((data.y - predicted(tail, data, state))[data.weight > 0] ** 2)) + 1e-4
    scales = Scales(float(first), RUN_SD, packed.tau, packed.prior.mean, packed.prior.sd)
    words = ""
    for i in range(60):
        state = solve(tail, data, state, scales, iterations=12 if i < ROUNDS else 40)
        before = scales.noise_sd
        sd = noise_sd(data, data.y - predicted(tail, data, state), _parameters(data))
        run, words, _ = run_sd(tail, data, state, sd, stated_run_sd)
        scales = replace(scales, noise_sd=max(sd, 1e-9), run_sd=run)
        if i < ROUNDS:
            scales = _spread(tail, packed, state, scales)
        elif sd <= 1e-9 or abs(np.log(sd / before)) < 1e-3:
            break
    return Fitted(tail, solve(tail, data, state, scales, iterations=200), scales, words)


def pooled(packed: Packed) -> Packed:
    """The same data under the assumption that n makes no difference: one curve for each B_p (for each batch B_p n, if that is what is
    fixed)."""
    B_ps = sorted({B_p for B_p, _ in packed.keys})
    groups = np.array([[float(B_p == b) for b in B_ps] for B_p, _ in packed.keys])
    if len(B_ps) == len(packed.keys):
        groups = np.ones((len(packed.keys), 1))
    X = np.zeros((len(packed.keys), 3, 3 * groups.shape[1]))
    for c in range(3):
        X[:, c, c * groups.shape[1] : (c + 1) * groups.shape[1]] = groups
    mean = np.concatenate([[0.0], np.repeat([0.0, (packed.data.low + packed.data.high) / 2, 0.0], groups.shape[1])])
    sd = np.concatenate([[3.0], np.repeat([3.0, 3.0, 0.7], groups.shape[1])])
    prior = Prior(mean, sd, np.full(len(mean), -1))
    return replace(packed, data=replace(packed.data, X=X), prior=prior, tau=np.full(3, STIFF))


def _parameters(data: Data) -> int:
    """Parameters that the points of a sweep have to carry: R0, three a cell, and one more a further seed."""
    runs = (data.weight.sum(-1) > 0).sum()
    return int(1 + 2 * len(data.X) + runs)
