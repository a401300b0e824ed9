"""A recommendation as data: the allocation for a budget, what to expect of it, and what may make it
wrong (made by recommend.py)."""

from dataclasses import dataclass
from typing import Any

from isojax.core.nouns import Allocation, Interval


@dataclass(frozen=True)
class MeasuredCell:
    """What a measured cell is predicted to reach with a budget."""

    B_p: int
    n: int
    M: int  # the updates that the budget affords
    reward: float  # to expect, by the cell's curve
    extrapolated: bool  # the budget is beyond the cell's data
    low: float | None  # the reward's interval; None without replicates
    high: float | None
    stable: bool  # whether the cell's B_p trains stably
    hours: float | None  # wall clock of one run; None where the cell has no clock
    device_hours: float | None


@dataclass(frozen=True)
class HaltingMark:
    """Where a run is to be judged on its way, by its first evaluation at or after C."""

    M: int
    C: int
    expected_reward: float
    stop_below: float  # stop a run that measures less than this


@dataclass(frozen=True)
class NextRun:
    """A further run of a measured cell, and what it would settle."""

    allocation: Allocation  # its C is what it costs
    regret_before: float  # expected loss of reward by the choice at the budget in question
    regret_after: float  # the same, of the choice that would be made after the run
    # the (B_p, n) that leads, and the one that may take its place
    between: tuple[tuple[int, int], tuple[int, int]]

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"allocation": self.allocation.to_json()}


@dataclass(frozen=True)
class GrowingRun:
    """A run of the same budget whose n grows, against the recommended allocation, by one fit."""

    schedule: str  # as sweep.schedules takes it
    expected_reward: float
    gain: float  # of reward, over the allocation
    gain_interval: Interval
    p_better: float
    # Of B_p n rollouts that an update of each stage samples on average; empty where it samples one.
    batches: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Its fields; `batches` only where there are some."""
        document = dict(vars(self))
        if not self.batches:
            del document["batches"]
        return document


@dataclass(frozen=True)
class Risk:
    """What may make a recommendation wrong."""

    code: str  # the subject, whatever the numbers, such as "one_seed"
    text: str


@dataclass(frozen=True)
class Recommendation:
    """How to spend a budget of rollouts. Intervals are None without replicates."""

    allocation: Allocation  # what to run; its C is at most the budget
    metric: str  # of the reward
    # at the allocation's C, by the curve of its cell or of the nearest measured one
    expected_reward: float
    extrapolated: bool  # that C is beyond the cell's data
    reasons: tuple[str, ...]  # why, in words
    risks: tuple[Risk, ...]  # the main ones
    warnings: tuple[str, ...]  # what limits the fit that it rests on
    further_warnings: tuple[str, ...]  # those that `risks` does not state
    # The predictions for the measured cells at the same budget, best first; empty where not
    # requested.
    measured_cells: tuple[MeasuredCell, ...]
    interval: Interval | None  # of the expected reward
    # of the reward that one new run, evaluated like these, will show
    prediction_interval: Interval | None
    # n -> the share of replicates in which it holds the best cell; None also where no measured cell
    # may be chosen.
    n_probability: dict[int, float] | None
    # the n whose best cell's prediction is at most epsilon below the best of all
    equal_n: tuple[int, ...]
    # Expected loss of reward against the best measured cell at this budget; None where none may be
    # chosen, or where the sweep shows nothing.
    regret: float | None
    regret_interval: Interval | None
    halting_marks: tuple[HaltingMark, ...]  # by rising C; empty without replicates
    # the probability, at most, that a run as forecast is below one of them
    false_stop: float | None
    next_run: NextRun | None  # what to measure next; None where no single run lowers the regret
    # None where no growing n is expected to gain, and where B_p, n or M are fixed
    growing: GrowingRun | None
    no_effect: bool  # the data cannot tell any n from another
    times_measured: float  # the budget over the largest measured C
    # wall clock that the allocation takes, by the clock of its cell; None where it has none
    hours: float | None
    device_hours: float | None
    epsilon: float  # a loss of reward that makes no difference, as requested
    level: float  # of the intervals
    # Of a sweep that shows nothing: what was seen and why, a sentence without its capital. No n is
    # then better.
    nothing_learnt: str = ""
    # Where all cells stand at one reward at this budget, in words; no n is then better. ""
    # elsewhere.
    tie: str = ""
    not_settled: str = ""  # why its intervals are not to be used, in words; "" where they are

    @property
    def risk_summary(self) -> str:
        return "; ".join(risk.text for risk in self.risks)

    def to_json(self) -> dict[str, Any]:
        """The allocation's numbers, then the other fields."""
        document = self.allocation.to_json() | {"B": self.allocation.B, "C": self.allocation.C}
        document |= {name: value for name, value in vars(self).items() if name != "allocation"}
        if self.next_run is not None:
            document["next_run"] = self.next_run.to_json()
        if self.growing is not None:
            document["growing"] = self.growing.to_json()
        return document
