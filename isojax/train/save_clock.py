"""When a run saves its state, by the clock of the process that decides it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from isojax.core.save_interval import save_interval


class SaveClock:
    """Measures how long training waits for its saves, and says when the next one is due.

    Each run has one; of several processes, that of process 0 decides (train/loop.py).
    """

    def __init__(self, checkpoint_seconds: float | None) -> None:
        """checkpoint_seconds: the setting; None: the interval follows what saves take."""
        self._checkpoint_seconds = checkpoint_seconds
        self._saved_at = time.monotonic()  # the end of the newest save; at first, the start
        self._waiting_seconds = 0.0  # for which training waited for that save

    @property
    def adapts(self) -> bool:
        """Whether the interval follows what saves take. Then a save is also put off until the
        checkpoint before it is written, as training would wait for that."""
        return self._checkpoint_seconds is None

    @property
    def is_due(self) -> bool:
        interval = save_interval(self._checkpoint_seconds, self._waiting_seconds)
        return time.monotonic() - self._saved_at >= interval

    @contextmanager
    def saving(self) -> Iterator[None]:
        """To be entered around a save, for which training waits as long as this context lasts."""
        begun_at = time.monotonic()
        yield
        self._saved_at = time.monotonic()
        self._waiting_seconds = self._saved_at - begun_at
