"""Being told to end: SIGTERM, which schedulers send before they take a machine away. A run at work saves its state
first. No jax here.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_REQUESTED = threading.Event()


class Preempted(Exception):
    """A run has ended because it was told to, by a signal; its state is saved."""

    def __init__(self, message: str, signum: signal.Signals = signal.SIGTERM):
        super().__init__(message)
        self.signum = signum


def requested() -> bool:
    """Whether this process has been told to end."""
    return _REQUESTED.is_set()


def request_preemption() -> None:
    """Tells the runs of this process to end."""
    _REQUESTED.set()


@contextmanager
def handle_sigterm() -> Iterator[None]:
    """Within it, SIGTERM is noted for runs to see, and does not end the process by itself; a second one does."""

    def handler(signum: int, frame: FrameType | None) -> None:
        _REQUESTED.set()
        signal.signal(signal.SIGTERM, previous_handler)

    previous_handler = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
        _REQUESTED.clear()
