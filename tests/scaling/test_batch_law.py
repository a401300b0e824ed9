"""n*(M) at a fixed batch: what monotony costs, by hand; rejected where it is false, and not where
it is true."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from isojax.core.nouns import Cell
from isojax.scaling.curves.sweep_estimate import SweepEstimate
from isojax.scaling.law.n_star_law import fit_fixed_batches, monotone_cost
from isojax.scaling.result import FittedCurve
from isojax.scaling.tracks import FloatArray
from tests.scaling.sweeps import fit
from tests.scaling.synthetic import random_world


@dataclass(frozen=True)
class Table:
    """Stands in for Draws: rewards float[Q, J, G] as they are, at C = 0 .. G - 1."""

    keys: tuple[tuple[int, int], ...]
    table: FloatArray
    known: tuple[bool, ...] = (True, True, True)

    @property
    def R0(self):
        return np.zeros(len(self.table))

    def is_measured(self, C):
        return np.tile(np.array(self.known), (len(self.keys), 1))

    def rewards(self, C):
        return self.table[:, :, np.asarray(C, dtype=int)]


# rows n = 2, 4, 8; the best n are 4, 2, 8
R = np.array([[0.3, 0.5, 0.42], [0.5, 0.3, 0.45], [0.4, 0.2, 0.6]])
C = np.arange(3.0)


def test_monotone_cost_by_hand():
    """Free: .5 + .5 + .6 = 1.6. Rising: 4, 4, 8 gives 1.4, as 2, 2, 8 does. Falling: 4, 2, 2 gives
    1.42. So .18 / 3 is lost.
    """
    keys = ((16, 2), (8, 4), (4, 8))
    assert monotone_cost(Table(keys, R[None]), C) == pytest.approx([0.06])
    # whatever the order of cells
    assert monotone_cost(Table(keys[::-1], R[None, ::-1]), C) == pytest.approx([0.06])
    monotone = np.eye(3)[None]
    both = np.concatenate([R[None], monotone, monotone[:, ::-1]])
    assert monotone_cost(Table(keys, both), C) == pytest.approx([0.06, 0, 0])


def test_only_budgets_that_all_reached_count():
    keys = ((16, 2), (8, 4), (4, 8))
    # 4, 2 falls
    assert monotone_cost(Table(keys, R[None], (True, True, False)), C) == pytest.approx([0])
    assert monotone_cost(Table(keys, R[None], (False,) * 3), C).tolist() == [0]


def worlds(kind, seed):
    w = random_world(
        kind, seed, n=(8, 16, 32, 64, 128, 256), evaluations=25, unequal=False, seeds=2
    )
    runs = (
        w.runs
        if kind == "non_monotone"
        else [replace(r, cell=Cell(4096 // r.cell.n, r.cell.n, r.cell.seed)) for r in w.runs]
    )
    return fit(runs, replicates=60).by_B


def test_a_non_monotone_law_is_seen():
    (entry,) = worlds("non_monotone", 1)
    assert entry.B == 4096 and entry.n_star.monotone_rejected
    ns = [p.n for p in entry.frontier]
    assert min(ns) < min(ns[0], ns[-1]) and all(p.B_p * p.n == 4096 for p in entry.frontier)
    assert all(c.low is None or c.low <= c.C * 1.001 for c in entry.crossovers)


def test_a_rising_law_stays():
    (entry,) = worlds("hill", 1)  # the same batch for all n, as if B_p had been 4096 / n
    law = entry.n_star
    assert (
        not law.monotone_rejected
        and law.law.form in ("linear", "sigmoid", "constant")
        and law.monotone_cost < 0.001
    )


def test_batches_with_one_cell_have_no_law_and_without_draws_there_are_no_intervals():
    def curve(B_p, n, A, mid):
        return FittedCurve(B_p, n, 0.0, A, 1.0, mid, 1e2, 1e6, 10, 0.0)

    curves = [curve(16, 2, 0.4, 1000.0), curve(4, 8, 0.8, 5000.0), curve(16, 8, 0.5, 900.0)]
    (entry,) = fit_fixed_batches(SweepEstimate(curves, []))
    assert entry.B == 32
    (crossing,) = entry.crossovers
    assert (crossing.n_low, crossing.n_high, crossing.low, crossing.high) == (2, 8, None, None)
    assert crossing.C == pytest.approx(3000)
    assert entry.n_star.monotone_cost is None and not entry.n_star.monotone_rejected


def test_where_n_makes_no_difference_the_law_is_constant():
    curves = [
        FittedCurve(4096 // n, n, 0.0, 0.5 + 1e-6 * n, 1.0, 1e3 + n, 1e2, 1e6, 10, 0.0)
        for n in (16, 64)
    ]  # they cross, by nothing
    (entry,) = fit_fixed_batches(SweepEstimate(curves, [], no_effect=True))
    assert entry.crossovers == () and entry.n_star.law.form == "constant" and entry.n_star.no_effect
