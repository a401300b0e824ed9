"""Preemption: schedulers send SIGTERM before they take a machine away.

A run then saves its state and ends.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

REQUESTED = threading.Event()  # whether the runs of this process are asked to end
ANSWER = (
    "stopping: SIGTERM came; runs save their state after the update they are in. "
    "A second SIGTERM ends at once.\n"
)


class Preempted(Exception):
    """A run has ended because a signal asked it to; its state is saved."""

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
        # Not by print: the signal may have come while another line is being printed.
        with suppress(OSError):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, ANSWER.encode())
        signal.signal(signal.SIGTERM, previous_handler)

    previous_handler = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
        REQUESTED.clear()
