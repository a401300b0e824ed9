"""Worlds with a known law, for testing the fitter: RunRecords drawn from a true curve R(C) of each
(B_p, n).

Validation problem i has a difficulty u_i, the same in every run of a world, and at reward R the
success rate p_i = BetaInv(u_i; R kappa, (1 - R) kappa), so that the mean over all conceivable
problems is R; right answers are Binomial(samples, p_i); graded rewards are Beta(p_i c, (1 - p_i) c)
each, c their concentration. A run differs from its curve by a term of its own, Normal(0, run_sd),
and by a slow drift, both times its progress, since all runs start from one base policy. All cells
are evaluated on one shared grid of targets, each at its own first update reaching it.

`world` draws runs from given or built-in curves, `random_world` draws everything from one seed
(synthetic_kinds.py has the kinds).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from isojax.core.errors import InputError
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.tracks import FloatArray
from tests.scaling.synthetic_curves import Hill, TrueCurve, best, progress
from tests.scaling.synthetic_kinds import KINDS, Truth

N = (8, 16, 32, 64, 128, 256, 512)
# rewards between which success rates are interpolated; the mean over all problems stays R
RATE_STEP = 0.01
DRIFT_DECADES = 0.3  # correlation length of a drift, in decades of C
# ranges of compute tried for a law, and laws tried, until a world keeps its kind's promise
RANGES = 50
LAWS = 100


@dataclass(frozen=True)
class ProblemSet:
    """A world's validation problems: their difficulties u_i in (0, 1), and kappa, the concentration
    of success rates (None: all alike).
    """

    difficulty: tuple[float, ...]
    spread: float | None

    def rates(self, R: ArrayLike) -> FloatArray:
        """p_i at reward R, float[...] -> float[..., problems]."""
        R = np.clip(R, 1e-6, 1 - 1e-6)
        if self.spread is None:
            return np.repeat(R[..., None], len(self.difficulty), -1)
        step = np.floor(R / RATE_STEP).astype(np.int64)
        used, index = np.unique(step, return_inverse=True)
        below, above = (
            np.stack([self._row(int(k) + up) for k in used])[index.reshape(step.shape)]
            for up in (0, 1)
        )
        part = (R / RATE_STEP - step)[..., None]
        return (1 - part) * below + part * above

    @cached_property
    def _rows(self) -> dict[int, FloatArray]:
        return {}

    def _row(self, k: int) -> FloatArray:
        """p_i at reward k RATE_STEP, float[problems]; kept, because the inverse is slow."""
        if k not in self._rows:
            R, kappa = min(max(k * RATE_STEP, 1e-6), 1 - 1e-6), self.spread or 0.0
            self._rows[k] = betaincinv(R * kappa, (1 - R) * kappa, np.array(self.difficulty))
        return self._rows[k]


@dataclass(frozen=True)
class World:
    """Runs, the curve each (B_p, n) was drawn from, and the problems they were evaluated on."""

    runs: tuple[RunRecord, ...]
    truth: Mapping[tuple[int, int], TrueCurve]
    problems: ProblemSet

    def reward(self, B_p: int, n: int, C: ArrayLike) -> FloatArray:
        """The true reward that a budget C buys, over all conceivable problems and runs; float[...]
        -> float[...]."""
        return best(self.truth[B_p, n], C)

    def on_problems(self, B_p: int, n: int, C: ArrayLike) -> FloatArray:
        """The same on this world's own problems (the mean of p_i): what held-out runs would
        measure; float[...] -> float[...].
        """
        return self.problems.rates(self.reward(B_p, n, C)).mean(-1)

    @property
    def measured(self) -> dict[tuple[int, int], tuple[float, float]]:
        """(first C > 0, last C) of each (B_p, n)."""
        result: dict[tuple[int, int], tuple[float, float]] = {}
        for run in self.runs:
            C = [p.rollouts for p in run.points if p.rollouts > 0]
            result[run.cell.B_p, run.cell.n] = (float(C[0]), float(C[-1]))
        return result

    def trained(self, targets: Mapping[Cell, int]) -> list[RunRecord]:
        """The runs of some cells as their ledgers would be had each been trained to its target in C
        alone."""
        specific = [
            (r, math.ceil(targets[r.cell] / r.cell.B) * r.cell.B)
            for r in self.runs
            if r.cell in targets
        ]
        return [
            replace(r, points=tuple(p for p in r.points if p.rollouts <= C)) for r, C in specific
        ]


@dataclass(frozen=True)
class _Noise:
    """samples = 0: none at all. run_sd, drift: in reward, at full progress."""

    samples: int
    run_sd: float
    drift: float
    graded: float | None = None  # concentration of rewards around p_i; None: 0 or 1


def _rising(B_p: int, n: int) -> Hill:
    """Larger n: a higher plateau, later. Doubling n adds .04 to A and 1.8 times to C_mid, so n*(C)
    rises; B_p makes no difference.
    """
    level = math.log2(n)
    return Hill(0.3, 0.45 + 0.04 * level, 1.2, 1500 * 1.8**level)


def _same(B_p: int, n: int) -> Hill:
    """One curve for all: n makes no difference."""
    return Hill(0.3, 0.6, 1.2, 8000.0)


BUILT_IN: dict[str, Callable[[int, int], Hill]] = {"hill": _rising, "same": _same}


def targets(start: int, ratio: float, budget: int) -> list[int]:
    """The shared grid of C: round(start * ratio^k) <= budget."""
    count = math.floor(math.log(budget / start) / math.log(ratio) + 1e-9) + 1
    return [round(start * ratio**k) for k in range(max(0, count))]


def _evaluations(B: int, grid: Sequence[int]) -> list[tuple[int, int]]:
    """(target, M): the first update reaching each target; of the targets that one update reaches,
    the largest."""
    result = {math.ceil(t / B): t for t in grid}
    return [(0, 0), *((t, M) for M, t in sorted(result.items()))]


def _wander(C: FloatArray, sd: float, rng: np.random.Generator) -> FloatArray:
    """An Ornstein-Uhlenbeck path along log10 C at rising C: standard deviation sd, correlation
    exp(-distance / DRIFT_DECADES).
    """
    x = np.log10(np.maximum(C, 1.0))
    path = np.empty(len(C))
    for i, z in enumerate(rng.standard_normal(len(C))):
        remaining = math.exp(-(x[i] - x[i - 1]) / DRIFT_DECADES) if i else 0.0
        path[i] = (remaining * path[i - 1] if i else 0.0) + sd * math.sqrt(1 - remaining**2) * z
    return path


def _run(
    cell: Cell,
    true: TrueCurve,
    grid: Sequence[int],
    problems: ProblemSet,
    noise: _Noise,
    entropy: Sequence[int],
) -> RunRecord:
    """One run. Its binomial draws, its run effect and drift, and its training reward come from
    three generators."""
    plan = _evaluations(cell.B, grid)
    C = np.array([cell.B * M for _, M in plan], dtype=np.float64)
    R, counts = true.at(C), [()] * len(plan)
    training = true.trained(C) + 0.02 * progress(true, C)
    if noise.samples:
        specific = np.random.default_rng([*entropy, 1])
        R = R + progress(true, C) * (
            noise.run_sd * specific.standard_normal() + _wander(C, noise.drift, specific)
        )
        rates, rng = problems.rates(R), np.random.default_rng(entropy)
        if noise.graded is None:
            drawn = rng.binomial(noise.samples, rates)
        else:
            p = np.clip(rates, 1e-6, 1 - 1e-6)
            rewards = rng.beta(
                p * noise.graded, (1 - p) * noise.graded, size=(noise.samples, *p.shape)
            )
            drawn = np.round(rewards.sum(0), 6)
        counts = [tuple(row) for row in drawn.tolist()]
        R = drawn.mean(1) / noise.samples
        training = np.clip(
            training + 0.005 * np.random.default_rng([*entropy, 2]).standard_normal(len(C)), 0, 1
        )
    points = tuple(
        EvalPoint(
            t,
            M,
            cell.B * M,
            8 * cell.B * M,
            {f"avg@{noise.samples or 4}": float(r)},
            c,
            noise.samples,
            {"reward": float(s)} if M else {},
        )
        for (t, M), r, c, s in zip(plan, R, counts, training, strict=True)
    )
    return RunRecord(cell, points, f"synthetic/{cell.name}", (), "synthetic")


def world(
    kind: str = "hill",
    *,
    B_p: Sequence[int] = (16,),
    n: Sequence[int] = (2, 4, 8, 16, 32),
    seeds: int = 2,
    seed: int = 0,
    problems: int = 300,
    samples: int = 4,
    spread: float | None = 4.0,
    run_sd: float = 0.0,
    drift: float = 0.0,
    start: int = 1024,
    ratio: float = 1.3,
    budget: int = 250_000,
    curve: Callable[[int, int], TrueCurve] | None = None,
    graded: float | None = None,
) -> World:
    """Runs of a sweep whose truth is known.

    Args:
        kind: "hill" (n* rises with C) or "same" (n makes no difference); ignored where `curve` is
            given.
        seed: of every draw; the same number gives the same world.
        problems, samples: validation problems, and rollouts of each. samples = 0: no noise at all,
        avg@4 is the true reward, no counts. spread: kappa, the concentration of success rates over
        problems; None: all problems alike. run_sd, drift: standard deviations of a run's own effect
        and of its slow wander, in reward at full progress. start, ratio, budget: the grid of
        targets, in rollouts. curve: (B_p, n) -> its true curve. graded: concentration of graded
        rewards, which are Beta(p_i graded, (1 - p_i) graded); None: binary ones.

    Raises:
        InputError: an unknown kind.
    """
    if curve is None and kind not in BUILT_IN:
        raise InputError(f"world {kind!r} is not known; expected one of {', '.join(BUILT_IN)}.")
    truth_of = curve or BUILT_IN[kind]
    grid = targets(start, ratio, budget)
    noise = _Noise(samples, run_sd, drift, graded)
    problem_set = ProblemSet(
        tuple(np.random.default_rng([seed, 0]).uniform(size=problems).tolist()), spread
    )
    truth = {(b, m): truth_of(b, m) for b in B_p for m in n}
    runs = tuple(
        _run(Cell(b, m, s), true, grid, problem_set, noise, [seed, 1, b, m, s])
        for (b, m), true in truth.items()
        for s in range(seeds)
    )
    return World(runs, truth, problem_set)


@dataclass(frozen=True)
class _Plan:
    """A law, and the targets each of its cells is evaluated at."""

    curves: Mapping[tuple[int, int], TrueCurve]
    targets: Mapping[tuple[int, int], Sequence[int]]

    def truly_best(self, in_common: bool, points: int = 200) -> list[int]:
        """The best n measured at each of `points` computes, even in log C, where all cells are
        measured or where any is.
        """
        C = np.geomspace(
            min(t[0] for t in self.targets.values()),
            max(t[-1] for t in self.targets.values()),
            points,
        )
        measured = np.stack(
            [
                (max(specific[0], b * n) <= C) & (specific[-1] >= C)
                for (b, n), specific in self.targets.items()
            ]
        )
        rewards = np.where(
            measured, np.stack([best(self.curves[key], C) for key in self.targets]), -np.inf
        )
        remaining = measured.all(0) if in_common else measured.any(0)
        return np.array([n for _, n in self.targets])[rewards.argmax(0)[remaining]].tolist()


def _ranged(
    truth: Truth, rng: np.random.Generator, evaluations: int, unequal: bool, B_max: int | None
) -> _Plan:
    """A range of compute for a law: cells of one length, or ending up to 3 times earlier. A cell of
    which no update fits is left out.
    """
    C_low = rng.uniform(*truth.start)
    grid = (
        np.geomspace(C_low, C_low * 10 ** rng.uniform(*truth.decades), evaluations)
        .round()
        .astype(int)
    )
    early = 3 ** rng.uniform(size=len(truth.curves)) if unequal else np.ones(len(truth.curves))
    ends = {key: grid[-1] / float(e) for key, e in zip(truth.curves, early, strict=True)}
    remaining = {
        (b, n): c
        for (b, n), c in truth.curves.items()
        if max(grid[0], b * n) <= ends[b, n] and b * n <= (B_max or math.inf)
    }
    return _Plan(remaining, {key: [int(t) for t in grid if t <= ends[key]] for key in remaining})


def _plan(
    kind: str, entropy: Sequence[int], evaluations: int, unequal: bool, cells: tuple[Any, Any, Any]
) -> _Plan:
    """The first draw that keeps the kind's promise, RANGES ranges for each of LAWS laws. cells: (n,
    B_p, B_max) of `random_world`.
    """
    n, B_p, B_max = cells
    for law in range(LAWS):
        truth = KINDS[kind].draw(np.random.default_rng([*entropy, 1, law]), n, B_p)
        for attempt in range(RANGES):
            plan = _ranged(
                truth,
                np.random.default_rng([*entropy, 2, law, attempt]),
                evaluations,
                unequal,
                B_max,
            )
            if plan.targets and KINDS[kind].promised(plan.truly_best(KINDS[kind].in_common)):
                return plan
    inputs = f"n = {tuple(n)}, B_p = {B_p}, B_max = {B_max}, evaluations = {evaluations}"
    raise InputError(
        f"no {kind} world of {inputs} keeps what the kind promises; expected more n, a larger "
        "B_max or evaluations."
    )


def random_world(
    kind: str,
    seed: int,
    *,
    n: Sequence[int] = N,
    B_p: Sequence[int] | None = None,
    B_max: int | None = None,
    seeds: int | None = None,
    evaluations: int | None = None,
    problems: int = 300,
    samples: int = 4,
    run_sd: float = 0.01,
    drift: float = 0.0,
    unequal: bool | None = None,
) -> World:
    """A world whose law, range of compute, seeds, evaluations and noise are drawn from `seed`; what
    is given here is not drawn.

    Ranges (and, after RANGES of them, laws) are drawn again until the truly best n along the range
    are what the kind promises.

    Args:
        kind: a name in KINDS.
        n: rising. B_p: default 32; non_monotone has B_p = 4096 / n. B_max: cells with a larger B_p
            n are left out.
        seeds: runs per cell, else 1-3. evaluations: besides the base policy's, else 20-60.
        problems, samples, run_sd, drift: as in `world`.
        unequal: whether cells end early, up to 3 times; else drawn, one half.

    Raises:
        InputError: an unknown kind, B_p given for non_monotone, or options under which no world
            keeps the kind's
        promise.
    """
    if kind not in KINDS:
        raise InputError(f"world {kind!r} is not known; expected one of {', '.join(KINDS)}.")
    entropy = [seed, zlib.crc32(kind.encode())]
    rng = np.random.default_rng([*entropy, 0])
    drawn_seeds = int(rng.integers(1, 4))
    drawn_evaluations = int(rng.integers(20, 61))
    drawn_unequal = bool(rng.random() < 0.5)
    problem_set = ProblemSet(tuple(rng.uniform(size=problems).tolist()), float(rng.uniform(2, 6)))
    uneven = drawn_unequal if unequal is None else unequal
    plan = _plan(kind, entropy, evaluations or drawn_evaluations, uneven, (n, B_p, B_max))
    noise = _Noise(samples, run_sd, drift)
    runs = tuple(
        _run(Cell(b, m, s), plan.curves[b, m], specific, problem_set, noise, [*entropy, 3, b, m, s])
        for (b, m), specific in plan.targets.items()
        for s in range(seeds or drawn_seeds)
    )
    return World(runs, plan.curves, problem_set)
