"""The nouns of isojax, as plain data.

The budget identity everywhere (IsoCompute Playbook, arXiv:2603.12151, section 2): C = B_p * n * M rollouts, with B_p
problems per batch, n rollouts per problem and M updates; B = B_p * n is the batch of one update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Interval = tuple[float, float]


@dataclass(frozen=True, order=True)
class Allocation:
    """How a budget of rollouts is spent: B_p problems per batch, n rollouts per problem, M updates."""

    B_p: int
    n: int
    M: int

    @property
    def B(self) -> int:
        """Rollouts per update."""
        return self.B_p * self.n

    @property
    def C(self) -> int:
        """Rollouts in all."""
        return self.B_p * self.n * self.M


@dataclass(frozen=True, order=True)
class Cell:
    """One run of a sweep: an allocation's B_p and n, and the number of the seed (0, 1, ...)."""

    B_p: int
    n: int
    seed: int

    @property
    def B(self) -> int:
        """Rollouts per update."""
        return self.B_p * self.n

    @property
    def name(self) -> str:
        """The cell's folder under `cells/`."""
        return f"{self.B_p}x{self.n}-s{self.seed}"


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        id: unique in its source.
        prompt: its text.
        answer: the reference answer.
        solved: how many of `attempts` rollouts of the base policy were correct.
        attempts: how many were sampled to label it; 0: it is not labelled.
        messages: the conversation that ends in the problem, each a {"role", "content"}, where its source gives one.
        columns: whatever else the source has for it (plain JSON); a user's verifier receives it.
    """

    id: int
    prompt: str
    answer: str
    solved: int = 0
    attempts: int = 0
    messages: tuple[Mapping[str, str], ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def difficulty(self) -> float:
        """avg@k of the base policy on this problem, k = `attempts`."""
        return self.solved / self.attempts


@dataclass(frozen=True)
class EvalPoint:
    """One evaluation during a run.

    Attributes:
        target: the value of the shared grid of C that this evaluation answers (0 for the base policy).
        M: updates done.
        rollouts: C, the rollouts sampled for training so far (at least `target`).
        tokens: response tokens sampled for training so far.
        metrics: validation metrics, for example {"avg@4": 0.41, "hard/avg@4": 0.12}, with the name of an extra set
            before the slash.
        counts: correct rollouts of each validation problem, in the order of the problem set.
        samples: rollouts per validation problem (the k of avg@k).
        train: means over the updates since the last point (reward, entropy, kl, grad_norm, ...), and the sums of the
            verifier's failures (verifier_failures, and verifier_timeout, verifier_crash, ... where there were any).
        extra: for each extra set, by its name, the correct rollouts of each of its problems, of `samples` too.
    """

    target: int
    M: int
    rollouts: int
    tokens: int
    metrics: Mapping[str, float]
    counts: tuple[int, ...] = ()
    samples: int = 0
    train: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """All that is known of one run.

    Attributes:
        cell: its (B_p, n, seed).
        points: its evaluations by rising C.
        source: the file it was read from; empty where there is none.
        device_hours: at each evaluation; may be empty.
        cell_hash: names the settings that decide its result.
        failure_reason: why it broke off; empty where it did not.
        line_numbers: the line of `source` that holds each evaluation; empty where there is no file.
    """

    cell: Cell
    points: tuple[EvalPoint, ...]
    source: str = ""
    device_hours: tuple[float, ...] = ()
    cell_hash: str = ""
    failure_reason: str = ""
    line_numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class CellProgress:
    """What a live display shows of a cell: C, and the newest reward."""

    cell: Cell
    rollouts: int
    reward: float | None


@dataclass(frozen=True)
class Candidate:
    """What a measured cell promises for a budget.

    Attributes:
        M: the updates that the budget affords.
        reward: to expect, by the cell's curve; low, high: its interval, None without replicates.
        extrapolated: the budget lies beyond the cell's data.
        stable: whether the cell's B_p trains stably.
    """

    B_p: int
    n: int
    M: int
    reward: float
    extrapolated: bool
    low: float | None
    high: float | None
    stable: bool


@dataclass(frozen=True)
class Recommendation:
    """How to spend a budget of rollouts.

    Attributes:
        allocation: what to run; its C = B_p n M is at most the budget.
        metric: of the reward.
        expected_reward: at the allocation's C, by the curve of its cell or of the nearest measured one.
        extrapolated: that lies beyond the cell's data.
        reasons: why, in words.
        candidates: what the measured cells promise at the same budget, best first; empty where that was not asked for.
        interval: of the expected reward; None without replicates.
        prediction_interval: of the reward that one new run, evaluated like these, will show; None likewise.
        n_probability: n -> the share of replicates in which it holds the best cell; None without replicates or where no
            measured cell may be chosen.
        equal_n: the n whose best cell promises at most epsilon less than the best of all.
        regret: expected loss of reward against the best measured cell at this budget; None where none may be chosen.
        regret_interval: its interval; None without replicates.
        no_effect: the data cannot tell any n from another.
        times_measured: the budget over the largest measured C.
        epsilon: a loss of reward that makes no difference, as asked.
        level: of the intervals.
    """

    allocation: Allocation
    metric: str
    expected_reward: float
    extrapolated: bool
    reasons: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    interval: Interval | None
    prediction_interval: Interval | None
    n_probability: dict[int, float] | None
    equal_n: tuple[int, ...]
    regret: float | None
    regret_interval: Interval | None
    no_effect: bool
    times_measured: float
    epsilon: float
    level: float
