"""The allocation (B_p, n, M) for a budget of C rollouts, from fit.json alone: what to run, what reward to expect, and how sure that is.

Mode "paper" (and schema 1) follows the paper's law n*(C) (allocate_law); mode "debiased" compares the measured cells' curves
(allocate_curves). Both refuse budgets beyond `REACH` times the largest measured C unless told to extrapolate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isojax.scaling import allocate_curves, allocate_law
from isojax.scaling.ensemble import BoolArray, Ensemble, FloatArray, Interval
from isojax.scaling.predict import Best, affordable, outlook
from isojax.scaling.request import EPSILON, FIXABLE, Request
from isojax.types import Allocation, InputError

ALLOCATE: Mapping[str, Callable[[Mapping[str, Any], Ensemble, Request], Allocation]] = {
    "paper": allocate_law.allocate,
    "debiased": allocate_curves.allocate,
}
# A budget beyond this many times the largest measured C is refused; a run ends at its last evaluation, a little below its budget.
REACH = 4.0
ROUNDING = 1.05
MOST = 10**15  # rollouts, in all or in an update; whole numbers beyond 2^53 are not exact as floats


@dataclass(frozen=True)
class Candidate:
    """A measured cell, the updates C affords it, its curve's reward with the interval of that (None without draws), whether it lies beyond
    the cell's data, and whether its B_p is stable."""

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
    """How to spend a budget.

    Attributes:
        allocation: what to run, C = B_p n M at most the budget.
        expected_reward: at its C, by the curve of its cell or of the nearest measured one.
        extrapolated: that lies beyond the cell's data.
        reasons: why, in words.
        candidates: what the measured cells promise at the same budget, best first; empty where that was not asked for.
        interval: of the expected reward. prediction_interval: of what one new run, measured like these, will show. None without draws.
        n_probability: n -> how often it holds the best cell over the draws; None without draws or where no measured cell may be chosen.
        equal_n: the epsilon-optimal set, the n whose best cell promises at most epsilon less than the best of all.
        regret: expected loss of reward against the best measured cell at this budget, None where none may be chosen; regret_interval: its
            interval, None without draws.
        no_effect: the data cannot tell any n from another.
        times_measured: the budget over the largest measured C.
        epsilon: as asked. level: of the intervals.
    """

    allocation: Allocation
    expected_reward: float
    extrapolated: bool
    reasons: list[str]
    candidates: list[Candidate]
    interval: Interval | None
    prediction_interval: Interval | None
    n_probability: dict[int, float] | None
    equal_n: list[int]
    regret: float | None
    regret_interval: Interval | None
    no_effect: bool
    times_measured: float
    epsilon: float
    level: float


def _check(C: float, B_max: int | None, fix: Mapping[str, int], epsilon: float) -> None:
    if isinstance(C, bool) or not isinstance(C, (int, float)) or not 0 < C <= MOST:
        raise InputError(f"C = {C!r}; expected a positive finite number of rollouts, at most {MOST:.0e}.")
    if len(fix) > 1 or set(fix) - set(FIXABLE):
        raise InputError(f"fix = {dict(fix)}; expected at most one of {', '.join(FIXABLE)}. Leave the others free.")
    for name, value in (*fix.items(), *(() if B_max is None else (("B_max", B_max),))):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise InputError(f"{name} = {value!r}; expected a positive whole number, at most {MOST:.0e}.")
    if not 0 <= epsilon < 1:
        raise InputError(f"epsilon = {epsilon!r}; expected a loss of reward that makes no difference, 0 <= epsilon < 1, such as {EPSILON}.")


def _mode(fit: Mapping[str, Any]) -> str:
    if fit.get("compute") != "rollouts":
        given = f"a fit in {fit.get('compute')} gives no number of updates M"
        raise InputError(f"{given}; expected compute 'rollouts'. Fit the same runs again with --compute rollouts.")
    mode = fit.get("mode", "paper")
    if mode not in ALLOCATE:
        raise InputError(f"the fit's mode is {mode!r}; expected one of {', '.join(ALLOCATE)}. Run `isojax fit` again.")
    return mode


def _doubts(e: Ensemble, C: float) -> str:
    """Why a budget far beyond the data is a guess: plateaus that are not determined, and how the interval grows."""
    found = []
    open_ends = [f"{B_p}x{n}" for B_p, n, known in zip(e.B_p, e.n, e.determined, strict=True) if not known]
    if open_ends:
        found.append(f"the data do not determine the plateaus of {', '.join(open_ends)}")
    if not e.replicates:
        found.append("this fit has no intervals to say how wrong it may be")
    else:
        i = int(e.expected(C).argmax())
        near, far = (e.interval(e.cell(i, at)[1]) or (0.0, 0.0) for at in (e.measured, C))
        widths = f"{near[1] - near[0]:.3f} at C = {e.measured:.6g} to {far[1] - far[0]:.3f}"
        found.append(
            f"the {e.level:.0%} interval of {e.B_p[i]}x{e.n[i]} grows from a width of {widths}, if its curve's form holds that far"
        )
    return "; ".join(found)


def _check_reach(e: Ensemble, C: float, extrapolate: bool, reasons: list[str]) -> None:
    times = C / e.measured
    if times > REACH * ROUNDING:
        said = f"C = {C:.6g} is {f'{times:,.0f}' if times >= 10 else f'{times:.3g}'} times the largest measured C = {e.measured:.6g}"
        if not extrapolate:
            more = "Measure larger budgets (isojax launch --resume sweep.budget=...), or ask for an extrapolation (--extrapolate)"
            reach = f"expected at most {REACH:g} times, because no measurement supports more: {_doubts(e, C)}"
            raise InputError(f"{said}; {reach}. {more}.")
        reasons.append(f"extrapolated because it was asked for: {said}; {_doubts(e, C)}")
    if e.C_low.min() > C:
        reasons.append(
            f"C = {C:.6g} lies below the smallest measured C = {e.C_low.min():.6g}: what is promised there is the curves' word alone"
        )


def _candidates(e: Ensemble, C: float, B_max: int | None, fix: Mapping[str, int]) -> list[Candidate]:
    """Measured cells, unstable ones too, within B_max and the fixed value, at the compute each would spend; best first."""
    found = []
    for i, (B_p, n) in enumerate(zip(e.B_p.tolist(), e.n.tolist(), strict=True)):
        B = B_p * n
        M = fix.get("M", int(C // B))
        if M < 1 or B * M > C or (B_max is not None and B_max < B) or fix.get("B_p", B_p) != B_p or fix.get("B", B) != B:
            continue
        spent = B * M if "M" in fix else C
        reward, draws = e.cell(i, spent)
        beyond, interval = bool(spent > e.C_high[i] * (1 + 1e-9)), e.interval(draws) or (None, None)
        found.append(Candidate(B_p, n, M, reward, beyond, *interval, bool(e.stable[i])))
    return sorted(found, key=lambda c: (-c.reward, c.n, c.B_p))


def _expect(e: Ensemble, a: Allocation, spent: FloatArray, allowed: BoolArray, reasons: list[str]) -> Best:
    """What to expect at a.C, from the cell of the allocation or the nearest measured one, beside the allowed cells."""
    i = e.nearest(a.B_p, a.n)
    B_p, n = int(e.B_p[i]), int(e.n[i])
    compared = allowed if allowed.any() else np.arange(len(e.n)) == i
    [found] = outlook(e, spent[None], compared[None], np.array([i]), np.array([a.C]))
    if (B_p, n) != (a.B_p, a.n):
        reasons.append(f"{a.B_p}x{a.n} has no curve: the expected reward is that of the nearest measured cell, {B_p}x{n}")
    if a.C > e.C_peak[i]:
        M = int(e.C_peak[i] // a.B)
        reasons.append(f"stop early: reward of {B_p}x{n} falls beyond C = {e.C_peak[i]:.4g} (M = {M}); what is expected is its peak")
    elif found.extrapolated:
        reasons.append(f"the expected reward is extrapolated: {B_p}x{n} was measured up to C = {e.C_high[i]:.6g}")
    return found


def _equal_n(e: Ensemble, a: Allocation, spent: FloatArray, allowed: BoolArray, epsilon: float) -> list[int]:
    """The epsilon-optimal set of n, rising; the recommended n alone where no measured cell may be chosen."""
    value = np.where(allowed, e.at(spent), -np.inf)
    good = allowed & (value >= value.max() - epsilon)
    return sorted(set(e.n[good].tolist())) or [a.n]


def _pair(low: float | None, high: float | None) -> Interval | None:
    return None if low is None or high is None else (low, high)


def recommend(
    fit: Mapping[str, Any],
    C: float,
    B_max: int | None = None,
    fix: Mapping[str, int] | None = None,
    extrapolate: bool = False,
    epsilon: float = EPSILON,
    compare: bool = True,
) -> Recommendation:
    """How to spend C rollouts.

    Args:
        fit: the content of fit.json, in rollouts.
        C: the budget, rollouts.
        B_max: the largest B_p n that may be used.
        fix: at most one of {"M": v}, {"B": v}, {"B_p": v}.
        extrapolate: answer beyond 4 times the largest measured C too.
        epsilon: a loss of reward that makes no difference.
        compare: whether to say what every measured cell promises, which takes as long as all the rest.

    Returns:
        An allocation with B_p n M <= C; the reward its nearest measured cell's curve gives there; the reasons in words.

    Raises:
        InputError: a fit that cannot be used, C too small for one update or beyond the reach of the data, or B_max and `fix` that leave
            no allocation.
    """
    fixed, reasons = dict(fix or {}), list[str]()
    _check(C, B_max, fixed, epsilon)
    e = Ensemble.load(fit)
    mode = _mode(fit)
    _check_reach(e, C, extrapolate, reasons)
    a = ALLOCATE[mode](fit, e, Request(C, B_max, fixed, epsilon, reasons))
    spent, allowed = (row[0] for row in affordable(e, np.array([C], dtype=np.float64), B_max, fixed))
    found, compared = _expect(e, a, spent, allowed, reasons), bool(allowed.any())
    base = fit.get("base_reward")
    if base is not None and found.reward < base:
        reasons.append(f"that is less than the base policy's {base:.3f}: these runs made it worse, and no training is the better choice")
    if e.no_effect:
        reasons.append(f"n makes no difference here: n = {a.n} has the best estimate, but take whichever n is fastest on your hardware")
    return Recommendation(
        allocation=a,
        expected_reward=found.reward,
        extrapolated=found.extrapolated,
        reasons=reasons,
        candidates=_candidates(e, C, B_max, fixed) if compare else [],
        interval=_pair(found.low, found.high),
        prediction_interval=_pair(found.new_low, found.new_high),
        n_probability=found.n_probability if compared else None,
        equal_n=_equal_n(e, a, spent, allowed, epsilon),
        regret=found.regret if compared else None,
        regret_interval=_pair(found.regret_low, found.regret_high) if compared else None,
        no_effect=e.no_effect,
        times_measured=C / e.measured,
        epsilon=epsilon,
        level=e.level,
    )
