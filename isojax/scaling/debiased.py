"""Mode "debiased": every curve from all points, no filter; see mixed.py for the model and surface.py for its scales.

Against the paper's procedure (records, one sigmoid a cell): points that did not break a record count too, so that noise is not taken for
progress; all cells share R0 and one run-to-run effect and lean on a joint surface over (n, B_p); of the shapes in shapes.py the likeliest is
kept; a reward that falls again ends its curve at the peak; intervals come from a bootstrap over problems and runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isojax.scaling.curves import Curve
from isojax.scaling.draws import Draws, interval
from isojax.scaling.effect import no_effect
from isojax.scaling.estimate import Estimate, Options
from isojax.scaling.metrics import FloatArray, Track
from isojax.scaling.mixed import State, predicted, progress, select
from isojax.scaling.peaks import find_peak
from isojax.scaling.resample import Resampler, resampler
from isojax.scaling.shapes import FORMS
from isojax.scaling.surface import Cells, Fitted, Packed, fit_form, pack, replicates, run_sd

MIN_POINTS = 3
CHUNK = 50
# A plateau counts as determined where a curve has come this far on its way to it, and its interval is no wider than that.
DETERMINED_PROGRESS = 0.7
DETERMINED_WIDTH = 0.12


def estimate(cells: Cells, metric: str, options: Options) -> Estimate:
    """Curves, their replicates and whether n matters."""
    usable = {key: seeds for key, seeds in cells.items() if _why_not(seeds) is None}
    left_out = [(*key, _why_not(seeds) or "") for key, seeds in cells.items() if key not in usable]
    if not usable or sum((t.C > 0).sum() for seeds in usable.values() for t in seeds) <= MIN_POINTS:
        return Estimate([], left_out or [(*key, f"fewer than {MIN_POINTS + 1} points at C > 0") for key in cells])
    packed = pack(usable)
    base = packed.base
    peaks = [find_peak(seeds, base) for seeds in packed.tracks]
    ends = np.array([np.inf if p is None else p for p in peaks])
    packed = replace(packed, data=select(packed.data, packed.data.x <= ends[:, None, None] + 1e-12))
    fitted = min((fit_form(form, packed, options.run_sd) for form in FORMS), key=lambda f: f.deviance)
    effect = no_effect(fitted, packed)
    residual = (packed.data.y - predicted(fitted.form, packed.data, fitted.state))[0] * packed.data.weight
    source = resampler(packed, metric, residual)
    draws = _draws(fitted, packed, source, 10**ends, options) if options.replicates else None
    intervals = _how(fitted, source, options) if options.replicates else None
    kept = {key: [r[(w > 0) & np.isfinite(x)] for r, w, x in zip(*part, strict=True)] for key, part in zip(
        packed.keys, zip(residual, packed.data.weight, packed.data.x, strict=True), strict=True
    )}
    curves = [_curve(j, fitted, packed, residual, ends, draws) for j in range(len(packed.keys))]
    parameters = 1 + 2 * len(curves) + sum(len(t) for t in packed.tracks)
    return Estimate(curves, left_out, draws, intervals, effect, kept, fitted.scales.noise_sd, parameters)


def _why_not(seeds: Sequence[Track]) -> str | None:
    """Why a cell carries no curve."""
    points = sum(int((t.C > 0).sum()) for t in seeds)
    if points < MIN_POINTS:
        return f"{points} points at C > 0, at least {MIN_POINTS} needed"
    C_low, C_high = _range(seeds)
    return None if 0 < C_low < C_high else "its seeds share no range of C > 0"


def _range(seeds: Sequence[Track]) -> tuple[float, float]:
    """Where all seeds of a cell have data, C > 0."""
    return max(float(t.C[t.C > 0].min(initial=np.inf)) for t in seeds), min(float(t.C[-1]) for t in seeds)


def _draws(fitted: Fitted, packed: Packed, source: Resampler, peaks: FloatArray, options: Options) -> Draws:
    """All replicates, in chunks that fit a cache and can be told of."""
    rng = np.random.default_rng(options.seed)
    _, _, freedom = run_sd(fitted.form, packed.data, fitted.state, fitted.scales.noise_sd, options.run_sd)
    parts: list[State] = []
    for done in range(0, options.replicates, CHUNK):
        y = source.draw(min(CHUNK, options.replicates - done), rng)
        parts.append(replicates(fitted, packed, y, freedom, rng))
        if options.advance is not None:
            options.advance(min(done + CHUNK, options.replicates), options.replicates)
    theta = np.concatenate([p.theta for p in parts])
    spans = np.array([_range(seeds) for seeds in packed.tracks])
    shape = (theta[:, :, 0], np.exp(theta[:, :, 2]), 10 ** theta[:, :, 1])
    return Draws(fitted.form, tuple(packed.keys), *shape, np.concatenate([p.R0 for p in parts]), peaks, spans[:, 0], spans[:, 1])


def _curve(j: int, fitted: Fitted, packed: Packed, residual: FloatArray, ends: FloatArray, draws: Draws | None) -> Curve:
    A, mid, lnB = (float(v) for v in fitted.state.theta[0, j])
    B_p, n = packed.keys[j]
    use = packed.data.weight[j] > 0
    C_low, C_high = _range(packed.tracks[j])
    reached = float(progress(fitted.form, packed.data, fitted.state.theta)[0][0, j][use].max())
    spans = {} if draws is None else {name: interval(getattr(draws, name)[:, j]) for name in ("A", "B", "C_mid")}
    width = 0.0 if draws is None else float(np.ptp([v for v in spans["A"] if v is not None] or [0.0]))
    peaked = bool(np.isfinite(ends[j]))
    return Curve(
        B_p, n, float(fitted.state.R0[0]), A, float(np.exp(lnB)), 10**mid, C_low, C_high,
        points=int((use & np.isfinite(packed.data.x[j])).sum()),
        rmse=float(np.sqrt(np.mean(residual[j][use] ** 2))),
        form=fitted.form,
        determined=not peaked and reached >= DETERMINED_PROGRESS and width <= DETERMINED_WIDTH,
        C_peak=float(10 ** ends[j]) if peaked else None,
        A_interval=spans.get("A"), B_interval=spans.get("B"), C_mid_interval=spans.get("C_mid"),
    )  # fmt: skip


def _how(fitted: Fitted, source: Resampler, options: Options) -> dict[str, Any]:
    """fit.json's account of the intervals."""
    problems = source.problems
    drawn = (
        f"{problems} validation problems drawn anew, the same for all runs and checkpoints"
        if problems is not None
        else "residuals drawn in blocks: no right answers of single problems are recorded, so other problems are not spoken for"
    )
    drift = f"; a drift within runs of sd {source.drift_sd:.4f}, autocorrelation {source.drift_rho:.2f}" if source.drift_sd > 0 else ""
    return {
        "level": 0.9,
        "replicates": options.replicates,
        "seed": options.seed,
        "run_sd": float(fitted.scales.run_sd[0]),
        "run_sd_source": fitted.run_sd_from,
        "noise_sd": fitted.scales.noise_sd,
        "problems": problems,
        "method": f"bootstrap: {drawn}; each run's luck and each cell's departure from the joint surface drawn anew{drift}",
    }
