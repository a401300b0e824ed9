"""The allocation of a hierarchical fit: n is that of the measured stable cell (B_p, n) that promises most, B_p the
smallest that promises within epsilon of it at that n (a knob for stability: IsoCompute Playbook, arXiv:2603.12151,
section 4.3), M = floor(C / (n B_p)).

With one of them fixed only the cells that agree are compared: a fixed M at what each would then spend, B_p n M <= C; a
fixed B those of B_p n = B. Where no cell agrees, n comes from the nearest cells and the rest follows from the budget.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from isojax.core.errors import InputError
from isojax.core.nouns import Allocation
from isojax.scaling.allocate.constraints import (
    AllocationRequest,
    allocate_updates,
    check_B_max,
    check_fixed,
    floor_power_of_two,
    smallest_stable_B_p,
    suggest_B_p,
    unstable_reasons,
)
from isojax.scaling.allocate.curve_ensemble import BoolArray, CurveEnsemble, FloatArray
from isojax.scaling.allocate.predictive import affordable_cells, choose_cells
from isojax.scaling.result import FitResult


def allocate(fit: FitResult, ensemble: CurveEnsemble, request: AllocationRequest) -> Allocation:
    """The allocation for a request, by the curves.

    Raises:
        InputError: no stable B_p, or limits that leave no allocation.
    """
    check_fixed(request)
    unstable_by_B_p = unstable_reasons(fit)
    if "B_p" in request.fix:
        check_B_max(request, request.fix["B_p"])
        request.add_reasons(f"B_p = {request.fix['B_p']}: given")
        unstable_reason = unstable_by_B_p.get(request.fix["B_p"])
        if unstable_reason is not None:
            request.add_reasons(f"B_p = {request.fix['B_p']} was unstable: {unstable_reason}")
    else:
        smallest_stable_B_p(unstable_by_B_p)
    C_spent, allowed = affordable_cells(ensemble, np.array([request.C]), request.B_max, request.fix)
    cell_index = int(choose_cells(ensemble, C_spent, allowed, request.epsilon)[0])
    if cell_index < 0:
        return _allocate_unmeasured(ensemble, request)
    allocation = Allocation(
        int(ensemble.B_p[cell_index]),
        int(ensemble.n[cell_index]),
        request.fix["M"] if "M" in request.fix else int(request.C // ensemble.B[cell_index]),
    )
    _explain_choice(ensemble, request, allocation, C_spent[0], allowed[0], unstable_by_B_p)
    return allocation


def _explain_choice(
    ensemble: CurveEnsemble,
    request: AllocationRequest,
    allocation: Allocation,
    C_spent: FloatArray,
    allowed: BoolArray,
    unstable_by_B_p: Mapping[int, str | None],
) -> None:
    """Why this cell."""
    expected_rewards, allowed_cells = ensemble.expected_at_cell_budgets(C_spent), np.flatnonzero(allowed)
    best_cell = allowed_cells[expected_rewards[allowed_cells].argmax()]
    kind_text = "measured" if "B_p" in request.fix else "stable measured"
    limits = {"M": "B_p n M <= C", "B": f"B_p n = {request.fix.get('B')}", "B_p": f"B_p = {request.fix.get('B_p')}"}
    limits_text = "".join(f" with {limits[name]}" for name in request.fix) + (
        f" and B_p n <= {request.B_max}" if request.B_max is not None else ""
    )
    cells_text = f"{len(allowed_cells)} {kind_text} {'cell' if len(allowed_cells) == 1 else 'cells'}{limits_text}"
    request.add_reasons(
        f"n = {allocation.n}: of {cells_text}, {ensemble.B_p[best_cell]}x{ensemble.n[best_cell]} promises most "
        f"({expected_rewards[best_cell]:.3f})"
    )
    if "B_p" not in request.fix:
        best_B_p = int(ensemble.B_p[best_cell])
        B_p_explanation = _explain_B_p(ensemble, request, allocation, best_B_p, allowed_cells.tolist())
        request.add_reasons(f"B_p = {allocation.B_p}: {B_p_explanation}{smallest_stable_B_p(unstable_by_B_p)[1]}")
    M_text = (
        f"M = {allocation.M}: given; {allocation.C:,} of {request.C:,.0f} rollouts are spent"
        if "M" in request.fix
        else f"M = floor(C / (n B_p)) = {allocation.M}"
    )
    request.add_reasons(M_text)
    _name_extrapolated_n(ensemble, request, allocation, C_spent, allowed_cells)


def _name_extrapolated_n(
    ensemble: CurveEnsemble,
    request: AllocationRequest,
    allocation: Allocation,
    C_spent: FloatArray,
    allowed_cells: NDArray[np.intp],
) -> None:
    """Name the other n that were compared beyond their data: runs of equally many updates leave the largest n alone at
    large C.
    """
    C_end_by_n = {}
    for n in sorted(set(ensemble.n[allowed_cells].tolist()) - {allocation.n}):
        cells_of_n = allowed_cells[ensemble.n[allowed_cells] == n]
        if (C_spent[cells_of_n] > ensemble.C_high[cells_of_n] * (1 + 1e-9)).all():
            C_end_by_n[n] = float(ensemble.C_high[cells_of_n].max())
    if C_end_by_n:
        ends = ", ".join(f"n = {n} (measured up to C = {C:.4g})" for n, C in C_end_by_n.items())
        request.add_reasons(f"compared by their curves' word alone, beyond their data: {ends}")


def _explain_B_p(
    ensemble: CurveEnsemble, request: AllocationRequest, allocation: Allocation, best_B_p: int, allowed_cells: list[int]
) -> str:
    """Why this B_p, where the best cell has B_p = top and the cells `there` may be chosen."""
    if allocation.B_p != best_B_p:
        return f"the smallest stable one that promises within {request.epsilon:g} of it"
    if any(ensemble.n[i] == allocation.n and ensemble.B_p[i] < allocation.B_p for i in allowed_cells):
        return f"a smaller one gives away more than {request.epsilon:g}"
    return f"the smallest stable one measured at n = {allocation.n}"


def _allocate_unmeasured(ensemble: CurveEnsemble, request: AllocationRequest) -> Allocation:
    """Where no stable measured cell agrees with the limits."""
    if "M" in request.fix:
        M = request.fix["M"]
        B = int(request.C // M) if request.B_max is None else min(int(request.C // M), request.B_max)
        n = _nearest_n(ensemble, request, ensemble.stable, B)
        request.add_reasons(
            f"M = {M}: given; no stable measured cell has B_p n <= {B}, so B_p = floor({B} / n) = {B // n}"
        )
        return Allocation(B // n, n, M)
    if "B" in request.fix:
        B = request.fix["B"]
        n = _nearest_n(ensemble, request, ensemble.stable, B)
        allocation = allocate_updates(B // n, n, request.C)
        request.add_reasons(
            f"B = {B}: given; no stable measured cell has it, so B_p = B // n = {allocation.B_p} and M = floor(C / "
            f"(n B_p)) = {allocation.M}"
        )
        return allocation
    if "B_p" in request.fix and request.fix["B_p"] not in ensemble.B_p:
        B_p = request.fix["B_p"]
        nearest_B_p = int(min(set(ensemble.B_p.tolist()), key=lambda b: (abs(np.log2(b / B_p)), b)))
        request.add_reasons(f"B_p = {B_p} has no curve: n is chosen as at the nearest, B_p = {nearest_B_p}")
        n = _nearest_n(
            ensemble,
            request,
            ensemble.B_p == nearest_B_p,
            int(min(request.C, np.inf if request.B_max is None else request.B_max)) // B_p,
        )
        return allocate_updates(B_p, n, request.C)
    is_candidate = ensemble.B_p == request.fix["B_p"] if "B_p" in request.fix else ensemble.stable
    if not is_candidate.any():
        measured_text = (
            f"the cells with a curve have B_p = {', '.join(map(str, sorted(set(ensemble.B_p.tolist()))))}, all unstable"
        )
        raise InputError(
            f"no stable measured cell has a curve ({measured_text}); expected one. {suggest_B_p(ensemble.B_p.tolist())}"
        )
    smallest_cell = int(np.where(is_candidate, ensemble.B, np.iinfo(np.int64).max).argmin())
    B_p, n, smallest_B = (
        int(ensemble.B_p[smallest_cell]),
        int(ensemble.n[smallest_cell]),
        int(ensemble.B[smallest_cell]),
    )
    if request.B_max is not None and request.B_max < smallest_B:
        problem = f"B_max = {request.B_max} is below every {'' if 'B_p' in request.fix else 'stable '}measured cell"
        raise InputError(
            f"{problem}, of which {B_p}x{n} is the smallest; expected B_max >= {smallest_B}. Raise B_max, or fix a "
            "smaller B_p."
        )
    return allocate_updates(B_p, n, request.C)


def _nearest_n(ensemble: CurveEnsemble, request: AllocationRequest, is_candidate: BoolArray, n_max: int) -> int:
    """The n <= at_most whose best cell of `among` promises most at C; where none was measured, the power of two below
    `at_most`.
    """
    fitting_cells = np.flatnonzero(is_candidate & (ensemble.n <= n_max))
    if not len(fitting_cells):
        n = floor_power_of_two(max(1, n_max))
        request.add_reasons(f"n = {n}: no n <= {n_max} was measured")
        return n
    best_cell = fitting_cells[ensemble.expected_rewards(request.C)[fitting_cells].argmax()]
    request.add_reasons(
        f"n = {ensemble.n[best_cell]}: of the measured n <= {n_max}, "
        f"{ensemble.B_p[best_cell]}x{ensemble.n[best_cell]} promises most at C"
    )
    return int(ensemble.n[best_cell])
