"""The report's evidence: frontier segments with verdicts, the law and its curves, and where each cell started and ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from isojax.report import words
from isojax.report.markup import Raw, figure, section, table, tag
from isojax.report.words import compact, listed, reward

Fit = Mapping[str, Any]


SEGMENT = ("n", "B_p", "from C", "to C", "decades", "rivals (neighbours)", "lead over the closer ± se", "z", "at C")
CURVE = ("n", "B_p", "R0", "A", "B", "C_mid", "from C", "to C", "points", "rmse")


def evidence(fit: Fit, images: Mapping[str, bytes]) -> Raw:
    """Every segment with its verdict, and the crossovers."""
    rule = (
        f"A segment of the frontier counts as shown when it is at least {words.MIN_DECADES} decade long, its neighbours were measured "
        f"there too, and somewhere in it the winner leads the closer one by {words.MIN_Z:g} standard errors of the difference (paired over "
        "validation problems, seeds averaged)."
    )
    alt = "Each segment's lead over its closest neighbour with error bars of two standard errors; the tables below have the numbers."
    caption = "A bar that crosses zero is a lead the evaluations cannot tell from noise."
    drawn = [figure(images["evidence"], alt, caption)] if "evidence" in images else []
    heads = [*SEGMENT, "measured for both neighbours", "verdict"]
    shown = [
        table(f"Frontier segments, {name}", heads, [_segment(seg) for seg in view["segments"]], text=(5, 10)) for name, view in _views(fit)
    ]
    crossings = [[name, f"{x['n_low']} → {x['n_high']}", compact(x["C"])] for name, view in _views(fit) for x in view["crossovers"]]
    cross = tag("p", "No crossover was seen.")
    if crossings:
        cross = table("Where one n overtakes another", ["frontier", "n", f"at C ({words.unit(fit)})"], crossings, text=(1,))
    return section("evidence", "Is each segment real?", tag("p", rule), *drawn, *shown, tag("h3", "Crossovers"), cross)


def _segment(seg: Mapping[str, Any]) -> list[object]:
    """A segment's row."""
    span = [compact(seg["C_low"]), compact(seg["C_high"]), f"{seg['decades']:.2f}"]
    z = "–" if seg["z"] is None else f"{seg['z']:.1f}"
    measured = "yes" if seg["measured_for_neighbours"] else "no"
    return [seg["n"], seg["B_p"], *span, _rivals(seg), _lead(seg), z, compact(seg["at_C"]), measured, _verdict(seg)]


def _views(fit: Fit) -> list[tuple[str, Fit]]:
    """The joint frontier and, where there are several B_p, each of theirs."""
    single = [(f"B_p = {row['B_p']}", row) for row in fit["by_B_p"]]
    return [("joint", fit), *single] if len(single) > 1 else [("joint", fit)]


def _rivals(segment: Mapping[str, Any]) -> str:
    return listed([f"n = {x['n']}, B_p = {x['B_p']}" for x in segment["neighbours"]]) or "none"


def _lead(segment: Mapping[str, Any]) -> str:
    if segment["lead"] is None:
        return "–"
    return f"{segment['lead']:+.3f}" + ("" if segment["se"] is None else f" ± {segment['se']:.3f}")


def _verdict(segment: Mapping[str, Any]) -> Raw:
    holds, why = words.verdict(segment)
    return tag("span", ("✓ " if holds else "✗ ") + why, cls="good" if holds else "bad")


def law(fit: Fit) -> Raw:
    """The law's formula, parameters and the curves below it."""
    formula = Raw(
        '<p class="formula">log<sub>2</sub> n*(C) = b + L / (1 + exp(−k (log<sub>10</sub> C − log<sub>10</sub> C<sub>0</sub>)))</p>'
    )
    laws = table(
        "Fitted n*(C)",
        ["frontier", "form", "L", "k", "log10 C0", "b", "n* at small C", "n* at large C"],
        [[name, *_law(view["n_star"])] for name, view in _views(fit)],
        text=(1,),
    )
    fitted = Raw(
        '<p class="formula">R(C) = R<sub>0</sub> + (A − R<sub>0</sub>) / (1 + (C<sub>mid</sub> / C)<sup>B</sup>)</p>'
        "<p>A: the plateau; C<sub>mid</sub>: the compute of half the gain; B: how steep (an exponent, not the batch).</p>"
    )
    curves = [_curve(c) for c in sorted(fit["curves"], key=lambda c: (c["B_p"], c["n"]))]
    fits = table(f"Fitted reward curves ({fit['metric']})", CURVE, curves)
    said = tag("p", words.law_in_words(fit["n_star"]))
    return section("law", "The law n*(C)", formula, said, laws, tag("h3", "The curves it rests on"), fitted, fits)


def _curve(c: Mapping[str, Any]) -> list[object]:
    """A fitted curve's row."""
    budgets = (compact(c[key]) for key in ("C_mid", "C_low", "C_high"))
    return [c["n"], c["B_p"], reward(c["R0"]), reward(c["A"]), f"{c['B']:.2f}", *budgets, c["points"], f"{c['rmse']:.4f}"]


def _law(n_star: Mapping[str, Any]) -> list[object]:
    """A law's row, after its name."""
    low, high = f"{2 ** n_star['b']:.3g}", f"{2 ** (n_star['b'] + n_star['L']):.3g}"
    if n_star["form"] == "constant":
        return ["constant", "–", "–", "–", f"{n_star['b']:.2f}", low, low]
    return [n_star["form"], *(f"{n_star[key]:.2f}" for key in ("L", "k", "log10_C0", "b")), low, high]


def rewards(fit: Fit) -> Raw:
    """Where each cell started and ended."""
    cells: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for run in fit["runs"]:
        cells[run["B_p"], run["n"]].append(run)
    base, rows = fit["base_reward"], []
    for (B_p, n), runs in sorted(cells.items()):
        mean = sum(r["final"] for r in runs) / len(runs)
        ratio = f"{mean / base:.2f}×" if base else "–"
        each = ", ".join(f"{reward(r['final'])}" for r in sorted(runs, key=lambda r: r["seed"]))
        reached, points = compact(max(r["C_max"] for r in runs)), sum(r["points"] for r in runs)
        rows.append([f"{B_p} × {n}", reward(base), reward(mean), ratio, each, reached, points])
    heads = ["B_p × n", "base", "final, mean of seeds", "ratio", "final of each seed", "C reached", "evaluations"]
    return section("rewards", "Reward of each cell", table(f"Validation {fit['metric']} before and after training", heads, rows))
