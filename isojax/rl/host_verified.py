"""An update where the host verifies: what has been sampled goes to the verifier as text while the rest is sampled
(sampling/stream.py); then advantages, gradient and AdamW.

The parts are those of rl/train_step.py, and B_p, n, the seed and the coefficients are traced here too: one set of
programs a sweep.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray

from isojax.core.config import CellConfig
from isojax.core.nouns import Problem
from isojax.distributed.sharding import compiler_options, replicated
from isojax.models.transformer import Decoder, Params
from isojax.rl.objective import Coefficients
from isojax.rl.train_step import CORRECT, TRAIN_STREAM, TrainState, TrainStep, gather_problems, train_state_shardings
from isojax.sampling.batch import ProblemArrays, Rollouts, SamplerShapes, rewards_to_buffer
from isojax.sampling.stream import build_stream
from isojax.tasks.grading.background_grading import BackgroundGrader
from isojax.tasks.protocol import Grades, HostTask, Task, count_unfinished

Metrics = dict[str, float]


def build_host_verified_train(
    cell: CellConfig, decoder: Decoder, task: HostTask, shapes: SamplerShapes, mesh: Mesh
) -> Callable[..., tuple[TrainState, dict[str, Any]]]:
    """`train(state, base, table, problems, index, count, B_p, n, seed, coefficients) -> (state, sums of metrics over
    the updates)`.

    table: the training problems as arrays, and `problems` the same as text; index i32[U, problem_rows]: each update's
    problems, of which the first `count` updates are done. The state is donated. With count = 0 nothing changes, but
    everything is compiled. With
    `cell.rl.no_positive_resampling` the metrics hold `RIGHT`.
    """
    stream = build_stream(decoder, shapes, mesh, cell.sampling, task.stops)
    apply_update = build_update(cell, decoder, task, shapes, mesh)

    def select_problems(
        step: Array, problem_table: ProblemArrays, problem_index: Array, seed: Array
    ) -> tuple[ProblemArrays, PRNGKeyArray]:
        return gather_problems(problem_table, problem_index), jax.random.fold_in(
            jax.random.fold_in(jax.random.key(seed), TRAIN_STREAM), step
        )

    select_problems_jit: Callable[..., tuple[ProblemArrays, PRNGKeyArray]] = jax.jit(
        select_problems, out_shardings=replicated(mesh)
    )

    def train(
        state: TrainState,
        base_params: Params,
        problem_table: ProblemArrays,
        problems: Sequence[Problem],
        problem_index: np.ndarray,
        num_updates: int,
        B_p: int,
        n: int,
        seed: int,
        coefficients: Coefficients,
    ) -> tuple[TrainState, dict[str, Any]]:
        sums: Counter[str] = Counter()
        reward_sums = np.zeros(len(problems), np.float32)
        for i in range(max(1, num_updates)):
            Q = B_p if num_updates else 0
            batch, key = select_problems_jit(state.step, problem_table, problem_index[i], np.int32(seed))
            with BackgroundGrader(task, [problems[q] for q in problem_index[i, :Q] for _ in range(n)]) as grading:
                rollouts = stream.run(state.params, batch, Q, n, key, grading.add_responses)
                grades = grading.collect_grades()
            rewards = rewards_to_buffer(shapes, grades.rewards)
            state, metrics = apply_update(
                state,
                base_params,
                batch,
                rollouts,
                rewards,
                np.int32(Q),
                np.int32(n),
                jax.random.key_data(key),
                coefficients,
            )
            sums.update({k: float(v) for k, v in metrics.items()} | verifier_metrics(grades))
            np.add.at(reward_sums, np.repeat(problem_index[i, :Q], n), grades.rewards)
        return state, dict(sums) if cell.rl.no_positive_resampling is None else {**sums, CORRECT: reward_sums}

    return train


def build_update(
    cell: CellConfig, decoder: Decoder, task: Task, shapes: SamplerShapes, mesh: Mesh
) -> Callable[..., tuple[TrainState, Any]]:
    """The jitted `learn(state, base, problems, rollouts, rewards f32[S rows], B_p, n, key data, coefficients) ->
    (state, metrics)`.

    The state is donated. With B_p = 0 it stays as it is, and the metrics are zeros.
    """
    train_step = TrainStep(cell, decoder, task.stops, shapes, mesh)

    def apply_update(
        state: TrainState,
        base_params: Params,
        problems: ProblemArrays,
        rollouts: Rollouts,
        rewards: Array,
        B_p: Array,
        n: Array,
        key: Array,
        coefficients: Coefficients,
    ) -> tuple[TrainState, dict[str, Array]]:
        @partial(jax.jit, inline=True)  # traced for its metrics' shapes, and no second time for the loop
        def one_update(state: TrainState) -> tuple[TrainState, dict[str, Array]]:
            signals, metrics = train_step.compute_advantages(
                state, problems, rollouts, rewards, B_p, n, jax.random.wrap_key_data(key), coefficients
            )
            state, update_metrics = train_step.update(
                state, base_params, problems, rollouts, signals, B_p, n, coefficients
            )
            return state, metrics | update_metrics

        zero_metrics = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(one_update, state)[1])
        return lax.fori_loop(
            0, (B_p > 0).astype(jnp.int32), lambda _, carry: one_update(carry[0]), (state, zero_metrics)
        )

    out_shardings = train_state_shardings(decoder, mesh, cell.rl.critic is not None)
    return jax.jit(
        apply_update,
        donate_argnums=0,
        out_shardings=(out_shardings, replicated(mesh)),
        compiler_options=compiler_options(mesh),
    )


def verifier_metrics(grades: Grades) -> Metrics:
    """What is to be told of the verifier's work on one batch."""
    parsed_fraction = float(np.mean(grades.parsed)) if len(grades.parsed) else 0.0
    metrics = {"parsed_fraction": parsed_fraction, "verifier_failures": float(count_unfinished(grades.failures))}
    return metrics | {f"verifier_{kind}": float(count) for kind, count in grades.failures.items()}
