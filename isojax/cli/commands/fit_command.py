"""`isojax fit`: reward curves, frontier and n*(C) of finished runs; --validate: its predictions of
hidden ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.markup import escape
from typer import Option

from isojax.cli.formatting import json_text, to_json_value
from isojax.cli.nothing_learnt import print_nothing_learnt
from isojax.cli.options import IncludeFlaggedOption, JsonOption, ModeOption, RunsArgument
from isojax.cli.saved_fits import fit_file_name, is_sweep_folder, make_fit, progress_bar
from isojax.core.atomic_files import write_text
from isojax.core.terminal import warn
from isojax.report import wording
from isojax.report.console import SafeConsole, TextTable
from isojax.report.wording import format_number, format_percent, format_range
from isojax.runs.ledger import default_metric, read_runs
from isojax.scaling.checks.run_health import healthy_runs
from isojax.scaling.checks.validate import REPLICATES
from isojax.scaling.checks.validate import validate as predict_hidden_runs
from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.curves.sweep_estimate import DEFAULT_MODE, FitOptions
from isojax.scaling.result import NOT_CONVERGED, FitResult, FrontierFit, FrontierRow
from isojax.scaling.tracks import fixed_runs

ComputeUnit = Literal["rollouts", "tokens", "device_hours"]
METRIC_HELP = "Validation metric to fit, such as avg@4."
RUN_SD_HELP = "Standard deviation of the final reward between runs that differ in their seed alone."
RUN_SD_DEFAULT = "estimated from the seeds; .01 where there is one"
# What --validate hides from the fit.
TRIALS = {"compute": "the top of compute", "largest_n": "the largest n", "seed": "one run per cell"}
VALIDATE_HELP = "Hide runs from the fit, predict them, and report how well."


def fit(
    runs: RunsArgument,
    metric: Annotated[
        str | None, Option(help=METRIC_HELP, show_default="the ledger's avg@k")
    ] = None,
    compute: Annotated[ComputeUnit, Option(help="What compute is counted in.")] = "rollouts",
    mode: ModeOption = DEFAULT_MODE,
    replicates: Annotated[
        int, Option(metavar="N", min=0, help="Draws behind the intervals; 0 for none.")
    ] = 500,
    seed: Annotated[int, Option(min=0, help="Seed of these draws.")] = 0,
    run_sd: Annotated[
        float | None,
        Option(metavar="SD", min=0.0, max=1.0, help=RUN_SD_HELP, show_default=RUN_SD_DEFAULT),
    ] = None,
    validate: Annotated[bool, Option("--validate", help=VALIDATE_HELP)] = False,
    include_flagged: IncludeFlaggedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fit the reward curves, the compute-optimal frontier and n*(C) to finished runs.

    A single sweep's folder also gets the result as fit.json; with --metric, --compute or --mode as
    a file of its own, such as fit-tokens.json. --metric train/reward fits the training reward. Runs
    that are flagged as broken (a collapse, a loss that is not finite: docs/recipes.md) are left
    out, and named.

    \b
    Examples
      isojax fit runs/quickstart
      isojax fit runs/quickstart --compute tokens --json | jq .joint.n_star
      isojax fit runs/quickstart --validate    hides the top 4x of compute, the largest n, one seed; validation.json
    """
    options = FitOptions(mode, replicates, seed, run_sd, include_flagged)
    result = make_fit(runs, metric, compute, options)
    validation = make_validation(runs, metric, compute, options) if validate else None
    if as_json:
        print(json_text(to_json_value(result) | ({"validation": validation} if validation else {})))
        return
    print_fit(SafeConsole(), result)
    if validation:
        print_validation(SafeConsole(), validation)


def print_fit(console: SafeConsole, fit: FitResult) -> None:
    """The curves, which n leads where, the crossovers, n*(C) and the flags, with intervals where
    the fit has them."""
    print_nothing_learnt(console, fit.nothing_learnt)
    if fit.not_settled:
        console.print(
            f"[yellow]warning:[/yellow] {escape(fit.not_settled)}; do not use these intervals"
        )
    level = "" if fit.intervals is None else format_percent(fit.intervals.level)
    columns = ("B_p", "n", "R0", "A", level, "exponent", "C_mid")
    title = "reward(C) from R0 to the plateau A, half way at C_mid (? : plateau not reached)"
    console.print(TextTable(title, columns, map(_curve_row, fit.curves)))
    if fit.nothing_learnt:
        console.print(
            "no n leads: all stand at one reward, so there is no frontier, no crossover and no law n*(C)"
        )
    else:
        _print_frontier(console, fit, level)
    if fit.referee:
        console.print(
            f"[bold]published laws of n[/bold]: {wording.describe_verdicts(fit)} (docs/laws.md)"
        )
    if fit.schedules:
        columns = ("schedule", "stages", "seeds", "gain", level)
        console.print(
            TextTable(
                "n along a run against the best fixed n at each C", columns, _schedule_rows(fit)
            )
        )
    further_flags = fit.flags[1:] if fit.nothing_learnt else fit.flags
    for flag in (flag for flag in further_flags if flag.code != NOT_CONVERGED):
        label = "note" if flag.severity == "info" else "warning"
        console.print(f"[yellow]{label}:[/yellow] {escape(f'{flag.text} ({flag.code})')}")


def _curve_row(curve: FittedCurve) -> list[str]:
    plateau = format_number(curve.A) + ("" if curve.determined else " ?")
    interval = format_range(curve.A_interval, format_number)
    has_shape = curve.A != curve.R0
    shape = (format_number(curve.exponent), format_number(curve.C_mid)) if has_shape else ("–", "–")
    return [str(curve.B_p), str(curve.n), format_number(curve.R0), plateau, interval, *shape]


def _print_frontier(console: SafeConsole, fit: FitResult, level: str) -> None:
    columns = ("from C", "to C", "n", "B_p", "reward", "to reward", level)
    console.print(TextTable("frontier: which n leads", columns, _frontier_rows(fit.joint)))
    for row in fit.joint.crossovers:
        C = wording.format_crossover(row, fit)
        console.print(escape(f"n = {row.n_low} gives way to n = {row.n_high} at C = {C}"))
    _print_law(console, fit.joint, level)


def _frontier_rows(view: FrontierFit) -> Iterator[list[str]]:
    """One row for each stretch; "any" n where no cell has left the reward of its start."""
    for (n, B_p), group in groupby(view.frontier, key=_leading_cell):
        points = list(group)
        first, last = points[0], points[-1]
        rewards = (format_number(first.reward), format_number(last.reward))
        interval = format_range((last.low, last.high), format_number)
        yield [format_number(first.C), format_number(last.C), n, B_p, *rewards, interval]


def _leading_cell(point: FrontierRow) -> tuple[str, str]:
    return ("any", "any") if point.tied else (str(point.n), str(point.B_p))


def _schedule_rows(fit: FitResult) -> Iterator[list[str]]:
    for row in fit.schedules:
        gain = "–" if row.gain is None else f"{row.gain:+.3f}"
        interval = "–" if row.interval is None else "{:+.3f} to {:+.3f}".format(*row.interval)
        yield [row.name, row.stages, str(len(row.seeds)), gain, interval]


def _print_law(console: SafeConsole, view: FrontierFit, level: str) -> None:
    console.print(f"[bold]law[/bold]: {wording.describe_law(view)}")
    intervals = wording.measured_n_intervals(view.n_star)
    if intervals and wording.law_is_drawn(view):
        labelled_intervals = zip(intervals, ("low", "middle", "high"), strict=True)
        text = "; ".join(f"{interval} at {label} C" for interval, label in labelled_intervals)
        console.print(f"  {level} interval of the best measured n: {text}")


def make_validation(
    paths: Sequence[Path], metric: str | None, compute: str, options: FitOptions
) -> dict[str, Any]:
    """Validate the runs by the options of their fit, but with no more replicates than `REPLICATES`:
    there are three trials. A single sweep's folder gets its validation.json, named like its fit."""
    runs = fixed_runs(read_runs(paths, warn))
    runs = runs if options.include_flagged else healthy_runs(runs)
    metric_name = default_metric(runs) if metric is None else metric
    replicates = min(options.replicates, REPLICATES)
    with progress_bar(replace(options, replicates=replicates), "validation") as shown_options:
        validation = to_json_value(predict_hidden_runs(runs, metric_name, compute, shown_options))
    if len(paths) == 1 and is_sweep_folder(paths[0]):
        write_text(
            paths[0] / fit_file_name("validation", metric, compute, options),
            json_text(validation) + "\n",
        )
    return validation


def print_validation(console: SafeConsole, validation: Mapping[str, Any]) -> None:
    note = "an error is predicted less measured; inside the 90% interval of one new run, 90% is to be expected"
    console.print(
        f"validation: the fit's predictions of runs that it has not seen ({validation['mode']} mode); {note}"
    )
    for key, name in TRIALS.items():
        trial = validation[key]
        explanation = trial["says"] if trial["possible"] else f"not possible: {trial['why']}"
        console.print(f"[bold]{name}[/bold]: {escape(explanation)}")
