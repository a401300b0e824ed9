"""The reward with which a run in training will end, as an interval that stays valid however often
one asks; and whether to stop the run (`isojax watch`).

A forecast (a look) is made when the run has passed each of LOOK_SHARES of its last C, from the
evaluations up to there. Each look's interval holds the end with probability 1 - alpha, with
alpha = (1 - LEVEL) / len(LOOK_SHARES); the answer is the intersection of all looks so far. The
looks depend on C alone, never on how often somebody asks. So by Bonferroni's inequality all of them
together hold the end with probability LEVEL, as far as each forecast is right (alpha spending at
set times: Lan and DeMets 1983), and as long as C_end stays the same.

At its end a run needs no forecast: what is left is the noise of its evaluations, and the answer is
its curve there, as `isojax fit-curve` gives it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from isojax.core.nouns import Interval
from isojax.scaling.curves.single_run import RunPoints
from isojax.scaling.intervals import LEVEL, central_band
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
    """The forecast of a run's end by the evaluations so far, and the advice."""

    C: float  # rollouts so far
    C_end: float
    measured: float  # the newest evaluation
    rollouts_left: float
    forecast: float | None  # the reward at C_end; None before the first look
    interval: Interval | None  # of it, with probability LEVEL at all looks together
    advice: Advice
    reason: str  # of the advice, in words
    looks: tuple[Look, ...]  # by rising C
    looks_agree: bool  # whether their intervals have a common value
    next_look: float | None  # the C at which the next forecast is made; None after the last
    nothing_learnt: str = ""  # of a run whose reward has not risen so far: what was seen and why


class CommonInterval(NamedTuple):
    """The intersection of the looks' intervals; where that is empty, the newest look's."""

    interval: Interval | None  # None without a look
    looks_agree: bool


class _Advised(NamedTuple):
    advice: Advice
    reason: str


@dataclass
class RunWatch:
    """Follows one run in training: `update` with its evaluations so far, as often as wanted. A look
    that was made is kept."""

    C_end: float  # the run's last C
    goal: float | None = None  # a reward; the advice is to stop where the end is below it
    # by the share of C_end and the number of evaluations up to there
    _looks: dict[tuple[float, int], Look] = field(default_factory=dict)

    def update(
        self, C: FloatArray, R: FloatArray, nothing: NothingLearnt | None = None
    ) -> WatchedRun:
        """The forecast and the advice by the run's evaluations so far.

        C >= 0, in rollouts, rising, and R, rewards in [0, 1]: float[points] each, at least one, all
        evaluations from the first on. nothing: given where these show that nothing was learnt so
        far; the forecast is then that the reward stays at its level."""
        C_of_looks = [share * self.C_end for share in LOOK_SHARES]
        looks = self._looks_up_to(C, R)
        last = looks[-1] if looks else None
        interval, looks_agree = intersect_looks(looks)

        forecast = None
        has_ended = C[-1] >= self.C_end
        if has_ended and _can_be_fitted(C):
            forecast, interval = _reward_at_end(C, R)
        elif interval is not None and last is not None:
            forecast = float(np.clip(last.reward, *interval))
        # Wide enough for the level's interval too, whatever the looks forecast.
        if nothing is not None and interval is not None:
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
        """The looks (forecasts at set shares of C_end) that the run has passed, by rising C.

        Left out are those with fewer than MIN_LOOK_POINTS evaluations at C > 0 up to there. C, R:
        float[points], by rising C."""
        looks = []
        for share in LOOK_SHARES:
            C_look = share * self.C_end
            if C[-1] < C_look:
                break
            seen = C_look >= C
            if not _can_be_fitted(C[seen]):
                continue

            # A look is made again if evaluations up to there have been added since.
            key = (share, int(seen.sum()))
            if key not in self._looks:
                self._looks[key] = make_look(C[seen], R[seen], self.C_end)
            looks.append(self._looks[key])
        return looks

    def _advise(
        self, rollouts_left: float, interval: Interval | None, looks_agree: bool, last: Look | None
    ) -> _Advised:
        """Whether to stop the run or go on, with the reason; never "raise n", which needs a sweep.

        rollouts_left: to its planned end; interval: the forecast of its last reward, None for none
        yet; looks_agree: whether the forecasts at different looks (points of the run) agree; last:
        the newest look."""
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


def _can_be_fitted(C: FloatArray) -> bool:
    return len(np.unique(C[C > 0])) >= MIN_LOOK_POINTS


def _reward_at_end(C: FloatArray, R: FloatArray) -> tuple[float, Interval]:
    """The median and the interval of the curve's reward at the last C of a run; C, R: all its
    evaluations, float[points]."""
    one_seed = np.zeros(len(C), dtype=np.intp)
    posterior = fit_with_trial(RunPoints(C, R, one_seed)).posterior
    rewards = posterior.rewards(C[-1:])[:, 0]
    low, high = central_band(rewards)
    return float(np.median(rewards)), (float(low), float(high))


def make_look(C: FloatArray, R: FloatArray, C_end: float) -> Look:
    """The forecast of the reward at C_end from a run's evaluations so far.

    C, R: float[points], by rising C, of one run, with at least MIN_LOOK_POINTS different C > 0; its
    last C is the look's."""
    one_seed = np.zeros(len(C), dtype=np.intp)
    posterior = fit_with_trial(RunPoints(C, R, one_seed)).posterior
    now, end = posterior.rewards(np.array([C[-1], C_end])).T

    median = float(np.median(end))
    # LOOK_LEVEL in the middle, then widened about the median.
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
    """The intersection of the looks' intervals; where that is empty, the newest look's interval."""
    if not looks:
        return CommonInterval(None, looks_agree=True)

    low = max(look.low for look in looks)
    high = min(look.high for look in looks)
    if low <= high:
        return CommonInterval((low, high), looks_agree=True)
    newest = looks[-1]
    return CommonInterval((newest.low, newest.high), looks_agree=False)
