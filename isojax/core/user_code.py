"""Where an error comes from: the line of a user's own code that a message should point to.

A plug-in's mistake often surfaces deep in a library or in isojax, as when a loss adds arrays of two
shapes. Of the frames of its traceback the last one in the user's own code is what the user can
mend.
"""

import os
import site
import sys
import sysconfig
import traceback
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1]) + os.sep
MAX_CHARACTERS = 500

# The folders of Python's own modules and of what pip has installed.
_LIBRARIES = tuple(
    str(Path(folder)) + os.sep
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        sys.base_prefix + "/lib",
    }
)

_plugin_files = set[str]()  # also of plug-ins that pip has installed, by their files


def note_plugin_file(file: str) -> None:
    """Count a file as the user's own code, wherever it is."""
    _plugin_files.add(file)


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of an error's traceback that are in the user's own code, outermost first."""
    return [
        frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)
    ]


def _is_users(file: str) -> bool:
    if file in _plugin_files:
        return True
    is_file = not file.startswith("<")  # "<string>", "<frozen importlib._bootstrap>"
    return is_file and not is_library_file(file)


def is_library_file(file: str) -> bool:
    """Whether a file is isojax's, Python's, or of a package that pip has installed."""
    return os.path.abspath(file).startswith((PACKAGE, *_LIBRARIES))


def failed_plugin(error: BaseException) -> str:
    """ "FILE, line N" where an error was raised in a plug-in of the user's, or in what that calls.

    "" of any other error.
    """
    frames = [frame for frame in own_frames(error) if frame.filename in _plugin_files]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def describe_exception(error: BaseException) -> str:
    """An exception in one line: "rewards.py:12: KeyError: 'x'", at most MAX_CHARACTERS.

    The place is the last one in the user's own code; of an error that went through none, where it
    was raised.
    """
    # Notes, as jax adds them, come behind what the error says; of a SyntaxError its line of code
    # comes before it.
    texts = traceback.format_exception_only(error)
    is_syntax_error = isinstance(error, SyntaxError)
    text = " ".join(texts[-1 if is_syntax_error else 0].split())

    if is_syntax_error and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}: {text}"[:MAX_CHARACTERS]

    frames = own_frames(error) or traceback.extract_tb(error.__traceback__)
    if not frames:
        return text[:MAX_CHARACTERS]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {text}"[:MAX_CHARACTERS]
