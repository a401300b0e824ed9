"""How long a sweep takes: from its own clocks where cells have run, else from a floor and a stated efficiency. No jax here.

The floor of an update counts the operations of its matrix products and the bytes it must move, each at the rate that a probe measured on
this machine, one after the other:

    sampling   2 operations a number of the weights for each token (of layers' weights, but for each response's first) and each prompt
               position; all weights, and the cache, once a step
    update     6 and 6, 2 more where a layer is computed again, 2 for the KL's reference, 8 for a critic; what layers keep for the
               gradient moves three times; sums of gradients once a microbatch, Adam's moments once
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from isojax.config import CellConfig, SweepConfig
from isojax.geometry import make_geometry
from isojax.launch.memory import cache, responses_kept
from isojax.launch.planner import cost
from isojax.launch.sizes import FLOAT, MeshSizes, Sizes
from isojax.types import Cell, RunRecord

EFFICIENCY = 0.6  # of the floor's rates that an update reaches; see docs/performance.md for how far off that was
SECONDS = 3600


@dataclass(frozen=True)
class Rates:
    """Of one device at work beside the others: operations a second of products with as many rows as a decode step and as a microbatch
    have, and bytes a second of memory."""

    decode: float
    update: float
    bandwidth: float


@dataclass(frozen=True)
class Forecast:
    """Expected: rollouts a second of training, and seconds of a cell with its evaluations, by (B_p, n); seconds of the sweep; and `source`,
    what they come from."""

    rates: Mapping[tuple[int, int], float]
    seconds: Mapping[tuple[int, int], float]
    sweep: float
    source: str


@dataclass(frozen=True)
class Work:
    """What one device does in a sweep of these sizes."""

    sizes: Sizes
    sampling_only: int  # rollouts of all evaluations of a cell

    def sampled(self, B_p: float, B: float, rates: Rates) -> float:
        """Seconds of sampling B rollouts to B_p prompts, over all shards."""
        s, S = self.sizes, self.sizes.geometry.shards
        P, T, own = s.geometry.prompt_length, s.geometry.response_length, s.prefix
        weights, attention = s.L * s.layer, 4 * s.L * s.N * s.H
        layers = 2 * weights + attention * (own + T / 2)  # a token's; the first of a response is drawn from its prompt
        operations = B / S * ((T - 1) * layers + T * 2 * s.table) + B_p / S * own * (2 * weights + attention * P / 2)
        visits = B / S / s.geometry.slots  # of all slots, a token each step; the first one's without layers
        of_slots = cache(s) * s.geometry.slots / (s.geometry.slots + s.geometry.prefixes)
        moved = visits * ((T - 1) * (s.compute * weights + of_slots) + T * s.compute * s.table)
        return operations / rates.decode + moved / rates.bandwidth

    def learned(self, B_p: float, B: float, rates: Rates) -> float:
        """Seconds of an update on B rollouts to B_p prompts."""
        s, S = self.sizes, self.sizes.geometry.shards
        P, T, own = s.geometry.prompt_length, s.geometry.response_length, s.prefix
        times = 6 + 2 * s.remat + 2 * (s.reference > 0) + 8 * (s.critic > 0)
        weights, attention = s.L * s.layer, 2 * s.L * s.N * s.H
        layers = weights + attention * (own + T / 2)
        operations = B / S * times * ((T - 1) * layers + T * s.table) + B_p / S * own * times * (weights + attention * P / 2)
        microbatches = B / S / s.geometry.microbatch
        moved = microbatches * (3 * responses_kept(s) + 3 * FLOAT * s.numbers) + 9 * s.stored
        return operations / rates.update + moved / rates.bandwidth

    def rate(self, B_p: int, n: int, rates: Rates) -> float:
        """Rollouts a second of training."""
        return EFFICIENCY * B_p * n / (self.sampled(B_p, B_p * n, rates) + self.learned(B_p, B_p * n, rates))

    def evaluations(self, samples: int, rates: Rates) -> float:
        """Seconds of all evaluations of a cell."""
        return self.sampled(self.sampling_only / samples, self.sampling_only, rates) / EFFICIENCY


def work(
    cell: CellConfig, sweep: SweepConfig, pairs: Sequence[tuple[int, int]], mesh: MeshSizes, vocab: int, on_device: bool, backend: str
) -> Work:
    """What a device does in a sweep whose sizes are chosen."""
    assert sweep.slots and sweep.microbatch and sweep.prompts, "the planner chooses them"
    lengths = cell.sampling.prompt_length, cell.sampling.response_length
    sizes = mesh.data * mesh.fsdp, sweep.slots, sweep.microbatch
    geometry = make_geometry(pairs, *sizes, *lengths, sweep.prompts, sweep.lane_width or 1)
    evaluations = len(cell.eval.grid(sweep.budget)) * (cell.data.validation + cell.eval.panel) * cell.eval.samples
    return Work(Sizes(cell, sweep.remat == "layer", geometry, mesh, vocab, on_device, backend), evaluations)


def from_clocks(runs: Iterable[RunRecord], pairs: Sequence[tuple[int, int]], devices: int) -> dict[tuple[int, int], float]:
    """Rollouts a second, evaluations included, of each pair: as its own cells' clocks have it, or, where none has run, as those of the
    others say it by planner.cost. Empty where no cell has clocks of two evaluations. `devices`: of a cell."""
    measured: dict[tuple[int, int], list[float]] = {}
    for run in runs:
        if len(run.device_hours) < 2:
            continue
        seconds = (run.device_hours[-1] - run.device_hours[0]) * SECONDS / devices
        rollouts = run.points[-1].rollouts - run.points[0].rollouts
        if seconds > 0 and rollouts > 0:
            measured.setdefault((run.cell.B_p, run.cell.n), []).append(rollouts / seconds)
    if not measured:
        return {}
    found = {pair: statistics.median(rates) for pair, rates in measured.items()}
    unit = statistics.median(rate * _cost(pair) for pair, rate in found.items())
    return {pair: found[pair] if pair in found else unit / _cost(pair) for pair in pairs}


def _cost(pair: tuple[int, int]) -> float:
    """Of a rollout of this pair, in the planner's unit."""
    cell = Cell(*pair, 0)
    return cost(cell, cell.B) / cell.B


def forecast(
    cells: Sequence[Cell], last: int, at_once: int, clocks: Mapping[tuple[int, int], float], floor: tuple[Work, Rates, int] | None
) -> Forecast:
    """For cells that run up to C = last, `at_once` side by side: by their clocks, else by the floor: work, rates, and rollouts
    a problem of an evaluation."""
    pairs = sorted({(cell.B_p, cell.n) for cell in cells})
    rollouts = {(B_p, n): -(-last // (B_p * n)) * B_p * n for B_p, n in pairs}
    if clocks:
        rates, source = dict(clocks), "this sweep's own clocks, evaluations included"
        seconds = {pair: rollouts[pair] / rates[pair] for pair in pairs}
    else:
        assert floor is not None, "without clocks there is a floor"
        given, speed, samples = floor
        rates = {(B_p, n): given.rate(B_p, n, speed) for B_p, n in pairs}
        evaluating = given.evaluations(samples, speed)
        seconds = {pair: rollouts[pair] / rates[pair] + evaluating for pair in pairs}
        source = (
            f"a floor at {EFFICIENCY:.0%} efficiency, all responses of full length (probed, a device: {speed.decode / 1e9:,.0f} and "
            f"{speed.update / 1e9:,.0f} GFLOP/s, {speed.bandwidth / 1e9:,.1f} GB/s); expect a factor 2 either way"
        )
    each = [seconds[cell.B_p, cell.n] for cell in cells]
    return Forecast(rates, seconds, max(sum(each) / at_once, *each), source)
