"""What a reader of a fit must know before believing it, in plain words: one function a flag, none where all is well."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from isojax.scaling.checks.stability import StabilityVerdict
from isojax.scaling.curves.fitted_curve import FittedCurve
from isojax.scaling.curves.record_breaking import record_breaking_indices
from isojax.scaling.estimate import SweepEstimate
from isojax.scaling.frontier.envelope import Frontier
from isojax.scaling.frontier.frontier_evidence import FrontierSegment, TracksByCell
from isojax.scaling.law.n_star_law import Law, n_star
from isojax.scaling.validation_metrics import RunTrack

# A law with four parameters asks for at least this many values of n on the frontier.
MIN_DISTINCT_N = 3
MAX_LENGTH_RATIO = 1.1
MIN_LEAD_Z = 2.0
# The local mean around a record takes at most this many points on either side.
MAX_NEIGHBOURS = 2
MAX_AUTOCORRELATION = 0.3
MAX_LISTED = 4
# 5% of fewer draws is a handful.
MIN_REPLICATES = 100


PARAMETER_COUNT_WORDS = {"linear": "the two", "sigmoid": "the four"}


def record_overshoot(tracks: Sequence[RunTrack], bin_width: float) -> tuple[float, float, int]:
    """How far records lie above the mean of the points around them, the same number on both sides, themselves left out.

    Returns:
        (mean residual in reward, the same of each run's last such record alone, number of records used); zeros where
        there is none.
    """
    residuals: list[float] = []
    last_residuals: list[float] = []
    for t in tracks:
        run_residuals = []
        for i in record_breaking_indices(t.R, bin_width).tolist():
            neighbours = min(MAX_NEIGHBOURS, i, len(t.R) - 1 - i)
            if neighbours > 0:
                run_residuals.append(
                    float(t.R[i] - np.concatenate([t.R[i - neighbours : i], t.R[i + 1 : i + 1 + neighbours]]).mean())
                )
        residuals += run_residuals
        last_residuals += run_residuals[-1:]
    return (float(np.mean(residuals)), float(np.mean(last_residuals)), len(residuals)) if residuals else (0.0, 0.0, 0)


def overshoot_flags(tracks: Sequence[RunTrack], bin_width: float) -> list[str]:
    """Paper mode fits maxima of noise."""
    mean_overshoot, last_overshoot, record_count = record_overshoot(tracks, bin_width)
    if not record_count:
        return []
    return [
        "paper mode fits record-breaking points, which exceed the mean by the largest noise so far: every A is biased upward, more for "
        f"cells with more evaluations; here {record_count} records lie {mean_overshoot:+.4f} of reward above the points around them on average, "
        f"the last of each run, which set the plateau, {last_overshoot:+.4f}"
    ]


def data_flags(cells: TracksByCell) -> list[str]:
    """One seed only; cells of unequal length; no reward at C = 0."""
    flags = []
    single_seed_cells = [f"{B_p}x{n}" for (B_p, n), seeds in cells.items() if len(seeds) == 1]
    if single_seed_cells:
        which = "every cell" if len(single_seed_cells) == len(cells) else ", ".join(single_seed_cells)
        flags.append(f"only one seed for {which}: differences between runs cannot be told from luck")
    C_end_by_cell = {key: max(float(t.C[-1]) for t in seeds) for key, seeds in cells.items()}
    longest, shortest = max(C_end_by_cell.values()), min(C_end_by_cell.values())
    if longest > MAX_LENGTH_RATIO * shortest:
        shorter_cells = ", ".join(
            f"{B_p}x{n} ({C:.4g})" for (B_p, n), C in C_end_by_cell.items() if longest > MAX_LENGTH_RATIO * C
        )
        flags.append(
            f"cells of unequal length: the longest ends at C = {longest:.4g}; {shorter_cells} end earlier and cannot lead beyond"
        )
    if not any(t.C[0] == 0 for seeds in cells.values() for t in seeds):
        flags.append("no run was evaluated at C = 0: R0 is fitted, not measured")
    return flags


def curve_flags(curves: Sequence[FittedCurve], unfitted_cells: Sequence[tuple[int, int, str]]) -> list[str]:
    """Cells without a curve, and curves with a parameter at its bound."""
    flags = [f"no curve for B_p={B_p} n={n}: {reason}" for B_p, n, reason in unfitted_cells]
    for c in curves:
        values = {"A": c.A, "exponent": c.exponent, "C_mid": c.C_mid, "R0": c.R0}
        at_bounds = ", ".join(f"{name} = {values[name]:.4g}" for name in c.at_bounds)
        if at_bounds:
            flags.append(
                f"curve B_p={c.B_p} n={c.n}: {at_bounds} at its bound, not determined by the data; trust it only where measured"
            )
    return flags


def fall_flags(
    curves: Sequence[FittedCurve], stabilities: Sequence[StabilityVerdict], overfitted: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Unstable B_p, and falls past a peak that are neither that nor, by the training reward, overfitting."""
    unstable_reasons = {v.B_p: v.reason for v in stabilities if not v.stable}
    flags = [f"B_p={B_p} is unstable: {reason}" for B_p, reason in unstable_reasons.items()]
    overfitted_cells = {(row["B_p"], row["n"]) for row in overfitted}
    unexplained_curves = [
        c for c in curves if c.C_peak is not None and c.B_p not in unstable_reasons and c.key not in overfitted_cells
    ]
    if unexplained_curves:
        falls = ", ".join(f"B_p={c.B_p} n={c.n} beyond C = {c.C_peak:.4g}" for c in unexplained_curves[:MAX_LISTED])
        more = f" and {len(unexplained_curves) - MAX_LISTED} more" if len(unexplained_curves) > MAX_LISTED else ""
        flags.append(
            f"reward falls past a peak: {falls}{more}; no training reward shows whether that is overfitting or a collapse; every number "
            "takes such a run as stopped at its peak"
        )
    return flags


def effect_flags(estimate: SweepEstimate) -> list[str]:
    """n makes no difference; nothing to compare; what the intervals take for granted."""
    flags = []
    if estimate.no_effect:
        flags.append(
            "n makes no difference here: curves that change with n explain the evaluations no better than one curve for each B_p"
        )
    if estimate.interval_info is not None and estimate.interval_info["run_sd_source"].startswith("assumed"):
        flags.append(f"the run-to-run standard deviation is {estimate.interval_info['run_sd_source']}")
    if estimate.interval_info is not None and estimate.interval_info["replicates"] < MIN_REPLICATES:
        flags.append(
            f"only {estimate.interval_info['replicates']} replicates: curves, which are their means, and intervals are rough; use 200 or more"
        )
    if len({c.n for c in estimate.curves}) == 1:
        flags.append(f"only one n was measured ({estimate.curves[0].n}): nothing can be said of how n*(C) changes")
    return flags


def diagnostics_flags(
    diagnostics: Mapping[str, Any], overfitted: Sequence[Mapping[str, Any]], curve_count: int
) -> list[str]:
    """Curves that do not fit, overfitting, ties over most of the range."""
    flags = []
    autocorrelation = diagnostics["autocorrelation"]
    if autocorrelation is not None and autocorrelation > MAX_AUTOCORRELATION:
        flags.append(
            f"residuals keep their sign along a run (autocorrelation {autocorrelation:.2f}): the curves' shape is not quite theirs, or runs drift"
        )
    for row in overfitted[:MAX_LISTED]:
        flags.append(
            f"overfitting: B_p={row['B_p']} n={row['n']} seed {row['seed']}: beyond C = {row['C']:.4g} {row['reason']}"
        )
    if len(overfitted) > MAX_LISTED:
        flags.append(
            f"overfitting in {len(overfitted) - MAX_LISTED} more runs of {curve_count} cells (fit.json lists them)"
        )
    for row in diagnostics["ties"][:MAX_LISTED]:
        listed = " and ".join(map(str, row["n"]))
        flags.append(
            f"tie: between C = {row['C_low']:.4g} and {row['C_high']:.4g} these runs cannot tell n = {listed} apart"
        )
    return flags


def frontier_flags(
    frontier: Frontier,
    segments: Sequence[FrontierSegment],
    law: Law,
    measured_n: Collection[int],
    no_effect: bool = False,
    flag_prefix: str = "",
) -> list[str]:
    """A frontier with few n or falling n, stretches without evidence, and a law that says more than its data; nothing
    where a single n was measured, which `effect_flags` says. `where` opens each flag."""
    frontier_n = sorted({p.n for p in frontier.points})
    if no_effect or len(measured_n) == 1:
        return []
    if law.form == "constant" and len(frontier_n) == 1:
        return [
            f"{flag_prefix}n = {frontier_n[0]} holds the whole frontier, so n*(C) is constant: another n makes no gain that these data can show"
        ]
    flags = []
    if len(frontier_n) < MIN_DISTINCT_N and law.form != "constant":
        listed = " and ".join(map(str, frontier_n))
        flags.append(
            f"only {len(frontier_n)} distinct n on the frontier ({listed}): {PARAMETER_COUNT_WORDS[law.form]} parameters of n*(C) are not determined by them"
        )
    falls = [f"{c.n_low} to {c.n_high} at C = {c.C:.4g}" for c in frontier.crossovers if c.n_high < c.n_low]
    if falls:
        flags.append(
            f"the frontier's n is not monotone, it falls from {'; '.join(falls)}: a sigmoid cannot describe that"
        )
    uncrossed_changes = [
        f"from n = {c.n_low} to {c.n_high} at C = {c.C:.4g}" for c in frontier.crossovers if not c.crossing
    ]
    if uncrossed_changes:
        data_end_text = "because data end or begin there, not because curves cross: nothing was compared"
        flags.append(f"the frontier passes {'; '.join(uncrossed_changes)} {data_end_text}")
    weak_segments = [f"n={s.n} B_p={s.B_p} ({s.z:.1f})" for s in segments if s.z is not None and s.z < MIN_LEAD_Z]
    if weak_segments and len(weak_segments) == len(segments):
        flags.append(
            f"no stretch of the frontier leads its neighbours by {MIN_LEAD_Z:g} standard errors: n makes no difference they can show"
        )
    elif weak_segments:
        flags.append(
            f"these stretches lead their neighbours by less than {MIN_LEAD_Z:g} standard errors: {', '.join(weak_segments)}"
        )
    values = {"L": law.L, "k": law.k, "C0": 10**law.log10_C0 if law.log10_C0 is not None else float("nan")}
    at_bounds = ", ".join(f"{name} = {values[name]:.4g}" for name in law.at_bounds)
    if at_bounds:
        flags.append(f"n*(C) has {at_bounds} at its bound; the frontier does not determine it")
    return [flag_prefix + text for text in flags + _extrapolation_flags(frontier, law, max(measured_n))]


def _extrapolation_flags(frontier: Frontier, law: Law, n_max: int) -> list[str]:
    flags = []
    C_low, C_high = frontier.points[0].C, frontier.points[-1].C
    if law.form == "sigmoid" and law.log10_C0 is not None and not C_low <= 10**law.log10_C0 <= C_high:
        middle = 10**law.log10_C0
        flags.append(
            f"the law reaches beyond its data: its middle C0 = {middle:.4g} lies outside {C_low:.4g} to {C_high:.4g}"
        )
    n_saturation, n_at_end = 2 ** (law.b + law.L), float(n_star(law, C_high))
    if law.form == "sigmoid" and n_saturation > 2**0.5 * n_at_end:
        flags.append(
            f"the law reaches beyond its data: it saturates at n = {n_saturation:.3g}, but has come to {n_at_end:.3g} where the data end"
        )
    if frontier.points[-1].n == n_max:
        flags.append(f"the frontier ends at the largest n measured ({n_max}): a larger n might do better")
    return flags
