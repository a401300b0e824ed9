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
from typing import Literal, NamedTuple

import numpy as np

from isojax.core.nouns import Interval
from isojax.scaling.curves.single_run import RunPoints
from isojax.scaling.intervals import LEVEL
from isojax.scaling.learning import NothingLearnt
from isojax.scaling.run_forecast import fit_with_trial
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


class CommonInterval(NamedTuple):
    """What looks say together; where they contradict each other, what the newest one says."""

    interval: Interval | None  # None without a look
    looks_agree: bool


class _Advised(NamedTuple):
    advice: Advice
    reason: str


@dataclass
class RunWatch:
    """Looks at one run again and again; a look that was made is kept."""

    C_end: float
    goal: float | None = None
    # by the share of the end and the number of evaluations up to there
    _looks: dict[tuple[float, int], Look] = field(default_factory=dict)

    def update(
        self, C: FloatArray, R: FloatArray, nothing: NothingLearnt | None = None
    ) -> WatchedRun:
        """The evaluations so far, C >= 0 rising and R: float[points] each, at least one. `nothing`:
        where these show that nothing was learnt, the reward is expected to stay, within what they
        and the forecasts allow."""
        C_of_looks = [share * self.C_end for share in LOOK_SHARES]
        looks = self._looks_up_to(C, R)
        last = looks[-1] if looks else None
        interval, looks_agree = intersect_looks(looks)

        forecast = None
        if interval is not None and last is not None:
            forecast = float(np.clip(last.reward, *interval))
            if nothing is not None:
                low, high = nothing.interval
                interval = (min(interval[0], low), max(interval[1], high))
                forecast = nothing.level

        rollouts_left = max(self.C_end - float(C[-1]), 0.0)
        advised = self._advise(rollouts_left, interval, looks_agree, last)
        return WatchedRun(
            C=float(C[-1]),
            C_end=self.C_end,
            measured=float(R[-1]),
            rollouts_left=rollouts_left,
            forecast=forecast,
            interval=interval,
            advice=advised.advice,
            reason=advised.reason,
            looks=tuple(looks),
            looks_agree=looks_agree,
            next_look=next((C_look for C_look in C_of_looks if C[-1] < C_look), None),
            nothing_learnt="" if nothing is None else nothing.text,
        )

    def _looks_up_to(self, C: FloatArray, R: FloatArray) -> list[Look]:
        """Those that the run has passed, but for what has too few evaluations up to there."""
        looks = []
        for share in LOOK_SHARES:
            C_look = share * self.C_end
            if C[-1] < C_look:
                break
            seen = C_look >= C
            if len(np.unique(C[seen & (C > 0)])) < MIN_LOOK_POINTS:
                continue
            key = (share, int(seen.sum()))
            if key not in self._looks:
                self._looks[key] = make_look(C[seen], R[seen], self.C_end)
            looks.append(self._looks[key])
        return looks

    def _advise(
        self, rollouts_left: float, interval: Interval | None, looks_agree: bool, last: Look | None
    ) -> _Advised:
        if rollouts_left == 0:
            return _Advised("stop", "the run has reached its end")
        if interval is None or last is None:
            return _Advised(
                "go on", "it is too early for a forecast, or there are too few evaluations"
            )
        if not looks_agree:
            problem = "the forecasts contradict each other"
            return _Advised("go on", f"{problem}: the run has another form than the curve")

        low, high = interval
        if self.goal is not None:
            if high < self.goal:
                return _Advised("stop", f"the end is below the goal of {self.goal:g}")
            reaches = "is at least" if low >= self.goal else "may reach"
            return _Advised("go on", f"the end {reaches} the goal of {self.goal:g}")

        if high - last.reward_now < FLAT_GAIN:
            return _Advised("stop", f"the run has levelled off: it gains less than {FLAT_GAIN:g}")
        return _Advised("go on", "the reward may still rise")


def make_look(C: FloatArray, R: FloatArray, C_end: float) -> Look:
    """A forecast from evaluations float[points]."""
    one_seed = np.zeros(len(C), dtype=np.intp)
    posterior = fit_with_trial(RunPoints(C, R, one_seed)).posterior
    now, end = posterior.rewards(np.array([C[-1], C_end])).T

    median = float(np.median(end))
    quantiles = np.quantile(end, [(1 - LOOK_LEVEL) / 2, (1 + LOOK_LEVEL) / 2])
    low, high = np.clip(median + WIDENING * (quantiles - median), 0.0, 1.0).tolist()
    return Look(
        C=float(C[-1]),
        points=len(C),
        reward=median,
        low=low,
        high=high,
        reward_now=float(np.median(now)),
    )


def intersect_looks(looks: Sequence[Look]) -> CommonInterval:
    """What all looks hold; where no value is in all of them, the newest look's interval."""
    if not looks:
        return CommonInterval(None, looks_agree=True)
    low = max(look.low for look in looks)
    high = min(look.high for look in looks)
    if low <= high:
        return CommonInterval((low, high), looks_agree=True)
    newest = looks[-1]
    return CommonInterval((newest.low, newest.high), looks_agree=False)
