"""Intervals, crossovers and probabilities of replicates whose answers are known in closed form."""

import math

import numpy as np
import pytest

from isojax.scaling.curves.sweep_estimate import PosteriorSamples, best_cells, to_curve_draws
from isojax.scaling.intervals import central_interval
from isojax.scaling.law.frontier import Frontier, FrontierStretch, crossover_interval, frontier_rows
from isojax.scaling.law.n_star_law import fit_n_star, log2_best_n
from isojax.scaling.result import FrontierRow, ResidualCorrection

SMALL, LARGE = (16, 2), (16, 8)
FRONTIER_OF_BOTH = Frontier(
    tuple(FrontierRow(C=C, reward=0.3, n=8, B_p=16) for C in (300.0, 500.0, 5e3, 1e5)), ()
)


def draws(
    mids, *, low=(1e2, 1e2), high=(1e6, 1e6), peak=(math.inf, math.inf), corrections=(), shift=None
):
    """R0 = 0, B = 1: n = 2 gains .4 with C_mid = 1000, n = 8 gains .8 with C_mid = mids[q]. They
    cross at C = mids[q] - 2000.
    """
    Q = len(mids)
    A = np.tile([0.4, 0.8], (Q, 1))
    mid = np.column_stack([np.full(Q, 1000.0), mids])
    ends = [np.array(v, dtype=float) for v in (peak, low, high)]
    other = np.zeros((Q, 2)) if shift is None else np.array(shift)
    return PosteriorSamples(
        np.ones(Q), (SMALL, LARGE), A, np.ones((Q, 2)), mid, np.zeros(Q), other, *ends, corrections
    )


def test_interval_by_hand():
    assert central_interval(np.arange(101.0)) == pytest.approx((5, 95))
    assert central_interval([-math.inf] * 10 + [*range(90)]) == (None, 84)
    assert central_interval([*range(90)] + [math.inf] * 10) == (5, None)


def test_the_best_n_of_a_band_is_one_that_was_measured():
    """n = 2 is best in 5% of the draws: a linear quantile is 7.5 there."""
    d = draws([3000.0] * 5 + [2100.0] * 95)  # n = 8 overtakes n = 2 at C = 1000, else at 100
    band = fit_n_star(FRONTIER_OF_BOTH, d, False, 8, 9).band
    assert band is not None and {n for row in band for n in (row.low, row.high)} <= {2.0, 8.0}


def test_rewards_by_hand():
    d = draws([5000.0, 7000.0], peak=(math.inf, 1e4))
    assert d.rewards([1000.0]) == pytest.approx(np.array([[[0.2], [0.8 / 6]], [[0.2], [0.1]]]))
    assert (d.rewards([1e5])[:, 1] == d.rewards([1e4])[:, 1]).all()  # held beyond its peak
    other = draws([5000.0, 7000.0], shift=[[0.1, 0.0], [0.0, 0.5]])  # R (1 - R) (a + b R) more
    assert other.rewards([1000.0])[:, 0, 0] == pytest.approx([0.2 + 0.16 * 0.1, 0.2 + 0.16 * 0.1])
    assert other.rewards([1000.0])[1, 1, 0] == pytest.approx(0.1 + 0.09 * 0.05)
    corrected = draws(
        [5000.0] * 500,
        corrections=(ResidualCorrection((3.0, 4.0), (0.05, 0.05), (0.01, 0.01)), None),
    )
    R = corrected.rewards([1000.0, 1e6])
    assert R[:, 0, 0].mean() == pytest.approx(0.25, abs=0.002) and R[
        :, 0, 0
    ].std() == pytest.approx(0.01, rel=0.1)
    assert R[:, 0, 1] == pytest.approx(0.4 / 1.001) and R[:, 1, 0] == pytest.approx(0.8 / 6)


def test_of_takes_cells_in_the_order_asked():
    d = draws(
        [5000.0, 7000.0],
        low=(1e2, 1e3),
        high=(1e5, 1e6),
        shift=[[0.1, 0.0], [0.0, 0.5]],
        corrections=(None, ResidualCorrection((3.0,), (0.1,), (0.0,))),
    )
    one = d.for_cells([LARGE])
    assert (
        one.keys == (LARGE,)
        and one.C_low == [1e3]
        and one.C_high == [1e6]
        and one.corrections == d.corrections[1:]
    )
    assert (one.C_mid[:, 0] == [5000, 7000]).all()
    assert d.for_cells([LARGE, SMALL]).rewards([1e3]) == pytest.approx(d.rewards([1e3])[:, ::-1])


def test_measured_with_slack():
    d = draws([5000.0], low=(1e2, 1e4), high=(1e3, 1e5))
    # 10^.1 = 1.26
    assert d.is_measured([900, 1100, 9000]).tolist() == [[True, True, False], [False, False, True]]
    assert d.is_measured([900, 1100, 9000], slack=0).tolist() == [
        [True, False, False],
        [False, False, False],
    ]


def test_best_counts_measured_cells_alone():
    d = draws([5000.0], high=(1e6, 1e4))
    R, who = best_cells(d, [1e3, 9e3, 1e5])
    assert who.tolist() == [[0, 1, 0]]
    assert [R[0, j, g] for g, j in enumerate(who[0])] == pytest.approx(
        [0.2, 0.8 * 9 / 14, 0.4 / 1.01]
    )
    # 1e4 is more than .1 decade below 1.5e4, and less than a factor of 4: n = 8 competes for the
    # law by its curve.
    assert 2 ** log2_best_n(d, [1.5e4, 1e5])[0] == pytest.approx([8, 2])


def crossing(draws, fitted):
    """The interval of where n = 8 overtakes n = 2."""
    (B_p, n), (other_B_p, other_n) = SMALL, LARGE
    before = FrontierStretch(n, B_p, 1e2, fitted)
    after = FrontierStretch(other_n, other_B_p, fitted, 1e6)
    return crossover_interval(draws, before, after)


def test_crossings_are_those_of_the_replicates():
    targets = np.linspace(3000, 6000, 101)
    low, high = crossing(draws(targets + 2000), 4500)
    assert (low, high) == (pytest.approx(3150, rel=0.01), pytest.approx(5850, rel=0.01))


def test_open_ends():
    """In 1 replicate of 5 the curves cross beyond the data, in which n = 8 never leads; or below,
    where it always does.
    """
    late = np.concatenate([np.full(20, 5e6), np.linspace(3000, 6000, 80)])
    low, high = crossing(draws(late + 2000), 4500)
    assert low is not None and high is None
    early = np.concatenate([np.full(20, -500.0), np.linspace(3000, 6000, 80)])
    low, high = crossing(draws(early + 2000), 4500)
    assert low is None and high == pytest.approx(6000, rel=0.06)
    distant = draws([5000.0] * 3, low=(1e2, 1e5), high=(1e4, 1e6))
    assert crossing(distant, 3000) == (None, None)  # never measured together


def test_interval_and_probabilities_by_hand():
    """At C = 3000 n = 8 leads where its C_mid is below 5000: in 3 replicates of 4. The interval is
    its own."""
    point = FrontierRow(C=3000.0, reward=0.35, n=8, B_p=16)
    (row,) = frontier_rows([point], draws([4000.0, 4500.0, 4900.0, 5100.0] * 25))
    assert row.n_probability == {2: 0.25, 8: 0.75}
    assert (row.low, row.high) == (pytest.approx(0.8 * 3 / 8.1), pytest.approx(0.8 * 3 / 7))
    assert frontier_rows([point], draws([4000.0]))[0].n_probability == {8: 1.0}
    assert frontier_rows([point], None) == (point,)


def test_json_has_five_digits_and_cells_by_rows():
    content = to_curve_draws(draws([4000.123456, 5000.0]))
    assert content.cells == ((16, 2), (16, 8)) and content.C_mid == ((1000, 1000), (4000.1, 5000))
    assert (
        content.R0 == (0, 0)
        and content.shift == ((0, 0), (0, 0))
        and content.tail == (1, 1)
        and content.A == ((0.4, 0.4), (0.8, 0.8))
    )
