"""Which shape the evaluations favour, and mean curves of the draws."""

import numpy as np
import pytest

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.shape_average import TAIL_PRIOR, fit_all_tails, mean_curve_residuals, sample_posterior
from isojax.scaling.estimate import FitOptions
from tests.scaling.sweeps import CURVES, packed

OPTIONS = FitOptions(replicates=60)


@pytest.mark.parametrize("tail", [0.0, 1.0])
def test_the_true_shape_is_the_likeliest(tail):
    modes, weights = fit_all_tails(packed(tail=tail, noise=0.001, points=25), None)
    assert modes[0].tail == tail and weights[0] > 0.9
    assert (
        weights.sum() == pytest.approx(1)
        and sorted(f.tail for f in modes) == sorted(TAIL_PRIOR)
        and (np.diff(weights) <= 0).all()
    )


def test_a_short_look_tells_no_shape_and_all_take_part():
    """Evaluations up to the middle of the curves: the weights stay near the prior's, and the draws hold several
    shapes.
    """
    sweep = packed(curves={k: (A, B, 1e5) for k, (A, B, _) in CURVES.items()}, noise=0.01)
    modes, weights = fit_all_tails(sweep, None)
    assert {f.tail: w for f, w in zip(modes, weights, strict=True)} == pytest.approx(TAIL_PRIOR, abs=0.2)
    result = sample_posterior(sweep, modes, weights, OPTIONS)
    assert len(set(result.tail.tolist())) >= 3 and result.theta.shape == (60, 3, 3)


def test_mean_curves_are_those_of_the_draws():
    sweep = packed(noise=0.005)
    result = sample_posterior(sweep, *fit_all_tails(sweep, None), OPTIONS)
    C = np.geomspace(1e3, 1e5, 9)
    for j in range(3):
        A, mid, lnB = (result.theta[:, j, i, None] for i in range(3))
        drawn = curve_value(C, result.R0[:, None], A, np.exp(lnB), 10**mid, result.tail[:, None])
        a, m, b, tail = result.mean_curves[j]
        assert curve_value(C, result.R0.mean(), a, np.exp(b), 10**m, tail) == pytest.approx(drawn.mean(0), abs=2e-3)


def test_progress_is_told_and_a_seed_repeats():
    sweep, calls = packed(), []
    modes, weights = fit_all_tails(sweep, None)
    options = FitOptions(replicates=60, seed=7, on_progress=lambda done, of: calls.append((done, of)))
    a, b = (
        sample_posterior(sweep, modes, weights, options),
        sample_posterior(sweep, modes, weights, FitOptions(replicates=60, seed=7)),
    )
    assert (a.theta == b.theta).all() and calls[-1] == (60, 60) and calls == sorted(calls)


def test_residuals_are_noise_without_the_runs_luck():
    """Runs that lie off by .03 at their plateaus: what is left has the noise's size."""
    sweep = packed(noise=0.004, run_sd=0.03, seeds=4, points=30)
    result = sample_posterior(sweep, *fit_all_tails(sweep, None), OPTIONS)
    left = mean_curve_residuals(result, sweep)
    assert left[sweep.has_point].std() == pytest.approx(0.004, rel=0.15)
    assert result.evaluation_sd == pytest.approx(0.004, rel=0.15)
