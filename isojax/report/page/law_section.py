"""The evidence for the frontier (its segments, and where one n overtakes another), the law n*(C)
fitted to it, and the reward curves that both rest on: formulas, and parameters as in 0.655 [0.641,
0.670]."""

import numpy as np

from isojax.report import wording
from isojax.report.fit_views import frontier_views
from isojax.report.page.markup import Html, html_fold, html_table, tag
from isojax.report.wording import (
    MIN_DECADES,
    MIN_Z,
    UNITS,
    format_compact,
    format_crossover,
    segment_verdict,
)
from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.law.n_star_law import n_star as n_star_at
from isojax.scaling.result import FitResult, FrontierFit, SegmentRow

SEGMENT_HEADER = (
    "B_p × n",
    "range of C",
    "neighbours (B_p × n)",
    "lead over the closer one",
    "z",
    "at C",
    "verdict",
)


def named_views(fit: FitResult) -> list[tuple[str, FrontierFit]]:
    """The joint frontier and, where there are several B_p, each of theirs."""
    views = frontier_views(fit)
    if len(views) == 1:
        return [("joint", fit.joint)]
    return [("joint" if view.B_p is None else f"B_p = {view.B_p}", view) for view in views]


def evidence_section(fit: FitResult) -> Html:
    rule = (
        f"A segment of the frontier holds when it is at least {MIN_DECADES} decade long, its neighbours were measured "
        f"there too, and somewhere in it the winner leads the closer one by {MIN_Z:g} standard errors of the "
        "difference (paired over validation problems, seeds averaged). Leads are given ± one standard error; at a C "
        "marked * the data begin or end, and no other n takes over."
    )
    tables = [
        html_table(
            f"Frontier segments, {name}", SEGMENT_HEADER, map(_segment_row, view.segments), (6,)
        )
        for name, view in named_views(fit)
    ]
    title = "Evidence for each segment of the frontier"
    return html_fold(
        "evidence", title, tag("p", rule), *tables, tag("h3", "Crossovers"), _crossovers(fit)
    )


def _segment_row(segment: SegmentRow) -> list[object]:
    low, high = format_compact(segment.C_low), format_compact(segment.C_high)
    C_range = (
        f"{low}{'*' if segment.censored_low else ''} – {high}{'*' if segment.censored_high else ''}"
    )
    neighbours = ", ".join(f"{cell.B_p} × {cell.n}" for cell in segment.neighbours) or "none"
    lead = "–" if segment.lead is None else f"{segment.lead:+.3f}"
    lead += "" if segment.se is None else f" ± {segment.se:.3f}"
    holds, reason = segment_verdict(segment)
    return [
        f"{segment.B_p} × {segment.n}",
        C_range,
        neighbours,
        lead,
        "–" if segment.z is None else f"{segment.z:.1f}",
        format_compact(segment.at_C),
        reason
        if holds is None
        else tag("span", ("✓ " if holds else "✗ ") + reason, cls="good" if holds else "bad"),
    ]


def _crossovers(fit: FitResult) -> Html:
    rows = [
        [name, f"{row.n_low} → {row.n_high}", format_crossover(row, fit)]
        for name, view in named_views(fit)
        for row in view.crossovers
    ]
    if not rows:
        return tag("p", "No crossover was seen.")
    headings = ("frontier", "n", f"at C ({UNITS[fit.compute]})")
    return html_table("Where one n overtakes another", headings, rows, text_columns=(1,))


DECADES = "log<sub>10</sub> C − log<sub>10</sub> C<sub>0</sub>"
LAW_FORMULAS = {
    "constant": Html("log<sub>2</sub> n*(C) = b"),
    "linear": Html(f"log<sub>2</sub> n*(C) = b + k ({DECADES})"),
    "sigmoid": Html(f"log<sub>2</sub> n*(C) = b + L / (1 + exp(−k ({DECADES})))"),
}
CURVE_FORMULA = Html(
    "R(C) = R<sub>0</sub> + (A − R<sub>0</sub>) (1 − (1 + (2<sup>t</sup> − 1) "
    "(C / C<sub>mid</sub>)<sup>β</sup>)<sup>−1/t</sup>)"
)
LAW_HEADER = (
    "frontier",
    "form",
    "L",
    "k",
    "log10 C0",
    "b",
    "law at small C",
    "in the middle",
    "at large C",
)
MEASURED_HEADER = ("frontier", "best measured n at small C", "in the middle", "at large C")
REFEREE_HEADER = (
    "law",
    "reference",
    "verdict",
    "holds in",
    "fails in",
    "range of C",
    "measured",
    "deciding run",
)
CURVE_HEADER = ("B_p × n", "R0", "A", "β", "C_mid", "t", "measured range of C", "points", "rmse")


def law_section(fit: FitResult) -> Html:
    n_star = fit.joint.n_star
    if fit.nothing_learnt:
        explanation = (
            "No run learnt anything, so there is no law: the curves are flat, at one reward."
        )
        return html_fold("law", "The law n*(C)", tag("p", explanation), *_referee_table(fit))
    laws = html_table(
        "Fitted n*(C)", LAW_HEADER, [_law_row(name, view) for name, view in named_views(fit)], (1,)
    )
    curve_rows = [_curve_row(curve) for curve in sorted(fit.curves, key=lambda curve: curve.key)]
    intervals_by_name = {
        name: wording.measured_n_intervals(view.n_star) for name, view in named_views(fit)
    }
    measured_rows = [
        [name, *intervals] for name, intervals in intervals_by_name.items() if intervals
    ]
    measured_n = html_table("Intervals of the best measured n", MEASURED_HEADER, measured_rows)
    return html_fold(
        "law",
        "The law n*(C)",
        tag("p", LAW_FORMULAS[n_star.law.form], cls="formula"),
        tag("p", wording.describe_law(fit.joint)),
        laws,
        *([measured_n] if measured_rows else []),
        *_referee_table(fit),
        tag("h3", "Fitted reward curves"),
        tag("p", CURVE_FORMULA, cls="formula"),
        tag("p", _curve_meaning(fit)),
        html_table(f"Fitted reward curves ({fit.metric})", CURVE_HEADER, curve_rows),
    )


def _law_row(name: str, view: FrontierFit) -> list[object]:
    law, ends = view.n_star.law, (view.frontier[0].C, view.frontier[-1].C)
    parameters = {"L": law.L, "k": law.k, "log10_C0": law.log10_C0, "b": law.b}
    used = wording.LAW_PARAMETERS[law.form]
    values = [
        "–" if value is None or name not in used else f"{value:.2f}"
        for name, value in parameters.items()
    ]
    n = n_star_at(law, [ends[0], float(np.sqrt(ends[0] * ends[1])), ends[1]])
    form = f"{law.form} (n makes no difference)" if view.n_star.no_effect else law.form
    return [name, form, *values, *(f"{value:.3g}" for value in n)]


def _referee_table(fit: FitResult) -> list[Html]:
    rows = []
    caption = "Published laws of n: a difference of less than 0.005 of reward counts as none"
    for row in fit.referee:
        address = f"https://arxiv.org/abs/{row.reference.removeprefix('arXiv:')}"
        reference = Html(f'<a href="{address}">{row.reference}</a>')
        shares = [
            "–" if x is None else wording.format_percent(x)
            for x in (row.share_for, row.share_against)
        ]
        C_range = (
            "–"
            if row.C_low is None
            else f"{format_compact(row.C_low)} – {format_compact(row.C_high)}"
        )
        run = wording.describe_deciding_run(row.deciding_run)
        rows.append([row.law, reference, row.verdict, *shares, C_range, row.text, run])
    return [html_table(caption, REFEREE_HEADER, rows, text_columns=(1, 2, 5, 6, 7))] if rows else []


def _curve_meaning(fit: FitResult) -> str:
    sentences = [
        "A: the plateau; C_mid: the compute of half the gain; β: the exponent, how steep the curve is; t: the tail, 1 "
        "for a Hill curve (ScaleRL's sigmoid), 0, as a limit, for a stretched exponential."
    ]
    if any(curve.correction is not None for curve in fit.curves):
        reason = "where the evaluations show a bend that no such shape has"
        sentences.append(f"Inside the measured range a smooth correction is added {reason}.")
    if undetermined := [f"{curve.B_p} × {curve.n}" for curve in fit.curves if not curve.determined]:
        caution = "The plateau is beyond the data (*), so do not read A alone, for B_p × n"
        sentences.append(f"{caution} = {wording.join_list(undetermined)}.")
    return " ".join(sentences)


def _curve_row(curve: FittedCurve) -> list[object]:
    plateau = wording.format_reward(curve.A) + wording.format_interval(curve.A_interval)
    return [
        f"{curve.B_p} × {curve.n}",
        wording.format_reward(curve.R0),
        plateau if curve.determined else f"{plateau} *",
        f"{curve.exponent:.2f}" + wording.format_interval(curve.exponent_interval, "{:.2f}".format),
        wording.format_compact(curve.C_mid)
        + wording.format_interval(curve.C_mid_interval, wording.format_compact),
        f"{curve.tail:.2f}",
        f"{wording.format_compact(curve.C_low)} – {wording.format_compact(curve.C_high)}",
        curve.points,
        f"{curve.rmse:.4f}",
    ]
