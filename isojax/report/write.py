"""Write a sweep's report: figures/*.png, figures/*.pdf and report.html, each replaced in one step. The same inputs give
the same bits; without plotly (extra `report`) the page shows the figures instead of the charts."""

from collections.abc import Sequence
from pathlib import Path

from isojax.core.atomic_files import write_bytes
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.report.canvas import RenderedFigure, render_figure
from isojax.report.figures.catalogue import FIGURES
from isojax.report.page import html_page
from isojax.scaling.result import FitResult


def write_report(folder: Path, fits: Sequence[FitResult], runs: Sequence[RunRecord]) -> Path:
    """Draw the figures and write the page into the sweep's folder, runs/NAME; returns the page's path. `fits`: the main
    one first, then others of the same `runs`."""
    figures = folder / "figures"
    if figures.exists() and not figures.is_dir():
        raise InputError(f"{figures} is no folder; expected one for the figures. Give the file another name.")
    images: dict[str, RenderedFigure] = {}
    for name, spec in FIGURES.items():
        png, pdf = figures / f"{name}.png", figures / f"{name}.pdf"
        figure = spec.draw(fits, runs)
        if figure is None:  # a picture of an earlier fit must not stay
            png.unlink(missing_ok=True)
            pdf.unlink(missing_ok=True)
        else:
            images[name] = render_figure(figure)
            write_bytes(png, images[name].png)
            write_bytes(pdf, images[name].pdf)
    path = folder / "report.html"
    write_bytes(path, html_page.render(folder, fits, runs, images).encode())
    return path
