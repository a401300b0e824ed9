"""Find the learning rate by short runs at one batch size."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from typer import Option

from isojax.cli.formatting import json_text, parse_count, print_line, to_json_value, warn_of_start
from isojax.cli.options import (
    ConfigArguments,
    DryRunOption,
    JsonOption,
    MeshOption,
    ResumeOption,
    read_config,
)
from isojax.core.atomic_files import write_text
from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.launch import lr_search as search
from isojax.launch.lr_search import RateResult, SearchPlan, rate_name, round_rate
from isojax.report.console import SafeConsole, TextTable
from isojax.runs.mirror import working_folder

IS_RUN = True  # for command_files.py

DEFAULT_RATES = "5 around learning_rate"
DEFAULT_BUDGET = "a tenth of sweep.budget or more"


def lr_search(
    words: ConfigArguments = None,
    rates: Annotated[
        str | None, Option(metavar="A,B,...", help="Rates to try.", show_default=DEFAULT_RATES)
    ] = None,
    budget: Annotated[
        str | None, Option(metavar="C", help="Rollouts per run.", show_default=DEFAULT_BUDGET)
    ] = None,
    seeds: Annotated[int, Option(min=1, max=1000, help="Runs per rate.")] = 2,
    mesh: MeshOption = None,
    resume: ResumeOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the learning rate by short runs at one batch size.

    The rate found stands for B = B_p n, cell.rl.lr_reference_batch; cell.rl.lr_scaling leads from
    there to every other batch. B is the sweep's batch nearest to lr_reference_batch. Without
    --rates, learning_rate times 1/10 to 10 in steps of sqrt(10), and up to two more where the best
    is at an end. Each rate is a sweep in runs/NAME-lr/RATE; the table is there as lr_search.json,
    and tensorboard --logdir runs/NAME-lr shows every run. Rates of which a run collapses or is not
    finite are out; a rate whose run fails otherwise, as for lack of memory, is not judged. Of those
    within a standard error of the difference to the best, the lowest is taken.

    \b
    Examples
      isojax lr-search quickstart
      isojax lr-search quickstart --dry-run                       what would run
      isojax lr-search my.yaml --rates 3e-7,1e-6,3e-6 'sweep.B_p=[128]' 'sweep.n=[8]'
      isojax lr-search my.yaml --resume --seeds 4                 two more seeds
    """
    config = read_config(words, mesh, None)
    plan = _make_plan(config, rates, budget, seeds)
    folder = Path(plan.folder)
    if not (resume or dry_run):
        _check_unused(folder)

    # Imported here, because it imports jax.
    runner = importlib.import_module("isojax.launch.local.local_runner")
    if dry_run:
        # The plan of one rate's sweep stands for all, which differ in their rate alone.
        runner.launch(plan.rate_config(config, plan.rates[0]), resume, dry_run=True)
        print_plan(plan, as_json)
        return

    # Rates run in rising order, and all start from one base policy, which the first has made.
    first_folder = folder / rate_name(min(plan.rates))

    def evaluate(rate: float) -> RateResult:
        return search.run_rate(plan.rate_config(config, rate), first_folder, resume, runner.launch)

    result = search.search_rates(plan.rates, evaluate, extend=rates is None)

    document = to_json_value(result.to_json(config, plan))
    write_text(folder / "lr_search.json", json_text(document) + "\n")
    print_search(document, as_json)
    warn_of_start(folder)
    if document["learning_rate"] is None:
        raise RunFailed(f"every rate is out or failed; what ran is recorded in {plan.folder}")


def _make_plan(config: Config, rates: str | None, budget: str | None, seeds: int) -> SearchPlan:
    """Which rates are tried, at which batch and how long.

    rates, budget: as typed, such as "3e-7,1e-6" and "5e4"; None takes the default. seeds: runs of
    each rate. InputError for what cannot be read.
    """
    B_p, n = search.choose_batch_shape(config)
    B = B_p * n

    if rates is None:
        rates_to_try = search.default_rates(config.cell.rl.learning_rate)
    else:
        rates_to_try = read_rates(rates)
    if budget is None:
        rollouts = search.default_budget(config, B)
    else:
        rollouts = parse_count(budget)

    folder = working_folder(config.run.dir, f"{config.name}-lr")
    return SearchPlan(
        rates=rates_to_try, B_p=B_p, n=n, B=B, budget=rollouts, seeds=seeds, folder=str(folder)
    )


def _check_unused(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            where=folder,
            found="holds a search already",
            fix="Go on with it by --resume, or choose another name=NAME.",
        )


def read_rates(text: str) -> list[float]:
    """Rising rates from "1e-4,3e-4"; no two alike to three digits, as their folders are named.
    InputError for anything else, and for a rate that is not above 0 and below 1e6."""
    try:
        numbers = [float(item) for item in text.split(",")]
    except ValueError:
        numbers = []

    # Fewer than there are numbers where two are alike, or one is out of range.
    rates = sorted({round_rate(rate) for rate in numbers if 0 < rate < 1e6})
    if not numbers or len(rates) < len(numbers):
        raise InputError(
            where="--rates",
            found=f"given {text!r}",
            expected="distinct numbers above 0 (to three digits), as 1e-4,3e-4",
        )
    return rates


def print_plan(plan: SearchPlan, as_json: bool) -> None:
    """What a search would run."""
    if as_json:
        print(json_text(plan.to_json()))
        return

    rates = ", ".join(map(rate_name, plan.rates))
    runs = f"{len(plan.rates) * plan.seeds} runs of {plan.budget:,} rollouts"
    batch = f"B_p x n = {plan.B_p} x {plan.n} = {plan.B}"
    print_line(f"rates {rates}: {runs} at {batch}, in {plan.folder}")


def print_search(document: Mapping[str, Any], as_json: bool) -> None:
    """Print the rates with their rewards, and the settings to copy.

    document: as in lr_search.json, by `to_json` of the search's result; its "learning_rate" is None
    where every rate is out. as_json: print it as it is.
    """
    if as_json:
        print(json_text(document))
        return

    console = SafeConsole()
    batch = f"B_p x n = {document['B_p']} x {document['n']}"
    title = f"{batch}, {document['budget']:,} rollouts per run; reward: {document['score']}"
    rows = [_rate_row(row, document) for row in document["rates"]]
    console.print(TextTable(title, ("rate", "B", "reward", "s.e.", ""), rows))
    for sentence in document["says"]:
        console.print(f"  {escape(sentence)}", soft_wrap=True)

    if document["learning_rate"] is not None:
        print_line("put into the config, or on the command line:")
        rate = f"cell.rl.learning_rate={rate_name(document['learning_rate'])}"
        print_line(f"  {rate} cell.rl.lr_reference_batch={document['lr_reference_batch']}")


def _rate_row(row: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """A rate's row in the table of `print_search`, whose last column is its verdict.

    row: of `document`'s "rates": {"rate", "B", "reward", "se", "flags", "failed"}; "reward" and
    "se" may be None. `document`'s "best" and "learning_rate" are rates, or None.
    """
    if row["flags"]:
        # `failed` are those of the flags that say nothing of the rate, such as a full disk.
        rate_is_to_blame = len(row["flags"]) > len(row["failed"])
        verdict = "out" if rate_is_to_blame else "failed"
    elif row["rate"] == document["learning_rate"]:
        verdict = "taken"
    elif row["rate"] == document["best"]:
        verdict = "best"
    else:
        verdict = ""

    reward = "-" if row["reward"] is None else f"{row['reward']:.3f}"
    standard_error = "-" if row["se"] is None else f"{row['se']:.3f}"
    return [rate_name(row["rate"]), str(row["B"]), reward, standard_error, verdict]
