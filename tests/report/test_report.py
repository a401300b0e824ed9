"""The report on a made-up sweep: figures that show something, a page that states the numbers, escapes what it shows, loads nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from isojax import report
from isojax.report import words
from isojax.report.canvas import palette
from isojax.scaling.recommend import recommend
from isojax.types import InputError

BAD = "<script>alert('x')</script>"


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.seen: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        self.seen.append(data)


def _text(page: Path) -> str:
    """What a reader sees: the page without tags (which close in order), entities resolved, blanks joined."""
    reader = _Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    assert not reader.open
    return re.sub(r"\s+", " ", "".join(reader.seen))


@pytest.fixture(name="made", scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory, make_sweep: Any) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("runs") / "demo"
    fit, runs = make_sweep()
    fit["flags"] = [f"n = 32 never leads {BAD}"]
    for cell in ("8x2-s1000", "8x16-s1000", "16x4-s1000"):
        (folder / "cells" / cell).mkdir(parents=True)
        lines = [f"{cell} line {i}" for i in range(100)]
        (folder / "cells" / cell / "samples.txt").write_text("\n".join([BAD, *lines]), encoding="utf-8")
    (folder / "config.yaml").write_text(f"name: demo\nnote: {BAD}\n", encoding="utf-8")
    report.write(folder, fit, runs)
    return folder, fit


def test_figures_hold_a_picture(made: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = made
    for name in ("frontier", "n_star", "evidence"):
        image = imread(folder / "figures" / f"{name}.png")
        assert image.shape[0] > 300
        assert image.shape[1] > 900
        inked = (image[..., :3].min(-1) < 0.9).mean()
        assert 0.01 < inked < 0.6, (name, inked)
    assert not list(folder.rglob("*.part"))


def test_the_frontier_is_drawn_in_the_colours_of_n(made: tuple[Path, dict[str, Any]]) -> None:
    folder, fit = made
    pixels = np.round(imread(folder / "figures" / "frontier.png")[..., :3] * 255).astype(int)
    for n, colour in palette([row["n"] for row in fit["curves"]]).items():
        rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert (np.abs(pixels - rgb).max(-1) <= 1).sum() > 200, n


def test_the_page_states_the_answer(made: tuple[Path, dict[str, Any]]) -> None:
    folder, fit = made
    text = _text(folder / "report.html")
    C = words.measured_to(fit)
    best = recommend(fit, C=C)
    a = best.allocation
    assert f"At C = {words.compact(C)} rollouts spend n = {a.n} on B_p = {a.B_p} for M = {a.M} updates." in text
    assert f"Expected validation avg@4: {best.expected_reward:.3f}, from 0.240 for the base policy." in text
    for cross in fit["crossovers"]:
        assert f"{cross['n_low']} → {cross['n_high']} near C = {words.compact(cross['C'])}" in text
    for number in ("2.20", "3.10", "4.25", "1.90"):  # L, k, log10 C0, b
        assert number in text
    assert f"{2**1.9:.3g} at small budgets to {2**4.1:.3g} at large ones" in text


def test_budgets_beyond_the_measured_range_are_marked(made: tuple[Path, dict[str, Any]]) -> None:
    folder, fit = made
    page = (folder / "report.html").read_text(encoding="utf-8")
    rows = re.search(r'<section id="recommendations".*?</section>', page, re.S)
    assert rows is not None
    assert rows[0].count("<tr>") == 1 + 5
    marked = sum(recommend(fit, C=words.measured_to(fit) * share).extrapolated for share in (1 / 8, 1 / 2, 1, 2, 4))
    assert rows[0].count("Beyond the measured range") == marked >= 2


def test_what_is_shown_is_escaped(made: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = made
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page.lower()
    assert page.count("&lt;script&gt;") == 4  # the config, two cells' samples, a flag


def test_samples_show_both_ends_of_two_cells(made: tuple[Path, dict[str, Any]]) -> None:
    text = _text(made[0] / "report.html")
    shown = [cell for cell in ("8x2-s1000", "8x16-s1000", "16x4-s1000") if f"{cell} line 99" in text]
    assert len(shown) == 2
    for cell in shown:
        assert f"{cell} line 10 … 77 lines left out … {cell} line 88" in text


def test_the_page_loads_nothing(made: tuple[Path, dict[str, Any]]) -> None:
    page = (made[0] / "report.html").read_text(encoding="utf-8")
    loads = re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]{0,20})|url\(([^)]*)\)|(@import)""", page)
    assert loads
    for attribute, url, imported in loads:
        assert not url
        assert not imported
        assert attribute.startswith(("data:image/png", "#")), attribute
    assert "http://" not in page
    assert "https://" not in page


def test_every_image_has_words_and_every_table_heads(made: tuple[Path, dict[str, Any]]) -> None:
    page = (made[0] / "report.html").read_text(encoding="utf-8")
    assert len(re.findall(r'<img alt="[^"]{40,}"', page)) == page.count("<img") == 3
    assert page.count("<table>") == page.count("<caption>")
    assert not re.search(r"<th(?! scope=)[ >]", page)
    assert page.count("<h1>") == 1


def test_the_same_sweep_gives_the_same_bits(make_sweep: Any, tmp_path: Path) -> None:
    fit, runs = make_sweep(B_ps=(16,), ns=(4, 8))
    first = report.write(tmp_path / "a" / "x", fit, runs).read_bytes()
    assert report.write(tmp_path / "b" / "x", fit, runs).read_bytes() == first


def test_one_cell_alone(make_sweep: Any, tmp_path: Path) -> None:
    """No crossover, no rival, no base reward, no samples: the page says so rather than fail."""
    fit, runs = make_sweep(B_ps=(16,), ns=(8,), seeds=1)
    constant = {"form": "constant", "L": 0.0, "k": 0.0, "log10_C0": None, "b": 3.0}
    for view in (fit, fit["by_B_p"][0]):
        view["n_star"] = constant
        view["segments"][0] |= {"measured_for_neighbours": False, "lead": None, "se": None, "z": None, "at_C": None}
    fit["base_reward"] = None
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "evidence.png").write_bytes(b"of an earlier fit")
    text = _text(report.write(tmp_path, fit, runs))
    assert "n = 8 leads at every measured budget: no crossover was seen." in text
    assert "the law is a constant: n* = 8." in text
    assert "Nothing to compare with: this cell leads everywhere" in text
    assert not (tmp_path / "figures" / "evidence.png").exists()


@pytest.mark.parametrize("compute", ["tokens", "device_hours"])
def test_other_measures_of_compute(make_sweep: Any, tmp_path: Path, compute: str) -> None:
    fit, runs = make_sweep(B_ps=(16,), ns=(4, 16))
    fit["compute"] = compute
    assert words.unit(fit) in _text(report.write(tmp_path, fit, runs))


def test_a_budget_without_an_allocation_is_said_in_words(make_sweep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("C = 3 buys no update")

    monkeypatch.setattr("isojax.report.page.recommend", refuse)
    fit, runs = make_sweep(B_ps=(16,), ns=(4, 16))
    assert "No allocation is prescribed: C = 3 buys no update" in _text(report.write(tmp_path, fit, runs))


def _segment(**changed: Any) -> dict[str, Any]:
    return {
        "neighbours": [{"n": 8, "B_p": 16}],
        "decades": 0.5,
        "measured_for_neighbours": True,
        "lead": 0.02,
        "se": 0.005,
        "z": 4.0,
    } | changed


def test_verdicts() -> None:
    assert words.verdict(_segment()) == (True, "Holds: 0.50 decade long, ahead by 4.0 standard errors")
    assert words.verdict(_segment(decades=0.2, z=2.0))[0]
    assert words.verdict(_segment(decades=0.19)) == (False, "Not shown: only 0.19 decade long (under 0.2)")
    assert words.verdict(_segment(measured_for_neighbours=False, lead=None, se=None, z=None))[1] == (
        "Not shown: not measured for every neighbour; lead not testable"
    )
    assert words.verdict(_segment(z=1.9)) == (False, "Not shown: lead under two standard errors")
    assert words.verdict(_segment(lead=-0.01, z=-2.0)) == (False, "Not shown: not ahead of its rival in the evaluations")


def test_numbers_in_words() -> None:
    assert [words.compact(x) for x in (250_000, 999_950, 1_234_567, 950, 0.05123, None)] == ["250k", "1M", "1.23M", "950", "0.0512", "–"]
    assert words.listed([2]) == "2"
    assert words.listed([2, 4, 8]) == "2, 4 and 8"
    points = [{"n": n} for n in (2, 2, 4, 2, 8)]
    assert words.path_of_n(points) == [2, 4, 2, 8]


def test_a_laptop_needs_no_jax() -> None:
    code = "import sys, isojax.report; sys.exit(any(m in sys.modules for m in ('jax', 'flax', 'plotly', 'matplotlib.pyplot')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2]).returncode == 0
