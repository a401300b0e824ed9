"""A known peak is found, and none in curves that only rise. A known bump is found and none in white
noise; it fades outside the knots; its draws.
"""

import numpy as np
import pytest

from isojax.scaling.curves.departures import find_peak, fit_corrections
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.result import FADE_DECADES, ResidualCorrection
from tests.scaling.sweeps import run
from tests.scaling.synthetic_curves import Declining, Hill

C = np.geomspace(1e3, 1e5, 30).round()


def seeds(curve, count=2, noise=0.01, seed=0, points=C):
    rng = np.random.default_rng(seed)
    return [
        run(
            16,
            8,
            s,
            points,
            np.clip(curve(points) + noise * rng.standard_normal(len(points)), 0, 1),
        )
        for s in range(count)
    ]


@pytest.mark.parametrize("rate", [0.08, 0.15])
def test_a_known_peak_is_found(rate):
    true = Declining(Hill(0.2, 0.6, 1.2, 3e3), 2e4, rate)
    for seed in range(5):
        result = find_peak(seeds(true.at, seed=seed), 0.2)
        assert result is not None and result == pytest.approx(np.log10(true.C_peak), abs=0.35)


def test_without_noise_it_is_found_to_a_place():
    true = Declining(Hill(0.2, 0.6, 1.2, 3e3), 2e4, 0.1)
    assert find_peak(seeds(true.at, noise=0.0), 0.2) == pytest.approx(
        np.log10(true.C_peak), abs=0.2
    )


def test_rising_curves_have_none():
    """100 rising curves of either shape, their plateaus reached or not: fewer than 3 false
    alarms."""
    false = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        A = rng.uniform(0.4, 0.8)
        B = rng.uniform(0.6, 1.6)
        mid = 10 ** rng.uniform(3.2, 4.8)
        tail = float(rng.integers(2))
        count = int(rng.integers(1, 4))
        false += (
            find_peak(
                seeds(
                    lambda c, t=tail, p=(A, B, mid): curve_value(c, 0.2, *p, t),
                    count,
                    seed=1000 + seed,
                ),
                0.2,
            )
            is not None
        )
    assert false < 3


def test_a_flat_stretch_and_few_points_have_none():
    assert find_peak(seeds(lambda c: np.full(len(c), 0.5)), 0.2) is None
    true = Declining(Hill(0.2, 0.6, 1.2, 3e3), 2e4, 0.3)
    # 10 points: less than 12 and one a seed
    assert find_peak(seeds(true.at, count=1, points=C[::3]), 0.2) is None


X = [np.sort(np.random.default_rng(i).uniform(3, 5, 60)) for i in range(4)]
SD = 0.01


def bump(x):
    return 0.02 * np.sin(2 * np.pi * x / 1.5)


def test_a_sine_is_recovered():
    rng = np.random.default_rng(0)
    result = fit_corrections(X, [bump(x) + SD * rng.standard_normal(60) for x in X], SD)
    inner, hits = np.linspace(3.2, 4.8, 30), []
    for correction in result:
        assert correction is not None
        assert (
            correction.evaluate(10**inner) == pytest.approx(bump(inner), abs=0.014)
            and np.abs(correction.evaluate(10**inner) - bump(inner)).mean() < 0.005
        )
        knots = np.array(correction.log10_C)
        hits += list(np.abs(correction.value - bump(knots)) < 1.645 * np.array(correction.sd))
    assert np.mean(hits) > 0.75  # nominally .9 of 44 correlated knots


def test_there_is_none_in_white_noise():
    false = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        false += fit_corrections(X, [SD * rng.standard_normal(60) for _ in X], SD)[0] is not None
    assert false < 3


def test_without_noise_or_points_there_is_none():
    assert (
        fit_corrections(X[:1], [bump(X[0])], 0.0) == [None] and fit_corrections([], [], 0.01) == []
    )


def test_it_fades_to_nothing_by_hand():
    correction = ResidualCorrection((3.0, 4.0), (0.02, -0.01), (0.001, 0.002))
    half = FADE_DECADES / 2
    at = correction.evaluate(
        10 ** np.array([3 - FADE_DECADES, 3 - half, 3.0, 3.5, 4.0, 4 + half, 4 + FADE_DECADES, 9.0])
    )
    assert at == pytest.approx([0, 0.01, 0.02, 0.005, -0.01, -0.005, 0, 0])


def test_draws_scatter_about_the_correction_by_its_sd():
    correction = ResidualCorrection((3.0, 3.2, 3.4), (0.02, 0.0, -0.01), (0.001, 0.002, 0.004))
    C = [1e3, 10**3.2, 10**3.4, 1e6]
    R = correction.sample(C, 4000, (16, 8))
    assert R.mean(0) == pytest.approx([0.02, 0.0, -0.01, 0.0], abs=2e-4)
    assert R.std(0) == pytest.approx([0.001, 0.002, 0.004, 0.0], rel=0.05)
    correlation = np.corrcoef(R[:, :3].T)
    assert correlation[0, 1] == pytest.approx(0.7, abs=0.03) and correlation[0, 2] == pytest.approx(
        0.49, abs=0.05
    )
    assert (correction.sample(C, 4000, (16, 8)) == R).all()
    assert (correction.sample(C, 4000, (16, 16))[:, :3] != R[:, :3]).all()
