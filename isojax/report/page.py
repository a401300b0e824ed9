"""The report: one HTML file, readable without a server or a network, that leads with the answer and then shows what it rests on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from isojax.report import tables, words
from isojax.report.markup import Raw, bullets, details, document, esc, figure, join, section, table, tag
from isojax.report.words import compact, listed, plural, reward
from isojax.scaling.recommend import Recommendation, recommend
from isojax.types import InputError

Fit = Mapping[str, Any]
BUDGETS = (1 / 8, 1 / 2, 1, 2, 4)
NAVIGATION = {"takeaways": "What to take away", "figures": "Figures", "recommendations": "Recommendations", "evidence": "Evidence"}
NAVIGATION |= {"law": "n*(C)", "rewards": "Rewards", "flags": "Warnings", "provenance": "Settings"}
SAMPLE_LINES, SAMPLE_WIDTH = 12, 300
MODES = {"paper": "the paper's record-breaking points", "debiased": "the debiased fit"}


def render(folder: Path, fit: Fit, images: Mapping[str, bytes]) -> str:
    """The page. `images` holds PNGs under "frontier", "n_star" and, where leads could be tested, "evidence"."""
    answer = _advice(fit, words.measured_to(fit))
    sections = [_answer(fit, answer), _warnings_notice(fit), _takeaways(fit), _figures(fit, images), _recommendations(fit)]
    sections += [tables.evidence(fit, images), tables.law(fit), tables.rewards(fit)]
    sections += [_flags(fit), _samples(folder, answer), _provenance(folder, fit)]
    body = join([_header(folder, fit), tag("main", *sections)])
    return document(f"isojax: {folder.name}", body)


def _advice(fit: Fit, C: float) -> Recommendation | str:
    """The recommendation for C, or why there is none."""
    try:
        return recommend(fit, C=C)
    except InputError as e:
        return str(e)


def _header(folder: Path, fit: Fit) -> Raw:
    ns, B_ps = sorted({r["n"] for r in fit["runs"]}), sorted({r["B_p"] for r in fit["runs"]})
    seeds = len({r["seed"] for r in fit["runs"]})
    facts = (
        f"{plural(len(fit['runs']), 'run')}: B_p = {listed(B_ps)}; n = {listed(ns)}; {plural(seeds, 'seed')}. "
        f"Validation metric {fit['metric']}; compute C in {words.unit(fit)}, up to {compact(words.measured_to(fit))}."
    )
    nav = join([Raw(f'<a href="#{key}">{esc(text)}</a>') for key, text in NAVIGATION.items()])
    return tag("header", tag("h1", f"How to spend C rollouts: {folder.name}"), tag("p", facts, cls="soft"), tag("nav", nav))


def _answer(fit: Fit, answer: Recommendation | str) -> Raw:
    """The headline: what to run with the budget the sweep measured."""
    C = words.measured_to(fit)
    if isinstance(answer, str):
        top = fit["frontier"][-1]
        head = f"At C = {compact(top['C'])} {words.unit(fit)} n = {top['n']} on B_p = {top['B_p']} leads."
        return _card(tag("p", head, cls="headline"), tag("p", f"No allocation is prescribed: {answer}"))
    a = answer.allocation
    head = f"At C = {compact(C)} {words.unit(fit)} spend n = {a.n} on B_p = {a.B_p} for M = {a.M} updates."
    gain = f", from {reward(fit['base_reward'])} for the base policy" if fit["base_reward"] is not None else ""
    then = f"Expected validation {fit['metric']}: {reward(answer.expected_reward)}{gain}."
    short = "n: rollouts a problem; B_p: problems a batch; M: updates; C = B_p · n · M."
    best = [f"n = {c.n} on B_p = {c.B_p} ({reward(c.reward)})" for c in answer.candidates[:3]]
    cells = tag("p", f"Of the measured cells the fitted curves promise most at this budget for {listed(best)}.") if best else Raw("")
    return _card(tag("p", head, cls="headline"), tag("p", then), cells, tag("p", short, cls="soft"))


def _card(*inner: Raw) -> Raw:
    return Raw(f'<section class="answer" aria-label="The answer">{join(inner)}</section>')


def _warnings_notice(fit: Fit) -> Raw:
    if not fit["flags"]:
        return Raw("")
    link = Raw('<a href="#flags">read them</a>')
    return tag(
        "p",
        tag("strong", f"The fit raised {plural(len(fit['flags']), 'warning')}"),
        ": ",
        link,
        " before acting on the answer.",
        cls="warn",
    )


def _takeaways(fit: Fit) -> Raw:
    return section("takeaways", "What to take away", bullets(words.takeaways(fit)))


def _figures(fit: Fit, images: Mapping[str, bytes]) -> Raw:
    crossings = listed([f"{x['n_low']} to {x['n_high']} at C = {compact(x['C'])}" for x in fit["crossovers"]]) or "none"
    first = figure(
        images["frontier"],
        f"Validation {fit['metric']} against C on a log axis, with fitted curves for each n and the frontier. Crossovers: {crossings}.",
        "Validation reward against compute. Dots: evaluations, averaged over seeds; thin lines: each seed; smooth lines: the fitted curve "
        "of each n. The thick line is the frontier, the best any fitted curve reaches at that C, coloured by the n that reaches it; "
        "diamonds mark where one n overtakes another.",
    )
    second = figure(
        images["n_star"],
        f"The compute-optimal n against C, both on log axes. {words.law_in_words(fit['n_star'])}",
        "The n on the frontier against compute, coloured by the reward there, and the fitted law (red; dashed where no run has been).",
    )
    return section("figures", "The two figures", first, second)


def _recommendations(fit: Fit) -> Raw:
    """What to run at several budgets, inside and beyond the measured range."""
    rows: list[list[object]] = []
    for share in BUDGETS:
        C = words.measured_to(fit) * share
        got = _advice(fit, C)
        if isinstance(got, str):
            rows.append([compact(C), "–", "–", "–", "–", "–", got])
            continue
        a = got.allocation
        where = tag("strong", "Beyond the measured range. ", cls="bad") if got.extrapolated else "Measured range. "
        rows.append(
            [compact(C), a.n, a.B_p, f"{a.M:,}", f"{a.C:,}", reward(got.expected_reward), join([where, "; ".join(got.reasons)], "")]
        )
    if not any(row[1] != "–" for row in rows):
        return section("recommendations", "What to run at other budgets", tag("p", f"No allocation is prescribed: {rows[0][-1]}"))
    heads = [f"C ({words.unit(fit)})", "n", "B_p", "M", "rollouts used", f"expected {fit['metric']}", "why"]
    note = "n from n*(C), the smallest B_p that is stable, and the rest of the budget to M. Another budget: "
    command = tag("code", "isojax recommend RUN --budget C")
    caption = "Recommended allocations at 1/8, 1/2, 1, 2 and 4 times the largest measured C"
    return section("recommendations", "What to run at other budgets", tag("p", note, command, "."), table(caption, heads, rows, text=(6,)))


def _flags(fit: Fit) -> Raw:
    text = bullets(fit["flags"]) if fit["flags"] else tag("p", "None: the fit raised no warning.")
    return section("flags", "Warnings", text)


def _samples(folder: Path, answer: Recommendation | str) -> Raw:
    """First and last lines of two cells' samples.txt: the recommended cell's and, of the others, that of the largest n."""
    found = sorted((folder / "cells").glob("*/samples.txt"))
    by_cell = [(name, next(paths)) for name, paths in groupby(found, key=lambda path: path.parent.name.rsplit("-s", 1)[0])]
    if not by_cell:
        return Raw("")
    chosen = None if isinstance(answer, str) else f"{answer.allocation.B_p}x{answer.allocation.n}"
    by_cell.sort(key=lambda pair: (pair[0] != chosen, int(pair[0].partition("x")[2])))
    shown = [by_cell[0][1], *([by_cell[-1][1]] if len(by_cell) > 1 else [])]
    parts = [join([tag("h3", path.parent.name), tag("pre", tag("code", _ends(path)))]) for path in shown]
    where = tag("p", "The first and last lines of two cells; the whole is in ", tag("code", "cells/*/samples.txt"), ".")
    return section("samples", "Sample rollouts", where, *parts)


def _ends(path: Path) -> str:
    """The first and last lines of a file that may be long, each cut to a readable width."""
    with path.open(encoding="utf-8", errors="replace") as f:
        first = [line.rstrip("\n") for line in islice(f, SAMPLE_LINES)]
        last: deque[str] = deque(maxlen=SAMPLE_LINES)
        rest = 0
        for line in f:
            rest += 1
            last.append(line.rstrip("\n"))
    gap = [f"… {plural(rest - len(last), 'line')} left out …"] if rest > len(last) else []
    return "\n".join(line if len(line) <= SAMPLE_WIDTH else line[:SAMPLE_WIDTH] + " …" for line in [*first, *gap, *last])


def _provenance(folder: Path, fit: Fit) -> Raw:
    method = (
        f"Fitted to {MODES.get(fit['mode'], fit['mode'])} (mode {fit['mode']}): a curve for each (B_p, n), their envelope, then n*(C). "
        f"C counts every rollout sampled for training, never validation. Method: IsoCompute Playbook, arXiv:2603.12151, section 4."
    )
    config = folder / "config.yaml"
    shown = (
        [details("config.yaml", tag("pre", tag("code", config.read_text(encoding="utf-8", errors="replace"))))] if config.exists() else []
    )
    again = tag("p", "The numbers behind this page are in ", tag("code", "fit.json"), "; the figures are in ", tag("code", "figures/"), ".")
    return section("provenance", "How this was made", tag("p", method), again, *shown)
