"""`isojax recommend`: how to spend a budget, with intervals and reasons, and a config that does so."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument, Option

from isojax.cli.formatting import check_new_file, json_text, parse_count, print_line, print_notes
from isojax.cli.options import IncludeFlaggedOption, JsonOption, complete_run
from isojax.cli.saved_fits import read_fit
from isojax.core import registry
from isojax.core.atomic_files import write_text
from isojax.core.config import load_config
from isojax.core.errors import InputError
from isojax.core.nouns import MeasuredCell, Recommendation
from isojax.report.console import SafeConsole, TextTable
from isojax.report.wording import describe_advice, format_percent, format_range, format_reward, join_commas
from isojax.scaling.allocate.constraints import EPSILON, FIXABLE
from isojax.scaling.allocate.recommend import recommend as choose
from isojax.scaling.checks.run_health import flag_sentences

BAR_WIDTH = 20
B_MAX_HELP = "Largest batch B_p n that fits your hardware."
EXTRAPOLATE_HELP = "Answer beyond 4 times the largest measured C too."
WRITE_HELP = "Write a config that spends it so; an existing file is kept."


def recommend(
    run: Annotated[Path, Argument(help="A sweep's folder or a fit.json.", autocompletion=complete_run)],
    budget: Annotated[str, Option(metavar="C", help="Rollouts to spend, such as 1e6.")],
    B_max: Annotated[int | None, Option("--B-max", metavar="N", min=1, help=B_MAX_HELP)] = None,
    fix: Annotated[list[str] | None, Option(metavar="M=..|B=..|B_p=..", help="Hold this at a value.")] = None,
    epsilon: Annotated[float, Option(metavar="E", help="A loss of reward that makes no difference to you.")] = EPSILON,
    extrapolate: Annotated[bool, Option("--extrapolate", help=EXTRAPOLATE_HELP)] = False,
    write: Annotated[Path | None, Option(metavar="FILE", help=WRITE_HELP)] = None,
    framework: Annotated[
        str | None, Option("--for", metavar="isojax|verl|trl", help="Whose config.", show_default="isojax")
    ] = None,
    include_flagged: IncludeFlaggedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Recommend how to spend a budget of rollouts: problems per batch, rollouts per problem, updates.

    n is that of the measured cell with the highest expected reward (in mode paper, n*(C)), B_p the smallest stable one
    that loses less than --epsilon of reward, M = floor(C / (n B_p)).

    \b
    Examples
      isojax recommend runs/quickstart --budget 5e5
      isojax recommend runs/quickstart --budget 5e5 --B-max 512 --fix B_p=32
      isojax recommend runs/quickstart --budget 5e5 --write best.yaml
      isojax train best.yaml
      isojax recommend runs/mine --budget 5e5 --write best.yaml --for trl
    """
    rollouts, fixed = parse_count(budget), parse_fixed_values(fix or ())
    if framework is not None and write is None:
        raise InputError(f"--for {framework} says whose config to write; expected --write FILE with it.")
    check_new_file(write, "--write")
    exporter = registry.load("runs.exporters", framework or "isojax", "render")
    fit = read_fit(run, include_flagged)
    recommendation = choose(fit, rollouts, B_max, fixed or None, extrapolate, epsilon)
    if write is not None:
        config_path = (run if run.is_dir() else run.parent) / "config.yaml"  # imported logs have none
        config = load_config(str(config_path)) if config_path.exists() else None
        write_text(write, exporter.render(recommendation, config))
    if as_json:
        allocation = {name: getattr(recommendation.allocation, name) for name in ("B_p", "n", "M", "B", "C")}
        answer = {name: value for name, value in vars(recommendation).items() if name != "allocation"}
        print(json_text({"budget": rollouts, **allocation, **answer, "health": fit.health}))
        return
    console = SafeConsole()
    print_recommendation(console, recommendation, rollouts, fit.reward_name)
    print_notes(console, flag_sentences(fit.health))
    if write is not None:
        run_command = exporter.HOW_TO_RUN.format(file=write, folder=write.parent, name=write.stem)
        print_line(f"wrote {write}; run it with: {run_command}")


def parse_fixed_values(assignments: Iterable[str]) -> dict[str, int]:
    """["M=100", "B_p=16"] -> {"M": 100, "B_p": 16}."""
    fixed: dict[str, int] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or key not in FIXABLE:
            expected = ", ".join(f"{name}=NUMBER" for name in FIXABLE)
            raise InputError(f"--fix: given {assignment!r}, expected one of {expected}.")
        if key in fixed:
            raise InputError(f"--fix: {key} is given twice, expected once.")
        fixed[key] = parse_count(value, f"--fix {key}")
    return fixed


def print_recommendation(console: SafeConsole, recommendation: Recommendation, budget: int, reward_name: str) -> None:
    """The allocation for a budget, its expected reward with interval, every n at that budget, and the reasons."""
    allocation = recommendation.allocation
    if recommendation.no_effect:
        sentence = " at one and the same B_p"
        if len(recommendation.equal_n) > 1:
            sentence = f": any of n = {join_commas(recommendation.equal_n)} will do"
        console.print(f"[bold]n makes no difference here[/bold]{sentence}")
    headline = f"for {budget:,} rollouts: B_p = {allocation.B_p}, n = {allocation.n}, M = {allocation.M}"
    size = f"(B = {allocation.B}, C = {allocation.C:,})"
    range_note = " (beyond the measured range)" if recommendation.extrapolated else ""
    reward = f"expected {reward_name} {format_reward(recommendation.expected_reward)}{range_note}"
    console.print(f"[bold]{headline}[/bold] {size}, {reward}")
    if recommendation.interval and recommendation.prediction_interval:
        interval, new_run = format_range(recommendation.interval), format_range(recommendation.prediction_interval)
        sentence = f"{format_percent(recommendation.level)} interval of that {interval}"
        console.print(f"  {sentence}; one new run will measure {new_run}")
    if recommendation.regret is None:
        regret = "regret unknown: no measured cell agrees with these limits, so there is none to compare with"
    else:
        interval = f" ({format_range(recommendation.regret_interval)})" if recommendation.regret_interval else ""
        regret = f"regret {recommendation.regret:.4f}{interval}: the loss to expect against the best measured cell"
    console.print(f"  {regret}")
    if recommendation.measured_cells:
        console.print(_measured_cells_table(recommendation))
    for reason in recommendation.reasons:
        console.print(f"  {escape(reason)}")
    for sentence in describe_advice(recommendation):
        console.print(f"  {escape(sentence)}")
    for warning in recommendation.further_warnings:
        console.print(f"  [yellow]warning:[/yellow] {escape(warning)}")


def _measured_cells_table(recommendation: Recommendation) -> TextTable:
    """Each n's best measured cell at this budget; a mark where it loses at most epsilon."""
    columns = ["n", "B_p", "reward", f"{format_percent(recommendation.level)} interval"]
    if recommendation.n_probability:
        columns.append("P(n is best)")
    best_by_n: dict[int, MeasuredCell] = {}
    best_first = recommendation.measured_cells
    for cell in sorted(best_first, key=lambda cell: not cell.stable):  # the stable before
        best_by_n.setdefault(cell.n, cell)
    rows = []
    for n, cell in sorted(best_by_n.items()):
        mark = " *" if n in recommendation.equal_n else "  "
        B_p = f"{cell.B_p}" if cell.stable else f"{cell.B_p} unstable"
        row = [f"{n}{mark}", B_p, format_reward(cell.reward), format_range((cell.low, cell.high))]
        if recommendation.n_probability:
            probability = recommendation.n_probability.get(n, 0.0)
            row.append(f"{probability:.2f} {'█' * round(BAR_WIDTH * probability)}")
        rows.append(row)
    title = f"measured cells at this budget; * within {recommendation.epsilon:g} of the best"
    return TextTable(title, columns, rows, last_is_text=bool(recommendation.n_probability))
