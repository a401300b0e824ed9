"""Runs in, fit.json out: record-breaking points -> curves -> frontier -> n*(C), jointly and for each B_p
(IsoCompute Playbook, arXiv:2603.12151, section 4 and appendix A; joint fit: section 4.3).

mode "paper" is the paper's procedure, biases included; the flags say how large they are. The dictionary holds no clock, no path and no
random draw: the same records give the same bytes, in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np

from isojax.scaling import flags as words
from isojax.scaling.curves import Curve, fit_curve
from isojax.scaling.frontier import Frontier, frontier
from isojax.scaling.law import Law, fit_law
from isojax.scaling.metrics import COMPUTES, Track, by_cell, track
from isojax.scaling.records_filter import BIN_WIDTH
from isojax.scaling.segments import Cells, Segment, segments
from isojax.scaling.stability import stability
from isojax.types import InputError, RunRecord

SCHEMA = 1
# mode -> (seeds of one cell, R0 or None, bin width) -> its curve, or the reason why it has none.
MODES: Mapping[str, Callable[[Sequence[Track], float | None, float], Curve | str]] = {"paper": fit_curve}


def _tracks(runs: Sequence[RunRecord], metric: str, compute: str) -> list[Track]:
    """The runs' axes by cell, once the runs are known to belong together."""
    if compute not in COMPUTES:
        raise InputError(f"compute {compute!r} is not an axis; expected one of {', '.join(COMPUTES)}.")
    if not runs:
        raise InputError("no run to fit; expected at least one RunRecord. Name a sweep's folder that holds records.")
    ordered = sorted(runs, key=lambda r: (r.cell, r.source))
    first = ordered[0]
    for a, b in pairwise(ordered):
        if a.cell == b.cell:
            raise InputError(f"two records of the cell {a.cell.name}: {a.source} and {b.source}; expected one. Leave one out.")
        if b.cell_hash != first.cell_hash:
            raise InputError(
                f"{first.source} and {b.source} were run with different `cell` settings ({first.cell_hash!r} and {b.cell_hash!r}); "
                "expected one setting, because one law cannot describe both. Fit them apart."
            )
    _same_problems(ordered)
    return [track(r, metric, compute) for r in ordered]


def _same_problems(runs: Sequence[RunRecord]) -> None:
    """Refuse right answers of different numbers of validation problems: they cannot be paired."""
    sizes = {len(p.counts): r.source or r.cell.name for r in runs for p in r.points if p.counts}
    if len(sizes) > 1:
        (a, first), (b, second), *_ = sorted(sizes.items())
        given = f"{first} has right answers of {a} validation problems, {second} of {b}"
        raise InputError(f"{given}; expected the same problems at every evaluation. Mend the file or fit them apart.")


def base_reward(tracks: Sequence[Track]) -> float | None:
    """The base policy's reward: the mean over all runs of the metric at C = 0 (all start from one policy); None where no run has it."""
    found = [t.R[0] for t in tracks if t.C[0] == 0]
    return float(np.mean(found)) if found else None


def _law_json(law: Law) -> dict[str, Any]:
    return {"form": law.form, "L": law.L, "k": law.k, "log10_C0": law.log10_C0, "b": law.b}


def _curve_json(c: Curve) -> dict[str, Any]:
    return {k: v for k, v in asdict(c).items() if k != "at_bounds"}


def _segment_json(s: Segment) -> dict[str, Any]:
    return {**asdict(s), "neighbours": [{"n": n, "B_p": B_p} for n, B_p in s.neighbours]}


def _run_json(t: Track) -> dict[str, Any]:
    cell = t.run.cell
    return {"B_p": cell.B_p, "n": cell.n, "seed": cell.seed, "points": len(t.C), "C_max": float(t.C[-1]), "final": float(t.R[-1])}


def _part(curves: Sequence[Curve], cells: Cells, metric: str, where: str = "") -> tuple[dict[str, Any], list[str]]:
    """The frontier and law of some curves as JSON, and their flags."""
    found: Frontier = frontier(curves)
    evidence = segments(found, cells, metric)
    n_largest = max(n for _, n in cells)
    law = fit_law([p.C for p in found.points], [p.n for p in found.points], n_largest)
    content = {
        "frontier": [asdict(p) for p in found.points],
        "crossovers": [asdict(c) for c in found.crossovers],
        "segments": [_segment_json(s) for s in evidence],
        "n_star": _law_json(law),
    }
    return content, words.frontier_flags(found, evidence, law, n_largest, where)


def _parts_by_B_p(curves: Sequence[Curve], cells: Cells, metric: str) -> tuple[list[dict[str, Any]], list[str]]:
    """`_part` for each B_p alone; flags only where there is more than one B_p (else they repeat the joint ones)."""
    parts, flags = [], []
    all_B_p = sorted({c.B_p for c in curves})
    for B_p in all_B_p:
        own = {key: seeds for key, seeds in cells.items() if key[0] == B_p}
        content, said = _part([c for c in curves if c.B_p == B_p], own, metric, f"B_p={B_p} alone: ")
        parts.append({"B_p": B_p, **content})
        flags += said if len(all_B_p) > 1 else []
    return parts, flags


def fit(
    runs: Sequence[RunRecord], metric: str = "avg@4", compute: str = "rollouts", mode: str = "paper", bin_width: float = BIN_WIDTH
) -> dict[str, Any]:
    """Fit a sweep.

    Args:
        runs: one record a cell (B_p, n, seed), any order.
        metric: a recorded metric in [0, 1], or avg@k, best@k, worst@k where right answers are recorded.
        compute: the unit of C: "rollouts", "tokens" or "device_hours".
        mode: "paper".
        bin_width: of the record-breaking filter, in units of the metric.

    Returns:
        The content of fit.json, plain JSON types. Absent numbers are None.

    Raises:
        InputError: no run, two records of one cell, records of different `cell` settings, a metric that is absent, not finite or outside
            [0, 1], compute that is absent or does not rise, an unknown mode, or no cell with enough points for a curve.
    """
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is not known; expected one of {', '.join(MODES)}.")
    tracks = _tracks(runs, metric, compute)
    cells, base = by_cell(tracks), base_reward(tracks)
    made = {key: MODES[mode](seeds, base, bin_width) for key, seeds in cells.items()}
    curves = [c for c in made.values() if isinstance(c, Curve)]
    left_out = [(B_p, n, c) for (B_p, n), c in made.items() if isinstance(c, str)]
    if not curves:
        why = "; ".join(f"{B_p}x{n}: {reason}" for B_p, n, reason in left_out)
        mend = f"Evaluate more often, run longer, or use bins finer than {bin_width}."
        raise InputError(f"{len(runs)} runs give no curve ({why}); expected at least one cell with enough records. {mend}")
    joint, joint_flags = _part(curves, cells, metric)
    by_B_p, by_B_p_flags = _parts_by_B_p(curves, cells, metric)
    verdicts = stability(cells, metric)
    flags = [*words.data_flags(cells), *words.curve_flags(curves, left_out), *joint_flags, *by_B_p_flags]
    flags += [f"B_p={v.B_p} is unstable: {v.reason}" for v in verdicts if not v.stable]
    if mode == "paper":
        flags += words.overshoot_flag(tracks, bin_width)
    return {
        "schema": SCHEMA,
        "mode": mode,
        "metric": metric,
        "compute": compute,
        "base_reward": base,
        "runs": [_run_json(t) for t in tracks],
        "curves": [_curve_json(c) for c in curves],
        **joint,
        "by_B_p": by_B_p,
        "stability": [asdict(v) for v in verdicts],
        "flags": flags,
    }
