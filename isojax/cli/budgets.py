"""What a budget may be: rollouts, time or money, which --price and --devices convert."""

import math
import re
from pathlib import Path

from isojax.cli.formatting import parse_count
from isojax.core.columns import parse_number
from isojax.core.durations import SECONDS_OF_UNIT
from isojax.core.errors import InputError
from isojax.scaling.allocate.constraints import TimeBudget
from isojax.scaling.allocate.curve_ensemble import TIMES_HINT
from isojax.scaling.allocate.devices import measured_devices, on_devices
from isojax.scaling.result import FitResult

PRICE_HELP = "Price of a device for an hour, in the same money."
DEVICES_HELP = (
    "Answer for so many devices, as 8, at as many device hours; "
    "else for those of the measured runs."
)
# A number and a unit. Units of time are lower case: M is no minute.
_TIME_OR_MONEY = re.compile(r"([\d._]+(?:e\d+)?)(s|m|h|d|(?i:usd|eur))")


def parse_budget(text: str, price: float | None) -> int | TimeBudget:
    """A budget as typed: an int of rollouts for "1e6", a TimeBudget for a time or money.

    text: rollouts such as "250_000", a wall clock in one unit such as "90s", "30m", "200h" or "3d",
        or money in usd or eur, which are taken for one currency.
    price: of a device for an hour; "500usd" is 200 device hours at 2.5. None: not given.

    InputError where the text is none of these, or money without a price.
    """
    check_price(price)
    match = _TIME_OR_MONEY.fullmatch(text.strip())
    if not match:
        return parse_count(text, alternative=", or a time in one unit, such as 90m")

    number = parse_number(match[1].replace("_", ""))
    unit = match[2].lower()
    if number is None or number <= 0:
        raise InputError(
            where="--budget",
            found=f"given {text!r}",
            expected="a time such as 200h, or money such as 500usd",
        )
    if unit in SECONDS_OF_UNIT:
        return TimeBudget(number * SECONDS_OF_UNIT[unit])
    if price is None:
        raise InputError(
            where="--budget",
            found=f"given {text}, which is money",
            expected="the price of a device hour with it, as --price 2.5",
        )
    return TimeBudget(3600 * number / price, of_devices=True)


def check_price(price: float | None) -> None:
    """InputError for a price that is none."""
    if price is not None and not 0 < price < math.inf:
        raise InputError(
            where="--price",
            found=f"given {price:g}",
            expected="a price of more than 0 for a device hour, such as 2.5",
        )


def fit_on_devices(fit: FitResult, devices: int | None, run: Path) -> FitResult:
    """The fit with the times that its cells would take on so many devices; None: as measured.

    run: what the fit is of, for the message. InputError where the fit has no times.
    """
    if devices is None:
        return fit
    if not measured_devices(fit):
        raise InputError(
            where="--devices",
            found=f"the records of {run} have no times, which depend on the devices",
            expected="some",
            fix=f"Leave it out, or {TIMES_HINT}.",
        )
    return on_devices(fit, devices)
