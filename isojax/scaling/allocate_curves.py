"""The allocation of a debiased fit: n is that of the measured stable cell (B_p, n) that promises most, B_p the smallest that promises
within epsilon of it at that n (a knob for stability: IsoCompute Playbook, arXiv:2603.12151, section 4.3), M = floor(C / (n B_p)).

With one of them fixed only the cells that agree are compared: a fixed M at what each would then spend, B_p n M <= C; a fixed B those of
B_p n = B. Where no cell agrees, n comes from the nearest cells and the rest follows from the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.ensemble import BoolArray, Ensemble, FloatArray
from isojax.scaling.predict import affordable, choose
from isojax.scaling.request import Request, check_B_max, check_fixed, choose_B_p, power_of_two, smallest_stable, spend, unstable_reasons
from isojax.types import Allocation, InputError


def allocate(fit: Mapping[str, Any], cells: Ensemble, r: Request) -> Allocation:
    """The allocation for a request, by the curves.

    Raises:
        InputError: no stable B_p, or limits that leave no allocation.
    """
    check_fixed(r)
    stability = unstable_reasons(fit)
    if "B_p" in r.fix:
        check_B_max(r, r.fix["B_p"])
        r.say(f"B_p = {r.fix['B_p']}: given")
        why = stability.get(r.fix["B_p"])
        if why is not None:
            r.say(f"B_p = {r.fix['B_p']} was unstable: {why}")
    else:
        smallest_stable(stability)
    spent, allowed = affordable(cells, np.array([r.C]), r.B_max, r.fix)
    i = int(choose(cells, spent, allowed, r.epsilon)[0])
    if i < 0:
        return _unmeasured(cells, r)
    chosen = Allocation(int(cells.B_p[i]), int(cells.n[i]), r.fix["M"] if "M" in r.fix else int(r.C // cells.B[i]))
    _explain(cells, r, chosen, spent[0], allowed[0], stability)
    return chosen


def _explain(e: Ensemble, r: Request, a: Allocation, spent: FloatArray, allowed: BoolArray, stability: Mapping[int, str | None]) -> None:
    """Why this cell."""
    value, there = e.at(spent), np.flatnonzero(allowed)
    top = there[value[there].argmax()]
    kind = "measured" if "B_p" in r.fix else "stable measured"
    limits = {"M": "B_p n M <= C", "B": f"B_p n = {r.fix.get('B')}", "B_p": f"B_p = {r.fix.get('B_p')}"}
    which = "".join(f" with {limits[name]}" for name in r.fix) + (f" and B_p n <= {r.B_max}" if r.B_max is not None else "")
    cells = f"{len(there)} {kind} {'cell' if len(there) == 1 else 'cells'}{which}"
    r.say(f"n = {a.n}: of {cells}, {e.B_p[top]}x{e.n[top]} promises most ({value[top]:.3f})")
    if "B_p" not in r.fix:
        r.say(f"B_p = {a.B_p}: {_why_B_p(e, r, a, int(e.B_p[top]), there.tolist())}{smallest_stable(stability)[1]}")
    M = f"M = {a.M}: given; {a.C:,} of {r.C:,.0f} rollouts are spent" if "M" in r.fix else f"M = floor(C / (n B_p)) = {a.M}"
    r.say(M)
    _not_measured_so_far(e, r, a, spent, there)


def _not_measured_so_far(e: Ensemble, r: Request, a: Allocation, spent: FloatArray, there: NDArray[np.intp]) -> None:
    """Name the other n that were compared beyond their data: runs of equally many updates leave the largest n alone at large C."""
    short = {}
    for n in sorted(set(e.n[there].tolist()) - {a.n}):
        own = there[e.n[there] == n]
        if (spent[own] > e.C_high[own] * (1 + 1e-9)).all():
            short[n] = float(e.C_high[own].max())
    if short:
        ends = ", ".join(f"n = {n} (measured up to C = {C:.4g})" for n, C in short.items())
        r.say(f"compared by their curves' word alone, beyond their data: {ends}")


def _why_B_p(e: Ensemble, r: Request, a: Allocation, top: int, there: list[int]) -> str:
    """Why this B_p, where the best cell has B_p = top and the cells `there` may be chosen."""
    if a.B_p != top:
        return f"the smallest stable one that promises within {r.epsilon:g} of it"
    if any(e.n[i] == a.n and e.B_p[i] < a.B_p for i in there):
        return f"a smaller one gives away more than {r.epsilon:g}"
    return f"the smallest stable one measured at n = {a.n}"


def _unmeasured(e: Ensemble, r: Request) -> Allocation:
    """Where no stable measured cell agrees with the limits."""
    if "M" in r.fix:
        M = r.fix["M"]
        B = int(r.C // M) if r.B_max is None else min(int(r.C // M), r.B_max)
        n = _nearest_n(e, r, e.stable, B)
        r.say(f"M = {M}: given; no stable measured cell has B_p n <= {B}, so B_p = floor({B} / n) = {B // n}")
        return Allocation(B // n, n, M)
    if "B" in r.fix:
        B = r.fix["B"]
        n = _nearest_n(e, r, e.stable, B)
        chosen = spend(B // n, n, r.C)
        r.say(f"B = {B}: given; no stable measured cell has it, so B_p = B // n = {chosen.B_p} and M = floor(C / (n B_p)) = {chosen.M}")
        return chosen
    if "B_p" in r.fix and r.fix["B_p"] not in e.B_p:
        B_p = r.fix["B_p"]
        near = int(min(set(e.B_p.tolist()), key=lambda b: (abs(np.log2(b / B_p)), b)))
        r.say(f"B_p = {B_p} has no curve: n is chosen as at the nearest, B_p = {near}")
        n = _nearest_n(e, r, e.B_p == near, int(min(r.C, np.inf if r.B_max is None else r.B_max)) // B_p)
        return spend(B_p, n, r.C)
    among = e.B_p == r.fix["B_p"] if "B_p" in r.fix else e.stable
    if not among.any():
        there = f"the cells with a curve have B_p = {', '.join(map(str, sorted(set(e.B_p.tolist()))))}, all unstable"
        raise InputError(f"no stable measured cell has a curve ({there}); expected one. {choose_B_p(e.B_p.tolist())}")
    smallest = int(np.where(among, e.B, np.iinfo(np.int64).max).argmin())
    B_p, n, least = int(e.B_p[smallest]), int(e.n[smallest]), int(e.B[smallest])
    if r.B_max is not None and r.B_max < least:
        given = f"B_max = {r.B_max} is below every {'' if 'B_p' in r.fix else 'stable '}measured cell"
        raise InputError(f"{given}, of which {B_p}x{n} is the smallest; expected B_max >= {least}. Raise B_max, or fix a smaller B_p.")
    return spend(B_p, n, r.C)


def _nearest_n(e: Ensemble, r: Request, among: BoolArray, at_most: int) -> int:
    """The n <= at_most whose best cell of `among` promises most at C; where none was measured, the power of two below `at_most`."""
    fits = np.flatnonzero(among & (e.n <= at_most))
    if not len(fits):
        n = power_of_two(max(1, at_most))
        r.say(f"n = {n}: no n <= {at_most} was measured")
        return n
    i = fits[e.expected(r.C)[fits].argmax()]
    r.say(f"n = {e.n[i]}: of the measured n <= {at_most}, {e.B_p[i]}x{e.n[i]} promises most at C")
    return int(e.n[i])
