"""The shapes of a learning curve: R(C) = R0 + (A - R0) s(z), z = B (ln C - ln C_mid), where s rises from 0 to 1 and s(0) = 1/2.

    hill        s = 1 / (1 + e^-z)                 ScaleRL's sigmoid (arXiv:2510.13786, eq. 1): R0 + (A - R0) / (1 + (C_mid / C)^B)
    stretched   s = 1 - exp(-ln2 e^z)              a stretched exponential: R0 + (A - R0) (1 - exp(-ln2 (C / C_mid)^B))

A fork adds a shape by adding an entry to FORMS; the fit compares all of them and keeps the likeliest.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling.metrics import FloatArray

_LN2 = float(np.log(2.0))
_STEEP = 40.0  # beyond it s is 0 or 1 in double precision


def _hill(z: FloatArray) -> tuple[FloatArray, FloatArray]:
    s = 0.5 * (1 + np.tanh(0.5 * z))
    return s, s * (1 - s)


def _stretched(z: FloatArray) -> tuple[FloatArray, FloatArray]:
    rate = _LN2 * np.exp(np.clip(z, -_STEEP, 6.0))
    rest = np.exp(-rate)
    return -np.expm1(-rate), rate * rest


# name -> (z -> (s, ds/dz)).
FORMS: dict[str, Callable[[FloatArray], tuple[FloatArray, FloatArray]]] = {"hill": _hill, "stretched": _stretched}


def value(form: str, C: ArrayLike, R0: ArrayLike, A: ArrayLike, B: ArrayLike, C_mid: ArrayLike) -> FloatArray:
    """R(C) for C > 0; all arguments broadcast, float[...] -> float[...]."""
    z = np.asarray(B) * (np.log(np.asarray(C, dtype=np.float64)) - np.log(C_mid))
    floor = np.asarray(R0, dtype=np.float64)
    return floor + (np.asarray(A) - floor) * FORMS[form](np.asarray(z, dtype=np.float64))[0]
