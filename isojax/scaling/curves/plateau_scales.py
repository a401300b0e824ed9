"""How far plateaus lie apart: standard deviations between runs and between cells (hierarchical.py),
drawn from their posterior.

One sweep hardly determines them. Where each cell has one seed, a lucky run looks like a good cell,
and the cell whose run was luckiest is recommended: at one value of these standard deviations its
reward is promised too high, unless the value happens to be right. Here each group of draws has
values of its own.

Their prior is log-normal, with the medians and factors below. Their likelihood is that of the
plateaus A_j + e_r of all runs, with mid, lnB and R0 integrated out, by the quadratic expansion of
the log density around the posterior mode."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.curves.hierarchical import PackedSweep, Scales, SweepArrays
from isojax.scaling.curves.posterior_mode import PRIOR_RUN_SD, ShapeFit, information_of_runs
from isojax.scaling.tracks import FloatArray, as_float64


@dataclass(frozen=True)
class LogNormal:
    """A positive quantity: with probability 2/3 within `factor` of its median."""

    median: float  # of reward
    factor: float

    def sample(self, count: int, rng: np.random.Generator) -> FloatArray:
        """float[count]."""
        return self.median * self.factor ** rng.standard_normal(count)


RUN_SD_PRIOR = LogNormal(PRIOR_RUN_SD, 2.4)  # between runs of a cell: 90% within .0024 and .042
CELL_SD_PRIOR = LogNormal(0.004, 2.2)  # of a cell around the surface, tau of A
STEP_SD_PRIOR = LogNormal(0.006, 2.7)  # of the surface from one n to the next, around a line
# of the surface over three doublings of n, and of B_p: 90% within .005 and .34
EFFECT_SD_PRIOR = LogNormal(0.04, 3.7)
# Candidates, of which the likely ones are drawn; fewer where there are many runs, since each costs
# the cube of the number of runs.
MAX_CANDIDATES, MIN_CANDIDATES, CANDIDATE_COST = 400, 40, 4e8


@dataclass(frozen=True)
class _Plateaus:
    """What the evaluations say of the plateaus a = A_j + e_r of R runs, mid, lnB and R0 integrated
    out: the log likelihood is beta' a - a' information a / 2."""

    information: FloatArray  # [R, R]
    beta: FloatArray  # [R]
    cell_of_run: NDArray[np.intp]  # [R], the index of each run's cell


def draw_plateau_scales(
    packed: PackedSweep,
    fit: ShapeFit,
    stated_run_sd: float | None,
    count: int,
    rng: np.random.Generator,
) -> list[Scales]:
    """`count` posterior draws of the scales of A and of run_sd; the others are those of the fit.

    stated_run_sd: of reward, where the user knows it."""
    plateaus = _integrate_out_shapes(packed.condensed, fit)
    run_count = len(plateaus.beta)
    candidate_count = int(np.clip(CANDIDATE_COST / run_count**3, MIN_CANDIDATES, MAX_CANDIDATES))

    effect_sds = np.sort(EFFECT_SD_PRIOR.sample(candidate_count, rng))
    run_sds, cell_sds, step_sds = (
        prior.sample(candidate_count, rng) for prior in (RUN_SD_PRIOR, CELL_SD_PRIOR, STEP_SD_PRIOR)
    )
    if stated_run_sd is not None:
        run_sds = np.full(candidate_count, stated_run_sd)
    candidates = [
        _with_plateau_scales(packed, fit.scales, *values)
        for values in zip(run_sds, cell_sds, step_sds, effect_sds, strict=True)
    ]
    log_evidence = np.array([_log_evidence(packed.condensed, plateaus, c) for c in candidates])

    # Systematic resampling along the sorted effects, which gives each part of them its share.
    weights = np.exp(log_evidence - log_evidence.max())
    levels = (np.arange(count) + rng.random()) / count
    drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), levels)
    return [candidates[i] for i in rng.permutation(np.minimum(drawn, candidate_count - 1))]


def _with_plateau_scales(
    packed: PackedSweep,
    scales: Scales,
    run_sd: float,
    cell_sd: float,
    step_sd: float,
    effect_sd: float,
) -> Scales:
    """The scales with these of A. Its level stays free; slopes and curvature have effect_sd, unless
    their own prior is narrower."""
    tau, u_sd = scales.tau.copy(), scales.u_sd.copy()
    tau[0] = cell_sd
    columns_of_A = packed.condensed.X[:, 0]
    for k, column in enumerate(columns_of_A.T):
        if packed.prior.sd_group[1 + k] == 0:
            u_sd[1 + k] = step_sd
        elif np.ptp(column) > 0:
            u_sd[1 + k] = min(effect_sd, packed.prior.sd[1 + k])
    return replace(scales, run_sd=float(run_sd), tau=tau, u_sd=u_sd)


def _integrate_out_shapes(data: SweepArrays, fit: ShapeFit) -> _Plateaus:
    """The plateaus of all runs by the quadratic expansion at the fit's mode."""
    state, scales, J = fit.state, fit.scales, len(data.X)
    H, g = information_of_runs(data, state, scales)
    has_points = data.weight.sum(-1) > 0
    cell_of_run, seed_of_run = np.nonzero(has_points)
    R = len(cell_of_run)

    # z: the plateau of each run, then mid and lnB of each cell, and R0, all less their prior means
    X = data.X.reshape(3 * J, -1)
    theta = state.theta - (X @ scales.u_mean[1:]).reshape(J, 3)
    plateau = theta[cell_of_run, 0] + state.e[has_points]
    z = np.concatenate([plateau, theta[:, 1:].reshape(-1), [state.R0 - scales.u_mean[0]]])
    precision, gradient = np.zeros((len(z), len(z))), np.zeros(len(z))
    for run, (j, seed) in enumerate(zip(cell_of_run, seed_of_run, strict=True)):
        at = np.array([run, R + 2 * j, R + 2 * j + 1, len(z) - 1])
        precision[np.ix_(at, at)] += H[j, seed]
        gradient[at] += g[j, seed]
    gradient += precision @ z

    # the prior of what is integrated out
    is_shape = np.tile([False, True, True], J)
    covariance = np.diag(np.tile(scales.tau**2, J)) + (X * scales.u_sd[1:] ** 2) @ X.T
    precision[R:-1, R:-1] += np.linalg.inv(covariance[np.ix_(is_shape, is_shape)])
    precision[-1, -1] += scales.u_sd[0] ** -2.0

    border = precision[R:, :R]
    solved = np.linalg.solve(precision[R:, R:], np.column_stack([border, gradient[R:]]))
    return _Plateaus(
        information=as_float64(precision[:R, :R] - border.T @ solved[:, :-1]),
        beta=as_float64(gradient[:R] - border.T @ solved[:, -1]),
        cell_of_run=cell_of_run,
    )


def _log_evidence(data: SweepArrays, plateaus: _Plateaus, scales: Scales) -> float:
    """Log density of the evaluations under these scales, up to a constant."""
    cell_of_run, R = plateaus.cell_of_run, len(plateaus.beta)
    X = data.X[cell_of_run, 0]
    same_cell = cell_of_run[:, None] == cell_of_run
    covariance = (X * scales.u_sd[1:] ** 2) @ X.T
    covariance += scales.tau[0] ** 2 * same_cell + scales.run_sd**2 * np.eye(R)

    widened = np.eye(R) + covariance @ plateaus.information
    explained = plateaus.beta @ np.linalg.solve(widened, covariance @ plateaus.beta)
    return float(0.5 * (explained - np.linalg.slogdet(widened)[1]))
