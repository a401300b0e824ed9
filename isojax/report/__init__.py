"""What a sweep found, for people: the paper's figures and one self-contained HTML page. matplotlib and NumPy only; no jax, no network.

    write(folder, fit, runs)  ->  folder/figures/*.png and folder/report.html, each replaced in one step

`fit` is fit.json's content as a dict. The same inputs give the same bits: no clocks, no random draws.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isojax.report import figures, page
from isojax.types import RunRecord

__all__ = ["write"]


def write(folder: Path, fit: Mapping[str, Any], runs: Sequence[RunRecord]) -> Path:
    """Draw the figures and write the page; returns the page's path.

    Args:
        folder: the sweep's folder, runs/NAME. Its config.yaml and cells/*/samples.txt are shown where they exist.
        fit: what `isojax fit` found (fit.json).
        runs: the runs it was fitted to.
    """
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    images: dict[str, bytes] = {}
    for name, draw in (("frontier", figures.frontier), ("n_star", figures.n_star), ("evidence", figures.evidence)):
        png = draw(fit, runs)
        if png is None:
            (folder / "figures" / f"{name}.png").unlink(missing_ok=True)
            continue
        images[name] = png
        _replace(folder / "figures" / f"{name}.png", png)
    path = folder / "report.html"
    _replace(path, page.render(folder, fit, images).encode())
    return path


def _replace(path: Path, data: bytes) -> None:
    """Write beside `path`, then rename: a reader sees the old file or the new one, never half of one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    os.replace(part, path)
