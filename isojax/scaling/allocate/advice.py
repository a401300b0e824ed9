"""What travels with a recommendation: its risks in a sentence, and marks at which to stop its run."""

from collections import Counter

import numpy as np

from isojax.core.estimators import FloatArray
from isojax.core.nouns import Allocation, HaltingMark
from isojax.scaling.allocate.curve_ensemble import MEASURED_TOLERANCE, CurveEnsemble

MARK_SHARES = (0.25, 0.5)  # of the recommended run's C
MARK_TAIL = 0.025  # the probability, by the draws, that a run as forecast is below one mark
FALSE_STOP = 0.1  # what is stated of all marks: twice their tails, since true curves may have other forms


def describe_risk(ensemble: CurveEnsemble, allocation: Allocation, cell: int) -> tuple[str, tuple[str, ...]]:
    """The main risks in a sentence, and the fit's warnings that it does not state."""
    fit, curve, n, all_n = ensemble.fit, ensemble.curves[cell], allocation.n, set(ensemble.n.tolist())
    seeds = Counter((run.B_p, run.n) for run in fit.runs)
    risks = dict[str, str]()  # by the code of the flag that each stands for
    if seeds[curve.key] == 1:
        risks["one_seed"] = "one seed per cell" if max(seeds.values()) == 1 else f"one seed of {curve.B_p}x{curve.n}"
    if fit.intervals is not None and fit.intervals.run_sd_source.startswith("assumed"):
        risks["run_sd_assumed"] = f"the spread between seeds, {fit.intervals.run_sd:.3f}, is assumed"
    if n in (min(all_n), max(all_n)):
        risks["largest_n_leads"] = f"n = {n} is the {'largest' if n == max(all_n) else 'smallest'} of the grid"
    if allocation.C > curve.C_high * MEASURED_TOLERANCE and fit.forecast is not None:
        error = fit.forecast.mean_absolute_error
        trial = "could not be tried" if error is None else f"erred by {error:.3f}"
        risks["forecast_missed"] = f"this sweep's own forecasts to 4 times its data {trial}"
    others = [flag.text for flag in fit.flags if flag.severity != "info" and flag.code not in risks]
    return "; ".join(risks.values()), tuple(others)


def set_halting_marks(ensemble: CurveEnsemble, allocation: Allocation, cell: int) -> tuple[HaltingMark, ...]:
    """Where the recommended run is to be judged on its way, up to its peak; none without draws of its cell."""
    curve, B, marks = ensemble.curves[cell], allocation.B, []
    if not ensemble.replicates or curve.key != (allocation.B_p, allocation.n):
        return ()
    for share in MARK_SHARES:
        M = int(share * min(allocation.C, curve.C_peak or np.inf) / B)
        draws = ensemble.sampled_at_cell_budgets(np.array([max(M, 1.0) * B]), same_problems=True)[:, cell]
        low = np.quantile(draws + _measurement_noise(ensemble), MARK_TAIL)
        marks.append(HaltingMark(M, M * B, float(draws.mean()), float(low)))
    return tuple(mark for mark in marks if mark.C >= curve.C_low)  # below, nothing was measured


def _measurement_noise(ensemble: CurveEnsemble) -> FloatArray:
    """float[Q]: how far an evaluation of a new run is from its curve; independent of the draws."""
    settings, normal = ensemble.fit.intervals, np.random.default_rng(1).standard_normal(ensemble.replicates)
    return (normal - normal.mean()) * (0.0 if settings is None else np.hypot(settings.run_sd, settings.noise_sd))
