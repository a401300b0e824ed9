"""What every mode of fitting takes and gives: a mode is a function (cells, metric, options) -> SweepEstimate,
registered in fit.MODES.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.curves.posterior_samples import PosteriorSamples
from isojax.scaling.result import IntervalSettings
from isojax.scaling.validation_metrics import FloatArray


@dataclass(frozen=True)
class SweepEstimate:
    """What a mode makes of the runs.

    Attributes:
        curves: one for each cell that can carry one.
        unfitted_cells: (B_p, n, reason) of the others.
        draws: replicates of the curves; None where the mode has none.
        intervals: how the intervals are made from them; None likewise.
        no_effect: whether n makes no difference that the data can show; None where the mode cannot say.
        residuals: cell -> residuals of each of its runs at C > 0, by rising C.
        noise_sd: standard deviation of the reward of one evaluation.
        parameter_count: parameters of all curves together.
    """

    curves: list[FittedCurve]
    unfitted_cells: list[tuple[int, int, str]]
    draws: PosteriorSamples | None = None
    intervals: IntervalSettings | None = None
    no_effect: bool | None = None
    residuals: dict[tuple[int, int], list[FloatArray]] | None = None
    noise_sd: float | None = None
    parameter_count: int = 0


@dataclass(frozen=True)
class EstimationOptions:
    """What may be asked of a mode.

    Attributes:
        replicates: draws of all curves; 0: no intervals.
        seed: of the draws.
        run_sd: standard deviation of the reward between runs that differ in their seed alone; None: estimated.
        on_progress: called with (replicates done, of how many).
        allow_pooling: one curve for all n where the data cannot distinguish them.
    """

    replicates: int
    seed: int
    run_sd: float | None
    on_progress: Callable[[int, int], None] | None = None
    allow_pooling: bool = True
