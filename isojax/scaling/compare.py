"""Several sweeps beside each other: what the paper asks across settings, such as data size D (IsoCompute Playbook, arXiv:2603.12151,
Fig. 13), models, difficulty and recipes. From the contents of their fit.json alone.

All are compared over the budgets they share. n* at C is the n of the best cell, where a cell competes by its curve up to REACH decades
beyond its own data, as in the law n*(C); the frontier's reward is the best of the cells measured there. n* "levels off" at the budget
beyond which it does not change, unless it ends at the largest n measured: then nobody knows, and it counts as later than everything.
Replicates are taken as independent between sweeps: every one of one against every one of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.compare_words import notes, sentences
from isojax.scaling.draws import REACH, interval
from isojax.scaling.ensemble import BoolArray, Ensemble, FloatArray, IntArray
from isojax.scaling.frontier import MIN_DECADES
from isojax.types import InputError

PER_DECADE = 60
BUDGETS = 5
DRAWN = 80  # rows of the bands that a figure is drawn from
SAME = ("metric", "compute", "mode")


@dataclass(frozen=True)
class Sweep:
    """A fit under a name."""

    label: str
    fit: Mapping[str, Any]
    cells: Ensemble

    @property
    def span(self) -> tuple[float, float]:
        """From the first to the last C at which any cell was measured."""
        return float(self.cells.C_low.min()), float(self.cells.C_high.max())


@dataclass(frozen=True)
class Path:
    """n* and the frontier along budgets C, float[G]: by the curves, [G], and of each replicate, [Q, G] (Q = 0 without draws)."""

    C: FloatArray
    n: IntArray
    n_draws: IntArray
    reward: FloatArray
    reward_draws: FloatArray


def compare(fits: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> dict[str, Any]:
    """Compare sweeps; the first is the one that the others are held against.

    Args:
        fits: contents of fit.json, at least two, of one metric, compute and mode. labels: a name for each.

    Returns:
        metric, compute, mode; C_low, C_high (what all cover); runs, for each its label, base_reward, n, B_p, no_effect, law, overfitting,
        peaks, `at` (n* and frontier reward with intervals at a few budgets), `curve` (the same at many), saturation, `top` (the frontier at
        C_high), and against the first (None for itself) difference and earlier; says and notes, in words. Absent numbers are None.

    Raises:
        InputError: fewer than two, labels that do not fit or are alike, fits of different metric, compute or mode, no budget in common, or
            fits that cannot be used.
    """
    _check(fits, labels)
    sweeps = [_sweep(label, fit) for label, fit in zip(labels, fits, strict=True)]
    C = _shared(sweeps)
    paths = [_path(s, C) for s in sweeps]
    runs = [_run(s, p) for s, p in zip(sweeps, paths, strict=True)]
    for i, row in enumerate(runs):
        row["difference"] = _difference(paths[0], paths[i]) if i else None
        row["earlier"] = _earlier(sweeps[0], sweeps[i], C) if i else None
    head = {key: fits[0].get(key) for key in SAME}
    found = {**head, "C_low": float(C[0]), "C_high": float(C[-1]), "runs": runs}
    return {**found, "says": sentences(found), "notes": notes(found)}


def _check(fits: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> None:
    if len(fits) < 2:
        raise InputError(f"{len(fits)} fit to compare; expected at least two. Name another sweep's folder or fit.json.")
    if len(labels) != len(fits):
        raise InputError(f"{len(labels)} labels ({', '.join(labels)}) for {len(fits)} runs; expected one each. Separate them by commas.")
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise InputError(f"two runs are called {twice[0]!r}; expected a name for each. Give --labels.")
    for key in SAME:
        first = fits[0].get(key)
        for fit, label in zip(fits, labels, strict=True):
            if fit.get(key) != first:
                given = f"{labels[0]} was fitted with {key} {first!r}, {label} with {fit.get(key)!r}"
                raise InputError(f"{given}; expected the same, or their numbers do not compare. Fit both alike (isojax fit --{key} ...).")


def _sweep(label: str, fit: Mapping[str, Any]) -> Sweep:
    try:
        return Sweep(label, fit, Ensemble.load(fit))
    except InputError as e:
        raise InputError(f"{label}: {e}") from e


def _shared(sweeps: Sequence[Sweep]) -> FloatArray:
    """The budgets that every sweep has measured, float[G]."""
    spans = [s.span for s in sweeps]
    C_low, C_high = max(low for low, _ in spans), min(high for _, high in spans)
    if C_low < C_high:
        C = np.geomspace(C_low, C_high, int(np.ceil(PER_DECADE * np.log10(C_high / C_low))) + 2)
        C = C[np.all([_there(s.cells, C, MIN_DECADES).any(-1) for s in sweeps], axis=0)]
        if len(C) > 1:
            return C
    given = "; ".join(f"{s.label} {low:.4g} to {high:.4g}" for s, (low, high) in zip(sweeps, spans, strict=True))
    raise InputError(
        f"no range of budgets C was measured in all runs ({given}); expected ranges that overlap. Run the shorter ones further."
    )


def _there(e: Ensemble, C: FloatArray, slack: float) -> BoolArray:
    """bool[G, J]: which cells have begun by C, and ended at most `slack` decades before it."""
    return (e.C_low <= C[:, None] * 10**MIN_DECADES) & (e.C_high * 10**slack >= C[:, None])


def _path(s: Sweep, C: FloatArray) -> Path:
    e = s.cells
    near, far = _there(e, C, MIN_DECADES), _there(e, C, REACH)
    expected, drawn = e.expected(C), e.rewards(C).transpose(1, 0, 2)  # [G, J], [Q, G, J]
    n, n_draws = (e.n[np.where(far, values, -np.inf).argmax(-1)] for values in (expected, drawn))
    return Path(C, n, n_draws, np.where(near, expected, -np.inf).max(-1), np.where(near, drawn, -np.inf).max(-1))


def _run(s: Sweep, p: Path) -> dict[str, Any]:
    e, rows = s.cells, _rows(p)
    few, many = (np.unique(np.linspace(0, len(p.C) - 1, count).round().astype(int)) for count in (BUDGETS, DRAWN))
    overfitted: dict[tuple[int, int], list[float]] = {}
    for row in s.fit.get("overfitting") or ():
        overfitted.setdefault((row["B_p"], row["n"]), []).append(row["C"])
    peaks = [(int(b), int(n), float(C)) for b, n, C in zip(e.B_p, e.n, e.C_peak, strict=True) if np.isfinite(C)]
    return {
        "label": s.label,
        "base_reward": s.fit.get("base_reward"),
        "n": sorted(set(e.n.tolist())),
        "B_p": sorted(set(e.B_p.tolist())),
        "no_effect": e.no_effect,
        "law": {key: s.fit["n_star"][key] for key in ("form", "L", "k", "log10_C0", "b")} if s.fit.get("n_star") else None,
        "at": [rows[i] for i in few],
        "curve": [rows[i] for i in many],
        "saturation": None if e.no_effect else _saturation(p, int(e.n.max())),
        "top": rows[-1],
        "overfitting": [{"B_p": b, "n": n, "runs": len(C), "C": min(C)} for (b, n), C in sorted(overfitted.items())],
        "peaks": [{"B_p": b, "n": n, "C": C} for b, n, C in peaks],
    }


def _rows(p: Path) -> list[dict[str, Any]]:
    """n* and the frontier's reward at each C, with intervals."""
    rows = []
    for g, C in enumerate(p.C):
        n_low, n_high = _interval(p.n_draws[:, g])
        low, high = _interval(p.reward_draws[:, g])
        row = {"C": float(C), "n": int(p.n[g]), "n_low": _whole(n_low), "n_high": _whole(n_high)}
        rows.append({**row, "reward": float(p.reward[g]), "low": low, "high": high})
    return rows


def _interval(values: NDArray[Any]) -> tuple[float | None, float | None]:
    return interval(values) if len(values) else (None, None)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def levels_off(n: IntArray, C: FloatArray, largest: int) -> FloatArray:
    """Where n*, int[..., G], changes for the last time, float[...]: -inf where it never does, +inf where it ends at the largest n."""
    change = n[..., 1:] != n[..., :-1]
    last = change.shape[-1] - 1 - change[..., ::-1].argmax(-1)
    at = np.sqrt(C[last] * C[last + 1])
    return np.where(n[..., -1] == largest, np.inf, np.where(change.any(-1), at, -np.inf))


def _saturation(p: Path, largest: int) -> dict[str, Any]:
    """n at the end; where it levels off (C is None if it ends at the largest n, or never changes); in which share of the replicates it
    ends below the largest n."""
    C, ends = float(levels_off(p.n, p.C, largest)), levels_off(p.n_draws, p.C, largest)
    low, high = _interval(ends)
    share = float(np.mean(ends < np.inf)) if len(ends) else None
    found = {"n": int(p.n[-1]), "n_largest": largest, "C": C if np.isfinite(C) else None, "low": low, "high": high}
    return found | {"below_largest": share}


def _difference(first: Path, other: Path) -> dict[str, Any]:
    """The frontier's reward at the end less that of the first sweep."""
    value = float(other.reward[-1] - first.reward[-1])
    if not (len(first.reward_draws) and len(other.reward_draws)):
        return {"value": value, "low": None, "high": None, "p_higher": None}
    gaps = np.subtract.outer(other.reward_draws[:, -1], first.reward_draws[:, -1]).ravel()
    low, high = interval(gaps)
    return {"value": value, "low": low, "high": high, "p_higher": float(np.mean(gaps > 0))}


def _earlier(first: Sweep, other: Sweep, C: FloatArray) -> dict[str, Any] | None:
    """Whether n* levels off earlier in `other` than in the first sweep, over the n that both measured; None where nothing can be said."""
    shared = sorted(set(first.cells.n.tolist()) & set(other.cells.n.tolist()))
    if len(shared) < 2 or first.cells.no_effect or other.cells.no_effect:
        return None
    theirs, own = (_of(s, shared) for s in (first, other))
    C = C[_there(theirs.cells, C, REACH).any(-1) & _there(own.cells, C, REACH).any(-1)]
    if len(C) < 2:
        return None
    paths = [_path(s, C) for s in (own, theirs)]
    a, b = (float(levels_off(p.n, C, shared[-1])) for p in paths)
    found = {"shared_n": shared, "by_curves": a < b, "p_earlier": None, "p_later": None}
    if all(len(p.n_draws) for p in paths):
        a_draws, b_draws = (levels_off(p.n_draws, C, shared[-1]) for p in paths)
        earlier, later = np.less.outer(a_draws, b_draws), np.greater.outer(a_draws, b_draws)
        found |= {"p_earlier": float(earlier.mean()), "p_later": float(later.mean())}
    return found


def _of(s: Sweep, n: Sequence[int]) -> Sweep:
    """The same sweep with the cells of these n alone."""
    curves = [c for c in s.fit["curves"] if c["n"] in n]
    return Sweep(s.label, s.fit, Ensemble.load({**s.fit, "curves": curves}))
