"""The nouns of isojax, as plain data.

C = B_p * n * M rollouts (IsoCompute Playbook, arXiv:2603.12151, section 2), and more where an
update replaces groups of equal rewards by further ones (DAPO's dynamic sampling).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from isojax.core.schedule import Span, Stage, stage_spans

Interval = tuple[float, float]
# The sum of the rewards of each problem's rollouts: where rewards are binary, how many are correct,
# as integers.
RewardSums = tuple[int | float, ...]

MAIN_SCORE = "score"  # the name of a verifier's score where it gives one alone
# Of the names of schedules of `isojax spend`, and so of their folders; a config may name none so.
SPEND_PREFIX = "from-n"


@dataclass(frozen=True, order=True)
class Allocation:
    """How a budget of rollouts is spent.

    B_p problems per batch, n rollouts per problem, M updates.
    """

    B_p: int
    n: int
    M: int
    # Of B_p n rollouts that an update samples on average: above 1 where groups of equal rewards are
    # replaced.
    batches: float = 1.0

    @property
    def B(self) -> int:
        """Rollouts that an update trains on."""
        return self.B_p * self.n

    @property
    def C(self) -> int:
        """Rollouts in all: B_p n M where an update samples one batch."""
        return round(self.B_p * self.n * self.M * self.batches)

    def to_json(self) -> dict[str, Any]:
        """B_p, n and M; `batches` only where an update does not sample one batch."""
        document: dict[str, Any] = {"B_p": self.B_p, "n": self.n, "M": self.M}
        if self.batches != 1.0:
            document["batches"] = self.batches
        return document


@dataclass(frozen=True, order=True)
class Cell:
    """One run of a sweep: its B_p and n, which a schedule may change, and its seed's number."""

    B_p: int  # of a run with a schedule: of its first stage
    n: int
    seed: int
    schedule: str = ""  # the name of its schedule; empty where B_p and n are fixed
    stages: tuple[Stage, ...] = ()  # of its schedule; where the gradient decides, those so far
    n_max: int = 0  # up to which the gradient may double n (train/growth.py); 0: it decides nothing
    is_of_spend: bool = False  # a run of `isojax spend`, which chooses its n on the way

    @property
    def B(self) -> int:
        """Rollouts per update, of the first one."""
        return self.B_p * self.n

    @property
    def kind(self) -> str:
        """What its runs share, whatever their seed: 32x8, or the name of their schedule."""
        return self.schedule or f"{self.B_p}x{self.n}"

    @property
    def name(self) -> str:
        """The cell's folder under `cells/`."""
        return f"{self.kind}-s{self.seed}"

    @property
    def spans(self) -> tuple[Span, ...]:
        """Which updates have which B_p and n."""
        return stage_spans(self.stages) if self.stages else (Span(0, 0, self.B_p, self.n),)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Every (B_p, n) that its updates may have."""
        pairs = [(stage.B_p, stage.n) for stage in self.stages] or [(self.B_p, self.n)]
        B_p, n = pairs[-1]
        while n * 2 <= self.n_max:
            n *= 2
            pairs.append((B_p, n))
        return tuple(pairs)

    @classmethod
    def of_spend(cls, B_p: int, n: int) -> "Cell":
        """A run of `isojax spend` that begins with this n, which `isojax spend` may change."""
        return cls(
            B_p,
            n,
            seed=0,
            schedule=f"{SPEND_PREFIX}{n}",
            stages=(Stage(0, B_p, n),),
            is_of_spend=True,
        )

    def to_json(self) -> dict[str, Any]:
        """Its fields, as documents for scripts have them."""
        return {
            "B_p": self.B_p,
            "n": self.n,
            "seed": self.seed,
            "schedule": self.schedule,
            "stages": self.stages,
            "n_max": self.n_max,
        }

    def with_stages(self, stages: Iterable[Stage]) -> "Cell":
        """The same run, further on: with the stages that it has had by then."""
        return replace(self, stages=tuple(Stage(*stage) for stage in stages))

    def pair_at(self, C: int) -> tuple[int, int]:
        """(B_p, n) of the update that begins after C rollouts."""
        for stage in reversed(self.stages):
            if stage.C <= C:
                return stage.B_p, stage.n
        return self.B_p, self.n

    def next_switch(self, C: int) -> int | None:
        """The C above this one at which B_p or n change; None where they stay."""
        return next((stage.C for stage in self.stages if stage.C > C), None)

    def span_at(self, M: int) -> Span:
        """That of update M + 1, where each update samples B_p n rollouts."""
        return next(span for span in reversed(self.spans) if span.M <= M)

    def updates_by_span(self, M: int) -> list[tuple[Span, int]]:
        """How many of the first M updates have which B_p and n; spans without any are left out."""
        spans = self.spans
        ends = [*(span.M for span in spans[1:]), M]  # the updates before the next span
        return [
            (span, min(end, M) - span.M)
            for span, end in zip(spans, ends, strict=True)
            if span.M < M
        ]

    def rollouts_after(self, M: int) -> int:
        """C after M updates, as planned.

        A run counts the rollouts that it samples, of which an update may take more than B_p n.
        """
        span = self.span_at(M)
        return span.C + (M - span.M) * span.B

    def updates_to_reach(self, target: int) -> int:
        """The first M after which C, as planned, is at least `target`."""
        # Of the last span that begins before the target, the updates that lead to it.
        before_target = (span for span in reversed(self.spans) if span.C < target)
        span = next(before_target, self.spans[0])
        return span.M + -(-max(target - span.C, 0) // span.B)

    def rollouts_to_reach(self, target: int) -> int:
        """C after the update that reaches `target`."""
        return self.rollouts_after(self.updates_to_reach(target))


@dataclass(frozen=True)
class Problem:
    """One problem, with the label that the base policy's rollouts gave it."""

    id: int  # unique in its source
    prompt: str
    answer: str  # the reference answer
    # the sum of the rewards of `attempts` rollouts of the base policy (binary: an integer)
    solved: float = 0
    attempts: int = 0  # how many were sampled to label it; 0: it is not labelled
    # The conversation that ends in the problem, each a {"role", "content"}, where its source has
    # one.
    messages: tuple[Mapping[str, str], ...] = ()
    # Whatever else the source has for it (plain JSON); a user's verifier receives it.
    columns: Mapping[str, Any] = field(default_factory=dict)
    # of its row, such as "train.jsonl, line 12", for messages
    location: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """What a message calls it."""
        return self.location or f"problem {self.id}"

    @property
    def difficulty(self) -> float:
        """avg@k of the base policy on this problem, k = `attempts`: high is easy."""
        return self.solved / self.attempts


@dataclass(frozen=True)
class EvalPoint:
    """What one evaluation of a run has measured."""

    # the value of the shared grid of C that this evaluation answers (0 for the base policy)
    target: int
    M: int  # updates done
    rollouts: int  # C, the rollouts sampled for training so far (at least `target`)
    tokens: int  # response tokens sampled for training so far
    # of validation, such as {"avg@4": 0.41, "hard/avg@4": 0.12}; `hard`: an extra set
    metrics: Mapping[str, float]
    counts: RewardSums = ()  # of each validation problem, in the order of the problem set
    samples: int = 0  # rollouts per validation problem (the k of avg@k)
    # Means over the updates since the last point (reward, entropy, kl, grad_norm, ...), and the
    # sums of the verifier's failures (verifier_failures, and verifier_timeout, verifier_crash, ...
    # where there were any).
    train: Mapping[str, float] = field(default_factory=dict)
    # For each extra set, by its name, the sums of its problems, of `samples` rollouts too.
    extra: Mapping[str, RewardSums] = field(default_factory=dict)

    @property
    def graded(self) -> bool:
        """Whether rewards were graded: their sums are floats."""
        return any(issubclass(kind, float) for kind in set(map(type, self.counts)))


IMPORTED = "imported"  # the cell_hash of a run from a log of another trainer


@dataclass(frozen=True)
class RunRecord:
    """A run, as its ledger has it."""

    cell: Cell
    points: tuple[EvalPoint, ...]  # its evaluations by rising C
    source: str = ""  # the file it was read from; empty where there is none
    device_hours: tuple[float, ...] = ()  # at each evaluation; may be empty
    cell_hash: str = ""  # names the settings that decide its result
    failure_reason: str = ""  # why it broke off; empty where it did not
    # the line of `source` that holds each evaluation; empty where there is no file
    line_numbers: tuple[int, ...] = ()
    devices: int = 1  # that trained it, at its end


@dataclass(frozen=True)
class Leg:
    """A part of a run that `isojax spend` trains: with one n from C_start to C_end rollouts."""

    cell: Cell
    n: int
    C_start: int
    C_end: int
    # reward at the end of the budget, as forecast when n was chosen; None for a pilot
    expected: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True)
class FixedForecast:
    """What a run with one n would have had after the whole budget."""

    n: int
    reward: float
    interval: Interval


@dataclass(frozen=True)
class Spending:
    """What `isojax spend` has spent a budget on so far."""

    budget: int  # rollouts
    metric: str  # the reward that is to be high
    legs: tuple[Leg, ...]
    is_ended: bool = False
    fixed: tuple[FixedForecast, ...] = ()  # at its end, by the model

    @property
    def cell(self) -> Cell:
        """The run that goes on, or went on to the end; of pilots the first."""
        for leg in reversed(self.legs):
            is_pilot = leg.expected is None
            if not is_pilot:
                return leg.cell
        return self.legs[0].cell

    def stages(self, cell: Cell) -> tuple[Stage, ...]:
        """The schedule of a run's legs: a stage for each that begins with another n."""
        stages: list[Stage] = []
        for leg in self.legs:
            if leg.cell == cell and (not stages or stages[-1].n != leg.n):
                stages.append(Stage(leg.C_start, cell.B_p, leg.n))
        return tuple(stages)

    def C_end(self, cell: Cell) -> int:
        """Where a run is to be trained to, as far as that is known; 0 for one that is not."""
        return max((leg.C_end for leg in self.legs if leg.cell == cell), default=0)

    def rollouts(self, cell: Cell) -> int:
        """C of a run at C_end, after whole updates."""
        return cell.with_stages(self.stages(cell)).rollouts_to_reach(self.C_end(cell))


@dataclass(frozen=True)
class StartWarning:
    """Why a run may learn nothing, as seen before its first update."""

    name: str  # the symptom, such as "cut_off"
    text: str


@dataclass(frozen=True)
class StartReport:
    """What the check before the first update measured (train/start_check.py).

    Shares of responses, checks and problems by name, and what they make doubtful.
    """

    shares: Mapping[str, float]
    warnings: tuple[StartWarning, ...] = ()


@dataclass(frozen=True)
class CellProgress:
    """What a live display shows of a cell: C, and the newest reward."""

    cell: Cell
    rollouts: int
    reward: float | None
