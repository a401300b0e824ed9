"""Grading responses in text while sampling goes on: a thread takes responses in whatever order they
finish, and a Checker judges them. A verifier that may hang runs in processes: a check that hangs,
crashes, raises or takes too much memory costs its own rollout only (reward 0, counted by kind), and
the rest of its batch is checked again."""

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from isojax.core.config import VerifierConfig
from isojax.core.errors import DeadStart, InputError
from isojax.core.machine import cores
from isojax.core.nouns import MAIN_SCORE, Problem
from isojax.core.terminal import warn
from isojax.distributed import multiprocess
from isojax.tasks.check_process import CheckRequest, CheckWorker
from isojax.tasks.protocol import FINISHED_KINDS, Grades
from isojax.tasks.verifiers import Check, Verdict, describe_no_verdict, load_verifier, weigh_scores

CHECK_BATCH = 16  # checks sent to a worker at once; fewer when few are left
# A verifier is refused where its first checks all time out: so many, so many for each worker, of so
# many problems.
MIN_TIMEOUTS, MIN_WORKER_TIMEOUTS, MIN_PROBLEMS = 16, 4, 4

# Judges one response i32[its length] to each problem.
GradeFunction = Callable[[Sequence[Problem], Sequence[np.ndarray]], Grades]
# The context that each response i32[its length] gets after a turn, of no tokens where it is done;
# and failures by kind.
ReplyFunction = Callable[
    [Sequence[Problem], Sequence[np.ndarray]], tuple[list[np.ndarray], Mapping[str, int]]
]
FailureCallback = Callable[[str, str], object]  # receives the kind of a failure, and what happened


class BackgroundGrader(AbstractContextManager["BackgroundGrader"]):
    """Grades of one response to each of `problems`, in which a problem may occur several times; a
    context."""

    def __init__(
        self, grade: GradeFunction, problems: Sequence[Problem], reply: ReplyFunction | None = None
    ) -> None:
        self._grade, self._problems, self._reply = grade, problems, reply
        # in the caller's thread, as the number of replies
        self._reply_failures: Counter[str] = Counter()
        self._replies = self._empty = 0
        self._rewards = np.zeros(len(problems), np.float32)
        self._parsed = np.zeros(len(problems), bool)
        self._scores: dict[str, np.ndarray] = {}
        self._failures: Counter[str] = Counter()
        self._executor = ThreadPoolExecutor(1, "grade")
        self._pending: deque[tuple[int, np.ndarray]] = deque()
        self._futures: deque[Future[None]] = deque()

    def add_responses(
        self, rollout_indices: Sequence[int] | np.ndarray, tokens: Sequence[np.ndarray]
    ) -> None:
        """Add responses i32[its length] to problems[i], i of `rollout_indices`; raises what grading
        has raised."""
        while self._futures and self._futures[0].done():
            self._futures.popleft().result()
        self._pending.extend(zip(map(int, rollout_indices), tokens, strict=True))
        self._futures.append(self._executor.submit(self._grade_pending))

    def reply(
        self, rollout_indices: Sequence[int] | np.ndarray, tokens: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """What the task replies to responses to problems[i], i of `rollout_indices`, whose turns
        have ended."""
        if not len(tokens):
            return []
        assert self._reply is not None, "only a task of turns replies"
        contexts, failures = self._reply([self._problems[int(i)] for i in rollout_indices], tokens)
        self._reply_failures.update(failures)
        self._replies += len(tokens)
        return contexts

    def state_dict(self) -> dict[str, Any]:
        """The grades of all responses added so far, once these are checked; for JSON and
        `load_state_dict`."""
        grades = self.collect_grades()
        answers = {"rewards": grades.rewards.tolist(), "parsed": grades.parsed.tolist()}
        scores = (
            {"scores": {name: x.tolist() for name, x in grades.scores.items()}}
            if grades.scores
            else {}
        )
        return {**answers, **scores, "failures": grades.failures}

    def load_state_dict(self, saved_state: Mapping[str, Any]) -> None:
        # the grades are those of all processes, which `collect_grades` adds up
        if not multiprocess.is_primary():
            return
        self._rewards[:], self._parsed[:] = saved_state["rewards"], saved_state["parsed"]
        self._scores = {
            name: np.array(x, np.float32) for name, x in saved_state.get("scores", {}).items()
        }
        self._failures.update(saved_state["failures"])

    def collect_grades(self) -> Grades:
        """All grades of all processes, in the order of `problems`; raises what grading has
        raised."""
        while self._futures:
            self._futures.popleft().result()
        own_counts = {"failures": self._failures, "replies": self._reply_failures}
        own_numbers = np.array([self._empty, self._replies])
        own_grades = self._rewards, self._parsed, self._scores, own_counts, own_numbers
        grades_by_process = multiprocess.allgather(own_grades)
        rewards, parsed, scores, counts, numbers = zip(*grades_by_process, strict=True)

        check_failures, reply_failures = (
            sum((c[key] for c in counts), Counter[str]()) for key in own_counts
        )
        empty, replies = np.sum(numbers, 0).tolist()
        # A process that has graded nothing has no names.
        names = dict.fromkeys(name for process_scores in scores for name in process_scores)
        return Grades(
            rewards=np.sum(rewards, 0),
            parsed=np.any(parsed, 0),
            failures=dict(sorted((check_failures + reply_failures).items())),
            scores={name: np.sum([s[name] for s in scores if name in s], 0) for name in names},
            empty=empty,
            replies=replies,
            reply_failures=reply_failures,
        )

    def _grade_pending(self) -> None:
        # this thread alone takes from it
        pending = [self._pending.popleft() for _ in range(len(self._pending))]
        if not pending:
            return
        rollout_indices = [i for i, _ in pending]
        grades = self._grade(
            [self._problems[i] for i in rollout_indices], [tokens for _, tokens in pending]
        )
        self._rewards[rollout_indices], self._parsed[rollout_indices] = (
            grades.rewards,
            grades.parsed,
        )
        self._failures.update(grades.failures)
        self._empty += grades.empty
        for name, scores in grades.scores.items():
            self._scores.setdefault(name, np.zeros_like(self._rewards))[rollout_indices] = scores

    def __exit__(self, *exc: object) -> None:
        self._executor.shutdown(cancel_futures=True)


class Checker(AbstractContextManager["Checker"]):
    """A verifier, and the processes it runs in where it needs them."""

    def __init__(
        self,
        config: VerifierConfig,
        num_workers: int | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Start a worker. `num_workers`: None: one per core; `weights`: of scores, by name; None:
        binary rewards."""
        loaded = load_verifier(config.use)
        self.failure_examples: dict[str, str] = {}  # the first failure of each kind
        # called, in any thread, with each of them
        self.on_failure: FailureCallback = lambda kind, what_happened: None
        self._config, self._has_failed_empty = config, False
        # The problems of the first checks; None once one ended before its deadline.
        self._timed_out: list[int] | None = []
        self._lock = threading.Lock()
        self._pure, self._weights = loaded.pure, weights or {}
        self._check: Check | None = None if loaded.isolated else loaded.build()
        count = (num_workers or cores()) if loaded.isolated else 0
        memory_bytes = int(config.memory_gib * 2**30)
        self._workers = [
            CheckWorker(config.use, memory_bytes, config.timeout) for _ in range(count)
        ]
        # also at the interpreter's exit
        self._stop_workers = weakref.finalize(self, _stop_all, self._workers)
        if self._workers:
            self._workers[0].start()

    def grade(
        self, problems: Sequence[Problem], prompts: Sequence[str], responses: Sequence[str]
    ) -> Grades:
        """Rewards and failures of responses to problems, one each; InputError for a problem that
        cannot be judged."""
        verdicts = self.judge(problems, prompts, responses)
        rewards = [float(verdict.correct) for verdict in verdicts]
        if self._weights and verdicts:
            rewards, verdicts = zip(
                *(weigh_scores(v, self._weights) for v in verdicts), strict=True
            )
        score_names = [
            name for name in self._weights if len(self._weights) > 1 or name != MAIN_SCORE
        ]
        return Grades(
            rewards=np.array(rewards, np.float32),
            parsed=np.array([v.parsed for v in verdicts], bool),
            failures=self.note_failures(problems, verdicts),
            scores={
                name: np.array([v.scores_by_name()[name] for v in verdicts], np.float32)
                for name in score_names
            },
        )

    def judge(
        self, problems: Sequence[Problem], prompts: Sequence[str], responses: Sequence[str]
    ) -> list[Verdict]:
        """The check's verdicts of responses to problems, one each; InputError for a problem that
        cannot be judged."""
        requests = list(zip(problems, prompts, responses, strict=True))
        keys: list[Hashable] = [
            (id(p), prompt, r) if self._pure else i for i, (p, prompt, r) in enumerate(requests)
        ]
        request_by_key = dict(zip(keys, requests, strict=True))
        with self._lock:
            if not self._stop_workers.alive:
                raise InputError("this Checker is closed; make a new one.")
            distinct_verdicts = self._run_requests(list(request_by_key.values()))
        verdict_by_key = dict(zip(request_by_key, distinct_verdicts, strict=True))
        return [verdict_by_key[key] for key in keys]

    def note_failures(
        self, problems: Sequence[Problem], verdicts: Sequence[Verdict]
    ) -> dict[str, int]:
        """The failures by kind; `on_failure` is called with the first of each."""
        with self._lock:
            for problem, verdict in zip(problems, verdicts, strict=True):
                if verdict.failure:
                    self._note_failure(problem, verdict)
        return dict(sorted(Counter(v.failure for v in verdicts if v.failure).items()))

    def check_problems(self, problems: Sequence[Problem], prompts: Sequence[str]) -> None:
        """InputError where a problem cannot be judged; a verifier in processes tries the first
        problem only, and warns where that check fails, as all may."""
        requests = [(p, prompt, "") for p, prompt in zip(problems, prompts, strict=True)]
        with self._lock:
            verdicts = self._run_requests(requests if self._check else requests[:1])
        for problem, verdict in zip(problems, verdicts, strict=False):
            if (
                self._weights
                and (graded := weigh_scores(verdict, self._weights)[1]).failure == "score"
            ):
                raise InputError(
                    f"cell.verifier.use: problem {problem.id}, an empty response: {graded.message}."
                )
            has_failed = verdict.failure not in ("", *FINISHED_KINDS)
            if has_failed and not self._has_failed_empty and multiprocess.is_primary():
                self._has_failed_empty = True  # of several problem sets the first is enough
                warn(
                    f"the verifier fails at an empty response to problem {problem.id}: {verdict.message}"
                )

    def _note_failure(self, problem: Problem, verdict: Verdict) -> None:
        if verdict.failure not in self.failure_examples:
            self.failure_examples[verdict.failure] = f"problem {problem.id}: {verdict.message}"
            self.on_failure(verdict.failure, self.failure_examples[verdict.failure])

    def _watch_timeouts(self, request: CheckRequest, verdict: Verdict) -> None:
        """Report the first timeout while others are waited for; DeadStart where the verifier judges
        nothing at all."""
        problem, _, response = request
        # a function may answer empty ones without any work
        if self._timed_out is None or not response.strip():
            return
        if verdict.failure != "timeout":
            self._timed_out = None
            return
        self._note_failure(problem, verdict)
        self._timed_out.append(problem.id)
        enough = max(MIN_TIMEOUTS, MIN_WORKER_TIMEOUTS * len(self._workers))
        if len(self._timed_out) >= enough and len(set(self._timed_out)) >= MIN_PROBLEMS:
            # another worker's thread does not refuse again
            count = len(self._timed_out)
            self._timed_out = None
            verifier = str(self._config.use)
            # of a task of turns, whose reply is asked here
            task = verifier.removeprefix("isojax.tasks.turns:")
            setting = (
                f"cell.verifier.use = {verifier}"
                if task == verifier
                else f"cell.task = {task}, its reply"
            )
            limit = f"cell.verifier.timeout = {self._config.timeout:g} s"
            fix = "Correct it, or raise the timeout, and repeat the command, of a run with --resume"
            raise DeadStart(
                f"{setting}: none of its first {count} checks ended within {limit}. {fix}."
            )

    def close(self) -> None:
        """End the workers and whatever their checks have started."""
        with self._lock:
            self._stop_workers()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run_requests(self, requests: list[CheckRequest]) -> list[Verdict]:
        if self._check is not None:
            returned = [self._check(*request) for request in requests]
            for verdict in returned:
                if not isinstance(verdict, Verdict):
                    raise InputError(
                        f"cell.verifier.use = {self._config.use}: {describe_no_verdict(verdict)}."
                    )
            return returned
        verdicts: dict[int, Verdict] = {}
        # Indices of requests; batches are taken from the left, and what a lost worker has left over
        # is put back there.
        pending = deque(range(len(requests)))
        lock, cancelled = threading.Lock(), threading.Event()

        def take_batch() -> list[int]:
            with lock:
                count = max(1, min(CHECK_BATCH, len(pending) // (4 * len(self._workers))))
                return [pending.popleft() for _ in range(min(count, len(pending)))]

        def run_worker(worker: CheckWorker) -> None:
            while not cancelled.is_set() and (batch := take_batch()):
                batch_verdicts = worker.run_checks([requests[i] for i in batch], cancelled)
                # a lost worker gives fewer verdicts
                for verdict, i in zip(batch_verdicts, batch, strict=False):
                    if verdict.failure == "input":
                        raise InputError(verdict.message)
                    verdicts[i] = verdict
                    with lock:
                        self._watch_timeouts(requests[i], verdict)
                with lock:
                    pending.extendleft(i for i in reversed(batch) if i not in verdicts)

        active_workers = self._workers[: len(requests)]
        with ThreadPoolExecutor(max(1, len(active_workers)), "verify") as threads:
            futures = [threads.submit(run_worker, worker) for worker in active_workers]
            try:
                # whichever worker's it is
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            except (
                BaseException
            ):  # a problem or a worker that cannot be used, or Ctrl-C: the others stop
                cancelled.set()
                for worker in active_workers:
                    worker.kill()
                wait(futures)
                _stop_all(active_workers)
                raise
        return [verdicts[i] for i in range(len(requests))]


def _stop_all(workers: Sequence[CheckWorker]) -> None:
    for worker in workers:
        worker.stop()
