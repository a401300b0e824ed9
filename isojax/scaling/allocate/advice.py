"""What accompanies a recommendation: its risks in a sentence, marks at which to stop its run, the
run to measure next, and, where a budget is refused, the cheapest sweep that would support it."""

from collections import Counter

import numpy as np

from isojax.core.estimators import FloatArray
from isojax.core.nouns import Allocation, HaltingMark, NextRun, Risk
from isojax.scaling.allocate.constraints import AllocationRequest
from isojax.scaling.allocate.curve_ensemble import MEASURED_TOLERANCE, CurveEnsemble

MARK_SHARES = (0.25, 0.5)  # of the recommended run's C
MARK_TAIL = 0.025  # the probability, by the draws, that a run as forecast is below one mark
# A forecast is uncertain where the width of its interval plus half its rise beyond the data exceeds
# this: in 960 simulated sweeps of other forms, .59 of those that miss by more than .02 are, and .30
# of the others.
UNCERTAIN_SPAN = 0.12
# what is stated of all marks: twice their tails, since true curves may have other forms
FALSE_STOP = 0.1
RUN_SHARES = (0.25, 0.5, 1.0)  # of the budget, to which a further run of a cell may be made
MIN_REGRET_SAVED = 0.0005  # of reward, by a further run
NEARLY_ALL = 0.8  # of what the best run saves: the cheapest such run is proposed
MIN_CORRELATION = 2.0  # standard errors, below which a correlation between draws may be chance
MIN_P_BEST = 0.1  # of each n that a sweep for a larger budget measures


def find_risks(
    ensemble: CurveEnsemble, allocation: Allocation, cell: int
) -> tuple[tuple[Risk, ...], tuple[str, ...]]:
    """The main risks, and the fit's warnings that they do not state."""
    fit = ensemble.fit
    curve = ensemble.curves[cell]
    n = allocation.n
    all_n = set(ensemble.n.tolist())
    seeds = Counter((run.B_p, run.n) for run in fit.runs)
    risks = dict[str, str]()  # by their codes, those of the flags that they state
    if fit.nothing_learnt:
        text = "nothing was learnt from which a reward could be forecast"
        others = [flag.text for flag in fit.flags[1:] if flag.severity != "info"]
        return (Risk(fit.flags[0].code, text),), tuple(others)
    reward, interval = ensemble.predict_reward(cell, allocation.C)
    rise = reward - ensemble.predict_reward(cell, min(allocation.C, ensemble.C_measured_max))[0]
    if interval is not None and interval[1] - interval[0] + rise / 2 > UNCERTAIN_SPAN:
        beyond = f", after a rise of {rise:.3f} beyond the data" if rise > 0 else ""
        risks["uncertain_forecast"] = (
            f"the reward is uncertain ({interval[0]:.3f} to {interval[1]:.3f}{beyond})"
        )
    if max(seeds.values()) == 1:
        risks["one_seed"] = "one seed per cell"
    elif seeds[curve.key] == 1:
        risks["one_seed_of_cell"] = f"one seed of {curve.B_p}x{curve.n}"
    if fit.intervals is not None and fit.intervals.run_sd_source.startswith("assumed"):
        risks["run_sd_assumed"] = (
            f"the spread between seeds, {fit.intervals.run_sd:.3f}, is assumed"
        )
    if len(all_n) > 1 and n == max(all_n):
        risks["largest_n_leads"] = f"n = {n} is the largest of the grid"
    elif len(all_n) > 1 and n == min(all_n):
        risks["smallest_n_leads"] = f"n = {n} is the smallest of the grid"
    if allocation.C > curve.C_high * MEASURED_TOLERANCE and fit.forecast is not None:
        error = fit.forecast.mean_absolute_error
        codes = {flag.code for flag in fit.flags}
        own = "this sweep's forecasts from its first quarter"
        outcome = (
            "untried" if error is None else "missed" if "forecast_missed" in codes else "tried"
        )
        risks[f"forecast_{outcome}"] = f"{own} " + (
            "could not be tried" if error is None else f"erred by {error:.3f}"
        )
    others = [flag.text for flag in fit.flags if flag.severity != "info" and flag.code not in risks]
    return tuple(Risk(code, text) for code, text in risks.items()), tuple(others)


def set_halting_marks(
    ensemble: CurveEnsemble, allocation: Allocation, cell: int
) -> tuple[HaltingMark, ...]:
    """Where the recommended run is to be judged on its way, up to its peak; none without draws of
    its cell."""
    curve, counts, marks = ensemble.curves[cell], ensemble.counts[cell], []
    if not ensemble.replicates or curve.key != (allocation.B_p, allocation.n):
        return ()
    for share in MARK_SHARES:
        M = counts.updates(share * min(allocation.C, curve.C_peak or np.inf))
        C = float(counts.rollouts(max(M, 1)))
        draws = ensemble.sampled_at_cell_budgets(np.array([C]), same_problems=True)[:, cell]
        low = np.quantile(draws + _measurement_noise(ensemble), MARK_TAIL)
        marks.append(HaltingMark(M, counts.rollouts(M), float(draws.mean()), float(low)))
    # Below C_low nothing was measured, and no run is below a reward of 0.
    return tuple(mark for mark in marks if mark.C >= curve.C_low and mark.stop_below > 0)


def _measurement_noise(ensemble: CurveEnsemble) -> FloatArray:
    """float[Q]: how far an evaluation of a new run is from its curve; independent of the draws."""
    settings = ensemble.fit.intervals
    normal = np.random.default_rng(1).standard_normal(ensemble.replicates)
    return (normal - normal.mean()) * (
        0.0 if settings is None else np.hypot(settings.run_sd, settings.noise_sd)
    )


def choose_next_run(
    ensemble: CurveEnsemble, request: AllocationRequest, chosen: int, regret: float | None
) -> NextRun | None:
    """A further run of an allowed cell, to the budget or less: the cheapest of those that lower the
    expected regret of the chosen cell nearly as much as the best one; None without draws, and where
    no run lowers it.

    A run moves the draws' mean rewards along their regression on what it measures (Strong, Oakley,
    Brennan 2014)."""
    C_spent, allowed = ensemble.allowed_cells(request)
    if regret is None or not ensemble.replicates or not allowed[chosen]:
        return None
    keys = [ensemble.curves[i].key for i in np.flatnonzero(allowed)]
    rewards = ensemble.sampled_at_cell_budgets(C_spent, same_problems=True)[:, allowed]
    leader = int(allowed[:chosen].sum())  # the chosen cell among the allowed ones
    lead = rewards - rewards[:, [leader]]  # [Q, J]
    chance = MIN_CORRELATION / len(lead) ** 0.5 * lead.std(0)
    noise = _measurement_noise(ensemble)
    runs = []
    counts = [ensemble.counts[i] for i in np.flatnonzero(allowed)]
    for share in RUN_SHARES:
        M = ensemble.updates_within(share * C_spent)
        budgets = ensemble.rollouts_after(np.maximum(M, 1))
        measured = ensemble.sampled_at_cell_budgets(budgets, same_problems=True)[:, allowed]
        for j in np.flatnonzero(M[allowed]):
            deviation = measured[:, j] - measured[:, j].mean()
            covariance = deviation @ lead / len(lead)
            covariance[np.abs(covariance) < chance * deviation.std()] = 0.0
            slope = covariance / max(deviation.var() + noise.var(), 1e-12)
            leads_after = lead.mean(0) + (deviation + noise)[:, None] * slope
            times_best = np.bincount(leads_after.argmax(1), minlength=len(keys))
            times_best[leader] = -1
            regret_after = max(0.0, regret - float(leads_after.max(1).mean()))
            run = counts[j].allocation(*keys[j], M=int(M[allowed][j]))
            between = keys[leader], keys[times_best.argmax()]
            runs.append(NextRun(run, regret, regret_after, between))
    saved = np.array([regret - run.regret_after for run in runs])
    enough = max(NEARLY_ALL * saved.max(initial=0.0), MIN_REGRET_SAVED)
    worthwhile = [runs[i] for i in np.flatnonzero(saved >= enough)]
    return min(worthwhile, key=lambda run: (run.allocation.C, run.regret_after), default=None)


def describe_supporting_sweep(
    ensemble: CurveEnsemble, request: AllocationRequest, C_to_measure: float
) -> str:
    """The cheapest sweep that measures up to C_to_measure: all runs continued, or new ones, at the
    fixed or the best cell's B_p, of each n that may be the best at the budget."""
    fit, (C_spent, allowed) = ensemble.fit, ensemble.allowed_cells(request)
    means = ensemble.expected_at_cell_budgets(C_spent)
    draws = ensemble.sampled_at_cell_budgets(C_spent)
    rewards = np.where(
        allowed | ~allowed.any(), draws if ensemble.replicates else means[None], -np.inf
    )
    best_n, counts = np.unique(ensemble.n[rewards.argmax(1)], return_counts=True)
    likely_n = best_n[counts >= min(MIN_P_BEST * len(rewards), counts.max())].tolist()
    best = int(rewards.mean(0).argmax())
    B_p = request.fix.get("B_p", int(ensemble.B_p[best]))
    if request.B_max is not None:
        likely_n = [n for n in likely_n if B_p * n <= request.B_max] or [int(ensemble.n[best])]
    # The last evaluation may be a step of the grid of C short of the sweep's budget.
    finest = max(fit.runs, key=lambda run: run.points)
    C_first = min(c.C_low for c in ensemble.curves)
    C_end = int(C_to_measure * (finest.C_max / C_first) ** (1 / max(1, finest.points - 2))) + 1
    counts_of_runs = [ensemble.counts_of(B_p, n) for n in likely_n]
    new_runs = [
        counts.allocation(B_p, n, counts.updates_to_reach(C_end))
        for n, counts in zip(likely_n, counts_of_runs, strict=True)
    ]
    cost = sum(run.C for run in new_runs)
    cost_of_all = sum(max(0, C_end - int(run.C_max)) for run in fit.runs)
    imported = all(run.imported for run in fit.runs)
    elsewhere = "with the trainer of these logs; import what it logs with them"
    if cost_of_all <= cost:
        what = f"{cost_of_all:,} rollouts: all {len(fit.runs)} runs continued to C = {C_end:,}"
        return f"{what} ({elsewhere if imported else f'isojax launch --resume CONFIG sweep.budget={C_end}'})"
    n, M = (", ".join(str(getattr(run, name)) for run in new_runs) for name in ("n", "M"))
    # a new one, so that both sweeps can be fitted together
    seed = max(run.seed for run in fit.runs) // 1000 + 1
    keys = f"'sweep.B_p=[{B_p}]' 'sweep.n=[{n.replace(' ', '')}]' sweep.seeds=1 sweep.seed={seed} sweep.budget={C_end}"
    what = f"{cost:,} rollouts: new runs of B_p = {B_p} and n = {n} to C = {C_end:,}, M = {M}"
    return f"{what} ({elsewhere if imported else f'isojax launch CONFIG name=NEW {keys}'})"
