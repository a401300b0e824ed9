"""The wall clock of imported runs: seconds of each step, seconds so far, Unix times; which one a
column is."""

from __future__ import annotations

import pytest
from tensorboardX import SummaryWriter

from isojax.runs.logs.import_logs import read_logs
from isojax.runs.logs.run_seconds import check_durations, seconds_so_far
from tests.refusals import refused

STARTUP, STEP_SECONDS = 60.0, 164.0
EVALUATIONS = range(0, 401, 50)
HOURS = [8 * (STARTUP + STEP_SECONDS * step) / 3600 for step in EVALUATIONS]  # of 8 devices
MAPS = "n=8,B_p=32,reward=acc,devices=8"


def log(column: str, seconds: list[float]) -> str:
    rows = zip(EVALUATIONS, seconds, strict=True)
    return f"step,acc,{column}\n" + "".join(
        f"{step},{0.1 + step / 1000},{value}\n" for step, value in rows
    )


SO_FAR = [STARTUP + STEP_SECONDS * step for step in EVALUATIONS]


@pytest.mark.parametrize(
    ("column", "maps"),
    [
        ("seconds", ",elapsed_seconds=seconds"),
        ("_runtime", ""),
        ("elapsed_seconds", ""),
        ("wall_time", ""),
    ],
)
def test_seconds_so_far(logged, column, maps):
    (run,) = logged("csv", log(column, SO_FAR), MAPS + maps).runs
    assert run.device_hours == pytest.approx(HOURS) and run.devices == 8


@pytest.mark.parametrize("column", ["Wall time", "wall_time", "_runtime"])
def test_unix_times_count_from_the_first(logged, column):
    (run,) = logged("csv", log(column, [1.7e9 + x for x in SO_FAR]), MAPS).runs
    assert run.device_hours == pytest.approx([hours - HOURS[0] for hours in HOURS])


@pytest.mark.parametrize("column", ["seconds", "step_seconds"])
def test_seconds_so_far_are_no_seconds_of_a_step(logged, column):
    with refused():
        logged("csv", log(column, SO_FAR), f"{MAPS},step_seconds={column}")


def test_seconds_of_each_step_are_summed(logged):
    """50 steps between two evaluations, each of 164 s or so; and not the other way round."""
    durations = [0.0] + [STEP_SECONDS + (-1) ** i for i in range(1, len(EVALUATIONS))]
    (run,) = logged("csv", log("secs", durations), MAPS + ",step_seconds=secs").runs
    assert run.device_hours[-1] == pytest.approx(8 * 400 * STEP_SECONDS / 3600, rel=0.02)
    with refused(where="log.csv, line 2: elapsed_seconds (column secs)"):
        logged("csv", log("secs", durations), MAPS + ",elapsed_seconds=secs")
    with refused(where="log.csv, line 2"):
        logged("csv", log("secs", durations), MAPS + ",elapsed_seconds=secs,step_seconds=secs")


@pytest.mark.parametrize(
    ("seconds", "outcome"),
    [
        ([30.0, 31.0, 30.5, 32.0], "fine"),
        ([30.0, 31.0, 31.5], "note"),  # so do three durations in six
        ([30.0, 60.0, 90.0], "refused"),
        ([30.0, 31.0, 32.0, 33.0, 34.0, 35.0], "refused"),
        ([30.0, 90.0], "note"),
        ([30.0, 31.0], "fine"),
    ],
)
def test_what_rises_at_every_step(seconds, outcome):
    if outcome == "refused":
        with refused():
            check_durations(seconds, "here")
    else:
        assert bool(check_durations(seconds, "here")) == (outcome == "note")


def test_a_process_that_was_started_again_counts_on():
    """Its clock begins again at 0: the seconds before the fall stay."""
    seconds, notes = seconds_so_far([0, 1, 2, 3, 4, 5], [10, 20, 30, 5, 15, 25], "here")
    assert seconds == [10, 20, 30, 35, 45, 55] and notes == []


def test_a_pause_between_unix_times_is_noted():
    times = [1.7e9 + x for x in (0, 60, 120, 180, 90_180, 90_240)]
    seconds, (note,) = seconds_so_far([0, 1, 2, 3, 4, 5], times, "here")
    assert seconds == [0, 60, 120, 180, 90_180, 90_240]
    assert "90,000 s pass between 3 and 4, 60 s as a rule" in note


def test_a_step_without_a_time_is_between_its_neighbours():
    assert seconds_so_far([0, 10, 20, 40], [0.0, None, 20.0, 40.0], "here")[0] == [0, 10, 20, 40]


def test_milliseconds_are_refused():
    with refused(where="here"):
        seconds_so_far([0, 1], [1.7e12, 1.7e12 + 60_000], "here")


def test_a_known_name_of_something_else_is_left_alone(logged):
    (run,) = logged("csv", log("wall_time", [5.0] * len(EVALUATIONS)), MAPS).runs
    assert run.device_hours == ()


def test_without_the_devices_it_is_said_what_is_missing(logged):
    maps = MAPS.removesuffix(",devices=8")
    result = logged("csv", log("seconds", SO_FAR), maps + ",elapsed_seconds=seconds")
    assert (
        not result.runs[0].device_hours
        and "no device hours without the devices: --map devices" in result.notes[0]
    )
    result = logged("csv", log("device_hours", HOURS), maps)
    assert result.runs[0].device_hours == pytest.approx(HOURS)
    assert "device hours without the devices count as those of one" in result.notes[0]


def test_the_times_of_tensorboards_events(tmp_path):
    with SummaryWriter(str(tmp_path / "n8")) as writer:
        for step in range(4):
            writer.add_scalar("train/loss", 1.0, step, walltime=1.7e9 + 90 * step)
            writer.add_scalar("val/acc", 0.1 + step / 10, step, walltime=1.7e9 + 100 * step)
    (run,) = read_logs(
        [tmp_path], None, {"n": "n{}", "B_p": "8", "reward": "val/acc", "devices": "4"}
    ).runs
    assert run.device_hours == pytest.approx([4 * 100 * step / 3600 for step in range(4)])
