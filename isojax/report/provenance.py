"""Where the page's numbers come from: sample rollouts of two cells, the method in words, the sweep's config."""

from __future__ import annotations

from collections import deque
from itertools import groupby, islice
from pathlib import Path

from isojax.report.advice import Advice
from isojax.report.markup import Raw, details, join, section, tag
from isojax.report.reading import Fit
from isojax.report.words import percent, plural

SAMPLE_LINES, SAMPLE_WIDTH = 12, 300
MODES = {
    "paper": "the paper's record-breaking points: a curve for each (B_p, n), their envelope, then n*(C)",
    "debiased": "all points at once: curves with one base reward, where they cross, then the form of n*(C) that the data support",
}


def samples(folder: Path, answer: Advice) -> Raw:
    """First and last lines of two cells' samples.txt: the recommended cell's and, of the others, that of the largest n."""
    found = sorted((folder / "cells").glob("*/samples.txt"))
    by_cell = [(name, next(paths)) for name, paths in groupby(found, key=lambda path: path.parent.name.rsplit("-s", 1)[0])]
    if not by_cell:
        return Raw("")
    chosen = f"{answer.B_p}x{answer.n}"
    by_cell.sort(key=lambda pair: (pair[0] != chosen, int(pair[0].partition("x")[2])))
    shown = [by_cell[0][1], *([by_cell[-1][1]] if len(by_cell) > 1 else [])]
    parts = [join([tag("h3", path.parent.name), tag("pre", tag("code", _ends(path)))]) for path in shown]
    where = tag("p", "The first and last lines of two cells; the whole is in ", tag("code", "cells/*/samples.txt"), ".")
    return section("samples", "Sample rollouts", where, *parts)


def _ends(path: Path) -> str:
    """The first and last lines of a file that may be long, each cut to a readable width."""
    with path.open(encoding="utf-8", errors="replace") as f:
        first = [line.rstrip("\n") for line in islice(f, SAMPLE_LINES)]
        last: deque[str] = deque(maxlen=SAMPLE_LINES)
        rest = 0
        for line in f:
            rest += 1
            last.append(line.rstrip("\n"))
    gap = [f"… {plural(rest - len(last), 'line')} left out …"] if rest > len(last) else []
    return "\n".join(line if len(line) <= SAMPLE_WIDTH else line[:SAMPLE_WIDTH] + " …" for line in [*first, *gap, *last])


def provenance(folder: Path, fit: Fit) -> Raw:
    """How the fit was made, and from what."""
    method = (
        f"Fitted to {MODES.get(fit['mode'], fit['mode'])} (mode {fit['mode']}). C counts every rollout sampled for training, never "
        "validation. Method: IsoCompute Playbook, arXiv:2603.12151, section 4."
    )
    config = folder / "config.yaml"
    shown = (
        [details("config.yaml", tag("pre", tag("code", config.read_text(encoding="utf-8", errors="replace"))))] if config.exists() else []
    )
    numbers, figures = tag("code", "fit.json"), tag("code", "figures/")
    again = tag("p", "The numbers behind this page are in ", numbers, "; the figures, as PNG and PDF, in ", figures, ".")
    return section("provenance", "How this was made", tag("p", method), *_intervals(fit), again, *shown)


def _intervals(fit: Fit) -> list[Raw]:
    found = fit.get("intervals")
    if found is None:
        return [tag("p", "This mode gives no intervals.")] if fit["mode"] == "paper" else []
    problems = f"{found['problems']} validation problems" if found["problems"] else "no record of single problems"
    text = (
        f"Intervals hold {percent(found['level'])} of {plural(found['replicates'], 'replicate')} ({found['method']}; {problems}; seed "
        f"{found['seed']}). Spread from run to run: {found['run_sd']:.4f} of reward, {found['run_sd_source']}."
    )
    return [tag("p", text)]
