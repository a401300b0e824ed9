"""The report: one HTML file, readable without a server or a network, that leads with the answer and then shows what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from isojax.report import charts, explorer, health, provenance, tables, words
from isojax.report.advice import Advice, advise
from isojax.report.canvas import Drawing
from isojax.report.figures import FIGURES
from isojax.report.figures_panel import in_words
from isojax.report.markup import Raw, bullets, document, esc, figure, join, section, table, tag
from isojax.report.reading import Fit
from isojax.report.words import between, compact, listed, percent, plural, reward
from isojax.types import RunRecord

BUDGETS = (1 / 8, 1 / 2, 1, 2, 4)
NAVIGATION = {"budget": "Choose a budget", "takeaways": "What to take away", "figures": "Figures", "recommendations": "Recommendations"}
NAVIGATION |= {"evidence": "Evidence", "law": "n*(C)", "diagnostics": "Trust", "rewards": "Rewards", "flags": "Warnings"}
NAVIGATION |= {"panel": "Training problems", "health": "Health", "provenance": "Settings"}
ELSEWHERE = ("evidence", "panel")  # figures that stand in sections of their own


def render(folder: Path, fits: Sequence[Fit], runs: Sequence[RunRecord], images: Mapping[str, Drawing]) -> str:
    """The page. `images` holds the figures that could be drawn, by their names in FIGURES."""
    fit, bundle = fits[0], charts.bundle()
    answer = advise(fit, words.measured_to(fit))
    content = explorer.data(fits, runs, bundle is not None) | {"start": words.measured_to(fit)}
    sections = [_answer(fit, answer), _warnings_notice(fit), explorer.section(bundle is not None), _takeaways(fit)]
    sections += [_figures(fit, images), _recommendations(fit), tables.evidence(fit, images), tables.law(fit), health.diagnostics(fit)]
    sections += [
        _panel(fit, runs, images),
        health.runs(fit),
        tables.rewards(fit, runs),
        health.flags(fit),
        provenance.samples(folder, answer),
        provenance.provenance(folder, fit),
    ]
    body = join([_header(folder, fit, sections), tag("main", *sections)])
    scripts = [*([] if bundle is None else [bundle]), explorer.script()]
    return document(f"isojax: {folder.name}", body, scripts, explorer.embedded(content))


def _header(folder: Path, fit: Fit, sections: Sequence[Raw]) -> Raw:
    ns, B_ps = sorted({r["n"] for r in fit["runs"]}), sorted({r["B_p"] for r in fit["runs"]})
    seeds = len({r["seed"] for r in fit["runs"]})
    facts = (
        f"{plural(len(fit['runs']), 'run')}: B_p = {listed(B_ps)}; n = {listed(ns)}; {plural(seeds, 'seed')}. "
        f"Validation metric {fit['metric']}; compute C in {words.unit(fit)}, up to {compact(words.measured_to(fit))}."
    )
    there = [(key, text) for key, text in NAVIGATION.items() if any(f'id="{key}"' in part for part in sections)]
    nav = join([Raw(f'<a href="#{key}">{esc(text)}</a>') for key, text in there])
    return tag("header", tag("h1", f"How to spend C {words.unit(fit)}: {folder.name}"), tag("p", facts, cls="soft"), tag("nav", nav))


def _answer(fit: Fit, answer: Advice) -> Raw:
    """The headline: what to run with the budget the sweep measured."""
    C = f"C = {compact(words.measured_to(fit))} {words.unit(fit)}"
    if answer.n is None:
        top = fit["frontier"][-1]
        head = f"At C = {compact(top['C'])} {words.unit(fit)} n = {top['n']} on B_p = {top['B_p']} leads."
        return _card(tag("p", head, cls="headline"), tag("p", f"No allocation is prescribed: {answer.why}"))
    for_M = f" for M = {answer.M} updates" if answer.M is not None else ""
    head = f"At {C} spend n = {answer.n} on B_p = {answer.B_p}{for_M}."
    if words.no_effect(fit["n_star"]):
        head = f"n makes no difference here. {head}"
    gain = f", from {reward(fit['base_reward'])} for the base policy" if fit["base_reward"] is not None else ""
    then = f"Expected validation {fit['metric']}: {reward(answer.reward)}{between(answer.low, answer.high)}{gain}."
    then += f" One new run would show {reward(answer.run_low)} to {reward(answer.run_high)}." if answer.run_low is not None else ""
    others = [n for n in answer.equal_n if n != answer.n]
    equal = [tag("p", f"As good within the tolerance: n = {listed(others)}.")] if others else []
    sure = (
        [tag("p", f"P(n = {answer.n} is the best) = {percent(round(answer.chances[answer.n], 2))}.")] if answer.n in answer.chances else []
    )
    short = "n: rollouts a problem; B_p: problems a batch; M: updates; C = B_p · n · M."
    return _card(tag("p", head, cls="headline"), tag("p", then), *sure, *equal, tag("p", short, cls="soft"))


def _card(*inner: Raw) -> Raw:
    return Raw(f'<section class="answer" aria-label="The answer">{join(inner)}</section>')


def _warnings_notice(fit: Fit) -> Raw:
    if not fit["flags"]:
        return Raw("")
    link = Raw('<a href="#flags">read them</a>')
    return tag("p", f"The fit raised {plural(len(fit['flags']), 'warning')}: ", link, ".", cls="warn")


def _takeaways(fit: Fit) -> Raw:
    return section("takeaways", "What to take away", bullets(words.takeaways(fit)))


def _panel(fit: Fit, runs: Sequence[RunRecord], images: Mapping[str, Drawing]) -> Raw:
    """How training moves single training problems; nothing where no panel was evaluated (cell.eval.panel)."""
    if "panel" not in images:
        return Raw("")
    plot = FIGURES["panel"]
    drawn = figure(images["panel"].png, plot.alt(fit), plot.caption)
    return section("panel", "How training moves single problems", bullets(in_words(fit, runs)), drawn)


def _figures(fit: Fit, images: Mapping[str, Drawing]) -> Raw:
    """All figures but those that stand in sections of their own."""
    drawn = [
        figure(images[name].png, plot.alt(fit), plot.caption) for name, plot in FIGURES.items() if name in images and name not in ELSEWHERE
    ]
    return section("figures", "Figures", tag("p", "Each is in ", tag("code", "figures/"), " as PNG and PDF."), *drawn)


def _recommendations(fit: Fit) -> Raw:
    """What to run at several budgets, inside and beyond the measured range."""
    answers = [advise(fit, words.measured_to(fit) * share) for share in BUDGETS]
    if all(a.n is None for a in answers):
        return section("recommendations", "What to run at other budgets", tag("p", f"No allocation is prescribed: {answers[0].why}"))
    heads = [f"C ({words.unit(fit)})", "n", "B_p", "M", "used", f"expected {fit['metric']}", "P(n best)", "why"]
    note = "The best measured cell, the smallest B_p that is stable and costs nothing, the rest of the budget to M. Another budget: "
    if fit["mode"] == "paper":
        note = "n from n*(C), the smallest B_p that is stable, and the rest of the budget to M. Another budget: "
    command = tag("code", "isojax recommend RUN --budget C")
    caption = "Recommended allocations at 1/8, 1/2, 1, 2 and 4 times the largest measured C"
    rows = [_recommendation(a) for a in answers]
    return section("recommendations", "What to run at other budgets", tag("p", note, command, "."), table(caption, heads, rows, text=(7,)))


def _recommendation(a: Advice) -> list[object]:
    """A budget's row."""
    if a.n is None or a.B_p is None:
        return [compact(a.C), *["–"] * 6, a.why]
    where = tag("strong", "Beyond the measured range. ", cls="bad") if a.beyond else "Measured range. "
    M, used = ("–", "–") if a.M is None else (f"{a.M:,}", f"{a.B_p * a.n * a.M:,}")
    sure = percent(round(a.chances[a.n], 2)) if a.n in a.chances else "–"
    expected = reward(a.reward) + between(a.low, a.high)
    return [compact(a.C), a.n, a.B_p, M, used, expected, sure, join([where, "; ".join(a.reasons)], "")]
