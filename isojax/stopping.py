"""Being told to end: SIGTERM, which schedulers send before they take a machine away. A run at work saves its state first. No jax here."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ASKED = threading.Event()


class Stopped(Exception):
    """A run has ended because it was told to, by a signal; its state is saved."""

    def __init__(self, said: str, by: signal.Signals = signal.SIGTERM):
        super().__init__(said)
        self.by = by


def asked() -> bool:
    """Whether this process has been told to end."""
    return _ASKED.is_set()


def ask() -> None:
    """Tells the runs of this process to end."""
    _ASKED.set()


@contextmanager
def heeding_sigterm() -> Iterator[None]:
    """Within it, SIGTERM is noted for runs to see, and does not end the process by itself; a second one does."""

    def note(number: int, frame: FrameType | None) -> None:
        _ASKED.set()
        signal.signal(signal.SIGTERM, before)

    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _ASKED.clear()
