"""Five published laws of n, each judged by the draws of a sweep's curves (docs/laws.md, Published
laws of n). A fork adds a law to LAWS.

How wrong a law is, is measured in reward, on average over log C: what someone who follows the law
as well as possible loses against the best measured n at each C; or by how much cells differ that
should be equal by the law. This loss is a statistic of the rewards, computed in each draw.

In a draw the loss is too large, since the best of noisy curves is taken. So the loss counts as
small where it is at most EPSILON all the same; and as large where the loss of the mean curves
exceeds the loss that the draw's noise has alone (its deviations from the mean curves) by EPSILON. A
law is supported where it holds in a share CONFIDENCE of the draws, excluded where it fails in as
many; otherwise the data cannot tell."""

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
MIN_DECADES_COMPARED = 0.5  # of C, that all n must share
HUNDREDS = 128  # the smallest n that counts as hundreds
MIN_PAIRS = 2  # pairs of cells with one B_p n and different n, to judge whether only B_p n matters
NEARLY_ALL = 0.8  # of what the most telling run explains: the cheapest such run is proposed
Bools = NDArray[np.bool_]
Statistic = Callable[[FloatArray], FloatArray]  # float[Q, n or cells, G] -> float[Q]


@dataclass(frozen=True)
class ComparedCells:
    """The draws' rewards of all J cells at G common budgets."""

    keys: tuple[tuple[int, int], ...]  # (B_p, n) of each cell
    C: FloatArray  # [G], rising
    rewards: FloatArray  # [Q, J, G]
    competing: Bools  # [J, G], whether a cell may be the best of its n: not too far beyond its data

    @cached_property
    def n(self) -> list[int]:
        """The measured n, rising."""
        return sorted({n for _, n in self.keys})

    @cached_property
    def by_n(self) -> FloatArray:
        """The rewards of each of the N measured n with its best B_p: float[Q, N, G]."""
        rewards = np.where(self.competing, self.rewards, -np.inf)
        best_of_n = []
        for n in self.n:
            is_of_n = [key[1] == n for key in self.keys]
            best_of_n.append(rewards[:, is_of_n].max(1))
        return np.stack(best_of_n, axis=1)

    def run_of(self, n: int) -> DecidingRun:
        """The run to propose where this n is missing: to the largest C, at the most frequent
        B_p."""
        values, counts = np.unique([B_p for B_p, _ in self.keys], return_counts=True)
        return DecidingRun(B_p=int(values[counts.argmax()]), n=n, C=float(self.C[-1]))


@dataclass(frozen=True)
class Evidence:
    """In which draws a law holds and in which it fails; or why it cannot be judged (open_loss is
    None)."""

    text: str  # the loss that was measured, in words, or what is missing
    holds: Bools | bool = False  # [Q]
    fails: Bools | bool = False  # [Q], by more than noise
    open_loss: FloatArray | None = None  # [Q], the loss that another run should determine better
    missing_run: DecidingRun | None = None  # the run without which the law cannot be judged


class Loss:
    """How much reward a law loses in each draw, and in which draws that is small, or large beyond
    noise (see the top of this file). statistic: from rewards float[Q, n or cells, G] to the loss
    float[Q]; rewards: those of the draws; limit: a loss up to here is small."""

    def __init__(self, statistic: Statistic, rewards: FloatArray, limit: float = EPSILON):
        mean = rewards.mean(0, keepdims=True)
        # The loss that noise alone would show: of the draws' deviations from their mean.
        of_noise = statistic(rewards - mean)
        self.of_mean = float(statistic(mean)[0])
        self.of_draws = statistic(rewards)  # [Q]
        self.is_small: Bools = self.of_draws <= limit
        self.is_large: Bools = self.of_mean - of_noise > limit

    def evidence(self, text: str) -> Evidence:
        """The evidence on a law that holds where this loss is small and fails where it is large."""
        return Evidence(text, self.is_small, self.is_large, self.of_draws)

    def format(self, sign: int = 1) -> str:
        """The loss of the mean curves and its interval, such as "0.014 (0.011 to 0.016)"; with
        sign = -1 as a gain."""
        low, high = central_band(self.of_draws)
        # + 0.0: a rounded -0.0 is 0
        mean, *ends = (round(sign * float(v), 3) + 0.0 for v in (self.of_mean, low, high))
        return f"{mean:.3f} ({min(ends):.3f} to {max(ends):.3f})"


def judge_laws(estimate: SweepEstimate) -> tuple[LawVerdict, ...]:
    """The verdict of a sweep on each published law of LAWS, in their order; () without draws.

    A verdict is "supported", "excluded" or "cannot tell"; each has its reason in words."""
    if estimate.draws is None or estimate.intervals is None:
        return ()

    # `cells` is Evidence where no law can be judged: then all verdicts give this reason.
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
        # Where n has no effect, laws about the best n mean nothing: any n is the best.
        has_no_meaning = name in LAWS_OF_THE_BEST_N and estimate.no_effect
        if isinstance(cells, ComparedCells) and not has_no_meaning:
            verdict = _weigh(verdict, evidence, cells, run_sd)
        verdicts.append(verdict)
    return tuple(verdicts)


def _nothing_compared(draws: PosteriorSamples) -> str | None:
    """Why a sweep in which all cells began at the same reward shows nothing about n; else None.

    The reason is that no n, or only one, has moved from that reward by more than FEW_HITS correct
    rollouts in an evaluation. None where two have, or where the size of an evaluation is
    unknown."""
    if draws.rollouts is None:
        return None

    flat_starts = [flat for flat in draws.flat_starts if flat is not None]
    level = flat_starts[0].level if flat_starts else None
    start = level or 0.0
    few_hits = FEW_HITS / draws.rollouts  # as a reward
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
    """The verdict with its outcome, by the shares of draws in which the law holds and fails.

    With neither share large enough it has the run that would tell most. Unchanged where the law
    could not be judged (evidence.open_loss is None). run_sd: the standard deviation of the reward
    between runs of one cell."""
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
    """The rewards of all cells at the budgets at which values of n can be compared.

    These are budgets that at least two n measured, and that every n reached to within
    CURVE_REACH_DECADES. Below its data a cell competes by its curve, which starts at the base
    policy's reward. Where there is nothing to compare (one n, or too small a common range of C),
    Evidence that cannot be judged, with the reason and the run that is missing."""
    all_n = sorted({n for _, n in draws.keys})
    # For each n the indices of its cells in draws.keys.
    cells_of_n = [[j for j, key in enumerate(draws.keys) if key[1] == n] for n in all_n]
    C_high = np.array([draws.C_high[j].max() for j in cells_of_n])  # [N]
    C_most = float(C_high.max())
    shortest = int(C_high.argmin())  # the n that holds the comparison back
    B_p = draws.keys[cells_of_n[shortest][0]][0]  # of its first cell, for the run to propose
    if len(all_n) < 2:
        missing = DecidingRun(B_p=B_p, n=2 * all_n[0], C=C_most)
        return Evidence("only one n was measured", missing_run=missing)

    # Begin where a second n has data; and, where all cells start flat, where the first one rises,
    # since all are equal before.
    C_start = np.sort([draws.C_low[j].min() for j in cells_of_n])[1]
    if draws.flat_starts:
        flat_to = [0.0 if flat is None else flat.C_flat for flat in draws.flat_starts]
        C_start = max(C_start, min(flat_to))
    # End where fewer than two n have data, or where the n with the shortest runs is too far beyond
    # its data.
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
        # 1e-9: the last C may be this very limit, but for rounding.
        competing=draws.C_high[:, None] * reach * (1 + 1e-9) >= C,
    )


def _best(by_n: FloatArray) -> FloatArray:
    """The reward of the best n at each C, averaged over C: float[Q, N, G] -> float[Q]."""
    return by_n.max(1).mean(-1)


def _constant_loss(cells: ComparedCells) -> Loss:
    """How much reward the best single n loses against the best n at each C."""
    return Loss(lambda R: _best(R) - R.mean(-1).max(1), cells.by_n)


def _judge_rising(cells: ComparedCells) -> Evidence:
    """The evidence on the law that n* grows with C.

    It holds where the best single n loses much, so that n must change, and the best n*(C) that
    never falls loses little, so that growing is enough."""
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
    """The law that n* is one number holds where the best single n loses little."""
    n = cells.n[int(cells.by_n.mean((0, 2)).argmax())]
    loss = _constant_loss(cells)
    return loss.evidence(
        f"the best single n, {n}, loses {loss.format()} against the best n at each C"
    )


def _judge_two(cells: ComparedCells) -> Evidence:
    """The law that n = 2 is enough holds where n = 2 loses little."""
    if 2 not in cells.n:
        return Evidence("n = 2 was not measured", missing_run=cells.run_of(2))
    loss = Loss(lambda R: _best(R) - R[:, cells.n.index(2)].mean(-1), cells.by_n)
    return loss.evidence(f"n = 2 loses {loss.format()} against the best n at each C")


def _judge_hundreds(cells: ComparedCells) -> Evidence:
    """The evidence on the law that hundreds of rollouts per problem keep gaining.

    It holds where the largest n leads the best n below HUNDREDS, in the upper decade of C."""
    num_smaller = sum(n < HUNDREDS for n in cells.n)  # these come first, since n rises
    if num_smaller == 0:
        missing = cells.run_of(HUNDREDS // 2)
        return Evidence(f"no n below {HUNDREDS} was measured", missing_run=missing)
    if num_smaller == len(cells.n):
        missing = cells.run_of(HUNDREDS)
        return Evidence(f"no n of {HUNDREDS} or more was measured", missing_run=missing)

    # The loss of the largest n, the last of by_n, against those below HUNDREDS, the first of it. A
    # negative loss is a lead, and one below -EPSILON makes a difference.
    upper_decade = cells.by_n[..., cells.C >= cells.C[-1] / 10]
    loss = Loss(
        lambda R: _best(R[:, :num_smaller]) - R[:, -1].mean(-1), upper_decade, limit=-EPSILON
    )
    lead = loss.format(sign=-1)
    return loss.evidence(
        f"in the upper decade of C, n = {cells.n[-1]} leads the best n below {HUNDREDS} by {lead}"
    )


def _judge_batch(cells: ComparedCells) -> Evidence:
    """The evidence on the law that only B = B_p n matters.

    It holds where cells with the same B and different n have nearly the same reward."""
    # Indices of the cells that compete at all budgets; those of one B may be compared.
    always_competing = (j for j in range(len(cells.keys)) if cells.competing[j].all())
    cells_of_B = group_by(always_competing, lambda j: cells.keys[j][0] * cells.keys[j][1])
    groups = [group for group in cells_of_B.values() if len(group) > 1]
    if sum(len(group) - 1 for group in groups) < MIN_PAIRS:
        text = f"fewer than {MIN_PAIRS} pairs of cells have one B_p n and different n"
        # Propose a cell that makes a pair with a measured one: twice its B_p, half its n, at least
        # 2; of these the one with the smallest n. Where all of them are measured, a measured cell.
        larger_B_p = {(2 * B_p, n // 2) for B_p, n in cells.keys if n % 2 == 0 and n > 2}
        new_cells = larger_B_p - set(cells.keys)
        B_p, n = min(new_cells, key=lambda key: key[1], default=cells.keys[0])
        return Evidence(text, missing_run=DecidingRun(B_p=B_p, n=n, C=float(cells.C[-1])))

    def mean_spread(R: FloatArray) -> FloatArray:
        """The largest less the smallest reward within a group, averaged over C and the groups.

        float[Q, J, G] -> float[Q]. `groups`, from above: lists of cell indices, of one B each."""
        return np.mean([np.ptp(R[:, group], axis=1).mean(-1) for group in groups], axis=0)

    loss = Loss(mean_spread, cells.rewards)
    return loss.evidence(f"cells with one B_p n and different n differ by {loss.format()}")


def _most_telling_run(cells: ComparedCells, open_loss: FloatArray, run_sd: float) -> DecidingRun:
    """The run that would tell most about a law which the data leave open.

    It is a further seed of a measured cell. A run to C tells as much as the share of the variance
    of the loss that its reward at C explains among the draws. Of the runs that explain at least
    NEARLY_ALL of what the best one does, the one with the smallest C is taken. open_loss: float[Q],
    the law's loss of reward in each draw; run_sd: the standard deviation of the reward between runs
    of one cell, as noise of the new run."""
    deviations = open_loss - open_loss.mean()  # [Q]
    reward_deviations = cells.rewards - cells.rewards.mean(0)
    covariance = np.einsum("qjg,q->jg", reward_deviations, deviations) / len(deviations)  # [J, G]
    measured_variance = cells.rewards.var(0) + run_sd**2
    explained = covariance**2 / measured_variance / max(float(deviations.var()), 1e-300)  # [J, G]
    # A run to C is also evaluated on its way, so that it explains at least as much as a shorter
    # one.
    explained = np.maximum.accumulate(explained, axis=1)

    g = int((explained >= NEARLY_ALL * explained.max()).any(0).argmax())
    j = int(explained[:, g].argmax())
    B_p, n = cells.keys[j]
    return DecidingRun(B_p=B_p, n=n, C=float(cells.C[g]), explained=float(explained[j, g]))


class PublishedLaw(NamedTuple):
    """Where a law is published, and the function that judges it."""

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
