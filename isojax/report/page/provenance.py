"""Where the page's numbers come from: the method and the sweep's config."""

from pathlib import Path

from isojax.report.page.markup import Html, html_section, tag
from isojax.report.wording import format_count, format_percent
from isojax.scaling.result import FitResult

METHODS = {
    "paper": "the paper's record-breaking points: a curve for each (B_p, n), their envelope, then n*(C)",
    "hierarchical": "all points at once: curves with one base reward, where they cross, then the form of n*(C) that "
    "the data support",
}


def provenance_section(folder: Path, fit: FitResult) -> Html:
    """How the fit was made, and from what."""
    method = (
        f"Fitted to {METHODS[fit.mode]} (mode {fit.mode}). C counts every rollout sampled for training, "
        "never validation. Method: IsoCompute Playbook, arXiv:2603.12151, section 4."
    )
    config = folder / "config.yaml"
    settings = Html("")
    if config.exists():
        content = tag("pre", tag("code", config.read_text(encoding="utf-8", errors="replace")))
        settings = tag("details", tag("summary", "config.yaml"), content)
    fit_file, figures_folder = tag("code", "fit.json"), tag("code", "figures/")
    place = tag("p", "The numbers are in ", fit_file, "; the figures, as PNG and PDF, in ", figures_folder, ".")
    intervals = tag("p", _describe_intervals(fit))
    return html_section("provenance", "Method and settings", tag("p", method), intervals, place, settings)


def _describe_intervals(fit: FitResult) -> str:
    intervals = fit.intervals
    if intervals is None:
        return "This fit has no intervals."
    problems = f"{intervals.problems} validation problems" if intervals.problems else "no counts per problem recorded"
    replicates = f"{format_percent(intervals.level)} of {format_count(intervals.replicates, 'replicate')}"
    how = f"Intervals hold {replicates} ({intervals.method}; {problems}; seed {intervals.seed})."
    spread = f"The reward's standard deviation between runs that differ in their seed alone is {intervals.run_sd:.4f}"
    return f"{how} {spread}, {intervals.run_sd_source}."
