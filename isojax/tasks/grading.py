"""Grading beside sampling: responses go to the verifier in a thread of their own, in whatever order they finish."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import numpy as np

from isojax import hosts
from isojax.tasks.base import Grades, HostTask
from isojax.types import Problem


class Grading:
    """Grades of one response to each of `problems` (a problem may come several times); to be used as a context.

    Responses that come while others are judged are judged together after them. The thread ends with the context, which waits for the
    check at hand.
    """

    def __init__(self, task: HostTask, problems: Sequence[Problem]) -> None:
        self._task, self._problems = task, problems
        self._rewards = np.zeros(len(problems), np.float32)
        self._answered = np.zeros(len(problems), bool)
        self._failures: Counter[str] = Counter()
        self._thread = ThreadPoolExecutor(1, "grade")
        self._waiting: deque[tuple[int, np.ndarray]] = deque()
        self._calls: deque[Future[None]] = deque()

    def add(self, numbers: Sequence[int] | np.ndarray, tokens: Sequence[np.ndarray]) -> None:
        """Responses i32[its length] to problems[number], for each of `numbers`; raises what grading earlier ones has raised."""
        while self._calls and self._calls[0].done():
            self._calls.popleft().result()
        self._waiting.extend(zip(map(int, numbers), tokens, strict=True))
        self._calls.append(self._thread.submit(self._grade))

    def save(self) -> dict[str, Any]:
        """What has been found so far, when all that was given is judged; for JSON and `restore`."""
        grades = self.grades()
        return {"rewards": grades.rewards.tolist(), "answered": grades.answered.tolist(), "failures": dict(grades.failures)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """What `save` gave, as if it had been judged here."""
        self._rewards[:], self._answered[:] = saved["rewards"], saved["answered"]
        self._failures.update(saved["failures"])

    def grades(self) -> Grades:
        """All grades, in the order of `problems`, when the last one is found; raises what grading has raised. Each of several processes has
        judged its own rollouts, and gets the grades of all."""
        while self._calls:
            self._calls.popleft().result()
        rewards, answered, failures = zip(*hosts.everyone((self._rewards, self._answered, self._failures)), strict=True)
        counts = sum(failures, Counter[str]())
        return Grades(np.sum(rewards, 0), np.any(answered, 0), dict(sorted(counts.items())))

    def _grade(self) -> None:
        """Judge all that waits."""
        lot = [self._waiting.popleft() for _ in range(len(self._waiting))]  # this thread alone takes from it
        if not lot:
            return
        numbers, tokens = zip(*lot, strict=True)
        texts = [self._task.decode(row) for row in tokens]
        grades = self._task.grade([self._problems[i] for i in numbers], texts)
        at = list(numbers)
        self._rewards[at], self._answered[at] = grades.rewards, grades.answered
        self._failures.update(grades.failures)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.shutdown(cancel_futures=True)
