"""Numbers and sentences: how the report says what the fit found. Plain text in, plain text out;
report/page/html_page.py escapes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isojax.report.fit_views import single_B_p_views

MIN_DECADES = 0.2
MIN_Z = 2.0
UNITS = {"rollouts": "rollouts", "tokens": "response tokens", "device_hours": "device hours"}


def format_compact(x: float | None) -> str:
    """250000 -> "250k", 1234567 -> "1.23M", 0.0512 -> "0.0512": three digits, for budgets."""
    if x is None:
        return "–"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size * 0.9995:
            return f"{x / size:.3g}{letter}"
    return f"{x:.3g}"


def format_reward(x: float | None) -> str:
    """A reward, three decimals."""
    return "–" if x is None else f"{x:.3f}"


def format_percent(x: float) -> str:
    """A share as a percentage: .9 -> "90%"."""
    return f"{100 * x:.3g}%"


def format_interval(low: float | None, high: float | None, formatter: Callable[[float], str] = format_reward) -> str:
    """An interval, to stand behind its number: " [0.498, 0.520]"; an open end is said; nothing where both are
    unknown.
    """
    if low is None and high is None:
        return ""
    return f" [{'open' if low is None else formatter(low)}, {'open' if high is None else formatter(high)}]"


def join_list(items: Sequence[object]) -> str:
    """ "a", "a and b", "a, b and c"."""
    words = [str(i) for i in items]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def format_count(count: int, noun: str) -> str:
    """ "1 run", "2 runs"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def compute_unit(fit: Mapping[str, Any]) -> str:
    """What C counts."""
    return UNITS[fit["compute"]]


def measured_budget(fit: Mapping[str, Any]) -> float:
    """The C that was measured: runs stop at the first update that reaches the budget, so of the ends near the largest,
    the smallest.
    """
    C_ends = [run["C_max"] for run in fit["runs"]]
    C_near_largest = 0.95 * max(C_ends)
    return min(C for C in C_ends if C_near_largest <= C)


def n_path(frontier: Sequence[Mapping[str, Any]]) -> list[int]:
    """The values of n along the frontier, each as often as it takes over."""
    path: list[int] = []
    for point in frontier:
        if not path or path[-1] != point["n"]:
            path.append(point["n"])
    return path


def segment_verdict(segment: Mapping[str, Any]) -> tuple[bool, str]:
    """(holds, why): a segment holds if it is at least .2 decade long, measured for both neighbours, and somewhere ahead
    by 2 SE.
    """
    if not segment["neighbours"]:
        return False, "Nothing to compare with: this cell leads everywhere"
    shortfalls = []
    if segment["decades"] < MIN_DECADES:
        shortfalls.append(f"only {segment['decades']:.2f} decade long (under {MIN_DECADES})")
    if not segment["measured_for_neighbours"]:
        shortfalls.append("not measured for every neighbour")
    if segment["z"] is None:
        shortfalls.append("lead not testable")
    elif segment["z"] < MIN_Z:
        shortfalls.append(
            "lead under two standard errors" if segment["lead"] > 0 else "not ahead of its rival in the evaluations"
        )
    if shortfalls:
        return False, "Not shown: " + "; ".join(shortfalls)
    return True, f"Holds: {segment['decades']:.2f} decade long, ahead by {segment['z']:.1f} standard errors"


def has_no_effect(law: Mapping[str, Any]) -> bool:
    """Whether the data cannot tell any n from another."""
    return bool(law.get("no_effect"))


def describe_law(law: Mapping[str, Any]) -> str:
    """What the n*(C) law says, in one sentence."""
    if has_no_effect(law):
        return "n makes no difference here: within their errors the data cannot tell any n from another."
    if law["form"] == "constant":
        return f"The law is a constant: n* = {2 ** law['b']:.3g}; the data do not show it to change with C."
    if law["form"] == "linear":
        middle = f"through n* = {2 ** law['b']:.3g} at C = {format_compact(10 ** law['log10_C0'])}"
        return f"n*(C) {'rises' if law['k'] > 0 else 'falls'} as a power of C, {middle}: {2 ** law['k']:.3g} times for ten times the budget."
    low, high = 2 ** law["b"], 2 ** (law["b"] + law["L"])
    return (
        f"n*(C) {'rises' if law['L'] >= 0 else 'falls'} as a sigmoid in log C, from {low:.3g} at small budgets to {high:.3g} at large "
        f"ones, halfway (on the log scale) at C = {format_compact(10 ** law['log10_C0'])}."
    )


def describe_takeaways(fit: Mapping[str, Any]) -> list[str]:
    """What a reader should take away, one sentence each."""
    sentences = [_describe_n_path(fit), _describe_gain(fit), _describe_segments(fit), describe_law(fit["n_star"])]
    sentences += [
        sentence
        for sentence in (
            _describe_B_p_effect(fit),
            _describe_sensitivity(fit),
            *_describe_fixed_batches(fit),
            _describe_overfitting(fit),
        )
        if sentence
    ]
    unstable_rows = [row for row in fit["stability"] if not row["stable"]]
    sentences += [
        f"B_p = {row['B_p']} is flagged unstable ({row['reason']}), so the default rule does not choose it."
        for row in unstable_rows
    ]
    return sentences


def format_crossover(crossover: Mapping[str, Any], fit: Mapping[str, Any]) -> str:
    """Where two curves cross, with the interval if the fit has any: "12.3k [9.8k, open]"."""
    if fit.get("intervals") is None:
        return format_compact(crossover["C"])
    return format_compact(crossover["C"]) + (
        format_interval(crossover["low"], crossover["high"], format_compact) or " [open, open]"
    )


def _describe_n_path(fit: Mapping[str, Any]) -> str:
    """How the leading n changes: by curves that cross, or only because data end, which compares nothing."""
    path, crossings = n_path(fit["frontier"]), fit["crossovers"]
    if has_no_effect(fit["n_star"]):
        return "The fitted curves differ by less than their errors: no n is shown to be better than another."
    if len(path) < 2:
        only = {run["n"] for run in fit["runs"]} == {path[0]}
        return (
            f"Only n = {path[0]} was run."
            if only
            else f"n = {path[0]} leads at every measured budget: no crossover was seen."
        )
    order = " → ".join(map(str, path))
    if not crossings:
        return f"The leading n changes ({order}) only where data end or begin: no two curves were seen to cross, so nothing was compared."
    crossovers_text = join_list(
        [f"{x['n_low']} → {x['n_high']} near C = {format_crossover(x, fit)}" for x in crossings]
    )
    uncrossed_text = (
        ""
        if len(crossings) >= len(path) - 1
        else " Its other changes lie where data end or begin, and compare nothing."
    )
    if path == sorted(path):
        return f"The best n rises with the budget: {crossovers_text}. A small n learns fast and flattens first; a larger n overtakes it later.{uncrossed_text}"
    return f"The best n changes with the budget, but not in rising order ({order}): {crossovers_text}. Treat the law with care.{uncrossed_text}"


def _describe_gain(fit: Mapping[str, Any]) -> str:
    base_reward, best_run = fit["base_reward"], max(fit["runs"], key=lambda run: run["final"])
    ratio_text = f", {best_run['final'] / base_reward:.2f} times the base" if base_reward else ""
    start = "reaches" if base_reward is None else f"goes from {format_reward(base_reward)} (base policy) to"
    return (
        f"Validation {fit['metric']} {start} {format_reward(best_run['final'])} at the end of the best run "
        f"(n = {best_run['n']}, B_p = {best_run['B_p']}, seed {best_run['seed']}){ratio_text}."
    )


def _describe_segments(fit: Mapping[str, Any]) -> str:
    if len(fit["segments"]) < 2:
        return "One cell leads everywhere, so there is no segment to compare with another."
    rule = f"at least {MIN_DECADES} decade long, measured for its neighbours, ahead by two standard errors somewhere"
    joint_text = (
        f"Of the joint frontier's segments {_count_held(fit)} hold ({rule}); one that does not hold may be noise."
    )
    separate_views = single_B_p_views(fit) if len(fit["by_B_p"]) > 1 else []
    single_B_p_text = join_list([f"{_count_held(view.summary)} for B_p = {view.B_p} alone" for view in separate_views])
    return f"{joint_text} {single_B_p_text[0].upper()}{single_B_p_text[1:]}." if single_B_p_text else joint_text


def _count_held(summary: Mapping[str, Any]) -> str:
    return f"{sum(segment_verdict(s)[0] for s in summary['segments'])} of {len(summary['segments'])}"


def _describe_B_p_effect(fit: Mapping[str, Any]) -> str | None:
    """How far the frontiers of the B_p values stand apart where each of them ends."""
    final_reward_by_B_p = {
        view.B_p: view.summary["frontier"][-1]["reward"] for view in single_B_p_views(fit) if view.summary["frontier"]
    }
    if len(final_reward_by_B_p) < 2:
        return None
    best_B_p, worst_B_p = (
        max(final_reward_by_B_p, key=lambda b: final_reward_by_B_p[b]),
        min(final_reward_by_B_p, key=lambda b: final_reward_by_B_p[b]),
    )
    return (
        f"Between values of B_p the frontier's end differs by {final_reward_by_B_p[best_B_p] - final_reward_by_B_p[worst_B_p]:.3f} "
        f"(B_p = {best_B_p}: {format_reward(final_reward_by_B_p[best_B_p])}; B_p = {worst_B_p}: {format_reward(final_reward_by_B_p[worst_B_p])})."
    )


def _describe_sensitivity(fit: Mapping[str, Any]) -> str | None:
    sensitivity = fit.get("sensitivity")
    if sensitivity is None:
        return None
    names_by_key = {"over_n": ("n", "at_B_p", "B_p"), "over_B_p": ("B_p", "at_n", "n")}
    ranges = [
        f"{format_reward(sensitivity[k]['range'])}{format_interval(sensitivity[k]['low'], sensitivity[k]['high'])} with {name} (at {other} = {sensitivity[k][at]})"
        for k, (name, at, other) in names_by_key.items()
        if sensitivity[k] is not None
    ]
    return f"At C = {format_compact(sensitivity['C'])} the reward ranges over {join_list(ranges)}." if ranges else None


def _describe_fixed_batches(fit: Mapping[str, Any]) -> list[str]:
    rejected_B = [row["B"] for row in fit.get("by_B") or () if row["n_star_M"].get("monotone_rejected")]
    if not rejected_B:
        return []
    return [
        f"At a fixed batch of B = {join_list(rejected_B)} rollouts n*(M) does not only rise: a monotone law is rejected there."
    ]


def _describe_overfitting(fit: Mapping[str, Any]) -> str | None:
    overfitting_rows = fit.get("overfitting") or ()
    if not overfitting_rows:
        return None
    runs_text = join_list(
        [
            f"B_p = {r['B_p']}, n = {r['n']}, seed {r['seed']} (from C = {format_compact(r['C'])})"
            for r in overfitting_rows[:4]
        ]
    )
    more = f" and {format_count(len(overfitting_rows) - 4, 'more run')}" if len(overfitting_rows) > 4 else ""
    return f"Overfitting: training reward rises while validation falls in {runs_text}{more}."
