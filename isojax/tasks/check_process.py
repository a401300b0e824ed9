"""A process in which a verifier checks responses, from both ends: a CheckWorker in the trainer
sends requests, and `serve`, in the process, answers them.

The worker sends pickles: a WorkerSettings, then batches of CheckRequest, each with a nonce. Each
answer is a line: the nonce, then JSON. A line without the nonce of what was requested, or that
holds no verdict, was written by something else that has the connection open, such as a check.

Only this direction has pickles. The process runs what a policy or a user wrote, so its answers are
never unpickled: they are parsed as JSON, and must be of the types that `_parse_answer` lists.

What a verifier starts in processes of its own reaches neither connection nor memory of this one, so
it forges nothing. Code within this process can do all that the verifier can: its wrong lines cost
its own verdict, but it may change what the verifier returns. So a verifier that executes a
response's code does this in a process of its own.
"""

import errno
import json
import os
import pickle
import resource
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.core.user_code import describe_exception
from isojax.tasks.guarded_process import PR_SET_DUMPABLE, GuardedProcess, control_process
from isojax.tasks.verifiers import Check, Verdict, describe_no_verdict, load_verifier

START_TIMEOUT = 60.0  # seconds for a worker to import what the verifier needs
MAX_STARTS = 5  # failed starts in a row of a worker that was lost, before the run ends
RESTART_PAUSE = 0.5  # seconds after the first failed start; doubled after each
MAX_REPLY_BYTES = 1 << 16  # of a line
MAX_MESSAGE_LENGTH = 2000  # characters of a verdict's message
# Failures that may be the fault of an earlier check, or of the machine: these checks are repeated,
# in a new process.
REPEATED_FAILURES = ("machine", "memory", "forged")
# What a machine is out of: descriptors, memory, disk, processes or threads.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)


class CheckRequest(NamedTuple):
    """What a check judges."""

    problem: Problem
    prompt: str  # as the model reads it
    response: str


class WorkerSettings(NamedTuple):
    """The first message to a process, which answers it with an error, empty where it is ready."""

    nonce: str
    verifier: str | Mapping[str, str]  # `cell.verifier.use`
    memory_bytes: int


class NoncedRequest(NamedTuple):
    """A request of a batch, and the nonce that its answer must have."""

    nonce: str
    request: CheckRequest


@dataclass(frozen=True)
class CheckAnswer:
    """A process's answer to a request."""

    verdict: Verdict
    is_worn: bool  # whether the process is short of something, and must not run more checks


class CheckWorkerLost(Exception):
    """A worker cannot be used any more."""

    def __init__(self, failure: str, message: str) -> None:
        """`failure`: a kind, as a Verdict has it."""
        super().__init__(failure, message)
        self.failure = failure
        self.message = message


def _forged() -> CheckWorkerLost:
    return CheckWorkerLost("forged", "something other than the verifier wrote into its connection")


def _parse_answer(reply: Any) -> CheckAnswer:
    """The answer of a process, from its parsed JSON: the fields of a Verdict and is_worn, as a list
    (made in `_run_batches`). CheckWorkerLost where it has any other form, since something else may
    have written it. The order of the list is that of Verdict's fields, with is_worn last."""
    match reply:
        case [
            bool(correct),
            bool(parsed),
            str(failure),
            str(message),
            (None | {}) as scores,
            [*not_applicable],
            str(place),
            bool(is_worn),
        ]:
            pass
        case _:
            raise _forged()

    are_scores = all(isinstance(score, int | float) for score in (scores or {}).values())
    are_names = all(isinstance(name, str) for name in not_applicable)
    if not (are_scores and are_names):
        raise _forged()
    verdict = Verdict(
        correct=correct,
        parsed=parsed,
        failure=failure,
        message=message,
        scores=scores,
        not_applicable=tuple(not_applicable),
        place=place,
    )
    return CheckAnswer(verdict, is_worn)


class CheckWorker:
    """One process of checks. One thread at a time may use it, except for `kill`."""

    def __init__(
        self, verifier: str | Mapping[str, str], memory_bytes: int, timeout: float
    ) -> None:
        """A worker whose process starts with `start` or its first checks. verifier: as
        cell.verifier.use, "math" or {a score's name: "math", ...}; memory_bytes: that the process
        may write to; timeout: of each check, in seconds."""
        self._verifier = verifier
        self._memory_bytes = memory_bytes
        self._timeout = timeout
        self._process: GuardedProcess | None = None
        self._receive_buffer = b""

    def start(self) -> None:
        """Start the process and wait until it has loaded the verifier; InputError with the reason
        where that fails."""
        with tempfile.TemporaryFile() as log:
            try:
                self._process = GuardedProcess(__name__, log)  # it runs `serve` of this module
                settings = WorkerSettings(
                    nonce=secrets.token_hex(8),
                    verifier=self._verifier,
                    memory_bytes=self._memory_bytes,
                )
                self._send(settings)
                # Its answer is an error's text, empty where it is ready.
                error = str(self._receive(settings.nonce, START_TIMEOUT))
            except (CheckWorkerLost, OSError) as e:
                # The last line of what it printed, a traceback's, may say why.
                reason = e.message if isinstance(e, CheckWorkerLost) else str(e)
                log.seek(0)
                printed = log.read().decode(errors="replace").strip().splitlines()
                reason = ": ".join([reason, *printed[-1:]])
                error = (
                    f"cell.verifier.use = {self._verifier}: its process did not start: {reason}."
                )

        if error:
            self.stop()
            raise InputError(error)

    def _restart(self, cancelled: threading.Event) -> None:
        """Start the process, in several attempts: the machine may be short of memory or time for a
        moment. The last attempt's InputError or OSError is raised; so is that of any attempt once
        `cancelled` is set, which ends the pause after it."""
        for attempt in range(MAX_STARTS):
            try:
                return self.start()
            except (InputError, OSError):
                if attempt + 1 == MAX_STARTS or cancelled.wait(RESTART_PAUSE * 2**attempt):
                    raise

    def run_checks(
        self, batch: Sequence[CheckRequest], cancelled: threading.Event
    ) -> Iterator[Verdict]:
        """Verdicts of a batch, in order, up to a check that ends the process; `cancelled` ends
        attempts to start it.

        There may be fewer verdicts than requests: whoever calls this sends the rest of the batch
        again. The last of them may be of a check that was repeated, in a new process, since its
        failure (REPEATED_FAILURES) may be an earlier check's fault. All must be taken before the
        worker is used again.
        """
        # Not strict: `_run_batch` may stop early.
        for request, verdict in zip(batch, self._run_batch(batch, cancelled), strict=False):
            if verdict.failure in REPEATED_FAILURES and not cancelled.is_set():
                yield next(self._run_batch([request], cancelled))
                return
            yield verdict

    def _run_batch(
        self, batch: Sequence[CheckRequest], cancelled: threading.Event
    ) -> Iterator[Verdict]:
        """Verdicts of a batch, in order, up to a check after which the process cannot be used: one
        that ended it (the last verdict is then its failure), or left it short of resources."""
        requests = [NoncedRequest(secrets.token_hex(8), request) for request in batch]
        try:
            self._send_batch(requests, cancelled)
            for nonced in requests:  # answers come in the order of the requests
                answer = _parse_answer(self._receive(nonced.nonce, self._timeout))
                if answer.is_worn:
                    self.stop()
                yield answer.verdict
                if answer.is_worn:
                    return
        except CheckWorkerLost as e:
            self.stop()
            yield _failed(e.failure, e.message)

    def _send_batch(self, batch: Sequence[NoncedRequest], cancelled: threading.Event) -> None:
        """Send a batch, to a new process if this one has ended while idle."""
        for attempt in range(2):
            if self._process is not None and self._process.popen.poll() is not None:
                self.stop()
            if self._process is None:
                self._restart(cancelled)
            try:
                return self._send(batch)
            except OSError as e:
                self.stop()
                if attempt:
                    raise CheckWorkerLost("crash", f"the process takes no more checks: {e}") from e

    def _send(self, message: WorkerSettings | Sequence[NoncedRequest]) -> None:
        assert self._process is not None
        self._process.socket.settimeout(START_TIMEOUT)
        self._process.socket.sendall(pickle.dumps(message))

    def _receive(self, nonce: str, timeout: float) -> Any:
        """The answer to `nonce`, as JSON has it: a text to WorkerSettings, a list to a request
        (`_parse_answer`). CheckWorkerLost where it does not come within `timeout` seconds, cannot
        come any more, or another line comes."""
        line = self._receive_line(timeout)
        line_nonce, _, message = line.partition(b" ")
        if line_nonce != nonce.encode():
            raise _forged()
        try:
            return json.loads(message)
        except (ValueError, RecursionError) as e:
            raise _forged() from e

    def _receive_line(self, timeout: float) -> bytes:
        """The next line that the process writes, without its end; CheckWorkerLost where none comes
        within `timeout` seconds, or the process has ended. What comes behind the line stays in
        _receive_buffer for the next call. A line of more than MAX_REPLY_BYTES is cut, so that
        nobody can fill the memory; the nonce or JSON of such a line is refused later."""
        assert self._process is not None
        connection = self._process.socket
        deadline = time.monotonic() + timeout
        exited = False
        while b"\n" not in self._receive_buffer and len(self._receive_buffer) <= MAX_REPLY_BYTES:
            remaining = deadline - time.monotonic()
            if remaining <= 0 and not exited:
                raise CheckWorkerLost("timeout", f"no verdict within {timeout:g} s")
            # Short waits, to look now and then whether the process has ended. Once it has, what it
            # wrote before is still read, also after the deadline, as long as it comes at once.
            connection.settimeout(max(0.001, min(remaining, 0.1)))
            try:
                data = connection.recv(65536)
            except TimeoutError:
                if exited:
                    raise self._describe_exit() from None
                # A child of a check may hold the socket open when the process has gone.
                exited = self._process.popen.poll() is not None
            except OSError as e:
                raise self._describe_exit() from e
            else:
                if not data:
                    raise self._describe_exit()
                self._receive_buffer += data

        line, _, self._receive_buffer = self._receive_buffer.partition(b"\n")
        return line

    def _describe_exit(self) -> CheckWorkerLost:
        """The exception to raise for a process that has ended: of the kind "machine" where SIGKILL
        ended it, else "crash"."""
        assert self._process is not None
        try:
            code = self._process.popen.wait(0.5)
        except subprocess.TimeoutExpired:
            return CheckWorkerLost("crash", "the process closed its connection")
        if code == -signal.SIGKILL:
            return CheckWorkerLost(
                "machine", "the process died of SIGKILL: the machine may be short of memory"
            )
        way = f"exited with {code}" if code >= 0 else f"died of {signal.Signals(-code).name}"
        return CheckWorkerLost("crash", f"the process {way}")

    def kill(self) -> None:
        """Kill the process and what it has started; a thread that waits for its verdict gets
        CheckWorkerLost."""
        process = self._process  # another thread may set it to None
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """Kill the process, if there is one, and release its resources."""
        if self._process is not None:
            self._process.stop()
        self._process = None
        self._receive_buffer = b""


def serve(connection: socket.socket) -> None:
    """Run in the process: load the verifier that the CheckWorker names, then answer its requests
    until it closes the connection. This is the `serve` that GuardedProcess calls. The first message
    is WorkerSettings; its answer is "" where the verifier is loaded, else an error's text."""
    with connection.makefile("rb") as reader:
        settings: WorkerSettings = pickle.load(reader)
        try:
            _limit_memory(settings.memory_bytes)
            # What checks start cannot trace this process or write to its memory.
            control_process(PR_SET_DUMPABLE, 0)
            check = load_verifier(settings.verifier).build()
        # A user's code may raise anything; the worker makes an InputError of it.
        except BaseException as e:
            if isinstance(e, InputError):
                error = str(e)
            else:
                error = f"cell.verifier.use = {settings.verifier}: {describe_exception(e)}"
            _reply(connection, settings.nonce, error[:MAX_MESSAGE_LENGTH])
            return

        # From here on, what checks print to stderr is nobody's: the log is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        _reply(connection, settings.nonce, "")
        _run_batches(check, connection, reader)


def _run_batches(check: Check, connection: socket.socket, reader: BinaryIO) -> None:
    """Check batch after batch and reply to each request with a line, until the connection closes.
    reader: reads the connection, from which batches of NoncedRequest come as pickles."""
    process_id = os.getpid()
    first_free = _lowest_free_descriptor(connection)
    while True:
        try:
            batch: list[NoncedRequest] = pickle.load(reader)
        except EOFError:
            return

        # Checks may leave descriptors open, and hide the errors that the next ones meet; the
        # process is replaced when half of its free descriptors are used up.
        max_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        highest_free = (first_free + max_descriptors) // 2
        for nonce, request in batch:
            verdict = run_check(check, *request)
            if os.getpid() != process_id:
                os._exit(0)  # a child that a check forked and that came back here
            is_short = verdict.failure in ("machine", "memory")
            is_worn = is_short or _lowest_free_descriptor(connection) > highest_free
            # After an answer with is_worn the worker ends this process.
            _reply(connection, nonce, [*verdict, is_worn])


def _lowest_free_descriptor(connection: socket.socket) -> int:
    """The number that the next file to be opened gets; sys.maxsize where none is free."""
    try:
        descriptor = os.dup(connection.fileno())
    except OSError:
        return sys.maxsize
    os.close(descriptor)
    return descriptor


def run_check(check: Check, problem: Problem, prompt: str, response: str) -> Verdict:
    """The verdict of a check. A check that raises gets a verdict with a failure: "memory",
    "machine" (the machine is short of something), "input" (the problem cannot be judged) or
    "error". prompt: as the model reads it. What is returned holds plain data alone, for JSON."""
    try:
        # A plug-in may return a plain tuple of a Verdict's fields.
        returned: Any = check(problem, prompt, response)
        if not isinstance(returned, tuple):
            return _failed("error", describe_no_verdict(returned))
        return _as_plain_data(Verdict(*returned))
    except MemoryError:
        pass  # returned below, when the frames that hold the memory are gone
    except InputError as e:
        return _failed("input", str(e)[:MAX_MESSAGE_LENGTH])
    # SystemExit and KeyboardInterrupt too: a check costs its own rollout alone.
    except BaseException as e:
        kind = "machine" if _is_shortage(e) else "error"
        return _failed(kind, describe_exception(e))
    return _failed("memory", "MemoryError: more than cell.verifier.memory_gib")


def _failed(kind: str, message: str) -> Verdict:
    return Verdict(correct=False, parsed=False, failure=kind, message=message)


def _as_plain_data(verdict: Verdict) -> Verdict:
    """A verdict that JSON can hold: a plug-in may put anything into its own."""
    scores = verdict.scores
    if scores is not None:
        scores = {str(name): float(score) for name, score in scores.items()}
    return Verdict(
        correct=bool(verdict.correct),
        parsed=bool(verdict.parsed),
        failure=str(verdict.failure),
        message=str(verdict.message)[:MAX_MESSAGE_LENGTH],
        scores=scores,
        not_applicable=tuple(map(str, verdict.not_applicable)),
        place=str(verdict.place)[:MAX_MESSAGE_LENGTH],
    )


def _is_shortage(error: BaseException | None) -> bool:
    """Whether the machine lacked something, as this exception says or one that led to it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            return True
        # Python hides the errno of this one.
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reply(connection: socket.socket, nonce: str, message: str | list[object]) -> None:
    connection.sendall(f"{nonce} {json.dumps(message)}\n".encode())


def _limit_memory(memory_bytes: int) -> None:
    """Bound the memory this process may write to; let the kernel end workers before the training
    run."""
    # RLIMIT_DATA counts what is written to; RLIMIT_AS would count what libraries reserve and never
    # touch, too.
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    is_unlimited = hard_limit == resource.RLIM_INFINITY
    soft_limit = memory_bytes if is_unlimited else min(memory_bytes, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (soft_limit, hard_limit))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
