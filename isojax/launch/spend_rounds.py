"""The rounds of `isojax spend`: pilots side by side, then one leg after the other
(scaling/spending.py). After the pilots, which follow from the config, a leg is in spend.json before
it is trained: a killed run goes on with it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.nouns import Cell, Leg, RunRecord, Spending
from isojax.launch.display import print_line
from isojax.runs.spend_file import SPEND_FILE, read_spending, write_spending
from isojax.scaling.spending import SpendPolicy


def spend_policy(config: Config, cells: Sequence[Cell]) -> SpendPolicy:
    sweep, evaluation = config.sweep, config.cell.eval
    return SpendPolicy(
        cells,
        evaluation.evaluation_targets(sweep.budget),
        sweep.budget,
        f"avg@{evaluation.samples}",
    )


def current_spending(config: Config, cells: Sequence[Cell], folder: Path) -> Spending:
    """That of spend.json; before there is one, the pilots."""
    policy = spend_policy(config, cells)
    return read_spending(folder) or Spending(
        config.sweep.budget, policy.metric, tuple(policy.pilots())
    )


def legs_to_train(
    config: Config,
    cells: Sequence[Cell],
    folder: Path,
    recorded_runs: Callable[[], list[RunRecord]],
) -> Iterator[tuple[Spending, Sequence[Leg]]]:
    """The spending so far and the legs to train at the same time, round after round."""
    policy = spend_policy(config, cells)
    spending = current_spending(config, cells, folder)
    are_legs_known = all(leg.cell in cells and leg.n in policy.by_n for leg in spending.legs)
    is_behind = any(
        run.points[-1].rollouts > spending.rollouts(run.cell)
        for run in recorded_runs()
        if run.points
    )
    is_other = (spending.budget, spending.metric) != (
        config.sweep.budget,
        policy.metric,
    ) or not are_legs_known
    if is_behind or is_other:
        problem = (
            "is missing, or older than the ledgers"
            if is_behind
            else "belongs to another budget, metric or n"
        )
        raise InputError(
            f"{folder / SPEND_FILE} {problem}. Restore it, or start with another name=."
        )
    while not spending.is_ended:
        # all pilots, or the last
        legs = spending.legs if spending.legs[-1].expected is None else spending.legs[-1:]
        yield spending, legs
        runs = recorded_runs()
        if {leg.cell for leg in legs} <= {run.cell for run in runs if run.failure_reason}:
            return  # --resume goes on after the updates that were not finite
        leg = policy.next_leg(runs, spending.legs)
        if leg is None:
            spending = replace(spending, is_ended=True, fixed=policy.fixed_forecasts(runs))
        else:
            print_line(describe_leg(leg, spending))
            spending = replace(spending, legs=(*spending.legs, leg))
        write_spending(folder, spending)


def describe_leg(leg: Leg, spending: Spending) -> str:
    before = [other.n for other in spending.legs if other.cell == leg.cell][-1]
    change = f"n = {leg.n}" if leg.n == before else f"n = {leg.n} after n = {before}"
    assert leg.interval is not None, "only a pilot has none"
    low, high = leg.interval
    return (
        f"{leg.cell.name}: {change} from C = {leg.C_start:,} to {leg.C_end:,}; at the end of the budget expected "
        f"{spending.metric} = {leg.expected:.3f} ({low:.3f} to {high:.3f})"
    )
