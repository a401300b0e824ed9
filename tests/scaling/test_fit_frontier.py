"""Ends of data are no crossovers: censored segments, and runs of one length in updates, where a
large n is alone at large C.
"""

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.sweep_estimate import SweepEstimate
from isojax.scaling.fit import fit_frontier
from isojax.scaling.result import FittedCurve
from tests.scaling.sweeps import fit, run

# .4 C / (C + 1000) = .8 C / (C + 5000) at C = 3000.
SMALL, LARGE = (0.4, 1000.0), (0.8, 5000.0)


def two(small_high, large_low):
    """Curves and runs of n = 2 up to `small_high`, of n = 8 from `large_low` on."""
    curves, cells = [], {}
    for n, (A, mid), low, high in ((2, SMALL, 1e2, small_high), (8, LARGE, large_low, 1e6)):
        C = np.geomspace(low, high, 12).round()
        curves.append(FittedCurve(16, n, 0.0, A, 1.0, mid, low, high, 12, 0.0))
        cells[16, n] = [run(16, n, 0, C, curve_value(C, 0.0, A, 1.0, mid))]
    return fit_frontier(SweepEstimate(curves, [], no_effect=False), cells, "avg@4")


def test_curves_that_cross_where_both_were_measured():
    content, flags = two(1e6, 1e2)
    assert [(c.n_low, c.n_high, c.C) for c in content.crossovers] == [(2, 8, pytest.approx(3000))]
    assert [(s.censored_low, s.censored_high) for s in content.segments] == [
        (True, False),
        (False, True),
    ]
    assert not [f for f in flags if "nothing was compared" in f.text]


def test_data_that_end_before_the_crossing_give_none():
    """n = 2 ends at C = 1000, where it leads; n = 8 begins there: the change of n is the data's."""
    content, flags = two(1e3, 1e3)
    assert content.crossovers == ()
    assert [(s.censored_low, s.censored_high) for s in content.segments] == [(True, True)] * 2
    assert [f for f in flags if "from n = 2 to 8" in f.text and "nothing was compared" in f.text]


def test_a_crossing_is_not_moved_to_where_data_begin():
    """n = 8 begins at 1e4, beyond the crossing, and is ahead at once."""
    content, _ = two(1e6, 1e4)
    assert content.crossovers == () and content.segments[1].censored_low


def one_length(seed, reward, B_p=512, updates=60, every=3, noise=0.012):
    """Runs as in verl: n = 4 .. 64, each of as many updates, so that cells span different C;
    reward(C, n)."""
    rng, runs = np.random.default_rng(seed), []
    for n in (4, 8, 16, 32, 64):
        points = []
        for M in range(0, updates + 1, every):
            C = B_p * n * M
            points.append(
                EvalPoint(
                    C,
                    M,
                    C,
                    0,
                    {"avg@4": float(np.clip(reward(C, n) + noise * rng.standard_normal(), 0, 1))},
                )
            )
        runs.append(RunRecord(Cell(B_p, n, 0), tuple(points), f"n{n}"))
    return runs


@pytest.mark.parametrize("seed", range(4))
def test_runs_of_one_length_do_not_make_n_rise(seed):
    """One curve of C for every n: only the spans of C differ, and n = 64 is alone at the end."""
    result = fit(one_length(seed, lambda C, n: 0.2 + 0.4 * C / (C + 1e5)), replicates=60)
    assert result.joint.n_star.law.form == "constant" and result.joint.n_star.no_effect
    assert result.joint.crossovers == ()
    assert [f for f in result.flags if "n makes no difference here" in f.text]


def test_runs_of_one_length_whose_n_matters_cross_only_where_two_were_measured():
    def reward(C, n):
        return 0.2 + (0.25 + 0.05 * np.log2(n)) * C / (C + 4e3 * n**1.2)

    result = fit(one_length(1, reward, noise=0.002), replicates=60)
    ends = {n: (512 * n * 3, 512 * n * 60) for n in (4, 8, 16, 32, 64)}
    assert result.joint.n_star.no_effect is False
    for c in result.joint.crossovers:
        assert (
            max(ends[c.n_low][0], ends[c.n_high][0])
            <= c.C
            <= min(ends[c.n_low][1], ends[c.n_high][1])
        )
        assert reward(c.C, c.n_low) == pytest.approx(reward(c.C, c.n_high), abs=0.005)
    last = result.joint.segments[-1]
    assert (
        last.n == 64
        and last.censored_high
        and [f for f in result.flags if "cells of unequal length" in f.text]
    )


def test_where_n_makes_no_difference_the_law_is_constant_whatever_leads():
    curves = [FittedCurve(16, n, 0.0, 0.5, 1.0, 1e3, 1e2, 1e5, 12, 0.0) for n in (2, 8)]
    C = np.geomspace(1e2, 1e5, 12).round()
    cells = {(16, n): [run(16, n, 0, C, curve_value(C, 0.0, 0.5, 1.0, 1e3))] for n in (2, 8)}
    content, flags = fit_frontier(SweepEstimate(curves, [], no_effect=True), cells, "avg@4")
    law = content.n_star
    assert (law.law.form, law.law.b, law.no_effect, flags) == ("constant", 1.0, True, [])
