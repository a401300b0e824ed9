"""Runs in, fit.json out: curves -> frontier -> n*(C), jointly, for each B_p, and for each batch B = B_p n
(IsoCompute Playbook, arXiv:2603.12151, section 4 and appendix A; joint fit: section 4.3).

Mode "debiased" takes all points, gives intervals and says when n makes no difference; mode "paper" is the paper's procedure, biases
included, and the flags say how large they are. A fork adds a mode by adding an entry to MODES. The dictionary holds no clock and no path:
the same records and seed give the same bytes, in whatever order they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from isojax.scaling import debiased, paper
from isojax.scaling import flags as words
from isojax.scaling.by_batch import by_B
from isojax.scaling.curves import to_json as curve_json
from isojax.scaling.diagnostics import diagnostics
from isojax.scaling.draws import to_json as draws_json
from isojax.scaling.estimate import Estimate, Options
from isojax.scaling.fit_inputs import base_reward, tracks
from isojax.scaling.metrics import Track, by_cell
from isojax.scaling.parts import part
from isojax.scaling.questions import overfitting, sensitivity
from isojax.scaling.records_filter import BIN_WIDTH
from isojax.scaling.segments import Cells
from isojax.scaling.stability import stability
from isojax.types import InputError, RunRecord

SCHEMA = 2
REPLICATES = 500
# mode -> (the runs of each (B_p, n), metric, options) -> curves and, where the mode has them, their replicates.
MODES: Mapping[str, Callable[[Cells, str, Options], Estimate]] = {"debiased": debiased.estimate, "paper": paper.estimate}


def _run_json(t: Track) -> dict[str, Any]:
    cell = t.run.cell
    return {"B_p": cell.B_p, "n": cell.n, "seed": cell.seed, "points": len(t.C), "C_max": float(t.C[-1]), "final": float(t.R[-1])}


def _parts(found: Estimate, cells: Cells, metric: str, is_debiased: bool) -> tuple[dict[str, Any], list[str]]:
    """The joint frontier and law, and those of each B_p; flags of the latter only where there is more than one B_p (else they repeat)."""
    joint, flags = part(found.curves, cells, metric, found.draws, is_debiased, found.no_effect)
    rows, all_B_p = [], sorted({c.B_p for c in found.curves})
    for B_p in all_B_p:
        own = {key: seeds for key, seeds in cells.items() if key[0] == B_p}
        mine = [c for c in found.curves if c.B_p == B_p]
        content, said = part(mine, own, metric, found.draws, is_debiased, found.no_effect, f"B_p={B_p} alone: ")
        rows.append({"B_p": B_p, **content})
        flags += said if len(all_B_p) > 1 else []
    return {**joint, "by_B_p": rows}, flags


def _refuse_no_curve(found: Estimate, runs: int, mode: str) -> None:
    if not found.curves:
        why = "; ".join(f"{B_p}x{n}: {reason}" for B_p, n, reason in found.left_out)
        given = "1 run gives" if runs == 1 else f"{runs} runs give"
        mend = "Evaluate more often or run longer" + (", or use the default mode, which takes every point." if mode == "paper" else ".")
        raise InputError(f"{given} no curve ({why}); expected at least one cell with enough points. {mend}")


def fit(
    runs: Sequence[RunRecord], metric: str = "avg@4", compute: str = "rollouts", mode: str = "debiased", bin_width: float = BIN_WIDTH,
    replicates: int = REPLICATES, seed: int = 0, run_sd: float | None = None, advance: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Fit a sweep.

    Args:
        runs: one record a cell (B_p, n, seed), any order.
        metric: a recorded metric in [0, 1], avg@k, best@k, worst@k where right answers are recorded, or train/NAME.
        compute: the unit of C: "rollouts", "tokens" or "device_hours".
        mode: a name in MODES.
        bin_width: of paper mode's record-breaking filter, in units of the metric.
        replicates: draws of all curves behind the intervals of debiased mode; 0 for none. seed: of their draws.
        run_sd: standard deviation of the reward between runs that differ in their seed alone, at the plateau; None: estimated, or .01
            assumed where no cell has two seeds.
        advance: hears (replicates done, of how many).

    Returns:
        The content of fit.json (docs/laws.md), plain JSON types. Absent numbers are None.

    Raises:
        InputError: no run, two records of one cell, records of different `cell` settings, a metric that is absent, not finite or outside
            [0, 1], compute that is absent or does not rise, an unknown mode, or no cell with enough points for a curve.
    """
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is not known; expected one of {', '.join(MODES)}.")
    if replicates < 0 or (run_sd is not None and not 0 <= run_sd < 1):
        raise InputError(f"replicates = {replicates}, run_sd = {run_sd}; expected replicates >= 0 and 0 <= run_sd < 1.")
    axes = tracks(runs, metric, compute)
    cells = by_cell(axes)
    found = MODES[mode](cells, metric, Options(bin_width, replicates, seed, run_sd, advance))
    _refuse_no_curve(found, len(runs), mode)
    parts, part_flags = _parts(found, cells, metric, mode != "paper")
    peaked = {c.key for c in found.curves if c.C_peak is not None}
    verdicts, over = stability(cells, metric, peaked), overfitting(axes, found.noise_sd)
    checks = diagnostics(found, axes)
    flags = [*words.effect_flags(found), *words.data_flags(cells), *words.curve_flags(found.curves, found.left_out), *part_flags]
    flags += [*words.fall_flags(found.curves, verdicts, over), *words.check_flags(checks, over, len(found.curves))]
    if mode == "paper":
        flags += words.overshoot_flag(axes, bin_width)
    return {
        "schema": SCHEMA,
        "mode": mode,
        "metric": metric,
        "compute": compute,
        "base_reward": base_reward(axes),
        "intervals": found.intervals,
        "runs": [_run_json(t) for t in axes],
        "curves": [curve_json(c) for c in found.curves],
        **parts,
        "by_B": by_B(found.curves, found.draws, found.no_effect),
        "sensitivity": sensitivity(found.curves, found.draws),
        "draws": None if found.draws is None else draws_json(found.draws),
        "diagnostics": checks,
        "overfitting": over,
        "stability": [asdict(v) for v in verdicts],
        "flags": flags,
    }
