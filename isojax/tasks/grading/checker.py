"""Grading responses in text, in worker processes that can be killed.

A check that hangs, crashes, raises or eats memory costs its own rollout alone: reward 0, and counted by kind. Each
worker (tasks/grading/grading_worker.py) works through small lots and sends every verdict as it is found, so that what
happens is charged to the check it happened in. Its deadline runs from the moment that check began. A worker that is
lost is replaced, and the rest of its lot goes back.

Workers are new processes, not forks of this one, whose threads a fork would break, and they do not import its main
module.
"""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import IO, Any, Self

import numpy as np

from isojax.core import registry
from isojax.core.errors import InputError
from isojax.core.machine import cores
from isojax.core.nouns import Problem
from isojax.tasks.grading.grading_worker import CheckRequest, CheckWorkerSpec
from isojax.tasks.protocol import Grades
from isojax.tasks.verifiers import Check, Verdict

START_TIMEOUT = 60.0  # for a worker to import what the verifier needs
MAX_STARTS = 5  # failed ones in a row of a worker that was lost, before the run ends
RESTART_PAUSE = 0.5  # seconds after the first of them; doubled after each
CHECK_BATCH = 16  # checks sent to a worker at once; fewer when few are left
_WORKER_SCRIPT = """import json, sys
sys.path[:] = json.loads(sys.argv[3])
from isojax.tasks.grading.grading_worker import main
main(int(sys.argv[1]), int(sys.argv[2]))"""


class Checker:
    """A verifier, and the processes it runs in where it needs them.

    Attributes:
        examples: the first failure of each kind so far: "problem 17: rewards.py:3: ZeroDivisionError: division by
        zero".
        failures: how many there were of each kind.
    """

    def __init__(
        self, verifier: str, timeout: float = 5.0, memory_gb: float = 4.0, num_workers: int | None = None
    ) -> None:
        """Find the verifier `use` (`cell.verifier.use`) and start its first worker.

        `timeout`: seconds a check; `memory_gb`: 2^30 bytes a worker may write to; `workers`: how many (None: one a
        core).

        Raises:
            InputError: no such verifier, or one that cannot be built: its file, function or package is missing or
            broken.
        """
        name, _, argument = verifier.partition(":")
        module = registry.load("tasks.verifiers", name, "build")
        if missing_flags := [flag for flag in ("ISOLATED", "PURE") if flag not in vars(module)]:
            raise InputError(
                f"cell.verifier.use: {module.__name__} has no {' and no '.join(missing_flags)}; expected what isojax.tasks.verifiers says."
            )
        self.failure_examples: dict[str, str] = {}
        self.failure_counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._pure: bool = module.PURE
        self._check: Check | None = None if module.ISOLATED else module.build(argument)
        count = (num_workers or cores()) if module.ISOLATED else 0
        self._workers = [_CheckWorker(CheckWorkerSpec(verifier, int(memory_gb * 2**30)), timeout) for _ in range(count)]
        self._stop_workers = weakref.finalize(self, _stop_all, self._workers)  # also at the interpreter's exit
        if self._workers:
            self._workers[0].start()

    def grade(self, problems: Sequence[Problem], prompts: Sequence[str], responses: Sequence[str]) -> Grades:
        """Rewards and failures of responses to problems, one each, in their order. Calls from several threads take
        turns.

        Raises:
            InputError: a problem that this verifier cannot judge, a worker that cannot be started again, or a closed
            checker.
        """
        requests = list(zip(problems, prompts, responses, strict=True))
        keys: list[Any] = (
            [(id(p), prompt, r) for p, prompt, r in requests] if self._pure else list(range(len(requests)))
        )
        first_index = {key: i for i, key in reversed(list(enumerate(keys)))}
        distinct_indices = sorted(first_index.values())
        with self._lock:
            if not self._stop_workers.alive:
                raise InputError("this Checker is closed; make a new one.")
            verdict_by_index = dict(
                zip(distinct_indices, self._run_requests([requests[i] for i in distinct_indices]), strict=True)
            )
            verdicts = [verdict_by_index[first_index[key]] for key in keys]
            for (problem, _, _), verdict in zip(requests, verdicts, strict=True):
                if verdict.failure:
                    self.failure_counts[verdict.failure] += 1
                    self.failure_examples.setdefault(verdict.failure, f"problem {problem.id}: {verdict.message}")
        return Grades(
            rewards=np.array([v.correct for v in verdicts], np.float32),
            parsed=np.array([v.parsed for v in verdicts], bool),
            failures=dict(sorted(Counter(v.failure for v in verdicts if v.failure).items())),
        )

    def check_problems(self, problems: Sequence[Problem], prompts: Sequence[str]) -> None:
        """Judge an empty response to each problem, and forget the verdicts; of a verifier in processes, which may be
        slow, to the first.

        Raises:
            InputError: a problem that this verifier cannot judge.
        """
        count = 1 if self._check is None else len(problems)
        with self._lock:
            self._run_requests([(p, prompt, "") for p, prompt in list(zip(problems, prompts, strict=True))[:count]])

    def close(self) -> None:
        """End the workers and whatever their checks have started."""
        with self._lock:
            self._stop_workers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run_requests(self, requests: list[CheckRequest]) -> list[Verdict]:
        if self._check is not None:
            return [self._check(*item) for item in requests]
        verdicts: list[Verdict | None] = [None] * len(requests)
        pending = deque(
            range(len(requests))
        )  # of `items`; lots are taken from its left, and what a lost worker left over is put back there
        lock, cancelled = threading.Lock(), threading.Event()

        def take_batch() -> list[int]:
            with lock:
                count = max(1, min(CHECK_BATCH, len(pending) // (4 * len(self._workers))))
                return [pending.popleft() for _ in range(min(count, len(pending)))]

        def run_worker(worker: _CheckWorker) -> None:
            while not cancelled.is_set() and (batch := take_batch()):
                num_done = 0
                for verdict in worker.run_checks([requests[i] for i in batch], cancelled):
                    if verdict.failure == "input":
                        raise InputError(verdict.message)
                    verdicts[batch[num_done]] = verdict
                    num_done += 1
                with lock:
                    pending.extendleft(reversed(batch[num_done:]))

        active_workers = self._workers[: len(requests)]
        with ThreadPoolExecutor(max(1, len(active_workers)), "verify") as threads:
            futures = [threads.submit(run_worker, worker) for worker in active_workers]
            try:
                for future in futures:
                    future.result()
            except BaseException:  # a problem or a worker that is of no use, or Ctrl-C: the others stop where they are
                cancelled.set()
                for worker in active_workers:
                    worker.kill()
                wait(futures)
                _stop_all(active_workers)
                raise
        return [verdict for verdict in verdicts if verdict is not None]


class _CheckWorkerLost(Exception):
    """A worker is of no more use: (kind of failure, message)."""


class _CheckWorker:
    """One process of checks: started when first needed, and again after it was lost. Used by one thread at a time, but
    for `kill`.
    """

    def __init__(self, spec: CheckWorkerSpec, timeout: float) -> None:
        self._spec, self._timeout = spec, timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lifeline_fd = -1  # the worker's group dies when this end of a pipe closes
        self._receive_buffer = b""

    def start(self) -> None:
        """Start the process and wait until it is ready; InputError with its reason where it cannot be."""
        with tempfile.TemporaryFile() as log:
            try:
                self._launch(log)
                self._send(self._spec)
                error: str = self._receive(START_TIMEOUT)
            except (_CheckWorkerLost, OSError) as e:
                log.seek(0)
                log_lines = log.read().decode(errors="replace").strip().splitlines()
                reason = e.args[1] if isinstance(e, _CheckWorkerLost) else str(e)
                error = f"cell.verifier.use = {self._spec.verifier}: its process did not start: {reason}" + (
                    f": {log_lines[-1]}" if log_lines else ""
                )
        if error:
            self.stop()
            raise InputError(error)

    def _launch(self, log: IO[bytes]) -> None:
        """Make the process and the two connections to it; what it says goes to `log`."""
        import_path = [p for p in dict.fromkeys([*sys.path, os.getcwd()]) if isinstance(p, str)]
        # Accelerators belong to the training run; threads of numerical libraries would crowd out the other workers.
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ, "JAX_PLATFORMS": "cpu"}
        self._socket, worker_socket = socket.socketpair()
        with worker_socket:
            worker_lifeline_fd, self._lifeline_fd = os.pipe()
            command = [
                sys.executable,
                "-P",
                "-c",
                _WORKER_SCRIPT,
                str(worker_socket.fileno()),
                str(worker_lifeline_fd),
                json.dumps(import_path),
            ]
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    pass_fds=(worker_socket.fileno(), worker_lifeline_fd),
                    start_new_session=True,
                    env=environment,
                )
            finally:
                os.close(worker_lifeline_fd)

    def _restart(self, cancelled: threading.Event) -> None:
        """Start the process where an earlier one ran: a machine short of memory or time gets STARTS attempts, with
        pauses between them.
        """
        for attempt in range(MAX_STARTS):
            try:
                return self.start()
            except (InputError, OSError):
                if attempt + 1 == MAX_STARTS or cancelled.wait(RESTART_PAUSE * 2**attempt):
                    raise

    def run_checks(self, batch: Sequence[CheckRequest], cancelled: threading.Event) -> Iterator[Verdict]:
        """Verdicts of the lot's checks, in order; those after one that ended the process are left out. `stopped`:
        nobody waits for them.
        """
        try:
            self._send_batch(batch, cancelled)
            for _ in batch:
                verdict = Verdict(*self._receive(self._timeout))
                yield verdict
                if verdict.failure == "memory":  # what it still holds would be missing in the checks to come
                    self.stop()
                    return
        except _CheckWorkerLost as e:
            self.stop()
            yield Verdict(False, False, *e.args)

    def _send_batch(self, batch: Sequence[CheckRequest], cancelled: threading.Event) -> None:
        """Send a lot, to a new process if this one has gone while idle."""
        for attempt in range(2):
            if self._process is not None and self._process.poll() is not None:
                self.stop()
            if self._process is None:
                self._restart(cancelled)
            try:
                return self._send(batch)
            except OSError as e:
                self.stop()
                if attempt:
                    raise _CheckWorkerLost("crash", f"the process takes no more checks: {e}") from e

    def _send(self, message: Any) -> None:
        assert self._socket is not None
        self._socket.settimeout(START_TIMEOUT)
        self._socket.sendall(pickle.dumps(message))

    def _receive(self, timeout: float) -> Any:
        """The next message; _Lost where there is none in time, or will be none."""
        assert self._socket is not None and self._process is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._receive_buffer:
            # A child of a check may hold the socket open when the process has gone: look at the process too.
            remaining, exited = deadline - time.monotonic(), self._process.poll() is not None
            self._socket.settimeout(max(0.001, min(remaining, 0.1)))
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                if exited:
                    raise _CheckWorkerLost("crash", self._exit_description()) from None
                if remaining <= 0:
                    raise _CheckWorkerLost("timeout", f"no verdict within {timeout:g} s") from None
            except OSError as e:
                raise _CheckWorkerLost("crash", f"{self._exit_description()} ({e})") from e
            else:
                if not data:
                    raise _CheckWorkerLost("crash", self._exit_description())
                self._receive_buffer += data
        line, _, self._receive_buffer = self._receive_buffer.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError as e:
            raise _CheckWorkerLost("crash", "the process wrote into its connection") from e

    def _exit_description(self) -> str:
        """How the process ended."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(0.5)
            return (
                f"the process died of {signal.Signals(-code).name}" if code < 0 else f"the process exited with {code}"
            )
        return "the process closed its connection"

    def kill(self) -> None:
        """Kill the process and what it has started; whoever waits for its verdict learns of it."""
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):  # macOS says the second of a process that has ended
                os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kill the process, if there is one, and give back what it held."""
        self.kill()
        if self._process is not None:
            self._process.wait()
        if self._socket is not None:
            self._socket.close()
        if self._lifeline_fd >= 0:
            os.close(self._lifeline_fd)
        self._process, self._socket, self._lifeline_fd, self._receive_buffer = None, None, -1, b""


def _stop_all(workers: Sequence[_CheckWorker]) -> None:
    for worker in workers:
        worker.stop()
