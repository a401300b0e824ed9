"""Grading while sampling goes on: a thread passes responses to the verifier, in whatever order they finish."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import numpy as np

from isojax.core.nouns import Problem
from isojax.distributed import multiprocess
from isojax.tasks.protocol import Grades
from isojax.tasks.text import TextTask


class BackgroundGrader:
    """Grades of one response to each of `problems`, in which a problem may occur several times; a context."""

    def __init__(self, task: TextTask, problems: Sequence[Problem]) -> None:
        self._task, self._problems = task, problems
        self._rewards = np.zeros(len(problems), np.float32)
        self._parsed = np.zeros(len(problems), bool)
        self._failures: Counter[str] = Counter()
        self._executor = ThreadPoolExecutor(1, "grade")
        self._pending: deque[tuple[int, np.ndarray]] = deque()
        self._futures: deque[Future[None]] = deque()

    def add_responses(self, rollout_indices: Sequence[int] | np.ndarray, tokens: Sequence[np.ndarray]) -> None:
        """Add responses i32[its length] to problems[i], i of `rollout_indices`; raises what grading has raised."""
        while self._futures and self._futures[0].done():
            self._futures.popleft().result()
        self._pending.extend(zip(map(int, rollout_indices), tokens, strict=True))
        self._futures.append(self._executor.submit(self._grade_pending))

    def state_dict(self) -> dict[str, Any]:
        """The grades of all responses added so far, once these are checked; for JSON and `load_state_dict`."""
        grades = self.collect_grades()
        answers = {"rewards": grades.rewards.tolist(), "parsed": grades.parsed.tolist()}
        return {**answers, "failures": grades.failures}

    def load_state_dict(self, saved_state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._rewards[:], self._parsed[:] = saved_state["rewards"], saved_state["parsed"]
        self._failures.update(saved_state["failures"])

    def collect_grades(self) -> Grades:
        """All grades of all processes, in the order of `problems`; raises what grading has raised."""
        while self._futures:
            self._futures.popleft().result()
        grades_by_process = multiprocess.allgather((self._rewards, self._parsed, self._failures))
        rewards, parsed, failures = zip(*grades_by_process, strict=True)
        counts = sum(failures, Counter[str]())
        return Grades(np.sum(rewards, 0), np.any(parsed, 0), dict(sorted(counts.items())))

    def _grade_pending(self) -> None:
        pending = [self._pending.popleft() for _ in range(len(self._pending))]  # this thread alone takes from it
        if not pending:
            return
        rollout_indices = [i for i, _ in pending]
        texts = [self._task.decode(tokens) for _, tokens in pending]
        grades = self._task.grade([self._problems[i] for i in rollout_indices], texts)
        self._rewards[rollout_indices], self._parsed[rollout_indices] = grades.rewards, grades.parsed
        self._failures.update(grades.failures)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._executor.shutdown(cancel_futures=True)
