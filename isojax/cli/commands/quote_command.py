"""Say what a reward costs: rollouts, hours and money, for each n."""

from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument, Option

from isojax.cli.budgets import DEVICES_HELP, PRICE_HELP, check_price, fit_on_devices
from isojax.cli.formatting import json_text, print_notes
from isojax.cli.nothing_learnt import print_nothing_learnt
from isojax.cli.options import IncludeFlaggedOption, JsonOption, complete_run
from isojax.cli.saved_fits import read_fit
from isojax.core.errors import InputError
from isojax.core.limits import MAX_SIZE
from isojax.core.terminal import format_hours
from isojax.report.console import SafeConsole, TextTable
from isojax.report.wording import describe_devices, format_compact, format_percent, join_commas
from isojax.scaling.allocate.devices import measured_devices
from isojax.scaling.allocate.quote import Quote, QuotedCell
from isojax.scaling.allocate.quote import quote as quote_reward
from isojax.scaling.checks.run_health import flag_sentences


def quote(
    run: Annotated[
        Path, Argument(help="A sweep's folder or a fit.json.", autocompletion=complete_run)
    ],
    reward: Annotated[
        float, Option(metavar="R", help="The validation reward to reach, such as 0.6.")
    ],
    price: Annotated[float | None, Option(metavar="MONEY", help=PRICE_HELP)] = None,
    devices: Annotated[
        int | None, Option(metavar="N", min=1, max=MAX_SIZE, help=DEVICES_HELP)
    ] = None,
    include_flagged: IncludeFlaggedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what a reward costs: rollouts, hours and money, for each n.

    That is the C of one new run until it has the reward, with an interval. Each n has the B_p that
    reaches the reward soonest. "Never" is: not within 4 times the largest measured C.

    \b
    Examples
      isojax quote runs/quickstart --reward 0.6
      isojax quote runs/quickstart --reward 0.6 --price 2.5 --json
      isojax quote runs/quickstart --reward 0.6 --devices 8
    """
    check_price(price)

    fit_as_measured = read_fit(run, include_flagged)
    fit = fit_on_devices(fit_as_measured, devices, run)
    quoted = quote_reward(fit, reward)
    if price is not None:
        _check_times(quoted, run)

    if as_json:
        cells = [vars(cell) | {"cost": _cost(cell, price)} for cell in quoted.cells]
        print(json_text({**vars(quoted), "cells": cells, "devices": devices}))
        return

    console = SafeConsole()
    if quoted.nothing_learnt:
        _print_quote_of_nothing(console, quoted)
        # On how many rollouts per evaluation the answer rests, and which runs were flagged.
        print_notes(console, [fit.evaluation_size, *flag_sentences(fit.health)])
        return

    devices_sentence = describe_devices(measured_devices(fit_as_measured), devices)
    if devices_sentence:  # "" where no run recorded its times
        console.print(devices_sentence)
    _print_quote(console, quoted, price, fit.not_settled)
    print_notes(console, flag_sentences(fit.health))


def _check_times(quoted: Quote, run: Path) -> None:
    """InputError where a price was given, and no cell has times to multiply it with."""
    has_no_times = all(cell.hours is None for cell in quoted.cells)
    if has_no_times and not quoted.nothing_learnt:
        raise InputError(
            where="--price",
            found=f"the records of {run} have no times, by which a price could be known",
        )


def _print_quote(
    console: SafeConsole, quoted: Quote, price: float | None, not_settled: str
) -> None:
    """The table of what each n costs; `not_settled`: why its intervals are not to be used."""
    if not_settled:
        text = f"{escape(not_settled)}; do not use these intervals"
        console.print(f"[yellow]warning:[/yellow] {text}")
    console.print(_cost_table(quoted, price))

    level = format_percent(quoted.level)
    console.print(
        f"Of a new run, with {level} intervals; * fewest rollouts. "
        f"Never: not by C = {quoted.horizon:,.0f}."
    )


def _print_quote_of_nothing(console: SafeConsole, quoted: Quote) -> None:
    """Print what can be said of a reward where no run has learnt anything: whether the runs'
    evaluations rule out that it was reached."""
    print_nothing_learnt(console, quoted.nothing_learnt)

    # `highest`: the upper end of the interval of the runs' reward.
    bound = ""
    if quoted.highest is not None:
        level = format_percent(quoted.level)
        bound = f" (by its evaluations at most {quoted.highest:.3g}, {level} interval)"
    # Up to that bound a single evaluation may have been there.
    within_bound = quoted.highest is not None and quoted.reward <= quoted.highest
    seen = "was never seen to stay" if within_bound else "was never seen to be reached"
    all_n = join_commas(cell.n for cell in quoted.cells)
    console.print(f"{quoted.metric} {quoted.reward:g} {seen}, with no n ({all_n}){bound}.")

    console.print(
        "What it costs these runs cannot say: "
        "neither for one of these n, nor which n would reach it first."
    )


def _cost(cell: QuotedCell, price: float | None) -> float | None:
    """Money, at a `price` of a device hour; None where the price or the hours are not known."""
    if price is None or cell.device_hours is None:
        return None
    return price * cell.device_hours


def _cost_table(quoted: Quote, price: float | None) -> TextTable:
    """The table of what each n takes to reach the reward, a row each.

    With hours where any cell has times, and with money too where a price (of a device hour) is
    given. A star marks the n that takes the fewest rollouts, if it reaches the reward at all.
    """
    has_times = any(cell.hours is not None for cell in quoted.cells)
    has_costs = has_times and price is not None
    columns = ["n", "B_p", "M", "rollouts", "interval", "P(never)"]
    if has_times:
        columns += ["wall clock", "of all devices"]
    if has_costs:
        columns.append("cost")

    rows = []
    for cell in quoted.cells:
        is_best = cell.n == quoted.best_n and cell.C is not None
        row = [
            f"{cell.n}{' *' if is_best else '  '}",
            f"{cell.B_p}",
            "–" if cell.M is None else f"{cell.M:,}",
            _format_rollouts(cell.C),
            f"{_format_rollouts(cell.low)} to {_format_rollouts(cell.high)}",
            "–" if cell.p_never is None else format_percent(cell.p_never),
        ]
        if has_times:
            row += [format_hours(cell.hours), format_hours(cell.device_hours)]
        if has_costs:
            cost = _cost(cell, price)
            row.append("–" if cost is None else f"{cost:,.2f}")
        rows.append(row)
    return TextTable(f"{quoted.metric} {quoted.reward:g} costs", columns, rows)


def _format_rollouts(C: float | None) -> str:
    """C at which a reward is reached; None: at no C."""
    return "never" if C is None else format_compact(C)
