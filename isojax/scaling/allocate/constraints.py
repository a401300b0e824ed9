"""What is asked of a recommendation, and the checks that both ways to answer it (allocators.py)
share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real

from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT
from isojax.core.nouns import Allocation
from isojax.scaling.result import FitResult
from isojax.scaling.update_counts import UpdateCounts

FIXABLE = ("B_p", "B", "M")
EPSILON = 0.005  # a loss of reward that makes no difference
MAX_SECONDS = 1e10


@dataclass(frozen=True)
class TimeBudget:
    """Seconds of wall clock of one run or, `of_devices`, of all its devices together."""

    seconds: float
    of_devices: bool = False

    def check(self) -> None:
        """Refuse a budget that is no positive finite time."""
        if not 0 < self.seconds <= MAX_SECONDS:
            raise InputError(
                found=f"a budget of {self.seconds:g} seconds",
                expected=f"more than 0 and at most {MAX_SECONDS:g}",
            )


@dataclass(frozen=True)
class AllocationRequest:
    """What a user asks of `recommend`: a budget, limits and one number that may be fixed."""

    # The budget in rollouts. For a budget in time: what it affords in the cell where that is most.
    C: float
    B_max: int | None  # the most rollouts B_p n of one batch; None: no limit
    fix: Mapping[str, int]  # at most one of FIXABLE, and its value
    epsilon: float  # reward that a smaller B_p may cost
    extrapolate: bool  # answer beyond what the data support, too
    time: TimeBudget | None = None  # the budget, where it is one in time

    def check(self) -> None:
        """InputError for values out of range or fixed numbers that the limits exclude.

        These are a fixed B above B_max, and a fixed M of more updates than the budget has rollouts.
        A fixed B_p above B_max is refused by check_B_max."""
        is_number = isinstance(self.C, Real) and not isinstance(self.C, bool)  # NumPy's are Real
        if not is_number or not 0 < self.C <= MAX_COUNT:
            raise InputError(
                where="C",
                found=f"given {self.C!r}",
                expected=f"a positive finite number of rollouts, at most {MAX_COUNT:.0e}",
            )
        if len(self.fix) > 1 or set(self.fix) - set(FIXABLE):
            raise InputError(
                where="fix",
                found=f"given {self.fix}",
                expected=f"at most one of {', '.join(FIXABLE)}",
                fix="Leave the others free.",
            )

        for name, value in self.fix.items():
            _check_whole_number(name, value)
        if self.B_max is not None:
            _check_whole_number("B_max", self.B_max)
        if not 0 <= self.epsilon < 1:
            raise InputError(
                where="epsilon",
                found=f"given {self.epsilon!r}",
                expected=f"a loss of reward, 0 <= epsilon < 1, as {EPSILON}",
            )

        B = self.fix.get("B")
        M = self.fix.get("M")
        if B is not None and self.B_max is not None and self.B_max < B:
            raise InputError(
                where="B",
                found=f"given {B}, which exceeds B_max = {self.B_max}",
                expected="B <= B_max",
                fix="Lower B or raise B_max.",
            )
        if M is not None and self.C < M:
            raise InputError(
                where="C",
                found=(
                    f"given {self.C:.6g}, which is less than one rollout in each of M = {M} updates"
                ),
                fix=f"Give C >= {M} or a smaller M.",
            )

    def check_B_max(self, B_p: int) -> None:
        """InputError for a B_p above B_max: not even n = 1 is possible."""
        if self.B_max is not None and B_p > self.B_max:
            raise InputError(
                where="B_p",
                found=f"given {B_p}, which exceeds B_max = {self.B_max}",
                fix="Raise B_max, or fix a smaller B_p.",
            )

    def largest_B(self, M: int, batches: float) -> int:
        """The largest B = B_p n with which M updates are within the budget, and B within B_max.

        batches: how many batches of B rollouts an update samples on average, such as 1.0. The
        result may be 0."""
        B = int(self.C // (M * batches))
        return B if self.B_max is None else min(B, self.B_max)


def _check_whole_number(name: str, value: int) -> None:
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or not 1 <= value <= MAX_COUNT:
        raise InputError(
            where=name,
            found=f"given {value!r}",
            expected=f"a positive whole number, at most {MAX_COUNT:.0e}",
        )


def floor_power_of_two(x: float) -> int:
    """The largest power of two <= x, for x >= 1."""
    return 1 << (int(x).bit_length() - 1)


def allocate_updates(B_p: int, n: int, C: float, counts: UpdateCounts) -> Allocation:
    """The allocation of (B_p, n) with as many updates as C rollouts are enough for.

    counts: how many rollouts M updates of this (B_p, n) take. InputError where C is not enough for
    one update."""
    M = counts.updates(C)
    if M >= 1:
        return counts.allocation(B_p, n, M)

    C_of_one = counts.rollouts(1)
    size = f"B_p n = {B_p} x {n} = {B_p * n} rollouts"
    if C_of_one > B_p * n:
        size += f", of which the first takes {C_of_one / (B_p * n):.3g} batches"
    raise InputError(
        where="C",
        found=f"given {C:.6g}, which is less than one update of {size}",
        expected=f"C >= {C_of_one}",
        fix="Raise C, or fix a smaller B_p or B.",
    )


def describe_M(allocation: Allocation, C_text: str = "C") -> str:
    """Why the allocation has this M, in words, such as "M = floor(C / (n B_p)) = 40".

    Where an update samples more than one batch of B_p n rollouts, it is stated how many. C_text:
    the budget, "C" or a number such as "12,345"."""
    if allocation.batches == 1.0:
        return f"M = floor({C_text} / (n B_p)) = {allocation.M}"
    batches = f"{allocation.batches:.2f} batches of n B_p rollouts"
    measured = f"an update samples {batches} on average up to this C"
    return f"M = {allocation.M} with dynamic sampling: in these runs, {measured}"


def describe_fixed_B_p(fit: FitResult, B_p: int) -> list[str]:
    """The reasons for a B_p that the user fixed, with a warning where it was unstable: it is not
    refused, since the user chose it."""
    unstable = [v for v in fit.stability if v.B_p == B_p and not v.stable]
    return [
        f"B_p = {B_p}: given",
        *(f"B_p = {B_p} was unstable: {v.reason}" for v in unstable),
    ]


def suggest_B_p(unstable_B_ps: Iterable[int]) -> str:
    """What to do where no B_p is stable."""
    return f"Choose one yourself, as --fix B_p={max(unstable_B_ps)}, or measure larger ones."


@dataclass(frozen=True)
class StableB_p:
    """The smallest stable B_p."""

    B_p: int
    unstable_text: str  # the unstable ones below it in words, to end a sentence; "": none


def smallest_stable_B_p(fit: FitResult) -> StableB_p:
    """The smallest stable B_p, and the unstable smaller ones in words, by a fit's verdicts.

    A B_p is stable where runs with it did not break. InputError where none is."""
    stable_B_ps = [v.B_p for v in fit.stability if v.stable]
    if not stable_B_ps:
        all_B_ps = [v.B_p for v in fit.stability]
        listed = ", ".join(map(str, all_B_ps))
        raise InputError(
            found=f"no measured B_p is stable ({listed}): {fit.stability[0].reason}",
            expected="one",
            fix=suggest_B_p(all_B_ps),
        )

    smallest = min(stable_B_ps)
    unstable_below = [
        f"{v.B_p} ({v.reason})" for v in fit.stability if not v.stable and v.B_p < smallest
    ]
    unstable_text = f"; unstable: {', '.join(unstable_below)}" if unstable_below else ""
    return StableB_p(smallest, unstable_text)
