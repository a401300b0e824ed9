"""Does n make a difference at all? ScaleRL found that at a fixed batch 8 to 32 generations a prompt changed little: a fit must be able to say so.

Three models of the curves are compared by AIC, noise and run-to-run effect held: one curve for each B_p, whatever n; curves that change
linearly with log2 n; curves free for each cell. n is said to matter if one of the last two beats the first by MIN_GAIN, "considerably less
support" in the words of Burnham and Anderson (Model Selection and Multimodel Inference, 2nd ed., section 2.6).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from isojax.scaling.metrics import FloatArray
from isojax.scaling.mixed import Data, State, cost, hyper_prior, no_draw, solve
from isojax.scaling.surface import Fitted, Packed

MIN_GAIN = 4.0
_STIFF = 1e-4


def no_effect(fitted: Fitted, packed: Packed) -> bool:
    """Whether one curve for each B_p does as well as curves that differ with n; False where only one n was measured (nothing was compared)."""
    ns = {n for _, n in packed.keys}
    if len(ns) < 2:
        return False
    B_ps = sorted({B_p for B_p, _ in packed.keys})
    one_hot = np.array([[float(B_p == b) for b in B_ps] for B_p, _ in packed.keys])
    ell = np.log2([n for _, n in packed.keys])
    if len(B_ps) == len(packed.keys):  # B_p n is fixed: n and B_p change together
        one_hot = np.ones((len(packed.keys), 1))
    ell = ell - ell.mean()
    common = _deviance(fitted, packed, [one_hot] * 3)
    linear = _deviance(fitted, packed, [np.column_stack([one_hot, ell])] * 3)
    free = _deviance(fitted, packed, [np.eye(len(packed.keys))] * 3)
    extra_free = 3 * (len(packed.keys) - one_hot.shape[1])
    return common - linear - 2 * 3 < MIN_GAIN and common - free - 2 * extra_free < MIN_GAIN


def _deviance(fitted: Fitted, packed: Packed, blocks: list[FloatArray]) -> float:
    """Twice the least cost of curves that lie on the given columns, one block for each of (A, mid, lnB)."""
    J = len(packed.keys)
    X = np.zeros((J, 3, sum(b.shape[1] for b in blocks)))
    at = 0
    for c, block in enumerate(blocks):
        X[:, c, at : at + block.shape[1]] = block
        at += block.shape[1]
    data = Data(packed.data.x, packed.data.y, packed.data.weight, X, packed.data.low, packed.data.high)
    gamma = np.linalg.lstsq(X.reshape(3 * J, -1), fitted.state.theta[0].reshape(-1), rcond=None)[0]
    on_surface = np.einsum("jck,k->jc", X, gamma)[None]
    state = State(on_surface, fitted.state.e, np.concatenate([fitted.state.u[:, :1], gamma[None]], axis=1))
    scales = replace(fitted.scales, tau=np.full(3, _STIFF))
    state = solve(fitted.form, data, state, scales, iterations=100, tolerance=1e-9)
    return float(cost(fitted.form, data, state, no_draw(data), scales, hyper_prior(data))[0])
