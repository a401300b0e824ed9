"""Where a running run will end, by an interval that stays valid however often one looks, and
whether to stop it.

Forecasts are made only where the run passes LOOK_SHARES of its end, from the evaluations up to
there. Look k has an interval of 1 - alpha_k, with alpha_k = (1 - LEVEL) / len(LOOK_SHARES), and the
answer is the intersection of those so far. The looks depend on C alone, never on how often somebody
asks, so by Bonferroni's inequality all of them hold the end with at least LEVEL, as far as each
forecast does what it says (alpha spending at set times: Lan and DeMets 1983). This holds for an end
that stays the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from isojax.core.nouns import Interval
from isojax.scaling.checks.learning import NothingLearnt
from isojax.scaling.curve_file import fit_with_trial
from isojax.scaling.curves.single_run import RunPoints, RunPosterior
from isojax.scaling.intervals import LEVEL
from isojax.scaling.tracks import FloatArray

LOOK_SHARES = (0.125, 0.25, 0.5, 0.75)  # of the end's C
LOOK_LEVEL = 1 - (1 - LEVEL) / len(LOOK_SHARES)
# Of each look's interval, about its median. Unwidened, 78 of 90 simulated runs of other forms kept
# their end inside.
WIDENING = 1.3
MIN_LOOK_POINTS = 5  # distinct C > 0, for a forecast
FLAT_GAIN = 0.005  # of reward: a run that gains no more than this has levelled off
Advice = Literal["stop", "go on", "raise n"]


@dataclass(frozen=True)
class Look:
    """A forecast of the expected reward at the end, made from the evaluations up to C."""

    C: float
    points: int
    reward: float  # the median
    low: float  # of LOOK_LEVEL, widened
    high: float
    reward_now: float  # the curve at C


@dataclass(frozen=True)
class WatchedRun:
    """What the evaluations so far say of the end, with an interval of LEVEL at all looks
    together."""

    C: float
    C_end: float
    measured: float  # the newest evaluation
    rollouts_left: float
    forecast: float | None
    interval: Interval | None
    advice: Advice
    reason: str
    looks: tuple[Look, ...]
    looks_agree: bool
    next_look: float | None  # C
    nothing_learnt: str = ""  # of a run whose reward has not risen so far: what was seen and why


@dataclass
class RunWatch:
    """Looks at one run again and again; a look that was made is kept."""

    C_end: float
    goal: float | None = None
    _looks: dict[tuple[float, int], Look] = field(default_factory=dict)

    def update(
        self, C: FloatArray, R: FloatArray, nothing: NothingLearnt | None = None
    ) -> WatchedRun:
        """The evaluations so far, C >= 0 rising and R: float[points] each, at least one. `nothing`:
        where these show that nothing was learnt, the reward is expected to stay, within what they
        and the forecasts allow."""
        looks, next_look = [], None
        for share in LOOK_SHARES:
            C_look = share * self.C_end
            if C[-1] < C_look:
                next_look = C_look
                break
            seen = C_look >= C
            if len(np.unique(C[seen & (C > 0)])) >= MIN_LOOK_POINTS:
                key = (share, int(seen.sum()))
                if key not in self._looks:
                    self._looks[key] = make_look(C[seen], R[seen], self.C_end)
                looks.append(self._looks[key])
        interval, looks_agree = intersect_looks(looks)
        last = looks[-1] if looks else None
        forecast = (
            None if last is None or interval is None else float(np.clip(last.reward, *interval))
        )
        if nothing is not None and interval is not None:
            low, high = nothing.interval
            interval = (min(interval[0], low), max(interval[1], high))
            forecast = nothing.level
        left = max(self.C_end - float(C[-1]), 0.0)
        advice, reason = self._advise(left, interval, looks_agree, last)
        return WatchedRun(
            C=float(C[-1]),
            C_end=self.C_end,
            measured=float(R[-1]),
            rollouts_left=left,
            forecast=forecast,
            interval=interval,
            advice=advice,
            reason=reason,
            looks=tuple(looks),
            looks_agree=looks_agree,
            next_look=next_look,
            nothing_learnt="" if nothing is None else nothing.text,
        )

    def _advise(
        self, left: float, interval: Interval | None, agree: bool, last: Look | None
    ) -> tuple[Advice, str]:
        if left == 0:
            return "stop", "the run has reached its end"
        if interval is None or last is None:
            return "go on", "it is too early for a forecast, or there are too few evaluations"
        if not agree:
            return (
                "go on",
                "the forecasts contradict each other: the run has another form than the curve",
            )
        if self.goal is not None and interval[1] < self.goal:
            return "stop", f"the end is below the goal of {self.goal:g}"
        if self.goal is not None:
            reaches = "is at least" if interval[0] >= self.goal else "may reach"
            return "go on", f"the end {reaches} the goal of {self.goal:g}"
        if interval[1] - last.reward_now < FLAT_GAIN:
            return "stop", f"the run has levelled off: it gains less than {FLAT_GAIN:g}"
        return "go on", "the reward may still rise"


def make_look(C: FloatArray, R: FloatArray, C_end: float) -> Look:
    """A forecast from evaluations float[points]."""
    posterior: RunPosterior = fit_with_trial(RunPoints(C, R, np.zeros(len(C), dtype=np.intp)))[0]
    now, end = posterior.rewards(np.array([C[-1], C_end])).T
    middle = float(np.median(end))
    quantiles = np.quantile(end, [(1 - LOOK_LEVEL) / 2, (1 + LOOK_LEVEL) / 2])
    low, high = np.clip(middle + WIDENING * (quantiles - middle), 0.0, 1.0).tolist()
    return Look(float(C[-1]), len(C), middle, low, high, float(np.median(now)))


def intersect_looks(looks: Sequence[Look]) -> tuple[Interval | None, bool]:
    """(what all looks hold, True); the newest look's interval and False where no value is in all of
    them."""
    if not looks:
        return None, True
    low, high = max(look.low for look in looks), min(look.high for look in looks)
    return ((low, high), True) if low <= high else ((looks[-1].low, looks[-1].high), False)
