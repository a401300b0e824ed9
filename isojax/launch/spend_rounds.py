"""The rounds of `isojax spend`: pilots side by side, then one leg after the other.

A leg is a stretch of one run's training at one n, from one C to another; a pilot is the first leg
of a run, one for each n (scaling/spending.py).

After the pilots, which follow from the config, a leg is in spend.json before it is trained: a
killed run goes on with it.
"""

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
    """What decides the next leg. cells: one for each n of the sweep, as `plan_cells` makes them."""
    sweep, evaluation = config.sweep, config.cell.eval
    return SpendPolicy(
        cells,
        evaluation.evaluation_targets(sweep.budget),
        sweep.budget,
        f"avg@{evaluation.samples}",
    )


def current_spending(config: Config, cells: Sequence[Cell], folder: Path) -> Spending:
    """The legs so far by the folder's spend.json; before there is one, the pilots alone."""
    policy = spend_policy(config, cells)
    recorded = read_spending(folder)
    return recorded or Spending(config.sweep.budget, policy.metric, tuple(policy.pilots()))


def legs_to_train(
    config: Config,
    cells: Sequence[Cell],
    folder: Path,
    recorded_runs: Callable[[], list[RunRecord]],
) -> Iterator[tuple[Spending, Sequence[Leg]]]:
    """The spending so far and the legs to train at the same time, round after round.

    The caller trains the legs before it asks for the next round: `recorded_runs` is then called,
    and returns what the ledgers hold. Each next leg is written to spend.json before it comes here.
    It ends when the budget is spent, or when every leg of a round has diverged. InputError, before
    the first round, where spend.json is not that of this config and these ledgers.
    """
    policy = spend_policy(config, cells)
    spending = current_spending(config, cells, folder)
    _check_spending(spending, config, cells, policy, recorded_runs(), folder)

    while not spending.is_ended:
        # A pilot has no forecast (`expected`). While the last leg is a pilot, all are, and they are
        # trained side by side; of later legs, only the last is left to train.
        are_pilots = spending.legs[-1].expected is None
        legs = spending.legs if are_pilots else spending.legs[-1:]
        yield spending, legs

        runs = recorded_runs()
        diverged = {run.cell for run in runs if run.failure_reason}
        if {leg.cell for leg in legs} <= diverged:
            return  # --resume goes on after the updates that were not finite

        next_leg = policy.next_leg(runs, spending.legs)  # None: the budget is spent
        if next_leg is None:
            # For the report: what each n alone would have reached with the whole budget.
            spending = replace(spending, is_ended=True, fixed=policy.fixed_forecasts(runs))
        else:
            print_line(describe_leg(next_leg, spending))
            spending = replace(spending, legs=(*spending.legs, next_leg))
        write_spending(folder, spending)


def _check_spending(
    spending: Spending,
    config: Config,
    cells: Sequence[Cell],
    policy: SpendPolicy,
    runs: Sequence[RunRecord],
    folder: Path,
) -> None:
    """InputError where spend.json is not that of this config and these ledgers.

    Its legs have been written before they are trained, so that no ledger may be ahead of it.
    """
    # spending.rollouts: the C at which the last leg of a run so far ends.
    is_behind = any(
        run.points[-1].rollouts > spending.rollouts(run.cell) for run in runs if run.points
    )
    # policy.by_n: the sweep's cells by their n.
    are_legs_known = all(leg.cell in cells and leg.n in policy.by_n for leg in spending.legs)
    is_same_goal = spending.budget == config.sweep.budget and spending.metric == policy.metric

    if is_behind:
        problem = "is missing, or older than the ledgers"
    elif not (are_legs_known and is_same_goal):
        problem = "belongs to another budget, metric or n"
    else:
        return
    raise InputError(
        found=f"{folder / SPEND_FILE} {problem}",
        fix="Restore it, or start with another name=.",
    )


def describe_leg(leg: Leg, spending: Spending) -> str:
    """A line about a leg that is no pilot, and comes after those of `spending`."""
    n_before = [other.n for other in spending.legs if other.cell == leg.cell][-1]
    change = f"n = {leg.n}" if leg.n == n_before else f"n = {leg.n} after n = {n_before}"
    assert leg.interval is not None, "only a pilot has none"
    low, high = leg.interval
    return (
        f"{leg.cell.name}: {change} from C = {leg.C_start:,} to {leg.C_end:,}; at the end of the"
        f" budget expected {spending.metric} = {leg.expected:.3f} ({low:.3f} to {high:.3f})"
    )
