"""The rollout worker in a process of its own, with its own jax and its own simulated devices of the CPU.

XLA:CPU runs all devices of a process on one pool of threads; two processes share the cores as the kernel schedules
them. Sampling and training overlap either way; benchmarks/pipeline.py measures which is faster. The process lives as
long as the sweep's programs and serves one cell after another.

    trainer                          worker
    WorkerSetup                      compiles its programs
                                     WorkerReady
    RolloutJob, then WorkerRequests  serves one cell (`serve_requests` of rl/async_rl/transport.py)
                                     ChunkReports
    StopSampling                     CellEnded: the next RolloutJob may come

Messages are pickles over a socket; parameters and rollouts are host arrays. The process is started, not forked, because
a fork would break this process's threads; and in a session of its own, so that Ctrl-C reaches the trainer alone. It
ends when its socket closes, and so with the trainer, however the trainer ends.
"""

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import IO, Any, NamedTuple

import jax

from isojax.core.errors import RunFailed
from isojax.distributed.mesh_spec import MeshShape
from isojax.distributed.sharding import make_mesh
from isojax.models.transformer import Params
from isojax.rl.async_rl.rollout_buffer import SamplerPrograms, SamplerSpec
from isojax.rl.async_rl.rollout_worker import RolloutJob, RolloutWorker
from isojax.rl.async_rl.transport import ChunkReport, StopSampling, WorkerRequest, serve_requests

# Settings of jax that isojax/launch makes in the trainer's process
INHERITED_SETTINGS = ("jax_compilation_cache_dir", "jax_default_matmul_precision")
EXIT_TIMEOUT = 10.0  # seconds that a process has to end after its socket is closed
_BOOTSTRAP = """import json, sys
sys.path[:] = json.loads(sys.argv[2])
from isojax.rl.async_rl.worker_process import main
main(int(sys.argv[1]))"""


class WorkerSetup(NamedTuple):
    """The first message: settings of jax, what the programs are built from, and their mesh."""

    jax_settings: Mapping[str, Any]
    spec: SamplerSpec
    mesh: MeshShape


class WorkerReady(NamedTuple):
    """The programs are compiled."""


class CellEnded(NamedTuple):
    """The worker has stopped sampling for the cell."""


class WorkerFailed(NamedTuple):
    """The error that ended the process, in one line and with its stack trace."""

    summary: str
    stack_trace: str


def send(connection: Connection, message: Any) -> None:
    """Sends a message, whose arrays are host arrays."""
    connection.send_bytes(pickle.dumps(message, protocol=5))


def receive(connection: Connection) -> Any:
    """The next message; raises EOFError or OSError where the connection is closed."""
    return pickle.loads(connection.recv_bytes())


def main(descriptor: int) -> None:
    """Serves the socket until it closes."""
    os.set_inheritable(descriptor, False)
    # A scheduler sends SIGTERM to all processes of a job; the trainer saves its state, then ends this one.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with Connection(descriptor) as connection:
        try:
            _serve_cells(connection)
        except BaseException as e:  # the trainer raises it
            with suppress(OSError):
                send(connection, WorkerFailed(f"{type(e).__name__}: {e}", traceback.format_exc()))


def _serve_cells(connection: Connection) -> None:
    setup: WorkerSetup = receive(connection)
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_forward_requests, args=(connection, inbox), daemon=True).start()
    for name, value in setup.jax_settings.items():
        jax.config.update(name, value)
    programs = SamplerPrograms(setup.spec, make_mesh(setup.mesh, jax.devices()))
    programs.compile()
    send(connection, WorkerReady())
    while True:
        job: RolloutJob = inbox.get()
        serve_requests(RolloutWorker(programs, job), inbox, lambda message: send(connection, jax.device_get(message)))
        send(connection, CellEnded())


def _forward_requests(connection: Connection, inbox: SimpleQueue[Any]) -> None:
    """Receives every message at once, so that a trainer that sends never waits for a chunk; ends the process when the
    connection closes."""
    try:
        while True:
            inbox.put(receive(connection))
    except (EOFError, OSError):
        os._exit(0)


class WorkerProcess:
    """The process, as the trainer sees it. `launch` starts it; `start` starts it again if it has died."""

    def __init__(self, spec: SamplerSpec, mesh: MeshShape):
        jax_settings = {name: getattr(jax.config, name) for name in INHERITED_SETTINGS} | {
            "jax_num_cpu_devices": mesh.devices
        }
        self._setup = WorkerSetup(jax_settings, spec, mesh)
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._ready = False
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Starts the process, unless it runs; it compiles its programs while the caller goes on."""
        if self.process is None or self.process.poll() is not None:
            self.stop()
            self._start_process()

    def wait_until_ready(self) -> None:
        """Waits until the process has compiled its programs.

        Raises:
            RunFailed: it could not, or has ended.
        """
        if self._ready:
            return
        try:
            message = receive(self._connection)
        except (EOFError, OSError) as e:
            raise self.exit_error() from e
        if isinstance(message, WorkerFailed):
            raise worker_error(message)
        self._ready = True

    def start(self, job: RolloutJob) -> Connection:
        """The connection to the process, which starts on a cell."""
        self.launch()
        self.wait_until_ready()
        try:
            send(self._connection, job)
        except OSError as e:
            raise self.exit_error() from e
        return self._connection

    def _start_process(self) -> None:
        self._ready = False
        python_path = [p for p in dict.fromkeys([*sys.path, os.getcwd()]) if isinstance(p, str)]
        xla_flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
        parent_socket, child_socket = socket.socketpair()
        with child_socket, ExitStack() as resources:
            self._connection = resources.enter_context(Connection(parent_socket.detach()))
            self._log: IO[bytes] = resources.enter_context(tempfile.TemporaryFile())
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOTSTRAP, str(child_socket.fileno()), json.dumps(python_path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=(child_socket.fileno(),),
                start_new_session=True,
                env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags},
            )
            resources.callback(self.process.wait)
            resources.callback(self.process.kill)
            self._finalizer = weakref.finalize(self, resources.pop_all().close)  # also at the interpreter's exit
        send(self._connection, self._setup)

    def exit_error(self) -> RunFailed:
        """How a process that has closed its connection ended, and the last line of its stderr."""
        assert self.process is not None and self._finalizer is not None
        if not self._finalizer.alive:
            return RunFailed("the sampler's process was ended: its sweep is over")
        try:
            exit_code = self.process.wait(EXIT_TIMEOUT)
            ending = f"died of {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exited with {exit_code}"
        except subprocess.TimeoutExpired:
            ending = "closed its connection"
            self.process.kill()
        self._log.seek(0)
        stderr_lines = self._log.read().decode(errors="replace").strip().splitlines()
        return RunFailed(f"the sampler's process {ending}" + (f": {stderr_lines[-1]}" if stderr_lines else ""))

    def stop(self) -> None:
        """Kills the process, if it runs."""
        if self._finalizer is not None:
            self._finalizer()


def worker_error(message: WorkerFailed) -> RunFailed:
    """The error that the trainer raises for one of its worker."""
    error = RunFailed(f"the sampler's process: {message.summary}")
    error.add_note(message.stack_trace)
    return error


class ProcessTransport:
    """The connection to a cell's worker in the process."""

    def __init__(self, worker_process: WorkerProcess, job: RolloutJob):
        self.worker_process, self.job = worker_process, job
        self.connection = worker_process.start(job)

    def start(self, on_report: Callable[[ChunkReport], None], on_failure: Callable[[BaseException], None]) -> None:
        self.thread = threading.Thread(
            target=partial(self._listen, on_report, on_failure), daemon=True, name="sampler's process"
        )
        self.thread.start()

    def _listen(self, on_report: Callable[[ChunkReport], None], on_failure: Callable[[BaseException], None]) -> None:
        """Receives the process's messages until the cell ends. After a failure it goes on receiving, because the
        process must not block on a full socket."""
        delivering = True
        while True:
            try:
                message = receive(self.connection)
            except (EOFError, OSError):
                return on_failure(self.worker_process.exit_error())
            if isinstance(message, CellEnded):
                return None
            if isinstance(message, WorkerFailed):
                on_failure(worker_error(message))
                delivering = False
            elif delivering:
                try:
                    on_report(message)
                except BaseException as e:  # the verifier's error, which the thread that trains raises
                    on_failure(e)
                    delivering = False

    def sendable_params(self, params: Params) -> Params:
        return jax.device_get(params)

    def post(self, request: WorkerRequest) -> None:
        try:
            send(self.connection, request)
        except OSError:
            self.thread.join()  # it reports why to the trainer, which raises it when it next waits for a batch

    def close(self) -> None:
        self.post(StopSampling())
        self.thread.join()
