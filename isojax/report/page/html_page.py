"""The report: one HTML file, readable without a server or a network, that leads with the answer and then shows what it
rests on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from isojax.core.nouns import RunRecord
from isojax.report import text as text_module
from isojax.report.canvas import RenderedFigure
from isojax.report.figures.catalogue import FIGURES
from isojax.report.figures.problem_panel import describe_panels
from isojax.report.fit_views import FitDocument
from isojax.report.page import charts, diagnostics_section, evidence_tables, explorer, provenance
from isojax.report.page.advice import Advice, advise
from isojax.report.page.markup import (
    Html,
    bullet_list,
    escape,
    html_document,
    html_figure,
    html_section,
    html_table,
    join_html,
    tag,
)
from isojax.report.text import format_compact, format_count, format_interval, format_percent, format_reward, join_list

BUDGET_SHARES = (1 / 8, 1 / 2, 1, 2, 4)
NAVIGATION_TITLES = {
    "budget": "Choose a budget",
    "takeaways": "What to take away",
    "figures": "Figures",
    "recommendations": "Recommendations",
}
NAVIGATION_TITLES |= {
    "evidence": "Evidence",
    "law": "n*(C)",
    "diagnostics": "Trust",
    "rewards": "Rewards",
    "flags": "Warnings",
}
NAVIGATION_TITLES |= {"panel": "Training problems", "health": "Health", "provenance": "Settings"}
SECTION_FIGURES = ("evidence", "panel")  # figures that stand in sections of their own


def render(
    folder: Path, fits: Sequence[FitDocument], runs: Sequence[RunRecord], images: Mapping[str, RenderedFigure]
) -> str:
    """The page. `images` holds the figures that could be drawn, by their names in FIGURES."""
    fit, bundle = fits[0], charts.bundle()
    advice = advise(fit, text_module.measured_budget(fit))
    content = explorer.page_data(fits, runs, bundle is not None) | {"start": text_module.measured_budget(fit)}
    sections = [
        _answer_card(fit, advice),
        _warnings_notice(fit),
        explorer.budget_section(bundle is not None),
        _takeaways_section(fit),
    ]
    sections += [
        _figures_section(fit, images),
        _recommendations_section(fit),
        evidence_tables.evidence_section(fit, images),
        evidence_tables.law_section(fit),
        diagnostics_section.diagnostics_section(fit),
    ]
    sections += [
        _panel_section(fit, runs, images),
        diagnostics_section.health_section(fit),
        evidence_tables.rewards_section(fit, runs),
        diagnostics_section.warnings_section(fit),
        provenance.samples_section(folder, advice),
        provenance.provenance_section(folder, fit),
    ]
    body = join_html([_header(folder, fit, sections), tag("main", *sections)])
    scripts = [*([] if bundle is None else [bundle]), explorer.load_script()]
    return html_document(f"isojax: {folder.name}", body, scripts, explorer.json_for_script(content))


def _header(folder: Path, fit: FitDocument, sections: Sequence[Html]) -> Html:
    ns, B_ps = sorted({r["n"] for r in fit["runs"]}), sorted({r["B_p"] for r in fit["runs"]})
    seeds = len({r["seed"] for r in fit["runs"]})
    facts = (
        f"{format_count(len(fit['runs']), 'run')}: B_p = {join_list(B_ps)}; n = {join_list(ns)}; {format_count(seeds, 'seed')}. "
        f"Validation metric {fit['metric']}; compute C in {text_module.compute_unit(fit)}, up to {format_compact(text_module.measured_budget(fit))}."
    )
    present_sections = [
        (key, text) for key, text in NAVIGATION_TITLES.items() if any(f'id="{key}"' in part for part in sections)
    ]
    nav = join_html([Html(f'<a href="#{key}">{escape(text)}</a>') for key, text in present_sections])
    return tag(
        "header",
        tag("h1", f"How to spend C {text_module.compute_unit(fit)}: {folder.name}"),
        tag("p", facts, cls="soft"),
        tag("nav", nav),
    )


def _answer_card(fit: FitDocument, advice: Advice) -> Html:
    """The headline: what to run with the budget the sweep measured."""
    C_text = f"C = {format_compact(text_module.measured_budget(fit))} {text_module.compute_unit(fit)}"
    if advice.n is None:
        top = fit["frontier"][-1]
        headline = f"At C = {format_compact(top['C'])} {text_module.compute_unit(fit)} n = {top['n']} on B_p = {top['B_p']} leads."
        return _card(
            tag("p", headline, cls="headline"), tag("p", f"No allocation is prescribed: {advice.no_answer_reason}")
        )
    for_M = f" for M = {advice.M} updates" if advice.M is not None else ""
    headline = f"At {C_text} spend n = {advice.n} on B_p = {advice.B_p}{for_M}."
    if text_module.has_no_effect(fit["n_star"]):
        headline = f"n makes no difference here. {headline}"
    base_text = (
        f", from {format_reward(fit['base_reward'])} for the base policy" if fit["base_reward"] is not None else ""
    )
    expectation = f"Expected validation {fit['metric']}: {format_reward(advice.reward)}{format_interval(advice.low, advice.high)}{base_text}."
    expectation += (
        f" One new run would show {format_reward(advice.new_run_low)} to {format_reward(advice.new_run_high)}."
        if advice.new_run_low is not None
        else ""
    )
    other_n = [n for n in advice.equal_n if n != advice.n]
    equal_n_html = [tag("p", f"As good within the tolerance: n = {join_list(other_n)}.")] if other_n else []
    probability_html = (
        [tag("p", f"P(n = {advice.n} is the best) = {format_percent(round(advice.n_probability[advice.n], 2))}.")]
        if advice.n in advice.n_probability
        else []
    )
    symbols_text = "n: rollouts a problem; B_p: problems a batch; M: updates; C = B_p · n · M."
    return _card(
        tag("p", headline, cls="headline"),
        tag("p", expectation),
        *probability_html,
        *equal_n_html,
        tag("p", symbols_text, cls="soft"),
    )


def _card(*inner: Html) -> Html:
    return Html(f'<section class="answer" aria-label="The answer">{join_html(inner)}</section>')


def _warnings_notice(fit: FitDocument) -> Html:
    if not fit["flags"]:
        return Html("")
    link = Html('<a href="#flags">read them</a>')
    return tag("p", f"The fit raised {format_count(len(fit['flags']), 'warning')}: ", link, ".", cls="warn")


def _takeaways_section(fit: FitDocument) -> Html:
    return html_section("takeaways", "What to take away", bullet_list(text_module.describe_takeaways(fit)))


def _panel_section(fit: FitDocument, runs: Sequence[RunRecord], images: Mapping[str, RenderedFigure]) -> Html:
    """How training moves single training problems; nothing where no panel was evaluated (cell.eval.panel)."""
    if "panel" not in images:
        return Html("")
    plot = FIGURES["panel"]
    figure_html = html_figure(images["panel"].png, plot.alt_text(fit), plot.caption)
    return html_section(
        "panel", "How training moves single problems", bullet_list(describe_panels(fit, runs)), figure_html
    )


def _figures_section(fit: FitDocument, images: Mapping[str, RenderedFigure]) -> Html:
    """All figures but those that stand in sections of their own."""
    figures_html = [
        html_figure(images[name].png, plot.alt_text(fit), plot.caption)
        for name, plot in FIGURES.items()
        if name in images and name not in SECTION_FIGURES
    ]
    return html_section(
        "figures", "Figures", tag("p", "Each is in ", tag("code", "figures/"), " as PNG and PDF."), *figures_html
    )


def _recommendations_section(fit: FitDocument) -> Html:
    """What to run at several budgets, inside and beyond the measured range."""
    advice_by_budget = [advise(fit, text_module.measured_budget(fit) * share) for share in BUDGET_SHARES]
    if all(a.n is None for a in advice_by_budget):
        return html_section(
            "recommendations",
            "What to run at other budgets",
            tag("p", f"No allocation is prescribed: {advice_by_budget[0].no_answer_reason}"),
        )
    headings = [
        f"C ({text_module.compute_unit(fit)})",
        "n",
        "B_p",
        "M",
        "used",
        f"expected {fit['metric']}",
        "P(n best)",
        "why",
    ]
    note = "The best measured cell, the smallest B_p that is stable and costs nothing, the rest of the budget to M. Another budget: "
    if fit["mode"] == "paper":
        note = "n from n*(C), the smallest B_p that is stable, and the rest of the budget to M. Another budget: "
    command = tag("code", "isojax recommend RUN --budget C")
    caption = "Recommended allocations at 1/8, 1/2, 1, 2 and 4 times the largest measured C"
    rows = [_recommendation_row(a) for a in advice_by_budget]
    return html_section(
        "recommendations",
        "What to run at other budgets",
        tag("p", note, command, "."),
        html_table(caption, headings, rows, text_columns=(7,)),
    )


def _recommendation_row(advice: Advice) -> list[object]:
    """A budget's row."""
    if advice.n is None or advice.B_p is None:
        return [format_compact(advice.C), *["–"] * 6, advice.no_answer_reason]
    range_html = tag("strong", "Beyond the measured range. ", cls="bad") if advice.extrapolated else "Measured range. "
    M, rollouts_used = ("–", "–") if advice.M is None else (f"{advice.M:,}", f"{advice.B_p * advice.n * advice.M:,}")
    probability_text = (
        format_percent(round(advice.n_probability[advice.n], 2)) if advice.n in advice.n_probability else "–"
    )
    expected = format_reward(advice.reward) + format_interval(advice.low, advice.high)
    return [
        format_compact(advice.C),
        advice.n,
        advice.B_p,
        M,
        rollouts_used,
        expected,
        probability_text,
        join_html([range_html, "; ".join(advice.reasons)], ""),
    ]
