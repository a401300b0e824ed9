"""The wall clock of a run, from the seconds of each step or from the seconds so far, and which of
the two a column is: one that rises at every step is no duration."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from isojax.core.errors import InputError
from isojax.core.tabular import list_some

# what is more is a date after 1973, in seconds or in thousandths of them
UNIX_TIME = 1e8
UNIX_MILLISECONDS = 1e11

# Numbers that rise at every step are seconds so far if they are 3 or more and the last is 1.5 times
# the first, or more; or if they are 6 or more: durations rise so once in 6! = 720 runs. Fewer may
# be.
_RISING_VALUES = 3
_RISING_RATIO = 1.5
_SURELY_RISING_VALUES = 6

# A run was interrupted where so many times the usual seconds pass between two rows, and so many.
_PAUSE = 10.0
_PAUSE_SECONDS = 600.0
# of the rows: a run is resumed seldom, and a duration falls half of the time
_MAX_SHARE_OF_FALLS = 1 / 3


def check_durations(seconds: Sequence[float], cell: str) -> str:
    """A note ("" for none) where seconds of each step may be seconds since the start.

    They may where the column rises at every step; InputError where it surely is so.

    `seconds`: the column's values, in the order of the steps; `cell`: the place and name of the
    first, as "runs.csv, line 2: step_seconds", for the message."""
    rises = len(seconds) > 1 and all(a < b for a, b in pairwise(seconds))
    if not rises:
        return ""

    ratio_is_large = seconds[-1] >= _RISING_RATIO * seconds[0]
    if len(seconds) < _RISING_VALUES and not ratio_is_large:
        return ""

    values = list_some([f"{value:g}" for value in seconds[:4]])
    rising = f"{cell} rises at every step ({values}, ...)"
    is_sure = len(seconds) >= (_RISING_VALUES if ratio_is_large else _SURELY_RISING_VALUES)
    if is_sure:
        raise InputError(
            found=f"{rising}, as seconds since the start do",
            expected="the seconds of each step",
            fix=(
                "Map it as elapsed_seconds. If each step did take longer than the one before, "
                "map a column of their sums so."
            ),
        )
    return f"{rising}: if it is the seconds since the start, map it as elapsed_seconds"


class NotedSeconds(NamedTuple):
    so_far: list[float]  # from the start to each entry of a run; empty where they are not known
    notes: list[str]


def seconds_so_far(
    clocks: Sequence[int], logged: Sequence[float | None], cell: str
) -> NotedSeconds:
    """The seconds from a run's start to each of its steps, and notes.

    They are from a column of seconds since the start, or of Unix times, which then count from the
    first of them; between known values they are interpolated. Empty where fewer than two are known.

    `clocks`: each step's number; `logged`: the column at each step, None where it has no value;
    `cell`: the place and name of its first value, for messages. Where the values fall, the process
    was started again and its count began at 0. InputError where they do not rise in general, or are
    milliseconds."""
    is_known = np.array([seconds is not None for seconds in logged], dtype=np.bool_)
    if is_known.sum() < 2:
        return NotedSeconds([], [])
    all_clocks = np.array(clocks, dtype=np.float64)
    known_clocks = all_clocks[is_known]
    values = np.array([seconds for seconds in logged if seconds is not None], dtype=np.float64)

    # Refuse a column that is no time in seconds.
    if values.max() >= UNIX_MILLISECONDS:
        raise InputError(
            where=cell,
            found=f"given {values[0]:.0f}",
            expected="seconds since the start of the run, or a Unix time in seconds",
            fix="Divide milliseconds by 1000.",
        )
    differences = np.diff(values)
    falls = int((differences < 0).sum())
    rises_somewhere = bool((differences > 0).any())
    if values.min() < 0 or not rises_somewhere or falls > _MAX_SHARE_OF_FALLS * len(differences):
        raise InputError(
            where=cell,
            found="does not rise with the steps",
            expected="seconds since the start of the run",
            fix="Seconds of each step are --map step_seconds=COLUMN.",
        )

    # After a fall, a count of seconds begins again at 0; a Unix time that falls says nothing.
    is_unix_time = values[0] >= UNIX_TIME
    start = 0.0 if is_unix_time else values[0]
    seconds_since_restart = np.zeros_like(differences) if is_unix_time else values[1:]
    increments = np.where(differences < 0, seconds_since_restart, differences)
    known_so_far = start + np.concatenate([[0.0], np.cumsum(increments)])

    so_far = np.interp(all_clocks, known_clocks, known_so_far).tolist()
    pause = _describe_pause(increments, known_clocks, cell)
    return NotedSeconds(so_far, [pause] if pause else [])


def _describe_pause(increments: np.ndarray, clocks: np.ndarray, cell: str) -> str:
    """A sentence where much more time than usual passed between two rows; "" where it did not.

    clocks: f64[known], the steps whose time is known; increments: f64[known - 1], the seconds from
    each to the next.
    """
    usual = np.median(increments)
    longest = int(increments.argmax())
    if len(increments) < 3 or increments[longest] <= max(_PAUSE * usual, _PAUSE_SECONDS):
        return ""
    place = f"between {clocks[longest]:.0f} and {clocks[longest + 1]:.0f}"
    return (
        f"{cell}: {increments[longest]:,.0f} s pass {place}, {usual:,.0f} s as a rule; "
        "they count as training time"
    )
