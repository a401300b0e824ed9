"""Contents of fit.json, schema 2, from curves written by hand: every curve's replicates are draws of A around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# (B_p, n) -> (A, B, C_mid), R0 = .2. At C = 1e4 n = 4 leads, at 1e5 n = 16; B_p = 64 is later by half.
SHAPES = {
    (b, n): (A, 1.0, mid * (1 if b == 16 else 1.5))
    for b in (16, 64)
    for n, A, mid in ((4, 0.6, 2e3), (16, 0.7, 8e3), (64, 0.72, 6e4))
}
R0 = 0.2


def curve(B_p: int, n: int, A: float, B: float, C_mid: float, **more: Any) -> dict[str, Any]:
    """One of `curves`, measured from 1e3 to 1e5."""
    found = {
        "B_p": B_p,
        "n": n,
        "form": "hill",
        "tail": 1.0,
        "R0": R0,
        "A": A,
        "exponent": B,
        "C_mid": C_mid,
        "C_low": 1e3,
        "C_high": 1e5,
        "points": 20,
    }
    found |= {
        "rmse": 0.008,
        "A_interval": [A - 0.02, A + 0.02],
        "exponent_interval": [B, B],
        "C_mid_interval": [C_mid, None],
    }
    return found | {"correction": None, "determined": True, "C_peak": None} | more


def document(
    shapes: Mapping[tuple[int, int], tuple[float, float, float]] = SHAPES,
    sd: float = 0.006,
    replicates: int = 400,
    unstable: Sequence[int] = (),
    **more: Any,
) -> dict[str, Any]:
    """A hierarchical fit of these curves. sd: of A over the replicates, independent between cells."""
    curves = [curve(*cell, *shape) for cell, shape in shapes.items()]
    rng = np.random.default_rng(0)
    draws = {
        "cells": [list(cell) for cell in shapes],
        "A": [(A + sd * rng.standard_normal(replicates)).tolist() for A, _, _ in shapes.values()],
        "exponent": [[B] * replicates for _, B, _ in shapes.values()],
        "C_mid": [[mid] * replicates for _, _, mid in shapes.values()],
        "R0": [R0] * replicates,
        "tail": [1.0] * replicates,
    }
    front = [{"C": 1e3, "reward": 0.3, "n": 4, "B_p": 16}, {"C": 1e5, "reward": 0.66, "n": 16, "B_p": 16}]
    law = {"form": "constant", "L": 0.0, "k": 0.0, "log10_C0": None, "b": 4.0, "no_effect": False}
    B_ps = sorted({b for b, _ in shapes})
    return {
        "schema": 2,
        "mode": "hierarchical",
        "metric": "avg@4",
        "compute": "rollouts",
        "base_reward": R0,
        "intervals": {
            "level": 0.9,
            "replicates": replicates,
            "seed": 0,
            "run_sd": 0.01,
            "run_sd_source": "assumed",
            "problems": 300,
        },
        "runs": [
            {"B_p": b, "n": n, "seed": s, "points": 20, "C_max": 1e5, "final": 0.6} for b, n in shapes for s in (0, 1)
        ],
        "curves": curves,
        "frontier": front,
        "crossovers": [],
        "segments": [],
        "n_star": law,
        "by_B_p": [{"B_p": b, "frontier": front, "n_star": law} for b in B_ps],
        "draws": draws,
        "stability": [
            {"B_p": b, "stable": b not in unstable, "reason": "it fell" if b in unstable else ""} for b in B_ps
        ],
        "flags": [],
    } | more
