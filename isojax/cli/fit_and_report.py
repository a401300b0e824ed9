"""What follows the cells of `isojax launch`: their fit, the recommendations, the gains and the report. A module of its
own, so that help and completion wait for neither SciPy nor matplotlib."""

from pathlib import Path

from isojax.cli.commands.fit_command import print_fit
from isojax.cli.commands.recommend_command import print_recommendation
from isojax.cli.commands.report_command import draw_report
from isojax.cli.formatting import print_line, warn
from isojax.cli.saved_fits import make_fit
from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.report.console import SafeConsole
from isojax.report.gains import report_gains
from isojax.runs.ledger import read_runs
from isojax.runs.workspace import display_path
from isojax.scaling.allocate.recommend import recommend


def fit_and_report(config: Config, sweep_dir: Path, with_report: bool) -> None:
    """Fit a sweep, print what was found and how to spend its budget per cell, and 4 times as much."""
    fit = make_fit([sweep_dir], None, "rollouts")
    report_path = draw_report(sweep_dir, fit) if with_report else None
    console = SafeConsole()
    print_fit(console, fit)
    for budget in (config.sweep.budget, 4 * config.sweep.budget):
        try:  # runs end at their last evaluation, so 4 times the budget may be more than 4 times what was measured
            print_recommendation(console, recommend(fit, budget, extrapolate=True), budget, fit.reward_name)
        except InputError as e:  # the sweep and its fit are there, only this budget has no answer
            warn(f"no recommendation for {budget} rollouts: {e}")
    report_gains(console, sweep_dir, read_runs([sweep_dir], warn))
    if report_path is not None:
        print_line(f"report: {display_path(report_path)}")
