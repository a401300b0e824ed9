"""`isojax records check`: what ledgers hold, what would make a fit refuse them, and what a reader of the fit should know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from isojax.records import INCLUDE_FLAGGED, clashes, default_metric, ledger_folders, read_run
from isojax.scaling.health import health
from isojax.scaling.metrics import track
from isojax.types import InputError, RunRecord

UNEQUAL = 1.5  # cells that end this factor apart are of unequal length
GAP = 3.0  # a stretch this many times as long as the median one, on both scales of C, is a gap
FEW = 5  # evaluations at C > 0; a curve has three parameters
FEWEST = 3  # below it, a cell has no curve


@dataclass
class Checked:
    """What ledgers hold.

    Attributes:
        runs: those that can be read, by cell.
        metric: the one `isojax fit` takes where none is asked for.
        problems: what `isojax fit` would refuse, with file and line.
        notes: what it would not, but bears on what the fit can say.
    """

    runs: list[RunRecord] = field(default_factory=list)
    metric: str = ""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(paths: Sequence[Path], done: Callable[[], None]) -> Checked:
    """Read every ledger below `paths`; `done()` hears of each.

    Raises:
        InputError: no ledger there at all.
    """
    found = Checked()
    for folder in ledger_folders(paths):
        try:
            found.runs.append(read_run(folder, found.notes.append))
        except InputError as e:
            found.problems.append(str(e))
        done()
    found.runs.sort(key=lambda run: run.cell)
    if not found.runs:
        return found
    found.metric = default_metric(found.runs)
    found.problems += [*clashes(found.runs), *_problem_sets(found.runs)]
    for run in found.runs:
        try:
            track(run, found.metric, "rollouts")
        except InputError as e:
            found.problems.append(str(e))
        found.notes += _other_metrics(run, found.metric) + _gaps(run) + _oddities(run)
    found.problems += _too_few(found.runs)
    found.notes += _sweep(found.runs)
    return found


def _problem_sets(runs: Sequence[RunRecord]) -> list[str]:
    """Right answers of different numbers of validation problems cannot be paired."""
    places = {
        len(p.counts): f"{run.source}, line {line}" for run in runs for p, line in zip(run.points, run.lines, strict=True) if p.counts
    }
    if len(places) < 2:
        return []
    (a, first), (b, second), *_ = sorted(places.items())
    return [f"{first} has right answers of {a} validation problems, {second} of {b}; expected the same problems at every evaluation."]


def _other_metrics(run: RunRecord, metric: str) -> list[str]:
    """Metrics that a fit would refuse if it were asked for them."""
    said = []
    for name in sorted({name for p in run.points for name in p.metrics} - {metric}):
        try:
            track(run, name, "rollouts")
        except InputError as e:
            said.append(f"`isojax fit --metric {name}` would refuse: {e}")
    return said


def _gaps(run: RunRecord) -> list[str]:
    """Stretches without an evaluation that are long beside the run's others, counted in C and in log C."""
    C = [p.rollouts for p in run.points]
    steps = [(b - a, b / a if a else 1.0, line, a, b) for (a, b), line in zip(pairwise(C), run.lines[1:], strict=True)]
    if len(steps) < FEW:
        return []
    usual, ratio = median(s[0] for s in steps), median(s[1] for s in steps)
    long = [s for s in steps if s[0] > GAP * usual and s[1] > ratio**GAP]
    return [f"{run.source}, line {line}: no evaluation between {a:,} and {b:,} rollouts" for _, _, line, a, b in long]


def _oddities(run: RunRecord) -> list[str]:
    said = []
    if run.failed:
        said.append(f"{run.source}: the run broke off ({run.failed})")
    said += [f"{run.source} is flagged: {flag}; a fit leaves it out unless told {INCLUDE_FLAGGED}" for flag in health(run)]
    if _trained(run) < FEW:
        said.append(f"{run.source} has {_trained(run)} evaluations at C > 0; a curve of three parameters wants {FEW} or more")
    return said


def _trained(run: RunRecord) -> int:
    return sum(point.rollouts > 0 for point in run.points)


def _too_few(runs: Sequence[RunRecord]) -> list[str]:
    """Where no cell, its seeds together, has enough evaluations for a curve."""
    points: Counter[tuple[int, int]] = Counter()
    for run in runs:
        points[run.cell.B_p, run.cell.n] += _trained(run)
    if max(points.values()) >= FEWEST:
        return []
    (first, *_), most = runs, max(points.values())
    where = f"{first.source}, line {first.lines[-1]}"
    return [f"no cell has {FEWEST} evaluations at C > 0 (at most {most}, as {where}); expected enough for a curve. Evaluate more often."]


def _sweep(runs: Sequence[RunRecord]) -> list[str]:
    said = []
    if len({run.cell.n for run in runs}) == 1:
        said.append(f"only one n ({runs[0].cell.n}): a fit gives this curve, and no n*(C)")
    ends = [run.points[-1].rollouts for run in runs]
    if max(ends) > UNEQUAL * min(ends):
        short, long = (next(r for r in runs if r.points[-1].rollouts == end) for end in (min(ends), max(ends)))
        said.append(
            f"unequal lengths: {short.cell.name} ends at C = {min(ends):,}, {long.cell.name} at {max(ends):,}; "
            "beyond the shorter ones an n can lead for want of others"
        )
    without = [run.cell.name for run in runs if run.points[0].rollouts > 0]
    if without:
        said.append(f"no evaluation of the base policy (C = 0) in {len(without)} of {len(runs)} runs; R0 is fitted")
    return said
