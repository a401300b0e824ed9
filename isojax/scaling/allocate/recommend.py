"""The allocation (B_p, n, M) for a budget of C rollouts, from a fit alone: what to run, what reward
to expect, and how sure that is. Mode "paper" follows its law n*(C); mode "hierarchical" compares
the cells' curves (allocators.py). And what a reward costs: the inverse of the same draws, for one
new run of each measured cell."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import Allocation, MeasuredCell, Quote, QuotedCell, Recommendation
from isojax.core.terminal import format_number
from isojax.scaling.allocate import advice, allocators
from isojax.scaling.allocate.constraints import EPSILON, AllocationRequest, TimeBudget
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble, load_rollout_ensemble
from isojax.scaling.allocate.growing_n import plan_growing_run
from isojax.scaling.curves.hill import MEASURED_TOLERANCE, curve_value
from isojax.scaling.curves.sweep_estimate import FEW_HITS, MAX_EXTRAPOLATION
from isojax.scaling.intervals import LEVEL, TAILS
from isojax.scaling.result import NOTHING_TO_LEARN, FitResult
from isojax.scaling.tracks import FloatArray, group_by

ALLOCATORS: Mapping[str, Callable[[FitResult, CurveEnsemble, AllocationRequest], Allocation]] = {
    "paper": allocators.allocate_by_law,
    "hierarchical": allocators.allocate_by_curves,
}
BUDGETS = 256  # of the grid of C on which a quote inverts the draws
LUCK_SEED = 2


def recommend(
    fit: FitResult,
    budget: float | TimeBudget,
    B_max: int | None = None,
    fix: Mapping[str, int] | None = None,
    extrapolate: bool = False,
    epsilon: float = EPSILON,
    with_details: bool = True,
) -> Recommendation:
    """How to spend a budget of C rollouts, or of time: an allocation of at most C rollouts (B_p n M
    where an update samples one batch), its expected reward, and the reasons in words.

    `B_max`: the largest B_p n that may be used; `fix`: at most one of {"M": v}, {"B": v}, {"B_p":
    v}; `extrapolate`: answer beyond 4 times the largest measured C too; `epsilon`: a loss of reward
    that makes no difference; `with_details`: predict all measured cells, halting marks and the next
    run, which takes longer than the rest. InputError where the fit is not in rollouts, C is out of
    reach, or the limits leave no allocation."""
    ensemble = load_rollout_ensemble(fit)
    request = _with_budget(
        ensemble, budget, AllocationRequest(0.0, B_max, dict(fix or {}), epsilon, extrapolate, [])
    )
    allocate = allocators.allocate_by_curves if fit.nothing_learnt else ALLOCATORS[fit.mode]
    allocation = allocate(fit, ensemble, request)
    cell = ensemble.nearest_cell(allocation.B_p, allocation.n)
    if request.time is not None:  # which other cells may spend on more rollouts than this one
        request = replace(request, C=float(ensemble.affordable_rollouts(request.time)[cell]))
        _check_extrapolation(ensemble, request)
    reward, interval = ensemble.predict_reward(cell, allocation.C)
    new_run = ensemble.predict_new_run(cell, allocation.C)[1]
    # of the same problems: widened to hold that of any problems
    if new_run is not None and interval is not None:
        new_run = min(new_run[0], interval[0]), max(new_run[1], interval[1])
    comparison = _compare_cells(ensemble, request, allocation.n, cell)
    tie = _describe_tie(ensemble, request)
    likely_n = [n for n, p in (comparison["n_probability"] or {}).items() if p >= advice.MIN_P_BEST]
    _explain_outcome(ensemble, request, allocation, cell, reward, likely_n or [allocation.n])
    measured = (allocation.B_p, allocation.n) == ensemble.curves[cell].key
    hours, device_hours = ensemble.predict_hours(cell, allocation.C) if measured else (None, None)
    risks, further_warnings = advice.find_risks(ensemble, allocation, cell)
    with_advice = with_details and not (fit.nothing_learnt or tie)
    halting_marks = advice.set_halting_marks(ensemble, allocation, cell) if with_advice else ()
    # A growing n goes on from a reward as the runs of its new n do, of which a reward of 0 says
    # nothing.
    is_unknown = _is_guess(ensemble, cell, allocation.C) or any(
        curve.flat_start for curve in ensemble.curves
    )
    may_grow = (
        with_advice
        and measured
        and not is_unknown
        and not (request.fix or request.time or fit.joint.n_star.no_effect)
    )
    return Recommendation(
        allocation=allocation,
        metric=fit.metric,
        expected_reward=reward,
        extrapolated=ensemble.is_beyond_data(cell, allocation.C),
        reasons=tuple(request.reasons),
        risks=risks,
        warnings=tuple(flag.text for flag in fit.flags if flag.severity != "info"),
        further_warnings=further_warnings,
        measured_cells=_measured_cells(ensemble, request) if with_details else (),
        interval=interval,
        prediction_interval=new_run,
        **comparison,
        halting_marks=halting_marks,
        false_stop=advice.FALSE_STOP if halting_marks else None,
        next_run=advice.choose_next_run(ensemble, request, cell, comparison["regret"])
        if with_advice
        else None,
        growing=plan_growing_run(ensemble, cell, float(allocation.C), B_max) if may_grow else None,
        no_effect=fit.joint.n_star.no_effect,
        times_measured=request.C / ensemble.C_measured_max,
        hours=hours,
        device_hours=device_hours,
        epsilon=epsilon,
        level=LEVEL,
        nothing_learnt=fit.nothing_learnt,
        tie=tie,
        not_settled=fit.not_settled,
    )


def _describe_tie(ensemble: CurveEnsemble, request: AllocationRequest) -> str:
    """That no cell has left the reward of its start at this budget; "" where one has."""
    level = ensemble.level_of_all(*ensemble.allowed_cells(request))
    if level is None:
        return ""
    return f"no n leads at this budget: up to here every evaluation of every cell shows {ensemble.fit.metric} {level:.4g}"


def _with_budget(
    ensemble: CurveEnsemble, budget: float | TimeBudget, request: AllocationRequest
) -> AllocationRequest:
    """The request with its budget; of time, C is what the allowed cell of most rollouts affords."""
    if (mode := ensemble.fit.mode) not in ALLOCATORS:
        raise InputError(
            f"the fit's mode is {mode!r}; expected {' or '.join(ALLOCATORS)}. Run `isojax fit` again."
        )
    if not isinstance(budget, TimeBudget):
        request = replace(request, C=budget)
        request.check()
        _check_extrapolation(ensemble, request)
        return request
    budget.check()
    if ensemble.fit.mode == "paper" and not ensemble.fit.nothing_learnt:
        raise InputError(
            "a budget in time, of a fit in mode paper; expected mode hierarchical. Fit the runs again."
        )
    rollouts = ensemble.affordable_rollouts(budget)
    request = replace(request, C=max(float(rollouts.max()), 1.0), time=budget)
    request.check()
    allowed = ensemble.allowed_cells(request)[1]
    C = float(rollouts[allowed if allowed.any() else ensemble.stable].max(initial=0.0))
    request = replace(request, C=max(C, 1.0))
    seconds = f"{budget.seconds:,.6g} s of {'all devices' if budget.of_devices else 'wall clock'}"
    untimed = [
        f"{ensemble.B_p[i]}x{ensemble.n[i]}"
        for i in np.flatnonzero(np.isnan(ensemble.clock.per_rollout))
    ]
    not_compared = f"; not compared, as they have no clock: {', '.join(untimed)}" if untimed else ""
    fastest = f"{C:,.0f} rollouts in the fastest allowed cell"
    request.reasons.append(f"{seconds} are {fastest}, by the clocks of these runs{not_compared}")
    return request


def _compare_cells(
    ensemble: CurveEnsemble, request: AllocationRequest, chosen_n: int, cell: int
) -> dict[str, Any]:
    """The chosen cell against all that may be chosen, if any may: fields of Recommendation."""
    C_spent, allowed = ensemble.allowed_cells(request)
    if not allowed.any():
        return {
            "n_probability": None,
            "equal_n": (chosen_n,),
            "regret": None,
            "regret_interval": None,
        }
    expected_rewards = ensemble.expected_at_cell_budgets(C_spent)
    draws = ensemble.sampled_at_cell_budgets(C_spent)  # [replicates, cells]
    best_reward = expected_rewards[allowed].max()
    within_epsilon = allowed & (expected_rewards >= best_reward - request.epsilon)
    regret_draws = (draws[:, allowed].max(1) - draws[:, cell]).clip(0)
    regret, n_probability = max(0.0, float(best_reward - expected_rewards[cell])), None
    if ensemble.replicates:
        regret = float(regret_draws.mean())
        all_n = np.unique(ensemble.n[allowed])
        is_best = ensemble.samples.is_best(draws, allowed, axis=1)
        n_is_best = np.stack([is_best[:, ensemble.n == n].any(1) for n in all_n], axis=1)
        shares = n_is_best / n_is_best.sum(1, keepdims=True)  # equal n share a draw
        n_probability = dict(zip(all_n.tolist(), shares.mean(0).tolist(), strict=True))
    # A loss of 0 against n that never rose, or not yet, would say that the choice is right.
    if ensemble.fit.nothing_learnt or ensemble.level_of_all(C_spent, allowed) is not None:
        regret, regret_draws = None, draws[:0, 0]
    return {
        "n_probability": n_probability,
        "equal_n": tuple(sorted(set(ensemble.n[within_epsilon].tolist()))),
        "regret": regret,
        "regret_interval": ensemble.interval(regret_draws),
    }


def _check_extrapolation(ensemble: CurveEnsemble, request: AllocationRequest) -> None:
    C = request.C
    C_measured_max = ensemble.C_measured_max
    C_measured_min = ensemble.samples.C_low.min()
    ratio = C / C_measured_max
    if ratio > MAX_EXTRAPOLATION * MEASURED_TOLERANCE:
        statement = f"C = {C:.6g} is {format_number(ratio)} times the largest measured C = {C_measured_max:.6g}"
        nothing_learnt = ensemble.fit.nothing_learnt
        if nothing_learnt and not request.extrapolate:
            raise InputError(
                f"{nothing_learnt}. {statement}; expected at most {MAX_EXTRAPOLATION:g} times, and first a sweep "
                "in which a reward rises. Find out why none does (docs/laws.md, A sweep that shows nothing)."
            )
        risks = "no measurement supports more"
        if not ensemble.replicates:
            risks += "; this fit has no intervals to say how wrong it may be"
        if undetermined_cells := [f"{c.B_p}x{c.n}" for c in ensemble.curves if not c.determined]:
            risks += f"; the data do not determine the plateaus of {', '.join(undetermined_cells)}"
        if not request.extrapolate:
            sweep = advice.describe_supporting_sweep(ensemble, request, C / MAX_EXTRAPOLATION)
            raise InputError(
                f"{statement}; expected at most {MAX_EXTRAPOLATION:g} times: {risks}. The cheapest sweep that supports "
                f"it takes at most {sweep}. Or ask for an extrapolation (--extrapolate)."
            )
        request.reasons.append(f"extrapolated: {statement}; {risks}")
    if C_measured_min > C:
        below = f"C = {C:.6g} is below the smallest measured C = {C_measured_min:.6g}"
        request.reasons.append(f"{below}: the prediction there comes from the fitted curves alone")


def _explain_outcome(
    ensemble: CurveEnsemble,
    request: AllocationRequest,
    allocation: Allocation,
    cell: int,
    reward: float,
    likely_n: list[int],
) -> None:
    """What the expected reward rests on, and reasons against training at all or against the choice
    of n."""
    fit, curve, reasons = ensemble.fit, ensemble.curves[cell], request.reasons
    name = f"{curve.B_p}x{curve.n}"
    if curve.key != (allocation.B_p, allocation.n):
        missing = f"{allocation.B_p}x{allocation.n} has no curve"
        reasons.append(
            f"{missing}: the expected reward is that of the nearest measured cell, {name}"
        )
    if curve.C_peak is not None and allocation.C > curve.C_peak:
        M_peak = ensemble.counts_of(allocation.B_p, allocation.n).updates(curve.C_peak)
        peak = f"C = {curve.C_peak:,.0f} (M = {M_peak})"
        reasons.append(
            f"stop early: reward of {name} falls beyond {peak}; what is expected is its peak"
        )
    elif _is_guess(ensemble, cell, allocation.C):
        last = ensemble.predict_reward(cell, curve.C_high)[0]
        doubt = (
            "how it goes on, only further evaluations can tell: the expected reward stays near that"
        )
        reasons.append(
            f"{name}, measured up to C = {curve.C_high:,.0f}, has hardly scored there ({last:.3f}); {doubt}"
        )
    elif ensemble.is_beyond_data(cell, allocation.C):
        reasons.append(
            f"the expected reward is extrapolated: {name} was measured up to C = {curve.C_high:,.0f}"
        )
    # Of a sweep that shows nothing, a reward below the base policy's is noise, as all others are.
    is_noise = (
        bool(fit.nothing_learnt)
        or ensemble.level_of_all(*ensemble.allowed_cells(request)) is not None
    )
    if fit.draws is not None and fit.draws.rollouts is not None:  # a few hits less than a few
        is_noise |= fit.base_reward is not None and fit.base_reward * fit.draws.rollouts < FEW_HITS
    if fit.base_reward is not None and reward < fit.base_reward and not is_noise:
        loss = f"less than the base policy's {fit.base_reward:.3f}"
        reasons.append(
            f"that is {loss}: these runs made it worse, and no training is the better choice"
        )
    if fit.nothing_learnt and fit.flags[0].code == NOTHING_TO_LEARN:
        reasons.append("the smallest run is as good: the reward is this from the start")
    if fit.joint.n_star.no_effect and not fit.nothing_learnt:
        fastest = f"take the fastest on your hardware of n = {', '.join(map(str, likely_n))}"
        reasons.append(f"n makes no difference here, by a test of all n together; {fastest}")


def _is_guess(ensemble: CurveEnsemble, cell: int, C: float) -> bool:
    """Whether C is beyond the data of a cell that has hardly scored by their end."""
    return ensemble.is_beyond_data(cell, C) and bool(ensemble.samples.hardly_scored()[cell])


def _measured_cells(
    ensemble: CurveEnsemble, request: AllocationRequest
) -> tuple[MeasuredCell, ...]:
    """Measured cells, unstable ones too, within the limits, at the compute each would spend; best
    first."""
    C_spent, affordable = ensemble.affordable_cells(request)
    measured_cells = []
    for i in np.flatnonzero(affordable).tolist():
        C = float(C_spent[i])
        reward, interval = ensemble.predict_reward(i, C)
        low, high = interval or (None, None)
        B_p, n = ensemble.curves[i].key
        hours, device_hours = ensemble.predict_hours(i, C)
        measured_cell = MeasuredCell(
            B_p=B_p,
            n=n,
            M=ensemble.counts[i].updates(C),
            reward=reward,
            extrapolated=ensemble.is_beyond_data(i, C),
            low=low,
            high=high,
            stable=bool(ensemble.stable[i]),
            hours=hours,
            device_hours=device_hours,
        )
        measured_cells.append(measured_cell)
    return tuple(sorted(measured_cells, key=lambda c: (-c.reward, c.n, c.B_p)))


def quote(fit: FitResult, reward: float) -> Quote:
    """The rollouts, and hours where clocks are known, at which one new run reaches a reward: a
    distribution for each n, of its soonest B_p. InputError for no reward, for one that the base
    policy has, and for a fit without draws."""
    ensemble = load_rollout_ensemble(fit)
    if not 0 < reward < 1:
        raise InputError(f"a reward of {reward:g}; expected one between 0 and 1, such as 0.6.")
    if fit.nothing_learnt:
        return _quote_of_nothing(ensemble, reward)
    if not ensemble.replicates:
        raise InputError(
            "this fit has no draws of its curves; expected mode hierarchical with --replicates above 0."
        )
    if fit.base_reward is not None and reward <= fit.base_reward:
        raise InputError(
            f"given {reward:g}, expected more than the base policy's {fit.metric}, {fit.base_reward:.3f}."
        )
    horizon = MAX_EXTRAPOLATION * ensemble.C_measured_max
    C = first_budgets(ensemble, reward, horizon)
    stable = (
        np.flatnonzero(ensemble.stable) if ensemble.stable.any() else np.arange(len(ensemble.n))
    )
    cells = [quote_cell(ensemble, int(i), C[:, i]) for i in stable]
    by_n = tuple(
        min(cells_of_n, key=_cost)
        for _, cells_of_n in sorted(group_by(cells, lambda c: c.n).items())
    )
    return Quote(reward, fit.metric, horizon, LEVEL, min(by_n, key=_cost).n, by_n)


def _quote_of_nothing(ensemble: CurveEnsemble, reward: float) -> Quote:
    """Of a sweep that shows nothing: a cell for each n, the smallest stable B_p, without a
    price."""
    fit, level = ensemble.fit, ensemble.curves[0].A
    if reward <= level:
        raise InputError(
            f"{fit.nothing_learnt}. Given {reward:g}, expected more than the {level:.3g} of all runs."
        )
    stable = (
        np.flatnonzero(ensemble.stable) if ensemble.stable.any() else np.arange(len(ensemble.n))
    )
    first_of_n = {ensemble.curves[i].n: ensemble.curves[i] for i in reversed(stable.tolist())}
    cells = tuple(
        QuotedCell(
            B_p=curve.B_p,
            n=n,
            C=None,
            low=None,
            high=None,
            p_never=None,
            M=None,
            hours=None,
            device_hours=None,
            extrapolated=True,
        )
        for n, curve in sorted(first_of_n.items())
    )
    horizon = MAX_EXTRAPOLATION * ensemble.C_measured_max
    interval = ensemble.curves[0].A_interval
    highest = None if interval is None else interval[1]
    return Quote(reward, fit.metric, horizon, LEVEL, None, cells, fit.nothing_learnt, highest)


def _cost(cell: QuotedCell) -> tuple[float, ...]:
    """By the median; where most draws never get there, by how many do."""
    p_never = 1.0 if cell.p_never is None else cell.p_never
    return (cell.C is None, p_never if cell.C is None else cell.C, cell.B_p)


def first_budgets(ensemble: CurveEnsemble, reward: float, horizon: float) -> FloatArray:
    """float[replicates, cells]: C at which a new run of each cell first has the reward, by each
    draw of the curves and of the run's own luck; infinite where it has not by the horizon."""
    C = np.geomspace(0.1 * float(ensemble.samples.C_low.min()), horizon, BUDGETS)
    rewards = ensemble.samples.curves_as_seen(C[:, None])  # [BUDGETS, replicates, cells]
    settings, samples = ensemble.fit.intervals, ensemble.samples
    run_sd = 0.0 if settings is None else settings.run_sd
    # at the plateau
    luck = np.random.default_rng(LUCK_SEED).normal(size=rewards.shape[1:]) * run_sd
    C_capped = np.minimum(C[:, None], samples.C_peak)[:, None]
    progress = curve_value(
        C_capped, 0.0, 1.0, samples.exponent, samples.C_mid, samples.tail[:, None]
    )
    gain = np.maximum.accumulate(rewards + luck * progress, axis=0) - reward
    reached = gain >= 0
    first = reached.argmax(0)
    after, before = (np.take_along_axis(gain, i.clip(0)[None], 0)[0] for i in (first, first - 1))
    share = np.where(first > 0, -before / np.maximum(after - before, 1e-12), 1.0)
    log_C = np.log(C)
    between = np.exp(log_C[(first - 1).clip(0)] * (1 - share) + log_C[first] * share)
    return np.where(reached.any(0), between, np.inf)


def quote_cell(ensemble: CurveEnsemble, i: int, C: FloatArray) -> QuotedCell:
    """The distribution of C, float[replicates], of cell i: its median and interval are None where
    they are never."""
    quantiles = np.quantile(C, (TAILS[0], 0.5, TAILS[1]), method="higher")
    low, median, high = (
        float(quantile) if np.isfinite(quantile) else None for quantile in quantiles
    )
    hours, device_hours = (None, None) if median is None else ensemble.predict_hours(i, median)
    B_p, n = ensemble.curves[i].key
    return QuotedCell(
        B_p=B_p,
        n=n,
        C=median,
        low=low,
        high=high,
        p_never=float(np.isinf(C).mean()),
        M=None if median is None else ensemble.counts[i].updates_to_reach(median),
        hours=hours,
        device_hours=device_hours,
        extrapolated=median is None or ensemble.is_beyond_data(i, median),
    )
