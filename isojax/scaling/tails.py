"""Draws from the posterior of all curves, the shape's tail among the unknowns, and the mean curves.

A short look at a curve cannot tell how it approaches its plateau, and what it promises at four times the compute hangs on that. So no
shape is
picked: each value of TAILS takes part in as many draws as its prior and the evaluations give it. The mean over the draws is again
described by one curve of each cell, the closest in reward from its data's start to REACH times their end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from isojax.scaling.estimate import Options
from isojax.scaling.metrics import FloatArray
from isojax.scaling.mixed import Scales, cost, predicted, solve
from isojax.scaling.posterior import sample as sample_curves
from isojax.scaling.shapes import value
from isojax.scaling.surface import NOISELESS, Fitted, Packed, fit_shape, run_sd

# tail -> prior probability: ScaleRL's sigmoid as likely as all others together.
TAILS = {1.0: 0.5, 0.75: 0.1, 0.5: 0.1, 0.25: 0.1, 0.0: 0.2}
MIN_WEIGHT = 0.01
CHUNK = 50  # chains at a time: they fit a cache, and progress can be told
MEAN_DRAWS = 200  # behind the mean where no intervals are asked for
REACH = 6.0
_GRID = 32


@dataclass(frozen=True)
class Posterior:
    """All curves given the evaluations.

    Attributes:
        theta: float[Q, J, 3] = (A, log10 C_mid, ln B). R0, tail: float[Q].
        mean: float[J, 4] = (A, log10 C_mid, ln B, tail) of each cell's mean curve.
        e: float[J, S], each run's luck at the likeliest mode.
        scales: of that mode. scatter: standard deviation of one evaluation, from how neighbours differ.
    """

    theta: FloatArray
    R0: FloatArray
    tail: FloatArray
    mean: FloatArray
    e: FloatArray
    scales: Scales
    run_sd_from: str
    scatter: float


def likeliest(packed: Packed, stated_run_sd: float | None) -> tuple[list[Fitted], FloatArray]:
    """(the mode of each tail under the scales of the likeliest one, likeliest first; their posterior probabilities)."""
    modes = [fit_shape(tail, packed, stated_run_sd) for tail in TAILS]
    best = min(modes, key=lambda f: f.scales.noise_sd)
    states = [solve(f.tail, packed.data, f.state, best.scales, iterations=200) for f in modes]
    costs = np.array([cost(f.tail, packed.data, s, best.scales) for f, s in zip(modes, states, strict=True)])
    weights = np.array(list(TAILS.values())) * np.exp(-0.5 * (costs - costs.min()))
    order = np.argsort(-weights, kind="stable")
    found = [replace(modes[i], state=states[i], scales=best.scales, run_sd_from=best.run_sd_from) for i in order]
    return found, weights[order] / weights.sum()


def sample(packed: Packed, modes: list[Fitted], weights: FloatArray, options: Options) -> Posterior:
    """Options.replicates draws (MEAN_DRAWS where none are asked for) and the mean curves; modes and weights as `likeliest` gives them."""
    best, data = modes[0], packed.data
    left = (data.y - predicted(best.tail, data, best.state)) * data.weight
    scatter = _scatter(left, packed)
    count = options.replicates or MEAN_DRAWS
    if best.scales.noise_sd < NOISELESS:
        theta, R0, tail = np.repeat(best.state.theta[None], count, axis=0), np.full(count, best.state.R0), np.full(count, best.tail)
    else:
        scales = replace(best.scales, noise_sd=best.scales.noise_sd * np.sqrt(_inflation(left, packed)))
        modes = [replace(f, scales=scales, state=solve(f.tail, data, f.state, scales, iterations=200)) for f in modes]
        theta, R0, tail = _chains(modes, weights, packed, count, options)
    return Posterior(theta, R0, tail, _mean_curves(theta, R0, tail, packed), best.state.e, best.scales, best.run_sd_from, scatter)


def _chains(
    modes: list[Fitted], weights: FloatArray, packed: Packed, count: int, options: Options
) -> tuple[FloatArray, FloatArray, FloatArray]:
    rng, best = np.random.default_rng(options.seed), modes[0]
    _, _, freedom = run_sd(best.tail, packed.data, best.state, best.scales.noise_sd, options.run_sd)
    kept = np.where(weights >= MIN_WEIGHT, weights, 0.0)
    shares = rng.multinomial(count, kept / kept.sum())
    parts, done = [], 0
    for fitted, share in zip(modes, shares, strict=True):
        for first in range(0, int(share), CHUNK):
            size = min(CHUNK, int(share) - first)
            luck = fitted.scales.run_sd * np.sqrt(freedom / rng.chisquare(freedom, size))
            theta, R0 = sample_curves(fitted.tail, packed.data, fitted.state, fitted.scales, luck, rng)
            parts.append((theta, R0, np.full(size, fitted.tail)))
            done += size
            if options.advance is not None:
                options.advance(done, count)
    theta, R0, tail = (np.concatenate(part) for part in zip(*parts, strict=True))
    return theta, R0, tail


def _scatter(left: FloatArray, packed: Packed) -> float:
    """Standard deviation of one evaluation from how residuals (float[J, S, P]) differ from their neighbours: no smooth curve could
    explain it."""
    both = (packed.data.weight[..., 1:] > 0) & (packed.data.weight[..., :-1] > 0)
    steps = (left[..., 1:] - left[..., :-1])[both]
    return float(np.sqrt(np.mean(steps**2) / 2)) if len(steps) else 0.0


def _inflation(left: FloatArray, packed: Packed) -> float:
    """By how much the variance of a mean of neighbouring evaluations exceeds that of independent ones, (1 + rho) / (1 - rho): runs drift,
    or curves have another shape, and a fit that ignores it is too sure of itself."""
    use = packed.data.weight > 0
    both = use[..., 1:] & use[..., :-1]
    rho = float(np.mean((left[..., 1:] * left[..., :-1])[both]) / max(float(np.mean(left[use] ** 2)), 1e-30)) if both.any() else 0.0
    rho = min(rho, 0.8)
    return (1 + rho) / (1 - rho) if rho > max(0.1, 2 / np.sqrt(max(1, both.sum()))) else 1.0


def _mean_curves(theta: FloatArray, R0: FloatArray, tail: FloatArray, packed: Packed) -> FloatArray:
    """float[J, 4]: for each cell the curve nearest to the mean of its draws."""
    rows = []
    for j in range(theta.shape[1]):
        x = packed.data.x[j][(packed.data.weight[j] > 0) & np.isfinite(packed.data.x[j])]
        C = np.geomspace(10 ** x.min(), REACH * 10**packed.data.high, _GRID)
        A, mid, lnB = theta[:, j, 0], theta[:, j, 1], theta[:, j, 2]
        wanted = value(tail[:, None], C, R0[:, None], A[:, None], np.exp(lnB)[:, None], 10 ** mid[:, None]).mean(0)
        first = np.array([A.mean(), mid.mean(), lnB.mean(), tail.mean()])

        def residual(p: FloatArray, C: FloatArray = C, wanted: FloatArray = wanted) -> FloatArray:
            return value(p[3], C, R0.mean(), p[0], np.exp(p[2]), 10 ** p[1]) - wanted

        bounds: Any = ([0.0, first[1] - 3, first[2] - 3, 0.0], [1.0, first[1] + 3, first[2] + 3, 1.0])
        if np.ptp(tail) == 0 and np.abs(residual(first)).max() < 1e-9:
            rows.append(first)
            continue
        rows.append(least_squares(residual, np.clip(first, bounds[0], bounds[1]), bounds=bounds, x_scale=[0.1, 0.3, 0.3, 0.5]).x)
    return np.array(rows)


def residuals(found: Posterior, packed: Packed) -> FloatArray:
    """float[J, S, P]: evaluations less the mean curves, each run's luck taken off; 0 where there is no point."""
    out = np.zeros_like(packed.data.y)
    R0 = float(found.R0.mean())
    for j, (A, mid, lnB, tail) in enumerate(found.mean):
        with np.errstate(over="ignore"):
            started = np.isfinite(packed.data.x[j])
            C = 10 ** np.where(started, packed.data.x[j], packed.data.low)
        s = value(tail, C, 0.0, 1.0, np.exp(lnB), 10**mid) * started
        fitted = R0 + (A - R0) * s
        luck = _luck(packed.data.y[j] - fitted, s, packed.data.weight[j], found)
        out[j] = (packed.data.y[j] - fitted - luck[:, None] * s) * packed.data.weight[j]
    return out


def _luck(left: FloatArray, s: FloatArray, weight: FloatArray, found: Posterior) -> FloatArray:
    """float[S]: what of the residuals is each run's own luck."""
    information = (weight * s * s).sum(-1) / max(found.scales.noise_sd, 1e-12) ** 2
    return (weight * s * left).sum(-1) / max(found.scales.noise_sd, 1e-12) ** 2 / (information + 1 / max(found.scales.run_sd, 1e-9) ** 2)
