"""What a mode of fitting takes and gives: a mode is a function (cells, metric, options) -> SweepEstimate, registered in
fit.MODES.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.curves.posterior_samples import PosteriorSamples
from isojax.scaling.intervals import REPLICATES, SEED
from isojax.scaling.result import IntervalSettings
from isojax.scaling.validation_metrics import COMPUTE_UNITS, FloatArray, RunTrack, make_track, parse_metric

DEFAULT_MODE = "hierarchical"


@dataclass(frozen=True)
class FitOptions:
    """What a user may ask of a fit."""

    mode: str = DEFAULT_MODE  # a key of fit.MODES
    replicates: int = REPLICATES  # draws of all curves behind the intervals; 0: no intervals
    seed: int = SEED  # of these draws
    # Standard deviation of the reward at the plateau between runs that differ in their seed alone; None: estimated, or
    # .01 assumed where no cell has two seeds.
    run_sd: float | None = None
    include_flagged: bool = False  # fit the runs that are flagged as broken (checks/run_health.py) too
    pool_equal_n: bool = True  # one curve for all n where the data cannot distinguish them
    on_progress: Callable[[int, int], None] | None = None  # called with (replicates done, of how many)


DEFAULT_OPTIONS = FitOptions()


@dataclass(frozen=True)
class SweepEstimate:
    """What a mode makes of the runs."""

    curves: list[FittedCurve]  # of the cells that can carry one
    unfitted_cells: list[tuple[int, int, str]]  # (B_p, n, reason) of the others
    draws: PosteriorSamples | None = None  # replicates of the curves
    intervals: IntervalSettings | None = None  # how the intervals are made from the draws
    no_effect: bool | None = None  # n makes no difference that the data can show; None where the mode cannot say
    residuals: dict[tuple[int, int], list[FloatArray]] | None = None  # of each run of a cell at C > 0, by rising C
    noise_sd: float | None = None  # standard deviation of the reward of one evaluation
    parameter_count: int = 0  # of all curves together


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
    """Refuse right answers of different numbers of problems, in the main or the metric's set: they cannot be paired."""
    parsed = parse_metric(metric)
    for name in dict.fromkeys(("", parsed.problem_set if parsed else "")):
        counts_by_run = [(r, p.extra.get(name, ()) if name else p.counts) for r in runs for p in r.points]
        source_by_size = {len(counts): r.source or r.cell.name for r, counts in counts_by_run if counts}
        if len(source_by_size) > 1:
            (a, first), (b, second), *_ = sorted(source_by_size.items())
            problem_set = f"problems of the set {name!r}" if name else "validation problems"
            raise InputError(
                f"{first} has right answers of {a} {problem_set}, {second} of {b}; "
                "expected the same problems at every evaluation. Correct the file or fit them separately."
            )


def base_reward(tracks: Sequence[RunTrack]) -> float | None:
    """The base policy's reward: the mean over all runs of the metric at C = 0 (all start from one policy)."""
    rewards_at_zero = [t.R[0] for t in tracks if t.C[0] == 0]
    return float(np.mean(rewards_at_zero)) if rewards_at_zero else None
