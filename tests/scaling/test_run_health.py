"""Made-up runs that break in each way are flagged from where they broke; what only looks like it is
not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.runs.ledger import INCLUDE_FLAGGED
from isojax.scaling.checks.fit_flags import add_health
from isojax.scaling.checks.run_health import (
    flag_sentences,
    flagged_runs,
    health_flags,
    healthy_runs,
)
from isojax.scaling.result import FitFlag, FittedRun, RunHealth, StabilityVerdict
from tests.refusals import refused
from tests.scaling.documents import altered, document

PROBLEMS, SAMPLES = 1000, 4
RISE = [0.20, 0.24, 0.30, 0.36, 0.41, 0.45, 0.48, 0.50, 0.51, 0.52]


def made(
    rewards: Sequence[float], counted: bool = True, failed: str = "", seed: int = 0, **train: Any
) -> RunRecord:
    """A run evaluated at C = 0, 1000, 2000, ... Right answers are spread over problems as binomial
    draws of these means would be; `train` metrics are those of the evaluations after the first."""
    rng = np.random.default_rng(0)
    difficulty = rng.normal(0, 0.1, PROBLEMS)
    points = []
    for i, mean in enumerate(rewards):
        p = np.clip(mean + difficulty - difficulty.mean(), 0, 1)
        counts = rng.binomial(SAMPLES, p)
        value = counts.mean() / SAMPLES if counted else mean
        specific = {name: float(values[i - 1]) for name, values in train.items()} if i else {}
        right = tuple(counts.tolist()) if counted else ()
        points.append(
            EvalPoint(
                1000 * i, 10 * i, 1000 * i, 0, {"avg@4": float(value)}, right, SAMPLES, specific
            )
        )
    return RunRecord(Cell(8, 4, seed), tuple(points), "made up", failure_reason=failed)


def names(run: RunRecord) -> list[tuple[str, int]]:
    return [(flag.name, flag.C) for flag in health_flags(run)]


HEALTHY: dict[str, Any] = {
    "reward": RISE[1:],
    "entropy": np.linspace(0.5, 0.3, 9),
    "zero_variance": np.linspace(0.3, 0.1, 9),
    "sampler_logp_gap": np.full(9, 1e-3),
    "truncated": np.full(9, 0.02),
    "response_length": np.linspace(100, 180, 9),
    "grad_norm": np.ones(9),
    "loss": np.zeros(9),
}
FALLEN = [0.20, 0.24, 0.30, 0.40, 0.46, 0.50, 0.20, 0.05, 0.02, 0.01]


def test_a_healthy_run_has_no_flag() -> None:
    assert health_flags(made(RISE, **HEALTHY)) == ()
    assert health_flags(made(RISE)) == ()


@pytest.mark.parametrize("counted", [True, False])
def test_a_fall_below_half_of_the_gain_that_stays_is_a_collapse(counted: bool) -> None:
    """Base .20, best running mean (.40 + .46 + .50) / 3 = .453: the middle is .327, and 6000 the
    first below it."""
    assert names(made(FALLEN, counted)) == [("collapsed", 6000)]
    assert names(made(FALLEN, counted, reward=FALLEN[1:])) == [("collapsed", 6000)]


@pytest.mark.parametrize(
    ("rewards", "flags"),
    [
        # Base .31, best mean .337, last .12. The mean is .25: .043 for an evaluation of 100
        # rollouts, .035 for the difference of two means of three. The fall of .217 is over 4 * .035
        # = .141; .323 is the middle of the gain.
        ([0.31, 0.58, 0.12, 0.12, 0.12], [("collapsed", 2000)]),
        ([0.31, 0.36, 0.25, 0.24, 0.24], []),  # a fall of .07, within the noise of such evaluations
        ([31, 58, 12, 12, 12], []),  # of unknown noise: no shares
    ],
)
def test_a_short_log_without_counts(rewards: list[float], flags: list[tuple[str, int]]) -> None:
    assert names(made(rewards, counted=False)) == flags


def test_a_run_that_falls_from_the_base_policy_on() -> None:
    assert names(made([0.3, 0.1, 0.02, 0.01, 0.01])) == [("collapsed", 1000)]


@pytest.mark.parametrize(
    "rewards",
    [
        [*FALLEN[:6], 0.20, 0.45, 0.48, 0.50],  # recovers
        [*FALLEN[:6], 0.48, 0.46, 0.43, 0.41],  # falls, but not by half
        [*RISE[:7], 0.48, 0.01, 0.01],  # two evaluations are not yet "stays"
        # noise around the base policy
        [0.20, 0.215, 0.21, 0.22, 0.21, 0.20, 0.205, 0.20, 0.195, 0.20],
        [0.20, 0.01, 0.01],  # too few to say
        # one evaluation stands out, nothing was gained to lose
        [0.0, 0.0, 0.0, 0.0, 0.132, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.20, 0.21, 0.19, 0.20, 0.36, 0.20, 0.19, 0.21, 0.20, 0.19],
    ],
)
def test_what_only_looks_like_a_collapse(rewards: list[float]) -> None:
    assert names(made(rewards)) == []


def test_a_fall_while_training_goes_on_rising_is_overfitting_and_no_collapse() -> None:
    assert names(made(FALLEN, reward=np.linspace(0.2, 0.9, 9))) == []


def test_a_noisy_fall_without_right_answers_is_not_flagged() -> None:
    """The same fall in the last three, but neighbours differ by as much as it falls."""
    assert names(made([0.2, 0.5, 0.1, 0.5, 0.1, 0.5, 0.1, 0.25, 0.05, 0.25], counted=False)) == []


def test_groups_that_all_agree_without_a_gain() -> None:
    flat, alike = [0.2] * 10, [0.3, 0.5, 0.9, 0.96, 0.97, 0.98, 0.99, 1.0, 1.0]
    assert names(made(flat, zero_variance=alike)) == [("collapsed", 4000)]
    assert names(made(RISE, zero_variance=alike)) == []  # solved, not collapsed
    # a hard set, where most groups never had a right answer
    assert names(made(flat, zero_variance=[0.97] * 9)) == []


def test_entropy_that_explodes() -> None:
    # above twice .5 from the fifth interval, C = 5000
    up = [0.5, 0.5, 0.6, 0.8, 1.1, 1.5, 2.0, 3.0, 4.0]
    fallen = [*RISE[:6], 0.44, 0.40, 0.38, 0.37]
    assert names(made(fallen, entropy=up)) == [("entropy_exploded", 5000)]
    assert names(made(RISE, entropy=up)) == []


def test_entropy_that_collapses() -> None:
    down = [0.5, 0.3, 0.1, 0.05, 0.009, 0.005, 0.002, 0.001, 0.001]  # below .01 from C = 5000
    low = [0.20, 0.22, 0.24, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25]  # below .2 + .1 * .8 = .28
    assert names(made(low, entropy=down)) == [("entropy_collapsed", 5000)]
    assert names(made(RISE, entropy=down)) == []


def test_responses_that_grow_and_are_cut_off() -> None:
    length = [100, 150, 250, 301, 350, 400, 512, 512, 512]
    cut = [0.05, 0.1, 0.2, 0.4, 0.45, 0.5, 0.8, 0.9, 1.0]
    flat = [0.2] * 10
    assert names(made(flat, response_length=length, truncated=cut)) == [
        ("length_exploded", 4000),
        ("truncated", 6000),
    ]
    # a policy that learns to think for longer
    assert names(made(RISE, response_length=length, truncated=cut)) == []
    assert names(made(flat, truncated=[0.6] * 9)) == []  # the base policy was like that


def test_a_run_that_stopped_being_finite() -> None:
    broke = health_flags(
        made(RISE, failed="loss or gradient not finite in 1 of the updates 91 to 100")
    )
    assert [(f.name, f.C) for f in broke] == [
        ("nonfinite_update", 9000)
    ] and "updates 91 to 100" in broke[0].reason
    assert names(made(RISE[:3], grad_norm=[1.0, math.nan])) == [("nonfinite_update", 2000)]
    (skipped,) = health_flags(made(RISE, nonfinite_update=[0.0, 0.01] + [0.0] * 6 + [0.5]))
    assert (skipped.name, skipped.C) == (
        "nonfinite_update",
        9000,
    ) and "50.0% of updates" in skipped.reason
    assert health_flags(made(RISE, nonfinite_update=[0.01] * 9)) == ()  # one of a hundred
    assert names(made(RISE, nonfinite_update=[0.0, 0.0, 0.011] + [0.0] * 6)) == [
        ("nonfinite_update", 3000)
    ]


def test_mismatch_of_sampler_and_trainer() -> None:
    assert names(made(RISE, sampler_logp_gap=[0.01] * 4 + [0.2] * 5)) == [("mismatch", 5000)]
    assert names(made(RISE, sampler_logp_gap=[0.01] * 4 + [0.2] * 3 + [0.01] * 2)) == []


def test_broken_runs_are_distinguished_and_named() -> None:
    well, broken = made(RISE), made(FALLEN, seed=1)
    assert healthy_runs([well, broken]) == [well]
    (row,) = flagged_runs([broken, well])
    assert (row.B_p, row.n, row.seed, row.points, row.C) == (8, 4, 1, 10, 9000)
    flag = row.flags[0]
    assert (flag.name, flag.C) == ("collapsed", 6000) and "base policy" in flag.reason
    (left_out,) = flag_sentences(RunHealth(left_out=True, runs=(row,)))
    (remaining,) = flag_sentences(RunHealth(left_out=False, runs=(row,)))
    assert left_out.startswith(
        f"B_p=8 n=4 seed 1 is left out of the fit ({INCLUDE_FLAGGED} puts it back): collapsed from "
        "C = 6,000: reward"
    )
    assert "fitted all the same" in remaining
    with refused():
        healthy_runs([broken])


@pytest.mark.parametrize(
    ("seeds", "left_out", "stable"),
    [(3, True, True), (2, True, False), (1, True, False), (2, False, True)],
)
def test_a_batch_is_unstable_where_half_of_a_cells_runs_were_left_out(
    seeds: int, left_out: bool, stable: bool
) -> None:
    health = RunHealth(left_out=left_out, runs=flagged_runs([made(FALLEN)]))
    earlier_flag = FitFlag(code="one_seed", severity="warning", text="so it was")
    kept = [(8, seed) for seed in range(left_out, seeds)]
    before = altered(
        document(),
        runs=[
            FittedRun(B_p=B_p, n=4, seed=i, points=10, C_max=9e3, final_reward=0.5)
            for B_p, i in [*kept, (16, 0)]
        ],
        stability=[StabilityVerdict(8, True), StabilityVerdict(16, False, "it fell")],
        flags=[earlier_flag],
    )
    fit = add_health(before, health)
    assert [v.stable for v in fit.stability] == [stable, False] and fit.stability[
        1
    ].reason == "it fell"
    assert fit.health == health and [f.text for f in fit.flags] == [
        *flag_sentences(health),
        "so it was",
    ]
    assert (fit.flags[0].code, fit.flags[0].severity) == (
        "flagged_run",
        "warning" if left_out else "error",
    )


def test_a_ledger_that_a_fit_refuses_is_not_judged() -> None:
    other = EvalPoint(99_000, 990, 99_000, 0, {"avg@4": 0.0}, (0, 1), SAMPLES)
    run = made(FALLEN)
    assert health_flags(RunRecord(run.cell, (*run.points, other))) == ()


def test_what_older_policies_sampled_is_no_mismatch() -> None:
    assert (
        names(made(RISE, sampler_logp_gap=[0.01] * 4 + [0.2] * 5, staleness_mean=[1.5] * 9)) == []
    )


HARD_FLAT = [0.2] * 10


@pytest.mark.parametrize(
    ("rewards", "train", "flags"),
    [
        # a share of .95 is one at which groups have collapsed, .8 at the start none that had a
        # gradient
        (HARD_FLAT, {"zero_variance": [0.79, *[0.95] * 8]}, ["collapsed"]),
        (HARD_FLAT, {"zero_variance": [0.8, *[0.95] * 8]}, []),
        (HARD_FLAT, {"zero_variance": [0.5, *[0.949] * 8]}, []),
        # entropy twice or a fiftieth of that in the beginning has changed by as much as is allowed
        (FALLEN, {"entropy": [0.5, *[1.0] * 8]}, ["collapsed"]),
        (FALLEN, {"entropy": [0.5, *[1.001] * 8]}, ["collapsed", "entropy_exploded"]),
        (HARD_FLAT, {"entropy": [0.5, *[0.01] * 8]}, []),
        (HARD_FLAT, {"entropy": [0.5, *[0.0099] * 8]}, ["entropy_collapsed"]),
        (HARD_FLAT, {"response_length": [100.0, *[300.0] * 8]}, []),
        (HARD_FLAT, {"response_length": [100.0, *[300.1] * 8]}, ["length_exploded"]),
        # half of the responses, and a quarter more than at first
        (HARD_FLAT, {"truncated": [0.25, *[0.5] * 8]}, ["truncated"]),
        (HARD_FLAT, {"truncated": [0.25, *[0.499] * 8]}, []),
        (HARD_FLAT, {"truncated": [0.5, *[0.75] * 8]}, ["truncated"]),
        (HARD_FLAT, {"truncated": [0.5, *[0.749] * 8]}, []),
        (HARD_FLAT, {"sampler_logp_gap": [0.1] * 9}, []),
        (HARD_FLAT, {"sampler_logp_gap": [0.0, *[-0.101] * 8]}, ["mismatch"]),
        (HARD_FLAT, {"sampler_logp_gap": [0.2] * 9, "staleness_mean": [0.0] * 9}, ["mismatch"]),
        (HARD_FLAT, {"sampler_logp_gap": [0.2] * 9, "staleness_mean": [0.5] * 9}, []),
        (HARD_FLAT, {"nonfinite_update": [0.01] * 9}, []),
        (HARD_FLAT, {"nonfinite_update": [0.0, *[0.011] * 8]}, ["nonfinite_update"]),
        # three evaluations to the end are the fewest that stay
        (HARD_FLAT, {"sampler_logp_gap": [0.0] * 6 + [0.2] * 3}, ["mismatch"]),
        (HARD_FLAT, {"sampler_logp_gap": [0.0] * 7 + [0.2] * 2}, []),
    ],
)
def test_criteria_at_their_limits(
    rewards: list[float], train: dict[str, list[float]], flags: list[str]
) -> None:
    assert [name for name, _ in names(made(rewards, **train))] == flags
