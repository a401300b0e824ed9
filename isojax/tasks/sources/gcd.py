"""Greatest common divisors: `gcd(12,18)=` -> `6`, of two numbers in low..high (2..40 unless set). Of gcd(a,b) and
gcd(b,a) only one is ever a problem, so that a held-out pair is never trained on."""

import math
from dataclasses import dataclass

import numpy as np

from isojax.core.config import DataConfig
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import canonical_order, read_range

MAX_NUMBER = 9999


@dataclass(frozen=True)
class GcdSource:
    """All pairs of numbers in low..high, each in one order; the id of gcd(a,b) is 10,000 a + b."""

    low: int
    high: int

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        numbers = np.arange(self.low, self.high + 1)
        pairs = np.stack(np.triu_indices(len(numbers)), 1)
        selected_pairs = numbers[pairs[rng.permutation(len(pairs))[:count]]].tolist()
        return [
            Problem(a * (MAX_NUMBER + 1) + b, f"gcd({a},{b})=", str(math.gcd(a, b)))
            for a, b in (canonical_order(*pair) for pair in selected_pairs)
        ]


def source(argument: str, data: DataConfig) -> GcdSource:
    """Pairs of numbers in low..high, 1 <= low <= high <= 9999."""
    return GcdSource(*read_range(argument, "gcd", usual=(2, 40), largest=MAX_NUMBER))
