"""The report's evidence: frontier segments with verdicts, the law and its curves, and where each cell started and
ended.

Every number that has an interval stands with it, as 0.655 [0.641, 0.670].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from isojax.core.nouns import RunRecord
from isojax.report import text as text_module
from isojax.report.canvas import RenderedFigure
from isojax.report.figures.catalogue import FIGURES
from isojax.report.fit_views import FitDocument, frontier_views
from isojax.report.fit_views import evaluate_law as law_at
from isojax.report.page.markup import Html, html_figure, html_section, html_table, tag
from isojax.report.text import format_compact, format_interval, format_reward, join_list
from isojax.scaling.validation_metrics import metric_value

SEGMENT_HEADER = (
    "n",
    "B_p",
    "from C",
    "to C",
    "decades",
    "rivals (neighbours)",
    "lead over the closer ± se",
    "z",
    "at C",
)
CURVE_HEADER = ("n", "B_p", "form", "R0", "A", "exponent", "C_mid", "from C", "to C", "points", "rmse")


def evidence_section(fit: FitDocument, images: Mapping[str, RenderedFigure]) -> Html:
    """Every segment with its verdict, and the crossovers."""
    rule_text = (
        f"A segment of the frontier counts as shown when it is at least {text_module.MIN_DECADES} decade long, its neighbours were measured "
        f"there too, and somewhere in it the winner leads the closer one by {text_module.MIN_Z:g} standard errors of the difference (paired over "
        "validation problems, seeds averaged)."
    )
    plot = FIGURES["evidence"]
    figure_html = (
        [html_figure(images["evidence"].png, plot.alt_text(fit), plot.caption)] if "evidence" in images else []
    )
    headings = [*SEGMENT_HEADER, "measured for both neighbours", "verdict"]
    segment_tables = [
        html_table(
            f"Frontier segments, {name}",
            headings,
            [_segment_row(seg) for seg in view["segments"]],
            text_columns=(5, 10),
        )
        for name, view in _named_summaries(fit)
    ]
    crossover_rows = [
        [name, f"{x['n_low']} → {x['n_high']}", text_module.format_crossover(x, fit)]
        for name, view in _named_summaries(fit)
        for x in view["crossovers"]
    ]
    crossovers_html = tag("p", "No crossover was seen.")
    if crossover_rows:
        crossovers_html = html_table(
            "Where one n overtakes another",
            ["frontier", "n", f"at C ({text_module.compute_unit(fit)})"],
            crossover_rows,
            text_columns=(1,),
        )
    return html_section(
        "evidence",
        "Is each segment real?",
        tag("p", rule_text),
        *figure_html,
        *segment_tables,
        tag("h3", "Crossovers"),
        crossovers_html,
    )


def _segment_row(segment: Mapping[str, Any]) -> list[object]:
    """A segment's row."""
    open_ends = segment.get("censored") or {}
    low, high = (
        format_compact(segment[f"C_{side}"]) + (" (data end)" if open_ends.get(side) else "")
        for side in ("low", "high")
    )
    range_cells = [low, high, f"{segment['decades']:.2f}"]
    z = "–" if segment["z"] is None else f"{segment['z']:.1f}"
    measured = "yes" if segment["measured_for_neighbours"] else "no"
    return [
        segment["n"],
        segment["B_p"],
        *range_cells,
        _rivals_text(segment),
        _lead_text(segment),
        z,
        format_compact(segment["at_C"]),
        measured,
        _verdict_html(segment),
    ]


def _named_summaries(fit: FitDocument) -> list[tuple[str, FitDocument]]:
    """The joint frontier and, where there are several B_p, each of theirs."""
    named_summaries = [(view.name, view.summary) for view in frontier_views(fit)]
    return named_summaries if len(named_summaries) > 1 else [("joint", fit)]


def _rivals_text(segment: Mapping[str, Any]) -> str:
    return join_list([f"n = {x['n']}, B_p = {x['B_p']}" for x in segment["neighbours"]]) or "none"


def _lead_text(segment: Mapping[str, Any]) -> str:
    if segment["lead"] is None:
        return "–"
    return f"{segment['lead']:+.3f}" + ("" if segment["se"] is None else f" ± {segment['se']:.3f}")


def _verdict_html(segment: Mapping[str, Any]) -> Html:
    holds, reason = text_module.segment_verdict(segment)
    return tag("span", ("✓ " if holds else "✗ ") + reason, cls="good" if holds else "bad")


LAW_FORMULAS = {
    "constant": "log<sub>2</sub> n*(C) = b",
    "linear": "log<sub>2</sub> n*(C) = b + k (log<sub>10</sub> C − log<sub>10</sub> C<sub>0</sub>)",
    "sigmoid": "log<sub>2</sub> n*(C) = b + L / (1 + exp(−k (log<sub>10</sub> C − log<sub>10</sub> C<sub>0</sub>)))",
}
CURVE_FORMULAS = {
    "hill": "R(C) = R<sub>0</sub> + (A − R<sub>0</sub>) / (1 + (C<sub>mid</sub> / C)<sup>B</sup>)",
    "stretched": "R(C) = R<sub>0</sub> + (A − R<sub>0</sub>) (1 − exp(−ln 2 (C / C<sub>mid</sub>)<sup>B</sup>))",
    "between hill and stretched": "R(C) = R<sub>0</sub> + (A − R<sub>0</sub>) (1 − (1 + (2<sup>t</sup> − 1) "
    "(C / C<sub>mid</sub>)<sup>B</sup>)<sup>−1/t</sup>), t the tail: 1 is hill, 0 stretched",
}


def law_section(fit: FitDocument) -> Html:
    """The law's formula, parameters and the curves below it."""
    form = fit["n_star"]["form"]
    laws_table = html_table(
        "Fitted n*(C)",
        ["frontier", "form", "L", "k", "log10 C0", "b", "n* at small C", "n* in the middle", "n* at large C"],
        [[name, *_law_row(view["n_star"], view["frontier"])] for name, view in _named_summaries(fit)],
        text_columns=(1,),
    )
    curve_forms = sorted({row.get("form", "hill") for row in fit["curves"]})
    formulas = [_formula_html(CURVE_FORMULAS[shape]) for shape in curve_forms if shape in CURVE_FORMULAS]
    has_bend = any(row.get("correction") is not None for row in fit["curves"])
    bend_text = (
        "Inside the measured range a smooth bend is added, where the evaluations show one that no such shape has. "
        if has_bend
        else ""
    )
    parameters_text = "A: the plateau; C_mid: the compute of half the gain; B: how steep (an exponent, not the batch). "
    meaning = tag("p", parameters_text, bend_text, _undetermined_text(fit))
    curve_rows = [_curve_row(c) for c in sorted(fit["curves"], key=lambda c: (c["B_p"], c["n"]))]
    curves_table = html_table(f"Fitted reward curves ({fit['metric']})", CURVE_HEADER, curve_rows, text_columns=(2,))
    paragraphs = [tag("p", text_module.describe_law(fit["n_star"])), *_form_choice_html(fit["n_star"])]
    heading = tag("h3", "The curves it rests on")
    return html_section(
        "law",
        "The law n*(C)",
        _formula_html(LAW_FORMULAS[form]),
        *paragraphs,
        laws_table,
        heading,
        *formulas,
        meaning,
        curves_table,
    )


def _formula_html(text: str) -> Html:
    return Html(f'<p class="formula">{text}</p>')


def _form_choice_html(n_star: Mapping[str, Any]) -> list[Html]:
    """Which form was chosen, and by how much."""
    aicc = {form: value for form, value in (n_star.get("aicc") or {}).items() if value is not None}
    if len(aicc) < 2:
        return []
    best = min(aicc.values())
    scores = [f"{form} {value - best:+.1f}" for form, value in sorted(aicc.items(), key=lambda pair: pair[1])]
    return [
        tag(
            "p",
            f"Of the forms tried, by AICc above the best: {join_list(scores)}. Less than 2 apart is no clear choice.",
        )
    ]


def _undetermined_text(fit: FitDocument) -> str:
    undetermined_cells = [f"{c['B_p']} × {c['n']}" for c in fit["curves"] if c.get("determined") is False]
    return (
        f"The plateau lies beyond the data, so do not read A alone, for B_p × n = {join_list(undetermined_cells)}."
        if undetermined_cells
        else ""
    )


def _interval_text(interval: Sequence[float | None] | None, formatter: Callable[[float], str]) -> str:
    """An interval's pair in words; nothing for None."""
    return "" if interval is None else format_interval(interval[0], interval[1], formatter)


def _two_decimals(x: float) -> str:
    return f"{x:.2f}"


def _curve_row(curve: Mapping[str, Any]) -> list[object]:
    """A fitted curve's row."""
    plateau = (
        format_reward(curve["A"])
        + _interval_text(curve.get("A_interval"), format_reward)
        + (" (beyond the data)" if curve.get("determined") is False else "")
    )
    shape = [
        f"{curve['exponent']:.2f}" + _interval_text(curve.get("exponent_interval"), _two_decimals),
        format_compact(curve["C_mid"]) + _interval_text(curve.get("C_mid_interval"), format_compact),
    ]
    ends = [format_compact(curve["C_low"]), format_compact(curve["C_high"])]
    form = curve.get("form", "hill") if curve.get("tail") in (None, 0.0, 1.0) else f"tail {curve['tail']:.2f}"
    return [
        curve["n"],
        curve["B_p"],
        form,
        format_reward(curve["R0"]),
        plateau,
        *shape,
        *ends,
        curve["points"],
        f"{curve['rmse']:.4f}",
    ]


def _law_row(n_star: Mapping[str, Any], frontier: Sequence[Mapping[str, Any]]) -> list[object]:
    """A law's row, after its name."""
    log_C = np.log10([frontier[0]["C"], frontier[-1]["C"]])
    log2_n = law_at(n_star, [log_C[0], log_C.mean(), log_C[1]])
    used_parameters = {"constant": ("b",), "linear": ("k", "log10_C0", "b")}.get(
        n_star["form"], ("L", "k", "log10_C0", "b")
    )
    intervals = n_star.get("intervals") or {}
    interval_names = ("n_at_low_C", "n_at_middle_C", "n_at_high_C")
    values = [
        f"{2 ** float(y):.3g}" + _interval_text(intervals.get(place), format_compact)
        for y, place in zip(log2_n, interval_names, strict=True)
    ]

    def parameter_text(name: str) -> str:
        if name not in used_parameters:
            return "–"
        return _two_decimals(n_star[name])

    form = f"{n_star['form']} (n makes no difference)" if text_module.has_no_effect(n_star) else n_star["form"]
    return [form, *(parameter_text(name) for name in ("L", "k", "log10_C0", "b")), *values]


def rewards_section(fit: FitDocument, run_records: Sequence[RunRecord]) -> Html:
    """Where each cell started and ended, and what it then reached on the extra sets of problems that all runs were
    evaluated on.
    """
    cells: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for run in fit["runs"]:
        cells[run["B_p"], run["n"]].append(run)
    base_reward, rows, extra_rewards = fit["base_reward"], [], _extra_set_rewards(run_records)
    for (B_p, n), runs in sorted(cells.items()):
        mean_final = sum(r["final"] for r in runs) / len(runs)
        ratio = f"{mean_final / base_reward:.2f}×" if base_reward else "–"
        finals_text = ", ".join(f"{format_reward(r['final'])}" for r in sorted(runs, key=lambda r: r["seed"]))
        C_text, points = format_compact(max(r["C_max"] for r in runs)), sum(r["points"] for r in runs)
        others = [format_reward(values.get((B_p, n))) for values in extra_rewards.values()]
        rows.append(
            [
                f"{B_p} × {n}",
                format_reward(base_reward),
                format_reward(mean_final),
                ratio,
                finals_text,
                *others,
                C_text,
                points,
            ]
        )
    others = [f"{metric}, final" for metric in extra_rewards]
    headings = [
        "B_p × n",
        "base",
        "final, mean of seeds",
        "ratio",
        "final of each seed",
        *others,
        "C reached",
        "evaluations",
    ]
    return html_section(
        "rewards",
        "Reward of each cell",
        html_table(f"Validation {fit['metric']} before and after training", headings, rows),
    )


def _extra_set_rewards(runs: Sequence[RunRecord]) -> dict[str, dict[tuple[int, int], float]]:
    """avg@k of each extra set at the end of the runs, by metric and (B_p, n), a mean over seeds."""
    final_points = [(run.cell, run.points[-1]) for run in runs]
    common_metrics = (
        set.intersection(*({f"{name}/avg@{p.samples}" for name in p.extra} for _, p in final_points))
        if final_points
        else set()
    )
    rewards_by_metric: dict[str, dict[tuple[int, int], float]] = {}
    for metric in sorted(common_metrics):
        values: dict[tuple[int, int], list[float]] = defaultdict(list)
        for cell, point in final_points:
            values[cell.B_p, cell.n].append(metric_value(point, metric))
        rewards_by_metric[metric] = {key: sum(own) / len(own) for key, own in values.items()}
    return rewards_by_metric
