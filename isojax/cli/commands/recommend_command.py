"""`isojax recommend`: how to spend a budget, with intervals and reasons, and a config that does
so."""

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from typer import Argument, Option

from isojax.cli.formatting import check_new_file, json_text, parse_count, print_line, print_notes
from isojax.cli.nothing_learnt import print_nothing_learnt
from isojax.cli.options import IncludeFlaggedOption, JsonOption, complete_run
from isojax.cli.saved_fits import read_fit
from isojax.core.atomic_files import write_text
from isojax.core.config import load_config
from isojax.core.errors import InputError
from isojax.core.limits import MAX_SIZE
from isojax.core.nouns import Allocation, Recommendation
from isojax.core.tabular import parse_number
from isojax.core.terminal import format_hours
from isojax.report import wording
from isojax.report.console import SafeConsole, TextTable
from isojax.report.wording import format_percent, format_range, format_reward, join_commas
from isojax.runs import exporters
from isojax.runs.exporters import Exporter
from isojax.scaling.allocate.constraints import EPSILON, FIXABLE, TimeBudget
from isojax.scaling.allocate.curve_ensemble import TIMES_HINT
from isojax.scaling.allocate.devices import measured_devices, on_devices
from isojax.scaling.allocate.recommend import recommend as choose
from isojax.scaling.checks.run_health import flag_sentences
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import group_by

BAR_WIDTH = 20
B_MAX_HELP = "Largest batch B_p n that fits your hardware."
EXTRAPOLATE_HELP = "Answer beyond 4 times the largest measured C too."
BUDGET_HELP = "Rollouts to spend, as 1e6; or a wall clock, as 90s, 30m, 200h, 3d; or money, as 500usd (--price)."
PRICE_HELP = "Price of a device for an hour, in the same money."
DEVICES_HELP = "Answer for so many devices, as 8, at as many device hours; else for those of the measured runs."
FOR_HELP = (
    "Whose config: isojax, verl, trl, openrlhf, tunix, maxtext, nemo_rl, or a module of yours."
)
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
GROWING_HELP = "Write the recommended schedule of n in place of the allocation; for verl and trl as a series of runs."
WRITE_HELP = "Write a config that spends it so; an existing file is kept."


def recommend(
    run: Annotated[
        Path, Argument(help="A sweep's folder or a fit.json.", autocompletion=complete_run)
    ],
    budget: Annotated[str, Option(metavar="C|TIME|MONEY", help=BUDGET_HELP)],
    price: Annotated[float | None, Option(metavar="MONEY", help=PRICE_HELP)] = None,
    devices: Annotated[
        int | None, Option(metavar="N", min=1, max=MAX_SIZE, help=DEVICES_HELP)
    ] = None,
    B_max: Annotated[int | None, Option("--B-max", metavar="N", min=1, help=B_MAX_HELP)] = None,
    fix: Annotated[
        list[str] | None, Option(metavar="M=..|B=..|B_p=..", help="Hold this at a value.")
    ] = None,
    epsilon: Annotated[
        float, Option(metavar="E", help="A loss of reward that makes no difference to you.")
    ] = EPSILON,
    extrapolate: Annotated[bool, Option("--extrapolate", help=EXTRAPOLATE_HELP)] = False,
    write: Annotated[Path | None, Option(metavar="FILE", help=WRITE_HELP)] = None,
    framework: Annotated[
        str | None, Option("--for", metavar="TRAINER", help=FOR_HELP, show_default="isojax")
    ] = None,
    growing: Annotated[bool, Option("--growing", help=GROWING_HELP)] = False,
    include_flagged: IncludeFlaggedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Recommend how to spend a budget of rollouts, time or money: problems per batch, rollouts per
    problem, updates.

    n is that of the measured cell with the highest expected reward (in mode paper, n*(C)), B_p the
    smallest stable one that loses at most --epsilon of reward, M = floor(C / (n B_p)), or less, as
    measured, where updates replace groups.

    \b
    Examples
      isojax recommend runs/quickstart --budget 5e5
      isojax recommend runs/quickstart --budget 5e5 --B-max 512 --fix B_p=32
      isojax recommend runs/quickstart --budget 2m
      isojax recommend runs/quickstart --budget 2m --devices 8
      isojax recommend runs/quickstart --budget 1usd --price 12
      isojax recommend runs/quickstart --budget 5e5 --write best.yaml
      isojax train best.yaml
      isojax recommend runs/mine --budget 5e5 --write best.yaml --for trl
    """
    amount, fixed = parse_budget(budget, price), parse_fixed_values(fix or ())
    exporter = load_exporter(framework, write, growing)
    fit_as_measured = read_fit(run, include_flagged)
    fit = fit_on_devices(fit_as_measured, devices, run)
    recommendation = choose(fit, amount, B_max, fixed or None, extrapolate, epsilon)
    if price is not None and recommendation.device_hours is None:
        cell = f"B_p = {recommendation.allocation.B_p}, n = {recommendation.allocation.n}"
        raise InputError(
            f"--price: the records of {run} have no times of {cell}, by which a price could be known."
        )
    written = [] if write is None else write_configs(write, run, exporter, recommendation, growing)
    if as_json:
        allocation = _allocation_document(recommendation.allocation) | {
            name: getattr(recommendation.allocation, name) for name in ("B", "C")
        }
        answer = {
            name: value for name, value in vars(recommendation).items() if name != "allocation"
        }
        if recommendation.next_run is not None:
            next_allocation = _allocation_document(recommendation.next_run.allocation)
            answer["next_run"] = vars(recommendation.next_run) | {"allocation": next_allocation}
        if recommendation.growing is not None:
            answer["growing"] = _without_single_batches(vars(recommendation.growing), ())
        cost = (
            None
            if price is None or recommendation.device_hours is None
            else price * recommendation.device_hours
        )
        request = {
            "budget": amount if isinstance(amount, int) else budget,
            "cost": cost,
            "devices": devices,
        }
        print(json_text({**request, **allocation, **answer, "health": fit.health}))
        return
    console = SafeConsole()
    time_matters = isinstance(amount, TimeBudget) or devices is not None
    # which is what such an answer begins with
    if time_matters and not recommendation.nothing_learnt:
        console.print(wording.describe_devices(measured_devices(fit_as_measured), devices))
    print_recommendation(
        console, recommendation, amount if isinstance(amount, int) else budget, fit.reward_name
    )
    if sentence := wording.describe_time(recommendation, price):
        console.print(f"  {sentence}")
    print_notes(console, flag_sentences(fit.health))
    for number, path in enumerate(written):
        template = exporter.traits.how_to_run
        if number > 0 and exporter.traits.how_to_go_on is not None:
            template = exporter.traits.how_to_go_on
        file, folder, name = map(shlex.quote, (str(path), str(path.parent), path.stem))
        how = template.format(file=file, folder=folder, name=name)
        print_line(f"wrote {path}; run it {'then ' * (number > 0)}with: {how}")


def _allocation_document(allocation: Allocation) -> dict[str, Any]:
    return _without_single_batches(vars(allocation), 1.0)


def _without_single_batches(document: Mapping[str, Any], single: Any) -> dict[str, Any]:
    """Without the key `batches` where an update takes one batch."""
    return {name: value for name, value in document.items() if name != "batches" or value != single}


def fit_on_devices(fit: FitResult, devices: int | None, run: Path) -> FitResult:
    """The fit with its clocks on so many devices; InputError where it has none."""
    if devices is None:
        return fit
    if not measured_devices(fit):
        problem = f"--devices: the records of {run} have no times, which depend on the devices"
        raise InputError(f"{problem}; expected some. Leave it out, or {TIMES_HINT}.")
    return on_devices(fit, devices)


def load_exporter(framework: str | None, write: Path | None, growing: bool) -> Exporter:
    """What writes the config; InputError where it cannot write what is asked for, before any
    work."""
    if framework is not None and write is None:
        raise InputError(
            f"--for {framework} says whose config to write; expected --write FILE with it."
        )
    check_new_file(write, "--write")
    if growing and write is None:
        raise InputError(
            "--growing writes the recommended schedule as a config; expected --write FILE with it."
        )
    exporter = exporters.exporter.load(framework or "isojax")
    if write is not None and "{name}" in exporter.traits.how_to_run and write.suffix != ".yaml":
        raise InputError(
            f"--write {write}: {framework} finds a config by its name; expected one that ends in .yaml."
        )
    if growing and exporter.traits.render_growing is None:
        raise InputError(
            f"--growing --for {framework}: there is no schedule for it; expected isojax, trl or verl."
        )
    return exporter


def write_configs(
    path: Path, run: Path, exporter: Exporter, recommendation: Recommendation, growing: bool
) -> list[Path]:
    """The exporter's config at this path; a series in best-1.yaml, best-2.yaml, ... InputError
    where one exists."""
    folder = run if run.is_dir() else run.parent
    # none: a log's
    config = load_config(str(folder / "config.yaml")) if (folder / "config.yaml").exists() else None
    if config is not None and (folder / "base").is_dir():
        config = config.with_settings(run={"base_from": str(folder)})
    if growing and exporter.traits.render_growing is not None:
        texts = exporter.traits.render_growing(recommendation, config, path.stem)
    else:
        texts = [exporter(recommendation, config)]
    paths = [path]
    if len(texts) > 1:
        paths = [
            path.with_name(f"{path.stem}-{number}{path.suffix}")
            for number in range(1, len(texts) + 1)
        ]
    for new_path in paths:
        check_new_file(new_path, "--write")
    for new_path, text in zip(paths, texts, strict=True):
        write_text(new_path, text)
    return paths


def check_price(price: float | None) -> None:
    if price is not None and not 0 < price < math.inf:
        raise InputError(
            f"--price: given {price:g}, expected a price of more than 0 for a device hour, such as 2.5."
        )


def parse_budget(text: str, price: float | None) -> int | TimeBudget:
    """ "1e6" as rollouts, "200h" as wall clock, "500usd" at a price of 2.5 a device hour as 200
    device hours."""
    check_price(price)
    # M is no minute
    match = re.fullmatch(r"([\d._]+(?:e\d+)?)(s|m|h|d|(?i:usd|eur))", text.strip())
    if not match:
        return parse_count(text, alternative=", or a time in one unit, such as 90m")
    number, unit = parse_number(match[1].replace("_", "")), match[2].lower()
    if number is None or number <= 0:
        raise InputError(
            f"--budget: given {text!r}, expected a time such as 200h, or money such as 500usd."
        )
    if unit in SECONDS:
        return TimeBudget(number * SECONDS[unit])
    if price is None:
        raise InputError(
            f"--budget {text} is money; expected the price of a device hour with it, as --price 2.5."
        )
    return TimeBudget(3600 * number / price, of_devices=True)


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


def print_recommendation(
    console: SafeConsole, recommendation: Recommendation, budget: int | str, reward_name: str
) -> None:
    """The answer, every n at that budget, and the reasons."""
    print_answer(console, recommendation, budget, reward_name)
    console.print(f"  {_regret_sentence(recommendation)}")
    if len({cell.n for cell in recommendation.measured_cells}) > 1:
        console.print(_measured_cells_table(recommendation))
        if batch_table := _batch_table(recommendation):
            console.print(batch_table)
    for sentence in (*recommendation.reasons, *wording.describe_advice(recommendation)):
        console.print(f"  {escape(sentence)}")
    for warning in (
        text for text in recommendation.further_warnings if text != recommendation.not_settled
    ):
        console.print(f"  [yellow]warning:[/yellow] {escape(warning)}")


def print_answer(
    console: SafeConsole, recommendation: Recommendation, budget: int | str, reward_name: str
) -> None:
    """The allocation for a budget, and its expected reward with interval."""
    allocation = recommendation.allocation
    print_nothing_learnt(console, recommendation.nothing_learnt)
    if recommendation.tie:
        console.print(
            f"[bold]{escape(wording.sentence_of(recommendation.tie))}[/bold]", highlight=False
        )
    elif recommendation.no_effect and not recommendation.nothing_learnt:
        equal_n = join_commas(recommendation.equal_n)
        sentence = (
            f": any of n = {equal_n} will do"
            if len(recommendation.equal_n) > 1
            else " at one and the same B_p"
        )
        console.print(f"[bold]n makes no difference here[/bold]{sentence}")
    if recommendation.not_settled and not recommendation.tie:  # whose interval rests on no draw
        console.print(
            f"[yellow]warning:[/yellow] {escape(recommendation.not_settled)}; do not use these intervals"
        )
    budget_text = budget if isinstance(budget, str) else f"{budget:,} rollouts"
    headline = f"for {budget_text}: B_p = {allocation.B_p}, n = {allocation.n}, M = {allocation.M}"
    size = f"(B = {allocation.B}, C = {allocation.C:,})"
    range_note = " (beyond the measured range)" if recommendation.extrapolated else ""
    reward = f"expected {reward_name} {format_reward(recommendation.expected_reward)}{range_note}"
    console.print(f"[bold]{headline}[/bold] {size}, {reward}")
    if recommendation.interval and recommendation.prediction_interval:
        interval = format_range(recommendation.interval)
        new_run = format_range(recommendation.prediction_interval)
        sentence = f"{format_percent(recommendation.level)} interval of that {interval}"
        console.print(f"  {sentence}; one new run will measure {new_run}")


def _regret_sentence(recommendation: Recommendation) -> str:
    if recommendation.nothing_learnt:
        return "regret unknown: no reward rises, so no cell can be compared with another"
    if recommendation.tie:
        return "regret unknown: no cell has left the reward of its start, so none can be compared with another"
    if recommendation.regret is None:
        return "regret unknown: no measured cell agrees with these limits, so there is none to compare with"
    if len(recommendation.measured_cells) == 1:
        return "regret unknown: only one cell was measured, so there is none to compare it with"
    interval = (
        f" ({format_range(recommendation.regret_interval)})"
        if recommendation.regret_interval
        else ""
    )
    return f"regret {recommendation.regret:.4f}{interval}: the loss to expect against the best measured cell"


def _measured_cells_table(recommendation: Recommendation) -> TextTable:
    columns = ["n", "B_p", "reward", f"{format_percent(recommendation.level)} interval"]
    # Where n makes no difference, which n is ahead by a hair says nothing, however often it is
    # ahead.
    n_probability = None if recommendation.no_effect else recommendation.n_probability
    if n_probability:
        columns.append("P(n is best)")
    rows = []
    for n, best_first in sorted(
        group_by(recommendation.measured_cells, lambda cell: cell.n).items()
    ):
        cell = next((cell for cell in best_first if cell.stable), best_first[0])
        mark = " *" if n in recommendation.equal_n else "  "
        B_p = f"{cell.B_p}" if cell.stable else f"{cell.B_p} unstable"
        row = [f"{n}{mark}", B_p, format_reward(cell.reward), format_range((cell.low, cell.high))]
        if n_probability:
            probability = n_probability.get(n, 0.0)
            row.append(f"{probability:.2f} {'█' * round(BAR_WIDTH * probability)}")
        rows.append(row)
    title = f"forecasts at this budget, for each measured n; * within {recommendation.epsilon:g} of the best"
    return TextTable(title, columns, rows, last_is_text=bool(n_probability))


def _batch_table(recommendation: Recommendation) -> TextTable | None:
    n = recommendation.allocation.n
    cells = [
        cell for cell in recommendation.measured_cells if cell.n == n and cell.hours is not None
    ]
    if len(cells) < 2:
        return None
    rows = [
        [
            f"{cell.B_p}",
            f"{cell.M:,}",
            format_reward(cell.reward),
            *map(format_hours, (cell.hours, cell.device_hours)),
        ]
        for cell in sorted(cells, key=lambda cell: cell.B_p)
    ]
    return TextTable(
        f"B_p at n = {n}", ["B_p", "M", "reward", "wall clock", "of all devices"], rows
    )
