"""The trainer's end of one process of checks: a CheckWorker starts it, sends it checks, kills and replaces it.

It sends pickles: (nonce, (`cell.verifier.use`, bytes of memory)), then batches of (nonce, CheckRequest). The process
(check_server.py) answers each by a line: the nonce, then JSON. A line without the nonce of what is asked was written by
something else that has the connection open, such as a check. The process is new, not a fork, which the trainer's
threads would break."""

import json
import os
import pickle
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
from typing import IO, Any

from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.verifiers import Verdict

CheckRequest = tuple[Problem, str, str]  # problem, prompt, response

START_TIMEOUT = 60.0  # seconds for a worker to import what the verifier needs
MAX_STARTS = 5  # failed starts in a row of a worker that was lost, before the run ends
RESTART_PAUSE = 0.5  # seconds after the first failed start; doubled after each
STOP_TIMEOUT = 5.0  # seconds that a process has to end what its checks have started
MAX_REPLY_BYTES = 1 << 16  # of a line
# Failures that may be the fault of an earlier check, or of the machine: these checks are repeated, in a new process.
REPEATED_FAILURES = ("machine", "memory", "forged")
_WORKER_SCRIPT = """import json, sys
sys.path[:] = json.loads(sys.argv[3])
from isojax.tasks.check_server import process_main
process_main(int(sys.argv[1]), int(sys.argv[2]))"""


class CheckWorkerLost(Exception):
    """A worker cannot be used any more: (kind of failure, message)."""


class CheckWorker:
    """One process of checks. One thread at a time may use it, except for `kill`."""

    def __init__(self, verifier: str | Mapping[str, str], memory_bytes: int, timeout: float) -> None:
        self._verifier, self._memory_bytes, self._timeout = verifier, memory_bytes, timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lifeline: socket.socket | None = None  # all of the worker's processes end when this closes
        self._receive_buffer = b""

    def start(self) -> None:
        """Start the process and wait until it is ready; InputError with its reason where it cannot be."""
        with tempfile.TemporaryFile() as log:
            try:
                self._launch(log)
                (nonce,) = _new_nonces(1)
                self._send((nonce, (self._verifier, self._memory_bytes)))
                error: str = self._receive(nonce, START_TIMEOUT)
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
            self._lifeline, worker_lifeline = socket.socketpair()
            with worker_lifeline:
                descriptors = (worker_socket.fileno(), worker_lifeline.fileno())
                arguments = [*map(str, descriptors), json.dumps(import_path)]
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _WORKER_SCRIPT, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    pass_fds=descriptors,
                    start_new_session=True,
                    env=environment,
                )

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
        for request, verdict in zip(batch, self._run_batch(batch, cancelled), strict=False):
            if verdict.failure in REPEATED_FAILURES and not cancelled.is_set():
                yield next(self._run_batch([request], cancelled))
                return
            yield verdict

    def _run_batch(self, batch: Sequence[CheckRequest], cancelled: threading.Event) -> Iterator[Verdict]:
        nonces = _new_nonces(len(batch))
        try:
            self._send_batch(list(zip(nonces, batch, strict=True)), cancelled)
            for nonce in nonces:
                *fields, is_worn = self._receive(nonce, self._timeout)
                if is_worn:
                    self.stop()
                yield Verdict(*fields)
                if is_worn:
                    return
        except CheckWorkerLost as e:
            self.stop()
            yield Verdict(False, False, *e.args)

    def _send_batch(self, batch: Sequence[tuple[str, CheckRequest]], cancelled: threading.Event) -> None:
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

    def _receive(self, nonce: str, timeout: float) -> Any:
        """The answer to `nonce`; CheckWorkerLost where it does not come in time, or cannot come any more."""
        assert self._socket is not None and self._process is not None
        deadline, exited = time.monotonic() + timeout, False
        while b"\n" not in self._receive_buffer and len(self._receive_buffer) <= MAX_REPLY_BYTES:
            remaining = deadline - time.monotonic()
            if remaining <= 0 and not exited:
                raise CheckWorkerLost("timeout", f"no verdict within {timeout:g} s")
            self._socket.settimeout(max(0.001, min(remaining, 0.1)))
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                if exited:
                    raise self._describe_exit() from None
                # A child of a check may hold the socket open when the process has gone.
                exited = self._process.poll() is not None
            except OSError as e:
                raise self._describe_exit() from e
            else:
                if not data:
                    raise self._describe_exit()
                self._receive_buffer += data
        line, _, self._receive_buffer = self._receive_buffer.partition(b"\n")
        line_nonce, _, message = line.partition(b" ")
        if line_nonce != nonce.encode():
            raise CheckWorkerLost("forged", "something other than the verifier wrote into its connection")
        return json.loads(message)

    def _describe_exit(self) -> CheckWorkerLost:
        assert self._process is not None
        try:
            code = self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            return CheckWorkerLost("crash", "the process closed its connection")
        if code == -signal.SIGKILL:
            return CheckWorkerLost("machine", "the process died of SIGKILL: the machine may be short of memory")
        way = f"exited with {code}" if code >= 0 else f"died of {signal.Signals(-code).name}"
        return CheckWorkerLost("crash", f"the process {way}")

    def kill(self) -> None:
        """Kill the process and what it has started; a thread that waits for its verdict gets CheckWorkerLost."""
        if (lifeline := self._lifeline) is not None:
            with suppress(OSError):
                lifeline.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Kill the process, if there is one, and release its resources."""
        self.kill()
        if self._process is not None:
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:  # it had not begun, or the kernel cannot end a process
                self._process.kill()
                self._process.wait()
        for end in (self._socket, self._lifeline):
            if end is not None:
                end.close()
        self._process, self._socket, self._lifeline, self._receive_buffer = None, None, None, b""


def _new_nonces(count: int) -> list[str]:
    text = secrets.token_hex(8 * count)
    return [text[16 * i : 16 * (i + 1)] for i in range(count)]
