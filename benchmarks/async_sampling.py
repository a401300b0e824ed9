"""Sampling and training one after the other, and asynchronously: rollouts per second, and how much
of the time each of the two works.

    python benchmarks/async_sampling.py [--model small|quickstart] [--B_p 32] [--n 8] [--k 1]
    [--updates 20]
        [--repeats 3] [--ways sync,mesh] [cell.rl.n_train=4 ...]
    python benchmarks/async_sampling.py --learns DIR [--ks 0,1,2,4,8] [--ways alternate,mesh]

One cell of the quickstart's task and recipe from random weights, without evaluations, its gradient
taken of 2 of the n rollouts so that both halves have as much to do; one JSON line for each way:

    sync       the program that does both
    alternate  sampler and trainer alternate on one mesh, the sampler up to k updates ahead
    mesh       a simulated device for each

`of_sync`: rollouts per second over those of `sync`. `sampler_busy` and `trainer_busy` are the
shares of the time in which each half worked, as it measures itself; where their sum `busy` is above
1, they overlapped. Waiting for a core counts as work: give both halves one, and compare `of_sync`.
`staleness_mean`: the mean age of a token, in updates. Ways are interleaved; the figures are sums
over repeats.

`--learns`: what staleness costs. Runs of `ablations.py`'s scale in DIR, one seed for each k and
way; a line each with base and final reward, their difference, and how old tokens really were
(`staleness_mean`, the mean over the run; `staleness_max`). k only bounds that: if they alternate,
the sampler works no longer than the trainer waits for it, so that beyond some k nothing changes any
more.
"""

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ablations import Arm, config_of, run

from isojax.core.config import Config, ModelConfig, load_config
from isojax.core.nouns import Cell, Problem, RunRecord
from isojax.distributed.mesh_spec import MeshShape
from isojax.distributed.sharding import make_mesh, replicated
from isojax.launch.planner import resolve_sweep_sizes
from isojax.models.transformer import Params
from isojax.rl.async_rl.async_rollouts import AsyncRollouts
from isojax.rl.metric import Metrics, merge
from isojax.rl.optimizer import TrainState
from isojax.rl.rollout_source import CellProblems, finish_batch
from isojax.runs.ledger import read_runs
from isojax.sampling.batch import ProblemArrays
from isojax.tasks.epochs import EpochOrder
from isojax.tasks.task import build_task
from isojax.train.programs import SweepPrograms

WAYS = ("sync", "alternate", "mesh")
SAMPLER_MESH = {"alternate": (), "mesh": ("run.sampler_mesh=data=1",)}
MODELS = {
    "small": ModelConfig(
        family="llama", layers=4, width=256, heads=8, kv_heads=4, head_dim=32, mlp=768
    ),
    "quickstart": ModelConfig(),
}
# So that both halves have as much to do: a random policy seldom says the end token, so responses
# are long where they may be, and the gradient is that of a part of them (a decoupled baseline).
COMPARABLE = (
    "cell.sampling.response_length=16",
    "cell.rl.n_train=2",
    "sweep.microbatch=32",
    "sweep.decode_slots=64",
)
Updates = Callable[[TrainState, int], tuple[TrainState, dict[str, float]]]


def config_for(model: str, cell: Cell, k: int | None, overrides: Sequence[str]) -> Config:
    """The quickstart with that model and what makes its halves comparable, for one (B_p, n)."""
    words = [
        f"sweep.B_p=[{cell.B_p}]",
        f"sweep.n=[{cell.n}]",
        f"cell.rl.max_staleness={'null' if k is None else k}",
    ]
    config = load_config("quickstart", [*words, *COMPARABLE, *overrides])
    config = config.model_copy(
        update={"cell": config.cell.model_copy(update={"model": MODELS[model]})}
    )
    return config.model_copy(update={"sweep": resolve_sweep_sizes(config.sweep, 1, config.cell)})


class Way:
    """One way to do it, compiled."""

    def __init__(
        self,
        way: str,
        model: str,
        cell: Cell,
        k: int,
        problems: Sequence[Problem],
        overrides: Sequence[str],
    ):
        self.way, self.cell, self.problems = way, cell, list(problems)
        self.config = config_for(model, cell, None if way == "sync" else k, overrides)
        devices, one = jax.devices(), MeshShape()
        sampler_mesh = make_mesh(one, devices[1:]) if way == "mesh" else None
        task = build_task(self.config.cell)
        self.programs = SweepPrograms(
            self.config.cell,
            self.config.sweep,
            [(cell.B_p, cell.n)],
            make_mesh(one, devices),
            task,
            sampler_mesh,
        )
        self.programs.compile(len(self.problems))
        arrays = ProblemArrays(*self.programs.tokenize(self.problems).arrays)
        self.table = jax.device_put(arrays, replicated(self.programs.mesh))
        decoder = self.programs.decoder
        self.base: Params = jax.jit(
            decoder.init, out_shardings=decoder.shardings(self.programs.mesh)
        )(jax.random.key(0))

    @contextmanager
    def at_work(self) -> Any:
        """(updates, the seconds that sampler and trainer have worked so far)."""
        order = EpochOrder(len(self.problems), self.cell.B_p, self.cell.seed)
        programs = self.programs
        source = programs.open_rollouts(
            CellProblems(self.cell, self.problems, self.table, order, first_update=0)
        )

        def updates(state: TrainState, count: int) -> tuple[TrainState, Metrics]:
            sums: Metrics = {}
            last = int(state.step) + count
            while (left := last - int(state.step)) > 0:
                batch = source.next_batch(
                    state, min(left, programs.rollout_programs.updates_per_call)
                )
                state, result = programs.rollout_programs.update(
                    state, self.base, batch.inputs, programs.coefficients
                )
                metrics = finish_batch(batch, result, order, self.cell.n) | source.finish_update(
                    state
                )
                sums = merge(sums, metrics)
            return state, sums

        def clocks() -> dict[str, float]:
            if not isinstance(source, AsyncRollouts):
                return {}
            return {"sampler": source.worker.busy_seconds, "trainer": source.busy_seconds}

        with closing(source):
            yield updates, clocks

    def measure(self, count: int, warm: int) -> Counter[str]:
        """Seconds of `count` updates, and of each half in them, after some more; and the sums of
        two metrics."""
        state = self.programs.init(self.base)
        with self.at_work() as (updates, clocks):
            state, _ = jax.block_until_ready(updates(state, warm))
            before, began = clocks(), time.monotonic()
            state, metrics = jax.block_until_ready(updates(state, count))
            wall, after = time.monotonic() - began, clocks()
        worked = {f"{half}_busy": after[half] - before[half] for half in after}
        ages = {
            name: metrics[name].sum
            for name in ("staleness_mean", "staleness_max")
            if name in metrics
        }
        return Counter({"wall": wall, **worked, **ages})  # pyright: ignore[reportArgumentType]


def compare(args: argparse.Namespace) -> None:
    """A line for each way."""
    cell = Cell(args.B_p, args.n, 0)
    task = build_task(config_for(args.model, cell, None, args.overrides).cell)
    problems = task.problems(max(256, args.B_p), np.random.default_rng(0))
    ways = [
        Way(way, args.model, cell, args.k, problems, args.overrides)
        for way in (args.ways or ",".join(WAYS)).split(",")
    ]
    sums: dict[str, Counter[str]] = {way.way: Counter() for way in ways}
    for _ in range(args.repeats):
        for way in ways:
            sums[way.way] += way.measure(args.updates, args.k + 2)
    updates = args.repeats * args.updates
    rate = {way: updates * cell.B / result["wall"] for way, result in sums.items()}
    for way, result in sums.items():
        line: dict[str, Any] = {
            "model": args.model,
            "way": way,
            "k": None if way == "sync" else args.k,
            "B_p": cell.B_p,
            "n": cell.n,
        }
        line |= {
            "updates": updates,
            "wall": round(result["wall"], 4),
            "rollouts_per_second": round(rate[way], 1),
        }
        line |= {"of_sync": round(rate[way] / rate["sync"], 3)} if "sync" in rate else {}
        if way != "sync":
            shares = {
                half: result[half] / result["wall"] for half in ("sampler_busy", "trainer_busy")
            }
            line |= {name: round(share, 3) for name, share in shares.items()} | {
                "busy": round(sum(shares.values()), 3)
            }
            line |= {"staleness_mean": round(result["staleness_mean"] / updates, 3)}
        print(json.dumps(line), flush=True)


def learns(folder: Path, ways: Sequence[str], ks: Sequence[int], budget: int | None) -> None:
    """A line for each way and k: what a run learns. Nothing runs ahead where k is 0, so `alternate`
    alone is run."""
    for way, k in ((way, k) for way in ways for k in ks if k or way == "alternate"):
        arm = Arm(
            f"k{k}" if way == "alternate" else f"k{k} {way}",
            overrides=(f"cell.rl.max_staleness={k}", *SAMPLER_MESH[way]),
        )
        config = config_of(arm, folder / "learns", 1, budget)
        (line,) = run(arm, config, folder)
        report = {name: line[name] for name in ("base", "final", "min_gain", "C", "flags")}
        ages = ages_of(read_runs([Path(config.run.dir) / config.name])[0]) if k else {}
        print(
            json.dumps({"way": way, "k": k, "B_p": line["B_p"], "n": line["n"], **report, **ages}),
            flush=True,
        )


def ages_of(run: RunRecord) -> dict[str, float]:
    """The mean age of a run's tokens, in updates, each of its updates counted alike; and the
    largest."""
    trained = [(b.M - a.M, b.train) for a, b in zip(run.points, run.points[1:], strict=False)]
    mean = sum(M * train["staleness_mean"] for M, train in trained) / sum(M for M, _ in trained)
    return {
        "staleness_mean": round(mean, 3),
        "staleness_max": max(train["staleness_max"] for _, train in trained),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=tuple(MODELS), default="small")
    for name, default in (("B_p", 32), ("n", 8), ("k", 1), ("updates", 20), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ways", help=f"default: {','.join(WAYS)}; of --learns, alternate")
    parser.add_argument("--learns", type=Path, metavar="DIR")
    parser.add_argument("--ks", default="0,1,2,4,8")
    parser.add_argument("--budget", type=int, help="rollouts of each run of --learns")
    parser.add_argument("overrides", nargs="*", help="of the config, as key=value")
    args = parser.parse_args()
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", 2)
    if args.learns:
        learns(
            args.learns,
            (args.ways or "alternate").split(","),
            [int(k) for k in args.ks.split(",")],
            args.budget,
        )
    else:
        compare(args)


if __name__ == "__main__":
    main()
