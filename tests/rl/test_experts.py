"""Experts in an update: the load-balancing loss against transformers' (expert_reference.npz,
written by make_expert_reference.py), metrics against numpy, and the replay of a sampler's choices.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import ModelConfig, RLConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.models.routing import RouterPass, join_choices, sparse_layers, to_recorded
from isojax.models.transformer import Decoder
from isojax.rl.experts import check_experts
from isojax.rl.gradient import ResponseBatch, build_gradient
from isojax.rl.metric import values
from isojax.rl.objective import (
    LossWeights,
    PolicyInputs,
    PolicyObjective,
    UpdateInputs,
    make_coefficients,
)
from isojax.sampling.batch import ProblemArrays
from isojax.sampling.engine import build_engine
from isojax.tasks.protocol import StopConditions
from tests import device
from tests.device import mesh, quick_jit, scatter
from tests.models.agreement import from_checkpoint
from tests.refusals import refused

pytestmark = pytest.mark.seconds(14)

REFERENCE = Path(__file__).parent / "expert_reference.npz"
PROBLEMS, N, P, T, VOCAB = 5, 3, 6, 5, 24
E, K = 6, 2
CONFIG = ModelConfig(
    family="qwen3_moe",
    layers=4,
    width=16,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp=24,
    qk_norm=True,
    options={"experts": E, "top_k": K, "expert_mlp": 12, "dense_layers": [1]},
)
DECODER = Decoder(CONFIG, VOCAB)
BALANCE = 0.5
# responses of a microbatch: prompts go first, or together with the responses
IN_BLOCKS = 4
TOGETHER = 16


@cache
def reference() -> dict[str, np.ndarray]:
    with np.load(REFERENCE) as arrays:
        return dict(arrays)


def tensors(kind: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(f"{kind}/"): x
        for name, x in reference().items()
        if name.startswith(f"{kind}/")
    }


@cache
def chosen_experts(seed: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Of each rollout's prompt [B P l k] and response [B T l k]: the model's own, or random
    ones."""
    given = reference()
    if seed is not None:
        rng = np.random.default_rng(seed)
        both = rng.random((PROBLEMS * N, P + T, 3, E)).argsort(-1)[..., :K].astype(np.uint8)
        both[:, :P] = both[::N, :P].repeat(N, 0)  # of one prompt, all responses have the same
        return both[:, :P], both[:, P:]

    prompt_lengths = given["prompt_lengths"].repeat(N)
    rows = np.zeros((PROBLEMS * N, P + T), np.int32)
    for row, length in enumerate(prompt_lengths):
        rows[row, :length] = given["prompts"][row // N, :length]
        rows[row, length : length + T] = given["tokens"][row]
    tokens, start = jnp.asarray(rows), jnp.zeros(len(rows), jnp.int32)

    @quick_jit
    def route(params: Any) -> Any:
        _, routed = DECODER.forward_with_routers(
            params, tokens, start, routers=RouterPass(to_recorded)
        )
        of_rows = [x if x is None else x.reshape(len(x), *rows.shape, K) for x in routed]
        return join_choices(DECODER.stacks, of_rows)

    experts = np.asarray(route(from_checkpoint(tensors("weights"), DECODER)))
    responses = [experts[row, length : length + T] for row, length in enumerate(prompt_lengths)]
    return experts[:, :P], np.stack(responses)


@cache
def program_of(axes: str, microbatch: int, replays: bool) -> tuple[Any, SamplerShapes]:
    """The jitted gradient, which compiles once for all choices of experts, and its shapes."""
    on = mesh(axes)
    rl = RLConfig(expert_balance=BALANCE, replay_experts=replays)
    shapes = SamplerShapes([(PROBLEMS, N)], shard_count(on), 8, microbatch, P, T, prefill_batch=4)
    sampling = SamplingConfig(prompt_length=P, response_length=T)
    objective = PolicyObjective(DECODER, rl, sampling, on.shape["tensor"] > 1)
    gradient = build_gradient(objective, shapes, on, DECODER.logical_axes(), DECODER.shapes())
    return quick_jit(gradient, out_shardings=(DECODER.shardings(on), None)), shapes


@cache
def gradient_of(
    axes: str,
    microbatch: int,
    replays: bool = False,
    experts_seed: int | None = None,
    records: bool = True,
) -> Any:
    """(gradient, metrics) of the update without advantages, so that the loss is that of experts
    alone."""
    program, shapes = program_of(axes, microbatch, replays)
    given = reference()

    def rows(x: np.ndarray) -> Any:
        return jnp.asarray(scatter(shapes, x))

    tokens = rows(given["tokens"])
    mask = rows(np.arange(T)[None] < given["lengths"][:, None])
    weight = jnp.zeros(tokens.shape[:2])
    inputs = PolicyInputs(
        jnp.zeros(tokens.shape), jnp.ones((*tokens.shape[:2], 1)), LossWeights(*[weight] * 4)
    )
    recorded = [rows(x) for x in chosen_experts(experts_seed)] if records else []
    responses = ResponseBatch(tokens, mask, inputs, *recorded)

    columns = (
        given["prompts"],
        given["prompt_lengths"],
        np.zeros((PROBLEMS, T), np.int32),
        np.arange(PROBLEMS),
    )
    problems = ProblemArrays(*(np.resize(x, (shapes.problem_rows, *x.shape[1:])) for x in columns))
    weights = from_checkpoint(tensors("weights"), DECODER)
    params = jax.device_put(weights, DECODER.shardings(mesh(axes)))
    rl = RLConfig(expert_balance=BALANCE, replay_experts=replays)
    update = UpdateInputs(params, {}, problems, make_coefficients(rl))
    result, metrics = program(update, responses, np.int32(PROBLEMS), np.int32(N))
    return jax.tree.map(np.asarray, result), values(jax.tree.map(float, metrics))


@pytest.mark.parametrize(
    ("axes", "microbatch", "records"),
    [
        ("auto", IN_BLOCKS, True),
        pytest.param("auto", TOGETHER, True, marks=pytest.mark.slow),
        pytest.param("data=2,fsdp=2,tensor=2", IN_BLOCKS, False, marks=pytest.mark.slow),
        pytest.param("fsdp=8", TOGETHER, False, marks=pytest.mark.slow),
    ],
)
def test_the_balance_loss_is_transformers(axes: str, microbatch: int, records: bool) -> None:
    """Value and gradient of a batch that is computed in blocks, and of which devices have parts,
    whether or not the sampler has recorded its choices. The coefficient, .5, halves both in the
    loss, and not in the metric."""
    gradient, metrics = gradient_of(axes, microbatch, records=records)
    loss, of_tensors = float(reference()["loss"]), tensors("gradients")
    assert metrics["expert_balance"] == pytest.approx(loss, rel=1e-5)
    assert metrics["loss"] == pytest.approx(loss / 2, rel=1e-5)

    # Behind the last router nothing has a gradient.
    found = {name: 2 * x for name, x in gradients_by_tensor(gradient).items()}
    last = {
        name
        for name in found
        if name.startswith(("model.layers.3.mlp.experts", "model.norm", "lm_head"))
    }
    assert last and not any(np.abs(found[name]).max() for name in last)
    for name, want in of_tensors.items():
        scale = np.abs(want).max()
        np.testing.assert_allclose(
            found[name], want, atol=2e-5 * scale + 1e-8, rtol=2e-4, err_msg=name
        )
    assert np.abs(of_tensors["model.layers.0.mlp.gate.weight"]).max() > 1e-3


def gradients_by_tensor(gradient: Any) -> dict[str, np.ndarray]:
    """By the names of a checkpoint, as torch has them."""
    by_tensor: dict[str, np.ndarray] = {}
    for key, spec in [(k, s) for stack in DECODER.specs().items() for k, s in _entries(*stack)]:
        value = gradient[key[0]] if len(key) == 1 else gradient[key[0]][key[1]]
        stacked = len(spec.stacked)
        of_each = value.reshape(-1, *value.shape[stacked:])
        for name, w in zip(spec.tensor_names(), of_each, strict=True):
            matrix = spec.matrix_shape if spec.inputs else w.shape
            by_tensor[name] = w.reshape(matrix).T if spec.transposed else w.reshape(matrix)
    return by_tensor


def _entries(name: str, spec: Any) -> list[tuple[tuple[str, ...], Any]]:
    if isinstance(spec, dict):
        return [((name, inner), of) for inner, of in spec.items()]
    return [((name,), spec)]


def test_metrics_of_the_routers() -> None:
    """Against numpy, from the router's probabilities of every token of whole sequences."""
    _, metrics = gradient_of("auto", IN_BLOCKS)
    given = reference()
    experts = np.concatenate(chosen_experts(None), 1)
    real = np.arange(P)[None] < given["prompt_lengths"].repeat(N)[:, None]
    real = np.concatenate([real, np.arange(T)[None] < given["lengths"][:, None] - 1], 1)
    counts = np.bincount(experts[real].ravel(), minlength=E)
    assert metrics["expert_share_max"] == pytest.approx(counts.max() / counts.sum(), rel=1e-6)
    assert metrics["expert_agreement"] == 1.0
    assert 0 < metrics["router_entropy"] < np.log(E)


def test_agreement_counts_tokens_whose_experts_are_all_the_same() -> None:
    """Random choices of 2 of 6 experts: in any order, whether they are replayed or not."""
    given = reference()
    own = np.concatenate(chosen_experts(None), 1)
    other = np.concatenate(chosen_experts(3), 1)
    real = np.arange(P)[None] < given["prompt_lengths"].repeat(N)[:, None]
    real = np.concatenate([real, np.arange(T)[None] < given["lengths"][:, None] - 1], 1)
    same = (np.sort(own, -1) == np.sort(other, -1)).all(-1)
    for microbatch in (IN_BLOCKS, TOGETHER):
        _, metrics = gradient_of("auto", microbatch, experts_seed=3)
        assert metrics["expert_agreement"] == pytest.approx(same[real].mean(), rel=1e-5)
    assert 0 < same[real].mean() < 0.2


@pytest.mark.parametrize("microbatch", [pytest.param(IN_BLOCKS, marks=pytest.mark.slow), TOGETHER])
def test_replayed_experts_are_those_of_the_loss(microbatch: int) -> None:
    """With its own choices replayed, the gradient is as without; with others, f counts those."""
    gradient, metrics = gradient_of("auto", microbatch)
    replayed, replayed_metrics = gradient_of("auto", microbatch, replays=True)
    assert replayed_metrics["expert_balance"] == pytest.approx(metrics["expert_balance"], rel=1e-6)
    for have, want in zip(jax.tree.leaves(replayed), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6 * max(np.abs(want).max(), 1e-3))

    _, others = gradient_of("auto", microbatch, replays=True, experts_seed=3)
    real = np.arange(P)[None] < reference()["prompt_lengths"].repeat(N)[:, None]
    real = np.concatenate([real, np.arange(T)[None] < reference()["lengths"][:, None] - 1], 1)
    counts = np.bincount(np.concatenate(chosen_experts(3), 1)[real].ravel(), minlength=E)
    assert others["expert_share_max"] == pytest.approx(counts.max() / counts.sum(), rel=1e-6)


def test_a_samplers_state_without_experts_is_what_older_runs_have_saved() -> None:
    """Its arrays have the paths that a checkpoint's checksums name, and the text that a layout's
    checksum is of."""
    shapes = SamplerShapes([(PROBLEMS, N)], 1, 8, IN_BLOCKS, P, T, prefill_batch=4)
    sampling = SamplingConfig(prompt_length=P, response_length=T)

    def state(decoder: Decoder, records: bool) -> Any:
        engine = build_engine(
            decoder, shapes, mesh(), sampling, StopConditions((), None), records_experts=records
        )
        return jax.eval_shape(engine.init_state, jax.ShapeDtypeStruct((), "int32"))

    dense, recorded = state(device.DECODER, records=True), state(DECODER, records=True)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(dense)]
    assert (
        paths[0] == ".outputs[0]"
        and ".queue.next_item" in paths
        and not any("experts" in path for path in paths)
    )
    assert (
        str(dense).endswith(", table_experts=None, group_experts=None)") and len(dense.outputs) == 5
    )
    assert [x.shape[1:] for x in recorded.outputs[5:]] == [(P, 3, K), (T, 3, K)]
    assert len(state(DECODER, records=False).outputs) == 5


def test_settings_of_experts_are_refused_where_they_do_nothing() -> None:
    assert sparse_layers(DECODER.stacks) == [0, 2, 3]
    check_experts(RLConfig(expert_balance=BALANCE), DECODER, mesh("data=2,tensor=2"))
    check_experts(RLConfig(), device.DECODER, mesh("sequence=2"))
    with refused(where="cell.rl.expert_balance"):
        check_experts(RLConfig(expert_balance=BALANCE), device.DECODER, mesh())
    with refused(where="cell.rl.replay_experts on a mesh with sequence=2"):
        check_experts(RLConfig(replay_experts=True), DECODER, mesh("sequence=2"))
