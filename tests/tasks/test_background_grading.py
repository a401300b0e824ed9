"""Grades come back under the numbers of their responses, whatever the order; the caller of `add`
never waits for a verifier.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.grading import BackgroundGrader
from isojax.tasks.protocol import Grades
from tests.refusals import refused

PROBLEMS = [Problem(i, str(i), str(i)) for i in range(7)]


class Slow:
    """A response is right where it says the problem's own number; 90 and more make a check fail, -1
    makes the verifier give up. It judges only while `gate` is open."""

    def __init__(self) -> None:
        self.gate, self.judging = threading.Event(), threading.Event()
        self.lots: list[list[int]] = []
        self.threads: set[int] = set()

    def grade_tokens(self, problems: Sequence[Problem], responses: Sequence[np.ndarray]) -> Grades:
        self.threads.add(threading.get_ident())
        self.judging.set()
        assert self.gate.wait(10)
        self.lots.append([p.id for p in problems])
        output = np.concatenate(responses)
        if -1 in output:
            raise InputError("problem 2 cannot be judged")
        kinds = {"timeout": int((output == 90).sum()), "crash": int((output > 90).sum())}
        right = (output == [p.id for p in problems]).astype(np.float32)
        return Grades(right, output < 90, {k: v for k, v in kinds.items() if v})


def tokens(*said: int) -> list[np.ndarray]:
    return [np.array([x], np.int32) for x in said]


def grading(task: Slow, problems: list[Problem] = PROBLEMS) -> BackgroundGrader:
    return BackgroundGrader(task.grade_tokens, problems)


def test_grades_are_by_index_and_what_waits_is_judged_together() -> None:
    task = Slow()
    with grading(task) as result:
        result.add_responses([4], tokens(4))
        assert task.judging.wait(10)
        for number, output in ((6, 91), (0, 0), (5, 90), (2, 3)):
            result.add_responses(np.array([number]), tokens(output))
        result.add_responses([], [])
        result.add_responses([1, 3], tokens(1, 90))
        assert not task.lots  # all were taken while the first is still judged
        task.gate.set()
        grades = result.collect_grades()
    assert grades.rewards.tolist() == [1, 1, 0, 0, 1, 0, 0] and grades.rewards.dtype == np.float32
    assert grades.parsed.tolist() == [True, True, True, False, True, False, False]
    assert list(grades.failures.items()) == [("crash", 1), ("timeout", 2)]
    assert task.lots == [[4], [6, 0, 5, 2, 1, 3]]
    assert len(task.threads) == 1 and threading.get_ident() not in task.threads


def test_graded_scores_are_saved_and_continued_bit_for_bit() -> None:
    """Half of them before a checkpoint, as JSON, half after; a process that has graded nothing has
    none."""

    def grade(problems: Sequence[Problem], responses: Sequence[np.ndarray]) -> Grades:
        score = np.array([p.id / 7 for p in problems], np.float32)
        return Grades(score / 3, score > 0, {}, {"format": score})

    with BackgroundGrader(grade, PROBLEMS) as first:
        assert "scores" not in first.state_dict()
        first.add_responses([1, 5], tokens(0, 0))
        saved = json.loads(json.dumps(first.state_dict()))
    with BackgroundGrader(grade, PROBLEMS) as second:
        second.load_state_dict(saved)
        second.add_responses([0, 2, 3, 4, 6], tokens(0, 0, 0, 0, 0))
        grades = second.collect_grades()
    expected = np.arange(7, dtype=np.float32) / np.float32(7)
    assert grades.scores["format"].tolist() == expected.tolist()
    assert grades.rewards.tolist() == (expected / 3).tolist()


def test_saved_grades_of_several_processes_are_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint has the grades of all processes, and each reads it; what they hold is added
    up."""
    saved = {"rewards": [1.0] * 7, "parsed": [True] * 7, "failures": {"crash": 2}}
    held = []
    for is_primary in (True, False):
        monkeypatch.setattr(
            "isojax.distributed.multiprocess.is_primary", lambda is_primary=is_primary: is_primary
        )
        with grading(Slow()) as result:
            result.load_state_dict(saved)
            held.append(result.collect_grades())
    assert sum(grades.rewards for grades in held).tolist() == saved["rewards"]
    assert [grades.failures for grades in held] == [{"crash": 2}, {}]


def test_what_the_verifier_raises_reaches_the_caller() -> None:
    task = Slow()
    task.gate.set()
    with refused(), grading(task) as result:
        result.add_responses([2], tokens(-1))
        result.collect_grades()
    with refused(), grading(task) as result:
        result.add_responses([2], tokens(-1))
        for _ in range(1000):  # at one of the next calls, without asking for the grades
            threading.Event().wait(0.01)
            result.add_responses([3], tokens(3))


def test_nothing_to_judge() -> None:
    task = Slow()
    with grading(task, []) as result:
        result.add_responses(np.zeros(0, int), [])
        grades = result.collect_grades()
    assert (
        grades.rewards.shape == grades.parsed.shape == (0,)
        and grades.failures == {}
        and task.lots == []
    )
