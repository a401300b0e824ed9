"""The sampler and the whole GRPO step compiled ahead of time for a TPU, on a machine that has none.

`python tests/distributed/test_tpu.py TOPOLOGY MESH DTYPE CONFIG [KEY=VALUE ...]` compiles them for
the chips you have and prints what they take, for example `python tests/distributed/test_tpu.py
v6e:2x4 data=4,tensor=2 bfloat16 quickstart sweep.n=[8]` (DTYPE: what the sampler computes in). The
tests run it in a process of its own, because libtpu stays with the process that loaded it.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.libtpu import needs_libtpu

pytestmark = [pytest.mark.slow, pytest.mark.seconds(60)]

REPOSITORY = Path(__file__).resolve().parents[2]
MEMORY = 16 * 10**9  # of one v5e chip
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
SUBCOMPUTATION = re.compile(
    r"(?:body|condition|calls|to_apply|\w+_computation)=%?([\w.-]+)|branch_computations=\{([^}]*)\}"
)

# Dimensions that fill a TPU's tiles of 8 x 128, so that bytes can be compared, and more slots than
# the smallest cell has rollouts, so that the cache is larger than anything else in the decode loop.
WIDE = (
    *(
        "cell.model.layers=2",
        "cell.model.width=256",
        "cell.model.heads=16",
        "cell.model.kv_heads=16",
        "cell.model.head_dim=128",
    ),
    *("cell.model.mlp=512", "sweep.decode_slots=32", "sweep.microbatch=32"),
)


def tpu_mesh(topology: str, mesh: str) -> Any:
    """A mesh of the chips of a TPU topology, such as "v5e:2x2", for lowering against; libtpu must
    be installed, a TPU need not be.
    """
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # there is no metadata server to ask
    # no chip is opened, so another process may do the same
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    from jax.experimental.topologies import get_topology_desc

    from isojax.distributed.mesh_spec import parse_mesh
    from isojax.distributed.sharding import make_mesh

    devices = get_topology_desc(platform="tpu", topology_name=topology).devices
    return make_mesh(parse_mesh(mesh, len(devices)), devices)


def compile_ahead(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """A jitted function compiled for arguments that are ShapeDtypeStructs with shardings: bytes a
    device, and its collectives.

    A collective is [kind, elements of its largest result, how many while loops it is in].
    """
    compiled = function.lower(*arguments).compile()
    memory = compiled.memory_analysis()
    return {
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "peak": memory.peak_memory_in_bytes,
        "collectives": collectives(compiled.as_text()),
    }


def collectives(text: str) -> list[tuple[str, int, int]]:
    """The collectives of an HLO module; see `compile_ahead`."""
    computations: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$", line):
            lines = computations.setdefault(head[1], [])
        elif line.startswith("  "):
            lines.append(line)
    loops = dict.fromkeys(computations, 0)
    for _ in range(8):  # deeper than any nesting here
        for name, lines in computations.items():
            for line in lines:
                called = (
                    ",".join(a or b for a, b in SUBCOMPUTATION.findall(line))
                    .replace("%", "")
                    .replace(" ", "")
                )
                for inner in called.split(",") if called else ():
                    loops[inner] = max(loops[inner], loops[name] + (" while(" in line))
    result = []
    for name, lines in computations.items():
        for line in lines:
            for kind in COLLECTIVES:
                if re.search(rf" {kind}(-start)?\(", line):
                    shapes = re.findall(r"\w+\[([\d,]*)\]", line.partition(f" {kind}")[0])
                    result.append(
                        (
                            kind,
                            max(math.prod(map(int, filter(None, s.split(",")))) for s in shapes),
                            loops[name],
                        )
                    )
    return sorted(result)


def programs(topology: str, mesh_text: str, config: Any, dtype: str) -> dict[str, Any]:
    """The sampler and the fused GRPO update of a config's sweep, compiled for a topology."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from isojax.core.shapes import MAX_UPDATES_PER_CALL, SamplerShapes, bucket_widths
    from isojax.distributed.sharding import replicated, shard_count
    from isojax.launch.planner import plan_cells, resolve_sweep_sizes
    from isojax.models.transformer import Decoder
    from isojax.rl.fused_rollouts import ProblemBatches, build_fused_update
    from isojax.rl.objective import make_coefficients
    from isojax.rl.optimizer import ADAM, TrainState, train_state_shardings
    from isojax.sampling.batch import ProblemArrays
    from isojax.sampling.engine import build_sampler
    from isojax.tasks.task import build_task

    mesh = tpu_mesh(topology, mesh_text)
    task = build_task(config.cell)
    decoder = Decoder(config.cell.model, task.vocab)
    sweep = resolve_sweep_sizes(config.sweep, shard_count(mesh), config.cell)
    sampling = config.cell.sampling
    pairs = sorted({(cell.B_p, cell.n) for cell in plan_cells(sweep)})
    sampler_shapes = SamplerShapes(
        pairs,
        shard_count(mesh),
        sweep.decode_slots,
        sweep.microbatch,
        sampling.prompt_length,
        sampling.response_length,
        sweep.prefill_batch,
    )

    def laid(shapes: Any, shardings: Any) -> Any:
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings
        )

    def whole(*shape: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated(mesh))

    def problems(rows: int) -> ProblemArrays:
        return ProblemArrays(
            whole(rows, sampling.prompt_length),
            whole(rows),
            whole(rows, sampling.response_length),
            whole(rows),
        )

    params = laid(decoder.shapes(), decoder.shardings(mesh))
    cast = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(dtype), sharding=x.sharding), params
    )
    key = jax.ShapeDtypeStruct(
        (), jax.eval_shape(lambda: jax.random.key(0)).dtype, sharding=replicated(mesh)
    )
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    sampler = jax.jit(
        build_sampler(decoder, sampler_shapes, mesh, sampling, task.stops), out_shardings=rows
    )
    state = TrainState(
        decoder.shapes(),
        jax.eval_shape(ADAM.init, decoder.shapes()),
        jax.ShapeDtypeStruct((), jnp.int32),
    )
    state = laid(state, train_state_shardings(decoder, mesh))
    train = build_fused_update(config.cell, decoder, task, sampler_shapes, mesh)
    coefficients = jax.tree.map(lambda x: whole(dtype=x.dtype), make_coefficients(config.cell.rl))
    index = whole(MAX_UPDATES_PER_CALL, sampler_shapes.problem_rows)
    batches = ProblemBatches(
        problems(1000), index, num_updates=whole(), B_p=whole(), n=whole(), seed=whole()
    )

    def device_bytes(tree: Any) -> int:
        return sum(
            math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
            for x in jax.tree.leaves(tree)
        )

    positions = sampling.prompt_length + sampling.response_length
    heads = config.cell.model.kv_heads // mesh.shape["tensor"]
    prompt_tokens = sampler_shapes.prefill_batch * sampling.prompt_length
    response_tokens = (
        sampler_shapes.microbatch * (width - 1) for width in bucket_widths(sampling.response_length)
    )
    return {
        "sampler": compile_ahead(
            sampler, cast, problems(sampler_shapes.problem_rows), whole(), whole(), key
        ),
        "step": compile_ahead(train, state, params, batches, coefficients),
        "table": {
            "sampler": device_bytes(cast),
            "parameters": device_bytes(params),
            "state": device_bytes(state),
        },  # bytes a device
        "unsharded": sum(math.prod(x.shape) * 4 for x in jax.tree.leaves(params)),
        # elements a device
        "layer_cache": sampler_shapes.slots * heads * positions * config.cell.model.head_dim,
        "logits": sampler_shapes.slots * task.vocab,
        "hidden": [
            tokens * config.cell.model.width for tokens in (prompt_tokens, *response_tokens)
        ],
    }


def output_of(script: str, *words: str) -> str:
    """What a script prints, in a process of its own."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, script, *words]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
@needs_libtpu
def test_an_update_moves_no_gradient_and_no_rows() -> None:
    """Where branches chose a microbatch's width, XLA copied the sum of gradients of all layers in
    each layer; and rows that ended inside a tile were moved wherever they became one matrix, by
    unrolled code."""
    lines = output_of(str(Path(__file__).with_name("check_update_for_tpu.py"))).splitlines()
    # of four layers, on one of four chips
    gradient_of_mlp = re.compile(r"= f32\[4,(256,1024|1024,256)\]\S* ")
    assert sum(bool(gradient_of_mlp.search(line)) for line in lines) > 4
    assert not [
        line for line in lines if gradient_of_mlp.search(line) and re.search(r"\} copy\(", line)
    ]
    rows = re.compile(r"= bf16\[(2,\d+|(?!1,)\d+),512\]\S* reshape\(")
    assert not [line for line in lines if rows.search(line) and "closed_call" in line]


@needs_libtpu
def test_the_keys_that_responses_continue_are_taken_of_each_chips_heads() -> None:
    """Where XLA split the responses too, over the chips that share a head, libtpu failed an
    assertion and aborted."""
    hlo = output_of(str(Path(__file__).with_name("check_rows_for_tpu.py")))
    assert "-> (f32[], f32[16,1,64,128])" in hlo  # the sum, and the gradient of a chip's head


@pytest.mark.nightly
@needs_libtpu
def test_the_sampler_and_the_step_compile_for_a_tpu() -> None:
    """For the four chips of a v5e:2x2, sampler in bfloat16, the step with its float32 masters."""
    result = json.loads(
        output_of(__file__, "v5e:2x2", "data=2,tensor=2", "bfloat16", "quickstart", *WIDE)
    )
    sampler, step, table = result["sampler"], result["step"], result["table"]
    assert sampler["peak"] < MEMORY and step["peak"] < MEMORY

    # Arguments are what the sharding table says, give or take the tiles of norms, embeddings and
    # problems.
    assert (
        table["state"] == 3 * table["parameters"] + 12
        and table["parameters"] == 2 * table["sampler"]
    )
    # tensor=2 halves all but the norms
    assert 0.5 <= table["parameters"] / result["unsharded"] < 0.51
    assert 1 <= sampler["arguments"] / table["sampler"] < 1.02
    assert 1 <= step["arguments"] / (table["state"] + table["parameters"]) < 1.02
    assert step["outputs"] < 100_000  # the state is updated in place

    # What crosses chips while a token is decoded: partial sums, and the logits of the draw. Never
    # the cache, never a weight. In the update also hidden states of tokens.
    for part, hidden in ((sampler, ()), (step, result["hidden"])):
        moved = [
            (kind, size)
            for kind, size, loops in part["collectives"]
            if kind != "all-reduce" and loops > 0
        ]
        assert all(
            kind == "all-gather" and (size <= result["logits"] or size in hidden)
            for kind, size in moved
        ), moved
    decoding = [size for _, size, loops in sampler["collectives"] if loops >= 2]
    assert decoding and max(decoding) < result["layer_cache"], (decoding, result["layer_cache"])


def main() -> None:
    """Print what the programs of a config take; see the module."""
    from isojax.core.config import load_config

    topology, mesh, dtype, config, *overrides = sys.argv[1:]
    print(json.dumps(programs(topology, mesh, load_config(config, overrides), dtype)))


if __name__ == "__main__":
    main()
