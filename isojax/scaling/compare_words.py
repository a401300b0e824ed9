"""What a comparison of sweeps (compare.py) says, in words. Plain text in, plain text out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SURE = 0.9
Row = Mapping[str, Any]


def sentences(found: Row) -> list[str]:
    """What each sweep shows beside the first one."""
    first, *others = found["runs"]
    said = [_alone(row) for row in found["runs"]]
    for row in others:
        said += [_reward(first, row, found["C_high"]), _earlier(first, row)]
    for row in found["runs"]:
        said += [
            f"{row['label']} overfits: training reward rises while validation falls at n = {o['n']}, B_p = {o['B_p']} "
            f"from C = {o['C']:.4g} on ({o['runs']} {'run' if o['runs'] == 1 else 'runs'})"
            for o in row["overfitting"]
        ]
        listed = {(o["B_p"], o["n"]) for o in row["overfitting"]}
        said += [
            f"{row['label']}: validation falls beyond C = {p['C']:.4g} at n = {p['n']}, B_p = {p['B_p']}"
            for p in row["peaks"]
            if (p["B_p"], p["n"]) not in listed
        ]
    return said


def _alone(row: Row) -> str:
    """Where the sweep's own n* levels off."""
    s = row["saturation"]
    if s is None:
        return f"{row['label']}: n makes no difference that its evaluations can show"
    if s["n"] == s["n_largest"]:
        return f"{row['label']}: n* ends at the largest n measured ({s['n']}); whether it levels off there, these runs cannot say"
    share = "" if s["below_largest"] is None else f" (below the largest n measured, {s['n_largest']}, with P {_chance(s['below_largest'])})"
    if s["C"] is None:
        return f"{row['label']}: n* stays at {s['n']}{share}"
    span = "" if s["low"] is None and s["high"] is None else f" ({_end(s['low'])} to {_end(s['high'])})"
    return f"{row['label']}: n* levels off at n = {s['n']}, from C = {s['C']:.4g}{span} on{share}"


def _end(value: float | None) -> str:
    return "open" if value is None else f"{value:.4g}"


def _chance(p: float) -> str:
    """ "= 0.42"; a share of replicates is no certainty."""
    return "> 0.99" if p > 0.99 else "< 0.01" if p < 0.01 else f"= {p:.2f}"


def _reward(first: Row, row: Row, C: float) -> str:
    """The difference of the frontiers at the largest common C."""
    d = row["difference"]
    text = f"at C = {C:.4g} {row['label']} reaches {row['top']['reward']:.3f}, {d['value']:+.3f} against {first['label']}"
    if d["low"] is None or d["high"] is None:
        return f"{text} (no intervals)"
    sure = "more" if d["low"] > 0 else "less" if d["high"] < 0 else "not told apart"
    return f"{text} ({d['low']:+.3f} to {d['high']:+.3f}: {sure})"


def _earlier(first: Row, row: Row) -> str:
    """Whether n* levels off earlier."""
    a, b, e = row["label"], first["label"], row["earlier"]
    if e is None:
        flat = [r["label"] for r in (first, row) if r["no_effect"]]
        why = f"n makes no difference in {' and '.join(flat)}" if flat else "they share fewer than two values of n"
        return f"where n* levels off cannot be compared between {a} and {b}: {why}"
    if e["p_earlier"] is None:
        verdict = "levels off earlier" if e["by_curves"] else "does not level off earlier"
        return f"by the curves alone (no intervals) n* {verdict} in {a} than in {b}"
    over = f"over n = {', '.join(map(str, e['shared_n']))}"
    if e["p_earlier"] >= SURE:
        return f"n* levels off earlier in {a} than in {b}, P {_chance(e['p_earlier'])} ({over})"
    if e["p_later"] >= SURE:
        return f"n* levels off later in {a} than in {b}, P {_chance(e['p_later'])} ({over})"
    odds = f"P(earlier) {_chance(e['p_earlier'])}, P(later) {_chance(e['p_later'])}"
    return f"these runs cannot say whether n* levels off earlier in {a} than in {b}: {odds} ({over})"


def notes(found: Row) -> list[str]:
    """What limits the comparison."""
    said = []
    for key in ("n", "B_p"):
        if len({tuple(row[key]) for row in found["runs"]}) > 1:
            each = "; ".join(f"{row['label']}: {', '.join(map(str, row[key]))}" for row in found["runs"])
            said.append(f"the runs did not measure the same {key} ({each}); each frontier is that of its own cells")
    if all(row["difference"] is None or row["difference"]["low"] is None for row in found["runs"]):
        return [*said, "no intervals: mode paper has none, nor has a fit made with --bootstrap 0"]
    return [
        *said,
        "intervals of differences take the runs as independent; where they were evaluated on the same problems the differences are known "
        "better than that",
    ]
