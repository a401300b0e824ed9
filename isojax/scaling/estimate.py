"""What a mode of fitting takes and gives: a mode is a function (cells, metric, options) -> SweepEstimate, registered in
fit.MODES.
"""

from collections.abc import Callable
from dataclasses import dataclass

from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.curves.posterior_samples import PosteriorSamples
from isojax.scaling.intervals import REPLICATES, SEED
from isojax.scaling.result import IntervalSettings
from isojax.scaling.tracks import FloatArray

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
