"""`isojax report`: figures and page of a sweep; after `isojax launch`: its fit, recommendations,
gains and report."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from isojax.cli.commands.fit_command import print_fit
from isojax.cli.commands.recommend_command import print_answer
from isojax.cli.formatting import print_line
from isojax.cli.nothing_learnt import print_nothing_learnt
from isojax.cli.options import IncludeFlaggedOption, complete_run
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

MAX_OTHER_METRICS = 6
OTHER_REPLICATES = 200
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
    """Write the report of a sweep's fit and of its other views; returns the path of the page."""
    runs = read_runs([folder], warn)
    return write_report(folder, [fit, *other_fits(runs, fit)], fitted_runs(fit, runs))


def other_fits(runs: Sequence[RunRecord], main_fit: FitResult) -> list[FitResult]:
    """The paper's procedure, then other metrics, but those that are no rewards (NON_REWARD_METRICS,
    of any set); a view that these runs cannot give is left out with a warning."""
    fits, last_point = [], runs[0].points[-1]
    samples = min(point.samples for run in runs for point in run.points)
    views = [(main_fit.metric, "paper" if main_fit.mode != "paper" else DEFAULT_MODE)]
    if samples >= 2 and last_point.counts:
        views += [(f"{kind}@{samples}", DEFAULT_MODE) for kind in ("best", "worst")]
    if "reward" in last_point.train:
        views.append(("train/reward", DEFAULT_MODE))
    rewards = {
        name for name in last_point.metrics if name.rpartition("/")[2] not in NON_REWARD_METRICS
    }
    others = sorted(
        rewards - {metric for metric, _ in views}, key=lambda name: ("avg@" not in name, name)
    )
    for metric, mode in [*views, *((name, DEFAULT_MODE) for name in others[:MAX_OTHER_METRICS])]:
        options = FitOptions(mode, OTHER_REPLICATES, include_flagged=not main_fit.health.left_out)
        try:
            fits.append(
                fit_runs(runs, metric, main_fit.compute, options, f"fitting {metric} ({mode})")
            )
        except InputError as e:
            warn(f"the report has no view of {metric} ({mode}): {e}")
    return fits


def fit_and_report(sweep_dir: Path, with_report: bool) -> None:
    """Fit a sweep, print what was found, and last, where it stays in sight, how to spend what its
    runs had."""
    console, runs = SafeConsole(), read_runs([sweep_dir], warn)
    if not fixed_runs(runs):
        warn(
            "every run has a schedule, and a law needs runs of a fixed n: there is no fit and no report"
        )
        report_gains(console, sweep_dir, runs)
        return
    fit = make_fit([sweep_dir], None, "rollouts")
    report_path = draw_report(sweep_dir, fit) if with_report else None
    print_fit(console, fit)
    report_gains(console, sweep_dir, runs)

    budget = int(measured_budget(fit))
    try:
        print_answer(console, recommend(fit, budget), budget, fit.reward_name)
        print_line(
            f"why, and for other budgets: isojax recommend {shlex.quote(str(sweep_dir))} --budget {4 * budget}"
        )
    except InputError as e:  # the sweep and its fit are there, only this budget has no answer
        warn(f"no recommendation for {budget} rollouts: {e}")
    if report_path is not None:
        print_line(f"report: {report_path}")
