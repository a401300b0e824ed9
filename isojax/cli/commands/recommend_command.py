"""`isojax recommend`: how to spend a budget, with intervals and reasons, and a config that does so."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isojax.cli.formatting import (
    parse_count,
    parse_fixed_values,
    print_json,
    print_notes,
    text_table,
    to_json_value,
)
from isojax.cli.lazy_commands import new_app
from isojax.cli.options import IncludeFlaggedOption, JsonOption
from isojax.cli.saved_fits import read_fit, saved_sweep_config
from isojax.core import registry
from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.nouns import Candidate, Recommendation
from isojax.report.wording import format_percent, format_range, format_reward, join_commas
from isojax.scaling.allocate.constraints import EPSILON
from isojax.scaling.allocate.recommend import recommend as choose
from isojax.scaling.checks.run_health import flag_sentences

BAR_WIDTH = 20
_RECOMMENDATION_KEYS = (
    "expected_reward",
    "interval",
    "prediction_interval",
    "level",
    "regret",
    "regret_interval",
    "n_probability",
    "equal_n",
    "epsilon",
)
_RECOMMENDATION_KEYS += ("no_effect", "times_measured", "extrapolated", "reasons", "candidates")


app = new_app()


@app.command()
def recommend(
    run: Annotated[Path, typer.Argument(help="A sweep's folder or a fit.json.")],
    budget: Annotated[str, typer.Option(metavar="C", help="Rollouts to spend, such as 1e6.")],
    B_max: Annotated[
        int | None, typer.Option("--B-max", metavar="N", min=1, help="Largest batch B_p n that fits your hardware.")
    ] = None,
    fix: Annotated[list[str] | None, typer.Option(metavar="M=..|B=..|B_p=..", help="Hold this at a value.")] = None,
    epsilon: Annotated[
        float, typer.Option(metavar="E", help="A loss of reward that makes no difference to you.")
    ] = EPSILON,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Answer beyond 4 times the largest measured C too.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a config that spends it so; an existing file is kept.")
    ] = None,
    framework: Annotated[
        str | None, typer.Option("--for", metavar="isojax|verl|trl", help="Whose config.", show_default="isojax")
    ] = None,
    include_flagged: IncludeFlaggedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Recommend how to spend a budget of rollouts: problems per batch, rollouts per problem, updates.

    n is that of the measured cell with the highest expected reward (in mode paper, n*(C)), B_p the smallest stable one
    that loses less than --epsilon of reward, M = floor(C / (n B_p)).

    \b
    [bold]Examples[/bold]
      isojax recommend runs/quickstart --budget 5e5
      isojax recommend runs/quickstart --budget 5e5 --B-max 512 --fix B_p=32
      isojax recommend runs/quickstart --budget 5e5 --write best.yaml
      isojax train best.yaml
      isojax recommend runs/mine --budget 5e5 --write best.yaml --for trl
    """
    budget_rollouts, fixed_values_by_name = parse_count(budget), parse_fixed_values(fix or ())
    if framework is not None and write is None:
        raise InputError(f"--for {framework} says whose config to write; expected --write FILE with it.")
    if write is not None and write.exists():
        raise InputError(f"{write} exists already and is kept; give --write another name, or remove it.")
    exporter = registry.load("runs.exporters", framework or "isojax", "render") if write is not None else None
    fit = read_fit(run, include_flagged)
    recommendation = choose(fit, budget_rollouts, B_max, fixed_values_by_name or None, extrapolate, epsilon)
    if write is not None and exporter is not None:
        write_text(write, exporter.render(recommendation, saved_sweep_config(run)))
    if as_json:
        print_json(recommendation_json(recommendation, budget_rollouts) | {"health": to_json_value(fit.health)})
        return
    console = Console()
    print_recommendation(console, recommendation, budget_rollouts)
    print_notes(console, flag_sentences(fit.health))
    if write is not None and exporter is not None:
        run_command = exporter.HOW_TO_RUN.format(file=write, folder=write.parent, name=write.stem)
        console.print(f"wrote {write}; run it with: {run_command}", soft_wrap=True, highlight=False, markup=False)


def recommendation_json(recommendation: Recommendation, budget: int) -> dict[str, Any]:
    """What --json prints."""
    allocation = recommendation.allocation
    return {
        "budget": budget,
        "B_p": allocation.B_p,
        "n": allocation.n,
        "M": allocation.M,
        "B": allocation.B,
        "C": allocation.C,
        **{key: getattr(recommendation, key) for key in _RECOMMENDATION_KEYS},
    }


def print_recommendation(console: Console, recommendation: Recommendation, budget: int) -> None:
    """The allocation for a budget, its expected reward with interval, every n at that budget, and the reasons."""
    allocation = recommendation.allocation
    if recommendation.no_effect:
        sentence = " at one and the same B_p"
        if len(recommendation.equal_n) > 1:
            sentence = f": any of n = {join_commas(recommendation.equal_n)} will do"
        console.print(f"[bold]n makes no difference here[/bold]{sentence}", highlight=False)
    headline = f"for {budget:,} rollouts: B_p = {allocation.B_p}, n = {allocation.n}, M = {allocation.M}"
    size = f"(B = {allocation.B}, C = {allocation.C:,})"
    range_note = " (beyond the measured range)" if recommendation.extrapolated else ""
    reward = f"expected reward {format_reward(recommendation.expected_reward)}{range_note}"
    console.print(f"[bold]{headline}[/bold] {size}, {reward}", highlight=False)
    if recommendation.interval and recommendation.prediction_interval:
        interval, new_run = format_range(recommendation.interval), format_range(recommendation.prediction_interval)
        sentence = f"{format_percent(recommendation.level)} interval of that {interval}"
        console.print(f"  {sentence}; one new run will measure {new_run}", highlight=False)
    console.print(f"  {_describe_regret(recommendation)}", highlight=False)
    if recommendation.candidates:
        console.print(_candidates_table(recommendation))
    for reason in recommendation.reasons:
        console.print(f"  {escape(str(reason))}", highlight=False)


def _describe_regret(recommendation: Recommendation) -> str:
    if recommendation.regret is None:
        return "regret unknown: no measured cell agrees with these limits, so there is none to compare with"
    interval = f" ({format_range(recommendation.regret_interval)})" if recommendation.regret_interval else ""
    return f"regret {recommendation.regret:.4f}{interval}: the loss to expect against the best measured cell"


def _candidates_table(recommendation: Recommendation) -> Table:
    """Each n's best measured cell at this budget; a mark where it loses at most epsilon."""
    columns = ["n", "B_p", "reward", f"{format_percent(recommendation.level)} interval"]
    if recommendation.n_probability:
        columns.append("P(n is best)")
    rows = []
    for cell in sorted(_best_of_each_n(recommendation.candidates), key=lambda cell: cell.n):
        mark = " *" if cell.n in recommendation.equal_n else "  "
        B_p = f"{cell.B_p}" if cell.stable else f"{cell.B_p} unstable"
        row = [f"{cell.n}{mark}", B_p, format_reward(cell.reward), format_range((cell.low, cell.high))]
        if recommendation.n_probability:
            probability = recommendation.n_probability.get(cell.n, 0.0)
            row.append(f"{probability:.2f} {'█' * round(BAR_WIDTH * probability):<{BAR_WIDTH}}")
        rows.append(row)
    title = f"measured cells at this budget; * within {recommendation.epsilon:g} of the best"
    return text_table(title, columns, rows)


def _best_of_each_n(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Of candidates, best first, the first of each n, a stable one where there is one."""
    best_by_n: dict[int, Candidate] = {}
    for cell in sorted(candidates, key=lambda cell: not cell.stable):
        best_by_n.setdefault(cell.n, cell)
    return list(best_by_n.values())
