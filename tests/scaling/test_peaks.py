"""A known peak is found, and none in curves that only rise."""

import numpy as np
import pytest

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.peaks import find_peak
from tests.scaling.sweeps import run
from tests.scaling.synthetic_curves import Declining, Hill

C = np.geomspace(1e3, 1e5, 30).round()


def seeds(curve, count=2, noise=0.01, seed=0, points=C):
    rng = np.random.default_rng(seed)
    return [
        run(16, 8, s, points, np.clip(curve(points) + noise * rng.standard_normal(len(points)), 0, 1))
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
    assert find_peak(seeds(true.at, noise=0.0), 0.2) == pytest.approx(np.log10(true.C_peak), abs=0.2)


def test_rising_curves_have_none():
    """100 rising curves of either shape, their plateaus reached or not: fewer than 3 false alarms."""
    false = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        A, B, mid = rng.uniform(0.4, 0.8), rng.uniform(0.6, 1.6), 10 ** rng.uniform(3.2, 4.8)
        tail = float(rng.integers(2))
        count = int(rng.integers(1, 4))
        false += (
            find_peak(seeds(lambda c, t=tail, p=(A, B, mid): curve_value(c, 0.2, *p, t), count, seed=1000 + seed), 0.2)
            is not None
        )
    assert false < 3


def test_a_flat_stretch_and_few_points_have_none():
    assert find_peak(seeds(lambda c: np.full(len(c), 0.5)), 0.2) is None
    true = Declining(Hill(0.2, 0.6, 1.2, 3e3), 2e4, 0.3)
    assert find_peak(seeds(true.at, count=1, points=C[::3]), 0.2) is None  # 10 points: less than 12 and one a seed
