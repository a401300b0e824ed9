"""The gradient through a prompt's last token, which the rollouts of a group share, is that of whole
sequences: for models of 1 to 3 layers, on meshes, and for responses of one token, which have
nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import RLConfig
from isojax.core.shapes import SamplerShapes, row_padding
from isojax.distributed.sharding import shard_count
from isojax.models.lora import policy_params, split_adapters
from isojax.models.transformer import ComputeOptions, Decoder
from isojax.rl.gradient import ResponseBatch, build_gradient
from isojax.rl.objective import UpdateInputs, hidden_states, make_coefficients
from isojax.sampling.batch import ProblemArrays
from tests.device import CONFIG, VOCAB, P, T, mesh, quick_jit, random_problems, scatter

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

B_P, N = 5, 3
GROUP = np.arange(B_P * N) // N


def chosen(decoder: Decoder, params: Any, hidden: Any, tokens: Any) -> Any:
    log_p = jax.nn.log_softmax(decoder.logits(params, hidden), -1)
    return jnp.take_along_axis(log_p, tokens[..., None], -1)[..., 0]


@dataclass(frozen=True)
class Weighted:
    """A weighted sum of the responses' log-probabilities."""

    decoder: Decoder
    needs_base: bool = False
    routers: None = None
    metric_reductions = {"loss": "total"}  # noqa: RUF012

    def __call__(
        self, params: Any, prefix: Any, base_prefix: Any, fixed: Any, rows: Any
    ) -> tuple[Any, Any]:
        hidden = hidden_states(self.decoder, params, prefix, fixed.problems, rows).states(
            rows.tokens.shape[1]
        )
        loss = jnp.where(
            rows.mask,
            chosen(self.decoder, params, hidden, rows.tokens) * rows.objective_inputs[:, None],
            0.0,
        ).sum()
        return loss, {"loss": loss}


@pytest.mark.parametrize(
    ("layers", "T", "axes", "m"),
    [
        (2, 1, "data=2,sequence=2,tensor=2", 4),
        (3, 3, "data=2,fsdp=2,tensor=2", 4),
        (1, 1, "auto", 4),
        # prompts and responses in one pass, of which nothing is the responses'
        (2, 1, "data=2", 2 * N),
        (2, 3, "sequence=2", 2 * N),
        (1, 4, "auto", 3),
    ],
)
def test_the_gradient_is_that_of_whole_sequences(layers: int, T: int, axes: str, m: int) -> None:
    decoder = Decoder(CONFIG.model_copy(update={"layers": layers}), VOCAB)
    params = jax.device_get(jax.jit(decoder.init)(jax.random.key(3)))
    assert_gradient_of_whole_sequences(decoder, params, mesh(axes), T, m)


@pytest.mark.parametrize("m", [4, 2 * N])
def test_rows_padded_to_a_tpus_tiles_have_the_same_gradient(m: int) -> None:
    decoder = Decoder(CONFIG.model_copy(update={"layers": 1, "head_dim": 64}), VOCAB)
    params = jax.device_get(jax.jit(decoder.init)(jax.random.key(3)))
    with_kernels = decoder.with_options(ComputeOptions(forward_attention="interpret"))
    assert row_padding("interpret", m, T - 1) == 6
    assert (
        row_padding("plain", m, T - 1)
        == row_padding("pallas", m, 0)
        == row_padding("plain", 4, 5, 2)
        == 0
    )
    assert row_padding("plain", 3, 5, 2) == 1 and row_padding("cudnn", 3, 4, 2) == 0
    assert row_padding("pallas", 3, 5, 16) == 11 and row_padding("pallas", 32, 5, 16) == 3
    assert_gradient_of_whole_sequences(with_kernels, params, mesh("data=1"), T, m)


def assert_gradient_of_whole_sequences(
    decoder: Decoder,
    params: Any,
    on: Any,
    T: int,
    m: int,
    merge: Callable[[Any], Any] = lambda params: params,
) -> None:
    """Against a program that has whole sequences and, of adapters, the weights that `merge` makes
    with them."""
    sampler_shapes = SamplerShapes([(B_P, N)], shard_count(on), 4, m, P, T, 2)
    problems = ProblemArrays(
        *(
            np.resize(x, (sampler_shapes.problem_rows, *x.shape[1:]))
            for x in random_problems(B_P, seed=4)
        )
    )
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (B_P * N, T)).astype(np.int32)
    mask = np.arange(T)[None] < rng.integers(1, T + 1, B_P * N)[:, None]
    weights = rng.normal(size=B_P * N).astype(np.float32)

    start = np.asarray(problems.lengths)[GROUP]
    full = np.zeros((B_P * N, P + T), np.int32)
    for row, first, prompt, response in zip(
        full, start, np.asarray(problems.prompts)[GROUP], tokens, strict=True
    ):
        row[:first], row[first : first + T] = prompt[:first], response

    def expected(trained: Any) -> Any:
        weights_of_all = merge(policy_params(trained, jax.tree.map(jnp.asarray, base)))
        plain = decoder.base.with_options(ComputeOptions())
        hidden = plain.forward(weights_of_all, jnp.asarray(full), jnp.zeros(len(full), jnp.int32))
        before = hidden[np.arange(len(full))[:, None], start[:, None] - 1 + np.arange(T)[None]]
        log_p = chosen(decoder, weights_of_all, before, jnp.asarray(tokens))
        return jnp.where(mask, log_p * weights[:, None], 0.0).sum()

    trained = decoder.trained(params)
    base = {} if decoder.base is decoder else split_adapters(params)[1]
    axes, shapes, shardings = (
        decoder.trained(tree)
        for tree in (decoder.logical_axes(), decoder.shapes(), decoder.shardings(on))
    )
    gradient = build_gradient(Weighted(decoder), sampler_shapes, on, axes, shapes)
    responses = ResponseBatch(*(scatter(sampler_shapes, x) for x in (tokens, mask, weights)))
    placed_base = jax.device_put(base, decoder.base.shardings(on)) if base else base
    inputs = UpdateInputs(
        jax.device_put(trained, shardings), placed_base, problems, make_coefficients(RLConfig())
    )
    program = quick_jit(gradient, out_shardings=(shardings, None))
    got, metrics = program(inputs, responses, np.int32(B_P), np.int32(N))
    loss, wanted = quick_jit(jax.value_and_grad(expected))(trained)
    assert float(metrics["loss"].sum) == pytest.approx(float(loss), rel=1e-6, abs=1e-5)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(wanted), jax.tree.leaves(got), strict=True
    ):
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(a), jax.tree_util.keystr(path)
