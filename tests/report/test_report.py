"""The page on a made-up sweep: it states the numbers with their intervals, escapes what it shows,
loads nothing."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.report import wording
from isojax.report.fit_views import frontier_views, measured_budget
from isojax.report.page import html_page, plotly_charts
from isojax.report.page.budget_answers import answer_budget
from isojax.report.page.fit_sections import describe_n_path
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.result import (
    CountedUpdates,
    CrossoverRow,
    FitResult,
    FrontierRow,
    Law,
    NStarFit,
    SchedulePoint,
    ScheduleRow,
    SegmentRow,
)
from tests.scaling.documents import document

pytestmark = pytest.mark.seconds(9)


class _Reader(HTMLParser):
    """Checks that tags close in order; keeps the text and the scripts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.seen: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)
        if tag == "script":
            assert [name for name, _ in attrs if name == "src"] == []
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[-1] += data
        elif self.open[-1:] != ["style"]:
            self.seen.append(data)


def _read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    assert not reader.open
    return reader


def _text(page: str) -> str:
    """What a reader sees: the page without tags (which close in order), entities resolved, blanks
    joined."""
    return re.sub(r"\s+", " ", "".join(_read(page).seen))


def _render(fit: FitResult, runs: Sequence[RunRecord], folder: Path = Path("nowhere")) -> str:
    """The page without figures."""
    return html_page.render(folder, [fit], runs, {})


def _with_joint(fit: FitResult, **changed: Any) -> FitResult:
    """The fit with another joint frontier."""
    return fit.model_copy(update={"joint": fit.joint.model_copy(update=changed)})


def _without_scripts(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.S)


@pytest.fixture(name="html", scope="module")
def _html(made: tuple[Path, FitResult]) -> str:
    return (made[0] / "report.html").read_text(encoding="utf-8")


def test_an_answer_has_the_batches_of_its_updates() -> None:
    """Two batches an update: 195 updates of 16 x 16 at 1e5 rollouts, where one batch makes 390."""
    plain = document()
    counted = [
        run.model_copy(
            update={"updates": CountedUpdates(C=(0, 2000 * run.B_p * run.n), M=(0, 1000))}
        )
        for run in plain.runs
    ]
    dynamic = plain.model_copy(update={"runs": tuple(counted)})
    row = answer_budget(dynamic, 1e5).to_json()
    plain_row = answer_budget(plain, 1e5).to_json()
    assert (row["M"], row["batches"]) == (195, 2.0)
    assert plain_row["M"] == 390 and "batches" not in plain_row


def test_the_page_states_the_answer(made: tuple[Path, FitResult], html: str) -> None:
    fit, text = made[1], _text(html)
    C = measured_budget(fit)
    best = recommend(fit, C)
    a, (low, high) = best.allocation, best.interval or (0, 0)
    assert (
        f"At C = {wording.format_compact(C)} rollouts run n = {a.n}, B_p = {a.B_p} for M = "
        f"{a.M} updates."
    ) in text
    reward = f"{best.expected_reward:.3f} [{low:.3f}, {high:.3f}]"
    assert f"Expected validation avg@4: {reward}, from 0.240 for the base policy." in text
    sentences = wording.describe_advice(best)
    assert (
        len(best.halting_marks) == 2
        and sentences
        and all(sentence in text for sentence in sentences)
    )
    first, second, *_ = fit.joint.crossovers
    bounds = [
        wording.format_compact(x) for x in (first.C, first.low, first.high, second.C, second.low)
    ]
    assert (
        f"2 → 4 near C = {bounds[0]} [{bounds[1]}, {bounds[2]}], 4 → 8 near C = {bounds[3]} "
        f"[{bounds[4]}, open]"
    ) in text
    rows = re.search(r"Fitted n\*\(C\)</caption>.*?</table>", html, re.S)
    assert rows is not None
    # L, k, log10 C0, b, n* at three C
    for number in ("2.20", "3.10", "4.25", "1.90", "3.85", "7.58", "16.4"):
        assert f">{number}</td>" in rows[0]
    intervals = re.search(r"Intervals of the best measured n</caption>.*?</table>", html, re.S)
    assert intervals is not None
    band = fit.joint.n_star.band
    assert band is not None
    for row in (band[0], band[len(band) // 2], band[-1]):
        assert (
            f">{wording.format_compact(row.low)} to {wording.format_compact(row.high)}</td>"
            in intervals[0]
        )
    assert f"{2**1.9:.3g} at small budgets to {2**4.1:.3g} at large ones" in text


def test_diagnostics_are_said_in_words(html: str) -> None:
    text = _text(html)
    assert (
        "Reduced χ² is 1.07 over 211 degrees of freedom: the misfit is what noise explains" in text
    )
    assert (
        "The plateau is beyond the data (*), so do not read A alone, for B_p × n = 8 × 32 and "
        "16 × 32."
    ) in text
    assert "0.600 [0.585, 0.618]" in text  # A of 8x2
    assert (
        "Intervals hold 90% of 40 replicates (bootstrap over seeds and problems; seed 0)." in text
    )
    assert (
        "At C = 250k rollouts the reward ranges over 0.092 [0.071, 0.113] with n (at B_p = 16)"
        in text
    )
    assert "and 0.019 [0.004, 0.030] with B_p (at n = 8)." in text


def test_health_says_by_what_it_is_known(make_sweep: Any) -> None:
    text = _text(_render(*make_sweep(B_ps=(16,), ns=(4, 8))))
    assert "No run is flagged: by what was recorded, none collapsed, exploded, was cut off" in text


def test_the_page_is_named_after_its_folder_from_within(
    make_sweep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = _render(*make_sweep(B_ps=(16,), ns=(4, 8)), folder=Path())
    assert f"<title>isojax: {tmp_path.name}</title>" in page
    assert f"How to spend C rollouts: {tmp_path.name}" in _text(page)


def test_no_effect_leads_the_page(make_sweep: Any) -> None:
    fit, runs = make_sweep(B_ps=(16,), ns=(4, 8))
    no_effect = NStarFit(law=Law("constant", 0.0, 0.0, None, 2.5), no_effect=True)
    text = _text(_render(_with_joint(fit, n_star=no_effect), runs))
    assert "n makes no difference here. At C = " in text
    assert "no n is shown to be better than another" in text
    assert "constant (n makes no difference)" in text


def test_ends_of_data_are_not_called_a_rise_of_n(make_sweep: Any) -> None:
    """Runs of equally many updates leave the largest n alone at large C, which is not evidence that
    n* rises."""
    fit, _ = make_sweep(B_ps=(16,), ns=(4, 8))
    frontier = tuple(
        FrontierRow(n=n, B_p=16, C=C, reward=0.5) for n, C in ((4, 1e3), (8, 1e4), (16, 1e5))
    )
    fit = _with_joint(fit, frontier=frontier)
    first = CrossoverRow(n_low=4, n_high=8, C=5e3, low=4e3, high=None)
    second = first.model_copy(update={"n_low": 8, "n_high": 16})
    sentence = describe_n_path(_with_joint(fit, crossovers=(first, second)))
    assert (
        sentence.startswith("The best n rises with the budget: 4 → 8 near")
        and "data end" not in sentence
    )
    sentence = describe_n_path(_with_joint(fit, crossovers=(first,)))
    assert sentence.endswith("overtakes it later. Its other changes are where data end or begin.")
    sentence = describe_n_path(_with_joint(fit, crossovers=()))
    assert sentence.startswith("The leading n changes (4 → 8 → 16) only where data end or begin")
    assert "rises" not in sentence
    up_and_down = tuple(FrontierRow(C=1e3, reward=0.5, n=n, B_p=8) for n in (2, 2, 4, 2, 8))
    sentence = describe_n_path(_with_joint(fit, frontier=up_and_down, crossovers=(first,)))
    assert "not in rising order (2 → 4 → 2 → 8)" in sentence


def test_what_is_shown_is_escaped(html: str) -> None:
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert html.count("&lt;script&gt;") == 2  # the config, a flag
    reader = _read(html)
    assert len(reader.scripts) == 3  # the data, plotly, page.js
    assert not re.search("[<>&\u2028\u2029]", reader.scripts[0])
    for script in reader.scripts[1:]:
        assert "<!--" not in script


def test_the_page_loads_nothing(html: str) -> None:
    still = _without_scripts(html)
    loads = re.findall(
        r"""(?:src|href)\s*=\s*["']?([^"'\s>]{0,20})|url\(([^)]*)\)|(@import)""", still
    )
    assert loads
    for attribute, url, imported in loads:
        assert not url
        assert not imported
        assert attribute.startswith(("data:image/png", "#")), attribute
    assert "http://" not in still
    assert "https://" not in still


def test_the_policy_allows_its_own_scripts_alone(html: str) -> None:
    import base64
    import hashlib

    policy = re.search('Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    allowed = set(re.findall(r"'sha256-([^']*)'", policy[1]))
    assert allowed == {
        base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        for code in _read(html).scripts[1:]
    }
    assert policy[1].startswith("default-src 'none';")
    assert "unsafe" not in policy[1].replace("style-src 'unsafe-inline'", "")


def test_every_image_has_words_and_every_table_heads(html: str) -> None:
    still = _without_scripts(html)
    assert len(re.findall(r'<img alt="[^"]{40,}"', still)) == still.count("<img") == 6
    assert still.count("<table>") == still.count("<caption>")
    assert not re.search(r"<th(?! scope=)[ >]", still)
    assert still.count("<h1>") == 1
    for link in re.findall('href="#([^"]+)"', still):
        assert f'id="{link}"' in still
    for control in ("select", "input"):
        assert len(
            re.findall(f"<label[^>]*>[^/]*(?:<span.*?</span>\\s*)*<{control} ", still, re.S)
        ) == still.count(f"<{control} ")


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_stands_out_from_its_ground(html: str, scheme: int) -> None:
    """WCAG 2's contrast of 4.5 for every colour of text, light and dark."""

    def luminance(colour: str) -> float:
        shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    block = re.findall(r":root {[^}]*--ink[^}]*}", html)[scheme]
    tokens = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
    assert len(tokens) == 9
    for ground in ("paper", "card"):
        for text in ("ink", "soft", "accent", "good", "bad"):
            low, high = sorted((luminance(tokens[text]), luminance(tokens[ground])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_the_table_behind_the_slider_is_recommends(made: tuple[Path, FitResult], html: str) -> None:
    fit = made[1]
    data = json.loads(_read(html).scripts[0])
    assert [f["mode"] for f in data["fits"]] == ["hierarchical", "as in the paper", "hierarchical"]
    views = data["fits"][0]["views"]
    assert [view["name"] for view in views] == ["the best of all", "8", "16"]
    for view, fixed in zip(views, (None, {"B_p": 8}, {"B_p": 16}), strict=True):
        rows = view["rows"]
        assert 140 <= len(rows) <= 153
        assert rows[0]["C"] == 1024
        assert rows[-1]["C"] == 4 * max(run.C_max for run in fit.runs)
        for row in rows[::30]:
            got = recommend(fit, row["C"], fix=fixed)
            assert (row["n"], row["B_p"], row["M"]) == (
                got.allocation.n,
                got.allocation.B_p,
                got.allocation.M,
            )
            assert row["reward"] == f"{got.expected_reward:.3f}"
            assert row["interval"] == "{:.3f} to {:.3f}".format(*(got.interval or ()))
            assert row["extrapolated"] is got.extrapolated
    assert data["fits"][1]["views"][0]["rows"][0]["interval"] == ""


def test_the_charts_traces_are_plotlys(make_sweep: Any) -> None:
    """plotly's own validator takes every trace and layout; text from logs is escaped in them."""
    from plotly.graph_objects import Figure

    fit, runs = make_sweep(metric="<b>avg</b>")
    for view in frontier_views(fit):
        traces = [
            cell["trace"] for cell in plotly_charts.cell_traces(fit, runs)
        ] + plotly_charts.frontier_traces(fit, view)
        layout = plotly_charts.layouts(fit, runs)
        Figure(data=traces, layout=layout["reward"])
        Figure(data=plotly_charts.law_traces(view), layout=layout["law"])
        assert layout["reward"]["yaxis"]["title"]["text"].startswith("&lt;b&gt;avg&lt;/b&gt;")


def test_ticks_are_labelled_as_budgets() -> None:
    assert plotly_charts.budget_ticks(950.0, 12_000.0) == {
        "tickvals": [1e3, 2e3, 5e3, 1e4],
        "ticktext": ["1k", "2k", "5k", "10k"],
    }
    assert plotly_charts.budget_ticks(900.0, 1e7)["ticktext"] == ["1k", "10k", "100k", "1M", "10M"]


def test_the_charts_say_where_data_end_and_where_the_base_policy_is(make_sweep: Any) -> None:
    fit, runs = make_sweep()
    reward, law = (plotly_charts.layouts(fit, runs)[name]["meta"] for name in ("reward", "law"))

    assert reward["measured_to"] == law["measured_to"] == max(run.C_max for run in fit.runs)
    assert reward["base"] == pytest.approx(fit.base_reward, abs=1e-5) and law["base"] is None


def test_every_n_has_its_probability() -> None:
    assert wording.every_n_share({8: 0.9961, 4: 0.0039, 16: 0.0}) == [
        (4, "<1%", 0.004),
        (8, "100%", 0.996),
        (16, "<1%", 0.0),
    ]


@pytest.mark.parametrize(
    ("metric", "phrase"),
    [
        ("avg@4", "validation avg@4"),
        ("hard/avg@4", "validation hard/avg@4"),
        ("val/acc", "val/acc"),
        ("val-core/gsm8k/acc/mean@1", "val-core/gsm8k/acc/mean@1"),
        ("eval_reward", "eval_reward"),
        ("medieval/acc", "validation medieval/acc"),
    ],
)
def test_a_metric_is_not_called_validation_twice(metric: str, phrase: str) -> None:
    assert wording.metric_phrase(metric) == phrase


def test_the_charts_show_runs_whose_n_grew(make_sweep: Any) -> None:
    from plotly.graph_objects import Figure

    fit, runs = make_sweep()
    points = tuple(
        SchedulePoint(C=C, reward=y, best_fixed=0.5, n=4, B_p=16)
        for C, y in ((2e3, 0.6), (2e4, 0.99))
    )
    row = ScheduleRow(name="<i>", stages="16x4, 16x8 from 9", seeds=(0,), evaluations=(2,),
        points=points, gain=None,
                      interval=None)  # fmt: skip
    without_points = row.model_copy(update={"name": "unmeasured", "points": ()})
    fit = fit.model_copy(update={"schedules": (row, without_points)})
    assert len(fit.by_B_p) > 1
    for view in frontier_views(fit):
        traces = plotly_charts.frontier_traces(fit, view)
        Figure(data=traces)
        shown = [trace for trace in traces if trace["meta"].get("role") == "schedule"]
        assert len(shown) == (view.B_p is None)  # as in the figure, in the view of all B_p alone
        for trace in shown:
            assert (trace["name"], trace["x"], trace["y"]) == ("&lt;i&gt;", [2e3, 2e4], [0.6, 0.99])
            assert trace["hovertext"][1].startswith(
                "<b>&lt;i&gt;: 16x4, 16x8 from 9</b><br>C = 20k: measured 0.990"
            )
    assert plotly_charts.layouts(fit, runs)["reward"]["yaxis"]["range"][1] > 0.99


def test_without_plotly_the_page_says_which_extra(
    make_sweep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    page = _render(*make_sweep(B_ps=(16,), ns=(4, 8)))
    assert "install the extra isojax[report] (plotly)" in _text(page)
    assert len(_read(page).scripts) == 2  # the data and page.js
    assert len(page) < 300_000


def test_one_cell_alone(make_sweep: Any) -> None:
    """No crossover, no rival, no base reward, no samples: the page says so rather than fail."""
    fit, runs = make_sweep(B_ps=(16,), ns=(8,), seeds=1)
    constant = NStarFit(law=Law("constant", 0.0, 0.0, None, 3.0), no_effect=False)
    untested = {"measured_for_neighbours": False, "lead": None, "se": None, "z": None, "at_C": None}
    segment = fit.joint.segments[0].model_copy(update=untested)
    single = fit.by_B_p[0].model_copy(update={"n_star": constant, "segments": (segment,)})
    fit = _with_joint(fit, n_star=constant, segments=(segment,))
    fit = fit.model_copy(update={"by_B_p": (single,), "base_reward": None})
    text = _text(_render(fit, runs))
    assert "Only n = 8 was run." in text and "Validation avg@4 reaches 0." in text
    assert "n* = 8 at every C: the data do not show it to change." in text
    assert "Nothing to compare with: this cell leads everywhere" in text


@pytest.mark.parametrize("compute", ["tokens", "device_hours"])
def test_other_measures_of_compute(make_sweep: Any, compute: str) -> None:
    fit, runs = make_sweep(B_ps=(16,), ns=(4, 16))
    fit = fit.model_copy(update={"compute": compute})
    text = _text(_render(fit, runs))
    assert wording.UNITS[fit.compute] in text
    assert " run n = " in text


def test_a_budget_without_an_allocation_is_said_in_words(
    make_sweep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("C = 3 buys no update")

    monkeypatch.setattr("isojax.report.page.budget_answers.recommend", refuse)
    fit, runs = make_sweep(B_ps=(16,), ns=(4, 16))
    assert "There is no recommendation for the measured budget: C = 3 buys no update" in _text(
        _render(fit, runs)
    )


def _segment(**changed: Any) -> SegmentRow:
    location = {
        "n": 4,
        "B_p": 16,
        "C_low": 1e3,
        "C_high": 1e4,
        "at_C": 3e3,
        "censored_low": False,
        "censored_high": False,
    }
    evidence = {
        "neighbours": ({"n": 8, "B_p": 16},),
        "measured_for_neighbours": True,
        "lead": 0.02,
        "se": 0.005,
    }
    return SegmentRow.model_validate(location | evidence | {"decades": 0.5, "z": 4.0} | changed)


def test_verdicts() -> None:
    assert wording.segment_verdict(_segment()) == (
        True,
        "Holds: 0.50 decade long, ahead by 4.0 standard errors",
    )
    assert wording.segment_verdict(_segment(decades=0.2, z=2.0))[0]
    assert wording.segment_verdict(_segment(decades=0.19)) == (
        False,
        "Not shown: only 0.19 decade long (under 0.2)",
    )
    assert wording.segment_verdict(
        _segment(measured_for_neighbours=False, lead=None, se=None, z=None)
    )[1] == ("Not shown: not measured for every neighbour; lead not testable")
    assert wording.segment_verdict(_segment(has_counts=False, lead=None, se=None, z=None)) == (
        None,
        "Not judged: the right answers of single problems are not recorded",
    )
    assert wording.segment_verdict(_segment(z=1.9)) == (
        False,
        "Not shown: lead under two standard errors",
    )
    assert wording.segment_verdict(_segment(lead=-0.01, z=-2.0)) == (
        False,
        "Not shown: not ahead of its rival in the evaluations",
    )


def test_numbers_in_words() -> None:
    assert [
        wording.format_compact(x) for x in (250_000, 999_950, 1_234_567, 950, 0.05123, None)
    ] == [
        "250k",
        "1M",
        "1.23M",
        "950",
        "0.0512",
        "–",
    ]
    assert wording.join_list([2]) == "2"
    assert wording.join_list([2, 4, 8]) == "2, 4 and 8"


def test_a_laptop_needs_no_jax() -> None:
    absent = ("jax", "flax", "plotly", "matplotlib.pyplot")
    code = (
        "import sys, isojax.report.page.html_page; sys.exit(any(m in sys.modules for m in "
        f"{absent}))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2]
        ).returncode
        == 0
    )


def test_the_end_of_each_cell_on_extra_sets(make_sweep: Any) -> None:
    """Right answers 1 and 3 of 4 with seed 1000, 3 and 3 with seed 1001: .500 and .750, .625 on
    average."""
    fit, runs = make_sweep(B_ps=(16,), ns=(4, 8))
    counts = {1000: (1, 3), 1001: (3, 3)}
    measured = []
    for run in runs:
        end = dataclasses.replace(run.points[-1], samples=4, extra={"hard": counts[run.cell.seed]})
        measured.append(dataclasses.replace(run, points=(*run.points[:-1], end)))
    without, of_some, of_all = (
        _render(fit, some) for some in (runs, [*measured[1:], runs[0]], measured)
    )
    # what is not known of every run is left out
    assert "hard/avg@4" not in without and of_some == without
    assert "final of each seedhard/avg@4, finalC reached" in _text(of_all)
    assert of_all.count(">0.625<") - without.count(">0.625<") == 2
