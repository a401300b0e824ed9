"""Rebuild a sweep's figures and report.html from its ledgers and its fit.json.

Also what `isojax launch` does after the last run: fit, gains, recommendation and report.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from isojax.cli.commands.fit_command import print_fit
from isojax.cli.formatting import print_line
from isojax.cli.nothing_learnt import print_nothing_learnt
from isojax.cli.options import IncludeFlaggedOption, complete_run
from isojax.cli.recommendation_text import print_answer
from isojax.cli.saved_fits import fit_runs, make_fit, read_fit, sweep_folder
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.core.terminal import warn
from isojax.report.console import SafeConsole
from isojax.report.fit_views import fitted_runs, measured_budget
from isojax.report.gains import report_gains
from isojax.report.page.html_page import write_report
from isojax.runs.ledger import read_runs
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.curves.sweep_estimate import DEFAULT_MODE, FitOptions
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import fixed_runs

MAX_OTHER_METRICS = 6  # besides the main one, best@k, worst@k and the training reward
OTHER_REPLICATES = 200  # of each further view; there may be ten of them
# What an evaluation records of its rollouts besides rewards (train/evaluate.py).
NON_REWARD_METRICS = {"parsed_fraction", "truncated", "verifier_failures", "interrupted", "turns"}


def report(
    run: Annotated[Path, typer.Argument(help="A sweep's folder.", autocompletion=complete_run)],
    include_flagged: IncludeFlaggedOption = False,
) -> None:
    """Rebuild a sweep's figures and report.html from its ledgers and its fit.json.

    \b
    Example
      isojax report runs/quickstart
    """
    folder = sweep_folder(run)
    fit = read_fit(folder, include_flagged)

    print_nothing_learnt(SafeConsole(), fit.nothing_learnt)
    print_line(f"report: {draw_report(folder, fit)}")


def draw_report(folder: Path, fit: FitResult) -> Path:
    """Write the report of a sweep's fit and of its other views; the path of the page."""
    runs = read_runs([folder], warn)
    return write_report(folder, [fit, *other_fits(runs, fit)], fitted_runs(fit, runs))


def other_fits(runs: Sequence[RunRecord], main_fit: FitResult) -> list[FitResult]:
    """Fits of further views of the same runs: by the paper's procedure, then of other metrics.

    runs: those of `main_fit`, as the ledgers have them. A view that they cannot give is left out
    with a warning.
    """
    fits = []
    for view in _other_views(runs, main_fit):
        options = FitOptions(
            view.mode, OTHER_REPLICATES, include_flagged=not main_fit.health.left_out
        )
        description = f"fitting {view.metric} ({view.mode})"
        try:
            fits.append(fit_runs(runs, view.metric, main_fit.compute, options, description))
        except InputError as e:
            warn(f"the report has no view of {view.metric} ({view.mode}): {e}")
    return fits


class FitView(NamedTuple):
    """A metric, and how it is fitted."""

    metric: str  # such as "best@4", "hard/avg@4" (of an extra set) or "train/reward"
    mode: str = DEFAULT_MODE


def _other_views(runs: Sequence[RunRecord], main_fit: FitResult) -> list[FitView]:
    """What else is worth a fit, first what is worth most.

    The main metric in the other mode, best@k and worst@k of the validation set, the training
    reward, and at most MAX_OTHER_METRICS others. Which there are is read off the first run.
    """
    last_point = runs[0].points[-1]
    # With one rollout per problem best@1 and worst@1 are avg@1. They follow from the problems' sums
    # of rewards (`counts`), which an imported log may lack.
    samples = min(point.samples for run in runs for point in run.points)

    views = [FitView(main_fit.metric, "paper" if main_fit.mode != "paper" else DEFAULT_MODE)]
    if samples >= 2 and last_point.counts:
        views += [FitView(f"best@{samples}"), FitView(f"worst@{samples}")]
    if "reward" in last_point.train:
        views.append(FitView("train/reward"))

    # Then what else was evaluated, such as hard/avg@4, and of that first the averages.
    metrics_in_views = {view.metric for view in views}
    further_metrics = [
        metric
        for metric in last_point.metrics
        if _is_reward(metric) and metric not in metrics_in_views
    ]
    further_metrics.sort(key=lambda metric: ("avg@" not in metric, metric))
    views += [FitView(metric) for metric in further_metrics[:MAX_OTHER_METRICS]]
    return views


def _is_reward(metric: str) -> bool:
    """Whether a metric, of any problem set, measures rewards."""
    return metric.rpartition("/")[2] not in NON_REWARD_METRICS


def fit_and_report(sweep_dir: Path, with_report: bool) -> None:
    """Fit a sweep and print the fit; last, where it stays in sight, how to spend what its runs had.

    `with_report`: draw figures and the page, too. A sweep of schedules alone has no fit: then only
    the gains of its runs are printed, with a warning. InputError where it cannot be fitted.
    """
    console = SafeConsole()
    runs = read_runs([sweep_dir], warn)
    if not fixed_runs(runs):
        warn(
            "every run has a schedule, and a law needs runs of a fixed n: "
            "there is no fit and no report"
        )
        report_gains(console, sweep_dir, runs)
        return

    # The report is drawn before anything is printed, because it takes minutes.
    fit = make_fit([sweep_dir], None, "rollouts")
    report_path = draw_report(sweep_dir, fit) if with_report else None

    print_fit(console, fit)
    report_gains(console, sweep_dir, runs)
    _print_recommendation(console, sweep_dir, fit)
    if report_path is not None:
        print_line(f"report: {report_path}")


def _print_recommendation(console: SafeConsole, sweep_dir: Path, fit: FitResult) -> None:
    """How to spend the budget that a run of this sweep had."""
    budget = int(measured_budget(fit))
    try:
        print_answer(console, recommend(fit, budget), budget, fit.reward_name)
    except InputError as e:  # The sweep and its fit are there, only this budget has no answer.
        warn(f"no recommendation for {budget} rollouts: {e}")
        return

    command = f"isojax recommend {shlex.quote(str(sweep_dir))} --budget {4 * budget}"
    print_line(f"why, and for other budgets: {command}")
