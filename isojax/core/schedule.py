"""Schedules of a run: its B_p and n as functions of C, in stages.

    32x4, 32x8 from 5000, 32x16 from 15000    these stages, B_p x n
    32x2 to 32x32 as C^0.5 from 2000          n, or B_p, doubles at C = 2000 and whenever C^0.5 has doubled again
    32x2 to 32x32 by gradient                 n follows the gradient's signal (train/growth.py)
    n*(2C) of runs/quickstart at B_p=32       the best fixed n at 2 C in a sweep's fit (launch/strategy.py)

A stage begins with the first update after its C is reached."""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT, MAX_SETTING

SCHEDULE_FORMS = (
    '"32x4, 32x8 from 5000", "32x2 to 32x32 as C^0.5 from 2000", "32x2 to 32x32 by gradient" or '
    '"n*(2C) of runs/NAME at B_p=32"'
)
MAX_EXPONENT = 10.0
_NUMBER = r"(\d+(?:\.\d*)?(?:e\d+)?|\.\d+)"
_STAGE = re.compile(rf"(\d+)\s*x\s*(\d+)(?:\s+from\s+{_NUMBER})?")
_GROWTH = re.compile(
    rf"(\d+)\s*x\s*(\d+)\s+to\s+(\d+)\s*x\s*(\d+)\s+as\s+C\s*\^\s*{_NUMBER}\s+from\s+{_NUMBER}"
)
_GRADIENT = re.compile(r"(\d+)\s*x\s*(\d+)\s+to\s+(\d+)\s*x\s*(\d+)\s+by\s+gradient")
_FITTED = re.compile(rf"n\*\(\s*{_NUMBER}?\s*C\s*\)\s+of\s+(\S+)\s+at\s+B_p\s*=\s*(\d+)")


class Stage(NamedTuple):
    """B_p problems per batch and n rollouts per problem, from C rollouts on."""

    C: int
    B_p: int
    n: int


class GradientSchedule(NamedTuple):
    """n doubles from a stage's n up to n_max, when the run's own gradients say so."""

    first: Stage
    n_max: int


class FittedSchedule(NamedTuple):
    """n*(ahead C) of the fit of a sweep, at one B_p."""

    ahead: float
    run: str
    B_p: int


class Span(NamedTuple):
    """The updates that a stage has in a run: it begins after M updates and C rollouts."""

    M: int
    C: int
    B_p: int
    n: int

    @property
    def B(self) -> int:
        return self.B_p * self.n


def parse_schedule(text: str) -> tuple[Stage, ...] | GradientSchedule | FittedSchedule:
    """A schedule as a config writes it; InputError where it is none."""
    text = " ".join(text.split())  # the patterns are slow where many spaces follow each other
    if re.search(r"\d{99}|e\d{3}", text):
        raise InputError(
            f"schedule {text[:99]!r}: a number is too long. Expected one such as {SCHEDULE_FORMS}."
        )
    if match := _FITTED.fullmatch(text):
        return FittedSchedule(float(match[1] or 1), match[2], int(match[3]))
    if match := _GRADIENT.fullmatch(text):
        B_p, n, last_B_p, n_max = map(int, match.groups())
        stages = _growing_stages(text, (B_p, n), (last_B_p, n_max), exponent=1.0, C_first=1.0)
        if B_p != last_B_p or n < 2:
            raise InputError(
                f"schedule {text!r}: expected n to grow and B_p to stay, from n = 2 on."
            )
        return GradientSchedule(stages[0], n_max)
    if match := _GROWTH.fullmatch(text):
        low, high = (int(match[1]), int(match[2])), (int(match[3]), int(match[4]))
        return _growing_stages(text, low, high, exponent=float(match[5]), C_first=float(match[6]))
    matches = [_STAGE.fullmatch(part.strip()) for part in text.split(",")]
    if not all(matches):
        raise InputError(f"schedule {text!r}: expected one such as {SCHEDULE_FORMS}.")
    stages = tuple(Stage(round(float(m[3] or 0)), int(m[1]), int(m[2])) for m in matches if m)
    if stages[0].C or any(a.C >= b.C for a, b in pairwise(stages)):
        raise InputError(
            f"schedule {text!r}: expected a first stage from 0, and stages that begin at rising C."
        )
    _check_sizes(text, stages)
    return stages


def _growing_stages(
    text: str, low: tuple[int, int], high: tuple[int, int], exponent: float, C_first: float
) -> tuple[Stage, ...]:
    growing = [i for i in (0, 1) if low[i] != high[i]]
    doublings = (
        (high[growing[0]] // low[growing[0]]).bit_length() - 1
        if len(growing) == 1 and min(low)
        else 0
    )
    if doublings < 1 or low[growing[0]] << doublings != high[growing[0]]:
        raise InputError(
            f"schedule {text!r}: expected B_p or n to grow, by a power of two, and the other to stay."
        )
    if not 0 < exponent <= MAX_EXPONENT or C_first < 1:
        raise InputError(
            f"schedule {text!r}: expected an exponent above 0 and up to {MAX_EXPONENT:g}, and C from 1."
        )
    # or beyond
    doubling_C = [C_first * 2 ** (k / exponent) for k in range(doublings) if k < 1000 * exponent]
    C = [0, *(min(round(c), MAX_COUNT) for c in doubling_C if c < MAX_COUNT)]
    if len(set(C)) < len(C):
        raise InputError(
            f"schedule {text!r}: two doublings are at one C; expected a smaller exponent or a larger C."
        )
    shape = [
        [size << k if i in growing else size for i, size in enumerate(low)] for k in range(len(C))
    ]
    stages = tuple(Stage(c, B_p, n) for c, (B_p, n) in zip(C, shape, strict=True))
    _check_sizes(text, stages)
    return stages


def _check_sizes(text: str, stages: Sequence[Stage]) -> None:
    if (
        not all(0 < size <= MAX_SETTING for stage in stages for size in stage[1:])
        or stages[-1].C > MAX_COUNT
    ):
        raise InputError(
            f"schedule {text!r}: expected B_p and n from 1 to {MAX_SETTING:,}, and C up to {MAX_COUNT:,}."
        )


def schedule_text(stages: Sequence[Stage], n_max: int = 0) -> str:
    """As `parse_schedule` reads it; n_max: where the gradient decides."""
    if n_max:
        return f"{stages[0].B_p}x{stages[0].n} to {stages[0].B_p}x{n_max} by gradient"
    return ", ".join(f"{s.B_p}x{s.n}" + f" from {s.C}" * (s.C > 0) for s in stages)


@lru_cache(maxsize=256)
def stage_spans(stages: tuple[Stage, ...]) -> tuple[Span, ...]:
    """Where the stages begin in a run; a stage that one update passes over has no span."""
    spans = [Span(0, 0, *stages[0][1:])]
    for stage, later in zip(stages[1:], (*stages[2:], None), strict=False):
        last = spans[-1]
        updates = -(-(stage.C - last.C) // last.B)
        C = last.C + updates * last.B
        if later is None or C < later.C:
            spans.append(Span(last.M + updates, C, stage.B_p, stage.n))
    return tuple(spans)
