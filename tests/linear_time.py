"""That work grows with its input and not with its square, on a machine of any speed.

Where work is linear, four times the input takes four times the CPU time, and sixteen times where it
is quadratic. Other processes only ever slow a repetition down, so the fastest one counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

REPETITIONS = 2
LARGEST_RATIO = 9.0  # of the two times: between 4 and 16, the middle of their logarithms being 8


def cpu_seconds(work: Callable[[], object]) -> float:
    """The least that `work` takes in CPU seconds of this process."""
    seconds: list[float] = []
    for _ in range(REPETITIONS):
        before = time.process_time()
        work()
        seconds.append(time.process_time() - before)
    return min(seconds)


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """`work`, of a size, takes at most LARGEST_RATIO times as long at `size` as at a fourth of it.

    Choose a size at which a quadratic part would be most of the time.
    """
    quarter = cpu_seconds(lambda: work(size // 4))
    whole = cpu_seconds(lambda: work(size))
    assert whole < LARGEST_RATIO * quarter, (quarter, whole)
