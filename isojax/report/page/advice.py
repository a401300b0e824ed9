"""What to run at a budget, for the page: what `isojax recommend` says; where C counts no rollouts, what leads the
frontier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from isojax.core.errors import InputError
from isojax.report.fit_views import FitDocument, frontier_views
from isojax.report.text import measured_budget
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.flat_document import nest


@dataclass(frozen=True)
class Advice:
    """An answer for one budget.

    Attributes:
        C: the budget, in the fit's unit.
        n, B_p: what to run; None where `why` says that there is no answer.
        M: updates, floor(C / (B_p n)); None where C counts no rollouts.
        reward, low, high: to expect, with its interval where the fit has one. run_low, run_high: of what one new run
        will show.
        beyond: that reward is extrapolated.
        chances: P(n is best), by n; empty where unknown.
        regret: reward given away against the best measured cell; None where unknown.
        equal_n: the n that do as well, within the data's errors.
        reasons: in words.
    """

    C: float
    n: int | None = None
    B_p: int | None = None
    M: int | None = None
    reward: float | None = None
    low: float | None = None
    high: float | None = None
    new_run_low: float | None = None
    new_run_high: float | None = None
    extrapolated: bool = False
    n_probability: Mapping[int, float] = field(default_factory=dict)
    regret: float | None = None
    equal_n: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    no_answer_reason: str = ""


def advise(fit: FitDocument, C: float, B_p: int | None = None) -> Advice:
    """What to run with a budget of C.

    Args:
        fit: a fit document. C: the budget > 0, in the fit's unit. B_p: to hold fixed; None leaves it free.
    """
    if fit["compute"] != "rollouts":
        return _advise_on_frontier(fit, C, B_p)
    try:
        recommendation = recommend(nest(fit), C, fix=None if B_p is None else {"B_p": B_p}, with_candidates=False)
    except InputError as e:
        return Advice(C, no_answer_reason=str(e))
    allocation = recommendation.allocation
    no_interval = (None, None)
    return Advice(
        C, allocation.n, allocation.B_p, allocation.M, recommendation.expected_reward, *(recommendation.interval or no_interval), *(recommendation.prediction_interval or no_interval), recommendation.extrapolated,
        recommendation.n_probability or {}, recommendation.regret, tuple(recommendation.equal_n), tuple(recommendation.reasons),
    )  # fmt: skip


def _advise_on_frontier(fit: FitDocument, C: float, B_p: int | None) -> Advice:
    """The measured frontier's answer at the nearest of its points."""
    summary = next((view.summary for view in frontier_views(fit) if view.B_p == B_p), fit)
    points = summary["frontier"]
    if not points[0]["C"] * (1 - 1e-9) <= C <= points[-1]["C"] * (1 + 1e-9):
        return Advice(C, no_answer_reason="C lies outside the measured frontier; fit in rollouts to look beyond it.")
    point = points[int(np.argmin([abs(np.log(point["C"] / C)) for point in points]))]
    n_probability = {int(n): float(share) for n, share in (point.get("n_probability") or {}).items()}
    reasons = (
        f"n = {point['n']} on B_p = {point['B_p']} leads the measured frontier here; updates M are known only where C counts rollouts",
    )
    return Advice(
        C,
        point["n"],
        point["B_p"],
        None,
        point["reward"],
        point.get("low"),
        point.get("high"),
        n_probability=n_probability,
        reasons=reasons,
    )


def with_draw_arrays(fit: FitDocument) -> FitDocument:
    """The fit with its replicates as arrays: hundreds of answers then do not parse them hundreds of times."""
    draws = fit.get("draws")
    return fit if draws is None else {**fit, "draws": {name: np.asarray(values) for name, values in draws.items()}}


def budget_grid(fit: FitDocument, count: int = 150) -> list[float]:
    """Budgets from the smallest measured C to 4 times the largest, evenly in log C, of three digits each; the ends and
    the measured budget exactly."""
    C_low = min(row["C_low"] for row in fit["curves"])
    C_high = 4 * max(run["C_max"] for run in fit["runs"])
    is_integer = fit["compute"] != "device_hours"
    rounded = [float(f"{C:.3g}") for C in np.geomspace(C_low, C_high, count)]
    unrounded = [C_low, *(C for C in rounded if C_low < C < C_high), measured_budget(fit), C_high]
    return sorted({float(round(C)) if is_integer else C for C in unrounded})
