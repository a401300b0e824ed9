"""Runs as axes, once they are known to belong together: one record a cell, one `cell` setting, one set of validation
problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.scaling.validation_metrics import COMPUTE_UNITS, RunTrack, make_track, parse_metric


def build_tracks(runs: Sequence[RunRecord], metric: str, compute: str) -> list[RunTrack]:
    """The runs' axes by cell, once the runs are known to belong together; raises InputError where they do not."""
    if compute not in COMPUTE_UNITS:
        raise InputError(f"compute {compute!r} is not an axis; expected one of {', '.join(COMPUTE_UNITS)}.")
    if not runs:
        raise InputError("no run to fit; expected at least one RunRecord. Name a sweep's folder that holds records.")
    sorted_runs = sorted(runs, key=lambda r: (r.cell, r.source))
    first_run = sorted_runs[0]
    for a, b in pairwise(sorted_runs):
        if a.cell == b.cell:
            raise InputError(
                f"two records of the cell {a.cell.name}: {a.source} and {b.source}; expected one. Leave one out."
            )
        if b.cell_hash != first_run.cell_hash:
            raise InputError(
                f"{first_run.source} and {b.source} were run with different `cell` settings "
                f"({first_run.cell_hash!r} and {b.cell_hash!r}); "
                "expected one setting, because one law cannot describe both. Fit them separately."
            )
    _require_same_problems(sorted_runs, metric)
    return [make_track(r, metric, compute) for r in sorted_runs]


def _require_same_problems(runs: Sequence[RunRecord], metric: str) -> None:
    """Refuse right answers of different numbers of problems, be it of the main set or of the metric's own: they cannot
    be paired.
    """
    parsed = parse_metric(metric)
    for name in dict.fromkeys(("", parsed.problem_set if parsed else "")):
        counts_by_run = [(r, p.extra.get(name, ()) if name else p.counts) for r in runs for p in r.points]
        source_by_size = {len(counts): r.source or r.cell.name for r, counts in counts_by_run if counts}
        if len(source_by_size) > 1:
            (a, first), (b, second), *_ = sorted(source_by_size.items())
            problem_set = f"problems of the set {name!r}" if name else "validation problems"
            received = f"{first} has right answers of {a} {problem_set}, {second} of {b}"
            raise InputError(
                f"{received}; expected the same problems at every evaluation. Correct the file or fit them separately."
            )


def base_reward(tracks: Sequence[RunTrack]) -> float | None:
    """The base policy's reward: the mean over all runs of the metric at C = 0 (all start from one policy); None where
    no run has it.
    """
    rewards_at_zero = [t.R[0] for t in tracks if t.C[0] == 0]
    return float(np.mean(rewards_at_zero)) if rewards_at_zero else None
