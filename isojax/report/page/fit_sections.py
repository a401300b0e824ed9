"""The sections on the fit: whether to trust it, the runs flagged as broken, the reward of each
cell, and where its numbers come from; and what its curves say, a sentence each."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean

from isojax.core.nouns import RunRecord
from isojax.core.start_file import describe_start
from isojax.report import wording
from isojax.report.fit_views import all_n, runs_by_cell
from isojax.report.page.markup import (
    Html,
    bullet_list,
    html_fold,
    html_section,
    html_table,
    join_html,
    tag,
)
from isojax.report.wording import (
    format_compact,
    format_interval,
    format_percent,
    format_reward,
    metric_phrase,
)
from isojax.scaling.checks.run_health import flag_sentences
from isojax.scaling.result import FitDiagnostics, FitResult
from isojax.scaling.tracks import group_by, metric_value

MAX_SHOWN = 6  # of a list; the others are folded


def describe_n_path(fit: FitResult) -> str:
    """How the leading n changes: by curves that cross, or only where data end, which compares
    nothing."""
    path = [n for n, _ in groupby(point.n for point in fit.joint.frontier)]
    crossovers = fit.joint.crossovers
    if fit.nothing_learnt:
        return "All runs stand at one reward: no n is shown to be better than another."
    if fit.joint.n_star.no_effect:
        return "The fitted curves differ by less than their errors: no n is shown to be better than another."
    if len(path) < 2:
        if all_n(fit) == path:
            return f"Only n = {path[0]} was run."
        tied = [point.C for point in fit.joint.frontier if point.tied]
        if tied:
            stood = f"Up to C = {wording.format_compact(tied[-1])} no run had left the reward of its start"
            return (
                f"{stood}, so no n leads; from there on n = {path[0]} does: no crossover was seen."
            )
        return f"n = {path[0]} leads at every measured budget: no crossover was seen."
    order = " → ".join(map(str, path))
    shown = crossovers if len(crossovers) < 5 else (*crossovers[:2], crossovers[-1])
    if not crossovers:
        nothing_compared = "no two curves were seen to cross, so nothing was compared"
        return f"The leading n changes ({order}) only where data end or begin: {nothing_compared}."
    crossings = wording.join_list(
        f"{x.n_low} → {x.n_high} near C = {wording.format_crossover(x, fit)}" for x in shown
    )
    others = (
        ""
        if len(crossovers) >= len(path) - 1
        else " Its other changes are where data end or begin."
    )
    others += (
        "" if shown is crossovers else f" The evidence below has all {len(crossovers)} crossovers."
    )
    if path == sorted(path):
        reason = "A small n learns fast and levels off first; a larger n overtakes it later."
        return f"The best n rises with the budget: {crossings}. {reason}{others}"
    caution = "Treat the law with care."
    return f"The best n changes with the budget, but not in rising order ({order}): {crossings}. {caution}{others}"


def describe_gain(fit: FitResult) -> str:
    """How far the best run came; of a sweep that shows nothing, which has no best run, the highest
    reward."""
    if fit.nothing_learnt:
        return f"The highest {fit.metric} at the end of a run is {max(run.final_reward for run in fit.runs):.3g}."
    base, best = fit.base_reward, max(fit.runs, key=lambda run: run.final_reward)
    start = "reaches" if base is None else f"goes from {format_reward(base)} (base policy) to"
    ratio_text = f", {best.final_reward / base:.2f} times the base" if base else ""
    run_text = f"(n = {best.n}, B_p = {best.B_p}, seed {best.seed}){ratio_text}"
    metric = metric_phrase(fit.metric)
    # a log's name stays as it is
    metric = metric if metric == fit.metric else metric[0].upper() + metric[1:]
    return f"{metric} {start} {format_reward(best.final_reward)} at the end of the best run {run_text}."


def _describe_segments(fit: FitResult) -> str:
    if fit.nothing_learnt:
        return "No cell leads another: all stand at one reward."
    if len(fit.joint.segments) < 2:
        return "One cell leads everywhere, so there is no segment to compare with another."
    length = f"at least {wording.MIN_DECADES} decade long"
    rule = f"{length}, measured for its neighbours, ahead by two standard errors somewhere"
    verdicts = [wording.segment_verdict(segment)[0] for segment in fit.joint.segments]
    if None in verdicts:
        reason = "these runs do not record the right answers of single problems"
        unjudged = f"Whether the joint frontier's segments hold is not judged: {reason}."
        return f"{unjudged} P(n is best) comes from the curves alone."
    held = sum(map(bool, verdicts))
    return f"Of the joint frontier's segments {held} of {len(fit.joint.segments)} hold ({rule}); others may be noise."


def _describe_sensitivity(fit: FitResult) -> list[str]:
    if fit.sensitivity is None:
        return []
    spreads = (("n", "B_p", fit.sensitivity.over_n), ("B_p", "n", fit.sensitivity.over_B_p))
    ranges = [
        f"{format_reward(spread.spread)}{format_interval((spread.low, spread.high))} with {varied}"
        f" (at {shared} = {spread.shared_value})"
        for varied, shared, spread in spreads
        if spread is not None
    ]
    C_text = f"C = {format_compact(fit.sensitivity.C)} {wording.UNITS[fit.compute]}"
    return [f"At {C_text} the reward ranges over {wording.join_list(ranges)}."] if ranges else []


def rewards_section(fit: FitResult, run_records: Sequence[RunRecord]) -> Html:
    """Where each cell started and ended, and what it then reached on the extra sets that all runs
    were evaluated on."""
    sorted_runs = sorted(fit.runs, key=lambda run: (run.B_p, run.n, run.seed))
    fitted_runs = group_by(sorted_runs, lambda run: (run.B_p, run.n))
    ends = [run.points[-1] for run in run_records]
    metrics_of_each_run = [
        {f"{name}/avg@{point.samples}" for name in point.extra} for point in ends
    ]
    shared_metrics = set.intersection(*metrics_of_each_run) if ends else set()
    cells = runs_by_cell(run_records).items()
    extra_rewards = {
        metric: {
            cell: fmean(metric_value(run.points[-1], metric) for run in seeds)
            for cell, seeds in cells
        }
        for metric in sorted(shared_metrics)
    }
    rows = []
    for cell, runs in fitted_runs.items():
        finals = [run.final_reward for run in runs]
        mean_final = fmean(finals)
        row = [
            f"{cell[0]} × {cell[1]}",
            format_reward(fit.base_reward),
            format_reward(mean_final),
            f"{mean_final / fit.base_reward:.2f}×" if fit.base_reward else "–",
            ", ".join(map(format_reward, finals)),
            *(format_reward(values.get(cell)) for values in extra_rewards.values()),
            format_compact(max(run.C_max for run in runs)),
            sum(run.points for run in runs),
        ]
        rows.append(row)
    headings = ["B_p × n", "base", "final, mean of seeds", "ratio", "final of each seed"]
    headings += [*(f"{metric}, final" for metric in extra_rewards), "C reached", "evaluations"]
    table = html_table(f"{metric_phrase(fit.metric)} before and after training", headings, rows)
    return html_fold("rewards", "Reward of each cell", table)


MAX_CHI_SQUARE, MIN_CHI_SQUARE = 1.5, 0.5


def _describe_misfit(diagnostics: FitDiagnostics) -> str:
    chi_square = diagnostics.reduced_chi_square
    if chi_square is None:
        return "Without the correct answers of each problem the noise is unknown, so there is no χ² of the misfit."
    verdict = "the misfit is what noise explains"
    if chi_square > MAX_CHI_SQUARE:
        verdict = "the curves miss the points by more than noise explains"
    if chi_square < MIN_CHI_SQUARE:
        verdict = "the noise is overestimated"
    degrees = diagnostics.degrees_of_freedom
    degrees_text = "" if degrees is None else f" over {degrees} degrees of freedom"
    return f"Reduced χ² is {chi_square:.2f}{degrees_text}: {verdict} (pure noise gives 1)."


def health_section(folder: Path, fit: FitResult) -> Html:
    """Which runs are flagged as broken (scaling/checks/run_health.py), from where on and why; and
    what was doubtful before their first updates (train/start_check.py)."""
    checks = "none collapsed, exploded, was cut off or stopped being finite, and sampler and trainer agree"
    if all(run.imported for run in fit.runs):
        checks = "no reward collapsed. What a log does not hold, such as responses that were cut off, is not judged"
    flags = tag("p", f"No run is flagged: by what was recorded, {checks}.")
    if fit.nothing_learnt:  # a criterion is a change on the way
        flags = tag("p", f"No run broke on the way, but {fit.nothing_learnt}.")
    if fit.health.runs:
        flags = _shortened_list(flag_sentences(fit.health))
    doubts = [sentence[:1].upper() + sentence[1:] for sentence in describe_start(folder)]
    start = [tag("h3", "Before the first update"), _shortened_list(doubts)] if doubts else []
    return html_section("health", "Health of the runs", flags, *start)


def trust_section(fit: FitResult) -> Html:
    """What speaks for the answer and against it: the evidence in short, and every flag of the
    fit."""
    link = Html(' <a href="#evidence">The evidence for each.</a>')
    evidence = [
        tag("span", _describe_segments(fit), link),
        *_describe_sensitivity(fit),
        *([] if fit.nothing_learnt else [_describe_misfit(fit.diagnostics)]),
    ]
    ordered = sorted(fit.flags, key=lambda flag: flag.severity == "info")
    labels = {"info": "note", "warning": "warning", "error": "error"}
    flags = [
        tag("span", tag("strong", f"{labels[f.severity]}: "), f"{f.text} ({f.code})")
        for f in ordered
    ]
    warnings = _shortened_list(flags) if flags else tag("p", "None: the fit raised no warning.")
    return html_section(
        "trust", "Can I trust it?", bullet_list(evidence), tag("h3", "Warnings and notes"), warnings
    )


def _shortened_list(items: Sequence[object]) -> Html:
    shown, others = bullet_list(items[:MAX_SHOWN]), items[MAX_SHOWN:]
    folded = tag("details", tag("summary", f"{len(others)} more"), bullet_list(others))
    return join_html([shown, folded] if others else [shown])


METHODS = {
    "paper": "the paper's record-breaking points: a curve for each (B_p, n), their envelope, then n*(C)",
    "hierarchical": "all points at once: curves with one base reward, where they cross, then the form of n*(C) that "
    "the data support",
}


def provenance_section(folder: Path, fit: FitResult) -> Html:
    method = (
        f"Fitted to {METHODS[fit.mode]} (mode {fit.mode}). C counts every rollout sampled for training, "
        "never validation. Method: IsoCompute Playbook, arXiv:2603.12151, section 4."
    )
    config = folder / "config.yaml"
    settings = Html("")
    if config.is_file():
        settings = tag("pre", tag("code", config.read_text(encoding="utf-8", errors="replace")))
    fit_file, figures_folder = tag("code", "fit.json"), tag("code", "figures/")
    files = tag(
        "p",
        "The numbers are in ",
        fit_file,
        "; the figures, as PNG and PDF, in ",
        figures_folder,
        ".",
    )
    intervals = tag("p", _describe_intervals(fit))
    return html_fold(
        "provenance", "Method and settings", tag("p", method), intervals, files, settings
    )


def _describe_intervals(fit: FitResult) -> str:
    intervals = fit.intervals
    if intervals is None:
        return "This fit has no intervals."
    replicates = f"{format_percent(intervals.level)} of {wording.format_count(intervals.replicates, 'replicate')}"
    how = f"Intervals hold {replicates} ({intervals.method}; seed {intervals.seed})."
    if fit.nothing_learnt:
        return f"{how} How far runs differ that differ in their seed alone is {intervals.run_sd_source}."
    spread = f"The reward's standard deviation between runs that differ in their seed alone is {intervals.run_sd:.4f}"
    return f"{how} {spread}, {intervals.run_sd_source}."
