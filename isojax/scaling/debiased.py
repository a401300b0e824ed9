"""Mode "debiased": every curve from all points, no filter; see mixed.py for the model and surface.py for its scales.

Against the paper's procedure (records, one sigmoid a cell): points that did not break a record count too, so that noise is not taken for
progress; all cells share R0 and one run-to-run effect and lean on a joint surface over (n, B_p); of the shapes in shapes.py the likeliest
is kept; a reward that falls again ends its curve at the peak; where n makes no difference all n share one curve. The curves are posterior
means, intervals come from posterior draws (posterior.py) that also draw the validation problems anew (problems.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isojax.scaling.bend import Bend, fit_bends
from isojax.scaling.curves import Curve
from isojax.scaling.draws import LEVEL, Draws, interval
from isojax.scaling.effect import no_effect
from isojax.scaling.estimate import Estimate, Options
from isojax.scaling.metrics import FloatArray, Track
from isojax.scaling.mixed import progress, select
from isojax.scaling.peaks import find_peak
from isojax.scaling.problems import Problems, problems, shift
from isojax.scaling.surface import Cells, Packed, pack, pooled
from isojax.scaling.tails import Posterior, likeliest, residuals, sample

MIN_POINTS = 3
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
    peaks = [find_peak(seeds, packed.base) for seeds in packed.tracks]
    ends = np.array([np.inf if p is None else p for p in peaks])
    packed = replace(packed, data=select(packed.data, packed.data.x <= ends[:, None, None] + 1e-12))
    modes, weights = likeliest(packed, options.run_sd)
    effect = options.pool and no_effect(packed, modes[0])
    if effect:
        packed = pooled(packed)
        modes, weights = likeliest(packed, options.run_sd)
    found = sample(packed, modes, weights, options)
    left = residuals(found, packed)
    by_run = {key: _by_run(j, packed, left) for j, key in enumerate(packed.keys)}
    bends = _bends(packed, left, found.scatter)
    others = problems(packed, metric, packed.data.y - left)
    draws = _draws(found, packed, others, 10**ends, bends, options) if options.replicates else None
    curves = [_curve(j, found, packed, left, ends, draws, bends[j]) for j in range(len(packed.keys))]
    intervals = _how(found, others, options) if options.replicates else None
    parameters = 1 + 2 * len(curves) + sum(len(t) for t in packed.tracks)
    return Estimate(curves, left_out, draws, intervals, effect, by_run, found.scales.noise_sd, parameters)


def _bends(packed: Packed, left: FloatArray, scatter: float) -> list[Bend | None]:
    x = [packed.data.x[j][(packed.data.weight[j] > 0) & np.isfinite(packed.data.x[j])] for j in range(len(packed.keys))]
    return fit_bends(x, [np.concatenate(_by_run(j, packed, left)) for j in range(len(x))], scatter)


def _by_run(j: int, packed: Packed, residual: FloatArray) -> list[FloatArray]:
    """Residuals of each run of cell j at C > 0, those that were fitted."""
    use = (packed.data.weight[j] > 0) & np.isfinite(packed.data.x[j])
    return [r[u] for r, u in zip(residual[j], use, strict=True) if u.any()]


def _why_not(seeds: Sequence[Track]) -> str | None:
    """Why a cell carries no curve."""
    points = sum(int((t.C > 0).sum()) for t in seeds)
    if points < MIN_POINTS:
        return f"{points} points at C > 0, at least {MIN_POINTS} needed"
    C_low, shortest = _range(seeds)[0], min(float(t.C[-1]) for t in seeds)
    return None if 0 < C_low < shortest else "its seeds share no range of C > 0"


def _range(seeds: Sequence[Track]) -> tuple[float, float]:
    """From where all seeds of a cell have data, C > 0, to the end of the longest: the others' luck is part of the model."""
    return max(float(t.C[t.C > 0].min(initial=np.inf)) for t in seeds), max(float(t.C[-1]) for t in seeds)


def _draws(
    found: Posterior, packed: Packed, others: Problems | None, peaks: FloatArray, bends: Sequence[Bend | None], options: Options
) -> Draws:
    """The posterior draws, each with problems of its own."""
    count = len(found.R0)
    drawn = np.zeros((count, 2)) if others is None else others.draw(count, np.random.default_rng([options.seed, 1]))
    spans = np.array([_range(seeds) for seeds in packed.tracks])
    shape = (np.exp(found.theta[:, :, 2]), 10 ** found.theta[:, :, 1])
    theta = (found.theta[:, :, 0], *shape, found.R0)
    return Draws(found.tail, tuple(packed.keys), *theta, drawn, peaks, spans[:, 0], spans[:, 1], tuple(bends))


def _curve(j: int, found: Posterior, packed: Packed, left: FloatArray, ends: FloatArray, draws: Draws | None, bend: Bend | None) -> Curve:
    A, mid, lnB, tail = (float(v) for v in found.mean[j])
    B_p, n = packed.keys[j]
    use = packed.data.weight[j] > 0
    reached = float(progress(tail, packed.data, found.mean[:, :3])[0][j][use].max())
    spans = {}
    if draws is not None:
        values = {"A": shift(draws.shift, draws.A), "B": draws.B, "C_mid": draws.C_mid}
        spans = {name: interval(drawn[:, j]) for name, drawn in values.items()}
    width = 0.0 if draws is None else float(np.ptp([v for v in spans["A"] if v is not None] or [0.0]))
    peaked = bool(np.isfinite(ends[j]))
    return Curve(
        B_p, n, float(found.R0.mean()), A, float(np.exp(lnB)), 10**mid, *_range(packed.tracks[j]),
        points=int((use & np.isfinite(packed.data.x[j])).sum()),
        rmse=float(np.sqrt(np.mean(left[j][use] ** 2))),
        tail=tail,
        bend=bend,
        determined=not peaked and reached >= DETERMINED_PROGRESS and width <= DETERMINED_WIDTH,
        C_peak=float(10 ** ends[j]) if peaked else None,
        A_interval=spans.get("A"), B_interval=spans.get("B"), C_mid_interval=spans.get("C_mid"),
    )  # fmt: skip


def _how(found: Posterior, others: Problems | None, options: Options) -> dict[str, Any]:
    """fit.json's account of the intervals."""
    drawn = (
        f"the {others.count} validation problems are drawn anew, the same for all runs and checkpoints"
        if others is not None
        else "no right answers of single problems are recorded, so the intervals hold for these validation problems, not for others"
    )
    return {
        "level": LEVEL,
        "replicates": options.replicates,
        "seed": options.seed,
        "run_sd": found.scales.run_sd,
        "run_sd_source": found.run_sd_from,
        "noise_sd": found.scatter,
        "problems": None if others is None else others.count,
        "method": "draws of all curves from their posterior, each run's luck and the run-to-run effect's own uncertainty included; "
        + drawn,
    }
