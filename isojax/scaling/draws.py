"""Bootstrap replicates of all curves of a sweep, and what they say: intervals of the frontier, of crossovers and of n*(C).

An interval runs from the 5th to the 95th percentile of the replicates; a bound that is None is an open end: the quantity lies beyond the
data in that many replicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isojax.scaling.bend import Bend, normals
from isojax.scaling.frontier import MIN_DECADES
from isojax.scaling.metrics import FloatArray
from isojax.scaling.problems import shift
from isojax.scaling.shapes import value

LEVEL = 0.9
Interval = tuple[float | None, float | None]
_SEARCH_PER_DECADE = 40
REACH = float(np.log10(4.0))


@dataclass(frozen=True)
class Draws:
    """Replicates of all curves.

    Attributes:
        tail: float[Q], the shape of each replicate.
        keys: (B_p, n) of each cell.
        A, B, C_mid: float[Q, J]. R0: float[Q]. All on the problems that were used.
        shift: float[Q, 2], what other problems would add (problems.shift); 0 where that is unknown.
        peak: float[J], C where a cell's reward starts to fall; inf where it does not.
        low, high: float[J], the measured range of C.
    """

    tail: FloatArray
    keys: tuple[tuple[int, int], ...]
    A: FloatArray
    B: FloatArray
    C_mid: FloatArray
    R0: FloatArray
    shift: FloatArray
    peak: FloatArray
    low: FloatArray
    high: FloatArray
    bends: tuple[Bend | None, ...] = ()

    def rewards(self, C: ArrayLike) -> FloatArray:
        """float[Q, J, G] at compute C, float[G] > 0, each replicate on problems of its own; held flat beyond a peak (stopping early)."""
        held = np.minimum(np.asarray(C, dtype=np.float64)[None, :], self.peak[:, None])
        floor, tail = self.R0[:, None, None], self.tail[:, None, None]
        R = value(tail, held[None], floor, self.A[..., None], self.B[..., None], self.C_mid[..., None])
        for j, bend in enumerate(self.bends):
            if bend is not None:
                R[:, j] += bend.draws(held[j], normals(len(self.R0), len(bend.value), self.keys[j]))
        return np.moveaxis(shift(self.shift, np.moveaxis(R, 2, 0)), 0, 2)

    def of(self, keys: Sequence[tuple[int, int]]) -> Draws:
        """The same replicates of some cells."""
        at = [self.keys.index(key) for key in keys]
        pick = (self.A[:, at], self.B[:, at], self.C_mid[:, at])
        bends = tuple(self.bends[j] for j in at) if self.bends else ()
        return Draws(self.tail, tuple(keys), *pick, self.R0, self.shift, self.peak[at], self.low[at], self.high[at], bends)

    def measured(self, C: ArrayLike, slack: float = MIN_DECADES) -> NDArray[np.bool_]:
        """bool[J, G]: which cells were measured to within `slack` decades of C (they end at different C, since B_p n differs)."""
        C = np.asarray(C, dtype=np.float64)[None, :]
        return (self.low[:, None] <= C * 10**slack) & (self.high[:, None] * 10**slack >= C)


def interval(values: ArrayLike) -> Interval:
    """The central LEVEL of replicates, float[Q]; an infinite bound is None."""
    tail = (1 - LEVEL) / 2 * 100
    every = np.asarray(values, dtype=np.float64)
    low, high = np.percentile(every, [tail, 100 - tail], method="linear" if np.isfinite(every).all() else "nearest")
    return (float(low) if np.isfinite(low) else None, float(high) if np.isfinite(high) else None)


def best(draws: Draws, C: ArrayLike, slack: float = MIN_DECADES) -> tuple[FloatArray, NDArray[np.intp]]:
    """(float[Q, G] the frontier's reward in each replicate, int[Q, G] which cell attains it) among the cells measured to within `slack`
    decades."""
    R = np.where(draws.measured(C, slack), draws.rewards(C), -np.inf)
    return R.max(1), R.argmax(1)


def frontier_band(draws: Draws, C: ArrayLike) -> list[dict[str, Any]]:
    """For each C: low and high of the frontier's reward, and n_probability, how often each n attains it (those that ever do)."""
    top, winner = best(draws, C)
    ns = np.array([n for _, n in draws.keys])
    rows = []
    for g in range(top.shape[1]):
        low, high = interval(top[:, g])
        count = {str(n): float(np.mean(ns[winner[:, g]] == n)) for n in sorted(set(ns.tolist()))}
        rows.append({"low": low, "high": high, "n_probability": {n: round(p, 4) for n, p in count.items() if p > 0}})
    return rows


def crossover_interval(draws: Draws, low: tuple[int, int], high: tuple[int, int], near: float) -> Interval:
    """Where the cell `high` overtakes the cell `low`, searched where both were measured; `near`: the crossing of the fit itself.

    A replicate in which `high` leads all along crosses below the range (-inf), one in which it never does, above (+inf); of several
    crossings the one nearest to `near` counts.
    """
    pair = draws.of([low, high])
    a, b = float(pair.low.max()), float(pair.high.min())
    if not a < b:
        return None, None
    x = np.linspace(np.log10(a), np.log10(b), max(8, int(np.ceil(_SEARCH_PER_DECADE * np.log10(b / a))) + 1))
    R = pair.rewards(10**x)
    lead = R[:, 1] - R[:, 0]
    rises = (lead[:, :-1] <= 0) & (lead[:, 1:] > 0)
    step = np.abs(lead[:, :-1]) / np.maximum(np.abs(lead[:, :-1]) + np.abs(lead[:, 1:]), 1e-300)
    at = np.where(rises, x[:-1] + step * np.diff(x), np.inf)
    chosen = at[np.arange(len(at)), np.abs(at - np.log10(near)).argmin(1)]
    without = np.where(lead[:, -1] > 0, -np.inf, np.inf)
    found = interval(np.where(rises.any(1), chosen, without))
    return (None if found[0] is None else 10 ** found[0], None if found[1] is None else 10 ** found[1])


def log2_n(draws: Draws, C: ArrayLike) -> FloatArray:
    """float[Q, G]: log2 of the best n in each replicate. A cell whose data ended earlier still competes, by its curve, up to REACH decades
    further: else a large n, which is alone at large C where all runs have the same number of updates, would seem to win there."""
    return np.log2([n for _, n in draws.keys])[best(draws, C, REACH)[1]]


def to_json(draws: Draws) -> dict[str, Any]:
    """Four significant digits of every replicate: what recommend reads."""

    def short(values: FloatArray) -> list[Any]:
        return [float(f"{v:.5g}") for v in values] if values.ndim == 1 else [short(v) for v in values]

    content: Mapping[str, Any] = {
        "cells": [list(key) for key in draws.keys],
        "A": short(draws.A.T),
        "B": short(draws.B.T),
        "C_mid": short(draws.C_mid.T),
        "R0": short(draws.R0),
        "tail": short(draws.tail),
        "shift": short(draws.shift.T),
    }
    return dict(content)
