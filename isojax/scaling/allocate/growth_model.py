"""What a run whose n may change will reach, from its own evaluations and those of a few short runs
with other n.

The model: what a policy learns next depends on its reward alone. A run with n rises along

    R_n(C) = R0 + (A_n - R0) s(C),
    s(C) = 1 - (1 + (2^tail - 1) e^z)^(-1 / tail),    z = exponent ln(C / C_mid,n)

(curves/hill.py) from wherever that curve has the run's reward. R0, exponent and tail are the same
for all n. The log-odds of A_n and ln C_mid,n follow a Brownian prior along log2 n, with a slope.
Evaluations count the less, the lower their C is against the newest: a curve of another form is
followed where the run is now.

Draws are by randomized maximum likelihood (Oliver, He and Reynolds 1996): each draw of the prior
and of the noise is fitted again. No sampler has to converge, and all draws are one batch of
Levenberg-Marquardt steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from isojax.scaling.tracks import FloatArray

DRAWS = 128
DISCOUNT = 0.5  # an evaluation at C weighs as one of standard deviation sd (C_newest / C)^DISCOUNT


@dataclass(frozen=True)
class NormalPrior:
    mean: float
    sd: float


@dataclass(frozen=True)
class BrownianPrior:
    """Of a parameter that changes with n, along x = log2 n from the smallest n on."""

    level: NormalPrior  # at the smallest n
    slope: NormalPrior  # per doubling of n
    step_sd: float  # of what a doubling adds to that


# R0, ln exponent, ln tail: the parameters that all n share, first in theta
SHAPE_PRIOR = (NormalPrior(0.3, 0.3), NormalPrior(0.0, 0.35), NormalPrior(-0.7, 1.0))
# the log-odds of A_n, of the gain that is left above R0
ASYMPTOTE_PRIOR = BrownianPrior(
    level=NormalPrior(-0.3, 1.2), slope=NormalPrior(0.08, 0.12), step_sd=0.1
)
# ln C_mid,n; the level counts from ln C_end
C_MID_PRIOR = BrownianPrior(level=NormalPrior(-1.5, 2.0), slope=NormalPrior(0.3, 0.3), step_sd=0.25)
# the standard deviation of an evaluation: as so many residuals of this size, and within bounds
NOISE_PRIOR_COUNT = 4
NOISE_PRIOR_SD = 0.01
NOISE_BOUNDS = (0.004, 0.05)
# of the rollouts that are left, after which a plan may change n once more
SWITCH_SHARES = (0.1, 0.3)
MAX_ITERATIONS = 12
STEP = 1e-4  # of a parameter, for the differences of a Jacobian
COST_TOLERANCE = 1e-2
_SHAPES = len(SHAPE_PRIOR)
_CLOSE = 1e-6  # to its asymptote, relative to the gain: a curve does not rise from there


@dataclass(frozen=True)
class RunPath:
    """A run's evaluations, and the n that it had on the way to each."""

    n_index: NDArray[np.intp]  # [points], index of the n of the updates since the point before
    C: FloatArray  # [points], rollouts so far, above 0
    R: FloatArray  # [points], rewards


class NextN(NamedTuple):
    """A plan for the rest of a run: the index of the n to go on with now, and the draws' rewards at
    the end."""

    n_index: int
    end: FloatArray  # [Q]


@dataclass(frozen=True)
class GrowthDraws:
    """Curves of Q draws for each n, from which runs that change n are put together."""

    # [Q, P], P = 3 + 2 * n values, or with other leading axes: R0, ln exponent and ln tail, then
    # the log-odds of A of each n, then ln C_mid of each n. An n_index counts the n, smallest first.
    theta: FloatArray

    @property
    def R0(self) -> FloatArray:
        return self.theta[..., 0]

    def along(self, path: RunPath) -> FloatArray:
        """Expected rewards of a run at its evaluations, float[..., points]; path: by rising C."""
        rewards = self.R0
        at_evaluations = []
        for n_index, C_more in zip(path.n_index, np.diff(path.C, prepend=0.0), strict=True):
            rewards = self.go_on(rewards, n_index, C_more)
            at_evaluations.append(rewards)
        return np.stack(at_evaluations, -1)

    def go_on(self, rewards: FloatArray, n_index: int, C_more: float) -> FloatArray:
        """The rewards of a run after C_more further rollouts with the n of this index, float[Q].

        rewards: those it has now, float[Q], one for each draw of the model (or with the leading
        axes of theta). A reward above the asymptote of this n falls back to it: half of the excess
        within C_mid rollouts."""
        # The bounds keep every draw of the prior, and every step of its fit, finite.
        exponent = np.exp(np.clip(self.theta[..., 1], -1.5, 1.5))
        tail = np.exp(np.clip(self.theta[..., 2], -5, 1.5))
        num_n = (self.theta.shape[-1] - _SHAPES) // 2
        gain = np.maximum(1 - self.R0, 1e-3) * expit(self.theta[..., _SHAPES + n_index])
        C_mid = np.exp(np.clip(self.theta[..., _SHAPES + num_n + n_index], -5, 40))

        # Where the curve of this n has the run's reward: s (top of this file) solved for C.
        progress = (rewards - self.R0) / gain
        scale = np.expm1(tail * np.log(2.0))  # 2^tail - 1
        # e^z there
        growth = np.expm1(-tail * np.log1p(-np.clip(progress, 1e-12, 1 - _CLOSE))) / scale
        C_now = C_mid * np.exp(np.clip(np.log(growth) / exponent, -60, 60))

        # s again, C_more rollouts further on
        z = np.clip(exponent * np.log((C_now + C_more) / C_mid), -60, 60)
        progress_after = -np.expm1(-np.log1p(scale * np.exp(z)) / tail)
        excess = (rewards - self.R0 - gain) * np.exp2(-np.minimum(C_more / C_mid, 60))
        return self.R0 + gain * progress_after + np.where(progress < 1 - _CLOSE, 0.0, excess)

    def best_next(self, rewards: FloatArray, C_left: float, num_n: int, optimism: float) -> NextN:
        """How a run should go on for C_left rollouts: the n to take now, and what it then reaches.

        rewards: those it has now, float[Q]; num_n >= 1: only the first so many n may be used. A
        plan keeps one n to the end, or changes it once after a share of what is left. The plan with
        the highest upper bound is chosen: the mean of its end, plus `optimism` (>= 0) standard
        deviations of its difference from the plan with the highest mean."""
        plans = [NextN(i, self.go_on(rewards, i, C_left)) for i in range(num_n)]
        for i in range(num_n):
            for share in SWITCH_SHARES:
                at_switch = self.go_on(rewards, i, share * C_left)
                for j in range(num_n):
                    if j != i:
                        plans.append(NextN(i, self.go_on(at_switch, j, (1 - share) * C_left)))

        best_end = max((plan.end for plan in plans), key=np.mean)
        return max(plans, key=lambda plan: plan.end.mean() + optimism * (plan.end - best_end).std())


def fit_growth(
    n: Sequence[int], base_rewards: Sequence[float], paths: Sequence[RunPath], C_end: float
) -> GrowthDraws:
    """Draws of the learning curves of each n, from the evaluations of runs so far.

    n: rising, as [4, 8, 16]; the n_index of a path is an index of it. base_rewards: evaluations of
    the base policy, at C = 0, such as [0.31]. paths: the runs' other evaluations, at least one run.
    C_end: the budget in rollouts, to which the prior of C_mid is relative. Gives DRAWS draws."""
    prior = _prior(np.log2(np.asarray(n, dtype=np.float64)), C_end)
    C = np.concatenate([path.C for path in paths])
    R = np.concatenate([np.asarray(base_rewards, dtype=np.float64), *[path.R for path in paths]])
    # Below: P parameters in theta, N evaluations, Q problems of least squares (1 for the mode, then
    # DRAWS).
    # [N], in the order of R: those of the base policy, which count fully, then path by
    # path the others, of which those at a small C count less.
    weight = np.concatenate([np.ones(len(base_rewards)), (C / C.max()) ** DISCOUNT])

    # predict takes base_rewards and paths from above; least_squares takes predict, weight [N] and
    # prior.
    def predict(theta: FloatArray) -> FloatArray:
        """The expected rewards of all evaluations, in the order of R: float[..., N]."""
        draws = GrowthDraws(theta)
        base = np.repeat(draws.R0[..., None], len(base_rewards), -1)
        return np.concatenate([base, *(draws.along(path) for path in paths)], -1)

    def least_squares(R: FloatArray, prior_draws: FloatArray, noise_sd: float) -> "_LeastSquares":
        """The problems of fitting theta to rewards R [Q, N] and points of the prior [Q, P]."""
        return _LeastSquares(predict, R, weight / noise_sd, prior_draws, prior.whiten)

    # The mode of the posterior, first with the prior's standard deviation of an evaluation, then
    # with that of the residuals (as if NOISE_PRIOR_COUNT more had been NOISE_PRIOR_SD).
    theta = prior.mean[None]
    noise_sd = NOISE_PRIOR_SD
    for _ in range(2):
        theta = least_squares(R[None], prior.mean[None], noise_sd).solve(theta)
        residuals = (predict(theta) - R)[0] * weight
        sum_of_squares = (residuals**2).sum() + NOISE_PRIOR_COUNT * NOISE_PRIOR_SD**2
        variance = sum_of_squares / ((weight**2).sum() + NOISE_PRIOR_COUNT)
        noise_sd = float(np.clip(np.sqrt(variance), *NOISE_BOUNDS))

    # Randomized maximum likelihood: each draw is the fit to rewards with fresh noise (the more, the
    # less an evaluation counts) and to a random point of the prior.
    rng = np.random.default_rng(0)
    noisy_R = R + noise_sd / weight * rng.standard_normal((DRAWS, len(R)))
    normal = rng.standard_normal((len(prior.mean), DRAWS))
    prior_draws = prior.mean + np.linalg.solve(prior.whiten, normal).T
    problem = least_squares(noisy_R, prior_draws, noise_sd)
    return GrowthDraws(problem.solve(np.repeat(theta, DRAWS, 0)))


class _Prior(NamedTuple):
    """Of theta: whiten (theta - mean) is standard normal."""

    mean: FloatArray  # [P]
    whiten: FloatArray  # [P, P]


def _prior(log2_n: FloatArray, C_end: float) -> _Prior:
    """The prior of theta (its layout: GrowthDraws.theta) for these log2 n, float[n values], rising.

    C_end: the budget in rollouts; ln C_mid counts from ln C_end."""
    x = log2_n - log2_n[0]
    num_n = len(x)
    covariance = np.zeros((_SHAPES + 2 * num_n,) * 2)
    covariance[:_SHAPES, :_SHAPES] = np.diag([shape.sd**2 for shape in SHAPE_PRIOR])
    means = [np.array([shape.mean for shape in SHAPE_PRIOR])]

    # Var of level + slope x + w(x), w a Brownian path: its covariance is min(x, x').
    brownian = np.minimum.outer(x, x)
    starts = (_SHAPES, _SHAPES + num_n)
    offsets = (0.0, np.log(C_end))
    for start, offset, prior in zip(starts, offsets, (ASYMPTOTE_PRIOR, C_MID_PRIOR), strict=True):
        means.append(prior.level.mean + prior.slope.mean * x + offset)
        block = slice(start, start + num_n)
        covariance[block, block] = (
            prior.level.sd**2 + prior.slope.sd**2 * np.outer(x, x) + prior.step_sd**2 * brownian
        )

    covariance += 1e-9 * np.eye(len(covariance))  # so that rounding leaves it positive
    whiten = np.linalg.inv(np.linalg.cholesky(covariance)).astype(np.float64)
    return _Prior(np.concatenate(means), whiten)


@dataclass(frozen=True)
class _LeastSquares:
    """Q problems of P parameters and N evaluations at once, each with its own rewards and its own
    draw of the prior."""

    predict: Callable[[FloatArray], FloatArray]  # theta [..., P] -> rewards [..., N]
    R: FloatArray  # [Q, N]
    weight: FloatArray  # [N], over the noise
    prior: FloatArray  # [Q, P]
    whiten: FloatArray  # [P, P]

    def solve(self, theta: FloatArray) -> FloatArray:
        """The theta with the least squares, float[Q, P], by Levenberg-Marquardt steps.

        theta: where to begin, float[Q, P]. The Jacobian is by finite differences. All Q problems
        are solved at once, each with a damping that only its own steps change."""
        num_draws, num_parameters = theta.shape
        unit = np.eye(num_parameters)
        prior_part = np.broadcast_to(self.whiten.T, (num_draws, num_parameters, num_parameters))
        damping = np.full(num_draws, 1e-2)
        residuals = self._residuals(theta)
        cost = (residuals**2).sum(-1)

        for _ in range(MAX_ITERATIONS):
            # [Q, P, N + P]; the residuals of the prior are linear in theta
            change = self.predict(theta[:, None] + STEP * unit) - self.predict(theta)[:, None]
            jacobian = np.concatenate([change / STEP * self.weight, prior_part], -1)
            hessian = jacobian @ jacobian.swapaxes(1, 2)
            gradient = jacobian @ residuals[..., None]
            diagonal = unit * np.einsum("qii->qi", hessian)[:, None, :]
            damped = hessian + damping[:, None, None] * diagonal

            proposed = theta - np.linalg.solve(damped, gradient)[..., 0]
            proposed_residuals = self._residuals(proposed)
            proposed_cost = (proposed_residuals**2).sum(-1)

            # A problem whose step lowers its cost takes it; another stays and damps the next more.
            better = proposed_cost < cost
            theta = np.where(better[:, None], proposed, theta)
            residuals = np.where(better[:, None], proposed_residuals, residuals)
            decrease = np.where(better, cost - proposed_cost, 0.0)
            cost = cost - decrease
            damping = np.where(better, 0.3 * damping, np.minimum(5 * damping, 1e6))
            if decrease.max() < COST_TOLERANCE and better.mean() > 0.5:
                break
        return theta

    def _residuals(self, theta: FloatArray) -> FloatArray:
        """float[Q, N + P]: of the evaluations, then of the prior, each in standard deviations."""
        from_rewards = (self.predict(theta) - self.R) * self.weight
        from_prior = (theta - self.prior) @ self.whiten.T
        return np.concatenate([from_rewards, from_prior], axis=-1)
