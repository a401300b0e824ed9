"""Whether n makes a difference at all: AIC compares one curve for each B_p, curves that change linearly with log2 n,
and a free curve for each cell, with noise and run-to-run effect fixed. n matters if one of the last two beats the first
by MIN_AIC_GAIN, "considerably less support" for it (Burnham and Anderson, Model Selection, section 2.6).
"""

from dataclasses import replace

import numpy as np

from isojax.scaling.curves.hierarchical import HierarchicalState, find_mode, minus_two_log_posterior
from isojax.scaling.curves.hierarchical_prior import POOLED_TAU, PackedSweep, ShapeFit, block_columns, pool_over_n
from isojax.scaling.tracks import FloatArray, as_float64

MIN_AIC_GAIN = 4.0
_WEAK_SD = 10.0  # prior standard deviation of every column: none is favoured


def has_no_n_effect(packed: PackedSweep, shape_fit: ShapeFit) -> bool:
    """Whether one curve for each B_p does as well as curves that differ with n, at the likeliest shape and standard
    deviations; False where only one n was measured, because nothing was compared.
    """
    if len({n for _, n in packed.keys}) < 2:
        return False
    J = len(packed.keys)
    B_p_columns = pool_over_n(packed).data.X[:, 0]
    B_p_columns = B_p_columns[:, B_p_columns.any(0)]
    log2_n = np.log2([n for _, n in packed.keys])
    common_deviance = _deviance(shape_fit, packed, B_p_columns)
    linear_deviance = _deviance(shape_fit, packed, np.column_stack([B_p_columns, log2_n - log2_n.mean()]))
    free_deviance = _deviance(shape_fit, packed, np.eye(J))
    return (
        common_deviance - linear_deviance - 2 * 3 < MIN_AIC_GAIN
        and common_deviance - free_deviance - 2 * 3 * (J - B_p_columns.shape[1]) < MIN_AIC_GAIN
    )


def _deviance(shape_fit: ShapeFit, packed: PackedSweep, columns: FloatArray) -> float:
    """Minus twice the greatest log likelihood of curves with A, mid and lnB in the span of the columns, float[J, K]."""
    J, K = columns.shape
    X = block_columns(columns)
    gamma = as_float64(np.linalg.lstsq(X.reshape(3 * J, -1), shape_fit.state.theta.reshape(-1), rcond=None)[0])
    data = replace(packed.data, X=X)
    weak_sd = np.full(1 + 3 * K, _WEAK_SD)
    scales = replace(shape_fit.scales, tau=np.full(3, POOLED_TAU), u_mean=np.zeros_like(weak_sd), u_sd=weak_sd)
    state = HierarchicalState(X @ gamma, shape_fit.state.e, np.concatenate([shape_fit.state.u[:1], gamma]))
    mode = find_mode(shape_fit.tail, data, state, scales, iterations=100)
    return minus_two_log_posterior(shape_fit.tail, data, mode, scales)
