"""An update where the host verifies: what has been sampled goes to the verifier as text while the rest is sampled
(sampling/stream.py); then advantages, gradient and AdamW.

The parts are those of rl/step.py, and B_p, n, the seed and the coefficients are traced here too: one set of programs a sweep.
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

from isojax.config import CellConfig
from isojax.models.decoder import Decoder, Params
from isojax.rl.objective import Coefficients
from isojax.rl.step import RIGHT, TRAIN, State, Step, state_shardings, take
from isojax.sampling.batch import Geometry, Problems, Rollouts, place_rewards
from isojax.sampling.stream import build_stream
from isojax.sharding import compiler_options, replicated
from isojax.tasks.base import Grades, HostTask, Task, unfinished
from isojax.tasks.grading import Grading
from isojax.types import Problem

Metrics = dict[str, float]


def build_hosted_train(
    cell: CellConfig, decoder: Decoder, task: HostTask, geometry: Geometry, mesh: Mesh
) -> Callable[..., tuple[State, dict[str, Any]]]:
    """`train(state, base, table, problems, index, count, B_p, n, seed, coefficients) -> (state, sums of metrics over the updates)`.

    table: the training problems as arrays, and `problems` the same as text; index i32[U, problem_rows]: each update's problems, of which
    the first `count` updates are done. The state is donated. With count = 0 nothing changes, but everything is compiled. With
    `cell.rl.no_positive_resampling` the metrics hold `RIGHT`.
    """
    stream = build_stream(decoder, geometry, mesh, cell.sampling, task.stops)
    learn = build_learn(cell, decoder, task, geometry, mesh)

    def choose(step: Array, table: Problems, index: Array, seed: Array) -> tuple[Problems, PRNGKeyArray]:
        return take(table, index), jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), TRAIN), step)

    chosen: Callable[..., tuple[Problems, PRNGKeyArray]] = jax.jit(choose, out_shardings=replicated(mesh))

    def train(
        state: State,
        base: Params,
        table: Problems,
        problems: Sequence[Problem],
        index: np.ndarray,
        count: int,
        B_p: int,
        n: int,
        seed: int,
        numbers: Coefficients,
    ) -> tuple[State, dict[str, Any]]:
        sums: Counter[str] = Counter()
        right = np.zeros(len(problems), np.float32)
        for i in range(max(1, count)):
            Q = B_p if count else 0
            batch, key = chosen(state.step, table, index[i], np.int32(seed))
            with Grading(task, [problems[q] for q in index[i, :Q] for _ in range(n)]) as grading:
                rollouts = stream.run(state.params, batch, Q, n, key, grading.add)
                grades = grading.grades()
            rewards = place_rewards(geometry, grades.rewards)
            state, metrics = learn(state, base, batch, rollouts, rewards, np.int32(Q), np.int32(n), jax.random.key_data(key), numbers)
            sums.update({k: float(v) for k, v in metrics.items()} | told(grades))
            np.add.at(right, np.repeat(index[i, :Q], n), grades.rewards)
        return state, dict(sums) if cell.rl.no_positive_resampling is None else {**sums, RIGHT: right}

    return train


def build_learn(cell: CellConfig, decoder: Decoder, task: Task, geometry: Geometry, mesh: Mesh) -> Callable[..., tuple[State, Any]]:
    """The jitted `learn(state, base, problems, rollouts, rewards f32[S rows], B_p, n, key data, coefficients) -> (state, metrics)`.

    The state is donated. With B_p = 0 it stays as it is, and the metrics are zeros.
    """
    step = Step(cell, decoder, task.stops, geometry, mesh)

    def learn(
        state: State,
        base: Params,
        problems: Problems,
        rollouts: Rollouts,
        rewards: Array,
        B_p: Array,
        n: Array,
        key: Array,
        numbers: Coefficients,
    ) -> tuple[State, dict[str, Array]]:
        @partial(jax.jit, inline=True)  # traced for its metrics' shapes, and no second time for the loop
        def once(state: State) -> tuple[State, dict[str, Array]]:
            weighed, metrics = step.weigh(state, problems, rollouts, rewards, B_p, n, jax.random.wrap_key_data(key), numbers)
            state, more = step.update(state, base, problems, rollouts, weighed, B_p, n, numbers)
            return state, metrics | more

        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(once, state)[1])
        return lax.fori_loop(0, (B_p > 0).astype(jnp.int32), lambda _, carry: once(carry[0]), (state, zeros))

    out = state_shardings(decoder, mesh, cell.rl.critic is not None)
    return jax.jit(learn, donate_argnums=0, out_shardings=(out, replicated(mesh)), compiler_options=compiler_options(mesh))


def told(grades: Grades) -> Metrics:
    """What is to be told of the verifier's work on one batch."""
    answered = float(np.mean(grades.answered)) if len(grades.answered) else 0.0
    metrics = {"answered": answered, "verifier_failures": float(unfinished(grades.failures))}
    return metrics | {f"verifier_{kind}": float(count) for kind, count in grades.failures.items()}
