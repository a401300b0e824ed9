"""Fit the reward curves, the compute-optimal frontier and n*(C) to finished runs.

--validate: how well such a fit predicts runs that are hidden from it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

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
from isojax.scaling.curves.sweep_estimate import DEFAULT_MODE, DEFAULT_OPTIONS, FitOptions
from isojax.scaling.result import NOT_CONVERGED, FitResult, FittedCurve, FrontierFit, FrontierRow
from isojax.scaling.tracks import fixed_runs
from isojax.scaling.validate import REPLICATES
from isojax.scaling.validate import validate as predict_hidden_runs

ComputeUnit = Literal["rollouts", "tokens", "device_hours"]
METRIC_HELP = "Validation metric to fit, such as avg@4."
RUN_SD_HELP = "Standard deviation of the final reward between runs that differ in their seed alone."
RUN_SD_DEFAULT = "estimated from the seeds; 0.01 if there is one"
# What --validate hides from the fit: the key of a trial -> its name.
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
    ] = DEFAULT_OPTIONS.replicates,
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
    another file, such as fit-tokens.json. --metric train/reward fits the training reward. Runs
    that are flagged as broken (a collapse, a loss that is not finite: docs/recipes.md) are left
    out, and named.

    \b
    Examples
      isojax fit runs/quickstart
      isojax fit runs/quickstart --compute tokens --json | jq .joint.n_star
      isojax fit runs/quickstart --validate\
    hides the top 4x of compute, the largest n, one seed; validation.json
    """
    options = FitOptions(mode, replicates, seed, run_sd, include_flagged)
    result = make_fit(runs, metric, compute, options)
    validation = make_validation(runs, metric, compute, options) if validate else None

    if as_json:
        document = to_json_value(result)
        if validation:
            document["validation"] = validation
        print(json_text(document))
        return

    print_fit(SafeConsole(), result)
    if validation:
        print_validation(SafeConsole(), validation)


def print_fit(console: SafeConsole, fit: FitResult) -> None:
    """Print the curves, which n leads where, the crossovers, n*(C) and the flags.

    With intervals where the fit has them.
    """
    # Such as "90%": the title of the columns of intervals, whose cells are "-" without them.
    level = "" if fit.intervals is None else format_percent(fit.intervals.level)

    print_nothing_learnt(console, fit.nothing_learnt)
    if fit.not_settled:
        text = f"{escape(fit.not_settled)}; do not use these intervals"
        console.print(f"[yellow]warning:[/yellow] {text}")

    title = "reward(C) from R0 to the plateau A, half way at C_mid (? : plateau not reached)"
    columns = ("B_p", "n", "R0", "A", level, "exponent", "C_mid")
    console.print(TextTable(title, columns, map(_curve_row, fit.curves)))

    if fit.nothing_learnt:
        console.print(
            "no n leads: all stand at one reward, so there is no frontier, "
            "no crossover and no law n*(C)"
        )
    else:
        _print_frontier(console, fit.joint, fit, level)  # that of all B_p together
    if fit.referee:
        # How well each published law of n agrees with this sweep.
        verdicts = wording.describe_verdicts(fit)
        console.print(f"[bold]published laws of n[/bold]: {verdicts} (docs/laws.md)")
    if fit.schedules:
        title = "n along a run against the best fixed n at each C"
        columns = ("schedule", "stages", "seeds", "gain", level)
        console.print(TextTable(title, columns, _schedule_rows(fit)))
    _print_flags(console, fit)


def _print_flags(console: SafeConsole, fit: FitResult) -> None:
    """The flags that have not been printed above."""
    # Of a sweep that shows nothing, the first flag says so, as the first line of the answer has
    # done. That a fit has not converged is its `not_settled`.
    flags = fit.flags[1:] if fit.nothing_learnt else fit.flags
    for flag in flags:
        if flag.code != NOT_CONVERGED:
            label = "note" if flag.severity == "info" else "warning"
            console.print(f"[yellow]{label}:[/yellow] {escape(f'{flag.text} ({flag.code})')}")


def _curve_row(curve: FittedCurve) -> list[str]:
    """A cell's row in the table of curves: B_p, n, R0, A, its interval ("-" without one), exponent
    and C_mid. A plateau A that its data do not determine has a question mark."""
    plateau = format_number(curve.A) + ("" if curve.determined else " ?")
    interval = format_range(curve.A_interval, format_number)

    # A curve without a gain has neither steepness nor middle.
    has_gain = curve.A != curve.R0
    exponent = format_number(curve.exponent) if has_gain else "–"
    C_mid = format_number(curve.C_mid) if has_gain else "–"
    return [
        str(curve.B_p),
        str(curve.n),
        format_number(curve.R0),
        plateau,
        interval,
        exponent,
        C_mid,
    ]


def _print_frontier(console: SafeConsole, view: FrontierFit, fit: FitResult, level: str) -> None:
    """Which n leads where, the crossovers, and the law; `level` heads the column of intervals."""
    columns = ("from C", "to C", "n", "B_p", "reward", "to reward", level)
    console.print(TextTable("frontier: which n leads", columns, _frontier_rows(view)))

    for row in view.crossovers:
        C = wording.format_crossover(row, fit)
        console.print(escape(f"n = {row.n_low} gives way to n = {row.n_high} at C = {C}"))

    _print_law(console, view, level)


class LeadingCell(NamedTuple):
    """As the table of the frontier shows it; both "any" where no cell has left its first reward."""

    n: str
    B_p: str


def _leading_cell(point: FrontierRow) -> LeadingCell:
    return LeadingCell("any", "any") if point.tied else LeadingCell(str(point.n), str(point.B_p))


def _frontier_rows(view: FrontierFit) -> Iterator[list[str]]:
    """One row for each stretch of C that one (n, B_p) leads, for the table of `_print_frontier`.
    The interval is that of the reward at the stretch's end."""
    # The frontier's points rise in C, so that neighbours with one leader are a stretch.
    for leader, points in groupby(view.frontier, key=_leading_cell):
        stretch = list(points)
        first = stretch[0]
        last = stretch[-1]
        yield [
            format_number(first.C),
            format_number(last.C),
            leader.n,
            leader.B_p,
            format_number(first.reward),
            format_number(last.reward),
            format_range((last.low, last.high), format_number),
        ]


def _schedule_rows(fit: FitResult) -> Iterator[list[str]]:
    for row in fit.schedules:
        gain = "–" if row.gain is None else f"{row.gain:+.3f}"
        interval = "–" if row.interval is None else "{:+.3f} to {:+.3f}".format(*row.interval)
        yield [row.name, row.stages, str(len(row.seeds)), gain, interval]


def _print_law(console: SafeConsole, view: FrontierFit, level: str) -> None:
    console.print(f"[bold]law[/bold]: {wording.describe_law(view)}")

    # Of the best measured n at the first, the middle and the last budget.
    intervals = wording.measured_n_intervals(view.n_star)
    if intervals and wording.law_is_drawn(view):
        labelled = zip(intervals, ("low", "middle", "high"), strict=True)
        text = "; ".join(f"{interval} at {label} C" for interval, label in labelled)
        console.print(f"  {level} interval of the best measured n: {text}")


def make_validation(
    paths: Sequence[Path], metric: str | None, compute: str, options: FitOptions
) -> dict[str, Any]:
    """How well the fit predicts runs that are hidden from it; a document for JSON.

    paths, metric, compute, options: as of `make_fit`, but no more than REPLICATES replicates are
    drawn, as there are three trials. Runs with a schedule are left out, and those that are flagged
    as broken unless the options include them.

    The document has "mode" and, by the keys of TRIALS, a trial each: "possible", and "says" or
    "why" as a sentence. A single sweep's folder gets it as validation.json, named like its fit.
    """
    runs = fixed_runs(read_runs(paths, warn))
    if not options.include_flagged:
        runs = healthy_runs(runs)
    metric_name = default_metric(runs) if metric is None else metric
    trial_options = replace(options, replicates=min(options.replicates, REPLICATES))

    with progress_bar(trial_options, "validation") as options_with_bar:
        validation = to_json_value(
            predict_hidden_runs(runs, metric_name, compute, options_with_bar)
        )

    if len(paths) == 1 and is_sweep_folder(paths[0]):
        path = paths[0] / fit_file_name("validation", metric, compute, options)
        write_text(path, json_text(validation) + "\n")
    return validation


def print_validation(console: SafeConsole, validation: Mapping[str, Any]) -> None:
    """A sentence for each trial, under what the numbers are."""
    mode = validation["mode"]
    console.print(
        f"validation: the fit's predictions of runs that it has not seen ({mode} mode); "
        "an error is predicted less measured; "
        "inside the 90% interval of one new run, 90% is to be expected"
    )
    for key, name in TRIALS.items():
        trial = validation[key]
        explanation = trial["says"] if trial["possible"] else f"not possible: {trial['why']}"
        console.print(f"[bold]{name}[/bold]: {escape(explanation)}")
