"""Sums of three numbers with a calculator: `8 + 26 + 9 =`. Where a turn of the policy is `a+b`, the
reply is their sum; after any other turn the response is done. It goes with the verifier
`integer:last_line` and the stop string "\\n"."""

import re

import numpy as np

from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.sources import source

_CALL = re.compile(r"\s*([0-9]{1,9})\s*\+\s*([0-9]{1,9})\s*")


def reply(problem: Problem, turns: list[str]) -> str | None:
    """The sum, on a line of its own, that the last turn asks for; None where it asks for none."""
    call = _CALL.fullmatch(turns[-1])
    return f"{int(call[1]) + int(call[2])}\n" if call else None


class CalculatorSource:
    """All sums of three numbers of one or two digits; the id of a + b + c is a * 10^4 + b * 10^2 +
    c."""

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        ids = rng.choice(10**6, min(count, 10**6), replace=False).tolist()
        numbers = [(i // 10_000, i // 100 % 100, i % 100) for i in ids]
        return [
            Problem(i, f"{a} + {b} + {c} =", str(a + b + c))
            for i, (a, b, c) in zip(ids, numbers, strict=True)
        ]


@source(reply=reply)
def calculator(argument: str, data: DataConfig) -> CalculatorSource:
    if argument:
        raise InputError(
            f"cell.task: calculator takes no argument, given {argument!r}; write calculator."
        )
    return CalculatorSource()
