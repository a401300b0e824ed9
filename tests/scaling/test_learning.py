"""Which sweeps show something, and what is said and forecast of those that do not."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from scipy.stats import beta

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.allocate.quote import quote
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.compare_sweeps import compare_sweeps
from isojax.scaling.evaluation_size import EvaluationSize, size_by_step
from isojax.scaling.fit import fit as fit_healthy_runs
from isojax.scaling.intervals import share_interval, share_quantiles
from isojax.scaling.learning import describe, find_causes, shows_something
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import FloatArray
from tests.refusals import refused
from tests.scaling.sweeps import fit, run

pytestmark = pytest.mark.seconds(10)

C = np.geomspace(1e3, 1e5, 16).round()
ALL_N = (4, 8, 16, 32)
KNOWN = EvaluationSize(500, "", is_known=True)


@dataclass
class Path:
    C: FloatArray
    R: FloatArray


def sweep(reward, base: float | None = None, seeds: int = 2, all_n=ALL_N) -> list[RunRecord]:
    """Runs of B_p = 32 whose rewards at C are float[16] by `reward` (n, seed)."""
    zero, first = ([], []) if base is None else ([0.0], [base])
    return [
        run(32, n, s, [*zero, *C], [*first, *reward(n, s)]).run for n in all_n for s in range(seeds)
    ]


def hits(**rewards_by_place: float):
    """Rewards of 0 but for some: n4s0e15=.3 is .3 at evaluation 15 of seed 0 at n = 4."""

    def reward(n: int, seed: int) -> FloatArray:
        values = np.zeros(len(C))
        for place, value in rewards_by_place.items():
            of_run, evaluation = place.split("e")
            if of_run == f"n{n}s{seed}":
                values[int(evaluation)] = value
        return values

    return reward


def noise(p: float, rollouts: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    return lambda n, s: rng.binomial(rollouts, p, len(C)) / rollouts


NOTHING = {
    "never right": sweep(hits()),
    "never right, from the base policy on": sweep(hits(), base=0.0),
    "one cell, one seed": sweep(hits(), seeds=1, all_n=(8,)),
    "constant": sweep(lambda n, s: np.full(16, 0.25)),
    "one hit": sweep(hits(n16s1e8=0.002)),
    "one hit at the end": sweep(hits(n32s0e15=0.3)),
    "two hits in a row at the end": sweep(hits(n16s1e14=0.001, n16s1e15=0.132)),
    "two hits apart": sweep(hits(n8s0e5=0.001, n16s1e15=0.132)),
    "noise around .1": sweep(noise(0.1, 128)),
    "noise around .1, from the base policy on": sweep(noise(0.1, 128, 1), base=13 / 128),
    "noise around .5": sweep(noise(0.5, 64, 2)),
    "a coarse log between .75 and 1": sweep(lambda n, s: 1 - 0.25 * (np.arange(16) % 2)),
}
SOLVED = {
    "always right": sweep(lambda n, s: np.ones(16)),
    "always right, from the base policy on": sweep(lambda n, s: np.ones(16), base=1.0),
    "one miss": sweep(lambda n, s: 1 - hits(n8s0e5=0.002)(n, s)),
}


@pytest.mark.parametrize("mode", ["hierarchical", "paper"])
@pytest.mark.parametrize("name", [*NOTHING, *SOLVED])
def test_nothing_is_drawn_from_a_sweep_that_shows_nothing(name, mode):
    runs = {**NOTHING, **SOLVED}[name]
    document = fit(runs, mode=mode, replicates=200)
    level = np.mean([p.metrics["avg@4"] for r in runs for p in r.points])

    assert document.flags[0].code == ("nothing_to_learn" if name in SOLVED else "nothing_learnt")
    assert FitResult.model_validate_json(document.model_dump_json()) == document
    assert {verdict.verdict for verdict in document.referee} <= {"cannot tell"}
    assert (
        document.joint.crossovers == ()
        and document.joint.segments == ()
        and document.forecast is None
    )
    assert len({curve.A for curve in document.curves}) == 1
    assert document.curves[0].A == pytest.approx(level)
    assert document.sensitivity is None
    assert not any(flag.code == "records_overshoot" for flag in document.flags)

    advice = recommend(document, 4e5)
    assert advice.nothing_learnt == document.flags[0].text
    assert advice.expected_reward == pytest.approx(level)
    assert advice.regret is None and advice.growing is None and advice.next_run is None
    assert advice.halting_marks == ()
    if mode == "paper":
        return
    count = len({r.cell.n for r in runs})
    assert advice.n_probability == {
        n: pytest.approx(1 / count) for n in sorted({r.cell.n for r in runs})
    }
    for point in document.joint.frontier:
        assert point.n_probability is not None and len(set(point.n_probability.values())) == 1
        assert sum(point.n_probability.values()) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("rewards", "bound"),
    [
        (hits(), 3 / 100),  # nothing says how many rollouts an evaluation has: 100 are assumed
        (hits(n16s1e8=0.002), 3 / 500),
        (hits(n8s0e5=0.001, n16s1e15=0.002), 3 / 1000),
    ],
)
def test_no_interval_is_narrower_than_k_of_N_allows(rewards, bound):
    document = fit(sweep(rewards), replicates=200)
    intervals = [(p.low, p.high) for p in document.joint.frontier] + [
        c.A_interval for c in document.curves
    ]
    intervals += [(cell.low, cell.high) for cell in recommend(document, 4e5).measured_cells]
    for low, high in filter(None, intervals):
        assert low == pytest.approx(0, abs=1e-4)
        assert high is not None and bound <= high <= 3.5 * bound
    assert ("assumed" if bound == 3 / 100 else "by the smallest step") in document.flags[1].text


def test_counts_say_how_many_rollouts_an_evaluation_has():
    """Of 50 problems with 4 samples, all wrong: at most 3 / 200."""
    points = tuple(
        EvalPoint(i, i, round(c), 0, {"avg@4": 0.0}, (0,) * 50, 4) for i, c in enumerate([0, *C])
    )
    document = fit([RunRecord(Cell(32, n, 0), points, f"n{n}") for n in ALL_N], replicates=200)
    assert document.curves[0].A_interval == (0.0, pytest.approx(3 / 200))
    assert "200 rollouts (problems x samples, by the records)" in document.flags[1].text


def test_shares_are_those_of_clopper_and_pearson():
    assert share_interval(0.1, 128) == pytest.approx(
        beta.ppf([0.05, 0.95], [12.8, 13.8], [116.2, 115.2])
    )
    assert share_interval(0, 128) == (0.0, 3 / 128)
    assert share_interval(1, 128) == (1 - 3 / 128, 1.0)
    assert share_interval(0, 1) == (0.0, 1.0)
    quantiles = share_quantiles(0.3, 40, np.linspace(0.001, 0.999, 99))
    assert (np.diff(quantiles) >= 0).all() and quantiles[0] >= 0 and quantiles[-1] <= 1


LEARNING = {
    "a rise": sweep(lambda n, s: 0.1 + 0.3 * C / (C + 1e4) + noise(0.5, 500, n)(n, s) * 0.02),
    "one n learns": sweep(lambda n, s: (0.4 * C / (C + 1e4)) * (n == 16)),
    "a weak rise under noise": sweep(
        lambda n, s: 0.1 + 0.05 * np.linspace(0, 1, 16) + noise(0.1, 256, n + s)(n, s) - 0.1
    ),
    "a fall": sweep(lambda n, s: 0.5 - 0.04 * np.linspace(0, 1, 16), base=0.5),
    "levels that differ with n": sweep(
        lambda n, s: 0.1 * np.log2(n) + noise(0.5, 64, n + s)(n, s) * 0.02
    ),
    "one run alone": sweep(lambda n, s: 0.2 + 0.3 * C / (C + 1e4), seeds=1, all_n=(8,)),
    "a step": sweep(lambda n, s: (C > 1e4) * 1.0, seeds=1, all_n=(8,)),
}


@cache
def fitted(name: str) -> FitResult:
    return fit(LEARNING[name], replicates=40)


@pytest.mark.parametrize("name", LEARNING)
def test_a_sweep_that_shows_something_is_fitted_as_before(name):
    document = fitted(name)
    assert document.nothing_learnt == "" and document.forecast is not None
    assert (document.sensitivity is not None) == (len(document.curves) > 1)


def test_an_n_that_never_scored_is_expected_to_stay_where_it_is():
    """At four times its data the others' departures are no reward of its own."""
    document = fitted("one n learns")
    rewards = {cell.n: cell.reward for cell in recommend(document, 3e5).measured_cells}
    assert rewards[16] > 0.3 and max(rewards[n] for n in (4, 8, 32)) < 0.02


def test_noise_alone_seldom_shows_something():
    rng = np.random.default_rng(5)
    shown = 0
    for _ in range(200):
        runs = [[Path(C, rng.binomial(500, 0.1, len(C)) / 500) for _ in range(2)] for _ in ALL_N]
        shown += shows_something(runs, KNOWN) + shows_something(
            runs, replace(KNOWN, is_known=False)
        )
    assert shown <= 0.03 * 400


def test_the_size_of_an_evaluation_is_the_smallest_step():
    assert size_by_step(np.array([0.0, 0.125, 0.25])).rollouts == pytest.approx(8)
    assert size_by_step(np.array([0.0, 0.001, 0.132])).rollouts == pytest.approx(1000)
    assert size_by_step(np.array([0.3, 0.3])).rollouts == 100


def with_train(train: dict[str, float], metrics: dict[str, float] | None = None) -> RunRecord:
    points = [
        EvalPoint(c, i, c, 0, {"avg@4": 0.0, **(metrics or {})}, (0,) * 50, 4, train if i else {})
        for i, c in enumerate(range(0, 1001, 100))
    ]
    return RunRecord(Cell(25, 4, 0), tuple(points), "n4")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (with_train({"zero_variance": 1.0}), "in all groups the rewards are equal"),
        (with_train({"truncated": 1.0}), "all responses were cut off"),
        (with_train({}, {"truncated": 0.97}), "97% of the responses were cut off"),
        (with_train({"parsed_fraction": 0.0}), "no responses held an answer"),
        (with_train({"nonfinite_update": 1.0}), "all updates were skipped"),
        # 100 rollouts between two evaluations, each of them one failed check
        (
            with_train({"verifier_failures": 100.0, "verifier_crash": 100.0}),
            "all checks of the verifier failed",
        ),
        (with_train({}, {"verifier_failures": 200.0}), "all checks of the verifier failed"),
    ],
)
def test_the_records_say_why(record, words):
    causes = find_causes([record])
    assert len(causes) == 1 and causes[0].startswith(words)
    document = fit([record, replace(record, cell=Cell(25, 8, 0))], replicates=20)
    assert words in document.flags[0].text


@pytest.mark.parametrize(
    ("at_limit", "beyond"),
    [
        ({"zero_variance": 0.99}, {"zero_variance": 0.989}),
        ({"truncated": 0.5}, {"truncated": 0.499}),
        ({"parsed_fraction": 0.01}, {"parsed_fraction": 0.011}),
        ({"nonfinite_update": 0.5}, {"nonfinite_update": 0.499}),
        ({"verifier_failures": 50.0}, {"verifier_failures": 49.0}),
    ],
)
def test_a_cause_is_named_from_its_limit_on(at_limit, beyond):
    """Half of the responses, of the updates or of the checks, of which there are 100 between two
    evaluations; nearly all groups; next to no answer that was read."""
    assert len(find_causes([with_train(at_limit)])) == 1
    assert find_causes([with_train(beyond)]) == ()


def test_where_most_checks_failed_unread_answers_are_no_cause():
    both = {"parsed_fraction": 0.0, "verifier_failures": 50.0}
    [cause] = find_causes([with_train(both)])
    assert cause.startswith("50% of the checks of the verifier failed")
    few = {"parsed_fraction": 0.0, "verifier_failures": 49.0}
    [cause] = find_causes([with_train(few)])
    assert cause.startswith("no responses held an answer")


def test_a_log_that_does_not_say_why_is_not_explained():
    assert find_causes(NOTHING["never right"]) == ()
    assert (
        find_causes([with_train({"zero_variance": 0.4, "truncated": 0.1, "parsed_fraction": 0.9})])
        == ()
    )


def test_no_reward_has_a_price():
    document = fit(NOTHING["two hits apart"], replicates=200)
    quoted = quote(document, 0.1)
    assert quoted.nothing_learnt and quoted.best_n is None
    assert [(cell.n, cell.C, cell.low, cell.high, cell.p_never) for cell in quoted.cells] == [
        (n, None, None, None, None) for n in ALL_N
    ]
    with refused():
        quote(fit(NOTHING["constant"], replicates=20), 0.2)


def test_a_budget_far_beyond_is_refused_because_nothing_was_learnt():
    with refused():
        recommend(fit(NOTHING["never right"], replicates=20), 1e8)


def test_two_sweeps_that_show_nothing_are_equal():
    fits = [fit(NOTHING[name], replicates=200) for name in ("never right", "one hit")]
    comparison = compare_sweeps(fits, ["a", "b"])
    assert comparison.sentences[0].startswith("a: no run learnt anything")
    assert comparison.sentences[1].startswith("b: no run learnt anything")
    difference = comparison.sweeps[1].difference
    assert difference is not None and difference.low is not None and difference.high is not None
    assert difference.low < 0 < difference.high
    assert {(row.n_low, row.n_high) for sweep in comparison.sweeps for row in sweep.at} == {(4, 32)}


def test_a_run_whose_n_grows_may_have_learnt():
    """Runs of a fixed n that learnt nothing do not say that a schedule learnt nothing."""
    runs = NOTHING["never right"]
    learning = run(32, 4, 0, C, 0.4 * C / (C + 1e4)).run
    growing = replace(learning, cell=Cell(32, 4, 0, schedule="growing"))
    assert fit([*runs, growing], replicates=20).nothing_learnt.startswith(
        "no run of a fixed n learnt"
    )
    flat = replace(growing, points=runs[0].points)
    assert fit([*runs, flat], replicates=20).nothing_learnt.startswith("no run learnt")


def test_a_late_take_off_is_no_certainty_and_zeros_do_not_cross():
    """Most rewards are 0, so that no noise is seen: the n that rose leads, with an interval, and is
    the only one to."""
    steps = np.arange(16)
    rising = sweep(
        lambda n, s: np.where(steps > 10, 0.05 * (steps - 10) + 0.002 * s, 0.0) * (n == 16)
    )
    document = fit(rising, replicates=200)
    for row in document.joint.crossovers:
        assert 16 in (row.n_low, row.n_high)
    advice = recommend(document, 3e5)
    rewards = {cell.n: cell.reward for cell in advice.measured_cells}
    assert advice.allocation.n == 16 and rewards[16] > 0.2
    assert max(rewards[n] for n in (4, 8, 32)) < 0.05
    assert advice.interval is not None and advice.interval[1] - advice.interval[0] > 0.01


def test_noise_below_the_base_policy_does_not_say_that_training_made_it_worse():
    rng = np.random.default_rng(1)
    runs = sweep(lambda n, s: rng.integers(9, 16, len(C)) / 100, base=0.132)
    document = fit(runs, replicates=20)
    advice = recommend(document, 3e5)
    assert document.nothing_learnt and document.base_reward is not None
    assert advice.expected_reward < document.base_reward
    assert not any("worse" in reason for reason in advice.reasons)


@pytest.mark.parametrize("name", SOLVED)
def test_where_all_is_solved_the_smallest_run_is_said_to_be_as_good(name):
    reasons = recommend(fit(SOLVED[name], replicates=20), 4e5).reasons
    assert any(reason.startswith("the smallest run is as good") for reason in reasons)
    reasons = recommend(fit(NOTHING["constant"], replicates=20), 4e5).reasons
    assert not any("smallest run" in reason for reason in reasons)


LAST_HIT = hits(n16s1e14=0.001, n16s1e15=0.132)  # N = 1,000 by the smallest step


@pytest.mark.parametrize(
    ("rewards", "base", "measured", "words"),
    [
        (
            LAST_HIT,
            None,
            (0, 0.132),
            "one evaluation of 0.132 stands out; whether it is a rise, only further",
        ),
        (
            LAST_HIT,
            0.0,
            (0, 0.132),
            "one evaluation of 0.132 stands out; whether it is a rise, only further",
        ),
        (
            hits(n8s0e5=0.132, n8s0e9=0.001),
            None,
            (0, 0.132),
            "0.132 stands out; no evaluation after it stays there",
        ),
        (
            hits(n8s0e15=0.1, n16s1e15=0.132, n4s0e2=0.001),
            None,
            (0, 0.132),
            "2 evaluations of 0.1 to 0.132 stand out; whether that is a rise, only further",
        ),
        (
            lambda n, s: 0.5 - 0.01 * hits(n4s0e3=1.0)(n, s) - 0.22 * hits(n8s0e15=1.0)(n, s),
            None,
            (0.28, 0.5),
            "one evaluation of 0.28 stands out; whether it is a fall, only further",
        ),
    ],
)
def test_no_interval_excludes_an_evaluation_that_stands_out(rewards, base, measured, words):
    document = fit(sweep(rewards, base), replicates=200)
    advice = recommend(document, 4e5)
    assert words in document.nothing_learnt and words in advice.nothing_learnt
    assert "no rise" not in document.nothing_learnt and "noise alone" not in document.nothing_learnt

    intervals = [(p.low, p.high) for p in document.joint.frontier] + [
        c.A_interval for c in document.curves
    ]
    intervals += [(cell.low, cell.high) for cell in advice.measured_cells]
    for low, high in [*filter(None, intervals), advice.interval, advice.prediction_interval]:
        assert low <= measured[0] + 1e-9 and high >= measured[1] - 1e-9
    highest = quote(document, 0.6).highest
    assert highest is not None and highest >= measured[1]
    assert {verdict.verdict for verdict in document.referee} <= {"cannot tell"}
    assert advice.n_probability == {n: pytest.approx(1 / 4) for n in ALL_N}
    assert "what stands out is beyond that" in document.flags[1].text


def test_counts_show_that_an_evaluation_stands_out():
    """20 of 128 at the last evaluation of one seed, all others 0."""
    runs = []
    for n in ALL_N:
        for seed in (0, 1):
            points = []
            for i, c in enumerate([0, *C]):
                right = 20 if (n, seed, i) == (16, 0, len(C)) else 0
                counts = (1,) * right + (0,) * (32 - right)
                points.append(EvalPoint(i, i, round(c), 0, {"avg@4": right / 128}, counts, 4))
            runs.append(RunRecord(Cell(32, n, seed), tuple(points), f"n{n}s{seed}"))
    document = fit(runs, replicates=200)
    assert "one evaluation of 0.1562 stands out" in document.nothing_learnt
    assert document.curves[0].A_interval == (0.0, 20 / 128)


def test_noise_alone_seldom_stands_out():
    told = 0
    for seed in range(40):
        runs = [Path(C, noise(0.1, 128, 100 * seed + i)(0, 0)) for i in range(8)]
        told += "stand" in describe(runs, replace(KNOWN, rollouts=128), "avg@4", "").text
    assert told <= 2


def test_a_gain_that_all_runs_have_together_is_one() -> None:
    """.300 at C = 0 and .320 afterwards, 12 runs of 15 evaluations of 1,600 rollouts. One
    evaluation has a standard deviation of .0115; the mean difference of 12 runs has one of about
    .0115 * sqrt(1 + 1 / 15) / sqrt(12) = .0034.
    """
    rng = np.random.default_rng(0)
    size = EvaluationSize(1600, "problems x samples, by the records", is_known=True)

    def runs(later: float) -> list[Path]:
        C = np.arange(16) * 1000.0
        rates = np.r_[0.3, np.full(15, later)]
        return [Path(C, rng.binomial(1600, rates) / 1600) for _ in range(12)]

    assert shows_something([runs(0.32)], size)
    assert not shows_something([runs(0.3)], size)
    assert not shows_something([runs(0.32)[:2]], size)  # of two runs it may be chance


def test_where_all_runs_broke_and_nothing_was_learnt_that_is_said_first():
    """All updates were skipped: the runs are flagged, and that is why."""
    broken = with_train({"nonfinite_update": 1.0})
    with refused() as refusal:
        fit_healthy_runs([broken, replace(broken, cell=Cell(25, 8, 0))], "avg@4")
    text = str(refusal.value)
    assert text.startswith("no run learnt anything") and "every run is flagged as broken" in text

    learning = run(32, 4, 0, C, 0.4 * C / (C + 1e4), train=np.ones(16)).run
    points = tuple(replace(p, train={"nonfinite_update": 1.0}) for p in learning.points)
    with refused() as refusal:
        fit_healthy_runs([replace(learning, points=points)], "avg@4")
    assert str(refusal.value).startswith("every run is flagged as broken")
    # before the first update nothing can be said of it
    unlearnt = replace(broken, points=broken.points[:1], failure_reason="out of memory")
    with refused() as refusal:
        fit_healthy_runs([unlearnt], "avg@4")
    assert str(refusal.value).startswith("every run is flagged as broken")


def test_the_paper_mode_warns_of_records_where_something_is_fitted():
    document = fit(LEARNING["a rise"], mode="paper", replicates=0)
    assert any(flag.code == "records_overshoot" for flag in document.flags)
