"""The allocation of a budget C: B_p, n and M = floor(C / (n B_p)), after the IsoCompute Playbook,
arXiv:2603.12151, section 4.3. The user may fix one of B_p, B = B_p n and M. There are two ways.

By the law of n*(C) (mode paper):
- nothing fixed: n = n*(C) as a power of two, and the smallest stable B_p;
- B_p fixed: n by the law of the runs with this B_p;
- B fixed: n = n*(C), B_p = B // n;
- M fixed: the best measured cell with B_p n M <= C; where none fits, n = n*(C) and
  B_p = floor(C / (n M)).

By the learning curves (mode hierarchical): n of the stable cell with the highest curve at C, and at
that n the smallest B_p whose reward is at most epsilon lower. A fixed B_p, B or M restricts the
cells; where no measured cell agrees with it, n is that of the nearest cells.

A B_p is stable where runs with it did not break (result.py: StabilityVerdict). Where an update
samples several batches of B_p n rollouts (dynamic sampling), M and C are converted as in the runs
(update_counts.py)."""

from dataclasses import dataclass

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import Allocation
from isojax.scaling.allocate import constraints
from isojax.scaling.allocate.constraints import AllocationRequest
from isojax.scaling.allocate.curve_ensemble import BoolArray, CurveEnsemble
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import FitResult, FrontierFit


@dataclass(frozen=True)
class ExplainedAllocation:
    """An allocation, and the reasons for it: a sentence each, such as "M = 40: given; ..."."""

    allocation: Allocation
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _ChosenN:
    """An n, and in words where it comes from."""

    n: int
    reasons: tuple[str, ...]


def allocate_by_law(
    fit: FitResult, ensemble: CurveEnsemble, request: AllocationRequest
) -> ExplainedAllocation:
    """The allocation for a request by the law of n*(C), as in the paper, with reasons in words.

    fit: of mode "paper"; ensemble: the curves of this fit; request: checked, its C in rollouts.
    InputError where no B_p is stable, or where the request's limits leave no allocation."""
    if "M" in request.fix:
        return _allocate_fixed_M(fit, ensemble, request, request.fix["M"])

    if "B" in request.fix:
        B = request.fix["B"]
        chosen = _choose_n_by_law(fit, fit.joint, request.C)
        chosen = _limit_n(chosen, B, f"B = {B} holds no more")
        return _split_batch(ensemble, request, B, chosen)

    frontier_fit = fit.joint
    if "B_p" in request.fix:
        B_p = request.fix["B_p"]
        request.check_B_max(B_p)
        reasons = constraints.describe_fixed_B_p(fit, B_p)
        # Each measured B_p has a frontier and a law for its runs alone.
        fits_by_B_p = {part.B_p: part for part in fit.by_B_p if part.B_p is not None}
        if B_p in fits_by_B_p:
            frontier_fit = fits_by_B_p[B_p]
        else:
            B_ps_with_law = ", ".join(map(str, sorted(fits_by_B_p)))
            no_law = f"B_p = {B_p} has no law of its own (there is one for {B_ps_with_law})"
            reasons.append(f"{no_law}: the joint n*(C) is used")
    else:
        smallest = constraints.smallest_stable_B_p(fit)
        B_p = smallest.B_p
        reasons = [f"B_p = {B_p}: the smallest stable one measured{smallest.unstable_text}"]
        request.check_B_max(B_p)

    chosen = _choose_n_by_law(fit, frontier_fit, request.C)
    if request.B_max is not None:
        limit = f"B_max = {request.B_max} allows no more at B_p = {B_p}"
        chosen = _limit_n(chosen, request.B_max // B_p, limit)
    counts = ensemble.counts_of(B_p, chosen.n)
    allocation = constraints.allocate_updates(B_p, chosen.n, request.C, counts)
    return ExplainedAllocation(
        allocation, (*reasons, *chosen.reasons, constraints.describe_M(allocation))
    )


def _choose_n_by_law(fit: FitResult, frontier_fit: FrontierFit, C: float) -> _ChosenN:
    """The n that the fitted law n*(C) gives at C, rounded to a power of two, with reasons.

    Where C is in the range that the frontier covers, n is kept between the smallest and the largest
    measured n; outside, where only the law can answer, it is not, and the reasons state it.
    frontier_fit: a part of `fit`, that of all cells or of one B_p. C: rollouts."""
    law = frontier_fit.n_star.law
    C_low = frontier_fit.frontier[0].C
    C_high = frontier_fit.frontier[-1].C
    n_smallest = min(run.n for run in fit.runs)
    n_largest = max(run.n for run in fit.runs)

    log2_n = float(log2_n_star(law, C))
    n = 1 << max(0, round(log2_n))
    reasons = [f"n*({C:.6g}) = {2**log2_n:.3g}, as a power of two {n}"]
    is_measured_n = n_smallest <= n <= n_largest
    # 1e-9: C may be an end of the frontier, but for rounding.
    if C_low * (1 - 1e-9) <= C <= C_high * (1 + 1e-9):
        if not is_measured_n:
            n = min(max(n, n_smallest), n_largest)
            reasons.append(f"n = {n}: only {n_smallest} to {n_largest} were measured")
    else:
        # Here only the law can answer: an n that was never measured is named as such, not refused.
        outside = f"C is outside the frontier ({C_low:.6g} to {C_high:.6g})"
        # The upper level of a sigmoid; a constant, the only other form in mode "paper", has L = 0.
        saturation = f"{2 ** (law.b + law.L):.3g}"
        reasons.append(f"{outside}: n is the law's alone, which saturates at {saturation}")
        if not is_measured_n:
            reasons.append(f"n = {n} was never measured ({n_smallest} to {n_largest} were)")
    return _ChosenN(n, tuple(reasons))


def _limit_n(chosen: _ChosenN, n_max: int, limit_text: str) -> _ChosenN:
    """The chosen n, or where it exceeds n_max (>= 1) the largest power of two <= n_max.

    limit_text: what sets n_max, in words, for the reasons."""
    if chosen.n <= n_max:
        return chosen
    n = constraints.floor_power_of_two(n_max)
    return _ChosenN(n, (*chosen.reasons, f"n = {n}: {limit_text}"))


def _allocate_fixed_M(
    fit: FitResult, ensemble: CurveEnsemble, request: AllocationRequest, M: int
) -> ExplainedAllocation:
    """The allocation for M updates, by the law of n*(C): a measured cell where one fits.

    It is the stable measured cell with the highest reward after M updates, among those that take at
    most C rollouts then. Where none does, n = n*(C), and the B_p for which the budget is enough.
    InputError where the budget leaves less than a rollout for each update."""
    most_batches = ensemble.most_batches(request.C)
    B = _largest_batch(request, M, most_batches)
    C_of_cells = ensemble.rollouts_after(M)  # [cells]
    fits_B_max = ensemble.B <= (ensemble.B.max() if request.B_max is None else request.B_max)
    is_fitting = (C_of_cells <= request.C) & fits_B_max & ensemble.stable
    if not is_fitting.any():
        chosen = _choose_n_by_law(fit, fit.joint, request.C)
        chosen = _limit_n(chosen, B, f"B_p n M <= C and B_max leave B = {B}")
        return _split_batch(ensemble, request, B, chosen)

    fitting_cells = np.flatnonzero(is_fitting)
    rewards = ensemble.expected_at_cell_budgets(C_of_cells)
    best_cell = int(fitting_cells[rewards[fitting_cells].argmax()])
    B_p, n = ensemble.curves[best_cell].key
    limit = f"with B_p n <= {B}" if most_batches == 1.0 else "that take at most C rollouts"
    allocation = ensemble.counts[best_cell].allocation(B_p, n, M)
    best = f"{B_p}x{n} has the highest predicted reward at C = {allocation.C}"
    reason = f"M = {M}: given; of {len(fitting_cells)} stable cells {limit}, {best}"
    return ExplainedAllocation(allocation, (reason,))


def _largest_batch(request: AllocationRequest, M: int, batches: float) -> int:
    """The largest B = B_p n with which M updates are within the budget, and B within B_max.

    batches: how many batches of B rollouts an update samples on average, such as 1.0. InputError
    where B is less than one rollout."""
    B = request.largest_B(M, batches)
    if B < 1:
        raise InputError(
            where="C",
            found=(
                f"given {request.C:.6g}, which leaves no rollout for a batch of M = {M} updates, "
                "each of several batches"
            ),
            expected="more",
            fix="Raise C, or fix a smaller M.",
        )
    return B


def _split_batch(
    ensemble: CurveEnsemble, request: AllocationRequest, B: int, chosen: _ChosenN
) -> ExplainedAllocation:
    """The allocation with the chosen n and B_p = B // n problems, and the reasons for both.

    For a request that fixes B, or that fixes M, so that the budget leaves B rollouts per update.
    chosen.n is at most B, so that B_p is at least 1. The (B_p, n) need not have been measured.
    InputError where a budget for a fixed B is not enough for one update."""
    n = chosen.n
    B_p = B // n
    counts = ensemble.counts_of(B_p, n)
    if "M" in request.fix:
        M = request.fix["M"]
        allocation = counts.allocation(B_p, n, M)
        split = f"no stable measured cell has B_p n <= {B}, so B_p = floor({B} / n) = {B_p}"
        reason = f"M = {M}: given; {split}"
    else:
        allocation = constraints.allocate_updates(B_p, n, request.C, counts)
        split = f"B_p = B // n = {B_p} and {constraints.describe_M(allocation)}"
        reason = f"B = {B}: given, so {split}"
    return ExplainedAllocation(allocation, (*chosen.reasons, reason))


def allocate_by_curves(
    fit: FitResult, ensemble: CurveEnsemble, request: AllocationRequest
) -> ExplainedAllocation:
    """The allocation for a request by the learning curves, with reasons in words.

    fit: of mode "hierarchical", or one in which nothing was learnt; ensemble: the curves of this
    fit; request: checked, its C in rollouts. InputError where no B_p is stable, or where the
    request's limits leave no allocation."""
    reasons = []
    unstable_text = ""
    if "B_p" in request.fix:
        B_p = request.fix["B_p"]
        request.check_B_max(B_p)
        reasons += constraints.describe_fixed_B_p(fit, B_p)
    else:
        unstable_text = constraints.smallest_stable_B_p(fit).unstable_text

    # float[cells] and bool[cells]: what each cell would spend, and whether it may be chosen.
    C_spent, allowed = ensemble.allowed_cells(request)
    if not allowed.any():
        unmeasured = _allocate_unmeasured(ensemble, request)
        return ExplainedAllocation(unmeasured.allocation, (*reasons, *unmeasured.reasons))

    chosen_cell = ensemble.choose_cell(C_spent, allowed, request.epsilon)
    B_p, n = ensemble.curves[chosen_cell].key
    counts = ensemble.counts[chosen_cell]
    M = request.fix.get("M") or counts.updates(float(C_spent[chosen_cell]))
    allocation = counts.allocation(B_p, n, M)

    reasons += _explain_cell(ensemble, request, chosen_cell, unstable_text)
    if "M" in request.fix:
        spent = f"{allocation.C:,} of {request.C:,.0f} rollouts are spent"
        reasons.append(f"M = {M}: given; {spent}")
    else:
        # A budget in time affords each cell its own number of rollouts, by how fast its runs were.
        C_text = "C" if request.time is None else f"{C_spent[chosen_cell]:,.0f}"
        reasons.append(constraints.describe_M(allocation, C_text))
    if not ensemble.fit.nothing_learnt:
        reasons += _explain_comparison_beyond_data(ensemble, request, n)
    return ExplainedAllocation(allocation, tuple(reasons))


def _explain_comparison_beyond_data(
    ensemble: CurveEnsemble, request: AllocationRequest, chosen_n: int
) -> list[str]:
    """A sentence on the other n whose runs all ended below the budget; [] where no n is such.

    Of these, extrapolated curves were compared. That is usual in sweeps whose runs all have the
    same number of updates: those with small n end at a small C."""
    C_spent, allowed = ensemble.allowed_cells(request)
    C_high = ensemble.samples.C_high  # [cells], the largest C of each cell's evaluations
    ends = []
    for n in sorted(set(ensemble.n[allowed].tolist()) - {chosen_n}):
        is_of_n = allowed & (ensemble.n == n)
        # a little more than the end, since C may have been rounded
        if (C_spent[is_of_n] > C_high[is_of_n] * (1 + 1e-9)).all():
            ends.append(f"n = {n} (measured up to C = {C_high[is_of_n].max():,.0f})")
    if not ends:
        return []
    return [f"compared by their fitted curves beyond their data: {', '.join(ends)}"]


def _explain_cell(
    ensemble: CurveEnsemble, request: AllocationRequest, chosen_cell: int, unstable_text: str
) -> list[str]:
    """The reasons for the n and, unless the user fixed it, for the B_p of the chosen cell.

    chosen_cell: an index of ensemble.curves, as CurveEnsemble.choose_cell gives it. unstable_text:
    the unstable smaller B_p, to end a sentence, such as "; unstable: 8 (...)", or ""."""
    C_spent, allowed = ensemble.allowed_cells(request)
    chosen_B_p, n = ensemble.curves[chosen_cell].key
    all_at_start = ensemble.reward_if_none_rose(C_spent, allowed) is not None
    if ensemble.fit.nothing_learnt or all_at_start:
        equal = "no cell is better than another; of equal ones the smallest n"
        return [f"n = {n}, B_p = {chosen_B_p}: {equal}"]

    expected_rewards = np.where(allowed, ensemble.expected_at_cell_budgets(C_spent), -np.inf)
    best_cell = int(expected_rewards.argmax())  # choose_cell has taken its n
    best_B_p = ensemble.B_p[best_cell]
    best = f"{best_B_p}x{n} has the highest predicted reward ({expected_rewards[best_cell]:.3f})"
    n_reason = f"n = {n}: of {_describe_allowed(request, int(allowed.sum()))}, {best}"
    if "B_p" in request.fix:
        return [n_reason]

    # The chosen cell may have a smaller B_p than the best one of its n.
    if chosen_B_p != best_B_p:
        within = f"within {request.epsilon:g} of its"
        B_p_text = f"the smallest stable one whose predicted reward is {within}"
    elif (allowed & (ensemble.n == n) & (ensemble.B_p < chosen_B_p)).any():
        B_p_text = f"a smaller one gives away more than {request.epsilon:g}"
    else:
        B_ps_at_n = set(ensemble.B_p[ensemble.n == n].tolist())
        kind = "the smallest stable one" if len(B_ps_at_n) > 1 else "the only one"
        B_p_text = f"{kind} measured at n = {n}"
    return [n_reason, f"B_p = {chosen_B_p}: {B_p_text}{unstable_text}"]


def _describe_allowed(request: AllocationRequest, count: int) -> str:
    """How many cells were compared and by which limits they were selected, in words.

    Such as "6 stable measured cells with B_p n <= 1024"; count: how many. With a fixed B_p the
    cells need not be stable."""
    fix = request.fix
    limit_texts = {
        "M": "B_p n M <= C",
        "B": f"B_p n = {fix.get('B')}",
        "B_p": f"B_p = {fix.get('B_p')}",
    }
    stable = "" if "B_p" in fix else "stable "
    cells = "measured cell" if count == 1 else "measured cells"
    text = f"{count} {stable}{cells}"
    for name in fix:  # at most one
        text += f" with {limit_texts[name]}"
    if request.B_max is not None:
        text += f" {'and' if fix else 'with'} B_p n <= {request.B_max}"
    return text


def _allocate_unmeasured(
    ensemble: CurveEnsemble, request: AllocationRequest
) -> ExplainedAllocation:
    """The allocation by the curves where no stable measured cell agrees with the limits.

    n is that of the nearest cells, and B_p follows from the request's limits. InputError where the
    budget or B_max is too small for any cell, or where the budget is a time: how fast unmeasured
    cells train is unknown."""
    if request.time is not None:
        _refuse_unmeasured_time(request, request.time.seconds)

    fix = request.fix
    most_batches = ensemble.most_batches(request.C)
    if "M" in fix or "B" in fix:
        B = _largest_batch(request, fix["M"], most_batches) if "M" in fix else fix["B"]
        chosen = _choose_nearest_n(ensemble, request.C, ensemble.stable, B)
        return _split_batch(ensemble, request, B, chosen)

    if "B_p" in fix and fix["B_p"] not in ensemble.B_p:
        B_p = fix["B_p"]
        measured_B_ps = set(ensemble.B_p.tolist())
        nearest_B_p = int(min(measured_B_ps, key=lambda b: (abs(np.log2(b / B_p)), b)))
        no_curve = f"B_p = {B_p} has no curve: n is chosen as at the nearest, B_p = {nearest_B_p}"
        n_max = request.largest_B(1, most_batches) // B_p  # the budget is enough for one update
        chosen = _choose_nearest_n(ensemble, request.C, ensemble.B_p == nearest_B_p, n_max)
        counts = ensemble.counts_of(B_p, chosen.n)
        allocation = constraints.allocate_updates(B_p, chosen.n, request.C, counts)
        return ExplainedAllocation(allocation, (no_curve, *chosen.reasons))

    # What is left: the budget or B_max is below every measured cell, which is refused.
    return ExplainedAllocation(_allocate_smallest(ensemble, request), ())


def _refuse_unmeasured_time(request: AllocationRequest, seconds: float) -> None:
    limits = {"B_max": request.B_max, **request.fix}
    limit_texts = [f"{name} = {value}" for name, value in limits.items() if value is not None]
    limits_text = ", ".join([f"{seconds:,.6g} s", *limit_texts])
    raise InputError(
        found=(
            f"no stable measured cell agrees with this budget and these limits ({limits_text}), "
            "and only clocks of measured cells are known"
        ),
        expected="a larger budget, one of rollouts, or other limits",
    )


def _allocate_smallest(ensemble: CurveEnsemble, request: AllocationRequest) -> Allocation:
    """Raises InputError where even the smallest measured cell is too large for the request.

    The message has the size of that cell: B_p n that B_max, or the rollouts that the budget falls
    short of. Only if the budget is enough for it after all, gives the smallest cell's
    allocation."""
    is_candidate = ensemble.stable
    stable_text = "stable "
    if "B_p" in request.fix:
        is_candidate = ensemble.B_p == request.fix["B_p"]
        stable_text = ""
    if not is_candidate.any():
        B_p_text = ", ".join(map(str, sorted(set(ensemble.B_p.tolist()))))
        with_curve = f"the cells with a curve have B_p = {B_p_text}, all unstable"
        problem = f"no stable measured cell has a curve ({with_curve})"
        raise InputError(
            found=problem,
            expected="one",
            fix=constraints.suggest_B_p(ensemble.B_p.tolist()),
        )

    # [cells]; cells that may not be chosen count as larger than all others
    B_of_candidates = np.where(is_candidate, ensemble.B, np.iinfo(np.int64).max)
    B_p, n = ensemble.curves[int(B_of_candidates.argmin())].key
    if request.B_max is not None and request.B_max < B_p * n:
        raise InputError(
            where="B_max",
            found=(
                f"given {request.B_max}, which is below every {stable_text}measured cell, "
                f"of which {B_p}x{n} is the smallest"
            ),
            expected=f"B_max >= {B_p * n}",
            fix="Raise B_max, or fix a smaller B_p.",
        )
    return constraints.allocate_updates(B_p, n, request.C, ensemble.counts_of(B_p, n))


def _choose_nearest_n(
    ensemble: CurveEnsemble, C: float, is_candidate: BoolArray, n_max: int
) -> _ChosenN:
    """The n of the candidate cell with the highest predicted reward at C, among n <= n_max.

    Where all their n are larger, the largest power of two <= n_max. is_candidate: bool[cells]; C:
    rollouts. n_max = 0, a budget below one rollout per problem, counts as 1: the caller then
    refuses the budget."""
    is_allowed = is_candidate & (ensemble.n <= n_max)
    if not is_allowed.any():
        n = constraints.floor_power_of_two(max(1, n_max))
        return _ChosenN(n, (f"n = {n}: no n <= {n_max} was measured",))

    best_cell = int(np.where(is_allowed, ensemble.expected_rewards(C), -np.inf).argmax())
    B_p, n = ensemble.curves[best_cell].key
    reason = f"{B_p}x{n} has the highest predicted reward at C"
    if ensemble.fit.nothing_learnt:
        reason = "none is better than another; this is the smallest"
    return _ChosenN(n, (f"n = {n}: of the measured n <= {n_max}, {reason}",))
