"""What a sweep found, for people: the paper's figures and one self-contained, interactive HTML page. No jax, no network.

    write(folder, fits, runs)  ->  folder/figures/*.png, *.pdf and folder/report.html, each replaced in one step

A fit is fit.json's content as a dict. The same inputs give the same bits: no clocks, no random draws. The page's charts need plotly
(extra report); without it the page has the figures, and its budget slider still answers.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from isojax.files import write_bytes
from isojax.report import page
from isojax.report.canvas import Drawing, rendered
from isojax.report.figures import FIGURES
from isojax.report.reading import Fit
from isojax.types import InputError, RunRecord

__all__ = ["write"]


def write(folder: Path, fits: Sequence[Mapping[str, Any]], runs: Sequence[RunRecord], processes: int = 0) -> Path:
    """Draw the figures and write the page; returns the page's path.

    Args:
        folder: the sweep's folder, runs/NAME. Its config.yaml and cells/*/samples.txt are shown where they exist.
        fits: what `isojax fit` found (fit.json): the main fit first, then the same runs by other metrics, modes or measures of compute.
        runs: the runs they were fitted to.
        processes: how many draw while this one prepares the page; 0: this one does it all. They are spawned, which a script that calls
            this must allow for by `if __name__ == "__main__":`.

    Raises:
        InputError: no fit, or a folder that cannot be written.
    """
    if not fits:
        raise InputError(f"no fit to report on {folder}; expected at least one. `isojax fit {folder}` makes it.")
    if (folder / "figures").exists() and not (folder / "figures").is_dir():
        raise InputError(f"{folder / 'figures'} is no folder; expected one for the figures. Give the file another name.")
    images: dict[str, Drawing] = {}
    with _drawings(fits, runs, processes) as drawings:
        answers = page.answers(fits, runs)
        for name, drawing in zip(FIGURES, drawings, strict=True):
            if drawing is None:  # a picture of an earlier fit would be a lie
                for ending in ("png", "pdf"):
                    (folder / "figures" / f"{name}.{ending}").unlink(missing_ok=True)
                continue
            images[name] = drawing
            write_bytes(folder / "figures" / f"{name}.png", drawing.png)
            write_bytes(folder / "figures" / f"{name}.pdf", drawing.pdf)
    path = folder / "report.html"
    write_bytes(path, page.render(folder, fits, runs, images, answers).encode())
    return path


@contextmanager
def _drawings(fits: Sequence[Fit], runs: Sequence[RunRecord], processes: int) -> Iterator[Iterable[Drawing | None]]:
    """The figures in the order of FIGURES; None for those that these fits cannot give."""
    if processes == 0:
        yield map(partial(_draw, fits, runs), FIGURES)
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _take, (fits, runs))
    try:
        yield pool.map(_draw_taken, FIGURES)
    finally:
        pool.shutdown(cancel_futures=True)


def _draw(fits: Sequence[Fit], runs: Sequence[RunRecord], name: str) -> Drawing | None:
    figure = FIGURES[name].draw(fits, runs)
    return None if figure is None else rendered(figure)


_taken: list[tuple[Sequence[Fit], Sequence[RunRecord]]] = []  # the one pair, in a process that draws


def _take(fits: Sequence[Fit], runs: Sequence[RunRecord]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process that waits for this one
    _taken.append((fits, runs))


def _draw_taken(name: str) -> Drawing | None:
    return _draw(*_taken[0], name)
