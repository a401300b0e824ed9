"""fit() from records of worlds whose curves are known: parameters, crossovers and flags; refusals
of broken input."""

import math
from dataclasses import replace

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.result import FittedRun, Law
from tests.refusals import refused
from tests.scaling.sweeps import fit
from tests.scaling.synthetic import Hill, world


def flagged(result, text):
    return [f for f in result.flags if text in f.text]


def test_noiseless_world_is_recovered():
    w = world(samples=0)
    result = fit(w.runs, replicates=100)
    assert result.base_reward == pytest.approx(0.3)
    for c in result.curves:
        true = w.truth[c.B_p, c.n]
        assert (c.R0, c.A, c.exponent, c.C_mid) == pytest.approx(
            (true.R0, true.A, true.B, true.C_mid), rel=1e-3
        )
    assert [(c.n_low, c.n_high) for c in result.joint.crossovers] == [
        (2, 4),
        (4, 8),
        (8, 16),
        (16, 32),
    ]
    for c in result.joint.crossovers:  # where the two true curves cross
        low, high = w.truth[16, c.n_low], w.truth[16, c.n_high]
        assert low.at(c.C) == pytest.approx(high.at(c.C), abs=1e-4)
    assert len(result.by_B_p) == 1
    assert result.by_B_p[0] == result.joint.model_copy(update={"B_p": 16})
    last = w.runs[0].points[-1]
    assert result.runs[0] == FittedRun(
        B_p=16, n=2, seed=0, points=22, C_max=last.rollouts, final_reward=last.metrics["avg@4"]
    )
    assert flagged(result, "ends at the largest n measured (32)")


@pytest.mark.parametrize(
    ("mode", "low", "high"), [("paper", -0.005, 0.05), ("hierarchical", -0.006, 0.006)]
)  # records overshoot
def test_noisy_world_is_recovered(mode, low, high):
    w = world(problems=1000, samples=16, seeds=3)
    result = fit(w.runs, "avg@16", mode=mode, replicates=0)
    for c in result.curves:
        true = w.truth[c.B_p, c.n]
        assert low < c.A - float(w.problems.rates(true.A).mean()) < high
        assert c.C_mid == pytest.approx(true.C_mid, rel=0.4)
    ns = [c.n_high for c in result.joint.crossovers]
    assert ns == [4, 8, 16, 32]
    assert max(s.z for s in result.joint.segments) > 2
    assert all(s.measured_for_neighbours for s in result.joint.segments)


@pytest.mark.slow
def test_the_bias_of_paper_mode_is_stated():
    runs = world(curve=lambda B_p, n: Hill(0.3, 0.32, 2.0, 1100.0), seeds=3).runs
    (flag,) = flagged(fit(runs, mode="paper"), "paper mode")
    assert flag.code == "records_overshoot" and not flagged(fit(runs, replicates=0), "paper mode")


def test_derived_metrics():
    w = world()
    best = fit(w.runs, "best@2", replicates=0)
    worst = fit(w.runs, "worst@4", replicates=0)
    mean = fit(w.runs, replicates=0)
    assert best.base_reward > mean.base_reward > worst.base_reward


# Curves of the default mode are means over a chain, which rounding sends along other ways: a
# crossing moves by less than a percent, a tenth of the distance of two evaluations.
@pytest.mark.parametrize(
    ("mode", "rounding"),
    [("paper", 1e-9), pytest.param("hierarchical", 1e-2, marks=pytest.mark.slow)],
)
def test_curves_by_tokens_and_device_hours_are_those_by_rollouts(mode: str, rounding: float):
    runs = world().runs
    hours = [replace(r, device_hours=tuple(1 + p.rollouts / 3600 for p in r.points)) for r in runs]

    def crossings(runs: list[RunRecord], compute: str) -> list[float]:
        result = fit(runs, compute=compute, replicates=0, mode=mode)
        return [crossover.C for crossover in result.joint.crossovers]

    by_rollouts = crossings(runs, "rollouts")
    assert len(by_rollouts) > 2
    # a rollout has 8 tokens, and 3,600 of them take a device an hour
    by_tokens = [8 * C for C in by_rollouts]
    by_hours = [C / 3600 for C in by_rollouts]
    assert crossings(runs, "tokens") == pytest.approx(by_tokens, rel=rounding)
    assert crossings(hours, "device_hours") == pytest.approx(by_hours, rel=rounding)


def test_one_n_is_allowed():
    result = fit(world(n=(8,)).runs, replicates=100)
    assert (
        result.joint.n_star.law == Law("constant", 0.0, 0.0, None, 3.0)
        and not result.joint.n_star.no_effect
    )
    assert result.joint.crossovers == ()
    assert flagged(result, "only one n was measured (8)")
    assert not flagged(result, "holds the whole frontier")  # no other n was there to hold any of it


def test_a_B_p_with_one_n_says_nothing_of_others():
    runs = [
        run
        for run in world(B_p=(16, 64), n=(2, 8), samples=0).runs
        if run.cell.B_p == 16 or run.cell.n == 2
    ]
    assert not flagged(fit(runs, replicates=0), "B_p=64 alone: n = 2 holds")


def test_each_B_p_has_its_own_law_and_flags():
    def curve(B_p, n):  # B_p = 64 likes only n = 2
        return (
            Hill(0.3, 0.4 + 0.05 * math.log2(n), 1.2, 1500.0 * n)
            if B_p == 16
            else Hill(0.3, 0.5 - 0.02 * n, 1.2, 1500.0)
        )

    runs = world(B_p=(16, 64), n=(2, 4, 8), samples=0, curve=curve).runs
    result = fit(runs, replicates=100)
    assert [p.B_p for p in result.by_B_p] == [16, 64]
    assert result.by_B_p[1].n_star.law.form == "constant"
    assert flagged(result, "B_p=64 alone: n = 2 holds the whole frontier")
    assert [v.stable for v in result.stability] == [True, True]


@pytest.mark.slow
def test_flags_of_thin_data():
    runs = world(n=(2, 8), seeds=1).runs
    short = replace(runs[0], points=runs[0].points[:-3])
    result = fit([short, runs[1]])
    assert flagged(result, "only one seed for every cell")
    assert flagged(result, "cells of unequal length")
    assert flagged(result, "only 2 distinct n on the frontier (2 and 8)")
    no_base = [replace(r, points=r.points[1:]) for r in runs]
    assert fit(no_base).base_reward is None
    assert flagged(fit(no_base), "R0 is fitted")


def _one_flat(B_p, n):
    """n = 8 leads early, n = 2 late; n = 32 gains .001 in all."""
    return {
        2: Hill(0.3, 0.7, 1.5, 20000.0),
        8: Hill(0.3, 0.5, 1.5, 3000.0),
        32: Hill(0.3, 0.301, 1.0, 1000.0),
    }[n]


def test_a_flat_cell_has_a_flat_curve_and_falling_n_is_said():
    result = fit(world(n=(2, 8, 32), samples=0, curve=_one_flat).runs, replicates=0)
    flat = result.curves[2]
    assert (flat.n, flat.A, flat.C_mid) == (
        32,
        pytest.approx(0.301, abs=1e-6),
        pytest.approx(1000, rel=1e-6),
    )
    assert flagged(result, "not monotone, it falls from 8 to 2")
    assert not flagged(result, "residuals keep their sign")  # those of rounding mean nothing
    # alone it is a run whose noise is drawn from its prior, which knows no 0
    alone = fit(world(n=(32,), samples=0, curve=_one_flat).runs, replicates=0).curves[0]
    assert pytest.approx(0.301, abs=2e-3) == alone.A


def test_paper_mode_leaves_flat_cells_out():
    result = fit(world(n=(2, 8, 32), samples=0, curve=_one_flat).runs, mode="paper")
    assert flagged(result, "no curve for B_p=16 n=32: 0 record-breaking values of C > 0")
    assert flagged(result, "not monotone, it falls from 8 to 2")
    with refused():
        fit(world(n=(32,), samples=0, curve=_one_flat).runs, mode="paper")


def _collapsed(B_p, n, train):
    """Two B_p; validation of one cell ends at .32, just above the base policy, training reward at
    `train` (None: as it would).
    """
    runs = list(world(B_p=(16, 64), n=(2, 8), samples=0).runs)
    for i, r in enumerate(runs):
        if (r.cell.B_p, r.cell.n) == (B_p, n):
            fallen = [
                replace(
                    p,
                    metrics={"avg@4": 0.32},
                    train=p.train if train is None else {"reward": train},
                )
                for p in r.points[-3:]
            ]
            runs[i] = replace(r, points=(*r.points[:-3], *fallen))
    return runs


@pytest.mark.parametrize("mode", ["hierarchical", "paper"])
def test_unstable_B_p_is_flagged(mode):
    result = fit(_collapsed(16, 8, 0.33), mode=mode, replicates=0)
    assert [(v.B_p, v.stable) for v in result.stability] == [(16, False), (64, True)]
    assert flagged(result, "B_p=16 is unstable: n=8 ends at 0.320")


def test_a_fall_while_training_reward_rises_is_overfitting_and_no_instability():
    result = fit(_collapsed(16, 8, None), replicates=0)
    assert [v.stable for v in result.stability] == [True, True]
    assert [(row.B_p, row.n) for row in result.overfitting] == [(16, 8)] * 2


def test_a_fall_that_no_training_reward_explains_is_flagged():
    """It may be overfitting or a collapse: it counts as neither, so it must not pass in silence."""
    rng, steps = np.random.default_rng(0), np.arange(0, 2000, 100)
    R = (
        0.2
        + 0.3 * steps / (steps + 200)
        - 0.00035 * np.maximum(steps - 1000, 0)
        + rng.normal(0, 0.005, len(steps))
    )
    points = tuple(
        EvalPoint(128 * m, m, 128 * m, 1024 * m, {"avg@4": r}, (), 0, {})
        for m, r in zip(steps.tolist(), R.tolist(), strict=True)
    )
    result = fit([RunRecord(Cell(16, 8, 0), points, "fell")], replicates=0)
    assert result.curves[0].C_peak == pytest.approx(128e3, rel=0.2) and result.overfitting == ()
    assert flagged(result, "reward falls past a peak: B_p=16 n=8 beyond C = ")


def test_refusals():
    runs = world(n=(2, 8), seeds=1).runs
    with refused():
        fit([])
    with refused(where="mode"):
        fit(runs, mode="papre")
    with refused(where="compute"):
        fit(runs, compute="flops")
    with refused():
        fit(runs, "avg@8")
    with refused():
        fit([runs[0], replace(runs[1], cell_hash="other")])
    fewer = [replace(p, counts=p.counts[:200]) for p in runs[1].points]
    with refused():
        fit([runs[0], replace(runs[1], points=tuple(fewer))])
    with refused():
        fit([runs[0], runs[0]])
    with refused(where="synthetic/16x2-s0"):
        fit(runs, compute="device_hours")
    bad = replace(runs[0].points[3], metrics={"avg@4": math.nan})
    with refused(where="synthetic/16x2-s0"):
        fit([replace(runs[0], points=(*runs[0].points[:3], bad)), runs[1]])


def test_one_point_runs_are_refused_in_words():
    runs = [
        RunRecord(Cell(16, n, 0), (EvalPoint(0, 0, 0, 0, {"avg@4": 0.3}),), f"r{n}") for n in (2, 4)
    ]
    with refused():
        fit(runs)
    with refused():
        fit(runs, mode="paper")


@pytest.mark.parametrize(("mode", "is_told"), [("paper", True), ("hierarchical", False)])
def test_where_no_cell_has_a_curve_the_paper_mode_names_the_other(mode, is_told):
    few = [replace(r, points=r.points[:2]) for r in world(n=(2, 4), seeds=1).runs]
    with refused() as refusal:
        fit(few, mode=mode, replicates=0)
    assert ("or use the default mode" in str(refusal.value)) == is_told
