"""`isojax fit --validate`: the fit's predictions of runs that it has not seen, as validation.json and as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from isojax.cli.formatting import json_text, progress_bar, text_table, to_json_value, warn
from isojax.cli.saved_fits import fit_file_name, is_sweep_folder
from isojax.core.atomic_files import write_text
from isojax.report.wording import format_percent
from isojax.runs.ledger_reader import default_metric, read_runs
from isojax.scaling.checks.run_health import healthy_runs
from isojax.scaling.checks.validate import REPLICATES, validate
from isojax.scaling.estimate import FitOptions

TRIALS = {"compute": "the top of compute", "largest_n": "the largest n", "seed": "one run per cell"}


def make_validation(paths: Sequence[Path], metric: str | None, compute: str, options: FitOptions) -> dict[str, Any]:
    """Validate the runs by the options of their fit, but with no more replicates than `REPLICATES`: there are three
    trials. A single sweep's folder gets its validation.json, named like its fit."""
    runs = read_runs(paths, warn)
    runs = runs if options.include_flagged else healthy_runs(runs)
    metric_name, replicates = metric or default_metric(runs), min(options.replicates, REPLICATES)
    with progress_bar() as progress:
        task = progress.add_task("validation", total=None)

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        trials = validate(runs, metric_name, compute, replace(options, replicates=replicates, on_progress=advance))
    validation = to_json_value(trials)
    if len(paths) == 1 and is_sweep_folder(paths[0]):
        write_text(paths[0] / fit_file_name("validation", metric, compute, options), json_text(validation) + "\n")
    return validation


def print_validation(console: Console, validation: Mapping[str, Any]) -> None:
    """The trials in a table, then each in sentences."""
    title = f"validation: the fit's predictions of runs that it has not seen ({validation['mode']} mode)"
    columns = ("hidden", "points", "error", "|error|", "inside", "n chosen", "n best", "regret")
    rows = [[name, *_trial_columns(key, validation[key])] for key, name in TRIALS.items()]
    console.print(text_table(title, columns, rows, text_columns=1))
    for line in (
        "error: predicted less measured, mean over the points; |error|: of its absolute value",
        "inside: of the 90% interval for one new run on the same validation problems; 90% is to be expected",
    ):
        console.print(line, highlight=False)
    for key, name in TRIALS.items():
        trial = validation[key]
        explanation = trial["says"] if trial["possible"] else f"not possible: {trial['why']}"
        console.print(f"[bold]{name}[/bold]: {escape(explanation)}", highlight=False)


def _trial_columns(key: str, trial: Mapping[str, Any]) -> list[str]:
    """A trial's row: measurements, errors, coverage and the choice of n."""
    if not trial["possible"]:
        return ["-"] * 7
    errors = choice = ["-", "-"]
    regret = "-"
    if key != "largest_n":  # nothing predicts an n that was not run: its errors are what it adds, as the sentence says
        errors = [f"{trial['mean_error']:+.4f}", f"{trial['mean_absolute_error']:.4f}"]
    if trial["n_chosen"] is not None:
        choice, regret = [str(trial["n_chosen"]), str(trial["n_best"])], f"{trial['regret']:.4f}"
    coverage = "-" if trial["inside"] is None else format_percent(round(trial["inside"], 2))
    return [str(trial["measurements"]), *errors, coverage, *choice, regret]
