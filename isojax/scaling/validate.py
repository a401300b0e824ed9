"""Does the fit predict what it has not seen? Three trials on the user's own runs, each fitted without what it then predicts:

    compute      the top `TOP` times of compute of every run: extrapolation, and the n it would have chosen for the largest budget
    largest_n    every run of the largest n: whether that n mattered, and whether the rest would have warned that it might
    seed         the last run of every cell that has two or more: the interval of one new run

A trial that the runs do not allow says why. The interval of one new run counts the choice of validation problems too, which hidden and
fitted evaluations share: more than its level inside is to be expected, less is a warning. The n that it would have
chosen is judged at the largest C that two n reach, by the mean of each cell's evaluations near there; the best of several such means is
itself too high by chance, and so is the regret measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isojax.scaling.ensemble import Ensemble
from isojax.scaling.fit import fit
from isojax.scaling.metrics import Track, by_cell, track
from isojax.scaling.predict import choose, new_run
from isojax.scaling.request import EPSILON
from isojax.types import InputError, RunRecord

SCHEMA = 1
TOP = 4.0
REPLICATES = 200
# Evaluations between this share of C and C count as made near C.
NEAR = 0.7
Fit = Callable[[Sequence[RunRecord]], Mapping[str, Any]]
Result = dict[str, Any]


def validate(
    runs: Sequence[RunRecord],
    metric: str = "avg@4",
    compute: str = "rollouts",
    mode: str = "debiased",
    replicates: int = REPLICATES,
    seed: int = 0,
    run_sd: float | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> Result:
    """The three trials.

    Args:
        runs, metric, compute, mode, replicates, seed, run_sd: as of fit.fit.
        advance: hears (replicates done, of how many) over all fits.

    Returns:
        The content of validation.json, plain JSON types: metric, compute, mode and a dictionary for each trial. One that was possible holds
        measurements (hidden evaluations), mean_error and mean_absolute_error (predicted less measured), inside (the share of them inside
        the interval of one new run; None without intervals), C (where n is compared), n_chosen and n_best (by the fit and as measured),
        regret (measured), says (in words) and points. One that was not: why.

    Raises:
        InputError: runs that cannot be fitted even whole.
    """
    tracks = [track(r, metric, compute) for r in runs]
    trials = {"compute": _hide_compute, "largest_n": _hide_largest_n, "seed": _hide_seed}
    done = 0

    def hear(i: int, of: int) -> None:
        if advance is not None:
            advance(done * of + i, len(trials) * of)

    def fitted(kept: Sequence[RunRecord]) -> Mapping[str, Any]:
        return fit(kept, metric, compute, mode, replicates=replicates, seed=seed, run_sd=run_sd, advance=hear)

    found: dict[str, Result] = {}
    for name, trial in trials.items():
        try:
            found[name] = {"possible": True, "why": None, **trial(tracks, fitted)}
        except InputError as e:
            found[name] = {"possible": False, "why": str(e)}
        done += 1
    return {"schema": SCHEMA, "metric": metric, "compute": compute, "mode": mode, "replicates": replicates, **found}


def _hide_compute(tracks: Sequence[Track], fitted: Fit) -> Result:
    top = max(float(t.C[-1]) for t in tracks)
    limit = top / TOP
    kept = [part for t in tracks if (part := _up_to(t, limit)) is not None]
    e = Ensemble.load(fitted(kept))
    result = _predicted(e, [(t, t.C > limit) for t in tracks]) | _choice(e, tracks, limit)
    says = f"fitted up to C = {limit:.4g}, tested up to {top:.4g}: {_errors_in_words(result)}; {_choice_in_words(result)}"
    return {"hidden": f"compute above {limit:.6g}, a {TOP:g}th of the largest", "says": says} | result


def _hide_seed(tracks: Sequence[Track], fitted: Fit) -> Result:
    last = [seeds[-1] for seeds in by_cell(tracks).values() if len(seeds) >= 2]
    if not last:
        raise InputError("no cell has two runs, so none can be hidden; run a second seed (isojax launch --resume sweep.seeds=2).")
    hidden = {id(t) for t in last}
    e = Ensemble.load(fitted([t.run for t in tracks if id(t) not in hidden]))
    result = _predicted(e, [(t, t.C > 0) for t in last]) | _choice(e, last)
    names = ", ".join(t.run.cell.name for t in last)
    says = f"{len(last)} runs hidden: {_errors_in_words(result)}; {_choice_in_words(result)}"
    return {"hidden": f"the last run of every cell that has two or more ({names})", "says": says} | result


def _hide_largest_n(tracks: Sequence[Track], fitted: Fit) -> Result:
    """Nothing predicts an n that was not run: `predicted` is the frontier of the rest, and its error what that n adds."""
    ns = sorted({t.run.cell.n for t in tracks})
    if len(ns) < 2:
        raise InputError(f"only n = {ns[0]} was run, so nothing is left without the largest n; run a second n.")
    n = ns[-1]
    hidden = [t for t in tracks if t.run.cell.n == n]
    document = fitted([t.run for t in tracks if t.run.cell.n != n])
    e = Ensemble.load(document)
    usable = e.stable if e.stable.any() else np.ones_like(e.stable)
    rows = [_row(t, C, R, float(e.expected(C)[usable].max()), None) for t in hidden for C, R in zip(t.C, t.R, strict=True) if C > 0]
    top = max(float(t.C[-1]) for t in hidden)
    result = _summary(rows) | _choice(e, tracks)
    ends = [row for row in rows if row["C"] >= NEAR * top]
    gain = float(np.mean([row["measured"] - row["predicted"] for row in ends]))
    matters, warned = gain > EPSILON, document["frontier"][-1]["n"] == ns[-2]
    added = f"near C = {top:.4g} n = {n} measured {gain:+.4f} beside the frontier of the rest"
    verdict = {
        (True, True): "it mattered, and the fit without it warned that its frontier ends at the largest n measured",
        (True, False): "it mattered, and the fit without it would not have warned",
        (False, True): "it did not matter, though the fit without it warned that its frontier ends at the largest n measured",
        (False, False): "it did not matter, and the fit without it did not warn",
    }[matters, warned]
    says = f"{added}: {verdict}; {_choice_in_words(result)}"
    return {"hidden": f"every run of n = {n}", "says": says, "n": n, "gain": gain, "matters": matters, "warned": warned} | result


def _up_to(t: Track, limit: float) -> RunRecord | None:
    """A run cut off at compute `limit`; None where nothing but the base policy is left."""
    count = int((t.C <= limit).sum())
    if count == 0 or t.C[count - 1] == 0:
        return None
    cut = {name: value[:count] for name in ("points", "device_hours", "lines") if (value := getattr(t.run, name))}
    return replace(t.run, **cut)


def _predicted(e: Ensemble, hidden: Sequence[tuple[Track, np.ndarray]]) -> Result:
    """Predicted against measured reward of evaluations (a track and a mask of them), where the cell has a curve."""
    cells = {(int(B_p), int(n)): i for i, (B_p, n) in enumerate(zip(e.B_p, e.n, strict=True))}
    rows = []
    for t, mask in hidden:
        if t.key not in cells:
            continue
        i = cells[t.key]
        for C, R in zip(t.C[mask], t.R[mask], strict=True):
            reward, draws = e.cell(i, float(C), same_problems=True)
            low, high = e.interval(draws) or (None, None)
            rows.append(_row(t, C, R, reward, new_run(e, i, reward, low, high)))
    if not rows:
        raise InputError("no hidden evaluation belongs to a cell that has a curve without it; evaluate more often or run longer.")
    return _summary(rows)


def _row(t: Track, C: float, measured: float, predicted: float, span: tuple[float | None, float | None] | None) -> Result:
    low, high = span or (None, None)
    inside = None if low is None or high is None else bool(low <= measured <= high)
    cell = t.run.cell
    row = {"B_p": cell.B_p, "n": cell.n, "seed": cell.seed, "C": float(C), "measured": float(measured), "predicted": predicted}
    return row | {"low": low, "high": high, "inside": inside}


def _summary(rows: Sequence[Result]) -> Result:
    errors = np.array([row["predicted"] - row["measured"] for row in rows])
    judged = [row["inside"] for row in rows if row["inside"] is not None]
    return {
        "measurements": len(rows),
        "mean_error": float(errors.mean()),
        "mean_absolute_error": float(np.abs(errors).mean()),
        "inside": float(np.mean(judged)) if judged else None,
        "points": list(rows),
    }


def _choice(e: Ensemble, tracks: Sequence[Track], beyond: float = 0.0) -> Result:
    """The n of the fit's best cell at the largest C > `beyond` that two n reach, the n measured best there, and what the first lost."""
    nothing: Result = {"C": None, "n_chosen": None, "n_best": None, "regret": None}
    ends: dict[int, float] = {}
    for t in tracks:
        ends[t.run.cell.n] = max(ends.get(t.run.cell.n, 0.0), float(t.C[-1]))
    C = sorted(ends.values())[-2] if len(ends) > 1 else 0.0
    if C <= beyond:
        return nothing
    near = {key: [R for t in seeds for R in t.R[(t.C >= NEAR * C) & (t.C <= C)]] for key, seeds in by_cell(tracks).items()}
    measured = {key: float(np.mean(rewards)) for key, rewards in near.items() if rewards}
    there = np.array([(int(B_p), int(n)) in measured for B_p, n in zip(e.B_p, e.n, strict=True)])
    allowed = there & e.stable if (there & e.stable).any() else there
    if not allowed.any():
        return nothing
    i = int(choose(e, np.full((1, len(e.n)), C), allowed[None], 0.0)[0])
    best = max(measured, key=lambda key: (measured[key], -key[1]))
    n_chosen, B_p = int(e.n[i]), int(e.B_p[i])
    return {"C": C, "n_chosen": n_chosen, "n_best": best[1], "regret": measured[best] - measured[B_p, n_chosen]}


def _errors_in_words(r: Result) -> str:
    share = f", {r['inside']:.0%} inside the interval of one new run" if r["inside"] is not None else ""
    errors = f"mean error {r['mean_error']:+.4f}, mean absolute error {r['mean_absolute_error']:.4f}"
    return f"{r['measurements']} evaluations predicted with {errors}{share}"


def _choice_in_words(r: Result) -> str:
    if r["n_chosen"] is None:
        return "no two n were measured that far, so its choice of n cannot be judged"
    return f"at C = {r['C']:.4g} it chose n = {r['n_chosen']}, measured best was n = {r['n_best']}, which cost {r['regret']:.4f}"
