"""Does the fit predict what it has not seen? Three trials on the user's own runs, each fitted
without what it then predicts (docs/laws.md, "Validation on your own runs"). A trial that the runs
do not allow says why."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import Interval, RunRecord
from isojax.scaling.allocate.constraints import EPSILON
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble, load_ensemble
from isojax.scaling.curves.hill import MEASURED_TOLERANCE
from isojax.scaling.curves.sweep_estimate import DEFAULT_OPTIONS, MAX_EXTRAPOLATION, FitOptions
from isojax.scaling.fit import fit_all_runs
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import RunTrack, group_by, group_by_cell, make_track, select_points

REPLICATES = 200
MIN_SHARE_OF_C = 0.7  # evaluations between this share of C and C count as made near C
FitFunction = Callable[[Sequence[RunRecord]], FitResult]
TrialResult = dict[str, Any]


def validate(
    runs: Sequence[RunRecord],
    metric: str,
    compute: str = "rollouts",
    options: FitOptions = DEFAULT_OPTIONS,
) -> TrialResult:
    """The three trials, each a fit of all the runs that it does not hide: the content of
    validation.json.

    Each trial, where possible, has mean_error and mean_absolute_error (predicted less measured),
    inside (the share of evaluations inside the interval of one new run), C (where n is compared),
    n_chosen and n_best (by the fit and as measured), regret (measured), says (in words) and points.
    Refuses runs that cannot be fitted even whole."""
    tracks = [make_track(r, metric, compute) for r in runs]
    trials = {"compute": _hide_compute, "largest_n": _hide_largest_n, "seed": _hide_seed}
    results: dict[str, TrialResult] = {}

    def report_progress(done_here: int, total: int) -> None:
        if options.on_progress is not None:
            options.on_progress(len(results) * total + done_here, len(trials) * total)

    def fit_visible(visible_runs: Sequence[RunRecord]) -> FitResult:
        return fit_all_runs(
            visible_runs, metric, compute, replace(options, on_progress=report_progress)
        )

    for name, trial in trials.items():
        try:
            results[name] = {"possible": True, "why": None, **trial(tracks, fit_visible)}
        except InputError as e:
            results[name] = {"possible": False, "why": str(e)}
    settings = {
        "metric": metric,
        "compute": compute,
        "mode": options.mode,
        "replicates": options.replicates,
    }
    return {"schema": 1, **settings, **results}


def _hide_compute(tracks: Sequence[RunTrack], fit_visible: FitFunction) -> TrialResult:
    """Compute above a MAX_EXTRAPOLATION-th of the largest: extrapolation, and the n chosen for
    it."""
    C_max = max(float(t.C[-1]) for t in tracks)
    C_limit = C_max / MAX_EXTRAPOLATION
    trained = [t for t in tracks if np.any((t.C > 0) & (t.C <= C_limit))]
    ensemble = load_ensemble(
        fit_visible([select_points(t.run, slice((t.C <= C_limit).sum())) for t in trained])
    )
    result = _compare_predictions(ensemble, tracks, C_limit) | _judge_choice(
        ensemble, tracks, C_limit
    )
    summary = f"fitted up to C = {C_limit:.4g}, tested up to {C_max:.4g}: {_describe(result)}"
    hidden = f"compute above {C_limit:.6g}, a {MAX_EXTRAPOLATION:g}th of the largest"
    return {"hidden": hidden, "says": summary} | result


def _hide_seed(tracks: Sequence[RunTrack], fit_visible: FitFunction) -> TrialResult:
    """The last run of every cell that has two or more: the interval of one new run."""
    hidden_tracks = [seeds[-1] for seeds in group_by_cell(tracks).values() if len(seeds) >= 2]
    if not hidden_tracks:
        raise InputError(
            "no cell has two runs: none can be hidden; add a seed (isojax launch --resume sweep.seeds=2)."
        )
    hidden_cells = {t.run.cell for t in hidden_tracks}
    ensemble = load_ensemble(fit_visible([t.run for t in tracks if t.run.cell not in hidden_cells]))
    result = _compare_predictions(ensemble, hidden_tracks) | _judge_choice(ensemble, hidden_tracks)
    names = ", ".join(cell.name for cell in sorted(hidden_cells))
    hidden = f"the last run of every cell that has two or more ({names})"
    return {
        "hidden": hidden,
        "says": f"{len(hidden_tracks)} runs hidden: {_describe(result)}",
    } | result


def _hide_largest_n(tracks: Sequence[RunTrack], fit_visible: FitFunction) -> TrialResult:
    """Every run of the largest n: whether it mattered and the rest warned of it. `predicted` is the
    rest's frontier."""
    measured_n = sorted({t.run.cell.n for t in tracks})
    n = measured_n[-1]
    if len(measured_n) < 2:
        raise InputError(
            f"only n = {n} was run, so nothing is left without the largest n; run a second n."
        )
    fit_without_n = fit_visible([t.run for t in tracks if t.run.cell.n != n])
    ensemble = load_ensemble(fit_without_n)
    usable_cells = ensemble.stable if ensemble.stable.any() else np.ones_like(ensemble.stable)
    rows = [
        _prediction_row(t, C, R, float(ensemble.expected_rewards(C)[usable_cells].max()), None)
        for t in tracks
        for C, R in zip(t.C, t.R, strict=True)
        if C > 0 and t.run.cell.n == n
    ]
    C_max = max(row["C"] for row in rows)
    end_gains = [
        row["measured"] - row["predicted"] for row in rows if row["C"] >= MIN_SHARE_OF_C * C_max
    ]
    gain = float(np.mean(end_gains))
    matters = gain > EPSILON
    warned = any(flag.code == "largest_n_leads" for flag in fit_without_n.flags)
    warning = (
        "warned that its frontier ends at the largest n measured"
        if warned
        else "would not have warned"
    )
    verdict = f"it {'mattered' if matters else 'did not matter'}, and the fit without it {warning}"
    result = _summarize_errors(rows) | _judge_choice(ensemble, tracks)
    gain_text = (
        f"near C = {C_max:.4g} n = {n} measured {gain:+.4f} against the frontier of the rest"
    )
    summary = f"{gain_text}: {verdict}; {_describe_choice(result)}"
    numbers = {"n": n, "gain": gain, "matters": matters, "warned": warned}
    return {"hidden": f"every run of n = {n}", "says": summary} | numbers | result


def _compare_predictions(
    ensemble: CurveEnsemble, tracks: Sequence[RunTrack], C_above: float = 0.0
) -> TrialResult:
    cell_indices = {c.key: i for i, c in enumerate(ensemble.curves)}
    rows = [
        _prediction_row(t, C, R, *ensemble.predict_new_run(cell_indices[t.key], float(C)))
        for t in tracks
        for C, R in zip(t.C, t.R, strict=True)
        if C > C_above and t.key in cell_indices
    ]
    if not rows:
        raise InputError(
            "no hidden evaluation is of a cell with a curve without it; evaluate more often or longer."
        )
    return _summarize_errors(rows)


def _prediction_row(
    t: RunTrack, C: float, measured: float, predicted: float, interval: Interval | None
) -> TrialResult:
    low, high = interval or (None, None)
    cell = t.run.cell
    inside = None if interval is None else bool(interval[0] <= measured <= interval[1])
    row = {
        "B_p": cell.B_p,
        "n": cell.n,
        "seed": cell.seed,
        "C": float(C),
        "measured": float(measured),
    }
    return row | {"predicted": predicted, "low": low, "high": high, "inside": inside}


def _summarize_errors(rows: Sequence[TrialResult]) -> TrialResult:
    errors = np.array([row["predicted"] - row["measured"] for row in rows])
    inside_interval = [row["inside"] for row in rows if row["inside"] is not None]
    return {
        "measurements": len(rows),
        "mean_error": float(errors.mean()),
        "mean_absolute_error": float(np.abs(errors).mean()),
        "inside": float(np.mean(inside_interval)) if inside_interval else None,
        "points": list(rows),
    }


def _judge_choice(
    ensemble: CurveEnsemble, tracks: Sequence[RunTrack], C_above: float = 0.0
) -> TrialResult:
    """The fit's best n at the largest C > C_above of two n, the n measured best, and the regret
    (biased upward)."""
    tracks_by_n = group_by(tracks, lambda t: t.run.cell.n)
    C_ends = sorted(
        max(float(t.C[-1]) for t in tracks_of_n) for tracks_of_n in tracks_by_n.values()
    )
    C = C_ends[-2] if len(C_ends) > 1 else 0.0
    rewards_near_C = {
        key: [
            R
            for t in seeds
            for R in t.R[(t.C >= MIN_SHARE_OF_C * C) & (t.C <= C * MEASURED_TOLERANCE)]
        ]
        for key, seeds in group_by_cell(tracks).items()
    }
    mean_rewards = {
        key: float(np.mean(rewards)) for key, rewards in rewards_near_C.items() if rewards
    }
    allowed = np.array([c.key in mean_rewards for c in ensemble.curves])
    allowed = allowed & ensemble.stable if (allowed & ensemble.stable).any() else allowed
    if C <= C_above or not allowed.any():
        return {"C": None, "n_chosen": None, "n_best": None, "regret": None}
    chosen = ensemble.curves[
        ensemble.choose_cell(np.full(len(allowed), C), allowed, epsilon=0.0)
    ].key
    best = max(mean_rewards, key=lambda key: (mean_rewards[key], -key[1]))
    return {
        "C": C,
        "n_chosen": chosen[1],
        "n_best": best[1],
        "regret": mean_rewards[best] - mean_rewards[chosen],
    }


def _describe(result: TrialResult) -> str:
    share = (
        f", {result['inside']:.0%} inside the interval of one new run"
        if result["inside"] is not None
        else ""
    )
    errors = f"mean error {result['mean_error']:+.4f}, mean absolute error {result['mean_absolute_error']:.4f}"
    return f"{result['measurements']} evaluations predicted with {errors}{share}; {_describe_choice(result)}"


def _describe_choice(result: TrialResult) -> str:
    if result["n_chosen"] is None:
        return "no two n were measured that far, so its choice of n cannot be judged"
    choice = f"at C = {result['C']:.4g} it chose n = {result['n_chosen']}, measured best was n = {result['n_best']}"
    return f"{choice}, which cost {result['regret']:.4f}"
