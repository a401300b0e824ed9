"""What a fit found, as typed data: `FitResult` is what `fit` returns and what fit.json holds.

Its parts are here too, so that every room of scaling/ can import them: this module imports none of
those rooms. A number that does not exist is None. C is in the fit's unit, a reward in [0, 1]. An
interval (low, high) is the central 90% of the replicates: None where there are none, and an open
end where only one bound is None.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from isojax.core.atomic_files import read_file
from isojax.core.errors import InputError
from isojax.core.estimators import FloatArray
from isojax.core.limits import MAX_COUNT, MAX_NUMBER
from isojax.scaling.run_clock import Clock

SCHEMA_VERSION = 1

Severity = Literal["info", "warning", "error"]
OpenInterval = tuple[float | None, float | None]  # None: an open end
Size = Annotated[int, Field(ge=1, le=MAX_COUNT)]  # of a cell in a file, its B_p or n
Positive = Annotated[float, Field(gt=0, le=MAX_NUMBER)]  # its compute, or what is a factor

# Codes of flags (FitFlag.code) that are looked for by their name.
GRADED_FLAG = "graded_rewards"  # of runs whose rewards are graded
# Of a sweep that shows nothing: no reward rises, or all are 1 from the start. Such a fit is flat.
NOTHING_LEARNT = "nothing_learnt"
NOTHING_TO_LEARN = "nothing_to_learn"
NOT_CONVERGED = "not_converged"  # of draws that have not settled
EVALUATION_SIZE = "evaluation_size"  # what the intervals of a sweep that shows nothing rest on

HILL_TAIL = 1.0  # of a curve: the paper's sigmoid (curves/hill.py)
FADE_DECADES = 0.3  # outside its knots a correction fades to 0 within so many
_KNOT_CORRELATION = 0.7  # of a correction's error from one knot to the next


class ResultRow(BaseModel):
    """A part of a fit: immutable; an unknown key and a number that is not finite are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FitFlag(ResultRow):
    """A warning or a note that a reader must know before believing a fit."""

    code: str  # the subject, whatever the numbers, such as "one_seed"
    # info: a fact about the result; warning: the data limit what can be concluded; error: the
    # numbers are not to be used
    severity: Severity
    text: str


# Runs: what was trained, how it went, and what was left out.


class CountedUpdates(ResultRow):
    """How many updates M a run had made after C rollouts, at evaluations spread over it, both
    rising."""

    C: Annotated[tuple[int, ...], Field(min_length=2)]
    M: Annotated[tuple[int, ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _check_rising(self) -> Self:
        if len(self.C) != len(self.M) or any(
            a >= b for numbers in (self.C, self.M) for a, b in pairwise(numbers)
        ):
            raise ValueError("expected as many C as M, each rising")
        return self


class FittedRun(ResultRow):
    """A run that was fitted; C_max and final_reward are those of its last evaluation. Its clock
    (None: not known) is no part of fit.json, which is the same, to the bit, wherever and however
    often interrupted a sweep was run."""

    B_p: Size
    n: Size
    seed: int
    points: int  # evaluations
    C_max: Annotated[float, Field(ge=0)]
    final_reward: float
    imported: bool = False  # from a log of another trainer
    clock: InstanceOf[Clock] | None = Field(default=None, exclude=True)
    # Where an update samples more than B_p n rollouts (dynamic sampling); the key is absent where C
    # = B_p n M.
    updates: CountedUpdates | None = None

    # Without a return type, for which the JSON schema would be that of any object.
    @model_serializer(mode="wrap")
    def _without_absent_updates(self, serialize: SerializerFunctionWrapHandler):
        row: dict[str, Any] = serialize(self)
        if self.updates is None:
            row.pop("updates", None)
        return row


@dataclass(frozen=True)
class HealthFlag:
    """A run is not healthy: by which criterion, from which C in rollouts on, and its numbers in
    words."""

    name: str
    C: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name} from C = {self.C:,}: {self.reason}"


@dataclass(frozen=True)
class FlaggedRun:
    """A run that is flagged as broken: its evaluations, the C it reached, and its flags."""

    B_p: int
    n: int
    seed: int
    points: int
    C: float
    flags: tuple[HealthFlag, ...]
    schedule: str = ""  # its name, where B_p and n change


@dataclass(frozen=True)
class RunHealth:
    """The flagged runs, and whether they were left out of the fit."""

    left_out: bool = True
    runs: tuple[FlaggedRun, ...] = ()


@dataclass(frozen=True)
class StabilityVerdict:
    """Whether all cells of a B_p train stably; if not, why."""

    B_p: int
    stable: bool
    reason: str = ""


@dataclass(frozen=True)
class OverfittedRun:
    """A run whose training reward rises while its validation reward falls, beyond C."""

    B_p: int
    n: int
    seed: int
    C: float
    reason: str


# Curves: R(C) of each cell, and the replicates of all curves.


@dataclass(frozen=True)
class ResidualCorrection:
    """A cell's correction at knots: log10_C rising, the reward to add, and its standard
    deviation."""

    log10_C: tuple[float, ...]
    value: tuple[float, ...]
    sd: tuple[float, ...]

    def evaluate(self, C: ArrayLike) -> FloatArray:
        """Reward to add at C > 0, float[...] -> float[...]."""
        knots = [self.log10_C[0] - FADE_DECADES, *self.log10_C, self.log10_C[-1] + FADE_DECADES]
        return np.interp(np.log10(np.asarray(C, dtype=np.float64)), knots, [0.0, *self.value, 0.0])

    def sample(self, C: ArrayLike, replicates: int, key: tuple[int, int]) -> FloatArray:
        """The reward to add at C > 0 in each of Q replicates, float[G] -> float[Q, G].

        replicates: Q. key: (B_p, n) of the cell, which seeds the draws, so that they are the same
        at every call."""
        # [knots, G]: what a value of 1 at each knot adds at C; `evaluate` is linear in the values.
        knot_weights = np.stack(
            [replace(self, value=tuple(row)).evaluate(C) for row in np.eye(len(self.value))]
        )
        return _knot_draws(self, replicates, key) @ knot_weights


@lru_cache(maxsize=1024)
def _knot_draws(
    correction: ResidualCorrection, replicates: int, key: tuple[int, int]
) -> FloatArray:
    """Random rewards to add at the knots, float[Q, knots], around the correction's values.

    They have its standard deviations and are correlated from knot to knot. They are seeded by the
    cell's key, so that no file has to hold them."""
    normal_draws = np.random.default_rng(key).normal(size=(replicates, len(correction.log10_C)))
    for k in range(1, len(correction.log10_C)):
        innovation = np.sqrt(1 - _KNOT_CORRELATION**2) * normal_draws[:, k]
        normal_draws[:, k] = _KNOT_CORRELATION * normal_draws[:, k - 1] + innovation
    return np.array(correction.value) + np.array(correction.sd) * normal_draws


@dataclass(frozen=True)
class FlatStart:
    """The beginning of a cell whose reward does not move at first: up to C_flat every evaluation
    shows one level, such as 0 before the first right answer. The reward there is taken from this
    level, as certain as one evaluation of so many rollouts is, and not from the curve."""

    level: float
    rollouts: float  # of one evaluation
    C_flat: Positive
    # The C of the first evaluation with another reward; None where there is no such one.
    C_rise: Positive | None

    @property
    def step(self) -> float:
        """The smallest difference that an evaluation can show."""
        return 1 / self.rollouts

    def holds_at(self, C: ArrayLike) -> NDArray[np.bool_]:
        """Whether the cell still is at its level at C > 0: float[...] -> bool[...]."""
        return np.asarray(C) <= self.C_flat * (1 + 1e-9)

    def doubt_at(self, C: ArrayLike) -> FloatArray:
        """The weight, at C > 0, of an evaluation's uncertainty: float[...] -> float[...].

        The rest is the curve's uncertainty. 1 up to C_flat, falling to 0 at C_rise along log C; 1
        everywhere where the cell never rises."""
        if self.C_rise is None:
            return np.ones(np.shape(C))
        decades = np.log10(np.asarray(C, dtype=np.float64) / self.C_flat) / np.log10(
            self.C_rise / self.C_flat
        )
        return 1 - np.clip(decades, 0.0, 1.0)


@dataclass(frozen=True)
class FittedCurve:
    """A fitted R(C) of one (B_p, n); a bound of None in an interval is an open end."""

    B_p: Size
    n: Size
    R0: float
    A: float
    exponent: Positive
    C_mid: Positive  # in units of compute
    C_low: Positive  # the range of C > 0 over which the cell was measured
    C_high: Positive
    points: int  # it was fitted to (record-breaking ones in mode "paper")
    rmse: float  # root mean square residual at those points, in reward
    # parameters that ended at a bound: the data do not determine them
    at_bounds: tuple[str, ...] = ()
    tail: float = HILL_TAIL  # mode "paper" has no other
    # of the shape inside the measured range, where that does not suffice
    correction: ResidualCorrection | None = None
    # whether the data determine A; else read the curve only where it was measured
    determined: bool = True
    # where reward starts to fall; the curve is held flat beyond, as stopping early would
    C_peak: float | None = None
    A_interval: OpenInterval | None = None  # 90%, where the mode gives intervals
    exponent_interval: OpenInterval | None = None
    C_mid_interval: OpenInterval | None = None
    flat_start: FlatStart | None = None  # None where the cell's first evaluations differ

    @property
    def key(self) -> tuple[int, int]:
        return self.B_p, self.n


class IntervalSettings(ResultRow):
    """How the intervals were made."""

    level: float  # the share of the replicates inside an interval
    replicates: int  # draws of all curves from their posterior
    seed: int  # of these draws
    # standard deviation of the reward at the plateau between runs that differ in their seed alone
    run_sd: float
    run_sd_source: str  # in words
    noise_sd: float  # standard deviation of the reward of one evaluation
    # that each replicate draws again; None where no counts per problem are recorded
    problems: int | None
    method: str  # in words
    # the share of the chains' steps accepted in their last round; None without noise
    acceptance: float | None
    # of half the last round's iterations and of all: near 1 where they are enough
    r_hat: tuple[float, float] | None


class CurveDraws(ResultRow):
    """The replicates of all curves (PosteriorSamples of curves/sweep_estimate.py), to five
    digits."""

    cells: tuple[tuple[int, int], ...]  # (B_p, n) of each row of A, exponent and C_mid
    A: tuple[tuple[float, ...], ...]  # [cells, replicates]
    exponent: tuple[tuple[Positive, ...], ...]
    C_mid: tuple[tuple[Positive, ...], ...]
    R0: tuple[float, ...]  # [replicates]
    tail: tuple[float, ...]
    # [2, replicates], what other validation problems would add
    shift: tuple[tuple[float, ...], tuple[float, ...]]
    # of a reward at four times a cell's data, from its curve: `forecast` has its source
    departure_sd: float | None
    rollouts: float | None = None  # of one evaluation; None where no run learnt anything

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        rows = [*self.A, *self.exponent, *self.C_mid, self.tail, *self.shift]
        cells = {len(self.A), len(self.exponent), len(self.C_mid)}
        if cells != {len(self.cells)} or any(len(row) != len(self.R0) for row in rows):
            raise ValueError("expected a number for each cell and replicate")
        return self


class ForecastTrial(ResultRow):
    """How well curves predict rewards beyond their data, tried on this sweep: a fit up to C_limit
    against the rest."""

    # standard deviation, at four times a cell's data, of the reward from its curve
    departure_sd: float
    # what follows is None where too little compute is measured to hide a part of it
    C_limit: float | None = None
    # hidden ones that were predicted, of the last half of the hidden range
    evaluations: int | None = None
    mean_error: float | None = None  # predicted less measured, over cells
    mean_absolute_error: float | None = None
    inside: float | None = None  # the share of cells whose mean is inside its 90% interval


class TiedRange(ResultRow):
    """A range of C in which no n leads in 90% of the replicates: the values of n that together
    do."""

    n: tuple[int, ...]
    C_low: float
    C_high: float


class FitDiagnostics(ResultRow):
    """Whether the curves fit their points as well as the noise allows, over all residuals."""

    # mean squared residual over that of the evaluations' own scatter
    reduced_chi_square: float | None
    autocorrelation: float | None  # of neighbouring residuals of a run
    degrees_of_freedom: int | None  # points less parameters
    ties: tuple[TiedRange, ...]


# The frontier of all cells, its law n*(C), and what is said of them.


class FrontierRow(ResultRow):
    """A point of the compute-optimal frontier: the best measured cell (B_p, n) and its reward."""

    C: Positive
    reward: float
    n: Size
    B_p: Size
    low: float | None = None  # interval of the frontier's reward
    high: float | None = None
    # n -> share of the replicates in which it attains the frontier
    n_probability: dict[int, float] | None = None
    # no n leads: all cells measured here stand where all began; n and B_p are the first to lead
    tied: bool = False


class CrossoverRow(ResultRow):
    """Where the frontier passes from n_low (below C) to n_high (above); low, high: interval of
    C."""

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
    """Where one n holds the frontier, and its paired lead over the neighbouring cells
    (checks/diagnostics.py)."""

    n: int
    B_p: int  # the one that holds most of the segment
    C_low: float
    C_high: float
    decades: float  # log10(C_high / C_low)
    neighbours: tuple[NeighbourCell, ...]
    # the winner and all neighbours were evaluated at a common target inside it
    measured_for_neighbours: bool
    # single problems' right answers are recorded, without which no lead can be judged
    has_counts: bool = True
    # in reward, over the closest neighbour; None where nothing can be paired
    lead: float | None = None
    se: float | None = None  # of the lead
    z: float | None = None  # lead / se; None where se is 0 too
    at_C: float | None = None  # where the lead was measured
    censored_low: bool  # the segment begins where data do, not where curves cross
    censored_high: bool


@dataclass(frozen=True)
class Law:
    """n*(C), or n*(M) at a fixed batch; L, k and log10_C0 are 0, 0 and None where the form does not
    have them."""

    form: str  # a key of FORMS (law/n_star_law.py)
    L: float
    k: float
    log10_C0: float | None  # the x0 of the equation
    b: float  # log2 n*, of the constant, of the line's middle, or of the sigmoid's lower level
    at_bounds: tuple[str, ...] = ()  # parameters that the data do not determine


class NStarBandRow(ResultRow):
    """Interval of the replicates' best measured n at one C."""

    C: float
    low: float
    high: float


class NStarFit(ResultRow):
    """The law n*(C) fitted to a frontier, or n*(M) at a fixed batch."""

    law: Law  # log2 n* as a function of log10 C, or of log10 M
    no_effect: bool  # n makes no difference that the data can show; the law is then constant
    # form -> AICc, None: too few points; None: AICc did not choose
    aicc: dict[str, float | None] | None = None
    # along the frontier; of its best n, not of the law
    band: tuple[NStarBandRow, ...] | None = None


class FrontierFit(ResultRow):
    """A frontier with its law, everything by rising C: of all cells together, or of the cells of
    one B_p."""

    B_p: int | None  # None for all together
    frontier: tuple[FrontierRow, ...]
    # in hierarchical mode only where two measured curves cross
    crossovers: tuple[CrossoverRow, ...]
    segments: tuple[SegmentRow, ...]
    n_star: NStarFit


class NStarOfMFit(NStarFit):
    """The law n*(M) at a fixed batch; not to be drawn where monotone_rejected."""

    # each monotone n*(M) loses too much reward in 90% of the replicates
    monotone_rejected: bool = False
    # median over the replicates of the reward that the best monotone one loses
    monotone_cost: float | None = None


class FixedBatchFit(ResultRow):
    """B_p against n at a fixed batch of B = B_p n rollouts per update, where C rollouts are M = C /
    B updates."""

    B: int
    frontier: tuple[FrontierRow, ...]
    crossovers: tuple[CrossoverRow, ...]
    n_star: NStarOfMFit


class RewardSpread(ResultRow):
    """The largest less the smallest reward of `cells` cells that share one B_p or one n."""

    spread: float
    low: float | None
    high: float | None
    shared_value: int  # the B_p, or the n
    cells: int


class RewardSensitivity(ResultRow):
    """How much n matters against B_p at one C; None where fewer than two cells can be compared."""

    C: float  # the largest that most cells reached
    over_n: RewardSpread | None  # at one B_p
    over_B_p: RewardSpread | None  # at one n


class DecidingRun(ResultRow):
    """A run to C that would tell most about a law that the data leave open."""

    B_p: int
    n: int
    C: float  # what it costs, in the fit's unit
    # share of what is unknown that its rewards explain; None: nothing like it was run
    explained: float | None = None


class LawVerdict(ResultRow):
    """What the sweep says of a published law of n (law/referee.py)."""

    law: str
    reference: str
    verdict: Literal["excluded", "supported", "cannot tell"] = "cannot tell"
    # of the draws, in which the law holds; None where it cannot be judged
    share_for: float | None = None
    # in which it fails beyond noise; the other draws say neither
    share_against: float | None = None
    # what was measured, in reward averaged over log C, with its interval; or what is missing
    text: str
    C_low: float | None = None  # the range of C that was judged
    C_high: float | None = None
    deciding_run: DecidingRun | None = None  # None where the data decide


class SchedulePoint(ResultRow):
    """A reward of a schedule, the mean of its seeds, and the best fixed cell's curve at the same
    C."""

    C: float
    reward: float
    best_fixed: float
    n: int  # of that cell
    B_p: int


class ScheduleRow(ResultRow):
    """Runs whose B_p and n changed along C (core/schedule.py), against the best fixed n, chosen at
    each C."""

    name: str
    stages: str
    seeds: tuple[int, ...]
    evaluations: tuple[int, ...]  # of each seed
    points: tuple[SchedulePoint, ...]  # where fixed cells were measured too
    gain: float | None  # of reward, the mean over the points; None where there is none
    interval: tuple[float, float] | None  # of the gain


class FitResult(ResultRow):
    """A fitted sweep."""

    schema_version: Literal[1] = SCHEMA_VERSION  # of this class; another one is refused
    mode: str  # a key of fit.MODES, "hierarchical" or "paper"
    metric: str  # such as "avg@4"
    compute: str  # the unit of C: "rollouts", "tokens" or "device_hours"
    base_reward: float | None  # the base policy's metric, the mean over all runs at C = 0
    intervals: IntervalSettings | None
    runs: Annotated[tuple[FittedRun, ...], Field(min_length=1)]  # by cell
    curves: tuple[FittedCurve, ...]  # one for each (B_p, n) that can carry one
    joint: FrontierFit  # of all cells
    by_B_p: tuple[FrontierFit, ...]  # of each B_p
    by_B: tuple[FixedBatchFit, ...]  # of each batch of two cells or more
    sensitivity: RewardSensitivity | None
    draws: CurveDraws | None
    forecast: ForecastTrial | None  # None where there are no draws
    referee: tuple[LawVerdict, ...]  # of five published laws; empty where there are no draws
    diagnostics: FitDiagnostics
    overfitting: tuple[OverfittedRun, ...]
    stability: tuple[StabilityVerdict, ...]  # one for each B_p
    flags: tuple[FitFlag, ...]  # the most important first
    schedules: tuple[ScheduleRow, ...] = ()
    health: RunHealth = RunHealth()

    @model_validator(mode="after")
    def _check_cells(self) -> Self:
        if self.draws is not None and not {curve.key for curve in self.curves} <= set(
            self.draws.cells
        ):
            raise ValueError("a curve has no draws")
        return self

    @property
    def has_dynamic_sampling(self) -> bool:
        """Whether updates sample more than one batch of B_p n rollouts, so that C is not B_p n
        M."""
        return any(run.updates is not None for run in self.runs)

    @property
    def reward_name(self) -> str:
        """What its metric measures, in words."""
        return "mean reward" if any(flag.code == GRADED_FLAG for flag in self.flags) else "reward"

    @property
    def nothing_learnt(self) -> str:
        """Of a sweep that shows nothing: what was seen and why, a sentence without its capital; ""
        of any other."""
        codes = (NOTHING_LEARNT, NOTHING_TO_LEARN)
        return next((flag.text for flag in self.flags if flag.code in codes), "")

    @property
    def not_settled(self) -> str:
        """Why its intervals are not to be used; "" where they are."""
        return next((flag.text for flag in self.flags if flag.code == NOT_CONVERGED), "")

    @property
    def evaluation_size(self) -> str:
        """Of a sweep that shows nothing: the rollouts of an evaluation, on which intervals rest; ""
        of any other."""
        return next((flag.text for flag in self.flags if flag.code == EVALUATION_SIZE), "")


def read_fit_file(path: Path) -> FitResult:
    """The fit in a fit.json, without clocks, which no file holds (fit.with_clocks adds them).

    InputError where the file cannot be read, is no fit, or has another schema version."""
    fix = "Make it with `isojax fit RUN`."
    try:
        content = read_file(path)
    except OSError as e:
        raise InputError(
            where=path,
            found=f"cannot be read: {e}",
            expected="a sweep's folder or a fit.json",
            fix=fix,
        ) from e

    # The message names the first field that is wrong.
    try:
        return FitResult.model_validate_json(content)
    except ValidationError as e:
        first_error = e.errors(include_url=False)[0]
        location = ".".join(map(str, first_error["loc"])) or "the file"
        reason = f"{location}: {first_error['msg']}"
        raise InputError(
            where=path,
            found=f"no fit of schema version {SCHEMA_VERSION} ({reason})",
            expected="what `isojax fit` of this version writes",
            fix=fix,
        ) from e
