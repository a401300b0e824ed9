"""Whether the curves fit their points as well as the noise allows, for each curve and for all together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isojax.scaling.checks.fit_flags import MAX_LENGTH_RATIO
from isojax.scaling.checks.sensitivity import find_ties
from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.estimate import SweepEstimate
from isojax.scaling.result import CurveDiagnostics, FitDiagnostics
from isojax.scaling.validation_metrics import FloatArray, RunTrack, group_by_cell

_ROUNDING = 1e-9  # residuals of this size are those of a computed curve: their ratios mean nothing


def diagnose(estimate: SweepEstimate, tracks: Sequence[RunTrack]) -> FitDiagnostics:
    """Reduced chi-square against the evaluations' own scatter, lag-one autocorrelation, degrees of freedom, parameters
    at bounds, ties, what was left out, unequal lengths."""
    C_ends = [max(float(t.C[-1]) for t in seeds) for seeds in group_by_cell(tracks).values()]
    residuals_by_cell = estimate.residuals or {}
    all_residuals = [r for runs in residuals_by_cell.values() for r in runs]
    evaluation_sd = _neighbour_sd(all_residuals)
    point_count = sum(len(r) for r in all_residuals)
    return FitDiagnostics(
        reduced_chi_square=_reduced_chi_square(all_residuals, evaluation_sd),
        autocorrelation=_autocorrelation(all_residuals),
        degrees_of_freedom=point_count - estimate.parameter_count if all_residuals else None,
        per_curve=tuple(_diagnose_curve(c, residuals_by_cell.get(c.key, []), evaluation_sd) for c in estimate.curves),
        ties=find_ties(estimate.draws),
        left_out=tuple(_unfitted_sentences(estimate)),
        unequal_lengths=bool(C_ends) and max(C_ends) > MAX_LENGTH_RATIO * min(C_ends),
    )


def _diagnose_curve(
    curve: FittedCurve, residuals_by_run: Sequence[FloatArray], evaluation_sd: float
) -> CurveDiagnostics:
    return CurveDiagnostics(
        B_p=curve.B_p,
        n=curve.n,
        reduced_chi_square=_reduced_chi_square(residuals_by_run, evaluation_sd),
        autocorrelation=_autocorrelation(residuals_by_run),
        points=curve.points,
        at_bounds=(*curve.at_bounds, *(() if curve.determined else ("A",))),
    )


def _unfitted_sentences(estimate: SweepEstimate) -> list[str]:
    sentences = [f"no curve for B_p={B_p} n={n}: {reason}" for B_p, n, reason in estimate.unfitted_cells]
    for c in estimate.curves:
        if c.C_peak is not None:
            sentences.append(
                f"B_p={c.B_p} n={c.n}: points beyond C = {c.C_peak:.4g}, where reward falls again, are not part of its "
                "rising curve"
            )
    return sentences


def _neighbour_sd(residuals_by_run: Sequence[FloatArray]) -> float:
    """Standard deviation of one evaluation from how residuals differ from their neighbours': what no smooth curve could
    explain.
    """
    differences = [np.diff(r) for r in residuals_by_run if len(r) > 1]
    return float(np.sqrt(np.mean(np.concatenate(differences) ** 2) / 2)) if differences else 0.0


def _reduced_chi_square(residuals_by_run: Sequence[FloatArray], evaluation_sd: float) -> float | None:
    if evaluation_sd <= _ROUNDING or not sum(len(r) for r in residuals_by_run):
        return None
    return float(np.mean(np.concatenate(residuals_by_run) ** 2) / evaluation_sd**2)


def _autocorrelation(residuals_by_run: Sequence[FloatArray]) -> float | None:
    products = [(r[1:] * r[:-1]) for r in residuals_by_run if len(r) > 1]
    variance = float(np.mean(np.concatenate(residuals_by_run) ** 2)) if products else 0.0
    return float(np.mean(np.concatenate(products)) / variance) if variance > _ROUNDING**2 else None
