"""A run's sampler and update on random weights, and how long they take on the devices here.

Nothing ends a response, so that all have the full length; rewards are drawn at random.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from isojax.core.config import Config
from isojax.core.shapes import ASSUMED_TRAINING_PROBLEMS
from isojax.distributed.sharding import replicated
from isojax.launch.local.compile_for_topology import AbstractTask
from isojax.models.lora import policy_params
from isojax.rl.metric import values
from isojax.rl.rollout_source import RolloutBatch
from isojax.sampling.batch import ProblemArrays
from isojax.sampling.layout import Layout
from isojax.tasks.protocol import StopConditions
from isojax.train.programs import SweepPrograms

REPEATS = 3  # of a measurement, of which the median counts
EMBEDDING_SCALE = 0.04


@dataclass(frozen=True)
class MeasuredPrograms:
    """What a batch took."""

    compile_seconds: float
    sampling_seconds: float  # of B_p n rollouts
    update_seconds: float  # on these
    sampler_logp_gap: float  # the mean distance of sampler's and trainer's log-probabilities


class RandomRun:
    """A cell of a sweep on random weights: its programs, and what a batch goes through."""

    def __init__(self, config: Config, pair: tuple[int, int], mesh: Mesh):
        """Build the programs and draw weights, prompts and rewards; nothing is compiled yet.

        config: with model, precision and all sizes chosen, of a synchronous run. pair: (B_p, n).
        """
        self.B_p, self.n = pair
        cell = config.cell
        vocab = cell.model.vocab
        assert vocab is not None, "the caller has given the model one"
        task: Any = AbstractTask(vocab, stops=StopConditions((), None))
        self.programs = SweepPrograms(cell, config.sweep, [pair], mesh, task)
        self.rollout_programs: Any = self.programs.rollout_programs

        decoder = self.programs.decoder.base
        params = jax.jit(decoder.init, out_shardings=decoder.shardings(mesh))(jax.random.key(0))
        # As `init` draws them, a tied model all but repeats its last token, and log-probabilities
        # are 0.
        params = {**params, "embed": EMBEDDING_SCALE * params["embed"]}
        self.state = self.programs.init(params)
        self.base_params: Any = {}
        if self.programs.reads_base_params:
            self.base_params = self.programs.frozen_params(params)

        shapes = self.programs.shapes
        size = (shapes.problem_rows, cell.sampling.prompt_length)
        problems = ProblemArrays(
            np.random.default_rng(0).integers(0, vocab, size, np.int32),
            np.full(shapes.problem_rows, size[1], np.int32),
            np.zeros((shapes.problem_rows, 0), np.int32),
            np.arange(shapes.problem_rows, dtype=np.int32),
        )
        self.problems = jax.device_put(problems, replicated(mesh))
        rewards = np.random.default_rng(1).integers(0, 2, self.B_p * self.n)
        layout = Layout(self.B_p, self.n, shapes.shards)
        self.rewards = layout.to_buffer(rewards, shapes.buffer_rows)

    def compile(self) -> None:
        """Compile the sampler and the update."""
        self.rollout_programs.compile(self.programs.update_shapes(self.B_p))

    def main_programs(self) -> dict[str, tuple[Any, tuple[Any, ...]]]:
        """The jitted functions that take the most memory, by name, with their arguments' shapes."""
        shapes = self.programs.update_shapes(ASSUMED_TRAINING_PROBLEMS)
        main = self.rollout_programs.main_programs(shapes)
        return {name: (program.jitted, arguments) for name, (program, arguments) in main.items()}

    def sample(self) -> Any:
        """Sample the batch's rollouts, and wait for them."""
        params = policy_params(self.state.params, self.base_params)
        stream = self.rollout_programs.graded_sampler.engine.stream
        rollouts = stream.run(
            params, self.problems, self.B_p, self.n, jax.random.key(1), lambda *_: None
        )
        return jax.block_until_ready(rollouts)

    def update(self, rollouts: Any) -> dict[str, float]:
        """Train on rollouts, and wait for it; return the update's metrics."""
        batch = RolloutBatch(
            self.problems,
            rollouts,
            self.rewards,
            np.int32(self.B_p),
            np.int32(self.n),
            jax.random.key_data(jax.random.key(2)),
        )
        coefficients = self.programs.coefficients
        result = self.rollout_programs.update(self.state, self.base_params, batch, coefficients)
        self.state, update = jax.block_until_ready(result)
        return dict(values(update.metrics))

    def measure(self) -> MeasuredPrograms:
        """Compile both programs and time them."""
        started_at = time.perf_counter()
        self.compile()
        compile_seconds = time.perf_counter() - started_at

        rollouts = self.sample()
        sampling_seconds = median_seconds(self.sample)
        # Of the first update alone: by the policy that sampled.
        first_metrics = self.update(rollouts)
        update_seconds = median_seconds(lambda: self.update(rollouts))
        gap = first_metrics["sampler_logp_gap"]
        return MeasuredPrograms(compile_seconds, sampling_seconds, update_seconds, gap)


def median_seconds(call: Callable[[], object]) -> float:
    """The median time of REPEATS calls; whoever calls this has called it once already."""
    seconds = []
    for _ in range(REPEATS):
        started_at = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started_at)
    return statistics.median(seconds)
