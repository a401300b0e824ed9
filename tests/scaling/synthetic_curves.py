"""True curves R(C) of synthetic worlds.

A curve gives a run's expected reward at compute C, and C_peak, beyond which that reward falls. A
budget may be spent in part (early stopping), so what a budget C buys is `best`: the reward at
min(C, C_peak). `trained` is what a training reward follows: it never falls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.tracks import FloatArray

BEND = 0.1  # decades over which a rise turns into a fall
_TINY = 1e-300  # stands for C = 0, where log C has no value


class TrueCurve(Protocol):
    """R(C) of one (B_p, n)."""

    @property
    def R0(self) -> float:
        """The base policy's reward, R(0)."""
        ...

    @property
    def A(self) -> float:
        """The plateau of what `trained` rises to."""
        ...

    @property
    def C_peak(self) -> float:
        """The compute of the highest reward; infinite where the curve only rises."""
        ...

    def at(self, C: ArrayLike) -> FloatArray:
        """R(C), float[...] -> float[...], C >= 0."""
        ...

    def trained(self, C: ArrayLike) -> FloatArray:
        """The curve without its fall, float[...] -> float[...], C >= 0."""
        ...


def best(curve: TrueCurve, C: ArrayLike) -> FloatArray:
    """The highest R(C') over C' <= C, float[...] -> float[...]."""
    return curve.at(np.minimum(C, curve.C_peak))


def progress(curve: TrueCurve, C: ArrayLike) -> FloatArray:
    """The share of its gain that a run has made by C: 0 at C = 0, towards 1; 0 for a curve without
    gain."""
    gain = curve.A - curve.R0
    return (curve.trained(C) - curve.R0) / gain if gain > 0 else np.zeros(np.shape(C))


@dataclass(frozen=True)
class Hill:
    """R0 + (A - R0) / (1 + (C_mid / C)^B)."""

    R0: float
    A: float
    B: float
    C_mid: float

    @property
    def C_peak(self) -> float:
        """Never falls."""
        return math.inf

    def at(self, C: ArrayLike) -> FloatArray:
        """The true reward; R0 at C = 0."""
        return curve_value(np.maximum(C, _TINY), self.R0, self.A, self.B, self.C_mid)

    trained = at


@dataclass(frozen=True)
class Stretched:
    """R0 + (A - R0) (1 - exp(-ln 2 (C / C_mid)^B)): a stretched exponential, C_mid the compute of
    half the gain."""

    R0: float
    A: float
    B: float
    C_mid: float

    @property
    def C_peak(self) -> float:
        """Never falls."""
        return math.inf

    def at(self, C: ArrayLike) -> FloatArray:
        """The true reward; R0 at C = 0."""
        x = np.asarray(C, dtype=np.float64) / self.C_mid
        return self.R0 - (self.A - self.R0) * np.expm1(-math.log(2) * x**self.B)

    trained = at


@dataclass(frozen=True)
class Declining:
    """A Hill curve that overfits: around C_turn its rise ends and a fall of `rate` per decade of C
    begins, both bent over BEND decades.

    With x = log10 C and s(x) = BEND ln(1 + exp((x - x_turn) / BEND)), R = rising(10^(x - s)) - rate
    s. The peak is within some BENDs of C_turn, where the slopes of rise and fall cancel.
    """

    rising: Hill
    C_turn: float
    rate: float

    @property
    def R0(self) -> float:
        """The base policy's reward."""
        return self.rising.R0

    @property
    def A(self) -> float:
        """The plateau the training reward rises to."""
        return self.rising.A

    @cached_property
    def C_peak(self) -> float:
        """Where the reward is highest."""
        x = math.log10(self.C_turn)
        result = minimize_scalar(
            lambda v: -float(self.at(10**v)),
            bounds=(x - 1, x + 1),
            method="bounded",
            options={"xatol": 1e-9},
        )
        return float(10**result.x)

    def at(self, C: ArrayLike) -> FloatArray:
        """The true reward; R0 at C = 0."""
        x = np.log10(np.maximum(C, _TINY))
        s = BEND * np.logaddexp(0.0, (x - math.log10(self.C_turn)) / BEND)
        return self.rising.at(10 ** (x - s)) - self.rate * s

    def trained(self, C: ArrayLike) -> FloatArray:
        """The Hill curve alone."""
        return self.rising.at(C)


@dataclass(frozen=True)
class Stages:
    """R0 + sum over stages of gain / (1 + (C_mid / C)^B), every gain >= 0, so that it rises."""

    R0: float
    gains: tuple[float, ...]
    C_mids: tuple[float, ...]
    B: float

    @property
    def A(self) -> float:
        """The plateau after the last stage."""
        return self.R0 + sum(self.gains)

    @property
    def C_peak(self) -> float:
        """Never falls."""
        return math.inf

    def at(self, C: ArrayLike) -> FloatArray:
        """The true reward; R0 at C = 0."""
        C = np.maximum(C, _TINY)
        return self.R0 + sum(
            (
                curve_value(C, 0.0, g, self.B, m)
                for g, m in zip(self.gains, self.C_mids, strict=True)
            ),
            np.zeros(np.shape(C)),
        )

    trained = at
