"""The paper's allocation (IsoCompute Playbook, arXiv:2603.12151, section 4.3), M = floor(C / (n
B_p)), in two ways. By the law (mode paper): n from n*(C), the smallest stable B_p; a fixed B_p has
its own n*(C); a fixed B sets B_p = B // n; a fixed M takes the best cell with B_p n M <= C, or,
where none fits, n*(C) and B_p = floor(C / (n M)). By the curves (mode hierarchical): n of the
stable cell whose curve is highest, the smallest B_p within epsilon of it at that n; a fixed M or B
restricts the cells; where none agrees, n comes from the nearest cells.

Where an update samples several batches of B_p n rollouts, M and C are converted as the runs did
(update_counts.py)."""

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import Allocation
from isojax.scaling.allocate import constraints
from isojax.scaling.allocate.constraints import AllocationRequest
from isojax.scaling.allocate.curve_ensemble import BoolArray, CurveEnsemble
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import FitResult, FrontierFit


def allocate_by_law(
    fit: FitResult, ensemble: CurveEnsemble, request: AllocationRequest
) -> Allocation:
    """The paper's allocation for a request; refused where no B_p is stable, or limits leave no
    allocation."""
    if "M" in request.fix:
        return _allocate_fixed_M(fit, ensemble, request, request.fix["M"])
    if "B" in request.fix:
        B = request.fix["B"]
        return _split_batch(
            ensemble, request, B, _choose_n(fit, fit.joint, request, B, f"B = {B} holds no more")
        )
    frontier_fit = fit.joint
    if "B_p" in request.fix:
        B_p = constraints.take_fixed_B_p(fit, request)
        fits_by_B_p = {part.B_p: part for part in fit.by_B_p if part.B_p is not None}
        frontier_fit = fits_by_B_p.get(B_p, fit.joint)
        if B_p not in fits_by_B_p:
            B_ps_with_law = ", ".join(map(str, sorted(fits_by_B_p)))
            no_law = f"B_p = {B_p} has no law of its own (there is one for {B_ps_with_law})"
            request.reasons.append(f"{no_law}: the joint n*(C) is used")
    else:
        B_p, unstable_text = constraints.smallest_stable_B_p(fit)
        request.reasons.append(f"B_p = {B_p}: the smallest stable one measured{unstable_text}")
        request.check_B_max(B_p)
    n_max = None if request.B_max is None else request.B_max // B_p
    n = _choose_n(
        fit, frontier_fit, request, n_max, f"B_max = {request.B_max} allows no more at B_p = {B_p}"
    )
    allocation = constraints.allocate_updates(B_p, n, request.C, ensemble.counts_of(B_p, n))
    request.reasons.append(constraints.describe_M(allocation))
    return allocation


def _choose_n(
    fit: FitResult,
    frontier_fit: FrontierFit,
    request: AllocationRequest,
    n_max: int | None,
    n_max_reason: str,
) -> int:
    """n*(C) as a power of two, within the measured n inside the measured range of C; then at most
    n_max."""
    C, law, reasons = request.C, frontier_fit.n_star.law, request.reasons
    C_low, C_high = frontier_fit.frontier[0].C, frontier_fit.frontier[-1].C
    n_smallest = min(run.n for run in fit.runs)
    n_largest = max(run.n for run in fit.runs)
    log2_n = float(log2_n_star(law, C))
    n = 1 << max(0, round(log2_n))
    reasons.append(f"n*({C:.6g}) = {2**log2_n:.3g}, as a power of two {n}")
    if C_low * (1 - 1e-9) <= C <= C_high * (1 + 1e-9):
        if not n_smallest <= n <= n_largest:
            n = min(max(n, n_smallest), n_largest)
            reasons.append(f"n = {n}: only {n_smallest} to {n_largest} were measured")
    else:
        outside = f"C is outside the frontier ({C_low:.6g} to {C_high:.6g})"
        reasons.append(
            f"{outside}: n is the law's alone, which saturates at {2 ** (law.b + law.L):.3g}"
        )
        if not n_smallest <= n <= n_largest:
            reasons.append(f"n = {n} was never measured ({n_smallest} to {n_largest} were)")
    if n_max is not None and n > n_max:
        n = constraints.floor_power_of_two(n_max)
        reasons.append(f"n = {n}: {n_max_reason}")
    return n


def _allocate_fixed_M(
    fit: FitResult, ensemble: CurveEnsemble, request: AllocationRequest, M: int
) -> Allocation:
    most_batches = ensemble.most_batches(request.C)
    B, C_of_cells = request.largest_B(M, most_batches), ensemble.rollouts_after(M)
    fits_B_max = ensemble.B <= (ensemble.B.max() if request.B_max is None else request.B_max)
    fitting_cells = np.flatnonzero((C_of_cells <= request.C) & fits_B_max & ensemble.stable)
    if len(fitting_cells):
        limit = f"with B_p n <= {B}" if most_batches == 1.0 else "that take at most C rollouts"
        rewards = ensemble.expected_at_cell_budgets(C_of_cells)
        best_cell = max(fitting_cells, key=lambda i: (rewards[i], -ensemble.n[i], -ensemble.B_p[i]))
        allocation = ensemble.counts[best_cell].allocation(*ensemble.curves[best_cell].key, M)
        best = f"{allocation.B_p}x{allocation.n} has the highest predicted reward at C = {allocation.C}"
        request.reasons.append(
            f"M = {M}: given; of {len(fitting_cells)} stable cells {limit}, {best}"
        )
        return allocation
    n = _choose_n(fit, fit.joint, request, B, f"B_p n M <= C and B_max leave B = {B}")
    return _split_batch(ensemble, request, B, n)


def _split_batch(ensemble: CurveEnsemble, request: AllocationRequest, B: int, n: int) -> Allocation:
    """B rollouts per update as B_p = B // n problems, for a fixed M or B that no measured cell need
    have."""
    if B < 1:
        problem = (
            f"C = {request.C:.6g} leaves no rollout for a batch of M = {request.fix['M']} updates"
        )
        raise InputError(
            f"{problem}, each of several batches; expected more. Raise C, or fix a smaller M."
        )
    B_p, counts = B // n, ensemble.counts_of(B // n, n)
    if "M" in request.fix:
        M = request.fix["M"]
        split = f"no stable measured cell has B_p n <= {B}, so B_p = floor({B} / n) = {B // n}"
        request.reasons.append(f"M = {M}: given; {split}")
        return counts.allocation(B_p, n, M)
    allocation = constraints.allocate_updates(B_p, n, request.C, counts)
    split = f"B_p = B // n = {B_p} and {constraints.describe_M(allocation)}"
    request.reasons.append(f"B = {B}: given, so {split}")
    return allocation


def allocate_by_curves(
    fit: FitResult, ensemble: CurveEnsemble, request: AllocationRequest
) -> Allocation:
    """The allocation for a request, by the curves; refused where no B_p is stable, or limits leave
    no allocation."""
    unstable_text = ""
    if "B_p" in request.fix:
        constraints.take_fixed_B_p(fit, request)
    else:
        _, unstable_text = constraints.smallest_stable_B_p(fit)
    C_spent, allowed = ensemble.allowed_cells(request)
    if not allowed.any():
        return _allocate_unmeasured(ensemble, request)
    chosen_cell = ensemble.choose_cell(C_spent, allowed, request.epsilon)
    B_p, n = ensemble.curves[chosen_cell].key
    counts = ensemble.counts[chosen_cell]
    allocation = counts.allocation(
        B_p, n, request.fix.get("M") or counts.updates(float(C_spent[chosen_cell]))
    )
    M = allocation.M
    given_text = f"given; {allocation.C:,} of {request.C:,.0f} rollouts are spent"
    _explain_cell(ensemble, request, chosen_cell, unstable_text)
    # what this cell's clock affords
    C_text = "C" if request.time is None else f"{C_spent[chosen_cell]:,.0f}"
    M_text = (
        f"M = {M}: {given_text}"
        if "M" in request.fix
        else constraints.describe_M(allocation, C_text)
    )
    request.reasons.append(M_text)
    if ensemble.fit.nothing_learnt:
        return allocation
    # of the other n that were compared beyond their data, as those of runs of equally many updates
    # are
    ends = []
    for other_n in sorted(set(ensemble.n[allowed].tolist()) - {n}):
        cells_of_n = allowed & (ensemble.n == other_n)
        if (C_spent[cells_of_n] > ensemble.samples.C_high[cells_of_n] * (1 + 1e-9)).all():
            ends.append(
                f"n = {other_n} (measured up to C = {ensemble.samples.C_high[cells_of_n].max():,.0f})"
            )
    if ends:
        request.reasons.append(
            f"compared by their fitted curves beyond their data: {', '.join(ends)}"
        )
    return allocation


def _explain_cell(
    ensemble: CurveEnsemble, request: AllocationRequest, chosen_cell: int, unstable_text: str
) -> None:
    stands = ensemble.level_of_all(*ensemble.allowed_cells(request)) is not None
    if ensemble.fit.nothing_learnt or stands:
        B_p, n = ensemble.curves[chosen_cell].key
        request.reasons.append(
            f"n = {n}, B_p = {B_p}: no cell is better than another; of equal ones the smallest n"
        )
        return
    C_spent, allowed = ensemble.allowed_cells(request)
    expected_rewards = np.where(allowed, ensemble.expected_at_cell_budgets(C_spent), -np.inf)
    best_cell, fix = int(expected_rewards.argmax()), request.fix
    limits = {"M": "B_p n M <= C", "B": f"B_p n = {fix.get('B')}", "B_p": f"B_p = {fix.get('B_p')}"}
    limits_text = "".join(f" with {limits[name]}" for name in fix)
    if request.B_max is not None:
        limits_text += f" {'and' if fix else 'with'} B_p n <= {request.B_max}"
    kind_text = ("" if "B_p" in fix else "stable ") + (
        "measured cell" if allowed.sum() == 1 else "measured cells"
    )
    B_p = ensemble.B_p[chosen_cell]
    n = ensemble.n[chosen_cell]
    best_B_p = ensemble.B_p[best_cell]
    best_text = (
        f"{best_B_p}x{n} has the highest predicted reward ({expected_rewards[best_cell]:.3f})"
    )
    request.reasons.append(f"n = {n}: of {allowed.sum()} {kind_text}{limits_text}, {best_text}")
    if "B_p" in fix:
        return
    if B_p != best_B_p:
        B_p_text = (
            f"the smallest stable one whose predicted reward is within {request.epsilon:g} of its"
        )
    elif (allowed & (ensemble.n == n) & (ensemble.B_p < B_p)).any():
        B_p_text = f"a smaller one gives away more than {request.epsilon:g}"
    else:
        B_p_at_n = set(ensemble.B_p[ensemble.n == n].tolist())
        which = "the smallest stable one" if len(B_p_at_n) > 1 else "the only one"
        B_p_text = f"{which} measured at n = {n}"
    request.reasons.append(f"B_p = {B_p}: {B_p_text}{unstable_text}")


def _allocate_unmeasured(ensemble: CurveEnsemble, request: AllocationRequest) -> Allocation:
    """Where no stable measured cell agrees with the limits."""
    fix = request.fix
    if request.time is not None:
        limits = {"B_max": request.B_max, **fix}
        given = [f"{name} = {value}" for name, value in limits.items() if value is not None]
        limits_text = ", ".join([f"{request.time.seconds:,.6g} s", *given])
        problem = (
            f"no stable measured cell agrees with this budget and these limits ({limits_text})"
        )
        expected = "expected a larger budget, one of rollouts, or other limits."
        raise InputError(f"{problem}, and only clocks of measured cells are known; {expected}")
    if "M" in fix or "B" in fix:
        B = (
            request.largest_B(fix["M"], ensemble.most_batches(request.C))
            if "M" in fix
            else fix["B"]
        )
        return _split_batch(ensemble, request, B, _nearest_n(ensemble, request, ensemble.stable, B))
    if "B_p" in fix and fix["B_p"] not in ensemble.B_p:
        B_p = fix["B_p"]
        nearest_B_p = int(min(set(ensemble.B_p.tolist()), key=lambda b: (abs(np.log2(b / B_p)), b)))
        request.reasons.append(
            f"B_p = {B_p} has no curve: n is chosen as at the nearest, B_p = {nearest_B_p}"
        )
        largest_B = request.largest_B(1, ensemble.most_batches(request.C))
        n = _nearest_n(ensemble, request, ensemble.B_p == nearest_B_p, largest_B // B_p)
        return constraints.allocate_updates(B_p, n, request.C, ensemble.counts_of(B_p, n))
    # Even the smallest measured cell is too large for the budget or for B_max: the refusal says by
    # how much.
    is_candidate = ensemble.B_p == request.fix["B_p"] if "B_p" in request.fix else ensemble.stable
    if not is_candidate.any():
        B_p_text = ", ".join(map(str, sorted(set(ensemble.B_p.tolist()))))
        problem = f"no stable measured cell has a curve (the cells with a curve have B_p = {B_p_text}, all unstable)"
        raise InputError(
            f"{problem}; expected one. {constraints.suggest_B_p(ensemble.B_p.tolist())}"
        )
    smallest_cell = int(np.where(is_candidate, ensemble.B, np.iinfo(np.int64).max).argmin())
    B_p, n = int(ensemble.B_p[smallest_cell]), int(ensemble.n[smallest_cell])
    if request.B_max is not None and request.B_max < B_p * n:
        problem = f"B_max = {request.B_max} is below every {'' if 'B_p' in request.fix else 'stable '}measured cell"
        expected = f"expected B_max >= {B_p * n}. Raise B_max, or fix a smaller B_p."
        raise InputError(f"{problem}, of which {B_p}x{n} is the smallest; {expected}")
    return constraints.allocate_updates(B_p, n, request.C, ensemble.counts_of(B_p, n))


def _nearest_n(
    ensemble: CurveEnsemble, request: AllocationRequest, is_candidate: BoolArray, n_max: int
) -> int:
    """The n <= n_max with the highest predicted reward at C; where none was measured, the power of
    two below n_max."""
    is_allowed = is_candidate & (ensemble.n <= n_max)
    if not is_allowed.any():
        n = constraints.floor_power_of_two(max(1, n_max))
        request.reasons.append(f"n = {n}: no n <= {n_max} was measured")
        return n
    best_cell = int(np.where(is_allowed, ensemble.expected_rewards(request.C), -np.inf).argmax())
    B_p, n = ensemble.curves[best_cell].key
    reason = f"{B_p}x{n} has the highest predicted reward at C"
    if ensemble.fit.nothing_learnt:
        reason = "none is better than another; this is the smallest"
    request.reasons.append(f"n = {n}: of the measured n <= {n_max}, {reason}")
    return n
