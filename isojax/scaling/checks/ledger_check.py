"""`isojax records check`: what ledgers hold, what would make a fit refuse them, and what a reader of the fit should
know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.runs.ledger import INCLUDE_FLAGGED
from isojax.runs.ledger_reader import default_metric, ledger_folders, read_run, run_conflicts
from isojax.scaling.checks.run_health import health_flags
from isojax.scaling.validation_metrics import make_track

UNEQUAL_LENGTH_RATIO = 1.5  # cells that end this factor apart are of unequal length
GAP_RATIO = 3.0  # a stretch this many times as long as the median one, on both scales of C, is a gap
RECOMMENDED_EVALUATIONS = 5  # evaluations at C > 0; a curve has three parameters
MIN_EVALUATIONS = 3  # below it, a cell has no curve


@dataclass
class LedgerCheck:
    """What ledgers hold.

    Attributes:
        runs: those that can be read, by cell.
        metric: the one `isojax fit` takes where none is asked for.
        errors: what `isojax fit` would refuse, with file and line.
        notes: what it would not, but bears on what the fit can say.
    """

    runs: list[RunRecord] = field(default_factory=list)
    metric: str = ""
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_ledgers(paths: Sequence[Path], on_ledger_read: Callable[[], None]) -> LedgerCheck:
    """Read every ledger below `paths`; `on_ledger_read()` is called after each.

    Raises:
        InputError: no ledger there at all.
    """
    result = LedgerCheck()
    for folder in ledger_folders(paths):
        try:
            result.runs.append(read_run(folder, result.notes.append))
        except InputError as e:
            result.errors.append(str(e))
        on_ledger_read()
    result.runs.sort(key=lambda run: run.cell)
    if not result.runs:
        return result
    result.metric = default_metric(result.runs)
    result.errors += [*run_conflicts(result.runs), *_unequal_problem_counts(result.runs)]
    for run in result.runs:
        try:
            make_track(run, result.metric, "rollouts")
        except InputError as e:
            result.errors.append(str(e))
        result.notes += _unfittable_metrics(run, result.metric) + _evaluation_gaps(run) + _run_notes(run)
    result.errors += _too_few_evaluations(result.runs)
    result.notes += _sweep_notes(result.runs)
    return result


def _unequal_problem_counts(runs: Sequence[RunRecord]) -> list[str]:
    """Right answers of different numbers of validation problems cannot be paired."""
    location_by_count = {
        len(p.counts): f"{run.source}, line {line}"
        for run in runs
        for p, line in zip(run.points, run.line_numbers, strict=True)
        if p.counts
    }
    if len(location_by_count) < 2:
        return []
    (a, first_location), (b, second_location), *_ = sorted(location_by_count.items())
    return [
        f"{first_location} has right answers of {a} validation problems, {second_location} of {b}; expected the "
        "same problems at every evaluation."
    ]


def _unfittable_metrics(run: RunRecord, metric: str) -> list[str]:
    """Metrics that a fit would refuse if it were asked for them."""
    notes = []
    for name in sorted({name for p in run.points for name in p.metrics} - {metric}):
        try:
            make_track(run, name, "rollouts")
        except InputError as e:
            notes.append(f"`isojax fit --metric {name}` would refuse: {e}")
    return notes


def _evaluation_gaps(run: RunRecord) -> list[str]:
    """Stretches without an evaluation that are long against the run's others, counted in C and in log C."""
    C = [p.rollouts for p in run.points]
    intervals = [
        (b - a, b / a if a else 1.0, line, a, b) for (a, b), line in zip(pairwise(C), run.line_numbers[1:], strict=True)
    ]
    if len(intervals) < RECOMMENDED_EVALUATIONS:
        return []
    median_length, median_ratio = median(s[0] for s in intervals), median(s[1] for s in intervals)
    long_intervals = [s for s in intervals if s[0] > GAP_RATIO * median_length and s[1] > median_ratio**GAP_RATIO]
    return [
        f"{run.source}, line {line}: no evaluation between {a:,} and {b:,} rollouts"
        for _, _, line, a, b in long_intervals
    ]


def _run_notes(run: RunRecord) -> list[str]:
    notes = []
    if run.failure_reason:
        notes.append(f"{run.source}: the run broke off ({run.failure_reason})")
    notes += [
        f"{run.source} is flagged: {flag}; a fit leaves it out unless {INCLUDE_FLAGGED} is given"
        for flag in health_flags(run)
    ]
    if _trained_evaluations(run) < RECOMMENDED_EVALUATIONS:
        notes.append(
            f"{run.source} has {_trained_evaluations(run)} evaluations at C > 0; a curve of three parameters wants "
            f"{RECOMMENDED_EVALUATIONS} or more"
        )
    return notes


def _trained_evaluations(run: RunRecord) -> int:
    return sum(point.rollouts > 0 for point in run.points)


def _too_few_evaluations(runs: Sequence[RunRecord]) -> list[str]:
    """Where no cell, its seeds together, has enough evaluations for a curve."""
    evaluations_by_cell: Counter[tuple[int, int]] = Counter()
    for run in runs:
        evaluations_by_cell[run.cell.B_p, run.cell.n] += _trained_evaluations(run)
    if max(evaluations_by_cell.values()) >= MIN_EVALUATIONS:
        return []
    (first_run, *_), largest_count = runs, max(evaluations_by_cell.values())
    location = f"{first_run.source}, line {first_run.line_numbers[-1]}"
    return [
        f"no cell has {MIN_EVALUATIONS} evaluations at C > 0 (at most {largest_count}, as {location}); expected "
        "enough for a curve. Evaluate more often."
    ]


def _sweep_notes(runs: Sequence[RunRecord]) -> list[str]:
    notes = []
    if len({run.cell.n for run in runs}) == 1:
        notes.append(f"only one n ({runs[0].cell.n}): a fit gives this curve, and no n*(C)")
    final_rollouts = [run.points[-1].rollouts for run in runs]
    if max(final_rollouts) > UNEQUAL_LENGTH_RATIO * min(final_rollouts):
        shortest, longest = (
            next(r for r in runs if r.points[-1].rollouts == end) for end in (min(final_rollouts), max(final_rollouts))
        )
        notes.append(
            f"unequal lengths: {shortest.cell.name} ends at C = {min(final_rollouts):,}, {longest.cell.name} at "
            f"{max(final_rollouts):,}; "
            "beyond the shorter ones an n can lead for want of others"
        )
    runs_without_base = [run.cell.name for run in runs if run.points[0].rollouts > 0]
    if runs_without_base:
        notes.append(
            f"no evaluation of the base policy (C = 0) in {len(runs_without_base)} of {len(runs)} runs; R0 is fitted"
        )
    return notes
