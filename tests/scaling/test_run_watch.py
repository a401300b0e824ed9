"""The forecast of a running run's end: its looks, their intersection, and when it says stop."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from isojax.scaling import run_watch
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.evaluation_size import EvaluationSize
from isojax.scaling.learning import NothingLearnt
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


def fake_look(C: np.ndarray, R: np.ndarray, C_end: float) -> Look:
    """Around the newest reward, .1 to each side; the end is expected .05 above it."""
    return Look(float(C[-1]), len(C), R[-1] + 0.05, R[-1] - 0.1, R[-1] + 0.1, float(R[-1]))


def test_a_look_needs_five_evaluations_after_the_base_policy(monkeypatch) -> None:
    """Looks at an eighth, a quarter, a half and three quarters of 80; those that the run has
    reached, from the evaluations up to there."""
    monkeypatch.setattr(run_watch, "make_look", fake_look)
    watch = RunWatch(80.0)
    C = np.array([0.0, 2, 4, 6, 8, 8.5, 20, 39.9])
    R = np.linspace(0.2, 0.27, 8)
    assert watch.update(C[:5], R[:5]).looks == ()  # at 8
    first = watch.update(C[:7], R[:7])
    assert [look.C for look in first.looks] == [8.5, 20.0]  # at 20 the second look is due
    assert [look.points for look in first.looks] == [6, 7] and first.next_look == 40.0
    assert [look.C for look in watch.update(C, R).looks] == [8.5, 20.0]
    # four evaluations up to an eighth: no look there
    few = watch.update(np.array([0.0, 2, 4, 6, 8, 19, 20]), R[:7])
    assert [look.C for look in few.looks] == [20.0]
    # seeds or logs that repeat an evaluation have no more of them
    repeated = watch.update(np.array([0.0, 2, 4, 6, 8, 8, 11]), R[:7])
    assert repeated.looks == () and repeated.interval is None
    # an evaluation that is added before a look's C is in the look
    added = watch.update(np.array([0.0, 1, 2, 4, 6, 8, 8.5, 20]), R)
    assert [look.points for look in added.looks] == [7, 8]


def advice_of(watch: RunWatch, newest: float, C_last: float = 20.0) -> tuple[str, str]:
    C = np.array([0.0, 2, 4, 6, 8, 8.5, C_last])
    result = watch.update(C, np.append(np.full(6, newest), newest))
    return result.advice, result.reason


def test_advice_at_its_limits(monkeypatch) -> None:
    """The end lies within an eighth of the newest reward."""

    def look(C: np.ndarray, R: np.ndarray, C_end: float) -> Look:
        return Look(float(C[-1]), len(C), R[-1], R[-1] - 0.125, R[-1] + 0.125, R[-1] + 0.0625)

    monkeypatch.setattr(run_watch, "make_look", look)
    assert advice_of(RunWatch(80.0, goal=0.625), 0.5)[0] == "go on"  # .625 may be reached
    assert advice_of(RunWatch(80.0, goal=0.626), 0.5)[0] == "stop"
    assert "is at least the goal" in advice_of(RunWatch(80.0, goal=0.375), 0.5)[1]
    assert "may reach the goal" in advice_of(RunWatch(80.0, goal=0.376), 0.5)[1]
    monkeypatch.setattr(run_watch, "FLAT_GAIN", 0.0625)
    assert advice_of(RunWatch(80.0), 0.5)[0] == "go on"  # it may gain just as much
    monkeypatch.setattr(run_watch, "FLAT_GAIN", 0.063)
    assert advice_of(RunWatch(80.0), 0.5)[0] == "stop"
    ended = RunWatch(20.0).update(np.array([0.0, 20.0]), np.array([0.2, 0.3]))
    assert (ended.advice, ended.rollouts_left, ended.next_look) == ("stop", 0.0, None)


def test_what_was_not_learnt_widens_the_interval_and_is_the_forecast(monkeypatch) -> None:
    monkeypatch.setattr(run_watch, "make_look", fake_look)
    C, R = np.array([0.0, 2, 4, 6, 8, 8.5, 20]), np.full(7, 0.3)
    nothing = NothingLearnt(
        level=0.28, interval=(0.25, 0.5), size=EvaluationSize(100, "", is_known=True),
        rollouts=100.0, is_solved=False, text="nothing was learnt",
    )  # fmt: skip
    plain = RunWatch(80.0).update(C, R)
    assert plain.interval == pytest.approx((0.2, 0.4)) and plain.forecast == pytest.approx(0.35)
    told = RunWatch(80.0).update(C, R, nothing)
    assert told.interval == pytest.approx((0.2, 0.5)) and told.forecast == 0.28
    assert told.nothing_learnt == "nothing was learnt"


def test_a_look_is_the_widened_interval_of_the_posterior(monkeypatch) -> None:
    """Its quantiles at 1.25% and 98.75%, 1.3 times as far from the median, within rewards."""
    ends = np.random.default_rng(0).beta(2, 5, 4000)

    class Posterior:
        def rewards(self, C):
            assert C.tolist() == [20.0, 80.0]
            return np.column_stack([ends / 2, ends])

    monkeypatch.setattr(
        run_watch, "fit_with_trial", lambda points: SimpleNamespace(posterior=Posterior())
    )
    look = run_watch.make_look(np.array([0.0, 20.0]), np.array([0.1, 0.2]), 80.0)
    median = np.median(ends)
    low, high = np.quantile(ends, [0.0125, 0.9875])
    assert (look.C, look.points, look.reward) == (20.0, 2, pytest.approx(median))
    assert look.reward_now == pytest.approx(median / 2)
    assert look.low == pytest.approx(max(0.0, median - 1.3 * (median - low)))
    assert look.high == pytest.approx(min(1.0, median + 1.3 * (high - median)))
