"""How many updates C rollouts are: by the batches that an update of the measured runs took, worked
out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from isojax.core.nouns import Allocation, Cell, EvalPoint, RunRecord
from isojax.scaling.allocate.quote import quote
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.fit import with_clocks
from isojax.scaling.result import CountedUpdates, FitResult
from isojax.scaling.update_counts import MAX_POINTS, UpdateCounts, count_updates
from tests.refusals import refused
from tests.scaling.documents import SHAPES, document, without_draws

B = 32


def run_of(counts: Sequence[tuple[int, int]], B_p: int = 8, n: int = 4) -> RunRecord:
    """A run with evaluations after (M, C)."""
    return RunRecord(
        Cell(B_p, n, 0), tuple(EvalPoint(C, M, C, 0, {"avg@4": 0.2}) for M, C in counts)
    )


def with_updates(fit: FitResult, counted: dict[tuple[int, int], CountedUpdates]) -> FitResult:
    """The fit of runs of which these cells' counted their updates."""
    runs = [run.model_copy(update={"updates": counted.get((run.B_p, run.n))}) for run in fit.runs]
    return fit.model_copy(update={"runs": tuple(runs)})


def evenly(batches: float, B: int) -> CountedUpdates:
    """1,000 updates of so many batches."""
    return CountedUpdates(C=(0, round(1000 * B * batches)), M=(0, 1000))


TWO_BATCHES = {(B_p, n): evenly(2, B_p * n) for B_p, n in SHAPES}


def test_a_run_that_samples_further_batches_counts_its_updates() -> None:
    assert count_updates(run_of([(0, 0), (4, 4 * 64), (10, 10 * 96)])) == CountedUpdates(
        C=(0, 256, 960), M=(0, 4, 10)
    )
    # Without an evaluation of the base policy it begins at nothing; an M that does not rise is left
    # out.
    assert count_updates(run_of([(4, 256), (4, 300), (8, 900)])) == CountedUpdates(
        C=(0, 256, 900), M=(0, 4, 8)
    )


@pytest.mark.parametrize(
    "counts",
    [
        [(M, B * M) for M in range(9)],
        [(M, B * (M + 1)) for M in range(9)],  # the log counts an update as it begins
        [(0, 320), *((M, 320 + B * M) for M in range(1, 9))],  # rollouts before the first update
        [(round(C / B), C) for C in range(0, 1000, 47)],  # a log without steps
        [(4 * M, B * M) for M in range(9)],  # steps of the optimizer, several of a batch
        [(0, 0)],
    ],
)
def test_a_plain_run_needs_no_counts(counts: list[tuple[int, int]]) -> None:
    assert count_updates(run_of(counts)) is None


def test_a_long_log_is_thinned_to_both_ends() -> None:
    counted = count_updates(run_of([(M, 70 * M) for M in range(5000)]))
    assert counted is not None and len(counted.M) == MAX_POINTS
    assert (counted.M[0], counted.M[-1], counted.C[-1]) == (0, 4999, 70 * 4999)
    assert all(C == 70 * M for C, M in zip(counted.C, counted.M, strict=True))


def test_M_follows_the_measured_batches_and_goes_on_as_lately() -> None:
    """B = 50: two batches an update up to C = 1,000, then four, and so beyond C = 3,000."""
    counts = UpdateCounts.of(50, [CountedUpdates(C=(0, 1000, 3000), M=(0, 10, 20))])
    assert [counts.updates(C) for C in (99, 100, 1000, 1999, 2000, 3000, 4000)] == [
        0,
        1,
        10,
        14,
        15,
        20,
        25,
    ]
    assert [counts.rollouts(M) for M in (1, 10, 15, 20, 25)] == [100, 1000, 2000, 3000, 4000]
    assert [counts.updates_to_reach(C) for C in (1000, 1001, 2000, 4001)] == [10, 11, 15, 26]
    assert (
        counts.batches(1000) == 2 and counts.batches(3000) == 3 and counts.batches(3000, 1000) == 4
    )
    assert counts.allocation(5, 10, 20) == Allocation(5, 10, 20, batches=3.0)
    assert Allocation(5, 10, 20, batches=3.0).C == 3000
    # Of twice the batch, as many batches at each C are half as many updates.
    assert counts.for_batch(100).updates(3000) == 10 and counts.for_batch(100).rollouts(10) == 3000
    assert counts.for_batch(100).updates(4000) == 12  # 12.5


def test_the_rollouts_of_M_updates_are_enough_for_them_and_no_more() -> None:
    """7 updates in 2,000 rollouts: one of them is 285.7 rollouts."""
    counts = UpdateCounts.of(50, [CountedUpdates(C=(0, 2000), M=(0, 7))])
    assert counts.rollouts(1) == 286 and counts.updates(286) == 1 and counts.updates(285.9) == 0
    for M in range(1, 30):
        C = counts.rollouts(M)
        assert (counts.updates(C), counts.updates(C - 1)) == (M, M - 1)
        assert counts.allocation(5, 10, M).C == C


def test_M_is_the_mean_of_the_seeds() -> None:
    """Of 50 rollouts a batch, one run takes two batches and one four; one ends early and goes on as
    it was."""
    counts = UpdateCounts.of(50, [evenly(2, 50), CountedUpdates(C=(0, 2000), M=(0, 10))])
    assert counts.updates(8000) == (80 + 40) / 2 and counts.rollouts(60) == 8000
    assert counts.updates(200_000) == 1500  # beyond both
    with_plain = UpdateCounts.of(50, [None, CountedUpdates(C=(0, 2000), M=(0, 10))])
    assert with_plain.updates(2000) == (40 + 10) / 2


def test_one_batch_an_update_is_plain_division() -> None:
    counts = UpdateCounts.of(50, [None, None])
    assert counts.measured is None and counts.for_batch(7).updates(22) == 3
    assert (counts.updates(149), counts.updates_to_reach(101), counts.rollouts(3)) == (2, 3, 150)
    assert counts.batches(1e9) == 1.0
    assert counts.allocation(5, 10, 3) == Allocation(5, 10, 3)


def test_counts_that_do_not_rise_are_refused() -> None:
    for C, M in (((0, 5, 5), (0, 1, 2)), ((0, 5), (0, 1, 2)), ((0,), (0,))):
        with pytest.raises(ValueError):
            CountedUpdates(C=C, M=M)


def test_a_recommendation_of_two_batches_has_half_the_updates() -> None:
    """At 1e5 rollouts of 16 x 16, 390 updates of one batch, or 195 of two."""
    plain = recommend(document(), 1e5)
    dynamic = recommend(with_updates(document(), TWO_BATCHES), 1e5)
    assert plain.allocation == Allocation(16, 16, 390) and plain.allocation.C == 99_840
    assert (
        dynamic.allocation == Allocation(16, 16, 195, batches=2.0)
        and dynamic.allocation.C == 99_840
    )
    assert dynamic.expected_reward == plain.expected_reward and dynamic.regret == plain.regret
    reason = (
        "M = 195 with dynamic sampling: in these runs, an update samples 2.00 batches of n B_p "
        "rollouts on average"
    )
    assert any(text.startswith(reason) for text in dynamic.reasons)
    assert not any("floor(C / (n B_p))" in text for text in dynamic.reasons)
    assert [(cell.B_p, cell.n, cell.M // 2) for cell in plain.measured_cells] == [
        (cell.B_p, cell.n, cell.M) for cell in dynamic.measured_cells
    ]
    # Half the marks' updates, at C that is a whole number of them.
    assert [(mark.M, mark.C) for mark in plain.halting_marks] == [(97, 97 * 256), (195, 195 * 256)]
    assert [(mark.M, mark.C) for mark in dynamic.halting_marks] == [(48, 48 * 512), (97, 97 * 512)]


def test_the_next_run_is_named_by_its_updates() -> None:
    """Where the cells are hard to tell apart, one more run of one of them is proposed."""
    close = {(16, 4): (0.60, 1.0, 2e3), (16, 16): (0.605, 1.0, 2e3)}
    counted = {cell: TWO_BATCHES[cell] for cell in close}
    plain = recommend(document(close, sd=0.03), 1e5).next_run
    dynamic = recommend(with_updates(document(close, sd=0.03), counted), 1e5).next_run
    assert plain is not None and dynamic is not None
    assert (plain.allocation.batches, dynamic.allocation.batches) == (1.0, 2.0)
    assert dynamic.allocation.M == plain.allocation.M // 2 > 0


def test_a_cell_has_its_own_batches() -> None:
    """Where only 16 x 16 replaces groups, other cells' M stays."""
    counted = {(16, 16): CountedUpdates(C=(0, 50_000, 100_000), M=(0, 100, 150))}
    fit = with_updates(document(), counted)
    assert recommend(fit, 1e5).allocation == Allocation(16, 16, 150, batches=100_000 / (256 * 150))
    assert recommend(fit, 75_000.0).allocation.M == 125
    # Beyond the data as in the last half: 50 updates in 50,000 rollouts.
    assert recommend(fit, 200_000.0, fix={"B": 256}).allocation.M == 250
    assert recommend(fit, 1e5, fix={"B_p": 64}).allocation == Allocation(64, 16, 97)


def test_limits_count_the_batches() -> None:
    fit = with_updates(document(), TWO_BATCHES)
    given = recommend(fit, 1e5, fix={"M": 50})
    assert given.allocation == Allocation(16, 16, 50, 2.0) and given.allocation.C == 25_600
    # 100 updates of two batches leave 500 rollouts a batch; of 1,000 a batch, 1e5 rollouts are 50
    # updates.
    split = recommend(document_of_two(), 1e5, fix={"M": 100}).allocation
    assert (split.B_p, split.n, split.M, split.C) == (31, 16, 100, 31 * 16 * 100 * 2)
    assert recommend(fit, 1e5, fix={"B": 1000}).allocation == Allocation(62, 16, 50, 2.0)
    with refused(where="C") as refusal:
        recommend(fit, 100.0)
    assert "expected C >= 128" in str(refusal.value)  # of 16 x 4
    for mode in ("hierarchical", "paper"):
        of_mode = fit.model_copy(update={"mode": mode})
        with refused():
            recommend(of_mode, 1e5, fix={"M": 90_000})


def document_of_two() -> FitResult:
    """Of 64 x 16 alone, whose batch is too large for 100 updates of two within 1e5 rollouts."""
    fit = document({(64, 16): (0.7, 1.0, 8e3)})
    return with_updates(fit, {(64, 16): evenly(2, 1024)})


def test_the_paper_mode_counts_them_too() -> None:
    plain = without_draws(document(), "paper")
    fit = with_updates(plain, TWO_BATCHES)
    whole, half = recommend(plain, 1e5).allocation, recommend(fit, 1e5).allocation
    assert (half.B_p, half.n, half.M, half.batches) == (whole.B_p, whole.n, whole.M // 2, 2.0)
    M_fixed = recommend(fit, 1e5, fix={"M": 100})
    assert M_fixed.allocation.M == 100 and M_fixed.allocation.C <= 100_000
    assert any("stable cells that take at most C rollouts" in text for text in M_fixed.reasons)


def test_a_quote_counts_them() -> None:
    plain = quote(document(), 0.5)
    dynamic = quote(with_updates(document(), TWO_BATCHES), 0.5)
    for one, two in zip(plain.cells, dynamic.cells, strict=True):
        assert one.C == two.C and one.C is not None
        assert one.M == -(-one.C // (one.B_p * one.n)) and two.M == -(
            -one.C // (2 * two.B_p * two.n)
        )


def test_a_budget_out_of_reach_names_new_runs_by_their_updates() -> None:
    fit = with_updates(document(), TWO_BATCHES)
    with refused() as plain:
        recommend(document(), 1e6)
    with refused() as dynamic:
        recommend(fit, 1e6)
    M_plain, M_dynamic = (
        [int(M) for M in str(refusal.value).rpartition(", M = ")[2].partition(" (")[0].split(", ")]
        for refusal in (plain, dynamic)
    )
    assert M_dynamic == [-(-M // 2) for M in M_plain]


def test_a_fit_file_holds_counts_only_where_there_are_some() -> None:
    plain, fit = document(), with_updates(document(), TWO_BATCHES)
    assert not any("updates" in row for row in json.loads(plain.model_dump_json())["runs"])
    assert not plain.has_dynamic_sampling and fit.has_dynamic_sampling
    row = json.loads(fit.model_dump_json())["runs"][0]
    assert row["updates"] == {"C": [0, 128_000], "M": [0, 1000]}  # 16 x 4
    assert FitResult.model_validate_json(fit.model_dump_json()) == fit


def test_a_file_of_an_earlier_version_is_completed_from_the_ledgers() -> None:
    """It holds no counts; the ledger of 16 x 16, seed 0 says 40 updates in 20,480 rollouts, two
    batches each."""
    run = run_of([(0, 0), (40, 20_480)], B_p=16, n=16)
    completed = with_clocks(document(), [run])
    by_cell = {(row.B_p, row.n, row.seed): row.updates for row in completed.runs}
    assert by_cell[16, 16, 0] == CountedUpdates(C=(0, 20_480), M=(0, 40))
    assert by_cell[16, 16, 1] is None and by_cell[64, 4, 0] is None
