"""What a fit found, as typed data: `FitResult` is what `fit` returns and what fit.json holds.

Read a file with `read_fit_file`; `result.model_dump(mode="json")` is its content again, with the same numbers. A number
that does not exist is None, never NaN or infinite. C is in the fit's unit (`FitResult.compute`), a reward in [0, 1].
Every interval is the central 90% (`IntervalSettings.level`) of the replicates; a bound of None is an open end: the
quantity lies beyond the data in that many replicates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from isojax.core.errors import InputError
from isojax.scaling.checks.run_health import RunHealth
from isojax.scaling.checks.stability import OverfittedRun, StabilityVerdict
from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.law.law_forms import Law

SCHEMA_VERSION = 1
Bounds = tuple[float | None, float | None]
Severity = Literal["info", "warning", "error"]


class ResultRow(BaseModel):
    """A part of a fit: immutable; an unknown key and a number that is not finite are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FitFlag(ResultRow):
    """What a reader must know before believing a fit.

    Attributes:
        code: what it is about, a word that stays the same whatever the numbers, such as "one_seed".
        severity: "info" (a fact about the result), "warning" (the data limit what can be said), "error" (the named
            numbers are not to be used).
        text: the sentence, with its numbers.
    """

    code: str
    severity: Severity
    text: str


class FittedRun(ResultRow):
    """A run that was fitted.

    Attributes:
        points: evaluations.
        C_max: the last one's compute.
        final_reward: the last one's metric.
    """

    B_p: int
    n: int
    seed: int
    points: int
    C_max: float
    final_reward: float


class IntervalSettings(ResultRow):
    """How the intervals were made.

    Attributes:
        level: the share of the replicates inside an interval.
        replicates: draws of all curves from their posterior.
        seed: of these draws.
        run_sd: standard deviation of the reward between runs that differ in their seed alone, at the plateau.
        run_sd_source: where run_sd comes from, in words.
        noise_sd: standard deviation of the reward of one evaluation.
        problems: validation problems that each replicate draws again; None where no counts per problem are recorded.
        method: in words.
    """

    level: float
    replicates: int
    seed: int
    run_sd: float
    run_sd_source: str
    noise_sd: float
    problems: int | None
    method: str


class FrontierRow(ResultRow):
    """A point of the compute-optimal frontier.

    Attributes:
        reward: of the best measured cell, (B_p, n).
        low, high: interval of the frontier's reward; None without replicates.
        n_probability: n -> share of the replicates in which it attains the frontier; None without replicates.
    """

    C: float
    reward: float
    n: int
    B_p: int
    low: float | None = None
    high: float | None = None
    n_probability: dict[int, float] | None = None


class CrossoverRow(ResultRow):
    """Where the frontier passes from n_low (below C) to n_high (above); low, high: interval of C."""

    n_low: int
    n_high: int
    C: float
    low: float | None = None
    high: float | None = None


class NeighbourCell(ResultRow):
    """A cell that holds the frontier just before or just after a segment."""

    n: int
    B_p: int


class SegmentRow(ResultRow):
    """Where one n holds the frontier, and its paired lead over the neighbouring cells (frontier/frontier_evidence.py).

    Attributes:
        B_p: the one that holds most of the segment.
        decades: log10(C_high / C_low).
        measured_for_neighbours: whether the winner and all neighbours were evaluated at a common target inside it.
        lead, se: the paired lead in reward over the closest neighbour and its standard error; None where nothing can be
            paired.
        z: lead / se; None where se is 0 too.
        at_C: the compute at which the lead was measured.
        censored_low, censored_high: whether the segment begins or ends where data do, not where curves cross.
    """

    n: int
    B_p: int
    C_low: float
    C_high: float
    decades: float
    neighbours: tuple[NeighbourCell, ...]
    measured_for_neighbours: bool
    lead: float | None
    se: float | None
    z: float | None
    at_C: float | None
    censored_low: bool
    censored_high: bool


class NStarIntervals(ResultRow):
    """Intervals of the replicates' best measured n at the first, middle and last budget of the frontier."""

    n_at_low_C: Bounds
    n_at_middle_C: Bounds
    n_at_high_C: Bounds


class NStarBandRow(ResultRow):
    """Interval of the replicates' best measured n at one C."""

    C: float
    low: float
    high: float


class NStarFit(ResultRow):
    """The law n*(C) fitted to a frontier.

    Attributes:
        law: log2 n* as a function of log10 C.
        aicc: form -> AICc, the smallest is best, None where the points are too few for the form; None where the form
            was not chosen by AICc (mode paper, no_effect).
        no_effect: n makes no difference that the data can show; the law is then constant.
        intervals, band: of the measured frontier's best n, not of the law; None without replicates.
    """

    law: Law
    no_effect: bool
    aicc: dict[str, float | None] | None = None
    intervals: NStarIntervals | None = None
    band: tuple[NStarBandRow, ...] | None = None


class FrontierFit(ResultRow):
    """A frontier with its law: of all cells together, or of the cells of one B_p.

    Attributes:
        B_p: None for all B_p together.
        frontier: by rising C.
        crossovers: changes of n; in hierarchical mode only where two measured curves cross.
        segments: one for each stretch of one n, by rising C.
    """

    B_p: int | None
    frontier: tuple[FrontierRow, ...]
    crossovers: tuple[CrossoverRow, ...]
    segments: tuple[SegmentRow, ...]
    n_star: NStarFit


class FixedBatchRow(ResultRow):
    """A point of the frontier at a fixed batch: M updates, C = B M rollouts; otherwise as FrontierRow."""

    M: float
    C: float
    reward: float
    n: int
    B_p: int
    low: float | None
    high: float | None


class FixedBatchCrossover(ResultRow):
    """A change of n at a fixed batch; low, high: interval of C."""

    n_low: int
    n_high: int
    M: float
    C: float
    low: float | None
    high: float | None


class NStarOfMFit(ResultRow):
    """The law n*(M) at a fixed batch.

    Attributes:
        law: log2 n* as a function of log10 M; not to be drawn where monotone_rejected.
        monotone_rejected: no monotone n*(M) can hold: each loses too much reward in 90% of the replicates.
        monotone_cost: median over the replicates of the reward that the best monotone n*(M) loses.
    """

    law: Law
    no_effect: bool
    aicc: dict[str, float | None] | None = None
    monotone_rejected: bool = False
    monotone_cost: float | None = None


class FixedBatchFit(ResultRow):
    """B_p against n at a fixed batch of B = B_p n rollouts per update."""

    B: int
    frontier: tuple[FixedBatchRow, ...]
    crossovers: tuple[FixedBatchCrossover, ...]
    n_star: NStarOfMFit


class RewardSpread(ResultRow):
    """The spread of reward over `cells` cells that share one B_p or one n.

    Attributes:
        spread: largest less smallest reward; low, high: its interval, None without replicates.
        shared_value: the B_p, or the n, that they share.
    """

    spread: float
    low: float | None
    high: float | None
    shared_value: int
    cells: int


class RewardSensitivity(ResultRow):
    """How much n matters against B_p at one C; None where fewer than two cells can be compared.

    Attributes:
        C: the largest compute that most cells reached.
        over_n: the spread over n at one B_p.
        over_B_p: the spread over B_p at one n.
    """

    C: float
    over_n: RewardSpread | None
    over_B_p: RewardSpread | None


class CurveDraws(ResultRow):
    """The replicates of all curves (curves/posterior_samples.py), to five digits.

    Attributes:
        cells: (B_p, n) of each row of A, exponent and C_mid.
        A, exponent, C_mid: [cells, replicates]. R0, tail: [replicates].
        shift: [2, replicates], what other validation problems would add.
    """

    cells: tuple[tuple[int, int], ...]
    A: tuple[tuple[float, ...], ...]
    exponent: tuple[tuple[float, ...], ...]
    C_mid: tuple[tuple[float, ...], ...]
    R0: tuple[float, ...]
    tail: tuple[float, ...]
    shift: tuple[tuple[float, ...], tuple[float, ...]]


class CurveDiagnostics(ResultRow):
    """How well one curve fits its points.

    Attributes:
        reduced_chi_square: mean squared residual over that of the evaluations' own scatter; None without residuals.
        autocorrelation: of neighbouring residuals of a run.
        points: the curve was fitted to.
        at_bounds: parameters that the data do not determine.
    """

    B_p: int
    n: int
    reduced_chi_square: float | None
    autocorrelation: float | None
    points: int
    at_bounds: tuple[str, ...]


class TiedRange(ResultRow):
    """A range of C in which no n leads in 90% of the replicates: the values of n that together do."""

    n: tuple[int, ...]
    C_low: float
    C_high: float


class FitDiagnostics(ResultRow):
    """Whether the curves fit their points as well as the noise allows.

    Attributes:
        reduced_chi_square, autocorrelation: as of CurveDiagnostics, over all residuals.
        degrees_of_freedom: points less parameters; None without residuals.
        left_out: cells without a curve, and points beyond a peak, in words.
        unequal_lengths: some cells end at a clearly larger C than others.
    """

    reduced_chi_square: float | None
    autocorrelation: float | None
    degrees_of_freedom: int | None
    per_curve: tuple[CurveDiagnostics, ...]
    ties: tuple[TiedRange, ...]
    left_out: tuple[str, ...]
    unequal_lengths: bool


class FitResult(ResultRow):
    """A fitted sweep.

    Attributes:
        schema_version: of this class; another one is refused.
        mode: a key of fit.MODES, "hierarchical" or "paper".
        metric: what was fitted, such as "avg@4".
        compute: the unit of C: "rollouts", "tokens" or "device_hours".
        base_reward: the base policy's metric, the mean over all runs at C = 0; None where no run has it.
        intervals: None where there are no replicates.
        runs: those that were fitted, by cell. health: those that are flagged as broken.
        curves: one for each (B_p, n) that can carry one.
        joint: the frontier and law of all cells. by_B_p: those of each B_p. by_B: of each batch of two cells or more.
        draws: the replicates; None without.
        overfitting: runs that overfit. stability: one verdict for each B_p.
        flags: the most important first.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    mode: str
    metric: str
    compute: str
    base_reward: float | None
    intervals: IntervalSettings | None
    runs: tuple[FittedRun, ...]
    curves: tuple[FittedCurve, ...]
    joint: FrontierFit
    by_B_p: tuple[FrontierFit, ...]
    by_B: tuple[FixedBatchFit, ...]
    sensitivity: RewardSensitivity | None
    draws: CurveDraws | None
    diagnostics: FitDiagnostics
    overfitting: tuple[OverfittedRun, ...]
    stability: tuple[StabilityVerdict, ...]
    flags: tuple[FitFlag, ...]
    health: RunHealth = RunHealth()

    @model_validator(mode="after")
    def _check_draws(self) -> FitResult:
        if self.draws is not None:
            without_draws = sorted({c.key for c in self.curves} - set(self.draws.cells))
            if without_draws:
                raise ValueError(f"no draws of the curves (B_p, n) = {', '.join(map(str, without_draws))}")
        return self


def read_fit_file(path: Path) -> FitResult:
    """The fit that a file holds.

    Raises:
        InputError: the file cannot be read, is no fit, or is one of another schema version.
    """
    fix = "Make it with `isojax fit RUN`."
    try:
        content = path.read_bytes()
    except OSError as e:
        raise InputError(f"cannot read {path}: {e}. Expected a sweep's folder or a fit.json. {fix}") from e
    try:
        return FitResult.model_validate_json(content)
    except ValidationError as e:
        first_error = e.errors(include_url=False)[0]
        location = ".".join(map(str, first_error["loc"])) or "the file"
        problem = f"{path} is no fit of schema version {SCHEMA_VERSION} ({location}: {first_error['msg']})"
        raise InputError(f"{problem}; expected what `isojax fit` of this version writes. {fix}") from e
