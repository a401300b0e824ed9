"""Five published laws of n, each judged by the draws of a sweep's curves (docs/laws.md, Published
laws of n).

A statistic of rewards says how much a law loses, on average over log C: what its best follower
loses against the best measured n, or what cells differ by that should be equal. In a draw the
statistic is too large, since it takes the best of noisy curves. So a loss is small where it is at
most EPSILON all the same, and large where the mean curves lose EPSILON more than the draw's
deviations from them do, which are noise alone. A law is excluded or supported by the share of draws
in which it fails or holds; there may be enough of neither. A fork adds a law to LAWS."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.curves.sweep_estimate import (
    CURVE_REACH_DECADES,
    FEW_HITS,
    PosteriorSamples,
    SweepEstimate,
)
from isojax.scaling.intervals import central_band
from isojax.scaling.law.n_star_law import best_nondecreasing_sum
from isojax.scaling.result import DecidingRun, LawVerdict
from isojax.scaling.tracks import FloatArray, group_by

EPSILON = 0.005  # of reward: less makes no difference
CONFIDENCE = 0.95  # the share of draws that excludes or supports a law
GRID_POINTS = 40  # budgets, evenly spread over log C
MIN_DECADES_COMPARED = 0.5
HUNDREDS = 128  # the smallest n of "hundreds"
MIN_PAIRS = 2  # of cells with one B_p n and different n
NEARLY_ALL = 0.8  # of what the most telling run explains: the cheapest such run is proposed
Bools = NDArray[np.bool_]
Statistic = Callable[[FloatArray], FloatArray]  # float[Q, n or cells, G] -> float[Q]


@dataclass(frozen=True)
class ComparedCells:
    """Rewards of all cells at common budgets."""

    keys: tuple[tuple[int, int], ...]  # (B_p, n) of each cell
    C: FloatArray  # [G]
    rewards: FloatArray  # [Q, J, G]
    competing: Bools  # [J, G], whether a cell may be the best of its n

    @cached_property
    def n(self) -> list[int]:
        return sorted({n for _, n in self.keys})

    @cached_property
    def by_n(self) -> FloatArray:
        """float[Q, N, G]: the reward of each n with its best B_p."""
        rewards = np.where(self.competing, self.rewards, -np.inf)
        return np.stack(
            [rewards[:, [key[1] == n for key in self.keys]].max(1) for n in self.n], axis=1
        )

    def run_of(self, n: int) -> DecidingRun:
        """A run of n at the B_p that most cells have."""
        values, counts = np.unique([B_p for B_p, _ in self.keys], return_counts=True)
        return DecidingRun(B_p=int(values[counts.argmax()]), n=n, C=float(self.C[-1]))


@dataclass(frozen=True)
class Evidence:
    """What the draws say of a law, or why they say nothing."""

    text: str
    holds: Bools | bool = False  # [Q]
    fails: Bools | bool = False  # [Q], beyond noise
    open_loss: FloatArray | None = None  # [Q], what another run should determine
    missing_run: DecidingRun | None = None


class Loss:
    """A statistic of rewards, float[Q, n or cells, G]: where it is small, and where it is large
    beyond noise."""

    def __init__(self, statistic: Statistic, rewards: FloatArray, limit: float = EPSILON):
        mean = rewards.mean(0, keepdims=True)
        self.of_mean, self.of_draws = float(statistic(mean)[0]), statistic(rewards)
        self.is_small: Bools = self.of_draws <= limit
        self.is_large: Bools = self.of_mean - statistic(rewards - mean) > limit

    def evidence(self, text: str) -> Evidence:
        """On a law that holds where this is small."""
        return Evidence(text, self.is_small, self.is_large, self.of_draws)

    def format(self, sign: int = 1) -> str:
        """Of the mean curves, and the interval: 0.014 (0.011 to 0.016)."""
        mean, *ends = (
            round(sign * float(v), 3) + 0.0 for v in (self.of_mean, *central_band(self.of_draws))
        )
        return f"{mean:.3f} ({min(ends):.3f} to {max(ends):.3f})"


def judge_laws(estimate: SweepEstimate) -> tuple[LawVerdict, ...]:
    """A verdict on each of LAWS; none without draws."""
    if estimate.draws is None or estimate.intervals is None:
        return ()
    cells, run_sd = compare_cells(estimate.draws), estimate.intervals.run_sd
    if estimate.is_flat:
        cells = Evidence("no run learnt anything, so no n can be compared with another")
    elif (reason := _nothing_compared(estimate.draws)) is not None:
        cells = Evidence(reason)
    verdicts = []
    for law, (reference, judge) in LAWS.items():
        evidence = cells if isinstance(cells, Evidence) else judge(cells)
        verdicts.append(
            LawVerdict(
                law=law, reference=reference, text=evidence.text, deciding_run=evidence.missing_run
            )
        )
        if law in LAWS_OF_THE_BEST_N and estimate.no_effect:
            continue  # where every n is as good, none is better at a larger C, nor one at every C
        if isinstance(cells, ComparedCells) and evidence.open_loss is not None:
            verdicts[-1] = verdicts[-1].model_copy(
                update=_weigh(evidence, evidence.open_loss, cells, run_sd)
            )
    return tuple(verdicts)


def _nothing_compared(draws: PosteriorSamples) -> str | None:
    """Why a sweep that began at one level says nothing of n: fewer than two n left it, or by a few
    hits alone."""
    if draws.rollouts is None:
        return None
    level = next((flat.level for flat in draws.flat_starts if flat is not None), None)
    few_hits = FEW_HITS / draws.rollouts
    C_end = np.minimum(draws.C_high, draws.C_peak)
    change = np.abs(draws.expected_at(C_end) - (level or 0.0))  # [J]
    left_it = sorted(
        {n for (_, n), moved in zip(draws.keys, (change > few_hits).tolist(), strict=True) if moved}
    )
    if not left_it:
        return f"no n has come further than {FEW_HITS} hits in an evaluation from reward {level or 0.0:.4g}"
    if len(left_it) < 2 and level is not None and len({n for _, n in draws.keys}) > 1:
        return f"only n = {left_it[0]} has come further than {FEW_HITS} hits from the reward of its start, {level:.4g}"
    return None


def _weigh(
    evidence: Evidence, open_loss: FloatArray, cells: ComparedCells, run_sd: float
) -> dict[str, Any]:
    """The fields of a verdict on a law that can be judged."""
    share_for = float(np.mean(evidence.holds))
    share_against = float(np.mean(evidence.fails))
    C_low, C_high = cells.C[[0, -1]].tolist()
    fields = {
        "share_for": share_for,
        "share_against": share_against,
        "C_low": C_low,
        "C_high": C_high,
    }
    if max(share_for, share_against) < CONFIDENCE:
        return fields | {"deciding_run": _most_telling_run(cells, open_loss, run_sd)}
    return fields | {"verdict": "supported" if share_for > share_against else "excluded"}


def compare_cells(draws: PosteriorSamples) -> ComparedCells | Evidence:
    """At budgets that two n measured and every n reached to within CURVE_REACH_DECADES. Below its
    data a cell competes by its curve, which starts at the base policy's reward."""
    all_n = sorted({n for _, n in draws.keys})
    cells_of_n = [[j for j, key in enumerate(draws.keys) if key[1] == n] for n in all_n]
    C_high = np.array([draws.C_high[j].max() for j in cells_of_n])
    reach = 10**CURVE_REACH_DECADES
    shortest = int(C_high.argmin())
    B_p, C_most = draws.keys[cells_of_n[shortest][0]][0], float(C_high.max())
    if len(all_n) < 2:
        return Evidence(
            "only one n was measured", missing_run=DecidingRun(B_p=B_p, n=2 * all_n[0], C=C_most)
        )
    C_start = np.sort([draws.C_low[j].min() for j in cells_of_n])[1]
    if draws.flat_starts:  # up to the first cell that rises all are equal
        C_start = max(
            C_start, min(0.0 if flat is None else flat.C_flat for flat in draws.flat_starts)
        )
    C_end = min(np.sort(C_high)[-2], C_high[shortest] * reach)
    if C_end < C_start * 10**MIN_DECADES_COMPARED:
        text = f"all values of n together share less than {MIN_DECADES_COMPARED} decade of C"
        return Evidence(text, missing_run=DecidingRun(B_p=B_p, n=all_n[shortest], C=C_most))
    C = np.geomspace(C_start, C_end, GRID_POINTS)
    return ComparedCells(
        draws.keys, C, draws.rewards(C), draws.C_high[:, None] * reach * (1 + 1e-9) >= C
    )


def _best(by_n: FloatArray) -> FloatArray:
    return by_n.max(1).mean(-1)


def _constant_loss(cells: ComparedCells) -> Loss:
    return Loss(lambda R: _best(R) - R.mean(-1).max(1), cells.by_n)


def _judge_rising(cells: ComparedCells) -> Evidence:
    """A single n loses more, so that a rise is needed, and a rise is enough."""
    constant = _constant_loss(cells)
    rising = Loss(lambda R: _best(R) - best_nondecreasing_sum(R) / R.shape[2], cells.by_n)
    text = f"the best n*(C) that never falls loses {rising.format()}, the best single n {constant.format()}"
    holds = constant.is_large & rising.is_small
    fails = constant.is_small | rising.is_large
    return Evidence(text, holds, fails, constant.of_draws)


def _judge_constant(cells: ComparedCells) -> Evidence:
    n, loss = cells.n[int(cells.by_n.mean((0, 2)).argmax())], _constant_loss(cells)
    return loss.evidence(
        f"the best single n, {n}, loses {loss.format()} against the best n at each C"
    )


def _judge_two(cells: ComparedCells) -> Evidence:
    if 2 not in cells.n:
        return Evidence("n = 2 was not measured", missing_run=cells.run_of(2))
    loss = Loss(lambda R: _best(R) - R[:, cells.n.index(2)].mean(-1), cells.by_n)
    return loss.evidence(f"n = 2 loses {loss.format()} against the best n at each C")


def _judge_hundreds(cells: ComparedCells) -> Evidence:
    few = sum(n < HUNDREDS for n in cells.n)
    if few == 0:
        return Evidence(
            f"no n below {HUNDREDS} was measured", missing_run=cells.run_of(HUNDREDS // 2)
        )
    if few == len(cells.n):
        return Evidence(
            f"no n of {HUNDREDS} or more was measured", missing_run=cells.run_of(HUNDREDS)
        )
    upper_decade = cells.by_n[..., cells.C >= cells.C[-1] / 10]
    loss = Loss(lambda R: _best(R[:, :few]) - R[:, -1].mean(-1), upper_decade, limit=-EPSILON)
    lead = loss.format(sign=-1)
    return loss.evidence(
        f"in the upper decade of C, n = {cells.n[-1]} leads the best n below {HUNDREDS} by {lead}"
    )


def _judge_batch(cells: ComparedCells) -> Evidence:
    always_competing = (j for j in range(len(cells.keys)) if cells.competing[j].all())
    cells_of_B = group_by(always_competing, lambda j: cells.keys[j][0] * cells.keys[j][1])
    groups = [group for group in cells_of_B.values() if len(group) > 1]
    if sum(len(group) - 1 for group in groups) < MIN_PAIRS:
        text = f"fewer than {MIN_PAIRS} pairs of cells have one B_p n and different n"
        larger_B_p = {(2 * B_p, n // 2) for B_p, n in cells.keys if n % 2 == 0 and n > 2}
        B_p, n = min(larger_B_p - set(cells.keys), key=lambda key: key[1], default=cells.keys[0])
        return Evidence(text, missing_run=DecidingRun(B_p=B_p, n=n, C=float(cells.C[-1])))
    loss = Loss(
        lambda R: np.mean([np.ptp(R[:, g], axis=1).mean(-1) for g in groups], axis=0), cells.rewards
    )
    return loss.evidence(f"cells with one B_p n and different n differ by {loss.format()}")


def _most_telling_run(cells: ComparedCells, open_loss: FloatArray, run_sd: float) -> DecidingRun:
    """Another seed of a cell, by the share of the loss's variance that its reward at a C up to its
    last explains: the cheapest of those that explain nearly as much as the best one."""
    deviations = open_loss - open_loss.mean()
    covariance = np.einsum("qjg,q->jg", cells.rewards - cells.rewards.mean(0), deviations) / len(
        deviations
    )
    explained = (
        covariance**2 / (cells.rewards.var(0) + run_sd**2) / max(float(deviations.var()), 1e-300)
    )
    explained = np.maximum.accumulate(explained, axis=1)
    g = int((explained >= NEARLY_ALL * explained.max()).any(0).argmax())
    j = int(explained[:, g].argmax())
    B_p, n = cells.keys[j]
    return DecidingRun(B_p=B_p, n=n, C=float(cells.C[g]), explained=float(explained[j, g]))


RISING, CONSTANT = "n* grows with C", "n* is one number whatever C"
LAWS_OF_THE_BEST_N = (RISING, CONSTANT)
LAWS: dict[str, tuple[str, Callable[[ComparedCells], Evidence]]] = {
    RISING: ("arXiv:2603.12151", _judge_rising),
    CONSTANT: ("arXiv:2603.01162", _judge_constant),
    "n = 2 is enough": ("arXiv:2510.00977", _judge_two),
    "hundreds keep gaining": ("arXiv:2510.01180", _judge_hundreds),
    "only B_p n matters": ("arXiv:1812.06162", _judge_batch),
}
