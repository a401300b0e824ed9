"""Fit a sweep as `isojax fit` and a notebook do: without the runs that are flagged as broken, and naming them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from isojax.core.nouns import RunRecord
from isojax.runs.ledger_reader import default_metric
from isojax.scaling.checks.fit_flags import add_health
from isojax.scaling.checks.run_health import RunHealth, flagged_runs, healthy_runs
from isojax.scaling.fit import fit
from isojax.scaling.intervals import REPLICATES, SEED
from isojax.scaling.result import FitResult

DEFAULT_MODE = "hierarchical"


@dataclass(frozen=True)
class FitOptions:
    """What a user may ask of a fit.

    Attributes:
        mode: a key of fit.MODES.
        replicates, seed: of the intervals; 0 replicates: no intervals.
        run_sd: a stated standard deviation between runs that differ in their seed alone; None: estimated.
        include_flagged: whether to fit the runs that are flagged as broken (checks/run_health.py) too.
    """

    mode: str = DEFAULT_MODE
    replicates: int = REPLICATES
    seed: int = SEED
    run_sd: float | None = None
    include_flagged: bool = False


DEFAULT_OPTIONS = FitOptions()


def fit_sweep(
    runs: Sequence[RunRecord],
    metric: str | None = None,
    compute: str = "rollouts",
    options: FitOptions = DEFAULT_OPTIONS,
    on_progress: Callable[[int, int], None] | None = None,
) -> FitResult:
    """Curves, frontier and n*(C) of a sweep's runs.

    Args:
        metric: such as "avg@4", "best@4" or "train/reward"; None: avg@k of the evaluations' k samples.
        compute: the unit of C: "rollouts", "tokens" or "device_hours".
        on_progress: called with (replicates done, of how many).

    Raises:
        InputError: every run is flagged, or as `fit`.
    """
    result = fit(
        runs if options.include_flagged else healthy_runs(runs),
        metric or default_metric(runs),
        compute,
        options.mode,
        replicates=options.replicates,
        seed=options.seed,
        run_sd=options.run_sd,
        on_progress=on_progress,
    )
    return add_health(result, RunHealth(left_out=not options.include_flagged, runs=flagged_runs(runs)))
