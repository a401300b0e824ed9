"""Schedules of a run: its B_p and n as functions of C, in stages.

    32x4, 32x8 from 5000, 32x16 from 15000    these stages, B_p x n
    32x2 to 32x32 as C^0.5 from 2000          n, or B_p, doubles at C = 2000, and whenever C^0.5 has
                                              doubled again
    32x2 to 32x32 by gradient                 n follows the gradient's signal (train/growth.py)
    n*(2C) of runs/quickstart at B_p=32       the best fixed n at 2 C in a sweep's fit
                                              (launch/fitted_schedules.py)

A stage begins with the first update after its C is reached.
"""

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
MAX_EXPONENT = 10.0  # of C^exponent

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

    ahead: float  # 2.0 of "n*(2C) of ...", 1.0 of "n*(C) of ..."
    run: str  # the sweep's folder, such as "runs/quickstart"
    B_p: int


class BatchShape(NamedTuple):
    """B_p problems per batch and n rollouts per problem."""

    B_p: int
    n: int


class Span(NamedTuple):
    """The updates that a stage has in a run: it begins after M updates and C rollouts."""

    M: int
    C: int
    B_p: int
    n: int

    @property
    def B(self) -> int:
        """Rollouts per update."""
        return self.B_p * self.n


def parse_schedule(text: str) -> tuple[Stage, ...] | GradientSchedule | FittedSchedule:
    """A schedule as a config writes it (the forms are at the head of this file).

    A tuple of Stages, of rising C from 0 on, where all is known before the run. InputError where
    the text is no schedule.
    """
    text = " ".join(text.split())  # The patterns are slow where many spaces follow each other.
    # No number with such digits is in range, and Python may take long to read it.
    if re.search(r"\d{99}|e\d{3}", text):
        raise InputError(
            where=f"schedule {text[:99]!r}",
            found="a number is too long",
            expected=f"one such as {SCHEDULE_FORMS}",
        )

    if match := _FITTED.fullmatch(text):
        ahead, run, B_p = match.groups()
        return FittedSchedule(float(ahead or 1), run, int(B_p))
    if match := _GRADIENT.fullmatch(text):
        return _parse_gradient(text, match)
    if match := _GROWTH.fullmatch(text):
        first = BatchShape(int(match[1]), int(match[2]))
        last = BatchShape(int(match[3]), int(match[4]))
        return _growing_stages(text, first, last, exponent=float(match[5]), C_first=float(match[6]))
    return _parse_stages(text)


def _parse_gradient(text: str, match: re.Match[str]) -> GradientSchedule:
    """A schedule "32x2 to 32x32 by gradient", whose sizes are the groups of the match."""
    B_p, n, last_B_p, n_max = map(int, match.groups())
    # At which C n doubles is not known before the run. What is checked here are the sizes: the
    # exponent and C_first are any that are allowed, and of the stages the first alone is used.
    stages = _growing_stages(
        text, BatchShape(B_p, n), BatchShape(last_B_p, n_max), exponent=1.0, C_first=1.0
    )
    if B_p != last_B_p or n < 2:
        raise InputError(
            where=f"schedule {text!r}",
            expected="n to grow and B_p to stay, from n = 2 on",
        )
    return GradientSchedule(stages[0], n_max)


def _parse_stages(text: str) -> tuple[Stage, ...]:
    """Stages that are written out: "32x4, 32x8 from 5000". InputError where the text is no
    schedule of any form: this one is tried last."""
    stages = []
    for part in text.split(","):
        match = _STAGE.fullmatch(part.strip())
        if match is None:
            raise InputError(
                where=f"schedule {text!r}",
                expected=f"one such as {SCHEDULE_FORMS}",
            )
        B_p, n, C = match.groups()
        stages.append(Stage(round(float(C or 0)), int(B_p), int(n)))

    if stages[0].C or any(stage.C >= later.C for stage, later in pairwise(stages)):
        raise InputError(
            where=f"schedule {text!r}",
            expected="a first stage from 0, and stages that begin at rising C",
        )
    _check_sizes(text, stages)
    return tuple(stages)


def _growing_stages(
    text: str, first: BatchShape, last: BatchShape, exponent: float, C_first: float
) -> tuple[Stage, ...]:
    """The stages in which n, or B_p, doubles from the first shape to the last.

    It doubles for the first time at C = C_first, and again whenever C^exponent has doubled since:
    at C_first 2^(k / exponent), k = 0, 1, ... Doublings beyond MAX_COUNT rollouts have no stage.

    text: the whole schedule, for messages. first, last: one of B_p and n must be equal in both, and
    the other a power of two larger; else an InputError. So it is for two doublings at one C.
    """
    B_p_stays = first.B_p == last.B_p
    n_stays = first.n == last.n
    n_grows = B_p_stays  # as just one of them may stay
    doublings = 0
    if B_p_stays != n_stays and min(first) > 0:
        doublings = _doublings(first.n, last.n) if n_grows else _doublings(first.B_p, last.B_p)
    if doublings < 1:
        raise InputError(
            where=f"schedule {text!r}",
            expected="B_p or n to grow, by a power of two, and the other to stay",
        )
    if not 0 < exponent <= MAX_EXPONENT or C_first < 1:
        raise InputError(
            where=f"schedule {text!r}",
            expected=f"an exponent above 0 and up to {MAX_EXPONENT:g}, and C from 1",
        )

    # Those of k / exponent < 1000 alone: 2^1000 is far beyond MAX_COUNT, and a little more than
    # that is no float any more.
    doubling_C = [C_first * 2 ** (k / exponent) for k in range(doublings) if k < 1000 * exponent]
    starts = [0, *(min(round(C), MAX_COUNT) for C in doubling_C if C < MAX_COUNT)]
    if len(set(starts)) < len(starts):
        raise InputError(
            where=f"schedule {text!r}",
            found="two doublings are at one C",
            expected="a smaller exponent or a larger C",
        )

    stages = []
    for k, C in enumerate(starts):
        B_p = first.B_p if n_grows else first.B_p << k
        n = first.n << k if n_grows else first.n
        stages.append(Stage(C, B_p, n))
    _check_sizes(text, stages)
    return tuple(stages)


def _doublings(low: int, high: int) -> int:
    """How often `low` doubles until it is `high`; 0 where it never is, or is so already."""
    doublings = (high // low).bit_length() - 1
    return doublings if doublings > 0 and low << doublings == high else 0


def _check_sizes(text: str, stages: Sequence[Stage]) -> None:
    """InputError where a size is out of range, or the last stage begins beyond MAX_COUNT."""
    sizes = [size for stage in stages for size in (stage.B_p, stage.n)]
    if not all(0 < size <= MAX_SETTING for size in sizes) or stages[-1].C > MAX_COUNT:
        raise InputError(
            where=f"schedule {text!r}",
            expected=f"B_p and n from 1 to {MAX_SETTING:,}, and C up to {MAX_COUNT:,}",
        )


def schedule_text(stages: Sequence[Stage], n_max: int = 0) -> str:
    """A schedule as `parse_schedule` reads it; n_max: up to which the gradient may double n, 0
    where it decides nothing."""
    if n_max:
        first = stages[0]
        return f"{first.B_p}x{first.n} to {first.B_p}x{n_max} by gradient"

    parts = []
    for stage in stages:
        start = f" from {stage.C}" if stage.C > 0 else ""
        parts.append(f"{stage.B_p}x{stage.n}{start}")
    return ", ".join(parts)


@lru_cache(maxsize=256)
def stage_spans(stages: tuple[Stage, ...]) -> tuple[Span, ...]:
    """The span of each stage: where it begins in a run whose updates all sample B_p n rollouts.

    stages: of rising C, the first from 0. A stage that one update passes over, from below it to the
    next stage or further, has no span; the last one always has.
    """
    first = stages[0]
    spans = [Span(0, 0, first.B_p, first.n)]
    for i, stage in enumerate(stages[1:], start=1):
        # The stage begins with the first update after its C is reached: whole updates of the span
        # before it, rounded up.
        before = spans[-1]
        updates = -(-(stage.C - before.C) // before.B)
        C = before.C + updates * before.B

        # C is where this stage would begin; without an update of its stage if the next one begins
        # there too.
        is_last = i == len(stages) - 1
        if is_last or C < stages[i + 1].C:
            spans.append(Span(before.M + updates, C, stage.B_p, stage.n))
    return tuple(spans)
