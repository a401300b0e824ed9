"""Bootstrap replicates of every evaluation of a sweep: float[Q, J, S, P] rewards that another set of problems and other samples could have given.

Where right answers of each problem are recorded, the validation problems are drawn anew with replacement, the same draw for all runs and
checkpoints of a replicate, as all were evaluated on the same problems: it carries the noise of the samples and of the choice of problems.
What residuals vary beyond that (a run's slow drift) is added as an AR(1) series of the size and correlation they show. Without counts,
residuals are resampled in blocks that keep their correlation. Seeds are not drawn here: surface.replicates draws each run's luck anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.metrics import FloatArray, parse_metric, per_problem
from isojax.scaling.surface import Packed

BLOCK = 5
# Residual variance beyond the samples' that is taken for drift, as a share of it.
MIN_EXCESS = 0.25


@dataclass(frozen=True)
class Resampler:
    """What replicates are drawn from; `problems` is None where residuals are resampled in blocks instead."""

    shape: tuple[int, int, int]
    y: FloatArray
    filled: NDArray[np.bool_]
    values: FloatArray | None  # [points, N], the metric of each problem
    residual: FloatArray  # [J, S, P]
    drift_sd: float
    drift_rho: float

    @property
    def problems(self) -> int | None:
        """Validation problems that are drawn anew."""
        return None if self.values is None else self.values.shape[1]

    def draw(self, count: int, rng: np.random.Generator) -> FloatArray:
        """float[count, J, S, P]."""
        y = np.repeat(self.y[None], count, axis=0)
        if self.values is None:
            return y + _blocks(self.residual, self.filled, count, rng) * self.filled
        N = self.values.shape[1]
        weights = rng.multinomial(N, np.full(N, 1 / N), size=count) / N
        y[:, self.filled] += (weights - 1 / N) @ self.values.T
        if self.drift_sd > 0:
            y += _ar1((count, *self.shape), self.drift_rho, rng) * self.drift_sd * self.filled
        return y


def resampler(packed: Packed, metric: str, residual: FloatArray) -> Resampler:
    """From the sweep and the residuals (float[J, S, P]) of its fit."""
    filled = packed.data.weight > 0
    shape = (int(filled.shape[0]), int(filled.shape[1]), int(filled.shape[2]))
    values, drift, rho = _values(packed, metric), 0.0, 0.0
    if values is not None:
        total, sampling = float(np.mean(residual[filled] ** 2)), _sampling_variance(values, filled)
        if total - sampling > MIN_EXCESS * sampling:
            drift = float(np.sqrt(total - sampling))
            rho = float(np.clip(autocorrelation(residual, filled) * total / (total - sampling), 0.0, 0.98))
    return Resampler(shape, packed.data.y[0], filled, values, residual, drift, rho)


def _values(packed: Packed, metric: str) -> FloatArray | None:
    """float[points, N], in the order of the filled entries of [J, S, P]; None unless every evaluation has counts that give the metric."""
    parsed, rows = parse_metric(metric), []
    for seeds in packed.tracks:
        for t in seeds:
            for p, r in zip(t.run.points, t.R, strict=True):
                if parsed is None or not p.counts or parsed[1] > p.samples:
                    return None
                row = per_problem(p.counts, p.samples, metric)
                if abs(float(row.mean()) - r) > 5e-4:  # the recorded metric is of something else
                    return None
                rows.append(row)
    return np.stack(rows)


def _sampling_variance(values: FloatArray, filled: NDArray[np.bool_]) -> float:
    """Variance of one evaluation on fixed problems, from how problems change between neighbouring evaluations of a run."""
    N, at, found = values.shape[1], 0, []
    for count in filled.sum(-1).reshape(-1):
        own = values[at : at + count]
        at += count
        if count > 1:
            found.append(np.diff(own, axis=0).var(axis=1) / (2 * N))
    return float(np.mean(np.concatenate(found))) if found else 0.0


def autocorrelation(residual: FloatArray, filled: NDArray[np.bool_]) -> float:
    """Lag-one autocorrelation of residuals within runs, pooled; runs' means are not removed."""
    both = filled[..., 1:] & filled[..., :-1]
    power = float(np.mean(residual[filled] ** 2))
    return float(np.mean((residual[..., 1:] * residual[..., :-1])[both])) / power if power > 0 and both.any() else 0.0


def _ar1(shape: tuple[int, ...], rho: float, rng: np.random.Generator) -> FloatArray:
    """Stationary AR(1) series of unit variance along the last axis."""
    noise = rng.normal(size=shape)
    out = np.empty(shape)
    out[..., 0] = noise[..., 0]
    for p in range(1, shape[-1]):
        out[..., p] = rho * out[..., p - 1] + np.sqrt(1 - rho**2) * noise[..., p]
    return out


def _blocks(residual: FloatArray, filled: NDArray[np.bool_], count: int, rng: np.random.Generator) -> FloatArray:
    """Residuals of the whole sweep in random blocks (of one run each), centred; float[count, J, S, P]."""
    runs = [r[f] for r, f in zip(residual.reshape(-1, residual.shape[-1]), filled.reshape(-1, filled.shape[-1]), strict=True) if f.any()]
    size = min(BLOCK, *(len(r) for r in runs))
    pool = np.concatenate([np.lib.stride_tricks.sliding_window_view(r, size) for r in runs])
    pool = pool - pool.mean()
    J, S, P = residual.shape
    many = -(-P // size)
    return pool[rng.integers(len(pool), size=(count, J, S, many))].reshape(count, J, S, many * size)[..., :P]
