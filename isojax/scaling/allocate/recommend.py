"""The allocation (B_p, n, M) for a budget of C rollouts, from a fit alone: what to run, what reward to expect, and
how sure that is.

Mode "paper" follows the paper's law n*(C) (by_law); mode "hierarchical" compares the measured cells' curves
(by_curves). Both refuse budgets beyond MAX_EXTRAPOLATION times the largest measured C unless asked to
extrapolate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import Allocation, Candidate, Recommendation
from isojax.scaling.allocate import by_curves, by_law
from isojax.scaling.allocate.constraints import EPSILON, FIXABLE, AllocationRequest
from isojax.scaling.allocate.curve_ensemble import (
    BoolArray,
    ClosedInterval,
    CurveEnsemble,
    FloatArray,
    load_ensemble,
)
from isojax.scaling.allocate.predictive import BestCell, affordable_cells, predict_outcomes
from isojax.scaling.result import FitResult

ALLOCATORS: Mapping[str, Callable[[FitResult, CurveEnsemble, AllocationRequest], Allocation]] = {
    "paper": by_law.allocate,
    "hierarchical": by_curves.allocate,
}
# A budget beyond this many times the largest measured C is refused; a run ends at its last evaluation, a little below
# its budget.
MAX_EXTRAPOLATION = 4.0
EXTRAPOLATION_TOLERANCE = 1.05
MAX_ROLLOUTS = 10**15  # rollouts, in all or per update; whole numbers beyond 2^53 are not exact as floats


def _check_arguments(C: float, B_max: int | None, fix: Mapping[str, int], epsilon: float) -> None:
    if isinstance(C, bool) or not isinstance(C, (int, float)) or not 0 < C <= MAX_ROLLOUTS:
        raise InputError(f"C = {C!r}; expected a positive finite number of rollouts, at most {MAX_ROLLOUTS:.0e}.")
    if len(fix) > 1 or set(fix) - set(FIXABLE):
        raise InputError(f"fix = {dict(fix)}; expected at most one of {', '.join(FIXABLE)}. Leave the others free.")
    for name, value in (*fix.items(), *(() if B_max is None else (("B_max", B_max),))):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_ROLLOUTS:
            raise InputError(f"{name} = {value!r}; expected a positive whole number, at most {MAX_ROLLOUTS:.0e}.")
    if not 0 <= epsilon < 1:
        raise InputError(
            f"epsilon = {epsilon!r}; expected a loss of reward that makes no difference, 0 <= epsilon < 1, such as "
            f"{EPSILON}."
        )


def _check_fit(fit: FitResult) -> None:
    if fit.compute != "rollouts":
        problem = f"a fit in {fit.compute} gives no number of updates M"
        raise InputError(f"{problem}; expected compute 'rollouts'. Fit the same runs again with --compute rollouts.")
    if fit.mode not in ALLOCATORS:
        raise InputError(
            f"the fit's mode is {fit.mode!r}; expected one of {', '.join(ALLOCATORS)}. Run `isojax fit` again."
        )


def _extrapolation_risks(ensemble: CurveEnsemble, C: float) -> str:
    """Why a budget far beyond the data is a guess: plateaus that are not determined, and how the interval grows."""
    risks = []
    undetermined_cells = [
        f"{B_p}x{n}" for B_p, n, known in zip(ensemble.B_p, ensemble.n, ensemble.determined, strict=True) if not known
    ]
    if undetermined_cells:
        risks.append(f"the data do not determine the plateaus of {', '.join(undetermined_cells)}")
    if not ensemble.replicates:
        risks.append("this fit has no intervals to say how wrong it may be")
    else:
        best_cell = int(ensemble.expected_rewards(C).argmax())
        measured_interval, extrapolated_interval = (
            ensemble.interval(ensemble.cell_rewards(best_cell, at)[1]) or (0.0, 0.0)
            for at in (ensemble.C_measured_max, C)
        )
        widths = (
            f"{measured_interval[1] - measured_interval[0]:.3f} at C = {ensemble.C_measured_max:.6g} to "
            f"{extrapolated_interval[1] - extrapolated_interval[0]:.3f}"
        )
        risks.append(
            f"the {ensemble.level:.0%} interval of {ensemble.B_p[best_cell]}x{ensemble.n[best_cell]} grows from a "
            f"width of {widths}, if its curve's form holds that far"
        )
    return "; ".join(risks)


def _check_extrapolation(ensemble: CurveEnsemble, C: float, extrapolate: bool, reasons: list[str]) -> None:
    ratio = C / ensemble.C_measured_max
    if ratio > MAX_EXTRAPOLATION * EXTRAPOLATION_TOLERANCE:
        statement = (
            f"C = {C:.6g} is {f'{ratio:,.0f}' if ratio >= 10 else f'{ratio:.3g}'} times the largest measured C = "
            f"{ensemble.C_measured_max:.6g}"
        )
        if not extrapolate:
            remedy = (
                "Measure larger budgets (isojax launch --resume sweep.budget=...), or ask for an extrapolation "
                "(--extrapolate)"
            )
            expectation = (
                f"expected at most {MAX_EXTRAPOLATION:g} times, because no measurement supports more: "
                f"{_extrapolation_risks(ensemble, C)}"
            )
            raise InputError(f"{statement}; {expectation}. {remedy}.")
        reasons.append(f"extrapolated because it was asked for: {statement}; {_extrapolation_risks(ensemble, C)}")
    if ensemble.C_low.min() > C:
        reasons.append(
            f"C = {C:.6g} lies below the smallest measured C = {ensemble.C_low.min():.6g}: what is promised there "
            "is the curves' word alone"
        )


def _candidates(ensemble: CurveEnsemble, C: float, B_max: int | None, fix: Mapping[str, int]) -> tuple[Candidate, ...]:
    """Measured cells, unstable ones too, within B_max and the fixed value, at the compute each would spend; best
    first.
    """
    candidates = []
    for i, (B_p, n) in enumerate(zip(ensemble.B_p.tolist(), ensemble.n.tolist(), strict=True)):
        B = B_p * n
        M = fix.get("M", int(C // B))
        if (
            M < 1
            or B * M > C
            or (B_max is not None and B_max < B)
            or fix.get("B_p", B_p) != B_p
            or fix.get("B", B) != B
        ):
            continue
        C_spent = B * M if "M" in fix else C
        reward, draws = ensemble.cell_rewards(i, C_spent)
        extrapolated, interval = (
            bool(C_spent > ensemble.C_high[i] * (1 + 1e-9)),
            ensemble.interval(draws) or (None, None),
        )
        candidates.append(Candidate(B_p, n, M, reward, extrapolated, *interval, bool(ensemble.stable[i])))
    return tuple(sorted(candidates, key=lambda c: (-c.reward, c.n, c.B_p)))


def _expected_outcome(
    ensemble: CurveEnsemble, allocation: Allocation, C_spent: FloatArray, allowed: BoolArray, reasons: list[str]
) -> BestCell:
    """What to expect at `allocation.C`, from the cell of the allocation or the nearest measured one, and against the
    allowed cells.
    """
    cell_index = ensemble.nearest_cell(allocation.B_p, allocation.n)
    B_p, n = int(ensemble.B_p[cell_index]), int(ensemble.n[cell_index])
    compared_cells = allowed if allowed.any() else np.arange(len(ensemble.n)) == cell_index
    [outcome] = predict_outcomes(
        ensemble, C_spent[None], compared_cells[None], np.array([cell_index]), np.array([allocation.C])
    )
    if (B_p, n) != (allocation.B_p, allocation.n):
        reasons.append(
            f"{allocation.B_p}x{allocation.n} has no curve: the expected reward is that of the nearest measured "
            f"cell, {B_p}x{n}"
        )
    if allocation.C > ensemble.C_peak[cell_index]:
        M = int(ensemble.C_peak[cell_index] // allocation.B)
        reasons.append(
            f"stop early: reward of {B_p}x{n} falls beyond C = {ensemble.C_peak[cell_index]:.4g} (M = {M}); what is "
            "expected is its peak"
        )
    elif outcome.extrapolated:
        reasons.append(
            f"the expected reward is extrapolated: {B_p}x{n} was measured up to C = {ensemble.C_high[cell_index]:.6g}"
        )
    return outcome


def _equal_n(
    ensemble: CurveEnsemble, allocation: Allocation, C_spent: FloatArray, allowed: BoolArray, epsilon: float
) -> tuple[int, ...]:
    """The epsilon-optimal set of n, rising; the recommended n alone where no measured cell may be chosen."""
    expected_rewards = np.where(allowed, ensemble.expected_at_cell_budgets(C_spent), -np.inf)
    within_epsilon = allowed & (expected_rewards >= expected_rewards.max() - epsilon)
    return tuple(sorted(set(ensemble.n[within_epsilon].tolist()))) or (allocation.n,)


def _interval_or_none(low: float | None, high: float | None) -> ClosedInterval | None:
    return None if low is None or high is None else (low, high)


def _warning_reasons(fit: FitResult, expected_reward: float, n: int) -> list[str]:
    """Reasons against training at all, or against the choice of n."""
    reasons = []
    if fit.base_reward is not None and expected_reward < fit.base_reward:
        reasons.append(
            f"that is less than the base policy's {fit.base_reward:.3f}: these runs made it worse, and no training is "
            "the better choice"
        )
    if fit.joint.n_star.no_effect:
        reasons.append(
            f"n makes no difference here: n = {n} has the best estimate, but take whichever n is fastest on your "
            "hardware"
        )
    return reasons


def recommend(
    fit: FitResult,
    C: float,
    B_max: int | None = None,
    fix: Mapping[str, int] | None = None,
    extrapolate: bool = False,
    epsilon: float = EPSILON,
    with_candidates: bool = True,
) -> Recommendation:
    """How to spend C rollouts.

    Args:
        fit: in rollouts.
        C: the budget, rollouts.
        B_max: the largest B_p n that may be used.
        fix: at most one of {"M": v}, {"B": v}, {"B_p": v}.
        extrapolate: answer beyond 4 times the largest measured C too.
        epsilon: a loss of reward that makes no difference.
        with_candidates: whether to say what every measured cell promises, which takes as long as all the rest.

    Returns:
        An allocation with B_p n M <= C; the reward its nearest measured cell's curve gives there; the reasons in words.

    Raises:
        InputError: a fit that cannot be used, C too small for one update or beyond the reach of the data, or B_max and
            `fix` that leave no allocation.
    """
    fixed, reasons = dict(fix or {}), list[str]()
    _check_arguments(C, B_max, fixed, epsilon)
    ensemble = load_ensemble(fit)
    _check_fit(fit)
    _check_extrapolation(ensemble, C, extrapolate, reasons)
    allocation = ALLOCATORS[fit.mode](fit, ensemble, AllocationRequest(C, B_max, fixed, epsilon, reasons))
    C_spent, allowed = (row[0] for row in affordable_cells(ensemble, np.array([C], dtype=np.float64), B_max, fixed))
    outcome, has_allowed_cell = _expected_outcome(ensemble, allocation, C_spent, allowed, reasons), bool(allowed.any())
    reasons += _warning_reasons(fit, outcome.reward, allocation.n)
    return Recommendation(
        allocation=allocation,
        metric=fit.metric,
        expected_reward=outcome.reward,
        extrapolated=outcome.extrapolated,
        reasons=tuple(reasons),
        candidates=_candidates(ensemble, C, B_max, fixed) if with_candidates else (),
        interval=_interval_or_none(outcome.low, outcome.high),
        prediction_interval=_interval_or_none(outcome.new_run_low, outcome.new_run_high),
        n_probability=outcome.n_probability if has_allowed_cell else None,
        equal_n=_equal_n(ensemble, allocation, C_spent, allowed, epsilon),
        regret=outcome.regret if has_allowed_cell else None,
        regret_interval=_interval_or_none(outcome.regret_low, outcome.regret_high) if has_allowed_cell else None,
        no_effect=ensemble.no_effect,
        times_measured=C / ensemble.C_measured_max,
        epsilon=epsilon,
        level=ensemble.level,
    )
