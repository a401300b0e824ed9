"""What a comparison of sweeps (compare.py) says, in words. Plain text in, plain text out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MIN_PROBABILITY = 0.9
JsonRow = Mapping[str, Any]


def comparison_sentences(comparison: JsonRow) -> list[str]:
    """What each sweep shows beside the first one."""
    first, *others = comparison["runs"]
    lines = [_describe_saturation(row) for row in comparison["runs"]]
    for row in others:
        lines += [_describe_reward(first, row, comparison["C_high"]), _describe_earlier(first, row)]
    for row in comparison["runs"]:
        lines += [
            f"{row['label']} overfits: training reward rises while validation falls at n = {o['n']}, B_p = {o['B_p']} "
            f"from C = {o['C']:.4g} on ({o['runs']} {'run' if o['runs'] == 1 else 'runs'})"
            for o in row["overfitting"]
        ]
        overfitted_cells = {(o["B_p"], o["n"]) for o in row["overfitting"]}
        lines += [
            f"{row['label']}: validation falls beyond C = {p['C']:.4g} at n = {p['n']}, B_p = {p['B_p']}"
            for p in row["peaks"]
            if (p["B_p"], p["n"]) not in overfitted_cells
        ]
    return lines


def _describe_saturation(row: JsonRow) -> str:
    """Where the sweep's own n* levels off."""
    saturation = row["saturation"]
    if saturation is None:
        return f"{row['label']}: n makes no difference that its evaluations can show"
    if saturation["n"] == saturation["n_largest"]:
        return f"{row['label']}: n* ends at the largest n measured ({saturation['n']}); whether it levels off there, these runs cannot say"
    share_text = (
        ""
        if saturation["below_largest"] is None
        else f" (below the largest n measured, {saturation['n_largest']}, with P {_format_probability(saturation['below_largest'])})"
    )
    if saturation["C"] is None:
        return f"{row['label']}: n* stays at {saturation['n']}{share_text}"
    interval_text = (
        ""
        if saturation["low"] is None and saturation["high"] is None
        else f" ({_format_bound(saturation['low'])} to {_format_bound(saturation['high'])})"
    )
    return f"{row['label']}: n* levels off at n = {saturation['n']}, from C = {saturation['C']:.4g}{interval_text} on{share_text}"


def _format_bound(value: float | None) -> str:
    return "open" if value is None else f"{value:.4g}"


def _format_probability(p: float) -> str:
    """ "= 0.42"; a share of replicates is no certainty."""
    return "> 0.99" if p > 0.99 else "< 0.01" if p < 0.01 else f"= {p:.2f}"


def _describe_reward(first_row: JsonRow, row: JsonRow, C: float) -> str:
    """The difference of the frontiers at the largest common C."""
    difference = row["difference"]
    text = f"at C = {C:.4g} {row['label']} reaches {row['top']['reward']:.3f}, {difference['value']:+.3f} against {first_row['label']}"
    if difference["low"] is None or difference["high"] is None:
        return f"{text} (no intervals)"
    verdict = "more" if difference["low"] > 0 else "less" if difference["high"] < 0 else "not told apart"
    return f"{text} ({difference['low']:+.3f} to {difference['high']:+.3f}: {verdict})"


def _describe_earlier(first_row: JsonRow, row: JsonRow) -> str:
    """Whether n* levels off earlier."""
    label, first_label, earlier = row["label"], first_row["label"], row["earlier"]
    if earlier is None:
        no_effect_labels = [r["label"] for r in (first_row, row) if r["no_effect"]]
        reason = (
            f"n makes no difference in {' and '.join(no_effect_labels)}"
            if no_effect_labels
            else "they share fewer than two values of n"
        )
        return f"where n* levels off cannot be compared between {label} and {first_label}: {reason}"
    if earlier["p_earlier"] is None:
        verdict = "levels off earlier" if earlier["by_curves"] else "does not level off earlier"
        return f"by the curves alone (no intervals) n* {verdict} in {label} than in {first_label}"
    n_text = f"over n = {', '.join(map(str, earlier['shared_n']))}"
    if earlier["p_earlier"] >= MIN_PROBABILITY:
        return f"n* levels off earlier in {label} than in {first_label}, P {_format_probability(earlier['p_earlier'])} ({n_text})"
    if earlier["p_later"] >= MIN_PROBABILITY:
        return f"n* levels off later in {label} than in {first_label}, P {_format_probability(earlier['p_later'])} ({n_text})"
    odds = f"P(earlier) {_format_probability(earlier['p_earlier'])}, P(later) {_format_probability(earlier['p_later'])}"
    return f"these runs cannot say whether n* levels off earlier in {label} than in {first_label}: {odds} ({n_text})"


def comparison_notes(comparison: JsonRow) -> list[str]:
    """What limits the comparison."""
    lines = []
    for key in ("n", "B_p"):
        if len({tuple(row[key]) for row in comparison["runs"]}) > 1:
            each = "; ".join(f"{row['label']}: {', '.join(map(str, row[key]))}" for row in comparison["runs"])
            lines.append(f"the runs did not measure the same {key} ({each}); each frontier is that of its own cells")
    if all(row["difference"] is None or row["difference"]["low"] is None for row in comparison["runs"]):
        return [*lines, "no intervals: mode paper has none, nor has a fit made with --bootstrap 0"]
    return [
        *lines,
        "intervals of differences take the runs as independent; where they were evaluated on the same problems the differences are known "
        "better than that",
    ]
