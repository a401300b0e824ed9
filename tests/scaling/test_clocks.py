"""Budgets in time and money: every cell spends what its own clock affords."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import astuple

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.allocate.constraints import TimeBudget
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.result import FitResult
from isojax.scaling.run_clock import Clock, run_clock
from tests.refusals import refused
from tests.scaling.documents import document, hill, with_curve


def timed(
    clocks: Mapping[int, tuple[float, float]], devices: int = 1, per_efold: float = 0.0
) -> FitResult:
    """Hand-made curves whose cells of these n have clocks of this startup and these seconds per
    rollout, and of these seconds of evaluations while C grows e-fold, from C = 1000 on."""
    fit = document()
    rest = (per_efold, 1000.0, devices)
    times = {n: Clock(*map(np.float64, (*clock, *rest))) for n, clock in clocks.items()}
    runs = tuple(run.model_copy(update={"clock": times.get(run.n)}) for run in fit.runs)
    return fit.model_copy(update={"runs": runs})


EQUAL = dict.fromkeys((4, 16, 64), (0.0, 0.001))


def test_seconds_are_rollouts_where_all_cells_are_equally_fast():
    fit = timed(EQUAL)
    of_time, of_rollouts = recommend(fit, TimeBudget(100)), recommend(fit, 1e5)
    assert of_time.allocation == of_rollouts.allocation and of_time.allocation.M == 390
    for name in (
        "expected_reward",
        "interval",
        "regret",
        "n_probability",
        "equal_n",
        "times_measured",
        "risks",
    ):
        assert getattr(of_time, name) == getattr(of_rollouts, name)
    assert of_time.hours == of_rollouts.hours == pytest.approx(390 * 256 * 0.001 / 3600)
    assert of_time.reasons[0].startswith(
        "100 s of wall clock are 100,000 rollouts in the fastest allowed cell"
    )


def test_a_slow_cell_gets_fewer_rollouts_and_may_lose():
    """n = 16 leads at equal C: .7 against .6. Where its rollouts take 20 times as long, it affords
    5,000 of 1e5."""
    r = recommend(timed({4: (0, 0.001), 16: (0, 0.02), 64: (0, 0.1)}), TimeBudget(100))
    assert r.allocation.n == 4 and r.expected_reward == pytest.approx(
        hill(0.6, 1, 2e3, 1e5), abs=1e-3
    )
    by_n = {cell.n: cell for cell in r.measured_cells if cell.B_p == 16}
    assert by_n[16].M == 5000 // 256 and by_n[16].reward == pytest.approx(
        hill(0.7, 1, 8e3, 5000), abs=2e-3
    )
    assert by_n[16].hours == pytest.approx(100 / 3600)


def test_the_start_takes_its_time_and_devices_share_the_bill():
    fit = timed(dict.fromkeys((4, 16, 64), (10.0, 0.001)), devices=4)
    assert recommend(fit, TimeBudget(110)).allocation.M == 390
    r = recommend(fit, TimeBudget(440, of_devices=True))
    assert r.allocation.M == 390 and r.hours is not None
    assert r.hours == pytest.approx(
        (10 + 390 * 256 * 0.001) / 3600
    ) and r.device_hours == pytest.approx(4 * r.hours)
    assert r.reasons[0].startswith("440 s of all devices are 100,000 rollouts")


def test_fixed_values_hold_in_time_too():
    fit = timed(EQUAL)
    assert recommend(fit, TimeBudget(100), fix={"M": 100}).allocation.M == 100
    assert recommend(fit, TimeBudget(100), B_max=64).allocation.B == 64
    with refused():
        recommend(fit, TimeBudget(100), fix={"B": 100})


@pytest.mark.parametrize(
    "limits",
    [
        {"fix": {"B": 100}},
        {"B_max": 300, "fix": {"B": 100}},
        {"B_max": 63},
    ],
)
def test_a_refusal_names_the_seconds_and_the_limits(limits):
    with refused():
        recommend(timed(EQUAL), TimeBudget(100), **limits)


def test_the_reason_for_M_has_the_rollouts_that_the_chosen_cells_clock_affords():
    """n = 4 is twice as fast and affords 200,000; n = 16 is chosen, of 100,000."""
    r = recommend(timed({4: (0, 0.0005), 16: (0, 0.001), 64: (0, 0.001)}), TimeBudget(100))
    assert r.allocation.n == 16 and r.reasons[0].startswith(
        "100 s of wall clock are 200,000 rollouts in the fastest"
    )
    (reason,) = (reason for reason in r.reasons if reason.startswith("M = "))
    assert (
        reason == "M = floor(100,000 / (n B_p)) = 390"
        and r.allocation.M == 100_000 // (16 * 16) == 390
    )


def test_the_chosen_cell_is_refused_beyond_four_times_the_measured_budget():
    """In 100 s n = 4 affords 1e6, ten times the data, and n = 16, which is better even so, 1e5."""
    assert (
        recommend(
            timed({4: (0, 0.0001), 16: (0, 0.001), 64: (0, 0.001)}), TimeBudget(100)
        ).times_measured
        == 1
    )
    fit = timed({4: (0, 0.001), 16: (0, 0.0001), 64: (0, 0.001)})
    with refused():
        recommend(fit, TimeBudget(100))
    assert recommend(fit, TimeBudget(100), fix={"B": 64}).allocation.M == 100_000 // 64
    assert recommend(fit, TimeBudget(100), extrapolate=True).times_measured == 10


def test_evaluations_take_time_evenly_in_log_C():
    """10 s per e-fold from C = 1000 on: 46.05 s to C = 1e5, which with 100 s of rollouts are 146.05
    s."""
    fit = timed(dict.fromkeys((4, 16, 64), (0.0, 0.001)), per_efold=10.0)
    r = recommend(fit, TimeBudget(146.06))
    assert r.allocation.M == 390 and r.reasons[0].startswith("146.06 s of wall clock are 100,00")
    assert r.hours == pytest.approx((99_840 * 0.001 + 10 * np.log(99.84)) / 3600)
    assert recommend(fit, TimeBudget(0.9)).allocation.M == 900 // 64  # before the first evaluation


def test_cells_without_a_clock_are_left_out():
    r = recommend(timed({4: (0, 0.001)}), TimeBudget(100))
    assert r.allocation.n == 4 and {cell.n for cell in r.measured_cells} == {4}
    left_out = re.search("; not compared, as they have no clock: (.*)", r.reasons[0])
    assert left_out is not None and sorted(left_out[1].split(", ")) == [
        "16x16",
        "16x64",
        "64x16",
        "64x64",
    ]
    assert (
        recommend(timed(EQUAL), TimeBudget(100)).reasons[0].endswith("by the clocks of these runs")
    )
    r = recommend(timed({4: (0, 0.001)}), 1e5)
    assert (r.allocation.n, r.hours, r.device_hours) == (16, None, None)


@pytest.mark.parametrize(
    ("fit", "seconds"),
    [
        (
            document(),
            100,
        ),
        (
            timed(EQUAL).model_copy(update={"mode": "paper"}),
            100,
        ),
        (timed(EQUAL), 0.01),
        (timed(EQUAL), 1e4),
        (timed(EQUAL), float("nan")),
        (timed(EQUAL), -1.0),
    ],
)
def test_what_is_refused(fit, seconds):
    with refused():
        recommend(fit, TimeBudget(seconds))


def test_a_peak_stops_a_run_in_time_too():
    fit = with_curve(timed(EQUAL), (16, 16), C_peak=9e4)
    assert any("stop early" in reason for reason in recommend(fit, TimeBudget(100)).reasons)


def record(C: tuple[int, ...], hours: tuple[float, ...], devices: int) -> RunRecord:
    points = tuple(EvalPoint(c, c // 8, c, 0, {"avg@4": 0.5}) for c in C)
    return RunRecord(Cell(2, 4, 0), points, device_hours=hours, devices=devices)


def test_the_clock_of_a_run():
    """100 s until the first evaluation after training, of which 2 s a rollout; the rest compiled
    programs."""
    hours = tuple(2 * s / 3600 for s in (40.0, 100.0, 116.0, 148.0))
    clock = run_clock(record((0, 8, 16, 32), hours, 2))
    assert clock is not None and astuple(clock) == pytest.approx((84.0, 2.0, 0.0, 8, 2))
    # a rate needs two evaluations after training began
    assert run_clock(record((0, 8), hours[:2], 2)) is None
    assert run_clock(record((0, 8, 16), (), 1)) is None
    assert run_clock(record((0, 8, 16), (0.0, 0.1, 0.1), 1)) is None  # a clock that stands


def test_evaluations_spaced_in_log_C_have_a_clock_of_their_own():
    """Each takes .5 s, and a rollout .001 s: while C grows e-fold, 1.25 evaluations at this
    spacing."""
    C = [round(1000 * np.exp(0.8 * i)) for i in range(9)]
    hours = tuple((5 + 0.001 * c + 0.5 * i) / 3600 for i, c in enumerate(C))
    clock = run_clock(record((0, *C), (0.0, *hours), 1))
    assert clock is not None and astuple(clock) == pytest.approx(
        (5.0, 0.001, 0.625, 1000, 1), rel=1e-3
    )
    assert float(clock.seconds(C[-1])) == pytest.approx(3600 * hours[-1])
    evenly = [1000 * i for i in range(1, 10)]
    clock = run_clock(record((0, *evenly), (0.0, *((1.5 * i + 5) / 3600 for i in range(1, 10))), 1))
    assert clock is not None and astuple(clock) == pytest.approx((5.0, 0.0015, 0.0, 1000, 1))


def test_a_cell_that_was_not_measured_has_no_clock():
    """The nearest cell's seconds of a rollout are not those of a batch of 12: neither hours nor a
    price follow."""
    r = recommend(timed(EQUAL), 1e5, fix={"B": 12})
    assert (r.allocation.B_p, r.allocation.n) == (3, 4) and (r.hours, r.device_hours) == (
        None,
        None,
    )


@pytest.mark.parametrize("last", [16.0, 16.01, 16.2])
def test_few_evaluations_do_not_tell_their_time_from_that_of_rollouts(last):
    """One slow interval among three evaluations: the whole time grows with C."""
    hours = tuple(seconds / 3600 for seconds in (0.0, 10.0, 13.0, last))
    clock = run_clock(record((0, 1000, 2000, 4000), hours, 1))
    assert (
        clock is not None
        and clock.per_efold == 0
        and float(clock.rollouts(60.0)) == pytest.approx(26_000, rel=0.05)
    )


def test_of_a_time_that_does_not_grow_with_C_a_tenth_does():
    C = [1000 * 2**i for i in range(9)]
    clock = run_clock(record((0, *C), (0.0, *((5 + i) / 3600 for i in range(9))), 1))
    assert clock is not None and float(clock.per_rollout) == pytest.approx(0.1 * 8 / 255_000)
    assert float(clock.seconds(256_000.0)) == pytest.approx(13, rel=0.02)
