"""Which runs broke, by stated criteria, from their records alone. Flagged runs are left out of fits unless asked for.

A criterion holds where it does so at every evaluation from some C to the end, at least the last `STAYED`; that C is where it set in. With
w the mean of the last three evaluations, b the reward of the base policy (of the first evaluation, where C = 0 has none) and r the best
running mean of three (at least b), a difference counts where it exceeds max(.02, 4 SE). SE is paired over validation problems where right
answers are recorded, and, of ten evaluations or more, not below what the scatter of neighbours says; with neither nothing counts.
"fell": r - w counts. "gained": w - b counts.

    collapsed           reward stays below b + (r - b) / 2 and fell, and the training reward, where recorded, stays below the middle of
                        its own start and best (else the run overfits, which a fit names); or groups without variance stay at .95 or more,
                        having begun below .8, and nothing was gained
    entropy_exploded    entropy stays above twice that of the first interval, and reward fell
    entropy_collapsed   entropy stays below 2% of that of the first interval, and w < b + .1 (1 - b): little is learned, nothing explored
    length_exploded     responses stay over three times as long as in the first interval, and reward fell or nothing was gained
    truncated           half of all responses or more stay cut off, .25 more than in the first interval, and reward fell or nothing was
                        gained
    not_finite          the run broke off, a loss or gradient norm is not finite, or over 1% of an interval's updates were skipped because
                        theirs was not (a single one is harmless: the policy stays as it was)
    mismatch            the mean |log ratio| of trainer to sampler stays above .1, where no older policy sampled (a pipeline's `off_policy`)

A criterion whose numbers were not recorded is silent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from isojax.records import INCLUDE_FLAGGED, default_metric
from isojax.scaling.metrics import TRAIN_REWARD, FloatArray, metric_value
from isojax.scaling.segments import compare
from isojax.types import EvalPoint, InputError, RunRecord

STAYED = 3
MIN_CHANGE, Z_CHANGE = 0.02, 4.0
FEWEST_FOR_SCATTER = 10
ALIKE, ALIKE_AT_FIRST = 0.95, 0.8
ENTROPY_UP, ENTROPY_DOWN, ROOM = 2.0, 0.02, 0.1
LONGER = 3.0
CUT_OFF, CUT_OFF_MORE = 0.5, 0.25
MISMATCH = 0.1
SKIPPED = 0.01


@dataclass(frozen=True)
class Flag:
    """A run is not healthy: by which criterion, from which C in rollouts on, and its numbers in words."""

    name: str
    C: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name} from C = {self.C:,}: {self.reason}"


@dataclass(frozen=True)
class Reward:
    """A run's validation reward: of the base policy, at best, and in the end, and which of these differences count."""

    base: float
    best: float
    last: float
    fell: bool
    gained: bool


def health(run: RunRecord) -> tuple[Flag, ...]:
    """A run's flags, none where it is healthy. The reward is the ledger's avg@k (`records.default_metric`).

    A run of fewer than STAYED + 1 evaluations can only be `not_finite`.
    """
    found = _not_finite(run)
    try:
        R = np.array([metric_value(p, default_metric([run]), run.source) for p in run.points])
    except InputError:  # evaluations without the metric: a fit refuses them and names their place
        return tuple(found)
    one_set = len({len(p.counts) for p in run.points}) == 1  # else a fit refuses it too
    if len(R) > STAYED and np.isfinite(R).all() and one_set:
        reward = _reward(run, R)
        found += _collapsed(run, R, reward) + _entropy(run, reward) + _cut_off(run, reward) + _mismatch(run)
    return tuple(found)


def flagged(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """The flagged runs as rows of plain JSON: B_p, n, seed, points, C (reached) and flags, by cell."""
    rows = []
    for run in sorted(runs, key=lambda r: r.cell):
        if flags := health(run):
            cell = {"B_p": run.cell.B_p, "n": run.cell.n, "seed": run.cell.seed}
            rows.append(cell | {"points": len(run.points), "C": run.points[-1].rollouts, "flags": [asdict(f) for f in flags]})
    return rows


def healthy(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs without a flag, in their order.

    Raises:
        InputError: there are runs, and every one is flagged.
    """
    kept = [run for run in runs if not health(run)]
    if runs and not kept:
        first = runs[0]
        given = f"every run is flagged as broken ({len(runs)}; {first.source or first.cell.name}: {health(first)[0]})"
        raise InputError(f"{given}, expected at least one that is not. Lower cell.rl.learning_rate, or fit them with {INCLUDE_FLAGGED}.")
    return kept


def told(rows: Sequence[Mapping[str, Any]], left_out: bool) -> list[str]:
    """A sentence for each flagged run."""
    done = f"left out of the fit ({INCLUDE_FLAGGED} puts it back)" if left_out else "fitted all the same, as asked"
    return [
        f"B_p={row['B_p']} n={row['n']} seed {row['seed']} is {done}: " + "; ".join(str(Flag(**flag)) for flag in row["flags"])
        for row in rows
    ]


def with_health(document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], left_out: bool) -> dict[str, Any]:
    """A fit (fit.json) that names the flagged runs, as `health` and in its flags. A B_p is not stable where half the runs of a cell or more
    were left out, which those that are left cannot show."""
    lost = Counter((row["B_p"], row["n"]) for row in rows) if left_out else Counter()
    kept = Counter((row["B_p"], row["n"]) for row in document["runs"])
    half = [row for row in reversed(rows) if lost[key := (row["B_p"], row["n"])] >= max(1, kept[key])]
    broken = {row["B_p"]: f"n={row['n']} seed {row['seed']}: {Flag(**row['flags'][0])}" for row in half}
    verdicts = [
        v if v["B_p"] not in broken else v | {"stable": False, "reason": "; ".join(filter(None, (v["reason"], broken[v["B_p"]])))}
        for v in document["stability"]
    ]
    health = {"left_out": left_out, "runs": list(rows)}
    return {**document, "stability": verdicts, "health": health, "flags": [*told(rows, left_out), *document["flags"]]}


def _series(run: RunRecord, key: str) -> tuple[list[EvalPoint], FloatArray]:
    """The evaluations that recorded a training metric, and its values."""
    points = [p for p in run.points if key in p.train and math.isfinite(p.train[key])]
    return points, np.array([p.train[key] for p in points])


def _stays(mask: np.ndarray) -> int | None:
    """Where the last unbroken stretch of True begins, if it lasts to the end and is STAYED long."""
    start = len(mask) - int(np.argmin(np.append(mask[::-1], False)))
    return start if len(mask) - start >= STAYED else None


def _means(values: FloatArray) -> FloatArray:
    return np.convolve(values, np.full(STAYED, 1 / STAYED), mode="valid")


def _scatter(R: FloatArray) -> float:
    """Standard deviation of one value from its neighbours, by a median, which a fall does not move; 0 of too few to tell."""
    if len(R) < FEWEST_FOR_SCATTER:
        return 0.0
    bent = R[1:-1] - (R[:-2] + R[2:]) / 2
    return float(np.sqrt(np.median(bent**2) / (0.455 * 1.5)))  # .455: the median of chi-square(1); 1.5: the variance of `bent`


def _reward(run: RunRecord, R: FloatArray) -> Reward:
    smooth = _means(R)
    top = int(smooth.argmax())
    first, last = run.points[:1], run.points[-STAYED:]
    best = run.points[top : top + STAYED] if smooth[top] > R[0] else first
    base, high, end = float(R[0]), float(max(R[0], smooth[top])), float(smooth[-1])
    return Reward(base, high, end, _counts(run, R, best, last, high - end), _counts(run, R, first, last, end - base))


def _counts(run: RunRecord, R: FloatArray, a: Sequence[EvalPoint], b: Sequence[EvalPoint], difference: float) -> bool:
    """Whether the mean reward of evaluations `a` differs from that of `b` by more than noise. Without right answers and with too few
    evaluations for their scatter nothing does."""
    found = compare(a, b, default_metric([run]))
    scatter = _scatter(R) * math.sqrt(1 / len(a) + 1 / len(b))
    if found is None and len(R) < FEWEST_FOR_SCATTER:
        return False
    return difference > max(MIN_CHANGE, Z_CHANGE * max(scatter, found.se if found is not None else 0.0))


def _collapsed(run: RunRecord, R: FloatArray, reward: Reward) -> list[Flag]:
    start = _stays((reward.base + reward.best) / 2 > R)
    if start is not None and reward.fell and _training_fell(run):
        words = f"reward fell from {reward.best:.3f} to {reward.last:.3f} and stays there (base policy: {reward.base:.3f})"
        return [Flag("collapsed", run.points[start].rollouts, words)]
    points, alike = _series(run, "zero_variance")
    start = _stays(alike >= ALIKE)
    if start is not None and alike[0] < ALIKE_AT_FIRST and not reward.gained:
        words = f"{np.mean(alike[start:]):.0%} of groups are all right or all wrong, and reward is {reward.last:.3f}"
        return [Flag("collapsed", points[start].rollouts, f"{words} (base policy: {reward.base:.3f})")]
    return []


def _training_fell(run: RunRecord) -> bool:
    """Whether the training reward stays below the middle of its start and its best; True where it was not recorded."""
    _, train = _series(run, TRAIN_REWARD)
    return len(train) < STAYED or _means(train)[-1] <= (train[0] + max(train[0], _means(train).max())) / 2


def _entropy(run: RunRecord, reward: Reward) -> list[Flag]:
    points, entropy = _series(run, "entropy")
    if len(entropy) <= STAYED:
        return []
    up, down = _stays(entropy > ENTROPY_UP * entropy[0]), _stays(entropy < ENTROPY_DOWN * entropy[0])
    words = f"entropy went from {entropy[0]:.3g} to {entropy[-1]:.3g} nats a token"
    if up is not None and reward.fell:
        return [Flag("entropy_exploded", points[up].rollouts, f"{words} while reward fell from {reward.best:.3f} to {reward.last:.3f}")]
    if down is not None and reward.last < reward.base + ROOM * (1 - reward.base):
        return [Flag("entropy_collapsed", points[down].rollouts, f"{words} at a reward of {reward.last:.3f} (base: {reward.base:.3f})")]
    return []


def _cut_off(run: RunRecord, reward: Reward) -> list[Flag]:
    if reward.gained and not reward.fell:
        return []
    end = f"at a reward of {reward.last:.3f} (base policy: {reward.base:.3f})"
    found = []
    points, length = _series(run, "response_length")
    start = _stays(length > LONGER * length[0]) if len(length) > STAYED else None
    if start is not None:
        words = f"responses went from {length[0]:.1f} to {length[-1]:.1f} tokens {end}"
        found.append(Flag("length_exploded", points[start].rollouts, words))
    points, cut = _series(run, "truncated")
    start = _stays((cut >= CUT_OFF) & (cut >= cut[0] + CUT_OFF_MORE)) if len(cut) > STAYED else None
    if start is not None:
        words = f"cut off are {cut[-1]:.0%} of responses, {cut[0]:.0%} in the beginning, {end}"
        found.append(Flag("truncated", points[start].rollouts, words))
    return found


def _not_finite(run: RunRecord) -> list[Flag]:
    for p in run.points:
        bad = [key for key in ("loss", "grad_norm") if not math.isfinite(p.train.get(key, 0.0))]
        if bad:
            return [Flag("not_finite", p.rollouts, f"{bad[0]} is not finite")]
        if (share := p.train.get("not_finite", 0.0)) > SKIPPED:
            return [Flag("not_finite", p.rollouts, f"{share:.1%} of updates were skipped: their loss or gradient was not finite")]
    return [Flag("not_finite", run.points[-1].rollouts, f"the run broke off: {run.failed}")] if run.failed else []


def _mismatch(run: RunRecord) -> list[Flag]:
    points, ratio = _series(run, "log_ratio")
    if any(point.train.get("off_policy", 0) > 0 for point in points):
        return []
    start = _stays(np.abs(ratio) > MISMATCH)
    if start is None:
        return []
    words = f"the mean |log ratio| of trainer to sampler is {np.mean(np.abs(ratio[start:])):.3f}, expected at most {MISMATCH}"
    return [Flag("mismatch", points[start].rollouts, words)]
