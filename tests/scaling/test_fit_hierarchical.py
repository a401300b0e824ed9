"""fit() in its default mode: what options change and what they leave, metrics, axes, and intervals
of what is known."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.curves.fit_hierarchical import estimate
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import group_by_cell, make_track
from tests.refusals import refused
from tests.scaling.sweeps import fit
from tests.scaling.synthetic import random_world, world

ROOT = Path(__file__).resolve().parents[2]
WORLD = world(n=(2, 8, 32), seeds=2, problems=200)
# What stands on draws: curves are their means.
# What a seed of the draws changes.
DRAWN = (
    "forecast",
    "intervals",
    "draws",
    "curves",
    "joint",
    "by_B_p",
    "sensitivity",
    "referee",
    "diagnostics",
    "flags",
)


@cache
def first():
    return fit(WORLD.runs, replicates=60)


def without(document, *keys):
    return {name: value for name, value in document if name not in keys}


def test_it_is_plain_json_and_the_same_in_any_order():
    again = fit([WORLD.runs[i] for i in (3, 0, 5, 1, 4, 2)], replicates=60)
    text = again.model_dump_json()
    assert text == first().model_dump_json() and str(ROOT) not in text


def test_no_replicates_no_intervals():
    bare = fit(WORLD.runs, replicates=0)
    assert bare.intervals is None and bare.draws is None
    assert all(c.A_interval is None and c.C_mid_interval is None for c in bare.curves)
    assert all(p.low is None and p.n_probability is None for p in bare.joint.frontier)
    assert all(c.low is None for c in bare.joint.crossovers) and bare.joint.n_star.band is None
    for c, d in zip(bare.curves, first().curves, strict=True):  # means of 200 draws and of 60
        assert c.A == pytest.approx(d.A, abs=0.01)


def test_a_seed_changes_the_draws_and_their_means_by_little():
    other = fit(WORLD.runs, replicates=60, seed=1)
    assert other.draws.A != first().draws.A and other.intervals.seed == 1
    assert without(other, *DRAWN) == without(first(), *DRAWN)
    for c, d in zip(other.curves, first().curves, strict=True):
        assert c.A == pytest.approx(d.A, abs=0.01) and (c.C_low, c.C_high, c.points) == (
            d.C_low,
            d.C_high,
            d.points,
        )
    assert [(c.n_low, c.n_high) for c in other.joint.crossovers] == [
        (c.n_low, c.n_high) for c in first().joint.crossovers
    ]


def test_intervals_say_how_they_were_made():
    output = first().intervals
    assert (output.level, output.replicates, output.problems) == (0.9, 60, 200)
    assert (
        output.run_sd_source == "estimated from the seeds (3 degrees of freedom)"
        and 0 < output.run_sd < 0.03
    )
    stated = fit(WORLD.runs, replicates=60, run_sd=0.05)
    assert (stated.intervals.run_sd, stated.intervals.run_sd_source) == (0.05, "as stated")

    def width(document):
        return np.mean([p.high - p.low for p in document.joint.frontier[-20:]])

    assert width(stated) > 1.3 * width(first())  # runs that may differ more say less
    one_seed = fit([r for r in WORLD.runs if r.cell.seed == 0], replicates=0)
    assert [f for f in one_seed.flags if "only one seed for every cell" in f.text]


def test_intervals_hold_known_values():
    inside = []
    for c in first().curves:
        low, high = c.A_interval
        inside.append(low < WORLD.truth[16, c.n].A < high)
        assert low < c.A < high
    assert sum(inside) >= 2
    for p in first().joint.frontier[::10]:
        assert p.low < p.reward < p.high and sum(p.n_probability.values()) == pytest.approx(
            1, abs=0.01
        )
    for c in first().joint.crossovers:
        assert (c.low or 0) <= c.C <= (c.high or np.inf)


def test_other_metrics():
    best, worst, train = (
        fit(WORLD.runs, metric, replicates=0) for metric in ("best@2", "worst@4", "train/reward")
    )
    at_end = [[c.A for c in document.curves] for document in (best, worst)]
    assert all(b > w for b, w in zip(*at_end, strict=True)) and best.metric == "best@2"
    # none before the first update
    assert train.base_reward is None and all(r.points == 21 for r in train.runs)


def test_tokens_are_an_axis_like_another():
    """8 tokens per rollout: every C is 8 times larger, nothing else moves."""
    tokens = fit(WORLD.runs, compute="tokens", replicates=0)
    rollouts = fit(WORLD.runs, replicates=0)
    for c, d in zip(tokens.curves, rollouts.curves, strict=True):
        assert c.A == pytest.approx(d.A, abs=1e-3) and c.C_mid == pytest.approx(
            8 * d.C_mid, rel=1e-2
        )
    assert [c.C for c in tokens.joint.crossovers] == pytest.approx(
        [8 * c.C for c in rollouts.joint.crossovers], rel=1e-2
    )


def test_few_replicates_are_said():
    assert any(flag.text.startswith("only 60 replicates") for flag in first().flags)


def test_a_log_without_tokens_says_what_to_ask_for():
    run = WORLD.runs[0]
    bare = replace(run, points=tuple(replace(point, tokens=0) for point in run.points))
    with refused(where="synthetic/16x2-s0"):
        fit([bare], compute="tokens", replicates=0)


@pytest.mark.parametrize(
    "options", [{"replicates": -1}, {"run_sd": -0.1}, {"run_sd": 1.0}, {"run_sd": float("nan")}]
)
def test_options_out_of_range_are_refused(options):
    with refused():
        fit(WORLD.runs, **options)


def test_what_recommend_reads_is_what_was_drawn():
    """fit.json keeps five digits of each replicate; corrections and other problems are added again
    when it is read."""
    runs = random_world("non_monotone", 3, evaluations=30, seeds=2, problems=100).runs
    document = FitResult.model_validate_json(fit(runs, replicates=40).model_dump_json())
    assert all(c.correction is not None for c in document.curves)  # three stages are no single rise
    drawn = estimate(
        group_by_cell([make_track(r, "avg@4", "rollouts") for r in runs]),
        "avg@4",
        FitOptions(replicates=40),
    ).draws
    read = load_ensemble(document)
    C = np.geomspace(4e4, min(c.C_high for c in document.curves), 20)
    assert drawn is not None and np.abs(read.samples.shift).max() > 0.01
    cells = list(zip(read.B_p.tolist(), read.n.tolist(), strict=True))
    assert read.sampled_rewards(C) == pytest.approx(
        np.moveaxis(drawn.for_cells(cells).rewards(C), 2, 0), abs=1e-4
    )


def test_a_cell_reaches_to_the_end_of_its_longest_run():
    """Seeds of an adaptive sweep end at different C: what only one of them measured counts."""
    ends = {r.cell: 20_000 if r.cell.seed else 250_000 for r in WORLD.runs}
    document = fit(WORLD.trained(ends), replicates=60)
    assert [c.C_high for c in document.curves] == [c.C_high for c in first().curves]
    assert (
        document.joint.frontier[-1].C == first().joint.frontier[-1].C
        and document.joint.frontier[-1].n == 32
    )
    assert not any("unequal length" in flag.text for flag in document.flags)


def test_draws_of_n_that_look_alike_stay_separate():
    """The verdict says that no difference is shown; the draws say how large one may be."""
    alike = group_by_cell(
        [
            make_track(r, "avg@4", "rollouts")
            for r in world("same", n=(2, 8, 32), seeds=1, problems=200).runs
        ]
    )
    result = estimate(alike, "avg@4", FitOptions(replicates=200))
    assert result.no_effect and result.draws is not None
    differences = np.ptp(
        result.draws.rewards([max(c.C_high for c in result.curves)])[:, :, 0], axis=1
    )
    assert 0.002 < np.median(differences) < 0.03
