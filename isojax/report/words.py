"""Numbers and sentences: how the report says what the fit found. Plain text in, plain text out; page.py escapes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isojax.report.reading import by_B_p

MIN_DECADES = 0.2
MIN_Z = 2.0
UNITS = {"rollouts": "rollouts", "tokens": "response tokens", "device_hours": "device hours"}


def compact(x: float | None) -> str:
    """250000 -> "250k", 1234567 -> "1.23M", 0.0512 -> "0.0512": three digits, for budgets."""
    if x is None:
        return "–"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size * 0.9995:
            return f"{x / size:.3g}{letter}"
    return f"{x:.3g}"


def reward(x: float | None) -> str:
    """A reward, three decimals."""
    return "–" if x is None else f"{x:.3f}"


def percent(x: float) -> str:
    """A share as a percentage: .9 -> "90%"."""
    return f"{100 * x:.3g}%"


def between(low: float | None, high: float | None, form: Callable[[float], str] = reward) -> str:
    """An interval, to stand behind its number: " [0.498, 0.520]"; an open end is said; nothing where both are unknown."""
    if low is None and high is None:
        return ""
    return f" [{'open' if low is None else form(low)}, {'open' if high is None else form(high)}]"


def listed(items: Sequence[object]) -> str:
    """ "a", "a and b", "a, b and c"."""
    words = [str(i) for i in items]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def plural(count: int, noun: str) -> str:
    """ "1 run", "2 runs"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def unit(fit: Mapping[str, Any]) -> str:
    """What C counts."""
    return UNITS[fit["compute"]]


def measured_to(fit: Mapping[str, Any]) -> float:
    """The C that was measured: runs stop at the first update that reaches the budget, so of the ends near the largest, the smallest."""
    ends = [run["C_max"] for run in fit["runs"]]
    near = 0.95 * max(ends)
    return min(C for C in ends if near <= C)


def path_of_n(frontier: Sequence[Mapping[str, Any]]) -> list[int]:
    """The values of n along the frontier, each as often as it takes over."""
    path: list[int] = []
    for point in frontier:
        if not path or path[-1] != point["n"]:
            path.append(point["n"])
    return path


def verdict(segment: Mapping[str, Any]) -> tuple[bool, str]:
    """(holds, why): a segment holds if it is at least .2 decade long, measured for both neighbours, and somewhere ahead by 2 SE."""
    if not segment["neighbours"]:
        return False, "Nothing to compare with: this cell leads everywhere"
    missing = []
    if segment["decades"] < MIN_DECADES:
        missing.append(f"only {segment['decades']:.2f} decade long (under {MIN_DECADES})")
    if not segment["measured_for_neighbours"]:
        missing.append("not measured for every neighbour")
    if segment["z"] is None:
        missing.append("lead not testable")
    elif segment["z"] < MIN_Z:
        missing.append("lead under two standard errors" if segment["lead"] > 0 else "not ahead of its rival in the evaluations")
    if missing:
        return False, "Not shown: " + "; ".join(missing)
    return True, f"Holds: {segment['decades']:.2f} decade long, ahead by {segment['z']:.1f} standard errors"


def no_effect(law: Mapping[str, Any]) -> bool:
    """Whether the data cannot tell any n from another."""
    return bool(law.get("no_effect"))


def law_in_words(law: Mapping[str, Any]) -> str:
    """What the n*(C) law says, in one sentence."""
    if no_effect(law):
        return "n makes no difference here: within their errors the data cannot tell any n from another."
    if law["form"] == "constant":
        return f"The law is a constant: n* = {2 ** law['b']:.3g}; the data do not show it to change with C."
    if law["form"] == "linear":
        middle = f"through n* = {2 ** law['b']:.3g} at C = {compact(10 ** law['log10_C0'])}"
        return (
            f"n*(C) {'rises' if law['k'] > 0 else 'falls'} as a power of C, {middle}: {2 ** law['k']:.3g} times for ten times the budget."
        )
    low, high = 2 ** law["b"], 2 ** (law["b"] + law["L"])
    return (
        f"n*(C) {'rises' if law['L'] >= 0 else 'falls'} as a sigmoid in log C, from {low:.3g} at small budgets to {high:.3g} at large "
        f"ones, halfway (on the log scale) at C = {compact(10 ** law['log10_C0'])}."
    )


def takeaways(fit: Mapping[str, Any]) -> list[str]:
    """What a reader should take away, one sentence each."""
    said = [_rise(fit), _gain(fit), _trust(fit), law_in_words(fit["n_star"])]
    said += [sentence for sentence in (_effect_of_B_p(fit), _sensitivity(fit), *_fixed_batch(fit), _overfitting(fit)) if sentence]
    unstable = [row for row in fit["stability"] if not row["stable"]]
    said += [f"B_p = {row['B_p']} is flagged unstable ({row['reason']}), so the default rule does not choose it." for row in unstable]
    return said


def crossing(cross: Mapping[str, Any], fit: Mapping[str, Any]) -> str:
    """Where two curves cross, with the interval if the fit has any: "12.3k [9.8k, open]"."""
    if fit.get("intervals") is None:
        return compact(cross["C"])
    return compact(cross["C"]) + (between(cross["low"], cross["high"], compact) or " [open, open]")


def _rise(fit: Mapping[str, Any]) -> str:
    """How the leading n changes: by curves that cross, or only because data end, which compares nothing."""
    path, crossings = path_of_n(fit["frontier"]), fit["crossovers"]
    if no_effect(fit["n_star"]):
        return "The fitted curves differ by less than their errors: no n is shown to be better than another."
    if len(path) < 2:
        only = {run["n"] for run in fit["runs"]} == {path[0]}
        return f"Only n = {path[0]} was run." if only else f"n = {path[0]} leads at every measured budget: no crossover was seen."
    order = " → ".join(map(str, path))
    if not crossings:
        return f"The leading n changes ({order}) only where data end or begin: no two curves were seen to cross, so nothing was compared."
    where = listed([f"{x['n_low']} → {x['n_high']} near C = {crossing(x, fit)}" for x in crossings])
    rest = "" if len(crossings) >= len(path) - 1 else " Its other changes lie where data end or begin, and compare nothing."
    if path == sorted(path):
        return f"The best n rises with the budget: {where}. A small n learns fast and flattens first; a larger n overtakes it later.{rest}"
    return f"The best n changes with the budget, but not in rising order ({order}): {where}. Treat the law with care.{rest}"


def _gain(fit: Mapping[str, Any]) -> str:
    base, best = fit["base_reward"], max(fit["runs"], key=lambda run: run["final"])
    times = f", {best['final'] / base:.2f} times the base" if base else ""
    start = "reaches" if base is None else f"goes from {reward(base)} (base policy) to"
    return (
        f"Validation {fit['metric']} {start} {reward(best['final'])} at the end of the best run "
        f"(n = {best['n']}, B_p = {best['B_p']}, seed {best['seed']}){times}."
    )


def _trust(fit: Mapping[str, Any]) -> str:
    if len(fit["segments"]) < 2:
        return "One cell leads everywhere, so there is no segment to compare with another."
    rule = f"at least {MIN_DECADES} decade long, measured for its neighbours, ahead by two standard errors somewhere"
    held = f"Of the joint frontier's segments {_held(fit)} hold ({rule}); one that does not hold may be noise."
    single = by_B_p(fit) if len(fit["by_B_p"]) > 1 else []
    alone = listed([f"{_held(view.part)} for B_p = {view.B_p} alone" for view in single])
    return f"{held} {alone[0].upper()}{alone[1:]}." if alone else held


def _held(view: Mapping[str, Any]) -> str:
    return f"{sum(verdict(s)[0] for s in view['segments'])} of {len(view['segments'])}"


def _effect_of_B_p(fit: Mapping[str, Any]) -> str | None:
    """How far the frontiers of the B_p values stand apart where each of them ends."""
    tops = {view.B_p: view.part["frontier"][-1]["reward"] for view in by_B_p(fit) if view.part["frontier"]}
    if len(tops) < 2:
        return None
    best, worst = max(tops, key=lambda b: tops[b]), min(tops, key=lambda b: tops[b])
    return (
        f"Between values of B_p the frontier's end differs by {tops[best] - tops[worst]:.3f} "
        f"(B_p = {best}: {reward(tops[best])}; B_p = {worst}: {reward(tops[worst])})."
    )


def _sensitivity(fit: Mapping[str, Any]) -> str | None:
    found = fit.get("sensitivity")
    if found is None:
        return None
    words = {"over_n": ("n", "at_B_p", "B_p"), "over_B_p": ("B_p", "at_n", "n")}
    said = [
        f"{reward(found[k]['range'])}{between(found[k]['low'], found[k]['high'])} with {name} (at {other} = {found[k][at]})"
        for k, (name, at, other) in words.items()
        if found[k] is not None
    ]
    return f"At C = {compact(found['C'])} the reward ranges over {listed(said)}." if said else None


def _fixed_batch(fit: Mapping[str, Any]) -> list[str]:
    rejected = [row["B"] for row in fit.get("by_B") or () if row["n_star_M"].get("monotone_rejected")]
    if not rejected:
        return []
    return [f"At a fixed batch of B = {listed(rejected)} rollouts n*(M) does not only rise: a monotone law is rejected there."]


def _overfitting(fit: Mapping[str, Any]) -> str | None:
    found = fit.get("overfitting") or ()
    if not found:
        return None
    where = listed([f"B_p = {r['B_p']}, n = {r['n']}, seed {r['seed']} (from C = {compact(r['C'])})" for r in found[:4]])
    more = f" and {plural(len(found) - 4, 'more run')}" if len(found) > 4 else ""
    return f"Overfitting: training reward rises while validation falls in {where}{more}."
