"""The statistics behind "nothing was learnt", each against an enumeration, SciPy, or by hand; and
the size of an evaluation by its rewards."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np
import pytest
from scipy.stats import binom, kruskal, norm
from scipy.stats import t as student_t

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling import learning
from isojax.scaling.evaluation_size import (
    EvaluationSize,
    _common_step,
    _decimals,
    _rollouts_by_scatter,
    bends,
    evaluation_size,
    size_by_step,
)
from isojax.scaling.tracks import FloatArray, make_track
from tests.scaling.sweeps import run as run_of


@dataclass
class Path:
    C: FloatArray
    R: FloatArray


def path(rewards, base: float | None = None) -> Path:
    """Evaluations at C = 1, 2, ..., and at 0 where there is a base."""
    rewards = np.asarray(rewards, dtype=np.float64)
    C = np.arange(1.0, len(rewards) + 1)
    if base is None:
        return Path(C, rewards)
    return Path(np.append(0.0, C), np.append(base, rewards))


def size_of(rollouts: float, is_known: bool = True) -> EvaluationSize:
    return EvaluationSize(rollouts, "", is_known=is_known)


@pytest.mark.parametrize(
    "values", [(1, 2, 3, 4, 5), (1, 1, 2, 3, 4), (1, 1, 2, 2, 2), (3, 3, 3, 3)]
)
def test_the_variance_of_kendalls_S_by_all_orders(values):
    scores = []
    for order in permutations(values):
        pairs = combinations(order, 2)
        scores.append(sum((b > a) - (b < a) for a, b in pairs))
    rewards = np.array(values) / 10
    assert learning._kendall_variance(rewards) == pytest.approx(np.var(scores), abs=1e-12)


def has_trend_by_loops(runs: list[Path], step: float) -> bool:
    score, variance, changes = 0, 0.0, []
    for run in runs:
        rewards = run.R[run.C > 0]
        if len(rewards) < 2:
            continue
        for a, b in combinations(rewards, 2):
            score += 0 if abs(b - a) <= 1e-6 else int(np.sign(b - a))
        variance += learning._kendall_variance(rewards)
        half = len(rewards) // 2
        changes.append(rewards[-half:].mean() - rewards[:half].mean())
    if not variance or max(map(abs, changes)) < step * (1 - 1e-6):
        return False
    return (abs(score) - 1) / np.sqrt(variance) >= 3


def test_trends_by_loops_over_pairs():
    """Falling and rising, with ties, runs of one evaluation among them; the step of one hit is of
    the halves' means."""
    rng = np.random.default_rng(0)
    results = []
    for slope in (-0.03, -0.01, 0.0, 0.005, 0.01, 0.03):
        for seed in range(4):
            rng = np.random.default_rng(seed)
            runs = [
                path(np.round(0.5 + slope * np.arange(9) + 0.05 * rng.standard_normal(9), 2), base)
                for base in (None, 0.9)
            ]
            runs.append(path([0.7]))
            for step in (0.01, 0.1):
                expected = has_trend_by_loops(runs, step)
                assert learning._has_trend(runs, step) == expected
                results.append(expected)
    assert 5 < sum(results) < len(results) - 5
    assert not learning._has_trend([path([0.7])], 0.01)
    rising = [path(np.arange(8) / 8)]  # S = 28 of a variance of 65.3: (28 - 1) / 8.08 = 3.34
    assert learning._has_trend(rising, 0.5) and not learning._has_trend(rising, 0.51)
    # 7 evaluations: (21 - 1) / sqrt(44.3) = 3.004; 6: (15 - 1) / sqrt(28.3) = 2.63
    assert learning._has_trend([path(np.arange(7) / 7)], 0.1)
    assert not learning._has_trend([path(np.arange(6) / 6)], 0.1)


def test_long_runs_are_merged_to_medians():
    rewards = np.random.default_rng(0).random(250)
    merged = learning._merge_to_medians(rewards)
    assert len(merged) == 100 and merged[0] == np.median(rewards[:3])
    assert merged[-1] == np.median(rewards[-2:])
    assert (learning._merge_to_medians(rewards[:100]) == rewards[:100]).all()


def test_the_test_of_kruskal_and_wallis_is_that_of_scipy():
    """Of two to four groups, some of whose values are equal."""
    rng = np.random.default_rng(1)
    for count in (2, 3, 4):
        groups = [rng.integers(0, 8, size) / 16 for size in rng.integers(1, 20, count)]
        assert learning.kruskal_p_value(groups) == pytest.approx(kruskal(*groups).pvalue, rel=1e-12)


def test_cells_that_differ_by_kruskal_and_wallis():
    rng = np.random.default_rng(0)
    for gap in (0.0, 0.02, 0.03, 0.1):
        groups = [
            [path(0.3 + gap * (i == 2) + 0.02 * rng.standard_normal(8), base=0.0) for _ in range(2)]
            for i in range(3)
        ]
        samples = [np.concatenate([run.R[1:] for run in group]) for group in groups]
        differ = kruskal(*samples).pvalue < 2 * norm.sf(3)
        largest = np.ptp([s.mean() for s in samples])
        assert learning._cells_differ(groups, 0.99 * largest) == differ
        assert not learning._cells_differ(groups, 1.01 * largest)
    assert learning._cells_differ(groups, 0.01)
    assert not learning._cells_differ(groups[:1], 0.01)
    assert not learning._cells_differ([[path([0.2] * 9)], [path([0.2] * 9)]], 0.0)


@pytest.mark.parametrize("rollouts", [20, 200])
def test_tails_of_whole_hits_are_those_of_the_binomial_distribution(rollouts):
    for level in (0.05, 0.3, 0.9):
        for hits in range(rollouts + 1):
            reward = hits / rollouts
            above = binom.sf(hits - 1, rollouts, level)
            below = binom.cdf(hits, rollouts, level)
            expected = above if reward > level else below
            if abs(reward - level) <= 1e-6:
                expected = 1.0
            assert learning._tail(reward, level, rollouts) == pytest.approx(expected, abs=1e-9)


def test_evaluations_that_stand_out_and_whether_the_run_stays_there():
    """Of 12 evaluations of 100 rollouts around .1: the probability of noise is below .005 / 24."""
    least = 0.005 / 24
    first = next(h for h in range(10, 100) if binom.sf(h - 1, 100, 0.1) < least) / 100
    runs = [path([0.1, first, 0.1, 0.1, first, first], base=0.9), path([0.1] * 5 + [first - 0.01])]
    found = learning._find_outliers(runs, 0.1, 100)
    assert [(o.reward, o.is_last) for o in found] == [
        (first, False), (first, True), (first, True)
    ]  # fmt: skip
    assert learning._find_outliers([path([])], 0.1, 100) == []


def test_where_a_run_begins_and_how_far_it_comes():
    rewards = np.array([0.1, 0.5, 0.3, 0.2, 0.4, 0.6])
    start, later = learning._start_and_later(rewards, None)
    assert (start.reward, start.variance) == (0.3, 0.45) and later.tolist() == [0.2, 0.4, 0.6]
    start, later = learning._start_and_later(rewards[:5], None)
    assert start.reward == pytest.approx(0.3) and start.variance == 0.7 and len(later) == 3
    start, later = learning._start_and_later(rewards, 0.25)
    assert (start.reward, start.variance, len(later)) == (0.25, 1.0, 6)
    start, later = learning._start_and_later(rewards[:1], None)
    assert (start.reward, start.variance, len(later)) == (0.1, 1.0, 0)
    # medians of three in a row: .3, .3, .3, .4; of two both have to come so far
    assert learning._extreme_rewards(rewards, 3) == pytest.approx((0.4, 0.3))
    assert learning._extreme_rewards(np.array([0.1, 0.5]), 2) == pytest.approx((0.1, 0.5))


def shift_by_hand(runs: list[Path], size: EvaluationSize) -> bool:
    bases = [r for run in runs for r in run.R[run.C == 0]]
    trained = [run.R[run.C > 0] for run in runs]
    noise = [r[i] - (r[i - 1] + r[i + 1]) / 2 for r in trained for i in range(1, len(r) - 1)]
    places = sum(max(len(run.R) - 1, 1) for run in runs)
    z = norm.isf(0.005 / 2 / places)
    for r in trained:
        if bases:
            start, variance, later = np.mean(bases), 1.0, r
        else:
            count = min(3, max(1, len(r) // 2))
            start = np.median(r[:count])
            variance, later = {1: 1.0, 2: 0.7, 3: 0.45}[count], r[count:]
        width = min(3, len(later))
        if width < 2:
            continue
        windows = [later[i : i + width] for i in range(len(later) - width + 1)]
        if width == 3:
            extremes = [max(map(np.median, windows)), min(map(np.median, windows))]
        else:
            extremes = [max(map(min, windows)), min(map(max, windows))]
        for reward in extremes:
            middle = np.clip((start + reward) / 2, size.step / 2, 1 - size.step / 2)
            one = middle * (1 - middle) / size.rollouts
            if not size.is_known and noise:
                one = np.mean(np.square(noise)) / 1.5
            error = np.sqrt(one * (variance + {2: 0.7, 3: 0.45}[width]))
            if abs(reward - start) >= size.step * (1 - 1e-6) and abs(reward - start) > z * error:
                return True
    return False


def test_shifts_by_loops_over_windows():
    rng = np.random.default_rng(0)
    results = []
    for later in (0.3, 0.32, 0.36, 0.4, 0.2):
        for base in (None, 0.3):
            for count in (3, 5, 12):
                for known in (True, False):
                    rewards = rng.binomial(
                        400, np.r_[[0.3] * (count // 2), [later] * (count - count // 2)]
                    )
                    runs = [path(rewards / 400, base), path(rng.binomial(400, [0.3] * 4) / 400)]
                    expected = shift_by_hand(runs, size_of(400, known))
                    assert learning._has_shift(runs, size_of(400, known)) == expected
                    results.append(expected)
    assert 10 < sum(results) < len(results) - 10


def test_a_common_shift_by_students_t():
    """Six runs whose mean gains are .02 +- s / sqrt(6), and the threshold of Student's t with 5
    degrees of freedom at .0025 on a side."""
    z = student_t.isf(0.0025, 5)
    deviations = np.array([-1.5, -1, -0.5, 0.5, 1, 1.5])
    sd = deviations.std(ddof=1)
    for factor in (0.98, 1.02):
        spread = factor * 0.02 * np.sqrt(6) / (z * sd)
        bases = 0.3 + 0.001 * np.arange(6)
        runs = [
            path([base + 0.02 + spread * d - 0.01, base + 0.02 + spread * d + 0.01], base)
            for base, d in zip(bases, deviations, strict=True)
        ]
        assert learning._has_common_shift(runs, size_of(100)) == (factor < 1)
        assert not learning._has_common_shift(runs, size_of(49))  # less than a step
        assert not learning._has_common_shift(runs, size_of(100, is_known=False))
        assert not learning._has_common_shift(runs[:5], size_of(100))
        downwards = [Path(run.C, 1 - run.R) for run in runs]
        assert learning._has_common_shift(downwards, size_of(100)) == (factor < 1)
    # One evaluation that all share is no evaluation of each one's own: 3 different ones are enough.
    spread = 0.5 * 0.02 * np.sqrt(6) / (z * sd)
    for distinct, shown in ((3, True), (2, False)):
        runs = [
            path([0.32 + spread * d + 0.001 * (i % distinct)] * 2, 0.3 + 0.001 * (i % distinct))
            for i, d in enumerate(deviations)
        ]
        assert learning._has_common_shift(runs, size_of(100)) == shown


def test_rewards_that_scatter_are_worth_fewer_rollouts():
    """The median distance from the level is .6745 standard deviations: sqrt(.25 / N)."""
    runs = [path([0.4, 0.6, 0.45, 0.55]), path([0.5 - 0.05, 0.5 + 0.05, 0.45])]
    sd = 0.05 / norm.isf(0.25)
    assert learning._effective_rollouts(runs, 0.5, size_of(400)) == pytest.approx(0.25 / sd**2)
    assert learning._effective_rollouts(runs, 0.5, size_of(30)) == 30
    assert learning._effective_rollouts([path([0.5, 0.5, 0.7])], 0.5, size_of(40)) == 40
    assert learning._effective_rollouts([path([0.0, 1.0])], 0.5, size_of(40)) == 1.0


def test_the_sampling_noise_of_few_evaluations():
    assert learning.sampling_sd(np.array([0.1, 0.3])) == pytest.approx(0.4 / 10)
    assert learning.sampling_sd(np.array([0.0, 1.0])) == pytest.approx(0.05)
    assert learning.sampling_sd(np.array([-0.01, 0.3])) is None
    assert learning.sampling_sd(np.array([0.1, 1.01])) is None


def test_failed_checks_are_a_share_of_those_made():
    """600 rollouts of training with 90 failures; evaluations of 5 problems x 4 samples, of which 2
    recorded theirs, 3 + 9 of 40."""

    def run(failures):
        points = tuple(
            EvalPoint(
                100 * i, i, 100 * i, 0,
                {"avg@4": 0.1, **({"verifier_failures": failures[i]} if i in failures else {})},
                (1,) * 5, 4, {"verifier_failures": 15.0, "verifier_crash": 9.0,
                    "verifier_slow": 6.0} if i else {},
            )
            for i in range(7)
        )  # fmt: skip
        return RunRecord(Cell(25, 4, 0), points)

    assert learning._failed_share([run({1: 3.0, 4: 9.0})]) == pytest.approx(12 / 40)
    assert learning._failed_share([run({})]) == pytest.approx(90 / 600)
    assert learning._failed_share([run({1: 0.0}), run({})]) == pytest.approx(180 / 1200)
    rows = [p.train for p in run({}).points]
    assert learning._kinds_of_failure(rows) == ", verifier_crash, verifier_slow"


def test_a_log_of_shares_has_a_common_step():
    """k / N to six places and to fewer: by whole steps of the decimals, or to within their
    rounding."""
    assert size_by_step(np.array([0.25, 0.5])).rollouts == pytest.approx(4)
    assert size_by_step(np.array([0.02, 0.06, 0.12])).rollouts == pytest.approx(50)
    assert size_by_step(np.array([0.1, 0.16]), np.array([0.2])).rollouts == pytest.approx(50)
    k = np.array([3, 8, 20, 31, 47, 60, 72, 100])
    to_six = size_by_step(np.round(k / 127, 6))
    assert to_six.rollouts == pytest.approx(127) and "common step" in to_six.source
    to_four = size_by_step(np.round(k / 127, 4))
    assert to_four.rollouts == pytest.approx(127) and not to_four.is_known
    smallest = size_by_step(np.round((k[0] + np.arange(4)) / 127, 6))
    assert smallest.rollouts == pytest.approx(127) and "smallest step" in smallest.source


def test_decimals_of_a_log():
    assert [_decimals(np.array(v)) for v in ([0.1], [0.25, 0.5], [0.125], [0.12345], [1 / 3])] == [
        1, 2, 3, 5, 6
    ]  # fmt: skip
    assert _decimals(np.array([0.1 + 5e-8])) == 1 and _decimals(np.array([0.1 + 2e-7])) == 6


def test_rewards_near_all_multiples_have_no_common_step():
    """Of rounding .0001, a step of 1 / 3000 would fit anything."""
    values = np.unique(np.round(np.random.default_rng(0).random(12), 4))
    assert _common_step(values, float(np.diff(values).min())) is None


def test_graded_rewards_are_worth_what_they_scatter():
    """Neighbours that differ by d in turn bend by d: a variance of d^2 / 1.5, against .25 of one
    rollout."""
    rewards = 0.5 + 0.0300001 * (np.arange(12) % 2 - 0.5) + 1e-5 * np.arange(12) ** 1.5
    middle, bend = rewards[1:-1], bends(rewards)
    assert bend == pytest.approx(
        [rewards[i] - (rewards[i - 1] + rewards[i + 1]) / 2 for i in range(1, 11)]
    )
    expected = np.mean(middle * (1 - middle)) / (np.mean(bend**2) / 1.5)
    assert _rollouts_by_scatter([rewards]) == pytest.approx(expected)
    still = np.r_[np.full(20, 0.5), rewards]  # most neighbours are equal
    assert _rollouts_by_scatter([still]) is None
    assert _rollouts_by_scatter([rewards[:5]]) is None  # 3 bends
    assert _rollouts_by_scatter([rewards[:6]]) is not None
    assert _rollouts_by_scatter([np.array([0.2, 0.4])]) is None and len(bends(rewards[:2])) == 0
    size = size_by_step(rewards)
    assert size.rollouts == pytest.approx(expected) and "scatter" in size.source


def test_the_size_by_the_records():
    def track(samples, problems, metric):
        point = EvalPoint(0, 0, 0, 0, {metric: 0.5}, (1,) * problems, samples)
        return make_track(RunRecord(Cell(4, 4, 0), (point,)), metric, "rollouts")

    assert evaluation_size([track(16, 50, "avg@16")], "avg@16").rollouts == 800
    assert evaluation_size([track(16, 50, "best@4")], "best@4").rollouts == 200
    assert evaluation_size([track(6, 50, "best@4")], "best@4").rollouts == 50
    both = [track(16, 50, "avg@4"), track(8, 50, "avg@4")]
    assert evaluation_size(both, "avg@4").rollouts == 400


def test_shares_in_words_at_their_limits():
    shares = [0.0, 0.00049, 0.0005, 0.5, 0.999, 0.9995, 0.9996]
    assert [learning._share(share) for share in shares] == [
        "no", "no", "0.05% of the", "50% of the", "99.9% of the", "100% of the", "all"
    ]  # fmt: skip


def test_of_a_run_that_goes_on_five_evaluations_say_that_it_has_not_learnt():
    """Of rewards that are all equal one is enough."""

    def nothing(rewards):
        C = [0.0, *(1000.0 * (i + 1) for i in range(len(rewards)))]
        return learning.find_nothing_learnt_by_run(run_of(16, 4, 0, C, [0.3, *rewards]), "avg@4")

    assert nothing([0.31, 0.3, 0.29, 0.3, 0.31]) is not None
    assert nothing([0.31, 0.3, 0.29, 0.3]) is None
    assert nothing([0.3]) is not None and nothing([]) is None
    assert nothing([0.3, 0.4, 0.5, 0.6, 0.7, 0.75]) is None
