"""What comparing sweeps finds, as plain data (compare.py makes it, compare_text.py puts it in words).

C is in the sweeps' unit, a reward in [0, 1]; an interval (low, high) is the central 90% of the replicates, None where
there are none, and a bound of None where the other is a number is an open end.
"""

from __future__ import annotations

from dataclasses import dataclass

from isojax.scaling.law.law_forms import Law


@dataclass(frozen=True)
class BudgetRow:
    """n* and the frontier's reward at one C, each with its interval."""

    C: float
    n: int
    n_low: int | None
    n_high: int | None
    reward: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Saturation:
    """Where n* levels off.

    Attributes:
        n: n* at the largest budget compared.
        n_largest: the largest n measured.
        C: beyond which n* does not change; None where it ends at the largest n, or never changes.
        low, high: interval of C.
        below_largest: share of the replicates in which n* ends below the largest n.
    """

    n: int
    n_largest: int
    C: float | None
    low: float | None
    high: float | None
    below_largest: float | None


@dataclass(frozen=True)
class OverfittedCell:
    """A cell of which `runs` runs overfit, the first from C on."""

    B_p: int
    n: int
    runs: int
    C: float


@dataclass(frozen=True)
class PeakedCell:
    """A cell whose validation reward falls beyond C."""

    B_p: int
    n: int
    C: float


@dataclass(frozen=True)
class RewardDifference:
    """The frontier's reward at the largest budget less that of the first sweep; p_higher: P(it is positive)."""

    value: float
    low: float | None
    high: float | None
    p_higher: float | None


@dataclass(frozen=True)
class EarlierSaturation:
    """Whether n* levels off earlier than in the first sweep, over the n that both measured.

    Attributes:
        by_curves: by the fitted curves alone.
        p_earlier, p_later: shares of the pairs of replicates; None without replicates.
    """

    shared_n: tuple[int, ...]
    by_curves: bool
    p_earlier: float | None
    p_later: float | None


@dataclass(frozen=True)
class SweepSummary:
    """One of the sweeps compared.

    Attributes:
        n, B_p: measured, rising.
        at: n* and reward at a few budgets. curve: the same at many.
        saturation: None where n makes no difference.
        top: the frontier at the largest budget compared.
        difference, earlier: against the first sweep; None for itself, `earlier` also where nothing can be said.
    """

    label: str
    base_reward: float | None
    n: tuple[int, ...]
    B_p: tuple[int, ...]
    no_effect: bool
    law: Law
    at: tuple[BudgetRow, ...]
    curve: tuple[BudgetRow, ...]
    saturation: Saturation | None
    top: BudgetRow
    overfitting: tuple[OverfittedCell, ...]
    peaks: tuple[PeakedCell, ...]
    difference: RewardDifference | None = None
    earlier: EarlierSaturation | None = None


@dataclass(frozen=True)
class SweepComparison:
    """Sweeps compared over the budgets C_low to C_high that all of them measured.

    Attributes:
        sweeps: the first is the one that the others are compared with.
        sentences: what each shows, in words. notes: what limits the comparison, in words.
    """

    metric: str
    compute: str
    mode: str
    C_low: float
    C_high: float
    sweeps: tuple[SweepSummary, ...]
    sentences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
