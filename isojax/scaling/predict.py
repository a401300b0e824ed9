"""What a fit promises at any budget of C rollouts, from fit.json alone: NumPy, and every budget at once.

The choice follows the paper's rule for B_p (IsoCompute Playbook, arXiv:2603.12151, section 4.3): it is a knob for stability, so take the
smallest stable one; here only among those that give away at most `epsilon` of reward. n is that of the best cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling.ensemble import BoolArray, Ensemble, FloatArray, IntArray
from isojax.scaling.request import EPSILON, choose_B_p
from isojax.types import InputError

# Budgets taken at once, which bounds the memory of [budgets, replicates, cells].
_BLOCK = 64
MEASURED = 1.05  # runs end at their last evaluation, a little before the budget


@dataclass(frozen=True)
class Best:
    """The measured cell to spend a budget on.

    Attributes:
        n, B_p, M, C: the allocation, and what it spends: C = B_p n M.
        reward: to expect after C rollouts.
        low, high: interval of that expected reward (None without draws).
        new_low, new_high: interval of the reward that one new run will measure on the same problems, its luck and noise included.
        n_probability: how often each n holds the best cell, over the draws.
        regret: expected loss against the best measured cell at this budget, over the draws; without draws, by the curves alone.
        regret_low, regret_high: its interval.
        extrapolated: C lies beyond the cell's data.
    """

    n: int
    B_p: int
    M: int
    C: int
    reward: float
    low: float | None
    high: float | None
    new_low: float | None
    new_high: float | None
    n_probability: dict[int, float] | None
    regret: float
    regret_low: float | None
    regret_high: float | None
    extrapolated: bool


def affordable(e: Ensemble, C: FloatArray, B_max: int | None, fix: Mapping[str, int]) -> tuple[FloatArray, BoolArray]:
    """What each cell would spend at budgets C, float[budgets], and whether it may be chosen: both [budgets, cells].

    A fixed M spends B_p n M, else all of C. A cell is out where one update costs more than C, above B_max, off the fixed value, or
    where its B_p is unstable (a fixed B_p is the user's own choice).
    """
    spent = np.broadcast_to(e.B.astype(np.float64) * fix["M"] if "M" in fix else C[:, None], (len(C), len(e.n)))
    allowed = (spent <= C[:, None]) & (e.B <= C[:, None]) & (e.B <= (np.inf if B_max is None else B_max))
    allowed &= e.B == fix["B"] if "B" in fix else True
    allowed &= e.B_p == fix["B_p"] if "B_p" in fix else e.stable
    return spent, allowed


def choose(e: Ensemble, spent: FloatArray, allowed: BoolArray, epsilon: float) -> IntArray:
    """The cell of each budget, int[budgets]; -1 where none is allowed. n is that of the best allowed cell (the smaller of equals); of
    the B_p at that n within `epsilon` of it, the smallest, measured ones before those whose curve would be read beyond its data."""
    value = np.where(allowed, e.at(spent), -np.inf)
    top = value.argmax(1)
    good = allowed & (e.n == e.n[top][:, None]) & (value >= value.max(1, keepdims=True) - epsilon)
    measured = good & (spent <= e.C_high * MEASURED)
    good = np.where(measured.any(1, keepdims=True), measured, good)
    return np.where(allowed.any(1), good.argmax(1), -1)


def outlook(e: Ensemble, spent: FloatArray, allowed: BoolArray, chosen: IntArray, C: IntArray) -> list[Best]:
    """What to expect of each budget's chosen cell, beside the cells allowed there.

    Args:
        spent: float[budgets, cells]. allowed: bool[budgets, cells], at least one a budget.
        chosen: int[budgets], a cell; it may be one that is not allowed.
        C: int[budgets], the rollouts that are spent in it.
    """
    found: list[Best] = []
    for start in range(0, len(chosen), _BLOCK):
        part = slice(start, start + _BLOCK)
        values, draws = e.at(spent[part]), e.draws_at(spent[part])
        found += [_outlook(e, *row) for row in zip(values, draws, allowed[part], chosen[part].tolist(), C[part].tolist(), strict=True)]
    return found


def _outlook(e: Ensemble, value: FloatArray, draws: FloatArray, allowed: BoolArray, i: int, C: int) -> Best:
    B_p, n = int(e.B_p[i]), int(e.n[i])
    reward, own = e.cell(i, C)
    loss, share = (draws[:, allowed].max(1) - draws[:, i]).clip(0), None
    if e.replicates:
        leaders = e.n[np.where(allowed, draws, -np.inf).argmax(1)]
        share = {m: float(np.mean(leaders == m)) for m in np.unique(e.n[allowed]).tolist()}
    low, high = e.interval(own) or (None, None)
    new_low, new_high = new_run(e, i, reward, *(e.interval(e.cell(i, C, same_problems=True)[1]) or (None, None)))
    regret = float(loss.mean() if e.replicates else max(0.0, value[allowed].max() - value[i]))
    beyond = bool(C > e.C_high[i] * (1 + 1e-9))
    return Best(n, B_p, C // (B_p * n), C, reward, low, high, new_low, new_high, share, regret, *(e.interval(loss) or (None, None)), beyond)


def new_run(e: Ensemble, i: int, reward: float, low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The interval of one new run's measured reward in cell i, on the same problems: the spread of its expectation there (low to high) on
    each side of `reward`, and the noise, in quadrature."""
    if low is None or high is None:
        return None, None
    own = NormalDist().inv_cdf(0.5 + e.level / 2) * e.noise(i)
    down, up = np.hypot(max(0.0, reward - low), own), np.hypot(max(0.0, high - reward), own)
    return float(max(0.0, reward - down)), float(min(1.0, reward + up))


def sweep(
    fit: Mapping[str, Any] | Ensemble,
    C: ArrayLike,
    B_max: int | None = None,
    fix: Mapping[str, int] | None = None,
    epsilon: float = EPSILON,
) -> list[Best | None]:
    """The measured cell to spend each of many budgets on.

    Args:
        fit: the content of fit.json in rollouts, or its Ensemble.
        C: float[budgets] > 0, rollouts.
        B_max: the largest B_p n that may be used.
        fix: at most one of {"M": v}, {"B": v}, {"B_p": v}.
        epsilon: reward that a smaller B_p may cost.

    Returns:
        One a budget; None where no measured stable cell may be chosen.

    Raises:
        InputError: a fit that cannot be used.
    """
    e = fit if isinstance(fit, Ensemble) else Ensemble.load(fit)
    budgets, fixed = np.atleast_1d(np.asarray(C, dtype=np.float64)), dict(fix or {})
    spent, allowed = affordable(e, budgets, B_max, fixed)
    chosen = choose(e, spent, allowed, epsilon)
    there = chosen >= 0
    B = e.B[chosen[there]]
    M = fixed["M"] if "M" in fixed else (budgets[there] // B).astype(np.int64)
    found = iter(outlook(e, spent[there], allowed[there], chosen[there], B * M))
    return [next(found) if is_there else None for is_there in there]


def best(
    fit: Mapping[str, Any] | Ensemble, C: float, B_max: int | None = None, fix: Mapping[str, int] | None = None, epsilon: float = EPSILON
) -> Best:
    """`sweep` for one budget.

    Raises:
        InputError: a fit that cannot be used, or no measured stable cell may be chosen.
    """
    e = fit if isinstance(fit, Ensemble) else Ensemble.load(fit)
    [found] = sweep(e, [C], B_max, fix, epsilon)
    if found is None:
        limits = ", ".join(f"{k} = {v}" for k, v in {"C": f"{C:.6g}", "B_max": B_max, **dict(fix or {})}.items() if v is not None)
        mend = "Raise C or B_max, or fix another value." if e.stable.any() or "B_p" in (fix or {}) else choose_B_p(e.B_p.tolist())
        raise InputError(f"no stable measured cell may be chosen at {limits}; expected at least one. {mend}")
    return found
