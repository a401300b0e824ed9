"""What simulations of one problem say: the slope's value and standard error, the best n for a budget, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bandit.budgets import budgets, curve, grid, slope


def test_the_grid_runs_from_1_to_the_last_update_without_repeats() -> None:
    at = grid(10_000)
    assert at[0] == 1 and at[-1] == 10_000 and at == sorted(set(at)) and 45 <= len(at) <= 60
    assert grid(3) == [1, 2, 3]


def test_a_power_law_gives_its_exponent_from_the_last_decade_alone() -> None:
    t = np.array(grid(10_000))
    values = np.outer(np.where(t >= 1000, 5.0 * t**-1.3, 7.0), [0.5, 1.0, 1.5])
    found, error = slope(t.tolist(), values)
    assert found == pytest.approx(-1.3) and error == pytest.approx(0, abs=1e-9)


def test_the_slopes_error_is_how_much_it_scatters() -> None:
    """2000 data sets of 20 repetitions, each a power law with a luck of its own in size and exponent."""
    rng, t = np.random.default_rng(0), np.array(grid(1000))
    sets = [np.outer(1 / t, rng.lognormal(0, 0.5, 20)) * t[:, None] ** rng.normal(0, 0.1, 20) for _ in range(2000)]
    found = np.array([slope(t.tolist(), values) for values in sets])
    assert np.std(found[:, 0]) == pytest.approx(np.mean(found[:, 1]), rel=0.1)


def test_a_curve_by_hand() -> None:
    """Two repetitions, 1/t and 3/t: mean 2/t, standard error 1/t; none is over half of a gap of 1 after 10 updates, one
    of a gap of .5.
    """
    t = [1, 2, 5, 10]
    values = np.outer(1 / np.array(t), [1.0, 3.0])
    row = curve(4, t, values, gap=1.0)
    assert row["C"] == [4, 8, 20, 40]
    assert row["suboptimality"] == pytest.approx([2, 1, 0.4, 0.2]) and row["error"] == pytest.approx([1, 0.5, 0.2, 0.1])
    assert row["t_suboptimality"] == pytest.approx(2) and row["t_suboptimality_error"] == pytest.approx(1)
    assert row["slope"] == pytest.approx(-1) and row["lost"] == 0
    assert curve(4, t, values, gap=0.5)["lost"] == 0.5


def row(n: int, scale: float, error: float, updates: int = 1000) -> dict[str, object]:
    t = grid(updates)
    return {"n": n, "t": t, "suboptimality": [scale / x for x in t], "error": [error * scale / x for x in t]}


def test_the_best_n_is_that_of_the_curves_and_ties_are_named() -> None:
    """n = 4 has a tenth of n = 1's suboptimality at the same t, so 4/10 at the same C; n = 5's 5/11 is within two
    standard errors of it.
    """
    found = budgets([row(1, 1.0, 0.01), row(4, 0.1, 0.06), row(5, 1 / 11, 0.06)])
    assert [b["C"] for b in found] == [10, 100, 1000]
    last = found[-1]
    assert last["at"][1] == (pytest.approx(1e-3), pytest.approx(1e-5))
    assert last["at"][4] == (pytest.approx(0.1 / 250), pytest.approx(0.006 / 250))
    assert last["best_n"] == 4 and last["tied"] == [5]
    assert budgets([row(1, 1.0, 0.0), row(4, 1.0, 0.0)])[-1]["best_n"] == 1


def test_a_budget_that_is_not_one_update_for_every_n_is_left_out() -> None:
    assert [b["C"] for b in budgets([row(1, 1.0, 0.1), row(50, 1.0, 0.1)])] == [100, 1000]
    assert budgets([row(1, 1.0, 0.1), row(5000, 1.0, 0.1)]) == []
