"""Draws of all curves, and each cell's mean curve: Hamiltonian Monte Carlo on the model of
hierarchical.py, one chain per replicate, over v = (theta of every cell, R0), whitened by the
curvature at the mode. e and gamma are integrated out exactly; the shape's tail is drawn by its
probability, the standard deviations of plateaus from their posterior (plateau_scales.py). A run's
points are averaged in at most BINS_PER_RUN bins of log C, and the change that this makes at the
mode is subtracted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import least_squares

from isojax.scaling.curves.hierarchical import (
    PackedSweep,
    SweepArrays,
    predict_rewards,
    robust_precision,
)
from isojax.scaling.curves.hill import (
    LN10,
    curve_value,
    progress_and_slope,
    progress_gradient,
    scaled_log_compute,
)
from isojax.scaling.curves.plateau_scales import draw_plateau_scales
from isojax.scaling.curves.posterior_mode import (
    NOISELESS_SD,
    TAIL_PRIOR,
    ShapeFit,
    find_mode,
)
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.evaluation_noise import autocorrelation, difference_sd
from isojax.scaling.tracks import FloatArray, as_float64

MIN_TAIL_PROBABILITY = 0.01
# Chains of a chunk: so many fit into a processor cache, those of few cells in larger chunks, which
# cost fewer calls.
CHAINS_PER_CHUNK, CHUNK_BINS = 50, 25_000
# That share a tail and the standard deviations of plateaus (plateau_scales.py).
DRAWS_PER_GROUP = 25
DEFAULT_DRAW_COUNT = 200  # behind the mean curves where no intervals are wanted
BINS_PER_RUN = 12
LEAPFROG_STEPS, STEP_SIZE = 7, 1.1
HMC_ITERATIONS = 30  # of a round; R-hat is that of the last one
MAX_ROUNDS = 3  # another round follows one whose R-hat is above ROUND_R_HAT
ROUND_R_HAT = 1.15
MIN_ACCEPTANCE = 0.6  # below it, the next round's steps are shorter
MAX_START_HALVINGS = 20
# by which the bounds of (A, mid, lnB) are soft, so that chains turn round there
WALL_SD = np.array([0.03, 0.1, 0.1])
MEAN_CURVE_REACH = 6.0  # each cell's mean curve is the closest up to this times the end of all data
MAX_AUTOCORRELATION = 0.8
_GRID_POINTS = 32

# Of each chain, in whitened coordinates: position float[Q, d], potential float[Q, 1], its gradient
# float[Q, d].
ChainStates = tuple[FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True)
class CurvePosterior:
    theta: FloatArray  # [Q, J, 3], (A, log10 C_mid, ln exponent) of each draw
    R0: FloatArray  # [Q]
    tail: FloatArray  # [Q]
    mean_curves: FloatArray  # [J, 4], (A, log10 C_mid, ln exponent, tail) of each cell
    likeliest: ShapeFit
    evaluation_sd: float  # of one evaluation, from the differences of neighbours
    # Whether the chains were long enough; None where the points have no noise, so that nothing was
    # sampled.
    acceptance: float | None  # the share of the last round's steps that were accepted
    # the largest of all coordinates, at half the last round and at its end
    r_hat: tuple[float, float] | None


@dataclass(frozen=True)
class _HmcDraws:
    theta: FloatArray  # [Q, J, 3]
    R0: FloatArray  # [Q]
    acceptance: float
    # of each shape's chains [iterations, chains, d], in whitened coordinates
    positions: list[FloatArray]


def sample_posterior(
    packed: PackedSweep, shape_fits: list[ShapeFit], options: FitOptions
) -> CurvePosterior:
    """options.replicates draws (DEFAULT_DRAW_COUNT where that is 0) of what `fit_all_tails` found,
    and mean curves."""
    best_fit, data, acceptance, r_hat = shape_fits[0], packed.condensed, None, None
    mode_residuals = packed.data.y - predict_rewards(packed.data, best_fit.state)
    residuals_by_run = [
        mode_residuals[run][packed.data.weight[run] > 0]
        for run in np.ndindex(mode_residuals.shape[:2])
    ]

    draw_count = options.replicates or DEFAULT_DRAW_COUNT
    if best_fit.scales.noise_sd < NOISELESS_SD:
        # Nothing is uncertain: every draw is the mode.
        theta = np.repeat(best_fit.state.theta[None], draw_count, axis=0)
        R0 = np.full(draw_count, best_fit.state.R0)
        tail = np.full(draw_count, best_fit.state.tail)
    else:
        # Residuals that resemble their neighbours say less than independent ones would.
        noise_sd = best_fit.scales.noise_sd * np.sqrt(_variance_inflation(residuals_by_run))
        scales = replace(best_fit.scales, noise_sd=noise_sd)
        modes = [find_mode(data, f.state, scales, iterations=200) for f in shape_fits]
        shape_fits = [
            replace(f, scales=scales, state=mode) for f, mode in zip(shape_fits, modes, strict=True)
        ]
        theta, R0, tail, acceptance, r_hat = _sample_tails(shape_fits, packed, options)

    return CurvePosterior(
        theta=theta,
        R0=R0,
        tail=tail,
        mean_curves=np.array(
            [_mean_curve(theta[:, j], R0, tail, packed, j) for j in range(len(packed.keys))]
        ),
        likeliest=best_fit,
        evaluation_sd=difference_sd(residuals_by_run),
        acceptance=acceptance,
        r_hat=r_hat,
    )


def _variance_inflation(residuals_by_run: list[FloatArray]) -> float:
    """(1 + rho) / (1 - rho), by which correlation widens the variance of a mean: runs drift, or
    shapes differ."""
    neighbour_count = sum(max(len(r) - 1, 0) for r in residuals_by_run)
    rho = min(autocorrelation(residuals_by_run) or 0.0, MAX_AUTOCORRELATION)
    is_significant = rho > max(0.1, 2 / np.sqrt(max(1, neighbour_count)))
    return (1 + rho) / (1 - rho) if is_significant else 1.0


def _sample_tails(
    shape_fits: list[ShapeFit], packed: PackedSweep, options: FitOptions
) -> tuple[FloatArray, FloatArray, FloatArray, float, tuple[float, float]]:
    """(theta, R0, tail, acceptance, R-hat) of the draws."""
    rng = np.random.default_rng(options.seed)
    draw_count = options.replicates or DEFAULT_DRAW_COUNT
    tail_probabilities = np.array([f.probability for f in shape_fits])
    kept_probabilities = np.where(
        tail_probabilities >= MIN_TAIL_PROBABILITY, tail_probabilities, 0.0
    )
    draws_per_tail = rng.multinomial(draw_count, kept_probabilities / kept_probabilities.sum())

    # Groups of draws that share a tail and the standard deviations of plateaus.
    tail_of_draw = np.repeat(np.arange(len(shape_fits)), draws_per_tail)
    draw_in_tail = np.concatenate([np.arange(count) for count in draws_per_tail])
    starts_group = draw_in_tail % DRAWS_PER_GROUP == 0
    group_of_draw = np.cumsum(starts_group) - 1
    scales_of_groups = draw_plateau_scales(
        packed, shape_fits[0], options.run_sd, int(starts_group.sum()), rng
    )
    groups = [
        replace(shape_fits[i], scales=scales)
        for i, scales in zip(tail_of_draw[starts_group], scales_of_groups, strict=True)
    ]

    bins = len(packed.keys) * BINS_PER_RUN
    chunk_size, chunks = max(CHAINS_PER_CHUNK, CHUNK_BINS // bins), list[_HmcDraws]()
    for start in range(0, draw_count, chunk_size):
        indices, counts = np.unique(group_of_draw[start : start + chunk_size], return_counts=True)
        shapes = [
            (groups[i], np.full(count, groups[i].scales.run_sd))
            for i, count in zip(indices, counts, strict=True)
        ]
        chunks.append(run_hmc_chains(packed.condensed, shapes, rng))
        if options.on_progress is not None:
            options.on_progress(min(start + chunk_size, draw_count), draw_count)
    theta, R0 = (
        np.concatenate([getattr(draws, name) for draws in chunks]) for name in ("theta", "R0")
    )
    acceptance = float(
        np.average(
            [draws.acceptance for draws in chunks], weights=[len(draws.R0) for draws in chunks]
        )
    )
    positions = [p for draws in chunks for p in draws.positions]
    r_hat = _largest_r_hat([p[: HMC_ITERATIONS // 2] for p in positions]), _largest_r_hat(positions)
    return theta, R0, np.array([f.state.tail for f in shape_fits])[tail_of_draw], acceptance, r_hat


def _largest_r_hat(positions_by_shape: Sequence[FloatArray]) -> float:
    """R-hat (Gelman and Rubin 1992) of the last half of chains float[iterations, chains, d], the
    largest over d."""
    halves = [positions[len(positions) // 2 :] for positions in positions_by_shape]
    within = np.concatenate([half.var(0, ddof=1) for half in halves]).mean(0)
    chain_means = [half.mean(0) for half in halves]
    squares = sum(((means - means.mean(0)) ** 2).sum(0) for means in chain_means)
    between = squares / max(1, sum(len(means) - 1 for means in chain_means))
    n = len(halves[0])
    return float(np.sqrt((n - 1) / n + between / np.maximum(within, 1e-300)).max())


@dataclass
class _Coordinates:
    """Whitened coordinates of the chains of one shape: v = center + position T'."""

    chains: slice
    center: FloatArray  # [d]
    T: FloatArray  # [d, d]

    def adapt(self, positions: FloatArray) -> FloatArray:
        """Whiten by the covariance of the last half of positions float[iterations, Q, d] too;
        returns the new ones."""
        own = positions[:, self.chains]
        chain_count, d = own.shape[1:]
        last_half = own[len(own) // 2 :].reshape(-1, d)
        own_share = chain_count / (chain_count + d)  # few chains say little of a covariance
        factor = np.linalg.cholesky(own_share * np.cov(last_half.T) + (1 - own_share) * np.eye(d))
        self.T = self.T @ factor
        return np.linalg.solve(factor, own[-1].T).T


def run_hmc_chains(
    data: SweepArrays, shapes: Sequence[tuple[ShapeFit, FloatArray]], rng: np.random.Generator
) -> _HmcDraws:
    """A draw of each of Q chains from around the mode of its shape; `shapes`: with each, the run_sd
    of each of its chains. While chains disagree, another round follows, in coordinates that the
    chains' own covariance whitens."""
    targets = [_make_target(data, fit, run_sds) for fit, run_sds in shapes]
    ends = np.cumsum([len(run_sds) for _, run_sds in shapes]).tolist()
    coordinates = []
    for (fit, _), start, end in zip(shapes, [0, *ends], ends, strict=False):
        center = np.concatenate([fit.state.theta.reshape(-1), fit.state.u[:1]])
        T = _whitening_matrix(_make_target(data, fit, np.array([fit.scales.run_sd])), center)
        coordinates.append(_Coordinates(slice(start, end), center, T))
    Q, d = ends[-1], 3 * len(data.X) + 1
    step_size = np.full((Q, 1), STEP_SIZE / d**0.25)
    position = rng.normal(size=(Q, d)) * 0.7

    def evaluate(position: FloatArray) -> ChainStates:
        potentials, gradients = [], []
        for target, c in zip(targets, coordinates, strict=True):
            v = c.center + position[c.chains] @ c.T.T
            potential, gradient = target.value_and_gradient(v)
            potentials.append(potential)
            gradients.append(gradient @ c.T)
        return position, np.concatenate(potentials)[:, None], np.concatenate(gradients)

    rounds = 0
    while True:
        acceptance, positions = _run_round(evaluate, position, step_size, rng)
        positions_by_shape = [positions[:, c.chains] for c in coordinates]
        rounds += 1
        if rounds == MAX_ROUNDS or _largest_r_hat(positions_by_shape) <= ROUND_R_HAT:
            break
        for c in coordinates:
            step_size[c.chains] *= 0.6 if acceptance[c.chains].mean() < MIN_ACCEPTANCE else 1.0
        position = np.concatenate([c.adapt(positions) for c in coordinates])
    v = np.concatenate([c.center + positions[-1, c.chains] @ c.T.T for c in coordinates])
    theta = np.clip(v[:, :-1].reshape(Q, -1, 3), *data.theta_bounds)
    return _HmcDraws(theta, v[:, -1], float(acceptance.mean()), positions_by_shape)


def _run_round(
    evaluate: Callable[[FloatArray], ChainStates],
    position: FloatArray,
    step_size: FloatArray,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    """(share of accepted steps float[Q], positions float[HMC_ITERATIONS, Q, d]) of chains that
    start at `position`."""
    chains, accepted_share, positions = evaluate(position), np.zeros(len(position)), []
    # towards the mode: a chain that begins far outside would never come in
    for _ in range(MAX_START_HALVINGS):
        inside = np.isfinite(chains[1])
        if inside.all():
            break
        chains = evaluate(np.where(inside, chains[0], 0.5 * chains[0]))
    for _ in range(HMC_ITERATIONS):
        momentum = rng.normal(size=position.shape)
        varied_size = step_size * rng.uniform(0.6, 1.1, size=(len(position), 1))
        trial, end_momentum = _leapfrog(evaluate, chains, momentum, varied_size)
        with np.errstate(invalid="ignore", over="ignore"):
            kinetic_change = 0.5 * (momentum**2 - end_momentum**2).sum(1, keepdims=True)
            accepted = (
                np.log(rng.random((len(position), 1))) < chains[1] - trial[1] + kinetic_change
            )
        position, potential, gradient = (
            np.where(accepted, new, old) for new, old in zip(trial, chains, strict=True)
        )
        chains = position, potential, gradient
        accepted_share += accepted[:, 0] / HMC_ITERATIONS
        positions.append(position)
    return accepted_share, np.stack(positions)


def _leapfrog(
    evaluate: Callable[[FloatArray], ChainStates],
    chains: ChainStates,
    momentum: FloatArray,
    step_size: FloatArray,
) -> tuple[ChainStates, FloatArray]:
    """(chains, momentum) after LEAPFROG_STEPS steps of Hamilton's equations."""
    momentum = momentum - 0.5 * step_size * chains[2]
    for i in range(LEAPFROG_STEPS):
        chains = evaluate(chains[0] + step_size * momentum)
        momentum = momentum - (1.0 if i < LEAPFROG_STEPS - 1 else 0.5) * step_size * chains[2]
    return chains, momentum


@dataclass(frozen=True)
class _PotentialEnergy:
    """Minus the log posterior of v for curves of one tail, with soft walls around the bounds.

    The runs of a cell share its bins, so that the cell's progress along its curve is computed once
    for all of them. Rewards count from the curve at the mode, which keeps sums of squares small."""

    tail: float
    x: FloatArray  # [J, K], log10 C of each bin of a cell
    reference: FloatArray  # [J, K], the reward of the curve at the mode
    y: FloatArray  # [J, S, K], each run's reward in a bin, above the reference
    W: FloatArray  # [J, S, K], its precision; 0: an empty bin
    y0: float  # reward and precision of all evaluations at C = 0 together
    W0: float
    prior_mean: FloatArray  # [3J], of theta with gamma integrated out
    prior_precision: FloatArray  # [3J, 3J]
    run_precision: FloatArray  # [1 or Q], 1 / run_sd^2
    lower: FloatArray  # [3], bounds of (A, mid, lnB)
    upper: FloatArray

    @cached_property
    def Wy(self) -> FloatArray:
        return self.W * self.y

    @cached_property
    def Wyy(self) -> FloatArray:
        """float[J, S, 1]: each run's sum over its bins."""
        return (self.Wy * self.y).sum(-1, keepdims=True)

    def value_and_gradient(self, v: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(float[Q], its gradient float[Q, 3J + 1]) at v float[Q, 3J + 1] of Q chains; infinite far
        outside the bounds."""
        Q, J = len(v), len(self.x)
        theta, R0 = v[:, :-1].reshape(Q, J, 3), v[:, -1]
        excess = theta - np.clip(theta, self.lower, self.upper)
        outside = (np.abs(excess) > 1).any((1, 2)) | (np.abs(R0) > 10)
        # so that refused positions do not overflow
        theta = np.clip(theta, self.lower - 1, self.upper + 1)
        R0 = np.clip(R0, -10, 10)

        # Of the bins of each cell, [J, K, Q]: progress, and the curve above the reference.
        A, mid, lnB = (theta[..., i].T[:, None] for i in range(3))  # [J, 1, Q] each
        B = np.exp(lnB)
        z = scaled_log_compute(self.x[..., None], mid, B)
        s, slope = progress_and_slope(z, self.tail)
        gain = A - R0
        h = R0 + gain * s - self.reference[..., None]

        # Of each run, [J, S, Q]: sums over its bins, and its run effect e at its optimum.
        W_s, W_h, W_ss, W_sh, W_hh = _products(self.W, s, h, s * s, s * h, h * h)
        Wy_s, Wy_h = _products(self.Wy, s, h)
        e_precision = W_ss + self.run_precision
        residual_s = Wy_s - W_sh
        e = residual_s / e_precision
        misfit = self.Wyy - 2 * Wy_h + W_hh - e * residual_s + np.log(e_precision)

        prior_residual = theta.reshape(Q, -1) - self.prior_mean
        prior_gradient = prior_residual @ self.prior_precision
        potential = 0.5 * (
            misfit.sum((0, 1))
            + (prior_residual * prior_gradient).sum(1)
            + self.W0 * (self.y0 - R0) ** 2
            + ((excess / WALL_SD) ** 2).sum((1, 2))
        )

        # d/dtheta: e is at its optimum, so it contributes through s and log(e_precision) alone.
        size = gain + e
        W_curvature, W_size = _products(self.W.mT, 1 / e_precision + e * size, size)
        (Wy_size,) = _products(self.Wy.mT, size)
        shape_gradient = (s * W_curvature + h * W_size - Wy_size) * slope  # [J, K, Q]
        rest_s = (residual_s - e * W_ss).sum(1)  # [J, Q]
        rest = (self.Wy.sum(-1, keepdims=True) - W_h - e * W_s).sum(1)
        theta_gradient = np.stack(
            [
                -rest_s.T,
                -LN10 * (B[:, 0] * shape_gradient.sum(1)).T,
                (shape_gradient * z).sum(1).T,
            ],
            axis=2,
        )
        theta_gradient += excess / WALL_SD**2
        R0_gradient = -(rest - rest_s).sum(0) - self.W0 * (self.y0 - R0)
        gradient = np.concatenate(
            [theta_gradient.reshape(Q, -1) + prior_gradient, R0_gradient[:, None]], axis=1
        )
        return np.where(outside, np.inf, potential), gradient


def _products(matrices: FloatArray, *factors: FloatArray) -> list[FloatArray]:
    """The products of matrices float[J, a, b] with each of the factors float[J, b, Q]:
    float[J, a, Q] each."""
    return np.split(matrices @ np.concatenate(factors, axis=2), len(factors), axis=2)


def _make_target(data: SweepArrays, fit: ShapeFit, run_sds: FloatArray) -> _PotentialEnergy:
    """The potential of the chains whose run-to-run standard deviations are run_sds float[Q]."""
    J, S, _ = data.weight.shape
    state, scales = fit.state, fit.scales
    precision = robust_precision(data, state, scales)
    residual = data.y - predict_rewards(data, state, with_run_effect=False)

    # BINS_PER_RUN bins for each cell, and in each the precision and the mean residual of each run.
    usable = data.trained
    low = np.where(usable, data.x, np.inf).min((1, 2), keepdims=True)
    high = np.where(usable, data.x, -np.inf).max((1, 2), keepdims=True)
    position = ((data.x - low) / np.maximum(high - low, 1e-9))[usable]
    bin_of_point = np.minimum((position * BINS_PER_RUN).astype(int), BINS_PER_RUN - 1)
    run_of_point = np.nonzero(usable.reshape(J * S, -1))[0]
    bin_index = run_of_point * BINS_PER_RUN + bin_of_point

    def sum_by_bin(values: FloatArray) -> FloatArray:
        sums = np.bincount(bin_index, precision[usable] * values[usable], J * S * BINS_PER_RUN)
        return as_float64(sums.reshape(J, S, -1))

    W = sum_by_bin(np.ones_like(precision))
    mean_residual = sum_by_bin(residual) / np.maximum(W, 1e-300)
    x = sum_by_bin(data.x).sum(1) / np.maximum(W.sum(1), 1e-300)
    A, mid, lnB = (state.theta[:, i, None] for i in range(3))
    reference = state.R0 + (A - state.R0) * progress_gradient(x, mid, lnB, state.tail)[0]

    at_zero = ~np.isfinite(data.x) & (data.weight > 0)
    W0 = float(precision[at_zero].sum())
    y0 = float((precision[at_zero] * data.y[at_zero]).sum()) / max(W0, 1e-300)

    X_flat = data.X.reshape(3 * J, -1)
    covariance = np.diag(np.tile(scales.tau**2, J)) + (X_flat * scales.u_sd[1:] ** 2) @ X_flat.T
    lower, upper = data.theta_bounds
    return _PotentialEnergy(
        tail=state.tail,
        x=x,
        reference=reference,
        y=mean_residual,
        W=W,
        y0=y0,
        W0=W0,
        prior_mean=X_flat @ scales.u_mean[1:],
        prior_precision=as_float64(np.linalg.inv(covariance)),
        run_precision=np.maximum(run_sds, 1e-9) ** -2.0,
        lower=lower,
        upper=upper,
    )


def _whitening_matrix(target: _PotentialEnergy, v: FloatArray) -> FloatArray:
    """float[d, d] T with T T' the inverse curvature at v, by central differences of the
    gradient."""
    prior_precision = np.append(np.diag(target.prior_precision), target.W0)
    step_sizes = 1e-4 / np.sqrt(np.maximum(prior_precision, 1.0))
    forward, backward = (
        target.value_and_gradient(v + sign * np.diag(step_sizes))[1] for sign in (1, -1)
    )
    H = (forward - backward) / (2 * step_sizes[:, None])
    eigenvalues, eigenvectors = np.linalg.eigh((H + H.T) / 2)
    return eigenvectors / np.sqrt(np.maximum(eigenvalues, 1e-3 * np.median(np.abs(eigenvalues))))


def _mean_curve(
    theta: FloatArray, R0: FloatArray, tail: FloatArray, packed: PackedSweep, j: int
) -> FloatArray:
    """float[4]: the curve nearest to the mean of cell j's draws, theta float[Q, 3]."""
    C_start = 10 ** packed.data.x[j][packed.data.trained[j]].min()
    C = np.geomspace(C_start, MEAN_CURVE_REACH * 10**packed.data.x_high, _GRID_POINTS)
    A, mid, lnB = theta.T[:, :, None]
    mean_rewards = curve_value(C, R0[:, None], A, np.exp(lnB), 10**mid, tail[:, None]).mean(0)

    def residual(parameters: FloatArray) -> FloatArray:
        A, mid, lnB, tail = parameters
        return curve_value(C, R0.mean(), A, np.exp(lnB), 10**mid, tail) - mean_rewards

    start = np.append(theta.mean(0), tail.mean())
    if np.ptp(tail) == 0 and np.abs(residual(start)).max() < 1e-9:
        return start
    lower = np.array([0.0, start[1] - 3, start[2] - 3, 0.0])
    upper = np.array([1.0, start[1] + 3, start[2] + 3, max(TAIL_PRIOR)])
    scale = np.array([0.1, 0.3, 0.3, 0.5])
    return least_squares(
        residual, np.clip(start, lower, upper), bounds=(lower, upper), x_scale=scale
    ).x


def mean_curve_residuals(posterior: CurvePosterior, packed: PackedSweep) -> FloatArray:
    """float[J, S, P]: evaluations minus the mean curves and the run effects; 0 where there is no
    point."""
    A, mid, lnB, tail = posterior.mean_curves.T[:, :, None, None]
    has_compute, R0 = np.isfinite(packed.data.x), float(posterior.R0.mean())
    C = 10 ** np.where(has_compute, packed.data.x, packed.data.x_low)
    s = curve_value(C, 0.0, 1.0, np.exp(lnB), 10**mid, tail) * has_compute
    weight, residuals = packed.data.weight, packed.data.y - R0 - (A - R0) * s
    # The run effects that explain these residuals, shrunk by their prior.
    noise_variance = max(posterior.likeliest.scales.noise_sd, 1e-12) ** 2
    run_precision = 1 / max(posterior.likeliest.scales.run_sd, 1e-9) ** 2
    information = (weight * s * s).sum(-1) / noise_variance
    e = (weight * s * residuals).sum(-1) / noise_variance / (information + run_precision)
    return (residuals - e[..., None] * s) * weight
