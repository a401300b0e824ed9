"""What one saved state leads to on a mesh, so that meshes can be compared: greedy tokens, a
gradient, five updates, bytes a device.

`python tests/distributed/agreement_of_meshes.py --make --state STATE.npz` saves, on one device, a
state in mid-training and the rollouts of five batches; `python
tests/distributed/agreement_of_meshes.py --mesh data=4,tensor=2 --state STATE.npz --out FILE.npz`
goes on from it on any mesh. With --coordinator, --processes and --process, as isojax's own, the
mesh is one of several processes: nothing here reads an array that only other processes hold, all of
them call it alike, and each writes its own file.

In FILE.npz, besides a `loss` and arrays by parameter (`gradient...`, `params...`):

    tokens, tokens_small    greedy responses to 13 x 7 rollouts, and to 3 x 2, which leave a
                            shard of four empty
    loss, loss_small        of the first batch of each size; also `gradient...`,
                            `gradient_small...`
    bytes_params, bytes_moments, bytes_kv    of this process's devices, i64[devices]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# alone, it finds the package and sets the compiler up as pytest's conftest does
if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.compiler import QUICK, flags

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", flags(QUICK))

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from isojax.core.config import CellConfig, RLConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import ROLLOUT_AXES, replicated, shard_count
from isojax.launch.local.join_processes import join_processes
from isojax.launch.process_group import parse_process_group
from isojax.models.transformer import ComputeOptions
from isojax.rl.objective import make_coefficients
from isojax.rl.optimizer import ADAM, TrainState, train_state_shardings
from isojax.rl.train_step import build_update
from isojax.sampling.batch import ProblemArrays, RolloutBatch, Rollouts
from isojax.sampling.engine import build_sampler
from isojax.sampling.stream import build_stream
from tests.compiler import keep_programs_of_each_process
from tests.device import CONFIG, DECODER, Parity, mesh, policy, quick_jit, random_problems, scatter
from tests.device import P as PROMPT

RESPONSE, SLOTS, UPDATES = 32, 4, 5  # a response of 32 may be computed 16 or 32 wide
CELLS = {"": (13, 7), "_small": (3, 2)}
RL = RLConfig(
    kl=0.1, entropy=0.01, learning_rate=1e-2, lr_scaling="constant", warmup=1, max_grad_norm=1e9
)
Arrays = dict[str, np.ndarray]


def cell_of(update: int) -> str:
    """Every fifth update is of the small batch."""
    return "_small" if update % 5 == 4 else ""


class Programs:
    """What is compiled for a mesh. Inputs and outputs are whole on every process."""

    def __init__(self, on: Mesh):
        self.on = on
        self.sampler_shapes = SamplerShapes(
            list(CELLS.values()), shard_count(on), SLOTS, 8, PROMPT, RESPONSE
        )
        self.rows = NamedSharding(on, P(ROLLOUT_AXES))
        self.problems = ProblemArrays(
            *(
                np.resize(x, (self.sampler_shapes.problem_rows, *x.shape[1:]))
                for x in random_problems(13, seed=4)
            )
        )
        # On one kind of mesh layers are computed again; on both, tensor splits what they keep
        # (`split_tokens`).
        remat = "layer" if on.shape["sequence"] > 1 else "none"
        decoder = DECODER.with_options(ComputeOptions(remat=remat))
        self.learned = build_update(self.cell(1.0), decoder, Parity(), self.sampler_shapes, on)
        self.whole: Callable[[Any], Any] = quick_jit(lambda x: x, out_shardings=replicated(on))

    def cell(self, temperature: float) -> CellConfig:
        sampling = SamplingConfig(
            prompt_length=PROMPT, response_length=RESPONSE, temperature=temperature
        )
        return CellConfig(model=CONFIG, sampling=sampling, rl=RL)

    def place(self, tree: Any) -> TrainState:
        """A state where the table wants it."""
        return jax.tree.map(jax.device_put, tree, train_state_shardings(DECODER, self.on))

    def sampler(self, temperature: float) -> Callable[..., Arrays]:
        """`sample(params, B_p, n, key)`: the fields of Rollouts, by rollout."""
        sample = build_sampler(
            DECODER, self.sampler_shapes, self.on, self.cell(temperature).sampling, Parity.stops
        )
        compiled = quick_jit(sample, out_shardings=replicated(self.on))

        def call(params: Any, B_p: int, n: int, key: int) -> Arrays:
            result = compiled(
                params, self.problems, np.int32(B_p), np.int32(n), jax.random.key(key)
            )
            block = -(-B_p * n // self.sampler_shapes.shards)
            at = np.divmod(np.arange(B_p * n), block)
            return {
                name: np.asarray(x)[at] for name, x in zip(Rollouts._fields, result, strict=True)
            }

        return call

    def learn(
        self, state: TrainState, base: Any, rollouts: Arrays, cell: str
    ) -> tuple[TrainState, float]:
        """An update on recorded rollouts: the state, which is donated, and the loss."""
        B_p, n = CELLS[cell]
        tokens = rollouts["tokens"]
        rewards = Parity().verify(None, tokens, rollouts["mask"])
        rows = [
            jax.device_put(scatter(self.sampler_shapes, rollouts[name]), self.rows)
            for name in Rollouts._fields
        ]
        batch = RolloutBatch(
            self.problems,
            Rollouts(*rows),
            rewards=jax.device_put(scatter(self.sampler_shapes, rewards), self.rows),
            B_p=np.int32(B_p),
            n=np.int32(n),
            key_data=np.asarray(jax.random.key_data(jax.random.key(0))),
        )
        state, result = self.learned(state, base, batch, make_coefficients(RL))
        return state, float(result.metrics["loss"].sum)

    def kv_bytes(self, params: Any) -> np.ndarray:
        """Of the sampler's caches and table between two chunks."""
        stream = build_stream(
            DECODER, self.sampler_shapes, self.on, self.cell(1.0).sampling, Parity.stops
        )
        _, state = stream.begin(params, self.problems, np.int32(13), np.int32(7), jax.random.key(0))
        return device_bytes((state.cache, state.prefix_table))


def device_bytes(tree: Any) -> np.ndarray:
    """Bytes on each of this process's devices, i64[devices]."""
    total: dict[int, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            total[shard.device.id] = total.get(shard.device.id, 0) + shard.data.nbytes
    return np.array([total[i] for i in sorted(total)])


def named(prefix: str, tree: Any) -> Arrays:
    """The leaves of a tree of whole arrays by their paths."""
    return {
        prefix + jax.tree_util.keystr(path): np.asarray(x)
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


def fresh(params: Any) -> TrainState:
    """No update done yet; on the host."""
    moments = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(ADAM.init, params))
    return TrainState(params, moments, np.int32(0))


def make(path: Path) -> None:
    """A state after three updates, and rollouts of its base policy, at temperature 1."""
    programs = Programs(mesh())
    state = programs.place(fresh(policy()))
    base = programs.place(fresh(policy(1))).params
    sample = programs.sampler(1.0)
    saved: Arrays = {}
    for i in range(UPDATES):
        rollouts = sample(state.params, *CELLS[cell_of(i)], i)
        saved |= {f"rollouts{i}.{name}": x for name, x in rollouts.items()}
    for _ in range(3):
        state, _ = programs.learn(state, base, sample(state.params, *CELLS[""], 99), "")
    np.savez(path, **saved, **named("state", jax.device_get(state)))  # pyright: ignore[reportArgumentType]


def compare(on: Mesh, path: Path) -> Arrays:
    """What the module says of the state in `path`, on a mesh."""
    with np.load(path) as file:
        saved = dict(file)
    recorded = [
        {name: saved[f"rollouts{i}.{name}"] for name in Rollouts._fields} for i in range(UPDATES)
    ]
    like = fresh(policy())
    start = jax.tree_util.tree_map_with_path(
        lambda at, _: saved["state" + jax.tree_util.keystr(at)], like
    )
    programs = Programs(on)
    state, base = programs.place(start), programs.place(fresh(policy(1))).params
    result: Arrays = {
        "bytes_params": device_bytes(state.params),
        "bytes_moments": device_bytes(state.moments),
    }
    result["bytes_kv"] = programs.kv_bytes(state.params)
    greedy = programs.sampler(1e-4)
    for cell, pair in CELLS.items():
        result["tokens" + cell] = greedy(state.params, *pair, 0)["tokens"]
        first = next(i for i in range(UPDATES) if cell_of(i) == cell)
        after, loss = programs.learn(
            programs.place(fresh(start.params)), base, recorded[first], cell
        )
        result["loss" + cell] = np.array(loss)
        # Adam's first moment after one step is (1 - b1) times the gradient, which is not clipped
        # here.
        result |= {
            k: v / np.float32(0.1)
            for k, v in named("gradient" + cell, programs.whole(after.moments.mu)).items()
        }
    for i, rollouts in enumerate(recorded):
        state, _ = programs.learn(state, base, rollouts, cell_of(i))
    return result | named("params", programs.whole(state.params))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", default="auto")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--make", action="store_true")
    for option, kind in (("--coordinator", str), ("--processes", str), ("--process", int)):
        parser.add_argument(option, type=kind)
    inputs = parser.parse_args()
    keep_programs_of_each_process()
    with join_processes(parse_process_group(inputs.coordinator, inputs.processes, inputs.process)):
        if inputs.make:
            make(inputs.state)
        if inputs.out:
            np.savez(inputs.out, **compare(mesh(inputs.mesh), inputs.state))  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
