"""What a reader of a frontier and its law n*(C) must know before believing them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from isojax.scaling.frontier.envelope import Frontier
from isojax.scaling.frontier.frontier_evidence import FrontierSegment
from isojax.scaling.law.law_forms import MIN_DISTINCT_N
from isojax.scaling.law.n_star_law import Law, n_star
from isojax.scaling.result import FitFlag

MIN_LEAD_Z = 2.0
# A law that saturates at more than this many times its value where the data end reaches beyond them.
MAX_SATURATION_RATIO = 2**0.5


def frontier_flags(
    frontier: Frontier,
    segments: Sequence[FrontierSegment],
    law: Law,
    measured_n: Collection[int],
    no_effect: bool = False,
) -> list[FitFlag]:
    """A frontier with few n or falling n, segments without evidence, and a law that says more than its data; nothing
    where n makes no difference or a single n was measured, which `effect_flags` says."""
    frontier_n = sorted({p.n for p in frontier.points})
    if no_effect or len(measured_n) == 1:
        return []
    if law.form == "constant" and len(frontier_n) == 1:
        text = (
            f"n = {frontier_n[0]} holds the whole frontier, so n*(C) is constant: another n makes no gain that these "
            "data can show"
        )
        return [FitFlag(code="one_n_leads", severity="info", text=text)]
    return [
        *_few_n_flags(frontier_n),
        *_change_flags(frontier),
        *_lead_flags(segments),
        *_law_flags(frontier, law),
        *_largest_n_flags(frontier, max(measured_n)),
    ]


def _warning(code: str, text: str) -> FitFlag:
    return FitFlag(code=code, severity="warning", text=text)


def _few_n_flags(frontier_n: Sequence[int]) -> list[FitFlag]:
    if len(frontier_n) >= MIN_DISTINCT_N:
        return []
    text = (
        f"only {len(frontier_n)} distinct n on the frontier ({' and '.join(map(str, frontier_n))}): "
        f"a slope of n*(C) needs {MIN_DISTINCT_N}{', so the fitted law is not shown' if len(frontier_n) == 2 else ''}"
    )
    return [_warning("few_n", text)]


def _change_flags(frontier: Frontier) -> list[FitFlag]:
    """Falls of the frontier's n, and changes where no curves cross."""
    flags = []
    falls = [f"{c.n_low} to {c.n_high} at C = {c.C:.4g}" for c in frontier.crossovers if c.n_high < c.n_low]
    if falls:
        text = f"the frontier's n is not monotone, it falls from {'; '.join(falls)}: a sigmoid cannot describe that"
        flags.append(_warning("n_falls", text))
    uncrossed_changes = [
        f"from n = {c.n_low} to {c.n_high} at C = {c.C:.4g}" for c in frontier.crossovers if not c.crossing
    ]
    if uncrossed_changes:
        text = (
            f"the frontier passes {'; '.join(uncrossed_changes)} because data end or begin there, not because curves "
            "cross: nothing was compared"
        )
        flags.append(_warning("no_crossing", text))
    return flags


def _lead_flags(segments: Sequence[FrontierSegment]) -> list[FitFlag]:
    """Segments whose n does not clearly lead."""
    weak_segments = [f"n={s.n} B_p={s.B_p} ({s.z:.1f})" for s in segments if s.z is not None and s.z < MIN_LEAD_Z]
    if not weak_segments:
        return []
    if len(weak_segments) == len(segments):
        text = (
            f"no segment of the frontier leads its neighbours by {MIN_LEAD_Z:g} standard errors: n makes no difference "
            "they can show"
        )
    else:
        text = (
            f"these segments lead their neighbours by less than {MIN_LEAD_Z:g} standard errors: "
            f"{', '.join(weak_segments)}"
        )
    return [_warning("weak_lead", text)]


def _law_flags(frontier: Frontier, law: Law) -> list[FitFlag]:
    """A law whose parameters the frontier does not determine, or that reaches beyond it."""
    flags = []
    values = {"L": law.L, "k": law.k, "C0": 10**law.log10_C0 if law.log10_C0 is not None else float("nan")}
    at_bounds = ", ".join(f"{name} = {values[name]:.4g}" for name in law.at_bounds)
    if at_bounds:
        text = f"n*(C) has {at_bounds} at its bound; the frontier does not determine it"
        flags.append(_warning("law_at_bound", text))
    C_low, C_high = frontier.points[0].C, frontier.points[-1].C
    if law.form == "sigmoid" and law.log10_C0 is not None and not C_low <= 10**law.log10_C0 <= C_high:
        text = (
            f"the law reaches beyond its data: its middle C0 = {10**law.log10_C0:.4g} lies outside {C_low:.4g} to "
            f"{C_high:.4g}"
        )
        flags.append(_warning("law_beyond_data", text))
    n_saturation, n_at_end = 2 ** (law.b + law.L), float(n_star(law, C_high))
    if law.form == "sigmoid" and n_saturation > MAX_SATURATION_RATIO * n_at_end:
        text = (
            f"the law reaches beyond its data: it saturates at n = {n_saturation:.3g}, but has come to {n_at_end:.3g} "
            "where the data end"
        )
        flags.append(_warning("law_beyond_data", text))
    return flags


def _largest_n_flags(frontier: Frontier, n_max: int) -> list[FitFlag]:
    if frontier.points[-1].n != n_max:
        return []
    text = f"the frontier ends at the largest n measured ({n_max}): a larger n might do better"
    return [_warning("largest_n_leads", text)]
