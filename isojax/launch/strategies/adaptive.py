"""sweep.strategy=adaptive: rounds of those runs that make n*(C) most certain (scaling/adaptive.py).

Its end writes frontier.json, which says how the rollouts were spent.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.launch.rounds import Round, Stop
from isojax.launch.strategies import CellTarget, SweepHistory, strategy
from isojax.launch.sweep_status import SUMMARY_FILE
from isojax.scaling.adaptive import AdaptivePolicy


@dataclass(frozen=True)
class AdaptiveStrategy:
    """What `policy` chooses by the evaluations so far."""

    policy: AdaptivePolicy

    def ask(self, history: SweepHistory) -> Round[CellTarget] | Stop:
        next_targets = self.policy.next_round(history.runs)
        if next_targets:
            return Round(tuple(CellTarget(cell, C) for cell, C in next_targets))

        summary = self.policy.summary(history.runs)
        # A ledger need not say why a cell failed.
        failed = {cell.name: reason for cell, reason in history.failures.items()}
        spent = f"{summary['spent']:,} rollouts spent of the {summary['grid']:,} of the whole grid"
        summary_file = history.folder / SUMMARY_FILE
        return Stop(
            "the rollouts that are left pay for no further step of a run, or no step is left",
            message=f"frontier: {spent}, {summary['saved']:.0%} saved ({summary_file})",
            files={SUMMARY_FILE: json.dumps(summary | {"failed": failed}, indent=1) + "\n"},
        )


@strategy
def adaptive(config: Config, cells: Sequence[Cell]) -> AdaptiveStrategy:
    """InputError where evaluations or rollouts are too few, or where there are schedules."""
    sweep = config.sweep
    if sweep.schedules:
        raise InputError(
            where="sweep.strategy",
            found="given adaptive, which chooses among fixed n, with sweep.schedules",
            expected="no sweep.schedules with it",
        )
    evaluation = config.cell.eval
    targets = evaluation.evaluation_targets(sweep.budget)
    metric = f"avg@{evaluation.samples}"
    return AdaptiveStrategy(AdaptivePolicy(cells, targets, sweep.total_rollouts, metric))
