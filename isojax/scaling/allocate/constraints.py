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
                f"a budget of {self.seconds:g} seconds; expected more than 0 and at most {MAX_SECONDS:g}."
            )


@dataclass(frozen=True)
class AllocationRequest:
    """What is asked for, and in `reasons`, which grows, why the answer is what it is."""

    C: float  # the budget in rollouts; of a budget in time, what the cell of most rollouts affords
    B_max: int | None  # of one update
    fix: Mapping[str, int]  # at most one of FIXABLE, and its value
    epsilon: float  # reward that a smaller B_p may cost
    extrapolate: bool  # answer beyond what the data support, too
    reasons: list[str]
    time: TimeBudget | None = None  # the budget, where it is one in time

    def check(self) -> None:
        """Refuse values out of range, a fixed B above B_max, and a fixed M that leaves no rollout
        in an update."""
        C, B_max = self.C, self.B_max
        # also a number of numpy's
        if isinstance(C, bool) or not isinstance(C, Real) or not 0 < C <= MAX_COUNT:
            raise InputError(
                f"C = {C!r}; expected a positive finite number of rollouts, at most {MAX_COUNT:.0e}."
            )
        if len(self.fix) > 1 or set(self.fix) - set(FIXABLE):
            raise InputError(
                f"fix = {self.fix}; expected at most one of {', '.join(FIXABLE)}. Leave the others free."
            )
        for name, value in (*self.fix.items(), *(() if B_max is None else (("B_max", B_max),))):
            if (
                isinstance(value, bool)
                or not isinstance(value, Integral)
                or not 1 <= value <= MAX_COUNT
            ):
                raise InputError(
                    f"{name} = {value!r}; expected a positive whole number, at most {MAX_COUNT:.0e}."
                )
        if not 0 <= self.epsilon < 1:
            raise InputError(
                f"epsilon = {self.epsilon!r}; expected a loss of reward, 0 <= epsilon < 1, as {EPSILON}."
            )
        B, M = self.fix.get("B"), self.fix.get("M")
        if B is not None and B_max is not None and B_max < B:
            raise InputError(
                f"B = {B} exceeds B_max = {B_max}; expected B <= B_max. Lower B or raise B_max."
            )
        if M is not None and C < M:
            problem = f"C = {C:.6g} is less than one rollout in each of M = {M} updates"
            raise InputError(f"{problem}; give C >= {M} or a smaller M.")

    def check_B_max(self, B_p: int) -> None:
        if self.B_max is not None and B_p > self.B_max:
            raise InputError(
                f"B_p = {B_p} alone exceeds B_max = {self.B_max}. Raise B_max, or fix a smaller B_p."
            )

    def largest_B(self, M: int, batches: float) -> int:
        """The largest B_p n that M updates and B_max leave, where an update samples so many batches
        of B_p n."""
        B = int(self.C // (M * batches))
        return B if self.B_max is None else min(B, self.B_max)


def floor_power_of_two(x: float) -> int:
    """The largest power of two <= x, for x >= 1."""
    return 1 << (int(x).bit_length() - 1)


def allocate_updates(B_p: int, n: int, C: float, counts: UpdateCounts) -> Allocation:
    """(B_p, n) for as many updates as C affords; refused where that is not even one."""
    M = counts.updates(C)
    if M < 1:
        C_of_one = counts.rollouts(1)
        size = f"B_p n = {B_p} x {n} = {B_p * n} rollouts"
        if C_of_one > B_p * n:
            size += f", of which the first takes {C_of_one / (B_p * n):.3g} batches"
        problem = f"C = {C:.6g} is less than one update of {size}"
        raise InputError(
            f"{problem}; expected C >= {C_of_one}. Raise C, or fix a smaller B_p or B."
        )
    return counts.allocation(B_p, n, M)


def describe_M(allocation: Allocation, C_text: str = "C") -> str:
    """Where M comes from: the budget, and how many batches an update samples."""
    if allocation.batches == 1.0:
        return f"M = floor({C_text} / (n B_p)) = {allocation.M}"
    batches = f"an update samples {allocation.batches:.2f} batches of n B_p rollouts on average up to this C"
    return f"M = {allocation.M} with dynamic sampling: in these runs, {batches}"


def take_fixed_B_p(fit: FitResult, request: AllocationRequest) -> int:
    """The B_p that the request fixes: the user's own choice is not refused where it was
    unstable."""
    B_p = request.fix["B_p"]
    request.check_B_max(B_p)
    request.reasons.append(f"B_p = {B_p}: given")
    unstable = [v for v in fit.stability if v.B_p == B_p and not v.stable]
    request.reasons.extend(f"B_p = {B_p} was unstable: {v.reason}" for v in unstable)
    return B_p


def suggest_B_p(unstable_B_ps: Iterable[int]) -> str:
    """What to do where no B_p is stable."""
    return f"Choose one yourself, as --fix B_p={max(unstable_B_ps)}, or measure larger ones."


def smallest_stable_B_p(fit: FitResult) -> tuple[int, str]:
    """The smallest stable B_p, and the unstable ones below it in words ("": none); refused where
    none is stable."""
    stable_B_ps = [v.B_p for v in fit.stability if v.stable]
    if not stable_B_ps:
        all_B_ps = [v.B_p for v in fit.stability]
        problem = f"no measured B_p is stable ({', '.join(map(str, all_B_ps))}): {fit.stability[0].reason}"
        raise InputError(f"{problem}; expected one. {suggest_B_p(all_B_ps)}")
    unstable_below = [
        f"{v.B_p} ({v.reason})" for v in fit.stability if not v.stable and v.B_p < min(stable_B_ps)
    ]
    return min(stable_B_ps), f"; unstable: {', '.join(unstable_below)}" if unstable_below else ""
