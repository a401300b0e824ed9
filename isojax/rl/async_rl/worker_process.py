"""A pipeline's sampler in a process of its own, with its own jax and its own simulated devices of the CPU.

XLA:CPU runs all devices of a process on one pool of threads; two processes share the cores as the kernel sees fit. Both
overlap, and which is faster is a matter of measurement: benchmarks/pipeline.py. The process lives as long as the
sweep's programs and serves one cell after another.

    trainer                                   its sampler
    Made                                      compiles nothing yet
    Start, and Begin, Publish, Compile ...    one cell: `serve` of rl/async_rl/transport.py
                                              Visited, rows (of Compile)
    Stop                                      Ended: the next Start may come

Pickles go both ways over a socket; parameters and rows are host arrays. The process is new, not a fork of this one,
whose threads a fork would break, and of a session of its own, so that Ctrl-C reaches the trainer alone. It ends when
its socket closes: with the trainer, however that went.
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
from isojax.sampling.batch import Rollouts

INHERITED_SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_default_matmul_precision",
)  # what launch/local/local_runner.py sets in the trainer's process
EXIT_TIMEOUT = 10.0  # for a process whose socket is closed to end by itself
_BOOTSTRAP = """import json, sys
sys.path[:] = json.loads(sys.argv[2])
from isojax.rl.async_rl.worker_process import main
main(int(sys.argv[1]))"""


class WorkerSetup(NamedTuple):
    """What the process is told first: settings of jax, what its programs are made of, and its mesh."""

    jax_settings: Mapping[str, Any]
    spec: SamplerSpec
    mesh: MeshShape


class CellEnded(NamedTuple):
    """The cell's sampler has stopped."""


class WorkerFailed(NamedTuple):
    """What has ended the process: in one line, and where."""

    summary: str
    stack_trace: str


def send(connection: Connection, message: Any) -> None:
    """A message of host arrays."""
    connection.send_bytes(pickle.dumps(message, protocol=5))


def receive(connection: Connection) -> Any:
    """The next message; EOFError or OSError where there will be none."""
    return pickle.loads(connection.recv_bytes())


def main(descriptor: int) -> None:
    """Serve the socket until it closes."""
    os.set_inheritable(descriptor, False)
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # sent to all of a job, it is the trainer's, which ends this process when it has saved
    with Connection(descriptor) as connection:
        try:
            _serve_cells(connection)
        except BaseException as e:  # told to the trainer, which raises it
            with suppress(OSError):
                send(connection, WorkerFailed(f"{type(e).__name__}: {e}", traceback.format_exc()))


def _serve_cells(connection: Connection) -> None:
    setup: WorkerSetup = receive(connection)
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_forward_requests, args=(connection, inbox), daemon=True).start()
    for name, value in setup.jax_settings.items():
        jax.config.update(name, value)
    programs = SamplerPrograms(setup.spec, make_mesh(setup.mesh, jax.devices()))
    while True:
        job: RolloutJob = inbox.get()
        serve_requests(RolloutWorker(programs, job), inbox, lambda message: send(connection, jax.device_get(message)))
        send(connection, CellEnded())


def _forward_requests(connection: Connection, inbox: SimpleQueue[Any]) -> None:
    """Takes what comes at once, so that a trainer that sends never waits for a visit; where it is gone, ends the
    process at once.
    """
    try:
        while True:
            inbox.put(receive(connection))
    except (EOFError, OSError):
        os._exit(0)


class WorkerProcess:
    """The process: started when a cell first wants it, and once more where it has died."""

    def __init__(self, spec: SamplerSpec, mesh: MeshShape):
        jax_settings = {name: getattr(jax.config, name) for name in INHERITED_SETTINGS} | {
            "jax_num_cpu_devices": mesh.devices
        }
        self._setup = WorkerSetup(jax_settings, spec, mesh)
        self._finalizer: weakref.finalize[..., Any] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, job: RolloutJob) -> Connection:
        """The connection to the process, which begins with a cell."""
        if self.process is None or self.process.poll() is not None:
            self.stop()
            self._launch()
        try:
            send(self._connection, job)
        except OSError as e:
            raise self.exit_error() from e
        return self._connection

    def _launch(self) -> None:
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
        """How a process that has closed its connection ended, and what it said last."""
        assert self.process is not None and self._finalizer is not None
        if not self._finalizer.alive:
            return RunFailed("the sampler's process was ended, as nobody wanted it any more")
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
        """Kills the process, if there is one."""
        if self._finalizer is not None:
            self._finalizer()


class ProcessTransport:
    """The link to a cell's sampler in the process."""

    def __init__(self, worker_process: WorkerProcess, job: RolloutJob):
        self.worker_process, self.job = worker_process, job
        self.connection = worker_process.start(job)

    def start(
        self, on_message: Callable[[ChunkReport | Rollouts], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        self.thread = threading.Thread(
            target=partial(self._listen, on_message, on_failure), daemon=True, name="sampler's process"
        )
        self.thread.start()

    def _listen(
        self, on_message: Callable[[ChunkReport | Rollouts], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        """Hears what the process tells until the cell's end; after a failure nobody listens, and the process must not
        wait for that.
        """
        delivering = True
        while True:
            try:
                message = receive(self.connection)
            except (EOFError, OSError):
                return on_failure(self.worker_process.exit_error())
            if isinstance(message, CellEnded):
                return None
            if isinstance(message, WorkerFailed):
                error = RunFailed(f"the sampler's process: {message.summary}")
                error.add_note(message.stack_trace)
                on_failure(error)
                delivering = False
            elif delivering:
                try:
                    on_message(message)
                except BaseException as e:  # what the verifier raises, told to the thread that trains
                    on_failure(e)
                    delivering = False

    def sendable_params(self, params: Params) -> Params:
        return jax.device_get(params)

    def post(self, request: WorkerRequest) -> None:
        try:
            send(self.connection, request)
        except OSError:
            self.thread.join()  # which learns why, and lets the trainer know when it next waits for a batch

    def close(self) -> None:
        self.post(StopSampling())
        self.thread.join()
