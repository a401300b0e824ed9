"""The allocation of a hierarchical fit: n of the stable cell whose curve is highest, the smallest B_p within epsilon of
it at that n, M = floor(C / (n B_p)) (IsoCompute Playbook, arXiv:2603.12151, section 4.3). A fixed M or B restricts the
cells; where none agrees, n comes from the nearest cells.
"""

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import Allocation
from isojax.scaling.allocate import constraints
from isojax.scaling.allocate.constraints import AllocationRequest
from isojax.scaling.allocate.curve_ensemble import BoolArray, CurveEnsemble, FloatArray
from isojax.scaling.result import FitResult


def allocate(fit: FitResult, ensemble: CurveEnsemble, request: AllocationRequest) -> Allocation:
    """The allocation for a request, by the curves; refused where no B_p is stable, or limits leave no allocation."""
    unstable_text = ""
    if "B_p" in request.fix:
        constraints.take_fixed_B_p(fit, request)
    else:
        _, unstable_text = constraints.smallest_stable_B_p(fit)
    C_spent, allowed = ensemble.allowed_cells(request)
    if not allowed.any():
        return _allocate_unmeasured(ensemble, request)
    chosen_cell = ensemble.choose_cell(C_spent, allowed, request.epsilon)
    B_p, n, C = int(ensemble.B_p[chosen_cell]), int(ensemble.n[chosen_cell]), request.C
    M = request.fix.get("M", int(C // (B_p * n)))
    _explain_cell(ensemble, request, chosen_cell, C_spent, allowed, unstable_text)
    M_text = (
        f"M = {M}: given; {B_p * n * M:,} of {C:,.0f} rollouts are spent"
        if "M" in request.fix
        else f"M = floor(C / (n B_p)) = {M}"
    )
    request.reasons.append(M_text)
    _name_extrapolated_n(ensemble, request, n, C_spent, allowed)
    return Allocation(B_p, n, M)


def _explain_cell(
    ensemble: CurveEnsemble,
    request: AllocationRequest,
    chosen_cell: int,
    C_spent: FloatArray,
    allowed: BoolArray,
    unstable_text: str,
) -> None:
    """Why this n and, unless it is given, this B_p."""
    expected_rewards = np.where(allowed, ensemble.expected_at_cell_budgets(C_spent), -np.inf)
    best_cell, fix = int(expected_rewards.argmax()), request.fix
    limits = {"M": "B_p n M <= C", "B": f"B_p n = {fix.get('B')}", "B_p": f"B_p = {fix.get('B_p')}"}
    limits_text = "".join(f" with {limits[name]}" for name in fix)
    if request.B_max is not None:
        limits_text += f" and B_p n <= {request.B_max}"
    kind_text = ("" if "B_p" in fix else "stable ") + ("measured cell" if allowed.sum() == 1 else "measured cells")
    B_p, n, best_B_p = ensemble.B_p[chosen_cell], ensemble.n[chosen_cell], ensemble.B_p[best_cell]
    request.reasons.append(
        f"n = {n}: of {allowed.sum()} {kind_text}{limits_text}, {best_B_p}x{n} has the highest predicted reward "
        f"({expected_rewards[best_cell]:.3f})"
    )
    if "B_p" in fix:
        return
    if B_p != best_B_p:
        B_p_text = f"the smallest stable one whose predicted reward is within {request.epsilon:g} of its"
    elif (allowed & (ensemble.n == n) & (ensemble.B_p < B_p)).any():
        B_p_text = f"a smaller one gives away more than {request.epsilon:g}"
    else:
        B_p_text = f"the smallest stable one measured at n = {n}"
    request.reasons.append(f"B_p = {B_p}: {B_p_text}{unstable_text}")


def _name_extrapolated_n(
    ensemble: CurveEnsemble, request: AllocationRequest, chosen_n: int, C_spent: FloatArray, allowed: BoolArray
) -> None:
    """Name the other n that were compared beyond their data, as those of runs of equally many updates are."""
    ends = []
    for n in sorted(set(ensemble.n[allowed].tolist()) - {chosen_n}):
        cells_of_n = allowed & (ensemble.n == n)
        if (C_spent[cells_of_n] > ensemble.samples.C_high[cells_of_n] * (1 + 1e-9)).all():
            ends.append(f"n = {n} (measured up to C = {ensemble.samples.C_high[cells_of_n].max():.4g})")
    if ends:
        request.reasons.append(f"compared by their fitted curves beyond their data: {', '.join(ends)}")


def _allocate_unmeasured(ensemble: CurveEnsemble, request: AllocationRequest) -> Allocation:
    """Where no stable measured cell agrees with the limits."""
    if "M" in request.fix:
        M = request.fix["M"]
        B = request.largest_B(M)
        n = _nearest_n(ensemble, request, ensemble.stable, B)
        request.reasons.append(
            f"M = {M}: given; no stable measured cell has B_p n <= {B}, so B_p = floor({B} / n) = {B // n}"
        )
        return Allocation(B // n, n, M)
    if "B" in request.fix:
        B = request.fix["B"]
        n = _nearest_n(ensemble, request, ensemble.stable, B)
        allocation = constraints.allocate_updates(B // n, n, request.C)
        request.reasons.append(
            f"B = {B}: given; no stable measured cell has it, so B_p = B // n = {allocation.B_p} and M = floor(C / "
            f"(n B_p)) = {allocation.M}"
        )
        return allocation
    if "B_p" in request.fix and request.fix["B_p"] not in ensemble.B_p:
        B_p = request.fix["B_p"]
        nearest_B_p = int(min(set(ensemble.B_p.tolist()), key=lambda b: (abs(np.log2(b / B_p)), b)))
        request.reasons.append(f"B_p = {B_p} has no curve: n is chosen as at the nearest, B_p = {nearest_B_p}")
        n = _nearest_n(ensemble, request, ensemble.B_p == nearest_B_p, request.largest_B(1) // B_p)
        return constraints.allocate_updates(B_p, n, request.C)
    return _allocate_smallest_cell(ensemble, request)


def _allocate_smallest_cell(ensemble: CurveEnsemble, request: AllocationRequest) -> Allocation:
    """Where even the smallest measured cell is too large for the budget or for B_max: the refusal says by how much."""
    is_candidate = ensemble.B_p == request.fix["B_p"] if "B_p" in request.fix else ensemble.stable
    if not is_candidate.any():
        B_p_text = ", ".join(map(str, sorted(set(ensemble.B_p.tolist()))))
        raise InputError(
            f"no stable measured cell has a curve (the cells with a curve have B_p = {B_p_text}, all unstable); "
            f"expected one. {constraints.suggest_B_p(ensemble.B_p.tolist())}"
        )
    smallest_cell = int(np.where(is_candidate, ensemble.B, np.iinfo(np.int64).max).argmin())
    B_p, n = int(ensemble.B_p[smallest_cell]), int(ensemble.n[smallest_cell])
    if request.B_max is not None and request.B_max < B_p * n:
        problem = f"B_max = {request.B_max} is below every {'' if 'B_p' in request.fix else 'stable '}measured cell"
        raise InputError(
            f"{problem}, of which {B_p}x{n} is the smallest; expected B_max >= {B_p * n}. Raise B_max, or fix a "
            "smaller B_p."
        )
    return constraints.allocate_updates(B_p, n, request.C)


def _nearest_n(ensemble: CurveEnsemble, request: AllocationRequest, is_candidate: BoolArray, n_max: int) -> int:
    """The n <= n_max with the highest predicted reward at C; where none was measured, the power of two below n_max."""
    is_allowed = is_candidate & (ensemble.n <= n_max)
    if not is_allowed.any():
        n = constraints.floor_power_of_two(max(1, n_max))
        request.reasons.append(f"n = {n}: no n <= {n_max} was measured")
        return n
    best_cell = int(np.where(is_allowed, ensemble.expected_rewards(request.C), -np.inf).argmax())
    n = int(ensemble.n[best_cell])
    request.reasons.append(
        f"n = {n}: of the measured n <= {n_max}, {ensemble.B_p[best_cell]}x{n} has the highest predicted reward at C"
    )
    return n
