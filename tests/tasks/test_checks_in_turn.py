"""How a Checker gives its workers their checks, when it gives up a verifier that hangs, and what it
records of graded rewards; with workers that answer at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isojax.core.config import VerifierConfig
from isojax.core.errors import DeadStart
from isojax.core.nouns import MAIN_SCORE, Problem
from isojax.tasks import grading
from isojax.tasks.check_process import CheckRequest
from isojax.tasks.grading import Checker
from isojax.tasks.verifiers import LoadedVerifier, Verdict, function, gym
from tests.refusals import refused

PROBLEM = Problem(0, "1 + 1 = ", "2")


def request_of(number: int, response: str = "x") -> CheckRequest:
    return CheckRequest(Problem(number, "", ""), "", response)


class Worker:
    """Answers each check with its problem's number; `lost` of them not, once, at the fourth
    batch."""

    def __init__(self, *arguments: Any):
        self.arguments = arguments
        self.batches: list[list[int]] = []
        self.lost = 0

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def run_checks(self, requests: Sequence[CheckRequest], cancelled: Any) -> list[Verdict]:
        self.batches.append([one.problem.id for one in requests])
        answered = [Verdict(True, True, "", f"{one.problem.id}") for one in requests]
        return answered[: -self.lost] if self.lost and len(self.batches) == 4 else answered


@pytest.fixture
def make_checker(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Checker]:
    monkeypatch.setattr(grading, "CheckWorker", Worker)
    isolated = LoadedVerifier(
        isolated=True, pure=False, build=lambda: lambda *_: Verdict(True, True)
    )
    monkeypatch.setattr(grading, "load_verifier", lambda use: isolated)

    def make(num_workers: int = 1, weights: Any = None) -> Checker:
        config = VerifierConfig(use="function:f.py:f", memory_gib=1.5, timeout=2.0)
        return Checker(config, num_workers, weights)

    return make


@pytest.mark.parametrize("lost", [0, 5])
def test_batches_grow_small_at_the_end(make_checker: Callable[..., Checker], lost: int) -> None:
    """At most 16, and at most a quarter of what waits; what a lost worker did not answer comes
    again at once, in its order."""
    with make_checker() as checker:
        [worker] = checker._workers
        assert isinstance(worker, Worker)
        assert worker.arguments == ("function:f.py:f", 3 * 2**29, 2.0)
        worker.lost = lost
        verdicts = checker._run_requests([request_of(i) for i in range(100)])
    assert [verdict.message for verdict in verdicts] == [str(i) for i in range(100)]
    sizes = [len(batch) for batch in worker.batches]
    if not lost:
        assert sizes == [16, 16, 16, 13, 9, 7, 5, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1]
        return
    assert sizes[:6] == [16, 16, 16, 13, 11, 8]
    assert worker.batches[4] == list(range(56, 67))


def test_two_workers_share_what_waits(make_checker: Callable[..., Checker]) -> None:
    """An eighth each."""
    with make_checker(2) as checker:
        lock = threading.Lock()
        sizes: list[int] = []

        def run_checks(requests: Sequence[CheckRequest], cancelled: Any) -> list[Verdict]:
            with lock:
                sizes.append(len(requests))
            return [Verdict(True, True)] * len(requests)

        for worker in checker._workers:
            worker.run_checks = run_checks  # type: ignore[method-assign]
        assert len(checker._run_requests([request_of(i) for i in range(40)])) == 40
    assert sum(sizes) == 40 and max(sizes) == 5


def watch(checker: Checker, problem: int, failure: str = "timeout", response: str = "x") -> None:
    checker._watch_timeouts(request_of(problem, response), Verdict(False, False, failure))


@pytest.mark.parametrize(("workers", "timeouts"), [(1, 16), (4, 16), (5, 20)])
def test_a_verifier_whose_first_checks_all_time_out(
    make_checker: Callable[..., Checker], workers: int, timeouts: int
) -> None:
    """16 of them, or four for each worker, of four problems; empty responses do not count."""
    with make_checker(workers) as checker:
        for i in range(timeouts - 1):
            watch(checker, i % 4)
            watch(checker, i % 4, "", response=" \n")
        with pytest.raises(DeadStart, match=f"none of its first {timeouts} checks ended"):
            watch(checker, 3)
        watch(checker, 3)  # it is refused once

    with make_checker(workers) as checker:
        for i in range(3 * timeouts):
            watch(checker, i % 3)
        with pytest.raises(DeadStart):
            watch(checker, 3)

    with make_checker(workers) as checker:
        watch(checker, 0)
        watch(checker, 1, "error")  # it has ended
        for i in range(3 * timeouts):
            watch(checker, i)
        assert checker.failure_examples == {"timeout": "problem 0: "}


def verdict_of(scores: dict[str, float] | None) -> Verdict:
    return Verdict(True, True, scores=scores)


@pytest.mark.parametrize(
    ("weights", "recorded"),
    [
        ({MAIN_SCORE: 1.0}, {}),
        ({"right": 2.0}, {"right": 0.5}),
        ({MAIN_SCORE: 1.0, "right": 3.0}, {MAIN_SCORE: 0.25, "right": 0.5}),
    ],
)
def test_scores_are_recorded_but_one_that_is_the_reward(
    make_checker: Callable[..., Checker],
    weights: dict[str, float],
    recorded: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with make_checker(1, weights) as checker:
        verdict = verdict_of({MAIN_SCORE: 0.25, "right": 0.5})
        monkeypatch.setattr(checker, "judge", lambda *_: [verdict, verdict])
        grades = checker.grade([PROBLEM] * 2, [""] * 2, ["a", "b"])
    assert {name: scores.tolist() for name, scores in grades.scores.items()} == {
        name: [value] * 2 for name, value in recorded.items()
    }
    mean = sum(w * {MAIN_SCORE: 0.25, "right": 0.5}[name] for name, w in weights.items())
    np.testing.assert_allclose(grades.rewards, [mean / sum(weights.values())] * 2)


def test_problems_are_tried_on_an_empty_response(
    make_checker: Callable[..., Checker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score that is missing ends the run; a failure is warned of once."""
    warned: list[str] = []
    monkeypatch.setattr(grading, "warn", warned.append)
    with make_checker(1, {"right": 1.0}) as checker:
        tried: list[CheckRequest] = []
        verdicts = {"given": verdict_of({"right": 0.0})}

        def run(requests: list[CheckRequest]) -> list[Verdict]:
            tried.extend(requests)
            return [verdicts["given"]] * len(requests)

        monkeypatch.setattr(checker, "_run_requests", run)
        checker.check_problems([PROBLEM] * 3, ["p"] * 3)
        assert [(one.prompt, one.response) for one in tried] == [("p", "")] and not warned
        verdicts["given"] = verdict_of({"other": 0.0})
        with refused(where="cell.verifier.use"):
            checker.check_problems([PROBLEM], ["p"])
        verdicts["given"] = Verdict(False, False, "error", "it broke")
        for _ in range(2):
            checker.check_problems([PROBLEM], ["p"])
    assert len(warned) == 1 and "problem 0: it broke" in warned[0]


def test_a_score_at_the_tolerance_is_the_number_that_it_is_near() -> None:
    """Of binary rewards: 1e-6 is 0, and no part of a score."""
    assert function.score_to_verdict(1e-6, "x").failure == ""
    assert function.score_to_verdict(-1e-6, "x").failure == ""
    assert function.score_to_verdict(2e-6, "x").failure == "partial"
    assert function.score_to_verdict(1 + 2e-6, "x").failure == "score"
    assert function.score_to_verdict(-1 - 9e-7, "x").failure == ""
    for score in (1 - 9e-7, 1 + 9e-7):
        assert function.score_to_verdict(score, "x").correct
    assert not function.score_to_verdict(1 - 2e-6, "x").correct


def test_a_generators_score_of_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 but for rounding is right; without any answer there is none."""
    asked: list[Any] = []

    def scorer(answer: str, entry: Any) -> float:
        asked.append((answer, entry))
        return float(answer)

    monkeypatch.setattr(
        gym, "_scorer", lambda name, settings: asked.append((name, settings)) or scorer
    )
    columns = {"gym": "sums", "settings": {"b": 1, "a": 2}, "entry": {"x": [1]}}
    problem: Any = SimpleNamespace(id=3, columns=columns)
    said = "<answer>0</answer> no, <answer> 0.9999995 </answer>"
    assert gym.check(problem, "", said) == Verdict(True, True, scores={MAIN_SCORE: 0.9999995})
    assert asked == [("sums", '{"a": 2, "b": 1}'), ("0.9999995", {"x": [1]})]
    for text in ("0.99999", "1.00001", "2", "-1"):
        assert gym.check(problem, "", text).correct is False
    assert gym.check(problem, "", "1.0000005").correct
    empty = gym.check(problem, "", "<answer> </answer>")
    assert (empty.correct, empty.parsed) == (False, False)
    for name in columns:
        problem.columns = {key: value for key, value in columns.items() if key != name}
        with refused(where="problem 3"):
            gym.check(problem, "", "1")
