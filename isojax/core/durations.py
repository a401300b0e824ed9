"""Durations as a person types them, in one unit: 90s, 30m, 8h, 3d."""

import math
import re

from isojax.core.columns import parse_number

SECONDS_OF_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([\d._]+(?:e\d+)?)([smhd])")


def parse_duration(text: str) -> float | None:
    """Seconds of a text such as "90s", "30m", "8h" or "3d", more than 0; None of another text."""
    match = _DURATION.fullmatch(text.strip())
    number = parse_number(match[1].replace("_", "")) if match else None
    if match is None or number is None or not 0 < number < math.inf:
        return None
    return number * SECONDS_OF_UNIT[match[2]]
