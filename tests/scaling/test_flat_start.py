"""A sweep in which some runs learn, and what is said of it up to where they do."""

from functools import cache

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.allocate.quote import quote
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.compare_sweeps import compare_sweeps
from isojax.scaling.curves.flat_start import _first_departure, find_flat_starts
from isojax.scaling.evaluation_size import EvaluationSize
from isojax.scaling.result import FitResult, FlatStart
from isojax.scaling.tracks import FloatArray, group_by_cell
from tests.scaling.sweeps import fit, run

pytestmark = pytest.mark.seconds(10)

C = np.array([1, 2, 4, 8, 16, 32, 64, 128]) * 1000.0
ALL_N = (4, 8, 16)
N = 500


def sweep(
    reward, all_n=ALL_N, rollouts: int | None = N, seeds: int = 2, base: float = 0.0
) -> list[RunRecord]:
    """Runs of B_p = 32 that begin at C = 0, whose rewards are `reward` (n): float[8], drawn as k of
    `rollouts`."""
    runs = []
    for n in all_n:
        for seed in range(seeds):
            rates = np.r_[base, reward(n)] if rollouts else np.r_[reward(n)[0], reward(n)]
            rng = np.random.default_rng([n, seed])
            rewards = rng.binomial(rollouts, rates) / rollouts if rollouts else rates
            runs.append(run(32, n, seed, [0, *C], rewards).run)
    return runs


def late(after: float, height: float = 0.3) -> FloatArray:
    """0 up to C = `after`, then a rise."""
    return np.where(after < C, height * C / (C + 60_000), 0.0)


ONE_LEARNS = sweep(lambda n: late(16e3) if n == 16 else 0 * C)
ALL_LEARN = sweep(lambda n: late(4e3))
FEW_HITS = sweep(lambda n: np.where(C > 32e3, 3 / N, 0.0))


def records_with_counts() -> list[RunRecord]:
    """The same as ONE_LEARNS, of 125 problems with 4 samples each, whose right answers are
    recorded."""
    runs = []
    for record in ONE_LEARNS:
        points = []
        for point in record.points:
            right = round(point.metrics["avg@4"] * N)
            counts = (4,) * (right // 4) + (right % 4,) + (0,) * (124 - right // 4)
            points.append(
                EvalPoint(point.target, point.M, point.rollouts, 0, point.metrics, counts, 4)
            )
        runs.append(
            RunRecord(Cell(32, record.cell.n, record.cell.seed), tuple(points), record.cell_hash)
        )
    return runs


SWEEPS = {
    "one": ONE_LEARNS,
    "all": ALL_LEARN,
    "few hits": FEW_HITS,
    "counts": records_with_counts(),
}


@cache
def fitted(name: str) -> FitResult:
    return fit(SWEEPS[name], replicates=200)


@pytest.mark.parametrize("name", ["one", "all", "counts"])
def test_cells_that_stand_at_0_share_P_with_the_interval_of_0_of_N(name):
    document = fitted(name)
    assert document.nothing_learnt == ""
    assert FitResult.model_validate_json(document.model_dump_json()) == document

    up_to = [p for p in document.joint.frontier if p.C <= 4e3]
    assert len(up_to) > 10
    for point in up_to:
        assert point.tied and point.reward == 0 and point.n_probability is not None
        assert len(set(point.n_probability.values())) == 1
        assert point.low == 0 and point.high == pytest.approx(3 / N, rel=1e-3)

    advice = recommend(document, 4e3)
    assert advice.n_probability == {n: pytest.approx(1 / 3) for n in ALL_N}
    assert (
        advice.tie
        and advice.regret is None
        and advice.halting_marks == ()
        and advice.growing is None
    )
    assert advice.expected_reward == 0 and advice.interval == (0, pytest.approx(3 / N, rel=1e-3))
    assert not any("worse" in reason or "highest" in reason for reason in advice.reasons)


def test_the_n_that_leads_afterwards_is_the_only_one():
    document = fitted("one")
    assert {p.n for p in document.joint.frontier} == {16} and document.joint.crossovers == ()
    end = document.joint.frontier[-1]
    assert not end.tied and end.n_probability == {16: pytest.approx(1, abs=0.01)}
    assert end.low is not None and end.low > 0.1
    advice = recommend(document, 1.2e5)
    assert advice.tie == "" and advice.allocation.n == 16 and advice.regret is not None


def test_the_mode_of_the_paper_has_the_same_ties():
    document = fit(ONE_LEARNS, mode="paper")
    assert [p.n for p in document.joint.frontier if p.C <= 4e3 and not p.tied] == []
    assert recommend(document, 4e3).tie
    assert document.joint.crossovers == ()


def test_compared_sweeps_are_tied_too():
    fits = [fitted("one"), fitted("all")]
    for summary in compare_sweeps(fits, ["a", "b"]).sweeps:
        first = summary.at[0]
        assert first.tied and (first.n_low, first.n_high) == (4, 16) and not summary.at[-1].tied


def test_a_constant_that_is_no_bound_is_a_level_too():
    """A quarter right by guessing alone, until n = 16 learns; 100 rollouts are assumed, of which
    13% to 41% may be."""
    rising = 0.25 + np.where(C > 16e3, 0.5 * C / (C + 60_000), 0.0)
    wobble = 0.001 * np.arange(len(C)) * (C > 16e3)
    document = fit(
        sweep(lambda n: rising + wobble if n == 16 else 0.25 + 0 * C, rollouts=None, seeds=1),
        replicates=200,
    )
    advice = recommend(document, 4e3)
    assert advice.n_probability == {n: pytest.approx(1 / 3) for n in ALL_N}
    assert advice.expected_reward == 0.25
    assert advice.interval is not None and advice.interval[0] < 0.25 < advice.interval[1]


def test_an_ordinary_sweep_has_no_flat_start():
    document = fit(sweep(lambda n: 0.1 + 0.3 * C / (C + 2e3 * n), base=0.1), replicates=50)
    assert all(curve.flat_start is None for curve in document.curves)
    assert not any(point.tied for point in document.joint.frontier)


@pytest.mark.parametrize("name", ["one", "all", "few hits"])
def test_no_reward_is_negative(name):
    document = fitted(name)
    assert min(curve.R0 for curve in document.curves) >= 0
    for point in document.joint.frontier:
        assert point.low is not None and min(point.reward, point.low) >= 0
    for budget in (2e3, 3e4, 2e5):
        advice = recommend(document, budget)
        assert min(cell.reward for cell in advice.measured_cells) >= 0
        assert all(mark.stop_below > 0 for mark in advice.halting_marks)


@pytest.mark.parametrize("name", ["one", "few hits"])
def test_no_law_is_judged_where_fewer_than_two_n_came_further(name):
    verdicts = fitted(name).referee
    assert verdicts and {row.verdict for row in verdicts} == {"cannot tell"}


def test_where_n_makes_no_difference_no_law_of_the_best_n_is_judged():
    """The reward depends on C alone."""
    document = fit(sweep(lambda n: 0.1 + 0.4 * C / (C + 2e4), base=0.1), replicates=200)
    assert document.joint.n_star.no_effect
    verdicts = {row.law: row.verdict for row in document.referee}
    assert verdicts["n* grows with C"] == verdicts["n* is one number whatever C"] == "cannot tell"


@pytest.mark.parametrize("base", [0.0, 1 / N], ids=["from nothing", "from single hits"])
def test_a_rise_of_a_few_hits_is_no_forecast(base):
    """Rewards of 0 to .002, then about .006, the largest .012: four times further nobody knows."""
    runs = sweep(lambda n: np.where(C > 32e3, 3 / N, base))
    largest = max(point.metrics["avg@4"] for record in runs for point in record.points)
    document = fit(runs, replicates=200)
    if document.nothing_learnt:  # the interval is then that of one evaluation
        return
    advice = recommend(document, 4e5)
    assert advice.expected_reward <= largest
    assert advice.interval is not None and advice.interval[0] <= largest
    assert advice.growing is None
    assert any("hardly scored" in reason for reason in advice.reasons)


def test_a_reward_is_not_reached_where_cells_stand():
    """3 / N at most is a doubt about 0 of N, no reward that a run would reach."""
    quoted = quote(fitted("one"), 0.005)
    by_n = {cell.n: cell for cell in quoted.cells}
    assert by_n[16].C is not None and 16e3 < by_n[16].C < 64e3
    assert by_n[4].low is None or by_n[4].low > 128e3


def test_the_first_departure_from_a_level():
    """A hit of .01 above a level of .1 is none, once; two of them in a row, or a larger difference,
    are."""

    def first(*hits: float) -> int:
        return _first_departure(0.1 + 0.01 * np.array(hits), 0.1, 0.01)

    assert first(0, 0, 0) == 3
    assert first(0, 1, 0, 0) == 4 and first(0, -1, 0, 2, 0) == 3
    assert first(0, 1, 1, 0) == 1 and first(0, 2, 0) == 1
    assert first(0, 1, 0, 1, 0) == 3  # once
    assert first(0, 0, 1) == 3  # the last
    assert first(1e-5, 0, 0, 3) == 3  # within rounding of the level


def test_a_cell_stands_up_to_the_first_evaluation_of_any_seed_that_rose():
    """Of evaluations of 100 rollouts, all at 0 up to 2,000 and one seed risen at 4,000; a single
    hit before is none. Three evaluations of all seeds together are enough at 0, four of each run
    at another level."""
    C = [0.0, 1e3, 2e3, 4e3, 8e3]
    size = EvaluationSize(100.0, "", is_known=True)

    def starts(*rewards: list[float], C: list[float] = C):
        tracks = [run(16, 4, seed, C, R) for seed, R in enumerate(rewards)]
        return find_flat_starts(group_by_cell(tracks), size).get((16, 4))

    rose = [0, 0.01, 0, 0.05, 0.1]
    assert starts(rose, [0, 0, 0, 0, 0.2]) == FlatStart(0.0, 100.0, 2e3, 4e3)
    assert starts([0.0] * 5) == FlatStart(0.0, 100.0, 8e3, None)
    assert starts([1.0] * 4 + [0.9]) == FlatStart(1.0, 100.0, 4e3, 8e3)
    assert starts([0, 0, 0.1, 0.2, 0.3], C=[0, *C[1:]]) is None  # two evaluations at 0
    assert starts([0, 0, 0.1, 0.2, 0.3], [0, 0, 0.1, 0.2, 0.3]) == FlatStart(0.0, 100.0, 1e3, 2e3)
    level = [0.25, 0.25, 0.25, 0.25, 0.5]
    assert starts(level) == FlatStart(0.25, 100.0, 4e3, 8e3)
    assert starts([0.25, 0.25, 0.25, 0.5, 0.5]) is None
    assert starts(level, [0.25, 0.25, 0.25, 0.5, 0.5]) is None
    assert starts([0.25, 0.26, 0.25, 0.25, 0.25]) is None  # there a hit is a difference
