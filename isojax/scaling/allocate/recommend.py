"""The allocation (B_p, n, M) for a budget of C rollouts, from a fit alone: what to run, what reward
to expect, and how sure that is. For a fit of mode "paper" n follows the law of n*(C); for one of
mode "hierarchical" the cells' curves are compared (allocators.py)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import Allocation, Interval
from isojax.core.terminal import format_number
from isojax.scaling.allocate import advice, allocators
from isojax.scaling.allocate.allocators import ExplainedAllocation
from isojax.scaling.allocate.constraints import EPSILON, AllocationRequest, TimeBudget
from isojax.scaling.allocate.curve_ensemble import (
    BoolArray,
    CurveEnsemble,
    RunHours,
    load_rollout_ensemble,
)
from isojax.scaling.allocate.growing_n import plan_growing_run
from isojax.scaling.allocate.recommendation import GrowingRun, MeasuredCell, Recommendation
from isojax.scaling.curves.hill import MEASURED_TOLERANCE
from isojax.scaling.curves.sweep_estimate import FEW_HITS, MAX_EXTRAPOLATION
from isojax.scaling.intervals import LEVEL
from isojax.scaling.result import NOTHING_TO_LEARN, FitResult
from isojax.scaling.tracks import FloatArray

# How n and B_p are chosen, by the mode of the fit.
ALLOCATORS: Mapping[
    str, Callable[[FitResult, CurveEnsemble, AllocationRequest], ExplainedAllocation]
] = {
    "paper": allocators.allocate_by_law,
    "hierarchical": allocators.allocate_by_curves,
}


@dataclass(frozen=True)
class _BudgetedRequest:
    """A request with its budget, checked, and sentences on what this budget means."""

    request: AllocationRequest
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Comparison:
    """The recommended cell against all that may be chosen. The fields are those of Recommendation
    (recommendation.py)."""

    n_probability: dict[int, float] | None
    equal_n: tuple[int, ...]
    regret: float | None
    regret_interval: Interval | None


def recommend(
    fit: FitResult,
    budget: float | TimeBudget,
    B_max: int | None = None,
    fix: Mapping[str, int] | None = None,
    extrapolate: bool = False,
    epsilon: float = EPSILON,
    with_details: bool = True,
) -> Recommendation:
    """How to spend a budget of rollouts or of time: an allocation, its expected reward, and why.

    The allocation takes at most C rollouts: B_p n M where an update samples one batch of B_p n.

    budget: rollouts, such as 100_000, or a TimeBudget, such as TimeBudget(seconds=3600).
    B_max: the largest B_p n that may be used, such as 4096; None: no limit.
    fix: at most one of {"M": v}, {"B": v}, {"B_p": v}, v a whole number; None: nothing is fixed.
    extrapolate: answer also beyond 4 times the largest measured C.
    epsilon: a loss of reward that makes no difference, in [0, 1).
    with_details: also predict all measured cells, halting marks, the next run and a run whose n
    grows, which takes longer than the rest.

    InputError where the fit's C is not in rollouts, the budget is too far beyond the measured C,
    the limits leave no allocation, or an argument is out of range."""
    # The fitted curves of all measured (B_p, n), the cells, and the curves' replicates. `cell`
    # below is an index of ensemble.curves.
    ensemble = load_rollout_ensemble(fit)
    # The C of 0 stands in until _with_budget sets it.
    request = AllocationRequest(
        C=0.0, B_max=B_max, fix=dict(fix or {}), epsilon=epsilon, extrapolate=extrapolate
    )
    budgeted = _with_budget(ensemble, budget, request)
    request = budgeted.request
    reasons = list(budgeted.reasons)

    # Where nothing was learnt there is no law; the curves, all flat, lead to the smallest n.
    allocate = allocators.allocate_by_curves if fit.nothing_learnt else ALLOCATORS[fit.mode]
    explained = allocate(fit, ensemble, request)
    allocation = explained.allocation
    reasons += explained.reasons
    # Its curve stands for the allocation, which need not have been measured itself.
    cell = ensemble.nearest_cell(allocation.B_p, allocation.n)
    if request.time is not None:
        # Until here C was that of the fastest cell; the chosen one may get fewer rollouts in the
        # same time.
        request = replace(request, C=float(ensemble.affordable_rollouts(request.time)[cell]))
        reasons += _check_extrapolation(ensemble, request)

    forecast = ensemble.predict_reward(cell, allocation.C)
    comparison = _compare_cells(ensemble, request, allocation.n, cell)
    reasons += _explain_outcome(ensemble, request, allocation, cell, forecast.reward)
    reasons += _explain_no_effect(fit, comparison, allocation.n)

    # Halting marks, the next run and a growing n are read off curves that rise: there are none
    # where no run learnt anything, nor at a tie, that is, while no cell has begun to rise.
    tie = _describe_tie(ensemble, request)
    risks, further_warnings = advice.find_risks(ensemble, allocation, cell)
    with_advice = with_details and not (fit.nothing_learnt or tie)
    halting_marks = advice.set_halting_marks(ensemble, allocation, cell) if with_advice else ()
    next_run = None
    growing = None
    if with_advice:
        next_run = advice.choose_next_run(ensemble, request, cell, comparison.regret)
        growing = _plan_growing_run(ensemble, request, allocation, cell)

    # How long a (B_p, n) takes is known only where it was measured.
    is_measured = (allocation.B_p, allocation.n) == ensemble.curves[cell].key
    hours = ensemble.predict_hours(cell, allocation.C) if is_measured else RunHours(None, None)
    return Recommendation(
        allocation=allocation,
        metric=fit.metric,
        expected_reward=forecast.reward,
        extrapolated=ensemble.is_beyond_data(cell, allocation.C),
        reasons=tuple(reasons),
        risks=risks,
        # All of the fit's warnings; `further_warnings` has those of them that no risk states.
        warnings=tuple(flag.text for flag in fit.flags if flag.severity != "info"),
        further_warnings=further_warnings,
        measured_cells=_measured_cells(ensemble, request) if with_details else (),
        interval=forecast.interval,
        prediction_interval=_predict_measurement(ensemble, cell, allocation.C, forecast.interval),
        n_probability=comparison.n_probability,
        equal_n=comparison.equal_n,
        regret=comparison.regret,
        regret_interval=comparison.regret_interval,
        halting_marks=halting_marks,
        false_stop=advice.FALSE_STOP if halting_marks else None,
        next_run=next_run,
        growing=growing,
        no_effect=fit.joint.n_star.no_effect,
        times_measured=request.C / ensemble.C_measured_max,
        hours=hours.wall_clock,
        device_hours=hours.of_devices,
        epsilon=epsilon,
        level=LEVEL,
        nothing_learnt=fit.nothing_learnt,
        tie=tie,
        not_settled=fit.not_settled,
    )


def _predict_measurement(
    ensemble: CurveEnsemble, cell: int, C: float, expected: Interval | None
) -> Interval | None:
    """The interval of the reward that one new run of a cell will measure; None without replicates.

    It is that on the sweep's validation problems, widened where necessary to contain `expected`,
    the interval of the expected reward over all problems of the kind. cell: an index of
    ensemble.curves; C: rollouts."""
    new_run = ensemble.predict_new_run(cell, C).interval
    if new_run is None or expected is None:
        return new_run
    return min(new_run[0], expected[0]), max(new_run[1], expected[1])


def _plan_growing_run(
    ensemble: CurveEnsemble, request: AllocationRequest, allocation: Allocation, cell: int
) -> GrowingRun | None:
    """A run whose n grows along C, as an alternative to the recommended allocation of fixed n.

    None where it gains nothing, where the allocation is not that of a measured cell, where the user
    fixed something or gave a time, where n has no effect, and where the curves cannot predict such
    a run. cell: index, in ensemble.curves, of the measured cell nearest to the allocation."""
    is_measured = (allocation.B_p, allocation.n) == ensemble.curves[cell].key
    no_effect = ensemble.fit.joint.n_star.no_effect
    if not is_measured or request.fix or request.time or no_effect:
        return None
    # The model of a growing run looks up where a curve has the run's reward. On a flat start that
    # is at no particular C. Nor can a cell be followed that had hardly scored (_is_guess).
    has_flat_start = any(curve.flat_start for curve in ensemble.curves)
    if has_flat_start or _is_guess(ensemble, cell, allocation.C):
        return None
    return plan_growing_run(ensemble, cell, float(allocation.C), request.B_max)


def _reward_if_none_rose(ensemble: CurveEnsemble, request: AllocationRequest) -> float | None:
    """The reward with which the allowed cells began, where none has begun to rise by this budget;
    None where one has."""
    C_spent, allowed = ensemble.allowed_cells(request)
    return ensemble.reward_if_none_rose(C_spent, allowed)


def _describe_tie(ensemble: CurveEnsemble, request: AllocationRequest) -> str:
    """The sentence that no n leads, since no cell has begun to rise by this budget; "" where one
    has."""
    level = _reward_if_none_rose(ensemble, request)
    if level is None:
        return ""
    shown = f"up to here every evaluation of every cell shows {ensemble.fit.metric} {level:.4g}"
    return f"no n leads at this budget: {shown}"


def _with_budget(
    ensemble: CurveEnsemble, budget: float | TimeBudget, request: AllocationRequest
) -> _BudgetedRequest:
    """The request with its budget set and checked, and sentences on what the budget means.

    request: all but its C counts. A budget in rollouts is C itself. One in time is converted by the
    clocks of the runs: C is then that of the allowed cell which samples most in this time.
    InputError for a budget out of range or too far beyond the data, and for a fit of an unknown
    mode."""
    mode = ensemble.fit.mode
    if mode not in ALLOCATORS:
        expected = " or ".join(ALLOCATORS)
        raise InputError(
            found=f"the fit's mode is {mode!r}",
            expected=expected,
            fix="Run `isojax fit` again.",
        )
    if isinstance(budget, TimeBudget):
        return _with_time_budget(ensemble, budget, request)
    request = replace(request, C=budget)
    request.check()
    return _BudgetedRequest(request, _check_extrapolation(ensemble, request))


def _with_time_budget(
    ensemble: CurveEnsemble, budget: TimeBudget, request: AllocationRequest
) -> _BudgetedRequest:
    """The request with C as the rollouts that the fastest allowed cell samples in this time.

    InputError for a fit of mode "paper", whose law does not compare cells, and for one without
    clocks (how long the runs took)."""
    budget.check()
    if ensemble.fit.mode == "paper" and not ensemble.fit.nothing_learnt:
        raise InputError(
            found="a budget in time, of a fit in mode paper",
            expected="mode hierarchical",
            fix="Fit the runs again.",
        )

    # Which cells are allowed depends on the budget, and the budget's C on the allowed cells: first
    # take the fastest of all cells, then that of those which are allowed with it. C is at least 1,
    # since a request refuses 0; a time that is too short for every cell is refused later, when a
    # cell is chosen.
    rollouts = ensemble.affordable_rollouts(budget)  # [cells], 0 for a cell without a clock
    request = replace(request, C=max(float(rollouts.max()), 1.0), time=budget)
    request.check()
    allowed = ensemble.allowed_cells(request).allowed
    # Where none is allowed, the request is refused later, whatever its C.
    candidates = allowed if allowed.any() else ensemble.stable
    C = float(rollouts[candidates].max(initial=0.0))
    request = replace(request, C=max(C, 1.0))

    seconds = f"{budget.seconds:,.6g} s of {'all devices' if budget.of_devices else 'wall clock'}"
    fastest = f"{C:,.0f} rollouts in the fastest allowed cell"
    untimed = [
        f"{ensemble.B_p[i]}x{ensemble.n[i]}"
        for i in np.flatnonzero(np.isnan(ensemble.clock.per_rollout))
    ]
    not_compared = f"; not compared, as they have no clock: {', '.join(untimed)}" if untimed else ""
    reason = f"{seconds} are {fastest}, by the clocks of these runs{not_compared}"
    return _BudgetedRequest(request, (reason,))


def _compare_cells(
    ensemble: CurveEnsemble, request: AllocationRequest, chosen_n: int, cell: int
) -> _Comparison:
    """The recommended cell against all allowed cells: which n may be the best, and the regret.

    The regret is the expected loss of reward against the best allowed cell. cell: index, in
    ensemble.curves, of the measured cell nearest to the recommendation; chosen_n: the n of the
    recommendation, which need not be measured. All fields but equal_n are None where no cell is
    allowed; n_probability also without replicates, the regret also where no cell has risen."""
    # float[cells] and bool[cells]: what each cell would spend, and whether it may be chosen.
    C_spent, allowed = ensemble.allowed_cells(request)
    if not allowed.any():
        return _Comparison(
            n_probability=None, equal_n=(chosen_n,), regret=None, regret_interval=None
        )

    expected_rewards = ensemble.expected_at_cell_budgets(C_spent)
    best_reward = expected_rewards[allowed].max()
    within_epsilon = allowed & (expected_rewards >= best_reward - request.epsilon)
    draws = ensemble.sampled_at_cell_budgets(C_spent)  # [replicates, cells]
    # Negative where `cell` is not allowed itself and is above all that are: no loss.
    regret_draws = (draws[:, allowed].max(1) - draws[:, cell]).clip(0)

    if ensemble.replicates:
        regret = float(regret_draws.mean())
        n_probability = _n_probability(ensemble, draws, allowed)
    else:
        regret = max(0.0, float(best_reward - expected_rewards[cell]))
        n_probability = None
    regret_interval = ensemble.interval(regret_draws)
    # Where no cell has risen all are equal, and a regret of 0 would look like a sure choice.
    if ensemble.fit.nothing_learnt or ensemble.reward_if_none_rose(C_spent, allowed) is not None:
        regret = None
        regret_interval = None
    return _Comparison(
        n_probability=n_probability,
        equal_n=tuple(sorted(set(ensemble.n[within_epsilon].tolist()))),
        regret=regret,
        regret_interval=regret_interval,
    )


def _n_probability(
    ensemble: CurveEnsemble, draws: FloatArray, allowed: BoolArray
) -> dict[int, float]:
    """The probability of each n to be the best, such as {8: 0.7, 16: 0.3}; they add up to 1.

    It is the share of the draws, float[replicates, cells] of rewards, in which the best allowed
    cell has this n. Where several n are equal in a draw, they share it. allowed: bool[cells], at
    least one."""
    all_n = np.unique(ensemble.n[allowed])
    is_best = ensemble.samples.is_best(draws, allowed, axis=1)
    n_is_best = np.stack([is_best[:, ensemble.n == n].any(1) for n in all_n], axis=1)
    shares = n_is_best / n_is_best.sum(1, keepdims=True)
    return dict(zip(all_n.tolist(), shares.mean(0).tolist(), strict=True))


def _check_extrapolation(ensemble: CurveEnsemble, request: AllocationRequest) -> tuple[str, ...]:
    """Sentences on a budget outside the range of C that was measured; () inside.

    InputError where it is more than MAX_EXTRAPOLATION times the largest measured C, unless the
    request asks for an extrapolation."""
    C = request.C
    times_measured = C / ensemble.C_measured_max
    reasons = []
    # MEASURED_TOLERANCE: a factor a little above 1, since runs end a little before their budget.
    if times_measured > MAX_EXTRAPOLATION * MEASURED_TOLERANCE:
        times = format_number(times_measured)
        largest = f"the largest measured C = {ensemble.C_measured_max:.6g}"
        statement = f"C = {C:.6g} is {times} times {largest}"
        if not request.extrapolate:
            _refuse_extrapolation(ensemble, request, statement)
        reasons.append(f"extrapolated: {statement}; {_extrapolation_risks(ensemble)}")

    C_measured_min = ensemble.samples.C_low.min()
    if C_measured_min > C:
        below = f"C = {C:.6g} is below the smallest measured C = {C_measured_min:.6g}"
        reasons.append(f"{below}: the prediction there comes from the fitted curves alone")
    return tuple(reasons)


def _refuse_extrapolation(
    ensemble: CurveEnsemble, request: AllocationRequest, statement: str
) -> None:
    """Always raises InputError: the budget is too far beyond the measured ones.

    The message has the risks, and the cheapest further sweep that would support an answer; where no
    run learnt anything, no sweep would. statement: how far beyond, as the message begins, such as
    "C = 1e+06 is 8 times the largest measured C = 125000"."""
    nothing_learnt = ensemble.fit.nothing_learnt
    if nothing_learnt:
        raise InputError(
            found=nothing_learnt,
            fix=(
                f"{statement}; expected at most {MAX_EXTRAPOLATION:g} times, and first a sweep "
                "in which a reward rises. Find out why none does (docs/laws.md, A sweep that "
                "shows nothing)."
            ),
        )

    sweep = advice.describe_supporting_sweep(ensemble, request, request.C / MAX_EXTRAPOLATION)
    risks = _extrapolation_risks(ensemble)
    raise InputError(
        found=statement,
        expected=f"at most {MAX_EXTRAPOLATION:g} times: {risks}",
        fix=(
            f"The cheapest sweep that supports it takes at most {sweep}. Or ask for an "
            "extrapolation (--extrapolate)."
        ),
    )


def _extrapolation_risks(ensemble: CurveEnsemble) -> str:
    risks = "no measurement supports more"
    if not ensemble.replicates:
        risks += "; this fit has no intervals to say how wrong it may be"
    undetermined_cells = [f"{c.B_p}x{c.n}" for c in ensemble.curves if not c.determined]
    if undetermined_cells:
        risks += f"; the data do not determine the plateaus of {', '.join(undetermined_cells)}"
    return risks


def _explain_outcome(
    ensemble: CurveEnsemble,
    request: AllocationRequest,
    allocation: Allocation,
    cell: int,
    reward: float,
) -> list[str]:
    """Sentences on where the expected reward comes from, and whether not to train is better.

    It may come from another cell's curve, from a peak, or from an extrapolation. cell: index, in
    ensemble.curves, of the measured cell that is nearest to the allocation; reward: the one
    expected of the allocation. [] where there is nothing to add."""
    fit = ensemble.fit
    curve = ensemble.curves[cell]
    name = f"{curve.B_p}x{curve.n}"
    reasons = []
    if curve.key != (allocation.B_p, allocation.n):
        missing = f"{allocation.B_p}x{allocation.n} has no curve"
        nearest = f"that of the nearest measured cell, {name}"
        reasons.append(f"{missing}: the expected reward is {nearest}")

    measured = f"measured up to C = {curve.C_high:,.0f}"
    if curve.C_peak is not None and allocation.C > curve.C_peak:
        M_peak = ensemble.counts_of(allocation.B_p, allocation.n).updates(curve.C_peak)
        peak = f"C = {curve.C_peak:,.0f} (M = {M_peak})"
        reasons.append(
            f"stop early: reward of {name} falls beyond {peak}; what is expected is its peak"
        )
    elif _is_guess(ensemble, cell, allocation.C):
        last = ensemble.predict_reward(cell, curve.C_high).reward
        doubt = "how it goes on, only further evaluations can tell"
        reasons.append(
            f"{name}, {measured}, has hardly scored there ({last:.3f}); "
            f"{doubt}: the expected reward stays near that"
        )
    elif ensemble.is_beyond_data(cell, allocation.C):
        reasons.append(f"the expected reward is extrapolated: {name} was {measured}")

    base_reward = fit.base_reward
    # Below the base policy: training made it worse, unless the difference is noise.
    if base_reward is not None and reward < base_reward and not _is_noise(ensemble, request):
        loss = f"less than the base policy's {base_reward:.3f}"
        reasons.append(
            f"that is {loss}: these runs made it worse, and no training is the better choice"
        )
    # Where nothing was learnt, the first flag states so (checks/fit_flags.py).
    if fit.nothing_learnt and fit.flags[0].code == NOTHING_TO_LEARN:
        reasons.append("the smallest run is as good: the reward is this from the start")
    return reasons


def _is_noise(ensemble: CurveEnsemble, request: AllocationRequest) -> bool:
    """Whether a reward below the base policy's is noise: always where no cell has risen, and where
    the base policy had fewer than FEW_HITS correct rollouts, of which some are there by chance."""
    fit = ensemble.fit
    if fit.nothing_learnt or _reward_if_none_rose(ensemble, request) is not None:
        return True
    if fit.draws is None or fit.draws.rollouts is None or fit.base_reward is None:
        return False
    return fit.base_reward * fit.draws.rollouts < FEW_HITS


def _explain_no_effect(fit: FitResult, comparison: _Comparison, chosen_n: int) -> list[str]:
    """The sentence that the choice of n makes no difference, with the n that may be taken; [] where
    it makes one."""
    if not fit.joint.n_star.no_effect or fit.nothing_learnt:
        return []
    n_probability = comparison.n_probability or {}
    likely_n = [n for n, p in n_probability.items() if p >= advice.MIN_P_BEST] or [chosen_n]
    fastest = f"take the fastest on your hardware of n = {', '.join(map(str, likely_n))}"
    return [f"n makes no difference here, by a test of all n together; {fastest}"]


def _is_guess(ensemble: CurveEnsemble, cell: int, C: float) -> bool:
    """Whether C is beyond the data of a cell that had almost no correct rollouts until their end,
    so that its curve cannot be extrapolated."""
    return ensemble.is_beyond_data(cell, C) and bool(ensemble.samples.hardly_scored()[cell])


def _measured_cells(
    ensemble: CurveEnsemble, request: AllocationRequest
) -> tuple[MeasuredCell, ...]:
    """The forecast of each measured cell within the request's limits, if it spent the budget.

    The highest reward comes first, of equal ones the smallest n, then B_p. Unstable cells are
    listed too, and marked."""
    C_spent, affordable = ensemble.affordable_cells(request)
    measured_cells = []
    for i in np.flatnonzero(affordable).tolist():
        C = float(C_spent[i])
        forecast = ensemble.predict_reward(i, C)
        low, high = forecast.interval or (None, None)  # None without replicates
        hours = ensemble.predict_hours(i, C)

        B_p, n = ensemble.curves[i].key
        measured_cell = MeasuredCell(
            B_p=B_p,
            n=n,
            M=ensemble.counts[i].updates(C),
            reward=forecast.reward,
            extrapolated=ensemble.is_beyond_data(i, C),
            low=low,
            high=high,
            stable=bool(ensemble.stable[i]),
            hours=hours.wall_clock,
            device_hours=hours.of_devices,
        )
        measured_cells.append(measured_cell)
    return tuple(sorted(measured_cells, key=lambda c: (-c.reward, c.n, c.B_p)))
