"""`isojax records check`: what ledgers hold, what a fit would refuse, and what a reader of the fit
should know."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from isojax.core.cycle_collection import cycle_collection_paused
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.runs.ledger import (
    INCLUDE_FLAGGED,
    default_metric,
    ledger_folders,
    read_run,
    run_conflicts,
)
from isojax.scaling.checks.fit_flags import data_flags
from isojax.scaling.checks.run_health import health_flags, healthy_runs
from isojax.scaling.curves.unfitted import unfitted_reasons
from isojax.scaling.tracks import (
    TracksByCell,
    build_tracks,
    group_by_cell,
    make_track,
    require_fixed_runs,
)

RECOMMENDED_EVALUATIONS = 5  # at C > 0; a curve has three parameters


@dataclass(frozen=True)
class LedgerCheck:
    """What was found in ledgers."""

    runs: list[RunRecord]  # those that can be read, by cell
    metric: str  # the one that `isojax fit` takes where none is asked for
    errors: list[str]  # what `isojax fit` would refuse, with file and line
    notes: list[str]  # what it would not, but bears on what the fit can say


# Python's collector of reference cycles would look through all points again and again.
@cycle_collection_paused()
def check_ledgers(paths: Sequence[Path]) -> LedgerCheck:
    """Read every ledger below `paths`; list what `isojax fit` would refuse, and what limits it.

    paths: folders of sweeps or of cells, or records.jsonl files. InputError where there is no
    ledger. Where no run can be read, the metric is ""."""
    runs: list[RunRecord] = []
    errors: list[str] = []
    notes: list[str] = []
    for folder in ledger_folders(paths):
        try:
            runs.append(read_run(folder, warn=notes.append))  # a note where a last line is torn
        except InputError as e:
            errors.append(str(e))
    if not runs:
        return LedgerCheck(runs, "", errors, notes)

    # `isojax fit` stops at the first error. Here each run is checked alone, so that all errors are
    # found; then, if there is none, all runs together.
    runs.sort(key=lambda run: run.cell)
    metric = default_metric(runs)
    errors += run_conflicts(runs)  # sentences on two runs of one cell, or with other settings
    tracks = []
    for run in runs:
        try:
            tracks.append(make_track(run, metric, "rollouts"))
        except InputError as e:
            errors.append(str(e))
        notes += _run_notes(run)
    if not errors:
        try:
            build_tracks(require_fixed_runs(healthy_runs(runs)), metric, "rollouts")
        except InputError as e:
            errors.append(str(e))

    # Runs with a schedule have no fixed n, and so no place in a curve of one (B_p, n).
    cells = group_by_cell([track for track in tracks if not track.run.cell.schedule])
    if cells:
        errors += _curve_errors(cells)
        notes += [flag.text for flag in data_flags(cells)]
    all_n = {n for _, n in cells}
    if len(all_n) == 1:
        notes.append(f"only one n ({all_n.pop()}): a fit gives this curve, and no n*(C)")
    return LedgerCheck(runs, metric, errors, notes)


def _curve_errors(cells: TracksByCell) -> Iterator[str]:
    """The error that no cell has enough evaluations for a curve, with each cell's reason.

    Nothing where at least one has enough. cells: the runs by (B_p, n)."""
    C_by_cell = {key: [t.C[t.C > 0] for t in seeds] for key, seeds in cells.items()}
    reasons = unfitted_reasons(C_by_cell)  # only of the cells that have no curve
    if len(reasons) == len(cells):
        listed = "; ".join(f"{B_p}x{n}: {reason}" for (B_p, n), reason in reasons.items())
        problem = f"no cell has enough evaluations for a curve ({listed})"
        yield f"{problem}; expected at least one. Evaluate more often."


def _run_notes(run: RunRecord) -> Iterator[str]:
    """Notes on one run: that it broke off, is flagged as broken, or has few evaluations."""
    if run.failure_reason:
        yield f"{run.source}: the run broke off ({run.failure_reason})"
    for flag in health_flags(run):
        left_out = f"a fit leaves it out unless {INCLUDE_FLAGGED} is given"
        yield f"{run.source} is flagged: {flag}; {left_out}"
    count = sum(point.rollouts > 0 for point in run.points)
    if count < RECOMMENDED_EVALUATIONS:
        wanted = f"a curve of three parameters wants {RECOMMENDED_EVALUATIONS} or more"
        yield f"{run.source} has {count} evaluations at C > 0; {wanted}"
