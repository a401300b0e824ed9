"""Sums of small numbers, `12 + 7 =` -> `19`.

The number of digits of an operand is drawn evenly from low..high (1..2 unless set), then the
operand. Of a + b and b + a only one is ever a problem, so that a held-out sum is never trained on.
"""

from dataclasses import dataclass

import numpy as np

from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import read_settings
from isojax.tasks.sources import source

MAX_DIGITS = 4


@dataclass(frozen=True)
class AdditionSource:
    """All sums of two numbers of low..high digits; the id of a + b is a * 10^high + b."""

    low: int
    high: int

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """`count` distinct random sums in random order, or all if there are fewer: prompt
        "7 + 12 =", answer "19"."""
        base = 10**self.high
        # All numbers of at most `high` digits without those of fewer than `low`; 0 has one digit.
        num_operands = base - (0 if self.low == 1 else 10 ** (self.low - 1))
        num_sums = num_operands * (num_operands + 1) // 2  # a + b is b + a
        count = min(count, num_sums)

        distinct_sums: dict[tuple[int, int], None] = {}  # in the order in which they were drawn
        while len(distinct_sums) < count:
            first = self._operands(count, rng).tolist()
            second = self._operands(count, rng).tolist()
            for a, b in zip(first, second, strict=True):
                distinct_sums[canonical_order(a, b)] = None

        # Later draws have fewer short sums, since most of these have been drawn already: shuffle.
        sums = list(distinct_sums)[:count]
        problems: list[Problem] = []
        for i in rng.permutation(count):
            a, b = sums[i]
            problems.append(Problem(a * base + b, f"{a} + {b} =", str(a + b)))
        return problems

    def _operands(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Random operands i[count]: first how many digits each has, then the number."""
        digits = rng.integers(self.low, self.high + 1, count)
        return rng.integers(np.where(digits == 1, 0, 10 ** (digits - 1)), 10**digits)


def canonical_order(a: int, b: int) -> tuple[int, int]:
    """One order for a + b and b + a; the larger number is first as often as the smaller."""
    low, high = min(a, b), max(a, b)
    larger_is_first = (low * 7 + high * 3) // 2 % 2 == 1  # as good as a coin, and always the same
    return (high, low) if larger_is_first else (low, high)


@source
def addition(argument: str, data: DataConfig) -> AdditionSource:
    """Sums of numbers of low..high digits, 1 <= low <= high <= 4."""
    settings = {"low": 1, "high": 2} | read_settings(argument, "addition")
    low, high, *others = settings.values()
    are_integers = type(low) is int and type(high) is int  # and no booleans
    if others or not are_integers or not 1 <= low <= high <= MAX_DIGITS:
        expected = f"integers 1 <= low <= high <= {MAX_DIGITS}, such as addition:low=1,high=2"
        raise InputError(
            where="cell.task",
            found=f"given addition:{argument}",
            expected=expected,
        )
    return AdditionSource(low, high)
