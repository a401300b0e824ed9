"""A sweep's time, of its parts, by times that are easy to add up."""

from __future__ import annotations

import pytest

from isojax.core.nouns import Cell
from isojax.core.schedule import Stage
from isojax.launch.checkpoint_plan import CheckpointPlan, DiskRate
from isojax.launch.forecast import (
    Forecast,
    RunOverheads,
    TimePart,
    evaluation_seconds,
    forecast_sweep_times,
    label_rollouts,
    make_forecast,
)
from isojax.launch.time_estimate import ProgramTimes, rollout_rates, sampling_seconds
from tests.launch import twelve_layers

CELL = twelve_layers.CELL.with_settings(eval={"samples": 2, "start": 100})
TIMES = ProgramTimes(
    decode_step=0.1, prefill_block=0.2, gradient_block=0.3, microbatch=0.4, update_end=0.5
)


def seconds_by_part(forecast: Forecast) -> dict[str, float]:
    return {part.name: part.seconds for part in forecast.parts}


def test_the_sweep_takes_what_its_cells_take_side_by_side() -> None:
    """Cells of 100 and 128 rollouts at 2 a second, two seeds each, two at once; and no faster than
    the longest alone."""
    cells = [Cell(B_p, n, seed) for B_p, n in ((5, 20), (8, 16)) for seed in (0, 1)]
    rates = {(5, 20): 2.0, (8, 16): 2.0}
    forecast = make_forecast(cells, 100, 2, rates, RunOverheads(), "timing")
    assert forecast.cell_seconds == {"5x20": 50.0, "8x16": 64.0}
    assert forecast.sweep_seconds == pytest.approx(114.0)
    alone = make_forecast(cells[:1], 100, 4, rates, RunOverheads(), "timing")
    assert alone.sweep_seconds == pytest.approx(50.0)


def test_a_schedule_takes_what_its_stages_take() -> None:
    """80 rollouts at 2 a second, then 64 at 8."""
    cell = Cell(4, 4, 0, "grow", (Stage(0, 4, 4), Stage(70, 4, 8)))
    rates = {(4, 4): 2.0, (4, 8): 8.0}
    overheads = RunOverheads(evaluation_seconds=1.0)
    forecast = make_forecast([cell], 144, 1, rates, overheads, "timing")
    assert forecast.cell_seconds == {"grow": 49.0}


def test_the_parts_add_up_to_the_sweep() -> None:
    """Of four runs of 50 s, two at once, with 6 s of evaluations: 112 s, after 30 s of compiling
    and 20 of labels, before 4 s of checkpoints."""
    cells = [Cell(5, 20, seed) for seed in range(4)]
    overheads = RunOverheads(
        evaluation_seconds=6.0,
        before=[TimePart("compiling", 30.0), TimePart("labels", 20.0)],
        at_ends=[TimePart("checkpoints", 4.0)],
    )
    forecast = make_forecast(cells, 100, 2, {(5, 20): 2.0}, overheads, "timing")
    assert seconds_by_part(forecast) == pytest.approx(
        {"compiling": 30, "labels": 20, "training": 100, "evaluations": 12, "checkpoints": 4}
    )
    assert forecast.sweep_seconds == pytest.approx(166.0)
    assert forecast.cell_seconds == {"5x20": 56.0}


def test_a_forecast_counts_evaluations_and_labels() -> None:
    """Evaluations at C = 0 and 100, each of 300 validation problems with 2 rollouts; labels of
    6,000 problems with 16; the last checkpoint of three runs, 5 MB at 1 MB/s."""
    s = twelve_layers.make_budget(CELL).sizes(twelve_layers.SWEEP)
    labels = label_rollouts(CELL, has_labels=False)
    assert labels == 6000 * 16
    disk = DiskRate(1e6, "a test")
    checkpoints = CheckpointPlan(
        size=5_000_000, kept=2, runs=3, concurrent_runs=1, rate=disk, checkpoint_seconds=None
    )
    forecast = forecast_sweep_times(
        s, [Cell(8, 4, 0)], 100, 1, TIMES, "times", labels=labels, checkpoints=checkpoints
    )
    seconds = seconds_by_part(forecast)
    rate = rollout_rates(s, [(8, 4)], TIMES)[8, 4]
    assert seconds["training"] == pytest.approx(128 / rate)
    assert seconds["evaluations"] == pytest.approx(2 * sampling_seconds(s, 300, 600, TIMES))
    assert seconds["labels"] == pytest.approx(sampling_seconds(s, 6000, 96_000, TIMES))
    assert seconds["compiling"] > 0 and seconds["checkpoints"] == pytest.approx(3 * 5)


def test_labels_that_are_there_take_no_time() -> None:
    assert label_rollouts(CELL, has_labels=True) == 0
    assert label_rollouts(CELL.with_settings(data={"attempts": 0}), has_labels=False) == 0
    mixture = CELL.with_settings(data={"mixture": {"hard": 1.0}})
    assert label_rollouts(mixture, has_labels=False) == 0


def test_extra_sets_are_evaluated_too() -> None:
    """Each as many problems as the validation set: three sets of 300, and a panel of 50."""
    extra = {"ood": "solvers", "letters": "solvers:AB"}
    cell = CELL.with_settings(eval={"extra": extra, "panel": 50})
    s = twelve_layers.make_budget(cell).sizes(twelve_layers.SWEEP)
    assert evaluation_seconds(s, TIMES) == pytest.approx(sampling_seconds(s, 950, 1900, TIMES))
