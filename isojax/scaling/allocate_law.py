"""The paper's allocation (IsoCompute Playbook, arXiv:2603.12151, section 4.3): n from n*(C), the smallest stable B_p, the rest to
M = floor(C / (n B_p)).

With one of them fixed: a fixed B_p has its own n*(C); a fixed B = B_p n follows n*(C) with B_p = B // n; a fixed M takes the measured
(B_p, n) with B_p n M <= C whose curve promises most at B_p n M, or, where none fits, n from n*(C) and B_p = floor(C / (n M)).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isojax.scaling.ensemble import Ensemble
from isojax.scaling.law import Law, log2_n_star
from isojax.scaling.request import Request, check_B_max, check_fixed, power_of_two, smallest_stable, spend, unstable_reasons
from isojax.types import Allocation, InputError


@dataclass(frozen=True)
class _Part:
    """A law and the range of C of the frontier it was fitted to."""

    law: Law
    C_low: float
    C_high: float


@dataclass(frozen=True)
class _Laws:
    """The joint law, those of each B_p, and the n that were measured, rising."""

    joint: _Part
    by_B_p: Mapping[int, _Part]
    n: tuple[int, ...]
    stability: Mapping[int, str | None]
    cells: Ensemble


def _part(d: Mapping[str, Any]) -> _Part:
    s, f = d["n_star"], d["frontier"]
    return _Part(Law(s["form"], s["L"], s["k"], s["log10_C0"], s["b"]), f[0]["C"], f[-1]["C"])


def _n(f: _Laws, part: _Part, r: Request, at_most: int | None, why: str) -> int:
    """n*(C) as a power of two, within the measured n inside the measured range of C; then at most `at_most`, because of `why`."""
    exact = float(log2_n_star(part.law, r.C))
    n = 1 << max(0, round(exact))
    r.say(f"n*({r.C:.6g}) = {2**exact:.3g}, as a power of two {n}")
    if part.C_low * (1 - 1e-9) <= r.C <= part.C_high * (1 + 1e-9):
        clipped = min(max(n, f.n[0]), f.n[-1])
        if clipped != n:
            r.say(f"n = {clipped}: only {f.n[0]} to {f.n[-1]} were measured")
        n = clipped
    else:
        top = 2 ** (part.law.b + part.law.L)
        seen = f"({part.C_low:.6g} to {part.C_high:.6g})"
        r.say(f"C lies outside the frontier {seen}: n is the law's word alone, which saturates at {top:.3g}")
        if not f.n[0] <= n <= f.n[-1]:
            r.say(f"n = {n} was never measured ({f.n[0]} to {f.n[-1]} were)")
    if at_most is not None and n > at_most:
        n = power_of_two(at_most)
        r.say(f"n = {n}: {why}")
    return n


def _with_B_p(f: _Laws, part: _Part, r: Request, B_p: int) -> Allocation:
    check_B_max(r, B_p)
    at_most = None if r.B_max is None else r.B_max // B_p
    n = _n(f, part, r, at_most, f"B_max = {r.B_max} allows no more at B_p = {B_p}")
    allocation = spend(B_p, n, r.C)
    r.say(f"M = floor(C / (n B_p)) = {allocation.M}")
    return allocation


def _free(f: _Laws, r: Request) -> Allocation:
    B_p, passed_over = smallest_stable(f.stability)
    r.say(f"B_p = {B_p}: the smallest stable one measured{passed_over}")
    return _with_B_p(f, f.joint, r, B_p)


def _fixed_B_p(f: _Laws, r: Request, B_p: int) -> Allocation:
    r.say(f"B_p = {B_p}: given")
    part = f.by_B_p.get(B_p)
    if part is None:
        known = ", ".join(map(str, sorted(f.by_B_p)))
        r.say(f"B_p = {B_p} has no law of its own (there is one for {known}): the joint n*(C) is used")
    why = f.stability.get(B_p)
    if why is not None:
        r.say(f"B_p = {B_p} was unstable: {why}")
    return _with_B_p(f, part or f.joint, r, B_p)


def _fixed_B(f: _Laws, r: Request, B: int) -> Allocation:
    n = _n(f, f.joint, r, B, f"B = {B} holds no more")
    allocation = spend(B // n, n, r.C)
    r.say(f"B = {B}: given, so B_p = B // n = {allocation.B_p} and M = floor(C / (n B_p)) = {allocation.M}")
    return allocation


def _fixed_M(f: _Laws, r: Request, M: int) -> Allocation:
    B = int(r.C // M) if r.B_max is None else min(int(r.C // M), r.B_max)
    cells = f.cells
    fits = [i for i in range(len(cells.n)) if cells.B[i] <= B and f.stability.get(int(cells.B_p[i])) is None]
    if fits:
        rewards = cells.at((cells.B * M).astype(np.float64))
        best = max(fits, key=lambda i: (rewards[i], -cells.n[i], -cells.B_p[i]))
        chosen = Allocation(int(cells.B_p[best]), int(cells.n[best]), M)
        given = f"M = {M}: given; of {len(fits)} stable cells with B_p n <= {B}"
        r.say(f"{given}, {chosen.B_p}x{chosen.n} promises most at C = {chosen.C}")
        return chosen
    n = _n(f, f.joint, r, B, f"B_p n M <= C and B_max leave B = {B}")
    r.say(f"M = {M}: given; no stable measured cell has B_p n <= {B}, so n is n*(C) and B_p = floor({B} / n) = {B // n}")
    return Allocation(B // n, n, M)


def allocate(fit: Mapping[str, Any], cells: Ensemble, r: Request) -> Allocation:
    """The paper's allocation for a request.

    Raises:
        InputError: an incomplete fit, no stable B_p, or limits that leave no allocation.
    """
    check_fixed(r)
    try:
        by_B_p = {p["B_p"]: _part(p) for p in fit["by_B_p"]}
        n = tuple(sorted({row["n"] for row in fit["runs"]}))
        f = _Laws(_part(fit), by_B_p, n, unstable_reasons(fit), cells)
    except (KeyError, TypeError, IndexError) as e:
        raise InputError(f"the fit is incomplete ({e!r}); expected every key of fit.json. Run `isojax fit` again.") from e
    if "M" in r.fix:
        return _fixed_M(f, r, r.fix["M"])
    if "B" in r.fix:
        return _fixed_B(f, r, r.fix["B"])
    if "B_p" in r.fix:
        return _fixed_B_p(f, r, r.fix["B_p"])
    return _free(f, r)
