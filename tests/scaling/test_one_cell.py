"""A sweep of one cell has the curve that fit-curve and watch give its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isojax.scaling.curve_from_file import fit_curve_file
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.sweep_estimate import from_curve_draws
from isojax.scaling.intervals import central_band
from isojax.scaling.result import FitResult
from isojax.scaling.run_watch import RunWatch
from isojax.scaling.tracks import RunTrack
from tests.scaling.sweeps import fit, run

C = np.concatenate([[0.0], np.geomspace(1e3, 1e5, 25).round()])


def make_runs(seeds: int, fall: float = 0.0) -> list[RunTrack]:
    """Runs of one cell from .2 to a plateau of .6; `fall` per decade beyond C = 20,000."""
    rng = np.random.default_rng(4)
    R = np.append(0.2, curve_value(C[1:], 0.2, 0.6, 1.0, 6e3))
    R = R - fall * np.maximum(np.log10(np.maximum(C, 1.0) / 2e4), 0)
    return [run(8, 16, s, C, (R + rng.normal(0, 0.01, len(C))).clip(0, 1)) for s in range(seeds)]


def fit_as_file(tracks: Sequence[RunTrack], folder: Path) -> dict[str, Any]:
    """What `isojax fit-curve` says of the same evaluations."""
    rows = ["seed,C,R"]
    for seed, track in enumerate(tracks):
        rows += [f"{seed},{c!r},{r!r}" for c, r in zip(track.C, track.R, strict=True)]
    file = folder / "points.csv"
    file.write_text("\n".join(rows).replace("np.float64(", "").replace(")", "") + "\n")
    return fit_curve_file(file, "C", "R", group="seed" if len(tracks) > 1 else None).document


def fit_as_sweep(tracks: Sequence[RunTrack], **options: Any) -> FitResult:
    return fit([track.run for track in tracks], **options)


@pytest.mark.parametrize("seeds", [1, 3])
def test_fit_and_fit_curve_give_one_curve_with_one_interval(tmp_path: Path, seeds: int) -> None:
    tracks = make_runs(seeds)
    document, result = fit_as_file(tracks, tmp_path), fit_as_sweep(tracks)
    (curve,) = result.curves
    for name in ("R0", "A", "exponent", "C_mid", "tail"):
        assert getattr(curve, name) == pytest.approx(document[name], rel=1e-9), name
    for name in ("A", "exponent", "C_mid"):
        interval = getattr(curve, f"{name}_interval")
        assert interval == pytest.approx(document["intervals"][name], rel=1e-9), name
    assert curve.determined == document["determined"]

    # Of 1,000 draws the fit keeps 500, within the data and beyond.
    draws = from_curve_draws(result.draws, result.curves)
    band = document["band"]
    low, high = central_band(draws.rewards([row["C"] for row in band])[:, 0])
    assert low == pytest.approx([row["low"] for row in band], abs=2e-3)
    assert high == pytest.approx([row["high"] for row in band], abs=2e-3)

    assert result.forecast is not None
    assert result.forecast.departure_sd == pytest.approx(document["departure_sd"], rel=1e-9)
    error = document["trial"]["predicted_at_end"] - document["trial"]["measured_at_end"]
    assert result.forecast.mean_error == pytest.approx(error, rel=1e-6)


def test_at_its_end_a_watched_run_has_the_reward_of_that_curve(tmp_path: Path) -> None:
    (track,) = tracks = make_runs(1)
    watched = RunWatch(C_end=1e5).update(track.C, track.R)
    last = fit_as_file(tracks, tmp_path)["band"][-1]
    assert watched.forecast == pytest.approx(last["reward"], rel=1e-9)
    assert watched.interval == pytest.approx((last["low"], last["high"]), rel=1e-9)


def test_a_fall_is_left_out_by_both(tmp_path: Path) -> None:
    tracks = make_runs(2, fall=0.2)
    document, result = fit_as_file(tracks, tmp_path), fit_as_sweep(tracks)
    (curve,) = result.curves
    assert document["C_peak"] == curve.C_peak == pytest.approx(2e4, rel=0.3)
    assert any("falls beyond C = " in flag for flag in document["flags"])
    assert any(flag.code == "falls_past_peak" for flag in result.flags)
    assert not document["determined"] and not curve.determined
    band = document["band"]
    assert band[-1]["reward"] == pytest.approx(0.5, abs=0.02)  # where it began to fall
    assert all(row["reward"] == band[-1]["reward"] for row in band if row["C"] > curve.C_peak)


def test_a_stated_run_sd_widens_the_curve_of_one_run() -> None:
    tracks = make_runs(1)
    own, stated = (fit_as_sweep(tracks, run_sd=sd) for sd in (None, 0.05))
    own_low, own_high = own.curves[0].A_interval
    low, high = stated.curves[0].A_interval
    assert high - low > own_high - own_low
    assert high - low == pytest.approx(2 * 1.645 * 0.05, rel=0.4)
    assert stated.intervals.run_sd == pytest.approx(0.05)
    assert own.intervals.run_sd == 0


def test_no_draws_and_other_cells_without_a_curve() -> None:
    short = run(8, 4, 0, C[:3], [0.2, 0.25, 0.3])
    result = fit_as_sweep([*make_runs(1), short], replicates=0)
    assert [curve.key for curve in result.curves] == [(8, 16)]
    assert result.draws is None and result.intervals is None and result.forecast is None
    assert any(flag.code == "no_curve" and "n=4" in flag.text for flag in result.flags)
