"""Worlds hold what they promise: means, dispersion, one grid of targets, one seed one world, and
the law of their kind.
"""

import numpy as np
import pytest
from scipy.special import betaincinv

from tests.refusals import refused
from tests.scaling.synthetic import N, ProblemSet, random_world, targets, world
from tests.scaling.synthetic_curves import Declining, Hill, Stages, Stretched, best, progress
from tests.scaling.synthetic_kinds import KINDS


def test_targets_by_hand():
    assert targets(1000, 2.0, 8000) == [1000, 2000, 4000, 8000]
    assert targets(1000, 2.0, 7999) == [1000, 2000, 4000]


def test_counts_have_the_true_mean_and_the_asked_spread():
    """Beta-binomial with mean .3, kappa = 4 (rho = 1/5), 4 samples: variance of c is 4 * .21 * (1 +
    3/5) = 1.344; all alike: .84.
    """
    for spread, variance in ((4.0, 1.344), (None, 0.84)):
        w = world(
            n=(2,),
            seeds=1,
            problems=20_000,
            spread=spread,
            budget=2000,
            curve=lambda B_p, n: Hill(0.3, 0.3, 1.0, 1.0),
        )
        counts = np.array(w.runs[0].points[0].counts)
        assert counts.mean() == pytest.approx(1.2, abs=0.03)
        assert counts.var() == pytest.approx(variance, rel=0.05)
        assert w.runs[0].points[0].metrics["avg@4"] == counts.mean() / 4


def test_difficulty_is_a_problem_s_own():
    a, b = (np.array(r.points[0].counts) for r in world(n=(2, 4), seeds=1, problems=2000).runs)
    assert np.corrcoef(a, b)[0, 1] > 0.3


def test_grid_is_shared_and_compute_is_whole_updates():
    w = world(n=(2, 32), B_p=(64,), seeds=1)
    small, large = w.runs
    assert {p.target for p in large.points} <= {p.target for p in small.points}
    for r in w.runs:
        assert all(
            p.rollouts == r.cell.B * p.M and p.target <= p.rollouts < p.target + r.cell.B
            for p in r.points
        )
        assert all(a.rollouts < b.rollouts for a, b in zip(r.points, r.points[1:], strict=False))


def test_one_seed_one_world():
    assert world(seed=3) == world(seed=3)
    assert world(seed=3).runs != world(seed=4).runs
    assert world(samples=0).runs[0].points[5].metrics["avg@4"] == world().truth[16, 2].at(
        world().runs[0].points[5].rollouts
    )
    with refused():
        world("hil")


def test_curves_by_hand():
    """At C_mid half the gain is made, in every form; 0 at C = 0 is R0 exactly."""
    for curve in (Hill(0.2, 0.6, 1.3, 1000.0), Stretched(0.2, 0.6, 0.7, 1000.0)):
        assert curve.at(0) == 0.2
        assert curve.at([1000.0, 1e12]) == pytest.approx([0.4, 0.6])
        assert progress(curve, [0, 1000.0]) == pytest.approx([0, 0.5])
    assert Stretched(0.2, 0.6, 1.0, 1000.0).at(2000) == pytest.approx(0.2 + 0.4 * 0.75)
    stages = Stages(0.1, (0.2, 0.3), (100.0, 1e8), 2.0)
    assert stages.at([0, 100, 1e5]) == pytest.approx([0.1, 0.2, 0.3], abs=1e-4)


def test_a_decline_has_its_peak_and_slope():
    curve = Declining(Hill(0.2, 0.6, 1.2, 1000.0), 6000.0, 0.05)
    C = np.geomspace(10, 1e9, 20_001)
    R = curve.at(C)
    assert curve.C_peak == pytest.approx(C[R.argmax()], rel=2e-3)
    assert 0.5 < curve.C_peak / 6000 < 2
    assert R[-1] - curve.at(1e8) == pytest.approx(-0.05, abs=1e-6)  # one decade further
    assert best(curve, [1e7, 1e9]) == pytest.approx(R.max())
    assert (np.diff(curve.trained(C)) > 0).all()


def test_success_rates_average_to_the_reward_and_are_nearly_exact():
    many, few = (
        ProblemSet(tuple(np.random.default_rng(0).uniform(size=k).tolist()), 3.0)
        for k in (20_000, 300)
    )
    R = np.array([0.003, 0.2, 0.456, 0.9])
    assert many.rates(R).mean(-1) == pytest.approx(R, abs=0.006)
    exact = betaincinv(3 * R[:, None], 3 * (1 - R[:, None]), np.array(few.difficulty))
    assert np.abs(few.rates(R) - exact)[1:].max() < 2e-3
    assert (few.rates(np.linspace(0, 1, 7)) >= 0).all()


def test_run_effects_have_their_size_and_vanish_at_the_base_policy():
    """400 runs of many samples: at nearly full progress rewards spread by run_sd (or the drift), at
    C = 0 by the samples' noise alone.
    """
    for sds in ({"run_sd": 0.03}, {"drift": 0.03}):
        flat = world(
            n=(2,),
            seeds=400,
            samples=1000,
            start=50_000,
            budget=60_000,
            curve=lambda B_p, n: Hill(0.3, 0.6, 2.0, 500.0),
            **sds,
        )
        R = np.array([[p.metrics["avg@1000"] for p in r.points] for r in flat.runs])
        assert R[:, 0].std() < 0.002
        assert R[:, -1].std() == pytest.approx(0.03, rel=0.12)
        assert abs(R[:, -1].mean() - flat.on_problems(16, 2, 50_000)) < 0.005


def test_drift_forgets_within_its_length():
    """Correlation exp(-distance / .3): at .3 decades e^-1, at .9 decades e^-3."""
    w = world(
        n=(2,),
        seeds=800,
        samples=1000,
        drift=0.03,
        start=10_000,
        ratio=10**0.3,
        budget=100_000,
        curve=lambda B_p, n: Hill(0.3, 0.6, 3.0, 300.0),
    )
    R = np.array([[p.metrics["avg@1000"] for p in r.points] for r in w.runs])
    assert np.corrcoef(R[:, 1], R[:, 2])[0, 1] == pytest.approx(np.exp(-1), abs=0.1)
    assert np.corrcoef(R[:, 1], R[:, 4])[0, 1] == pytest.approx(np.exp(-3), abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_random_worlds_are_what_was_asked(kind):
    w = random_world(kind, 7)
    assert w == random_world(kind, 7) and w.runs != random_world(kind, 8).runs
    seeds = {r.cell.seed for r in w.runs}
    assert (
        {r.cell.n for r in w.runs} == set(N)
        and len(w.runs) == 7 * len(seeds)
        and 1 <= len(seeds) <= 3
    )
    assert all(len(p.counts) == 300 and p.samples == 4 for r in w.runs for p in r.points)
    ends = [high for _, high in w.measured.values()]
    assert max(ends) / min(ends) < 4 and 20 <= max(len(r.points) for r in w.runs) - 1 <= 61
    for r in w.runs:
        true = w.truth[r.cell.B_p, r.cell.n]
        assert r.points[0].rollouts == 0 and not r.points[0].train
        R = np.array([p.metrics["avg@4"] for p in r.points])
        assert np.abs(R - true.at([p.rollouts for p in r.points])).max() < 0.12
        assert all(0.05 <= true.R0 < true.A < 0.97 for true in w.truth.values())


def test_noise_free_worlds_lie_on_their_curves_and_options_are_kept():
    w = random_world(
        "stretched",
        1,
        samples=0,
        B_p=(16, 64),
        B_max=16 * 512,
        seeds=2,
        evaluations=33,
        unequal=False,
        drift=0.1,
    )
    for r in w.runs:
        assert r.cell.B <= 16 * 512 and r.cell.seed < 2
        assert [p.metrics["avg@4"] for p in r.points] == w.truth[r.cell.B_p, r.cell.n].at(
            [p.rollouts for p in r.points]
        ).tolist()
    assert (64, 512) not in w.truth and (64, 128) in w.truth and (16, 512) in w.truth
    assert max(len(r.points) for r in w.runs) <= 34


def test_the_best_n_rises_through_three_values_and_decline_is_seen():
    for seed in range(20):
        for kind in ("hill", "stretched", "decline"):
            w = random_world(kind, seed, samples=0)
            C = np.geomspace(
                min(low for low, _ in w.measured.values()),
                max(high for _, high in w.measured.values()),
                100,
            )
            levels = np.stack(
                [
                    np.where((low <= C) & (high * 1.01 >= C), w.reward(*key, C), 0)
                    for key, (low, high) in w.measured.items()
                ]
            )
            assert len(set(levels.argmax(0).tolist())) >= 3
            A = [curve.A for _, curve in sorted(w.truth.items())]
            assert (np.diff(A) >= 0.005 - 1e-12).all() and (np.diff(A) <= 0.06 + 1e-12).all()
    w = random_world("decline", 3)
    peaks = [curve.C_peak < w.measured[key][1] for key, curve in w.truth.items()]
    assert any(peaks) and not all(peaks)


def test_non_monotone_worlds_fall_and_rise_by_three_steps_with_clear_leads():
    for seed in range(50):
        w = random_world("non_monotone", seed, samples=0, evaluations=30)
        stages = np.array(next(iter(w.truth.values())).C_mids)
        end = min(high for _, high in w.measured.values())
        middles = np.sqrt(stages * np.append(stages[1:], end))
        # [n, phase]
        R = np.stack([w.reward(*key, middles) for key in sorted(w.truth, key=lambda key: key[1])])
        levels = R.argmax(0)
        assert levels[0] - levels[1] >= 3 and levels[2] - levels[1] >= 3
        for phase, winner in enumerate(levels):
            far = np.abs(np.arange(7) - winner) >= 2
            assert R[winner, phase] - R[far, phase].max() >= 0.015
        assert all(b * n == 4096 and min(c.gains) > 0 for (b, n), c in w.truth.items())


def test_same_worlds_have_one_curve():
    assert len({c for c in random_world("same", 5, samples=0).truth.values()}) == 1


def test_random_world_refuses():
    with refused():
        random_world("hil", 0)
    with refused():
        random_world("non_monotone", 0, B_p=(32,))
    with refused():
        random_world("hill", 0, n=(8, 16))
