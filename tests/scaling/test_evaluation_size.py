"""How many rollouts an evaluation has, by its rewards alone."""

import numpy as np
import pytest

from isojax.scaling.evaluation_size import size_by_step
from isojax.scaling.tracks import FloatArray
from tests.scaling.sweeps import fit, run


def shares(rollouts: int, p: float = 0.25, runs: int = 6) -> list[FloatArray]:
    rng = np.random.default_rng(rollouts)
    return [rng.binomial(rollouts, p, 10) / rollouts for _ in range(runs)]


def as_float32(rewards: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Each k / N as one of the three nearest numbers of float32, as sums in another order give
    it."""
    nearest = rewards.astype(np.float32)
    above = np.nextafter(nearest, np.float32(1))
    below = np.nextafter(nearest, np.float32(0))
    return np.choose(rng.integers(0, 3, len(rewards)), [nearest, above, below]).astype(np.float64)


@pytest.mark.parametrize("rollouts", [20, 128, 500, 1319, 5276])
def test_rounding_to_float32_is_no_step(rollouts):
    rng = np.random.default_rng(1)
    printed = [as_float32(rewards, rng) for rewards in shares(rollouts)]
    assert size_by_step(*printed).rollouts == pytest.approx(rollouts, rel=1e-3)


@pytest.mark.parametrize(
    ("rollouts", "decimals"), [(500, 3), (500, 4), (128, 4), (1319, 5), (200, 6)]
)
def test_rounded_shares_have_their_common_step(rollouts, decimals):
    printed = [np.round(rewards, decimals) for rewards in shares(rollouts)]
    assert size_by_step(*printed).rollouts == pytest.approx(rollouts, rel=2e-3)


def test_a_common_step_may_be_smaller_than_any_that_was_seen():
    """Multiples of .002, of which no two are closer than .008."""
    size = size_by_step(np.array([0.0, 0.008, 0.114, 0.184, 0.244, 0.31]))
    assert size.rollouts == pytest.approx(500)


def test_a_constant_with_noise_of_rounding_is_a_constant():
    rng = np.random.default_rng(0)
    size = size_by_step(*[1 / 3 + rng.uniform(0, 8e-7, 10) for _ in range(4)])
    assert size.rollouts == 100 and size.source.startswith("assumed")


def test_graded_rewards_count_as_what_scatters_as_they_do():
    """Of standard deviation .01 around .42, to 6 decimals: .42 * .58 / .01**2 = 2,436 rollouts."""
    rng = np.random.default_rng(3)
    size = size_by_step(*[np.round(rng.normal(0.42, 0.01, 40), 6) for _ in range(6)])
    assert size.rollouts == pytest.approx(2436, rel=0.25)
    assert "scatter" in size.source


def test_a_sweep_of_graded_noise_claims_no_rollouts_that_nobody_made():
    rng = np.random.default_rng(3)
    C = np.geomspace(1e3, 1e5, 10).round()
    runs = [
        run(32, n, s, C, np.round(rng.normal(0.42, 0.01, 10), 6)).run
        for n in (4, 8, 16)
        for s in range(2)
    ]
    document = fit(runs, replicates=20)
    assert document.nothing_learnt
    rollouts = int(
        document.evaluation_size.split("counts as ")[1].split(" rollouts")[0].replace(",", "")
    )
    assert 1000 < rollouts < 6000
