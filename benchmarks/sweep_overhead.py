"""What a small batch costs, compared with a large one: the time per rollout of the smallest and the
largest cell of a sweep, and their ratio.

Both go through the one fused program that the whole sweep compiles (prefill, sample, verify,
gradient, AdamW), warm, on one core, called as `train.run_cell` calls it. Repeats are interleaved
and medians are taken, so that other load on the machine affects both. The learning rate is 0, so
that every repeat does the same work. One JSON line on standard output:

    python benchmarks/sweep_overhead.py                        smallest and largest of quickstart
    python benchmarks/sweep_overhead.py --pairs 16x2,64x32     these cells, in the sweep's program
    python benchmarks/sweep_overhead.py my.yaml --base runs/mine/base    the base policy of a run

Without --base, the policy is untrained, and its responses have full length.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", nargs="?", default="quickstart", help="a config's name or path")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--pairs", help="B_pxn,...: the cells to time, the first against the last")
    parser.add_argument("--base", type=Path, help="base/ of a finished sweep")
    parser.add_argument("--rollouts", type=int, default=16384, help="rollouts a measurement")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before jax starts its threads
    import jax

    from isojax.core.config import load_config
    from isojax.core.shapes import MAX_UPDATES_PER_CALL
    from isojax.distributed.mesh_spec import parse_mesh
    from isojax.distributed.sharding import make_mesh, replicated
    from isojax.launch.planner import plan_cells, resolve_sweep_sizes
    from isojax.rl.fused_rollouts import ProblemBatches
    from isojax.rl.metric import values
    from isojax.sampling.batch import ProblemArrays
    from isojax.tasks.epochs import EpochOrder
    from isojax.tasks.task import build_task
    from isojax.train import base_policy
    from isojax.train.programs import SweepPrograms

    config = load_config(arguments.config, arguments.overrides)
    sweep = resolve_sweep_sizes(config.sweep, 1, config.cell)
    pairs = sorted(
        {(cell.B_p, cell.n) for cell in plan_cells(sweep)}, key=lambda pair: pair[0] * pair[1]
    )
    timed = [pairs[0], pairs[-1]]
    if arguments.pairs:
        timed = [
            (int(B_p), int(n))
            for B_p, n in (pair.split("x") for pair in arguments.pairs.split(","))
        ]
        pairs = sorted({*pairs, *timed})
    mesh = make_mesh(parse_mesh("auto", 1), jax.devices())
    programs = SweepPrograms(config.cell, sweep, pairs, mesh, build_task(config.cell))
    if arguments.base:
        made = base_policy.load_base_policy(arguments.base, config.cell)
        params, problems = made.load_params(programs.decoder, mesh), made.training
    else:
        params = jax.device_put(
            programs.decoder.init(jax.random.key(0)), programs.decoder.shardings(mesh)
        )
        problems = programs.task.problems(2000, np.random.default_rng(0))
    table = jax.device_put(ProblemArrays(*programs.tokenize(problems).arrays), replicated(mesh))
    coefficients = programs.coefficients._replace(learning_rate=np.float32(0))

    def seconds(B_p: int, n: int) -> float:
        """Time a rollout, over at least `--rollouts` of them."""
        updates = max(1, arguments.rollouts // (B_p * n))
        order = EpochOrder(len(problems), B_p, 0)
        state = programs.init(params)
        jax.block_until_ready(state)
        start, done = time.perf_counter(), 0
        while done < updates:
            count = min(MAX_UPDATES_PER_CALL, updates - done)
            index = np.zeros((MAX_UPDATES_PER_CALL, programs.shapes.problem_rows), np.int32)
            for i in range(count):
                index[i, :B_p] = next(order)
            scalars = {"num_updates": count, "B_p": B_p, "n": n, "seed": 0}
            batches = ProblemBatches(
                table, index, **{name: np.int32(x) for name, x in scalars.items()}
            )
            state, result = programs.rollout_programs.update(state, params, batches, coefficients)
            _ = values(result.metrics)
            done += count
        return (time.perf_counter() - start) / (updates * B_p * n)

    measured: dict[tuple[int, int], list[float]] = {pair: [] for pair in timed}
    for repeat in range(arguments.repeats + 1):  # the first compiles
        for pair in timed:
            spent = seconds(*pair)
            if repeat:
                measured[pair].append(spent)
        print(f"repeat {repeat} of {arguments.repeats}", file=sys.stderr)
    medians = {pair: statistics.median(spent) for pair, spent in measured.items()}
    line = {
        "benchmark": "sweep_overhead",
        "config": arguments.config,
        "slots": sweep.decode_slots,
        "microbatch": sweep.microbatch,
        "microseconds_per_rollout": {
            f"{B_p}x{n}": round(1e6 * s, 2) for (B_p, n), s in medians.items()
        },
        "spread": {
            f"{B_p}x{n}": round((max(v) - min(v)) / medians[B_p, n], 3)
            for (B_p, n), v in measured.items()
        },
        "ratio": round(medians[timed[0]] / medians[timed[-1]], 3),
        "backend": jax.default_backend(),
        "jax": jax.__version__,
        "programs": programs.rollout_programs.update.jitted._cache_size(),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
