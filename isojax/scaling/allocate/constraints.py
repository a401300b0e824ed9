"""What is asked of a recommendation, and the checks that both ways to answer it (by_law, by_curves) share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from isojax.core.errors import InputError
from isojax.core.nouns import Allocation
from isojax.scaling.result import FitResult

FIXABLE = ("B_p", "B", "M")
# A loss of reward that makes no difference.
EPSILON = 0.005


@dataclass(frozen=True)
class AllocationRequest:
    """What is asked for: C rollouts, at most B_max in one update (None: no limit), and at most one of B_p, B and M held
    at a value.

    `reasons` gathers in words why the answer is what it is. `epsilon`: reward that a smaller B_p may cost.
    """

    C: float
    B_max: int | None
    fix: Mapping[str, int]
    epsilon: float
    reasons: list[str]

    def add_reasons(self, *reasons: str) -> None:
        """Add reasons."""
        self.reasons.extend(reasons)


def unstable_reasons(fit: FitResult) -> dict[int, str | None]:
    """B_p -> why it is unstable, None where it is stable."""
    return {v.B_p: None if v.stable else v.reason for v in fit.stability}


def floor_power_of_two(x: float) -> int:
    """The largest power of two <= x, for x >= 1."""
    return 1 << (int(x).bit_length() - 1)


def allocate_updates(B_p: int, n: int, C: float) -> Allocation:
    """(B_p, n) for as many updates as C affords.

    Raises:
        InputError: not even one.
    """
    M = int(C // (B_p * n))
    if M < 1:
        problem = f"C = {C:.6g} is less than one update of B_p n = {B_p} x {n} = {B_p * n} rollouts"
        raise InputError(f"{problem}; expected C >= {B_p * n}. Raise C, or fix a smaller B_p or B.")
    return Allocation(B_p, n, M)


def check_B_max(request: AllocationRequest, B_p: int) -> None:
    """Refuse a B_p that exceeds B_max alone."""
    if request.B_max is not None and B_p > request.B_max:
        raise InputError(
            f"B_p = {B_p} alone exceeds B_max = {request.B_max}; expected B_p <= B_max. Raise B_max, or fix a "
            "smaller B_p."
        )


def check_fixed(request: AllocationRequest) -> None:
    """Refuse a fixed B above B_max, and a fixed M that leaves no rollout in an update."""
    B, M = request.fix.get("B"), request.fix.get("M")
    if B is not None and request.B_max is not None and request.B_max < B:
        raise InputError(f"B = {B} exceeds B_max = {request.B_max}; expected B <= B_max. Lower B or raise B_max.")
    if M is not None and request.C < M:
        raise InputError(
            f"C = {request.C:.6g} is less than one rollout in each of M = {M} updates; give C >= {M} or a smaller M."
        )


def suggest_B_p(unstable_B_ps: Iterable[int]) -> str:
    """What to do where no B_p is stable: the user's own choice is not refused."""
    return f"Choose one yourself, as --fix B_p={max(unstable_B_ps)}, or measure larger ones."


def smallest_stable_B_p(unstable_by_B_p: Mapping[int, str | None]) -> tuple[int, str]:
    """The smallest stable B_p, and the unstable ones below it in words ("" where there is none).

    Raises:
        InputError: none is stable.
    """
    stable_B_ps = sorted(B_p for B_p, why in unstable_by_B_p.items() if why is None)
    if not stable_B_ps:
        problem = f"no measured B_p is stable ({', '.join(map(str, unstable_by_B_p))})"
        raise InputError(f"{problem}; expected one. {suggest_B_p(unstable_by_B_p)}")
    unstable_below = [
        f"{B_p} ({why})" for B_p, why in sorted(unstable_by_B_p.items()) if why is not None and B_p < stable_B_ps[0]
    ]
    return stable_B_ps[0], f"; unstable: {', '.join(unstable_below)}" if unstable_below else ""
