"""The allocation (B_p, n, M) for a budget of C rollouts, from fit.json alone (IsoCompute Playbook, arXiv:2603.12151, section 4.3):
n from n*(C), the smallest stable B_p, the rest to M = floor(C / (n B_p)).

With one of them fixed: a fixed B_p has its own n*(C); a fixed B = B_p n follows n*(C) with B_p = B // n; a fixed M takes the measured
(B_p, n) with B_p n M <= C whose curve promises most at B_p n M, or, where none fits, n from n*(C) and B_p = floor(C / (n M)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isojax.scaling.curves import Curve, reward
from isojax.scaling.law import Law, log2_n_star
from isojax.types import Allocation, InputError

FIXABLE = ("B_p", "B", "M")


@dataclass(frozen=True)
class Candidate:
    """A measured cell, the updates C affords it, its curve's reward, and whether that lies beyond its data."""

    B_p: int
    n: int
    M: int
    reward: float
    extrapolated: bool


@dataclass(frozen=True)
class Recommendation:
    """An allocation, the reward to expect, why, and what the measured cells promise at the same budget (best first)."""

    allocation: Allocation
    expected_reward: float
    extrapolated: bool
    reasons: list[str]
    candidates: list[Candidate]


@dataclass(frozen=True)
class _Part:
    """A law and the range of C of the frontier it was fitted to."""

    law: Law
    C_low: float
    C_high: float


@dataclass(frozen=True)
class _Fit:
    """What a recommendation needs of fit.json."""

    curves: tuple[Curve, ...]
    joint: _Part
    by_B_p: Mapping[int, _Part]
    n: tuple[int, ...]
    stability: Mapping[int, str | None]  # B_p -> why unstable, None where stable


def _part(d: Mapping[str, Any]) -> _Part:
    s, f = d["n_star"], d["frontier"]
    return _Part(Law(s["form"], s["L"], s["k"], s["log10_C0"], s["b"]), f[0]["C"], f[-1]["C"])


def _load(fit: Mapping[str, Any]) -> _Fit:
    if not isinstance(fit, Mapping) or fit.get("schema") != 1:
        given = fit.get("schema") if isinstance(fit, Mapping) else type(fit).__name__
        raise InputError(f"this is not a fit of schema 1 (given: {given}); expected the content of fit.json. Run `isojax fit` again.")
    if fit.get("compute") != "rollouts":
        given = f"a fit in {fit.get('compute')} gives no number of updates M"
        raise InputError(f"{given}; expected compute 'rollouts'. Fit the same runs again with compute=rollouts.")
    try:
        curves = tuple(Curve(**c) for c in fit["curves"])
        parts = {p["B_p"]: _part(p) for p in fit["by_B_p"]}
        verdicts = {v["B_p"]: None if v["stable"] else v["reason"] for v in fit["stability"]}
        loaded = _Fit(curves, _part(fit), parts, tuple(sorted({r["n"] for r in fit["runs"]})), verdicts)
    except (KeyError, TypeError, IndexError) as e:
        raise InputError(f"the fit is incomplete ({e!r}); expected every key of fit.json. Run `isojax fit` again.") from e
    if not curves or not loaded.n:
        raise InputError("the fit holds no curve or no run; expected at least one of each. Run `isojax fit` again.")
    return loaded


def _power_of_two(x: float) -> int:
    """The largest power of two <= x, for x >= 1."""
    return 1 << (int(x).bit_length() - 1)


def _n(f: _Fit, part: _Part, C: float, at_most: int | None, why: str, reasons: list[str]) -> int:
    """n*(C) as a power of two, within the measured n inside the measured range of C; then at most `at_most`, because of `why`."""
    exact = float(log2_n_star(part.law, C))
    n = 1 << max(0, round(exact))
    reasons.append(f"n*({C:.6g}) = {2**exact:.3g}, as a power of two {n}")
    if part.C_low * (1 - 1e-9) <= C <= part.C_high * (1 + 1e-9):
        clipped = min(max(n, f.n[0]), f.n[-1])
        if clipped != n:
            reasons.append(f"n = {clipped}: only {f.n[0]} to {f.n[-1]} were measured")
        n = clipped
    else:
        top = 2 ** (part.law.b + part.law.L)
        seen = f"({part.C_low:.6g} to {part.C_high:.6g})"
        reasons.append(f"C lies outside the frontier {seen}: n is the law's word alone, which saturates at {top:.3g}")
        if not f.n[0] <= n <= f.n[-1]:
            reasons.append(f"n = {n} was never measured ({f.n[0]} to {f.n[-1]} were)")
    if at_most is not None and n > at_most:
        n = _power_of_two(at_most)
        reasons.append(f"n = {n}: {why}")
    return n


def _spend(B_p: int, n: int, C: float) -> Allocation:
    M = int(C // (B_p * n))
    if M < 1:
        given = f"C = {C:.6g} is less than one update of B_p n = {B_p} x {n} = {B_p * n} rollouts"
        raise InputError(f"{given}; expected C >= {B_p * n}. Raise C, or fix a smaller B_p or B.")
    return Allocation(B_p, n, M)


def _with_B_p(f: _Fit, part: _Part, C: float, B_p: int, B_max: int | None, reasons: list[str]) -> Allocation:
    if B_max is not None and B_p > B_max:
        raise InputError(f"B_p = {B_p} alone exceeds B_max = {B_max}; expected B_p <= B_max. Raise B_max, or fix a smaller B_p.")
    at_most = None if B_max is None else B_max // B_p
    n = _n(f, part, C, at_most, f"B_max = {B_max} allows no more at B_p = {B_p}", reasons)
    allocation = _spend(B_p, n, C)
    reasons.append(f"M = floor(C / (n B_p)) = {allocation.M}")
    return allocation


def _free(f: _Fit, C: float, B_max: int | None, reasons: list[str]) -> Allocation:
    stable = sorted(B_p for B_p, why in f.stability.items() if why is None)
    if not stable:
        given = f"no measured B_p is stable ({', '.join(map(str, f.stability))})"
        raise InputError(f"{given}; expected one. Choose it yourself with fix={{'B_p': ...}}, or measure larger ones.")
    smaller = [f"{B_p} ({why})" for B_p, why in sorted(f.stability.items()) if why is not None and B_p < stable[0]]
    reasons.append(f"B_p = {stable[0]}: the smallest stable one measured" + (f"; unstable: {', '.join(smaller)}" if smaller else ""))
    return _with_B_p(f, f.joint, C, stable[0], B_max, reasons)


def _fixed_B_p(f: _Fit, C: float, B_p: int, B_max: int | None, reasons: list[str]) -> Allocation:
    reasons.append(f"B_p = {B_p}: given")
    part = f.by_B_p.get(B_p)
    if part is None:
        known = ", ".join(map(str, sorted(f.by_B_p)))
        reasons.append(f"B_p = {B_p} has no law of its own (there is one for {known}): the joint n*(C) is used")
    why = f.stability.get(B_p)
    if why is not None:
        reasons.append(f"B_p = {B_p} was unstable: {why}")
    return _with_B_p(f, part or f.joint, C, B_p, B_max, reasons)


def _fixed_B(f: _Fit, C: float, B: int, B_max: int | None, reasons: list[str]) -> Allocation:
    if B_max is not None and B_max < B:
        raise InputError(f"B = {B} exceeds B_max = {B_max}; expected B <= B_max. Lower B or raise B_max.")
    n = _n(f, f.joint, C, B, f"B = {B} holds no more", reasons)
    allocation = _spend(B // n, n, C)
    reasons.append(f"B = {B}: given, so B_p = B // n = {allocation.B_p} and M = floor(C / (n B_p)) = {allocation.M}")
    return allocation


def _fixed_M(f: _Fit, C: float, M: int, B_max: int | None, reasons: list[str]) -> Allocation:
    B = int(C // M) if B_max is None else min(int(C // M), B_max)
    if B < 1:
        raise InputError(f"C = {C:.6g} is less than one rollout in each of M = {M} updates; give C >= {M} or a smaller M.")
    fits = [c for c in f.curves if c.B_p * c.n <= B and f.stability.get(c.B_p) is None]
    if fits:
        best = max(fits, key=lambda c: (float(reward(c, c.B_p * c.n * M)), -c.n, -c.B_p))
        spent = best.B_p * best.n * M
        reasons.append(f"M = {M}: given; of {len(fits)} stable cells with B_p n <= {B}, {best.B_p}x{best.n} promises most at C = {spent}")
        return Allocation(best.B_p, best.n, M)
    n = _n(f, f.joint, C, B, f"B_p n M <= C and B_max leave B = {B}", reasons)
    reasons.append(f"M = {M}: given; no stable measured cell has B_p n <= {B}, so n is n*(C) and B_p = floor({B} / n) = {B // n}")
    return Allocation(B // n, n, M)


def _candidates(f: _Fit, C: float, B_max: int | None, fix: Mapping[str, int]) -> list[Candidate]:
    """Measured cells within B_max and the fixed value, at the compute each would spend; best first."""
    found = []
    for c in f.curves:
        B = c.B_p * c.n
        M = fix.get("M", int(C // B))
        if M < 1 or B * M > C or (B_max is not None and B_max < B) or fix.get("B_p", c.B_p) != c.B_p or fix.get("B", B) != B:
            continue
        spent = B * M if "M" in fix else C
        found.append(Candidate(c.B_p, c.n, M, float(reward(c, spent)), spent > c.C_high * (1 + 1e-9)))
    return sorted(found, key=lambda c: (-c.reward, c.n, c.B_p))


def _expect(curves: Sequence[Curve], a: Allocation, reasons: list[str]) -> tuple[float, bool]:
    """(reward, whether extrapolated) at a.C, from the curve of the nearest measured cell: nearest in log n, then in log B_p."""
    nearest = min(curves, key=lambda c: (abs(math.log2(c.n / a.n)), abs(math.log2(c.B_p / a.B_p)), c.n, c.B_p))
    value, beyond = float(reward(nearest, a.C)), nearest.C_high * (1 + 1e-9) < a.C
    if nearest.key != (a.B_p, a.n):
        reasons.append(f"{a.B_p}x{a.n} has no curve: the expected reward is that of the nearest measured cell, {nearest.B_p}x{nearest.n}")
    if beyond:
        reasons.append(f"the expected reward is extrapolated: {nearest.B_p}x{nearest.n} was measured up to C = {nearest.C_high:.6g}")
    return value, beyond


def _check(C: float, B_max: int | None, fix: Mapping[str, int]) -> None:
    if isinstance(C, bool) or not isinstance(C, (int, float)) or not math.isfinite(C) or C <= 0:
        raise InputError(f"C = {C!r}; expected a positive finite number of rollouts.")
    if len(fix) > 1 or set(fix) - set(FIXABLE):
        raise InputError(f"fix = {dict(fix)}; expected at most one of {', '.join(FIXABLE)}. Leave the others free.")
    for name, value in (*fix.items(), *(() if B_max is None else (("B_max", B_max),))):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} = {value!r}; expected a positive whole number.")


def recommend(fit: Mapping[str, Any], C: float, B_max: int | None = None, fix: Mapping[str, int] | None = None) -> Recommendation:
    """How to spend C rollouts.

    Args:
        fit: the content of fit.json, in rollouts.
        C: the budget, rollouts.
        B_max: the largest B_p n that may be used.
        fix: at most one of {"M": v}, {"B": v}, {"B_p": v}.

    Returns:
        An allocation with B_p n M <= C; the reward its nearest measured cell's curve gives there; the reasons in words.

    Raises:
        InputError: a fit that cannot be used, C too small for one update, or B_max and `fix` that leave no allocation.
    """
    fixed = dict(fix or {})
    _check(C, B_max, fixed)
    f, reasons = _load(fit), []
    if "M" in fixed:
        allocation = _fixed_M(f, C, fixed["M"], B_max, reasons)
    elif "B" in fixed:
        allocation = _fixed_B(f, C, fixed["B"], B_max, reasons)
    elif "B_p" in fixed:
        allocation = _fixed_B_p(f, C, fixed["B_p"], B_max, reasons)
    else:
        allocation = _free(f, C, B_max, reasons)
    expected, beyond = _expect(f.curves, allocation, reasons)
    return Recommendation(allocation, expected, beyond, reasons, _candidates(f, C, B_max, fixed))
