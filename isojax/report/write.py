"""Write a sweep's report: figures/*.png, figures/*.pdf and report.html, each file replaced in one step.

The same inputs give the same bits: no clock and no random draw. The page's charts need plotly (extra `report`); without
it the page shows the figures, and its budget slider still answers.
"""

from __future__ import annotations

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
    """Draw the figures and write the page; returns the page's path.

    Args:
        folder: the sweep's folder, runs/NAME. Its config.yaml and cells/*/samples.txt are shown where they exist.
        fits: the main fit first, then the same runs by other metrics, modes or
        measures of compute.
        runs: the runs they were fitted to.

    Raises:
        InputError: no fit, or a folder that cannot be written.
    """
    if not fits:
        raise InputError(f"no fit to report on {folder}; expected at least one. `isojax fit {folder}` makes it.")
    if (folder / "figures").exists() and not (folder / "figures").is_dir():
        raise InputError(
            f"{folder / 'figures'} is no folder; expected one for the figures. Give the file another name."
        )
    images: dict[str, RenderedFigure] = {}
    for name, plot in FIGURES.items():
        figure = plot.draw(fits, runs)
        if figure is None:  # a picture of an earlier fit must not stay
            for ending in ("png", "pdf"):
                (folder / "figures" / f"{name}.{ending}").unlink(missing_ok=True)
            continue
        images[name] = render_figure(figure)
        write_bytes(folder / "figures" / f"{name}.png", images[name].png)
        write_bytes(folder / "figures" / f"{name}.pdf", images[name].pdf)
    path = folder / "report.html"
    write_bytes(path, html_page.render(folder, fits, runs, images).encode())
    return path
