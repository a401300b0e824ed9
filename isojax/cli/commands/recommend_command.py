"""`isojax recommend`: how to spend a budget, how sure that is, and the config of a trainer that does so."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isojax.cli.formatting import parse_count, parse_fixed_values, to_json_value
from isojax.cli.lazy_commands import new_app
from isojax.cli.options import IncludeFlaggedOption, JsonOption
from isojax.cli.saved_fits import NO_HEALTH, read_fit, saved_sweep_config
from isojax.core import registry
from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.nouns import Candidate, Recommendation
from isojax.scaling.allocate.constraints import EPSILON
from isojax.scaling.allocate.recommend import recommend as choose
from isojax.scaling.checks.flagged_runs import flag_sentences
from isojax.scaling.flat_document import nest
from isojax.scaling.result import RunHealth

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

    n is that of the measured cell that promises most (in mode paper, n*(C)), B_p the smallest stable one that gives
    away less than
    --epsilon, M = floor(C / (n B_p)).

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
    fit_document = read_fit(run, include_flagged)
    recommendation = choose(
        nest(fit_document), budget_rollouts, B_max, fixed_values_by_name or None, extrapolate, epsilon
    )
    if write is not None and exporter is not None:
        write_text(write, exporter.render(recommendation, saved_sweep_config(run)))
    health = fit_document.get("health", NO_HEALTH)
    if as_json:
        print(
            json.dumps(
                to_json_value(recommendation_json(recommendation, budget_rollouts) | {"health": health}),
                indent=1,
                allow_nan=False,
            )
        )
        return
    print_recommendation(Console(), recommendation, budget_rollouts)
    for line in flag_sentences(RunHealth.model_validate(health)):
        Console().print(f"[yellow]note:[/yellow] {escape(line)}", highlight=False)
    if write is not None and exporter is not None:
        run_command = exporter.HOW_TO_RUN.format(file=write, folder=write.parent, name=write.stem)
        Console().print(f"wrote {write}; run it with: {run_command}", soft_wrap=True, highlight=False, markup=False)


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
    """The allocation for a budget, what reward to expect and how surely, every n beside it, and why."""
    allocation = recommendation.allocation
    range_note = " (beyond the measured range)" if recommendation.extrapolated else ""
    if recommendation.no_effect:
        sentence = (
            f": any of n = {_join_items(recommendation.equal_n)} will do"
            if len(recommendation.equal_n) > 1
            else " at one and the same B_p"
        )
        console.print(f"[bold]n makes no difference here[/bold]{sentence}", highlight=False)
    headline = f"[bold]for {budget:,} rollouts: B_p = {allocation.B_p}, n = {allocation.n}, M = {allocation.M}[/bold]"
    console.print(
        f"{headline} (B = {allocation.B}, C = {allocation.C:,}), expected reward {recommendation.expected_reward:.3f}{range_note}",
        highlight=False,
    )
    if recommendation.interval and recommendation.prediction_interval:
        low, high = recommendation.prediction_interval
        sentence = f"{recommendation.level:.0%} interval of that {_format_interval(recommendation.interval)}; one new run will measure {low:.3f} to {high:.3f}"
        console.print(f"  {sentence}", highlight=False)
    if recommendation.regret is None:
        console.print(
            "  regret unknown: no measured cell agrees with these limits, so there is none to compare with",
            highlight=False,
        )
    else:
        span = f" ({_format_interval(recommendation.regret_interval)})" if recommendation.regret_interval else ""
        console.print(
            f"  regret {recommendation.regret:.4f}{span}: the loss to expect against the best measured cell",
            highlight=False,
        )
    if recommendation.candidates:
        console.print(_candidates_table(recommendation))
    for reason in recommendation.reasons:
        console.print(f"  {escape(str(reason))}", highlight=False)


def _candidates_table(recommendation: Recommendation) -> Table:
    """Each n's best measured cell at this budget; a mark where it gives away at most epsilon."""
    table = Table(
        title=f"measured cells at this budget; * within {recommendation.epsilon:g} of the best", title_justify="left"
    )
    for column in (
        "n",
        "B_p",
        "reward",
        f"{recommendation.level:.0%} interval",
        *(("P(n is best)", "") if recommendation.n_probability else ()),
    ):
        table.add_column(column, justify="left" if column == "" else "right")
    for c in sorted(_best_of_each_n(recommendation.candidates), key=lambda c: c.n):
        mark = " *" if c.n in recommendation.equal_n else "  "
        span = "-" if c.low is None or c.high is None else _format_interval((c.low, c.high))
        row = [f"{c.n}{mark}", f"{c.B_p}" if c.stable else f"{c.B_p} unstable", f"{c.reward:.3f}", span]
        if recommendation.n_probability:
            p = recommendation.n_probability.get(c.n, 0.0)
            row += [f"{p:.2f}", "█" * round(BAR_WIDTH * p)]
        table.add_row(*row)
    return table


def _best_of_each_n(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Of candidates, best first, the first of each n, a stable one where there is one."""
    best_by_n: dict[int, Candidate] = {}
    for c in sorted(candidates, key=lambda c: not c.stable):
        best_by_n.setdefault(c.n, c)
    return list(best_by_n.values())


def _format_interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.3f} to {interval[1]:.3f}"


def _join_items(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
