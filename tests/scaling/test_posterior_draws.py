"""Draws of the curves against NumPyro's sampler of the same model, written independently; the
density's gradient by differences. Which shape the evaluations favour, and mean curves of the draws.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

from isojax.scaling.checks.fit_flags import MAX_R_HAT
from isojax.scaling.curves import posterior_draws
from isojax.scaling.curves.hierarchical import Scales, robust_precision
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.posterior_draws import (
    BINS_PER_RUN,
    _make_target,
    mean_curve_residuals,
    run_hmc_chains,
    sample_posterior,
)
from isojax.scaling.curves.posterior_mode import PRIOR_TAU, TAIL_PRIOR, fit_all_tails, fit_shape
from isojax.scaling.curves.sweep_estimate import FitOptions
from tests.scaling.sweeps import CURVES, packed


def test_the_gradient_is_that_of_the_value():
    sweep = packed(noise=0.01, run_sd=0.01)
    fitted = fit_shape(0.5, sweep)
    target = _make_target(sweep.data, fitted, np.array([0.012]))
    mode = np.concatenate([fitted.state.theta.ravel(), [fitted.state.R0]])
    rng = np.random.default_rng(0)
    for v in mode + 0.02 * rng.standard_normal((5, len(mode))):
        h = 1e-6
        ahead, back = (
            target.value_and_gradient(v + sign * h * np.eye(len(v)))[0] for sign in (1, -1)
        )
        assert target.value_and_gradient(v[None])[1][0] == pytest.approx(
            (ahead - back) / (2 * h), rel=1e-5, abs=1e-3
        )


def test_chains_turn_round_at_the_bounds():
    """Just outside the density falls smoothly, to the same side as the gradient; far outside
    nothing is allowed."""
    sweep = packed()
    fitted = fit_shape(1.0, sweep)
    target = _make_target(sweep.data, fitted, np.array([0.01]))
    v = np.repeat(np.concatenate([fitted.state.theta.ravel(), [fitted.state.R0]])[None], 3, axis=0)
    v[:, 0] = 1.0, 1.01, 2.1  # the plateau A of the first cell
    potential, gradient = target.value_and_gradient(v)
    assert (
        potential[1] > potential[0] and gradient[1, 0] > gradient[0, 0] and np.isinf(potential[2])
    )


# Three cells that do not reach their plateaus, BINS evaluations a run: each has its own bin, so the
# density is exact.
CURVES_BELOW_PLATEAU = {(16, n): (0.55, 1.0, 1e4 * n / 4) for n in (4, 8, 16)}
SWEEP = packed(curves=CURVES_BELOW_PLATEAU, points=BINS_PER_RUN, high=3e4, noise=0.01, run_sd=0.02)
RUN_SD = 0.02


def hierarchical_model(scales: Scales, W: np.ndarray) -> None:
    """The model of docs/laws.md in NumPyro: surface, cells, runs, evaluations of precision W
    float[J, S, P]."""
    data = SWEEP.data
    R0 = numpyro.sample("R0", dist.Normal(0.0, 3.0))
    gamma = numpyro.sample("gamma", dist.Normal(scales.u_mean[1:], scales.u_sd[1:]))
    deviation = numpyro.sample("deviation", dist.Normal(jnp.zeros((len(data.X), 3)), 1.0))
    theta = numpyro.deterministic("theta", data.X @ gamma + scales.tau * deviation)
    e = numpyro.sample("e", dist.Normal(jnp.zeros(data.weight.shape[:2]), RUN_SD))
    A, mid, lnB = (theta[:, i, None, None] for i in range(3))
    s = jnp.where(
        np.isfinite(data.x), 1 / (1 + 10 ** (-jnp.exp(lnB) * (np.maximum(data.x, 0) - mid))), 0.0
    )
    expected = R0 + (A + e[..., None] - R0) * s
    numpyro.factor("evaluations", -0.5 * (W * (data.y - expected) ** 2).sum())


@pytest.mark.slow
def test_draws_have_the_moments_of_nuts():
    """No-U-Turn sampling of the model with nothing integrated out."""
    fitted = fit_shape(1.0, SWEEP, stated_run_sd=RUN_SD)
    scales = Scales(fitted.scales.noise_sd, RUN_SD, PRIOR_TAU, SWEEP.prior.mean, SWEEP.prior.sd)
    shapes = [(replace(fitted, scales=scales), np.full(2000, RUN_SD))]
    draws = run_hmc_chains(SWEEP.data, shapes, np.random.default_rng(1))
    mcmc = MCMC(
        NUTS(hierarchical_model, dense_mass=True),
        num_warmup=800,
        num_samples=4000,
        progress_bar=False,
    )
    with jax.numpy_rank_promotion("allow"):
        mcmc.run(jax.random.key(0), scales, robust_precision(SWEEP.data, fitted.state, scales))
    nuts = mcmc.get_samples()
    ours = np.column_stack([draws.theta.reshape(len(draws.theta), -1), draws.R0])
    theirs = np.column_stack([np.asarray(nuts["theta"]).reshape(len(nuts["R0"]), -1), nuts["R0"]])
    sd = theirs.std(0)
    assert sd[0] > 0.02  # the plateau is wide open, so this is no normal density
    assert ours.mean(0) / sd == pytest.approx(theirs.mean(0) / sd, abs=0.12)
    assert ours.std(0) / sd == pytest.approx(np.ones(len(sd)), abs=0.1)
    for q in (0.05, 0.95):
        assert np.quantile(ours, q, axis=0) / sd == pytest.approx(
            np.quantile(theirs, q, axis=0) / sd, abs=0.3
        )


def test_the_same_generator_gives_the_same_draws():
    fitted = fit_shape(1.0, SWEEP)
    shapes = [(fitted, np.full(5, 0.01))]
    a, b, c = (
        run_hmc_chains(SWEEP.data, shapes, np.random.default_rng(s)).theta for s in (1, 1, 2)
    )
    assert (a == b).all() and (a != c).all()


def test_chains_say_whether_they_were_long_enough(monkeypatch):
    """A step nearly as small as nothing leaves each chain where it began."""
    fits = fit_all_tails(SWEEP, None)
    options = FitOptions(replicates=400)
    settled = sample_posterior(SWEEP, fits, options)
    assert settled.r_hat[1] < MAX_R_HAT and 0.6 < settled.acceptance < 0.99
    monkeypatch.setattr(posterior_draws, "STEP_SIZE", 0.02)
    creeping = sample_posterior(SWEEP, fits, options)
    assert creeping.acceptance > 0.99 and min(creeping.r_hat) > 2 * MAX_R_HAT


OPTIONS = FitOptions(replicates=60)


@pytest.mark.parametrize("tail", [0.0, 1.0])
def test_the_true_shape_is_the_likeliest(tail):
    modes = fit_all_tails(packed(tail=tail, noise=0.001, points=25), None)
    weights = np.array([f.probability for f in modes])
    assert modes[0].state.tail == tail and weights[0] > 0.9
    assert (
        weights.sum() == pytest.approx(1)
        and sorted(f.state.tail for f in modes) == sorted(TAIL_PRIOR)
        and (np.diff(weights) <= 0).all()
    )


def test_more_runs_of_one_form_are_no_more_evidence_for_a_shape():
    """Runs depart alike from each shape: the weights are nearly those of a third of the runs."""
    few, many = (fit_all_tails(packed(noise=0.004, seeds=seeds), None) for seeds in (1, 3))
    few, many = ({f.state.tail: f.probability for f in modes} for modes in (few, many))
    assert many == pytest.approx(few, abs=0.1) and max(many.values()) < 0.9


def test_a_short_look_tells_no_shape_and_all_take_part():
    """Evaluations up to the middle of the curves: the weights stay near the prior's, and the draws
    hold several shapes.
    """
    sweep = packed(curves={k: (A, B, 1e5) for k, (A, B, _) in CURVES.items()}, noise=0.01)
    modes = fit_all_tails(sweep, None)
    assert {f.state.tail: f.probability for f in modes} == pytest.approx(TAIL_PRIOR, abs=0.2)
    result = sample_posterior(sweep, modes, OPTIONS)
    assert len(set(result.tail.tolist())) >= 3 and result.theta.shape == (60, 3, 3)


def test_mean_curves_are_those_of_the_draws():
    sweep = packed(noise=0.005)
    result = sample_posterior(sweep, fit_all_tails(sweep, None), OPTIONS)
    C = np.geomspace(1e3, 1e5, 9)
    for j in range(3):
        A, mid, lnB = (result.theta[:, j, i, None] for i in range(3))
        drawn = curve_value(C, result.R0[:, None], A, np.exp(lnB), 10**mid, result.tail[:, None])
        a, m, b, tail = result.mean_curves[j]
        assert curve_value(C, result.R0.mean(), a, np.exp(b), 10**m, tail) == pytest.approx(
            drawn.mean(0), abs=2e-3
        )


def test_progress_is_reported_and_a_seed_repeats():
    sweep, calls = packed(), []
    modes = fit_all_tails(sweep, None)
    options = FitOptions(
        replicates=60, seed=7, on_progress=lambda done, of: calls.append((done, of))
    )
    a = sample_posterior(sweep, modes, options)
    b = sample_posterior(sweep, modes, FitOptions(replicates=60, seed=7))
    assert (a.theta == b.theta).all() and calls[-1] == (60, 60) and calls == sorted(calls)


def test_residuals_are_noise_without_the_runs_luck():
    """Runs that lie off by .03 at their plateaus: what is left has the noise's size."""
    sweep = packed(noise=0.004, run_sd=0.03, seeds=4, points=30)
    result = sample_posterior(sweep, fit_all_tails(sweep, None), OPTIONS)
    left = mean_curve_residuals(result, sweep)
    assert left[sweep.has_point].std() == pytest.approx(0.004, rel=0.15)
    assert result.evaluation_sd == pytest.approx(0.004, rel=0.15)
