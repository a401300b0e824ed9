"""Several sweeps compared over the budgets C that they share, from their fits alone (IsoCompute
Playbook, arXiv:2603.12151, Fig. 13).

n* at C is the n of the cell with the highest curve; curves count up to CURVE_REACH_DECADES beyond
their data. n* "levels off" (saturates) at the C where it changes last; where it ends at the largest
n, which might grow further, it counts as levelling off later than anything. The replicates (draws)
of two sweeps are independent."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isojax.core.errors import InputError
from isojax.scaling.allocate.curve_ensemble import (
    BoolArray,
    CurveEnsemble,
    FloatArray,
    IntArray,
    load_ensemble,
)
from isojax.scaling.comparison import (
    BudgetRow,
    EarlierSaturation,
    OverfittedCell,
    RewardDifference,
    Saturation,
    SweepComparison,
    SweepSummary,
)
from isojax.scaling.comparison_wording import comparison_notes, comparison_sentences
from isojax.scaling.curves.sweep_estimate import CURVE_REACH_DECADES, any_of
from isojax.scaling.intervals import central_interval
from isojax.scaling.law.frontier import spread_indices
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import group_by

PER_DECADE = 60  # budgets at which sweeps are compared, per factor 10 of C
N_BUDGETS = 5  # rows of the table that is printed
N_BAND_ROWS = 80  # rows of the bands that a figure is drawn from


@dataclass(frozen=True)
class FrontierPath:
    """n*(C) and the frontier's reward at G budgets, by the curves and by each of Q replicates (0
    where the fit has none)."""

    C: FloatArray  # [G], rising
    n: IntArray  # [G]
    n_draws: IntArray  # [Q, G]
    tied: BoolArray  # [G], where no measured cell has begun to rise, so that no n leads
    reward: FloatArray  # [G]
    reward_draws: FloatArray  # [Q, G]


def compare_sweeps(fits: Sequence[FitResult], labels: Sequence[str]) -> SweepComparison:
    """Compare sweeps with the first of them: their n*(C), rewards and where n* levels off.

    fits: at least two, fitted with the same metric, unit of C and mode; labels: a different one for
    each, in their order, such as ["0.5B", "7B"]. InputError where they cannot be compared, or share
    no range of budgets."""
    _check_comparable(fits, labels)
    ensembles = [load_ensemble(fit) for fit in fits]
    C = _shared_budgets(ensembles, labels)
    paths = [_frontier_path(ensemble, C) for ensemble in ensembles]

    sweeps = []
    for label, fit, ensemble, path in zip(labels, fits, ensembles, paths, strict=True):
        sweep = _summarize(label, fit, ensemble, path)
        if sweeps:  # the first one is the reference
            sweep = replace(
                sweep,
                difference=_reward_difference(paths[0], path),
                earlier=_saturates_earlier(fits[0], fit, C),
            )
        sweeps.append(sweep)

    return SweepComparison(
        metric=fits[0].metric,
        compute=fits[0].compute,
        mode=fits[0].mode,
        C_low=float(C[0]),
        C_high=float(C[-1]),
        sweeps=tuple(sweeps),
        sentences=tuple(comparison_sentences(sweeps, float(C[-1]))),
        notes=tuple(comparison_notes(sweeps)),
    )


def check_distinct(labels: Sequence[str]) -> None:
    """InputError where two labels are the same."""
    duplicate_labels = sorted({label for label in labels if labels.count(label) > 1})
    if duplicate_labels:
        raise InputError(
            found=f"two runs are called {duplicate_labels[0]!r}",
            expected="a name for each",
            fix="Give --labels.",
        )


def _check_comparable(fits: Sequence[FitResult], labels: Sequence[str]) -> None:
    """InputError where fits cannot be compared.

    They are fewer than two, have not a different label each, or were fitted with different metrics,
    units of C or modes. labels: what to call each fit."""
    if len(fits) < 2:
        raise InputError(
            found=f"{len(fits)} fit to compare",
            expected="at least two",
            fix="Name another sweep's folder or fit.json.",
        )
    if len(labels) != len(fits):
        raise InputError(
            found=f"{len(labels)} labels ({', '.join(labels)}) for {len(fits)} runs",
            expected="one each",
            fix="Separate them by commas.",
        )
    check_distinct(labels)

    for fit, label in zip(fits, labels, strict=True):
        for name in ("metric", "compute", "mode"):
            first_value = getattr(fits[0], name)
            value = getattr(fit, name)
            if value == first_value:
                continue
            raise InputError(
                found=(
                    f"{labels[0]} was fitted with {name} {first_value!r}, {label} with {value!r}"
                ),
                expected="the same, or their numbers do not compare",
                fix=f"Fit both alike (isojax fit --{name} ...).",
            )


def _shared_budgets(ensembles: Sequence[CurveEnsemble], labels: Sequence[str]) -> FloatArray:
    """The budgets C at which every sweep has a measured cell: float[G], rising, G >= 2.

    InputError where there are no such budgets; labels: the sweeps' names for that message."""
    lows = [float(e.samples.C_low.min()) for e in ensembles]
    highs = [float(e.samples.C_high.max()) for e in ensembles]
    C_low = max(lows)
    C_high = min(highs)
    if C_low < C_high:
        # + 2: both ends, and two budgets at least where the range is short
        C = np.geomspace(C_low, C_high, int(np.ceil(PER_DECADE * np.log10(C_high / C_low))) + 2)
        # Inside its range a sweep may have a gap between two cells. is_measured: bool[cells, G].
        measured_in_all = np.all([e.samples.is_measured(C).any(0) for e in ensembles], axis=0)
        C = C[measured_in_all]
        if len(C) > 1:
            return C

    ranges = "; ".join(
        f"{label} {low:.4g} to {high:.4g}"
        for label, low, high in zip(labels, lows, highs, strict=True)
    )
    raise InputError(
        found=f"no range of budgets C was measured in all runs ({ranges})",
        expected="ranges that overlap",
        fix="Run the shorter ones further.",
    )


def _frontier_path(ensemble: CurveEnsemble, C: FloatArray) -> FrontierPath:
    """n*(C) and the frontier's reward of one sweep at the shared budgets.

    C: float[G], rising; each within the data of some cell of the sweep, or, for _saturates_earlier,
    which uses n_draws alone, within reach of them. In the comments, J cells and Q replicates."""
    # A reward is reported only near a cell's data; for the choice of n, curves count further beyond
    # them, so that a cell does not drop out where its runs end.
    measured_near = ensemble.samples.is_measured(C).T  # [G, J]
    measured_within_reach = ensemble.samples.is_measured(C, reach=CURVE_REACH_DECADES).T
    rewards = ensemble.expected_rewards(C)  # [G, J]
    reward_draws = ensemble.sampled_rewards(C).transpose(1, 0, 2)  # [Q, G, J]

    # [G, 1]: the cell whose reward is reported. It is the same in all draws, as in law/frontier.py:
    # a maximum within each draw would be biased upward.
    leader = np.where(measured_near, rewards, -np.inf).argmax(-1)[:, None]

    tied = np.array(
        [
            ensemble.reward_if_none_rose(np.full(len(ensemble.n), at), measured_near[g]) is not None
            for g, at in enumerate(C)
        ]
    )
    n = ensemble.n[np.where(measured_within_reach, rewards, -np.inf).argmax(-1)]
    # Where all cells are tied at the start, n* is set to the n that leads first, so that no change
    # of n* is counted there.
    if tied[0] and not tied.all():
        first = int(tied.argmin())
        n[:first] = n[first]

    # The best cell of each draw; of several equal ones any_of takes one at random.
    competing = np.broadcast_to(measured_within_reach, reward_draws.shape)
    best_in_draws = ensemble.samples.is_best(reward_draws, competing, -1)
    return FrontierPath(
        C=C,
        n=n,
        n_draws=ensemble.n[any_of(best_in_draws, -1)],
        tied=tied,
        reward=np.take_along_axis(rewards, leader, -1)[:, 0],
        reward_draws=np.take_along_axis(reward_draws, leader[None], -1)[..., 0],
    )


def _reward_difference(first: FrontierPath, other: FrontierPath) -> RewardDifference:
    """How far the other sweep's frontier is above the first one's at the largest shared budget."""
    # The replicates of two sweeps are independent, so every pair of them is a draw of the
    # difference.
    differences = np.subtract.outer(other.reward_draws[:, -1], first.reward_draws[:, -1]).ravel()
    low, high = central_interval(differences)
    return RewardDifference(
        value=float(other.reward[-1] - first.reward[-1]),
        low=low,
        high=high,
        p_higher=float(np.mean(differences > 0)) if len(differences) else None,
    )


def _summarize(
    label: str, fit: FitResult, ensemble: CurveEnsemble, path: FrontierPath
) -> SweepSummary:
    """One sweep at the shared budgets: n*(C) and reward, where n* levels off, and what overfits.

    Without the comparison with the first sweep (`difference`, `earlier`). label: what to call the
    sweep; ensemble: the curves of `fit`; path: of the same sweep."""
    all_n = sorted(set(ensemble.n.tolist()))
    rows = [_budget_row(fit, path, g, all_n) for g in range(len(path.C))]
    no_effect = fit.joint.n_star.no_effect

    overfitted_runs = group_by(fit.overfitting, lambda run: (run.B_p, run.n))
    overfitting = tuple(
        OverfittedCell(B_p=B_p, n=n, runs=len(runs), C=min(run.C for run in runs))
        for (B_p, n), runs in sorted(overfitted_runs.items())
    )
    return SweepSummary(
        label=label,
        base_reward=fit.base_reward,
        n=tuple(all_n),
        B_p=tuple(sorted(set(ensemble.B_p.tolist()))),
        no_effect=no_effect,
        at=tuple(rows[i] for i in spread_indices(len(rows), N_BUDGETS)),
        curve=tuple(rows[i] for i in spread_indices(len(rows), N_BAND_ROWS)),
        saturation=None if no_effect else _saturation(path, int(ensemble.n.max())),
        overfitting=overfitting,
        nothing_learnt=fit.nothing_learnt,
        evaluation_size=fit.evaluation_size,
    )


def _budget_row(fit: FitResult, path: FrontierPath, g: int, all_n: Sequence[int]) -> BudgetRow:
    """n*, reward and their intervals at the g-th budget of a sweep's path.

    all_n: the measured n, rising. Where no n leads (a tie), the interval of n* is all of them."""
    is_tied = bool(fit.nothing_learnt or path.tied[g])
    if is_tied:  # any n may be the best
        n_low, n_high = all_n[0], all_n[-1]
    else:
        # two of the measured n; None for both without replicates
        bounds = central_interval(path.n_draws[:, g], discrete=True)
        n_low, n_high = (None if n is None else int(n) for n in bounds)

    low, high = central_interval(path.reward_draws[:, g])
    return BudgetRow(
        C=float(path.C[g]),
        n=int(path.n[g]),
        n_low=n_low,
        n_high=n_high,
        reward=float(path.reward[g]),
        low=low,
        high=high,
        tied=is_tied,
    )


def saturation_C(n: IntArray, C: FloatArray, n_max: int) -> FloatArray:
    """The C at which n* levels off, that is, where it changes last: float[...].

    n: int[..., G], n* at G >= 2 budgets; C: float[G], these budgets, rising. -inf where n* never
    changes; +inf where it ends at n_max, the largest measured n, which counts first."""
    changes = n[..., 1:] != n[..., :-1]
    # argmax from the end finds the last change; its C is the geometric mean of the two budgets.
    last_change = changes.shape[-1] - 1 - changes[..., ::-1].argmax(-1)
    C_change = np.sqrt(C[last_change] * C[last_change + 1])
    levels_off_at = np.where(changes.any(-1), C_change, -np.inf)
    return np.where(n[..., -1] == n_max, np.inf, levels_off_at)


def _saturation(path: FrontierPath, n_max: int) -> Saturation:
    """Where one sweep's n*(C) levels off, with an interval; n_max: its largest measured n."""
    C = float(saturation_C(path.n, path.C, n_max))
    C_draws = saturation_C(path.n_draws, path.C, n_max)
    low, high = central_interval(C_draws)
    return Saturation(
        n=int(path.n[-1]),
        n_largest=n_max,
        C=C if np.isfinite(C) else None,
        low=low,
        high=high,
        below_largest=float(np.mean(C_draws < np.inf)) if len(C_draws) else None,
    )


def _saturates_earlier(
    first_fit: FitResult, other_fit: FitResult, C: FloatArray
) -> EarlierSaturation | None:
    """How probable it is that n*(C) levels off earlier, or later, in the other sweep.

    Both choose among the n that both measured. C: the shared budgets, float[G], rising. None where
    that is unknown: fewer than two common n, n without effect, no replicates, or fewer than two
    budgets within reach of the cells with these n."""
    shared_n = sorted({c.n for c in first_fit.curves} & {c.n for c in other_fit.curves})
    if len(shared_n) < 2 or first_fit.joint.n_star.no_effect or other_fit.joint.n_star.no_effect:
        return None

    # Leave out n that only one sweep has, since n* may level off at one of these.
    first = _with_n(first_fit, shared_n)
    other = _with_n(other_fit, shared_n)
    # bool[G] each: where some cell of the sweep has data, or ends at most so far before C.
    within_reach = [
        e.samples.is_measured(C, reach=CURVE_REACH_DECADES).any(0) for e in (other, first)
    ]
    C = C[np.all(within_reach, axis=0)]
    if len(C) < 2 or not (first.replicates and other.replicates):
        return None

    C_other = saturation_C(_frontier_path(other, C).n_draws, C, shared_n[-1])
    C_first = saturation_C(_frontier_path(first, C).n_draws, C, shared_n[-1])
    return EarlierSaturation(
        shared_n=tuple(shared_n),
        p_earlier=float(np.less.outer(C_other, C_first).mean()),
        p_later=float(np.greater.outer(C_other, C_first).mean()),
    )


def _with_n(fit: FitResult, all_n: Sequence[int]) -> CurveEnsemble:
    """The curves of a fit, of the cells with these n only."""
    curves = tuple(c for c in fit.curves if c.n in all_n)
    return load_ensemble(fit.model_copy(update={"curves": curves}))
