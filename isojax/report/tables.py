"""The report's evidence: frontier segments with verdicts, the law and its curves, and where each cell started and ended.

Every number that has an interval stands with it, as 0.655 [0.641, 0.670].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from isojax.report import words
from isojax.report.canvas import Drawing
from isojax.report.figures import FIGURES
from isojax.report.markup import Raw, figure, section, table, tag
from isojax.report.reading import Fit, views
from isojax.report.reading import law as law_at
from isojax.report.words import between, compact, listed, reward
from isojax.scaling.metrics import metric_value
from isojax.types import RunRecord

SEGMENT = ("n", "B_p", "from C", "to C", "decades", "rivals (neighbours)", "lead over the closer ± se", "z", "at C")
CURVE = ("n", "B_p", "form", "R0", "A", "B", "C_mid", "from C", "to C", "points", "rmse")


def evidence(fit: Fit, images: Mapping[str, Drawing]) -> Raw:
    """Every segment with its verdict, and the crossovers."""
    rule = (
        f"A segment of the frontier counts as shown when it is at least {words.MIN_DECADES} decade long, its neighbours were measured "
        f"there too, and somewhere in it the winner leads the closer one by {words.MIN_Z:g} standard errors of the difference (paired over "
        "validation problems, seeds averaged)."
    )
    plot = FIGURES["evidence"]
    drawn = [figure(images["evidence"].png, plot.alt(fit), plot.caption)] if "evidence" in images else []
    heads = [*SEGMENT, "measured for both neighbours", "verdict"]
    shown = [
        table(f"Frontier segments, {name}", heads, [_segment(seg) for seg in view["segments"]], text=(5, 10)) for name, view in _views(fit)
    ]
    crossings = [[name, f"{x['n_low']} → {x['n_high']}", words.crossing(x, fit)] for name, view in _views(fit) for x in view["crossovers"]]
    cross = tag("p", "No crossover was seen.")
    if crossings:
        cross = table("Where one n overtakes another", ["frontier", "n", f"at C ({words.unit(fit)})"], crossings, text=(1,))
    return section("evidence", "Is each segment real?", tag("p", rule), *drawn, *shown, tag("h3", "Crossovers"), cross)


def _segment(seg: Mapping[str, Any]) -> list[object]:
    """A segment's row."""
    open_ends = seg.get("censored") or {}
    low, high = (compact(seg[f"C_{side}"]) + (" (data end)" if open_ends.get(side) else "") for side in ("low", "high"))
    span = [low, high, f"{seg['decades']:.2f}"]
    z = "–" if seg["z"] is None else f"{seg['z']:.1f}"
    measured = "yes" if seg["measured_for_neighbours"] else "no"
    return [seg["n"], seg["B_p"], *span, _rivals(seg), _lead(seg), z, compact(seg["at_C"]), measured, _verdict(seg)]


def _views(fit: Fit) -> list[tuple[str, Fit]]:
    """The joint frontier and, where there are several B_p, each of theirs."""
    found = [(view.name, view.part) for view in views(fit)]
    return found if len(found) > 1 else [("joint", fit)]


def _rivals(segment: Mapping[str, Any]) -> str:
    return listed([f"n = {x['n']}, B_p = {x['B_p']}" for x in segment["neighbours"]]) or "none"


def _lead(segment: Mapping[str, Any]) -> str:
    if segment["lead"] is None:
        return "–"
    return f"{segment['lead']:+.3f}" + ("" if segment["se"] is None else f" ± {segment['se']:.3f}")


def _verdict(segment: Mapping[str, Any]) -> Raw:
    holds, why = words.verdict(segment)
    return tag("span", ("✓ " if holds else "✗ ") + why, cls="good" if holds else "bad")


FORMULAS = {
    "constant": "log<sub>2</sub> n*(C) = b",
    "linear": "log<sub>2</sub> n*(C) = b + k (log<sub>10</sub> C − log<sub>10</sub> C<sub>0</sub>)",
    "sigmoid": "log<sub>2</sub> n*(C) = b + L / (1 + exp(−k (log<sub>10</sub> C − log<sub>10</sub> C<sub>0</sub>)))",
}
SHAPES = {
    "hill": "R(C) = R<sub>0</sub> + (A − R<sub>0</sub>) / (1 + (C<sub>mid</sub> / C)<sup>B</sup>)",
    "stretched": "R(C) = R<sub>0</sub> + (A − R<sub>0</sub>) (1 − exp(−ln 2 (C / C<sub>mid</sub>)<sup>B</sup>))",
    "between hill and stretched": "R(C) = R<sub>0</sub> + (A − R<sub>0</sub>) (1 − (1 + (2<sup>t</sup> − 1) "
    "(C / C<sub>mid</sub>)<sup>B</sup>)<sup>−1/t</sup>), t the tail: 1 is hill, 0 stretched",
}


def law(fit: Fit) -> Raw:
    """The law's formula, parameters and the curves below it."""
    form = fit["n_star"]["form"]
    laws = table(
        "Fitted n*(C)",
        ["frontier", "form", "L", "k", "log10 C0", "b", "n* at small C", "n* in the middle", "n* at large C"],
        [[name, *_law(view["n_star"], view["frontier"])] for name, view in _views(fit)],
        text=(1,),
    )
    shapes = sorted({row.get("form", "hill") for row in fit["curves"]})
    fitted = [_formula(SHAPES[shape]) for shape in shapes if shape in SHAPES]
    bent = any(row.get("bend") is not None for row in fit["curves"])
    bend = "Inside the measured range a smooth bend is added, where the evaluations show one that no such shape has. " if bent else ""
    words_for = "A: the plateau; C_mid: the compute of half the gain; B: how steep (an exponent, not the batch). "
    meaning = tag("p", words_for, bend, _undetermined(fit))
    curves = [_curve(c) for c in sorted(fit["curves"], key=lambda c: (c["B_p"], c["n"]))]
    fits = table(f"Fitted reward curves ({fit['metric']})", CURVE, curves, text=(2,))
    said = [tag("p", words.law_in_words(fit["n_star"])), *_choice(fit["n_star"])]
    heading = tag("h3", "The curves it rests on")
    return section("law", "The law n*(C)", _formula(FORMULAS[form]), *said, laws, heading, *fitted, meaning, fits)


def _formula(text: str) -> Raw:
    return Raw(f'<p class="formula">{text}</p>')


def _choice(n_star: Mapping[str, Any]) -> list[Raw]:
    """Which form was chosen, and by how much."""
    aicc = {form: value for form, value in (n_star.get("aicc") or {}).items() if value is not None}
    if len(aicc) < 2:
        return []
    best = min(aicc.values())
    scores = [f"{form} {value - best:+.1f}" for form, value in sorted(aicc.items(), key=lambda pair: pair[1])]
    return [tag("p", f"Of the forms tried, by AICc above the best: {listed(scores)}. Less than 2 apart is no clear choice.")]


def _undetermined(fit: Fit) -> str:
    found = [f"{c['B_p']} × {c['n']}" for c in fit["curves"] if c.get("determined") is False]
    return f"The plateau lies beyond the data, so do not read A alone, for B_p × n = {listed(found)}." if found else ""


def _span(interval: Sequence[float | None] | None, form: Callable[[float], str]) -> str:
    """An interval's pair in words; nothing for None."""
    return "" if interval is None else between(interval[0], interval[1], form)


def _two(x: float) -> str:
    return f"{x:.2f}"


def _curve(c: Mapping[str, Any]) -> list[object]:
    """A fitted curve's row."""
    plateau = reward(c["A"]) + _span(c.get("A_interval"), reward) + (" (beyond the data)" if c.get("determined") is False else "")
    shape = [f"{c['B']:.2f}" + _span(c.get("B_interval"), _two), compact(c["C_mid"]) + _span(c.get("C_mid_interval"), compact)]
    ends = [compact(c["C_low"]), compact(c["C_high"])]
    form = c.get("form", "hill") if c.get("tail") in (None, 0.0, 1.0) else f"tail {c['tail']:.2f}"
    return [c["n"], c["B_p"], form, reward(c["R0"]), plateau, *shape, *ends, c["points"], f"{c['rmse']:.4f}"]


def _law(n_star: Mapping[str, Any], frontier: Sequence[Mapping[str, Any]]) -> list[object]:
    """A law's row, after its name."""
    log_C = np.log10([frontier[0]["C"], frontier[-1]["C"]])
    at = law_at(n_star, [log_C[0], log_C.mean(), log_C[1]])
    used = {"constant": ("b",), "linear": ("k", "log10_C0", "b")}.get(n_star["form"], ("L", "k", "log10_C0", "b"))
    known = n_star.get("intervals") or {}
    places = ("n_at_low_C", "n_at_middle_C", "n_at_high_C")
    values = [f"{2 ** float(y):.3g}" + _span(known.get(place), compact) for y, place in zip(at, places, strict=True)]

    def number(name: str) -> str:
        if name not in used:
            return "–"
        return _two(n_star[name])

    form = f"{n_star['form']} (n makes no difference)" if words.no_effect(n_star) else n_star["form"]
    return [form, *(number(name) for name in ("L", "k", "log10_C0", "b")), *values]


def rewards(fit: Fit, measured: Sequence[RunRecord]) -> Raw:
    """Where each cell started and ended, and what it then reached on the extra sets of problems that all runs were evaluated on."""
    cells: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for run in fit["runs"]:
        cells[run["B_p"], run["n"]].append(run)
    base, rows, extra = fit["base_reward"], [], _extra(measured)
    for (B_p, n), runs in sorted(cells.items()):
        mean = sum(r["final"] for r in runs) / len(runs)
        ratio = f"{mean / base:.2f}×" if base else "–"
        each = ", ".join(f"{reward(r['final'])}" for r in sorted(runs, key=lambda r: r["seed"]))
        reached, points = compact(max(r["C_max"] for r in runs)), sum(r["points"] for r in runs)
        others = [reward(values.get((B_p, n))) for values in extra.values()]
        rows.append([f"{B_p} × {n}", reward(base), reward(mean), ratio, each, *others, reached, points])
    others = [f"{metric}, final" for metric in extra]
    heads = ["B_p × n", "base", "final, mean of seeds", "ratio", "final of each seed", *others, "C reached", "evaluations"]
    return section("rewards", "Reward of each cell", table(f"Validation {fit['metric']} before and after training", heads, rows))


def _extra(runs: Sequence[RunRecord]) -> dict[str, dict[tuple[int, int], float]]:
    """avg@k of each extra set at the end of the runs, by metric and (B_p, n), a mean over seeds."""
    ends = [(run.cell, run.points[-1]) for run in runs]
    common = set.intersection(*({f"{name}/avg@{p.samples}" for name in p.extra} for _, p in ends)) if ends else set()
    found: dict[str, dict[tuple[int, int], float]] = {}
    for metric in sorted(common):
        values: dict[tuple[int, int], list[float]] = defaultdict(list)
        for cell, point in ends:
            values[cell.B_p, cell.n].append(metric_value(point, metric))
        found[metric] = {key: sum(own) / len(own) for key, own in values.items()}
    return found
