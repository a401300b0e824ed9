"""Rounds: a strategy is asked what to train, that is trained, and the next question tells it what
came of it, until it stops.

What a round consists of is the strategy's: runs of a sweep (strategies/), learning rates of a
search (lr_search.py). Whoever trains takes one round after the other from `Rounds`. A strategy
remembers nothing that a kill could lose: it answers by its history, which is what is recorded.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, TypeVar, runtime_checkable

Item = TypeVar("Item")
AskedItem = TypeVar("AskedItem", covariant=True)
History = TypeVar("History", contravariant=True)


class StopReason(StrEnum):
    """Why nothing more is trained."""

    DONE = "done"  # the budget is spent, or nothing is left that is worth training
    FAILED = "failed"  # runs failed by what may be gone when --resume goes on


@dataclass(frozen=True)
class Round(Generic[AskedItem]):
    """What is trained before the strategy is asked again."""

    items: tuple[AskedItem, ...]  # at least one; they may be trained at the same time
    message: str = ""  # a line to print before that
    # Texts by the names of files, which are written before anything of the round is trained.
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stop:
    """That nothing more is trained, and why."""

    explanation: str  # why, in words
    reason: StopReason = StopReason.DONE
    message: str = ""  # a line to print
    files: Mapping[str, str] = field(default_factory=dict)  # to write, as of a round


@runtime_checkable
class RoundStrategy(Protocol[AskedItem, History]):
    """Decides what is trained next."""

    def ask(self, history: History) -> Round[AskedItem] | Stop:
        """The next round, or the end; called once all of the round before is trained or failed.

        It only answers: it trains, writes and prints nothing.
        """
        ...


class Rounds(Iterator[list[Item]], Generic[Item, History]):
    """The rounds of a strategy, each a list of what to train before the next is asked for."""

    def __init__(
        self,
        strategy: RoundStrategy[Item, History],
        read_history: Callable[[int], History],
        on_answer: Callable[[Round[Item] | Stop], None] = lambda answer: None,
    ):
        """read_history: what is recorded; called before each question with the number of rounds
        so far. on_answer: writes and prints what an answer asks for, before it is acted on."""
        self._strategy = strategy
        self._read_history = read_history
        self._on_answer = on_answer
        self.count = 0  # rounds so far
        self.stop: Stop | None = None  # once the strategy has stopped

    def __next__(self) -> list[Item]:
        """What to train next; StopIteration where the strategy stops, or has stopped."""
        if self.stop is not None:
            raise StopIteration
        answer = self._strategy.ask(self._read_history(self.count))
        self._on_answer(answer)
        if isinstance(answer, Stop):
            self.stop = answer
            raise StopIteration

        self.count += 1
        return list(answer.items)
