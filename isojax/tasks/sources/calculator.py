"""Sums of three numbers with a calculator: `8 + 26 + 9 =`.

Where a turn of the policy is `a+b`, the reply is their sum; after any other turn the response is
done. It goes with the verifier `integer:last_line` and the stop string "\\n".
"""

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
        """`count` distinct sums, or all that there are."""
        problems: list[Problem] = []
        for problem_id in rng.choice(10**6, min(count, 10**6), replace=False).tolist():
            a = problem_id // 10_000
            b = problem_id // 100 % 100
            c = problem_id % 100
            problems.append(Problem(problem_id, f"{a} + {b} + {c} =", str(a + b + c)))
        return problems


@source(reply=reply)
def calculator(argument: str, data: DataConfig) -> CalculatorSource:
    """The source; it takes no argument."""
    if argument:
        raise InputError(
            where="cell.task",
            found=f"calculator takes no argument, given {argument!r}",
            fix="Write calculator.",
        )
    return CalculatorSource()
