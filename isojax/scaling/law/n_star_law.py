"""The law n*(C), the compute-optimal rollouts per problem (IsoCompute Playbook, arXiv:2603.12151,
section 4.1, Fig. 7). It has one of these forms, with x = log10 C (or log10 M at a fixed batch B):

    constant   log2 n*(C) = b
    linear     log2 n*(C) = b + k (x - x0),   x0 the centre of the points
    sigmoid    log2 n*(C) = b + L / (1 + exp(-k (x - x0)))     (the paper's)

`fit_n_star` fits one to a frontier. In mode "paper" `fit_law` fits the paper's sigmoid to a centred
running average over AVERAGING_WINDOW decades (the paper does not publish its window). In mode
"hierarchical" `choose_law` weights the points and chooses the form by AICc (Hurvich and Tsai 1989;
where variances are known QAICc, Burnham and Anderson 2002, section 2.5). Either saturates at most
at twice the largest n measured. A fork adds a form by adding an entry to FORMS.

`fit_fixed_batches` fits n*(M) at each batch B, where B_p* = B / n* (section 4.2, Figs. 9, 18, 19).
A monotone n*(M), one that only rises or only falls, is rejected where, in 90% of the replicates, it
loses more than MONOTONE_COST of reward, on average over log M, against the best n at each M. Only
budgets that all cells reached count."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from isojax.scaling.curves.hill import LN10
from isojax.scaling.curves.sigmoid_fit import START_COUNT, SigmoidPoints, fit_sigmoid
from isojax.scaling.curves.sweep_estimate import (
    CURVE_REACH_DECADES,
    PosteriorSamples,
    SweepEstimate,
    best_cells,
)
from isojax.scaling.intervals import central_band
from isojax.scaling.law.frontier import (
    Frontier,
    compute_frontier,
    crossover_rows,
    frontier_rows,
    spread_indices,
)
from isojax.scaling.result import (
    FittedCurve,
    FixedBatchFit,
    FrontierRow,
    Law,
    NStarBandRow,
    NStarFit,
    NStarOfMFit,
)
from isojax.scaling.tracks import FloatArray, as_float64, group_by

# values of n that a law with a slope needs: two show only where one n overtakes the other
MIN_DISTINCT_N = 3

K_BOUNDS = (0.05, 50.0)
C0_MARGIN_DECADES = 1.0  # C0 may be this many decades outside the frontier
L_MARGIN = 1e-3  # of its range: a smaller L is at its bound
# a law that saturates at more than this times its value where the data end is a guess
MAX_SATURATION_RATIO = 2**0.5
AVERAGING_WINDOW = 0.25
MAX_LAW_POINTS = 24  # points of a frontier to which its law is fitted
MAX_BATCH_LAW_POINTS = 40  # points of a frontier at a fixed batch
# These points are correlated: AICc counts them as at most so many independent observations.
MAX_OBSERVATIONS = 20
# A monotone n*(M) is rejected that loses more reward than this in so large a share of replicates.
MONOTONE_COST = 0.001
REJECTION_CONFIDENCE = 0.9
BAND_POINTS = 40  # points of a frontier at which the replicates' best n gets an interval
# Residuals of log2 n below this are rounding: all forms that reach it count as equally exact.
EXACT_RESIDUAL = 1e-6


@dataclass(frozen=True)
class LawPoints:
    """The points to which a law is fitted."""

    x: FloatArray  # [points], log10 C, at least 2 distinct
    y: FloatArray  # [points], log2 n
    w: FloatArray  # [points] > 0, weights of mean 1
    cap: float  # the largest log2 n at which a law may saturate


@dataclass(frozen=True)
class LawForm:
    """A form of n*(C); it needs as many distinct n as it has parameters, and more distinct C."""

    parameter_count: int
    log2_n_star: Callable[[Law, FloatArray], FloatArray]  # (law, log10 C) -> log2 n*
    # (points, whether the law may fall) -> the law of least weighted squares
    fit: Callable[[LawPoints, bool], Law]


def _log10_C0(law: Law) -> float:
    """The middle x0 of a line or a sigmoid."""
    assert law.log10_C0 is not None, f"a {law.form} law has a middle"
    return law.log10_C0


def _constant(log2_n: float) -> Law:
    return Law("constant", L=0.0, k=0.0, log10_C0=None, b=log2_n)


def _fit_constant(points: LawPoints, falling: bool) -> Law:
    return _constant(float(np.average(points.y, weights=points.w)))


def _fit_linear(points: LawPoints, falling: bool) -> Law:
    """The weighted regression line, through the centre of the points."""
    x0 = np.average(points.x, weights=points.w)
    b = float(np.average(points.y, weights=points.w))
    dx = points.x - x0
    k = float((points.w * dx * (points.y - b)).sum() / (points.w * dx * dx).sum())
    return Law("linear", L=0.0, k=k if falling else max(k, 0.0), log10_C0=float(x0), b=b)


def _fit_sigmoid(points: LawPoints, falling: bool) -> Law:
    """The sigmoid of least weighted squares; with `falling`, also one that falls may be taken."""
    rising_law = fit_rising_sigmoid(points)
    if not falling:
        return rising_law

    # A falling sigmoid is a rising one of -x: its lower level is what the mirrored one rises to.
    mirrored = fit_rising_sigmoid(replace(points, x=-points.x))
    falling_law = replace(
        mirrored, L=-mirrored.L, b=mirrored.b + mirrored.L, log10_C0=-_log10_C0(mirrored)
    )
    return min((rising_law, falling_law), key=lambda law: weighted_mean_square(law, points))


def weighted_mean_square(law: Law, points: LawPoints) -> float:
    """The weighted mean of the squared residuals, in log2 n."""
    residuals = FORMS[law.form].log2_n_star(law, points.x) - points.y
    return float(np.mean(points.w * residuals**2))


def fit_rising_sigmoid(points: LawPoints, starts: int = START_COUNT) -> Law:
    """The rising sigmoid b + L / (1 + exp(-k (x - x0))) of least weighted squares.

    Its bounds: 0 <= b, 0 <= L, b + L <= points.cap, and k within K_BOUNDS. starts: from how many
    places to search.

    It is a learning curve (a Hill curve in 10^x) with R0 = b, A = b + L, exponent k / ln 10 and
    log10 C_mid = x0, and is fitted as such."""
    # The bounds of phi, the two parameters that are searched: ln exponent and log10 C_mid.
    k_lower, k_upper = K_BOUNDS
    phi_lower = np.array([np.log(k_lower / LN10), points.x.min() - C0_MARGIN_DECADES])
    phi_upper = np.array([np.log(k_upper / LN10), points.x.max() + C0_MARGIN_DECADES])
    sigmoid_points = SigmoidPoints(
        points.x, points.y, points.w, phi_lower, phi_upper, reward_range=(0.0, points.cap)
    )
    best = fit_sigmoid(sigmoid_points, starts=starts)

    # R0, A: the levels b and b + L, both within reward_range.
    b = best.R0
    L = best.A - best.R0
    law_names = {"A": "L", "exponent": "k", "C_mid": "C0"}
    at_bounds = [law_names[name] for name in best.at_bounds]
    if L < L_MARGIN * (points.cap - b) and "L" not in at_bounds:
        at_bounds.append("L")  # no rise at all
    return Law(
        "sigmoid",
        L=L,
        k=LN10 * best.exponent,
        log10_C0=best.log10_C_mid,
        b=b,
        at_bounds=tuple(sorted(at_bounds, reverse=True)),
    )


FORMS: dict[str, LawForm] = {
    "constant": LawForm(1, lambda law, x: np.full_like(x, law.b), _fit_constant),
    "linear": LawForm(2, lambda law, x: law.b + law.k * (x - _log10_C0(law)), _fit_linear),
    "sigmoid": LawForm(
        4, lambda law, x: law.b + law.L * expit(law.k * (x - _log10_C0(law))), _fit_sigmoid
    ),
}


def log2_n_star(law: Law, C: ArrayLike) -> FloatArray:
    """log2 n*(C); C > 0, float[...] -> float[...]."""
    return FORMS[law.form].log2_n_star(law, np.log10(as_float64(C)))


def n_star(law: Law, C: ArrayLike) -> FloatArray:
    """n*(C), not rounded; C > 0, float[...] -> float[...]."""
    return 2.0 ** log2_n_star(law, C)


def fit_n_star(
    frontier: Frontier,
    draws: PosteriorSamples | None,
    no_effect: bool | None,
    n_largest: int,
    target_count: int,
) -> NStarFit:
    """The law n*(C), the best n as a function of C, fitted to a frontier.

    With draws (replicates of the curves), it is fitted to their mean log2 n* at MAX_LAW_POINTS
    budgets; the weight of each is 1 / (the replicates' variance + that of the grid of n).
    no_effect: whether n makes no difference, so that the law is a constant; None in mode "paper",
    which does not test that and fits the paper's sigmoid. n_largest: the largest n measured.
    target_count: at how many C > 0 the runs were evaluated, the number of independent observations.
    The result has a band only with draws, and aicc only where a form was chosen."""
    # Where all cells are tied no n is the best, and there is nothing to fit; if that leaves fewer
    # than two points, all count, with the n that leads first.
    leading = [p for p in frontier.points if not p.tied]
    if len(leading) < 2:
        leading = list(frontier.points)
    C = np.array([p.C for p in leading])
    n = np.array([p.n for p in leading])
    if no_effect is None:
        return NStarFit(law=fit_law(C, n, n_largest), no_effect=False)

    # An interval of n along C, since the law's parameters trade off against one another, so that
    # intervals of each would show little.
    band = None if draws is None else _best_n_band(draws, [p.C for p in frontier.points])
    if no_effect:
        return NStarFit(law=most_common_n_law(n), no_effect=True, band=band)

    # Indices of evenly spread points of the frontier, both ends included.
    law_indices = spread_indices(len(n), MAX_LAW_POINTS)
    C_of_law = C[law_indices]
    log2_n = np.log2(n[law_indices])
    variance = None
    if draws is not None:
        log2_n_replicates = log2_best_n(draws, C_of_law)
        log2_n = log2_n_replicates.mean(0)
        # The best n is only known to be within a step of the grid of measured n: an error that is
        # uniform over one step has the variance step^2 / 12.
        # Steps are in log2 n; where one n leads everywhere, a step counts as a doubling.
        steps = np.diff(np.log2(np.unique(n)))
        step = float(np.median(steps)) if len(steps) else 1.0
        variance = log2_n_replicates.var(0) + step**2 / 12
    choice = choose_law(
        C_of_law, log2_n, n_largest, variance, observations=min(target_count, len(law_indices))
    )
    return choice.model_copy(update={"band": band})


def _best_n_band(draws: PosteriorSamples, C_of_points: Sequence[float]) -> tuple[NStarBandRow, ...]:
    """The intervals of the replicates' best n, at BAND_POINTS of these values of C (rising)."""
    indices = spread_indices(len(C_of_points), BAND_POINTS)
    C = [C_of_points[i] for i in indices.tolist()]
    lows, highs = central_band(log2_best_n(draws, C), discrete=True)
    return tuple(
        NStarBandRow(C=at, low=2**low, high=2**high)
        for at, low, high in zip(C, lows.tolist(), highs.tolist(), strict=True)
    )


def log2_best_n(draws: PosteriorSamples, C: ArrayLike) -> FloatArray:
    """log2 of the best n in each draw: C float[G] -> float[Q, G].

    A cell competes by its curve, up to CURVE_REACH_DECADES beyond its data."""
    # best_cells gives the rewards and, second, the index of the best cell, [Q, G].
    return np.log2([n for _, n in draws.keys])[best_cells(draws, C, CURVE_REACH_DECADES)[1]]


def most_common_n_law(n: ArrayLike) -> Law:
    """The law where n makes no difference: a constant, the most frequent n of a frontier.

    n: int[points], the frontier's; of equally frequent ones the smallest counts."""
    values, counts = np.unique(n, return_counts=True)
    return _constant(float(np.log2(values[counts.argmax()])))


def running_average(x: FloatArray, y: FloatArray, window: float) -> FloatArray:
    """The mean of y over all points within window / 2 of each x; float[points]."""
    # 1e-12: a point exactly at the window's end counts, whatever the rounding.
    within_window = np.abs(x[:, None] - x[None, :]) <= window / 2 + 1e-12
    return (within_window @ y) / within_window.sum(1)


def fit_law(C: ArrayLike, n: ArrayLike, n_max: float, window: float = AVERAGING_WINDOW) -> Law:
    """The paper's law, a sigmoid, through a frontier's points; a constant where n never changes.

    C > 0 and n >= 1: float[points], the points' budgets and measured n. log2 n is first averaged
    over `window` decades of C (0: not at all). The law saturates at most at 2 n_max, where n_max is
    the largest n measured."""
    x = np.log10(as_float64(C))
    log2_n = np.log2(as_float64(n))
    if np.ptp(log2_n) == 0:
        return _constant(float(log2_n[0]))
    points = LawPoints(  # + 1 in log2: twice n_max
        x=x,
        y=running_average(x, log2_n, window),
        w=np.ones_like(x),
        cap=math.log2(n_max) + 1,
    )
    return fit_rising_sigmoid(points)


def choose_law(
    C: ArrayLike,
    log2_n: ArrayLike,
    n_max: float,
    variance: ArrayLike | None = None,
    observations: int | None = None,
    falling: bool = False,
) -> NStarFit:
    """Choose and fit the form of n*(C) that points support: constant, line or sigmoid.

    Each form is fitted by weighted least squares, and the one with the lowest AICc is taken.

    C, log2_n: float[points]; C > 0. log2 n may be the mean of several estimates, and 2 to its power
    no whole number.
    n_max: the largest n measured; a sigmoid saturates at most at 2 n_max.
    variance: float[points] > 0, of log2_n; None: unknown, and equal for all points. It is scaled up
    where even the richest form misses the points by more.
    observations: how many independent observations the points count as; None: one each.
    falling: whether n*(C) may fall as C rises.

    A form is tried only with as many distinct n as it has parameters, and more distinct C and
    observations than these. aicc of the result: each form's score, None for one not tried."""
    x = np.log10(as_float64(C))
    y = as_float64(log2_n)
    variances = np.ones_like(x) if variance is None else as_float64(variance)
    mean_variance = float(1 / np.mean(1 / variances))  # weights have mean 1
    points = LawPoints(x, y, w=mean_variance / variances, cap=math.log2(n_max) + 1)

    # AICc needs two observations more than there are unknowns; an unknown variance is one of them.
    observation_count = len(x) if observations is None else observations
    is_variance_unknown = variance is None
    most_parameters = min(
        len(np.unique(y)),
        len(np.unique(x)) - 1,
        observation_count - 2 - is_variance_unknown,
    )
    supported = [
        name
        for name, form in FORMS.items()
        if name == "constant" or form.parameter_count <= most_parameters
    ]
    laws = {name: FORMS[name].fit(points, falling) for name in supported}
    mean_squares = {
        name: max(weighted_mean_square(law, points), EXACT_RESIDUAL**2)
        for name, law in laws.items()
    }
    scores = _aicc_scores(
        mean_squares, observation_count, variance=None if is_variance_unknown else mean_variance
    )

    # min takes the first of equals: FORMS begins with the simplest.
    best_form = min(scores, key=lambda name: scores[name])
    aicc = {
        name: scores[name] if math.isfinite(scores.get(name, math.inf)) else None for name in FORMS
    }
    return NStarFit(law=laws[best_form], no_effect=False, aicc=aicc)


def _aicc_scores(
    mean_squares: Mapping[str, float], observation_count: int, variance: float | None
) -> dict[str, float]:
    """AICc of each form: -2 log likelihood + 2 p + 2 p (p + 1) / (N - p - 1).

    It has p unknowns and N observations, and is infinite where N <= p + 1. mean_squares: the
    weighted mean square residual of each form that was fitted, in log2 n, above 0, such as
    {"constant": 0.4, "linear": 0.1}. variance: that of log2 n; None: unknown, which is one more
    unknown."""
    # A known variance is scaled up where even the richest form misses the points by more (QAICc).
    richest_form = max(mean_squares, key=lambda name: FORMS[name].parameter_count)
    residual_dof = max(observation_count - FORMS[richest_form].parameter_count, 1.0)
    richest_variance = observation_count * mean_squares[richest_form] / residual_dof

    scores = dict.fromkeys(mean_squares, math.inf)
    for name, mean_square in mean_squares.items():
        unknown_count = FORMS[name].parameter_count
        if variance is None:
            unknown_count += 1
            misfit = observation_count * math.log(mean_square)
        else:
            misfit = observation_count * mean_square / max(variance, richest_variance)
        spare_count = observation_count - unknown_count - 1
        if spare_count > 0:
            correction = 2 * unknown_count * (unknown_count + 1) / spare_count
            scores[name] = misfit + 2 * unknown_count + correction
    return scores


def law_limits(law: Law, C_low: float, C_high: float) -> Iterator[tuple[str, str]]:
    """Flags about parameters of a sigmoid that the data do not determine; no flag of other forms.

    A flag is (code, sentence), its code "law_at_bound" or "law_beyond_data". C_low, C_high: the
    range of C of the points to which the law was fitted."""
    if law.form != "sigmoid":
        return

    C0 = 10 ** _log10_C0(law)
    values = {"L": law.L, "k": law.k, "C0": C0}
    at_bounds = ", ".join(f"{name} = {values[name]:.4g}" for name in law.at_bounds)
    if at_bounds:
        yield "law_at_bound", f"n*(C) has {at_bounds} at its bound; the data do not determine it"

    beyond = "the law reaches beyond its data"
    if not C_low <= C0 <= C_high:
        middle = f"its middle C0 = {C0:.4g} is outside {C_low:.4g} to {C_high:.4g}"
        yield "law_beyond_data", f"{beyond}: {middle}"

    n_saturation = 2 ** (law.b + law.L)
    n_at_end = float(n_star(law, C_high))
    if n_saturation > MAX_SATURATION_RATIO * n_at_end:
        end = f"has come to {n_at_end:.3g} where the data end"
        yield "law_beyond_data", f"{beyond}: it saturates at n = {n_saturation:.3g}, but {end}"


def fit_fixed_batches(estimate: SweepEstimate) -> tuple[FixedBatchFit, ...]:
    """n*(M) at each fixed batch B = B_p n that at least two cells have, by rising B."""
    curves_by_B = group_by(estimate.curves, lambda c: c.B_p * c.n)
    return tuple(
        _fit_batch(B, group, estimate) for B, group in sorted(curves_by_B.items()) if len(group) > 1
    )


def _fit_batch(B: int, curves: Sequence[FittedCurve], estimate: SweepEstimate) -> FixedBatchFit:
    """The frontier of the cells with one batch size B = B_p n, and their law n*(M).

    n*(M) is the best n for each number of updates M. curves: those of these cells, two or more;
    estimate: the fit of the whole sweep, whose draws (sampled curves, if it has any) give the
    intervals."""
    frontier = compute_frontier(curves)
    no_effect = estimate.no_effect
    draws = estimate.draws
    if draws is not None:
        draws = draws.for_cells([c.key for c in curves])
    # More points than the law is fitted to, since figures show them too.
    indices = spread_indices(len(frontier.points), 4 * MAX_BATCH_LAW_POINTS)
    points = [frontier.points[i] for i in indices]
    return FixedBatchFit(
        B=B,
        frontier=frontier_rows(points, draws),
        # Where n has no effect, crossings of curves are noise.
        crossovers=() if no_effect else crossover_rows(frontier, draws),
        n_star=_fit_n_star_of_M(B, points, draws, no_effect, max(c.n for c in curves)),
    )


def _fit_n_star_of_M(
    B: int,
    points: Sequence[FrontierRow],
    draws: PosteriorSamples | None,
    no_effect: bool | None,
    n_largest: int,
) -> NStarOfMFit:
    """The law n*(M) at a fixed batch B, from points of its frontier: the form that AICc prefers.

    The law may fall. monotone_rejected is set where n* clearly rises and falls, so that no such law
    describes it. points: at rising C; draws: of the cells with this B alone; None: no
    monotone_cost. no_effect: whether n makes no difference; None in mode "paper", which fits the
    paper's sigmoid. n_largest: the largest n of these cells."""
    M = np.array([p.C for p in points]) / B
    n = np.array([p.n for p in points])
    if no_effect:
        return NStarOfMFit(law=most_common_n_law(n), no_effect=True)
    if no_effect is None:
        # M = C / B stands for C: both laws are functions of the logarithm alone.
        return NStarOfMFit(law=fit_law(M, n, n_largest), no_effect=False)

    # The points of a frontier are correlated, and worth fewer than there are.
    law_indices = spread_indices(len(M), MAX_BATCH_LAW_POINTS)
    M = M[law_indices]
    log2_n = np.log2(n[law_indices])
    choice = choose_law(
        M, log2_n, n_largest, observations=min(len(M), MAX_OBSERVATIONS), falling=True
    )
    n_star_of_M = NStarOfMFit(law=choice.law, no_effect=False, aicc=choice.aicc)
    if draws is None:
        return n_star_of_M

    costs = monotone_cost(draws, M * B)
    share_that_loses = float(np.mean(costs > MONOTONE_COST))
    return n_star_of_M.model_copy(
        update={
            "monotone_rejected": share_that_loses >= REJECTION_CONFIDENCE,
            "monotone_cost": float(np.median(costs)),
        }
    )


def monotone_cost(draws: PosteriorSamples, C: FloatArray) -> FloatArray:
    """How much reward the best monotone n(C) loses against the best n at each C: float[Q].

    A monotone n(C) only rises or only falls. The loss is the mean, in each draw, over those of the
    given C (float[G]) that all cells reached; 0 where there are none. draws: of cells that each
    have another n."""
    reached_by_all = draws.is_measured(C).all(0)
    if not reached_by_all.any():
        return np.zeros(len(draws.R0))

    by_rising_n = np.argsort([n for _, n in draws.keys])
    rewards = draws.rewards(C[reached_by_all])[:, by_rising_n]  # [Q, J, G]
    best_rising = best_nondecreasing_sum(rewards)
    best_falling = best_nondecreasing_sum(rewards[:, ::-1])
    best_monotone = np.maximum(best_rising, best_falling)
    return (rewards.max(1).sum(1) - best_monotone) / rewards.shape[2]


def best_nondecreasing_sum(rewards: FloatArray) -> FloatArray:
    """The largest sum of rewards along G budgets, if the cell's index j may only rise.

    That is the maximum of the sum over g of rewards[q, j(g), g] over all non-decreasing j(g):
    float[Q, J, G] -> float[Q]. Axis 1 is in order of n, budgets are in order of C."""
    # Dynamic programming. best_sum[q, j]: the largest sum of the paths that are at j so far.
    best_sum = rewards[:, :, 0]
    for g in range(1, rewards.shape[2]):
        # A path that comes to j was at j or below before.
        best_sum = np.maximum.accumulate(best_sum, axis=1) + rewards[:, :, g]
    return best_sum.max(1)
