"""`isojax quote`: the rollouts, hours and money that a reward costs, for each n."""

from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument, Option

from isojax.cli.commands.recommend_command import (
    DEVICES_HELP,
    PRICE_HELP,
    check_price,
    fit_on_devices,
)
from isojax.cli.formatting import json_text, print_notes
from isojax.cli.nothing_learnt import print_nothing_learnt
from isojax.cli.options import IncludeFlaggedOption, JsonOption, complete_run
from isojax.cli.saved_fits import read_fit
from isojax.core.errors import InputError
from isojax.core.limits import MAX_SIZE
from isojax.core.nouns import Quote, QuotedCell
from isojax.core.terminal import format_hours
from isojax.report.console import SafeConsole, TextTable
from isojax.report.wording import describe_devices, format_compact, format_percent, join_commas
from isojax.scaling.allocate.devices import measured_devices
from isojax.scaling.allocate.recommend import quote as quote_reward
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
    if (
        price is not None
        and not quoted.nothing_learnt
        and all(cell.hours is None for cell in quoted.cells)
    ):
        raise InputError(
            f"--price: the records of {run} have no times, by which a price could be known."
        )
    if as_json:
        cells = [vars(cell) | {"cost": _cost(cell, price)} for cell in quoted.cells]
        print(json_text({**vars(quoted), "cells": cells, "devices": devices}))
        return
    console = SafeConsole()
    if quoted.nothing_learnt:
        _print_quote_of_nothing(console, quoted)
        print_notes(console, [fit.evaluation_size, *flag_sentences(fit.health)])
        return
    if sentence := describe_devices(measured_devices(fit_as_measured), devices):
        console.print(sentence)
    if fit.not_settled:
        console.print(
            f"[yellow]warning:[/yellow] {escape(fit.not_settled)}; do not use these intervals"
        )
    console.print(_table(quoted, price))
    level = format_percent(quoted.level)
    console.print(
        f"Of a new run, with {level} intervals; * fewest rollouts. Never: not by C = {quoted.horizon:,.0f}."
    )
    print_notes(console, flag_sentences(fit.health))


def _print_quote_of_nothing(console: SafeConsole, quoted: Quote) -> None:
    print_nothing_learnt(console, quoted.nothing_learnt)
    level = format_percent(quoted.level)
    all_n = join_commas(cell.n for cell in quoted.cells)
    bound = (
        ""
        if quoted.highest is None
        else f" (by its evaluations at most {quoted.highest:.3g}, {level} interval)"
    )
    # Up to that bound a single evaluation may have been there.
    within = quoted.highest is not None and quoted.reward <= quoted.highest
    seen = "was never seen to stay" if within else "was never seen to be reached"
    console.print(f"{quoted.metric} {quoted.reward:g} {seen}, with no n ({all_n}){bound}.")
    console.print(
        "What it costs these runs cannot say: neither for one of these n, nor which n would reach it first."
    )


def _cost(cell: QuotedCell, price: float | None) -> float | None:
    return None if price is None or cell.device_hours is None else price * cell.device_hours


def _table(quoted: Quote, price: float | None) -> TextTable:
    timed = any(cell.hours is not None for cell in quoted.cells)
    columns = ["n", "B_p", "M", "rollouts", "interval", "P(never)"]
    columns += ["wall clock", "of all devices"] * timed + ["cost"] * (timed and price is not None)
    rows = []
    for cell in quoted.cells:
        low, high = ("never" if C is None else format_compact(C) for C in (cell.low, cell.high))
        M = "–" if cell.M is None else f"{cell.M:,}"
        mark = " *" if cell.n == quoted.best_n and cell.C is not None else "  "
        C = "never" if cell.C is None else format_compact(cell.C)
        p_never = "–" if cell.p_never is None else format_percent(cell.p_never)
        row = [f"{cell.n}{mark}", f"{cell.B_p}", M, C, f"{low} to {high}", p_never]
        row += [format_hours(cell.hours), format_hours(cell.device_hours)] * timed
        if timed and price is not None:
            cost = _cost(cell, price)
            row.append("–" if cost is None else f"{cost:,.2f}")
        rows.append(row)
    return TextTable(f"{quoted.metric} {quoted.reward:g} costs", columns, rows)
