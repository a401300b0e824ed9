"""The law n*(C) and the reward curves that it rests on: formulas, and parameters as in 0.655 [0.641, 0.670]."""

import numpy as np

from isojax.report import wording
from isojax.report.page.evidence_section import named_views
from isojax.report.page.markup import Html, html_section, html_table, tag
from isojax.scaling.curves.hill import HILL_TAIL, STRETCHED_TAIL, FittedCurve
from isojax.scaling.law.n_star_law import n_star as n_star_at
from isojax.scaling.result import FitResult, FrontierFit

LAW_FORMULAS = {
    "constant": Html("log<sub>2</sub> n*(C) = b"),
    "linear": Html("log<sub>2</sub> n*(C) = b + k (log<sub>10</sub> C − log<sub>10</sub> C<sub>0</sub>)"),
    "sigmoid": Html(
        "log<sub>2</sub> n*(C) = b + L / (1 + exp(−k (log<sub>10</sub> C − log<sub>10</sub> C<sub>0</sub>)))"
    ),
}
CURVE_FORMULAS = {
    "hill": Html("R(C) = R<sub>0</sub> + (A − R<sub>0</sub>) / (1 + (C<sub>mid</sub> / C)<sup>β</sup>)"),
    "stretched": Html("R(C) = R<sub>0</sub> + (A − R<sub>0</sub>) (1 − exp(−ln 2 (C / C<sub>mid</sub>)<sup>β</sup>))"),
    "between hill and stretched": Html(
        "R(C) = R<sub>0</sub> + (A − R<sub>0</sub>) (1 − (1 + (2<sup>t</sup> − 1) "
        "(C / C<sub>mid</sub>)<sup>β</sup>)<sup>−1/t</sup>), t the tail: 1 is hill, 0 stretched"
    ),
}
LAW_HEADER = ("frontier", "form", "L", "k", "log10 C0", "b", "law at small C", "in the middle", "at large C")
MEASURED_HEADER = ("best measured n at small C", "in the middle", "at large C")
CURVE_HEADER = ("B_p × n", "form", "R0", "A", "β", "C_mid", "measured range of C", "points", "rmse")


def law_section(fit: FitResult) -> Html:
    """The law's formula and parameters, and the curves below it."""
    n_star = fit.joint.n_star
    paragraphs = [tag("p", wording.describe_law(n_star))]
    if not wording.law_is_drawn(fit.joint) and not n_star.no_effect:
        caution = "The frontier has two values of n only, too few for a law: the figures do not draw it."
        paragraphs.append(tag("p", caution))
    laws = html_table("Fitted n*(C)", LAW_HEADER, [_law_row(name, view) for name, view in named_views(fit)], (1,))
    curves = sorted(fit.curves, key=lambda curve: curve.key)
    formulas = [tag("p", CURVE_FORMULAS[form], cls="formula") for form in sorted({curve.form for curve in curves})]
    curve_rows = [_curve_row(curve) for curve in curves]
    return html_section(
        "law",
        "The law n*(C)",
        tag("p", LAW_FORMULAS[n_star.law.form], cls="formula"),
        *paragraphs,
        laws,
        *_measured_n_table(fit),
        tag("h3", "Fitted reward curves"),
        *formulas,
        tag("p", _curve_meaning(fit)),
        html_table(f"Fitted reward curves ({fit.metric})", CURVE_HEADER, curve_rows, (1,)),
    )


def _law_row(name: str, view: FrontierFit) -> list[object]:
    """A law's parameters, and its values at the ends and the middle (of log C) of the frontier."""
    law, ends = view.n_star.law, (view.frontier[0].C, view.frontier[-1].C)
    parameters = {"L": law.L, "k": law.k, "log10_C0": law.log10_C0, "b": law.b}
    used = wording.LAW_PARAMETERS[law.form]
    values = ["–" if value is None or name not in used else f"{value:.2f}" for name, value in parameters.items()]
    n = n_star_at(law, [ends[0], float(np.sqrt(ends[0] * ends[1])), ends[1]])
    form = f"{law.form} (n makes no difference)" if view.n_star.no_effect else law.form
    return [name, form, *values, *(f"{value:.3g}" for value in n)]


def _measured_n_table(fit: FitResult) -> list[Html]:
    """The interval of the replicates' best measured n; nothing where the fit has none."""
    rows = []
    for name, view in named_views(fit):
        intervals = view.n_star.intervals
        if intervals is not None:
            bounds = (intervals.n_at_low_C, intervals.n_at_middle_C, intervals.n_at_high_C)
            rows.append([name, *(wording.format_range(interval, wording.format_compact) for interval in bounds)])
    return [html_table("Intervals of the best measured n", ("frontier", *MEASURED_HEADER), rows)] if rows else []


def _curve_meaning(fit: FitResult) -> str:
    """The parameters in words, and what to know of these curves."""
    sentences = ["A: the plateau; C_mid: the compute of half the gain; β: the exponent, how steep the curve is."]
    if any(curve.correction is not None for curve in fit.curves):
        reason = "where the evaluations show a bend that no such shape has"
        sentences.append(f"Inside the measured range a smooth correction is added {reason}.")
    undetermined = [f"{curve.B_p} × {curve.n}" for curve in fit.curves if not curve.determined]
    if undetermined:
        caution = "The plateau is beyond the data (*), so do not read A alone, for B_p × n"
        sentences.append(f"{caution} = {wording.join_list(undetermined)}.")
    return " ".join(sentences)


def _curve_row(curve: FittedCurve) -> list[object]:
    plateau = wording.format_reward(curve.A) + wording.format_interval(curve.A_interval)
    is_named_form = curve.tail in (HILL_TAIL, STRETCHED_TAIL)
    return [
        f"{curve.B_p} × {curve.n}",
        curve.form if is_named_form else f"tail {curve.tail:.2f}",
        wording.format_reward(curve.R0),
        plateau if curve.determined else f"{plateau} *",
        f"{curve.exponent:.2f}" + wording.format_interval(curve.exponent_interval, "{:.2f}".format),
        wording.format_compact(curve.C_mid) + wording.format_interval(curve.C_mid_interval, wording.format_compact),
        f"{wording.format_compact(curve.C_low)} – {wording.format_compact(curve.C_high)}",
        curve.points,
        f"{curve.rmse:.4f}",
    ]
