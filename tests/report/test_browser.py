"""The page in a real Chromium: keyboard, pointer, dark screens, no network, no script but its
own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from isojax.report.page import html_page
from isojax.scaling.result import FitResult
from tests.report.chromium import needs_chromium, set_screen

pytest.importorskip("selenium.webdriver", reason="selenium is not installed (extra test)")
pytestmark = [needs_chromium, pytest.mark.slow]

from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

# The middle of the budget's dot, in pixels of the plot; and where a point of the table belongs.
MARKER = """const [C, y] = arguments, c = document.getElementById('chart-reward');
const {xaxis, yaxis} = c._fullLayout, s = c.layout.shapes.at(-1);
const off = (axis, a, b, value) => Math.abs((axis.d2p(a) + axis.d2p(b)) / 2 - axis.d2p(value));
return s.type === 'circle' && off(xaxis, s.x0, s.x1, C) < 0.5 && off(yaxis, s.y0, s.y1, y) < 0.5"""


@pytest.fixture(name="opened", scope="module")
def _opened(browser: Any, made: tuple[Path, FitResult]) -> Any:
    """The page, loaded once; each test chooses the fit it looks at."""
    set_screen(browser)
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get((made[0] / "report.html").as_uri())
    return browser


@pytest.fixture(name="fits", scope="module")
def _fits(made: tuple[Path, FitResult]) -> list[dict[str, Any]]:
    html = (made[0] / "report.html").read_text(encoding="utf-8")
    result = re.search('id="data">(.*?)</script>', html, re.S)
    assert result is not None
    return json.loads(result[1])["fits"]


def _text(browser: Any, name: str) -> str:
    return browser.find_element(By.ID, name).text


def _choose(browser: Any, metric: int = 0, mode: int = 0, B_p: int = 0) -> None:
    for name, index in (("metric", metric), ("mode", mode), ("B_p", B_p)):
        select = Select(browser.find_element(By.ID, name))
        if select.options[index].text != select.first_selected_option.text:
            select.select_by_index(index)


def _shows(browser: Any, row: dict[str, Any], C: float) -> None:
    """The tiles show a row of the table, with M for exactly C."""
    assert _text(browser, "out-n") == str(row["n"])
    assert _text(browser, "out-B_p") == str(row["B_p"])
    assert _text(browser, "out-M") == f"{int(C // (row['B_p'] * row['n'])):,}"
    assert _text(browser, "out-reward").split() == [row["reward"], *row["interval"].split()]
    status = _text(browser, "out-status")
    assert status.startswith(
        "Beyond the measured budgets" if row["extrapolated"] else "Within the measured budgets"
    )
    assert row["words"] in status
    if row["probabilities"]:
        assert f"P(n = {row['n']} is the best) = " in status
        bars = [
            line.text.split()
            for line in browser.find_elements(By.CSS_SELECTOR, "#out-probabilities > div")
        ]
        assert bars == [["n", "=", str(n), text] for n, text, _ in row["probabilities"]]


def test_it_loads_without_a_word_or_a_request(opened: Any) -> None:
    assert [
        entry for entry in opened.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")
    ] == []
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    requested = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert any(url.startswith("file:") for url in requested)
    # the browser's own new-tab page may be in the log
    local = ("file:", "data:", "blob:", "chrome:")
    assert [url for url in requested if not url.startswith(local)] == []
    assert opened.execute_script("return window.pwned") is None
    assert len(opened.find_elements(By.CSS_SELECTOR, "img[src=x]")) == 0


def test_the_slider_answers_to_the_keyboard(opened: Any, fits: list[dict[str, Any]]) -> None:
    _choose(opened)
    rows = fits[0]["views"][0]["rows"]
    slider = opened.find_element(By.ID, "slider")
    seen = set()
    for keys, index in (
        ([Keys.HOME], 0),
        ([Keys.ARROW_RIGHT] * 30, 30),
        ([Keys.END], -1),
        ([Keys.ARROW_LEFT] * 70, len(rows) - 71),
    ):
        slider.send_keys(*keys)
        row = rows[index]
        _shows(opened, row, row["C"])
        assert float(opened.find_element(By.ID, "exact").get_attribute("value")) == row["C"]
        assert slider.get_attribute("aria-valuetext") == f"{row['C']:,.0f} rollouts"
        WebDriverWait(opened, 3).until(
            lambda b, row=row: b.execute_script(MARKER, row["C"], row["y"])
        )
        seen.add((row["n"], row["extrapolated"]))
    assert len(seen) > 2
    WebDriverWait(opened, 3).until(
        lambda b: (
            f"C {rows[-71]['C']:,.0f}: n {rows[-71]['n']}" in b.find_element(By.ID, "spoken").text
        )
    )


def test_a_typed_budget_gets_its_own_M(opened: Any, fits: list[dict[str, Any]]) -> None:
    _choose(opened)
    rows = fits[0]["views"][0]["rows"]
    field = opened.find_element(By.ID, "exact")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("98765")
    _shows(opened, min(rows, key=lambda row: max(row["C"] / 98765, 98765 / row["C"])), 98765)
    assert field.get_attribute("value") == "98765"
    field.send_keys("000")  # 98 million
    assert field.get_attribute("aria-invalid") == "true"
    assert [_text(opened, name) for name in ("out-n", "out-M", "out-reward")] == ["–"] * 3
    assert _text(opened, "out-status").startswith("Give a budget from 1,024 to ")
    opened.find_element(By.ID, "slider").send_keys(Keys.HOME)
    assert field.get_attribute("aria-invalid") == "false"


def test_metric_fit_and_B_p_change_answer_and_chart(
    opened: Any, fits: list[dict[str, Any]]
) -> None:
    def drawn() -> tuple[int, str]:
        script = (
            "const c = document.getElementById('chart-reward'); return [c.data.length, "
            "c.layout.yaxis.title.text]"
        )
        return tuple(opened.execute_script(script))

    _choose(opened)
    joint = drawn()
    assert joint[1] == "avg@4 (bands: 90%)"
    _choose(opened, B_p=1)
    opened.find_element(By.ID, "slider").send_keys(Keys.HOME)
    _shows(opened, fits[0]["views"][1]["rows"][0], 1024)
    assert drawn()[0] < joint[0]  # half the cells
    _choose(opened, mode=1, B_p=1)
    assert Select(opened.find_element(By.ID, "B_p")).first_selected_option.text == "8"  # kept
    assert drawn()[1] == "avg@4"
    _shows(opened, fits[1]["views"][1]["rows"][0], 1024)
    _choose(opened, metric=1)
    assert (
        Select(opened.find_element(By.ID, "metric")).first_selected_option.text == fits[2]["metric"]
    )
    assert _text(opened, "out-metric") == fits[2]["metric"]
    label = opened.find_element(By.CSS_SELECTOR, "#chart-reward .ytitle").text
    assert label.startswith("<img src=x onerror=alert(1)>")  # as text
    assert opened.execute_script("return window.pwned") is None
    _choose(opened)


def test_the_pointer_reads_values(opened: Any) -> None:
    _choose(opened, mode=0, B_p=1)
    opened.execute_script(
        "document.getElementById('chart-reward').scrollIntoView({block: 'center'})"
    )
    x, y = opened.execute_script(
        """const chart = document.getElementById('chart-reward');
        const {xaxis, yaxis} = chart._fullLayout, box = chart.getBoundingClientRect();
        const line = chart.data.find((t) => t.meta && t.meta.n === 2 && t.mode === 'lines');
        return [box.left + xaxis._offset + xaxis.d2p(line.x[40]),
                box.top + yaxis._offset + yaxis.d2p(line.y[40])];"""
    )
    actions = ActionChains(opened)
    actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    actions.perform()
    output = WebDriverWait(opened, 3).until(
        lambda b: " ".join(
            e.text for e in b.find_elements(By.CSS_SELECTOR, ".hoverlayer .hovertext")
        )
    )
    assert re.search(r"n = 2, B_p = 8\s*C = \d+k: 0\.\d{3} \[0\.\d{3}, 0\.\d{3}\]", output), output
    _choose(opened)


def test_it_needs_no_plotly_to_answer(
    browser: Any,
    make_sweep: Any,
    tmp_path: Path,
    fits: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("isojax.report.page.explorer.plotly_bundle", lambda: None)
    (tmp_path / "r.html").write_text(
        html_page.render(tmp_path, [make_sweep()[0]], make_sweep()[1], {}), encoding="utf-8"
    )
    set_screen(browser, width=400)
    browser.get((tmp_path / "r.html").as_uri())
    browser.find_element(By.ID, "slider").send_keys(Keys.END)
    row = fits[0]["views"][0]["rows"][-1]
    _shows(browser, row, row["C"])
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_holds_it_light_or_dark(
    browser: Any, made: tuple[Path, FitResult], scheme: str
) -> None:
    set_screen(browser, width=400, scheme=scheme)
    browser.get((made[0] / "report.html").as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
    chart = browser.find_element(By.CSS_SELECTOR, "#chart-reward svg.main-svg")
    assert 300 < chart.size["width"] <= 400
    colours = (
        "getComputedStyle(document.body).backgroundColor, "
        "document.getElementById('chart-reward').layout.font.color"
    )
    paper, ink = browser.execute_script(f"return [{colours}]")
    light = (paper == "rgb(255, 255, 255)", ink == "#1c2126")
    assert light == ((True, True) if scheme == "light" else (False, False))
    set_screen(browser)


def test_without_scripts_the_answer_is_there(browser: Any, made: tuple[Path, FitResult]) -> None:
    set_screen(browser, scripts=False)
    browser.get((made[0] / "report.html").as_uri())
    assert "rollouts run n =" in browser.find_element(By.CSS_SELECTOR, ".headline").text
    assert not browser.find_element(By.ID, "budget").is_displayed()
    assert "Scripts are off" in browser.find_element(By.TAG_NAME, "main").text
    assert browser.find_element(By.ID, "other-budgets").is_displayed()
    assert [e.is_displayed() for e in browser.find_elements(By.CSS_SELECTOR, ".chart")] == [
        False,
        False,
    ]
    images = browser.find_elements(By.CSS_SELECTOR, "section figure img")
    assert len(images) == 2 and all(image.size["width"] > 400 for image in images)
    fold = browser.find_element(By.ID, "figures")
    fold.find_element(By.TAG_NAME, "summary").click()
    images = fold.find_elements(By.TAG_NAME, "img")
    assert len(images) == len(list((made[0] / "figures").glob("*.png"))) == 4
    assert all(image.size["width"] > 400 for image in images)
    set_screen(browser)
