"""What a fit promises at any budget of C rollouts, from fit.json alone: NumPy, and every budget at once.

The choice follows the paper's rule for B_p (IsoCompute Playbook, arXiv:2603.12151, section 4.3): it is a knob for
stability, so take the smallest stable one; here only among those that give away at most `epsilon` of reward. n is that
of the best cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from isojax.core.errors import InputError
from isojax.scaling.allocate.constraints import EPSILON, suggest_B_p
from isojax.scaling.allocate.curve_ensemble import BoolArray, CurveEnsemble, FloatArray, IntArray, load_ensemble
from isojax.scaling.result import FitResult

# Budgets taken at once, which bounds the memory of [budgets, replicates, cells].
_BUDGETS_PER_BLOCK = 64
MEASURED_TOLERANCE = 1.05  # runs end at their last evaluation, a little before the budget


@dataclass(frozen=True)
class BestCell:
    """The measured cell to spend a budget on.

    Attributes:
        n, B_p, M, C: the allocation, and what it spends: C = B_p n M.
        reward: to expect after C rollouts.
        low, high: interval of that expected reward (None without draws).
        new_low, new_high: interval of the reward that one new run will measure on the same problems, its luck and noise
        included.
        n_probability: how often each n holds the best cell, over the draws.
        regret: expected loss against the best measured cell at this budget, over the draws; without draws, by the
        curves alone. regret_low, regret_high: its interval.
        extrapolated: C lies beyond the cell's data.
    """

    n: int
    B_p: int
    M: int
    C: int
    reward: float
    low: float | None
    high: float | None
    new_run_low: float | None
    new_run_high: float | None
    n_probability: dict[int, float] | None
    regret: float
    regret_low: float | None
    regret_high: float | None
    extrapolated: bool


def affordable_cells(
    ensemble: CurveEnsemble, C: FloatArray, B_max: int | None, fix: Mapping[str, int]
) -> tuple[FloatArray, BoolArray]:
    """What each cell would spend at budgets C, float[budgets], and whether it may be chosen: both [budgets, cells].

    A fixed M spends B_p n M, else all of C. A cell is out where one update costs more than C, above B_max, off the
    fixed value, or where its B_p is unstable (a fixed B_p is the user's own choice).
    """
    C_spent = np.broadcast_to(
        ensemble.B.astype(np.float64) * fix["M"] if "M" in fix else C[:, None], (len(C), len(ensemble.n))
    )
    allowed = (
        (C_spent <= C[:, None]) & (ensemble.B <= C[:, None]) & (ensemble.B <= (np.inf if B_max is None else B_max))
    )
    allowed &= ensemble.B == fix["B"] if "B" in fix else True
    allowed &= ensemble.B_p == fix["B_p"] if "B_p" in fix else ensemble.stable
    return C_spent, allowed


def choose_cells(ensemble: CurveEnsemble, C_spent: FloatArray, allowed: BoolArray, epsilon: float) -> IntArray:
    """The cell of each budget, int[budgets]; -1 where none is allowed. n is that of the best allowed cell (the smaller
    of equals); of the B_p at that n within `epsilon` of it, the smallest, measured ones before those whose curve would
    be read beyond its data."""
    expected_rewards = np.where(allowed, ensemble.expected_at_cell_budgets(C_spent), -np.inf)
    best_cell_index = expected_rewards.argmax(1)
    within_epsilon = (
        allowed
        & (ensemble.n == ensemble.n[best_cell_index][:, None])
        & (expected_rewards >= expected_rewards.max(1, keepdims=True) - epsilon)
    )
    measured = within_epsilon & (C_spent <= ensemble.C_high * MEASURED_TOLERANCE)
    within_epsilon = np.where(measured.any(1, keepdims=True), measured, within_epsilon)
    return np.where(allowed.any(1), within_epsilon.argmax(1), -1)


def predict_outcomes(
    ensemble: CurveEnsemble, C_spent: FloatArray, allowed: BoolArray, chosen_cells: IntArray, C: IntArray
) -> list[BestCell]:
    """What to expect of each budget's chosen cell, and against the cells allowed there.

    Args:
        spent: float[budgets, cells]. allowed: bool[budgets, cells], at least one a budget.
        chosen: int[budgets], a cell; it may be one that is not allowed.
        C: int[budgets], the rollouts that are spent in it.
    """
    outcomes: list[BestCell] = []
    for start in range(0, len(chosen_cells), _BUDGETS_PER_BLOCK):
        block = slice(start, start + _BUDGETS_PER_BLOCK)
        values, draws = (
            ensemble.expected_at_cell_budgets(C_spent[block]),
            ensemble.sampled_at_cell_budgets(C_spent[block]),
        )
        outcomes += [
            _predict_outcome(ensemble, *row)
            for row in zip(values, draws, allowed[block], chosen_cells[block].tolist(), C[block].tolist(), strict=True)
        ]
    return outcomes


def _predict_outcome(
    ensemble: CurveEnsemble,
    expected_rewards: FloatArray,
    draws: FloatArray,
    allowed: BoolArray,
    cell_index: int,
    C: int,
) -> BestCell:
    B_p, n = int(ensemble.B_p[cell_index]), int(ensemble.n[cell_index])
    reward, cell_draws = ensemble.cell_rewards(cell_index, C)
    regret_draws, n_probability = (draws[:, allowed].max(1) - draws[:, cell_index]).clip(0), None
    if ensemble.replicates:
        best_n = ensemble.n[np.where(allowed, draws, -np.inf).argmax(1)]
        n_probability = {m: float(np.mean(best_n == m)) for m in np.unique(ensemble.n[allowed]).tolist()}
    low, high = ensemble.interval(cell_draws) or (None, None)
    new_run_low, new_run_high = new_run_interval(
        ensemble,
        cell_index,
        reward,
        *(ensemble.interval(ensemble.cell_rewards(cell_index, C, same_problems=True)[1]) or (None, None)),
    )
    regret = float(
        regret_draws.mean()
        if ensemble.replicates
        else max(0.0, expected_rewards[allowed].max() - expected_rewards[cell_index])
    )
    extrapolated = bool(C > ensemble.C_high[cell_index] * (1 + 1e-9))
    return BestCell(
        n,
        B_p,
        C // (B_p * n),
        C,
        reward,
        low,
        high,
        new_run_low,
        new_run_high,
        n_probability,
        regret,
        *(ensemble.interval(regret_draws) or (None, None)),
        extrapolated,
    )


def new_run_interval(
    ensemble: CurveEnsemble, cell_index: int, reward: float, low: float | None, high: float | None
) -> tuple[float | None, float | None]:
    """The interval of one new run's measured reward in cell i, on the same problems: the spread of its expectation
    there (low to high) on each side of `reward`, and the noise, in quadrature."""
    if low is None or high is None:
        return None, None
    noise_half_width = NormalDist().inv_cdf(0.5 + ensemble.level / 2) * ensemble.new_run_sd(cell_index)
    width_below, width_above = (
        np.hypot(max(0.0, reward - low), noise_half_width),
        np.hypot(max(0.0, high - reward), noise_half_width),
    )
    return float(max(0.0, reward - width_below)), float(min(1.0, reward + width_above))


def best_cell_per_budget(
    fit: FitResult | CurveEnsemble,
    C: ArrayLike,
    B_max: int | None = None,
    fix: Mapping[str, int] | None = None,
    epsilon: float = EPSILON,
) -> list[BestCell | None]:
    """The measured cell to spend each of many budgets on.

    Args:
        fit: a fit in rollouts, or its ensemble.
        C: float[budgets] > 0, rollouts.
        B_max: the largest B_p n that may be used.
        fix: at most one of {"M": v}, {"B": v}, {"B_p": v}.
        epsilon: reward that a smaller B_p may cost.

    Returns:
        One a budget; None where no measured stable cell may be chosen.

    Raises:
        InputError: a fit that cannot be used.
    """
    ensemble = fit if isinstance(fit, CurveEnsemble) else load_ensemble(fit)
    budgets, fixed_values = np.atleast_1d(np.asarray(C, dtype=np.float64)), dict(fix or {})
    C_spent, allowed = affordable_cells(ensemble, budgets, B_max, fixed_values)
    chosen_cells = choose_cells(ensemble, C_spent, allowed, epsilon)
    has_cell = chosen_cells >= 0
    B = ensemble.B[chosen_cells[has_cell]]
    M = fixed_values["M"] if "M" in fixed_values else (budgets[has_cell] // B).astype(np.int64)
    outcomes = iter(predict_outcomes(ensemble, C_spent[has_cell], allowed[has_cell], chosen_cells[has_cell], B * M))
    return [next(outcomes) if is_there else None for is_there in has_cell]


def best_cell_for_budget(
    fit: FitResult | CurveEnsemble,
    C: float,
    B_max: int | None = None,
    fix: Mapping[str, int] | None = None,
    epsilon: float = EPSILON,
) -> BestCell:
    """`sweep` for one budget.

    Raises:
        InputError: a fit that cannot be used, or no measured stable cell may be chosen.
    """
    ensemble = fit if isinstance(fit, CurveEnsemble) else load_ensemble(fit)
    [outcome] = best_cell_per_budget(ensemble, [C], B_max, fix, epsilon)
    if outcome is None:
        limits = ", ".join(
            f"{k} = {v}" for k, v in {"C": f"{C:.6g}", "B_max": B_max, **dict(fix or {})}.items() if v is not None
        )
        remedy = (
            "Raise C or B_max, or fix another value."
            if ensemble.stable.any() or "B_p" in (fix or {})
            else suggest_B_p(ensemble.B_p.tolist())
        )
        raise InputError(f"no stable measured cell may be chosen at {limits}; expected at least one. {remedy}")
    return outcome
