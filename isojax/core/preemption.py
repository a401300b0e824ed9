"""Preemption: schedulers send SIGTERM before they take a machine away, and sessions end.

A run then saves its state and ends.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

REQUESTED = threading.Event()  # whether the runs of this process are asked to end
_time_is_up = threading.Event()  # whether a time limit has asked them, not a signal
ANSWER = (
    "stopping: SIGTERM came; runs save their state after the update they are in. "
    "A second SIGTERM ends at once.\n"
)
TIME_IS_UP = (
    "stopping: run.time_limit is reached; runs save their state after the update they are in, and"
    " labelling ends after the problems it is at.\n"
)
# By time.monotonic(), when this process began, nearly: the command line imports this module first.
STARTED_AT = time.monotonic()


class Preempted(Exception):
    """A run has ended because a signal or a time limit asked it to; its state is saved.

    The command line prints the message, a sentence, and after it the command that goes on.
    """

    def __init__(self, message: str, signum: signal.Signals = signal.SIGTERM):
        super().__init__(message)
        self.signum = signum


@contextmanager
def handle_sigterm() -> Iterator[None]:
    """Within this context the first SIGTERM only sets REQUESTED; a second one ends the process.

    Runs look at REQUESTED after each update. The end of the context clears it. To be entered in the
    main thread, as Python wants of signal handlers.
    """

    # `previous_handler`, set below, is what SIGTERM does outside of the context: by default it ends
    # the process.
    def handler(signum: int, frame: FrameType | None) -> None:
        REQUESTED.set()
        _say(ANSWER)
        signal.signal(signal.SIGTERM, previous_handler)

    previous_handler = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
        REQUESTED.clear()


@contextmanager
def end_after(seconds: float | None) -> Iterator[None]:
    """Within this context, REQUESTED is set so many seconds after this process began.

    None: there is no limit. Where they have passed already, it is set at once.
    """
    if seconds is None:
        yield
        return

    def request() -> None:
        _time_is_up.set()
        REQUESTED.set()
        _say(TIME_IS_UP)

    timer = threading.Timer(max(0.0, seconds_left(seconds)), request)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        REQUESTED.clear()
        _time_is_up.clear()


def seconds_left(limit: float) -> float:
    """Of a limit in seconds after this process began, what is left; below 0 after it."""
    return limit - (time.monotonic() - STARTED_AT)


def describe_request() -> str:
    """What has asked the runs to end, for a message."""
    return "run.time_limit" if _time_is_up.is_set() else "SIGTERM"


def _say(answer: str) -> None:
    """Write a line to standard error, not by print: it may come while another is being printed."""
    with suppress(OSError):
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, answer.encode())
