"""The driver of rounds, with strategies of three lines; nothing is trained."""

from __future__ import annotations

import pytest

from isojax.core.errors import RunFailed
from isojax.launch.rounds import Round, Rounds, Stop, StopReason


class CountToThree:
    """Asks for one number more than the history has, up to three."""

    def ask(self, history: list[int]) -> Round[int] | Stop:
        if len(history) == 3:
            return Stop("three is enough")
        return Round((len(history) + 1,), message=f"{len(history) + 1} comes")


class GivesUp:
    def ask(self, history: object) -> Round[int] | Stop:
        return Stop("the disk is full", StopReason.FAILED)


def test_each_question_tells_what_was_trained_until_the_strategy_stops() -> None:
    trained: list[int] = []
    rounds = Rounds(CountToThree(), lambda count: trained)
    for items in rounds:
        trained += items
    assert trained == [1, 2, 3] and rounds.count == 3
    assert rounds.stop == Stop("three is enough", StopReason.DONE)
    assert next(rounds, None) is None  # it is not asked again


def test_why_nothing_was_trained_is_a_value() -> None:
    rounds = Rounds(GivesUp(), lambda count: None)
    assert list(rounds) == []
    assert rounds.stop is not None and rounds.stop.reason == "failed"
    assert rounds.stop.explanation == "the disk is full"


def test_an_answer_is_acted_on_before_its_items_are_trained() -> None:
    """So a file that says what is trained is there before it is."""
    events: list[str] = []
    rounds = Rounds(CountToThree(), lambda count: list(range(count)), lambda a: events.append("on"))
    for items in rounds:
        events.append(f"train {items}")
    assert events == ["on", "train [1]", "on", "train [2]", "on", "train [3]", "on"]


def test_the_history_is_read_before_each_question_with_the_rounds_so_far() -> None:
    counts: list[int] = []

    def read_history(count: int) -> list[int]:
        counts.append(count)
        return [0] * count

    assert list(Rounds(CountToThree(), read_history)) == [[1], [2], [3]]
    assert counts == [0, 1, 2, 3]


def test_an_answer_that_cannot_be_acted_on_trains_nothing_and_is_asked_for_again() -> None:
    """As where the disk is full when a round is recorded."""
    failures = [RunFailed("the disk is full")]

    def act(answer: Round[int] | Stop) -> None:
        if failures:
            raise failures.pop()

    rounds = Rounds(CountToThree(), lambda count: [0] * count, act)
    with pytest.raises(RunFailed):
        next(rounds)
    assert rounds.count == 0 and next(rounds) == [1]
