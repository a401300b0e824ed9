"""The estimate of a sweep in which no run learnt anything (learning.py), in every mode: all
cells share one level. A draw gives all of them the same reward, so no n leads another, at any C.
The level may be what an evaluation of N rollouts allows around the mean of all: at 0 of N up to 3 /
N."""

import numpy as np

from isojax.scaling.curves.sweep_estimate import FitOptions, PosteriorSamples, SweepEstimate
from isojax.scaling.curves.unfitted import unfitted_reasons
from isojax.scaling.evaluation_size import SAME_REWARD
from isojax.scaling.intervals import LEVEL, share_draws
from isojax.scaling.learning import NothingLearnt
from isojax.scaling.result import FittedCurve, IntervalSettings
from isojax.scaling.tracks import FloatArray, RunTrack, TracksByCell


def can_be_flat(cells: TracksByCell) -> bool:
    """Whether to say of a sweep that it stands at one reward: not before the first update, nor of
    evaluations that differ and are too few to show a curve."""
    tracks = [t for seeds in cells.values() for t in seeds]
    if not any((t.C > 0).any() for t in tracks):
        return False
    if np.ptp(np.concatenate([t.R for t in tracks])) <= SAME_REWARD:
        return True
    reasons = unfitted_reasons({key: [t.C[t.C > 0] for t in seeds] for key, seeds in cells.items()})
    return len(reasons) < len(cells)


def flat_estimate(
    cells: TracksByCell, nothing: NothingLearnt, options: FitOptions
) -> SweepEstimate:
    """A flat curve for each cell that was evaluated at C > 0; draws where the mode has them."""
    trained = {key: seeds for key, seeds in cells.items() if any((t.C > 0).any() for t in seeds)}
    unfitted_cells = [(*key, "no evaluation at C > 0") for key in cells if key not in trained]
    has_draws = options.mode != "paper" and options.replicates > 0
    curves = [_flat_curve(key, list(trained[key]), nothing, has_draws) for key in sorted(trained)]
    return SweepEstimate(
        curves,
        unfitted_cells,
        draws=_flat_draws(curves, nothing, options.replicates) if has_draws else None,
        intervals=_describe_intervals(nothing, options) if has_draws else None,
        no_effect=True,
        noise_sd=evaluation_sd(nothing),
        parameter_count=1,
        is_flat=True,
    )


def _flat_curve(
    key: tuple[int, int], seeds: list[RunTrack], nothing: NothingLearnt, has_interval: bool
) -> FittedCurve:
    C = np.concatenate([t.C[t.C > 0] for t in seeds])
    R = np.concatenate([t.R[t.C > 0] for t in seeds])
    B_p, n = key
    return FittedCurve(
        B_p=B_p,
        n=n,
        R0=nothing.level,
        A=nothing.level,
        exponent=1.0,  # of a curve without a gain it means nothing, nor does C_mid
        C_mid=float(np.sqrt(C.min() * C.max())),
        C_low=float(C.min()),
        C_high=float(C.max()),
        points=len(C),
        rmse=float(np.sqrt(np.mean((R - nothing.level) ** 2))),
        determined=False,
        A_interval=nothing.interval if has_interval else None,
    )


def _flat_draws(
    curves: list[FittedCurve], nothing: NothingLearnt, replicates: int
) -> PosteriorSamples:
    levels = level_draws(nothing, replicates)
    shape = (replicates, len(curves))
    return PosteriorSamples.of_curves(
        curves,
        tail=np.ones(replicates),
        A=np.broadcast_to(levels[:, None], shape),
        exponent=np.ones(shape),
        C_mid=np.broadcast_to(np.array([c.C_mid for c in curves]), shape),
        R0=levels,
        shift=np.zeros((replicates, 2)),
    )


def level_draws(nothing: NothingLearnt, count: int) -> FloatArray:
    """float[count]: draws of the level, evenly over its quantiles, whose median is the level
    itself; their central interval holds `nothing.interval`."""
    return share_draws(nothing.level, nothing.rollouts, count, nothing.interval)


def evaluation_sd(nothing: NothingLearnt) -> float:
    """Standard deviation of an evaluation; at a level of 0 or 1 that of one hit in all its
    rollouts."""
    N = nothing.rollouts
    share = min(max(nothing.level, 1 / N), max(1 - 1 / N, 0.5))
    return float(np.sqrt(share * (1 - share) / N))


def _describe_intervals(nothing: NothingLearnt, options: FitOptions) -> IntervalSettings:
    return IntervalSettings(
        level=LEVEL,
        replicates=options.replicates,
        seed=options.seed,
        run_sd=options.run_sd or 0.0,
        run_sd_source="as stated"
        if options.run_sd is not None
        else "unknown, as no run learnt anything",
        noise_sd=evaluation_sd(nothing),
        problems=None,
        method=(
            f"one reward for all cells, as uncertain as {nothing.size.rollouts:,.0f} rollouts "
            "leave it"
        ),
        acceptance=None,
        r_hat=None,
    )
