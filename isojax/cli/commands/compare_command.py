"""Compare sweeps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument, Option

from isojax.cli.formatting import check_figure_path, json_text, print_line, print_notes
from isojax.cli.nothing_learnt import print_nothing_learnt
from isojax.cli.options import JsonOption, complete_run
from isojax.cli.saved_fits import make_fit, read_fit, sweep_folder
from isojax.core.errors import InputError
from isojax.core.terminal import printable
from isojax.report.command_figures.compared_sweeps import comparison_figure
from isojax.report.console import SafeConsole, TextTable
from isojax.report.wording import format_interval, format_number, format_reward
from isojax.scaling.compare_sweeps import check_distinct, compare_sweeps
from isojax.scaling.comparison import BudgetRow, SweepComparison, SweepSummary
from isojax.scaling.result import FitResult

RUNS_HELP = "Sweep folders or fit.json files, at least two."


def compare(
    runs: Annotated[
        list[Path], Argument(metavar="RUN", help=RUNS_HELP, autocompletion=complete_run)
    ],
    labels: Annotated[
        str | None, Option(metavar="A,B,...", help="Their names.", show_default="the folders'")
    ] = None,
    metric: Annotated[
        str | None, Option(help="Metric to compare.", show_default="that of fit.json")
    ] = None,
    out: Annotated[
        Path | None, Option(metavar="FILE.png|pdf", help="Draw them; an existing file is kept.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare sweeps: data sizes, models, difficulties, recipes, losses. The first is the
    reference.

    A folder without fit.json is fitted first. Compared over the budgets that all of them measured.

    \b
    Examples
      isojax compare runs/D6000 runs/D500
      isojax compare runs/a runs/b runs/c --labels GRPO,DAPO,CISPO --metric best@4
      isojax compare runs/easy/fit.json runs/hard/fit.json --out difficulty.pdf
      isojax compare runs/a runs/b --json | jq '.sweeps[1].difference'
    """
    # All that can be refused is refused before anything is fitted, which may take minutes.
    if len(runs) < 2:
        raise InputError(
            found=f"only {runs[0]} is given",
            expected="two sweeps or more",
            fix="Name another folder or fit.json.",
        )
    check_figure_path(out, "--out")
    names = _sweep_names(runs, labels)
    _check_existence(runs)

    comparison = compare_sweeps([_load_fit(run, metric) for run in runs], names)
    if out is not None:
        comparison_figure(comparison).write(out)

    if as_json:
        print(json_text(comparison))
        return
    print_comparison(SafeConsole(), comparison)
    if out is not None:
        print_line(f"wrote {out}")


def _sweep_names(runs: Sequence[Path], labels: str | None) -> list[str]:
    """What to call the sweeps: as --labels says, else as their folders, else by their paths.

    runs: folders or fit.json files. labels: as typed, such as "GRPO,DAPO"; None: not given. The
    names are in the order of `runs`. InputError where the labels are not one for each sweep, or two
    are alike.
    """
    if labels is None:
        folders = [run if run.is_dir() else run.parent for run in runs]
        names = [folder.resolve().name for folder in folders]
        if len(set(names)) < len(names):
            names = [printable(run) for run in runs]
    else:
        names = [label.strip() for label in labels.split(",")]

    if len(names) != len(runs) or not all(names):
        raise InputError(
            where="--labels",
            found=f"given {labels!r}, which has {len(names)} names",
            expected=f"{len(runs)}, separated by commas",
        )
    check_distinct(names)
    return names


def _check_existence(runs: Sequence[Path]) -> None:
    for run in runs:
        if not run.exists():
            raise InputError(
                found=f"there is no {run}",
                expected="a sweep's folder or a fit.json, such as runs/quickstart",
            )


def _load_fit(run: Path, metric: str | None) -> FitResult:
    """A run's fit of the metric that was asked for, made where fit.json has another."""
    fit = read_fit(run)
    if metric is None or fit.metric == metric:
        return fit

    if not run.is_dir():
        raise InputError(
            where=run,
            found=f"a fit of {fit.metric}, not of {metric}",
            fix="Name the sweep's folder instead.",
        )
    return make_fit([sweep_folder(run)], metric, "rollouts")


def print_comparison(console: SafeConsole, comparison: SweepComparison) -> None:
    """Print n* and the frontier at a few budgets, then what follows from them in sentences.

    Each table has a row for each sweep and a column for each budget C.
    """
    sweeps = comparison.sweeps
    for sweep in sweeps:
        print_nothing_learnt(console, sweep.nothing_learnt, sweep.label)

    # The budgets are the same for all sweeps.
    C_columns = [f"C = {format_number(row.C)}" for row in sweeps[0].at]
    title = f"best n ({comparison.metric} against {comparison.compute})"
    n_rows = [[sweep.label, *(_format_best_n(sweep, row) for row in sweep.at)] for sweep in sweeps]
    console.print(TextTable(title, ["sweep", *C_columns], n_rows, text_columns=1))

    reward_columns = ["sweep", "base", *C_columns]
    reward_rows = [_reward_row(sweep) for sweep in sweeps]
    console.print(TextTable("frontier reward", reward_columns, reward_rows, text_columns=1))

    # As `comparison_sentences` writes it, which must keep this form: else it is printed twice. Of a
    # sweep that learnt something nothing_learnt is "", and "LABEL: " is no sentence.
    printed_above = {f"{sweep.label}: {sweep.nothing_learnt}" for sweep in sweeps}
    for sentence in comparison.sentences:
        if sentence not in printed_above:
            console.print(f"  {escape(sentence)}")
    print_notes(console, comparison.notes)


def _reward_row(sweep: SweepSummary) -> list[str]:
    row = [sweep.label, format_reward(sweep.base_reward)]
    for budget in sweep.at:
        row.append(format_reward(budget.reward) + format_interval((budget.low, budget.high)))
    return row


def _format_best_n(sweep: SweepSummary, row: BudgetRow) -> str:
    """The best n of a sweep at a budget, with its interval where that has some width."""
    if sweep.no_effect or row.tied:
        return "any"
    if row.n_low is None or row.n_low == row.n_high:
        return f"{row.n}"
    return f"{row.n} ({row.n_low} to {row.n_high})"
