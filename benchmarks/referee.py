"""Does the referee (isojax/scaling/law/referee.py) judge published laws of n well? Worlds are drawn
from each of five laws, as simulated sweeps whose true curves are known; a fit of each gives the
verdicts.

    python benchmarks/referee.py                    20 worlds of each law; 2 minutes on one core
    python benchmarks/referee.py --worlds 5 --first 100

What is true of a world is what each law says of its true curves, without noise. A world is drawn
again until the law that it is drawn from holds. One JSON line per world on standard output, a table
on standard error: of the worlds drawn from a law, in how many this law is excluded, supported
(named), or left open; and, of the verdicts on the other laws that can be judged, how many that fail
are excluded, how many that fail are supported, and how many that hold are excluded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # the worlds are in tests/scaling

from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.fit import fit_all_runs
from isojax.scaling.law.referee import GRID_POINTS, LAWS, ComparedCells
from tests.scaling.synthetic import World, world
from tests.scaling.synthetic_curves import Hill, Stretched, TrueCurve

Draw = np.random.Generator
Curve = Callable[[int, int], TrueCurve]
Line = dict[str, Any]
RUN_SD = 0.01
DRAWS = 200  # of each fit
VERDICTS = ("excluded", "supported", "cannot tell")


class Shape:
    """What the curves of a world share, and a curve of a given plateau and speed."""

    def __init__(self, rng: Draw):
        self.R0 = rng.uniform(0.15, 0.35)
        self.A = rng.uniform(0.45, 0.6)
        self.C_mid = 10 ** rng.uniform(3.8, 4.5)
        self.form = (Hill, Stretched)[rng.integers(2)]
        self.exponent = rng.uniform(0.8, 1.5) if self.form is Hill else rng.uniform(0.6, 1.1)

    def curve(self, gain: float, delay: float) -> TrueCurve:
        """`gain` above A, C_mid times `delay`."""
        return self.form(
            float(self.R0), float(self.A + gain), float(self.exponent), float(self.C_mid * delay)
        )


def _of_n(
    rng: Draw, shape: Shape, gains: Sequence[float], delays: Sequence[float], all_n: Sequence[int]
) -> Curve:
    """A gain and a delay for each n, the same at every B_p up to .004 of plateau and 10% of
    C_mid."""
    effects = {b: (rng.uniform(-0.004, 0.004), rng.uniform(0.95, 1.05)) for b in (8, 16, 32, 64)}

    def curve(B_p: int, n: int) -> TrueCurve:
        i = all_n.index(n)
        return shape.curve(gains[i] + effects[B_p][0], delays[i] * effects[B_p][1])

    return curve


def rising(rng: Draw, shape: Shape, n: Sequence[int]) -> Curve:
    """A larger n: a higher plateau, later."""
    level = np.log2(n) - np.log2(n[0])
    gains = np.concatenate([[0], np.cumsum(rng.uniform(0.015, 0.05, len(n) - 1) * np.diff(level))])
    return _of_n(rng, shape, gains.tolist(), (rng.uniform(1.5, 2.2) ** level).tolist(), n)


def constant(rng: Draw, shape: Shape, n: Sequence[int]) -> Curve:
    """One n has the highest plateau; all learn equally fast."""
    distance = np.abs(np.arange(len(n)) - rng.integers(len(n)))
    return _of_n(rng, shape, (-rng.uniform(0.01, 0.04) * distance).tolist(), [1.0] * len(n), n)


def two(rng: Draw, shape: Shape, n: Sequence[int]) -> Curve:
    """One plateau; a larger n is as fast or slower."""
    delays = rng.choice([1.0, rng.uniform(1.0, 1.5)]) ** np.log2(np.array(n) / 2)
    return _of_n(rng, shape, [0.0] * len(n), delays.tolist(), n)


def hundreds(rng: Draw, shape: Shape, n: Sequence[int]) -> Curve:
    """A larger n: a higher plateau, hardly later."""
    level = np.log2(n) - np.log2(n[0])
    return _of_n(
        rng,
        shape,
        (rng.uniform(0.01, 0.03) * level).tolist(),
        (rng.uniform(1.0, 1.25) ** level).tolist(),
        n,
    )


def batch(rng: Draw, shape: Shape, n: Sequence[int]) -> Curve:
    """Plateau and speed depend on B_p n alone: beyond a critical batch, a larger one learns
    later."""
    critical, loss = 2 ** rng.uniform(6, 9), rng.uniform(0.0, 0.1)
    return lambda B_p, n: shape.curve(-loss / (1 + B_p * n / critical), 1 + B_p * n / critical)


class Kind(NamedTuple):
    """Worlds in which a law holds: their curves, and the grid of their cells."""

    draw: Callable[[Draw, Shape, Sequence[int]], Curve]
    n: tuple[int, ...]
    B_p: tuple[int, ...]


KINDS = {
    "n* grows with C": Kind(rising, (2, 4, 8, 16, 32, 64), (16, 32)),
    "n* is one number whatever C": Kind(constant, (2, 4, 8, 16, 32), (16, 32)),
    "n = 2 is enough": Kind(two, (2, 4, 8, 16, 32), (16, 32)),
    "hundreds keep gaining": Kind(hundreds, (8, 32, 128, 256), (8, 16)),
    "only B_p n matters": Kind(batch, (4, 8, 16, 32), (8, 16, 32)),
}


def true_laws(simulated: World, C_end: float) -> dict[str, bool]:
    """Which laws hold for the true curves, of those that the sweep's cells can judge."""
    # The grid begins where two values of n have been measured, as the fit's own does.
    first_C: dict[int, float] = {}
    for (_, n), (low, _) in simulated.measured.items():
        first_C[n] = min(low, first_C.get(n, low))
    C = np.geomspace(sorted(first_C.values())[1], C_end, GRID_POINTS)

    rewards = np.stack([simulated.reward(*key, C) for key in simulated.truth])[None]
    cells = ComparedCells(tuple(simulated.truth), C, rewards, np.ones(rewards.shape[1:], bool))
    verdicts = {}
    for law, (_, judge) in LAWS.items():
        evidence = judge(cells)
        if evidence.missing_run is None:
            verdicts[law] = bool(np.all(evidence.holds))
    return verdicts


class JudgedWorld(NamedTuple):
    """A simulated sweep, and which laws hold in it."""

    world: World
    truth: dict[str, bool]


def draw_world(law: str, seed: int, number: int, problems: int = 300) -> JudgedWorld:
    """A world in which the law holds."""
    kind = KINDS[law]
    for attempt in range(1000):
        rng = np.random.default_rng([seed, list(KINDS).index(law), number, attempt])
        shape = Shape(rng)
        curve = kind.draw(rng, shape, kind.n)
        start = shape.C_mid * rng.uniform(0.1, 0.3)
        decades = rng.uniform(2.0, 2.8)
        simulated = world(
            curve=curve,
            B_p=kind.B_p,
            n=kind.n,
            seeds=int(rng.integers(1, 4)),
            seed=int(rng.integers(2**31)),
            problems=problems,
            run_sd=RUN_SD,
            start=round(start),
            ratio=10 ** (decades / rng.integers(20, 41)),
            budget=round(start * 10**decades),
        )
        truth = true_laws(simulated, start * 10**decades)
        if truth[law]:
            return JudgedWorld(simulated, truth)
    raise RuntimeError(f"no world of 1000 drawn keeps the law {law!r}")


def judge_world(law: str, seed: int, number: int) -> Line:
    simulated, truth = draw_world(law, seed, number)
    fit = fit_all_runs(simulated.runs, "avg@4", options=FitOptions(replicates=DRAWS))
    verdicts = {row.law: row.verdict for row in fit.referee if row.share_for is not None}
    return {"law": law, "number": number, "truth": truth, "verdicts": verdicts}


def table(lines: Sequence[Line]) -> Table:
    of_failing = ("failing laws: excluded", "supported", "open")
    of_true = ("other true laws: excluded", "supported", "open")
    result = Table("drawn from", "worlds", *VERDICTS, *of_failing, *of_true)
    for law in dict.fromkeys(line["law"] for line in lines):
        of_law = [line for line in lines if line["law"] == law]
        on_law = [line["verdicts"][law] for line in of_law]
        on_others: dict[bool, list[str]] = {False: [], True: []}  # by whether the law holds
        for line in of_law:
            for other, verdict in line["verdicts"].items():
                if other != law:
                    on_others[line["truth"][other]].append(verdict)

        counts = []
        for verdicts in (on_law, on_others[False], on_others[True]):
            counts += [str(verdicts.count(verdict)) for verdict in VERDICTS]
        result.add_row(law, str(len(of_law)), *counts)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=20, help="worlds of each law")
    parser.add_argument("--first", type=int, default=0, help="the first world's number")
    parser.add_argument("--seed", type=int, default=0, help="of all draws")
    parser.add_argument(
        "--laws", nargs="+", choices=KINDS, default=list(KINDS), help="from which worlds are drawn"
    )
    arguments = parser.parse_args()

    lines = []
    for law in arguments.laws:
        for number in range(arguments.first, arguments.first + arguments.worlds):
            line = judge_world(law, arguments.seed, number)
            lines.append(line)
            print(json.dumps(line), flush=True)
    Console(stderr=True, width=200).print(table(lines))


if __name__ == "__main__":
    main()
