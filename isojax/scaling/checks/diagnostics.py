"""Whether the curves fit their points as well as the noise allows: numbers that a statistician asks for, by cell and in
all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isojax.scaling.checks.fit_flags import MAX_LENGTH_RATIO
from isojax.scaling.checks.sensitivity import find_ties
from isojax.scaling.estimate import SweepEstimate
from isojax.scaling.validation_metrics import FloatArray, RunTrack, group_by_cell

_ROUNDING = 1e-9  # residuals of this size are those of a computed curve: their ratios mean nothing


def diagnostics(estimate: SweepEstimate, tracks: list[RunTrack]) -> dict[str, Any]:
    """Reduced chi-square against the evaluations' own scatter, lag-one autocorrelation, degrees of freedom, parameters
    at bounds, ties, what was left out, unequal lengths."""
    C_ends = [max(float(t.C[-1]) for t in seeds) for seeds in group_by_cell(tracks).values()]
    residuals_by_cell = estimate.residuals or {}
    evaluation_sd = _neighbour_sd([r for runs in residuals_by_cell.values() for r in runs])
    rows = []
    for c in estimate.curves:
        curve_residuals = residuals_by_cell.get(c.key)
        chi2, autocorrelation = (
            (None, None)
            if curve_residuals is None
            else (_reduced_chi_square(curve_residuals, evaluation_sd), _autocorrelation(curve_residuals))
        )
        at_bounds = [*c.at_bounds, *([] if c.determined else ["A"])]
        rows.append(
            {
                "B_p": c.B_p,
                "n": c.n,
                "reduced_chi_square": chi2,
                "autocorrelation": autocorrelation,
                "points": c.points,
                "at_bounds": at_bounds,
            }
        )
    all_residuals = [r for runs in residuals_by_cell.values() for r in runs]
    point_count = sum(len(r) for r in all_residuals)
    degrees_of_freedom = point_count - estimate.parameter_count if all_residuals else None
    return {
        "reduced_chi_square": _reduced_chi_square(all_residuals, evaluation_sd) if all_residuals else None,
        "autocorrelation": _autocorrelation(all_residuals) if all_residuals else None,
        "degrees_of_freedom": degrees_of_freedom,
        "per_curve": rows,
        "ties": find_ties(estimate.draws),
        "left_out": _unfitted_sentences(estimate),
        "unequal_lengths": bool(C_ends) and max(C_ends) > MAX_LENGTH_RATIO * min(C_ends),
    }


def _unfitted_sentences(estimate: SweepEstimate) -> list[str]:
    sentences = [f"no curve for B_p={B_p} n={n}: {reason}" for B_p, n, reason in estimate.unfitted_cells]
    for c in estimate.curves:
        if c.C_peak is not None:
            sentences.append(
                f"B_p={c.B_p} n={c.n}: points beyond C = {c.C_peak:.4g}, where reward falls again, are not part of its rising curve"
            )
    return sentences


def _neighbour_sd(residuals_by_run: list[FloatArray]) -> float:
    """Standard deviation of one evaluation from how residuals differ from their neighbours': what no smooth curve could
    explain.
    """
    differences = [np.diff(r) for r in residuals_by_run if len(r) > 1]
    return float(np.sqrt(np.mean(np.concatenate(differences) ** 2) / 2)) if differences else 0.0


def _reduced_chi_square(residuals_by_run: list[FloatArray], evaluation_sd: float) -> float | None:
    all_residuals = np.concatenate(residuals_by_run) if residuals_by_run else np.empty(0)
    return (
        float(np.mean(all_residuals**2) / evaluation_sd**2)
        if evaluation_sd > _ROUNDING and len(all_residuals)
        else None
    )


def _autocorrelation(residuals_by_run: list[FloatArray]) -> float | None:
    products = [(r[1:] * r[:-1]) for r in residuals_by_run if len(r) > 1]
    variance = float(np.mean(np.concatenate(residuals_by_run) ** 2)) if products else 0.0
    return float(np.mean(np.concatenate(products)) / variance) if variance > _ROUNDING**2 else None
