"""Runs as axes, once they are known to belong together: one record a cell, one `cell` setting, one set of validation problems."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from isojax.scaling.metrics import COMPUTES, Track, parse_metric, track
from isojax.types import InputError, RunRecord


def tracks(runs: Sequence[RunRecord], metric: str, compute: str) -> list[Track]:
    """The runs' axes by cell, once the runs are known to belong together; raises InputError where they do not."""
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
    _same_problems(ordered, metric)
    return [track(r, metric, compute) for r in ordered]


def _same_problems(runs: Sequence[RunRecord], metric: str) -> None:
    """Refuse right answers of different numbers of problems, be it of the main set or of the metric's own: they cannot be paired."""
    parsed = parse_metric(metric)
    for name in dict.fromkeys(("", parsed.problems if parsed else "")):
        known = [(r, p.extra.get(name, ()) if name else p.counts) for r in runs for p in r.points]
        sizes = {len(counts): r.source or r.cell.name for r, counts in known if counts}
        if len(sizes) > 1:
            (a, first), (b, second), *_ = sorted(sizes.items())
            what = f"problems of the set {name!r}" if name else "validation problems"
            given = f"{first} has right answers of {a} {what}, {second} of {b}"
            raise InputError(f"{given}; expected the same problems at every evaluation. Mend the file or fit them apart.")


def base_reward(tracks: Sequence[Track]) -> float | None:
    """The base policy's reward: the mean over all runs of the metric at C = 0 (all start from one policy); None where no run has it."""
    found = [t.R[0] for t in tracks if t.C[0] == 0]
    return float(np.mean(found)) if found else None
