"""`isojax records check`: what ledgers hold, what would make a fit refuse them, and what a reader of the fit should
know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
RECOMMENDED_EVALUATIONS = 5  # at C > 0; a curve has three parameters
MIN_EVALUATIONS = 3  # at C > 0; below it, a cell has no curve


@dataclass(frozen=True)
class LedgerCheck:
    """What ledgers hold."""

    runs: list[RunRecord]  # those that can be read, by cell
    metric: str  # the one that `isojax fit` takes where none is asked for
    errors: list[str]  # what `isojax fit` would refuse, with file and line
    notes: list[str]  # what it would not, but bears on what the fit can say


def check_ledgers(paths: Sequence[Path]) -> LedgerCheck:
    """Read every ledger below `paths`.

    Raises:
        InputError: no ledger there at all.
    """
    runs: list[RunRecord] = []
    errors: list[str] = []
    notes: list[str] = []
    for folder in ledger_folders(paths):
        try:
            runs.append(read_run(folder, notes.append))
        except InputError as e:
            errors.append(str(e))
    if not runs:
        return LedgerCheck(runs, "", errors, notes)
    runs.sort(key=lambda run: run.cell)
    metric = default_metric(runs)
    errors += [*run_conflicts(runs), *_unequal_problem_counts(runs)]
    for run in runs:
        try:
            make_track(run, metric, "rollouts")
        except InputError as e:
            errors.append(str(e))
        notes += _evaluation_gaps(run) + _run_notes(run)
    return LedgerCheck(runs, metric, errors + _too_few_evaluations(runs), notes + _sweep_notes(runs))


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
    received = f"{first_location} has right answers of {a} validation problems, {second_location} of {b}"
    return [f"{received}; expected the same problems at every evaluation."]


def _evaluation_gaps(run: RunRecord) -> list[str]:
    """Stretches without an evaluation that are long against the run's others, counted in C and in log C."""
    intervals = list(pairwise(p.rollouts for p in run.points))
    if len(intervals) < RECOMMENDED_EVALUATIONS:
        return []
    lengths = [b - a for a, b in intervals]
    ratios = [b / a if a else 1.0 for a, b in intervals]
    max_length, max_ratio = GAP_RATIO * median(lengths), median(ratios) ** GAP_RATIO
    return [
        f"{run.source}, line {line}: no evaluation between {a:,} and {b:,} rollouts"
        for (a, b), length, ratio, line in zip(intervals, lengths, ratios, run.line_numbers[1:], strict=True)
        if length > max_length and ratio > max_ratio
    ]


def _run_notes(run: RunRecord) -> list[str]:
    notes = [f"{run.source}: the run broke off ({run.failure_reason})"] if run.failure_reason else []
    notes += [
        f"{run.source} is flagged: {flag}; a fit leaves it out unless {INCLUDE_FLAGGED} is given"
        for flag in health_flags(run)
    ]
    count = _trained_evaluations(run)
    if count < RECOMMENDED_EVALUATIONS:
        wanted = f"a curve of three parameters wants {RECOMMENDED_EVALUATIONS} or more"
        notes.append(f"{run.source} has {count} evaluations at C > 0; {wanted}")
    return notes


def _trained_evaluations(run: RunRecord) -> int:
    return sum(point.rollouts > 0 for point in run.points)


def _too_few_evaluations(runs: Sequence[RunRecord]) -> list[str]:
    """Where no cell, its seeds together, has enough evaluations for a curve."""
    evaluations_by_cell: Counter[tuple[int, int]] = Counter()
    for run in runs:
        evaluations_by_cell[run.cell.B_p, run.cell.n] += _trained_evaluations(run)
    largest_count = max(evaluations_by_cell.values())
    if largest_count >= MIN_EVALUATIONS:
        return []
    location = f"{runs[0].source}, line {runs[0].line_numbers[-1]}"
    return [
        f"no cell has {MIN_EVALUATIONS} evaluations at C > 0 (at most {largest_count}, as {location}); expected "
        "enough for a curve. Evaluate more often."
    ]


def _sweep_notes(runs: Sequence[RunRecord]) -> list[str]:
    notes = []
    if len({run.cell.n for run in runs}) == 1:
        notes.append(f"only one n ({runs[0].cell.n}): a fit gives this curve, and no n*(C)")
    shortest, longest = (choose(runs, key=lambda run: run.points[-1].rollouts) for choose in (min, max))
    C_short, C_long = shortest.points[-1].rollouts, longest.points[-1].rollouts
    if C_long > UNEQUAL_LENGTH_RATIO * C_short:
        notes.append(
            f"unequal lengths: {shortest.cell.name} ends at C = {C_short:,}, {longest.cell.name} at {C_long:,}; "
            "beyond the shorter ones an n can lead for want of others"
        )
    count_without_base = sum(run.points[0].rollouts > 0 for run in runs)
    if count_without_base:
        text = f"no evaluation of the base policy (C = 0) in {count_without_base} of {len(runs)} runs; R0 is fitted"
        notes.append(text)
    return notes
