"""What runs for one CheckWorker: a process that runs the checks, and its parent, the guard, which runs none.

The guard ends the process, and all that checks have started, when the trainer closes the lifeline or is gone; and what
a process that has ended leaves behind. On Linux an orphan becomes the guard's child, whatever its session; elsewhere
what has left the process's group lives on. Like the verifiers, this imports little."""

import ctypes
import errno
import json
import os
import pickle
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.check_process import CheckRequest
from isojax.tasks.verifiers import Check, Verdict, describe_exception, load_verifier

MAX_MESSAGE_LENGTH = 2000  # characters of a verdict's message
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl
# What a machine is out of: descriptors, memory, disk, processes.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)


def process_main(socket_fd: int, lifeline_fd: int) -> None:
    """Serve requests from the socket until it closes; end when the lifeline closes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _control_process(PR_SET_CHILD_SUBREAPER, 1)
    server_pid = os.fork()
    if server_pid:
        os.close(socket_fd)
        _guard(server_pid, lifeline_fd)
    _control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    os.close(lifeline_fd)
    _serve(socket_fd)


def _control_process(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _guard(server_pid: int, lifeline_fd: int) -> NoReturn:
    """Wait until the process of checks has ended, end what it has left behind, and end as it did."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as the process of checks does

    def end_with_lifeline() -> None:
        os.read(lifeline_fd, 1)  # returns when it closes
        os.kill(server_pid, signal.SIGKILL)

    threading.Thread(target=end_with_lifeline, daemon=True).start()
    pid = status = 0
    while pid != server_pid:  # another one is an orphan
        pid, status = os.wait()
    with suppress(ProcessLookupError, PermissionError):  # macOS says the second of a group that has ended
        os.killpg(server_pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:  # the children of those that end here become children of this process
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


def _children() -> list[int]:
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if int(path.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                children.append(int(path.parent.name))
    return children


def _serve(socket_fd: int) -> None:
    os.set_inheritable(socket_fd, False)
    _ignore_sigterm()
    os.register_at_fork(after_in_child=lambda: os.dup2(0, socket_fd))  # a child reads no requests
    with socket.socket(fileno=socket_fd) as connection, connection.makefile("rb") as reader:
        nonce, (verifier, memory_bytes) = pickle.load(reader)
        try:
            _limit_memory(memory_bytes)
            check = load_verifier(verifier).build()
        except BaseException as e:  # a user's code may raise anything; the parent makes an InputError of it
            is_described = isinstance(e, InputError)
            error = str(e) if is_described else f"cell.verifier.use = {verifier}: {describe_exception(e)}"
            _reply(connection, nonce, error[:MAX_MESSAGE_LENGTH])
            return
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        _reply(connection, nonce, "")
        _run_batches(check, connection, reader)


def _run_batches(check: Check, connection: socket.socket, reader: BinaryIO) -> None:
    own_pid, first_free = os.getpid(), _lowest_free_descriptor(connection)
    while True:
        try:
            batch: list[tuple[str, CheckRequest]] = pickle.load(reader)
        except EOFError:
            return
        # Checks may leave descriptors open, and hide the errors that the next ones meet.
        most = (first_free + resource.getrlimit(resource.RLIMIT_NOFILE)[0]) // 2
        for nonce, (problem, prompt, response) in batch:
            verdict = run_check(check, problem, prompt, response)
            if os.getpid() != own_pid:
                os._exit(0)  # a child that a check forked and that came back here
            is_worn = verdict.failure in ("machine", "memory") or _lowest_free_descriptor(connection) > most
            _reply(connection, nonce, [*verdict, is_worn])


def _lowest_free_descriptor(connection: socket.socket) -> int:
    try:
        descriptor = os.dup(connection.fileno())
    except OSError:
        return sys.maxsize
    os.close(descriptor)
    return descriptor


def run_check(check: Check, problem: Problem, prompt: str, response: str) -> Verdict:
    """The check's verdict; of one that raises, a failure: memory, machine (no descriptor, disk or process is left),
    input (the problem cannot be judged) or error."""
    try:
        correct, parsed, failure, message, scores = Verdict(*check(problem, prompt, response))
        plain_scores = None if scores is None else {str(name): float(score) for name, score in scores.items()}
        return Verdict(bool(correct), bool(parsed), str(failure), str(message)[:MAX_MESSAGE_LENGTH], plain_scores)
    except MemoryError:
        pass  # returned below, when the frames that hold the memory are gone
    except InputError as e:
        return Verdict(False, False, "input", str(e)[:MAX_MESSAGE_LENGTH])
    except BaseException as e:  # SystemExit and KeyboardInterrupt too: a check costs its own rollout alone
        return Verdict(False, False, "machine" if _is_shortage(e) else "error", describe_exception(e))
    return Verdict(False, False, "memory", "MemoryError: more than cell.verifier.memory_gb")


def _is_shortage(error: BaseException | None) -> bool:
    """Whether the machine lacked something, as this exception says or one that led to it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            return True
        error = error.__cause__ or error.__context__
    return False


def _reply(connection: socket.socket, nonce: str, message: str | list[object]) -> None:
    connection.sendall(f"{nonce} {json.dumps(message)}\n".encode())


def _limit_memory(memory_bytes: int) -> None:
    """Bound the memory this process may write to; let the kernel end workers before the training run."""
    # RLIMIT_DATA counts what is written to; RLIMIT_AS would count what libraries reserve and never touch, too.
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft_limit = memory_bytes if hard_limit == resource.RLIM_INFINITY else min(memory_bytes, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (soft_limit, hard_limit))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _ignore_sigterm() -> None:
    """Schedulers send it to every process of a job, and the run needs verdicts until its update ends."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
