"""What a run whose n may change will reach, from its own evaluations and those of a few short runs
with other n.

The model: what a policy learns next depends on its reward alone. A run with n rises along R_n(C) =
R0 + (A_n - R0) s(C) (curves/hill.py) from wherever that curve has the run's reward. R0, exponent
and tail are the same for all n. The log-odds of A_n and ln C_mid,n follow a Brownian prior along
log2 n, with a slope. Evaluations count the less, the lower their C is against the newest: a curve
of another form is followed where the run is now.

Draws are by randomized maximum likelihood (Oliver, He and Reynolds 1996): each draw of the prior
and of the noise is fitted again. No sampler has to converge, and all draws are one batch of
Levenberg-Marquardt steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from isojax.scaling.tracks import FloatArray

DRAWS = 128
DISCOUNT = 0.5  # an evaluation at C weighs as one of standard deviation sd (C_newest / C)^DISCOUNT
SHAPE_PRIOR = ((0.3, 0.3), (0.0, 0.35), (-0.7, 1.0))  # mean and sd of R0, ln exponent, ln tail
# Of the log-odds of A and of ln C_mid: mean and sd at the smallest n, of the slope per doubling of
# n, and sd of steps.
ASYMPTOTE_PRIOR = ((-0.3, 1.2), (0.08, 0.12), 0.1)
C_MID_PRIOR = ((-1.5, 2.0), (0.3, 0.3), 0.25)  # at the smallest n: from ln C_end
NOISE_PRIOR = (4, 0.01)  # as so many residuals of this size
NOISE_BOUNDS = (0.004, 0.05)
# of the rollouts that are left, after which a plan may change n once more
SWITCH_SHARES = (0.1, 0.3)
MAX_ITERATIONS, STEP, COST_TOLERANCE = 12, 1e-4, 1e-2
_SHAPES = len(SHAPE_PRIOR)
_CLOSE = 1e-6  # to its asymptote, relative to the gain: a curve does not rise from there


@dataclass(frozen=True)
class RunPath:
    """A run's evaluations at C > 0; n_index: of the n that its updates had since the evaluation
    before."""

    n_index: NDArray[np.intp]  # [points]
    C: FloatArray
    R: FloatArray


@dataclass(frozen=True)
class GrowthDraws:
    """Curves of Q draws for each n, from which runs that change n are put together."""

    theta: FloatArray  # [..., shapes + 2 * n values], as the prior has them

    @property
    def R0(self) -> FloatArray:
        return self.theta[..., 0]

    def along(self, path: RunPath) -> FloatArray:
        """Expected rewards of a run at its evaluations, float[..., points]."""
        rewards, result = self.R0, []
        for i, C_more in zip(path.n_index, np.diff(path.C, prepend=0.0), strict=True):
            rewards = self.go_on(rewards, i, C_more)
            result.append(rewards)
        return np.stack(result, -1)

    def go_on(self, rewards: FloatArray, n_index: int, C_more: float) -> FloatArray:
        """Rewards after C_more further rollouts with an n, float[...] -> float[...]. One above its
        asymptote falls back to it: half of the excess within C_mid."""
        exponent = np.exp(np.clip(self.theta[..., 1], -1.5, 1.5))
        tail = np.exp(np.clip(self.theta[..., 2], -5, 1.5))
        num_n = (self.theta.shape[-1] - _SHAPES) // 2
        gain = np.maximum(1 - self.R0, 1e-3) * expit(self.theta[..., _SHAPES + n_index])
        C_mid = np.exp(np.clip(self.theta[..., _SHAPES + num_n + n_index], -5, 40))
        progress = (rewards - self.R0) / gain
        scale = np.expm1(tail * np.log(2.0))
        growth = np.expm1(-tail * np.log1p(-np.clip(progress, 1e-12, 1 - _CLOSE))) / scale
        C_now = C_mid * np.exp(np.clip(np.log(growth) / exponent, -60, 60))
        z = np.clip(exponent * np.log((C_now + C_more) / C_mid), -60, 60)
        after = -np.expm1(-np.log1p(scale * np.exp(z)) / tail)
        excess = (rewards - self.R0 - gain) * np.exp2(-np.minimum(C_more / C_mid, 60))
        return self.R0 + gain * after + np.where(progress < 1 - _CLOSE, 0.0, excess)

    def best_next(
        self, rewards: FloatArray, C_left: float, num_n: int, optimism: float
    ) -> tuple[int, FloatArray]:
        """(the index of the n to go on with, rewards at the end float[Q]). A plan is an n to the
        end, or one change after a share of what is left. The plan with the highest upper bound is
        taken: its mean, and `optimism` standard deviations of its difference from the plan of
        highest mean."""
        plans = [(i, self.go_on(rewards, i, C_left)) for i in range(num_n)]
        for i in range(num_n):
            for share in SWITCH_SHARES:
                middle = self.go_on(rewards, i, share * C_left)
                plans += [
                    (i, self.go_on(middle, j, (1 - share) * C_left)) for j in range(num_n) if j != i
                ]
        best = max((end for _, end in plans), key=np.mean)
        return max(plans, key=lambda plan: plan[1].mean() + optimism * (plan[1] - best).std())


def fit_growth(
    n: Sequence[int], base_rewards: Sequence[float], paths: Sequence[RunPath], C_end: float
) -> GrowthDraws:
    """Draws of the curves of each n (rising), from rewards at C = 0 and runs; C_end: the budget,
    which scales C_mid."""
    mean, whiten = _prior(np.log2(np.asarray(n, dtype=np.float64)), C_end)
    C = np.concatenate([path.C for path in paths])
    R = np.concatenate([np.asarray(base_rewards, dtype=np.float64), *[path.R for path in paths]])
    weight = np.concatenate([np.ones(len(base_rewards)), (C / C.max()) ** DISCOUNT])

    def predict(theta: FloatArray) -> FloatArray:
        draws = GrowthDraws(theta)
        base = np.repeat(draws.R0[..., None], len(base_rewards), -1)
        return np.concatenate([base, *(draws.along(path) for path in paths)], -1)

    theta, noise_sd = mean[None], NOISE_PRIOR[1]
    for _ in range(2):
        theta = _LeastSquares(predict, R[None], weight / noise_sd, mean[None], whiten).solve(theta)
        residuals = (predict(theta) - R)[0] * weight
        count, size = NOISE_PRIOR
        variance = ((residuals**2).sum() + count * size**2) / ((weight**2).sum() + count)
        noise_sd = float(np.clip(np.sqrt(variance), *NOISE_BOUNDS))
    rng = np.random.default_rng(0)
    noisy_R = R + noise_sd / weight * rng.standard_normal((DRAWS, len(R)))
    prior_draws = mean + np.linalg.solve(whiten, rng.standard_normal((len(mean), DRAWS))).T
    problem = _LeastSquares(predict, noisy_R, weight / noise_sd, prior_draws, whiten)
    return GrowthDraws(problem.solve(np.repeat(theta, DRAWS, 0)))


def _prior(log2_n: FloatArray, C_end: float) -> tuple[FloatArray, FloatArray]:
    """(mean float[P], W float[P, P]) of theta: W (theta - mean) is standard normal."""
    x = log2_n - log2_n[0]
    means = [np.array([mean for mean, _ in SHAPE_PRIOR])]
    covariance = np.zeros((_SHAPES + 2 * len(x),) * 2)
    covariance[:_SHAPES, :_SHAPES] = np.diag([sd**2 for _, sd in SHAPE_PRIOR])
    for k, (level, slope, step_sd) in enumerate((ASYMPTOTE_PRIOR, C_MID_PRIOR)):
        means.append(level[0] + slope[0] * x + (np.log(C_end) if k else 0.0))
        block = slice(_SHAPES + k * len(x), _SHAPES + (k + 1) * len(x))
        brownian = np.minimum.outer(x, x)
        covariance[block, block] = (
            level[1] ** 2 + slope[1] ** 2 * np.outer(x, x) + step_sd**2 * brownian
        )
    covariance += 1e-9 * np.eye(len(covariance))
    return np.concatenate(means), np.linalg.inv(np.linalg.cholesky(covariance)).astype(np.float64)


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
        """Levenberg-Marquardt from theta float[Q, P], with differences for the Jacobian."""
        num_draws, num_parameters = theta.shape
        damping, residuals = np.full(num_draws, 1e-2), self._residuals(theta)
        cost, unit = (residuals**2).sum(-1), np.eye(num_parameters)
        prior_part = np.broadcast_to(self.whiten.T, (num_draws, num_parameters, num_parameters))
        for _ in range(MAX_ITERATIONS):
            change = self.predict(theta[:, None] + STEP * unit) - self.predict(theta)[:, None]
            # [Q, P, N + P]
            jacobian = np.concatenate([change / STEP * self.weight, prior_part], -1)
            hessian = jacobian @ jacobian.swapaxes(1, 2)
            gradient = jacobian @ residuals[..., None]
            damped = (
                hessian + damping[:, None, None] * unit * np.einsum("qii->qi", hessian)[:, None, :]
            )
            proposed = theta - np.linalg.solve(damped, gradient)[..., 0]
            proposed_residuals = self._residuals(proposed)
            proposed_cost = (proposed_residuals**2).sum(-1)
            better = proposed_cost < cost
            theta = np.where(better[:, None], proposed, theta)
            residuals = np.where(better[:, None], proposed_residuals, residuals)
            gain = np.where(better, cost - proposed_cost, 0.0)
            cost = cost - gain
            damping = np.where(better, 0.3 * damping, np.minimum(5 * damping, 1e6))
            if gain.max() < COST_TOLERANCE and better.mean() > 0.5:
                break
        return theta

    def _residuals(self, theta: FloatArray) -> FloatArray:
        from_rewards = (self.predict(theta) - self.R) * self.weight
        return np.concatenate([from_rewards, (theta - self.prior) @ self.whiten.T], axis=-1)
