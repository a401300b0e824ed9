"""The main findings of a fit, one sentence each."""

from __future__ import annotations

from isojax.report.fit_views import all_n, single_B_p_views
from isojax.report.wording import (
    MIN_DECADES,
    compute_unit,
    describe_law,
    format_compact,
    format_count,
    format_crossover,
    format_interval,
    format_reward,
    join_list,
    law_is_drawn,
    n_path,
    segment_verdict,
    view_name,
)
from isojax.scaling.result import FitResult, FrontierFit, RewardSpread

MAX_NAMED_RUNS = 4


def main_findings(fit: FitResult) -> list[str]:
    """The main findings, the frontier first."""
    sentences = [_describe_n_path(fit), _describe_gain(fit), _describe_segments(fit), _describe_law(fit)]
    optional = [_describe_B_p_effect(fit), _describe_sensitivity(fit), _describe_fixed_batches(fit)]
    sentences += [sentence for sentence in (*optional, _describe_overfitting(fit)) if sentence]
    return sentences + [
        f"B_p = {verdict.B_p} is flagged unstable ({verdict.reason}), so the default rule does not choose it."
        for verdict in fit.stability
        if not verdict.stable
    ]


def _describe_n_path(fit: FitResult) -> str:
    """How the leading n changes: by curves that cross, or only where data end, which compares nothing."""
    path, crossovers = n_path(fit.joint.frontier), fit.joint.crossovers
    if fit.joint.n_star.no_effect:
        return "The fitted curves differ by less than their errors: no n is shown to be better than another."
    if len(path) < 2:
        if all_n(fit) == path:
            return f"Only n = {path[0]} was run."
        return f"n = {path[0]} leads at every measured budget: no crossover was seen."
    order = " → ".join(map(str, path))
    if not crossovers:
        nothing_compared = "no two curves were seen to cross, so nothing was compared"
        return f"The leading n changes ({order}) only where data end or begin: {nothing_compared}."
    places = join_list(f"{row.n_low} → {row.n_high} near C = {format_crossover(row, fit)}" for row in crossovers)
    others = "" if len(crossovers) >= len(path) - 1 else " Its other changes are where data end or begin."
    if path == sorted(path):
        reason = "A small n learns fast and levels off first; a larger n overtakes it later."
        return f"The best n rises with the budget: {places}. {reason}{others}"
    caution = "Treat the law with care."
    return f"The best n changes with the budget, but not in rising order ({order}): {places}. {caution}{others}"


def _describe_gain(fit: FitResult) -> str:
    base, best = fit.base_reward, max(fit.runs, key=lambda run: run.final_reward)
    start = "reaches" if base is None else f"goes from {format_reward(base)} (base policy) to"
    ratio_text = f", {best.final_reward / base:.2f} times the base" if base else ""
    run_text = f"(n = {best.n}, B_p = {best.B_p}, seed {best.seed}){ratio_text}"
    return f"Validation {fit.metric} {start} {format_reward(best.final_reward)} at the end of the best run {run_text}."


def _describe_segments(fit: FitResult) -> str:
    if len(fit.joint.segments) < 2:
        return "One cell leads everywhere, so there is no segment to compare with another."
    rule = f"at least {MIN_DECADES} decade long, measured for its neighbours, ahead by two standard errors somewhere"
    sentence = f"Of the joint frontier's segments {_count_held(fit.joint)} hold ({rule}); the others may be noise."
    views = single_B_p_views(fit) if len(fit.by_B_p) > 1 else []
    if not views:
        return sentence
    return f"{sentence} {join_list(f'{_count_held(view)} for {view_name(view)} alone' for view in views)}."


def _count_held(view: FrontierFit) -> str:
    return f"{sum(segment_verdict(segment)[0] for segment in view.segments)} of {len(view.segments)}"


def _describe_law(fit: FitResult) -> str:
    if fit.joint.n_star.no_effect or law_is_drawn(fit.joint):
        return describe_law(fit.joint.n_star)
    path = n_path(fit.joint.frontier)
    return f"The frontier has two values of n only ({join_list(sorted(set(path)))}): too few for a law n*(C)."


def _describe_B_p_effect(fit: FitResult) -> str | None:
    """How much the ends of the frontiers of the B_p values differ."""
    ends = {view.B_p: view.frontier[-1].reward for view in single_B_p_views(fit) if view.frontier}
    if len(ends) < 2:
        return None
    best, worst = max(ends, key=lambda B_p: ends[B_p]), min(ends, key=lambda B_p: ends[B_p])
    both = "; ".join(f"B_p = {B_p}: {format_reward(ends[B_p])}" for B_p in (best, worst))
    return f"Between values of B_p the end of the frontier differs by {ends[best] - ends[worst]:.3f} ({both})."


def _describe_sensitivity(fit: FitResult) -> str | None:
    sensitivity = fit.sensitivity
    if sensitivity is None:
        return None
    ranges = []
    if sensitivity.over_n is not None:
        ranges.append(f"{_spread_text(sensitivity.over_n)} with n (at B_p = {sensitivity.over_n.shared_value})")
    if sensitivity.over_B_p is not None:
        ranges.append(f"{_spread_text(sensitivity.over_B_p)} with B_p (at n = {sensitivity.over_B_p.shared_value})")
    if not ranges:
        return None
    C_text = f"C = {format_compact(sensitivity.C)} {compute_unit(fit)}"
    return f"At {C_text} the reward ranges over {join_list(ranges)}."


def _spread_text(spread: RewardSpread) -> str:
    return format_reward(spread.spread) + format_interval((spread.low, spread.high))


def _describe_fixed_batches(fit: FitResult) -> str | None:
    rejected_B = [batch.B for batch in fit.by_B if batch.n_star.monotone_rejected]
    if not rejected_B:
        return None
    batch = f"At a fixed batch of B = {join_list(rejected_B)} rollouts"
    return f"{batch} n*(M) does not only rise: a monotone law is rejected there."


def _describe_overfitting(fit: FitResult) -> str | None:
    if not fit.overfitting:
        return None
    named = [
        f"B_p = {row.B_p}, n = {row.n}, seed {row.seed} (from C = {format_compact(row.C)})"
        for row in fit.overfitting[:MAX_NAMED_RUNS]
    ]
    unnamed = len(fit.overfitting) - len(named)
    more = f" and {format_count(unnamed, 'more run')}" if unnamed else ""
    return f"Overfitting: training reward rises while validation reward falls in {join_list(named)}{more}."
