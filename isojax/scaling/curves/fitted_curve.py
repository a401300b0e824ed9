"""The fitted curve of one (B_p, n): its parameters, the range it was measured over, and its reward at any compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling.curves.hill import HILL_TAIL, curve_value, shape_name
from isojax.scaling.curves.residual_correction import ResidualCorrection
from isojax.scaling.intervals import Interval
from isojax.scaling.validation_metrics import FloatArray


@dataclass(frozen=True)
class FittedCurve:
    """A fitted R(C) of one (B_p, n); the equation is in hill.py.

    Attributes:
        R0, A, exponent, C_mid: the curve's parameters; C_mid in units of compute.
        C_low, C_high: the range of C > 0 over which the cell was measured.
        points: how many it was fitted to (record-breaking ones in mode "paper").
        rmse: root mean square residual at those points, in reward.
        at_bounds: parameters that ended at a bound, which the data therefore do not determine.
        tail: how the curve approaches A; mode "paper" has 1 alone.
        correction: what is added to the shape inside the measured range; None where the shape suffices.
        determined: whether the data determine A; where they do not, read the curve only where it was measured.
        C_peak: where reward starts to fall; the curve is held flat beyond, as stopping early would.
        A_interval, exponent_interval, C_mid_interval: 90%; a bound of None is an open end; None where the mode gives
            no interval.
    """

    B_p: int
    n: int
    R0: float
    A: float
    exponent: float
    C_mid: float
    C_low: float
    C_high: float
    points: int
    rmse: float
    at_bounds: tuple[str, ...] = ()
    tail: float = HILL_TAIL
    correction: ResidualCorrection | None = None
    determined: bool = True
    C_peak: float | None = None
    A_interval: Interval | None = None
    exponent_interval: Interval | None = None
    C_mid_interval: Interval | None = None

    @property
    def key(self) -> tuple[int, int]:
        """(B_p, n)."""
        return self.B_p, self.n

    @property
    def form(self) -> str:
        """The shape in words."""
        return shape_name(self.tail)


def curve_reward(curve: FittedCurve, C: ArrayLike) -> FloatArray:
    """The curve's reward at compute C > 0, float[...] -> float[...], inside its measured range or not.

    A curve with a peak gives the best reward up to C.
    """
    C_capped = np.minimum(np.asarray(C, dtype=np.float64), np.inf if curve.C_peak is None else curve.C_peak)
    reward = curve_value(C_capped, curve.R0, curve.A, curve.exponent, curve.C_mid, curve.tail)
    return reward if curve.correction is None else reward + curve.correction.evaluate(C_capped)
