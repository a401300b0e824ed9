"""What a sweep found, for people: the paper's figures and one self-contained, interactive HTML page. No jax, no network.

    write(folder, fits, runs)  ->  folder/figures/*.png, *.pdf and folder/report.html, each replaced in one step

A fit is fit.json's content as a dict. The same inputs give the same bits: no clocks, no random draws. The page's charts need plotly
(extra report); without it the page has the figures, and its budget slider still answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isojax.report import page
from isojax.report.canvas import Drawing, rendered
from isojax.report.figures import FIGURES
from isojax.types import InputError, RunRecord

__all__ = ["write"]


def write(folder: Path, fits: Sequence[Mapping[str, Any]], runs: Sequence[RunRecord]) -> Path:
    """Draw the figures and write the page; returns the page's path.

    Args:
        folder: the sweep's folder, runs/NAME. Its config.yaml and cells/*/samples.txt are shown where they exist.
        fits: what `isojax fit` found (fit.json): the main fit first, then the same runs by other metrics, modes or measures of compute.
        runs: the runs they were fitted to.

    Raises:
        InputError: no fit.
    """
    if not fits:
        raise InputError(f"no fit to report on {folder}; expected at least one. `isojax fit {folder}` makes it.")
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    images: dict[str, Drawing] = {}
    for name, plot in FIGURES.items():
        figure = plot.draw(fits, runs)
        if figure is None:  # a picture of an earlier fit would be a lie
            for ending in ("png", "pdf"):
                (folder / "figures" / f"{name}.{ending}").unlink(missing_ok=True)
            continue
        images[name] = rendered(figure)
        _replace(folder / "figures" / f"{name}.png", images[name].png)
        _replace(folder / "figures" / f"{name}.pdf", images[name].pdf)
    path = folder / "report.html"
    _replace(path, page.render(folder, fits, runs, images).encode())
    return path


def _replace(path: Path, data: bytes) -> None:
    """Write beside `path`, then rename: a reader sees the old file or the new one, never half of one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    os.replace(part, path)
