"""Fits from curves written by hand: every curve's replicates are draws of A around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isojax.scaling.result import (
    CurveDraws,
    FitDiagnostics,
    FitResult,
    FittedCurve,
    FittedRun,
    FrontierFit,
    FrontierRow,
    IntervalSettings,
    Law,
    NStarFit,
    StabilityVerdict,
)

# (B_p, n) -> (A, B, C_mid), R0 = .2. At C = 1e4 n = 4 leads, at 1e5 n = 16; B_p = 64 is later by
# half.
SHAPES = {
    (b, n): (A, 1.0, mid * (1 if b == 16 else 1.5))
    for b in (16, 64)
    for n, A, mid in ((4, 0.6, 2e3), (16, 0.7, 8e3), (64, 0.72, 6e4))
}
R0 = 0.2
CONSTANT = NStarFit(law=Law("constant", 0.0, 0.0, None, 4.0), no_effect=False)
FRONTIER = (
    FrontierRow(C=1e3, reward=0.3, n=4, B_p=16),
    FrontierRow(C=1e5, reward=0.66, n=16, B_p=16),
)
NO_DIAGNOSTICS = FitDiagnostics(
    reduced_chi_square=None,
    autocorrelation=None,
    degrees_of_freedom=None,
    ties=(),
)


def curve(B_p: int, n: int, A: float, B: float, C_mid: float) -> FittedCurve:
    """A curve measured from 1e3 to 1e5."""
    intervals = {
        "A_interval": (A - 0.02, A + 0.02),
        "exponent_interval": (B, B),
        "C_mid_interval": (C_mid, None),
    }
    return FittedCurve(
        B_p, n, R0, A, B, C_mid, C_low=1e3, C_high=1e5, points=20, rmse=0.008, **intervals
    )


def hill(A: float, B: float, C_mid: float, C: float) -> float:
    """The curve's reward at C."""
    return R0 + (A - R0) / (1 + (C_mid / C) ** B)


def draws_of(
    shapes: Mapping[tuple[int, int], tuple[float, float, float]], sd: float, replicates: int
) -> CurveDraws:
    """Replicates of these curves, which are their means; sd: of A, independent between cells."""
    deviations = sd * np.random.default_rng(0).standard_normal((len(shapes), replicates))
    deviations -= deviations.mean(axis=1, keepdims=True)
    return CurveDraws(
        cells=tuple(shapes),
        A=tuple(
            tuple((A + d).tolist())
            for (A, _, _), d in zip(shapes.values(), deviations, strict=True)
        ),
        exponent=tuple((B,) * replicates for _, B, _ in shapes.values()),
        C_mid=tuple((mid,) * replicates for _, _, mid in shapes.values()),
        R0=(R0,) * replicates,
        tail=(1.0,) * replicates,
        shift=((0.0,) * replicates,) * 2,
        departure_sd=0.0,
    )


def document(
    shapes: Mapping[tuple[int, int], tuple[float, float, float]] = SHAPES,
    sd: float = 0.006,
    replicates: int = 400,
    unstable: Sequence[int] = (),
    n_star: NStarFit = CONSTANT,
) -> FitResult:
    """A hierarchical fit of these curves. sd: of A over the replicates, independent between
    cells."""
    B_ps = sorted({b for b, _ in shapes})
    joint = FrontierFit(B_p=None, frontier=FRONTIER, crossovers=(), segments=(), n_star=n_star)
    return FitResult(
        mode="hierarchical",
        metric="avg@4",
        compute="rollouts",
        base_reward=R0,
        intervals=IntervalSettings(
            level=0.9,
            replicates=replicates,
            seed=0,
            run_sd=0.01,
            run_sd_source="assumed",
            noise_sd=0.008,
            problems=300,
            method="",
            acceptance=0.8,
            r_hat=(1.0, 1.0),
        ),
        runs=tuple(
            FittedRun(B_p=b, n=n, seed=s, points=20, C_max=1e5, final_reward=0.6)
            for b, n in shapes
            for s in (0, 1)
        ),
        curves=tuple(curve(*cell, *shape) for cell, shape in shapes.items()),
        joint=joint,
        by_B_p=tuple(joint.model_copy(update={"B_p": B_p}) for B_p in B_ps),
        by_B=(),
        sensitivity=None,
        draws=draws_of(shapes, sd, replicates),
        forecast=None,
        referee=(),
        diagnostics=NO_DIAGNOSTICS,
        overfitting=(),
        stability=tuple(
            StabilityVerdict(b, b not in unstable, "it fell" if b in unstable else "") for b in B_ps
        ),
        flags=(),
    )


def altered(fit: FitResult, **fields: Any) -> FitResult:
    """The fit with other values of some fields."""
    return FitResult.model_validate(fit.model_dump() | fields)


def with_curve(fit: FitResult, cell: tuple[int, int], **fields: Any) -> FitResult:
    """The fit with other values of some fields of one cell's curve."""
    curves = tuple(replace(c, **fields) if c.key == cell else c for c in fit.curves)
    return fit.model_copy(update={"curves": curves})


def without_draws(fit: FitResult, mode: str = "hierarchical") -> FitResult:
    """The fit as one without replicates."""
    return fit.model_copy(update={"draws": None, "intervals": None, "mode": mode})
