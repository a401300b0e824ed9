"""A known peak is found, and none in curves that only rise. A known bump is found and none in white
noise; it fades outside the knots; its draws.
"""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from isojax.scaling.curves.departures import (
    AMPLITUDES,
    GRID_EXPONENTS,
    _best_grid_fit,
    _cell_points,
    _curve_grid,
    _trial_errors,
    _visible_part,
    find_peak,
    fit_corrections,
    try_forecast,
)
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.sweep_estimate import PosteriorSamples, SweepEstimate
from isojax.scaling.evaluation_noise import noise_sd
from isojax.scaling.result import FADE_DECADES, FittedCurve, IntervalSettings, ResidualCorrection
from isojax.scaling.tracks import group_by_cell
from tests.scaling.sweeps import run
from tests.scaling.synthetic_curves import Declining, Hill

C = np.geomspace(1e3, 1e5, 30).round()


def seeds(curve, count=2, noise=0.01, seed=0, points=C):
    rng = np.random.default_rng(seed)
    return [
        run(
            16,
            8,
            s,
            points,
            np.clip(curve(points) + noise * rng.standard_normal(len(points)), 0, 1),
        )
        for s in range(count)
    ]


@pytest.mark.parametrize("rate", [0.08, 0.15])
def test_a_known_peak_is_found(rate):
    true = Declining(Hill(0.2, 0.6, 1.2, 3e3), 2e4, rate)
    for seed in range(5):
        result = find_peak(seeds(true.at, seed=seed), 0.2)
        assert result is not None and result == pytest.approx(np.log10(true.C_peak), abs=0.35)


def test_without_noise_it_is_found_to_a_place():
    true = Declining(Hill(0.2, 0.6, 1.2, 3e3), 2e4, 0.1)
    assert find_peak(seeds(true.at, noise=0.0), 0.2) == pytest.approx(
        np.log10(true.C_peak), abs=0.2
    )


def test_rising_curves_have_none():
    """40 rising curves of either shape, their plateaus reached or not: one false alarm at most."""
    false = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        A = rng.uniform(0.4, 0.8)
        B = rng.uniform(0.6, 1.6)
        mid = 10 ** rng.uniform(3.2, 4.8)
        tail = float(rng.integers(2))
        count = int(rng.integers(1, 4))
        false += (
            find_peak(
                seeds(
                    lambda c, t=tail, p=(A, B, mid): curve_value(c, 0.2, *p, t),
                    count,
                    seed=1000 + seed,
                ),
                0.2,
            )
            is not None
        )
    assert false < 2


def test_a_flat_stretch_and_few_points_have_none():
    assert find_peak(seeds(lambda c: np.full(len(c), 0.5)), 0.2) is None
    true = Declining(Hill(0.2, 0.6, 1.2, 3e3), 2e4, 0.3)
    # 10 points: less than 12 and one a seed
    assert find_peak(seeds(true.at, count=1, points=C[::3]), 0.2) is None


X = [np.sort(np.random.default_rng(i).uniform(3, 5, 60)) for i in range(4)]
SD = 0.01


def bump(x):
    return 0.02 * np.sin(2 * np.pi * x / 1.5)


def test_a_sine_is_recovered():
    rng = np.random.default_rng(0)
    result = fit_corrections(X, [bump(x) + SD * rng.standard_normal(60) for x in X], SD)
    inner, hits = np.linspace(3.2, 4.8, 30), []
    for correction in result:
        assert correction is not None
        assert (
            correction.evaluate(10**inner) == pytest.approx(bump(inner), abs=0.014)
            and np.abs(correction.evaluate(10**inner) - bump(inner)).mean() < 0.005
        )
        knots = np.array(correction.log10_C)
        hits += list(np.abs(correction.value - bump(knots)) < 1.645 * np.array(correction.sd))
    assert np.mean(hits) > 0.75  # nominally .9 of 44 correlated knots


def test_there_is_none_in_white_noise():
    false = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        false += fit_corrections(X, [SD * rng.standard_normal(60) for _ in X], SD)[0] is not None
    assert false < 2


def test_without_noise_or_points_there_is_none():
    assert (
        fit_corrections(X[:1], [bump(X[0])], 0.0) == [None] and fit_corrections([], [], 0.01) == []
    )


def test_it_fades_to_nothing_by_hand():
    correction = ResidualCorrection((3.0, 4.0), (0.02, -0.01), (0.001, 0.002))
    half = FADE_DECADES / 2
    at = correction.evaluate(
        10 ** np.array([3 - FADE_DECADES, 3 - half, 3.0, 3.5, 4.0, 4 + half, 4 + FADE_DECADES, 9.0])
    )
    assert at == pytest.approx([0, 0.01, 0.02, 0.005, -0.01, -0.005, 0, 0])


def test_draws_scatter_about_the_correction_by_its_sd():
    correction = ResidualCorrection((3.0, 3.2, 3.4), (0.02, 0.0, -0.01), (0.001, 0.002, 0.004))
    C = [1e3, 10**3.2, 10**3.4, 1e6]
    R = correction.sample(C, 4000, (16, 8))
    assert R.mean(0) == pytest.approx([0.02, 0.0, -0.01, 0.0], abs=2e-4)
    assert R.std(0) == pytest.approx([0.001, 0.002, 0.004, 0.0], rel=0.05)
    correlation = np.corrcoef(R[:, :3].T)
    assert correlation[0, 1] == pytest.approx(0.7, abs=0.03) and correlation[0, 2] == pytest.approx(
        0.49, abs=0.05
    )
    assert (correction.sample(C, 4000, (16, 8)) == R).all()
    assert (correction.sample(C, 4000, (16, 16))[:, :3] != R[:, :3]).all()


TWO_RUNS = np.repeat(np.eye(2), 12, axis=0)


def grid_fit(tail, peak, x, rewards, run_one_hot):
    """(rss, fall, its variance for unit noise) of the best curve of the grid, by loops; at each
    corner a gain for each run, and a fall beyond the peak."""
    best = (np.inf, 0.0, 0.0)
    for mid in np.linspace(x.min() - 0.5, x.max() + 0.7, 18):
        for exponent in GRID_EXPONENTS:
            capped = x if peak is None else np.minimum(x, peak)
            progress = curve_value(10**capped, 0, 1, exponent, 10**mid, tail)
            columns = progress[:, None] * run_one_hot
            if peak is not None:
                columns = np.column_stack([columns, -np.maximum(x - peak, 0)])
            coefficients, *_ = np.linalg.lstsq(columns, rewards, rcond=None)
            rss = ((columns @ coefficients - rewards) ** 2).sum()
            variance = np.linalg.inv(columns.T @ columns)[-1, -1]
            best = min(best, (rss, coefficients[-1], variance))
    return best


@pytest.mark.parametrize(("tail", "peak"), [(1.0, None), (0.0, None), (1.0, 4.2), (0.0, 3.6)])
def test_the_best_curve_of_a_grid_by_least_squares_at_each_point(tail, peak):
    rng = np.random.default_rng(0)
    x = np.tile(np.linspace(3, 5, 12), 2)
    rewards = 0.4 / (1 + 10 ** (3.8 - x)) - 0.05 * np.maximum(x - 4.2, 0)
    rewards = rewards + 0.01 * rng.standard_normal(24)
    tracks = [run(16, 8, s, 10 ** x[:12], rewards[12 * s : 12 * (s + 1)]) for s in range(2)]

    fitted = _best_grid_fit(_curve_grid(tail, x), _cell_points(tracks, 0.0), peak)

    rss, fall, fall_variance = grid_fit(tail, peak, x, rewards, TWO_RUNS)
    assert fitted.rss == pytest.approx(rss, rel=1e-3) and fitted.peak == peak
    if peak is not None:
        assert fitted.fall == pytest.approx(fall, rel=1e-3)
        assert fitted.fall_variance == pytest.approx(fall_variance, rel=1e-3)


def test_a_fall_counts_where_it_is_steep_and_explains_much():
    """The same points with a fall of growing steepness: a peak from where both conditions hold, by
    the curves of a grid alone."""
    rng = np.random.default_rng(4)
    noise = 0.01 * rng.standard_normal((2, 30))
    x = np.log10(C)

    found = []
    for fall in np.linspace(0, 0.2, 11):
        curve = 0.2 + 0.3 / (1 + 10 ** (3.5 - x)) - fall * np.maximum(x - 4.2, 0)
        tracks = [run(16, 8, s, C, curve + noise[s]) for s in range(2)]
        points = _cell_points(tracks, 0.2)
        candidates = np.quantile(x, np.linspace(0.3, 0.9, 16))
        candidates = [c for c in candidates if 2 * (x > c).sum() >= 4]
        grids = [_curve_grid(tail, points.log10_C) for tail in (1.0, 0.0)]
        rising = min(_best_grid_fit(grid, points, None).rss for grid in grids)
        fits = [_best_grid_fit(grid, points, c) for c in candidates for grid in grids]
        best = min(fits, key=lambda fit: fit.rss)
        residual = max(noise_sd([t.R for t in tracks]) ** 2, best.rss / (60 - 4 - 2))
        is_steep = best.fall > 3.3 * np.sqrt(best.fall_variance * residual)
        holds = is_steep and rising - best.rss > 14 * residual
        assert find_peak(tracks, 0.2) == (pytest.approx(best.peak) if holds else None)
        found.append(holds)
    assert not found[0] and found[-1]


def evidence(x, r, amplitude):
    """Twice the log likelihood of residuals as a Gaussian process, over that of noise alone."""
    covariance = amplitude**2 * np.exp(-0.5 * ((x[:, None] - x) / 0.3) ** 2) + SD**2 * np.eye(
        len(x)
    )
    noise = multivariate_normal(np.zeros(len(x)), SD**2 * np.eye(len(x)))
    return 2 * (multivariate_normal(np.zeros(len(x)), covariance).logpdf(r) - noise.logpdf(r))


def test_the_amplitude_is_the_likeliest_and_the_correction_the_mean_of_the_process():
    rng = np.random.default_rng(0)
    for scale in (0.35, 0.55, 1.0):
        residuals = [scale * bump(x) + SD * rng.standard_normal(60) for x in X]
        gains = [
            sum(evidence(x, r, a) for x, r in zip(X, residuals, strict=True)) for a in AMPLITUDES
        ]
        corrections = fit_corrections(X, residuals, SD)
        if max(gains) < 10:
            assert corrections == [None] * 4
            continue
        amplitude = AMPLITUDES[int(np.argmax(gains))]
        for x, r, correction in zip(X, residuals, corrections, strict=True):
            assert correction is not None
            knots = np.array(correction.log10_C)
            assert (knots[0], knots[-1]) == (x.min(), x.max())
            assert len(knots) == int(np.ceil(np.ptp(x) / 0.2)) + 1
            prior = amplitude**2 * np.exp(-0.5 * ((knots[:, None] - x) / 0.3) ** 2)
            inverse = np.linalg.inv(
                amplitude**2 * np.exp(-0.5 * ((x[:, None] - x) / 0.3) ** 2) + SD**2 * np.eye(60)
            )
            assert correction.value == pytest.approx(prior @ inverse @ r, abs=1e-9)
            variance = amplitude**2 - np.diag(prior @ inverse @ prior.T)
            assert correction.sd == pytest.approx(np.sqrt(variance), rel=1e-5)
    assert max(gains) > 10


def flat_draws(levels, noise_of_draws=0.0, Q=500):
    """Draws of flat curves at these levels, one a cell; and an estimate that has them."""
    keys = tuple((16, n) for n in (4, 8)[: len(levels)])
    A = np.array(levels) + noise_of_draws * np.random.default_rng(0).standard_normal((Q, 1))
    ones, ends = np.ones((Q, len(levels))), np.full(len(levels), 1e4)
    draws = PosteriorSamples(
        np.ones(Q), keys, A, ones, 1e-3 * ones, np.full(Q, 0.1), np.zeros((Q, 2)),
        np.inf * ends, 0.1 * ends, ends,
    )  # fmt: skip
    settings = IntervalSettings(
        level=0.9, replicates=Q, seed=0, run_sd=0.02, run_sd_source="assumed", noise_sd=0.01,
        problems=None, method="", acceptance=None, r_hat=None,
    )  # fmt: skip
    curves = [
        FittedCurve(*key, 0.1, level, 1.0, 1e-3, 1e3, 1e4, 9, 0.01)
        for key, level in zip(keys, levels, strict=True)
    ]
    return SweepEstimate(curves, [], draws, settings)


def hidden_sweep(levels=(0.5, 0.6)):
    """Evaluations at 1e3, 2e3, ..., 64e3: the last is 4 times as far as 16e3, and those above 32e3
    are in the upper half of the decades that a trial hides."""
    budgets = 1e3 * np.array([0, 1, 2, 4, 8, 16, 32, 33, 64])
    return group_by_cell(
        [
            run(16, n, s, budgets, np.where(budgets > 32e3, level + 0.01 * s, 0.3))
            for n, level in zip((4, 8), levels, strict=False)
            for s in range(2)
        ]
    )


def test_what_a_trial_sees_and_what_it_hides():
    cells = hidden_sweep()
    visible = _visible_part(cells, 16e3)
    for seeds in visible.values():
        assert [t.C.tolist() for t in seeds] == [[0, 1e3, 2e3, 4e3, 8e3, 16e3]] * 2
        assert [len(t.run.points) for t in seeds] == [6, 6] and seeds[0].R[-1] == 0.3
    assert _visible_part(cells, 4e3) == {}  # 3 evaluations after C = 0
    assert len(_visible_part(cells, 8e3)) == 2  # 4 evaluations, and 8e3 * 4 is 32 times 1e3
    # from 8 times the smallest C on: the limit is a quarter of that of the largest
    late = group_by_cell([run(16, 4, 0, [4e3, 5e3, 6e3, 7e3, 32e3], [0.3] * 5)])
    assert _visible_part(late, 8e3) and not _visible_part(late, 7.9e3)


def test_errors_of_a_trial_by_hand():
    """Predicted .52 and .6, measured .505 and .605 over two evaluations of two seeds: 1.5 points
    too high, half a point too low. By chance: the draws' sd of .03, noise of .01 over 4 evaluations
    and run-to-run .02 over 2 seeds."""
    estimate = flat_draws([0.52, 0.6], 0.03)
    spread = estimate.draws.A[:, 0].var()
    errors = _trial_errors(hidden_sweep(), 16e3, estimate)
    chance = np.sqrt(spread + 0.01**2 / 4 + 0.02**2 / 2)
    mean = estimate.draws.A.mean(0)
    expected = [(mean[0] - 0.505, chance, 4), (mean[1] - 0.605, chance, 4)]
    assert errors == [pytest.approx(e, rel=1e-4) for e in expected]

    trial = try_forecast(hidden_sweep(), estimate, lambda cells: estimate)
    missed = np.array([e[0] for e in expected])
    prior_sd = 0.05 * (0.6 - 0.1)
    excess = max(np.mean(missed**2) - chance**2, 0.0)
    assert trial.C_limit == 16e3 and trial.evaluations == 8
    assert trial.mean_error == pytest.approx(missed.mean(), rel=1e-4)
    assert trial.mean_absolute_error == pytest.approx(np.abs(missed).mean(), rel=1e-4)
    assert trial.departure_sd == pytest.approx(np.hypot(prior_sd, np.sqrt(excess)), rel=1e-4)
    assert trial.inside == 1.0


def test_what_a_trial_missed_beyond_chance_widens_the_forecasts():
    estimate = flat_draws([0.52, 0.9], 0.0)
    trial = try_forecast(hidden_sweep(), estimate, lambda cells: estimate)
    chance = 0.01**2 / 4 + 0.02**2 / 2
    excess = (0.015**2 + 0.295**2) / 2 - chance
    assert trial.departure_sd == pytest.approx(np.hypot(0.05 * 0.8, np.sqrt(excess)), rel=1e-4)
    assert trial.inside == 0.5  # 1.645 times sqrt(chance) is .024
    nothing_visible = {key: [t for t in seeds[:1]] for key, seeds in hidden_sweep().items()}
    short = {k: [run(*k, 0, t.C[5:], t.R[5:]) for t in v] for k, v in nothing_visible.items()}
    alone = try_forecast(short, estimate, lambda cells: estimate)
    assert alone.departure_sd == pytest.approx(0.04) and alone.C_limit is None
    undrawn = SweepEstimate(estimate.curves, [])
    assert try_forecast(hidden_sweep(), undrawn, lambda cells: undrawn) is None
