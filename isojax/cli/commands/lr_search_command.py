"""`isojax lr-search`: the short grid search for the learning rate of a new model and problem set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isojax.cli.config_options import ConfigArguments, MeshOption, read_config
from isojax.cli.formatting import parse_count, to_json_value
from isojax.cli.lazy_commands import load_module, new_app
from isojax.cli.options import JsonOption
from isojax.core.atomic_files import write_bytes, write_text
from isojax.core.errors import InputError, RunFailed
from isojax.launch import lr_search as search
from isojax.launch.lr_search import rate_name, round_rate
from isojax.report.figures.learning_rates import learning_rate_figure

app = new_app()


@app.command()
def lr_search(
    words: ConfigArguments = None,
    rates: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Rates to try.", show_default="5 around learning_rate")
    ] = None,
    B_p: Annotated[
        int | None, typer.Option("--B_p", metavar="N", min=1, help="Problems a batch.", show_default="the sweep's")
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", metavar="N", min=1, help="Rollouts a problem.", show_default="the sweep's")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="C", help="Rollouts a run.", show_default="a tenth of sweep.budget")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs a rate.")] = 2,
    mesh: MeshOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the search in the folder.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and show what would run; run nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find the learning rate by short runs at one batch size.

    The rate found stands for B = B_p n, cell.rl.lr_reference_batch; cell.rl.lr_scaling leads from there to every other
    batch. B is the sweep's batch nearest to lr_reference_batch. Without --rates, learning_rate times 1/10 to 10 in
    steps of sqrt(10), and up to two more where the best lies at an end. Each rate is a sweep in runs/NAME-lr/RATE; the
    table and picture are there as lr_search.json and lr_search.png. Rates of which a run collapses or is not finite are
    out; of those within a standard error of the best, the lowest is taken.

    \b
    [bold]Examples[/bold]
      isojax lr-search quickstart
      isojax lr-search quickstart --dry-run                       what would run
      isojax lr-search my.yaml --rates 3e-7,1e-6,3e-6 --B_p 128 --n 8
      isojax lr-search my.yaml --resume --seeds 4                 two more seeds
    """
    config = read_config(words, mesh, None)
    runner = load_module("isojax.launch.local.local_runner")
    batch_shape = search.choose_batch_shape(config, B_p, n)
    B = batch_shape[0] * batch_shape[1]
    rollouts_per_run = parse_count(budget) if budget is not None else search.default_budget(config, B)
    learning_rates = read_rates(rates) if rates is not None else search.default_rates(config.cell.rl.learning_rate)
    folder = search.search_folder(config)
    search.refuse_existing_search(folder, resume or dry_run)
    configs = {rate: search.rate_config(config, rate, batch_shape, rollouts_per_run, seeds) for rate in learning_rates}
    if dry_run:
        runner.launch(configs[learning_rates[0]], resume, dry_run=True)
        plan = {
            "rates": learning_rates,
            "B_p": batch_shape[0],
            "n": batch_shape[1],
            "B": B,
            "budget": rollouts_per_run,
            "seeds": seeds,
            "folder": str(folder),
        }
        print_plan(plan, as_json)
        return
    first: Path | None = None

    def run_learning_rate(rate: float) -> search.RateResult:
        nonlocal first
        rate_config = configs.get(rate) or search.rate_config(config, rate, batch_shape, rollouts_per_run, seeds)
        outcome = search.run_rate(rate_config, first, resume, runner.launch)
        first = first or folder / rate_config.name
        return outcome

    search_result = search.search_rates(learning_rates, run_learning_rate, extend=rates is None)
    document = to_json_value(search.to_json(search_result, config, batch_shape, rollouts_per_run, seeds))
    write_search(folder, document)
    if as_json:
        print(json.dumps(document, indent=1, allow_nan=False))
    else:
        print_search(Console(), document, folder)
    if document["learning_rate"] is None:
        raise RunFailed(f"every rate is out; what ran is recorded in {folder}")


def read_rates(text: str) -> list[float]:
    """Rising rates from "1e-4,3e-4"."""
    try:
        numbers_read = [float(item) for item in text.split(",")]
    except ValueError:
        numbers_read = []
    rates = sorted({round_rate(rate) for rate in numbers_read if 0 < rate < 1e6})
    if not numbers_read or len(rates) < len(numbers_read):
        raise InputError(
            f"--rates: given {text!r}, expected different numbers above 0 (to three digits), such as 1e-4,3e-4,1e-3."
        )
    return rates


def write_search(folder: Path, document: Mapping[str, Any]) -> None:
    """lr_search.json and lr_search.png, each replaced in one step."""
    write_text(folder / "lr_search.json", json.dumps(document, indent=1, allow_nan=False) + "\n")
    write_bytes(folder / "lr_search.png", learning_rate_figure(document).png)


def print_plan(plan: Mapping[str, Any], as_json: bool) -> None:
    """What a search would run."""
    if as_json:
        print(json.dumps(plan, indent=1))
        return
    rates_text = ", ".join(map(rate_name, plan["rates"]))
    runs = len(plan["rates"]) * plan["seeds"]
    plan_text = (
        f"{runs} runs of {plan['budget']:,} rollouts at B_p x n = {plan['B_p']} x {plan['n']} = {plan['B']}, "
        f"in {plan['folder']}"
    )
    Console().print(f"rates {rates_text}: {plan_text}", soft_wrap=True, highlight=False, markup=False)


def print_search(console: Console, search_document: Mapping[str, Any], folder: Path) -> None:
    """Every rate, what to know, and the lines for the config."""
    title = (
        f"B_p x n = {search_document['B_p']} x {search_document['n']}, {search_document['budget']:,} rollouts a run; "
        f"reward: {search_document['score']}"
    )
    table = Table(title=escape(title), title_justify="left")
    for header in ("rate", "B", "reward", "s.e.", "entropy", "gradient norm"):
        table.add_column(header, justify="right")
    table.add_column("", overflow="fold")
    for row in search_document["rates"]:
        formatted_metrics = [
            "-" if row[key] is None else f"{row[key]:.3f}" for key in ("reward", "se", "entropy", "grad_norm")
        ]
        mark_by_rate = {search_document["best"]: "best", search_document["learning_rate"]: "taken"}
        mark = "out" if row["flags"] else mark_by_rate.get(row["rate"], "")
        table.add_row(rate_name(row["rate"]), str(row["B"]), *formatted_metrics, mark)
    console.print(table)
    for sentence in search_document["says"]:
        console.print(f"  {escape(sentence)}", soft_wrap=True, highlight=False)
    if search_document["learning_rate"] is not None:
        config_line = (
            f"cell.rl.learning_rate={rate_name(search_document['learning_rate'])} "
            f"cell.rl.lr_reference_batch={search_document['lr_reference_batch']}"
        )
        console.print("put into the config, or on the command line:", highlight=False)
        console.print(f"  {config_line}", soft_wrap=True, highlight=False, markup=False)
    console.print(f"picture: {folder / 'lr_search.png'}", soft_wrap=True, highlight=False, markup=False)
