"""Grading responses in text while sampling goes on.

A thread takes responses in whatever order they finish, and a Checker judges them. A verifier that
may hang runs in processes: a check that hangs, crashes, raises or takes too much memory costs its
own rollout only (reward 0, counted by kind), and the rest of its batch is checked again.
"""

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isojax.core.config import VerifierConfig
from isojax.core.errors import DeadStart, InputError
from isojax.core.machine import cores
from isojax.core.nouns import MAIN_SCORE, Problem
from isojax.core.terminal import warn
from isojax.distributed import multiprocess
from isojax.distributed.messages import SentArray
from isojax.tasks.check_process import CheckRequest, CheckWorker
from isojax.tasks.protocol import FINISHED_KINDS, Grades, TurnReplies
from isojax.tasks.verifiers import Check, Verdict, describe_no_verdict, load_verifier, weigh_scores

CHECK_BATCH = 16  # checks sent to a worker at once; fewer when few are left
# A verifier is refused where its first checks all time out: so many of them, of so many problems.
MIN_TIMEOUTS = 16
MIN_WORKER_TIMEOUTS = 4  # for each worker
MIN_PROBLEMS = 4

# The verifier of a task of turns, which asks for the task's reply (tasks/turns.py).
_REPLY_VERIFIER = "isojax.tasks.turns:"

# Judges one response i32[its length] to each problem.
GradeFunction = Callable[[Sequence[Problem], Sequence[np.ndarray]], Grades]
# The task's replies to responses i32[their length] whose turn has ended.
ReplyFunction = Callable[[Sequence[Problem], Sequence[np.ndarray]], TurnReplies]
FailureCallback = Callable[[str, str], object]  # receives the kind of a failure, and what happened


class _PendingResponse(NamedTuple):
    """A response i32[its length] that is to be graded."""

    rollout_index: int
    tokens: np.ndarray


@dataclass(frozen=True)
class _ProcessGrades:
    """What one process has graded; arrays have a row for each problem of all processes, with zeros
    for those of others. The fields are those of `Grades`, with the failures of replies apart."""

    rewards: SentArray
    parsed: SentArray
    scores: dict[str, SentArray]
    check_failures: Counter[str]
    reply_failures: Counter[str]
    empty: int
    replies: int


class BackgroundGrader(AbstractContextManager["BackgroundGrader"]):
    """Grades responses in a thread while others are sampled: one response to each entry of
    `problems`, in which a problem may occur several times. Use it as a context."""

    def __init__(
        self, grade: GradeFunction, problems: Sequence[Problem], reply: ReplyFunction | None = None
    ) -> None:
        """Make a grader for one response to each entry of `problems`. grade: judges responses
        (GradeFunction), such as TextTask.grade_tokens; reply: gives the task's replies to
        unfinished responses, for a task of turns, such as TextTask.reply_tokens; None for other
        tasks. Entry i of `problems` is the problem of rollout i."""
        self._grade = grade
        self._problems = problems
        self._reply = reply

        # The caller's thread counts replies ...
        self._replies = 0
        self._reply_failures: Counter[str] = Counter()
        # ... and the grading thread writes these: arrays [problems] and counts of responses.
        self._rewards = np.zeros(len(problems), np.float32)
        self._parsed = np.zeros(len(problems), bool)
        self._scores: dict[str, np.ndarray] = {}
        self._failures: Counter[str] = Counter()
        self._empty = 0

        self._executor = ThreadPoolExecutor(1, "grade")
        self._pending: deque[_PendingResponse] = deque()
        self._futures: deque[Future[None]] = deque()

    def add_responses(
        self, rollout_indices: Sequence[int] | np.ndarray, tokens: Sequence[np.ndarray]
    ) -> None:
        """Add responses i32[its length] to problems[i], i of `rollout_indices`, in the same order;
        raises what grading has raised. No response may be added twice. They are graded later, in
        the thread."""
        while self._futures and self._futures[0].done():
            self._futures.popleft().result()
        for index, response in zip(rollout_indices, tokens, strict=True):
            self._pending.append(_PendingResponse(int(index), response))
        self._futures.append(self._executor.submit(self._grade_pending))

    def reply(
        self, rollout_indices: Sequence[int] | np.ndarray, tokens: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """What the task replies to responses to problems[i], i of `rollout_indices`, whose turns
        have ended: i32[K] for each, of no tokens where the response is done."""
        if not len(tokens):
            return []
        assert self._reply is not None, "only a task of turns replies"
        problems = [self._problems[int(index)] for index in rollout_indices]
        replies = self._reply(problems, tokens)
        self._reply_failures.update(replies.failures)
        self._replies += len(tokens)
        return replies.contexts

    def state_dict(self) -> dict[str, Any]:
        """The grades of all responses added so far, once these are checked; for JSON and
        `load_state_dict`: {"rewards": [a float for each problem], "parsed": [bools], "failures":
        {kind: count}} and, if rewards are graded, "scores": {name: [floats]}. Every process must
        call it, since grades of all of them are gathered."""
        grades = self.collect_grades()
        state: dict[str, Any] = {
            "rewards": grades.rewards.tolist(),
            "parsed": grades.parsed.tolist(),
        }
        if grades.scores:
            state["scores"] = {name: scores.tolist() for name, scores in grades.scores.items()}
        state["failures"] = grades.failures
        return state

    def load_state_dict(self, saved_state: Mapping[str, Any]) -> None:
        """Take over the grades of `state_dict`."""
        # They are those of all processes, which `collect_grades` adds up: one process has them.
        if not multiprocess.is_primary():
            return
        self._rewards[:] = saved_state["rewards"]
        self._parsed[:] = saved_state["parsed"]
        self._scores = {
            name: np.array(scores, np.float32)
            for name, scores in saved_state.get("scores", {}).items()
        }
        self._failures.update(saved_state["failures"])

    def collect_grades(self) -> Grades:
        """Wait for all responses that were added, and give the grades of all processes, in the
        order of `problems`; raises what grading has raised. Every process must call it.
        multiprocess.allgather gives the value of each process, as a list by process."""
        while self._futures:
            self._futures.popleft().result()

        # Each process has graded other responses, and has zeros in the rows of all others.
        in_this_process = _ProcessGrades(
            rewards=self._rewards,
            parsed=self._parsed,
            scores=self._scores,
            check_failures=self._failures,
            reply_failures=self._reply_failures,
            empty=self._empty,
            replies=self._replies,
        )
        in_processes = multiprocess.allgather(in_this_process, _ProcessGrades)
        check_failures: Counter[str] = Counter()
        reply_failures: Counter[str] = Counter()
        for grades in in_processes:
            check_failures += grades.check_failures
            reply_failures += grades.reply_failures

        scores: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(name for grades in in_processes for name in grades.scores):
            # A process that has graded nothing has no names.
            with_name = [grades.scores[name] for grades in in_processes if name in grades.scores]
            scores[name] = np.sum(with_name, 0)

        return Grades(
            rewards=np.sum([grades.rewards for grades in in_processes], 0),
            parsed=np.any([grades.parsed for grades in in_processes], 0),
            failures=dict(sorted((check_failures + reply_failures).items())),
            scores=scores,
            empty=sum(grades.empty for grades in in_processes),
            replies=sum(grades.replies for grades in in_processes),
            reply_failures=reply_failures,
        )

    def _grade_pending(self) -> None:
        """In the grading thread: grade all responses that are waiting, and store their grades."""
        # The caller's thread may add responses meanwhile; only this thread takes them.
        pending = [self._pending.popleft() for _ in range(len(self._pending))]
        if not pending:  # an earlier call, for other responses, has taken these too
            return

        rollout_indices = [one.rollout_index for one in pending]
        problems = [self._problems[index] for index in rollout_indices]
        grades = self._grade(problems, [one.tokens for one in pending])
        self._rewards[rollout_indices] = grades.rewards
        self._parsed[rollout_indices] = grades.parsed
        self._failures.update(grades.failures)
        self._empty += grades.empty
        for name, scores in grades.scores.items():
            self._scores.setdefault(name, np.zeros_like(self._rewards))[rollout_indices] = scores

    def __exit__(self, *exc: object) -> None:
        self._executor.shutdown(cancel_futures=True)


class Checker(AbstractContextManager["Checker"]):
    """Judges responses by the verifier of a config, in processes of its own where it needs them.
    Use it as a context, or call `close`."""

    def __init__(
        self,
        config: VerifierConfig,
        num_workers: int | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Load the verifier and start the first process. num_workers: how many processes; None: one
        per core. weights: the weight of each score in the reward, by its name, such as {"math":
        0.9, "length": 0.1}; None: rewards are 1 for correct responses and 0 for others. InputError
        where the verifier cannot be loaded. A verifier that is not isolated (VerifierTraits) is
        called in this process, and has no workers."""
        self.failure_examples: dict[str, str] = {}  # the first failure of each kind
        # Called, in any thread, with each of these.
        self.on_failure: FailureCallback = lambda kind, what_happened: None
        self._config = config
        self._weights = weights or {}
        self._has_failed_empty = False  # the verifier has failed at an empty response
        # The ids of the problems of the first checks; None once one ended before its deadline.
        self._timed_out: list[int] | None = []
        self._lock = threading.Lock()

        # Either a check, which this process runs, or workers.
        loaded = load_verifier(config.use)
        self._is_pure = loaded.pure
        self._check: Check | None = None if loaded.isolated else loaded.build()
        self._workers: list[CheckWorker] = []
        if loaded.isolated:
            memory_bytes = int(config.memory_gib * 2**30)
            for _ in range(num_workers or cores()):
                self._workers.append(CheckWorker(config.use, memory_bytes, config.timeout))
        self._stop_workers = weakref.finalize(  # also at the interpreter's exit
            self, _stop_all, self._workers
        )
        if self._workers:
            self._workers[0].start()

    def grade(
        self, problems: Sequence[Problem], prompts: Sequence[str], responses: Sequence[str]
    ) -> Grades:
        """Rewards, scores and failures of one response to each problem. prompts: as the model reads
        them; responses: their texts; both in the order of `problems`. InputError for a problem that
        cannot be judged."""
        verdicts = self.judge(problems, prompts, responses)
        if self._weights:
            # A verdict comes back with a score for each weight; with the failure `score`, and
            # scores of 0, where one of its own is missing or outside 0..1.
            graded = [weigh_scores(verdict, self._weights) for verdict in verdicts]
            rewards = [one.reward for one in graded]
            verdicts = [one.verdict for one in graded]
        else:
            rewards = [float(verdict.correct) for verdict in verdicts]

        # The only score, under the name MAIN_SCORE, which it has where the user gave none, equals
        # the reward and is not recorded.
        scores: dict[str, np.ndarray] = {}
        for name in self._weights:
            if len(self._weights) > 1 or name != MAIN_SCORE:
                values = [verdict.scores_by_name()[name] for verdict in verdicts]
                scores[name] = np.array(values, np.float32)

        return Grades(
            rewards=np.array(rewards, np.float32),
            parsed=np.array([verdict.parsed for verdict in verdicts], bool),
            failures=self.note_failures(problems, verdicts),
            scores=scores,
        )

    def judge(
        self, problems: Sequence[Problem], prompts: Sequence[str], responses: Sequence[str]
    ) -> list[Verdict]:
        """The verifier's verdict on one response to each problem; InputError for a problem that
        cannot be judged. Equal requests are checked once, if the verifier is pure."""
        requests = [
            CheckRequest(problem, prompt, response)
            for problem, prompt, response in zip(problems, prompts, responses, strict=True)
        ]
        # Equal requests get the same key where the verdict depends on nothing else. A problem's
        # columns cannot be hashed, so that its id() stands for it.
        keys: list[Hashable] = list(range(len(requests)))  # each request with a key for itself
        if self._is_pure:
            keys = [(id(one.problem), one.prompt, one.response) for one in requests]
        request_by_key = dict(zip(keys, requests, strict=True))

        with self._lock:
            if not self._stop_workers.alive:
                raise InputError(
                    found="this Checker is closed",
                    fix="Make a new one.",
                )
            distinct_verdicts = self._run_requests(list(request_by_key.values()))
        verdict_by_key = dict(zip(request_by_key, distinct_verdicts, strict=True))
        return [verdict_by_key[key] for key in keys]

    def note_failures(
        self, problems: Sequence[Problem], verdicts: Sequence[Verdict]
    ) -> dict[str, int]:
        """The number of failures of each kind, such as {"timeout": 2} (the kinds of
        Verdict.failure); `on_failure` is called with the first of each kind that this Checker has
        met. verdicts: in the order of `problems`."""
        counts: Counter[str] = Counter()
        with self._lock:
            for problem, verdict in zip(problems, verdicts, strict=True):
                if verdict.failure:
                    counts[verdict.failure] += 1
                    self._note_failure(problem, verdict)
        return dict(sorted(counts.items()))

    def check_problems(self, problems: Sequence[Problem], prompts: Sequence[str]) -> None:
        """Try the verifier on an empty response to each problem before training: InputError where a
        problem cannot be judged, and a warning where the check fails. A verifier that runs in
        processes, which may be slow, tries only the first problem."""
        requests = [
            CheckRequest(problem, prompt, response="")
            for problem, prompt in zip(problems, prompts, strict=True)
        ]
        with self._lock:
            verdicts = self._run_requests(requests if self._check else requests[:1])

        # Not strict: a verifier in processes has a verdict on the first problem alone.
        for problem, verdict in zip(problems, verdicts, strict=False):
            if self._weights:
                graded = weigh_scores(verdict, self._weights).verdict
                if graded.failure == "score":
                    raise InputError(
                        where="cell.verifier.use",
                        found=f"problem {problem.id}, an empty response: {graded.message}",
                    )
            # FINISHED_KINDS: a score other than 0, 1 and -1 (`partial`) is no failed check.
            has_failed = verdict.failure not in ("", *FINISHED_KINDS)
            if has_failed and not self._has_failed_empty and multiprocess.is_primary():
                self._has_failed_empty = True  # of several problem sets the first is enough
                warn(
                    f"the verifier fails at an empty response to problem {problem.id}:"
                    f" {verdict.message}"
                )

    def _note_failure(self, problem: Problem, verdict: Verdict) -> None:
        if verdict.failure not in self.failure_examples:
            self.failure_examples[verdict.failure] = f"problem {problem.id}: {verdict.message}"
            self.on_failure(verdict.failure, self.failure_examples[verdict.failure])

    def _watch_timeouts(self, request: CheckRequest, verdict: Verdict) -> None:
        """Called with each verdict of a worker at the start of a run: reports a timeout at once,
        and raises DeadStart where the verifier's first checks all time out, so that a run does not
        go on for hours without any reward. The first other verdict ends this watch. The caller
        holds a lock, since several workers' threads call it."""
        # An empty response does not count: a verifier may judge it without doing any work.
        if self._timed_out is None or not request.response.strip():
            return
        if verdict.failure != "timeout":
            self._timed_out = None
            return

        self._note_failure(request.problem, verdict)
        self._timed_out.append(request.problem.id)
        # Enough timeouts, of enough different problems: a single hard one may be to blame.
        min_timeouts = max(MIN_TIMEOUTS, MIN_WORKER_TIMEOUTS * len(self._workers))
        if len(self._timed_out) >= min_timeouts and len(set(self._timed_out)) >= MIN_PROBLEMS:
            count = len(self._timed_out)
            self._timed_out = None  # another worker's thread does not refuse again
            raise DeadStart(self._describe_dead_start(count))

    def _describe_dead_start(self, num_timeouts: int) -> str:
        """The message of DeadStart, which names the verifier, or the task whose reply it gives."""
        verifier = str(self._config.use)
        setting = f"cell.verifier.use = {verifier}"
        if verifier.startswith(_REPLY_VERIFIER):
            setting = f"cell.task = {verifier.removeprefix(_REPLY_VERIFIER)}, its reply"
        limit = f"cell.verifier.timeout = {self._config.timeout:g} s"
        fix = "Correct it, or raise the timeout, and repeat the command, of a run with --resume"
        return f"{setting}: none of its first {num_timeouts} checks ended within {limit}. {fix}."

    def close(self) -> None:
        """End the workers and whatever their checks have started."""
        with self._lock:
            self._stop_workers()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run_requests(self, requests: list[CheckRequest]) -> list[Verdict]:
        """The verdicts of all requests, in their order, from this process or the workers."""
        if self._check is None:
            return self._run_in_workers(requests)
        returned = [self._check(*request) for request in requests]
        for verdict in returned:
            if not isinstance(verdict, Verdict):
                raise InputError(
                    where=f"cell.verifier.use = {self._config.use}",
                    found=describe_no_verdict(verdict),
                )
        return returned

    def _run_in_workers(self, requests: list[CheckRequest]) -> list[Verdict]:
        """The verdicts of all requests, in their order, by the worker processes. A thread for each
        worker takes batches of requests as long as there are any. InputError or DeadStart where the
        verifier cannot be used; then all workers are stopped."""
        verdicts: dict[int, Verdict] = {}  # by the request's index
        # Indices of requests. Batches are taken from the left, where the requests that a lost
        # worker did not answer are put back.
        pending = deque(range(len(requests)))
        lock = threading.Lock()
        cancelled = threading.Event()

        def take_batch() -> list[int]:
            """Take the next indices out of `pending`; [] where none is left."""
            # Small batches near the end keep all workers busy until then.
            with lock:
                share = len(pending) // (4 * len(self._workers))
                count = min(max(1, min(CHECK_BATCH, share)), len(pending))
                return [pending.popleft() for _ in range(count)]

        def run_worker(worker: CheckWorker) -> None:
            """In the worker's thread: check batches until none is left, and store what comes in
            `verdicts`. A batch that ended early goes back to the front of `pending`, in its
            order."""
            while not cancelled.is_set():
                batch = take_batch()
                if not batch:
                    return
                batch_verdicts = worker.run_checks([requests[i] for i in batch], cancelled)
                # A lost worker gives fewer verdicts.
                for verdict, i in zip(batch_verdicts, batch, strict=False):
                    if verdict.failure == "input":  # a problem that cannot be judged
                        raise InputError(verdict.message)
                    verdicts[i] = verdict
                    with lock:
                        self._watch_timeouts(requests[i], verdict)
                with lock:
                    pending.extendleft(i for i in reversed(batch) if i not in verdicts)

        active_workers = self._workers[: len(requests)]  # no more than there are requests
        with ThreadPoolExecutor(max(1, len(active_workers)), "verify") as threads:
            futures = [threads.submit(run_worker, worker) for worker in active_workers]
            try:
                finished = wait(futures, return_when=FIRST_EXCEPTION).done
                for future in finished:
                    future.result()  # raises the exception, whichever worker's it is
            # A problem or a worker that cannot be used, or Ctrl-C: the others stop.
            except BaseException:
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
