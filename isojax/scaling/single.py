"""One run's curve, ScaleRL's R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B) (arXiv:2510.13786, eq. 1), through all its points or those of
several seeds, with intervals and, where it is fitted below some C only, its error beyond.

Departures from ScaleRL: all points count, no early one is skipped; R0 is fitted, a point at C = 0 (where R = R0) counting like any other;
Huber's loss at 1.345 standard deviations instead of squares; A <= 1 and R0 >= 0 hold only where all rewards lie in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.blocks import Noise, draw, noise
from isojax.scaling.metrics import FloatArray
from isojax.scaling.project import Axis, Solution, errors_at, grid, make_axis, shape, solve

BoolArray = NDArray[np.bool]

PARAMETERS = ("R0", "A", "B", "C_mid")
MIN_POINTS = 5  # distinct C: one more than there are parameters
STARTS = 8
HUBER = 1.345  # standard deviations: 95% as efficient as squares on Gaussian noise
LEVEL, REPLICATES, SEED = 0.9, 500, 0
BAND_POINTS = 120
OPEN_SHARE = 0.05  # an end of an interval is open where this share of replicates lies at a bound
_REPLICATE_TOLERANCE = 1e-7


@dataclass(frozen=True)
class Runs:
    """Points of one run or several seeds of it: C, R float[points], sorted by run and C, and run int[points], 0, 1, ..."""

    C: FloatArray
    R: FloatArray
    run: NDArray[np.intp]

    def at(self, chosen: BoolArray) -> Runs:
        """Some of the points."""
        return Runs(self.C[chosen], self.R[chosen], self.run[chosen])

    def split(self, values: FloatArray) -> list[FloatArray]:
        """values, float[points], of each run."""
        return [values[self.run == i] for i in np.unique(self.run)]


@dataclass(frozen=True)
class Fit:
    """A fitted curve: its parameters, the solution of the one data set, its axis, at which residual the loss turns linear, its noise."""

    parameters: dict[str, float]
    solution: Solution
    axis: Axis
    clip: float
    noise: Noise
    at_bounds: tuple[str, ...]


def fit_curve(runs: Runs, starts: FloatArray | None = None) -> Fit:
    """The curve of least Huber loss.

    Args:
        runs: at least MIN_POINTS distinct C >= 0.
        starts: float[starts 2] of (ln B, log10 C_mid) to search from, instead of the best corners of a fixed grid.
    """
    inside = bool(np.all((runs.R >= 0) & (runs.R <= 1)))
    axis = make_axis(runs.C, (0.0, 1.0) if inside else None)
    R = runs.R[None]
    if starts is None:
        corners = grid(axis)
        starts = corners[np.argsort(errors_at(axis, R, corners)[0], kind="stable")[:STARTS]]
    many = np.repeat(R, len(starts), 0)
    squares = solve(axis, many, starts)
    residual = R[0] - squares.fit[int(((many - squares.fit) ** 2).sum(-1).argmin())]
    count = len(runs.C)
    sd = 1.4826 * float(np.median(np.abs(residual))) * np.sqrt(count / max(count - len(PARAMETERS), 1))
    clip = HUBER * max(sd, 1e-6 * float(np.ptp(runs.R)), 1e-12)
    robust = solve(axis, many, squares.phi, clip)
    size = np.abs(many - robust.fit)
    best = int(np.where(size <= clip, 0.5 * size**2, clip * (size - 0.5 * clip)).sum(-1).argmin())
    chosen = Solution(*(value[best : best + 1] for value in (robust.phi, robust.R0, robust.G, robust.fit)))
    found = noise(runs.split(R[0] - chosen.fit[0]), len(PARAMETERS))
    names = {name: float(value[0]) for name, value in _named(chosen).items()}
    return Fit(names, chosen, axis, clip, found, _at_bounds(chosen, axis))


def _named(solution: Solution) -> dict[str, FloatArray]:
    """Each parameter of each data set, float[R]."""
    values = (solution.R0, solution.R0 + solution.G, np.exp(solution.phi[:, 0]), 10 ** solution.phi[:, 1])
    return dict(zip(PARAMETERS, values, strict=True))


def _bound_hits(solution: Solution, axis: Axis) -> dict[str, tuple[BoolArray, BoolArray]]:
    """parameter -> (which data sets have it at its lower bound, at its upper one). R0 = 0 is a reward, no failure."""
    near = 1e-3 * (axis.upper - axis.lower)
    low, high = solution.phi - axis.lower < near, axis.upper - solution.phi < near
    top = np.inf if axis.range is None else axis.range[1]
    never = np.zeros(len(solution.G), dtype=bool)
    # Without a bound of its own, A is open where C_mid has gone as far as it may.
    A_high = (solution.R0 + solution.G >= top - 1e-9) | high[:, 1]
    return {"A": (never, A_high), "B": (low[:, 0], high[:, 0]), "C_mid": (low[:, 1], high[:, 1])}


def _at_bounds(solution: Solution, axis: Axis) -> tuple[str, ...]:
    hits = _bound_hits(solution, axis)
    return tuple(name for name in PARAMETERS if name in hits and (hits[name][0][0] or hits[name][1][0]))


def values(solution: Solution, C: FloatArray) -> FloatArray:
    """The curves of each data set at C >= 0, some of it > 0; float[points] -> float[R points]."""
    return solution.R0[:, None] + solution.G[:, None] * shape(make_axis(C, None), solution.phi)


def replicates(fit: Fit, runs: Runs, count: int = REPLICATES, seed: int = SEED) -> Solution:
    """The curve refitted to runs drawn around it by a moving-block bootstrap of its residuals."""
    rng = np.random.default_rng(seed)
    residuals = runs.split(runs.R - fit.solution.fit[0])
    R = fit.solution.fit + draw(residuals, fit.noise, count, rng)
    corners = grid(fit.axis)
    errors = errors_at(fit.axis, R, corners)
    phi = np.repeat(fit.solution.phi, count, 0)
    from_fit = errors_at(fit.axis, R, fit.solution.phi)[:, 0]
    better = errors.min(-1) < from_fit
    phi[better] = corners[errors.argmin(-1)[better]]
    return solve(fit.axis, R, phi, fit.clip * fit.noise.factor, _REPLICATE_TOLERANCE)


def intervals(drawn: Solution, axis: Axis) -> dict[str, list[float | None]]:
    """parameter -> its interval; an end that many replicates push to a bound is open, None."""
    hits, found = _bound_hits(drawn, axis), {}
    for name, value in _named(drawn).items():
        low, high = (float(v) for v in np.quantile(value, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        at_low, at_high = (float(h.mean()) >= OPEN_SHARE for h in hits[name]) if name in hits else (False, False)
        found[name] = [None if at_low else low, None if at_high else high]
    return found


def band(fit: Fit, drawn: Solution, C: FloatArray) -> dict[str, FloatArray]:
    """The curve at C and its interval: {"C", "reward", "low", "high"}, float[points] each."""
    low, high = np.quantile(values(drawn, C), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return {"C": C, "reward": values(fit.solution, C)[0], "low": low, "high": high}


def bootstrap_words(fit: Fit, seeds: int) -> dict[str, Any]:
    """How the intervals were made, for JSON."""
    method = f"moving blocks of {fit.noise.block} residuals" + (
        f" within each of {seeds} seeds, and the seeds' levels" if seeds > 1 else ""
    )
    return {"level": LEVEL, "replicates": REPLICATES, "seed": SEED, "method": method}
