"""The search for the learning rate's anchor: the best rate at one batch B, from which `cell.rl.lr_scaling` leads to every other batch
(IsoCompute Playbook, arXiv:2603.12151, section 3, factor 3: found at B_p x n = 128 x 8 as 1e-6).

Every rate is an ordinary sweep of one (B_p, n) below runs/NAME-lr/RATE, with ledgers as always; all share one base policy. A rate of
which a run broke (scaling/health.py) is out. The others are scored by the mean over seeds of the mean reward over the last quarter of
the evaluations; their standard error comes from the spread between seeds, pooled over the rates. Of rates within one standard error
(of their difference) of the best, the lowest is prescribed: a rate too high breaks long runs, one a little low costs little.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isojax.config import CHOSEN, Config, read_saved, save_config
from isojax.launch.resume import BASE, CONFIG
from isojax.records import RECORDS, default_metric, read_runs
from isojax.scaling.health import health
from isojax.scaling.metrics import metric_value
from isojax.storage import folder_of
from isojax.types import InputError, RunFailed, RunRecord

STEP = 10**0.5
EXTENSIONS = 2
EVALUATIONS, WARMUPS = 4, 3
SCORE = "mean over seeds of the mean {metric} over the last quarter of the evaluations"


@dataclass(frozen=True)
class Outcome:
    """What one rate came to.

    Attributes:
        scores: one for each seed. curves: (C, reward) of each evaluation, for each seed.
        entropy, grad_norm: means over seeds in the last interval; None where not recorded.
        flags: why it is out, with the run's name; empty where it is not.
    """

    rate: float
    scores: tuple[float, ...] = ()
    curves: tuple[tuple[tuple[int, float], ...], ...] = ()
    entropy: float | None = None
    grad_norm: float | None = None
    flags: tuple[str, ...] = ()

    @property
    def reward(self) -> float:
        """The mean over seeds."""
        return float(np.mean(self.scores)) if self.scores else math.nan


@dataclass(frozen=True)
class Search:
    """Outcomes by rising rate, and what follows from them; `best` and `chosen` are None where every rate is out."""

    outcomes: tuple[Outcome, ...]
    extended: int
    se: float | None
    best: Outcome | None
    tied: tuple[Outcome, ...] = ()
    chosen: Outcome | None = field(default=None)


def default_rates(center: float) -> list[float]:
    """Five rates, a factor sqrt(10) apart, around `center`."""
    return [beside(center, -2), beside(center, -1), round_rate(center), beside(center, 1), beside(center, 2)]


def beside(rate: float, steps: int) -> float:
    """The rate so many factors of sqrt(10) away, to two digits."""
    return float(f"{rate * STEP**steps:.1e}")


def round_rate(rate: float) -> float:
    """To three digits, as its folder is named."""
    return float(f"{rate:.2e}")


def rate_name(rate: float) -> str:
    """1e-3, 3.2e-4."""
    mantissa, exponent = f"{rate:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def choose_pair(config: Config, B_p: int | None, n: int | None) -> tuple[int, int]:
    """(B_p, n): what is given; the rest from the sweep, so that B_p n is nearest to cell.rl.anchor_batch in log; of equals the larger B_p.

    Raises:
        InputError: a product over sweep.B_max.
    """
    sweep, anchor = config.sweep, config.cell.rl.anchor_batch
    pairs = [(b, m) for b in ((B_p,) if B_p else sweep.B_p) for m in ((n,) if n else sweep.n)]
    allowed = [(b, m) for b, m in pairs if b * m <= sweep.B_max]
    if not allowed:
        b, m = min(pairs, key=lambda pair: pair[0] * pair[1])
        raise InputError(f"B_p x n = {b} x {m} = {b * m} is over sweep.B_max = {sweep.B_max}; raise it, or give a smaller --B_p or --n.")
    return min(allowed, key=lambda pair: (round(abs(math.log(pair[0] * pair[1] / anchor)), 9), -pair[0]))


def default_budget(config: Config, B: int) -> int:
    """A tenth of sweep.budget, but EVALUATIONS after that of the base policy at updates of their own and WARMUPS times the warm-up."""
    warm, grid = WARMUPS * config.cell.rl.warmup * B, config.cell.eval
    budget = max(config.sweep.budget // 10, warm, B, math.ceil(grid.start))
    while len({-(-target // B) for target in grid.grid(budget)[1:]}) < EVALUATIONS:
        budget = math.ceil(budget * grid.ratio)
    return budget


def rate_config(config: Config, rate: float, pair: tuple[int, int], budget: int, seeds: int) -> Config:
    """The sweep of one rate: a config like any other, in runs/NAME-lr/RATE."""
    B_p, n = pair
    rl = config.cell.rl.model_copy(update={"learning_rate": rate, "anchor_batch": B_p * n})
    chosen = {"B_p": (B_p,), "n": (n,), "seeds": seeds, "budget": budget}
    return config.model_copy(
        update={
            "name": rate_name(rate),
            "cell": config.cell.model_copy(update={"rl": rl}),
            "sweep": config.sweep.model_copy(update=chosen),
            "run": config.run.model_copy(update={"dir": str(search_folder(config))}),
        }
    )


def search_folder(config: Config) -> Path:
    """runs/NAME-lr."""
    return folder_of(config.run.dir, f"{config.name}-lr")


def run_rate(config: Config, first: Path | None, resume: bool) -> Outcome:
    """Run one rate (`rate_config`); `first`: the folder of a rate that has run, whose base policy and static sizes it takes."""
    from isojax.launch.local import launch

    folder = Path(config.run.dir) / config.name
    if first is not None and first != folder and not (folder / CONFIG).exists():
        share(first, folder, config)
    reasons: list[str] = []
    try:
        launch(config, resume or (folder / CONFIG).exists(), dry_run=False)
    except RunFailed as e:  # a rate too high: the others go on
        reasons = [line.strip() for line in str(e).splitlines()[1:]]
    evaluated = [p.parent for p in sorted(folder.glob(f"cells/*/{RECORDS}")) if p.read_bytes().count(b"\n") > 1]
    return outcome(config.cell.rl.learning_rate, read_runs(evaluated), reasons)


def refuse_others_work(folder: Path, resume: bool) -> None:
    """InputError where a search has been here and `resume` was not asked for."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, expected a folder to search in; choose another name with name=NAME.")
    if not resume and folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} holds a search already; go on with it by --resume, or choose another name with name=NAME.")


def share(first: Path, folder: Path, config: Config) -> None:
    """Begin a rate's folder with the base policy, problems and static sizes of another's; whole or not at all, config.yaml last."""
    old = read_saved(first / CONFIG)
    rl = old.cell.rl.model_copy(update={"learning_rate": config.cell.rl.learning_rate})
    sizes = {key: getattr(old.sweep, key) for key in CHOSEN}
    part = folder / f".{BASE}"
    for left in (part, folder / BASE):
        shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(first / BASE, part)
    os.replace(part, folder / BASE)
    sweep = config.sweep.model_copy(update=sizes)
    save_config(config.model_copy(update={"cell": old.cell.model_copy(update={"rl": rl}), "sweep": sweep}), folder / CONFIG)


def outcome(rate: float, runs: Sequence[RunRecord], failed: Sequence[str] = ()) -> Outcome:
    """The score of a rate's runs; `failed`: what ended a run that did not finish."""
    flags = [*failed, *(f"{run.cell.name}: {flag}" for run in runs for flag in health(run) if flag.name != "not_finite" or not failed)]
    if not runs:
        return Outcome(rate, flags=tuple(flags))
    metric = default_metric(runs)
    curves = [tuple((p.rollouts, metric_value(p, metric, run.source)) for p in run.points) for run in runs]

    def last(key: str) -> float | None:
        values = [run.points[-1].train[key] for run in runs if key in run.points[-1].train]
        return float(np.mean(values)) if values else None

    return Outcome(rate, tuple(map(score, curves)), tuple(curves), last("entropy"), last("grad_norm"), tuple(flags))


def score(curve: Sequence[tuple[int, float]]) -> float:
    """The mean reward over the last quarter of a run's evaluations, rounded up; that of the base policy is none of them."""
    trained = [reward for C, reward in curve if C > 0]
    return float(np.mean(trained[-math.ceil(len(trained) / 4) :])) if trained else curve[-1][1]


def search(rates: Sequence[float], run: Callable[[float], Outcome], extend: bool) -> Search:
    """Run all rates; where the best lies at an end of the grid and `extend` is set, one more beyond it, at most EXTENSIONS times."""
    found = {rate: run(rate) for rate in sorted(rates)}
    extended = 0
    while extend and extended < EXTENSIONS and (beyond := _beyond(found)) is not None:
        found[beyond] = run(beyond)
        extended += 1
    return judged(tuple(found[rate] for rate in sorted(found)), extended)


def _beyond(found: dict[float, Outcome]) -> float | None:
    """The next rate in the direction of the best, if that lies at an end; downwards where every rate is out."""
    well = [o for o in found.values() if not o.flags]
    best = max(well, key=lambda o: (o.reward, -o.rate)).rate if well else min(found)
    if best == min(found):
        return beside(best, -1)
    return beside(best, 1) if best == max(found) else None


def judged(outcomes: tuple[Outcome, ...], extended: int) -> Search:
    """The best rate, those that cannot be told from it, and the lowest of these."""
    well = [o for o in outcomes if not o.flags]
    spread = [np.var(o.scores, ddof=1) for o in well if len(o.scores) > 1]
    se = math.sqrt(float(np.mean(spread)) / len(well[0].scores)) if spread else None
    if not well:
        return Search(outcomes, extended, se, None)
    best = max(well, key=lambda o: (o.reward, -o.rate))
    tied = tuple(o for o in well if best.reward - o.reward <= math.sqrt(2) * (se or 0.0))
    return Search(outcomes, extended, se, best, tied, tied[0])


def to_json(found: Search, config: Config, pair: tuple[int, int], budget: int, seeds: int) -> dict[str, Any]:
    """The content of lr_anchor.json: what was run, every rate, and what to put into the config."""
    B = pair[0] * pair[1]
    metric = f"avg@{config.cell.eval.samples}"
    rows = [
        {
            "rate": o.rate, "B": B, "reward": o.reward if o.scores else None, "se": found.se if o.scores and not o.flags else None,
            "scores": list(o.scores), "entropy": o.entropy, "grad_norm": o.grad_norm, "flags": list(o.flags),
            "curves": [[list(point) for point in curve] for curve in o.curves],
        }
        for o in found.outcomes
    ]  # fmt: skip
    chosen = found.chosen
    return {
        "schema": 1, "name": config.name, "B_p": pair[0], "n": pair[1], "B": B, "budget": budget, "seeds": seeds, "metric": metric,
        "score": SCORE.format(metric=metric), "extended": found.extended, "rates": rows,
        "best": found.best.rate if found.best else None, "tied": [o.rate for o in found.tied],
        "learning_rate": chosen.rate if chosen else None, "anchor_batch": B, "lr_scaling": config.cell.rl.lr_scaling,
        "says": in_words(found),
    }  # fmt: skip


def in_words(found: Search) -> list[str]:
    """What a reader must know of the choice: ties, an optimum at the end of the grid, rates that are out, a single seed."""
    said = []
    for o in found.outcomes:
        if o.flags:
            said.append(f"{rate_name(o.rate)} is out: {'; '.join(o.flags)}")
    if found.best is None or found.chosen is None:
        return [*said, "every rate is out: search lower ones (--rates), or mend what the flags say"]
    others = [rate_name(o.rate) for o in found.tied if o is not found.best]
    if others:
        within = f"{rate_name(found.best.rate)} is best, and within one standard error of it: {', '.join(others)}"
        said.append(f"{within}; the lowest of them is taken, {rate_name(found.chosen.rate)}")
    if found.se is None:
        said.append("one seed: without a second one nothing says how far rates differ by luck (--seeds 2)")
    ends = {min(o.rate for o in found.outcomes): "lowest", max(o.rate for o in found.outcomes): "highest"}
    if found.best.rate in ends:
        said.append(f"the best rate is the {ends[found.best.rate]} that was tried: search beyond it (--rates)")
    return said
