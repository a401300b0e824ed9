"""The posterior mode of the hierarchical model, for each of the shapes of TAIL_PRIOR, and whether n
matters at all.

Damped Gauss-Newton steps improve all curves together: the normal matrix is an arrow, of which e is
eliminated first and the cells second. tau, noise and run-to-run effect are estimated with the
curves, under priors worth PRIOR_WEIGHT observations, because few cells say little about their own
spread."""

from dataclasses import dataclass, replace

import numpy as np

from isojax.scaling.curves.hierarchical import (
    PRIOR_STEP_SD,
    TINY_SD,
    HierarchicalState,
    PackedSweep,
    Scales,
    SweepArrays,
    minus_two_log_posterior,
    predict_rewards,
    progress_at_points,
    robust_precision,
)
from isojax.scaling.curves.hill import progress_gradient
from isojax.scaling.tracks import FloatArray, as_float64

# tail -> prior probability: ScaleRL's sigmoid, shapes that level off sooner, and shapes that level
# off later.
TAIL_PRIOR = {1.0: 0.46, 0.75: 0.08, 0.5: 0.08, 0.25: 0.08, 0.0: 0.18, 2.0: 0.06, 5.0: 0.06}
PRIOR_WEIGHT = 4.0
PRIOR_RUN_SD = 0.01
PRIOR_TAU = np.array([0.005, 0.01, 0.04])  # of a cell around the surface: reward, decades, log
POOLED_TAU = 1e-4  # tau of cells that share one curve
# below this the points are a computed curve, without variation between runs either
NOISELESS_SD = 1e-6
# tau and the surface's steps are held after the first
SCALE_ROUNDS = 8
MAX_SCALE_ROUNDS = 60
COST_TOLERANCE = 1e-13
# n matters if curves that differ with n have an AIC smaller by this: "considerably less support"
# for one curve (Burnham and Anderson, Model Selection, section 2.6).
MIN_AIC_GAIN = 4.0
_WEAK_SD = 10.0  # prior standard deviation of every column: none is favoured


@dataclass(frozen=True)
class ShapeFit:
    """The posterior mode of one shape, its standard deviations, and where run_sd comes from, in
    words."""

    state: HierarchicalState
    scales: Scales
    run_sd_from: str
    probability: float = 1.0  # of the shape's tail


def fit_all_tails(packed: PackedSweep, stated_run_sd: float | None) -> list[ShapeFit]:
    """The mode of each tail, under the scales of the best one, by how well they explain the
    points."""
    shape_fits = [fit_shape(tail, packed, stated_run_sd) for tail in TAIL_PRIOR]
    best_fit = min(shape_fits, key=lambda f: f.scales.noise_sd)
    scales = best_fit.scales
    shape_fits = [
        ShapeFit(
            find_mode(packed.condensed, f.state, scales, iterations=200),
            scales,
            best_fit.run_sd_from,
        )
        for f in shape_fits
    ]
    # they depart alike from a wrong shape: its evidence is that of the mean run
    runs = sum(map(len, packed.tracks))
    costs = (
        np.array([minus_two_log_posterior(packed.condensed, f.state, scales) for f in shape_fits])
        / runs
    )
    tail_weights = np.array(list(TAIL_PRIOR.values())) * np.exp(-0.5 * (costs - costs.min()))
    order = np.argsort(costs, kind="stable")
    return [
        replace(shape_fits[i], probability=float(tail_weights[i] / tail_weights.sum()))
        for i in order
    ]


def fit_shape(tail: float, packed: PackedSweep, stated_run_sd: float | None = None) -> ShapeFit:
    """The posterior mode of one shape; its standard deviations and its curves are estimated in
    turn."""
    data = packed.condensed
    state = initial_state(tail, packed)
    run_count = int((data.weight.sum(-1) > 0).sum())
    # R0, three per cell, and one for each further seed of a cell
    parameter_count = 1 + 2 * len(data.X) + run_count
    squares = (data.y - predict_rewards(data, state)) ** 2 + data.scatter
    initial_noise_sd = np.sqrt((data.weight * squares).sum() / data.weight.sum()) + 1e-4
    scales = Scales(
        float(initial_noise_sd), PRIOR_RUN_SD, PRIOR_TAU, packed.prior.mean, packed.prior.sd
    )
    run_sd_from = ""
    for i in range(MAX_SCALE_ROUNDS):
        state = find_mode(data, state, scales, iterations=12 if i < SCALE_ROUNDS else 40)
        previous_noise_sd = scales.noise_sd
        noise_sd = robust_noise_sd(data, data.y - predict_rewards(data, state), parameter_count)
        noise_sd = max(noise_sd, packed.min_noise_sd)
        run_sd, run_sd_from = estimate_run_sd(data, state, noise_sd, stated_run_sd)
        scales = replace(scales, noise_sd=max(noise_sd, 1e-9), run_sd=run_sd)
        if i < SCALE_ROUNDS:
            scales = _update_scales(packed, state, scales)
        elif noise_sd <= 1e-9 or abs(np.log(noise_sd / previous_noise_sd)) < 1e-3:
            break
    return ShapeFit(find_mode(data, state, scales, iterations=200), scales, run_sd_from)


def initial_state(tail: float, packed: PackedSweep) -> HierarchicalState:
    """For each cell the best corner of a grid of (mid, lnB) with A by least squares; R0 at C = 0 or
    the lowest seen."""
    data = packed.condensed
    J, S, _ = data.weight.shape
    floor = (
        packed.base_reward
        if packed.base_reward is not None
        else float(np.min(data.y[data.weight > 0]))
    )
    mid_grid = np.linspace(data.x_low - 0.5, data.x_high + 1.0, 25)
    mids, lnBs = np.meshgrid(mid_grid, np.log([0.4, 0.7, 1.0, 1.5, 2.2]), indexing="ij")
    theta = np.zeros((J, 3))
    for j in range(J):
        trained = data.trained[j]
        x, weight = data.x[j][trained], data.weight[j][trained]
        rewards_above_floor = data.y[j][trained] - floor
        s = progress_gradient(x, mids[..., None], lnBs[..., None], tail)[0]
        gain = np.clip(
            (weight * s * rewards_above_floor).sum(-1)
            / np.maximum((weight * s * s).sum(-1), 1e-12),
            -floor,
            1.0 - floor,
        )
        squared_error = (weight * (gain[..., None] * s - rewards_above_floor) ** 2).sum(-1)
        corner = int(squared_error.argmin())
        theta[j] = floor + gain.flat[corner], mids.flat[corner], lnBs.flat[corner]
    # gamma is that of the surface nearest to the cells under its prior.
    scale = packed.prior.sd[1:] / 0.01
    design = np.concatenate([data.X.reshape(3 * J, -1) * scale, np.eye(len(scale))])
    targets = np.concatenate([theta.reshape(-1), packed.prior.mean[1:] / scale])
    gamma = np.linalg.lstsq(design, targets, rcond=None)[0] * scale
    return HierarchicalState(theta, np.zeros((J, S)), np.concatenate([[floor], gamma]), tail)


def robust_noise_sd(data: SweepArrays, residuals: FloatArray, parameter_count: int) -> float:
    """A robust standard deviation of one evaluation, from residuals float[J, S, P].

    The residuals of single evaluations are clipped at two of it (Huber's second proposal; of a
    normal distribution that leaves .9205 of the variance). A point of several evaluations counts
    with their scatter around it, which is free of outliers, and with its own residual."""
    has_point = data.weight > 0
    count, scatter = data.weight[has_point], data.scatter[has_point]
    squared_residuals = residuals[has_point] ** 2
    is_single = count == 1
    evaluations = float(count.sum())

    variance = float(np.median(squared_residuals + scatter)) / 0.455
    for _ in range(30):
        clipped = np.minimum(squared_residuals, 4 * variance)
        of_single = clipped[is_single].sum() / 0.9205
        of_several = (count * (clipped + scatter))[~is_single].sum()
        variance = float(of_single + of_several) / evaluations

    degrees_of_freedom = max(1.0, evaluations - parameter_count)
    return float(np.sqrt(max(variance * evaluations / degrees_of_freedom, 1e-24)))


def estimate_run_sd(
    data: SweepArrays, state: HierarchicalState, noise_sd: float, stated_run_sd: float | None
) -> tuple[float, str]:
    """(run-to-run sd, its source in words), from the spread of the seeds' offsets within cells less
    that of noise, under a prior worth PRIOR_WEIGHT seeds at PRIOR_RUN_SD."""
    if stated_run_sd is not None:
        return stated_run_sd, "as stated"

    # Each run's offset from its cell's curve at the plateau, by weighted least squares.
    s = progress_at_points(state.tail, data, state.theta)[0]
    residuals = data.y - predict_rewards(data, state, with_run_effect=False)
    weight = (data.weight * s * s).sum(-1)
    is_informative = weight > 0.2
    offset = np.where(
        is_informative, (data.weight * s * residuals).sum(-1) / np.maximum(weight, 1e-9), 0.0
    )

    # How far the offsets of a cell's seeds spread, less what noise alone would spread them.
    seed_count = is_informative.sum(1)
    cell_mean = offset.sum(1) / np.maximum(seed_count, 1)
    spread = is_informative * (offset - cell_mean[:, None]) ** 2
    spread_of_noise = is_informative * (1 - 1 / np.maximum(seed_count, 1))[:, None] * noise_sd**2
    excess_spread = max(float((spread - spread_of_noise / np.maximum(weight, 0.2)).sum()), 0.0)
    degrees_of_freedom = float(np.maximum(seed_count - 1, 0).sum())

    if noise_sd < NOISELESS_SD:
        run_sd = float(np.sqrt(excess_spread / max(degrees_of_freedom, 1.0)))
        return run_sd, "none: the points have no noise"
    if not degrees_of_freedom:
        source = (
            f"assumed ({PRIOR_RUN_SD:g} of reward): one seed per cell cannot show it; state yours "
            "with --run-sd"
        )
        return PRIOR_RUN_SD, source

    variance = (PRIOR_WEIGHT * PRIOR_RUN_SD**2 + excess_spread) / (
        PRIOR_WEIGHT + degrees_of_freedom
    )
    source = f"estimated from the seeds ({degrees_of_freedom:.0f} degrees of freedom)"
    return float(np.sqrt(variance)), source


def _update_scales(packed: PackedSweep, state: HierarchicalState, scales: Scales) -> Scales:
    """tau and the standard deviations of the surface's steps: one step of expectation
    maximisation."""
    cell_covariance, u_covariance = posterior_covariances(packed.condensed, state, scales)
    surface_residual = state.theta - packed.condensed.X @ state.u[1:]
    sum_of_squares = (surface_residual**2).sum(0) + np.einsum("jcc->c", cell_covariance)
    tau = np.sqrt(
        (PRIOR_WEIGHT * PRIOR_TAU**2 + sum_of_squares) / (PRIOR_WEIGHT + len(surface_residual))
    )
    u_sd, second_moment = scales.u_sd.copy(), state.u**2 + np.diag(u_covariance)
    for i, prior_sd in enumerate(PRIOR_STEP_SD):
        in_group = packed.prior.sd_group == i
        squares = PRIOR_WEIGHT * prior_sd**2 + second_moment[in_group].sum()
        u_sd[in_group] = np.sqrt(squares / (PRIOR_WEIGHT + in_group.sum()))
    return replace(scales, tau=tau, u_sd=u_sd)


def find_mode(
    data: SweepArrays, start: HierarchicalState, scales: Scales, iterations: int
) -> HierarchicalState:
    """The posterior mode near `start`; stops when the cost falls by less than COST_TOLERANCE of
    itself."""
    state = start
    current_cost = minus_two_log_posterior(data, start, scales)
    damping = 1e-4
    for _ in range(iterations):
        trial = _damped_step(data, state, scales, damping)
        trial_cost = minus_two_log_posterior(data, trial, scales)
        if trial_cost > current_cost or not np.isfinite(trial_cost):
            damping = damping * 10 + 1e-12
            if damping > 1e8:
                break
            continue
        converged = current_cost - trial_cost <= COST_TOLERANCE * (1 + abs(current_cost))
        state, current_cost, damping = trial, trial_cost, damping * 0.1
        if converged:
            break
    return state


def _damped_step(
    data: SweepArrays, state: HierarchicalState, scales: Scales, damping: float
) -> HierarchicalState:
    """One damped Gauss-Newton step, clipped to the bounds of theta."""
    normal = _normal_equations(data, state, scales)
    d_theta, du, _, _ = _solve_arrow(data, state, scales, damping, normal)
    theta_R0_step = np.column_stack([d_theta, np.full(len(d_theta), du[0])])
    de = (normal.g_e - np.einsum("jas,ja->js", normal.cross, theta_R0_step)) / normal.h_e
    theta = np.clip(state.theta + d_theta, *data.theta_bounds)
    return replace(state, theta=theta, e=state.e + de, u=state.u + du)


@dataclass(frozen=True)
class _NormalEquations:
    """Normal equations of (A, mid, lnB, R0) with e eliminated, and the terms from which e's own
    step follows."""

    H: FloatArray  # [J, 4, 4]
    g: FloatArray  # [J, 4]
    cross: FloatArray  # [J, 4, S]
    h_e: FloatArray  # [J, S]
    g_e: FloatArray  # [J, S]


def information_of_runs(
    data: SweepArrays, state: HierarchicalState, scales: Scales
) -> tuple[FloatArray, FloatArray]:
    """(information float[J, S, 4, 4], gradient float[J, S, 4]) of the log likelihood of each run in
    (its plateau A + e, mid, lnB, R0)."""
    s, ds_d_mid, ds_d_lnB = progress_at_points(state.tail, data, state.theta)
    gain = state.theta[:, 0, None, None] + state.e[..., None] - state.R0
    residual = data.y - state.R0 - gain * s

    J = np.stack([s, gain * ds_d_mid, gain * ds_d_lnB, 1 - s], axis=2)  # [J, S, 4, P]
    WJ = J * robust_precision(data, state, scales)[:, :, None]
    return as_float64(WJ @ J.mT), as_float64((WJ @ residual[..., None])[..., 0])


def _normal_equations(
    data: SweepArrays, state: HierarchicalState, scales: Scales
) -> _NormalEquations:
    information, gradient = information_of_runs(data, state, scales)
    e_precision = 1 / max(scales.run_sd, TINY_SD) ** 2
    cross = information[..., 0]  # [J, S, 4]; the derivative by e is that by A, run by run
    h_e = information[..., 0, 0] + e_precision
    g_e = gradient[..., 0] - state.e * e_precision

    H = information.sum(1) - np.einsum("jsa,jsb,js->jab", cross, cross, 1 / h_e)
    g = gradient.sum(1) - np.einsum("jsa,js->ja", cross, g_e / h_e)
    return _NormalEquations(H, g, cross.mT, h_e, g_e)


def _solve_arrow(
    data: SweepArrays,
    state: HierarchicalState,
    scales: Scales,
    damping: float,
    normal: _NormalEquations,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """(step of theta, step of u, D^-1 border, the Schur complement of u): u = (R0, gamma) alone
    couples the cells."""
    H, g, surface_precision = normal.H, normal.g, scales.tau**-2.0
    PX = surface_precision[:, None] * data.X  # [J, 3, K]
    surface_residual = state.theta - data.X @ state.u[1:]
    block = H[:, :3, :3] + np.diag(surface_precision)
    block = block + damping * block * np.eye(3)
    border = np.concatenate([H[:, :3, 3:], -PX], axis=2)  # [J, 3, 1 + K]
    schur = np.diag(scales.u_sd**-2.0)
    schur[0, 0] += H[:, 3, 3].sum()
    schur[1:, 1:] += np.einsum("jck,jcl->kl", PX, data.X)
    u_gradient = np.concatenate([[g[:, 3].sum()], np.einsum("jck,jc->k", PX, surface_residual)])
    u_gradient = u_gradient - (state.u - scales.u_mean) / scales.u_sd**2
    theta_gradient = g[:, :3] - surface_precision * surface_residual
    solutions = np.linalg.solve(block, np.concatenate([border, theta_gradient[..., None]], axis=2))
    F, f = as_float64(solutions[..., :-1]), as_float64(solutions[..., -1])
    schur = schur - np.einsum("jak,jal->kl", border, F)
    du = as_float64(np.linalg.solve(schur, u_gradient - np.einsum("jak,ja->k", border, f)))
    return f - F @ du, du, F, schur


def posterior_covariances(
    data: SweepArrays, state: HierarchicalState, scales: Scales
) -> tuple[FloatArray, FloatArray]:
    """Covariances at the mode: float[J, 3, 3] of each cell's theta minus its surface, float[1 + K,
    1 + K] of u."""
    normal = _normal_equations(data, state, scales)
    _, _, F, schur = _solve_arrow(data, state, scales, 0.0, normal)
    u_covariance = as_float64(np.linalg.inv(schur))
    u_sensitivity = F.copy()  # theta - X gamma moves by -(F + X) du
    u_sensitivity[:, :, 1:] += data.X
    cell_covariance = np.linalg.inv(normal.H[:, :3, :3] + np.diag(scales.tau**-2.0))
    shared_covariance = np.einsum("jak,kl,jbl->jab", u_sensitivity, u_covariance, u_sensitivity)
    return cell_covariance + shared_covariance, u_covariance


def has_no_n_effect(packed: PackedSweep, shape_fit: ShapeFit) -> bool:
    """Whether one curve for each B_p does as well, by AIC at the likeliest shape and standard
    deviations, as curves that change linearly with log2 n and as a free curve for each cell; False
    where only one n was measured."""
    if len({n for _, n in packed.keys}) < 2:
        return False
    J = len(packed.keys)
    all_B_p = sorted({B_p for B_p, _ in packed.keys})
    B_p_columns = np.array([[float(B_p == b) for b in all_B_p] for B_p, _ in packed.keys])
    if len(all_B_p) == J:  # a fixed batch
        B_p_columns = np.ones((J, 1))
    log2_n = np.log2([n for _, n in packed.keys])
    common_deviance = _deviance(shape_fit, packed, B_p_columns)
    linear_deviance = _deviance(
        shape_fit, packed, np.column_stack([B_p_columns, log2_n - log2_n.mean()])
    )
    free_deviance = _deviance(shape_fit, packed, np.eye(J))
    return (
        common_deviance - linear_deviance - 2 * 3 < MIN_AIC_GAIN
        and common_deviance - free_deviance - 2 * 3 * (J - B_p_columns.shape[1]) < MIN_AIC_GAIN
    )


def _deviance(shape_fit: ShapeFit, packed: PackedSweep, columns: FloatArray) -> float:
    """Minus twice the greatest log likelihood of curves with A, mid and lnB in the span of the
    columns, float[J, K]."""
    J, K = columns.shape
    X = as_float64(np.stack([np.kron(row, columns) for row in np.eye(3)], axis=1))  # [J, 3, 3 K]
    gamma = as_float64(
        np.linalg.lstsq(X.reshape(3 * J, -1), shape_fit.state.theta.reshape(-1), rcond=None)[0]
    )
    data = replace(packed.condensed, X=X)
    weak_sd = np.full(1 + 3 * K, _WEAK_SD)
    scales = replace(
        shape_fit.scales, tau=np.full(3, POOLED_TAU), u_mean=np.zeros_like(weak_sd), u_sd=weak_sd
    )
    state = replace(
        shape_fit.state, theta=X @ gamma, u=np.concatenate([shape_fit.state.u[:1], gamma])
    )
    return minus_two_log_posterior(data, find_mode(data, state, scales, iterations=100), scales)
