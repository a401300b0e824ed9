"""What a reader of a fit must know before believing it, in words: one function for each subject, no flag where all is
well.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isojax.scaling.checks.stability import StabilityVerdict
from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.estimate import SweepEstimate
from isojax.scaling.frontier.frontier_evidence import TracksByCell
from isojax.scaling.result import FitDiagnostics, FitFlag, OverfittedRun

MAX_LENGTH_RATIO = 1.1
MAX_AUTOCORRELATION = 0.3
MAX_LISTED = 4
STALENESS = "staleness_mean"  # among EvalPoint.train: updates between the policy that samples and the one trained
MAX_STALENESS_DIFFERENCE = 0.25  # updates
# 5% of fewer replicates are too few to be an interval's end.
MIN_REPLICATES = 100


def _info(code: str, text: str) -> FitFlag:
    return FitFlag(code=code, severity="info", text=text)


def _warning(code: str, text: str) -> FitFlag:
    return FitFlag(code=code, severity="warning", text=text)


def effect_flags(estimate: SweepEstimate) -> list[FitFlag]:
    """n makes no difference; nothing to compare; what the intervals assume."""
    flags = []
    if estimate.no_effect:
        text = (
            "n makes no difference here: curves that change with n explain the evaluations no better than one curve "
            "for each B_p"
        )
        flags.append(_info("no_effect", text))
    intervals = estimate.intervals
    if intervals is not None and intervals.run_sd_source.startswith("assumed"):
        text = f"the run-to-run standard deviation is {intervals.run_sd_source}"
        flags.append(_warning("run_sd_assumed", text))
    if intervals is not None and intervals.replicates < MIN_REPLICATES:
        text = (
            f"only {intervals.replicates} replicates: curves, which are their means, and intervals are rough; use 200 "
            "or more"
        )
        flags.append(_warning("few_replicates", text))
    if len({c.n for c in estimate.curves}) == 1:
        text = f"only one n was measured ({estimate.curves[0].n}): nothing can be said of how n*(C) changes"
        flags.append(_warning("one_n", text))
    return flags


def data_flags(cells: TracksByCell) -> list[FitFlag]:
    """One seed only; cells of unequal length; no reward at C = 0."""
    flags = []
    single_seed_cells = [f"{B_p}x{n}" for (B_p, n), seeds in cells.items() if len(seeds) == 1]
    if single_seed_cells:
        which = "every cell" if len(single_seed_cells) == len(cells) else ", ".join(single_seed_cells)
        text = f"only one seed for {which}: differences between runs cannot be told from chance"
        flags.append(_warning("one_seed", text))
    C_end_by_cell = {key: max(float(t.C[-1]) for t in seeds) for key, seeds in cells.items()}
    longest, shortest = max(C_end_by_cell.values()), min(C_end_by_cell.values())
    if longest > MAX_LENGTH_RATIO * shortest:
        shorter_cells = ", ".join(
            f"{B_p}x{n} ({C:.4g})" for (B_p, n), C in C_end_by_cell.items() if longest > MAX_LENGTH_RATIO * C
        )
        text = (
            f"cells of unequal length: the longest ends at C = {longest:.4g}; {shorter_cells} end earlier and cannot "
            "lead beyond"
        )
        flags.append(_warning("unequal_lengths", text))
    if not any(t.C[0] == 0 for seeds in cells.values() for t in seeds):
        flags.append(_warning("no_base_reward", "no run was evaluated at C = 0: R0 is fitted, not measured"))
    return flags


def staleness_flags(cells: TracksByCell) -> list[FitFlag]:
    """An asynchronous sweep whose cells differ in staleness: a curve then differs between n for that reason too."""
    staleness_by_n: dict[int, list[float]] = {}
    for (_, n), seeds in cells.items():
        values = [p.train[STALENESS] for t in seeds for p in t.run.points if STALENESS in p.train]
        staleness_by_n.setdefault(n, []).extend(values)
    mean_by_n = {n: float(np.mean(values)) for n, values in sorted(staleness_by_n.items()) if values}
    if not mean_by_n or max(mean_by_n.values()) - min(mean_by_n.values()) <= MAX_STALENESS_DIFFERENCE:
        return []
    listed = ", ".join(f"{staleness:.2f} at n = {n}" for n, staleness in mean_by_n.items())
    text = (
        f"staleness differs between n: rollouts come from policies that are {listed} updates old on average; a "
        "difference between n may be one of staleness (cell.rl.max_staleness=0 trains without it)"
    )
    return [_warning("staleness_differs", text)]


def curve_flags(curves: Sequence[FittedCurve], unfitted_cells: Sequence[tuple[int, int, str]]) -> list[FitFlag]:
    """Cells without a curve, and curves with a parameter at its bound."""
    flags = [_warning("no_curve", f"no curve for B_p={B_p} n={n}: {reason}") for B_p, n, reason in unfitted_cells]
    for c in curves:
        values = {"A": c.A, "exponent": c.exponent, "C_mid": c.C_mid, "R0": c.R0}
        at_bounds = ", ".join(f"{name} = {values[name]:.4g}" for name in c.at_bounds)
        if at_bounds:
            text = (
                f"curve B_p={c.B_p} n={c.n}: {at_bounds} at its bound, not determined by the data; trust it only where "
                "measured"
            )
            flags.append(_warning("curve_at_bound", text))
    return flags


def fall_flags(
    curves: Sequence[FittedCurve], stabilities: Sequence[StabilityVerdict], overfitted: Sequence[OverfittedRun]
) -> list[FitFlag]:
    """Unstable B_p, and falls past a peak that are neither that nor, by the training reward, overfitting."""
    unstable_reasons = {v.B_p: v.reason for v in stabilities if not v.stable}
    flags = [
        FitFlag(code="unstable", severity="error", text=f"B_p={B_p} is unstable: {reason}")
        for B_p, reason in unstable_reasons.items()
    ]
    overfitted_cells = {(row.B_p, row.n) for row in overfitted}
    unexplained_curves = [
        c for c in curves if c.C_peak is not None and c.B_p not in unstable_reasons and c.key not in overfitted_cells
    ]
    if unexplained_curves:
        falls = ", ".join(f"B_p={c.B_p} n={c.n} beyond C = {c.C_peak:.4g}" for c in unexplained_curves[:MAX_LISTED])
        more = f" and {len(unexplained_curves) - MAX_LISTED} more" if len(unexplained_curves) > MAX_LISTED else ""
        text = (
            f"reward falls past a peak: {falls}{more}; no training reward shows whether that is overfitting or a "
            "collapse; every number takes such a run as stopped at its peak"
        )
        flags.append(_warning("falls_past_peak", text))
    return flags


def diagnostics_flags(
    diagnostics: FitDiagnostics, overfitted: Sequence[OverfittedRun], curve_count: int
) -> list[FitFlag]:
    """Curves that do not fit, overfitting, ties over most of the range."""
    flags = []
    autocorrelation = diagnostics.autocorrelation
    if autocorrelation is not None and autocorrelation > MAX_AUTOCORRELATION:
        text = (
            f"residuals keep their sign along a run (autocorrelation {autocorrelation:.2f}): the curves have not quite "
            "the shape of the data, or runs drift"
        )
        flags.append(_warning("autocorrelated_residuals", text))
    for row in overfitted[:MAX_LISTED]:
        text = f"overfitting: B_p={row.B_p} n={row.n} seed {row.seed}: beyond C = {row.C:.4g} {row.reason}"
        flags.append(_warning("overfitting", text))
    if len(overfitted) > MAX_LISTED:
        text = f"overfitting in {len(overfitted) - MAX_LISTED} more runs of {curve_count} cells (fit.json lists them)"
        flags.append(_warning("overfitting", text))
    for tie in diagnostics.ties[:MAX_LISTED]:
        tied_n = " and ".join(map(str, tie.n))
        text = f"tie: between C = {tie.C_low:.4g} and {tie.C_high:.4g} these runs cannot tell n = {tied_n} apart"
        flags.append(_info("tie", text))
    return flags
