"""What runs in a worker process. The parent sends pickles: (`cell.verifier.use`, bytes of memory), then batches of
CheckRequest; the worker answers by lines of JSON: an error, empty where the start succeeded, then Verdicts."""

import contextlib
import fcntl
import json
import os
import pickle
import resource
import select
import signal
import socket
import sys
from pathlib import Path
from typing import BinaryIO

from isojax.core import registry
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.grading.user_functions import describe_exception
from isojax.tasks.verifiers import Check, Verdict

CheckRequest = tuple[Problem, str, str]  # problem, prompt, response


def main(socket_fd: int, lifeline_fd: int) -> None:
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
            _send(connection, str(e) if is_described else f"cell.verifier.use = {name}: {describe_exception(e)}")
            return
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        _send(connection, "")
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
            _send(connection, verdict)


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


def _send(connection: socket.socket, message: str | Verdict) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _limit_memory(memory_bytes: int) -> None:
    """Bound the memory this process may write to; let the kernel end workers before the training run."""
    # RLIMIT_DATA counts what is written to; RLIMIT_AS would count what libraries reserve and never touch, too.
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft_limit = memory_bytes if hard_limit == resource.RLIM_INFINITY else min(memory_bytes, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (soft_limit, hard_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):
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
