"""Recommend how to spend a budget of rollouts."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from isojax.cli.budgets import DEVICES_HELP, PRICE_HELP, fit_on_devices, parse_budget
from isojax.cli.formatting import json_text, parse_count, print_notes
from isojax.cli.options import IncludeFlaggedOption, JsonOption, complete_run
from isojax.cli.recommendation_text import print_recommendation
from isojax.cli.recommended_config import load_exporter, print_how_to_run, write_configs
from isojax.cli.saved_fits import read_fit
from isojax.core.errors import InputError
from isojax.core.limits import MAX_SIZE
from isojax.report import wording
from isojax.report.console import SafeConsole
from isojax.scaling.allocate.constraints import EPSILON, FIXABLE, TimeBudget
from isojax.scaling.allocate.devices import measured_devices
from isojax.scaling.allocate.recommend import recommend as choose
from isojax.scaling.allocate.recommendation import Recommendation
from isojax.scaling.checks.run_health import flag_sentences

B_MAX_HELP = "Largest batch B_p n that fits your hardware."
EXTRAPOLATE_HELP = "Answer beyond 4 times the largest measured C too."
BUDGET_HELP = (
    "Rollouts to spend, as 1e6; or a wall clock, as 90s, 30m, 200h, 3d; "
    "or money, as 500usd (--price)."
)
FOR_HELP = (
    "Whose config: isojax, verl, trl, openrlhf, tunix, maxtext, nemo_rl, or NAME of your NAME.py "
    "in this folder, or a module path."
)
GROWING_HELP = (
    "Write the recommended schedule of n in place of the allocation; "
    "for verl and trl as a series of runs."
)
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
    amount = parse_budget(budget, price)
    fixed = parse_fixed_values(fix or ())
    exporter = load_exporter(framework, write, growing)

    fit_as_measured = read_fit(run, include_flagged)
    fit = fit_on_devices(fit_as_measured, devices, run)
    recommendation = choose(fit, amount, B_max, fixed or None, extrapolate, epsilon)
    if price is not None:
        _check_times(recommendation, run)

    paths = [] if write is None else write_configs(write, run, exporter, recommendation, growing)

    # A time, or money, is shown as it was typed.
    shown_budget = amount if isinstance(amount, int) else budget
    if as_json:
        cost = None if price is None else _cost(recommendation, price)
        request = {"budget": shown_budget, "cost": cost, "devices": devices}
        print(json_text({**request, **recommendation.to_json(), "health": fit.health}))
        return

    console = SafeConsole()
    time_matters = isinstance(amount, TimeBudget) or devices is not None
    # Of a sweep that shows nothing, the answer begins with that.
    if time_matters and not recommendation.nothing_learnt:
        console.print(wording.describe_devices(measured_devices(fit_as_measured), devices))
    print_recommendation(console, recommendation, shown_budget, fit.reward_name)
    time_sentence = wording.describe_time(recommendation, price)
    if time_sentence:
        console.print(f"  {time_sentence}")
    print_notes(console, flag_sentences(fit.health))
    print_how_to_run(exporter, paths)


def _check_times(recommendation: Recommendation, run: Path) -> None:
    """InputError where the recommended cell has no times to multiply a price with."""
    if recommendation.device_hours is None:
        allocation = recommendation.allocation
        raise InputError(
            where="--price",
            found=(
                f"the records of {run} have no times of B_p = {allocation.B_p}, n = "
                f"{allocation.n}, by which a price could be known"
            ),
        )


def _cost(recommendation: Recommendation, price: float) -> float | None:
    hours = recommendation.device_hours
    return None if hours is None else price * hours


def parse_fixed_values(assignments: Iterable[str]) -> dict[str, int]:
    """What --fix holds at a value: ["M=100", "B_p=16"] -> {"M": 100, "B_p": 16}. InputError for
    another name than those of FIXABLE, one that is there twice, and no whole number above 0."""
    fixed: dict[str, int] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or key not in FIXABLE:
            expected = ", ".join(f"{name}=NUMBER" for name in FIXABLE)
            raise InputError(
                where="--fix",
                found=f"given {assignment!r}",
                expected=f"one of {expected}",
            )
        if key in fixed:
            raise InputError(
                where="--fix",
                found=f"{key} is given twice",
                expected="once",
            )
        fixed[key] = parse_count(value, f"--fix {key}")
    return fixed
