"""An update where the host verifies: sample, then text to the verifier, then advantages, gradient and AdamW. Two compiled programs.

The parts are those of rl/step.py, and B_p, n, the seed and the coefficients are traced here too: one pair of programs a sweep.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from isojax.config import CellConfig
from isojax.models.decoder import Decoder, Params
from isojax.rl.step import TRAIN, State, build_step, state_shardings, take
from isojax.rl.update import Coefficients
from isojax.sampling.batch import Geometry, Problems, Rollouts, place_rewards, responses
from isojax.sharding import ROWS
from isojax.tasks.base import HostTask, unfinished
from isojax.types import Problem

Metrics = dict[str, float]


def build_hosted_train(
    cell: CellConfig, decoder: Decoder, task: HostTask, geometry: Geometry, mesh: Mesh
) -> Callable[..., tuple[State, Metrics]]:
    """`train(state, base, table, problems, index, count, B_p, n, seed, coefficients) -> (state, sums of metrics over the updates)`.

    table: the training problems as arrays, and `problems` the same as text; index i32[U, problem_rows]: each update's problems, of which
    the first `count` updates are done. The state is donated. With count = 0 nothing changes, but everything is compiled.
    """
    sample, weigh, update = build_step(cell, decoder, task.stops, geometry, mesh)

    def draw(params: Params, step: Array, table: Problems, index: Array, B_p: Array, n: Array, seed: Array) -> Rollouts:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), TRAIN), step)
        return sample(params, take(table, index), B_p, n, key)

    def learn(
        state: State,
        base: Params,
        table: Problems,
        index: Array,
        rollouts: Rollouts,
        rewards: Array,
        count: Array,
        B_p: Array,
        n: Array,
        numbers: Coefficients,
    ) -> tuple[State, dict[str, Array]]:
        problems = take(table, index)
        gains, metrics = weigh(rollouts, rewards, B_p, n)

        def once(state: State) -> tuple[State, dict[str, Array]]:
            state, more = update(state, base, problems, rollouts, gains, B_p, n, numbers)
            return state, metrics | more

        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(once, state)[1])
        return lax.fori_loop(0, count, lambda _, carry: once(carry[0]), (state, zeros))

    rows, whole = NamedSharding(mesh, PartitionSpec(ROWS)), NamedSharding(mesh, PartitionSpec())
    drawn: Callable[..., Rollouts] = jax.jit(draw, out_shardings=rows)
    learnt: Callable[..., tuple[State, dict[str, Array]]] = jax.jit(
        learn, donate_argnums=0, out_shardings=(state_shardings(decoder, mesh), whole)
    )

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
    ) -> tuple[State, Metrics]:
        sums: Counter[str] = Counter()
        for i in range(max(1, count)):
            live = np.int32(count > 0)
            scalars = (live * np.int32(B_p), np.int32(n))
            rollouts = drawn(state.params, state.step, table, index[i], *scalars, np.int32(seed))
            rewards, graded = judge(task, geometry, [problems[q] for q in index[i, : live * B_p]], n, rollouts)
            state, metrics = learnt(state, base, table, index[i], rollouts, rewards, live, *scalars, numbers)
            sums.update({k: float(v) for k, v in metrics.items()} | graded)
        return state, dict(sums)

    return train


def judge(task: HostTask, geometry: Geometry, problems: Sequence[Problem], n: int, rollouts: Rollouts) -> tuple[np.ndarray, Metrics]:
    """The host verifier's rewards f32[S rows] of n rollouts for each problem, and what is to be told of its work."""
    texts = [task.decode(tokens) for tokens in responses(rollouts, len(problems) * n)]
    grades = task.grade([p for p in problems for _ in range(n)], texts)
    metrics = {"answered": float(np.mean(grades.answered)) if texts else 0.0, "verifier_failures": float(unfinished(grades.failures))}
    metrics |= {f"verifier_{kind}": float(count) for kind, count in grades.failures.items()}
    return place_rewards(geometry, grades.rewards), metrics
