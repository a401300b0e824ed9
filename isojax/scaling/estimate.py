"""What every mode of fitting takes and gives. A mode is a function (cells, metric, options) -> Estimate, registered in
fit.MODES.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from isojax.scaling.curves.fitted_curve import FittedCurve
from isojax.scaling.curves.posterior_samples import PosteriorSamples
from isojax.scaling.validation_metrics import FloatArray


@dataclass(frozen=True)
class SweepEstimate:
    """What a mode makes of the runs.

    Attributes:
        curves: one for each cell that can carry one. left_out: (B_p, n, reason) of the others.
        draws: bootstrap replicates of the curves; None where the mode has none.
        intervals: how they were made, for fit.json; None likewise.
        no_effect: whether n makes no difference that the data can show; None where the mode cannot say.
        residuals: cell -> residuals of each of its runs at C > 0, by rising C.
        noise_sd: standard deviation of one evaluation.
        parameters: of all curves together.
    """

    curves: list[FittedCurve]
    unfitted_cells: list[tuple[int, int, str]]
    draws: PosteriorSamples | None = None
    interval_info: dict[str, Any] | None = None
    no_effect: bool | None = None
    residuals: dict[tuple[int, int], list[FloatArray]] | None = None
    noise_sd: float | None = None
    parameter_count: int = 0


@dataclass(frozen=True)
class EstimationOptions:
    """What a user may ask of a mode: paper's bin width; replicates (0: no intervals), their seed, a stated run-to-run
    standard deviation;
    `advance(done, of)` hears of progress; `pool`: one curve for all n where the data cannot tell them apart."""

    bin_width: float
    replicates: int
    seed: int
    run_sd: float | None
    on_progress: Callable[[int, int], None] | None = None
    allow_pooling: bool = True
