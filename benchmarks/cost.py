"""How an update's cost grows: rollouts, and what follows them (gradient, AdamW), as one of its
sizes doubles and doubles again.

    python benchmarks/cost.py [--factors n,T,P,V,B_p,model] [--repeats 3]

A decoder of random weights; B_p x n rollouts of exactly T tokens (nothing ends them) to prompts of
P. One JSON line a factor: its values, for each the seconds of `rollouts` and of `update`, and their
exponents, the slope of log seconds in log value from the smallest to the largest: 1 is
proportional. Processor's time, repeats interleaved within a factor, medians.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isojax.core.config import (
    CellConfig,
    ModelConfig,
    PrecisionConfig,
    RLConfig,
    SamplingConfig,
    SweepConfig,
)
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.launch import planner
from isojax.models.transformer import Decoder
from isojax.rl.objective import make_coefficients
from isojax.rl.optimizer import build_init_state
from isojax.rl.train_step import TrainStep
from isojax.sampling.batch import ProblemArrays, RolloutBatch
from isojax.sampling.engine import build_sampler
from isojax.sampling.layout import Layout
from isojax.tasks.protocol import StopConditions


@dataclass(frozen=True)
class Sizes:
    """Of an update. model: layers, each 64 times as wide."""

    B_p: int = 8
    n: int = 8
    P: int = 32
    T: int = 32
    V: int = 2048
    model: int = 4


FACTORS = {
    "n": (4, 8, 16, 32),
    "B_p": (4, 8, 16, 32),
    "T": (16, 32, 64, 128),
    "P": (16, 64, 256),
    "V": (1024, 4096, 16384),
    "model": (2, 4, 8),
}


class Update:
    """One update of these sizes, in the two halves that are timed."""

    def __init__(self, sizes: Sizes):
        width = 64 * sizes.model
        shape = {
            "layers": sizes.model,
            "width": width,
            "heads": width // 32,
            "kv_heads": width // 64,
            "head_dim": 32,
            "mlp": 3 * width,
        }
        decoder = Decoder(ModelConfig(family="llama", **shape), sizes.V)
        sampling = SamplingConfig(prompt_length=sizes.P, response_length=sizes.T)
        cell = CellConfig(
            sampling=sampling,
            precision=PrecisionConfig(compute="float32", cache="float32"),
            rl=RLConfig(),
        )
        selected = planner.resolve_sweep_sizes(
            SweepConfig(B_p=(sizes.B_p,), n=(sizes.n,), decode_slots=32), 1, cell
        )
        assert selected.microbatch and selected.prefill_batch
        mesh = make_mesh(parse_mesh("auto", 1), jax.devices()[:1])
        pair = sizes.B_p, sizes.n
        shapes = SamplerShapes(
            [pair], 1, 32, selected.microbatch, sizes.P, sizes.T, selected.prefill_batch
        )
        step = TrainStep(cell, decoder, StopConditions((), None), shapes, mesh)
        sampler = build_sampler(decoder, shapes, mesh, sampling, StopConditions((), None))

        rows = shapes.problem_rows
        prompts = np.random.default_rng(0).integers(0, sizes.V, (rows, sizes.P)).astype(np.int32)
        problems = ProblemArrays(
            jnp.asarray(prompts),
            jnp.full(rows, sizes.P, jnp.int32),
            jnp.zeros((rows, 0), jnp.int32),
            jnp.arange(rows, dtype=jnp.int32),
        )
        coefficients = make_coefficients(cell.rl)
        scalars = tuple(jnp.int32(x) for x in pair)

        def sample(params: Any, key: Any) -> Any:
            return sampler(params, problems, *scalars, key)

        def learn(state: Any, rollouts: Any, key: Any) -> Any:
            live = Layout(*scalars, shapes.shards).holds_rollout(shapes.buffer_rows)
            # Any rewards do, but those of a group must differ: equal ones have no gradient.
            rewards = jnp.where(live, rollouts.tokens.sum(-1) % 7 / 7.0, 0.0)
            batch = RolloutBatch(problems, rollouts, rewards, *scalars, jax.random.key_data(key))
            signals, _ = step.compute_advantages(state, batch, coefficients)
            return step.update(state, {}, batch, signals, coefficients)[0]

        self.state = build_init_state(decoder, mesh)(decoder.init(jax.random.key(0)))
        self.sample, self.learn = jax.jit(sample), jax.jit(learn, donate_argnums=0)

    def seconds(self, number: int) -> tuple[float, float]:
        """Of the rollouts, and of what follows."""
        key = jax.random.key(number)
        start = time.process_time()
        rollouts = jax.block_until_ready(self.sample(self.state.params, key))
        between = time.process_time()
        self.state = jax.block_until_ready(self.learn(self.state, rollouts, key))
        return between - start, time.process_time() - between


def main() -> None:
    """Measure each factor and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--factors", default=",".join(FACTORS), help="sizes to change, with commas: %(default)s"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs that a median is taken of")
    parser.add_argument(
        "--values", type=int, help="only so many of each factor's values, from the smallest on"
    )
    args = parser.parse_args()
    for name in args.factors.split(","):
        print(json.dumps(measure_factor(name, FACTORS[name][: args.values], args.repeats)))


def measure_factor(name: str, values: Sequence[int], repeats: int) -> dict[str, Any]:
    """Seconds of both halves of an update at each value of one size, and their exponents."""
    updates = [Update(replace(Sizes(), **{name: value})) for value in values]
    seconds_of_value: list[list[tuple[float, float]]] = [[] for _ in values]
    for turn in range(repeats + 1):  # of which the first compiles
        for update, times in zip(updates, seconds_of_value, strict=True):
            times.append(update.seconds(turn))

    line: dict[str, Any] = {"factor": name, "values": values}
    for i, half in enumerate(("rollouts", "update")):
        medians = [statistics.median(t[i] for t in times[1:]) for times in seconds_of_value]
        line[half] = [round(seconds, 4) for seconds in medians]
        if len(values) > 1:
            exponent = math.log(medians[-1] / medians[0]) / math.log(values[-1] / values[0])
            line[f"{half}_exponent"] = round(exponent, 2)
    return line


if __name__ == "__main__":
    main()
