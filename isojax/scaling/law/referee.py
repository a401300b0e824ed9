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
from typing import NamedTuple

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
        best_of_n = []
        for n in self.n:
            is_of_n = [key[1] == n for key in self.keys]
            best_of_n.append(rewards[:, is_of_n].max(1))
        return np.stack(best_of_n, axis=1)

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
        # what the statistic is of noise alone: the draws less their mean
        of_noise = statistic(rewards - mean)
        self.of_mean = float(statistic(mean)[0])
        self.of_draws = statistic(rewards)  # [Q]
        self.is_small: Bools = self.of_draws <= limit
        self.is_large: Bools = self.of_mean - of_noise > limit

    def evidence(self, text: str) -> Evidence:
        """On a law that holds where this is small."""
        return Evidence(text, self.is_small, self.is_large, self.of_draws)

    def format(self, sign: int = 1) -> str:
        """Of the mean curves, and the interval: 0.014 (0.011 to 0.016)."""
        low, high = central_band(self.of_draws)
        # + 0.0: a rounded -0.0 is 0
        mean, *ends = (round(sign * float(v), 3) + 0.0 for v in (self.of_mean, low, high))
        return f"{mean:.3f} ({min(ends):.3f} to {max(ends):.3f})"


def judge_laws(estimate: SweepEstimate) -> tuple[LawVerdict, ...]:
    """A verdict on each of LAWS; none without draws."""
    if estimate.draws is None or estimate.intervals is None:
        return ()
    run_sd = estimate.intervals.run_sd
    cells = compare_cells(estimate.draws)
    reason = _nothing_compared(estimate.draws)
    if estimate.is_flat:
        cells = Evidence("no run learnt anything, so no n can be compared with another")
    elif reason is not None:
        cells = Evidence(reason)

    verdicts = []
    for name, law in LAWS.items():
        evidence = cells if isinstance(cells, Evidence) else law.judge(cells)
        verdict = LawVerdict(
            law=name,
            reference=law.reference,
            text=evidence.text,
            deciding_run=evidence.missing_run,
        )
        # where every n is as good, none is better at a larger C, nor one at every C
        has_no_meaning = name in LAWS_OF_THE_BEST_N and estimate.no_effect
        if isinstance(cells, ComparedCells) and not has_no_meaning:
            verdict = _weigh(verdict, evidence, cells, run_sd)
        verdicts.append(verdict)
    return tuple(verdicts)


def _nothing_compared(draws: PosteriorSamples) -> str | None:
    """Why a sweep that began at one level says nothing of n: fewer than two n left it, or by a few
    hits alone."""
    if draws.rollouts is None:
        return None

    flat_starts = [flat for flat in draws.flat_starts if flat is not None]
    level = flat_starts[0].level if flat_starts else None
    start = level or 0.0
    few_hits = FEW_HITS / draws.rollouts
    C_end = np.minimum(draws.C_high, draws.C_peak)
    change = np.abs(draws.expected_at(C_end) - start)  # [J]
    left_start = (change > few_hits).tolist()
    all_n = {n for _, n in draws.keys}
    n_that_left = sorted({n for (_, n), left in zip(draws.keys, left_start, strict=True) if left})

    if not n_that_left:
        return (
            f"no n has come further than {FEW_HITS} hits in an evaluation from reward {start:.4g}"
        )
    if len(n_that_left) < 2 and level is not None and len(all_n) > 1:
        who = f"only n = {n_that_left[0]} has come further than {FEW_HITS} hits"
        return f"{who} from the reward of its start, {level:.4g}"
    return None


def _weigh(
    verdict: LawVerdict, evidence: Evidence, cells: ComparedCells, run_sd: float
) -> LawVerdict:
    """The verdict by the shares of draws in which the law holds and fails; as it is where the
    draws do not judge it."""
    if evidence.open_loss is None:
        return verdict

    share_for = float(np.mean(evidence.holds))
    share_against = float(np.mean(evidence.fails))
    fields = {
        "share_for": share_for,
        "share_against": share_against,
        "C_low": float(cells.C[0]),
        "C_high": float(cells.C[-1]),
    }
    if max(share_for, share_against) < CONFIDENCE:
        deciding_run = _most_telling_run(cells, evidence.open_loss, run_sd)
        return verdict.model_copy(update=fields | {"deciding_run": deciding_run})
    outcome = "supported" if share_for > share_against else "excluded"
    return verdict.model_copy(update=fields | {"verdict": outcome})


def compare_cells(draws: PosteriorSamples) -> ComparedCells | Evidence:
    """At budgets that two n measured and every n reached to within CURVE_REACH_DECADES. Below its
    data a cell competes by its curve, which starts at the base policy's reward."""
    all_n = sorted({n for _, n in draws.keys})
    cells_of_n = [[j for j, key in enumerate(draws.keys) if key[1] == n] for n in all_n]
    C_high = np.array([draws.C_high[j].max() for j in cells_of_n])  # [N]
    C_most = float(C_high.max())
    shortest = int(C_high.argmin())  # the n that holds the comparison back
    B_p = draws.keys[cells_of_n[shortest][0]][0]
    if len(all_n) < 2:
        missing = DecidingRun(B_p=B_p, n=2 * all_n[0], C=C_most)
        return Evidence("only one n was measured", missing_run=missing)

    # From where a second n begins; up to the first cell that rises all are equal.
    C_start = np.sort([draws.C_low[j].min() for j in cells_of_n])[1]
    if draws.flat_starts:
        flat_to = [0.0 if flat is None else flat.C_flat for flat in draws.flat_starts]
        C_start = max(C_start, min(flat_to))
    # To where two n were measured, and the shortest may be read by its curve.
    reach = 10**CURVE_REACH_DECADES
    C_end = min(np.sort(C_high)[-2], C_high[shortest] * reach)
    if C_end < C_start * 10**MIN_DECADES_COMPARED:
        text = f"all values of n together share less than {MIN_DECADES_COMPARED} decade of C"
        missing = DecidingRun(B_p=B_p, n=all_n[shortest], C=C_most)
        return Evidence(text, missing_run=missing)

    C = np.geomspace(C_start, C_end, GRID_POINTS)
    return ComparedCells(
        keys=draws.keys,
        C=C,
        rewards=draws.rewards(C),
        competing=draws.C_high[:, None] * reach * (1 + 1e-9) >= C,
    )


def _best(by_n: FloatArray) -> FloatArray:
    """float[Q]: the mean over C of the best n at each C."""
    return by_n.max(1).mean(-1)


def _constant_loss(cells: ComparedCells) -> Loss:
    """What the best single n loses against the best n at each C."""
    return Loss(lambda R: _best(R) - R.mean(-1).max(1), cells.by_n)


def _judge_rising(cells: ComparedCells) -> Evidence:
    """A single n loses more, so that a rise is needed, and a rise is enough."""
    constant = _constant_loss(cells)
    rising = Loss(lambda R: _best(R) - best_nondecreasing_sum(R) / R.shape[2], cells.by_n)
    rising_text = f"the best n*(C) that never falls loses {rising.format()}"
    return Evidence(
        f"{rising_text}, the best single n {constant.format()}",
        holds=constant.is_large & rising.is_small,
        fails=constant.is_small | rising.is_large,
        open_loss=constant.of_draws,
    )


def _judge_constant(cells: ComparedCells) -> Evidence:
    n = cells.n[int(cells.by_n.mean((0, 2)).argmax())]
    loss = _constant_loss(cells)
    return loss.evidence(
        f"the best single n, {n}, loses {loss.format()} against the best n at each C"
    )


def _judge_two(cells: ComparedCells) -> Evidence:
    if 2 not in cells.n:
        return Evidence("n = 2 was not measured", missing_run=cells.run_of(2))
    loss = Loss(lambda R: _best(R) - R[:, cells.n.index(2)].mean(-1), cells.by_n)
    return loss.evidence(f"n = 2 loses {loss.format()} against the best n at each C")


def _judge_hundreds(cells: ComparedCells) -> Evidence:
    few = sum(n < HUNDREDS for n in cells.n)  # of the n that are fewer than hundreds
    if few == 0:
        missing = cells.run_of(HUNDREDS // 2)
        return Evidence(f"no n below {HUNDREDS} was measured", missing_run=missing)
    if few == len(cells.n):
        missing = cells.run_of(HUNDREDS)
        return Evidence(f"no n of {HUNDREDS} or more was measured", missing_run=missing)

    # A loss of the largest n that is below -EPSILON is a lead.
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
        # the smallest n of a cell that would make a pair
        larger_B_p = {(2 * B_p, n // 2) for B_p, n in cells.keys if n % 2 == 0 and n > 2}
        new_cells = larger_B_p - set(cells.keys)
        B_p, n = min(new_cells, key=lambda key: key[1], default=cells.keys[0])
        return Evidence(text, missing_run=DecidingRun(B_p=B_p, n=n, C=float(cells.C[-1])))

    def mean_spread(R: FloatArray) -> FloatArray:
        """float[Q]: the spread of reward within a group, mean over C and over the groups."""
        return np.mean([np.ptp(R[:, group], axis=1).mean(-1) for group in groups], axis=0)

    loss = Loss(mean_spread, cells.rewards)
    return loss.evidence(f"cells with one B_p n and different n differ by {loss.format()}")


def _most_telling_run(cells: ComparedCells, open_loss: FloatArray, run_sd: float) -> DecidingRun:
    """Another seed of a cell, by the share of the loss's variance that its reward at a C up to its
    last explains: the cheapest of those that explain nearly as much as the best one."""
    deviations = open_loss - open_loss.mean()  # [Q]
    reward_deviations = cells.rewards - cells.rewards.mean(0)
    covariance = np.einsum("qjg,q->jg", reward_deviations, deviations) / len(deviations)
    measured_variance = cells.rewards.var(0) + run_sd**2
    explained = covariance**2 / measured_variance / max(float(deviations.var()), 1e-300)  # [J, G]
    # A run to C is evaluated on its way, too.
    explained = np.maximum.accumulate(explained, axis=1)

    g = int((explained >= NEARLY_ALL * explained.max()).any(0).argmax())
    j = int(explained[:, g].argmax())
    B_p, n = cells.keys[j]
    return DecidingRun(B_p=B_p, n=n, C=float(cells.C[g]), explained=float(explained[j, g]))


class PublishedLaw(NamedTuple):
    """Where a law is published, and what a sweep says of it."""

    reference: str
    judge: Callable[[ComparedCells], Evidence]


RISING = "n* grows with C"
CONSTANT = "n* is one number whatever C"
LAWS_OF_THE_BEST_N = (RISING, CONSTANT)
LAWS: dict[str, PublishedLaw] = {
    RISING: PublishedLaw("arXiv:2603.12151", _judge_rising),
    CONSTANT: PublishedLaw("arXiv:2603.01162", _judge_constant),
    "n = 2 is enough": PublishedLaw("arXiv:2510.00977", _judge_two),
    "hundreds keep gaining": PublishedLaw("arXiv:2510.01180", _judge_hundreds),
    "only B_p n matters": PublishedLaw("arXiv:1812.06162", _judge_batch),
}
