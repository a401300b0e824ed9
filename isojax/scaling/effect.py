"""Does n make a difference at all? ScaleRL found that at a fixed batch 8 to 32 generations a prompt changed little: a fit must be able to
say so.

Three models of the curves are compared by AIC, noise and run-to-run effect held: one curve for each B_p, whatever n; curves that change
linearly with log2 n; curves free for each cell. n is said to matter if one of the last two beats the first by MIN_GAIN, "considerably less
support" in the words of Burnham and Anderson (Model Selection and Multimodel Inference, 2nd ed., section 2.6).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from isojax.scaling.metrics import FloatArray, floats
from isojax.scaling.mixed import State, cost, solve
from isojax.scaling.surface import STIFF, Fitted, Packed, pooled

MIN_GAIN = 4.0
_WEAK = 10.0  # prior standard deviation of every column: none is favoured


def no_effect(packed: Packed, fitted: Fitted) -> bool:
    """Whether one curve for each B_p does as well as curves that differ with n; False where only one n was measured (nothing was compared).

    fitted: the likeliest curves, for their shape and scales.
    """
    if len({n for _, n in packed.keys}) < 2:
        return False
    J = len(packed.keys)
    groups = pooled(packed).data.X[:, 0]
    groups = groups[:, groups.any(0)]
    ell = np.log2([n for _, n in packed.keys])
    common = _deviance(fitted, packed, groups)
    linear = _deviance(fitted, packed, np.column_stack([groups, ell - ell.mean()]))
    free = _deviance(fitted, packed, np.eye(J))
    return common - linear - 2 * 3 < MIN_GAIN and common - free - 2 * 3 * (J - groups.shape[1]) < MIN_GAIN


def _deviance(fitted: Fitted, packed: Packed, columns: FloatArray) -> float:
    """Minus twice the greatest log likelihood of curves whose A, mid and lnB lie each on the given columns, float[J, K]."""
    J, K = columns.shape
    X = np.zeros((J, 3, 3 * K))
    for c in range(3):
        X[:, c, c * K : (c + 1) * K] = columns
    gamma = floats(np.linalg.lstsq(X.reshape(3 * J, -1), fitted.state.theta.reshape(-1), rcond=None)[0])
    data = replace(packed.data, X=X)
    weak = np.full(1 + 3 * K, _WEAK)
    scales = replace(fitted.scales, tau=np.full(3, STIFF), u_mean=np.zeros_like(weak), u_sd=weak)
    state = State(X @ gamma, fitted.state.e, np.concatenate([fitted.state.u[:1], gamma]))
    return cost(fitted.tail, data, solve(fitted.tail, data, state, scales, iterations=100, tolerance=1e-9), scales)
