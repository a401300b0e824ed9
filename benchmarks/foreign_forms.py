"""Random sweeps of known law whose curves are not the fitter's: the worlds of
benchmarks/foreign_worlds.py, written from docs/laws.md alone.

Cell j follows R_j(C) = R0 + (A_j - R0) g(C / C_half,j), where g rises from 0 at C = 0. No g here is
a Hill curve or a stretched exponential, but for the worlds of `small_world` and of FITTED. A run's
curve is R_j(C) + e_r p_j(C), where e_r is normal and p_j = (R_j - R0) / (A_j - R0), within 0 and 1.
An evaluation adds noise of one of two kinds:

    problems    each problem has a difficulty d_i ~ Normal(0, spread); its 4 responses are correct
                with probability sigmoid(a + d_i), with `a` such that the mean over all possible
                problems is the run's curve. All runs of a world are evaluated on the same problems.
    plain       Gaussian, of standard deviation 2 noise_sd sqrt(R (1 - R)), largest at R = 1/2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from scipy.special import expit

from isojax.core.nouns import Cell, EvalPoint, RunRecord

Array = np.ndarray
Growth = Callable[[Array], Array]  # of C / C_half
Key = tuple[int, int]  # (B_p, n)
SAMPLES = 4  # responses to a problem in one evaluation
METRIC = "avg@4"


def frechet(x: Array, steepness: float) -> Array:
    return np.exp(-np.log(2) * np.maximum(x, 1e-12) ** -steepness)


def logistic(x: Array, steepness: float) -> Array:
    """Logistic in C itself, from 0 at C = 0."""
    start = expit(-steepness)
    return (expit(steepness * (x - 1)) - start) / (1 - start)


def gompertz(x: Array, delay: float) -> Array:
    start = np.exp(-delay)
    rate = np.log(delay / np.log(2))  # for which the curve is half way at x = 1
    return (np.exp(-delay * np.exp(-rate * x)) - start) / (1 - start)


def saturating_power(x: Array, exponent: float) -> Array:
    return 1 - (1 + (2 ** (1 / exponent) - 1) * x) ** -exponent


def broken_power(x: Array, early: float, late: float, at: float, sharpness: float) -> Array:
    """The error falls as x^-early and, beyond the break, as x^-(early + late)."""
    return 1 - (1 + x) ** -early * (1 + (x / at) ** sharpness) ** (-late / sharpness)


def two_rises(x: Array, first: float, gap: float, steepness: tuple[float, float]) -> Array:
    """A first rise at x = 1, and a second at x = 10^gap."""
    z = np.log(np.maximum(x, 1e-12))
    return first * expit(steepness[0] * z) + (1 - first) * expit(
        steepness[1] * (z - gap * np.log(10))
    )


def log_linear(x: Array, decades: float) -> Array:
    """Linear in log C without an end; 1 at x = 10^decades - 1."""
    return np.log10(1 + x) / decades


def delayed(x: Array, start: float, power: float) -> Array:
    """Nothing before x = start."""
    h = (np.maximum(x - start, 0) / (1 - start)) ** power
    return h / (1 + h)


def rise_and_fall(x: Array, rise: Growth, peak: float, fall: float, bend: float) -> Array:
    """Beyond `peak` the reward falls by `fall` of the gain in the first decade."""
    decades_beyond = np.maximum(np.log10(np.maximum(x, 1e-12) / peak), 0)
    return np.maximum(rise(x) - fall * decades_beyond**bend, 0)


Draw = Callable[[np.random.Generator], Growth]
GROWTHS: dict[str, Draw] = {
    "frechet": lambda rng: partial(frechet, steepness=rng.uniform(0.5, 1.4)),
    "logistic": lambda rng: partial(logistic, steepness=rng.uniform(2, 6)),
    "gompertz": lambda rng: partial(gompertz, delay=rng.uniform(2, 7)),
    "saturating power": lambda rng: partial(saturating_power, exponent=rng.uniform(0.15, 0.6)),
    "broken power": lambda rng: partial(
        broken_power,
        early=rng.uniform(0.1, 0.4),
        late=rng.uniform(0.1, 0.8),
        at=10 ** rng.uniform(0, 1.3),
        sharpness=rng.uniform(1, 4),
    ),
    "two rises": lambda rng: partial(
        two_rises,
        first=rng.uniform(0.3, 0.7),
        gap=rng.uniform(0.7, 1.8),
        steepness=tuple(rng.uniform(1, 3, 2)),
    ),
    "log-linear": lambda rng: partial(log_linear, decades=rng.uniform(1.2, 2)),
    "delayed start": lambda rng: partial(
        delayed, start=rng.uniform(0.2, 0.8), power=rng.uniform(0.7, 1.5)
    ),
    "fall after a peak": lambda rng: partial(
        rise_and_fall,
        rise=GROWTHS[str(rng.choice(["frechet", "logistic", "gompertz"]))](rng),
        peak=10 ** rng.uniform(0.4, 1),
        fall=rng.uniform(0.1, 0.5),
        bend=rng.uniform(1, 2),
    ),
}
RISES = tuple(name for name in GROWTHS if name != "fall after a peak")
FITTED = "hill"  # the fit's own form


@dataclass(frozen=True)
class Form:
    """How the worlds of one kind are drawn."""

    growth: str = ""  # a key of GROWTHS; empty: any rise
    order: str = "rises"  # how the best n changes with C: "rises", "falls", or "irregular" in n
    R0: tuple[float, float] = (0.05, 0.4)
    gain: tuple[float, float] = (0.15, 0.45)  # of the best cell
    several_B_p: bool = False


FORMS: dict[str, Form] = {
    **{name: Form(name) for name in GROWTHS},
    "rewards near 0": Form(R0=(0.002, 0.015), gain=(0.03, 0.1)),
    "rewards near 1": Form(R0=(0.7, 0.85), gain=(0.1, 0.14)),
    "n* falls": Form(order="falls"),
    "irregular in n": Form(order="irregular"),
    "several B_p": Form(several_B_p=True),
}


@dataclass(frozen=True)
class TrueCurve:
    """The expected reward of a cell's runs."""

    R0: float
    A: float
    C_half: float
    growth: Growth

    def reward(self, C: Array) -> Array:
        rise = self.growth(np.asarray(C, float) / self.C_half)
        return np.clip(self.R0 + (self.A - self.R0) * rise, 0.001, 0.999)

    def progress(self, C: Array) -> Array:
        return np.clip((self.reward(C) - self.R0) / (self.A - self.R0), 0, 1)


@dataclass(frozen=True)
class World:
    """A sweep of known law."""

    form: str
    curves: dict[Key, TrueCurve]
    targets: Array  # the C of the evaluations; 0 is the base policy
    ends: dict[Key, float]  # the C at which a cell's runs end
    seeds: int
    run_sd: float
    noise_sd: float = 0.0  # of a plain metric at R = 1/2
    # of the problems; empty for a plain metric
    difficulties: Array = field(default_factory=lambda: np.zeros(0))
    spread: float = 1.0  # the standard deviation of the difficulties of all possible problems

    @property
    def C_end(self) -> int:
        """The largest measured C."""
        return max(max(self.updates(key)) * key[0] * key[1] for key in self.curves)

    def reward(self, key: Key, C: float) -> float:
        """The expected reward at C, over all possible problems and runs."""
        return float(self.curves[key].reward(np.array(C)))

    def at_budget(self, key: Key, budget: float) -> float:
        """The expected reward after the updates that the budget affords."""
        B = key[0] * key[1]
        return self.reward(key, budget // B * B)

    def best(self, budget: float) -> Key:
        return max(self.curves, key=lambda key: self.at_budget(key, budget))

    def levels(self, R: Array) -> Array:
        """`a` of the docstring for each reward."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        a = np.linspace(-20, 20, 801)
        mean = expit(a[:, None] + self.spread * nodes) @ (weights / weights.sum())
        return np.interp(R, mean, a)

    def on_problems(self, R: Array) -> Array:
        """What rewards over all possible problems are on those of this world."""
        if self.difficulties.size == 0:
            return R
        grid = np.linspace(0.0005, 0.9995, 400)
        return np.interp(R, grid, expit(self.levels(grid)[:, None] + self.difficulties).mean(1))

    def measure(self, rng: np.random.Generator, key: Key, C: Array) -> tuple[Array, Array]:
        """One run's evaluations: its rewards, and the correct responses of each problem (none for a
        plain metric)."""
        curve = self.curves[key]
        run_effect = rng.normal(0, self.run_sd) * curve.progress(C)
        R = np.clip(curve.reward(C) + run_effect, 0.0005, 0.9995)
        if self.difficulties.size == 0:
            noisy = R + rng.normal(0, 1, R.shape) * 2 * self.noise_sd * np.sqrt(R * (1 - R))
            return np.clip(noisy, 0, 1), np.zeros((len(R), 0), int)
        counts = rng.binomial(SAMPLES, expit(self.levels(R)[:, None] + self.difficulties))
        return counts.mean(1) / SAMPLES, counts

    def updates(self, key: Key) -> dict[int, int]:
        """M -> the target, of the evaluations of a cell's runs."""
        B = key[0] * key[1]
        return {
            int(-(-target // B)): int(target) for target in self.targets if target <= self.ends[key]
        }

    def runs(self, rng: np.random.Generator) -> list[RunRecord]:
        """The sweep's records."""
        return [
            self.run(rng, Cell(*key, seed)) for key in self.curves for seed in range(self.seeds)
        ]

    def run(self, rng: np.random.Generator, cell: Cell) -> RunRecord:
        targets = self.updates((cell.B_p, cell.n))
        C = np.array(list(targets)) * cell.B
        rewards, counts = self.measure(rng, (cell.B_p, cell.n), C)
        points = tuple(
            EvalPoint(
                target=target,
                M=M,
                rollouts=M * cell.B,
                tokens=100 * M * cell.B,
                metrics={METRIC: float(rewards[i])},
                counts=tuple(counts[i].tolist()) if counts.size else (),
                samples=SAMPLES if counts.size else 0,
            )
            for i, (M, target) in enumerate(targets.items())
        )
        return RunRecord(cell=cell, points=points)


def draw_keys(rng: np.random.Generator, several_B_p: bool) -> list[Key]:
    """4 to 7 values of n up to 1024 at one B_p; or 2 or 3 values of n at each of 2 or 3 B_p."""
    if several_B_p:
        first, B_p = 2 ** int(rng.integers(2, 5)), 2 ** int(rng.integers(3, 5))
        rows, columns = [(2, 2), (2, 3), (3, 2)][rng.integers(3)]
        return [
            (B_p * 4**row, first * 4**column) for row in range(rows) for column in range(columns)
        ]
    count = int(rng.integers(4, 8))
    doublings = int(rng.integers(1, 3)) if count < 6 else 1  # from one n to the next
    first = int(rng.integers(1, min(5, 11 - doublings * (count - 1))))
    B_p = 2 ** int(rng.integers(3, 7))
    return [(B_p, 2 ** (first + doublings * i)) for i in range(count)]


def draw_plateaus(rng: np.random.Generator, order: str, position: Array, gain: float) -> Array:
    """A_j - R0. `position`: the position of a cell's n among all, from 0 to 1."""
    height = position if order == "rises" else 1 - position
    if order == "irregular":
        height = rng.uniform(0, 1, len(position))
    elif rng.uniform() < 0.35:  # the plateau is highest at an n in the middle
        height = 1 - np.abs(height - rng.uniform(0.4, 0.9)) ** 1.5
    spread = rng.uniform(0.05, 0.45) * gain
    return gain - spread * (height.max() - height) + rng.normal(0, 0.03 * spread, len(position))


def draw_C_half(rng: np.random.Generator, order: str, keys: list[Key], C_end: float) -> Array:
    """A larger n is slower; a smaller one where n* falls with C."""
    log2_n, log2_B_p = np.log2([n for _, n in keys]), np.log2([B_p for B_p, _ in keys])
    log2_n, log2_B_p = log2_n - log2_n.mean(), log2_B_p - log2_B_p.mean()
    slope = min(rng.uniform(0.2, 0.9), 1.5 / np.log10(2) / np.ptp(log2_n))
    sign = {"rises": 1, "falls": -1, "irregular": 0}[order]
    irregular = rng.normal(0, 0.35 if order == "irregular" else 0.05, len(keys))
    middle = np.log10(C_end) + rng.uniform(-1.4, -0.2)
    return 10 ** (
        middle
        + np.log10(2) * (sign * slope * log2_n + rng.uniform(-0.2, 0.4) * log2_B_p)
        + irregular
    )


def draw_growth(rng: np.random.Generator, name: str) -> Growth:
    """One of GROWTHS, or a Hill curve."""
    return (
        partial(delayed, start=0.0, power=rng.uniform(0.7, 1.5))
        if name == FITTED
        else GROWTHS[name](rng)
    )


def draw_curves(
    rng: np.random.Generator, form: Form, keys: list[Key], C_end: float
) -> dict[Key, TrueCurve]:
    log2_n = np.log2([n for _, n in keys])
    R0 = rng.uniform(*form.R0)
    gain = rng.uniform(*form.gain)
    gains = draw_plateaus(rng, form.order, (log2_n - log2_n.min()) / np.ptp(log2_n), gain)
    if form.several_B_p:
        gains = gains + rng.normal(0, 0.05 * gain, len(keys))
    C_half = draw_C_half(rng, form.order, keys, C_end)

    # All cells of a world have one growth, but in an irregular one.
    names = [form.growth or str(rng.choice(RISES))] * len(keys)
    if form.order == "irregular":
        names = [str(name) for name in rng.choice(RISES, len(keys))]
    shared = draw_growth(rng, names[0])
    growths = [draw_growth(rng, name) if form.order == "irregular" else shared for name in names]
    return {key: TrueCurve(R0, R0 + gains[j], C_half[j], growths[j]) for j, key in enumerate(keys)}


def draw_ends(rng: np.random.Generator, keys: list[Key], C_end: float) -> dict[Key, float]:
    """In two worlds of five some cells end early, at .3 to .9 of the largest C."""
    ends = dict.fromkeys(keys, C_end)
    if rng.uniform() < 0.4:
        early = rng.permutation(len(keys))[: rng.integers(1, len(keys) // 2 + 1)]
        ends |= {keys[j]: C_end * rng.uniform(0.3, 0.9) for j in early}
    return ends


def draw_targets(rng: np.random.Generator, C_end: float) -> Array:
    """12 to 60 evaluations over 1.6 to 3 decades, evenly spaced in log C or in sqrt C."""
    count, C_first = int(rng.integers(12, 61)), C_end / 10 ** rng.uniform(1.6, 3)
    spaced = np.geomspace(C_first, C_end, count)
    if rng.uniform() < 1 / 3:
        spaced = np.linspace(C_first**0.5, C_end**0.5, count) ** 2
    base = [0.0] if rng.uniform() < 0.85 else []
    return np.round([*base, *spaced])


def random_world(rng: np.random.Generator, name: str) -> World:
    """A world of one of FORMS, or of Hill curves (FITTED)."""
    form = FORMS[name] if name in FORMS else Form(name)
    keys = draw_keys(rng, form.several_B_p)
    C_end = float(max(B_p * n for B_p, n in keys) * rng.integers(40, 400))
    curves = draw_curves(rng, form, keys, C_end)
    gain = max(curve.A - curve.R0 for curve in curves.values())
    has_counts = bool(rng.uniform() < 0.5)
    spread = rng.uniform(1, 2.5)

    return World(
        form=name,
        curves=curves,
        targets=draw_targets(rng, C_end),
        ends=draw_ends(rng, keys, C_end),
        seeds=int(rng.integers(1, 4)),
        run_sd=max(min(np.exp(rng.uniform(np.log(0.003), np.log(0.02))), 0.1 * gain), 0.003),
        noise_sd=np.exp(rng.uniform(np.log(0.004), np.log(0.03))),
        difficulties=rng.normal(0, spread, rng.integers(100, 501) if has_counts else 0),
        spread=spread,
    )


def small_world(rng: np.random.Generator) -> World:
    """One seed, 15 evaluations evenly spaced in C and 100 to 300 problems; n = 4 to 32, plateaus
    that differ by .03 to .06, C_half ~ n^.5. In some worlds C_half is far below the first
    evaluation, so that only the plateaus differ. A third of the worlds has Hill curves, a third
    Frechet's and a third Gompertz's.
    """
    C_end = float(16 * 32 * rng.integers(60, 240))
    hill = partial(delayed, start=0.0, power=1.0)
    growths = (hill, GROWTHS["frechet"](rng), GROWTHS["gompertz"](rng))
    growth = growths[rng.integers(3)]
    R0 = rng.uniform(0.1, 0.4)
    gain = rng.uniform(0.2, 0.4)
    spread = rng.uniform(1, 2.5)
    plateau_range = rng.uniform(0.03, 0.06)
    C_half_middle = C_end * 10 ** rng.uniform(-2.5, -0.6)

    curves = {}
    for i, n in enumerate((4, 8, 16, 32)):
        A = R0 + gain + plateau_range * i / 3
        C_half = C_half_middle * (n / 2**3.5) ** 0.5  # 2^3.5 is the middle n
        curves[16, n] = TrueCurve(R0, A, C_half, growth)
    return World(
        form="small",
        curves=curves,
        targets=np.round(np.linspace(0, C_end, 16)),
        ends=dict.fromkeys(curves, C_end),
        seeds=1,
        run_sd=rng.uniform(0.003, 0.01),
        difficulties=rng.normal(0, spread, rng.integers(100, 301)),
        spread=spread,
    )


# What makes a recommendation promise too much.
RISKS = ("no effect of n", "one unlike seed", "cells that end early", "slow power laws")


def risky_world(rng: np.random.Generator, risk: str) -> World:
    """A world with one of RISKS: all cells have one curve; one seed, with a run-to-run standard
    deviation of .025; half of the cells end at .15 to .5 of the largest C; or a power law with an
    exponent of .1 to .3, far from its plateau at any C."""
    growth = "saturating power" if risk == "slow power laws" else str(rng.choice(RISES))
    world = replace(random_world(rng, growth), form=risk)
    curves, C_end = world.curves, float(world.targets[-1])
    if risk == "no effect of n":
        first = next(iter(curves.values()))
        return replace(world, curves=dict.fromkeys(curves, first))
    if risk == "one unlike seed":
        return replace(world, seeds=1, run_sd=0.025)
    if risk == "cells that end early":
        keys = list(curves)
        early = rng.permutation(len(keys))[: max(1, len(keys) // 2)]
        ends = {keys[j]: C_end * rng.uniform(0.15, 0.5) for j in early}
        return replace(world, ends=dict.fromkeys(keys, C_end) | ends)

    slow = partial(saturating_power, exponent=rng.uniform(0.1, 0.3))
    return replace(world, curves={key: replace(c, growth=slow) for key, c in curves.items()})


def stable_world(rng: np.random.Generator) -> World:
    """A world without a fall whose metric has the noise of 60 to 500 problems; the records hold the
    metric alone."""
    rising = [name for name in FORMS if name != "fall after a peak"]
    world = random_world(rng, str(rng.choice(rising)))
    noise_sd = 0.5 / np.sqrt(SAMPLES * rng.integers(60, 501))
    return replace(world, difficulties=np.zeros(0), noise_sd=noise_sd)
