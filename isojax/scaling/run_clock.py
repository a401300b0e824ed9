"""How long a run takes: its clock, a formula of three terms that is fitted to the times of the
run's evaluations."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from isojax.core.estimators import FloatArray
from isojax.core.nouns import RunRecord

NEWTON_STEPS = 30
# With fewer intervals between evaluations, the time of evaluations is not distinguished from
# that of rollouts.
MIN_INTERVALS = 5
MIN_ROLLOUT_SHARE = 0.1  # of a run's time, which its rollouts take at least
_ROUNDING = 1e-9  # relative: numbers that differ by less are equal


@dataclass(frozen=True)
class Clock:
    """How long C >= C_first rollouts take, in seconds of wall clock:

        startup + C per_rollout + log(C / C_first) per_efold

    The last term is the time of evaluations, which are evenly spaced in log C from C_first on. The
    fields are numbers for one run, or float[cells] for the cells of a sweep (NaN: not known)."""

    startup: FloatArray  # seconds
    per_rollout: FloatArray  # seconds
    per_efold: FloatArray  # seconds of evaluations while C grows by a factor e
    C_first: FloatArray  # rollouts at the first evaluation at C > 0
    devices: FloatArray  # on which the run was trained

    def seconds(self, C: FloatArray | float) -> FloatArray:
        """The seconds of wall clock that C rollouts take; one number, or float[cells]."""
        efolds = np.log(np.maximum(C / self.C_first, 1.0))
        return self.startup + C * self.per_rollout + efolds * self.per_efold

    def rollouts(self, seconds: FloatArray | float) -> FloatArray:
        """The whole rollouts that these seconds are enough for; 0 where that is not known.

        One number, or float[cells]; it is a float, rounded down."""
        # Start from the C that the seconds would pay for if evaluations took no time: too much. The
        # seconds are convex in log C, so that Newton's steps in log C come from above, to the
        # solution, and never pass it.
        C = np.maximum(seconds - self.startup, 0.0) / self.per_rollout
        for _ in range(NEWTON_STEPS):
            slope = C * self.per_rollout + np.where(self.C_first < C, self.per_efold, 0.0)
            C = C * np.exp((seconds - self.seconds(C)) / np.maximum(slope, _ROUNDING))

        return np.floor(np.nan_to_num(C * (1 + _ROUNDING)))


def run_clock(run: RunRecord) -> Clock | None:
    """The clock of a run (how long C rollouts take), fitted to its evaluations' device hours.

    None where these were not recorded, or fewer than two evaluations are at C > 0. It is a fit of
    least squares, where the variance of the seconds between two evaluations is proportional to the
    rollouts between them; the clock's seconds in all are those of the run."""
    C = np.array([point.rollouts for point in run.points], dtype=np.float64)
    if len(run.device_hours) != len(C) or (C > 0).sum() < 2:
        return None

    seconds = 3600 * np.array(run.device_hours)[C > 0] / run.devices
    C = C[C > 0]
    rollouts = np.diff(C)
    efolds = np.diff(np.log(C))
    total = seconds[-1] - seconds[0]
    if total <= 0:
        return None

    average = total / rollouts.sum()
    per_rollout = average
    if len(rollouts) >= MIN_INTERVALS:  # otherwise rollouts take all the time
        # Divided by sqrt(rollouts), all intervals have the same variance.
        terms = np.stack([rollouts, efolds], axis=1) / np.sqrt(rollouts)[:, None]
        fitted, _ = nnls(terms, np.diff(seconds) / np.sqrt(rollouts))
        per_rollout = max(fitted[0], MIN_ROLLOUT_SHARE * average)

    # The seconds that are not those of rollouts are those of evaluations.
    per_efold = max(total - per_rollout * rollouts.sum(), 0.0) / efolds.sum()
    startup = max(seconds[0] - C[0] * per_rollout, 0.0)
    return Clock(
        startup=np.asarray(startup, dtype=np.float64),
        per_rollout=np.asarray(per_rollout, dtype=np.float64),
        per_efold=np.asarray(per_efold, dtype=np.float64),
        C_first=np.asarray(C[0], dtype=np.float64),
        devices=np.asarray(run.devices, dtype=np.float64),
    )
