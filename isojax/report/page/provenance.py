"""Where the page's numbers come from: sample rollouts of two cells, the method, the sweep's config."""

from __future__ import annotations

from pathlib import Path

from isojax.report.page.advice import Advice
from isojax.report.page.markup import Html, html_details, html_section, join_html, tag
from isojax.report.wording import format_count, format_percent
from isojax.scaling.result import FitResult

SAMPLE_LINES, SAMPLE_WIDTH = 12, 300
METHODS = {
    "paper": "the paper's record-breaking points: a curve for each (B_p, n), their envelope, then n*(C)",
    "hierarchical": "all points at once: curves with one base reward, where they cross, then the form of n*(C) that "
    "the data support",
}


def samples_section(folder: Path, advice: Advice) -> Html:
    """First and last lines of two cells' samples.txt: the recommended cell's and, of the others, that of the largest
    n.
    """
    path_by_cell: dict[str, Path] = {}  # of its first seed
    for path in sorted((folder / "cells").glob("*/samples.txt")):
        path_by_cell.setdefault(path.parent.name.rsplit("-s", 1)[0], path)
    if not path_by_cell:
        return Html("")
    recommended_cell = f"{advice.B_p}x{advice.n}"
    cells = sorted(path_by_cell, key=lambda cell: (cell != recommended_cell, int(cell.partition("x")[2])))
    excerpts = [
        join_html([tag("h3", path.parent.name), tag("pre", tag("code", _first_and_last_lines(path)))])
        for path in [path_by_cell[cell] for cell in dict.fromkeys((cells[0], cells[-1]))]
    ]
    place = tag("code", "cells/*/samples.txt")
    introduction = tag("p", "The first and last lines of two cells; the whole is in ", place, ".")
    return html_section("samples", "Sample rollouts", introduction, *excerpts)


def _first_and_last_lines(path: Path) -> str:
    """The first and last lines of a file, each cut to a readable width."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    left_out = len(lines) - 2 * SAMPLE_LINES
    if left_out > 0:
        lines[SAMPLE_LINES:-SAMPLE_LINES] = [f"… {format_count(left_out, 'line')} left out …"]
    return "\n".join(line if len(line) <= SAMPLE_WIDTH else line[:SAMPLE_WIDTH] + " …" for line in lines)


def provenance_section(folder: Path, fit: FitResult) -> Html:
    """How the fit was made, and from what."""
    method = (
        f"Fitted to {METHODS[fit.mode]} (mode {fit.mode}). C counts every rollout sampled for training, "
        "never validation. Method: IsoCompute Playbook, arXiv:2603.12151, section 4."
    )
    config = folder / "config.yaml"
    config_html = []
    if config.exists():
        content = tag("pre", tag("code", config.read_text(encoding="utf-8", errors="replace")))
        config_html = [html_details("config.yaml", content)]
    fit_file, figures_folder = tag("code", "fit.json"), tag("code", "figures/")
    files = tag("p", "The numbers are in ", fit_file, "; the figures, as PNG and PDF, in ", figures_folder, ".")
    sections = [tag("p", method), *_describe_intervals(fit), files, *config_html]
    return html_section("provenance", "Method and settings", *sections)


def _describe_intervals(fit: FitResult) -> list[Html]:
    intervals = fit.intervals
    if intervals is None:
        return [tag("p", "This mode gives no intervals.")] if fit.mode == "paper" else []
    problems = f"{intervals.problems} validation problems" if intervals.problems else "no counts per problem recorded"
    replicates = f"{format_percent(intervals.level)} of {format_count(intervals.replicates, 'replicate')}"
    how = f"Intervals hold {replicates} ({intervals.method}; {problems}; seed {intervals.seed})."
    spread = f"The reward's standard deviation between runs that differ in their seed alone is {intervals.run_sd:.4f}"
    return [tag("p", f"{how} {spread}, {intervals.run_sd_source}.")]
