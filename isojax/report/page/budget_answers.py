"""What to run at a budget, as the page says it: what `isojax recommend` answers, or, for other
units of C than rollouts, what leads the frontier."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

from isojax.core.errors import InputError
from isojax.report import wording
from isojax.report.fit_views import frontier_views
from isojax.report.wording import format_percent, format_range, format_reward
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.allocate.recommendation import Recommendation
from isojax.scaling.result import FitResult

EDGE = 1 + 1e-9  # budgets this close to the end of the frontier belong to it
MIN_SHOWN_REGRET = 0.0005
NO_INTERVAL: wording.Bounds = (None, None)


@dataclass(frozen=True)
class BudgetAnswer:
    """What to run with a budget of C, in the fit's unit."""

    C: float
    n: int
    B_p: int
    reward: float  # expected
    interval: wording.Bounds  # of the expected reward
    shares: list[wording.NShare]  # P(n is the best), of each n
    words: str  # what to know of the answer
    extrapolated: bool = False  # beyond the measured budgets
    # Of updates only where C counts rollouts: the number of updates, and how many batches one
    # samples, more than 1 with dynamic sampling.
    M: int | None = None
    batches: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """What page.js reads.

        The expected reward twice: `y`, `low` and `high` as numbers, for the chart; `reward` and
        `interval` as text. `M` is absent where C does not count rollouts, `batches` where an update
        samples one.
        """
        low, high = self.interval
        interval_text = "" if self.interval == NO_INTERVAL else format_range(self.interval)
        document: dict[str, Any] = {
            "C": self.C,
            "n": self.n,
            "B_p": self.B_p,
            "y": self.reward,
            "low": low,
            "high": high,
            "reward": format_reward(self.reward),
            "interval": interval_text,
            "probabilities": self.shares,
            "extrapolated": self.extrapolated,
            "words": self.words,
        }

        if self.batches != 1.0:
            document["batches"] = self.batches
        if self.M is not None:
            document["M"] = self.M
        return document


@dataclass(frozen=True)
class NoAnswer:
    """Why there is nothing to run with a budget of C."""

    C: float
    reason: str

    def to_json(self) -> dict[str, Any]:
        """What page.js reads."""
        return {"C": self.C, "why": self.reason}


def answer_budget(fit: FitResult, C: float, B_p: int | None = None) -> BudgetAnswer | NoAnswer:
    """What to run with a budget of C > 0, in the fit's unit (rollouts, tokens or device hours).
    `B_p`: the one to keep to; None to choose it too. NoAnswer, with the reason, where nothing can
    be recommended."""
    if fit.compute != "rollouts":
        return _frontier_answer(fit, C, B_p)

    fixed = None if B_p is None else {"B_p": B_p}
    try:
        # Details, such as what to measure next, take longer; the page has them for one budget.
        best = recommend(fit, C, fix=fixed, with_details=False)
    except InputError as e:
        return NoAnswer(C, str(e))
    return BudgetAnswer(
        C=C,
        n=best.allocation.n,
        B_p=best.allocation.B_p,
        reward=best.expected_reward,
        interval=best.interval or NO_INTERVAL,
        shares=wording.every_n_share(best.n_probability or {}),
        words=_recommendation_words(fit, best),
        extrapolated=best.extrapolated,
        M=best.allocation.M,
        batches=best.allocation.batches,
    )


def _frontier_answer(fit: FitResult, C: float, B_p: int | None) -> BudgetAnswer | NoAnswer:
    """The cell that leads the frontier at C, for budgets in other units than rollouts, which
    `recommend` does not take: the frontier's point nearest to C; that of B_p where it has a
    frontier, else of all. NoAnswer outside the measured range."""
    frontiers = {view.B_p: view.frontier for view in frontier_views(fit)}
    frontier = frontiers.get(B_p, fit.joint.frontier)
    # A budget at an end of the frontier may miss it by rounding.
    if not frontier[0].C / EDGE <= C <= frontier[-1].C * EDGE:
        return NoAnswer(C, "C is outside the measured frontier; fit in rollouts to look beyond it.")

    point = min(frontier, key=lambda point: abs(log(point.C / C)))
    n_probability = point.n_probability or {}
    return BudgetAnswer(
        C=C,
        n=point.n,
        B_p=point.B_p,
        reward=point.reward,
        interval=(point.low, point.high),
        shares=wording.every_n_share(n_probability),
        words=_probability_sentence(point.n, n_probability),
    )


def _recommendation_words(fit: FitResult, best: Recommendation) -> str:
    """The sentences below an answer: what one new run will measure, how sure its n is, the loss to
    expect, and which other n are as good; where no n is better than another, only that."""
    if fit.nothing_learnt:
        return "No run learnt anything, so no n is better than another: this is the smallest."
    if best.tie:
        return f"{wording.sentence_of(best.tie)} This is the smallest."

    n = best.allocation.n
    sentences = []
    if best.prediction_interval:
        sentences.append(f"One new run will measure {format_range(best.prediction_interval)}.")
    if best.n_probability:
        sentences.append(_probability_sentence(n, best.n_probability))
    if best.regret is not None and best.regret >= MIN_SHOWN_REGRET:
        loss = format_reward(best.regret)
        sentences.append(f"The expected loss against the best measured cell is {loss} of reward.")
    other_n = [other for other in best.equal_n if other != n]
    if other_n:
        sentences.append(f"As good within the tolerance: n = {wording.join_list(other_n)}.")
    return " ".join(sentences)


def _probability_sentence(n: int, n_probability: Mapping[int, float]) -> str:
    """P(n is the best), or "" where the fit has no replicates."""
    if not n_probability:
        return ""
    share = round(n_probability.get(n, 0.0), 2)
    return f"P(n = {n} is the best) = {format_percent(share)}."
