"""One process of checks, from both ends: the trainer's CheckWorker, which kills and replaces it, and what runs in it.

The CheckWorker sends pickles: (`cell.verifier.use`, bytes of memory), then batches of CheckRequest. The process answers
by lines of JSON: an error, empty where the start succeeded, then Verdicts. It is a new process, not a fork, which the
trainer's threads would break; like the verifiers it imports little."""

import fcntl
import json
import os
import pickle
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from isojax.core import registry
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.verifiers import Check, Verdict, describe_exception

CheckRequest = tuple[Problem, str, str]  # problem, prompt, response

START_TIMEOUT = 60.0  # seconds for a worker to import what the verifier needs
MAX_STARTS = 5  # failed starts in a row of a worker that was lost, before the run ends
RESTART_PAUSE = 0.5  # seconds after the first failed start; doubled after each
_WORKER_SCRIPT = """import json, sys
sys.path[:] = json.loads(sys.argv[3])
from isojax.tasks.check_process import process_main
process_main(int(sys.argv[1]), int(sys.argv[2]))"""


class CheckWorkerLost(Exception):
    """A worker cannot be used any more: (kind of failure, message)."""


class CheckWorker:
    """One process of checks. One thread at a time may use it, except for `kill`."""

    def __init__(self, verifier: str, memory_bytes: int, timeout: float) -> None:
        self._verifier, self._memory_bytes, self._timeout = verifier, memory_bytes, timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lifeline_fd = -1  # the worker's group dies when this end of a pipe closes
        self._receive_buffer = b""

    def start(self) -> None:
        """Start the process and wait until it is ready; InputError with its reason where it cannot be."""
        with tempfile.TemporaryFile() as log:
            try:
                self._launch(log)
                self._send((self._verifier, self._memory_bytes))
                error: str = self._receive(START_TIMEOUT)
            except (CheckWorkerLost, OSError) as e:
                log.seek(0)
                last_line = log.read().decode(errors="replace").strip().splitlines()[-1:]
                reason = ": ".join([e.args[1] if isinstance(e, CheckWorkerLost) else str(e), *last_line])
                error = f"cell.verifier.use = {self._verifier}: its process did not start: {reason}"
        if error:
            self.stop()
            raise InputError(error)

    def _launch(self, log: IO[bytes]) -> None:
        """Make the process and the two connections to it; what it prints goes to `log`."""
        import_path = [p for p in dict.fromkeys([*sys.path, os.getcwd()]) if isinstance(p, str)]
        # Accelerators belong to the training run; threads of numerical libraries would crowd out the other workers.
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ, "JAX_PLATFORMS": "cpu"}
        self._socket, worker_socket = socket.socketpair()
        with worker_socket:
            worker_lifeline_fd, self._lifeline_fd = os.pipe()
            descriptors = (worker_socket.fileno(), worker_lifeline_fd)
            arguments = [*map(str, descriptors), json.dumps(import_path)]
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _WORKER_SCRIPT, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    pass_fds=descriptors,
                    start_new_session=True,
                    env=environment,
                )
            finally:
                os.close(worker_lifeline_fd)

    def _restart(self, cancelled: threading.Event) -> None:
        """Start the process, in several attempts: the machine may be short of memory or time for a moment."""
        for attempt in range(MAX_STARTS):
            try:
                return self.start()
            except (InputError, OSError):
                if attempt + 1 == MAX_STARTS or cancelled.wait(RESTART_PAUSE * 2**attempt):
                    raise

    def run_checks(self, batch: Sequence[CheckRequest], cancelled: threading.Event) -> Iterator[Verdict]:
        """Verdicts of a batch, in order, up to a check that ends the process; `cancelled` ends attempts to start it."""
        try:
            self._send_batch(batch, cancelled)
            for _ in batch:
                verdict = Verdict(*self._receive(self._timeout))
                yield verdict
                if verdict.failure == "memory":  # what it still holds would be missing for later checks
                    self.stop()
                    return
        except CheckWorkerLost as e:
            self.stop()
            yield Verdict(False, False, *e.args)

    def _send_batch(self, batch: Sequence[CheckRequest], cancelled: threading.Event) -> None:
        """Send a batch, to a new process if this one has ended while idle."""
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
                    raise CheckWorkerLost("crash", f"the process takes no more checks: {e}") from e

    def _send(self, message: Any) -> None:
        assert self._socket is not None
        self._socket.settimeout(START_TIMEOUT)
        self._socket.sendall(pickle.dumps(message))

    def _receive(self, timeout: float) -> Any:
        """The next message; CheckWorkerLost where none comes in time, or none can come any more."""
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
                    raise CheckWorkerLost("crash", self._exit_description()) from None
                if remaining <= 0:
                    raise CheckWorkerLost("timeout", f"no verdict within {timeout:g} s") from None
            except OSError as e:
                raise CheckWorkerLost("crash", f"{self._exit_description()} ({e})") from e
            else:
                if not data:
                    raise CheckWorkerLost("crash", self._exit_description())
                self._receive_buffer += data
        line, _, self._receive_buffer = self._receive_buffer.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError as e:
            raise CheckWorkerLost("crash", "the process wrote into its connection") from e

    def _exit_description(self) -> str:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(0.5)
            return f"the process {f'exited with {code}' if code >= 0 else f'died of {signal.Signals(-code).name}'}"
        return "the process closed its connection"

    def kill(self) -> None:
        """Kill the process and what it has started; a thread that waits for its verdict gets CheckWorkerLost."""
        if (process := self._process) is not None:
            with suppress(ProcessLookupError, PermissionError):  # macOS says the second of a process that has ended
                os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kill the process, if there is one, and release its resources."""
        self.kill()
        if self._process is not None:
            self._process.wait()
        if self._socket is not None:
            self._socket.close()
        if self._lifeline_fd >= 0:
            os.close(self._lifeline_fd)
        self._process, self._socket, self._lifeline_fd, self._receive_buffer = None, None, -1, b""


# What follows runs in the process.


def process_main(socket_fd: int, lifeline_fd: int) -> None:
    """Serve requests from the socket until it closes; die when the pipe `lifeline_fd` closes."""
    for descriptor in (socket_fd, lifeline_fd):
        os.set_inheritable(descriptor, False)
    _kill_group_on_close(lifeline_fd)
    _ignore_sigterm()
    with socket.socket(fileno=socket_fd) as connection, connection.makefile("rb") as reader:
        verifier, memory_bytes = pickle.load(reader)
        name, _, argument = verifier.partition(":")
        try:
            _limit_memory(memory_bytes)
            check: Check = registry.load("tasks.verifiers", name, "build").build(argument)
        except BaseException as e:  # a user's code may raise anything; the parent makes an InputError of it
            is_described = isinstance(e, InputError)
            _send_line(connection, str(e) if is_described else f"cell.verifier.use = {name}: {describe_exception(e)}")
            return
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        _send_line(connection, "")
        _serve(check, connection, reader)


def _serve(check: Check, connection: socket.socket, reader: BinaryIO) -> None:
    worker_pid = os.getpid()
    while True:
        try:
            batch: list[CheckRequest] = pickle.load(reader)
        except EOFError:
            return
        for problem, prompt, response in batch:
            verdict = run_check(check, problem, prompt, response)
            if os.getpid() != worker_pid:
                os._exit(0)  # a child that a check forked and that came back here
            _send_line(connection, verdict)


def run_check(check: Check, problem: Problem, prompt: str, response: str) -> Verdict:
    """The check's verdict; of one that raises, a failure: memory, input (the problem cannot be judged) or error."""
    try:
        correct, parsed, failure, message = check(problem, prompt, response)
        return Verdict(bool(correct), bool(parsed), str(failure), str(message))
    except MemoryError:
        pass  # returned below, when the frames that hold the memory are gone
    except InputError as e:
        return Verdict(False, False, "input", str(e))
    except BaseException as e:  # SystemExit and KeyboardInterrupt too: a check costs its own rollout alone
        return Verdict(False, False, "error", describe_exception(e))
    return Verdict(False, False, "memory", "MemoryError: more than cell.verifier.memory_gb")


def _send_line(connection: socket.socket, message: str | Verdict) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _limit_memory(memory_bytes: int) -> None:
    """Bound the memory this process may write to; let the kernel end workers before the training run."""
    # RLIMIT_DATA counts what is written to; RLIMIT_AS would count what libraries reserve and never touch, too.
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft_limit = memory_bytes if hard_limit == resource.RLIM_INFINITY else min(memory_bytes, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (soft_limit, hard_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _ignore_sigterm() -> None:
    """Schedulers send it to every process of a job, and the run needs verdicts until its update ends."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def _kill_group_on_close(lifeline_fd: int) -> None:
    """Have the kernel kill this process's group when the pipe's other end closes: when the parent is gone. Linux only;
    elsewhere a worker ends with its check, as its socket is closed."""
    # Not a thread that watches the pipe: a check inside C code may hold the interpreter's lock for ever.
    if sys.platform != "linux":
        return
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline_fd], [], [], 0)[0]:  # closed before this was set
        os.killpg(0, signal.SIGKILL)
