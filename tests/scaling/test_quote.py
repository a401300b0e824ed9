"""What a reward costs: the inverse of known draws."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.allocate.quote import first_budgets, quote
from isojax.scaling.curves.sweep_estimate import MAX_EXTRAPOLATION
from tests.refusals import refused
from tests.scaling.documents import altered, document, without_draws

CURVE = {(16, 4): (0.6, 1.0, 2e3)}  # R = .2 + .4 C / (C + 2e3)


def without_luck(fit):
    return altered(fit, intervals=fit.intervals.model_copy(update={"run_sd": 0.0}))


def inverse(reward: float, A: float = 0.6, mid: float = 2e3) -> float:
    share = (reward - 0.2) / (A - 0.2)
    return mid * share / (1 - share)


@pytest.mark.parametrize("reward", [0.3, 0.4, 0.5, 0.58])
def test_a_known_curve_is_inverted(reward):
    (cell,) = quote(without_luck(document(CURVE, sd=0.0, replicates=50)), reward).cells
    assert cell.C == pytest.approx(inverse(reward), rel=1e-3)
    assert cell.low == pytest.approx(cell.high) and cell.p_never == 0
    assert cell.M == -(-cell.C // 64) and not cell.extrapolated


def test_the_interval_is_that_of_the_plateaus_and_of_the_runs_luck():
    """A has a standard deviation of .02: the 5% of C is that of A + 1.645 sd."""
    fit = document(CURVE, sd=0.02, replicates=20_000)
    (cell,) = quote(without_luck(fit), 0.5).cells
    assert cell.C == pytest.approx(inverse(0.5), rel=0.01)
    assert cell.low == pytest.approx(inverse(0.5, A=0.6 + 1.645 * 0.02), rel=0.02)
    assert cell.high == pytest.approx(inverse(0.5, A=0.6 - 1.645 * 0.02), rel=0.02)
    (lucky,) = quote(fit, 0.5).cells  # a run's luck of .01 too
    assert lucky.low < cell.low and lucky.high > cell.high


def test_never_is_the_share_of_draws_below():
    """.6 is the mean plateau; what a draw has at 4 times the largest measured C, 1e5, is .995 of
    its gain."""
    fit = without_luck(document(CURVE, sd=0.02, replicates=20_000))
    ensemble = load_ensemble(fit)
    C = first_budgets(ensemble, 0.6, 4e5)[:, 0]
    A = ensemble.samples.A[:, 0]
    expected = 0.2 + (A - 0.2) * 4e5 / (4e5 + 2e3) >= 0.6
    assert (np.isfinite(C) == expected).all()
    quoted = quote(fit, 0.6)
    assert quoted.horizon == MAX_EXTRAPOLATION * 1e5
    (cell,) = quoted.cells
    assert cell.p_never == pytest.approx(1 - expected.mean()) and 0.5 < cell.p_never < 0.6
    assert (
        cell.C is None
        and cell.M is None
        and cell.high is None
        and cell.low is not None
        and cell.extrapolated
    )


def test_a_higher_reward_costs_more():
    fit = document(sd=0.02)
    C = [first_budgets(load_ensemble(fit), reward, 4e5) for reward in (0.4, 0.5, 0.55, 0.6)]
    for cheaper, dearer in pairwise(C):
        assert (cheaper <= dearer).all()


def test_each_n_has_its_fastest_B_p_and_the_cheapest_is_named():
    quoted = quote(document(), 0.5)
    assert [(cell.n, cell.B_p) for cell in quoted.cells] == [(4, 16), (16, 16), (64, 16)]
    assert quoted.best_n == 4  # of half the gain at 2e3
    assert quote(document(), 0.63).best_n == 16
    unstable = quote(document(unstable=(16,)), 0.5)
    assert {cell.B_p for cell in unstable.cells} == {64}


@pytest.mark.parametrize(
    ("fit", "reward"),
    [
        (document(), 1.2),
        (document(), float("nan")),
        (document(), 0.15),
        (
            without_draws(document()),
            0.5,
        ),
        (
            altered(document(), compute="tokens"),
            0.5,
        ),
    ],
)
def test_what_is_refused(fit, reward):
    with refused():
        quote(fit, reward)


def test_a_runs_luck_grows_with_its_progress():
    """docs/laws.md: R = R0 + (A + d - R0) s. Where a tenth of the gain is made, a deviation d of
    .05 moves C little."""
    fit = document(CURVE, sd=0.0, replicates=4000)
    fit = altered(fit, intervals=fit.intervals.model_copy(update={"run_sd": 0.05}))
    (cell,) = quote(fit, 0.24).cells
    assert cell.C == pytest.approx(inverse(0.24), rel=0.01)
    assert cell.low == pytest.approx(inverse(0.24, A=0.6 + 1.645 * 0.05), rel=0.02)
    assert cell.high == pytest.approx(inverse(0.24, A=0.6 - 1.645 * 0.05), rel=0.02)
