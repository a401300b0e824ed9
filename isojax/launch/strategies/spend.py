"""sweep.strategy=spend, which `isojax spend` sets: pilots side by side, then one leg after the
other.

A leg is a stretch of one run's training at one n, from one C to another; a pilot is the first leg
of a run, one for each n (scaling/spending.py). After the pilots, which follow from the config, a
leg is in spend.json before it is trained: a killed run goes on with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.nouns import Cell, Leg, Spending
from isojax.launch.rounds import Round, Stop, StopReason
from isojax.launch.strategies import CellTarget, SweepHistory, strategy
from isojax.runs.spend_file import SPEND_FILE, read_spending, spending_text
from isojax.scaling.spending import SpendPolicy


@dataclass(frozen=True)
class SpendStrategy:
    """The legs that `policy` chooses by the evaluations so far."""

    policy: SpendPolicy

    def ask(self, history: SweepHistory) -> Round[CellTarget] | Stop:
        """InputError where spend.json is not that of this config and these ledgers."""
        policy = self.policy
        spending = spending_so_far(policy, history.folder)
        legs = _last_legs(spending)
        if history.rounds == 0:
            # A process begins with the last legs that are recorded: a kill may have cut them short.
            self._check_spending(spending, history)
            if spending.is_ended:
                return Stop("the budget was spent before")
            return Round(_targets(spending, legs))

        # A run that diverged has ended, and the policy chooses without it. Of any other failure,
        # the cause may be gone when --resume goes on with these legs.
        passing = [cell.name for cell in history.failures if cell not in history.diverged]
        if passing:
            return Stop(f"{', '.join(passing)} failed, and may be tried again", StopReason.FAILED)
        if {leg.cell for leg in legs} <= history.diverged:
            # --resume goes on after the updates that were not finite.
            return Stop("no run of the last round had finite updates", StopReason.FAILED)

        next_leg = policy.next_leg(history.runs, spending.legs)
        if next_leg is None:
            # For the report: what each n alone would have reached with the whole budget.
            fixed = policy.fixed_forecasts(history.runs)
            ended = replace(spending, is_ended=True, fixed=fixed)
            explanation = "the budget is spent, or the rest of it would hardly gain reward"
            return Stop(explanation, files={SPEND_FILE: spending_text(ended)})

        message = describe_leg(next_leg, spending)
        spending = replace(spending, legs=(*spending.legs, next_leg))
        return Round(
            _targets(spending, [next_leg]), message, files={SPEND_FILE: spending_text(spending)}
        )

    def _check_spending(self, spending: Spending, history: SweepHistory) -> None:
        """InputError where spend.json is not that of this config and these ledgers.

        Its legs have been written before they are trained, so that no ledger may be ahead of it.
        """
        policy = self.policy
        # spending.rollouts: the C at which the last leg of a run so far ends.
        is_behind = any(
            run.points[-1].rollouts > spending.rollouts(run.cell)
            for run in history.runs
            if run.points
        )
        # policy.by_n: the sweep's cells by their n.
        are_legs_known = all(
            leg.cell in policy.cells and leg.n in policy.by_n for leg in spending.legs
        )
        is_same_budget = spending.budget == policy.total_rollouts
        is_same_goal = is_same_budget and spending.metric == policy.metric

        if is_behind:
            problem = "is missing, or older than the ledgers"
        elif not (are_legs_known and is_same_goal):
            problem = "belongs to another budget, metric or n"
        else:
            return
        raise InputError(
            found=f"{history.folder / SPEND_FILE} {problem}",
            fix="Restore it, or start with another name=.",
        )


@strategy(records_rounds=False)  # spend.json has its legs
def spend(config: Config, cells: Sequence[Cell]) -> SpendStrategy:
    """cells: one for each n. InputError where the budget has too few evaluations."""
    return SpendStrategy(spend_policy(config, cells))


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
    """The legs so far by the spend.json of a sweep's folder; before there is one, the pilots."""
    return spending_so_far(spend_policy(config, cells), folder)


def spending_so_far(policy: SpendPolicy, folder: Path) -> Spending:
    """As `current_spending`."""
    recorded = read_spending(folder)
    return recorded or Spending(policy.total_rollouts, policy.metric, tuple(policy.pilots()))


def _last_legs(spending: Spending) -> Sequence[Leg]:
    """The legs that are trained at the same time: the pilots, or the last leg of all.

    A pilot has no forecast (`expected`). While the last leg is a pilot, all are.
    """
    are_pilots = spending.legs[-1].expected is None
    return spending.legs if are_pilots else spending.legs[-1:]


def _targets(spending: Spending, legs: Sequence[Leg]) -> tuple[CellTarget, ...]:
    return tuple(CellTarget(leg.cell, leg.C_end, spending.stages(leg.cell)) for leg in legs)


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
