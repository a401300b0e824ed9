"""Runs in, fit.json out: curves -> frontier -> n*(C), jointly, for each B_p, and for each batch B = B_p n
(IsoCompute Playbook, arXiv:2603.12151, section 4 and appendix A; joint fit: section 4.3).

Mode "hierarchical" takes all points, gives intervals and says when n makes no difference; mode "paper" is the paper's
procedure, biases included, and the flags say how large they are. A fork adds a mode by adding an entry to MODES. The
dictionary holds no clock and no path: the same records and seed give the same bytes, in whatever order they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.scaling.checks import fit_flags as fit_flags
from isojax.scaling.checks.diagnostics import diagnostics
from isojax.scaling.checks.sensitivity import find_overfitting, reward_sensitivity
from isojax.scaling.checks.stability import assess_stability
from isojax.scaling.curves import hierarchical_mode, paper_mode
from isojax.scaling.curves.fitted_curve import curve_to_json as curve_json
from isojax.scaling.curves.posterior_samples import draws_to_json as draws_json
from isojax.scaling.curves.record_breaking import BIN_WIDTH
from isojax.scaling.estimate import EstimationOptions, SweepEstimate
from isojax.scaling.fit_inputs import base_reward, build_tracks
from isojax.scaling.frontier.batch_law import fixed_batch_summaries
from isojax.scaling.frontier.fit_summary import frontier_summary
from isojax.scaling.frontier.frontier_evidence import TracksByCell
from isojax.scaling.validation_metrics import RunTrack, group_by_cell

SCHEMA = 2
REPLICATES = 500
# mode -> (the runs of each (B_p, n), metric, options) -> curves and, where the mode has them, their replicates.
MODES: Mapping[str, Callable[[TracksByCell, str, EstimationOptions], SweepEstimate]] = {
    "hierarchical": hierarchical_mode.estimate,
    "paper": paper_mode.estimate,
}


def _run_json(run_track: RunTrack) -> dict[str, Any]:
    cell = run_track.run.cell
    return {
        "B_p": cell.B_p,
        "n": cell.n,
        "seed": cell.seed,
        "points": len(run_track.C),
        "C_max": float(run_track.C[-1]),
        "final": float(run_track.R[-1]),
    }


def _fit_frontiers(
    estimate: SweepEstimate, cells: TracksByCell, metric: str, is_hierarchical: bool
) -> tuple[dict[str, Any], list[str]]:
    """The joint frontier and law, and those of each B_p; flags of the latter only where there is more than one B_p
    (else they repeat).
    """
    joint_frontier, flags = frontier_summary(
        estimate.curves, cells, metric, estimate.draws, is_hierarchical, estimate.no_effect
    )
    rows, all_B_p = [], sorted({c.B_p for c in estimate.curves})
    for B_p in all_B_p:
        cells_of_B_p = {key: seeds for key, seeds in cells.items() if key[0] == B_p}
        curves_of_B_p = [c for c in estimate.curves if c.B_p == B_p]
        content, B_p_flags = frontier_summary(
            curves_of_B_p,
            cells_of_B_p,
            metric,
            estimate.draws,
            is_hierarchical,
            estimate.no_effect,
            f"B_p={B_p} alone: ",
        )
        rows.append({"B_p": B_p, **content})
        flags += B_p_flags if len(all_B_p) > 1 else []
    return {**joint_frontier, "by_B_p": rows}, flags


def _require_a_curve(estimate: SweepEstimate, run_count: int, mode: str) -> None:
    if not estimate.curves:
        reasons = "; ".join(f"{B_p}x{n}: {reason}" for B_p, n, reason in estimate.unfitted_cells)
        received = "1 run gives" if run_count == 1 else f"{run_count} runs give"
        fix = "Evaluate more often or run longer" + (
            ", or use the default mode, which takes every point." if mode == "paper" else "."
        )
        raise InputError(f"{received} no curve ({reasons}); expected at least one cell with enough points. {fix}")


def fit(
    runs: Sequence[RunRecord], metric: str = "avg@4", compute: str = "rollouts", mode: str = "hierarchical", bin_width: float = BIN_WIDTH,
    replicates: int = REPLICATES, seed: int = 0, run_sd: float | None = None, on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Fit a sweep.

    Args:
        runs: one record a cell (B_p, n, seed), any order.
        metric: a recorded metric in [0, 1], avg@k, best@k, worst@k where right answers are recorded, or train/NAME.
        compute: the unit of C: "rollouts", "tokens" or "device_hours".
        mode: a name in MODES.
        bin_width: of paper mode's record-breaking filter, in units of the metric.
        replicates: draws of all curves behind the intervals of hierarchical mode; 0 for none. seed: of their draws.
        run_sd: standard deviation of the reward between runs that differ in their seed alone, at the plateau; None:
        estimated, or .01
            assumed where no cell has two seeds.
        advance: hears (replicates done, of how many).

    Returns:
        The content of fit.json (docs/laws.md), plain JSON types. Absent numbers are None.

    Raises:
        InputError: no run, two records of one cell, records of different `cell` settings, a metric that is absent, not
        finite or outside
            [0, 1], compute that is absent or does not rise, an unknown mode, or no cell with enough points for a curve.
    """
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is not known; expected one of {', '.join(MODES)}.")
    if replicates < 0 or (run_sd is not None and not 0 <= run_sd < 1):
        raise InputError(f"replicates = {replicates}, run_sd = {run_sd}; expected replicates >= 0 and 0 <= run_sd < 1.")
    run_tracks = build_tracks(runs, metric, compute)
    cells = group_by_cell(run_tracks)
    estimate = MODES[mode](cells, metric, EstimationOptions(bin_width, replicates, seed, run_sd, on_progress))
    _require_a_curve(estimate, len(runs), mode)
    frontiers, frontier_flags = _fit_frontiers(estimate, cells, metric, mode != "paper")
    peaked_cells = {c.key for c in estimate.curves if c.C_peak is not None}
    stability_verdicts, overfitting_rows = (
        assess_stability(cells, metric, peaked_cells),
        find_overfitting(run_tracks, estimate.noise_sd),
    )
    diagnostic_summary = diagnostics(estimate, run_tracks)
    flags = [
        *fit_flags.effect_flags(estimate),
        *fit_flags.data_flags(cells),
        *fit_flags.curve_flags(estimate.curves, estimate.unfitted_cells),
        *frontier_flags,
    ]
    flags += [
        *fit_flags.fall_flags(estimate.curves, stability_verdicts, overfitting_rows),
        *fit_flags.diagnostics_flags(diagnostic_summary, overfitting_rows, len(estimate.curves)),
    ]
    if mode == "paper":
        flags += fit_flags.overshoot_flags(run_tracks, bin_width)
    return {
        "schema": SCHEMA,
        "mode": mode,
        "metric": metric,
        "compute": compute,
        "base_reward": base_reward(run_tracks),
        "intervals": estimate.interval_info,
        "runs": [_run_json(t) for t in run_tracks],
        "curves": [curve_json(c) for c in estimate.curves],
        **frontiers,
        "by_B": fixed_batch_summaries(estimate.curves, estimate.draws, estimate.no_effect),
        "sensitivity": reward_sensitivity(estimate.curves, estimate.draws),
        "draws": None if estimate.draws is None else draws_json(estimate.draws),
        "diagnostics": diagnostic_summary,
        "overfitting": overfitting_rows,
        "stability": [asdict(v) for v in stability_verdicts],
        "flags": flags,
    }
