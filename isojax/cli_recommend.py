"""`isojax recommend`: how to spend a budget, how sure that is, and the config of a trainer that does so."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isojax import registry
from isojax.cli_fit import UNTOLD, IncludeFlagged, read_fit, saved_config
from isojax.cli_words import budget_number, fixed_values, plain
from isojax.files import write_text
from isojax.scaling.request import EPSILON
from isojax.types import InputError

if TYPE_CHECKING:
    from isojax.scaling.recommend import Candidate, Recommendation

BAR = 20
_KEYS = ("expected_reward", "interval", "prediction_interval", "level", "regret", "regret_interval", "n_probability", "equal_n", "epsilon")
_KEYS += ("no_effect", "times_measured", "extrapolated", "reasons", "candidates")


def recommend(
    run: Annotated[Path, typer.Argument(help="A sweep's folder or a fit.json.")],
    budget: Annotated[str, typer.Option(metavar="C", help="Rollouts to spend, such as 1e6.")],
    B_max: Annotated[int | None, typer.Option("--B-max", metavar="N", min=1, help="Largest batch B_p n that fits your hardware.")] = None,
    fix: Annotated[list[str] | None, typer.Option(metavar="M=..|B=..|B_p=..", help="Hold this at a value.")] = None,
    epsilon: Annotated[float, typer.Option(metavar="E", help="A loss of reward that makes no difference to you.")] = EPSILON,
    extrapolate: Annotated[bool, typer.Option("--extrapolate", help="Answer beyond 4 times the largest measured C too.")] = False,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a config that spends it so; an existing file is kept.")] = None,
    framework: Annotated[str | None, typer.Option("--for", metavar="isojax|verl|trl", help="Whose config.", show_default="isojax")] = None,
    include_flagged: IncludeFlagged = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else there.")] = False,
) -> None:
    """Say how to spend a budget of rollouts: problems a batch, rollouts a problem, updates.

    n is that of the measured cell that promises most (in mode paper, n*(C)), B_p the smallest stable one that gives away less than
    --epsilon, M = floor(C / (n B_p)).

    \b
    [bold]Examples[/bold]
      isojax recommend runs/quickstart --budget 5e5
      isojax recommend runs/quickstart --budget 5e5 --B-max 512 --fix B_p=32
      isojax recommend runs/quickstart --budget 5e5 --write best.yaml
      isojax train best.yaml
      isojax recommend runs/mine --budget 5e5 --write best.yaml --for trl
    """
    rollouts, fixed = budget_number(budget), fixed_values(fix or ())
    if framework is not None and write is None:
        raise InputError(f"--for {framework} says whose config to write; expected --write FILE with it.")
    if write is not None and write.exists():
        raise InputError(f"{write} exists already and is kept; give --write another name, or remove it.")
    target = registry.load("export", framework or "isojax", "render") if write is not None else None
    document = read_fit(run, include_flagged)
    from isojax.scaling.health import told
    from isojax.scaling.recommend import recommend as choose

    chosen = choose(document, rollouts, B_max, fixed or None, extrapolate, epsilon)
    if write is not None and target is not None:
        write_text(write, target.render(chosen, saved_config(run), document))
    health = document.get("health", UNTOLD)
    if as_json:
        print(json.dumps(plain(answer(chosen, rollouts) | {"health": health}), indent=1, allow_nan=False))
        return
    print_recommendation(Console(), chosen, rollouts)
    for line in told(health["runs"], health["left_out"]):
        Console().print(f"[yellow]note:[/yellow] {escape(line)}", highlight=False)
    if write is not None and target is not None:
        how = target.HOW_TO_RUN.format(file=write, folder=write.parent, name=write.stem)
        Console().print(f"wrote {write}; run it with: {how}", soft_wrap=True, highlight=False, markup=False)


def answer(chosen: Recommendation, budget: int) -> dict[str, Any]:
    """What --json prints."""
    a = chosen.allocation
    return {"budget": budget, "B_p": a.B_p, "n": a.n, "M": a.M, "B": a.B, "C": a.C, **{key: getattr(chosen, key) for key in _KEYS}}


def print_recommendation(console: Console, chosen: Recommendation, budget: int) -> None:
    """The allocation for a budget, what reward to expect and how surely, every n beside it, and why."""
    a = chosen.allocation
    where = " (beyond the measured range)" if chosen.extrapolated else ""
    if chosen.no_effect:
        words = f": any of n = {_listed(chosen.equal_n)} will do" if len(chosen.equal_n) > 1 else " at one and the same B_p"
        console.print(f"[bold]n makes no difference here[/bold]{words}", highlight=False)
    head = f"[bold]for {budget:,} rollouts: B_p = {a.B_p}, n = {a.n}, M = {a.M}[/bold]"
    console.print(f"{head} (B = {a.B}, C = {a.C:,}), expected reward {chosen.expected_reward:.3f}{where}", highlight=False)
    if chosen.interval and chosen.prediction_interval:
        low, high = chosen.prediction_interval
        words = f"{chosen.level:.0%} interval of that {_span(chosen.interval)}; one new run will measure {low:.3f} to {high:.3f}"
        console.print(f"  {words}", highlight=False)
    if chosen.regret is None:
        console.print("  regret unknown: no measured cell agrees with these limits, so there is none to compare with", highlight=False)
    else:
        span = f" ({_span(chosen.regret_interval)})" if chosen.regret_interval else ""
        console.print(f"  regret {chosen.regret:.4f}{span}: the loss to expect against the best measured cell", highlight=False)
    if chosen.candidates:
        console.print(_by_n(chosen))
    for reason in chosen.reasons:
        console.print(f"  {escape(str(reason))}", highlight=False)


def _by_n(chosen: Recommendation) -> Table:
    """Each n's best measured cell at this budget; a mark where it gives away at most epsilon."""
    table = Table(title=f"measured cells at this budget; * within {chosen.epsilon:g} of the best", title_justify="left")
    for column in ("n", "B_p", "reward", f"{chosen.level:.0%} interval", *(("P(n is best)", "") if chosen.n_probability else ())):
        table.add_column(column, justify="left" if column == "" else "right")
    for c in sorted(_best_of_each_n(chosen.candidates), key=lambda c: c.n):
        mark = " *" if c.n in chosen.equal_n else "  "
        span = "-" if c.low is None or c.high is None else _span((c.low, c.high))
        row = [f"{c.n}{mark}", f"{c.B_p}" if c.stable else f"{c.B_p} unstable", f"{c.reward:.3f}", span]
        if chosen.n_probability:
            p = chosen.n_probability.get(c.n, 0.0)
            row += [f"{p:.2f}", "█" * round(BAR * p)]
        table.add_row(*row)
    return table


def _best_of_each_n(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Of candidates, best first, the first of each n, a stable one where there is one."""
    best: dict[int, Candidate] = {}
    for c in sorted(candidates, key=lambda c: not c.stable):
        best.setdefault(c.n, c)
    return list(best.values())


def _span(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.3f} to {interval[1]:.3f}"


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
