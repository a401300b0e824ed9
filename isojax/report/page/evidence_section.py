"""The evidence for the frontier: each segment with its verdict, and where one n overtakes another."""

from collections.abc import Sequence

from isojax.report.fit_views import frontier_views
from isojax.report.page.markup import Html, html_section, html_table, tag
from isojax.report.wording import MIN_DECADES, MIN_Z, compute_unit, format_compact, format_crossover, segment_verdict
from isojax.scaling.result import FitResult, FrontierFit, SegmentRow

SEGMENT_HEADER = (
    "B_p × n",
    "range of C",
    "decades",
    "neighbours (B_p × n)",
    "lead over the closer one",
    "z",
    "lead measured at C",
    "neighbours measured",
    "verdict",
)


def named_views(fit: FitResult) -> list[tuple[str, FrontierFit]]:
    """The joint frontier and, where there are several B_p, each of theirs."""
    views = frontier_views(fit)
    if len(views) == 1:
        return [("joint", fit.joint)]
    return [("joint" if view.B_p is None else f"B_p = {view.B_p}", view) for view in views]


def evidence_section(fit: FitResult, figures: Sequence[Html]) -> Html:
    """Every segment with its verdict, and the crossovers."""
    rule = (
        f"A segment of the frontier holds when it is at least {MIN_DECADES} decade long, its neighbours were measured "
        f"there too, and somewhere in it the winner leads the closer one by {MIN_Z:g} standard errors of the "
        "difference (paired over validation problems, seeds averaged). Leads are given ± one standard error; at a C "
        "marked * the data begin or end, and no other n takes over."
    )
    tables = [
        html_table(f"Frontier segments, {name}", SEGMENT_HEADER, map(_segment_row, view.segments), (8,))
        for name, view in named_views(fit)
    ]
    title = "Evidence for each segment of the frontier"
    return html_section("evidence", title, tag("p", rule), *figures, *tables, tag("h3", "Crossovers"), _crossovers(fit))


def _segment_row(segment: SegmentRow) -> list[object]:
    low, high = format_compact(segment.C_low), format_compact(segment.C_high)
    C_range = f"{low}{'*' if segment.censored_low else ''} – {high}{'*' if segment.censored_high else ''}"
    neighbours = ", ".join(f"{cell.B_p} × {cell.n}" for cell in segment.neighbours) or "none"
    lead = "–" if segment.lead is None else f"{segment.lead:+.3f}"
    lead += "" if segment.se is None else f" ± {segment.se:.3f}"
    holds, reason = segment_verdict(segment)
    return [
        f"{segment.B_p} × {segment.n}",
        C_range,
        f"{segment.decades:.2f}",
        neighbours,
        lead,
        "–" if segment.z is None else f"{segment.z:.1f}",
        format_compact(segment.at_C),
        "yes" if segment.measured_for_neighbours else "no",
        tag("span", ("✓ " if holds else "✗ ") + reason, cls="good" if holds else "bad"),
    ]


def _crossovers(fit: FitResult) -> Html:
    rows = [
        [name, f"{row.n_low} → {row.n_high}", format_crossover(row, fit)]
        for name, view in named_views(fit)
        for row in view.crossovers
    ]
    if not rows:
        return tag("p", "No crossover was seen.")
    headings = ("frontier", "n", f"at C ({compute_unit(fit)})")
    return html_table("Where one n overtakes another", headings, rows, text_columns=(1,))
