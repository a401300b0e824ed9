"""The report: figures/*.png, figures/*.pdf and report.html, one HTML file that needs no server and
no network: the answer, what supports it, and the rest folded. The same inputs give the same bits;
without plotly (extra `report`) the page shows the figures instead of the charts."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from isojax.core.atomic_files import write_bytes
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.report import wording
from isojax.report.canvas import RenderedFigure, render_figure
from isojax.report.figures.catalogue import FIGURES
from isojax.report.fit_views import all_n, measured_budget
from isojax.report.page import explorer, fit_sections, markup
from isojax.report.page.law_section import evidence_section, law_section
from isojax.report.page.markup import Html, html_section, tag
from isojax.report.wording import format_compact, format_count, format_interval, format_reward
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.result import FitResult

Images = Mapping[str, RenderedFigure]
# what the page begins with; of several B_p their joint panel alone
ABOVE = ("frontier", "n_star")
JOINT = ", joint"
OTHER_BUDGETS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4)  # times the measured one


def render(
    folder: Path, fits: Sequence[FitResult], runs: Sequence[RunRecord], images: Images
) -> str:
    """The page. `images` holds the figures that could be drawn, by their names in FIGURES."""
    fit, bundle = fits[0], explorer.plotly_bundle()
    budget_controls = Template(markup.read_page_file("budget.html"))  # page.js fills them
    note = markup.read_page_file("no_charts.html" if bundle is None else "charts.html")
    sections = [
        _answer_card(fit),
        _figure_section("reward", fit, images, bundle is not None),
        *(
            []
            if fit.nothing_learnt
            else [_figure_section("n-star", fit, images, bundle is not None)]
        ),
        Html(budget_controls.substitute(note=note)),
        fit_sections.trust_section(fit),
        *([] if fit.nothing_learnt else [_other_budgets(fit)]),
        fit_sections.health_section(folder, fit),
        _other_figures(images),
        evidence_section(fit),
        law_section(fit),
        fit_sections.rewards_section(fit, runs),
        fit_sections.provenance_section(folder, fit),
    ]
    main = tag("main", *sections)
    body = markup.join_html([_header(folder, fit, main), main])
    content = explorer.page_data(fits, runs, bundle is not None) | {"start": measured_budget(fit)}
    scripts = [*([] if bundle is None else [bundle]), markup.read_page_file("page.js")]
    return markup.html_document(
        f"isojax: {folder.resolve().name}", body, scripts, explorer.json_for_script(content)
    )


def _header(folder: Path, fit: FitResult, main: Html) -> Html:
    B_ps = sorted({run.B_p for run in fit.runs})
    seeds = len({run.seed for run in fit.runs})
    unit = wording.UNITS[fit.compute]
    facts = (
        f"{format_count(len(fit.runs), 'run')}: B_p = {wording.join_list(B_ps)}; n = {wording.join_list(all_n(fit))}; "
        f"{format_count(seeds, 'seed')}. Validation metric {fit.metric}; compute C in {unit}, up to "
        f"{format_compact(measured_budget(fit))}."
    )
    headings = re.findall(r'<h2 id="(.*?)-title">(.*?)</h2>', main)
    links = [Html(f'<a href="#{section_id}">{title}</a>') for section_id, title in headings]
    title = tag("h1", f"How to spend C {unit}: {folder.resolve().name}")
    return tag("header", title, tag("p", facts, cls="soft"), tag("nav", markup.join_html(links)))


def _answer_card(fit: FitResult) -> Html:
    unit = wording.UNITS[fit.compute]
    row = explorer.answer_row(fit, measured_budget(fit))
    if fit.nothing_learnt:
        headline = wording.sentence_of(fit.nothing_learnt)
        reward = format_interval(fit.curves[0].A_interval)
        sentences = [
            "No n is shown to be better than another, so there is no frontier, no crossover and no law n*(C).",
            f"{fit.metric}, as all evaluations together show it: {format_reward(fit.curves[0].A)}{reward}.",
        ]
    elif "why" in row:
        end = fit.joint.frontier[-1]
        headline = f"At C = {format_compact(end.C)} {unit} n = {end.n} on B_p = {end.B_p} leads."
        sentences = [f"There is no recommendation for the measured budget: {row['why']}"]
    else:
        updates = f" for M = {row['M']} updates" if "M" in row else ""
        C_text = f"{format_compact(measured_budget(fit))} {unit}"
        headline = f"At C = {C_text} run n = {row['n']}, B_p = {row['B_p']}{updates}."
        if fit.joint.n_star.no_effect:
            headline = f"n makes no difference here. {headline}"
        base = (
            ""
            if fit.base_reward is None
            else f", from {format_reward(fit.base_reward)} for the base policy"
        )
        reward = row["reward"] + format_interval((row["low"], row["high"]))
        sentences = [f"Expected {wording.metric_phrase(fit.metric)}: {reward}{base}.", row["words"]]
        if fit.compute == "rollouts":
            sentences += wording.describe_advice(recommend(fit, measured_budget(fit)))
    symbols = tag(
        "p",
        "n: rollouts per problem; B_p: problems per batch; M: updates; C = B_p · n · M.",
        cls="soft",
    )
    headline = headline.replace(" = ", "\xa0=\xa0")
    lines = [
        tag("p", headline, cls="headline"),
        *(tag("p", sentence) for sentence in sentences),
        symbols,
    ]
    if warnings := sum(flag.severity != "info" for flag in fit.flags):
        link = Html('<a href="#trust">read them</a>')
        lines.append(
            tag(
                "p",
                f"The fit raised {format_count(warnings, 'warning')}: ",
                link,
                ".",
                cls="warned",
            )
        )
    return Html(
        f'<section id="answer" class="answer" aria-label="The answer">{markup.join_html(lines)}</section>'
    )


def _figure_section(section_id: str, fit: FitResult, images: Images, with_charts: bool) -> Html:
    if section_id == "reward":
        name, title = "frontier", "Reward against C"
        sentences = [fit_sections.describe_n_path(fit), fit_sections.describe_gain(fit)]
    else:
        name = "n_star"
        title = "n* and P(best) against C"
        sentences = [wording.describe_law(fit.joint)]
    image, spec = images.get(f"{name}{JOINT}") or images.get(name), FIGURES[name]
    png = None if image is None else image.png
    chart_id = f"chart-{section_id}" if with_charts else ""
    figure = markup.html_figure(png, spec.alt_text, spec.caption, chart_id)
    return html_section(section_id, title, tag("p", " ".join(sentences)), figure)


def _other_budgets(fit: FitResult) -> Html:
    """What the slider answers at some budgets: for paper, and where scripts are off."""
    measured, C_low = measured_budget(fit), min(curve.C_low for curve in fit.curves)
    answers = [
        explorer.answer_row(fit, measured * factor)
        for factor in OTHER_BUDGETS
        if measured * factor >= C_low
    ]
    rows = []
    for row in answers:
        if "why" not in row:
            C_text = format_compact(row["C"]) + "\xa0*" * row["extrapolated"]
            reward = format_reward(row["y"])
            share = {n: text for n, text, _ in row["probabilities"]}.get(row["n"], "–")
            interval = format_interval((row["low"], row["high"]))
            rows.append(
                [C_text, row["n"], row["B_p"], row.get("M", "–"), f"{reward}{interval}", share]
            )
    headings = ("C", "n", "B_p", "M", f"expected {fit.metric}", "P(best)")
    caption = f"What to run with C {wording.UNITS[fit.compute]} (*: beyond the measured budgets, so extrapolated)"
    return html_section(
        "other-budgets", "Other budgets", markup.html_table(caption, headings, rows)
    )


def _other_figures(images: Images) -> Html:
    names = [
        name
        for name in images
        if name in FIGURES and (name not in ABOVE or f"{name}{JOINT}" in images)
    ]
    specs = [(images[name].png, FIGURES[name]) for name in names]
    figures = [markup.html_figure(png, spec.alt_text, spec.caption) for png, spec in specs]
    return markup.html_fold("figures", "More figures", *figures) if figures else Html("")


def write_report(folder: Path, fits: Sequence[FitResult], runs: Sequence[RunRecord]) -> Path:
    """Draw the figures and write the page into the sweep's folder, runs/NAME, each file replaced in
    one step; returns the page's path. `fits`: the main one first, then others of the same
    `runs`."""
    figures = folder / "figures"
    if figures.exists() and not figures.is_dir():
        raise InputError(
            f"{figures} is no folder; expected one for the figures. Give the file another name."
        )
    images: dict[str, RenderedFigure] = {}
    for name, spec in FIGURES.items():
        png, pdf = figures / f"{name}.png", figures / f"{name}.pdf"
        figure = spec.draw(fits[0], runs)
        if figure is None:  # a picture of an earlier fit must not stay
            png.unlink(missing_ok=True)
            pdf.unlink(missing_ok=True)
        else:
            images[name] = render_figure(figure)
            write_bytes(png, images[name].png)
            write_bytes(pdf, images[name].pdf)
            if name in ABOVE and len(fits[0].by_B_p) > 1:
                joint_figure = spec.draw(
                    fits[0].model_copy(update={"by_B_p": (fits[0].joint,)}), runs
                )
                images |= (
                    {} if joint_figure is None else {f"{name}{JOINT}": render_figure(joint_figure)}
                )
    path = folder / "report.html"
    write_bytes(path, render(folder, fits, runs, images).encode())
    return path
