"""`isojax report`: the page is made again, and what cannot be written is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from isojax.cli.commands import report_command
from isojax.report.catalogue import FIGURES
from isojax.report.page import html_page
from tests.cli.conftest import Isojax, error_of, write_sweep

FIRST_ALONE = {
    name: figure if not i else replace(figure, function=lambda *_: None)
    for i, (name, figure) in enumerate(FIGURES.items())
}


@pytest.mark.slow
def test_report_rebuilds_the_page(
    isojax: Isojax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # all of them are drawn where launch reports
    monkeypatch.setattr(html_page, "FIGURES", FIRST_ALONE)
    folder = write_sweep(tmp_path / "runs" / "known", (2, 8))
    code, out, _ = isojax("report", str(folder))
    assert code == 0 and "report.html" in out
    assert (folder / "report.html").stat().st_size > 1000 and list(
        (folder / "figures").glob("*.png")
    )


@pytest.mark.slow
def test_report_says_what_it_cannot_write_and_names_odd_folders(
    isojax: Isojax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_page, "FIGURES", FIRST_ALONE)  # one is enough here, and one fit
    monkeypatch.setattr(report_command, "other_fits", lambda *_: [])
    folder = write_sweep(tmp_path / "runs" / "a [/red] b", (2, 8))
    isojax("fit", str(folder), "--replicates", "0", "--mode", "paper")
    (folder / "figures").touch()
    assert "figures" in error_of(isojax("report", str(folder)))
    (folder / "figures").unlink()
    (folder / "report.html").mkdir()
    assert "cannot be written" in error_of(isojax("report", str(folder))) and not list(
        folder.rglob(".*")
    )
    (folder / "report.html").rmdir()
    code, out, _ = isojax("report", str(folder))
    assert code == 0 and "a [/red] b" in out
