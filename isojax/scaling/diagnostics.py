"""Whether the curves fit their points as well as the noise allows: numbers that a statistician asks for, by cell and in all."""

from __future__ import annotations

from typing import Any

import numpy as np

from isojax.scaling.estimate import Estimate
from isojax.scaling.flags import MAX_LENGTH_RATIO
from isojax.scaling.metrics import FloatArray, Track, by_cell
from isojax.scaling.questions import ties

_ROUNDING = 1e-9  # residuals of this size are those of a computed curve: their ratios mean nothing


def diagnostics(found: Estimate, tracks: list[Track]) -> dict[str, Any]:
    """Reduced chi-square against the evaluations' own scatter, lag-one autocorrelation, degrees of freedom, parameters at bounds, ties,
    what was left out, unequal lengths."""
    ends = [max(float(t.C[-1]) for t in seeds) for seeds in by_cell(tracks).values()]
    residuals = found.residuals or {}
    sd = _scatter([r for runs in residuals.values() for r in runs])
    rows = []
    for c in found.curves:
        own = residuals.get(c.key)
        chi2, rho = (None, None) if own is None else (_chi2(own, sd), _autocorrelation(own))
        stuck = [*c.at_bounds, *([] if c.determined else ["A"])]
        rows.append({"B_p": c.B_p, "n": c.n, "reduced_chi_square": chi2, "autocorrelation": rho, "points": c.points, "at_bounds": stuck})
    every = [r for runs in residuals.values() for r in runs]
    points = sum(len(r) for r in every)
    freedom = points - found.parameters if every else None
    return {
        "reduced_chi_square": _chi2(every, sd) if every else None,
        "autocorrelation": _autocorrelation(every) if every else None,
        "degrees_of_freedom": freedom,
        "per_curve": rows,
        "ties": ties(found.draws),
        "left_out": _left_out(found),
        "unequal_lengths": bool(ends) and max(ends) > MAX_LENGTH_RATIO * min(ends),
    }


def _left_out(found: Estimate) -> list[str]:
    said = [f"no curve for B_p={B_p} n={n}: {reason}" for B_p, n, reason in found.left_out]
    for c in found.curves:
        if c.C_peak is not None:
            said.append(
                f"B_p={c.B_p} n={c.n}: points beyond C = {c.C_peak:.4g}, where reward falls again, are not part of its rising curve"
            )
    return said


def _scatter(runs: list[FloatArray]) -> float:
    """Standard deviation of one evaluation from how residuals differ from their neighbours': what no smooth curve could explain."""
    steps = [np.diff(r) for r in runs if len(r) > 1]
    return float(np.sqrt(np.mean(np.concatenate(steps) ** 2) / 2)) if steps else 0.0


def _chi2(runs: list[FloatArray], sd: float) -> float | None:
    every = np.concatenate(runs) if runs else np.empty(0)
    return float(np.mean(every**2) / sd**2) if sd > _ROUNDING and len(every) else None


def _autocorrelation(runs: list[FloatArray]) -> float | None:
    pairs = [(r[1:] * r[:-1]) for r in runs if len(r) > 1]
    power = float(np.mean(np.concatenate(runs) ** 2)) if pairs else 0.0
    return float(np.mean(np.concatenate(pairs)) / power) if power > _ROUNDING**2 else None
