"""The flags of a fit: warnings and notes that a reader must know before believing it. One function
for each subject gives its flags, in the order in which they are shown. docs/laws.md explains each
and what to do."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from isojax.core.terminal import format_number
from isojax.scaling.checks.run_health import flag_sentences
from isojax.scaling.curves.sweep_estimate import SweepEstimate
from isojax.scaling.intervals import share_interval
from isojax.scaling.law.frontier import Frontier
from isojax.scaling.law.n_star_law import MIN_DISTINCT_N, law_limits
from isojax.scaling.learning import NothingLearnt
from isojax.scaling.result import (
    EVALUATION_SIZE,
    GRADED_FLAG,
    NOT_CONVERGED,
    NOTHING_LEARNT,
    NOTHING_TO_LEARN,
    FitDiagnostics,
    FitFlag,
    FitResult,
    FittedCurve,
    FlaggedRun,
    ForecastTrial,
    IntervalSettings,
    Law,
    OverfittedRun,
    RunHealth,
    SegmentRow,
    StabilityVerdict,
)
from isojax.scaling.tracks import TracksByCell

MAX_AUTOCORRELATION = 0.3
MAX_LENGTH_RATIO = 1.1  # a cell that ends earlier than the longest by more is a short one
MAX_LISTED = 4
# The training metric (EvalPoint.train): updates between the policy that samples and the trained one
STALENESS = "staleness_mean"
MAX_STALENESS_DIFFERENCE = 0.25  # updates
MIN_REPLICATES = 100  # 5% of fewer are too few to be an interval's end
MIN_LEAD_Z = 2.0
# The frontier's reward may fall by this at its end, where only cells of one n have data.
MAX_FRONTIER_FALL = 0.05
MAX_R_HAT = 1.5  # of the last 15 positions of each chain
# In the trial on hidden data: the share of cells inside their intervals below which predictions
# count as missed.
MIN_INSIDE = 0.6


def _info(code: str, text: str) -> FitFlag:
    return FitFlag(code=code, severity="info", text=text)


def _warning(code: str, text: str) -> FitFlag:
    return FitFlag(code=code, severity="warning", text=text)


def nothing_flags(nothing: NothingLearnt | None) -> Iterator[FitFlag]:
    """Flags of a sweep in which nothing was learnt; no flag where something was (nothing is None).

    The first states that nothing was learnt; other modules rely on its being the first of a fit.
    The second states how many rollouts an evaluation is taken to have, from which follows how far
    off its rewards may be."""
    if nothing is None:
        return
    code = NOTHING_TO_LEARN if nothing.is_solved else NOTHING_LEARNT
    yield FitFlag(code=code, severity="error", text=nothing.text)

    has = "has" if nothing.size.is_known else "counts as"
    size = f"one evaluation {has} {nothing.size.rollouts:,.0f} rollouts ({nothing.size.source})"
    by_noise = share_interval(nothing.level, nothing.rollouts)
    low, high = by_noise
    text = f"{size}: a reward of {nothing.level:.3g} may then be {low:.3g} to {high:.3g}"
    if nothing.interval != by_noise:
        low, high = nothing.interval
        beyond = f"intervals reach to it, {low:.3g} to {high:.3g}"
        text += f"; what stands out is beyond that, and {beyond}"
    yield _warning(EVALUATION_SIZE, text)


def effect_flags(estimate: SweepEstimate) -> Iterator[FitFlag]:
    """Flags that n makes no difference, or that only one n has a curve; and about the intervals."""
    if estimate.no_effect and not estimate.is_flat:
        comparison = "curves that change with n explain the evaluations no better"
        text = f"n makes no difference here: {comparison} than one curve for each B_p"
        yield _info("no_effect", text)

    intervals = estimate.intervals
    if intervals is not None:
        yield from _interval_flags(intervals)

    if len({c.n for c in estimate.curves}) == 1:
        n = estimate.curves[0].n
        has_others = any(other != n for _, other, _ in estimate.unfitted_cells)
        what = f"only one n has a curve ({n})" if has_others else f"only one n was measured ({n})"
        yield _warning("one_n", f"{what}: nothing can be said of how n*(C) changes")


def _interval_flags(intervals: IntervalSettings) -> Iterator[FitFlag]:
    """Flags about the intervals: an assumed spread between seeds, few draws, unsettled draws.

    Draws have not settled where their Markov chains have not converged."""
    # How the spread was found, in words: "assumed (...)" where it was not measured.
    if intervals.run_sd_source.startswith("assumed"):
        text = f"the run-to-run standard deviation is {intervals.run_sd_source}"
        yield _warning("run_sd_assumed", text)
    if intervals.replicates < MIN_REPLICATES:
        consequence = "curves, which are their means, and intervals are rough; use 200 or more"
        yield _warning("few_replicates", f"only {intervals.replicates} replicates: {consequence}")
    # r_hat: of half of the last round's iterations and, second, of all of them.
    if intervals.r_hat is not None and intervals.r_hat[1] > MAX_R_HAT:
        r_hat = f"R-hat {intervals.r_hat[1]:.2f} (at most {MAX_R_HAT})"
        text = f"{r_hat}, {intervals.acceptance:.0%} of steps accepted"
        yield _warning(NOT_CONVERGED, f"the draws behind the intervals have not settled: {text}")


def forecast_flags(forecast: ForecastTrial | None) -> Iterator[FitFlag]:
    """The flag of how well the trial predicted: curves fitted to the first part of the sweep alone.

    A warning where they missed the rest of it, otherwise a note; no flag where the sweep was too
    short for a trial (forecast or its numbers are None)."""
    if forecast is None or forecast.C_limit is None or forecast.inside is None:
        return

    # The trial's mean error is predicted less measured. `departure_sd` is the standard deviation of
    # a reward from its curve at four times a cell's data, however the trial cut the sweep.
    errors = (
        f"a mean error of {forecast.mean_error:+.3f} (absolute {forecast.mean_absolute_error:.3f})"
    )
    text = (
        f"fitted up to C = {format_number(forecast.C_limit)} alone, the curves predict the rest "
        f"with {errors}, {forecast.inside:.0%} of the cells inside their interval; "
        f"so at 4 times its data a reward may be off by {forecast.departure_sd:.3f} (1 sd)"
    )
    if forecast.inside < MIN_INSIDE:
        yield _warning("forecast_missed", text)
    else:
        yield _info("forecast_tried", text)


def mode_flags(mode: str) -> Iterator[FitFlag]:
    """What a way of fitting ("paper" or "hierarchical") brings with it, whatever the data."""
    if mode == "paper":
        text = (
            "paper mode fits record-breaking points, which exceed the mean by the largest noise "
            "so far: every A is biased upward, more for cells with more evaluations"
        )
        yield _warning("records_overshoot", text)


def data_flags(cells: TracksByCell) -> Iterator[FitFlag]:
    """Flags about the runs of each cell (B_p, n), whatever their curves.

    They are: one seed only, cells of unequal length, seeds of unequal length, no evaluation of the
    base policy (C = 0), graded rewards. cells: at least one."""
    single_seed_cells = [f"{B_p}x{n}" for (B_p, n), seeds in cells.items() if len(seeds) == 1]
    if single_seed_cells:
        is_all = len(single_seed_cells) == len(cells)
        cells_text = "every cell" if is_all else ", ".join(single_seed_cells)
        consequence = "differences between runs cannot be separated from chance"
        yield _warning("one_seed", f"only one seed for {cells_text}: {consequence}")

    # The C at which each cell's longest run ends, by the cell's name such as "32x8".
    C_ends = {f"{B_p}x{n}": max(float(t.C[-1]) for t in seeds) for (B_p, n), seeds in cells.items()}
    C_longest = max(C_ends.values())
    short_cells = [
        f"{name} ({format_number(C)})"
        for name, C in C_ends.items()
        if C_longest > MAX_LENGTH_RATIO * C
    ]
    if short_cells:
        longest = f"the longest ends at C = {format_number(C_longest)}"
        text = f"{longest}; {', '.join(short_cells)} end earlier and are not on the frontier beyond"
        yield _warning("unequal_lengths", f"cells of unequal length: {text}")

    ended_early = list(_runs_that_end_early(cells))
    if ended_early:
        text = f"{', '.join(ended_early)}: beyond that, their cells rest on the seeds that are left"
        yield _warning("run_ends_early", f"runs that end before other seeds of their cell: {text}")

    tracks = [track for seeds in cells.values() for track in seeds]
    if not any(track.C[0] == 0 for track in tracks):
        yield _warning(
            "no_base_reward", "no run was evaluated at C = 0: R0 is fitted, not measured"
        )
    if any(point.graded for track in tracks for point in track.run.points):
        text = "rewards are graded: avg@k is the mean reward, not a share of correct responses"
        yield _info(GRADED_FLAG, text)


def _runs_that_end_early(cells: TracksByCell) -> Iterator[str]:
    """The runs that end much earlier than the longest of their cell, each in words: "B_p=32 n=8
    seed 1 (C = 4,096 of 16,384)"."""
    for (B_p, n), seeds in cells.items():
        C_longest = max(float(t.C[-1]) for t in seeds)
        for t in seeds:
            if C_longest > MAX_LENGTH_RATIO * t.C[-1]:
                ends = f"{format_number(float(t.C[-1]))} of {format_number(C_longest)}"
                yield f"B_p={B_p} n={n} seed {t.run.cell.seed} (C = {ends})"


def staleness_flags(cells: TracksByCell) -> Iterator[FitFlag]:
    """The flag of an asynchronous sweep in which staleness differs between n.

    Staleness is how many updates old the sampling policy is; where it differs, curves may differ
    for that reason and not for n."""
    staleness_by_n: dict[int, list[float]] = {}
    for (_, n), seeds in cells.items():
        values = [p.train[STALENESS] for t in seeds for p in t.run.points if STALENESS in p.train]
        staleness_by_n.setdefault(n, []).extend(values)
    mean_by_n = {
        n: float(np.mean(values)) for n, values in sorted(staleness_by_n.items()) if values
    }
    if not mean_by_n:
        return

    difference = max(mean_by_n.values()) - min(mean_by_n.values())
    if difference <= MAX_STALENESS_DIFFERENCE:
        return

    listed = ", ".join(f"{staleness:.2f} at n = {n}" for n, staleness in mean_by_n.items())
    policies = f"rollouts come from policies that are {listed} updates old on average"
    caution = (
        "a difference between n may be one of staleness (cell.rl.max_staleness=0 trains without it)"
    )
    text = f"staleness differs between n: {policies}; {caution}"
    yield _warning("staleness_differs", text)


def curve_flags(
    curves: Sequence[FittedCurve], unfitted_cells: Sequence[tuple[int, int, str]]
) -> Iterator[FitFlag]:
    """Flags of cells without a curve, and of curves with a parameter at the bound of its range.

    unfitted_cells: (B_p, n, reason) of each, such as (32, 8, "2 evaluations")."""
    for B_p, n, reason in unfitted_cells:
        yield _warning("no_curve", f"no curve for B_p={B_p} n={n}: {reason}")
    for c in curves:
        if c.at_bounds:
            at_bounds = ", ".join(f"{name} = {getattr(c, name):.4g}" for name in c.at_bounds)
            advice = "at its bound, not determined by the data; trust it only where measured"
            yield _warning("curve_at_bound", f"curve B_p={c.B_p} n={c.n}: {at_bounds} {advice}")


def fall_flags(
    curves: Sequence[FittedCurve],
    stabilities: Sequence[StabilityVerdict],
    overfitted: Sequence[OverfittedRun],
) -> Iterator[FitFlag]:
    """Flags of unstable B_p, and of curves that fall past a peak without an explanation.

    A fall is explained where the B_p is unstable, or where a rising training reward shows that a
    run of the cell overfits."""
    unstable_reasons = {v.B_p: v.reason for v in stabilities if not v.stable}
    for B_p, reason in unstable_reasons.items():
        yield FitFlag(code="unstable", severity="error", text=f"B_p={B_p} is unstable: {reason}")

    overfitted_cells = {(row.B_p, row.n) for row in overfitted}
    unexplained_falls = [
        f"B_p={c.B_p} n={c.n} beyond C = {format_number(c.C_peak)}"
        for c in curves
        if c.C_peak is not None and c.B_p not in unstable_reasons and c.key not in overfitted_cells
    ]
    if unexplained_falls:
        listed = ", ".join(unexplained_falls[:MAX_LISTED])
        if len(unexplained_falls) > MAX_LISTED:
            listed += f" and {len(unexplained_falls) - MAX_LISTED} more"
        unknown = "no training reward shows whether that is overfitting or a collapse"
        consequence = "every number takes such a run as stopped at its peak"
        text = f"reward falls past a peak: {listed}; {unknown}; {consequence}"
        yield _warning("falls_past_peak", text)


def diagnostics_flags(
    diagnostics: FitDiagnostics, overfitted: Sequence[OverfittedRun], curve_count: int
) -> Iterator[FitFlag]:
    """Flags of residuals that are not random, of runs that overfit and of ties between n.

    A tie is a range of C in which no n is clearly the best. Of the last two kinds at most
    MAX_LISTED are listed each. curve_count: how many cells have a curve."""
    autocorrelation = diagnostics.autocorrelation
    if autocorrelation is not None and autocorrelation > MAX_AUTOCORRELATION:
        text = f"residuals keep their sign along a run (autocorrelation {autocorrelation:.2f})"
        reason = "the curves have not quite the shape of the data, or runs drift"
        yield _warning("autocorrelated_residuals", f"{text}: {reason}")

    for row in overfitted[:MAX_LISTED]:
        run = f"B_p={row.B_p} n={row.n} seed {row.seed}"
        text = f"overfitting: {run}: beyond C = {format_number(row.C)} {row.reason}"
        yield _warning("overfitting", text)
    more = len(overfitted) - MAX_LISTED
    if more > 0:
        text = f"overfitting in {more} more runs of {curve_count} cells (fit.json lists them)"
        yield _warning("overfitting", text)

    for tie in diagnostics.ties[:MAX_LISTED]:
        C_range = f"between C = {format_number(tie.C_low)} and {format_number(tie.C_high)}"
        tied_n = " and ".join(map(str, tie.n))
        yield _info("tie", f"tie: {C_range} these runs do not separate n = {tied_n}")


def frontier_flags(
    frontier: Frontier,
    segments: Sequence[SegmentRow],
    law: Law,
    measured_n: Collection[int],
    no_effect: bool = False,
) -> Iterator[FitFlag]:
    """Flags about the frontier and n*(C): few n, falls, weak leads, a law beyond its data.

    No flag where n has no effect or only one n was measured: there is nothing to compare then.
    segments: the ranges of C in which one n leads, with the evidence for each; measured_n: all n of
    the sweep, such as {4, 8, 16}."""
    if no_effect or len(measured_n) == 1:
        return
    frontier_n = sorted({p.n for p in frontier.points})
    last = frontier.points[-1]

    # The last n may lead only because no other has data that far: then the frontier's reward falls,
    # and that the largest n comes last is no sign that still larger ones would be better.
    falls = max(p.reward for p in frontier.points) - last.reward > MAX_FRONTIER_FALL
    if last.n == max(measured_n) and not falls:
        end = f"the frontier ends at the largest n measured ({max(measured_n)})"
        yield _warning("largest_n_leads", f"{end}: a larger n might do better")

    if law.form == "constant" and len(frontier_n) == 1:
        text = f"n = {frontier_n[0]} holds the whole frontier, so n*(C) is constant"
        others = "no other n that was measured makes a gain that these data can show"
        yield _info("one_n_leads", f"{text}: {others}")
        return

    if len(frontier_n) < MIN_DISTINCT_N:
        listed = " and ".join(map(str, frontier_n))
        hidden = ", so the fitted law is not shown" if len(frontier_n) == 2 else ""
        text = f"only {len(frontier_n)} distinct n on the frontier ({listed})"
        yield _warning("few_n", f"{text}: a slope of n*(C) needs {MIN_DISTINCT_N}{hidden}")

    yield from _change_flags(frontier)
    yield from _lead_flags(segments)
    for code, text in law_limits(law, frontier.points[0].C, last.C):
        yield _warning(code, text)


def _change_flags(frontier: Frontier) -> Iterator[FitFlag]:
    """Flags of changes of n along the frontier that are not as expected.

    They are changes to a smaller n, and changes at a C where data begin or end instead of where two
    curves cross."""
    falls = []
    uncrossed = []
    for before, after in frontier.changes_of_n:
        change = f"{before.n} to {after.n} at C = {format_number(after.C_low)}"
        if after.n < before.n:
            falls.append(change)
        if not after.from_crossing:
            uncrossed.append(f"from n = {change}")

    if falls:
        text = f"the frontier's n is not monotone, it falls from {'; '.join(falls)}"
        yield _warning("n_falls", f"{text}: a sigmoid cannot describe that")
    if uncrossed:
        reason = "because data end or begin there, not because curves cross: nothing was compared"
        yield _warning("no_crossing", f"the frontier passes {'; '.join(uncrossed)} {reason}")


def _lead_flags(segments: Sequence[SegmentRow]) -> Iterator[FitFlag]:
    """The flag of segments that lead their neighbours by less than MIN_LEAD_Z standard errors.

    A segment is a range of C in which one n leads. Those whose lead is unknown (z is None) are not
    counted as weak."""
    weak_segments = [s for s in segments if s.z is not None and s.z < MIN_LEAD_Z]
    if not weak_segments:
        return

    limit = f"{MIN_LEAD_Z:g} standard errors"
    if len(weak_segments) == len(segments):
        text = f"no segment of the frontier leads its neighbours by {limit}"
        yield _warning("weak_lead", f"{text}: n makes no difference they can show")
    else:
        listed = ", ".join(f"n={s.n} B_p={s.B_p} ({s.z:.1f})" for s in weak_segments)
        text = f"these segments lead their neighbours by less than {limit}: {listed}"
        yield _warning("weak_lead", text)


def add_health(fit: FitResult, health: RunHealth) -> FitResult:
    """The fit with a flag for each run that broke, and with verdicts that count these runs.

    These flags come first, or right after the flag that nothing was learnt. health: the runs that
    broke, and whether they were left out of this fit. The verdicts of stability of each B_p then
    count the runs that were left out, too."""
    # A broken run that was left out does no harm any more; one that was fitted distorts the fit.
    severity = "warning" if health.left_out else "error"
    health_flags = [
        FitFlag(code="flagged_run", severity=severity, text=text) for text in flag_sentences(health)
    ]
    runs_left_out = health.runs if health.left_out else ()

    flags = [*health_flags, *fit.flags]
    # The flag that nothing was learnt stays first; it then adds how many runs were left out.
    if fit.nothing_learnt:
        first = fit.flags[0]
        if runs_left_out:
            count = f"{len(runs_left_out)} broken {'run' if len(runs_left_out) == 1 else 'runs'}"
            first = first.model_copy(update={"text": f"{first.text}; {count} left out"})
        flags = [first, *health_flags, *fit.flags[1:]]

    stability = _stability_without(fit, runs_left_out)
    return fit.model_copy(update={"stability": stability, "health": health, "flags": tuple(flags)})


def _stability_without(
    fit: FitResult, runs_left_out: Sequence[FlaggedRun]
) -> tuple[StabilityVerdict, ...]:
    """The verdict of each B_p, unstable also where half of the runs of one of its cells broke.

    At least half of them must have been left out as broken, which the runs that were fitted cannot
    show. The reason then ends with that of the first such run. A B_p of which no run was fitted has
    no verdict."""
    left_out_per_cell = Counter((run.B_p, run.n) for run in runs_left_out)
    fitted_per_cell = Counter((run.B_p, run.n) for run in fit.runs)
    verdicts = {v.B_p: v for v in fit.stability}
    reason_before = {v.B_p: v.reason for v in fit.stability}
    for run in reversed(runs_left_out):  # the first one's reason overwrites those of later ones
        cell = run.B_p, run.n
        # At least 1, for a cell none of whose runs was fitted.
        is_half_lost = left_out_per_cell[cell] >= max(1, fitted_per_cell[cell])
        if run.B_p not in verdicts or not is_half_lost:
            continue
        reasons = (reason_before[run.B_p], f"n={run.n} seed {run.seed}: {run.flags[0]}")
        verdicts[run.B_p] = StabilityVerdict(
            run.B_p, stable=False, reason="; ".join(filter(None, reasons))
        )
    return tuple(verdicts.values())
