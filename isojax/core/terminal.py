"""What this process prints: texts are made harmless to a terminal.

A run outlives the terminal that started it.
"""

import errno
import io
import os
import re
import signal
import sys
import time
from typing import Any

from isojax.core.errors import RunFailed
from isojax.core.mirrored_folders import MIRRORED_FOLDERS

MAX_CHARACTERS = 4000  # of a message or of a cell of a table

# Control characters but tab, separators of lines, so that no value prints a line of its own, marks
# that reverse the direction of text, and the surrogates that stand for bytes of a file's name.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# What a write says when nobody reads any more: of a pipe; of a terminal.
_READER_GONE = (errno.EPIPE, errno.EIO)
# As a shell says of a program that wrote to a closed pipe.
_EXIT_CODE_SIGPIPE = 128 + signal.SIGPIPE

output_lost: float | None = None  # since when (Unix seconds) nobody reads what this process prints


def format_number(x: float | None) -> str:
    """1234567 -> "1,234,567", 0.05123 -> "0.05123", None -> "-": four digits."""
    if x is None:
        return "-"
    return f"{x:.4g}" if abs(x) < 1000 and x != int(x) else f"{x:,.0f}"


def format_hours(hours: float | None) -> str:
    """ "45 s", "12.5 min" or "200 h"; "–" where it is not known."""
    if hours is None:
        return "–"
    seconds = 3600 * hours
    if seconds < 120:
        return f"{seconds:.3g} s"
    if hours < 2:
        return f"{seconds / 60:.3g} min"
    return f"{hours:.3g} h" if hours < 100 else f"{hours:,.0f} h"


def printable(text: object) -> str:
    """A text from anywhere for a terminal.

    Its control characters are escapes (\\x1b), and a long one has no middle.
    """
    return shorten(clean(str(text)))


def clean(text: str) -> str:
    """A text with its control characters as escapes: \\x1b.

    URLs are in place of the folders that mirror them.
    """
    text = MIRRORED_FOLDERS.name_urls(text)
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shorten(text: Any) -> Any:
    """A long text, a str or rich's Text, without its middle, and with a note of its length."""
    if len(text) <= MAX_CHARACTERS:
        return text
    head = text[: MAX_CHARACTERS * 3 // 4]
    tail = text[-MAX_CHARACTERS // 4 :]
    return head + f" ... ({len(text):,} characters) ... " + tail


def warn(message: object) -> None:
    """One line on standard error: what may be wrong."""
    print(f"warning: {printable(message)}", file=sys.stderr)


def note(message: object) -> None:
    """One line on standard error: what to know."""
    print(f"note: {printable(message)}", file=sys.stderr)


def guard_output(is_run: bool) -> None:
    """Decide what becomes of this process when its terminal, or the `head` behind it, goes away.

    A run (`is_run`) goes on: what it prints is dropped, and SIGHUP is ignored by it and by the
    processes it starts. Another command ends, quietly. Call it once, before anything is printed: it
    puts other streams in the place of sys.stdout and sys.stderr.
    """
    if is_run:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    # The next file that is opened would get the number of a standard stream that is closed, and
    # what is printed be written into it.
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)

    for name in ("stdout", "stderr"):
        stream = vars(sys)[name]
        # A test or a notebook has put a stream of its own there, and reads it.
        is_replaced = stream is not vars(sys)[f"__{name}__"]
        if stream is None or is_replaced:
            continue

        stream.flush()
        buffer = io.BufferedWriter(_GuardedFile(stream.fileno(), is_run))
        by_line = stream.isatty() or stream is sys.stderr
        guarded = io.TextIOWrapper(
            buffer, stream.encoding, errors="backslashreplace", line_buffering=by_line
        )
        setattr(sys, name, guarded)


class _GuardedFile(io.FileIO):
    """A standard stream whose reader may go away; see `guard_output`."""

    def __init__(self, file_descriptor: int, is_run: bool):
        super().__init__(file_descriptor, "wb", closefd=False)
        self._is_run = is_run

    def write(self, data: Any, /) -> int:
        """Write bytes, and return how many; of a run always all of them.

        From the first failure on, what is written here goes to /dev/null. Where it is not a run,
        SystemExit if the reader is gone, else RunFailed, as of a full disk.
        """
        global output_lost  # noqa: PLW0603 - of the process, as its streams are
        try:
            return super().write(data)
        except OSError as e:
            reader_is_gone = e.errno in _READER_GONE
            if reader_is_gone or self._is_run:
                # For what comes after, also of libraries and processes that write there.
                null_fd = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null_fd, self.fileno())
                os.close(null_fd)

            if self._is_run:
                output_lost = output_lost or time.time()
                return memoryview(data).nbytes  # as if it were written
            if reader_is_gone:
                raise SystemExit(_EXIT_CODE_SIGPIPE) from e
            raise RunFailed(f"cannot write what this command prints: {e.strerror}.") from e
