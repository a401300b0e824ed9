"""Preemption: schedulers send SIGTERM before they take a machine away, and a run saves its state before it ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

REQUESTED = threading.Event()  # whether the runs of this process are asked to end


class Preempted(Exception):
    """A run has ended because a signal asked it to; its state is saved."""

    def __init__(self, message: str, signum: signal.Signals = signal.SIGTERM):
        super().__init__(message)
        self.signum = signum


@contextmanager
def handle_sigterm() -> Iterator[None]:
    """Within this context the first SIGTERM only sets REQUESTED; a second one ends the process."""

    def handler(signum: int, frame: FrameType | None) -> None:
        REQUESTED.set()
        signal.signal(signal.SIGTERM, previous_handler)

    previous_handler = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
        REQUESTED.clear()
