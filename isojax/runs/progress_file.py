"""How far a run has come since its last evaluation: `progress.json` in its folder, for `isojax
status`.

The ledger has a line per evaluation only, and evaluations may be hours apart. The file is there
while the run trains. It holds nothing that a resume needs, so it is written without waiting for the
disk, and a full disk ends no run.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from isojax.core.limits import MAX_COUNT

PROGRESS_FILE = "progress.json"
SECONDS_BETWEEN_WRITES = 5.0


class ProgressFile:
    """Writes C, the rollouts sampled for training so far."""

    def __init__(self, folder: Path):
        self._path = folder / PROGRESS_FILE
        self._written_at = -float("inf")

    def update(self, rollouts: int) -> None:
        """Write C, unless it was written just before."""
        now = time.monotonic()
        if now - self._written_at < SECONDS_BETWEEN_WRITES:
            return

        self._written_at = now
        temp = self._path.with_name(f".{PROGRESS_FILE}.{os.getpid()}")
        with suppress(OSError):
            temp.write_text(json.dumps({"rollouts": rollouts}))
            os.replace(temp, self._path)


@contextmanager
def progress_file(folder: Path) -> Iterator[ProgressFile]:
    """The file of a run in training; it is removed when the run ends, for any reason."""
    try:
        yield ProgressFile(folder)
    finally:
        with suppress(OSError):
            (folder / PROGRESS_FILE).unlink(missing_ok=True)


def read_progress(folder: Path) -> int | None:
    """C of a run in training; None where its file is not there, or not one of ours."""
    try:
        document = json.loads((folder / PROGRESS_FILE).read_text())
        rollouts = document["rollouts"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_count = type(rollouts) is int and 0 <= rollouts <= MAX_COUNT
    return rollouts if is_count else None
