"""The curves of a fit.json and their replicates, as NumPy arrays over the measured cells (B_p, n).

A cell's expected reward at C is its curve's at min(C, C_peak), because early stopping keeps what overfitting would lose. Beyond its data,
that a curve levels off is an assumption: learning may as well go on by as much a decade as it last did (the quickstart's policies, run
on for 4 times the compute, gained .04 where their curves promised .01). So beyond the data each replicate lies somewhere between its
curve and a straight line in log C, as steep as the frontier was over its last SPAN decades (or as the curve itself, if that was less
steep).

Point estimates come from `curves`, intervals from `draws`, the replicates of their parameters; a fit without draws (mode "paper",
schema 1) gives point estimates and no interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isojax.scaling.bend import Bend, normals
from isojax.scaling.problems import shift
from isojax.scaling.shapes import HILL, value
from isojax.types import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Interval = tuple[float, float]

SCHEMAS = (1, 2)
LEVEL = 0.9
SPAN = 0.5  # decades before the end of a cell's data from which the line beyond them is drawn
PARAMETERS = ("R0", "A", "B", "C_mid")


@dataclass(frozen=True)
class Ensemble:
    """The curves of a fit and their replicates; cells in order of (n, B_p).

    Attributes:
        B_p, n: int[cells].
        tail: float[cells], the curves' shape; draw_tail: float[replicates], that of each replicate (shapes.py).
        bends: what is added to each cell's curve inside its measured range (bend.py); None where nothing is.
        point: float[4, 1, cells], the curves' R0, A, B, C_mid.
        draws: float[4, replicates, cells], the same of each replicate; 0 replicates where the fit has none.
        shift: float[replicates, 2], what other validation problems would add in each replicate (problems.shift).
        C_low, C_high: float[cells], the measured range. C_peak: float[cells], infinite where reward never falls.
        noise_sd: float[cells], of one evaluation: the fit's estimate, else the residual of the curve, in reward.
        determined: bool[cells], whether the data determine the plateau A.
        stable: bool[cells], whether the cell's B_p is.
        level: of the intervals. run_sd: run-to-run standard deviation of the reward (0 where the fit knows none).
        measured: the largest C measured.
        no_effect: the fit cannot tell any n from another.
    """

    B_p: IntArray
    n: IntArray
    tail: FloatArray
    draw_tail: FloatArray
    bends: tuple[Bend | None, ...]
    point: FloatArray
    draws: FloatArray
    shift: FloatArray
    C_low: FloatArray
    C_high: FloatArray
    C_peak: FloatArray
    noise_sd: FloatArray
    determined: BoolArray
    stable: BoolArray
    level: float
    run_sd: float
    measured: float
    no_effect: bool

    @classmethod
    def load(cls, fit: Mapping[str, Any]) -> Ensemble:
        """From the content of fit.json, schema 1 or 2.

        Raises:
            InputError: another document, an incomplete one, or one without a curve.
        """
        if not isinstance(fit, Mapping) or fit.get("schema") not in SCHEMAS:
            given = fit.get("schema") if isinstance(fit, Mapping) else type(fit).__name__
            raise InputError(
                f"this is not a fit of schema 1 or 2 (given: {given}); expected the content of fit.json. Run `isojax fit` again."
            )
        try:
            return _load(cls, fit)
        except (KeyError, TypeError, IndexError, ValueError) as e:
            if isinstance(e, InputError):
                raise
            raise InputError(f"the fit is incomplete ({e!r}); expected every key of fit.json. Run `isojax fit` again.") from e

    @property
    def B(self) -> IntArray:
        """int[cells], rollouts an update."""
        return self.B_p * self.n

    @property
    def replicates(self) -> int:
        """How many replicates; 0 where the fit has none."""
        return self.draws.shape[1]

    def expected(self, C: ArrayLike) -> FloatArray:
        """The curves' rewards at budgets C > 0: float[...] -> float[..., cells]."""
        return self.at(np.asarray(C, dtype=np.float64)[..., None])

    def rewards(self, C: ArrayLike) -> FloatArray:
        """The replicates' rewards at budgets C > 0: float[...] -> float[..., replicates, cells]."""
        return self.draws_at(np.asarray(C, dtype=np.float64)[..., None])

    def at(self, spent: FloatArray) -> FloatArray:
        """The curves' rewards where each cell spends its own compute: float[..., cells] -> float[..., cells]."""
        held = np.minimum(spent, self.C_peak)
        smooth = _values(self.point, self.tail, held[..., None, :])[..., 0, :]
        return smooth + self._bent(held, smooth.shape)

    def draws_at(self, spent: FloatArray, same_problems: bool = False) -> FloatArray:
        """The same of each replicate, on problems drawn anew or on the same: float[..., cells] -> float[..., replicates, cells]."""
        held = np.minimum(spent, self.C_peak)
        smooth = _values(self.draws, self.draw_tail[:, None], held[..., None, :])
        for i, bend in enumerate(self.bends):
            if bend is not None:
                own = np.broadcast_to(held, (*smooth.shape[:-2], len(self.n)))[..., i]
                z = normals(self.replicates, len(bend.value), (int(self.B_p[i]), int(self.n[i])))
                smooth[..., i] += np.moveaxis(bend.draws(own.reshape(-1), z), 0, -1).reshape(*own.shape, self.replicates)
        smooth = self._grown(smooth, held)
        return smooth if same_problems else shift(self.shift, smooth)

    def _grown(self, smooth: FloatArray, held: FloatArray) -> FloatArray:
        """Replicates of the curves, float[..., replicates, cells], with what learning that goes on would add beyond the data."""
        decades = np.maximum(np.log10(held / self.C_high), 0.0)[..., None, :]
        if not self.replicates or not decades.any():
            return smooth
        own = [self._smooth(self.C_high * back) for back in (1.0, 10**-SPAN)]
        all_together = [self._smooth(np.full(len(self.n), self.measured * back)).max(1, keepdims=True) for back in (1.0, 10**-SPAN)]
        slope = np.minimum(own[0] - own[1], all_together[0] - all_together[1]) / SPAN
        line = own[0] + np.maximum(slope, 0.0) * decades
        share = np.random.default_rng(0).uniform(size=self.replicates)[:, None] ** 2  # small ones are likelier
        return np.where(decades > 0, np.minimum(smooth + share * np.maximum(line - smooth, 0.0), 1.0), smooth)

    def _smooth(self, C: FloatArray) -> FloatArray:
        """float[replicates, cells]: the replicates' curves, each cell at its own compute."""
        return _values(self.draws, self.draw_tail[:, None], np.minimum(C, self.C_peak))

    def _bent(self, held: FloatArray, shape: tuple[int, ...]) -> FloatArray:
        """float[..., cells]: the bends of all cells."""
        out, held = np.zeros(shape), np.broadcast_to(held, shape)
        for i, bend in enumerate(self.bends):
            if bend is not None:
                out[..., i] = bend.at(held[..., i])
        return out

    def cell(self, i: int, C: float, same_problems: bool = False) -> tuple[float, FloatArray]:
        """Cell i after C rollouts: (its curve's reward, float[replicates] of each replicate)."""
        at = np.full(len(self.n), C)
        return float(self.at(at)[i]), self.draws_at(at, same_problems)[:, i]

    def nearest(self, B_p: int, n: int) -> int:
        """The cell nearest in log n, then in log B_p."""
        near = [(abs(np.log2(m / n)), abs(np.log2(b / B_p)), i) for i, (b, m) in enumerate(zip(self.B_p, self.n, strict=True))]
        return min(near)[-1]

    def noise(self, i: int) -> float:
        """Standard deviation of one new run's measured reward in cell i around its expectation: the spread between runs and the noise
        of one evaluation, sqrt(mean p (1 - p) / (N k)) where problems are answered k times."""
        return float(np.hypot(self.run_sd, self.noise_sd[i]))

    def interval(self, values: ArrayLike) -> Interval | None:
        """The central `level` of draws, float[replicates]; None where there are none."""
        if not np.size(values):
            return None
        tail = 50 * (1 - self.level)
        low, high = np.percentile(np.asarray(values, dtype=np.float64), [tail, 100 - tail])
        return float(low), float(high)


def _load(cls: type[Ensemble], fit: Mapping[str, Any]) -> Ensemble:
    curves = sorted(fit["curves"], key=lambda c: (c["n"], c["B_p"]))
    if not curves or not fit["runs"]:
        raise InputError("the fit holds no curve or no run; expected at least one of each. Run `isojax fit` again.")
    verdicts = {v["B_p"]: bool(v["stable"]) for v in fit["stability"]}
    intervals = fit.get("intervals") or {}
    noise_sd = intervals.get("noise_sd")
    ends = [r["C_max"] for r in fit["runs"] if r.get("C_max") is not None] or [c["C_high"] for c in curves]

    def column(key: str) -> FloatArray:
        return np.array([c[key] for c in curves], dtype=np.float64)

    draws, draw_tail, shifts = _draws(fit.get("draws"), curves)
    point = np.stack([column(key) for key in PARAMETERS])[:, None, :]
    return cls(
        B_p=np.array([c["B_p"] for c in curves], dtype=np.int64),
        n=np.array([c["n"] for c in curves], dtype=np.int64),
        tail=np.array([c.get("tail", HILL) for c in curves], dtype=np.float64),
        draw_tail=draw_tail,
        bends=tuple(None if c.get("bend") is None else Bend(**c["bend"]) for c in curves),
        point=point,
        draws=draws,
        shift=shifts,
        C_low=column("C_low"),
        C_high=column("C_high"),
        C_peak=np.array([np.inf if c.get("C_peak") is None else c["C_peak"] for c in curves], dtype=np.float64),
        noise_sd=column("rmse") if noise_sd is None else np.full(len(curves), float(noise_sd)),
        determined=np.array([c.get("determined") is not False for c in curves]),
        stable=np.array([verdicts.get(c["B_p"], True) for c in curves]),
        level=float(intervals.get("level") or LEVEL),
        run_sd=float(intervals.get("run_sd") or 0.0),
        measured=float(max(ends)),
        no_effect=bool((fit["n_star"] or {}).get("no_effect")),
    )


def _draws(draws: Mapping[str, Any] | None, curves: Sequence[Mapping[str, Any]]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(float[4, replicates, cells] in the curves' order, float[replicates] tails, float[replicates, 2] shifts); replicates that lack a
    number are left out."""
    if draws is None:
        return np.zeros((len(PARAMETERS), 0, len(curves))), np.zeros(0), np.zeros((0, 2))
    places = {tuple(cell): i for i, cell in enumerate(draws["cells"])}
    order = [places[c["B_p"], c["n"]] for c in curves]
    columns = {key: np.array(draws[key], dtype=np.float64) for key in PARAMETERS}
    shared = np.broadcast_to(columns["R0"][:, None], (len(columns["R0"]), len(curves)))
    found = np.stack([shared, *(columns[key][order].T for key in PARAMETERS[1:])])
    whole: BoolArray = np.all(np.isfinite(found), axis=(0, 2))
    tail = np.array(draws.get("tail", [HILL] * len(whole)), dtype=np.float64)
    shifts = np.array(draws.get("shift", [[0.0] * len(whole)] * 2), dtype=np.float64).T
    return found[:, whole], tail[whole], shifts[whole]


def _values(theta: FloatArray, tail: Any, C: Any) -> FloatArray:
    """R(C) of parameters theta float[4, ...] = (R0, A, B, C_mid); the rest broadcasts."""
    R0, A, B, C_mid = theta
    return value(tail, C, R0, A, B, C_mid)
