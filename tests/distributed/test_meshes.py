"""One saved state on many meshes: the same tokens, gradients and parameters, and bytes a device as
the sharding table says; and what the gradient gathers where fsdp splits the model."""

from __future__ import annotations

import math
import os
import re
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from isojax.core.config import RLConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import map_over_shards, shard_count
from isojax.models.transformer import ComputeOptions, Decoder
from isojax.rl.critic import (
    CriticInputs,
    build_critic,
    critic_param_shapes,
    critic_param_shardings,
    critic_params,
)
from isojax.rl.gradient import ResponseBatch, build_gradient
from isojax.rl.objective import (
    LossWeights,
    PolicyInputs,
    PolicyObjective,
    UpdateInputs,
    make_coefficients,
)
from isojax.sampling.batch import ProblemArrays
from isojax.sampling.engine import build_sampler
from tests.compiler import QUICK, flags
from tests.device import (
    CONFIG,
    DECODER,
    VOCAB,
    P,
    Parity,
    T,
    mesh,
    placed,
    policy,
    quick_jit,
    random_problems,
    scatter,
)
from tests.distributed import agreement_of_meshes as agreement
from tests.hlo import collectives

pytestmark = [pytest.mark.slow, pytest.mark.seconds(60)]

L = CONFIG.layers
D = CONFIG.width
N = CONFIG.heads
K = CONFIG.kv_heads
H = CONFIG.head_dim
F = CONFIG.mlp


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("meshes") / "state.npz"
    agreement.make(path)
    return path


@pytest.fixture(scope="module")
def one(saved: Path) -> agreement.Arrays:
    """On one device."""
    return agreement.compare(mesh(), saved)


def relative_distance(found: agreement.Arrays, expected: agreement.Arrays, prefix: str) -> float:
    """The largest relative L2 distance of a parameter's arrays."""
    names = [name for name in expected if name.startswith(prefix)]
    assert len(names) == len(jax.tree.leaves(DECODER.shapes()))
    return max(
        float(np.linalg.norm(found[k] - expected[k]) / np.linalg.norm(expected[k])) for k in names
    )


def bytes_by_hand(axes: str) -> dict[str, int]:
    """On each device: float32 parameters, all split over fsdp, which divides D, and all but norms
    over tensor, which divides every count here; two moments of each and a count; and of each shard
    the caches of R slots and a table of G prompts, their heads over tensor. Over sequence, prompts
    are separate from responses, and their P positions are padded until it divides them."""
    shape = mesh(axes).shape
    matrices = 2 * VOCAB * D + L * (D * H * (2 * N + 2 * K) + 3 * D * F)
    norms = (2 * L + 1) * D
    params = matrices // (shape["fsdp"] * shape["tensor"]) + norms // shape["fsdp"]
    of_a_shard = {1: 13, 2: 8, 4: 5, 8: 3}[shard_count(mesh(axes))]
    # what the slots, and a shard, may want at once
    prompts = min(agreement.SLOTS // 2 + 2, of_a_shard)
    G = 4 * -(-(prompts + 4) // 4)
    positions = agreement.SLOTS * (P + agreement.RESPONSE) + G * P
    if shape["sequence"] > 1:
        positions = agreement.SLOTS * agreement.RESPONSE + (agreement.SLOTS + G) * -(
            -P // shape["sequence"]
        )
    return {
        "params": 4 * params,
        "moments": 8 * params + 4,
        "kv": 4 * 2 * L * (K // shape["tensor"]) * H * positions,
    }


@pytest.mark.nightly
def test_one_state_where_prompts_are_split(saved: Path, one: agreement.Arrays) -> None:
    axes = "data=2,sequence=2,tensor=2"
    agree(agreement.compare(mesh(axes), saved), one, axes, mesh(axes).size)


def agree(found: agreement.Arrays, one: agreement.Arrays, axes: str, devices: int) -> None:
    """What a mesh, of so many devices in this process, has found is what one device has."""
    for cell in agreement.CELLS:
        np.testing.assert_array_equal(found["tokens" + cell], one["tokens" + cell])
        assert abs(float(found["loss" + cell] - one["loss" + cell])) < 1e-6
        assert relative_distance(found, one, f"gradient{cell}[") < 1e-5
    assert relative_distance(found, one, "params[") < 1e-4
    for kind, expected in bytes_by_hand(axes).items():
        assert found["bytes_" + kind].tolist() == [expected] * devices, kind


def test_two_processes_of_four_devices(saved: Path, one: agreement.Arrays, tmp_path: Path) -> None:
    """As eight devices of one process, to the same measures; each of the two holds its half."""
    axes = "data=2,fsdp=2,tensor=2"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, agreement.__file__, "--mesh", axes, "--state", str(saved)]
    command += ["--coordinator", f"127.0.0.1:{port}", "--processes", "2"]
    environment = os.environ | {"XLA_FLAGS": flags(QUICK, devices=4)}
    outs = [tmp_path / f"{i}.npz" for i in range(2)]
    pair = [
        subprocess.Popen([*command, "--process", str(i), "--out", str(out)], env=environment)
        for i, out in enumerate(outs)
    ]
    try:
        assert [process.wait(240) for process in pair] == [0, 0]
    finally:
        for process in pair:
            process.kill()
    for out in outs:
        with np.load(out) as file:
            agree(dict(file), one, axes, 4)


def test_the_state_is_one_that_could_differ(saved: Path, one: agreement.Arrays) -> None:
    """Five updates move every parameter by far more than meshes may differ; greedy tokens are not
    all alike."""
    with np.load(saved) as file:
        before = {
            k.replace("state.params", "params"): x
            for k, x in file.items()
            if k.startswith("state.params")
        }
    for name, x in before.items():
        assert np.linalg.norm(one[name] - x) > 1e-2 * np.linalg.norm(x), name
    assert len(np.unique(one["tokens"])) > 10
    assert one["bytes_params"].tolist() == [bytes_by_hand("auto")["params"]]
    assert one["bytes_kv"].tolist() == [bytes_by_hand("auto")["kv"]]


# Nine layers, a size that no other dimension of an array has
DEEP = Decoder(CONFIG.model_copy(update={"layers": 9}), VOCAB)


@cache
def gradient_of(axes: str, decoder: Decoder) -> Any:
    """The policy's gradient with a base policy read with it, of 3 prompts and 5 responses at a
    time, compiled for shapes alone.
    """
    on = mesh(axes)
    sampler_shapes = SamplerShapes([(8, 4)], shard_count(on), 8, 5, P, T, 3)
    objective = PolicyObjective(
        decoder,
        RLConfig(kl=0.1),
        SamplingConfig(prompt_length=P, response_length=T),
        on.shape["tensor"] > 1,
    )
    gradient = build_gradient(
        objective, sampler_shapes, on, decoder.logical_axes(), decoder.shapes()
    )
    rows = jnp.zeros((sampler_shapes.shards, sampler_shapes.buffer_rows))
    tokens = jnp.zeros((*rows.shape, T), jnp.int32)
    specific = PolicyInputs(
        tokens * 1.0, tokens[..., :1] * 1.0, LossWeights(rows, rows, rows, rows)
    )
    problems = ProblemArrays(
        *(np.resize(x, (sampler_shapes.problem_rows, *x.shape[1:])) for x in random_problems(8))
    )
    params = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        decoder.shapes(),
        decoder.shardings(on),
    )
    inputs = UpdateInputs(params, params, problems, make_coefficients(RLConfig(kl=0.1)))
    program = quick_jit(gradient, out_shardings=(decoder.shardings(on), None))
    return program.lower(
        inputs, ResponseBatch(tokens, tokens > 0, specific), np.int32(8), np.int32(4)
    ).compile()


@pytest.mark.parametrize(
    ("axes", "tokens"),
    [("fsdp=8", [(1, 3 * P + 5 * (T - 1))]), ("data=2,fsdp=2,tensor=2", [(3, P), (5, T - 1)])],
)
def test_the_gradient_gathers_one_weight_at_a_time(
    axes: str, tokens: list[tuple[int, int]]
) -> None:
    """A weight of one layer or an embedding, as tensor splits it, among the shards of fsdp alone;
    besides these only tokens, to look them up: of prompts and responses together where 5 are all
    that a shard has, else separately; and among devices of tensor hidden states. Of no weight are
    all layers whole on a device, neither gathered, nor kept for the backward pass, nor added up."""
    shape = mesh(axes).shape
    split, tensor = shape["fsdp"], shape["tensor"]
    hlo = gradient_of(axes, DEEP).as_text()
    weights = {D * N * H // tensor, D * K * H // tensor, D * F // tensor, D, VOCAB * D // tensor}
    hidden = {f"f32[{b},{t},{D}]" for b, t in tokens if tensor > 1}
    gathered = [c for c in collectives(hlo) if c.kind in ("all-gather", "reduce-scatter")]
    among_tensor = [c for c in gathered if c.result in hidden]
    assert {c.result for c in among_tensor} == hidden
    assert all(max(group) - min(group) == tensor - 1 for c in among_tensor for group in c.groups)
    result = [c for c in gathered if c.result not in hidden]
    sizes = {
        math.prod(int(i) for i in re.findall(r"\d+", part))
        for c in result
        for part in re.findall(r"f32\[([\d,]*)\]", c.result)
    }
    assert sizes == weights | {size // split for size in weights}
    assert {c.result for c in result if "f32" not in c.result} == {
        f"s32[{split},{b},{t}]" for b, t in tokens
    }
    assert all(
        sorted(group)[0] + (split - 1) * tensor == sorted(group)[-1] and len(group) == split
        for c in result
        for group in c.groups
    )
    for matrix in ((D, F // tensor), (F // tensor, D), (D, N * H // tensor), (N * H // tensor, D)):
        assert f"f32[{DEEP.config.layers},{matrix[0]},{matrix[1]}]" not in hlo
    assert f"f32[{DEEP.config.layers},{D // split},{F // tensor}]" in hlo


def test_memory_of_the_gradient_falls_with_fsdp() -> None:
    """Nothing of the size of the model is left, be it temporary or the result: of 8 devices, data=8
    needs a gradient and more, fsdp=8 a fraction."""
    analyses = (gradient_of(axes, DEEP).memory_analysis() for axes in ("data=8", "fsdp=8"))
    data, fsdp = (
        analysis.temp_size_in_bytes + analysis.output_size_in_bytes for analysis in analyses
    )
    model = 4 * sum(math.prod(x.shape) for x in jax.tree.leaves(DEEP.shapes()))
    assert data > model and data - fsdp > 0.8 * model, (data, fsdp, model)


@pytest.mark.parametrize("tensor", [1, 2])
def test_tensor_splits_what_layers_save(tensor: int) -> None:
    """Of the hidden states that nine layers keep for their gradients, each device has those of a
    part of the tokens."""
    for remat in ("none", "layer"):
        hlo = gradient_of(
            f"data=2,tensor={tensor}", DEEP.with_options(ComputeOptions(remat=remat))
        ).as_text()
        for rows, positions in ((5, T - 1), (3, P)):
            kept = [t for t in (positions // 2, positions) if f"f32[9,{rows},{t},{D}]" in hlo]
            assert kept == [positions // tensor]


def test_without_a_gradient_nothing_is_split() -> None:
    """Prompts that are only sampled from keep no layer's input: the sampler's program is the one
    without remat."""
    tokens, lengths = jnp.zeros((3, P), jnp.int32), jnp.full(3, P)

    def prefill_text(remat: str) -> str:
        decoder = DECODER.with_options(ComputeOptions(remat=remat))
        on = mesh("tensor=2")
        mapped = map_over_shards(decoder.prefill, on, (PartitionSpec(),) * 3, PartitionSpec())
        return jax.jit(mapped).lower(placed(policy(), on), tokens, lengths).as_text()

    assert prefill_text("layer").count("sharding_constraint") == prefill_text("none").count(
        "sharding_constraint"
    )


def critic_on(axes: str) -> tuple[np.ndarray, Any]:
    """A critic's values of 26 responses, and its gradient."""
    on, B_p, n = mesh(axes), 13, 2
    sampler_shapes = SamplerShapes([(B_p, n)], shard_count(on), 4, 4, P, T)
    values, gradient = build_critic(DECODER, sampler_shapes, on)
    rng = np.random.default_rng(0)
    params = critic_params(DECODER, policy()) | {
        "value": rng.normal(size=D).astype(np.float32),
        "value_bias": np.ones(1, np.float32),
    }
    params = jax.device_put(params, critic_param_shardings(DECODER, on))
    tokens = rng.integers(4, VOCAB, (B_p * n, T))
    returns = rng.normal(size=(B_p * n, T)).astype(np.float32)
    mask = np.arange(T)[None] < rng.integers(1, T + 1, B_p * n)[:, None]
    tokens, returns, mask = (
        jnp.asarray(scatter(sampler_shapes, x)) for x in (tokens.astype(np.int32), returns, mask)
    )
    problems = ProblemArrays(
        *(np.resize(x, (sampler_shapes.problem_rows, *x.shape[1:])) for x in random_problems(B_p))
    )

    @quick_jit
    def program(params: Any) -> Any:
        inputs = UpdateInputs(params, {}, problems, make_coefficients(RLConfig()))
        sizes = (jnp.int32(B_p), jnp.int32(n))
        before = values(inputs, ResponseBatch(tokens, mask, ()), *sizes)
        rows = ResponseBatch(
            tokens,
            mask,
            CriticInputs(jnp.zeros_like(returns), returns, jnp.full(returns.shape[:2], 0.05)),
        )
        return before, gradient(inputs, rows, *sizes)[0]

    result, slope = jax.device_get(program(params))
    flat = np.stack(
        [result[divmod(r, -(-B_p * n // sampler_shapes.shards))] for r in range(B_p * n)]
    )
    return flat, slope


def test_a_critic_in_parts() -> None:
    (values, slope), (expected, full) = critic_on("fsdp=8"), critic_on("auto")
    np.testing.assert_allclose(values, expected, atol=1e-5)
    assert np.abs(expected).max() > 1 and set(full) == set(critic_param_shapes(DECODER))
    for one, two in zip(jax.tree.leaves(slope), jax.tree.leaves(full), strict=True):
        assert np.linalg.norm(two) > 0 and np.linalg.norm(one - two) < 1e-5 * np.linalg.norm(two)


def test_a_width_that_fsdp_does_not_divide_stays_whole() -> None:
    """12 wide over 8: the table leaves every parameter whole, and nothing is gathered."""
    narrow = Decoder(CONFIG.model_copy(update={"width": 12}), VOCAB)
    assert {
        x.sharding.is_fully_replicated
        for x in jax.tree.leaves(
            jax.device_put(narrow.init(jax.random.key(0)), narrow.shardings(mesh("fsdp=8")))
        )
    } == {True}
    assert "all-gather" not in gradient_of("fsdp=8", narrow).as_text()


def test_the_sampler_gathers_what_it_has_cast() -> None:
    """Once, before its loop, and half the bytes: each of its parameters as tensor splits it, in
    bfloat16."""
    on = mesh("data=2,fsdp=2,tensor=2")
    sampler_shapes = SamplerShapes([(8, 4)], 4, 8, 5, P, T)
    decoder = DECODER.with_options(ComputeOptions(compute_dtype="bfloat16"))
    sample = build_sampler(
        decoder,
        sampler_shapes,
        on,
        SamplingConfig(prompt_length=P, response_length=T),
        Parity.stops,
    )
    problems = ProblemArrays(
        *(np.resize(x, (sampler_shapes.problem_rows, *x.shape[1:])) for x in random_problems(8))
    )
    text = (
        jax.jit(sample)
        .lower(placed(policy(), on), problems, np.int32(8), np.int32(4), jax.random.key(0))
        .as_text()
    )
    gathers = re.findall(r"stablehlo.all_gather.*?-> tensor<(\w+)>", text)
    sizes = sorted(math.prod(int(i) for i in shape.split("x")[:-1]) for shape in gathers)
    halves = [
        x.size // (1 if "norm" in jax.tree_util.keystr(path) else 2)
        for path, x in jax.tree_util.tree_leaves_with_path(policy())
    ]
    assert {shape.split("x")[-1] for shape in gathers} == {"bf16"}
    assert sizes == sorted(halves)
