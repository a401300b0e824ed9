"""What runs in a worker process: checks, one after another, as they come over a socket. No jax here, and little else.

The parent (tasks/verify.py) starts it as a session of its own, so that one kill takes whatever a check has started with it. It sends
pickles: first a Start, then lots of (problem, prompt, response). Back come lines of JSON, one for each: first how the start went, then
[right, answered, failure, message] as soon as a check ends. A verifier's standard output and error go nowhere; it reads no input.
"""

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
from typing import BinaryIO, NamedTuple

from isojax import registry
from isojax.tasks.verifiers import Check, Verdict
from isojax.tasks.verifiers.user import reason
from isojax.types import InputError, Problem

Item = tuple[Problem, str, str]  # problem, prompt, response


class Start(NamedTuple):
    """What a worker is told first: `cell.verifier.use`, and the bytes of memory it may write to."""

    use: str
    memory: int


def main(requests: int, lifeline: int) -> None:
    """Serve the socket `requests` until it closes; die with the pipe `lifeline`. Both are file descriptors."""
    for descriptor in (requests, lifeline):
        os.set_inheritable(descriptor, False)
    _die_with(lifeline)
    _outlive_sigterm()
    with socket.socket(fileno=requests) as connection, connection.makefile("rb") as reader:
        try:
            start: Start = pickle.load(reader)
            _limit(start.memory)
            name, _, argument = start.use.partition(":")
            check: Check = registry.load("tasks.verifiers", name, "build").build(argument)
        except BaseException as e:  # a user's code may raise anything; the parent makes an InputError of it
            _send(connection, str(e) if isinstance(e, InputError) else f"cell.verifier.use = {name}: {reason(e)}")
            return
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        _send(connection, "")
        _serve(check, connection, reader)


def _serve(check: Check, connection: socket.socket, reader: BinaryIO) -> None:
    own = os.getpid()
    while True:
        try:
            lot: list[Item] = pickle.load(reader)
        except EOFError:
            return
        for problem, prompt, response in lot:
            verdict = judge(check, problem, prompt, response)
            if os.getpid() != own:
                os._exit(0)  # a child that a check forked and that came back here
            _send(connection, verdict)


def judge(check: Check, problem: Problem, prompt: str, response: str) -> Verdict:
    """The check's verdict; of one that raises, its failure: memory, input (the problem cannot be judged at all) or error."""
    try:
        right, answered, failure, message = check(problem, prompt, response)
        return Verdict(bool(right), bool(answered), str(failure), str(message))
    except MemoryError:
        pass  # told below, when the frames that hold the memory are gone
    except InputError as e:
        return Verdict(False, False, "input", str(e))
    except BaseException as e:  # SystemExit and KeyboardInterrupt too: a check costs its own rollout alone
        return Verdict(False, False, "error", reason(e))
    return Verdict(False, False, "memory", "MemoryError: more than cell.verifier.memory_gb")


def _send(connection: socket.socket, message: str | Verdict) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _limit(memory: int) -> None:
    """Bound the memory this process may write to; let the kernel, where it runs out, end workers before the training run.

    RLIMIT_DATA counts what is written to, RLIMIT_AS also what libraries reserve and never touch, many GB of it. A process that a
    check starts has the same bound, for itself.
    """
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _outlive_sigterm() -> None:
    """Schedulers send SIGTERM to every process of a job. The run goes on to the end of its update, and needs its verdicts until then: this
    process heeds the signal to no effect. What a check starts is ended by it as ever."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def _die_with(lifeline: int) -> None:
    """Have the kernel kill this process's group when the pipe's other end closes: when the parent is gone, however it went.

    A thread that watches the pipe would not do: a check inside C code may keep the interpreter's lock for ever. Linux only; elsewhere
    a worker ends at the end of its check, as its socket is closed.
    """
    if sys.platform != "linux":
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # closed before this was set
        os.killpg(0, signal.SIGKILL)
