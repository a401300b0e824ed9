"""A user's strategy, whose answers are checked before anything is trained by them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.core.plugins import Plugin
from isojax.core.user_code import describe_exception
from isojax.launch.rounds import Round, RoundStrategy, Stop
from isojax.launch.strategies import CellStrategy, CellTarget, SweepHistory


def make_checked(
    plugin: Plugin[..., Any, Any], config: Config, cells: Sequence[Cell]
) -> "CheckedStrategy":
    """The strategy of a user's plug-in; InputError where it makes none."""
    where = f"sweep.strategy = {plugin.name}"
    try:
        strategy = plugin(config, cells)
    except InputError as e:
        raise e.within(where) from e
    except Exception as e:  # whatever a user's own function raises
        raise InputError(where=where, found=describe_exception(e)) from e
    if not isinstance(strategy, RoundStrategy):
        raise InputError(
            where=where,
            found=f"it makes {str(strategy)[:80]}",
            expected="an object with the method ask(history)",
        )
    return CheckedStrategy(strategy, where, config)


@dataclass(frozen=True)
class CheckedStrategy:
    """A strategy whose mistakes are InputErrors.

    It stops where a round would take the sweep beyond sweep.total_rollouts.
    """

    strategy: CellStrategy
    where: str  # names it in messages
    config: Config

    def ask(self, history: SweepHistory) -> Round[CellTarget] | Stop:
        try:
            answer = self.strategy.ask(history)
        except InputError as e:
            raise e.within(self.where) from e
        except Exception as e:  # whatever a user's own method raises
            raise self._error(history, describe_exception(e)) from e

        if isinstance(answer, Stop):
            return replace(answer, message=answer.message or f"{self.where}: {answer.explanation}")
        self._check_round(answer, history)
        return self._within_limit(answer, history)

    def _check_round(self, answer: Round[CellTarget], history: SweepHistory) -> None:
        """InputError where an answer is no round of this sweep's runs."""
        is_round = isinstance(answer, Round) and len(answer.items) > 0
        if not is_round or not all(isinstance(item, CellTarget) for item in answer.items):
            expected = "a Round of one CellTarget or more, or a Stop"
            raise self._error(history, f"it answers {str(answer)[:80]}", expected)

        budget = self.config.sweep.budget
        first_C = self.config.cell.eval.evaluation_targets(budget)[1]
        for target in answer.items:
            if target.cell not in history.cells or target.stages:
                expected = "one of the cells that it was made with, without stages"
                raise self._error(history, f"it asks for {target.cell.name}", expected)
            if type(target.C) is not int or not first_C <= target.C <= budget:
                raise self._error(
                    history,
                    f"it asks for C = {target.C!r} of {target.cell.name}",
                    f"a whole number from {first_C}, the first evaluation, to sweep.budget ="
                    f" {budget}",
                )
        if len({target.cell for target in answer.items}) < len(answer.items):
            raise self._error(history, "it asks for a run twice", "each run once in a round")

    def _within_limit(
        self, answer: Round[CellTarget], history: SweepHistory
    ) -> Round[CellTarget] | Stop:
        """The round, or a stop where its rollouts are more than what sweep.total_rollouts leaves.

        InputError for a round that trains nothing: the next one would be the same.
        """
        C_reached = {run.cell: run.points[-1].rollouts for run in history.runs if run.points}
        failed = {run.cell for run in history.runs if run.failure_reason}
        cost = 0
        for target in answer.items:
            if target.cell not in failed:
                C_left = target.rollouts(self.config) - C_reached.get(target.cell, 0)
                cost += max(0, C_left)
        if cost == 0:
            names = ", ".join(target.cell.name for target in answer.items)
            problem = f"it asks for {names} alone, each of which has failed or is at its C already"
            raise self._error(history, problem, "a run that goes on, or a Stop")

        limit = self.config.sweep.total_rollouts
        spent = sum(C_reached.values())
        if limit is None or spent + cost <= limit:
            return answer
        explanation = (
            f"its next round would take {cost:,} rollouts, and of sweep.total_rollouts"
            f" {max(0, limit - spent):,} are left"
        )
        return Stop(explanation, message=f"{self.where}: {explanation}")

    def _error(
        self, history: SweepHistory, found: str, expected: str = "a Round or a Stop"
    ) -> InputError:
        where = f"{self.where}, round {history.rounds + 1}"
        return InputError(where=where, found=found, expected=expected)
