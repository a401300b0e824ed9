"""Whether a sweep will have enough evaluations for a fit. It needs neither SciPy nor jax, so that a
command can refuse a sweep before it loads them."""

import math
from collections.abc import Sequence

import numpy as np

from isojax.core.config import Config, EvalConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.core.terminal import warn
from isojax.launch.planner import plan_cells
from isojax.scaling.curves.unfitted import unfitted_reasons
from isojax.scaling.tracks import group_by


def check_evaluations(config: Config) -> None:
    """InputError where no (B_p, n) will have the evaluations that a fit's curve needs.

    A warning where some will not. Both name settings with which all have. InputError also for a
    sweep of `isojax spend`, which fits nothing.
    """
    sweep = config.sweep
    evaluation = config.cell.eval
    if sweep.trains_one_policy:
        raise InputError(
            where="sweep.strategy",
            found="given spend, which trains one policy and fits no law",
            expected="`isojax spend CONFIG`",
        )
    fixed_cells = [cell for cell in plan_cells(sweep) if not cell.schedule]
    reasons = _unfitted_pairs(fixed_cells, evaluation, sweep.budget)
    if not reasons:
        return

    # What would help: evaluations at closer C from the first update on, or a longer budget.
    largest_B = max(cell.B for cell in fixed_cells)
    # rounded down, so that three evaluations after the first one are within the budget
    ratio = math.floor(100 * (sweep.budget / largest_B) ** (1 / 3)) / 100
    denser = evaluation.model_copy(update={"start": largest_B, "ratio": ratio})
    is_denser_enough = ratio > 1 and not _unfitted_pairs(fixed_cells, denser, sweep.budget)
    longer_budget = sweep.budget
    while _unfitted_pairs(fixed_cells, evaluation, longer_budget):
        longer_budget *= 2

    num_pairs = len({(cell.B_p, cell.n) for cell in fixed_cells})
    is_refused = len(reasons) == num_pairs
    which_runs = "no run" if is_refused else "not every run"
    problem = (
        f"{which_runs} will have enough evaluations for a curve with sweep.budget = {sweep.budget},"
        f" cell.eval.start = {evaluation.start:g} and cell.eval.ratio = {evaluation.ratio:g}"
    )
    reasons_text = "; ".join(f"{B_p}x{n}: {reason}" for (B_p, n), reason in reasons.items())
    with_denser = f"cell.eval.start={largest_B} cell.eval.ratio={ratio}, or with "
    fix = f"{with_denser if is_denser_enough else ''}sweep.budget={longer_budget}"
    if is_refused:
        raise InputError(
            found=f"{problem} ({reasons_text})",
            fix=f"All have with {fix}. `isojax train` trains one run, and fits nothing.",
        )
    warn(f"{problem} ({reasons_text}). All have with {fix}.")


def _unfitted_pairs(
    fixed_cells: Sequence[Cell], evaluation: EvalConfig, budget: int
) -> dict[tuple[int, int], str]:
    """The (B_p, n) that would have too few evaluations for a curve, with the reason as a text.

    fixed_cells: those without a schedule.
    """
    # The evaluation of the base policy, at C = 0, is no point of a curve. Where the first one after
    # it is beyond the budget, there is no point; `evaluation_targets` would refuse such a budget.
    targets = evaluation.evaluation_targets(budget)[1:] if budget >= evaluation.start else []
    cells_by_pair = group_by(fixed_cells, lambda cell: (cell.B_p, cell.n))
    # The C after the update that reaches each target: close targets may share one.
    C_by_pair = {
        pair: [np.unique(list(map(cell.rollouts_to_reach, targets))) for cell in cells]
        for pair, cells in cells_by_pair.items()
    }
    return unfitted_reasons(C_by_pair)
