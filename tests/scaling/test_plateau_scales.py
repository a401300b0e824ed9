"""How far plateaus lie apart (plateau_scales.py): its evidence against SciPy's normal density, and
standard deviations of simulated sweeps recovered.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from isojax.scaling.curves.plateau_scales import (
    EFFECT_SD_PRIOR,
    RUN_SD_PRIOR,
    LogNormal,
    _integrate_out_shapes,
    _log_evidence,
    _Plateaus,
    draw_plateau_scales,
)
from isojax.scaling.curves.posterior_mode import fit_shape
from tests.scaling.sweeps import packed

# Four cells at their plateaus from the first evaluations on.
LEVEL = {(16, n): (0.5, 1.5, 30.0) for n in (4, 8, 16, 32)}
RISING = {key: (0.35 + 0.1 * i, 1.5, 30.0) for i, key in enumerate(LEVEL)}


def drawn(sweep, stated_run_sd=None, count=200):
    fitted = fit_shape(1.0, sweep, stated_run_sd)
    rng = np.random.default_rng(0)
    return draw_plateau_scales(sweep, fitted, stated_run_sd, count, rng)


def median_run_sd(sweep):
    return float(np.median([scales.run_sd for scales in drawn(sweep)]))


def test_the_prior_is_log_normal():
    values = LogNormal(0.02, 3.0).sample(20_000, np.random.default_rng(0))
    assert np.median(values) == pytest.approx(0.02, rel=0.05)
    assert np.log(values).std() == pytest.approx(np.log(3.0), rel=0.05)


def test_evidence_is_the_normal_density_of_measured_plateaus():
    """Plateaus measured with independent errors: their covariance is that of surface, cells, runs
    and errors."""
    sweep = packed(curves=LEVEL, seeds=2)
    data, fitted = sweep.data, fit_shape(1.0, sweep)
    rng = np.random.default_rng(0)
    measured, error_sd = rng.normal(0.5, 0.05, 8), rng.uniform(0.01, 0.05, 8)
    cell_of_run = np.repeat(np.arange(4), 2)
    plateaus = _Plateaus(np.diag(error_sd**-2), measured / error_sd**2, cell_of_run)

    def log_density(scales):
        X = data.X[cell_of_run, 0]
        covariance = X @ np.diag(scales.u_sd[1:] ** 2) @ X.T + np.diag(error_sd**2)
        covariance += np.kron(np.eye(4), np.full((2, 2), scales.tau[0] ** 2))
        covariance += scales.run_sd**2 * np.eye(8)
        return multivariate_normal(np.zeros(8), covariance).logpdf(measured)

    narrow = fitted.scales
    wide = replace(narrow, run_sd=0.03, tau=3 * narrow.tau, u_sd=0.5 * narrow.u_sd)
    difference = _log_evidence(data, plateaus, wide) - _log_evidence(data, plateaus, narrow)
    assert difference == pytest.approx(log_density(wide) - log_density(narrow), rel=1e-6)


def test_of_level_runs_the_plateaus_are_their_mean_rewards():
    sweep = packed(curves=RISING, noise=0.005, run_sd=0.02, seeds=3, low=1e4)
    plateaus = _integrate_out_shapes(sweep.data, fit_shape(1.0, sweep))
    trained = sweep.data.trained
    mean_rewards = (sweep.data.y * trained).sum(-1) / trained.sum(-1)

    estimated = np.linalg.solve(plateaus.information, plateaus.beta)
    assert estimated == pytest.approx(mean_rewards.ravel(), abs=2e-3)
    assert plateaus.cell_of_run.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_seeds_tell_how_far_runs_differ():
    alike, unlike = (
        packed(curves=LEVEL, noise=0.003, run_sd=run_sd, seeds=4) for run_sd in (0.002, 0.03)
    )
    assert median_run_sd(alike) < 0.006
    assert median_run_sd(unlike) == pytest.approx(0.03, rel=0.35)


def test_one_seed_leaves_the_difference_of_runs_open():
    """The draws are as wide as a factor of 5, and larger where the cells lie off a smooth curve."""
    smooth, rough = (
        packed(curves=LEVEL, noise=0.003, run_sd=run_sd, seeds=1) for run_sd in (0.001, 0.04)
    )
    run_sds = [scales.run_sd for scales in drawn(smooth)]
    low, high = np.quantile(run_sds, [0.05, 0.95])
    assert high / low > 5 and np.median(run_sds) < RUN_SD_PRIOR.median
    assert median_run_sd(rough) > 1.5 * RUN_SD_PRIOR.median


def test_the_users_run_sd_stays_and_the_level_is_free():
    sweep = packed(curves=LEVEL, noise=0.003, seeds=1)
    constant = 1 + int(np.flatnonzero(np.ptp(sweep.data.X[:, 0], axis=0) == 0)[0])
    for scales in drawn(sweep, stated_run_sd=0.025, count=20):
        assert scales.run_sd == 0.025 and scales.u_sd[constant] == sweep.prior.sd[constant]
        assert scales.tau[1:].tolist() == fit_shape(1.0, sweep, 0.025).scales.tau[1:].tolist()


def test_the_effect_of_n_is_small_where_n_has_none():
    slope = 1 + int(np.argmax(packed(curves=LEVEL).data.X[-1, 0] == 1.0 / 2))
    none, large = (
        np.median([scales.u_sd[slope] for scales in drawn(packed(curves=curves, noise=0.003))])
        for curves in (LEVEL, RISING)
    )
    assert none < 0.5 * EFFECT_SD_PRIOR.median and large > 2 * EFFECT_SD_PRIOR.median
