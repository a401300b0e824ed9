"""How far to trust the fit: diagnostics in plain words, with what was left out, the runs that broke, and the
warnings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isojax.report.fit_views import FitDocument
from isojax.report.page.markup import Html, bullet_list, html_details, html_section, html_table, tag
from isojax.report.text import format_compact, format_count, format_reward, join_list
from isojax.runs.ledger import INCLUDE_FLAGGED

CURVE_HEADER = ("B_p × n", "points", "reduced χ²", "autocorrelation", "at a bound")


def diagnostics_section(fit: FitDocument) -> Html:
    """Misfit, correlated residuals, parameters at bounds, open ends, ties, what was left out; nothing for a fit of
    schema 1.
    """
    diagnostics = fit.get("diagnostics")
    if diagnostics is None:
        return Html("")
    sentences = [
        sentence
        for sentence in (
            _describe_misfit(diagnostics),
            _describe_autocorrelation(diagnostics),
            _describe_run_lengths(diagnostics),
        )
        if sentence
    ]
    sentences += [_describe_tie(tie) for tie in diagnostics["ties"]]
    sentences += _describe_open_ends(fit)
    left_out_html = [tag("h3", "Left out"), bullet_list(diagnostics["left_out"])] if diagnostics["left_out"] else []
    rows = [_curve_row(row) for row in diagnostics["per_curve"]]
    curves_html = (
        [
            html_details(
                "Each curve: how well it fits",
                html_table("Misfit of each curve", CURVE_HEADER, rows, text_columns=(4,)),
            )
        ]
        if rows
        else []
    )
    return html_section(
        "diagnostics",
        "How far to trust the fit",
        bullet_list(sentences),
        *left_out_html,
        *_overfitting_html(fit),
        *curves_html,
    )


def _describe_misfit(diagnostics: Mapping[str, Any]) -> str:
    reduced_chi_square = diagnostics["reduced_chi_square"]
    if reduced_chi_square is None:
        return "Without the right answers of each problem there is no noise to hold the misfit against (no χ²)."
    verdict = (
        "the curves miss the points by more than noise explains"
        if reduced_chi_square > 1.5
        else "the misfit is what noise explains"
    )
    verdict = "the noise is taken larger than it is" if reduced_chi_square < 0.5 else verdict
    degrees_of_freedom = diagnostics["degrees_of_freedom"]
    freedom_text = f" over {degrees_of_freedom:.6g} degrees of freedom" if degrees_of_freedom is not None else ""
    return f"Reduced χ² is {reduced_chi_square:.2f}{freedom_text}: {verdict} (1 is what pure noise gives)."


def _describe_autocorrelation(diagnostics: Mapping[str, Any]) -> str:
    value = diagnostics["autocorrelation"]
    if value is None:
        return ""
    verdict = (
        "neighbouring evaluations err together, so there is less information than points"
        if value > 0.3
        else "none to speak of"
    )
    return f"Autocorrelation of neighbouring residuals is {value:.2f}: {verdict}."


def _describe_run_lengths(diagnostics: Mapping[str, Any]) -> str:
    if not diagnostics["unequal_lengths"]:
        return "All runs reach about the same C."
    consequence = "beyond the end of the shorter ones the longer ones stand alone, and lead for want of rivals"
    return f"Runs end at different C: {consequence}."


def _describe_tie(tie: Mapping[str, Any]) -> str:
    C_text = f"between C = {format_compact(tie['C_low'])} and {format_compact(tie['C_high'])}"
    C_text = f"near C = {format_compact(tie['C_low'])}" if tie["C_low"] == tie["C_high"] else C_text
    return f"Tie: n = {join_list(tie['n'])} cannot be told apart {C_text}."


def _describe_open_ends(fit: FitDocument) -> list[str]:
    """Segments that end where the data end, not where another n takes over."""
    sentences = []
    for segment in fit["segments"]:
        ends = segment.get("censored") or {}
        sides = [words for side, words in (("low", "its start"), ("high", "its end")) if ends.get(side)]
        if sides:
            span = f"{format_compact(segment['C_low'])} to {format_compact(segment['C_high'])}"
            sentences.append(
                f"n = {segment['n']} ({span}): {join_list(sides)} is where data end, not where another n takes over."
            )
    return sentences


def _overfitting_html(fit: FitDocument) -> list[Html]:
    overfitting_rows = fit.get("overfitting") or ()
    if not overfitting_rows:
        return []
    rows = [
        [
            f"{r['B_p']} × {r['n']}, seed {r['seed']}", format_compact(r["C"]), f"{format_reward(r['train_from'])} → {format_reward(r['train_to'])}",
            f"{format_reward(r['validation_from'])} → {format_reward(r['validation_to'])}", r["reason"],
        ]
        for r in overfitting_rows
    ]  # fmt: skip
    headings = ["run", "from C", "training reward", f"validation {fit['metric']}", "why"]
    note = f"{format_count(len(rows), 'run')} flagged: training rises while validation falls. Stop at the peak; the curve is held flat beyond."
    return [
        tag("h3", "Overfitting"),
        tag("p", note),
        html_table("Runs flagged for overfitting", headings, rows, text_columns=(4,)),
    ]


def health_section(fit: FitDocument) -> Html:
    """Which runs broke (scaling/checks/run_health.py), from where on and why; nothing for a fit from before runs were
    judged.
    """
    health = fit.get("health")
    if health is None:
        return Html("")
    if not health["runs"]:
        healthy_text = "No run is flagged: none collapsed, exploded, was cut off or stopped being finite, and sampler and trainer agree."
        return html_section("health", "Health of the runs", tag("p", healthy_text))
    rows = [
        [
            f"{r['B_p']} × {r['n']}, seed {r['seed']}",
            flag["name"].replace("_", " "),
            format_compact(flag["C"]),
            format_compact(r["C"]),
            flag["reason"],
        ]
        for r in health["runs"]
        for flag in r["flags"]
    ]
    command = tag("code", f"isojax report RUN {INCLUDE_FLAGGED}")
    left_out_text: list[object] = ["Left out of every fit on this page; ", command, " puts them back."]
    paragraph = left_out_text if health["left_out"] else ["In every fit on this page, as ", command, " asked."]
    headings = ["run", "flag", "from C", "ran to C", "why"]
    return html_section(
        "health",
        "Health of the runs",
        tag("p", *paragraph),
        html_table("Flagged runs", headings, rows, text_columns=(1, 4)),
    )


def _curve_row(row: Mapping[str, Any]) -> list[object]:
    reduced_chi_square, autocorrelation = row["reduced_chi_square"], row["autocorrelation"]
    formatted_values = ["–" if x is None else f"{x:.2f}" for x in (reduced_chi_square, autocorrelation)]
    return [f"{row['B_p']} × {row['n']}", row["points"], *formatted_values, ", ".join(row["at_bounds"]) or "none"]


def warnings_section(fit: FitDocument) -> Html:
    """Every warning of the fit."""
    warnings_html = bullet_list(fit["flags"]) if fit["flags"] else tag("p", "None: the fit raised no warning.")
    return html_section("flags", "Warnings", warnings_html)
