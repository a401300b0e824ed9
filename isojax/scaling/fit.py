"""The fit of a sweep: from its runs to a FitResult (IsoCompute Playbook, arXiv:2603.12151, section
4, appendix A).

The steps: runs -> tracks (C and reward of each) -> a learning curve for each cell (B_p, n) ->
frontier (the highest curve at each C) -> the law n*(C); the last two for all cells together, for
each B_p, and for each batch B = B_p n. The order of the records changes nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from isojax.core.errors import InputError
from isojax.core.limits import MAX_REPLICATES
from isojax.core.nouns import IMPORTED, Cell, RunRecord
from isojax.runs.ledger import default_metric
from isojax.scaling.checks import fit_flags
from isojax.scaling.checks.diagnostics import diagnose, reward_sensitivity, segment_evidence
from isojax.scaling.checks.run_health import flagged_runs, healthy_runs
from isojax.scaling.checks.stability import assess_stability, find_overfitting
from isojax.scaling.curves import fit_hierarchical, paper_mode
from isojax.scaling.curves.departures import TRIAL_DRAWS, try_forecast
from isojax.scaling.curves.flat_start import add_flat_starts
from isojax.scaling.curves.flat_sweep import can_be_flat, flat_estimate
from isojax.scaling.curves.sweep_estimate import (
    DEFAULT_MODE,
    DEFAULT_OPTIONS,
    FitOptions,
    SweepEstimate,
    to_curve_draws,
)
from isojax.scaling.evaluation_size import evaluation_size
from isojax.scaling.law.frontier import (
    Frontier,
    compare_schedules,
    compute_frontier,
    crossover_rows,
    frontier_rows,
)
from isojax.scaling.law.n_star_law import fit_fixed_batches, fit_n_star
from isojax.scaling.law.referee import judge_laws
from isojax.scaling.learning import find_nothing_learnt
from isojax.scaling.one_cell import fit_one_cell, is_one_cell
from isojax.scaling.result import (
    FitFlag,
    FitResult,
    FittedRun,
    ForecastTrial,
    FrontierFit,
    RunHealth,
)
from isojax.scaling.run_clock import run_clock
from isojax.scaling.tracks import (
    TracksByCell,
    base_reward,
    build_tracks,
    group_by_cell,
    require_fixed_runs,
)
from isojax.scaling.update_counts import count_updates

# The runs of each (B_p, n), metric and options -> curves and, where the mode has them, their
# replicates.
MODES: Mapping[str, Callable[[TracksByCell, str, FitOptions], SweepEstimate]] = {
    "hierarchical": fit_hierarchical.estimate,
    "paper": paper_mode.estimate,
}


def fit(
    runs: Sequence[RunRecord],
    metric: str | None = None,
    compute: str = "rollouts",
    options: FitOptions = DEFAULT_OPTIONS,
) -> FitResult:
    """Fit a sweep: curves, frontier and n*(C), without the runs that are flagged as broken.

    With options.include_flagged these are fitted too; the result lists them (`health`) either way.

    runs: as isojax.read_runs gives them, of one sweep.
    metric: such as "avg@4" (docs/laws.md, Metrics); None: avg@k of the evaluations' k samples.
    compute: the unit of C, "rollouts", "tokens" or "device_hours".
    options: such as FitOptions(mode="paper"); mode: "hierarchical" or "paper".

    InputError where all runs are flagged, or something cannot be fitted."""
    metric = default_metric(runs) if metric is None else metric
    usable_runs = runs if options.include_flagged else _require_healthy_runs(runs, metric, compute)
    result = fit_all_runs(usable_runs, metric, compute, options)

    may_be_flagged = runs
    if not options.include_flagged:
        healthy_cells = {run.cell for run in usable_runs}
        may_be_flagged = [run for run in runs if run.cell not in healthy_cells]
    health = RunHealth(left_out=not options.include_flagged, runs=flagged_runs(may_be_flagged))
    return fit_flags.add_health(result, health)


def _require_healthy_runs(runs: Sequence[RunRecord], metric: str, compute: str) -> list[RunRecord]:
    """The runs that did not break; InputError where all did.

    If nothing was learnt in any of them, the message begins with that, since it may be why they
    count as broken. metric, compute: as in `fit`."""
    try:
        return healthy_runs(runs)
    except InputError as refusal:
        cells = group_by_cell(build_tracks(require_fixed_runs(runs), metric, compute))
        nothing = find_nothing_learnt(cells, metric)
        if nothing is None or not can_be_flat(cells):
            raise
        raise refusal.within(nothing.text) from refusal


def fit_all_runs(
    runs: Sequence[RunRecord],
    metric: str,
    compute: str = "rollouts",
    options: FitOptions = DEFAULT_OPTIONS,
) -> FitResult:
    """The curves, frontier and law n*(C) of all these runs, also of those that broke.

    `fit` does the same without these. metric: such as "avg@4"; compute: the unit of C, "rollouts",
    "tokens" or "device_hours". InputError for options out of range, and where the runs cannot be
    fitted."""
    _check_options(options)
    # Those whose n is fixed; InputError where there is none.
    usable_runs = require_fixed_runs(runs)
    tracks = build_tracks(usable_runs, metric, compute)
    cells = group_by_cell(tracks)  # (B_p, n) -> the tracks of its seeds
    # Runs whose n changes along C are compared with the curves; they are no part of them.
    scheduled_runs = [run for run in runs if run.cell.schedule]
    scheduled = build_tracks(scheduled_runs, metric, compute) if scheduled_runs else ()

    # A sweep in which no reward moves by more than noise has flat curves instead of fitted ones,
    # unless its evaluations differ and are too few for a curve: then it is fitted, or refused.
    nothing = find_nothing_learnt(cells, metric, scheduled)
    if nothing is not None and not can_be_flat(cells):
        nothing = None
    if nothing is not None:
        estimate = flat_estimate(cells, nothing, options)
        forecast = None
        _require_a_curve(estimate, len(usable_runs), options.mode)
    else:
        estimate, forecast = _fit_curves(cells, metric, options, len(usable_runs))

    # What follows from the curves: where each cell leads, and what to warn of.
    frontiers = _fit_frontiers(estimate, cells, metric)
    peaked_cells = {c.key for c in estimate.curves if c.C_peak is not None}
    stability = assess_stability(cells, metric, peaked_cells)
    overfitting = find_overfitting(tracks, estimate.noise_sd)
    diagnostics = diagnose(estimate)
    sensitivity = None
    if not estimate.is_flat:
        sensitivity = reward_sensitivity(estimate.curves, estimate.draws)

    # The most important first. Other modules rely on nothing_flags being the first: flags[0] states
    # that nothing was learnt, where that is so.
    flags = [
        *fit_flags.nothing_flags(nothing),
        *fit_flags.effect_flags(estimate),
        *fit_flags.data_flags(cells),
        *fit_flags.forecast_flags(forecast),
        *fit_flags.staleness_flags(cells),
        *fit_flags.curve_flags(estimate.curves, estimate.unfitted_cells),
        *frontiers.flags,
        *fit_flags.fall_flags(estimate.curves, stability, overfitting),
        *fit_flags.diagnostics_flags(diagnostics, overfitting, len(estimate.curves)),
    ]
    if not estimate.is_flat:
        flags += fit_flags.mode_flags(options.mode)

    result = FitResult(
        mode=options.mode,
        metric=metric,
        compute=compute,
        base_reward=base_reward(tracks),
        intervals=estimate.intervals,
        runs=_fitted_runs(cells),
        curves=tuple(estimate.curves),
        joint=frontiers.joint,
        by_B_p=frontiers.by_B_p,
        by_B=fit_fixed_batches(estimate),
        sensitivity=sensitivity,
        draws=None if estimate.draws is None else to_curve_draws(estimate.draws),
        forecast=forecast,
        referee=judge_laws(estimate),
        diagnostics=diagnostics,
        overfitting=overfitting,
        stability=stability,
        schedules=compare_schedules(estimate, scheduled_runs, metric, compute),
        flags=tuple(flags),
    )
    return with_clocks(result, usable_runs)


def _fit_curves(
    cells: TracksByCell, metric: str, options: FitOptions, run_count: int
) -> tuple[SweepEstimate, ForecastTrial | None]:
    """The curves, with draws that depart from them beyond the data, and the trial of forecasts.

    InputError where no cell has a curve; run_count: how many runs there are, to say so."""
    if options.mode == DEFAULT_MODE and is_one_cell(cells):
        estimate, forecast = fit_one_cell(cells, metric, options)
        return add_flat_starts(estimate, cells, metric), forecast

    estimate = MODES[options.mode](cells, metric, options)
    _require_a_curve(estimate, run_count, options.mode)
    estimate = add_flat_starts(estimate, cells, metric)
    forecast = _try_forecast(cells, estimate, metric, options)
    return _with_departures(estimate, forecast), forecast


def _check_options(options: FitOptions) -> None:
    """InputError for an unknown mode, and for replicates or a run_sd out of range."""
    if options.mode not in MODES:
        expected = ", ".join(MODES)
        raise InputError(
            where="mode",
            found=f"given {options.mode!r}",
            expected=f"one of {expected}",
        )
    replicates = options.replicates
    run_sd = options.run_sd
    is_run_sd_possible = run_sd is None or 0 <= run_sd < 1
    if not 0 <= replicates <= MAX_REPLICATES or not is_run_sd_possible:
        raise InputError(
            found=f"replicates = {replicates}, run_sd = {run_sd}",
            expected=f"replicates from 0 to {MAX_REPLICATES:,}, and 0 <= run_sd < 1",
        )


def _try_forecast(
    cells: TracksByCell, estimate: SweepEstimate, metric: str, options: FitOptions
) -> ForecastTrial | None:
    """How well curves that are fitted to the first part of the data predict the rest (the trial).

    estimate: of all data. None in a mode without draws. The trial has at most TRIAL_DRAWS draws and
    reports no progress."""
    trial_options = replace(
        options, replicates=min(options.replicates, TRIAL_DRAWS), on_progress=None
    )

    def estimate_part(part: TracksByCell) -> SweepEstimate:
        """The curves of a part of the runs, in the mode and for the metric of the whole fit."""
        return MODES[options.mode](part, metric, trial_options)

    return try_forecast(cells, estimate, estimate_part)


def _with_departures(estimate: SweepEstimate, forecast: ForecastTrial | None) -> SweepEstimate:
    """The estimate, with draws that depart from their curves beyond the data: by as much, on
    average, as curves were wrong in the trial."""
    if estimate.draws is None or forecast is None:
        return estimate
    draws = replace(estimate.draws, departure_sd=forecast.departure_sd)
    return replace(estimate, draws=draws)


def _fitted_runs(cells: TracksByCell) -> tuple[FittedRun, ...]:
    return tuple(
        FittedRun(
            B_p=B_p,
            n=n,
            seed=t.run.cell.seed,
            points=len(t.C),
            C_max=float(t.C[-1]),
            final_reward=float(t.R[-1]),
            imported=t.run.cell_hash == IMPORTED,
        )
        for (B_p, n), seeds in cells.items()
        for t in seeds
    )


def _require_a_curve(estimate: SweepEstimate, run_count: int, mode: str) -> None:
    """InputError where no cell has a curve, with each cell's reason; mode: a key of MODES."""
    if estimate.curves:
        return
    reasons = "; ".join(f"{B_p}x{n}: {reason}" for B_p, n, reason in estimate.unfitted_cells)
    received = "1 run gives" if run_count == 1 else f"{run_count} runs give"
    other_mode = ", or use the default mode, which takes every point" if mode == "paper" else ""
    raise InputError(
        found=f"{received} no curve ({reasons})",
        expected="at least one cell with enough points",
        fix=f"Evaluate more often or run longer{other_mode}.",
    )


class FlaggedFrontier(NamedTuple):
    """A frontier with its law, and the flags about them."""

    fit: FrontierFit
    flags: list[FitFlag]


@dataclass(frozen=True)
class _Frontiers:
    """The frontier of all cells and those of each B_p, and the flags of all."""

    joint: FrontierFit
    by_B_p: tuple[FrontierFit, ...]
    flags: tuple[FitFlag, ...]


def _fit_frontiers(estimate: SweepEstimate, cells: TracksByCell, metric: str) -> _Frontiers:
    """The frontier and law of all cells together, and those of each B_p."""
    joint = fit_frontier(estimate, cells, metric)
    flags = list(joint.flags)
    by_B_p = []
    all_B_p = sorted({c.B_p for c in estimate.curves})
    for B_p in all_B_p:
        alone = fit_frontier(estimate, cells, metric, B_p)
        by_B_p.append(alone.fit)
        if len(all_B_p) > 1:  # with a single B_p they would repeat those of all cells
            flags += [
                flag.model_copy(update={"text": f"B_p={B_p} alone: {flag.text}"})
                for flag in alone.flags
            ]
    return _Frontiers(joint.fit, tuple(by_B_p), tuple(flags))


def fit_frontier(
    estimate: SweepEstimate, all_cells: TracksByCell, metric: str, B_p: int | None = None
) -> FlaggedFrontier:
    """The frontier and law n*(C) of all cells, or of those with one B_p, and the flags about them.

    estimate: of the whole sweep; all_cells: its runs by (B_p, n); metric: such as "avg@4"; B_p:
    None for all cells."""
    curves = [c for c in estimate.curves if B_p in (None, c.B_p)]
    cells = {key: seeds for key, seeds in all_cells.items() if B_p in (None, key[0])}
    tracks = [track for seeds in cells.values() for track in seeds]
    draws = None if estimate.draws is None else estimate.draws.for_cells([c.key for c in curves])
    measured_n = {n for _, n in cells}
    # The values of the grid of C for which runs were evaluated.
    targets = {p.target for track in tracks for p in track.run.points if p.rollouts > 0}

    frontier = compute_frontier(curves)
    segments = () if estimate.is_flat else segment_evidence(frontier, cells, metric)

    # no_effect is None in mode "paper", which does not test whether n makes a difference: there a
    # change of n counts also where data begin or end.
    # Where the reward is less than one rollout of an evaluation from 0 or 1, no evaluation can tell
    # curves apart, and crossings of fitted curves are meaningless.
    step = evaluation_size(tracks, metric).step
    crossovers = tuple(
        row
        for row in crossover_rows(frontier, draws, uncrossed_too=estimate.no_effect is None)
        if step <= _frontier_reward(frontier, row.C) <= 1 - step
    )
    n_star = fit_n_star(frontier, draws, estimate.no_effect, max(measured_n), len(targets))
    if estimate.is_flat:  # all n are tied: there is no best n of which to give an interval
        n_star = n_star.model_copy(update={"band": None})

    frontier_fit = FrontierFit(
        B_p=B_p,
        frontier=frontier_rows(frontier.points, draws),
        # Where n has no effect, crossings of curves are noise.
        crossovers=() if estimate.no_effect else crossovers,
        segments=segments,
        n_star=n_star,
    )
    flags = fit_flags.frontier_flags(frontier, segments, n_star.law, measured_n, n_star.no_effect)
    return FlaggedFrontier(frontier_fit, list(flags))


def _frontier_reward(frontier: Frontier, C: float) -> float:
    """The frontier's reward at C, between its points."""
    C_of_points = [p.C for p in frontier.points]
    return float(np.interp(C, C_of_points, [p.reward for p in frontier.points]))


def with_clocks(result: FitResult, runs: Sequence[RunRecord]) -> FitResult:
    """The fit, with the times and the counts of updates of the runs that it was made from.

    Times are in no fit.json, and counts of updates are not in those of earlier versions; so this is
    also for a fit that was read from a file. A run of the fit that is not among `runs` has no clock
    then, and keeps its counts."""
    runs_by_cell = {run.cell: run for run in runs}
    rows = []
    for row in result.runs:
        run = runs_by_cell.get(Cell(row.B_p, row.n, row.seed))
        clock = None if run is None else run_clock(run)
        updates = row.updates if run is None else count_updates(run)
        rows.append(row.model_copy(update={"clock": clock, "updates": updates}))
    return result.model_copy(update={"runs": tuple(rows)})
