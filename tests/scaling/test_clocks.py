"""Budgets in time and money: every cell spends what its own clock affords."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from isojax.core.errors import InputError
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.allocate.constraints import TimeBudget
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import run_clock
from tests.scaling.documents import document, hill, with_curve

Clock = tuple[float, float]  # startup in seconds, seconds per rollout


def timed(clocks: Mapping[int, Clock], devices: int = 1) -> FitResult:
    """Hand-made curves whose cells of these n have clocks."""
    fit = document()
    names = ("startup_seconds", "seconds_per_rollout")
    times = {n: dict(zip(names, clock, strict=True)) | {"devices": devices} for n, clock in clocks.items()}
    runs = tuple(run.model_copy(update=times.get(run.n, {})) for run in fit.runs)
    return fit.model_copy(update={"runs": runs})


EQUAL = dict.fromkeys((4, 16, 64), (0.0, 0.001))


def test_seconds_are_rollouts_where_all_cells_are_equally_fast():
    fit = timed(EQUAL)
    of_time, of_rollouts = recommend(fit, TimeBudget(100)), recommend(fit, 1e5)
    assert of_time.allocation == of_rollouts.allocation and of_time.allocation.M == 390
    for name in ("expected_reward", "interval", "regret", "n_probability", "equal_n", "times_measured", "risks"):
        assert getattr(of_time, name) == getattr(of_rollouts, name)
    assert of_time.hours == of_rollouts.hours == pytest.approx(390 * 256 * 0.001 / 3600)
    assert of_time.reasons[0].startswith("100 s of wall clock are 100,000 rollouts in the fastest allowed cell")


def test_a_slow_cell_gets_fewer_rollouts_and_may_lose():
    """n = 16 leads at equal C: .7 against .6. Where its rollouts take 20 times as long, it affords 5,000 of 1e5."""
    r = recommend(timed({4: (0, 0.001), 16: (0, 0.02), 64: (0, 0.1)}), TimeBudget(100))
    assert r.allocation.n == 4 and r.expected_reward == pytest.approx(hill(0.6, 1, 2e3, 1e5), abs=1e-3)
    by_n = {cell.n: cell for cell in r.measured_cells if cell.B_p == 16}
    assert by_n[16].M == 5000 // 256 and by_n[16].reward == pytest.approx(hill(0.7, 1, 8e3, 5000), abs=2e-3)
    assert by_n[16].hours == pytest.approx(100 / 3600)


def test_the_start_takes_its_time_and_devices_share_the_bill():
    fit = timed(dict.fromkeys((4, 16, 64), (10.0, 0.001)), devices=4)
    assert recommend(fit, TimeBudget(110)).allocation.M == 390
    r = recommend(fit, TimeBudget(440, of_devices=True))
    assert r.allocation.M == 390 and r.hours is not None
    assert r.hours == pytest.approx((10 + 390 * 256 * 0.001) / 3600) and r.device_hours == pytest.approx(4 * r.hours)
    assert r.reasons[0].startswith("440 s of all devices are 100,000 rollouts")


def test_fixed_values_hold_in_time_too():
    fit = timed(EQUAL)
    assert recommend(fit, TimeBudget(100), fix={"M": 100}).allocation.M == 100
    assert recommend(fit, TimeBudget(100), B_max=64).allocation.B == 64
    with pytest.raises(InputError, match="no stable measured cell agrees with this budget and these limits"):
        recommend(fit, TimeBudget(100), fix={"B": 100})


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"fix": {"B": 100}}, "100 s, B = 100"),
        ({"B_max": 300, "fix": {"B": 100}}, "100 s, B_max = 300, B = 100"),
        ({"B_max": 63}, "100 s, B_max = 63"),
    ],
)
def test_a_refusal_names_the_seconds_and_the_limits(limits, named):
    with pytest.raises(InputError, match=rf"this budget and these limits \({named}\), and only clocks"):
        recommend(timed(EQUAL), TimeBudget(100), **limits)


def test_the_reason_for_M_has_the_rollouts_that_the_chosen_cells_clock_affords():
    """n = 4 is twice as fast and affords 200,000; n = 16 is chosen, of 100,000."""
    r = recommend(timed({4: (0, 0.0005), 16: (0, 0.001), 64: (0, 0.001)}), TimeBudget(100))
    assert r.allocation.n == 16 and r.reasons[0].startswith("100 s of wall clock are 200,000 rollouts in the fastest")
    (reason,) = (reason for reason in r.reasons if reason.startswith("M = "))
    assert reason == "M = floor(100,000 / (n B_p)) = 390" and r.allocation.M == 100_000 // (16 * 16) == 390


def test_the_fastest_cell_counts_for_the_limit_only_where_it_may_be_chosen():
    fit = timed({4: (0, 0.0001), 16: (0, 0.001), 64: (0, 0.001)})  # in 100 s n = 4 affords 1e6, ten times the data
    with pytest.raises(InputError, match="10 times the largest measured C"):
        recommend(fit, TimeBudget(100))
    assert recommend(fit, TimeBudget(100), fix={"B": 1024}).allocation.M == 97


def test_cells_without_a_clock_are_left_out():
    r = recommend(timed({4: (0, 0.001)}), TimeBudget(100))
    assert r.allocation.n == 4 and {cell.n for cell in r.measured_cells} == {4}
    left_out = re.search("; not compared, as they have no clock: (.*)", r.reasons[0])
    assert left_out is not None and sorted(left_out[1].split(", ")) == ["16x16", "16x64", "64x16", "64x64"]
    assert recommend(timed(EQUAL), TimeBudget(100)).reasons[0].endswith("by the clocks of these runs")
    r = recommend(timed({4: (0, 0.001)}), 1e5)
    assert (r.allocation.n, r.hours, r.device_hours) == (16, None, None)


@pytest.mark.parametrize(
    ("fit", "seconds", "match"),
    [
        (document(), 100, r"no run of this fit says how long its steps took \(timing.jsonl, or the log's own"),
        (timed(EQUAL).model_copy(update={"mode": "paper"}), 100, "a budget in time, of a fit in mode paper"),
        (timed(EQUAL), 0.01, "no stable measured cell agrees with this budget"),
        (timed(EQUAL), 1e4, "C = 1e\\+07 is 100 times the largest measured C"),
        (timed(EQUAL), float("nan"), "a budget of nan seconds; expected more than 0"),
        (timed(EQUAL), -1.0, "a budget of -1 seconds; expected more than 0"),
    ],
)
def test_what_is_refused(fit, seconds, match):
    with pytest.raises(InputError, match=match):
        recommend(fit, TimeBudget(seconds))


def test_a_peak_stops_a_run_in_time_too():
    fit = with_curve(timed(EQUAL), (16, 16), C_peak=9e4)
    assert any("stop early" in reason for reason in recommend(fit, TimeBudget(100)).reasons)


def record(C: tuple[int, ...], hours: tuple[float, ...], devices: int) -> RunRecord:
    points = tuple(EvalPoint(c, c // 8, c, 0, {"avg@4": 0.5}) for c in C)
    return RunRecord(Cell(2, 4, 0), points, device_hours=hours, devices=devices)


def test_the_clock_of_a_run():
    """100 s until the first evaluation after training, of which 2 s a rollout; the rest compiled programs."""
    hours = tuple(2 * s / 3600 for s in (40.0, 100.0, 116.0, 148.0))
    assert run_clock(record((0, 8, 16, 32), hours, 2)) == pytest.approx((84.0, 2.0))
    assert run_clock(record((0, 8), hours[:2], 2)) is None  # a rate needs two evaluations after training began
    assert run_clock(record((0, 8, 16), (), 1)) is None
    assert run_clock(record((0, 8, 16), (0.0, 0.1, 0.1), 1)) is None  # a clock that stands


def test_a_cell_that_was_not_measured_has_no_clock():
    """The nearest cell's seconds of a rollout are not those of a batch of 12: neither hours nor a price follow."""
    r = recommend(timed(EQUAL), 1e5, fix={"B": 12})
    assert (r.allocation.B_p, r.allocation.n) == (3, 4) and (r.hours, r.device_hours) == (None, None)
