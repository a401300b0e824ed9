"""Golden answers of whole questions on small sweeps, each number of them in answers.json.

The sweeps are chosen so that each branch of an answer is taken by one of them (tests/answers.py
says how the file is written and read)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isojax.core.errors import InputError
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.core.schedule import parse_schedule
from isojax.scaling import fit as fit_module
from isojax.scaling.allocate.constraints import TimeBudget
from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.allocate.devices import on_devices
from isojax.scaling.allocate.growing_n import best_n_stages, compare_n
from isojax.scaling.allocate.quote import quote
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.checks.run_health import health_flags
from isojax.scaling.compare_sweeps import compare_sweeps
from isojax.scaling.curve_from_file import fit_curve_file
from isojax.scaling.curves import posterior_draws
from isojax.scaling.curves.hierarchical import SweepArrays
from isojax.scaling.curves.posterior_mode import ShapeFit
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.evaluation_size import size_by_step
from isojax.scaling.intervals import share_draws, share_interval, share_quantiles
from isojax.scaling.law import law_from_file
from isojax.scaling.law.n_star_law import choose_law, fit_law
from isojax.scaling.learning import find_nothing_learnt, find_nothing_learnt_by_run
from isojax.scaling.result import FitResult, Law, NStarFit
from isojax.scaling.run_watch import RunWatch
from isojax.scaling.tracks import FloatArray, group_by_cell, make_track
from isojax.scaling.validate import validate
from tests.answers import (
    RELATIVE,
    check_answer,
    differences,
    is_same,
    numbers_in,
    to_lines,
)
from tests.scaling import test_adaptive as adaptive
from tests.scaling import test_flat_start as flat
from tests.scaling import test_run_health as health
from tests.scaling import test_spending as spend
from tests.scaling.documents import SHAPES, document, hill, with_curve
from tests.scaling.documents import without_draws as no_draws
from tests.scaling.sweeps import fit
from tests.scaling.sweeps import run as track_of
from tests.scaling.synthetic import random_world, world
from tests.scaling.synthetic_curves import Declining, Hill

pytestmark = pytest.mark.seconds(15)

FILE = Path(__file__).with_name("answers.json")
HILLS = {4: Hill(0.2, 0.5, 1.1, 3e3), 16: Hill(0.2, 0.6, 1.1, 8e3), 64: Hill(0.2, 0.7, 1.1, 2.5e4)}


def normal_draws(
    data: SweepArrays, shapes: Sequence[tuple[ShapeFit, FloatArray]], rng: np.random.Generator
) -> posterior_draws._HmcDraws:
    """In place of chains, normal draws around the modes."""
    draws, positions = [], []
    for shape_fit, run_sds in shapes:
        center = np.concatenate([shape_fit.state.theta.reshape(-1), shape_fit.state.u[:1]])
        run_sd = np.array([shape_fit.scales.run_sd])
        target = posterior_draws._make_target(data, shape_fit, run_sd)
        T = posterior_draws._whitening_matrix(target, center)
        # T itself may have other signs on another processor
        spread = np.linalg.cholesky(T @ T.T)
        draws.append(center + rng.normal(size=(len(run_sds), len(center))) @ spread.T)
        positions.append(rng.normal(size=(30, len(run_sds), len(center))))
    v = np.concatenate(draws)
    theta = np.clip(v[:, :-1].reshape(len(v), -1, 3), *data.theta_bounds)
    return posterior_draws._HmcDraws(theta, v[:, -1], 0.8, positions)


@pytest.fixture(autouse=True)
def without_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains enlarge differences by rounding until their draws have nothing in common."""
    monkeypatch.setattr(posterior_draws, "run_hmc_chains", normal_draws)


def rising(**more: Any) -> tuple[RunRecord, ...]:
    """n* rises with C; right answers of each problem are recorded."""
    settings: dict[str, Any] = dict(n=(4, 16, 64), seeds=2, problems=20, run_sd=0.01)
    settings |= dict(ratio=1.7, budget=60_000, curve=lambda _, n: HILLS[n])
    return world(**(settings | more)).runs


def with_points(run: RunRecord, change: Callable[[int, EvalPoint], EvalPoint | None]) -> RunRecord:
    """The run with other evaluations; those for which `change` gives None are left out."""
    points = [change(i, point) for i, point in enumerate(run.points)]
    return replace(run, points=tuple(p for p in points if p is not None))


def timed(runs: Sequence[RunRecord], seconds: float = 0.02) -> list[RunRecord]:
    """The runs on 2 devices, slower by a fifth for each n; evaluations take 7 s each."""
    result = []
    for run in runs:
        speed = seconds * (1 + 0.05 * np.log2(run.cell.n))
        hours = [2 * (40 + speed * p.rollouts + 7 * i) / 3600 for i, p in enumerate(run.points)]
        result.append(replace(run, device_hours=tuple(hours), devices=2))
    return result


def odd() -> list[RunRecord]:
    """One sweep of much that may be odd: B_p = 8 falls, a cell overfits, one has too few points,
    one ends early, staleness differs, no run has an evaluation at C = 0."""
    curves = {
        (8, 4): Declining(HILLS[4], 9e3, 0.3),
        (8, 16): HILLS[16],
        (32, 4): HILLS[4],
        (32, 16): Declining(HILLS[16], 1.5e4, 0.2),
        (32, 64): HILLS[64],
        (64, 4): HILLS[4],
    }
    runs = world(
        B_p=(8, 32, 64), n=(4, 16, 64), seeds=2, problems=40, ratio=1.35, budget=80_000,
        curve=lambda b, n: curves.get((b, n), HILLS[n]),
    ).runs  # fmt: skip

    def change(run: RunRecord, i: int, p: EvalPoint) -> EvalPoint | None:
        if i == 0 or (run.cell.B_p == 64 and i > 2):
            return None
        if run.cell == Cell(8, 16, 1) and p.rollouts > 30_000:
            return None
        train = dict(p.train) | {"staleness_mean": 0.2 + 0.3 * (run.cell.n == 64)}
        if (run.cell.B_p, run.cell.n) == (8, 4):
            train["reward"] = p.metrics["avg@4"]
        return replace(p, train=train)

    return [
        with_points(run, partial(change, run))
        for run in runs
        if (run.cell.B_p, run.cell.n) in curves
    ]


def broken() -> list[RunRecord]:
    """Of six runs one collapses, one breaks off and one has no gradient."""
    runs = rising(n=(4, 16, 64))
    changed = []
    for number, run in enumerate(runs):
        half = len(run.points) // 2

        def change(i: int, p: EvalPoint, number: int = number, half: int = half) -> EvalPoint:
            train = dict(p.train) | {"zero_variance": 0.3, "entropy": 0.5}
            if number == 1 and i >= half:
                few = tuple(int(c > 3) for c in p.counts)
                reward = float(np.mean(few)) / p.samples
                return replace(p, counts=few, metrics={"avg@4": reward}, train={"reward": 0.05})
            return replace(p, train=train if i else {})

        reason = "out of memory" if number == 4 else ""
        changed.append(replace(with_points(run, change), failure_reason=reason))
    return changed


def grown(runs: Sequence[RunRecord], gain: float, seed: int) -> RunRecord:
    """A run whose n grows, by a gain above the runs of n = 16."""
    fixed = next(run for run in runs if run.cell.n == 16 and run.cell.seed == 0)
    stages = parse_schedule("16x4, 16x16 from 4000")
    points = tuple(
        replace(p, metrics={"avg@4": p.metrics["avg@4"] + gain * (p.rollouts > 0)}, counts=())
        for p in fixed.points
    )
    return RunRecord(Cell(16, 4, seed, "grow", stages), points)


def noisy_level(reward: float, rollouts: int = 160) -> list[RunRecord]:
    """Runs that stay at one reward, of which the log gives shares alone."""
    return flat.sweep(lambda n: np.full(len(flat.C), reward), rollouts=rollouts, base=reward)


def with_causes() -> list[RunRecord]:
    train = {"nonfinite_update": 0.005, "truncated": 0.6, "parsed_fraction": 0.01,
             "zero_variance": 0.995, "reward": 0.0}  # fmt: skip
    return [
        with_points(run, lambda i, p: replace(p, train=train if i else {}))
        for run in flat.sweep(lambda n: 0 * flat.C, all_n=(4, 8))
    ]


def short() -> list[RunRecord]:
    """Seven evaluations to 3 times the first C: too few for a trial on hidden ones."""
    return list(rising(start=20_000, ratio=1.2, seeds=1))


def sweep_of_kind(kind: str, seed: int, **more: Any) -> tuple[RunRecord, ...]:
    settings: dict[str, Any] = dict(seeds=1, evaluations=14, problems=40, unequal=False)
    return random_world(kind, seed, **(settings | more)).runs


Q = 20  # draws
FITS: dict[str, Callable[[], FitResult]] = {
    "rising": lambda: fit(timed(rising()), replicates=Q),
    "paper": lambda: fit(rising(), mode="paper"),
    "odd": lambda: fit(odd(), replicates=Q),
    "odd paper": lambda: fit(odd(), mode="paper"),
    "no draws": lambda: fit(rising(seeds=1), replicates=0),
    "no noise": lambda: fit(rising(samples=0, run_sd=0.0), replicates=Q),
    "fixed batch": lambda: fit(sweep_of_kind("non_monotone", 1, n=(8, 32, 128, 512)), replicates=Q),
    "no effect": lambda: fit(rising(curve=lambda _, n: HILLS[4]), replicates=Q, run_sd=0.02),
    "one n": lambda: fit(rising(n=(16,), B_p=(8, 32)), replicates=Q),
    "short": lambda: fit(short(), replicates=Q),
    "hours": lambda: fit(timed(rising(n=(4, 16), seeds=1)), compute="device_hours", mode="paper"),
    "best of 4": lambda: fit(rising(n=(4, 16), seeds=1), metric="best@4", mode="paper"),
    "graded": lambda: fit(rising(graded=1.0, n=(4, 16), seeds=1), replicates=Q),
    "schedules": lambda: fit(
        [*rising(), *(grown(rising(), gain, s) for s, gain in enumerate((0.05, 0.03)))],
        replicates=Q,
    ),
    "broken": lambda: fit_module.fit(broken(), options=FitOptions(replicates=Q)),
    "broken and fitted": lambda: fit_module.fit(
        broken(), options=FitOptions(mode="paper", include_flagged=True)
    ),
    "one learns": lambda: fit(
        flat.sweep(lambda n: flat.late(16e3) if n == 16 else 0 * flat.C, all_n=(4, 16), seeds=1),
        replicates=Q,
    ),
    "all learn": lambda: fit(flat.ALL_LEARN, mode="paper"),
    "few hits": lambda: fit(flat.FEW_HITS, replicates=Q),
    "zeros": lambda: fit(with_causes(), replicates=Q),
    "zeros paper": lambda: fit(with_causes(), mode="paper"),
    "level": lambda: fit(noisy_level(0.3), replicates=Q),
    "solved": lambda: fit(noisy_level(1.0), replicates=Q),
    "level and schedules": lambda: fit(
        [*noisy_level(0.3), replace(grown(rising(), 0.0, 0))], replicates=Q
    ),
}


@cache
def fitted(name: str) -> FitResult:
    return FITS[name]()


@pytest.mark.parametrize("name", FITS)
def test_fits(request: pytest.FixtureRequest, name: str) -> None:
    answer = {key: getattr(fitted(name), key) for key in FitResult.model_fields}
    if len(answer["by_B_p"]) == 1:  # it repeats that of all cells
        del answer["by_B_p"]
    # Draws are steps of a chain, which amplifies rounding: where a cell hardly shows its tail and
    # exponent, another processor moves them by a third of a percent together.
    relative = RELATIVE if answer["mode"] == "paper" else 1e-2
    check_answer(request, FILE, f"fit: {name}", answer, relative)


# Advice: what is read off a fit.

SIGMOID = NStarFit(law=Law("sigmoid", 4.0, 4.0, 4.2, 2.0), no_effect=False)
by_hand = partial(document, replicates=60)
by_law = partial(document, n_star=SIGMOID)
HAND_MADE: dict[str, Callable[[], FitResult]] = {
    "curves": by_hand,
    "curves, unstable": lambda: by_hand(unstable=(16,)),
    "no draws": lambda: no_draws(document()),
    "law": lambda: no_draws(by_law(), mode="paper"),
    "law, unstable": lambda: no_draws(by_law(unstable=(16,)), mode="paper"),
    "wide": lambda: by_hand(sd=0.03),
    "peak": lambda: with_curve(by_hand(), (16, 16), C_peak=3e4, C_high=5e4),
    "two n": lambda: by_hand({cell: s for cell, s in SHAPES.items() if cell[1] < 64}),
}
# one update of the smallest cell; 4 of n at B_p = 24; the least and most that were measured; the
# most that is answered
BUDGETS = (64.0, 96.0, 1e3, 2560.0, 1e4, 5e4, 1e5, 4.2e5)
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "B_max": {"B_max": 1024},
    "small B_max": {"B_max": 200},
    "B_p": {"fix": {"B_p": 64}},
    "new B_p": {"fix": {"B_p": 24}},
    "B_p of B_max": {"fix": {"B_p": 64}, "B_max": 64},
    "B": {"fix": {"B": 1024}},
    "new B": {"fix": {"B": 700}},
    "M": {"fix": {"M": 40}},
    "many M": {"fix": {"M": 3000}},
    "M of C": {"fix": {"M": 64}},
    "B of B_max": {"fix": {"B": 1024}, "B_max": 1024},
    "smallest B_max": {"B_max": 64},
    "M and B_max": {"fix": {"M": 40}, "B_max": 256},
    "epsilon": {"epsilon": 0.05},
    "no epsilon": {"epsilon": 0.0},
    "extrapolated": {"extrapolate": True},
}


def answered(question: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """The answer, or what a refusal is about and its numbers: its words are in messages.txt."""
    try:
        return question(*given, **options)
    except InputError as refusal:
        return ["refused", refusal.where, *numbers_in(str(refusal))]


def recommended(fit: FitResult, budget: float | TimeBudget, **options: Any) -> dict[str, Any]:
    """A recommendation without the fit's warnings, which are in the answers of fits."""
    fields = vars(recommend(fit, budget, **options))
    left_out = ("warnings", "further_warnings", "metric", "level", "nothing_learnt")
    return {name: value for name, value in fields.items() if name not in left_out}


def in_short(fit: FitResult, budget: float, **limits: Any) -> list[Any]:
    """A recommendation in one line, with the numbers of its reasons."""
    r = recommend(fit, budget, with_details=False, **limits)
    numbers = [r.allocation.B_p, r.allocation.n, r.allocation.M, r.expected_reward, r.regret]
    return [*numbers, " ".join(numbers_in(" ".join(r.reasons)))]


@pytest.mark.parametrize("name", HAND_MADE)
def test_recommendations(request: pytest.FixtureRequest, name: str) -> None:
    result = HAND_MADE[name]()
    answers = {f"{C:g}": answered(recommended, result, C) for C in (1e3, 5e4, 4.2e5)}
    check_answer(request, FILE, f"recommend: {name}", answers)


@pytest.mark.parametrize("name", list(HAND_MADE)[:5])
def test_limits_of_recommendations(request: pytest.FixtureRequest, name: str) -> None:
    result = HAND_MADE[name]()
    answers = {
        f"{asked} {C:g}": answered(in_short, result, C, **limits)
        for asked, limits in REQUESTS.items()
        for C in BUDGETS
    }
    check_answer(request, FILE, f"recommend: limits, {name}", answers)


RECOMMENDED = (
    *("rising", "odd", "short", "one learns", "all learn", "few hits", "zeros", "no effect"),
    *("one n", "graded", "no noise", "broken", "odd paper"),
)


@pytest.mark.parametrize("name", RECOMMENDED)
def test_recommendations_of_sweeps(request: pytest.FixtureRequest, name: str) -> None:
    answers = {
        f"{C:g}": answered(recommended, fitted(name), C, extrapolate=C > 2e5)
        for C in (3e3, 5e4, 1e6)
    }
    check_answer(request, FILE, f"recommend: sweep {name}", answers)


def test_budgets_in_time(request: pytest.FixtureRequest) -> None:
    result = fitted("rising")
    ensemble = load_ensemble(result)
    limits: list[dict[str, Any]] = [{}, {"B_max": 256}, {"fix": {"B_p": 16}}, {"fix": {"M": 20}}]
    answers: dict[str, Any] = {"clock": ensemble.clock}
    for seconds, of_devices in itertools.product((60, 400, 2000), (False, True)):
        budget = TimeBudget(seconds, of_devices)
        key = f"{seconds} {of_devices}"
        answers[f"{key} rollouts"] = ensemble.affordable_rollouts(budget)
        for i, limit in enumerate(limits):
            answers[f"{key} {i}"] = answered(in_short, result, budget, **limit)
    answers["whole"] = recommended(result, TimeBudget(400))
    answers["eight devices"] = load_ensemble(on_devices(result, 8)).clock
    check_answer(request, FILE, "recommend: time", answers)


def test_quotes(request: pytest.FixtureRequest) -> None:
    fits = {name: HAND_MADE[name]() for name in ("curves", "curves, unstable", "peak")}
    fits |= {name: fitted(name) for name in ("rising", "odd", "one learns", "zeros")}
    answers = {
        f"{name} {reward}": answered(quote, result, reward)
        for name, result in fits.items()
        for reward in (0.15, 0.21, 0.3, 0.5, 0.64, 0.9)
    }
    check_answer(request, FILE, "quote", answers)


def test_growing_n(request: pytest.FixtureRequest) -> None:
    C = np.geomspace(1e3, 4e3, 6)
    answers: dict[str, Any] = {}
    for name in ("curves", "wide"):
        ensemble = load_ensemble(HAND_MADE[name]())
        for n in (4, 16):
            for luck in (0.0, 0.05):
                R = hill(*SHAPES[16, n], C) + luck  # type: ignore[arg-type]
                answers[f"{name} {n} {luck}"] = compare_n(ensemble, 16, n, C, R, 6e4)
        for ahead in (1.0, 2.0):
            answers[f"{name} stages {ahead}"] = best_n_stages(ensemble, 64, ahead, 2e5)
    timed_ensemble = load_ensemble(fitted("rising"))
    answers["with hours"] = compare_n(timed_ensemble, 16, 4, C, 0.2 + C * 2e-5, 6e4)
    check_answer(request, FILE, "growing n", answers)


def test_comparisons(request: pytest.FixtureRequest) -> None:
    better = {cell: (A + 0.03, B, mid) for cell, (A, B, mid) in SHAPES.items()}
    late = {cell: shape for cell, shape in SHAPES.items() if cell[1] != 64}
    pairs: dict[str, Sequence[FitResult]] = {
        "by hand": (by_hand(), by_hand(better), by_hand(sd=0.03)),
        "fewer n": (by_hand(), by_hand(late)),
        "no draws": (no_draws(document()), no_draws(document(better))),
        "sweeps": (fitted("rising"), fitted("odd"), fitted("no effect")),
        "levels": (fitted("one learns"), fitted("few hits"), fitted("zeros")),
    }
    answers = {
        name: compare_sweeps(fits, ["a", "b", "c"][: len(fits)]) for name, fits in pairs.items()
    }
    check_answer(request, FILE, "compare", answers)


# Files of points.


def write_csv(path: Path, columns: dict[str, Any]) -> Path:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


CURVE_C = [0, *np.geomspace(1e3, 1e5, 15).round().tolist()]


def curve_rewards(seed: int, noise: float = 0.01) -> list[float]:
    at = HILLS[16].at(np.array(CURVE_C))
    return (at + noise * np.random.default_rng(seed).normal(size=len(at))).round(4).tolist()


CURVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one run": ({"C": CURVE_C, "R": curve_rewards(0)}, {"below": 4e4}),
    "seeds in percent": (
        {
            "C": CURVE_C * 2,
            "R": [100 * r for r in curve_rewards(1) + curve_rewards(2)],
            "seed": [0] * len(CURVE_C) + [1] * len(CURVE_C),
            "n": [4, 8] * len(CURVE_C),
        },
        {"group": "seed"},
    ),
    "few points": ({"C": CURVE_C[1::3], "R": curve_rewards(3)[1::3]}, {}),
    "flat": (
        {"C": CURVE_C, "R": (np.array([29, 31] * 8) + 0.5 * (np.arange(16) % 3)).tolist()},
        {"below": 4e4},
    ),
}


@pytest.mark.parametrize("name", CURVES)
def test_curves_of_files(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> None:
    columns, options = CURVES[name]
    document_, data = fit_curve_file(write_csv(tmp_path / "f.csv", columns), "C", "R", **options)
    del document_["file"]
    check_answer(request, FILE, f"fit-curve: {name}", {"document": document_, "data": data})


LAWS: dict[str, list[float]] = {
    "sigmoid": [4, 4, 4, 8, 16, 32, 64, 64, 128, 128, 128, 128],
    "line": [4, 8, 8, 16, 16, 32, 32, 64, 64, 128, 128, 256],
    "constant": [16] * 12,
    "no law": [4] * 6 + [8] * 6,
    "falls": [4, 16, 8, 64, 16, 128, 64, 32, 256, 128, 64, 16],
}


@pytest.mark.parametrize("mode", ["hierarchical", "paper"])
@pytest.mark.parametrize("name", LAWS)
def test_laws_of_files(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    mode: str,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(law_from_file, "REPLICATES", 30)
    C = np.geomspace(1e4, 1e6, 12).round()
    file = write_csv(tmp_path / "f.csv", {"n": LAWS[name], "rollouts": C, "B_p": [8, 16] * 6})
    answer = law_from_file.fit_law_file(file, mode=mode)
    del answer["file"]
    check_answer(request, FILE, f"fit-law: {name}, {mode}", answer)


def test_forms_of_laws(request: pytest.FixtureRequest) -> None:
    C = np.geomspace(1e3, 1e6, 16)
    answers: dict[str, Any] = {}
    up = [2] * 4 + [4] * 2 + [8] * 2 + [16] * 3 + [32] * 5
    for name, n in (("up", up), ("down", up[::-1])):
        log2_n = np.log2(n)
        answers[f"{name} paper"] = fit_law(C, n, 32)
        for falling in (False, True):
            answers[f"{name} {falling}"] = choose_law(C, log2_n, 32, falling=falling)
            answers[f"{name} {falling} known"] = choose_law(
                C, log2_n, 32, np.linspace(0.1, 0.4, 16), observations=8, falling=falling
            )
    for observations in range(2, 9):
        answers[f"{observations} observations"] = choose_law(
            C, np.linspace(1, 5, 16) ** 1.2, 32, observations=observations
        )
    check_answer(request, FILE, "laws", answers)


# One run at a time, one budget, hidden parts.


def test_watched_runs(request: pytest.FixtureRequest) -> None:
    C = np.linspace(0, 40_000, 25)
    R = HILLS[16].at(C) + np.random.default_rng(3).normal(0, 0.01, 25)
    watch = RunWatch(60_000.0, goal=0.5)
    answers = {f"goal {count}": watch.update(C[:count], R[:count]) for count in (4, 9, 16)}
    nothing = find_nothing_learnt_by_run(track_of(16, 4, 0, C[:16], R[:16] * 0 + 0.25), "avg@4")
    answers["nothing learnt"] = watch.update(C[:16], R[:16], nothing)
    answers["below a goal"] = replace(watch, goal=0.9).update(C[:16], R[:16])
    answers["without a goal"] = replace(watch, goal=None).update(C[:16], R[:16])
    answers["at the end"] = RunWatch(float(C[1])).update(C[:2], R[:2])
    check_answer(request, FILE, "watch", answers)


def test_spending(request: pytest.FixtureRequest) -> None:
    trainer = spend.Trainer(spend.policy_for(list(spend.FAST_THEN_FAR)), spend.FAST_THEN_FAR)
    for leg in trainer.policy.pilots():
        trainer.train(leg)
    answers: dict[str, Any] = {"pilots": list(trainer.legs)}
    for i in range(2):
        leg = trainer.policy.next_leg(list(trainer.runs.values()), trainer.legs)
        assert leg is not None
        answers[f"leg {i}"] = leg
        trainer.train(leg)
    runs = list(trainer.runs.values())
    answers["fixed"] = trainer.policy.fixed_forecasts(runs)
    answers["theta"] = trainer.policy.fit(runs).theta.mean(0)
    check_answer(request, FILE, "spend", answers)


@pytest.mark.parametrize(
    ("name", "runs", "options"),
    [
        ("two seeds", partial(rising, n=(4, 16)), FitOptions(replicates=10)),
        ("one seed", short, FitOptions(mode="paper")),
    ],
)
def test_validation(
    request: pytest.FixtureRequest, name: str, runs: Callable[[], Any], options: FitOptions
) -> None:
    answer = validate(runs(), "avg@4", options=options)
    check_answer(request, FILE, f"validate: {name}", answer)


# What is said of single runs, and of sweeps that show nothing.

REWARDS: dict[str, list[float]] = {
    "rise": health.RISE,
    "collapse": [*health.RISE[:6], 0.3, 0.22, 0.21, 0.2],
    "fall below the base": [0.4, 0.41, 0.39, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1],
    "one lucky": [0.2, 0.2, 0.2, 0.5, 0.2, 0.21, 0.2, 0.2, 0.2, 0.2],
    "still": [0.2] * 10,
    "short": [0.2, 0.5, 0.5, 0.5, 0.1, 0.1, 0.1],
}
_SAME = [1.0] * 9
_HALF = [1.0] * 4
TRAIN: dict[str, dict[str, list[float]]] = {
    "nothing": {},
    "entropy up": {"entropy": [*_HALF, *[2.1] * 5], "reward": [0.2, *[0.5] * 3, *[0.2] * 5]},
    "entropy down": {"entropy": [*_HALF, *[0.019] * 5], "reward": [0.1 * i for i in range(9)]},
    "no gradient": {"zero_variance": [0.5, 0.7, 0.8, 0.9, 0.9, *[0.96] * 4]},
    "long": {"response_length": [*[30.0] * 4, *[91.0] * 5], "truncated": [*[0.3] * 4, *[0.56] * 5]},
    "mismatch": {"sampler_logp_gap": [0.0] * 4 + [-0.2] * 5},
    "stale": {"sampler_logp_gap": [0.3] * 9, "staleness_mean": _SAME},
    "skipped": {"nonfinite_update": [0.01, 0.01, 0.02, *[0.0] * 6]},
}


def test_broken_runs(request: pytest.FixtureRequest) -> None:
    answers: dict[str, Any] = {}
    for (rewards, values), (train, of_name), counted in itertools.product(
        REWARDS.items(), TRAIN.items(), (True, False)
    ):
        of_name = {name: column[: len(values) - 1] for name, column in of_name.items()}
        flags = health_flags(health.made(values, counted=counted, **of_name))
        answers[f"{rewards}, {train}, {counted}"] = [str(flag) for flag in flags]
    check_answer(request, FILE, "broken runs", answers)


def steady(level: float, rise: float, rollouts: int | None, seed: int) -> list[RunRecord]:
    """Runs around a level, some of them rising; shares of so many rollouts, or what a log prints of
    graded rewards."""
    rng = np.random.default_rng(seed)
    runs = []
    for n in (4, 8):
        for s in range(2):
            true = level + rise * np.linspace(0, 1, 12) * (n == 8)
            R = rng.binomial(rollouts, true) / rollouts if rollouts else rng.normal(true, 0.01)
            C = np.arange(12) * 1000.0
            runs.append(track_of(32, n, s, C, R.clip(0, 1).round(5)).run)
    return runs


def test_what_was_learnt(request: pytest.FixtureRequest) -> None:
    answers: dict[str, Any] = {}
    for i, (level, rise, rollouts) in enumerate(
        itertools.product((0.0, 0.002, 0.3, 1.0), (0.0, 0.05), (50, None))
    ):
        level = min(level, 1 - rise)
        tracks = [make_track(r, "avg@4", "rollouts") for r in steady(level, rise, rollouts, i)]
        key = f"{level} {rise} {rollouts}"
        answers[key] = find_nothing_learnt(group_by_cell(tracks), "avg@4", tracks[:1])
        answers[f"{key}, by run"] = [find_nothing_learnt_by_run(t, "avg@4") for t in tracks]
        answers[f"{key}, size"] = size_by_step(*[t.R for t in tracks])
    check_answer(request, FILE, "what was learnt", answers)


def test_shares(request: pytest.FixtureRequest) -> None:
    answers: dict[str, Any] = {}
    levels = [0.01, 0.05, 0.3, 0.49, 0.5, 0.7, 0.95, 0.99]
    for share, rollouts in itertools.product(
        (0.0, 0.004, 0.01, 0.3, 0.99, 0.998, 1.0), (2.0, 100.0)
    ):
        key = f"{share} of {rollouts}"
        answers[key] = share_quantiles(share, rollouts, levels)
        answers[f"{key}, interval"] = share_interval(share, rollouts)
        for count in (20, 21, 41):
            answers[f"{key}, {count}"] = share_draws(share, rollouts, count, (0.2, 0.4))
    check_answer(request, FILE, "shares", answers)


def test_adaptive_rounds(request: pytest.FixtureRequest) -> None:
    settings: dict[str, Any] = dict(n=(2, 8, 32), problems=40, run_sd=0.01, ratio=1.5)
    runs = world(**settings, budget=60_000)
    policy = adaptive.policy_of(runs)
    first = policy.next_round([])
    records = runs.trained(dict(first))
    second = policy.next_round(records)
    reached = {r.cell: r.points[-1].rollouts for r in records}
    steps = list(policy._possible_steps(policy._seeds_by_cell(()), reached, 10**6))
    answers = {
        "levels": policy.C_levels,
        "allowed": policy.allowed_rollouts,
        "first": first,
        "second": second,
        "worth": policy._worthwhile_steps(records, steps, reached),
        "summary": policy.summary(records),
    }
    check_answer(request, FILE, "adaptive", answers)


def test_no_answer_is_left_over(request: pytest.FixtureRequest) -> None:
    """Each name in the file is one that a test here asks for."""
    kinds = {"fit": FITS, "fit-curve": CURVES}
    for key in json.loads(FILE.read_text("utf-8")):
        kind, _, name = key.partition(": ")
        assert name in kinds.get(kind, {name}), key


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (0.5, 0.5004, True),
        (0.5, 0.501, False),
        (0, False, False),
        ([1.0, "a"], [1.0005, "a"], True),
        ([1.0], [1.0, 2.0], False),
        ("R = 0.123 at 1,000", "R = 0.124 at 1,000", True),
        ("R = 0.123 at 1,000", "R = 0.125 at 1,000", False),
        ("n = 4 leads", "n = 8 leads", False),
        ("it rises by 0.1", "it falls by 0.1", False),
    ],
)
def test_what_counts_as_the_same(before: Any, now: Any, same: bool) -> None:
    assert is_same(before, now) == same
    assert bool(differences({"a": before}, {"a": now})) != same


def test_long_lists_differ_where_their_order_does() -> None:
    values = np.linspace(0.0, 1.0, 30)
    (lines,) = to_lines({"a": {"b": values}}).values()
    assert lines[0] == 30 and differences({"b": lines}, to_lines({"b": values[::-1]}))
    assert to_lines({"rows": [{"x": 1, "y": None}, {"x": 2, "y": ""}]}) == {
        "rows[].x": [1, 2],
        "rows[].y": [None, ""],
    }
