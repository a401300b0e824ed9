"""The shape of a learning curve: R(C) = R0 + (A - R0) s(z), z = B (ln C - ln C_mid), where s rises from 0 to 1 and s(0)
= 1/2:

    s(z; tail) = 1 - (1 + (2^tail - 1) e^z)^(-1 / tail)

One number says how the plateau is approached. tail = 1 is ScaleRL's sigmoid (arXiv:2510.13786, eq. 1), R0 + (A - R0) /
(1 + (C_mid / C)^B), whose last stretch is a power law; tail = 0 is the stretched exponential, R0 + (A - R0) (1 -
exp(-ln2 (C / C_mid)^B)), which arrives sooner."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling.validation_metrics import FloatArray

HILL_TAIL, STRETCHED_TAIL = 1.0, 0.0
_MIN_TAIL = 1e-6
_MAX_EXPONENT = 60.0  # beyond it s is 0 or 1 in double precision


def progress_and_slope(z: FloatArray, tail: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """(s, ds/dz) at z float[...]; tail in [0, 1] broadcasts."""
    t = np.maximum(np.asarray(tail, dtype=np.float64), _MIN_TAIL)
    growth = np.expm1(t * np.log(2.0)) * np.exp(np.clip(z, -_MAX_EXPONENT, _MAX_EXPONENT))
    remaining = np.exp(-np.log1p(growth) / t)
    return 1 - remaining, remaining * growth / (t * (1 + growth))


def curve_value(
    tail: ArrayLike, C: ArrayLike, R0: ArrayLike, A: ArrayLike, B: ArrayLike, C_mid: ArrayLike
) -> FloatArray:
    """R(C) for C > 0; all arguments broadcast, float[...] -> float[...]."""
    z = np.asarray(B) * (np.log(np.asarray(C, dtype=np.float64)) - np.log(C_mid))
    floor = np.asarray(R0, dtype=np.float64)
    return floor + (np.asarray(A) - floor) * progress_and_slope(np.asarray(z, dtype=np.float64), tail)[0]


def shape_name(tail: float) -> str:
    """In words."""
    return {HILL_TAIL: "hill", STRETCHED_TAIL: "stretched"}.get(tail, "between hill and stretched")
