"""What to run at a budget: what `isojax recommend` answers, or, for other units of C, what leads the frontier."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from isojax.core.errors import InputError
from isojax.report.fit_views import frontier_views, measured_budget
from isojax.report.wording import Bounds
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.result import FitResult

EDGE = 1 + 1e-9  # budgets this close to the end of the frontier belong to it
NO_INTERVAL = (None, None)


@dataclass(frozen=True)
class Advice:
    """An answer for one budget."""

    C: float  # the budget, in the fit's unit
    n: int | None = None  # None where there is no answer, for `no_answer_reason`
    B_p: int | None = None
    M: int | None = None  # updates, floor(C / (B_p n)); None where C does not count rollouts
    reward: float | None = None  # to expect
    interval: Bounds = NO_INTERVAL  # of the expected reward
    new_run: Bounds = NO_INTERVAL  # of what one new run will measure
    extrapolated: bool = False  # whether C is beyond the data of the recommended cell
    n_probability: Mapping[int, float] = field(default_factory=dict)  # P(n is best), by n; empty where unknown
    regret: float | None = None  # expected loss of reward against the best measured cell; None where unknown
    equal_n: tuple[int, ...] = ()  # the n that do as well, within the data's errors
    reasons: tuple[str, ...] = ()
    no_answer_reason: str = ""


def advise(fit: FitResult, C: float, B_p: int | None = None) -> Advice:
    """What to run with a budget of C > 0, in the fit's unit; B_p: to hold fixed, None leaves it free."""
    if fit.compute != "rollouts":
        return _advise_on_frontier(fit, C, B_p)
    try:
        recommendation = recommend(fit, C, fix=None if B_p is None else {"B_p": B_p}, with_measured_cells=False)
    except InputError as e:
        return Advice(C, no_answer_reason=str(e))
    return Advice(
        C,
        n=recommendation.allocation.n,
        B_p=recommendation.allocation.B_p,
        M=recommendation.allocation.M,
        reward=recommendation.expected_reward,
        interval=recommendation.interval or NO_INTERVAL,
        new_run=recommendation.prediction_interval or NO_INTERVAL,
        extrapolated=recommendation.extrapolated,
        n_probability=recommendation.n_probability or {},
        regret=recommendation.regret,
        equal_n=tuple(n for n in recommendation.equal_n if n != recommendation.allocation.n),
        reasons=tuple(recommendation.reasons),
    )


def _advise_on_frontier(fit: FitResult, C: float, B_p: int | None) -> Advice:
    """The measured frontier's answer at the nearest of its points."""
    frontier = next((view.frontier for view in frontier_views(fit) if view.B_p == B_p), fit.joint.frontier)
    if not frontier[0].C / EDGE <= C <= frontier[-1].C * EDGE:
        return Advice(C, no_answer_reason="C is outside the measured frontier; fit in rollouts to look beyond it.")
    point = frontier[int(np.argmin([abs(np.log(point.C / C)) for point in frontier]))]
    leader = f"n = {point.n} on B_p = {point.B_p} leads the measured frontier here"
    return Advice(
        C,
        n=point.n,
        B_p=point.B_p,
        reward=point.reward,
        interval=(point.low, point.high),
        n_probability=point.n_probability or {},
        reasons=(f"{leader}; updates M are known only where C counts rollouts",),
    )


def budget_grid(fit: FitResult, count: int = 150) -> list[float]:
    """About `count` budgets of three digits, evenly in log C, from the smallest measured C to 4 times the largest."""
    C_low = min(curve.C_low for curve in fit.curves)
    C_high = 4 * max(run.C_max for run in fit.runs)
    rounded = [float(f"{C:.3g}") for C in np.geomspace(C_low, C_high, count)]
    budgets = [C_low, *(C for C in rounded if C_low < C < C_high), measured_budget(fit), C_high]
    is_integer = fit.compute != "device_hours"
    return sorted({float(round(C)) if is_integer else C for C in budgets})
