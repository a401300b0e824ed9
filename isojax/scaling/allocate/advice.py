"""What accompanies a recommendation: its risks in a sentence, marks at which to stop its run, the
run to measure next, and, where a budget is refused, the cheapest sweep that would support it."""

from collections import Counter
from typing import NamedTuple

import numpy as np

from isojax.core.estimators import FloatArray
from isojax.core.nouns import Allocation
from isojax.scaling.allocate.constraints import AllocationRequest
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble
from isojax.scaling.allocate.recommendation import HaltingMark, NextRun, Risk
from isojax.scaling.curves.hill import MEASURED_TOLERANCE
from isojax.scaling.result import FitResult, FittedCurve, ForecastTrial

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


class FoundRisks(NamedTuple):
    """The main risks of a recommendation, and the fit's warnings that they do not state."""

    risks: tuple[Risk, ...]
    further_warnings: tuple[str, ...]


def find_risks(ensemble: CurveEnsemble, allocation: Allocation, cell: int) -> FoundRisks:
    """The main risks of running a recommended allocation, and the fit's other warnings.

    cell: index, in ensemble.curves, of the measured cell that is nearest to the allocation. Where a
    risk states what a flag of the fit states, it has that flag's code, such as "one_seed", and the
    flag is not repeated among the others. Flags of severity "info" are left out."""
    fit = ensemble.fit
    curve = ensemble.curves[cell]
    if fit.nothing_learnt:
        # The first flag states that nothing was learnt (checks/fit_flags.py).
        text = "nothing was learnt from which a reward could be forecast"
        others = [flag.text for flag in fit.flags[1:] if flag.severity != "info"]
        return FoundRisks((Risk(fit.flags[0].code, text),), tuple(others))

    candidates = (
        _forecast_risk(ensemble, allocation, cell),
        _seed_risk(fit, curve),
        _run_sd_risk(fit),
        _edge_risk(ensemble, allocation.n),
        _extrapolation_risk(fit, curve, allocation.C),
    )
    risks = tuple(risk for risk in candidates if risk is not None)
    stated_codes = {risk.code for risk in risks}
    others = [
        flag.text for flag in fit.flags if flag.severity != "info" and flag.code not in stated_codes
    ]
    return FoundRisks(risks, tuple(others))


def _forecast_risk(ensemble: CurveEnsemble, allocation: Allocation, cell: int) -> Risk | None:
    """The risk of a forecast whose interval is wide, or that rises much beyond the data; else None.

    cell: index, in ensemble.curves, of the measured cell nearest to the allocation."""
    reward, interval = ensemble.predict_reward(cell, allocation.C)
    if interval is None:
        return None

    C_measured = min(allocation.C, ensemble.C_measured_max)
    rise = reward - ensemble.predict_reward(cell, C_measured).reward
    low, high = interval
    if high - low + rise / 2 <= UNCERTAIN_SPAN:
        return None
    beyond = f", after a rise of {rise:.3f} beyond the data" if rise > 0 else ""
    text = f"the reward is uncertain ({low:.3f} to {high:.3f}{beyond})"
    return Risk("uncertain_forecast", text)


def _seed_risk(fit: FitResult, curve: FittedCurve) -> Risk | None:
    """The risk that every cell, or the cell of this curve, has one seed; else None."""
    seeds = Counter((run.B_p, run.n) for run in fit.runs)
    if max(seeds.values()) == 1:
        return Risk("one_seed", "one seed per cell")
    if seeds[curve.key] == 1:
        return Risk("one_seed_of_cell", f"one seed of {curve.B_p}x{curve.n}")
    return None


def _run_sd_risk(fit: FitResult) -> Risk | None:
    """The risk that the spread between seeds was assumed, as the runs do not show it; else None."""
    # How the spread was found, in words: "assumed (...)" where it was.
    if fit.intervals is None or not fit.intervals.run_sd_source.startswith("assumed"):
        return None
    text = f"the spread between seeds, {fit.intervals.run_sd:.3f}, is assumed"
    return Risk("run_sd_assumed", text)


def _edge_risk(ensemble: CurveEnsemble, n: int) -> Risk | None:
    """The risk that the best n is outside the measured ones, since n is at an end; else None."""
    all_n = set(ensemble.n.tolist())
    if len(all_n) < 2:
        return None
    if n == max(all_n):
        return Risk("largest_n_leads", f"n = {n} is the largest of the grid")
    if n == min(all_n):
        return Risk("smallest_n_leads", f"n = {n} is the smallest of the grid")
    return None


def _extrapolation_risk(fit: FitResult, curve: FittedCurve, C: float) -> Risk | None:
    """The risk that a reward forecast beyond the cell's data is wrong; None for a C within them.

    It states how far this sweep's forecasts erred in the trial, which predicts its later
    evaluations from the earlier ones."""
    trial: ForecastTrial | None = fit.forecast
    # The tolerance is a factor a little above 1: runs end a little before their budget.
    if trial is None or curve.C_high * MEASURED_TOLERANCE >= C:
        return None

    forecasts = "this sweep's forecasts from its first quarter"
    if trial.mean_absolute_error is None:
        return Risk("forecast_untried", f"{forecasts} could not be tried")
    missed = any(flag.code == "forecast_missed" for flag in fit.flags)
    code = "forecast_missed" if missed else "forecast_tried"
    return Risk(code, f"{forecasts} erred by {trial.mean_absolute_error:.3f}")


def set_halting_marks(
    ensemble: CurveEnsemble, allocation: Allocation, cell: int
) -> tuple[HaltingMark, ...]:
    """The rewards below which to stop the recommended run early, by rising C.

    A mark (an update, and the lowest reward to go on with) is made at each of MARK_SHARES of the
    allocation's C. () where the fit has no draws, or where the allocation is not the measured cell
    of index `cell` in ensemble.curves, so that its curve is unknown."""
    curve = ensemble.curves[cell]
    counts = ensemble.counts[cell]
    if not ensemble.replicates or curve.key != (allocation.B_p, allocation.n):
        return ()

    # A curve that falls after its peak is judged on the way up only.
    C_end = min(allocation.C, curve.C_peak or np.inf)
    marks = []
    for share in MARK_SHARES:
        M = counts.updates(share * C_end)
        # Curves need C > 0; a mark at M = 0 is dropped below.
        C = float(counts.rollouts(max(M, 1)))
        # [Q], on the sweep's own validation problems, on which the run is evaluated too
        draws = ensemble.sampled_at_cell_budgets(np.array([C]), on_sweep_problems=True)[:, cell]
        # A run as forecast measures less than this with probability MARK_TAIL.
        stop_below = np.quantile(draws + _measurement_noise(ensemble), MARK_TAIL)
        mark = HaltingMark(
            M=M,
            C=counts.rollouts(M),
            expected_reward=float(draws.mean()),
            stop_below=float(stop_below),
        )
        # Below C_low nothing was measured, and no run is below a reward of 0.
        if mark.C >= curve.C_low and mark.stop_below > 0:
            marks.append(mark)
    return tuple(marks)


def _measurement_noise(ensemble: CurveEnsemble) -> FloatArray:
    """Random deviations of a new run's evaluation from its curve, one for each of the Q draws of
    the curves and independent of them: float[Q], in units of reward, of mean 0."""
    noise = ensemble.fit.intervals
    sd = 0.0 if noise is None else np.hypot(noise.run_sd, noise.noise_sd)
    normal = np.random.default_rng(1).standard_normal(ensemble.replicates)
    return (normal - normal.mean()) * sd


def choose_next_run(
    ensemble: CurveEnsemble, request: AllocationRequest, chosen: int, regret: float | None
) -> NextRun | None:
    """Which run to measure next to make the recommendation surer.

    Candidates are runs of the allowed cells, to RUN_SHARES of the budget. It is the cheapest that
    lowers the regret by NEARLY_ALL of what the best of them would. None where the regret is None,
    the fit has no draws, the chosen cell is not allowed, or no run lowers the regret by
    MIN_REGRET_SAVED.

    chosen: index, in ensemble.curves, of the recommended cell. regret: the expected loss of reward
    by choosing it, as long as it is unknown which cell is the best. A run of one cell tells
    something of all cells: each cell's mean reward moves along its regression, among the draws, on
    what the run measures (Strong, Oakley, Brennan 2014)."""
    C_spent, allowed = ensemble.allowed_cells(request)
    if regret is None or not ensemble.replicates or not allowed[chosen]:
        return None

    # From here on only the J allowed cells count, by their rewards in the Q draws less those of the
    # chosen one. j and `leader` are indices among them; `chosen` and C_spent are of all cells.
    # Rewards are those on the sweep's own validation problems, on which the run is evaluated too:
    # the draws then differ by their curves alone, not by which problems are chosen.
    allowed_cells = np.flatnonzero(allowed)
    keys = [ensemble.curves[i].key for i in allowed_cells]
    counts = [ensemble.counts[i] for i in allowed_cells]
    leader = int(allowed[:chosen].sum())  # index of the chosen cell among the allowed ones
    rewards = ensemble.sampled_at_cell_budgets(C_spent, on_sweep_problems=True)[:, allowed]
    lead = rewards - rewards[:, [leader]]  # [Q, J]
    noise = _measurement_noise(ensemble)  # [Q]

    runs = []
    for share in RUN_SHARES:
        M = ensemble.updates_within(share * C_spent)  # [cells]
        C_of_runs = ensemble.rollouts_after(np.maximum(M, 1))
        at_end = ensemble.sampled_at_cell_budgets(C_of_runs, on_sweep_problems=True)[:, allowed]
        M_of_allowed = M[allowed]
        for j in np.flatnonzero(M_of_allowed):  # cells for which this share is an update at least
            # After the run the cell with the highest mean lead would be chosen: the run saves what
            # that lead is on average over its outcomes.
            leads_after = _mean_leads_after_run(lead, at_end[:, j], noise)  # [Q, J]
            times_chosen = np.bincount(leads_after.argmax(1), minlength=len(keys))
            times_chosen[leader] = -1  # the rival is another cell
            saved = float(leads_after.max(1).mean())
            run = NextRun(
                allocation=counts[j].allocation(*keys[j], M=int(M_of_allowed[j])),
                regret_before=regret,
                regret_after=max(0.0, regret - saved),
                between=(keys[leader], keys[times_chosen.argmax()]),
            )
            runs.append(run)

    saved_by_runs = np.array([regret - run.regret_after for run in runs])
    enough = max(NEARLY_ALL * saved_by_runs.max(initial=0.0), MIN_REGRET_SAVED)
    worthwhile = [runs[i] for i in np.flatnonzero(saved_by_runs >= enough)]
    return min(worthwhile, key=lambda run: (run.allocation.C, run.regret_after), default=None)


def _mean_leads_after_run(lead: FloatArray, reward: FloatArray, noise: FloatArray) -> FloatArray:
    """The mean lead of each cell after one more run, for each of Q outcomes of it: float[Q, J].

    In outcome q the run measures reward[q] + noise[q], and the means move along the regression of
    the leads on that. lead: float[Q, J], of each draw; reward: float[Q], the draws' at the run's
    end; noise: float[Q], of one run."""
    deviation = reward - reward.mean()
    covariance = deviation @ lead / len(lead)  # [J]
    # Draws that are not correlated show a correlation with a standard error of 1 / sqrt(Q).
    may_be_chance = MIN_CORRELATION / len(lead) ** 0.5 * lead.std(0) * deviation.std()
    covariance[np.abs(covariance) < may_be_chance] = 0.0
    slope = covariance / max(deviation.var() + noise.var(), 1e-12)
    return lead.mean(0) + (deviation + noise)[:, None] * slope


def describe_supporting_sweep(
    ensemble: CurveEnsemble, request: AllocationRequest, C_to_measure: float
) -> str:
    """How to measure up to C_to_measure rollouts at the lowest cost, in words and as a command.

    Either all runs are continued, or a new run is made for each n that may be the best at the
    budget, with the requested B_p or, without one, that of the best cell. An example: "49,152
    rollouts: all 3 runs continued to C = 32,768 (isojax launch --resume CONFIG ...)"."""
    fit = ensemble.fit
    likely = _likely_cells(ensemble, request)
    B_p = request.fix.get("B_p", likely.B_p)
    likely_n = likely.n
    if request.B_max is not None:
        likely_n = [n for n in likely_n if B_p * n <= request.B_max] or [likely.best_n]

    # A run's last evaluation may be one step of the grid of C below its budget, so the budget asked
    # for is one step above C_to_measure. Steps are equal in log C: the size follows from a run,
    # whose p points are one at C = 0 and p - 1 at C > 0, with p - 2 steps between these.
    finest = max(fit.runs, key=lambda run: run.points)
    C_first = min(c.C_low for c in ensemble.curves)
    grid_step = (finest.C_max / C_first) ** (1 / max(1, finest.points - 2))
    C_end = int(C_to_measure * grid_step) + 1

    # What the two ways cost.
    new_runs = []
    for n in likely_n:
        counts = ensemble.counts_of(B_p, n)
        new_runs.append(counts.allocation(B_p, n, counts.updates_to_reach(C_end)))
    cost_of_new = sum(run.C for run in new_runs)
    cost_of_all = sum(max(0, C_end - int(run.C_max)) for run in fit.runs)

    # Imported runs were trained by another trainer, for which isojax has no command.
    imported = all(run.imported for run in fit.runs)
    elsewhere = "with the trainer of these logs; import what it logs with them"
    if cost_of_all <= cost_of_new:
        what = f"{cost_of_all:,} rollouts: all {len(fit.runs)} runs continued to C = {C_end:,}"
        command = f"isojax launch --resume CONFIG sweep.budget={C_end}"
        return f"{what} ({elsewhere if imported else command})"

    n_text = ", ".join(str(run.n) for run in new_runs)
    M_text = ", ".join(str(run.M) for run in new_runs)
    what = (
        f"{cost_of_new:,} rollouts: new runs of B_p = {B_p} and n = {n_text} to C = {C_end:,}, "
        f"M = {M_text}"
    )
    # The runs of a sweep with sweep.seed = s have seeds from 1000 s on. With a seed that no run has
    # yet, both sweeps can be fitted together.
    seed = max(run.seed for run in fit.runs) // 1000 + 1
    grid = f"'sweep.B_p=[{B_p}]' 'sweep.n=[{n_text.replace(' ', '')}]'"
    settings = f"{grid} sweep.seeds=1 sweep.seed={seed} sweep.budget={C_end}"
    command = f"isojax launch CONFIG name=NEW {settings}"
    return f"{what} ({elsewhere if imported else command})"


class _LikelyCells(NamedTuple):
    """Which B_p and n may be the best at a budget."""

    B_p: int  # of the cell with the highest expected reward
    best_n: int  # of that cell
    n: list[int]  # each n that is best in a share MIN_P_BEST of the draws; rising


def _likely_cells(ensemble: CurveEnsemble, request: AllocationRequest) -> _LikelyCells:
    """Which B_p and n may be the best at the budget, among the cells that the request allows.

    All cells count where it allows none."""
    C_spent, allowed = ensemble.allowed_cells(request)
    rewards = ensemble.expected_at_cell_budgets(C_spent)[None]  # [1, cells]
    if ensemble.replicates:
        rewards = ensemble.sampled_at_cell_budgets(C_spent)  # [replicates, cells]
    competing = allowed | ~allowed.any()  # the allowed cells, or all where none is
    rewards = np.where(competing, rewards, -np.inf)

    # An n is likely if it is the best in enough of the replicates.
    best_n_in_draws = ensemble.n[rewards.argmax(1)]
    n, times_best = np.unique(best_n_in_draws, return_counts=True)
    # With many n none may reach MIN_P_BEST: the most frequent one counts in any case.
    often = min(MIN_P_BEST * len(rewards), times_best.max())
    # By the mean and not by counts as above: its n need not be among those of `n`.
    best = int(rewards.mean(0).argmax())
    return _LikelyCells(
        B_p=int(ensemble.B_p[best]),
        best_n=int(ensemble.n[best]),
        n=n[times_best >= often].tolist(),
    )
