"""What is exactly at a limit: on which side of it each limit of the fits and of their advice is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isojax.core.nouns import Allocation, Cell, EvalPoint, RunRecord
from isojax.scaling import comparison_wording
from isojax.scaling.adaptive import AdaptivePolicy, SweepStep, _SweepModel
from isojax.scaling.allocate import advice, allocators
from isojax.scaling.allocate.constraints import AllocationRequest
from isojax.scaling.allocate.curve_ensemble import RewardForecast, load_ensemble
from isojax.scaling.allocate.growing_n import NOption, n_to_raise_to
from isojax.scaling.allocate.quote import quote
from isojax.scaling.allocate.recommend import (
    _Comparison,
    _explain_no_effect,
    _explain_outcome,
    _is_noise,
    recommend,
)
from isojax.scaling.checks import fit_flags
from isojax.scaling.checks.run_health import health_flags
from isojax.scaling.checks.stability import assess_stability, find_overfitting
from isojax.scaling.compare_sweeps import compare_sweeps
from isojax.scaling.comparison import EarlierSaturation, RewardDifference
from isojax.scaling.curve_from_file import fit_curve_file
from isojax.scaling.curves.departures import _visible_part
from isojax.scaling.curves.flat_start import _first_departure, find_flat_starts
from isojax.scaling.curves.flat_sweep import can_be_flat
from isojax.scaling.curves.paper_mode import fit_points, record_breaking_indices
from isojax.scaling.curves.posterior_mode import fit_shape, has_no_n_effect
from isojax.scaling.curves.single_run import find_reward_range
from isojax.scaling.curves.sweep_estimate import PosteriorSamples
from isojax.scaling.curves.unfitted import unfitted_reasons
from isojax.scaling.evaluation_noise import autocorrelation, difference_sd, noise_sd
from isojax.scaling.evaluation_size import SAME_REWARD, EvaluationSize, size_by_step
from isojax.scaling.law import referee
from isojax.scaling.law.frontier import compute_frontier
from isojax.scaling.law.law_from_file import _law_flags
from isojax.scaling.law.referee import ComparedCells
from isojax.scaling.learning import _describe_rewards, _tail, find_nothing_learnt_by_run
from isojax.scaling.result import (
    CountedUpdates,
    CurveDraws,
    FitDiagnostics,
    FitResult,
    FittedCurve,
    FlatStart,
    ForecastTrial,
    Law,
    NStarFit,
    OverfittedRun,
    SegmentRow,
)
from isojax.scaling.run_clock import Clock, run_clock
from isojax.scaling.run_watch import Look, RunWatch, intersect_looks
from isojax.scaling.spending import SpendPolicy
from isojax.scaling.validate import _judge_choice
from tests.refusals import refused
from tests.scaling.documents import CONSTANT, SHAPES, document, with_curve
from tests.scaling.sweeps import packed, run
from tests.scaling.test_run_health import made

REQUEST = AllocationRequest(C=1e5, B_max=None, fix={}, epsilon=0.005, extrapolate=False)
TWO_N = {cell: shape for cell, shape in SHAPES.items() if cell[1] < 64}


def updated(fit: FitResult, **fields: Any) -> FitResult:
    return fit.model_copy(update=fields)


# Advice.


@pytest.mark.parametrize(("high", "is_risk"), [(0.12, False), (0.13, True)])
def test_a_forecast_may_be_as_uncertain_as_the_limit(high: float, is_risk: bool) -> None:
    forecast = RewardForecast(0.1, (0.0, high))
    ensemble: Any = SimpleNamespace(predict_reward=lambda *_: forecast, C_measured_max=1e5)
    risk = advice._forecast_risk(ensemble, Allocation(16, 4, 10), 0)
    assert (risk is not None) == is_risk
    assert risk is None or "rise" not in risk.text


def test_the_larger_of_two_n_is_an_edge() -> None:
    risks = [advice._edge_risk(load_ensemble(document(TWO_N)), n) for n in (4, 16)]
    assert [risk and risk.code for risk in risks] == ["smallest_n_leads", "largest_n_leads"]


@pytest.mark.parametrize(("C", "is_risk"), [(105_000.0, False), (105_001.0, True)])
def test_a_curve_counts_as_measured_to_a_little_beyond_its_end(C: float, is_risk: bool) -> None:
    fit = updated(document(), forecast=ForecastTrial(departure_sd=0.01))
    assert (advice._extrapolation_risk(fit, fit.curves[0], C) is not None) == is_risk


def draws_in_which_n_4_wins(fit: FitResult, share: float) -> FitResult:
    """At 1e5 rollouts, in so large a share of the draws; in the others n = 16 does."""
    assert fit.draws is not None
    count = round(share * len(fit.draws.R0))
    first = fit.draws.A[0]
    A = ((0.9,) * count + first[count:], *fit.draws.A[1:])
    return updated(fit, draws=CurveDraws(**{**fit.draws.model_dump(), "A": A}))


@pytest.mark.parametrize(("share", "n"), [(0.1, [4, 16]), (0.075, [16])])
def test_an_n_is_likely_from_a_tenth_of_the_draws_on(share: float, n: list[int]) -> None:
    fit = draws_in_which_n_4_wins(document(replicates=40, sd=0.0), share)
    assert advice._likely_cells(load_ensemble(fit), REQUEST).n == n


@pytest.mark.parametrize(("C_low", "marks"), [(1024.0, 2), (1025.0, 1)])
def test_a_mark_may_be_where_the_data_begin(C_low: float, marks: int) -> None:
    """At 16 and 32 updates of 64 rollouts."""
    ensemble = load_ensemble(with_curve(document(), (16, 4), C_low=C_low))
    cell = ensemble.nearest_cell(16, 4)
    found = advice.set_halting_marks(ensemble, Allocation(16, 4, 64), cell)
    assert len(found) == marks and found[-1].C == 2048


def test_a_batch_of_the_limit_is_allowed() -> None:
    growing = [recommend(document(), 5e4, B_max=B_max).growing for B_max in (256, 255)]
    assert growing[0] is not None and growing[1] is None
    two_n = {(16, 16): (0.72, 1.0, 6e4), (16, 64): (0.72, 1.0, 6e4)}
    ensemble = load_ensemble(document(two_n, sd=0.03))
    sweeps = [
        advice.describe_supporting_sweep(ensemble, replace(REQUEST, C=4e6, B_max=B_max), 1e6)
        for B_max in (1024, 1023)
    ]
    assert "n = 16, 64 to" in sweeps[0] and "n = 16 to" in sweeps[1]


def test_an_n_of_the_limit_stays() -> None:
    chosen = allocators._ChosenN(16, ())
    assert allocators._limit_n(chosen, 16, "") is chosen
    assert allocators._limit_n(chosen, 15, "").n == 8


def test_a_reward_that_the_base_policy_has_already_is_refused() -> None:
    with refused(expected="more than the base policy's", recorded=False):
        quote(document(), 0.2)
    assert quote(document(), 0.2001).cells


def test_the_base_policys_reward_is_no_loss() -> None:
    ensemble = load_ensemble(document())
    arguments = (ensemble, REQUEST, Allocation(16, 4, 100), ensemble.nearest_cell(16, 4))
    assert not _explain_outcome(*arguments, 0.2)
    assert "made it worse" in _explain_outcome(*arguments, 0.199)[0]


@pytest.mark.parametrize(("rollouts", "is_noise"), [(40.0, False), (39.0, True)])
def test_eight_hits_are_no_noise(rollouts: float, is_noise: bool) -> None:
    """Of the base policy, whose reward is .2."""
    fit = document()
    assert fit.draws is not None
    draws = fit.draws.model_copy(update={"rollouts": rollouts})
    assert _is_noise(load_ensemble(updated(fit, draws=draws)), REQUEST) == is_noise


def test_an_n_that_may_be_best_is_named_from_its_limit_on() -> None:
    no_effect = NStarFit(law=CONSTANT.law, no_effect=True)
    joint = document().joint.model_copy(update={"n_star": no_effect})
    comparison = _Comparison({4: 0.1, 16: 0.9}, (), None, None)
    (sentence,) = _explain_no_effect(updated(document(), joint=joint), comparison, 16)
    assert "n = 4, 16" in sentence


@pytest.mark.parametrize(
    ("n", "gain", "p", "is_raised"),
    [(16, 0.005, 0.8, True), (16, 0.0049, 0.8, False), (16, 0.005, 0.79, False),
     (8, 0.005, 0.8, False)],
)  # fmt: skip
def test_n_is_raised_from_the_limits_on(n: int, gain: float, p: float, is_raised: bool) -> None:
    option = NOption(16, n, 0.5, None, gain, None, p, None, None)
    assert (n_to_raise_to([option], 8) is option) == is_raised


# Flags.


def codes(flags: Any) -> list[str]:
    return [f"{flag.code} {flag.severity}" for flag in flags]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"replicates": 100}, []),
        ({"replicates": 99}, ["few_replicates warning"]),
        ({"r_hat": (1.6, 1.5)}, []),
        ({"r_hat": (1.4, 1.51)}, ["not_converged warning"]),
    ],
)
def test_flags_of_intervals(fields: dict[str, Any], expected: list[str]) -> None:
    intervals = document().intervals
    assert intervals is not None
    settled = intervals.model_copy(update={"run_sd_source": "estimated"} | fields)
    assert codes(fit_flags._interval_flags(settled)) == expected


@pytest.mark.parametrize(
    ("inside", "flag"), [(0.6, "forecast_tried info"), (0.59, "forecast_missed warning")]
)
def test_flags_of_forecasts(inside: float, flag: str) -> None:
    trial = ForecastTrial(
        departure_sd=0.01, C_limit=1e4, mean_error=0.0, mean_absolute_error=0.01, inside=inside
    )
    assert codes(fit_flags.forecast_flags(trial)) == [flag]


@pytest.mark.parametrize(("count", "more"), [(4, ""), (5, " and 1 more")])
def test_lists_of_flags_have_four_items(count: int, more: str) -> None:
    curve = replace(document().curves[0], C_peak=3e4)
    (fall,) = fit_flags.fall_flags([replace(curve, n=n + 1) for n in range(count)], (), ())
    assert ("more" in fall.text) == bool(more) and more in fall.text

    overfitted = [OverfittedRun(16, 4, seed, 1e4, "") for seed in range(count)]
    diagnostics = FitDiagnostics(
        reduced_chi_square=None, autocorrelation=0.3, degrees_of_freedom=None, ties=()
    )
    flags = codes(fit_flags.diagnostics_flags(diagnostics, overfitted, 6))
    assert flags == ["overfitting warning"] * count

    correlated = diagnostics.model_copy(update={"autocorrelation": 0.31})
    (flag,) = fit_flags.diagnostics_flags(correlated, (), 6)
    assert flag.code == "autocorrelated_residuals"


def segment(z: float) -> SegmentRow:
    fields: dict[str, Any] = dict(n=4, B_p=16, C_low=1e3, C_high=1e4, decades=1.0, neighbours=())
    fields |= dict(censored_low=False, censored_high=False, has_counts=True, at_C=2e3)
    return SegmentRow(**fields, measured_for_neighbours=True, lead=0.1, se=0.1 / z, z=z)


@pytest.mark.parametrize(("z", "weak"), [(2.0, 0), (1.99, 1)])
def test_a_lead_of_two_standard_errors_is_one(z: float, weak: int) -> None:
    flags = list(fit_flags._lead_flags([segment(z), segment(3.0)]))
    assert len(flags) == weak


# Adaptive sweeps.


def ledger(cell: Cell, *C: int, reward: float = 0.3) -> RunRecord:
    return RunRecord(cell, tuple(EvalPoint(c, c // cell.B, c, 0, {"avg@4": reward}) for c in C))


GRID = (0, 64, 128, 256, 512, 1024)
CELLS = tuple(Cell(16, n, seed) for n in (2, 4) for seed in (0, 1))


def test_four_evaluations_are_enough_and_the_one_before_training_is_none() -> None:
    cell = Cell(16, 4, 0)
    assert AdaptivePolicy([cell], (0, 64, 128, 192, 256), total_rollouts=256)
    with refused(where="sweep.strategy=adaptive", recorded=False):
        AdaptivePolicy([cell], (0, 64, 128, 192), total_rollouts=256)
    with refused(where="sweep.total_rollouts", recorded=False):
        AdaptivePolicy([cell], (0, 64, 128, 192, 256), total_rollouts=255)


def test_runs_that_have_come_to_their_first_target_are_decided_by() -> None:
    """The first four evaluations of n = 4 are those up to 512."""
    policy = AdaptivePolicy(CELLS, GRID)
    reached = {Cell(16, 2, 0): 512, Cell(16, 4, 0): 511}
    steps = policy._first_steps(policy._seeds_by_cell(()), reached)
    assert [(step.cell.n, step.cost) for step in steps] == [(4, 1)]

    summary = policy.summary([ledger(CELLS[0], 0), ledger(CELLS[2], 0, 64)])
    assert [row["runs"] for row in summary["cells"]] == [0, 1]


def test_a_run_goes_at_least_so_much_further_and_one_seed_after_the_other() -> None:
    """A step from 600 is to 1,020 at least; the budget may be nearer. Seeds begin in turn, after
    those that were trained."""
    grid = (0, 64, 128, 256, 512, 1020, 4096)
    policy = AdaptivePolicy([Cell(1, 4, seed) for seed in range(3)], grid)

    def targets(C_now: int, left: int = 10**6) -> list[tuple[int, int]]:
        reached = {Cell(1, 4, 0): C_now, Cell(1, 4, 1): 0}
        steps = policy._possible_steps(policy._seeds_by_cell(()), reached, left)
        return [(step.cell.seed, step.target) for step in steps]

    assert 1020 in policy.C_levels
    assert (0, 1020) in targets(600) and (0, 1020) not in targets(601)
    assert {seed for seed, _ in targets(600)} == {0, 1} and {s for s, _ in targets(0)} == {0}
    assert (0, 1020) in targets(600, left=420) and (0, 1020) not in targets(600, left=419)


@pytest.mark.parametrize(("wins", "is_possible"), [(5, True), (4, False)])
def test_a_cell_is_trained_on_that_is_best_in_a_twentieth(
    monkeypatch: pytest.MonkeyPatch, wins: int, is_possible: bool
) -> None:
    A = np.full((100, 2), 0.5)
    A[:, 0], A[:wins, 1] = 0.6, 0.7
    ones = np.ones(100)
    draws = PosteriorSamples(
        tail=ones,
        keys=((16, 2), (16, 4)),
        A=A,
        exponent=np.ones((100, 2)),
        C_mid=np.full((100, 2), 100.0),
        R0=0.2 * ones,
        shift=np.zeros((100, 2)),
        C_peak=np.full(2, np.inf),
        C_low=np.full(2, 64.0),
        C_high=np.full(2, 512.0),
    )
    monkeypatch.setattr(AdaptivePolicy, "_fit", lambda *_: _SweepModel(draws, 0.001))
    policy = AdaptivePolicy(CELLS, GRID)
    step = SweepStep(Cell(16, 4, 0), 1024, cost=512)
    steps = policy._worthwhile_steps([], [step], {Cell(16, 4, 0): 512})
    assert bool(steps) == is_possible


# Rewards that count as equal, and evaluations that are enough.

A_LITTLE = [0.0, SAME_REWARD, 0.0, SAME_REWARD, 0.0, SAME_REWARD]


def test_rewards_that_differ_by_the_limit_are_equal() -> None:
    more = [2.5 * reward for reward in A_LITTLE]
    for values, is_equal in ((A_LITTLE, True), (more, False)):
        R = np.array(values)
        seen = _describe_rewards(R, 0.0, "avg@4", 1, False, lambda *_: "")
        assert seen.is_varied == (not is_equal)
        assert (size_by_step(R).source.startswith("assumed")) == is_equal
        assert _first_departure(R, 0.0, hit=0.0) == (6 if is_equal else 1)
        assert (_tail(values[1], 0.0, 100.0) == 1.0) == is_equal
        shown = _describe_rewards(np.append(R, 1.0), 0.0, "", 1, False, lambda *_: "").text
        assert ("only one is above" in shown) == is_equal
        few = run(16, 4, 0, range(0, 300, 100), R[:3])
        assert (find_nothing_learnt_by_run(few, "avg@4") is not None) == is_equal
        assert can_be_flat({(16, 4): [run(16, 4, 0, [0, 100], R[:2])]}) == is_equal


@pytest.mark.parametrize(("hits", "words"), [(3, "stays at"), (2, "only 2 are above")])
def test_half_of_the_evaluations_above_0_are_not_few(hits: int, words: str) -> None:
    R = np.array([0.5] * hits + [0.0] * (6 - hits))
    seen = _describe_rewards(R, 0.1, "avg@4", 1, False, lambda *_: "")
    assert words in seen.text


@pytest.mark.parametrize(("reward", "is_alone"), [(0.125, True), (0.124, False)])
def test_eight_hits_are_no_few(reward: float, is_alone: bool) -> None:
    """Of 64 rollouts; with fewer, cells within one hit of the best are as good."""
    samples = PosteriorSamples.of_curves(
        document().curves[:2], rollouts=64.0,
        **dict.fromkeys(("tail", "R0"), np.ones(1)), **dict.fromkeys(("A", "exponent", "C_mid"),
        np.ones((1, 2))), shift=np.zeros((1, 2)),
    )  # fmt: skip
    rewards = np.array([[reward, reward - 0.01]])
    best = samples.is_best(rewards, np.ones((1, 2), dtype=bool), axis=1)
    assert best.tolist() == [[True, not is_alone]]
    within_a_hit = np.array([[0.0625, 0.0625 - 1 / 64]])
    assert samples.is_best(within_a_hit, np.ones((1, 2), dtype=bool), axis=1).all()


@pytest.mark.parametrize(("level", "enough"), [(0.0, 3), (SAME_REWARD, 3), (0.3, 4)])
def test_evaluations_at_one_level_that_make_a_flat_start(level: float, enough: int) -> None:
    """Three at 0, of all seeds together; four of each run elsewhere."""
    for count, C_flat in ((enough, 100.0 * (enough - 1)), (enough - 1, None)):
        R = [level] * count + [level + 0.1, level + 0.2]
        track = run(16, 4, 0, np.arange(len(R)) * 100, R)
        found = find_flat_starts({(16, 4): [track]}, EvaluationSize(100, "", is_known=True))
        assert (found[16, 4].C_flat if found else None) == C_flat


def test_of_equal_means_the_smaller_n_was_best() -> None:
    tracks = [run(16, n, 0, [0, 1e4, 1e5], [0.2, 0.5, 0.6]) for n in (4, 16, 64)]
    assert _judge_choice(load_ensemble(document()), tracks)["n_best"] == 4


# Runs that are watched, compared, timed and spent.


@pytest.mark.parametrize(
    ("goal", "interval", "words"),
    [
        (0.5, (0.4, 0.5), "may reach"),
        (0.5, (0.4, 0.499), "is below"),
        (0.5, (0.5, 0.6), "is at least"),
        (None, (0.0, 0.005), "may still rise"),
        (None, (0.0, 0.0049), "levelled off"),
    ],
)
def test_advice_on_a_run(goal: float | None, interval: tuple[float, float], words: str) -> None:
    look = Look(C=1.0, points=9, reward=0.5, low=interval[0], high=interval[1], reward_now=0.0)
    assert words in RunWatch(10.0, goal)._advise(5.0, interval, True, look).reason


def test_looks_that_touch_agree() -> None:
    looks = [Look(1.0, 9, 0.5, low, high, 0.5) for low, high in ((0.2, 0.4), (0.4, 0.6))]
    assert intersect_looks(looks) == ((0.4, 0.4), True)


def test_the_words_of_comparisons() -> None:
    probabilities = {0.99: "= 0.99", 0.991: "> 0.99", 0.01: "= 0.01", 0.009: "< 0.01"}
    for p, words in probabilities.items():
        assert comparison_wording._format_probability(p) == words

    a, b = compare_sweeps([document(replicates=20), document(replicates=20)], ["a", "b"]).sweeps
    for (low, high), word in {
        (0.0, 0.1): "no clear", (0.001, 0.1): "more", (-0.1, 0.0): "no clear", (-0.1, -0.01): "less"
    }.items():  # fmt: skip
        difference = RewardDifference(value=0.0, low=low, high=high, p_higher=None)
        assert word in comparison_wording._describe_difference(a, b, difference, 1e5)
    for (earlier, later), word in {
        (0.9, 0.0): "earlier in b", (0.0, 0.9): "later in b", (0.89, 0.1): "cannot say"
    }.items():  # fmt: skip
        compared = EarlierSaturation((4, 16), earlier, later)
        assert word in comparison_wording._describe_earlier(a, b, compared)


def test_two_common_n_are_compared() -> None:
    two, one = (
        {cell: shape for cell, shape in SHAPES.items() if cell[1] in all_n}
        for all_n in ((4, 16), (16,))
    )
    for shapes, is_compared in ((two, True), (one, False)):
        fits = [document(replicates=20), document(shapes, replicates=20)]
        other = compare_sweeps(fits, ["a", "b"]).sweeps[1]
        assert (other.earlier is not None) == is_compared


def test_an_evaluation_at_the_share_of_C_counts() -> None:
    """.7 of 1e5: with it the mean of n = 16 is above that of n = 4, and without below."""
    tracks = [
        run(16, 4, 0, [0, 1e5], [0.2, 0.6]),
        run(16, 16, 0, [0, 7e4, 1e5], [0.2, 0.8, 0.5]),
        run(16, 64, 0, [0, 69_999, 1e5], [0.2, 0.9, 0.5]),
    ]
    assert _judge_choice(load_ensemble(document()), tracks)["n_best"] == 16


def test_a_clock_needs_two_evaluations_and_five_intervals_for_those_of_evaluations() -> None:
    def clock(*C: int) -> Clock | None:
        record = ledger(Cell(16, 4, 0), *C)
        hours = [(10 + 0.01 * c + 3 * i**2) / 3600 for i, c in enumerate(C)]
        return run_clock(replace(record, device_hours=tuple(hours)))

    assert clock(0, 1024) is None and clock(0, 1024, 2048) is not None
    five = clock(0, 1024, 2048, 4096, 8192, 16384, 32768)
    four = clock(0, 1024, 2048, 4096, 8192, 16384)
    assert five is not None and four is not None
    assert four.per_efold == 0.0 and five.per_efold > 0.0


def test_a_pilot_may_have_just_enough_updates() -> None:
    """A tenth of 1,280 is 8 updates of 16 rollouts, and an evaluation."""
    cells = [Cell.of_spend(8, 2)]
    grid = (0, 32, 64, 128, 256, 512)
    (pilot,) = SpendPolicy(cells, grid, 1280, "avg@4").pilots()
    assert pilot.C_end == 128
    (first,) = SpendPolicy(cells, grid, 1279, "avg@4").pilots()
    assert first.C_end == 32
    with refused(expected="at least 5", recorded=False):
        SpendPolicy(cells, grid[:5], 1280, "avg@4")


def test_the_fewest_values_that_show_noise() -> None:
    assert noise_sd([np.array([0.1, 0.2])]) == 0.0 and noise_sd([np.array([0.1, 0.3, 0.1])]) > 0
    assert difference_sd([np.array([0.1])]) == 0.0
    assert difference_sd([np.array([0.1, 0.3])]) == pytest.approx(0.2 / 2**0.5)
    assert autocorrelation([np.array([0.1, 0.3])]) == pytest.approx(0.03 / 0.05)


@pytest.mark.parametrize(("visible", "seen"), [(4, True), (3, False)])
def test_a_trial_sees_runs_of_four_evaluations(visible: int, seen: bool) -> None:
    """Those up to the limit, not the one before training; C spans 8 times the first."""
    C = [0, *range(100, 100 * visible + 1, 100), 3000]
    track = run(16, 4, 0, C, np.linspace(0.2, 0.5, len(C)))
    assert bool(_visible_part({(16, 4): [track]}, 100.0 * visible)) == seen
    if seen:
        assert _visible_part({(16, 4): [track]}, 400.0) and not _visible_part(
            {(16, 4): [run(16, 4, 0, [0, 201, 300, 350, 400, 3000], [0.2] * 6)]}, 400.0
        )
        assert _visible_part({(16, 4): [run(16, 4, 0, [0, 200, 300, 350, 400], [0.2] * 5)]}, 400.0)


@pytest.mark.parametrize(("count", "is_stable"), [(10, True), (9, False)])
def test_ten_evaluations_show_how_noisy_one_is(count: int, is_stable: bool) -> None:
    """Rewards that jump by .2 and end .2 lower: with fewer nothing shows that this is noise."""
    jumps = [0.8, 0.6] * 4
    R = [*jumps[: count - 3], 0.5, 0.6, 0.5]
    track = run(16, 4, 0, np.arange(1, count + 1) * 100, R)
    (verdict,) = assess_stability({(16, 4): [track]}, "avg@4")
    assert verdict.stable == is_stable


@pytest.mark.parametrize(("count", "found"), [(12, 1), (11, 0)])
def test_overfitting_needs_three_windows(count: int, found: int) -> None:
    R = ([0.3] * 4 + [0.6] * 4 + [0.3] * 4)[-count:]
    training = np.linspace(0.2, 0.9, count)
    track = run(16, 4, 0, np.arange(1, count + 1) * 100, R, training)
    assert len(find_overfitting([track], 0.001)) == found


@pytest.mark.parametrize(("points", "is_cell"), [(3, True), (2, False)])
def test_a_curve_needs_three_evaluations_and_a_common_range(points: int, is_cell: bool) -> None:
    C = {(16, 4): [np.arange(1.0, points + 1)], (16, 8): [np.arange(1.0, 9.0)]}
    assert ((16, 4) not in unfitted_reasons(C)) == is_cell
    meeting = [np.array([1.0, 2.0]), np.array([2.0, 3.0])]
    apart = {(16, 8): [np.arange(1.0, 9.0)], (16, 4): meeting}
    assert "no range" in unfitted_reasons(apart)[16, 4]


def test_records_of_the_paper_are_of_higher_bins() -> None:
    assert record_breaking_indices([0.3, 0.304, 0.305, 0.305, 0.31]).tolist() == [0, 2, 4]
    C, R = [1.0, 2.0, 4.0], [0.3, 0.4, 0.5]
    assert isinstance(fit_points((16, 4), C, R, 0.2, (1.0, 4.0)), FittedCurve)
    assert isinstance(fit_points((16, 4), C, R, None, (1.0, 4.0)), str)
    assert isinstance(fit_points((16, 4), C[:2], R[:2], 0.2, (1.0, 4.0)), str)
    assert "is 1" in str(fit_points((16, 4), C, [1.0] * 3, 1.0, (1.0, 4.0)))


def test_a_cell_counts_as_measured_to_its_ends() -> None:
    samples = load_ensemble(document(replicates=4)).samples
    measured = samples.is_measured([999.0, 1e3, 1e5, 1.01e5], slack=0.0)
    assert measured.tolist() == [[False, True, True, False]] * 6


def test_where_no_cell_ever_rises_all_are_tied_and_the_smallest_n_stands_for_them() -> None:
    never = FlatStart(level=0.2, rollouts=100.0, C_flat=1e5, C_rise=None)
    curves = [replace(curve, flat_start=never) for curve in document().curves]
    points = compute_frontier(curves).points
    assert {(p.n, p.tied, p.reward) for p in points} == {(4, True, 0.2)}


# Files of points, and what is read.


def test_ten_points_from_0_to_1_are_enough_and_within_the_range_of_rewards(tmp_path: Path) -> None:
    def flags(points: int, top: float) -> str:
        rows = [f"{1000 * 2**i},{top * i / (points - 1)}" for i in range(points)]
        file = tmp_path / f"{points}.csv"
        file.write_text("\n".join(["C,R", *rows]) + "\n")
        return " ".join(fit_curve_file(file, "C", "R").document["flags"])

    assert "only" not in (enough := flags(10, 1.0)) and "within" not in enough
    assert "only 9 points" in (fewer := flags(9, 1.01)) and "is not within [0, 1]" in fewer


def test_the_range_of_rewards_has_its_ends() -> None:
    assert find_reward_range(np.array([0.0, 0.5])) == find_reward_range(np.array([0.5, 1.0]))
    assert find_reward_range(np.array([0.0, 1.0])) == (0.0, 1.0)
    assert find_reward_range(np.array([0.0, 1.5])) == (-1.5, 3.0)


@pytest.mark.parametrize(("n", "is_few"), [([4, 8, 16, 32], False), ([4, 8, 16, 16], True)])
def test_two_distinct_n_for_each_parameter(n: list[int], is_few: bool) -> None:
    line = Law("linear", 0.0, 1.0, 5.0, 3.0)
    C = np.geomspace(1e4, 1e5, 4)
    flags = list(_law_flags(C, np.array(n, dtype=np.float64), line, None))
    assert any("distinct n" in flag for flag in flags) == is_few


def test_counts_that_stay_are_refused() -> None:
    assert CountedUpdates(C=(0, 1), M=(0, 1))
    for C, M in (((0, 0), (0, 1)), ((0, 1), (1, 1))):
        with pytest.raises(ValueError, match="rising"):
            CountedUpdates(C=C, M=M)


@pytest.mark.parametrize(("count", "flags"), [(4, 1), (3, 0)])
def test_four_evaluations_can_be_judged(count: int, flags: int) -> None:
    record = made([0.2] * count)
    mismatch = {"sampler_logp_gap": 0.5}
    points = tuple(replace(point, train=mismatch) for point in record.points)
    assert len(health_flags(replace(record, points=points))) == flags


def test_no_choice_is_judged_where_nothing_is_hidden() -> None:
    tracks = [run(16, n, 0, [0, 5e4, 1e5], [0.2, 0.5, 0.6]) for n in (4, 16)]
    ensemble = load_ensemble(document())
    assert _judge_choice(ensemble, tracks, C_above=99_999.0)["C"] == 1e5
    assert _judge_choice(ensemble, tracks, C_above=1e5)["C"] is None


# Whether n matters, by two n or two pairs.


def test_two_n_are_compared() -> None:
    one_curve = packed(curves=dict.fromkeys(((16, 4), (16, 8)), (0.6, 1.0, 8e3)), noise=0.01)
    assert has_no_n_effect(one_curve, fit_shape(1.0, one_curve))


def rewards_of(*keys: tuple[int, int]) -> ComparedCells:
    C = np.geomspace(1e3, 1e5, 4)
    rewards = np.full((5, len(keys), 4), 0.5)
    return ComparedCells(keys, C, rewards, np.ones((len(keys), 4), dtype=bool))


def test_two_pairs_of_one_batch_are_judged_and_one_asks_for_another() -> None:
    pairs = rewards_of((8, 8), (16, 4), (32, 2))
    assert referee._judge_batch(pairs).open_loss is not None
    # no run has half of n = 2
    missing = referee._judge_batch(rewards_of((8, 2), (8, 4))).missing_run
    assert missing is not None and (missing.B_p, missing.n) == (16, 2)


def test_an_n_of_128_counts_as_hundreds() -> None:
    assert referee._judge_hundreds(rewards_of((8, 64), (8, 128))).open_loss is not None
    assert referee._judge_hundreds(rewards_of((8, 128), (8, 256))).open_loss is None


@pytest.mark.parametrize(("hits", "words"), [(8, "no n has come"), (9, "only n = 4")])
def test_more_than_eight_hits_are_a_change(hits: int, words: str) -> None:
    """Of 64 rollouts, from a level of 0."""
    curves = document({(16, 4): (0.6, 1.0, 1.0), (16, 16): (0.6, 1.0, 1.0)}).curves
    flat = FlatStart(level=0.0, rollouts=64.0, C_flat=1e5, C_rise=None)
    left = replace(flat, level=hits / 64)
    curves = (replace(curves[0], flat_start=left), replace(curves[1], flat_start=flat))
    samples = PosteriorSamples.of_curves(
        (curves[1], curves[0]), rollouts=64.0, tail=np.ones(2), R0=np.zeros(2),
        A=np.ones((2, 2)), exponent=np.ones((2, 2)), C_mid=np.ones((2, 2)), shift=np.zeros((2, 2)),
    )  # fmt: skip
    assert words in (referee._nothing_compared(samples) or "")
