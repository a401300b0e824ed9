"""The figures: each holds a picture in both formats, in the colours of n, with the same bits each
time; absent data draw nothing.
"""

from __future__ import annotations

import dataclasses
import html
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from isojax.report import figures
from isojax.report.canvas import n_palette, render_figure
from isojax.report.catalogue import FIGURES, load_figures
from isojax.report.fit_views import all_n, curve_band, frontier_reward_at, n_stretches
from isojax.report.page import html_page
from isojax.report.page.html_page import write_report
from isojax.report.wording import law_is_drawn
from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.result import FitResult, FrontierRow, SchedulePoint, ScheduleRow

pytestmark = pytest.mark.seconds(11)

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
DOLLARS = "reward $x^ of\\foo$"


@pytest.mark.parametrize("name", list(FIGURES))
def test_a_figure_is_a_picture_and_a_page(made: tuple[Path, FitResult], name: str) -> None:
    folder, fit = made
    image = imread(folder / "figures" / f"{name}.png")
    assert image.shape[0] > 300
    assert image.shape[1] > 900
    inked = (image[..., :3].min(-1) < 0.9).mean()
    assert 0.01 < inked < 0.6, (name, inked)
    pdf = (folder / "figures" / f"{name}.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-")
    assert b"/Type /Font" in pdf
    assert b"/Type3" not in pdf  # text is text, in TrueType (fonttype 42)
    assert b"CreationDate" not in pdf
    if name == "frontier":
        pixels = np.round(image[..., :3] * 255).astype(int)
        for n, colour in n_palette(all_n(fit)).items():
            rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
            assert (np.abs(pixels - rgb).max(-1) <= 1).sum() > 200, n
    assert not list(folder.rglob(".*"))  # no temporary file is left


def test_a_figure_is_one_file(
    make_sweep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of docs/extending.md, in the folder of figures, comes last on the page."""
    code = re.search(r"```python\n# (plateaus.py)\n(.*?)```", PAGE.read_text(), re.S)
    assert code is not None
    (tmp_path / code[1]).write_text(code[2])
    folders = [*figures.__path__, str(tmp_path)]
    monkeypatch.setattr(figures, "__path__", folders)
    monkeypatch.setattr(figures.__spec__, "submodule_search_locations", folders)
    assert list(load_figures()) == [*FIGURES, "plateaus"]

    fit, runs = make_sweep(B_ps=(16,), ns=(4, 8, 32))
    drawing = load_figures()["plateaus"](fit, runs)
    assert drawing is not None and render_figure(drawing).png
    line, *dots = drawing.axes[0].lines
    assert np.asarray(line.get_xdata()).tolist() == [4, 8, 32]
    assert [dot.get_markerfacecolor() for dot in dots].count(
        "white"
    ) == 1  # n = 32 levels off later


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("raise KeyError('no such key')", "KeyError: 'no such key'"),
        ("return 'a picture'", "the function returned str; expected a matplotlib Figure"),
    ],
)
def test_one_failing_figure_leaves_the_report(
    make_sweep: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    body: str,
    problem: str,
) -> None:
    head = "from isojax.report.figures import report_figure\n\n\n"
    decorator = "@report_figure(alt_text='', caption='')\n"
    (tmp_path / "faulty.py").write_text(f"{head}{decorator}def draw(fit, runs):\n    {body}\n")
    monkeypatch.chdir(tmp_path)
    own = figures.report_figure.load("faulty")
    monkeypatch.setattr(html_page, "FIGURES", {**FIGURES, "faulty": own})

    old_picture = tmp_path / "sweep" / "figures" / "faulty.png"
    old_picture.parent.mkdir(parents=True)
    old_picture.write_bytes(b"of an earlier fit")
    fit, runs = make_sweep(B_ps=(16,), ns=(4, 8))
    page = write_report(tmp_path / "sweep", [fit], runs).read_text()
    assert not old_picture.exists()

    warning = capsys.readouterr().err
    assert warning.startswith("warning: the report has no figure 'faulty' (")
    for text in (html.unescape(page), warning):
        assert "faulty.py:" in text and problem in text


def test_none_of_isojaxs_own_figures_fails(made: tuple[Path, FitResult]) -> None:
    assert "the report has no figure" not in (made[0] / "report.html").read_text()


def test_a_metrics_name_is_no_mathematics(make_sweep: Any) -> None:
    fit, runs = make_sweep(B_ps=(16,), ns=(8,), metric=DOLLARS)
    figure = FIGURES["frontier"](fit, runs)
    assert figure is not None
    assert render_figure(figure).png


def test_absent_data_draw_nothing(make_sweep: Any) -> None:
    fit, runs = make_sweep(B_ps=(16,), ns=(8,), seeds=1, mode="paper")
    result = {name for name, plot in FIGURES.items() if plot(fit, runs) is not None}
    assert result == {"frontier", "n_star"}


def test_a_schedule_far_above_the_cells_is_inside_its_panel(make_sweep: Any) -> None:
    fit, runs = make_sweep(B_ps=(16,), ns=(4,))
    points = tuple(SchedulePoint(C=C, reward=0.95, best_fixed=0.5, n=4, B_p=16) for C in (2e3, 2e4))
    row = ScheduleRow(
        name="grow",
        stages="16x4",
        seeds=(0,),
        evaluations=(2,),
        points=points,
        gain=0.4,
        interval=None,
    )
    figure = FIGURES["frontier"](fit.model_copy(update={"schedules": (row,)}), runs)
    assert figure is not None and figure.axes[0].get_ylim()[1] > 0.95


def test_the_paper_mode_is_drawn(make_sweep: Any) -> None:
    fit, runs = make_sweep(B_ps=(16,), ns=(4, 8), mode="paper")
    for name in ("frontier", "n_star"):
        assert FIGURES[name](fit, runs) is not None


def test_a_law_through_two_values_of_n_is_not_drawn(make_sweep: Any) -> None:
    for ns, is_drawn in (((4,), True), ((4, 8), False), ((4, 8, 16), True)):
        view = make_sweep(B_ps=(16,), ns=ns)[0].joint
        assert {point.n for point in view.frontier} == set(ns)
        assert law_is_drawn(view) is is_drawn


def test_the_same_sweep_gives_the_same_bits(
    make_sweep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures, pages and all; and what an earlier fit drew, and this one does not, is gone."""
    for name in set(FIGURES) - {"frontier"}:
        monkeypatch.setitem(
            FIGURES, name, dataclasses.replace(FIGURES[name], function=lambda fits, runs: None)
        )
    fit, runs = make_sweep(B_ps=(16,), ns=(4, 8))
    write_report(tmp_path / "a" / "x", [fit], runs)
    (tmp_path / "b" / "x" / "figures").mkdir(parents=True)
    for stale in ("n_star.png", "n_star.pdf"):
        (tmp_path / "b" / "x" / "figures" / stale).write_bytes(b"of an earlier fit")
    time.sleep(1.0)  # a date in seconds would differ
    write_report(tmp_path / "b" / "x", [fit], runs)
    first, second = (
        {
            p.relative_to(tmp_path / d).as_posix(): p.read_bytes()
            for p in (tmp_path / d).rglob("*.*")
        }
        for d in "ab"
    )
    assert sorted(first) == ["x/figures/frontier.pdf", "x/figures/frontier.png", "x/report.html"]
    assert first == second


def test_values_bands_and_laws(make_sweep: Any) -> None:
    fit, _ = make_sweep(B_ps=(8, 16), ns=(4, 8))
    ensemble, C = load_ensemble(fit), np.array([1e3, 1e5])
    curve = ensemble.curves[0]
    assert curve.key == (8, 4) and float(curve_reward(curve, curve.C_mid)) == pytest.approx(
        (curve.R0 + curve.A) / 2
    )
    low, high = curve_band(ensemble, 0, C) or (C, C)
    assert low.shape == (2,)
    assert (low < curve_reward(curve, C)).all()
    assert (high > curve_reward(curve, C)).all()
    assert curve_band(load_ensemble(make_sweep(mode="paper")[0]), 0, C) is None
    assert n_stretches((2, 2, 4, 4, 4, 2)) == [(2, 0, 1), (4, 1, 4), (2, 4, 5)]
    points = tuple(FrontierRow(C=10.0**i, reward=0.1 * i, n=4, B_p=8) for i in range(6))
    view = fit.joint.model_copy(update={"frontier": points})
    assert frontier_reward_at(view, 10**2.5) == pytest.approx(0.25)
