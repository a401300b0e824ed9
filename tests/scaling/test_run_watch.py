"""The forecast of a running run's end: its looks, their intersection, and when it says stop."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.run_watch import LOOK_LEVEL, LOOK_SHARES, Look, RunWatch, intersect_looks

END = 40_000.0


def hill_run(A: float) -> tuple[np.ndarray, np.ndarray, float]:
    """41 evaluations of a Hill curve from .2, with noise of .01, and the true reward at the end."""
    C = np.linspace(0, END, 41)
    truth = np.append(0.2, curve_value(C[1:], 0.2, A, 1.2, 5_000.0))
    return C, truth + np.random.default_rng(3).normal(0, 0.01, 41), float(truth[-1])


def test_the_interval_is_nested_over_looks_and_holds_the_end() -> None:
    C, R, end = hill_run(0.7)
    watch, intervals = RunWatch(END), []
    for count in range(1, 41):
        interval = watch.update(C[:count], R[:count]).interval
        if interval is not None:
            intervals.append(interval)
    assert all(a[0] <= b[0] <= end <= b[1] <= a[1] for a, b in pairwise(intervals))
    seen = watch.update(C[:40], R[:40])
    assert (
        len(seen.looks) == len(LOOK_SHARES)
        and seen.looks_agree
        and len(set(intervals)) <= len(LOOK_SHARES)
    )
    # however often one looked before
    assert seen.interval == RunWatch(END).update(C[:40], R[:40]).interval
    assert LOOK_LEVEL == pytest.approx(0.975)  # 1 - .1 / 4


def test_a_hopeless_run_is_stopped_and_a_good_one_is_not() -> None:
    C, R, _ = hill_run(0.4)
    hopeless = RunWatch(END, goal=0.6).update(C[:25], R[:25])
    assert hopeless.advice == "stop" and hopeless.rollouts_left == END - C[24]
    C, R, _ = hill_run(0.75)
    watch = RunWatch(END, goal=0.6)
    assert all(watch.update(C[:count], R[:count]).advice == "go on" for count in range(1, 41))


def test_one_point_and_the_end() -> None:
    one = RunWatch(END).update(np.array([0.0]), np.array([0.2]))
    assert (one.interval, one.advice, one.next_look) == (None, "go on", END / 8)
    C, R, _ = hill_run(0.7)
    assert RunWatch(END / 40).update(C[:2], R[:2]).advice == "stop"


def test_looks_that_contradict_each_other_leave_the_newest() -> None:
    looks = [Look(1, 5, reward, reward - 0.1, reward + 0.1, 0.2) for reward in (0.3, 0.6)]
    assert intersect_looks(looks) == ((0.5, 0.7), False)
    assert intersect_looks([]) == (None, True)
