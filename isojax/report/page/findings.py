"""The main findings of a fit, one sentence each; what limits them is said by its flags."""

from isojax.report import wording
from isojax.report.fit_views import all_n
from isojax.report.wording import format_compact, format_interval, format_reward, join_list
from isojax.scaling.result import FitResult


def main_findings(fit: FitResult) -> list[str]:
    """The main findings, the frontier first."""
    return [
        _describe_n_path(fit),
        _describe_gain(fit),
        _describe_segments(fit),
        wording.describe_law(fit.joint),
        *_describe_sensitivity(fit),
        *_describe_fixed_batches(fit),
    ]


def _describe_n_path(fit: FitResult) -> str:
    """How the leading n changes: by curves that cross, or only where data end, which compares nothing."""
    path, crossovers = wording.n_path(fit.joint.frontier), fit.joint.crossovers
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
    crossings = join_list(f"{x.n_low} → {x.n_high} near C = {wording.format_crossover(x, fit)}" for x in crossovers)
    others = "" if len(crossovers) >= len(path) - 1 else " Its other changes are where data end or begin."
    if path == sorted(path):
        reason = "A small n learns fast and levels off first; a larger n overtakes it later."
        return f"The best n rises with the budget: {crossings}. {reason}{others}"
    caution = "Treat the law with care."
    return f"The best n changes with the budget, but not in rising order ({order}): {crossings}. {caution}{others}"


def _describe_gain(fit: FitResult) -> str:
    base, best = fit.base_reward, max(fit.runs, key=lambda run: run.final_reward)
    start = "reaches" if base is None else f"goes from {format_reward(base)} (base policy) to"
    ratio_text = f", {best.final_reward / base:.2f} times the base" if base else ""
    run_text = f"(n = {best.n}, B_p = {best.B_p}, seed {best.seed}){ratio_text}"
    return f"Validation {fit.metric} {start} {format_reward(best.final_reward)} at the end of the best run {run_text}."


def _describe_segments(fit: FitResult) -> str:
    if len(fit.joint.segments) < 2:
        return "One cell leads everywhere, so there is no segment to compare with another."
    length = f"at least {wording.MIN_DECADES} decade long"
    rule = f"{length}, measured for its neighbours, ahead by two standard errors somewhere"
    held = sum(wording.segment_verdict(segment)[0] for segment in fit.joint.segments)
    return (
        f"Of the joint frontier's segments {held} of {len(fit.joint.segments)} hold ({rule}); the others may be noise."
    )


def _describe_sensitivity(fit: FitResult) -> list[str]:
    if fit.sensitivity is None:
        return []
    spreads = (("n", "B_p", fit.sensitivity.over_n), ("B_p", "n", fit.sensitivity.over_B_p))
    ranges = [
        f"{format_reward(spread.spread)}{format_interval((spread.low, spread.high))} with {varied}"
        f" (at {shared} = {spread.shared_value})"
        for varied, shared, spread in spreads
        if spread is not None
    ]
    C_text = f"C = {format_compact(fit.sensitivity.C)} {wording.compute_unit(fit)}"
    return [f"At {C_text} the reward ranges over {join_list(ranges)}."] if ranges else []


def _describe_fixed_batches(fit: FitResult) -> list[str]:
    rejected_B = [batch.B for batch in fit.by_B if batch.n_star.monotone_rejected]
    batches = f"At a fixed batch of B = {join_list(rejected_B)} rollouts"
    return [f"{batches} n*(M) does not only rise: a monotone law is rejected there."] if rejected_B else []
