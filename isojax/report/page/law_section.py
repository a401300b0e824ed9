"""The evidence for the frontier (its segments, and where one n overtakes another), the law n*(C)
fitted to it, and the reward curves that both rest on.

Formulas, and tables of parameters with their intervals, as in 0.655 [0.641, 0.670]."""

from typing import NamedTuple

import numpy as np

from isojax.report import wording
from isojax.report.fit_views import frontier_views
from isojax.report.page.markup import Html, html_fold, html_table, tag
from isojax.report.wording import (
    MIN_DECADES,
    MIN_Z,
    UNITS,
    SegmentVerdict,
    format_compact,
    format_crossover,
    format_interval,
    format_reward,
    segment_verdict,
)
from isojax.scaling.law.n_star_law import n_star as n_star_at
from isojax.scaling.result import FitResult, FittedCurve, FrontierFit, SegmentRow

SEGMENT_HEADER = (
    "B_p × n",
    "range of C",
    "neighbours (B_p × n)",
    "lead over the closer one",
    "z",
    "at C",
    "verdict",
)


class NamedView(NamedTuple):
    """A frontier and what tables call it."""

    name: str
    view: FrontierFit


def named_views(fit: FitResult) -> list[NamedView]:
    """The joint frontier and, where there are several B_p, each of theirs."""
    views = frontier_views(fit)
    if len(views) == 1:
        return [NamedView("joint", fit.joint)]
    return [NamedView("joint" if view.B_p is None else f"B_p = {view.B_p}", view) for view in views]


def evidence_section(fit: FitResult) -> Html:
    """The folded section on whether the frontier's segments are more than noise: the rule, a table
    of the segments of each frontier, and the crossovers between them."""
    rule = (
        f"A segment of the frontier holds when it is at least {MIN_DECADES} decade long, "
        "its neighbours were measured there too, "
        f"and somewhere in it the winner leads the closer one by {MIN_Z:g} standard errors of the "
        "difference (paired over validation problems, seeds averaged). "
        "Leads are given ± one standard error; "
        "at a C marked * the data begin or end, and no other n takes over."
    )
    tables = []
    for name, view in named_views(fit):
        rows = [_segment_row(segment) for segment in view.segments]
        caption = f"Frontier segments, {name}"
        tables.append(html_table(caption, SEGMENT_HEADER, rows, text_columns=(6,)))

    title = "Evidence for each segment of the frontier"
    crossovers = [tag("h3", "Crossovers"), _crossovers(fit)]
    return html_fold("evidence", title, tag("p", rule), *tables, *crossovers)


def _segment_row(segment: SegmentRow) -> list[object]:
    """A segment of the frontier as a row of the table of evidence, whose columns SEGMENT_HEADER
    names: the cell, its range of C (* where the data begin or end), its rivals, how far it leads,
    and whether it holds."""
    low = format_compact(segment.C_low) + ("*" if segment.censored_low else "")
    high = format_compact(segment.C_high) + ("*" if segment.censored_high else "")
    neighbours = ", ".join(f"{cell.B_p} × {cell.n}" for cell in segment.neighbours) or "none"

    lead = "–" if segment.lead is None else f"{segment.lead:+.3f}"
    if segment.se is not None:
        lead += f" ± {segment.se:.3f}"

    return [
        f"{segment.B_p} × {segment.n}",
        f"{low} – {high}",
        neighbours,
        lead,
        "–" if segment.z is None else f"{segment.z:.1f}",
        format_compact(segment.at_C),
        _verdict_cell(segment_verdict(segment)),
    ]


def _verdict_cell(verdict: SegmentVerdict) -> object:
    """The verdict with a mark and a colour, or its reason alone where there is none."""
    if verdict.holds is None:
        return verdict.reason
    if verdict.holds:
        return tag("span", f"✓ {verdict.reason}", cls="good")
    return tag("span", f"✗ {verdict.reason}", cls="bad")


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
    """The folded section on the law n*(C): its formula and parameters, how published laws fare, and
    the fitted curves; where no run learnt anything, only that there is no law, and how published
    laws fare."""
    title = "The law n*(C)"
    if fit.nothing_learnt:
        why = "No run learnt anything, so there is no law: the curves are flat, at one reward."
        return html_fold("law", title, tag("p", why), *_referee_table(fit))
    return html_fold("law", title, *_fitted_laws(fit), *_referee_table(fit), *_fitted_curves(fit))


def _fitted_laws(fit: FitResult) -> list[Html]:
    """The formula of the law n*(C), a table of its parameters for each frontier, and one of the
    intervals of the best measured n, for the frontiers that have them."""
    laws = [_law_row(name, view) for name, view in named_views(fit)]
    parts = [
        tag("p", LAW_FORMULAS[fit.joint.n_star.law.form], cls="formula"),
        tag("p", wording.describe_law(fit.joint)),
        html_table("Fitted n*(C)", LAW_HEADER, laws, text_columns=(1,)),
    ]

    measured = []
    for name, view in named_views(fit):
        intervals = wording.measured_n_intervals(view.n_star)
        if intervals:
            measured.append([name, *intervals])
    if measured:
        parts.append(html_table("Intervals of the best measured n", MEASURED_HEADER, measured))
    return parts


def _fitted_curves(fit: FitResult) -> list[Html]:
    """The curve's formula, what its parameters mean, and their values for each (B_p, n)."""
    curves = sorted(fit.curves, key=lambda curve: curve.key)
    caption = f"Fitted reward curves ({fit.metric})"
    return [
        tag("h3", "Fitted reward curves"),
        tag("p", CURVE_FORMULA, cls="formula"),
        tag("p", _curve_meaning(fit)),
        html_table(caption, CURVE_HEADER, [_curve_row(curve) for curve in curves]),
    ]


def _law_row(name: str, view: FrontierFit) -> list[object]:
    """The law of one frontier as a row of the table whose columns LAW_HEADER names: its form, its
    parameters, and the n* it gives at the smallest, middle and largest C. `name`: the
    frontier's."""
    law = view.n_star.law
    form = f"{law.form} (n makes no difference)" if view.n_star.no_effect else law.form

    parameters = {"L": law.L, "k": law.k, "log10_C0": law.log10_C0, "b": law.b}
    of_form = wording.LAW_PARAMETERS[law.form]
    values = [
        "–" if value is None or parameter not in of_form else f"{value:.2f}"
        for parameter, value in parameters.items()
    ]

    C_low = view.frontier[0].C
    C_high = view.frontier[-1].C
    C_middle = float(np.sqrt(C_low * C_high))
    n = n_star_at(law, [C_low, C_middle, C_high])
    return [name, form, *values, *(f"{value:.3g}" for value in n)]


def _referee_table(fit: FitResult) -> list[Html]:
    """A table of whether the data support published laws on the choice of n, each with a link to
    its paper and the one run that would tell most; [] where none was judged. The shares "holds in"
    and "fails in" are of the fit's replicates."""
    rows = []
    for row in fit.referee:
        address = f"https://arxiv.org/abs/{row.reference.removeprefix('arXiv:')}"
        C_range = "–"
        if row.C_low is not None:
            C_range = f"{format_compact(row.C_low)} – {format_compact(row.C_high)}"
        cells = (
            row.law,
            Html(f'<a href="{address}">{row.reference}</a>'),
            row.verdict,
            _share_text(row.share_for),
            _share_text(row.share_against),
            C_range,
            row.text,
            wording.describe_deciding_run(row.deciding_run),
        )
        rows.append(cells)
    if not rows:
        return []

    caption = "Published laws of n: a difference of less than 0.005 of reward counts as none"
    return [html_table(caption, REFEREE_HEADER, rows, text_columns=(1, 2, 5, 6, 7))]


def _share_text(share: float | None) -> str:
    return "–" if share is None else wording.format_percent(share)


def _curve_meaning(fit: FitResult) -> str:
    """What the parameters of the fitted curves mean, in sentences, with a caution for the cells
    whose plateau A the data do not determine."""
    sentences = [
        "A: the plateau; C_mid: the compute of half the gain; "
        "β: the exponent, how steep the curve is; "
        "t: the tail, 1 for a Hill curve (ScaleRL's sigmoid), 0, as a limit, for a stretched "
        "exponential."
    ]
    if any(curve.correction is not None for curve in fit.curves):
        reason = "where the evaluations show a bend that no such shape has"
        sentences.append(f"Inside the measured range a smooth correction is added {reason}.")

    undetermined = [f"{curve.B_p} × {curve.n}" for curve in fit.curves if not curve.determined]
    if undetermined:
        caution = "The plateau is beyond the data (*), so do not read A alone, for B_p × n"
        sentences.append(f"{caution} = {wording.join_list(undetermined)}.")
    return " ".join(sentences)


def _curve_row(curve: FittedCurve) -> list[object]:
    """One cell's fitted curve as a row of the table whose columns CURVE_HEADER names: its
    parameters with their intervals, its data, and how well it fits. A * marks a plateau that the
    data do not determine."""
    plateau = format_reward(curve.A) + format_interval(curve.A_interval)
    exponent_interval = format_interval(curve.exponent_interval, "{:.2f}".format)
    C_mid_interval = format_interval(curve.C_mid_interval, format_compact)
    return [
        f"{curve.B_p} × {curve.n}",
        format_reward(curve.R0),
        plateau if curve.determined else f"{plateau} *",
        f"{curve.exponent:.2f}{exponent_interval}",
        f"{format_compact(curve.C_mid)}{C_mid_interval}",
        f"{curve.tail:.2f}",
        f"{format_compact(curve.C_low)} – {format_compact(curve.C_high)}",
        curve.points,
        f"{curve.rmse:.4f}",
    ]
