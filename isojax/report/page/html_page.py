"""The report: one HTML file, readable without a server or a network. The recommendation comes first, then the
evidence for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from isojax.core.nouns import RunRecord
from isojax.report.canvas import RenderedFigure
from isojax.report.figures.catalogue import FIGURES
from isojax.report.figures.problem_panel import describe_panels
from isojax.report.fit_views import all_n, measured_budget
from isojax.report.page import explorer, provenance
from isojax.report.page.advice import Advice, advise
from isojax.report.page.charts import plotly_bundle
from isojax.report.page.diagnostics_section import diagnostics_section, flags_section, health_section
from isojax.report.page.evidence_section import evidence_section
from isojax.report.page.findings import main_findings
from isojax.report.page.law_section import law_section
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
from isojax.report.page.rewards_section import rewards_section
from isojax.report.wording import (
    compute_unit,
    format_compact,
    format_count,
    format_interval,
    format_percent,
    format_range,
    format_reward,
    join_list,
)
from isojax.scaling.result import FitResult

BUDGET_SHARES = (1 / 8, 1 / 2, 1, 2, 4)
NAVIGATION_TITLES = {
    "budget": "Allocation for a budget",
    "findings": "Main findings",
    "figures": "Figures",
    "recommendations": "Other budgets",
    "evidence": "Evidence",
    "law": "n*(C)",
    "diagnostics": "Diagnostics",
    "rewards": "Rewards",
    "flags": "Warnings",
    "panel": "Training problems",
    "health": "Broken runs",
    "provenance": "Method and settings",
}
SECTION_FIGURES = ("evidence", "panel")  # figures that have their own sections
Images = Mapping[str, RenderedFigure]


def render(folder: Path, fits: Sequence[FitResult], runs: Sequence[RunRecord], images: Images) -> str:
    """The page. `images` holds the figures that could be drawn, by their names in FIGURES."""
    fit, bundle = fits[0], plotly_bundle()
    advice = advise(fit, measured_budget(fit))
    sections = [
        _answer_card(fit, advice),
        _flags_notice(fit),
        explorer.budget_section(bundle is not None),
        html_section("findings", "Main findings", bullet_list(main_findings(fit))),
        _figures_section(fit, images),
        _recommendations_section(fit),
        evidence_section(fit, images),
        law_section(fit),
        diagnostics_section(fit),
        _panel_section(fit, runs, images),
        health_section(fit),
        rewards_section(fit, runs),
        flags_section(fit),
        provenance.samples_section(folder, advice),
        provenance.provenance_section(folder, fit),
    ]
    body = join_html([_header(folder, fit, sections), tag("main", *sections)])
    content = explorer.page_data(fits, runs, bundle is not None) | {"start": measured_budget(fit)}
    scripts = [*([] if bundle is None else [bundle]), explorer.load_script()]
    return html_document(f"isojax: {folder.name}", body, scripts, explorer.json_for_script(content))


def _header(folder: Path, fit: FitResult, sections: Sequence[Html]) -> Html:
    B_ps, seeds = sorted({run.B_p for run in fit.runs}), len({run.seed for run in fit.runs})
    runs_text = f"{format_count(len(fit.runs), 'run')}: B_p = {join_list(B_ps)}; n = {join_list(all_n(fit))}"
    C_text = f"compute C in {compute_unit(fit)}, up to {format_compact(measured_budget(fit))}"
    facts = f"{runs_text}; {format_count(seeds, 'seed')}. Validation metric {fit.metric}; {C_text}."
    links = [
        Html(f'<a href="#{key}">{escape(title)}</a>')
        for key, title in NAVIGATION_TITLES.items()
        if any(f'id="{key}"' in section for section in sections)
    ]
    title = tag("h1", f"How to spend C {compute_unit(fit)}: {folder.name}")
    return tag("header", title, tag("p", facts, cls="soft"), tag("nav", join_html(links)))


def _answer_card(fit: FitResult, advice: Advice) -> Html:
    """The headline: what to run with the budget that the sweep measured."""
    unit = compute_unit(fit)
    if advice.n is None:
        end = fit.joint.frontier[-1]
        headline = f"At C = {format_compact(end.C)} {unit} n = {end.n} on B_p = {end.B_p} leads."
        reason = f"There is no recommendation for the measured budget: {advice.no_answer_reason}"
        return _card(tag("p", headline, cls="headline"), tag("p", reason))
    updates = "" if advice.M is None else f" for M = {advice.M} updates"
    headline = f"At C = {format_compact(measured_budget(fit))} {unit} run n = {advice.n}, B_p = {advice.B_p}{updates}."
    if fit.joint.n_star.no_effect:
        headline = f"n makes no difference here. {headline}"
    symbols = "n: rollouts per problem; B_p: problems per batch; M: updates; C = B_p · n · M."
    sentences = [tag("p", sentence) for sentence in _answer_sentences(fit, advice)]
    return _card(tag("p", headline, cls="headline"), *sentences, tag("p", symbols, cls="soft"))


def _answer_sentences(fit: FitResult, advice: Advice) -> list[str]:
    """The expected reward, how probable it is that this n is the best, and the n that do as well."""
    base = "" if fit.base_reward is None else f", from {format_reward(fit.base_reward)} for the base policy"
    reward = format_reward(advice.reward) + format_interval((advice.low, advice.high))
    expectation = f"Expected validation {fit.metric}: {reward}{base}."
    if advice.new_run_low is not None:
        expectation += f" One new run will measure {format_range((advice.new_run_low, advice.new_run_high))}."
    sentences = [expectation]
    if advice.n is not None and advice.n in advice.n_probability:
        probability = format_percent(round(advice.n_probability[advice.n], 2))
        sentences.append(f"P(n = {advice.n} is the best) = {probability}.")
    other_n = [n for n in advice.equal_n if n != advice.n]
    if other_n:
        sentences.append(f"As good within the tolerance: n = {join_list(other_n)}.")
    return sentences


def _card(*inner: Html) -> Html:
    return Html(f'<section class="answer" aria-label="The recommendation">{join_html(inner)}</section>')


def _flags_notice(fit: FitResult) -> Html:
    if not fit.flags:
        return Html("")
    link = Html('<a href="#flags">read them</a>')
    return tag("p", f"The fit raised {format_count(len(fit.flags), 'warning')}: ", link, ".", cls="warn")


def _panel_section(fit: FitResult, runs: Sequence[RunRecord], images: Images) -> Html:
    """How single training problems change along training; nothing where no panel was evaluated (cell.eval.panel)."""
    if "panel" not in images:
        return Html("")
    image = html_figure(images["panel"].png, FIGURES["panel"].alt_text(fit), FIGURES["panel"].caption)
    title = "Change of single training problems"
    return html_section("panel", title, bullet_list(describe_panels(fit, runs)), image)


def _figures_section(fit: FitResult, images: Images) -> Html:
    """All figures but those that have their own sections."""
    figures = [
        html_figure(images[name].png, figure.alt_text(fit), figure.caption)
        for name, figure in FIGURES.items()
        if name in images and name not in SECTION_FIGURES
    ]
    place = tag("p", "Each is in ", tag("code", "figures/"), " as PNG and PDF.")
    return html_section("figures", "Figures", place, *figures)


def _recommendations_section(fit: FitResult) -> Html:
    """What to run at several budgets, inside and beyond the measured range."""
    title = "Recommended allocations at other budgets"
    advice_by_budget = [advise(fit, measured_budget(fit) * share) for share in BUDGET_SHARES]
    if all(advice.n is None for advice in advice_by_budget):
        reason = f"There is no recommendation: {advice_by_budget[0].no_answer_reason}"
        return html_section("recommendations", title, tag("p", reason))
    rule = "n is that of the measured cell with the highest expected reward"
    if fit.mode == "paper":
        rule = "n comes from n*(C)"
    rule += ", B_p is the smallest stable one that costs no reward, and M takes the rest of the budget."
    command = tag("code", "isojax recommend RUN --budget C")
    headings = [
        f"C ({compute_unit(fit)})",
        "n",
        "B_p",
        "M",
        "C spent",
        f"expected {fit.metric}",
        "P(n best)",
        "reasons",
    ]
    caption = "Recommended allocations at 1/8, 1/2, 1, 2 and 4 times the largest measured C"
    table = html_table(caption, headings, map(_recommendation_row, advice_by_budget), text_columns=(7,))
    return html_section("recommendations", title, tag("p", rule, " For another budget: ", command, "."), table)


def _recommendation_row(advice: Advice) -> list[object]:
    if advice.n is None or advice.B_p is None:
        return [format_compact(advice.C), *["–"] * 6, advice.no_answer_reason]
    beyond = tag("strong", "Beyond the measured range. ", cls="bad")
    probability = advice.n_probability.get(advice.n)
    return [
        format_compact(advice.C),
        advice.n,
        advice.B_p,
        "–" if advice.M is None else f"{advice.M:,}",
        "–" if advice.M is None else f"{advice.B_p * advice.n * advice.M:,}",
        format_reward(advice.reward) + format_interval((advice.low, advice.high)),
        "–" if probability is None else format_percent(round(probability, 2)),
        join_html([beyond if advice.extrapolated else "Measured range. ", "; ".join(advice.reasons)], ""),
    ]
