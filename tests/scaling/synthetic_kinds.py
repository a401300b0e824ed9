"""The kinds of random worlds: what law the curves of a world follow. A new kind is a function of
(rng, n, B_p) and an entry of KINDS.

`hill`, `stretched`, `decline`: doubling n raises the plateau by an amount of its own and delays the
curve, so that n*(C) rises. `same`: n makes no difference. `non_monotone`: at a fixed batch B = B_p
n, n*(M) falls and then rises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from isojax.core.errors import InputError
from isojax.scaling.tracks import FloatArray
from tests.scaling.synthetic_curves import Declining, Hill, Stages, Stretched, TrueCurve

Draw = np.random.Generator
FIXED_B = 4096  # B_p n of non_monotone worlds, one of the paper's (Figs. 18, 19)


@dataclass(frozen=True)
class Truth:
    """A world's law.

    Attributes:
        curves: the true curve of each (B_p, n).
        start: (low, high) between which the first compute of the evaluations may be drawn.
        decades: (low, high) of how many decades of compute the evaluations span.
    """

    curves: Mapping[tuple[int, int], TrueCurve]
    start: tuple[float, float]
    decades: tuple[float, float]


@dataclass(frozen=True)
class Kind:
    """A kind of world.

    Attributes:
        draw: (rng, n, B_p or None) -> a law.
        promised: whether the n that are truly best along a world's range of compute are what the
            kind promises.
        in_common: whether that range is where all cells are measured, else where any is. Where a
            rival of the best n
        has ended, no data
            could show that it would not lead again.
    """

    draw: Callable[[Draw, Sequence[int], Sequence[int] | None], Truth]
    promised: Callable[[Sequence[int]], bool]
    in_common: bool = False


def _over_B_p(
    rng: Draw, curves: Mapping[int, Hill], B_p: Sequence[int] | None
) -> dict[tuple[int, int], Hill]:
    """Each n's curve at each B_p. As in Fig. 10, B_p matters little: any but the first moves A by
    up to .01, C_mid by up to 10%.
    """
    result = {}
    for i, b in enumerate(B_p or (32,)):
        shift, factor = (rng.uniform(-0.01, 0.01), rng.uniform(0.9, 1.1)) if i else (0.0, 1.0)
        result |= {
            (b, n): replace(c, A=c.A + shift, C_mid=c.C_mid * factor) for n, c in curves.items()
        }
    return result


def _rising(rng: Draw, n: Sequence[int], B: tuple[float, float]) -> dict[int, Hill]:
    """Hill parameters of each n: plateaus differ by .005 to .06, C_mid grows by a common factor
    (with 5% jitter) per doubling.
    """
    level = np.log2(np.array(n, dtype=np.float64)) - 3
    steps = rng.uniform(0.005, 0.06, len(n)) * np.diff(level, prepend=level[0])
    A = rng.uniform(0.42, 0.55) + np.cumsum(steps)
    growth = (
        np.log(rng.uniform(1.4, 2.2))
        * np.diff(level, prepend=0.0)
        * (1 + 0.05 * rng.standard_normal(len(n)))
    )
    mid = 10 ** rng.uniform(3.8, 4.6) * np.exp(np.cumsum(growth))
    R0, common = rng.uniform(0.15, 0.35), rng.uniform(*B)
    exponent = common * (1 + 0.03 * rng.standard_normal(len(n)))
    return {
        m: Hill(float(R0), float(a), float(b), float(c))
        for m, a, b, c in zip(n, A, exponent, mid, strict=True)
    }


def _truth(curves: Mapping[tuple[int, int], TrueCurve], C_mid: float) -> Truth:
    return Truth(curves, (0.1 * C_mid, 0.4 * C_mid), (2.2, 3.0))


def _hill(rng: Draw, n: Sequence[int], B_p: Sequence[int] | None) -> Truth:
    curves = _rising(rng, n, (0.8, 1.6))
    return _truth(_over_B_p(rng, curves, B_p), curves[n[0]].C_mid)


def _stretched(rng: Draw, n: Sequence[int], B_p: Sequence[int] | None) -> Truth:
    curves = _rising(rng, n, (0.6, 1.1))
    specific = {
        key: Stretched(c.R0, c.A, c.B, c.C_mid) for key, c in _over_B_p(rng, curves, B_p).items()
    }
    return _truth(specific, curves[n[0]].C_mid)


def _decline(rng: Draw, n: Sequence[int], B_p: Sequence[int] | None) -> Truth:
    curves = _rising(rng, n, (0.8, 1.6))
    specific = {}
    for key, c in _over_B_p(rng, curves, B_p).items():
        specific[key] = Declining(
            c,
            c.C_mid * float(np.exp(rng.uniform(np.log(3), np.log(12)))),
            float(rng.uniform(0.02, 0.08)),
        )
    return _truth(specific, curves[n[0]].C_mid)


def _same(rng: Draw, n: Sequence[int], B_p: Sequence[int] | None) -> Truth:
    curve = _rising(rng, n[:1], (0.8, 1.6))[n[0]]
    return _truth({(b, m): curve for b in B_p or (32,) for m in n}, curve.C_mid)


def _non_monotone(rng: Draw, n: Sequence[int], B_p: Sequence[int] | None) -> Truth:
    """Three stages of training at a fixed batch, as the paper tells of its Hard problems (section
    4.2, Figs. 18 and 19).

    At small M a small n finds no signal, so a large n leads. Then coverage counts: a large B_p, so
    a small n. At large M, with coverage won, a large n leads again. After stage k the reward of n
    is c (sqrt(1 + d^2) - 1) below that stage's best n, d grid steps away (d doublings of n); a
    stage's gain is the difference of two such profiles plus what keeps it above 0, so every curve
    rises.
    """
    if B_p is not None:
        raise InputError(
            f"B_p = {tuple(B_p)} for a non_monotone world; its B_p are {FIXED_B} / n. "
            "Leave B_p out, or choose another kind."
        )
    level = np.log2(np.array(n, dtype=np.float64))
    tops = [
        level[-1] - rng.integers(2),
        level[0] + 1 + rng.integers(2),
        level[-1] - rng.integers(2),
    ]
    # [stage, n]
    below = rng.uniform(0.03, 0.038) * (np.sqrt(1 + (level - np.array(tops)[:, None]) ** 2) - 1)
    advantages: FloatArray = -np.diff(below, axis=0, prepend=0.0)
    advantages += rng.uniform(0.01, 0.03, (3, 1)) - advantages.min(1, keepdims=True)
    first = 8 * FIXED_B  # compute of the first evaluation: 8 updates
    mids = first * 10 ** rng.uniform([-0.3, 0.6, 1.45], [-0.15, 0.7, 1.58])
    B, R0 = float(rng.uniform(2.3, 2.7)), float(rng.uniform(0.05, 0.2))
    curves = {
        (FIXED_B // m, m): Stages(R0, tuple(g.tolist()), tuple(mids.tolist()), B)
        for m, g in zip(n, advantages.T, strict=True)
    }
    return Truth(curves, (first, 1.2 * first), (2.45, 2.6))


def _three(n: Sequence[int]) -> bool:
    """At least three values of n, each over 5% of the range (a tenth of a decade or so)."""
    return sum(n.count(m) >= 0.05 * len(n) for m in set(n)) >= 3


def _any(n: Sequence[int]) -> bool:
    return len(n) > 0


def _falls_and_rises(n: Sequence[int]) -> bool:
    """At least three doublings down, then three up, and never up before the lowest nor down after
    it."""
    levels = np.log2(n)
    low = int(levels.argmin())
    one_valley = all(a >= b for a, b in pairwise(levels[: low + 1])) and all(
        a <= b for a, b in pairwise(levels[low:])
    )
    return one_valley and levels[0] - levels[low] >= 3 and levels[-1] - levels[low] >= 3


KINDS: dict[str, Kind] = {
    "hill": Kind(_hill, _three),
    "stretched": Kind(_stretched, _three),
    "decline": Kind(_decline, _three),
    "same": Kind(_same, _any),
    "non_monotone": Kind(_non_monotone, _falls_and_rises, in_common=True),
}
