"""The result of comparing sweeps (compare_sweeps.py), as plain data.

C is in the sweeps' unit. An interval (low, high) holds the central 90% of the replicates: both are
None where there are no replicates, one is None for an open end.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class BudgetRow:
    """A sweep at one budget: its best n, and the frontier's reward."""

    C: float
    n: int  # n* at C
    n_low: int | None  # interval of n*
    n_high: int | None
    reward: float
    low: float | None  # interval of the reward
    high: float | None
    tied: bool = False  # no cell has begun to rise, so that any n is as good


@dataclass(frozen=True)
class Saturation:
    """The C at which n*(C) levels off, and the n that it then has."""

    n: int  # n* at the largest budget compared
    n_largest: int  # that was measured
    # The C beyond which n* does not change; None where it ends at the largest n, or never changes.
    C: float | None
    low: float | None  # interval of C
    high: float | None
    below_largest: float | None  # share of the replicates in which n* ends below the largest n


@dataclass(frozen=True)
class OverfittedCell:
    """A cell of which `runs` runs overfit, the first from C on."""

    B_p: int
    n: int
    runs: int
    C: float


@dataclass(frozen=True)
class RewardDifference:
    """The frontier's reward at the largest budget less that of the first sweep; p_higher: P(it is
    positive)."""

    value: float
    low: float | None
    high: float | None
    p_higher: float | None


@dataclass(frozen=True)
class EarlierSaturation:
    """Whether n* levels off earlier than in the first sweep, over the n that both measured."""

    shared_n: tuple[int, ...]
    p_earlier: float  # shares of the pairs of replicates
    p_later: float


@dataclass(frozen=True)
class SweepSummary:
    """What one sweep shows, and how it differs from the first one compared."""

    label: str
    base_reward: float | None
    n: tuple[int, ...]  # measured, rising
    B_p: tuple[int, ...]
    no_effect: bool
    at: tuple[BudgetRow, ...]  # a few budgets, the last the largest compared
    curve: tuple[BudgetRow, ...]  # many
    saturation: Saturation | None  # None where n makes no difference
    overfitting: tuple[OverfittedCell, ...]
    difference: RewardDifference | None = None  # against the first sweep; None for itself
    earlier: EarlierSaturation | None = None  # likewise, and None where nothing can be said
    nothing_learnt: str = ""  # of a sweep that shows nothing: what was seen and why
    evaluation_size: str = ""  # of such a sweep, what its intervals rest on


@dataclass(frozen=True)
class SweepComparison:
    """Sweeps compared over the budgets C_low to C_high that all of them measured; the first is the
    reference."""

    metric: str
    compute: str
    mode: str
    C_low: float
    C_high: float
    sweeps: tuple[SweepSummary, ...]
    sentences: tuple[str, ...]  # what each shows
    notes: tuple[str, ...]  # what limits the comparison
