"""One process of checks, replaced after a loss: a new process, not a fork, which this one's threads would break."""

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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

from isojax.core.errors import InputError
from isojax.tasks.grading.grading_worker import CheckRequest
from isojax.tasks.verifiers import Verdict

START_TIMEOUT = 60.0  # seconds for a worker to import what the verifier needs
MAX_STARTS = 5  # failed starts in a row of a worker that was lost, before the run ends
RESTART_PAUSE = 0.5  # seconds after the first failed start; doubled after each
_WORKER_SCRIPT = """import json, sys
sys.path[:] = json.loads(sys.argv[3])
from isojax.tasks.grading.grading_worker import main
main(int(sys.argv[1]), int(sys.argv[2]))"""


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
