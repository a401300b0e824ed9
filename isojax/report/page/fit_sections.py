"""The sections on the fit: whether to trust it, the runs flagged as broken, the reward of each
cell, and where its numbers come from; and what its curves say, a sentence each."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from isojax.core.nouns import RunRecord
from isojax.core.start_file import describe_start
from isojax.report import wording
from isojax.report.fit_views import CellKey, all_n, runs_by_cell
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
from isojax.scaling.reward_metric import metric_value
from isojax.scaling.tracks import group_by

MAX_SHOWN = 6  # of a list; the others are folded

# Of a reduced chi-square of the misfit, which is 1 of pure noise.
MAX_CHI_SQUARE = 1.5
MIN_CHI_SQUARE = 0.5

METHODS = {
    "paper": "the paper's record-breaking points: a curve for each (B_p, n), their envelope, "
    "then n*(C)",
    "hierarchical": "all points at once: curves with one base reward, where they cross, "
    "then the form of n*(C) that the data support",
}


# Sentences at the head of the page.


def describe_n_path(fit: FitResult) -> str:
    """The page's sentences on how the best n changes with the budget: where one n overtakes
    another, whether n rises, or why that cannot be told, as where n only changes because the data
    of one n end."""
    path = [n for n, _ in groupby(point.n for point in fit.joint.frontier)]
    if fit.nothing_learnt:
        return "All runs stand at one reward: no n is shown to be better than another."
    if fit.joint.n_star.no_effect:
        return (
            "The fitted curves differ by less than their errors: "
            "no n is shown to be better than another."
        )
    if len(path) < 2:
        return _describe_one_n(fit, path)

    order = " → ".join(map(str, path))
    if not fit.joint.crossovers:
        nothing_compared = "no two curves were seen to cross, so nothing was compared"
        return f"The leading n changes ({order}) only where data end or begin: {nothing_compared}."

    crossings = _describe_crossovers(fit, changes_of_n=len(path) - 1)
    if path == sorted(path):
        reason = "A small n learns fast and levels off first; a larger n overtakes it later."
        return f"The best n rises with the budget: {crossings.listed}. {reason}{crossings.others}"
    not_rising = f"changes with the budget, but not in rising order ({order})"
    caution = "Treat the law with care."
    return f"The best n {not_rising}: {crossings.listed}. {caution}{crossings.others}"


class CrossoverWords(NamedTuple):
    """The crossovers of the joint frontier in words."""

    listed: str  # some of them
    others: str  # what is not listed: sentences with a space before each, or ""


def _describe_one_n(fit: FitResult, path: Sequence[int]) -> str:
    """Where one n leads the whole frontier; before it, maybe, no n."""
    n = path[0]
    if all_n(fit) == path:
        return f"Only n = {n} was run."

    tied = [point.C for point in fit.joint.frontier if point.tied]
    if tied:
        end = format_compact(tied[-1])
        return (
            f"Up to C = {end} no run had left the reward of its start, so no n leads; "
            f"from there on n = {n} does: no crossover was seen."
        )
    return f"n = {n} leads at every measured budget: no crossover was seen."


def _describe_crossovers(fit: FitResult, changes_of_n: int) -> CrossoverWords:
    """Up to four crossovers, of more the first two and the last."""
    crossovers = fit.joint.crossovers
    shown = crossovers if len(crossovers) < 5 else (*crossovers[:2], crossovers[-1])
    listed = wording.join_list(
        f"{row.n_low} → {row.n_high} near C = {wording.format_crossover(row, fit)}" for row in shown
    )

    others = ""
    if len(crossovers) < changes_of_n:
        others += " Its other changes are where data end or begin."
    if len(shown) < len(crossovers):
        others += f" The evidence below has all {len(crossovers)} crossovers."
    return CrossoverWords(listed, others)


def describe_gain(fit: FitResult) -> str:
    """A sentence on how far the best run came, from the base policy's reward to its last; where no
    run learnt anything, so that none is the best, the highest reward."""
    best = max(fit.runs, key=lambda run: run.final_reward)
    if fit.nothing_learnt:
        return f"The highest {fit.metric} at the end of a run is {best.final_reward:.3g}."

    metric = metric_phrase(fit.metric)
    if metric != fit.metric:  # a log's name stays as it is
        metric = metric[0].upper() + metric[1:]

    base = fit.base_reward
    start = "reaches"
    if base is not None:
        start = f"goes from {format_reward(base)} (base policy) to"
    reward = format_reward(best.final_reward)

    run = f"(n = {best.n}, B_p = {best.B_p}, seed {best.seed})"
    ratio = f", {best.final_reward / base:.2f} times the base" if base else ""
    return f"{metric} {start} {reward} at the end of the best run {run}{ratio}."


# Whether to trust the fit.


def trust_section(fit: FitResult) -> Html:
    """The section "Can I trust it?": the evidence for and against the answer in short, then every
    flag (warning or note) that the fit raised, warnings first."""
    link = Html(' <a href="#evidence">The evidence for each.</a>')
    evidence: list[object] = [tag("span", _describe_segments(fit), link)]
    evidence += _describe_sensitivity(fit)
    if not fit.nothing_learnt:
        evidence.append(_describe_misfit(fit.diagnostics))

    labels = {"info": "note", "warning": "warning", "error": "error"}
    notes_last = sorted(fit.flags, key=lambda flag: flag.severity == "info")
    flags = []
    for flag in notes_last:
        label = tag("strong", f"{labels[flag.severity]}: ")
        flags.append(tag("span", label, f"{flag.text} ({flag.code})"))
    warnings = _shortened_list(flags) if flags else tag("p", "None: the fit raised no warning.")

    heading = tag("h3", "Warnings and notes")
    return html_section("trust", "Can I trust it?", bullet_list(evidence), heading, warnings)


def _describe_segments(fit: FitResult) -> str:
    """A sentence on how many segments of the joint frontier hold, and by which rule. A segment is a
    range of C that one cell leads; it holds where the data show that lead to be no noise."""
    segments = fit.joint.segments
    if fit.nothing_learnt:
        return "No cell leads another: all stand at one reward."
    if len(segments) < 2:
        return "One cell leads everywhere, so there is no segment to compare with another."

    verdicts = [wording.segment_verdict(segment).holds for segment in segments]
    if None in verdicts:
        return (
            "Whether the joint frontier's segments hold is not judged: "
            "these runs do not record the right answers of single problems. "
            "P(n is best) comes from the curves alone."
        )

    length = f"at least {wording.MIN_DECADES} decade long"
    rule = f"{length}, measured for its neighbours, ahead by two standard errors somewhere"
    held = f"{verdicts.count(True)} of {len(segments)}"
    return f"Of the joint frontier's segments {held} hold ({rule}); others may be noise."


def _describe_sensitivity(fit: FitResult) -> list[str]:
    """A sentence ([] for none) on how much the choice of n, and that of B_p, matters at one C: how
    far the reward ranges over the one while the other is held fixed."""
    sensitivity = fit.sensitivity
    if sensitivity is None:
        return []

    ranges = []
    for varied, fixed, spread in (
        ("n", "B_p", sensitivity.over_n),
        ("B_p", "n", sensitivity.over_B_p),
    ):
        if spread is None:
            continue
        reward = format_reward(spread.spread) + format_interval((spread.low, spread.high))
        ranges.append(f"{reward} with {varied} (at {fixed} = {spread.shared_value})")
    if not ranges:
        return []

    C_text = f"C = {format_compact(sensitivity.C)} {wording.UNITS[fit.compute]}"
    return [f"At {C_text} the reward ranges over {wording.join_list(ranges)}."]


def _describe_misfit(diagnostics: FitDiagnostics) -> str:
    """A sentence on whether the evaluations miss the fitted curves by more than their noise
    explains, by the reduced chi-square: about 1 where noise explains the misfit."""
    chi_square = diagnostics.reduced_chi_square
    if chi_square is None:
        return (
            "Without the correct answers of each problem the noise is unknown, "
            "so there is no χ² of the misfit."
        )

    verdict = "the misfit is what noise explains"
    if chi_square > MAX_CHI_SQUARE:
        verdict = "the curves miss the points by more than noise explains"
    if chi_square < MIN_CHI_SQUARE:
        verdict = "the noise is overestimated"

    degrees = ""
    if diagnostics.degrees_of_freedom is not None:
        degrees = f" over {diagnostics.degrees_of_freedom} degrees of freedom"
    return f"Reduced χ² is {chi_square:.2f}{degrees}: {verdict} (pure noise gives 1)."


def health_section(folder: Path, fit: FitResult) -> Html:
    """Which runs are flagged as broken (scaling/checks/run_health.py), from where on and why; and
    what was doubtful before their first updates (train/start_check.py)."""
    parts = [_flagged_runs(fit)]
    doubts = [sentence[:1].upper() + sentence[1:] for sentence in describe_start(folder)]
    if doubts:
        parts += [tag("h3", "Before the first update"), _shortened_list(doubts)]
    return html_section("health", "Health of the runs", *parts)


def _flagged_runs(fit: FitResult) -> Html:
    """A list of the runs that broke (their reward collapsed, ...), or, where none did, a sentence
    on which checks that rests on; imported logs allow fewer checks."""
    if fit.health.runs:
        return _shortened_list(flag_sentences(fit.health))
    if fit.nothing_learnt:  # a run breaks by a change on its way, and none changed
        return tag("p", f"No run broke on the way, but {fit.nothing_learnt}.")

    checks = (
        "none collapsed, exploded, was cut off or stopped being finite, "
        "and sampler and trainer agree"
    )
    if all(run.imported for run in fit.runs):
        checks = (
            "no reward collapsed. "
            "What a log does not hold, such as responses that were cut off, is not judged"
        )
    return tag("p", f"No run is flagged: by what was recorded, {checks}.")


def _shortened_list(items: Sequence[object]) -> Html:
    """A list whose end is folded where it is long."""
    shown = bullet_list(items[:MAX_SHOWN])
    others = items[MAX_SHOWN:]
    if not others:
        return shown
    folded = tag("details", tag("summary", f"{len(others)} more"), bullet_list(others))
    return join_html([shown, folded])


# What each cell reached, and where the numbers come from.


def rewards_section(fit: FitResult, run_records: Sequence[RunRecord]) -> Html:
    """The folded table of each cell's reward: the base policy's, the last of its seeds, how much
    more that is, and its last reward on each extra set of problems that all runs were evaluated
    on."""
    extra_rewards = _extra_rewards(run_records)
    headings = [
        "B_p × n",
        "base",
        "final, mean of seeds",
        "ratio",
        "final of each seed",
        *(f"{metric}, final" for metric in extra_rewards),
        "C reached",
        "evaluations",
    ]

    by_cell = sorted(fit.runs, key=lambda run: (run.B_p, run.n, run.seed))
    rows = []
    for cell, runs in group_by(by_cell, lambda run: (run.B_p, run.n)).items():
        B_p, n = cell
        finals = [run.final_reward for run in runs]
        mean_final = fmean(finals)
        row = [
            f"{B_p} × {n}",
            format_reward(fit.base_reward),
            format_reward(mean_final),
            f"{mean_final / fit.base_reward:.2f}×" if fit.base_reward else "–",
            wording.join_commas(map(format_reward, finals)),
            *(format_reward(rewards.get(cell)) for rewards in extra_rewards.values()),
            format_compact(max(run.C_max for run in runs)),
            sum(run.points for run in runs),
        ]
        rows.append(row)

    table = html_table(f"{metric_phrase(fit.metric)} before and after training", headings, rows)
    return html_fold("rewards", "Reward of each cell", table)


def _extra_rewards(run_records: Sequence[RunRecord]) -> dict[str, dict[CellKey, float]]:
    """For each extra set of problems that all runs were evaluated on, by its metric such as
    "hard/avg@4": cell -> the mean over its seeds at their last evaluations."""
    metrics_of_each_run = []
    for run in run_records:
        last = run.points[-1]
        metrics_of_each_run.append({f"{name}/avg@{last.samples}" for name in last.extra})
    shared_metrics = set.intersection(*metrics_of_each_run) if metrics_of_each_run else set()

    seeds_by_cell = runs_by_cell(run_records)
    rewards = {}
    for metric in sorted(shared_metrics):
        rewards[metric] = {
            cell: fmean(metric_value(run.points[-1], metric) for run in seeds)
            for cell, seeds in seeds_by_cell.items()
        }
    return rewards


def provenance_section(folder: Path, fit: FitResult) -> Html:
    """The folded section on where the page's numbers come from: the method of the fit, the files
    that hold its numbers, its intervals, and the sweep's config, if `folder` has one."""
    method = (
        f"Fitted to {METHODS[fit.mode]} (mode {fit.mode}). "
        "C counts every rollout sampled for training, never validation. "
        "Method: IsoCompute Playbook, arXiv:2603.12151, section 4."
    )
    paragraphs = [
        tag("p", method),
        tag("p", _describe_intervals(fit)),
        tag(
            "p",
            "The numbers are in ",
            tag("code", "fit.json"),
            "; the figures, as PNG and PDF, in ",
            tag("code", "figures/"),
            ".",
        ),
    ]

    config = folder / "config.yaml"
    settings = Html("")
    if config.is_file():
        settings = tag("pre", tag("code", config.read_text(encoding="utf-8", errors="replace")))
    return html_fold("provenance", "Method and settings", *paragraphs, settings)


def _describe_intervals(fit: FitResult) -> str:
    """What the intervals hold, and what they take for the spread between runs."""
    intervals = fit.intervals
    if intervals is None:
        return "This fit has no intervals."

    replicates = wording.format_count(intervals.replicates, "replicate")
    share = f"{format_percent(intervals.level)} of {replicates}"
    how = f"Intervals hold {share} ({intervals.method}; seed {intervals.seed})."
    if fit.nothing_learnt:
        spread = "How far runs differ that differ in their seed alone is"
        return f"{how} {spread} {intervals.run_sd_source}."
    spread = "The reward's standard deviation between runs that differ in their seed alone is"
    return f"{how} {spread} {intervals.run_sd:.4f}, {intervals.run_sd_source}."
