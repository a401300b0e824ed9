"""How far to trust the fit: diagnostics in plain words, with what was left out, the runs that broke, and the warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isojax.records import INCLUDE_FLAGGED
from isojax.report.markup import Raw, bullets, details, section, table, tag
from isojax.report.reading import Fit
from isojax.report.words import compact, listed, plural, reward

CURVE = ("B_p × n", "points", "reduced χ²", "autocorrelation", "at a bound")


def diagnostics(fit: Fit) -> Raw:
    """Misfit, correlated residuals, parameters at bounds, open ends, ties, what was left out; nothing for a fit of schema 1."""
    found = fit.get("diagnostics")
    if found is None:
        return Raw("")
    said = [sentence for sentence in (_misfit(found), _correlation(found), _lengths(found)) if sentence]
    said += [_tie(tie) for tie in found["ties"]]
    said += _open_ends(fit)
    left_out = [tag("h3", "Left out"), bullets(found["left_out"])] if found["left_out"] else []
    rows = [_curve(row) for row in found["per_curve"]]
    curves = [details("Each curve: how well it fits", table("Misfit of each curve", CURVE, rows, text=(4,)))] if rows else []
    return section("diagnostics", "How far to trust the fit", bullets(said), *left_out, *_overfitting(fit), *curves)


def _misfit(found: Mapping[str, Any]) -> str:
    chi = found["reduced_chi_square"]
    if chi is None:
        return "Without the right answers of each problem there is no noise to hold the misfit against (no χ²)."
    verdict = "the curves miss the points by more than noise explains" if chi > 1.5 else "the misfit is what noise explains"
    verdict = "the noise is taken larger than it is" if chi < 0.5 else verdict
    freedom = found["degrees_of_freedom"]
    over = f" over {freedom:.6g} degrees of freedom" if freedom is not None else ""
    return f"Reduced χ² is {chi:.2f}{over}: {verdict} (1 is what pure noise gives)."


def _correlation(found: Mapping[str, Any]) -> str:
    value = found["autocorrelation"]
    if value is None:
        return ""
    verdict = "neighbouring evaluations err together, so there is less information than points" if value > 0.3 else "none to speak of"
    return f"Autocorrelation of neighbouring residuals is {value:.2f}: {verdict}."


def _lengths(found: Mapping[str, Any]) -> str:
    if not found["unequal_lengths"]:
        return "All runs reach about the same C."
    alone = "beyond the end of the shorter ones the longer ones stand alone, and lead for want of rivals"
    return f"Runs end at different C: {alone}."


def _tie(tie: Mapping[str, Any]) -> str:
    where = f"between C = {compact(tie['C_low'])} and {compact(tie['C_high'])}"
    where = f"near C = {compact(tie['C_low'])}" if tie["C_low"] == tie["C_high"] else where
    return f"Tie: n = {listed(tie['n'])} cannot be told apart {where}."


def _open_ends(fit: Fit) -> list[str]:
    """Segments that end where the data end, not where another n takes over."""
    found = []
    for segment in fit["segments"]:
        ends = segment.get("censored") or {}
        sides = [words for side, words in (("low", "its start"), ("high", "its end")) if ends.get(side)]
        if sides:
            span = f"{compact(segment['C_low'])} to {compact(segment['C_high'])}"
            found.append(f"n = {segment['n']} ({span}): {listed(sides)} is where data end, not where another n takes over.")
    return found


def _overfitting(fit: Fit) -> list[Raw]:
    found = fit.get("overfitting") or ()
    if not found:
        return []
    rows = [
        [
            f"{r['B_p']} × {r['n']}, seed {r['seed']}", compact(r["C"]), f"{reward(r['train_from'])} → {reward(r['train_to'])}",
            f"{reward(r['validation_from'])} → {reward(r['validation_to'])}", r["reason"],
        ]
        for r in found
    ]  # fmt: skip
    heads = ["run", "from C", "training reward", f"validation {fit['metric']}", "why"]
    note = f"{plural(len(rows), 'run')} flagged: training rises while validation falls. Stop at the peak; the curve is held flat beyond."
    return [tag("h3", "Overfitting"), tag("p", note), table("Runs flagged for overfitting", heads, rows, text=(4,))]


def runs(fit: Fit) -> Raw:
    """Which runs broke (scaling/health.py), from where on and why; nothing for a fit from before runs were judged."""
    found = fit.get("health")
    if found is None:
        return Raw("")
    if not found["runs"]:
        none = "No run is flagged: none collapsed, exploded, was cut off or stopped being finite, and sampler and trainer agree."
        return section("health", "Health of the runs", tag("p", none))
    rows = [
        [f"{r['B_p']} × {r['n']}, seed {r['seed']}", flag["name"].replace("_", " "), compact(flag["C"]), compact(r["C"]), flag["reason"]]
        for r in found["runs"]
        for flag in r["flags"]
    ]
    command = tag("code", f"isojax report RUN {INCLUDE_FLAGGED}")
    left_out: list[object] = ["Left out of every fit on this page; ", command, " puts them back."]
    words = left_out if found["left_out"] else ["In every fit on this page, as ", command, " asked."]
    heads = ["run", "flag", "from C", "ran to C", "why"]
    return section("health", "Health of the runs", tag("p", *words), table("Flagged runs", heads, rows, text=(1, 4)))


def _curve(row: Mapping[str, Any]) -> list[object]:
    chi, own = row["reduced_chi_square"], row["autocorrelation"]
    numbers = ["–" if x is None else f"{x:.2f}" for x in (chi, own)]
    return [f"{row['B_p']} × {row['n']}", row["points"], *numbers, ", ".join(row["at_bounds"]) or "none"]


def flags(fit: Fit) -> Raw:
    """Every warning of the fit."""
    text = bullets(fit["flags"]) if fit["flags"] else tag("p", "None: the fit raised no warning.")
    return section("flags", "Warnings", text)
