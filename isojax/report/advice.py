"""What to run at a budget, for the page: what `isojax recommend` says; where C counts no rollouts, what leads the frontier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from isojax.report.reading import Fit, views
from isojax.report.words import measured_to
from isojax.scaling.recommend import recommend
from isojax.types import InputError


@dataclass(frozen=True)
class Advice:
    """An answer for one budget.

    Attributes:
        C: the budget, in the fit's unit.
        n, B_p: what to run; None where `why` says that there is no answer.
        M: updates, floor(C / (B_p n)); None where C counts no rollouts.
        reward, low, high: to expect, with its interval where the fit has one. run_low, run_high: of what one new run will show.
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
    run_low: float | None = None
    run_high: float | None = None
    beyond: bool = False
    chances: Mapping[int, float] = field(default_factory=dict)
    regret: float | None = None
    equal_n: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    why: str = ""


def advise(fit: Fit, C: float, B_p: int | None = None) -> Advice:
    """What to run with a budget of C.

    Args:
        fit: a fit document. C: the budget > 0, in the fit's unit. B_p: to hold fixed; None leaves it free.
    """
    if fit["compute"] != "rollouts":
        return _on_frontier(fit, C, B_p)
    try:
        got = recommend(fit, C, fix=None if B_p is None else {"B_p": B_p}, compare=False)
    except InputError as e:
        return Advice(C, why=str(e))
    a = got.allocation
    nothing = (None, None)
    return Advice(
        C, a.n, a.B_p, a.M, got.expected_reward, *(got.interval or nothing), *(got.prediction_interval or nothing), got.extrapolated,
        got.n_probability or {}, got.regret, tuple(got.equal_n), tuple(got.reasons),
    )  # fmt: skip


def _on_frontier(fit: Fit, C: float, B_p: int | None) -> Advice:
    """The measured frontier's answer at the nearest of its points."""
    part = next((view.part for view in views(fit) if view.B_p == B_p), fit)
    points = part["frontier"]
    if not points[0]["C"] * (1 - 1e-9) <= C <= points[-1]["C"] * (1 + 1e-9):
        return Advice(C, why="C lies outside the measured frontier; fit in rollouts to look beyond it.")
    p = points[int(np.argmin([abs(np.log(p["C"] / C)) for p in points]))]
    chances = {int(n): float(share) for n, share in (p.get("n_probability") or {}).items()}
    why = (f"n = {p['n']} on B_p = {p['B_p']} leads the measured frontier here; updates M are known only where C counts rollouts",)
    return Advice(C, p["n"], p["B_p"], None, p["reward"], p.get("low"), p.get("high"), chances=chances, reasons=why)


def prepared(fit: Fit) -> Fit:
    """The fit with its replicates as arrays: hundreds of answers then do not parse them hundreds of times."""
    draws = fit.get("draws")
    return fit if draws is None else {**fit, "draws": {name: np.asarray(values) for name, values in draws.items()}}


def budgets(fit: Fit, count: int = 150) -> list[float]:
    """Budgets from the smallest measured C to 4 times the largest, evenly in log C, of three digits each; the ends and
    the measured budget exactly."""
    low = min(row["C_low"] for row in fit["curves"])
    high = 4 * max(run["C_max"] for run in fit["runs"])
    whole = fit["compute"] != "device_hours"
    rounded = [float(f"{C:.3g}") for C in np.geomspace(low, high, count)]
    inside = [low, *(C for C in rounded if low < C < high), measured_to(fit), high]
    return sorted({float(round(C)) if whole else C for C in inside})
