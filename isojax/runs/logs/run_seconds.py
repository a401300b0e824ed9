"""The wall clock of a run, from the seconds of each step or from the seconds so far, and which of
the two a column is: one that rises at every step is no duration."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from isojax.core.errors import InputError
from isojax.core.tabular import list_some

# what is more is a date after 1973, in seconds or in thousandths of them
UNIX_TIME = 1e8
UNIX_MILLISECONDS = 1e11
# that tell seconds so far, where the last is so many times the first ...
_RISING_VALUES = 3
_RISING_RATIO = 1.5
_SURELY_RISING_VALUES = 6  # ... or, of any size: durations rise so once in 6! = 720 runs
# times the usual seconds between two rows, at least: a run was interrupted
_PAUSE = 10.0
_PAUSE_SECONDS = 600.0
# of the rows: a run is resumed seldom, and a duration falls half of the time
_MAX_SHARE_OF_FALLS = 1 / 3


def check_durations(seconds: Sequence[float], cell: str) -> str:
    """A note ("" for none) where the seconds of a run's steps may be seconds so far, as they rise
    at every step; InputError where they are. `cell`: the place and name of the first."""
    rises = len(seconds) > 1 and all(a < b for a, b in pairwise(seconds))
    ratio_is_large = rises and seconds[-1] >= _RISING_RATIO * seconds[0]
    if not rises or (len(seconds) < _RISING_VALUES and not ratio_is_large):
        return ""
    values = list_some([f"{value:g}" for value in seconds[:4]])
    rising = f"{cell} rises at every step ({values}, ...)"
    is_sure = ratio_is_large and len(seconds) >= _RISING_VALUES
    if not is_sure and len(seconds) < _SURELY_RISING_VALUES:
        return f"{rising}: if it is the seconds since the start, map it as elapsed_seconds"
    fix = "Map it as elapsed_seconds. If each step did take longer than the one before, map a column of their sums so"
    raise InputError(
        f"{rising}, as seconds since the start do; expected the seconds of each step. {fix}."
    )


def seconds_so_far(
    clocks: Sequence[int], logged: Sequence[float | None], cell: str
) -> tuple[list[float], str]:
    """(seconds from the start to each entry of a run, a note), from a column of seconds so far, or
    of Unix times, which count from the first; [] where it has fewer than two. A fall is a process
    that was started again, whose count began again. InputError where they do not rise, or are no
    seconds."""
    known = [
        (clock, value) for clock, value in zip(clocks, logged, strict=True) if value is not None
    ]
    if len(known) < 2:
        return [], ""
    known_clocks, values = (
        np.array(column, dtype=np.float64) for column in zip(*known, strict=True)
    )
    if values.max() >= UNIX_MILLISECONDS:
        problem = f"{cell} is {values[0]:.0f}, expected seconds since the start of the run, or a Unix time in seconds"
        raise InputError(f"{problem}. Divide milliseconds by 1000.")
    is_unix_time = values[0] >= UNIX_TIME
    differences = np.diff(values)
    falls = int((differences < 0).sum())
    if (
        values.min() < 0
        or not (differences > 0).any()
        or falls > _MAX_SHARE_OF_FALLS * len(differences)
    ):
        problem = (
            f"{cell} does not rise with the steps, expected seconds since the start of the run"
        )
        raise InputError(f"{problem}. Seconds of each step are --map step_seconds=COLUMN.")
    seconds_since_start_again = np.zeros_like(differences) if is_unix_time else values[1:]
    increments = np.where(differences < 0, seconds_since_start_again, differences)
    start = 0.0 if is_unix_time else values[0]
    so_far = start + np.concatenate([[0.0], np.cumsum(increments)])
    at_entries = np.interp(np.array(clocks, dtype=np.float64), known_clocks, so_far)
    return at_entries.tolist(), _describe_pause(increments, known_clocks, cell)


def _describe_pause(increments: np.ndarray, clocks: np.ndarray, cell: str) -> str:
    """Where much more time than usual passed between two rows."""
    usual, longest = np.median(increments), int(increments.argmax())
    if len(increments) < 3 or increments[longest] <= max(_PAUSE * usual, _PAUSE_SECONDS):
        return ""
    place = f"between {clocks[longest]:.0f} and {clocks[longest + 1]:.0f}"
    return f"{cell}: {increments[longest]:,.0f} s pass {place}, {usual:,.0f} s as a rule; they count as training time"
