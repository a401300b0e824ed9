"""The report: figures/*.png, figures/*.pdf and report.html, one HTML file that needs no server and
no network: the answer, what supports it, and the rest folded.

The same inputs give the same bits; without plotly (extra `report`) the page shows the figures
instead of the charts."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from isojax.core.atomic_files import write_bytes
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.core.terminal import warn
from isojax.core.user_code import describe_exception, note_plugin_file
from isojax.report import wording
from isojax.report.canvas import RenderedFigure, render_figure
from isojax.report.catalogue import FIGURES, draw_figure
from isojax.report.fit_views import all_n, measured_budget
from isojax.report.page import explorer, fit_sections, markup
from isojax.report.page.budget_answers import BudgetAnswer, NoAnswer, answer_budget
from isojax.report.page.law_section import evidence_section, law_section
from isojax.report.page.markup import Html, html_section, tag
from isojax.report.wording import format_compact, format_count, format_interval, format_reward
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.result import FitResult

Images = Mapping[str, RenderedFigure]  # by their names in FIGURES, with JOINT behind some

# The figures that the page begins with. There it shows the joint panel alone, an image of its own
# where there are several B_p; the whole figure stands among the others.
ABOVE = ("frontier", "n_star")
JOINT = ", joint"

OTHER_BUDGETS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4)  # times the measured one


class DrawnFigures(NamedTuple):
    """The figures of a report."""

    images: Images
    failures: Sequence[str]  # a sentence on each figure whose function failed


def render(
    folder: Path,
    fits: Sequence[FitResult],
    runs: Sequence[RunRecord],
    images: Images,
    failures: Sequence[str] = (),
) -> str:
    """The report of a sweep as one HTML document. `folder`: the sweep's, whose name is the title.
    `fits`: the main one first; the user can switch between them. `images`: the figures that could
    be drawn, which the page shows where plotly is not installed or scripts are off. `failures`: a
    sentence on each figure whose function failed."""
    fit = fits[0]
    bundle = explorer.plotly_bundle()
    with_charts = bundle is not None

    # of a sweep that shows nothing there is no n* and no answer for other budgets
    n_star: list[Html] = []
    other_budgets: list[Html] = []
    if not fit.nothing_learnt:
        n_star = [_n_star_section(fit, images, with_charts)]
        other_budgets = [_other_budgets(fit)]

    sections = [
        _answer_card(fit),
        _reward_section(fit, images, with_charts),
        *n_star,
        _budget_controls(with_charts),
        fit_sections.trust_section(fit),
        *other_budgets,
        fit_sections.health_section(folder, fit),
        _other_figures(images),
        *(tag("p", failure, cls="warned") for failure in failures),
        evidence_section(fit),
        law_section(fit),
        fit_sections.rewards_section(fit, runs),
        fit_sections.provenance_section(folder, fit),
    ]
    main = tag("main", *sections)
    body = markup.join_html([_header(folder, fit, main), main])

    # What scripts add: the answer for any budget, and the charts in place of the images.
    content = explorer.page_data(fits, runs, with_charts)
    content["start"] = measured_budget(fit)  # the budget that the slider begins with
    scripts = [markup.read_page_file("page.js")]
    if bundle is not None:
        scripts.insert(0, bundle)
    title = f"isojax: {folder.resolve().name}"
    return markup.html_document(title, body, scripts, explorer.json_for_script(content))


def _header(folder: Path, fit: FitResult, main: Html) -> Html:
    """The head of the page: its title, a line on what was run, and a link to each section. `main`:
    the rest of the page, whose headings the links are made of."""
    unit = wording.UNITS[fit.compute]
    title = tag("h1", f"How to spend C {unit}: {folder.resolve().name}")

    B_ps = wording.join_list(sorted({run.B_p for run in fit.runs}))
    ns = wording.join_list(all_n(fit))
    seeds = format_count(len({run.seed for run in fit.runs}), "seed")
    facts = (
        f"{format_count(len(fit.runs), 'run')}: B_p = {B_ps}; n = {ns}; {seeds}. "
        f"Validation metric {fit.metric}; "
        f"compute C in {unit}, up to {format_compact(measured_budget(fit))}."
    )

    # of the sections as `html_section` writes them; those that are folded have no link
    headings = re.findall(r'<h2 id="(.*?)-title">(.*?)</h2>', main)
    links = [Html(f'<a href="#{section_id}">{heading}</a>') for section_id, heading in headings]
    return tag("header", title, tag("p", facts, cls="soft"), tag("nav", markup.join_html(links)))


def _answer_card(fit: FitResult) -> Html:
    """What to run with the measured budget, in large letters, and what to know of it."""
    headline, sentences = _answer(fit)
    symbols = "n: rollouts per problem; B_p: problems per batch; M: updates; C = B_p · n · M."
    lines = [
        tag("p", headline.replace(" = ", "\xa0=\xa0"), cls="headline"),
        *(tag("p", sentence) for sentence in sentences),
        tag("p", symbols, cls="soft"),
    ]

    warnings = sum(flag.severity != "info" for flag in fit.flags)
    if warnings:
        text = f"The fit raised {format_count(warnings, 'warning')}: "
        link = Html('<a href="#trust">read them</a>')
        lines.append(tag("p", text, link, ".", cls="warned"))

    attributes = 'id="answer" class="answer" aria-label="The answer"'
    return Html(f"<section {attributes}>{markup.join_html(lines)}</section>")


def _answer(fit: FitResult) -> tuple[str, list[str]]:
    """The answer to "what to run with the measured budget?": a headline, and the sentences below
    it. Where no run learnt anything, or nothing can be recommended, they explain that."""
    if fit.nothing_learnt:  # then all curves are flat, at one plateau A
        level = f"{format_reward(fit.curves[0].A)}{format_interval(fit.curves[0].A_interval)}"
        return wording.sentence_of(fit.nothing_learnt), [
            "No n is shown to be better than another, "
            "so there is no frontier, no crossover and no law n*(C).",
            f"{fit.metric}, as all evaluations together show it: {level}.",
        ]

    unit = wording.UNITS[fit.compute]
    answer = answer_budget(fit, measured_budget(fit))
    if isinstance(answer, NoAnswer):
        end = fit.joint.frontier[-1]
        return f"At C = {format_compact(end.C)} {unit} n = {end.n} on B_p = {end.B_p} leads.", [
            f"There is no recommendation for the measured budget: {answer.reason}"
        ]

    budget = f"{format_compact(measured_budget(fit))} {unit}"
    updates = "" if answer.M is None else f" for M = {answer.M} updates"
    headline = f"At C = {budget} run n = {answer.n}, B_p = {answer.B_p}{updates}."
    if fit.joint.n_star.no_effect:
        headline = f"n makes no difference here. {headline}"

    sentences = [_expected_reward_sentence(fit, answer), answer.words]
    if fit.compute == "rollouts":
        sentences += wording.describe_advice(recommend(fit, measured_budget(fit)))
    return headline, sentences


def _expected_reward_sentence(fit: FitResult, answer: BudgetAnswer) -> str:
    reward = format_reward(answer.reward) + format_interval(answer.interval)
    base = ""
    if fit.base_reward is not None:
        base = f", from {format_reward(fit.base_reward)} for the base policy"
    return f"Expected {wording.metric_phrase(fit.metric)}: {reward}{base}."


def _reward_section(fit: FitResult, images: Images, with_charts: bool) -> Html:
    text = f"{fit_sections.describe_n_path(fit)} {fit_sections.describe_gain(fit)}"
    figure = _figure_above("frontier", images, chart_id="chart-reward" if with_charts else "")
    return html_section("reward", "Reward against C", tag("p", text), figure)


def _n_star_section(fit: FitResult, images: Images, with_charts: bool) -> Html:
    text = wording.describe_law(fit.joint)
    figure = _figure_above("n_star", images, chart_id="chart-n-star" if with_charts else "")
    return html_section("n-star", "n* and P(best) against C", tag("p", text), figure)


def _figure_above(name: str, images: Images, chart_id: str) -> Html:
    """The joint panel of a figure, which the chart of page.js replaces where scripts run."""
    image = images.get(f"{name}{JOINT}") or images.get(name)
    png = None if image is None else image.png
    traits = FIGURES[name].traits
    return markup.html_figure(png, traits.alt_text, traits.caption, chart_id)


def _budget_controls(with_charts: bool) -> Html:
    """The slider and what it answers: empty fields, which page.js fills."""
    note = markup.read_page_file("charts.html" if with_charts else "no_charts.html")
    return Html(Template(markup.read_page_file("budget.html")).substitute(note=note))


def _other_budgets(fit: FitResult) -> Html:
    """A table of what to run at some multiples of the measured budget, for readers on paper or
    without scripts, who cannot use the slider."""
    C_low = min(curve.C_low for curve in fit.curves)
    budgets = [measured_budget(fit) * factor for factor in OTHER_BUDGETS]
    answers = [answer_budget(fit, C) for C in budgets if C >= C_low]

    rows = []
    for answer in answers:
        if isinstance(answer, NoAnswer):
            continue
        share_texts = {share.n: share.text for share in answer.shares}
        row = (
            format_compact(answer.C) + ("\xa0*" if answer.extrapolated else ""),
            answer.n,
            answer.B_p,
            "–" if answer.M is None else answer.M,
            format_reward(answer.reward) + format_interval(answer.interval),
            share_texts.get(answer.n, "–"),
        )
        rows.append(row)

    unit = wording.UNITS[fit.compute]
    caption = f"What to run with C {unit} (*: beyond the measured budgets, so extrapolated)"
    headings = ("C", "n", "B_p", "M", f"expected {fit.metric}", "P(best)")
    table = markup.html_table(caption, headings, rows)
    return html_section("other-budgets", "Other budgets", table)


def _other_figures(images: Images) -> Html:
    """The figures that the page did not begin with, and those of which it showed the joint panel
    alone."""
    figures = []
    for name, figure in FIGURES.items():
        is_shown_whole = name in ABOVE and f"{name}{JOINT}" not in images
        if name in images and not is_shown_whole:
            traits = figure.traits
            figures.append(markup.html_figure(images[name].png, traits.alt_text, traits.caption))
    return markup.html_fold("figures", "More figures", *figures) if figures else Html("")


def write_report(folder: Path, fits: Sequence[FitResult], runs: Sequence[RunRecord]) -> Path:
    """Draw the figures and write the page into the sweep's folder, runs/NAME, each file replaced in
    one step; returns the page's path. `fits`: the main one first, then others of the same
    `runs`. InputError where a file is in the way of the folder of figures."""
    figures = _write_figures(folder / "figures", fits[0], runs)
    for failure in figures.failures:
        warn(failure)
    path = folder / "report.html"
    write_bytes(path, render(folder, fits, runs, figures.images, figures.failures).encode())
    return path


def _write_figures(folder: Path, fit: FitResult, runs: Sequence[RunRecord]) -> DrawnFigures:
    """Draw each figure of a fit and write it to `folder` as PNG and PDF; returns them by name, and
    under "NAME, joint" the figures that the page begins with, drawn of the joint frontier alone,
    where there are several B_p. A figure that the fit has no data for, or whose function fails, is
    removed."""
    if folder.exists() and not folder.is_dir():
        raise InputError(
            where=folder,
            found="no folder",
            expected="one for the figures",
            fix="Give the file another name.",
        )
    # the fit with the joint frontier as its only one
    joint_fit = fit.model_copy(update={"by_B_p": (fit.joint,)})

    images: dict[str, RenderedFigure] = {}
    failures: list[str] = []
    for name, report_figure in FIGURES.items():
        drawn: dict[str, RenderedFigure] = {}
        try:
            figure = draw_figure(report_figure, fit, runs)
            if figure is not None:
                drawn[name] = render_figure(figure)
            if figure is not None and name in ABOVE and len(fit.by_B_p) > 1:
                joint_figure = draw_figure(report_figure, joint_fit, runs)
                if joint_figure is not None:
                    drawn[f"{name}{JOINT}"] = render_figure(joint_figure)
        except Exception as e:  # whatever the function of a figure raises, others are drawn
            drawn.clear()
            # so that the description says in which line of the file it was raised
            note_plugin_file(report_figure.file)
            problem = str(e) if isinstance(e, InputError) else describe_exception(e)
            failures.append(f"the report has no figure {name!r} ({report_figure.file}): {problem}")

        png_path = folder / f"{name}.png"
        pdf_path = folder / f"{name}.pdf"
        if name in drawn:
            write_bytes(png_path, drawn[name].png)
            write_bytes(pdf_path, drawn[name].pdf)
        else:  # a picture of an earlier fit must not stay
            png_path.unlink(missing_ok=True)
            pdf_path.unlink(missing_ok=True)
        images |= drawn
    return DrawnFigures(images, failures)
