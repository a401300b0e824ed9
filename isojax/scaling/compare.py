"""Several sweeps compared: what the paper asks across settings, such as data size D (IsoCompute Playbook,
arXiv:2603.12151, Fig. 13), models, difficulty and recipes. From their fits alone.

All are compared over the budgets they share. n* at C is the n of the best cell, where a cell competes by its curve up
to CURVE_REACH_DECADES beyond its own data, as in the law n*(C); the frontier's reward is the best of the cells measured
there. n* "levels off" at the budget beyond which it does not change, unless it ends at the largest n measured: then
nobody knows, and it counts as later than everything. Replicates are taken as independent between sweeps: every one of
one against every one of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.core.errors import InputError
from isojax.scaling.allocate.curve_ensemble import BoolArray, CurveEnsemble, FloatArray, IntArray, load_ensemble
from isojax.scaling.compare_text import comparison_notes, comparison_sentences
from isojax.scaling.comparison import (
    BudgetRow,
    EarlierSaturation,
    OverfittedCell,
    PeakedCell,
    RewardDifference,
    Saturation,
    SweepComparison,
    SweepSummary,
)
from isojax.scaling.curves.posterior_samples import CURVE_REACH_DECADES
from isojax.scaling.frontier.envelope import MIN_DECADES
from isojax.scaling.intervals import central_interval
from isojax.scaling.result import FitResult

PER_DECADE = 60
N_BUDGETS = 5
N_BAND_ROWS = 80  # rows of the bands that a figure is drawn from


@dataclass(frozen=True)
class ComparedSweep:
    """A fit under a name."""

    label: str
    fit: FitResult
    ensemble: CurveEnsemble

    @property
    def C_range(self) -> tuple[float, float]:
        """From the first to the last C at which any cell was measured."""
        return float(self.ensemble.C_low.min()), float(self.ensemble.C_high.max())


@dataclass(frozen=True)
class FrontierPath:
    """n* and the frontier along budgets C, float[G]: by the curves, [G], and of each replicate, [Q, G] (Q = 0 without
    draws).
    """

    C: FloatArray
    n: IntArray
    n_draws: IntArray
    reward: FloatArray
    reward_draws: FloatArray


def compare_sweeps(fits: Sequence[FitResult], labels: Sequence[str]) -> SweepComparison:
    """Compare sweeps; the first is the one that the others are compared with.

    Args:
        fits: at least two, of one metric, compute and mode. labels: a name for each.

    Raises:
        InputError: fewer than two, labels that do not fit or are alike, fits of different metric, compute or mode, no
            budget in common, or a fit without a curve.
    """
    _check_comparable(fits, labels)
    sweeps = [_load_sweep(label, fit) for label, fit in zip(labels, fits, strict=True)]
    C = _shared_budgets(sweeps)
    paths = [_frontier_path(s, C) for s in sweeps]
    first, *others = [_summarize(s, p) for s, p in zip(sweeps, paths, strict=True)]
    compared = [
        replace(
            summary,
            difference=_reward_difference(paths[0], path),
            earlier=_saturates_earlier(sweeps[0], sweep, C),
        )
        for summary, sweep, path in zip(others, sweeps[1:], paths[1:], strict=True)
    ]
    comparison = SweepComparison(
        metric=fits[0].metric,
        compute=fits[0].compute,
        mode=fits[0].mode,
        C_low=float(C[0]),
        C_high=float(C[-1]),
        sweeps=(first, *compared),
    )
    sentences, notes = comparison_sentences(comparison), comparison_notes(comparison)
    return replace(comparison, sentences=tuple(sentences), notes=tuple(notes))


def _check_comparable(fits: Sequence[FitResult], labels: Sequence[str]) -> None:
    if len(fits) < 2:
        raise InputError(f"{len(fits)} fit to compare; expected at least two. Name another sweep's folder or fit.json.")
    if len(labels) != len(fits):
        received = f"{len(labels)} labels ({', '.join(labels)}) for {len(fits)} runs"
        raise InputError(f"{received}; expected one each. Separate them by commas.")
    duplicate_labels = sorted({label for label in labels if labels.count(label) > 1})
    if duplicate_labels:
        raise InputError(f"two runs are called {duplicate_labels[0]!r}; expected a name for each. Give --labels.")
    first_settings = _matched_settings(fits[0])
    for fit, label in zip(fits, labels, strict=True):
        for name, value in _matched_settings(fit).items():
            if value != first_settings[name]:
                problem = f"{labels[0]} was fitted with {name} {first_settings[name]!r}, {label} with {value!r}"
                fix = f"Fit both alike (isojax fit --{name} ...)"
                raise InputError(f"{problem}; expected the same, or their numbers do not compare. {fix}.")


def _matched_settings(fit: FitResult) -> dict[str, str]:
    """What fits must have in common to be compared."""
    return {"metric": fit.metric, "compute": fit.compute, "mode": fit.mode}


def _load_sweep(label: str, fit: FitResult) -> ComparedSweep:
    try:
        return ComparedSweep(label, fit, load_ensemble(fit))
    except InputError as e:
        raise InputError(f"{label}: {e}") from e


def _shared_budgets(sweeps: Sequence[ComparedSweep]) -> FloatArray:
    """The budgets that every sweep has measured, float[G]."""
    C_ranges = [s.C_range for s in sweeps]
    C_low, C_high = max(low for low, _ in C_ranges), min(high for _, high in C_ranges)
    if C_low < C_high:
        C = np.geomspace(C_low, C_high, int(np.ceil(PER_DECADE * np.log10(C_high / C_low))) + 2)
        C = C[np.all([_measured_cells(s.ensemble, C, MIN_DECADES).any(-1) for s in sweeps], axis=0)]
        if len(C) > 1:
            return C
    ranges_text = "; ".join(
        f"{s.label} {low:.4g} to {high:.4g}" for s, (low, high) in zip(sweeps, C_ranges, strict=True)
    )
    problem = f"no range of budgets C was measured in all runs ({ranges_text})"
    raise InputError(f"{problem}; expected ranges that overlap. Run the shorter ones further.")


def _measured_cells(ensemble: CurveEnsemble, C: FloatArray, slack_decades: float) -> BoolArray:
    """bool[G, J]: which cells begin at or before C, and end at most `slack_decades` before it."""
    return (ensemble.C_low <= C[:, None] * 10**MIN_DECADES) & (ensemble.C_high * 10**slack_decades >= C[:, None])


def _frontier_path(sweep: ComparedSweep, C: FloatArray) -> FrontierPath:
    ensemble = sweep.ensemble
    measured_near = _measured_cells(ensemble, C, MIN_DECADES)
    measured_within_reach = _measured_cells(ensemble, C, CURVE_REACH_DECADES)
    expected = ensemble.expected_rewards(C)  # [G, J]
    reward_draws = ensemble.sampled_rewards(C).transpose(1, 0, 2)  # [Q, G, J]
    n, n_draws = (
        ensemble.n[np.where(measured_within_reach, values, -np.inf).argmax(-1)] for values in (expected, reward_draws)
    )
    reward = np.where(measured_near, expected, -np.inf).max(-1)
    return FrontierPath(C, n, n_draws, reward, np.where(measured_near, reward_draws, -np.inf).max(-1))


def _summarize(sweep: ComparedSweep, path: FrontierPath) -> SweepSummary:
    ensemble, fit, rows = sweep.ensemble, sweep.fit, _budget_rows(path)
    budget_indices, band_indices = (
        np.unique(np.linspace(0, len(path.C) - 1, count).round().astype(int)) for count in (N_BUDGETS, N_BAND_ROWS)
    )
    overfitting_C: dict[tuple[int, int], list[float]] = {}
    for run in fit.overfitting:
        overfitting_C.setdefault((run.B_p, run.n), []).append(run.C)
    peaked_curves = sorted((c for c in fit.curves if c.C_peak is not None), key=lambda c: (c.n, c.B_p))
    return SweepSummary(
        label=sweep.label,
        base_reward=fit.base_reward,
        n=tuple(sorted(set(ensemble.n.tolist()))),
        B_p=tuple(sorted(set(ensemble.B_p.tolist()))),
        no_effect=ensemble.no_effect,
        law=fit.joint.n_star.law,
        at=tuple(rows[i] for i in budget_indices),
        curve=tuple(rows[i] for i in band_indices),
        saturation=None if ensemble.no_effect else _saturation(path, int(ensemble.n.max())),
        top=rows[-1],
        overfitting=tuple(OverfittedCell(b, n, len(C), min(C)) for (b, n), C in sorted(overfitting_C.items())),
        peaks=tuple(PeakedCell(c.B_p, c.n, c.C_peak) for c in peaked_curves if c.C_peak is not None),
    )


def _budget_rows(path: FrontierPath) -> list[BudgetRow]:
    """n* and the frontier's reward at each C, with intervals."""
    rows = []
    for g, C in enumerate(path.C):
        n_low, n_high = _interval(path.n_draws[:, g])
        low, high = _interval(path.reward_draws[:, g])
        n_interval = {"n_low": _int_or_none(n_low), "n_high": _int_or_none(n_high)}
        rows.append(BudgetRow(float(C), int(path.n[g]), reward=float(path.reward[g]), low=low, high=high, **n_interval))
    return rows


def _interval(values: NDArray[Any]) -> tuple[float | None, float | None]:
    return central_interval(values) if len(values) else (None, None)


def _int_or_none(value: float | None) -> int | None:
    return None if value is None else int(value)


def saturation_C(n: IntArray, C: FloatArray, n_max: int) -> FloatArray:
    """Where n*, int[..., G], changes for the last time, float[...]: -inf where it never does, +inf where it ends at the
    largest n.
    """
    changes = n[..., 1:] != n[..., :-1]
    last_change = changes.shape[-1] - 1 - changes[..., ::-1].argmax(-1)
    C_change = np.sqrt(C[last_change] * C[last_change + 1])
    return np.where(n[..., -1] == n_max, np.inf, np.where(changes.any(-1), C_change, -np.inf))


def _saturation(path: FrontierPath, n_max: int) -> Saturation:
    """Where n* levels off."""
    C, C_draws = float(saturation_C(path.n, path.C, n_max)), saturation_C(path.n_draws, path.C, n_max)
    low, high = _interval(C_draws)
    return Saturation(
        n=int(path.n[-1]),
        n_largest=n_max,
        C=C if np.isfinite(C) else None,
        low=low,
        high=high,
        below_largest=float(np.mean(C_draws < np.inf)) if len(C_draws) else None,
    )


def _reward_difference(first_path: FrontierPath, other_path: FrontierPath) -> RewardDifference:
    """The frontier's reward at the end less that of the first sweep."""
    value = float(other_path.reward[-1] - first_path.reward[-1])
    if not (len(first_path.reward_draws) and len(other_path.reward_draws)):
        return RewardDifference(value, None, None, None)
    differences = np.subtract.outer(other_path.reward_draws[:, -1], first_path.reward_draws[:, -1]).ravel()
    return RewardDifference(value, *central_interval(differences), float(np.mean(differences > 0)))


def _saturates_earlier(
    first_sweep: ComparedSweep, other_sweep: ComparedSweep, C: FloatArray
) -> EarlierSaturation | None:
    """Whether n* levels off earlier in the other than in the first sweep, over the n that both measured; None where
    nothing can be said.
    """
    shared_n = sorted(set(first_sweep.ensemble.n.tolist()) & set(other_sweep.ensemble.n.tolist()))
    if len(shared_n) < 2 or first_sweep.ensemble.no_effect or other_sweep.ensemble.no_effect:
        return None
    restricted = [_restrict_to_n(s, shared_n) for s in (other_sweep, first_sweep)]
    C = C[np.all([_measured_cells(s.ensemble, C, CURVE_REACH_DECADES).any(-1) for s in restricted], axis=0)]
    if len(C) < 2:
        return None
    paths = [_frontier_path(s, C) for s in restricted]
    C_other, C_first = (float(saturation_C(p.n, C, shared_n[-1])) for p in paths)
    p_earlier = p_later = None
    if all(len(p.n_draws) for p in paths):
        C_other_draws, C_first_draws = (saturation_C(p.n_draws, C, shared_n[-1]) for p in paths)
        p_earlier = float(np.less.outer(C_other_draws, C_first_draws).mean())
        p_later = float(np.greater.outer(C_other_draws, C_first_draws).mean())
    return EarlierSaturation(tuple(shared_n), C_other < C_first, p_earlier, p_later)


def _restrict_to_n(sweep: ComparedSweep, n: Sequence[int]) -> ComparedSweep:
    """The same sweep with the cells of these n alone."""
    fit = sweep.fit.model_copy(update={"curves": tuple(c for c in sweep.fit.curves if c.n in n)})
    return ComparedSweep(sweep.label, fit, load_ensemble(fit))
