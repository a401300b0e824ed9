"""How the page is laid out, in a real Chromium: the order of its sections, nothing cut off at 1280
px, on a phone or on paper, type that can be read on a phone, and four printed pages.
"""

from __future__ import annotations

import base64
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from isojax.scaling.result import FitResult
from tests.report.chromium import needs_chromium, set_screen

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.seconds(30)]

ORDER = ["answer", "reward", "n-star", "budget", "trust", "other-budgets", "health"]
FOLDED = ["figures", "evidence", "law", "rewards", "provenance"]
# What leaves the page or its own box; boxes that scroll (.scroll, pre) may hold more than they
# show.
CUT_OFF = """
const text = (e) => (e.textContent || '').trim();
const name = (e) => `${e.tagName}.${e.className.baseVal ?? e.className} ${text(e).slice(0, 40)}`;
const unseen = '.unseen, script, .modebar, #js-plotly-tester, defs, clipPath';
const isTooWide = (e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1;
const leaves = (box, outer) => box.left < outer.left - 1 || box.right > outer.right + 1
  || box.top < outer.top - 1 || box.bottom > outer.bottom + 1;
const wrong = [], wide = document.scrollingElement.scrollWidth;
if (wide > innerWidth) wrong.push(`the page is ${wide} px wide`);
for (const e of document.querySelectorAll('body *')) {
  const box = e.getBoundingClientRect();
  if (!box.width || !box.height || e.closest(unseen)) continue;
  const scrolls = e.closest('.scroll, pre');
  if (!scrolls && (box.right > innerWidth + 1 || box.left < -1))
    wrong.push(`beyond the page: ${name(e)}`);
  const hides = getComputedStyle(e).overflowX !== 'visible';
  if (hides && !scrolls && !(e instanceof SVGElement) && isTooWide(e))
    wrong.push(`cut off by itself: ${name(e)}`);
  if (e.tagName === 'text' && text(e) && leaves(box, e.ownerSVGElement.getBoundingClientRect()))
    wrong.push(`beyond its drawing: ${name(e)}`);
}
const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
for (const chart of document.querySelectorAll('.chart')) {
  const texts = [...chart.querySelectorAll('.xtick text, .xtitle, .legendtext')].filter(text);
  const boxes = texts.map((e) => e.getBoundingClientRect());
  boxes.forEach((a, i) => boxes.slice(0, i).forEach((b, j) => {
    if (meet(a, b)) wrong.push(`one over the other: ${name(texts[i])} and ${name(texts[j])}`);
  }));
}
for (const e of document.querySelectorAll('.scroll')) {
  if ((arguments[0] || e.closest('#other-budgets')) && isTooWide(e))
    wrong.push(`scrolls: ${e.getAttribute('aria-label')}`);
}
return wrong"""
# The sizes of all prose: text outside drawings, tables and the config.
SMALL_TEXT = """
const seen = {};
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
  if (!own || !e.getClientRects().length || e.closest('svg, script, pre, .unseen')) continue;
  const size = parseFloat(getComputedStyle(e).fontSize);
  if (size < 14) seen[`${e.tagName} ${size}`] = e.textContent.trim().slice(0, 40);
}
return seen"""
DRAWN = (
    "return [...document.querySelectorAll('.chart')].every((c) => c.querySelector('.main-svg "
    ".xtick text'))"
)


@pytest.fixture(name="page", scope="module", params=["made", "made_large"])
def _page(request: pytest.FixtureRequest) -> str:
    made = request.getfixturevalue(request.param)
    folder: Path = made[0] if isinstance(made, tuple) else made
    return (folder / "report.html").as_uri()


def _open(browser: Any, page: str, **screen: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    set_screen(browser, **screen)
    browser.get(page)
    WebDriverWait(browser, 10).until(lambda b: b.execute_script(DRAWN))


def _unfold(browser: Any) -> None:
    browser.execute_script(
        "document.querySelectorAll('details').forEach((fold) => { fold.open = true; })"
    )


def test_the_sections_are_in_order(browser: Any, page: str) -> None:
    _open(browser, page, width=1280)
    script = (
        "return [...document.querySelectorAll('main > *')].map((e) => [e.id, e.tagName, "
        "e.getBoundingClientRect().top])"
    )
    rows = [row for row in browser.execute_script(script) if row[0]]
    assert [row[0] for row in rows] == ORDER + FOLDED
    assert [row[1] for row in rows] == ["SECTION"] * len(ORDER) + ["DETAILS"] * len(FOLDED)
    tops = [row[2] for row in rows]
    assert tops == sorted(tops)
    assert (
        browser.execute_script("return document.querySelectorAll('main > details[open]').length")
        == 0
    )
    links = "return [...document.querySelectorAll('nav a')].map((e) => e.hash.slice(1))"
    assert browser.execute_script(links) == ORDER[1:]
    # the answer needs no scrolling, on a phone neither
    assert (
        browser.execute_script(
            "return document.querySelector('.headline').getBoundingClientRect().bottom"
        )
        < 900
    )


@pytest.mark.parametrize("width", [1280, 375])
def test_nothing_is_cut_off(browser: Any, page: str, width: int) -> None:
    _open(browser, page, width=width)
    assert browser.execute_script(CUT_OFF, width == 1280) == []
    _unfold(browser)
    assert browser.execute_script(CUT_OFF, width == 1280) == []


def test_a_phone_shows_type_that_can_be_read(browser: Any, page: str) -> None:
    _open(browser, page, width=375)
    _unfold(browser)
    assert browser.execute_script(SMALL_TEXT) == {}
    headline = "return document.querySelector('.headline').getBoundingClientRect().bottom"
    assert browser.execute_script(headline) < 812  # on the first screen


def test_a_link_opens_its_fold(browser: Any, page: str) -> None:
    _open(browser, page, width=1280)
    browser.execute_script("document.querySelector('main a[href=\"#evidence\"]').click()")
    assert browser.execute_script("return document.getElementById('evidence').open")


def _printed_pages(pdf: bytes) -> tuple[list[int], int]:
    """How many texts each page has; and how many figures there are."""
    objects = {int(m[1]): m[2] for m in re.finditer(rb"(\d+) 0 obj\s(.*?)endobj", pdf, re.S)}
    texts, figures = [], 0
    for body in objects.values():
        head = body.partition(b"stream")[0]
        width = re.search(rb"/Width (\d+)", head)
        figures += b"/Subtype /Image" in head and width is not None and int(width[1]) > 1000
        if re.search(rb"/Type\s*/Page\b(?!s)", body):
            contents = re.search(rb"/Contents\s*(\d+)", body)
            assert contents is not None
            content = zlib.decompress(
                objects[int(contents[1])].partition(b"stream")[2].lstrip(b"\r\n")
            )
            texts.append(len(re.findall(rb"T[jJ]\b", content)))
    return texts, figures


def test_it_prints_on_four_pages(browser: Any, page: str) -> None:
    _open(browser, page, width=1280)
    a4 = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": False}
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", a4)["data"])
    texts, figures = _printed_pages(pdf)
    assert 1 <= len(texts) <= 4 and min(texts) >= 10, texts
    assert figures == 2  # reward against C, n* with P(best)


def test_paper_cuts_nothing_off(browser: Any, page: str) -> None:
    """At the width of A4 within its margins, with the colours of paper however dark the screen
    is."""
    _open(browser, page, width=680, media="print", scheme="dark")
    assert browser.execute_script(CUT_OFF, True) == []
    shown = (
        "return [...document.querySelectorAll('.chart, #budget, nav, main > details')].filter((e) "
        "=> e.offsetHeight)"
    )
    assert browser.execute_script(shown) == []
    colours = (
        "return [getComputedStyle(document.body).color, "
        "getComputedStyle(document.body).backgroundColor]"
    )
    assert browser.execute_script(colours) == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
    set_screen(browser)


def test_every_n_has_its_share_of_P_best(browser: Any, made: tuple[Path, FitResult]) -> None:
    """The ribbons of the n* chart: at each C as thick as P(n is best), around n, in log n."""
    _open(browser, (made[0] / "report.html").as_uri(), width=1280)
    data = browser.execute_script(
        "return document.getElementById('chart-n-star').data.filter((t) => t.meta.role === "
        "'P(best)').map((t) => [t.meta.n, Array.from(t.x), Array.from(t.y)])"
    )
    points = made[1].joint.frontier
    assert {n for n, _, _ in data} == {
        n for p in points for n, share in (p.n_probability or {}).items() if share > 0.005
    }
    for n, x, y in data:
        half = len(x) // 2
        nearest = min(points, key=lambda p: abs(p.C - x[half // 2]))
        share = (nearest.n_probability or {})[n]
        low, high = y[half // 2], y[-1 - half // 2]
        assert high / n == pytest.approx(n / low, rel=1e-3)
        assert high / low == pytest.approx(2 ** (0.9 * share), rel=1e-2)
