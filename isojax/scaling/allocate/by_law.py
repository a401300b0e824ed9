"""The paper's allocation (IsoCompute Playbook, arXiv:2603.12151, section 4.3): n from n*(C), the smallest stable B_p,
M = floor(C / (n B_p)). A fixed B_p has its own n*(C); a fixed B sets B_p = B // n; a fixed M takes the best cell with
B_p n M <= C, or, where none fits, n*(C) and B_p = floor(C / (n M)).
"""

import numpy as np

from isojax.core.nouns import Allocation
from isojax.scaling.allocate import constraints
from isojax.scaling.allocate.constraints import AllocationRequest
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import FitResult, FrontierFit


def allocate(fit: FitResult, ensemble: CurveEnsemble, request: AllocationRequest) -> Allocation:
    """The paper's allocation for a request; refused where no B_p is stable, or limits leave no allocation."""
    if "M" in request.fix:
        return _allocate_fixed_M(fit, ensemble, request, request.fix["M"])
    if "B" in request.fix:
        B = request.fix["B"]
        n = _choose_n(fit, fit.joint, request, B, f"B = {B} holds no more")
        allocation = constraints.allocate_updates(B // n, n, request.C)
        request.reasons.append(
            f"B = {B}: given, so B_p = B // n = {allocation.B_p} and M = floor(C / (n B_p)) = {allocation.M}"
        )
        return allocation
    frontier_fit = fit.joint
    if "B_p" in request.fix:
        B_p = constraints.take_fixed_B_p(fit, request)
        fits_by_B_p = {part.B_p: part for part in fit.by_B_p if part.B_p is not None}
        frontier_fit = fits_by_B_p.get(B_p, fit.joint)
        if B_p not in fits_by_B_p:
            B_ps_with_law = ", ".join(map(str, sorted(fits_by_B_p)))
            request.reasons.append(
                f"B_p = {B_p} has no law of its own (there is one for {B_ps_with_law}): the joint n*(C) is used"
            )
    else:
        B_p, unstable_text = constraints.smallest_stable_B_p(fit)
        request.reasons.append(f"B_p = {B_p}: the smallest stable one measured{unstable_text}")
        request.check_B_max(B_p)
    n_max = None if request.B_max is None else request.B_max // B_p
    n = _choose_n(fit, frontier_fit, request, n_max, f"B_max = {request.B_max} allows no more at B_p = {B_p}")
    allocation = constraints.allocate_updates(B_p, n, request.C)
    request.reasons.append(f"M = floor(C / (n B_p)) = {allocation.M}")
    return allocation


def _choose_n(
    fit: FitResult, frontier_fit: FrontierFit, request: AllocationRequest, n_max: int | None, n_max_reason: str
) -> int:
    """n*(C) as a power of two, within the measured n inside the measured range of C; then at most n_max."""
    C, law, reasons = request.C, frontier_fit.n_star.law, request.reasons
    C_low, C_high = frontier_fit.frontier[0].C, frontier_fit.frontier[-1].C
    n_smallest, n_largest = min(run.n for run in fit.runs), max(run.n for run in fit.runs)
    log2_n = float(log2_n_star(law, C))
    n = 1 << max(0, round(log2_n))
    reasons.append(f"n*({C:.6g}) = {2**log2_n:.3g}, as a power of two {n}")
    if C_low * (1 - 1e-9) <= C <= C_high * (1 + 1e-9):
        if not n_smallest <= n <= n_largest:
            n = min(max(n, n_smallest), n_largest)
            reasons.append(f"n = {n}: only {n_smallest} to {n_largest} were measured")
    else:
        reasons.append(
            f"C is outside the frontier ({C_low:.6g} to {C_high:.6g}): n is the law's alone, which saturates at "
            f"{2 ** (law.b + law.L):.3g}"
        )
        if not n_smallest <= n <= n_largest:
            reasons.append(f"n = {n} was never measured ({n_smallest} to {n_largest} were)")
    if n_max is not None and n > n_max:
        n = constraints.floor_power_of_two(n_max)
        reasons.append(f"n = {n}: {n_max_reason}")
    return n


def _allocate_fixed_M(fit: FitResult, ensemble: CurveEnsemble, request: AllocationRequest, M: int) -> Allocation:
    B = request.largest_B(M)
    fitting_cells = np.flatnonzero((ensemble.B <= B) & ensemble.stable)
    if len(fitting_cells):
        rewards = ensemble.expected_at_cell_budgets((ensemble.B * M).astype(np.float64))
        best_cell = max(fitting_cells, key=lambda i: (rewards[i], -ensemble.n[i], -ensemble.B_p[i]))
        allocation = Allocation(int(ensemble.B_p[best_cell]), int(ensemble.n[best_cell]), M)
        request.reasons.append(
            f"M = {M}: given; of {len(fitting_cells)} stable cells with B_p n <= {B}, {allocation.B_p}x{allocation.n} "
            f"has the highest predicted reward at C = {allocation.C}"
        )
        return allocation
    n = _choose_n(fit, fit.joint, request, B, f"B_p n M <= C and B_max leave B = {B}")
    request.reasons.append(
        f"M = {M}: given; no stable measured cell has B_p n <= {B}, so n is n*(C) and B_p = floor({B} / n) = {B // n}"
    )
    return Allocation(B // n, n, M)
