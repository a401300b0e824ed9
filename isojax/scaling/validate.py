"""How well a fit predicts runs that it has not seen (`isojax validate`; docs/laws.md, "Validation
on your own runs"). Three trials on the user's runs: each hides a part of them (the largest C, one
seed of each cell, or the largest n), fits the rest, and compares the fit with the hidden part.
Where the runs do not allow a trial, the result gives the reason."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.scaling.allocate.constraints import EPSILON
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble, RewardForecast, load_ensemble
from isojax.scaling.curves.hill import MEASURED_TOLERANCE
from isojax.scaling.curves.sweep_estimate import DEFAULT_OPTIONS, MAX_EXTRAPOLATION, FitOptions
from isojax.scaling.fit import fit_all_runs
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import RunTrack, group_by, group_by_cell, make_track, select_points

REPLICATES = 200  # draws of each fit
MIN_SHARE_OF_C = 0.7  # evaluations between this share of C and C count as made near C
FitFunction = Callable[[Sequence[RunRecord]], FitResult]
TrialResult = dict[str, Any]


def validate(
    runs: Sequence[RunRecord],
    metric: str,
    compute: str = "rollouts",
    options: FitOptions = DEFAULT_OPTIONS,
) -> TrialResult:
    """Hides a part of the data three times, fits the rest, and compares it with what was hidden.

    metric: of the evaluations, such as "avg@4". compute: what C counts, one of COMPUTE_UNITS of
    tracks.py: "rollouts", "tokens" or "device_hours".

    Returns what validation.json holds: the settings, and a result for each of the three trials,
    "compute" (the evaluations at the largest C are hidden), "largest_n" (the runs of the largest n)
    and "seed" (a run of each cell). A trial that is not possible has {"possible": False, "why":
    reason}. Another has
    - hidden, says: what was hidden and what came out, in words;
    - mean_error, mean_absolute_error: predicted less measured reward; points: each evaluation;
    - inside: the share of the hidden evaluations inside the interval of one new run;
    - C, n_chosen, n_best, regret: the best n at C by the fit and as measured, and the measured
      reward that the choice of the fit loses.

    InputError where a run cannot be read as a track. options.on_progress is called as in a fit."""
    tracks = [make_track(r, metric, compute) for r in runs]
    trials = {"compute": _hide_compute, "largest_n": _hide_largest_n, "seed": _hide_seed}
    results: dict[str, TrialResult] = {}

    def report_progress(done_here: int, total: int) -> None:
        """Progress over all trials, as if each took equally long."""
        if options.on_progress is not None:
            options.on_progress(len(results) * total + done_here, len(trials) * total)

    trial_options = replace(options, on_progress=report_progress)

    def fit_visible(visible_runs: Sequence[RunRecord]) -> FitResult:
        return fit_all_runs(visible_runs, metric, compute, trial_options)

    for name, trial in trials.items():
        try:
            results[name] = {"possible": True, "why": None, **trial(tracks, fit_visible)}
        except InputError as e:
            results[name] = {"possible": False, "why": str(e)}
    return {
        "schema": 1,
        "metric": metric,
        # not "compute", which is the name of a trial
        "compute_axis": compute,
        "mode": options.mode,
        "replicates": options.replicates,
        **results,
    }


def _hide_compute(tracks: Sequence[RunTrack], fit_visible: FitFunction) -> TrialResult:
    """The trial of extrapolation: hide all evaluations above a quarter (1 / MAX_EXTRAPOLATION) of
    the largest C, and predict them, and the best n there, from the rest. fit_visible fits runs."""
    C_max = max(float(t.C[-1]) for t in tracks)
    C_limit = C_max / MAX_EXTRAPOLATION
    trained = [t for t in tracks if np.any((t.C > 0) & (t.C <= C_limit))]
    # C rises along a run, so that the visible evaluations come first.
    visible_runs = [select_points(t.run, slice((t.C <= C_limit).sum())) for t in trained]
    ensemble = load_ensemble(fit_visible(visible_runs))
    result = {
        **_compare_predictions(ensemble, tracks, C_limit),
        **_judge_choice(ensemble, tracks, C_limit),
    }
    hidden = f"compute above {C_limit:.6g}, a {MAX_EXTRAPOLATION:g}th of the largest"
    tried = f"fitted up to C = {C_limit:.4g}, tested up to {C_max:.4g}"
    return {"hidden": hidden, "says": f"{tried}: {_describe(result)}", **result}


def _hide_seed(tracks: Sequence[RunTrack], fit_visible: FitFunction) -> TrialResult:
    """The trial of a new seed: hide the last run of every cell that has two or more, and predict it
    from the rest; its evaluations should be inside the interval of one new run."""
    hidden_tracks = [seeds[-1] for seeds in group_by_cell(tracks).values() if len(seeds) >= 2]
    if not hidden_tracks:
        raise InputError(
            found="no cell has two runs: none can be hidden",
            fix="Add a seed (isojax launch --resume sweep.seeds=2).",
        )

    hidden_cells = {t.run.cell for t in hidden_tracks}
    ensemble = load_ensemble(fit_visible([t.run for t in tracks if t.run.cell not in hidden_cells]))
    result = {
        **_compare_predictions(ensemble, hidden_tracks),
        **_judge_choice(ensemble, hidden_tracks),
    }

    names = ", ".join(cell.name for cell in sorted(hidden_cells))
    hidden = f"the last run of every cell that has two or more ({names})"
    summary = f"{len(hidden_tracks)} runs hidden: {_describe(result)}"
    return {"hidden": hidden, "says": summary, **result}


def _hide_largest_n(tracks: Sequence[RunTrack], fit_visible: FitFunction) -> TrialResult:
    """The trial of an n that was not measured: hide every run of the largest n. Does it exceed the
    frontier of the rest (`predicted` in the points), and if so, did the fit of the rest warn that a
    larger n might?"""
    measured_n = sorted({t.run.cell.n for t in tracks})
    n = measured_n[-1]
    if len(measured_n) < 2:
        raise InputError(
            found=f"only n = {n} was run, so nothing is left without the largest n",
            fix="Run a second n.",
        )

    fit_without_n = fit_visible([t.run for t in tracks if t.run.cell.n != n])
    ensemble = load_ensemble(fit_without_n)
    # bool[cells]: the cells that `isojax recommend` may choose, those of a B_p whose runs did not
    # break. Where all B_p broke all cells count, so that there is a frontier to compare with.
    on_frontier = ensemble.stable if ensemble.stable.any() else np.ones_like(ensemble.stable)

    # Each evaluation of the hidden runs, with the frontier of the rest at its C as the prediction.
    rows = []
    for track in tracks:
        if track.run.cell.n != n:
            continue
        for C, R in zip(track.C, track.R, strict=True):
            if C > 0:
                frontier = float(ensemble.expected_rewards(C)[on_frontier].max())
                rows.append(_prediction_row(track, C, R, RewardForecast(frontier, None)))

    # Compare near the end, since a large n needs many rollouts before it can be better.
    C_max = max(row["C"] for row in rows)
    end_gains = [
        row["measured"] - row["predicted"] for row in rows if row["C"] >= MIN_SHARE_OF_C * C_max
    ]
    gain = float(np.mean(end_gains))
    matters = gain > EPSILON  # the reward (0.005) that a recommendation takes as no difference
    warned = any(flag.code == "largest_n_leads" for flag in fit_without_n.flags)

    result = {**_summarize_errors(rows), **_judge_choice(ensemble, tracks)}
    measured = f"near C = {C_max:.4g} n = {n} measured {gain:+.4f} against the frontier of the rest"
    verdict = "mattered" if matters else "did not matter"
    warning = "would not have warned"
    if warned:
        warning = "warned that its frontier ends at the largest n measured"
    return {
        "hidden": f"every run of n = {n}",
        "says": f"{measured}: it {verdict}, and the fit without it {warning}; "
        f"{_describe_choice(result)}",
        "n": n,
        "gain": gain,
        "matters": matters,
        "warned": warned,
        **result,
    }


def _compare_predictions(
    ensemble: CurveEnsemble, tracks: Sequence[RunTrack], C_above: float = 0.0
) -> TrialResult:
    """How well the curves of a fit predict the evaluations of hidden runs at C > C_above: the mean
    errors, and the share inside the interval of one new run. InputError where no hidden evaluation
    belongs to a cell with a curve."""
    cell_indices = {c.key: i for i, c in enumerate(ensemble.curves)}
    rows = []
    for track in tracks:
        if track.key not in cell_indices:
            continue
        for C, R in zip(track.C, track.R, strict=True):
            if C > C_above:
                forecast = ensemble.predict_new_run(cell_indices[track.key], float(C))
                rows.append(_prediction_row(track, C, R, forecast))

    if not rows:
        raise InputError(
            found="no hidden evaluation is of a cell with a curve without it",
            fix="Evaluate more often or longer.",
        )
    return _summarize_errors(rows)


def _prediction_row(
    track: RunTrack, C: float, measured: float, forecast: RewardForecast
) -> TrialResult:
    """One hidden evaluation with its prediction, as a row of `points`: {B_p, n, seed, C, measured,
    predicted, low, high, inside}; the last three are None without an interval."""
    cell = track.run.cell
    low, high, inside = None, None, None
    if forecast.interval is not None:
        low, high = forecast.interval
        inside = bool(low <= measured <= high)

    return {
        "B_p": cell.B_p,
        "n": cell.n,
        "seed": cell.seed,
        "C": float(C),
        "measured": float(measured),
        "predicted": forecast.reward,
        "low": low,
        "high": high,
        "inside": inside,
    }


def _summarize_errors(rows: Sequence[TrialResult]) -> TrialResult:
    """The mean errors, predicted less measured, of rows of `points`."""
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
    """Whether the fit chooses the n that was best: {C, n_chosen, n_best, regret}, all None where it
    cannot be judged. C is the largest that at least two n reached, and must be above C_above, where
    hidden evaluations begin. n_best has the highest mean of the evaluations near C; the regret is
    the measured reward that n_chosen loses against it, which is too large on average, since the
    best of noisy means is taken."""
    tracks_by_n = group_by(tracks, lambda t: t.run.cell.n)
    C_ends = sorted(
        max(float(t.C[-1]) for t in tracks_of_n) for tracks_of_n in tracks_by_n.values()
    )
    C = C_ends[-2] if len(C_ends) > 1 else 0.0

    mean_rewards = {}  # of each cell that was evaluated near C
    for key, seeds in group_by_cell(tracks).items():
        rewards = []
        for track in seeds:
            # MEASURED_TOLERANCE: a factor a little above 1, since runs end near C, not at it
            is_near = (track.C >= MIN_SHARE_OF_C * C) & (track.C <= C * MEASURED_TOLERANCE)
            rewards += track.R[is_near].tolist()
        if rewards:
            mean_rewards[key] = float(np.mean(rewards))

    # The fit chooses as `isojax recommend` does, among cells that can be judged: without those of a
    # B_p whose runs were unstable, unless no others are left.
    allowed = np.array([c.key in mean_rewards for c in ensemble.curves])
    if (allowed & ensemble.stable).any():
        allowed = allowed & ensemble.stable
    if C <= C_above or not allowed.any():
        return {"C": None, "n_chosen": None, "n_best": None, "regret": None}

    # Both are (B_p, n); of equal means the smaller n is the best.
    chosen_index = ensemble.choose_cell(np.full(len(allowed), C), allowed, epsilon=0.0)
    chosen_cell = ensemble.curves[chosen_index].key
    best_cell = max(mean_rewards, key=lambda key: (mean_rewards[key], -key[1]))
    return {
        "C": C,
        "n_chosen": chosen_cell[1],
        "n_best": best_cell[1],
        "regret": mean_rewards[best_cell] - mean_rewards[chosen_cell],
    }


def _describe(result: TrialResult) -> str:
    """The errors of a trial, and its choice of n, in words."""
    count = f"{result['measurements']} evaluations predicted"
    mean = f"mean error {result['mean_error']:+.4f}"
    absolute = f"mean absolute error {result['mean_absolute_error']:.4f}"
    share = ""
    if result["inside"] is not None:
        share = f", {result['inside']:.0%} inside the interval of one new run"
    return f"{count} with {mean}, {absolute}{share}; {_describe_choice(result)}"


def _describe_choice(result: TrialResult) -> str:
    """The n that the fit chose and the n that was best, in words."""
    if result["n_chosen"] is None:
        return "no two n were measured that far, so its choice of n cannot be judged"
    chosen = f"at C = {result['C']:.4g} it chose n = {result['n_chosen']}"
    best = f"measured best was n = {result['n_best']}"
    return f"{chosen}, {best}, which cost {result['regret']:.4f}"
