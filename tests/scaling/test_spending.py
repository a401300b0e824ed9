"""How `isojax spend` chooses n: its model against the curve of every fit, and its choices in worlds
that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logit

from isojax.core.nouns import Cell, EvalPoint, Leg, RunRecord
from isojax.scaling import spending
from isojax.scaling.allocate.growth_model import GrowthDraws, RunPath, fit_growth
from isojax.scaling.spending import MIN_PILOT_UPDATES, PILOT_SHARE, SpendPolicy
from tests.refusals import refused

B_P, BUDGET, NOISE = 8, 100_000, 0.004
C_GRID = [0, *(round(BUDGET / 1.25**k) for k in range(22, -1, -1))]
R0, EXPONENT = 0.2, 0.9
FAST_THEN_FAR = {2: (0.45, 3e3), 8: (0.6, 8e3), 32: (0.75, 2e4)}  # asymptote and C_mid of each n
ONE_IS_BEST = {2: (0.7, 2e3), 8: (0.6, 1e4), 32: (0.5, 4e4)}
SOON_OVER = {2: (0.6, 100.0), 8: (0.6, 100.0), 32: (0.6, 100.0)}

Curves = Mapping[int, tuple[float, float]]


def hill(C: float, asymptote: float, C_mid: float) -> float:
    """Reward after C rollouts with one n from the start: ScaleRL's sigmoid."""
    return R0 + (asymptote - R0) * C**EXPONENT / (C**EXPONENT + C_mid**EXPONENT)


def grow(reward: float, C_more: float, asymptote: float, C_mid: float) -> float:
    """Reward after C_more further rollouts with an n; above its asymptote nothing changes."""
    share = (reward - R0) / (asymptote - R0)
    if share >= 1:
        return reward
    return hill(C_mid * (share / (1 - share)) ** (1 / EXPONENT) + C_more, asymptote, C_mid)


def draws_of(curves: Curves) -> GrowthDraws:
    """The model with exactly these curves, as one draw."""
    asymptotes, C_mids = np.array(list(curves.values())).T
    shape = [R0, np.log(EXPONENT), 0.0]
    return GrowthDraws(np.array([[*shape, *logit((asymptotes - R0) / (1 - R0)), *np.log(C_mids)]]))


def point(C: int, M: int, reward: float) -> EvalPoint:
    return EvalPoint(target=C, M=M, rollouts=C, tokens=0, metrics={"avg@4": reward})


class Trainer:
    """Trains legs in a world of known curves, with noisy evaluations."""

    def __init__(self, policy: SpendPolicy, curves: Curves, seed: int = 0) -> None:
        self.policy, self.curves, self.rng = policy, curves, np.random.default_rng(seed)
        self.rewards: dict[Cell, float] = {}
        self.runs: dict[Cell, RunRecord] = {}
        self.legs: list[Leg] = []

    def train(self, leg: Leg) -> None:
        run = self.runs.get(leg.cell, RunRecord(leg.cell, (point(0, 0, R0),)))
        last, B = run.points[-1], B_P * leg.n
        updates = -(-(leg.C_end - leg.C_start) // B)
        assert leg.C_start == last.rollouts and updates > 0
        reward = grow(self.rewards.get(leg.cell, R0), updates * B, *self.curves[leg.n])
        self.rewards[leg.cell] = reward
        measured = point(
            last.rollouts + updates * B,
            last.M + updates,
            reward + NOISE * self.rng.standard_normal(),
        )
        self.runs[leg.cell] = RunRecord(leg.cell, (*run.points, measured))
        self.legs.append(leg)

    def spend(self) -> float:
        """Spends the budget; the reward that the policy ends with."""
        for leg in self.policy.pilots():
            self.train(leg)
        while (leg := self.policy.next_leg(list(self.runs.values()), self.legs)) is not None:
            self.train(leg)
        return self.rewards[self.legs[-1].cell]


def policy_for(all_n: Sequence[int], budget: int = BUDGET) -> SpendPolicy:
    cells = [Cell.of_spend(B_P, n) for n in all_n]
    return SpendPolicy(cells, [C for C in C_GRID if budget >= C], budget, "avg@4")


def test_a_run_with_one_n_follows_the_curve_of_the_fits() -> None:
    draws, C = draws_of(FAST_THEN_FAR), np.array([10.0, 500.0, 3e3, 1e5, 1e7])
    for i, curve in enumerate(FAST_THEN_FAR.values()):
        along = draws.along(RunPath(np.full(len(C), i), C, np.zeros(len(C))))
        np.testing.assert_allclose(along[0], [hill(c, *curve) for c in C], rtol=1e-6)


def test_a_run_that_changes_n_goes_on_from_its_reward() -> None:
    draws = draws_of(FAST_THEN_FAR)
    path = RunPath(np.array([0, 2, 1]), np.array([2e3, 9e3, 3e4]), np.zeros(3))
    rewards = [hill(2e3, *FAST_THEN_FAR[2])]
    rewards.append(grow(rewards[-1], 7e3, *FAST_THEN_FAR[32]))
    rewards.append(grow(rewards[-1], 21e3, *FAST_THEN_FAR[8]))
    np.testing.assert_allclose(draws.along(path)[0], rewards, rtol=1e-6)


def test_above_its_asymptote_a_run_loses_half_of_the_excess_within_C_mid() -> None:
    asymptote, C_mid = FAST_THEN_FAR[2]
    after = draws_of(FAST_THEN_FAR).go_on(np.array([0.7]), 0, C_mid)
    assert after[0] == pytest.approx(asymptote + (0.7 - asymptote) / 2)


def test_the_rest_of_a_run_is_forecast_from_short_runs_and_its_beginning() -> None:
    """From pilots and a run whose n grew, without noise: with the n that it has now within .02, and
    within what the draws allow with an n that it left at a tenth of its C."""
    truth, all_n = draws_of(FAST_THEN_FAR), list(FAST_THEN_FAR)
    C = np.geomspace(300, 3000, 8)
    paths = [RunPath(np.full(8, i), C, np.zeros(8)) for i in range(3)]
    paths.append(
        RunPath(np.repeat([0, 1, 2], [8, 5, 5]), np.geomspace(300, 30_000, 18), np.zeros(18))
    )
    measured = [RunPath(p.n_index, p.C, truth.along(p)[0]) for p in paths]
    draws = fit_growth(all_n, [R0] * 2, measured, BUDGET)
    errors, spreads = np.zeros(3), np.zeros(3)
    for i in range(3):
        ends = [x.go_on(x.along(paths[-1])[:, -1], i, 30_000) for x in (truth, draws)]
        errors[i], spreads[i] = ends[1].mean() - ends[0].mean(), ends[1].std()
    assert abs(errors[2]) < 0.02 and spreads[2] < 0.05, (errors, spreads)
    assert (np.abs(errors) < 3 * spreads).all(), (errors, spreads)


def test_of_two_plans_an_optimist_takes_the_one_that_may_turn_out_better() -> None:
    """n = 2 ends at .59 in both draws, n = 8 at .28 in one and at .72 in the other."""
    low = draws_of({2: (0.6, 2e3), 8: (0.3, 3e4)})
    high = draws_of({2: (0.6, 2e3), 8: (0.9, 3e4)})
    draws = GrowthDraws(np.concatenate([low.theta, high.theta]))
    choices = [draws.best_next(draws.R0 + 0.01, BUDGET, 2, optimism) for optimism in (0.0, 2.0)]
    assert [i for i, _ in choices] == [0, 1]
    np.testing.assert_allclose([end for _, end in choices], [[0.59, 0.59], [0.28, 0.72]], atol=0.01)


def test_pilots_take_a_tenth_and_each_has_enough_updates() -> None:
    pilots = policy_for([2, 8, 32, 4096]).pilots()
    # 8 updates of n = 4096 are more than the whole budget
    assert [leg.n for leg in pilots] == [2, 8, 32]
    assert sum(leg.C_end for leg in pilots) <= PILOT_SHARE * BUDGET
    assert all(
        leg.C_end >= MIN_PILOT_UPDATES * B_P * leg.n / 1.25 and leg.C_start == 0 for leg in pilots
    )
    # nothing fits into a tenth: the run begins with the smallest n
    (only,) = policy_for([1024, 4096]).pilots()
    assert only.n == 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    ("curves", "longest_n", "regret"), [(FAST_THEN_FAR, 32, 0.012), (ONE_IS_BEST, 2, 0.01)]
)
def test_the_run_ends_near_the_best_fixed_n_and_within_the_budget(
    curves: Curves, longest_n: int, regret: float
) -> None:
    trainers = [Trainer(policy_for(list(curves)), curves, seed) for seed in range(8)]
    rewards = [trainer.spend() for trainer in trainers]
    assert np.mean(rewards) > max(hill(BUDGET, *curve) for curve in curves.values()) - regret
    trainer = trainers[0]
    trained = [leg for leg in trainer.legs if leg.expected is not None]
    rollouts = {n: sum(leg.C_end - leg.C_start for leg in trained if leg.n == n) for n in curves}
    assert max(rollouts, key=rollouts.__getitem__) == longest_n, rollouts
    spent = sum(run.points[-1].rollouts for run in trainer.runs.values())
    assert 0.98 * BUDGET < spent <= BUDGET
    assert len({leg.cell for leg in trained}) == 1  # one pilot goes on, from its own checkpoint
    assert all(
        leg.interval and leg.interval[0] < leg.expected < leg.interval[1]
        for leg in trained
        if leg.expected
    )
    forecasts = trainer.policy.fixed_forecasts(list(trainer.runs.values()))
    assert [f.n for f in forecasts] == list(curves)
    assert forecasts[list(curves).index(longest_n)].reward == pytest.approx(
        hill(BUDGET, *curves[longest_n]), abs=0.03
    )


def test_an_n_without_an_update_left_does_not_end_the_run() -> None:
    """An update of n = 2048 takes 16,384 rollouts, which the budget has no longer when this n would
    be best."""
    curves = {2: (0.45, 3e3), 8: (0.6, 8e3), 2048: (0.9, 2e4)}
    for seed in range(3):
        trainer = Trainer(policy_for(list(curves), 32_768), curves, seed)
        trainer.spend()
        assert sum(run.points[-1].rollouts for run in trainer.runs.values()) > 0.99 * 32_768, seed


def test_no_interval_leaves_the_range_of_rewards() -> None:
    assert spending._interval(np.linspace(0.0, 1.0, 99)) == (0.0, 1.0)
    assert spending._interval(np.array([0.5, 0.5])) == (0.5, 0.5)


def test_it_stops_where_nothing_more_is_to_be_gained() -> None:
    trainer = Trainer(policy_for([2, 8]), SOON_OVER)
    trainer.spend()
    assert sum(run.points[-1].rollouts for run in trainer.runs.values()) < 0.8 * BUDGET


def test_a_pilot_that_failed_is_not_gone_on_with() -> None:
    trainer = Trainer(policy_for(list(ONE_IS_BEST)), ONE_IS_BEST)
    for leg in trainer.policy.pilots():
        trainer.train(leg)
    runs = list(trainer.runs.values())
    broken = [
        RunRecord(run.cell, run.points, failure_reason="NaN") if run.cell.n == 2 else run
        for run in runs
    ]
    leg = trainer.policy.next_leg(broken, trainer.legs)
    assert leg is not None and leg.cell.n != 2
    none_left = [RunRecord(run.cell, run.points, failure_reason="NaN") for run in runs]
    assert trainer.policy.next_leg(none_left, trainer.legs) is None
    unmeasured = [
        RunRecord(run.cell, () if run.cell.n == 2 else run.points, failure_reason="NaN")
        for run in runs
    ]
    assert trainer.policy.next_leg(
        unmeasured, trainer.legs
    ) is None and trainer.policy.fixed_forecasts(unmeasured)


def test_no_leg_follows_one_that_ended_off_the_grid() -> None:
    """Only the last does, which ends where what is left is less than one update; a pilot may."""
    trainer = Trainer(policy_for(list(FAST_THEN_FAR)), FAST_THEN_FAR)
    for pilot in trainer.policy.pilots():
        trainer.train(replace(pilot, C_end=pilot.C_end - 1))
    leg = trainer.policy.next_leg(list(trainer.runs.values()), trainer.legs)
    assert leg is not None and leg.C_end in C_GRID
    trainer.train(leg)
    runs, legs = list(trainer.runs.values()), trainer.legs
    assert trainer.policy.next_leg(runs, legs) is not None
    assert trainer.policy.next_leg(runs, [*legs[:-1], replace(leg, C_end=leg.C_end - 1)]) is None


def test_a_budget_with_too_few_evaluations_is_refused() -> None:
    with refused():
        policy_for([2, 8], budget=C_GRID[3])
