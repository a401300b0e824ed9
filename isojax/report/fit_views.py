"""A fit document (fit.json, schema 2) as numbers ready to draw: its views, its curves' values and bands, its law. No
drawing here.

Keys that schema 1 lacks are read as absent, so that a sweep fitted by an older isojax can still be shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isojax.core.nouns import RunRecord
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble, load_ensemble
from isojax.scaling.flat_document import nest
from isojax.scaling.validation_metrics import make_track

FitDocument = Mapping[str, Any]
FloatArray = NDArray[np.float64]
CurveBand = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class FrontierView:
    """A frontier with its law: the joint one over all B_p (B_p None), or that of one B_p."""

    B_p: int | None
    summary: FitDocument
    B_ps: tuple[int, ...]

    @property
    def name(self) -> str:
        """For tables and controls."""
        return "joint" if self.B_p is None else f"B_p = {self.B_p}"


def frontier_views(fit: FitDocument) -> list[FrontierView]:
    """The joint view, and that of each B_p that was measured with several n; of one B_p alone its own."""
    one_B_p_views = [FrontierView(row["B_p"], row, (row["B_p"],)) for row in fit["by_B_p"]]
    if len(one_B_p_views) < 2:
        return one_B_p_views
    cells = {cell_key(row) for row in fit["curves"]}
    multiple_n_views = [view for view in one_B_p_views if sum(B_p == view.B_p for B_p, _ in cells) > 1]
    return [FrontierView(None, fit, tuple(view.B_ps[0] for view in one_B_p_views)), *multiple_n_views]


def single_B_p_views(fit: FitDocument) -> list[FrontierView]:
    """The views of single B_p; empty where no B_p was measured with several n."""
    return [view for view in frontier_views(fit) if view.B_p is not None]


def interval_level(fit: FitDocument) -> float | None:
    """The intervals' level, such as .9; None where the fit has none."""
    intervals = fit.get("intervals")
    return None if intervals is None else float(intervals["level"])


def cell_key(row: Mapping[str, Any]) -> tuple[int, int]:
    """(B_p, n)."""
    return row["B_p"], row["n"]


@dataclass(frozen=True)
class FittedCurves:
    """A fit's curves and their bootstrap replicates, by cell (B_p, n)."""

    fit: FitDocument

    @cached_property
    def ensemble(self) -> CurveEnsemble:
        """All cells as arrays."""
        return load_ensemble(nest(self.fit))

    @cached_property
    def columns(self) -> dict[tuple[int, int], int]:
        """(B_p, n) -> its column in the ensemble."""
        e = self.ensemble
        return {(int(B_p), int(n)): i for i, (B_p, n) in enumerate(zip(e.B_p, e.n, strict=True))}

    def reward_at(self, cell: tuple[int, int], C: ArrayLike) -> FloatArray:
        """A curve's reward at C > 0, float[...] -> float[...]."""
        return self.ensemble.expected_rewards(C)[..., self.columns[cell]]

    def bands(self, C: ArrayLike) -> dict[tuple[int, int], CurveBand]:
        """Every curve's interval (low, high) at C > 0, two float[points]; empty where the fit has no replicates."""
        if interval_level(self.fit) is None or not self.ensemble.replicates:
            return {}
        tail = (1 - self.ensemble.level) / 2
        low, high = np.quantile(
            self.ensemble.sampled_rewards(C), [tail, 1 - tail], axis=-2
        )  # over replicates: [points, cells] each
        return {cell: (low[..., i], high[..., i]) for cell, i in self.columns.items()}


def run_evaluations(run: RunRecord, fit: FitDocument) -> list[tuple[int, float, float]]:
    """(target, C, reward) of a run's evaluations after the base policy's, C in the fit's unit."""
    run_track = make_track(run, fit["metric"], fit["compute"])
    return [
        (p.target, float(C), float(R))
        for p, C, R in zip(run_track.run.points, run_track.C, run_track.R, strict=True)
        if C > 0
    ]


def evaluate_law(n_star: Mapping[str, Any], x: ArrayLike) -> FloatArray:
    """log2 n* where the law's variable (log10 C, log10 M, or M itself) is x; float[...] -> float[...]."""
    x, b = np.asarray(x, dtype=np.float64), n_star["b"]
    if n_star["form"] == "constant":
        return np.full_like(x, b)
    slope_term = n_star["k"] * (x - n_star["log10_C0"])
    if n_star["form"] == "linear":
        return b + slope_term
    return b + n_star["L"] * 0.5 * (1 + np.tanh(0.5 * slope_term))


def n_stretches(frontier: Sequence[Mapping[str, Any]]) -> list[tuple[int, int, int]]:
    """(n, first, last): where one n holds the frontier; each stretch but the first starts at the last point of the one
    before.
    """
    stretches_by_n, start = [], 0
    for n, group in groupby(p["n"] for p in frontier):
        end = start + len(list(group))
        stretches_by_n.append((n, max(0, start - 1), end - 1))
        start = end
    return stretches_by_n


def thin(points: Sequence[Any], max_points: int = 48) -> list[Any]:
    """At most `most` points, evenly, both ends kept."""
    return [
        points[i] for i in np.unique(np.linspace(0, len(points) - 1, min(max_points, len(points))).round().astype(int))
    ]
