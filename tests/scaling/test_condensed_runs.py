"""A long run is fitted by a few points that stand for its evaluations: their means and numbers by
hand, and answers that are those of all evaluations."""

from collections.abc import Mapping

import numpy as np
import pytest

from isojax.scaling.curves import condensed_runs, departures, hierarchical
from isojax.scaling.curves.condensed_runs import MAX_POINTS, condense_run
from isojax.scaling.curves.departures import find_peak, fit_corrections
from isojax.scaling.curves.fit_hierarchical import estimate
from isojax.scaling.curves.hierarchical import pack_sweep, predict_rewards
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.posterior_mode import fit_shape, robust_noise_sd
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.tracks import RunTrack, TracksByCell
from tests.scaling.sweeps import run

C_END = 2e6
CURVES = {(16, 4): (0.62, 1.1, 5e4), (16, 16): (0.72, 1.1, 1.6e5)}  # (A, exponent, C_mid)
LONG = 1000  # evaluations, evenly spaced in C, as a trainer logs its updates


def long_run(n: int = 4, seed: int = 0, noise: float = 0.011, fall: float = 0.0) -> RunTrack:
    """A run of LONG evaluations and one at C = 0; beyond C = 6e5 its reward falls by `fall` a
    decade."""
    rng = np.random.default_rng([n, seed])
    A, exponent, C_mid = CURVES[16, n]
    C = np.linspace(0, C_END, LONG + 1).round()
    R = np.full(len(C), 0.1)
    R[1:] = curve_value(C[1:], 0.1, A, exponent, C_mid)
    R[1:] -= fall * np.maximum(np.log10(C[1:] / 6e5), 0)
    return run(16, n, seed, C, R + noise * rng.standard_normal(len(C)))


def all_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing is condensed."""
    for module in (condensed_runs, hierarchical):
        monkeypatch.setattr(module, "MAX_POINTS", 10**9)
    monkeypatch.setattr(departures, "MAX_CORRECTION_POINTS", 10**9)


def test_a_short_run_stays_as_it_is():
    track = long_run()
    C, R = track.C[:MAX_POINTS], track.R[:MAX_POINTS]
    condensed = condense_run(C, R)
    assert (condensed.x[1:] == np.log10(C[1:])).all() and condensed.x[0] == -np.inf
    assert (condensed.y == R).all() and (condensed.count == 1).all()
    assert (condensed.scatter == 0).all()


def test_points_are_the_means_of_equal_parts_of_log_C():
    """By a loop; the scatter is that around the run's course, which rises within a bin."""
    track = long_run(noise=0.002)
    condensed = condense_run(track.C, track.R)
    assert len(condensed.x) <= MAX_POINTS and condensed.count.sum() == LONG + 1
    assert (condensed.x[0], condensed.y[0], condensed.count[0]) == (-np.inf, track.R[0], 1)

    x, R = np.log10(track.C[1:]), track.R[1:]
    edges = np.linspace(x[0], x[-1], MAX_POINTS)
    point = 1
    for low, high in zip(edges, [*edges[1:-1], np.inf], strict=False):
        inside = (x >= low - 1e-12) & (x < high - 1e-12)
        if not inside.any():
            continue
        assert condensed.count[point] == inside.sum()
        assert condensed.x[point] == pytest.approx(x[inside].mean())
        assert condensed.y[point] == pytest.approx(R[inside].mean(), abs=1e-3)
        point += 1
    assert point == len(condensed.x)
    scatter = np.average(condensed.scatter, weights=condensed.count)
    assert np.sqrt(scatter) == pytest.approx(0.002, rel=0.1)


def test_one_outlier_hardly_moves_its_point():
    track = long_run()
    spoiled = track.R.copy()
    spoiled[500] += 0.5
    before, after = condense_run(track.C, track.R), condense_run(track.C, spoiled)
    moved = np.abs(after.y - before.y)
    # by its share of 6 standard deviations at most, not of 0.5
    i = int(moved.argmax())
    assert 0 < moved[i] < 6 * 0.011 / before.count[i]


def test_the_noise_is_that_of_all_evaluations():
    packed = pack_sweep({(16, 4): [long_run(seed=s) for s in range(2)]})
    fitted = fit_shape(1.0, packed)
    residuals = packed.data.y - predict_rewards(packed.data, fitted.state)
    assert packed.condensed.weight.sum() == packed.data.weight.sum()
    assert fitted.scales.noise_sd == pytest.approx(
        robust_noise_sd(packed.data, residuals, 5), rel=0.02
    )


def test_peaks_are_those_of_all_evaluations(monkeypatch: pytest.MonkeyPatch):
    tracks = [[long_run(seed=s, fall=fall) for s in range(2)] for fall in (0.0, 0.15)]
    level, falling = (find_peak(seeds, 0.1) for seeds in tracks)
    assert level is None and falling == pytest.approx(np.log10(6e5), abs=0.15)
    all_evaluations(monkeypatch)
    assert find_peak(tracks[0], 0.1) is None
    assert find_peak(tracks[1], 0.1) == pytest.approx(falling, abs=0.15)


def test_corrections_are_those_of_all_residuals(monkeypatch: pytest.MonkeyPatch):
    x = np.log10(np.linspace(2e3, C_END, LONG))
    residuals = 0.01 * np.sin(2 * np.pi * x / 1.5)
    residuals = residuals + 0.01 * np.random.default_rng(0).standard_normal(LONG)
    (condensed,) = fit_corrections([x], [residuals], 0.01)
    all_evaluations(monkeypatch)
    (of_all,) = fit_corrections([x], [residuals], 0.01)
    assert condensed is not None and of_all is not None
    assert condensed.log10_C == of_all.log10_C
    grid = np.geomspace(3e3, C_END, 50)
    assert condensed.evaluate(grid) == pytest.approx(of_all.evaluate(grid), abs=3e-4)
    assert condensed.sd == pytest.approx(of_all.sd, rel=0.05)


def mean_quantiles(cells: TracksByCell) -> Mapping[str, np.ndarray]:
    """Of the draws, within the data and up to four times beyond them; the mean over seeds of the
    draws, as a single one moves the ends of intervals by a quarter of their width."""
    quantiles = []
    for seed in range(3):
        draws = estimate(cells, "avg@4", FitOptions(replicates=500, seed=seed)).draws
        assert draws is not None
        rewards = draws.rewards(np.geomspace(1e4, 4 * C_END, 20))  # [Q, J, G]
        quantiles.append(np.quantile(rewards, [0.05, 0.5, 0.95], axis=0))
    low, median, high = np.mean(quantiles, axis=0)
    return {"low": low, "median": median, "high": high}


def test_answers_are_those_of_all_evaluations(monkeypatch: pytest.MonkeyPatch):
    """To within a tenth of their interval."""
    cells = {(16, n): [long_run(n)] for n in (4, 16)}
    condensed = mean_quantiles(cells)
    all_evaluations(monkeypatch)
    of_all = mean_quantiles(cells)
    width = of_all["high"] - of_all["low"]
    for name, values in of_all.items():
        assert (np.abs(condensed[name] - values) < 0.1 * width).all(), name
