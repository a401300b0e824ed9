"""A process that surely ends when this one does, together with everything that it has started.

Three processes take part: this one; the guard, its child, which only watches; and the guard's
child, which does the work. The guard kills the worker when the lifeline, a socket to this process,
closes, because this process has closed it or is gone; and it kills what the worker leaves behind.
On Linux orphans of the worker become the guard's children; elsewhere those that have left the
worker's process group live on."""

import ctypes
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

STOP_TIMEOUT = 5.0  # seconds that the guard has to end everything
# Options of Linux's prctl.
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
_SCRIPT = """import json, sys
sys.path[:] = json.loads(sys.argv[4])
from isojax.tasks.guarded_process import process_main
process_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))"""


class GuardedProcess:
    """A process that runs `serve(socket)` of a module. It is new, not a fork, which this one's
    threads would break."""

    def __init__(self, module: str, log: IO[bytes]) -> None:
        """Start the process. module: the name of the module whose `serve` it runs, such as
        "isojax.tasks.check_process"; log: a file that gets what it prints to stderr. `socket` is
        then connected to the socket of `serve`. OSError where it cannot be started."""
        folders = dict.fromkeys([*sys.path, os.getcwd()])  # each once
        import_path = [folder for folder in folders if isinstance(folder, str)]  # its sys.path
        # Accelerators belong to the training run; threads of numerical libraries would crowd out
        # the other workers.
        environment = {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            **os.environ,
            "JAX_PLATFORMS": "cpu",
        }

        # When this process ends or closes the lifeline, the guard kills the worker.
        self.socket, other_socket = socket.socketpair()
        self._lifeline, other_lifeline = socket.socketpair()
        try:
            with other_socket, other_lifeline:
                # The order is that of the arguments of _SCRIPT: sys.argv[1] to [4].
                descriptors = (other_socket.fileno(), other_lifeline.fileno())
                arguments = [module, *map(str, descriptors), json.dumps(import_path)]
                self.popen = subprocess.Popen(  # the guard, which ends as the process does
                    [sys.executable, "-P", "-c", _SCRIPT, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    pass_fds=descriptors,
                    start_new_session=True,
                    env=environment,
                )
        except OSError:
            self._close()
            raise

    def kill(self) -> None:
        """Have the guard end everything; any thread may call it."""
        with suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """End everything and release what this process holds of it."""
        self.kill()
        try:
            self.popen.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            # The guard had not begun, or the kernel cannot end a process.
            self.popen.kill()
            self.popen.wait()
        self._close()

    def _close(self) -> None:
        self.socket.close()
        self._lifeline.close()


def process_main(module: str, socket_fd: int, lifeline_fd: int) -> None:
    """What a GuardedProcess runs: the guard, and in a fork of it the worker, which calls the
    module's `serve` with the socket. socket_fd, lifeline_fd: file descriptors of the other ends of
    GuardedProcess.socket and its lifeline. Nothing of it returns in the guard."""
    # No core files of checks that crash.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    control_process(PR_SET_CHILD_SUBREAPER, 1)
    process_pid = os.fork()
    if process_pid:
        os.close(socket_fd)
        _guard(process_pid, lifeline_fd)  # does not return

    # From here on the worker, which is to end with the guard, and has a process group of its own.
    control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    os.close(lifeline_fd)
    # Schedulers send SIGTERM to every process of a job, and the run needs verdicts until its update
    # ends. What checks start ends by it, as programs do.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    os.set_inheritable(socket_fd, False)
    # A child reads no requests: the descriptor becomes that of stdin, which is /dev/null.
    os.register_at_fork(after_in_child=lambda: os.dup2(0, socket_fd))
    with socket.socket(fileno=socket_fd) as connection:
        importlib.import_module(module).serve(connection)


def control_process(option: int, value: int) -> None:
    """Set an option of this process by Linux's prctl; nothing elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _guard(process_pid: int, lifeline_fd: int) -> NoReturn:
    """The guard: wait until the worker, the process process_pid, has ended, kill it if the lifeline
    closes, kill what it has left behind, and end with the worker's exit code or signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as the process does

    def end_with_lifeline() -> None:
        os.read(lifeline_fd, 1)  # returns when it closes
        os.kill(process_pid, signal.SIGKILL)

    threading.Thread(target=end_with_lifeline, daemon=True).start()
    pid = status = 0  # os.wait gives the id and the exit status of any child that ends
    while pid != process_pid:  # another one is an orphan
        pid, status = os.wait()

    # What it has left behind: first its group, then orphans, whose children become this process's
    # when they end. Of a group that has ended, macOS raises PermissionError.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process_pid, signal.SIGKILL)
    with suppress(ChildProcessError):  # raised by os.wait() when no child is left
        while True:
            for child in _children():
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.wait()

    exit_code = os.waitstatus_to_exitcode(status)
    if exit_code < 0:
        with suppress(OSError):  # SIGKILL's cannot be set
            signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    os._exit(exit_code)


def _children() -> Iterator[int]:
    """The process ids of this process's children."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # "123 (a name, with any characters) S 45 ...", where 45 is the parent's id
            behind_name = path.read_bytes().rpartition(b")")[2]
            parent = int(behind_name.split()[1])
            if parent == os.getpid():
                yield int(path.parent.name)
