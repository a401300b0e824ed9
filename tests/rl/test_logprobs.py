"""Log-probabilities and entropies by blocks of the vocabulary, against NumPy in float64 and against
the plain form."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from isojax.core.config import ModelConfig
from isojax.core.shapes import vocabulary_block
from isojax.distributed.sharding import map_over_shards, param_shardings
from isojax.models.transformer import Decoder
from isojax.rl import logprobs
from tests.device import log_softmax, mesh, quick_jit
from tests.hlo import collectives

pytestmark = pytest.mark.seconds(9)

WIDTH, TEMPERATURE = 16, 0.7


def decoder(vocab: int, tied: bool) -> Decoder:
    return Decoder(
        ModelConfig(layers=1, width=WIDTH, heads=2, kv_heads=1, head_dim=8, mlp=8, tied=tied), vocab
    )


def inputs(vocab: int, shape: tuple[int, int], tied: bool) -> tuple[Any, Any, Any]:
    """Hidden states, unembedding and tokens; the first row's tokens lie at the ends of the
    vocabulary and of blocks."""
    rng = np.random.default_rng(vocab)
    states = rng.normal(size=(*shape, WIDTH)).astype(np.float32)
    embed = (rng.normal(size=(vocab, WIDTH)) * WIDTH**-0.5).astype(np.float32)
    tokens = rng.integers(0, vocab, shape).astype(np.int32)
    block = vocabulary_block(vocab, 64)
    tokens[0, :4] = 0, vocab - 1, block - 1, min(block, vocab - 1)
    return states, {"embed": embed} if tied else {"unembed": embed.T.copy()}, tokens


def alone(params: Any, states: Any) -> logprobs.HiddenStates:
    """Hidden states [m T D] of responses that share none."""
    return logprobs.HiddenStates(params, states[:, 0], jnp.arange(len(states)), states[:, 1:])


def by_numpy(
    states: Any, params: Any, tokens: Any, advantages: Any, spreads: Any
) -> tuple[Any, Any, Any, Any]:
    """Log-probabilities, entropies, and the gradient of sum(advantages * logps + spreads *
    entropies), in float64 and by the formulas d log p_y / d x = onehot(y) - p and d H / d x = -p
    (log p + H)."""
    states, advantages, spreads = (np.asarray(x, np.float64) for x in (states, advantages, spreads))
    matrix = np.asarray(params["embed"] if "embed" in params else params["unembed"].T, np.float64)
    x = states @ matrix.T / TEMPERATURE
    top = x.max(-1, keepdims=True)
    log_p = x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))
    p, hot = np.exp(log_p), np.eye(len(matrix))[tokens]
    entropies = -(p * log_p).sum(-1)
    d = advantages[..., None] * (hot - p) - spreads[..., None] * p * (log_p + entropies[..., None])
    return (
        (log_p * hot).sum(-1),
        entropies,
        d @ matrix / TEMPERATURE,
        np.einsum("mtv,mtd->vd", d, states) / TEMPERATURE,
    )


@pytest.mark.parametrize(("vocab", "tied"), [(1000, True), (1000, False), (640, True), (40, False)])
@pytest.mark.parametrize(
    ("use_entropy", "saved_logits"), [(True, 0), (False, 0), (True, logprobs.MAX_SAVED_LOGITS)]
)
def test_blocks_equal_float64(
    vocab: int, tied: bool, use_entropy: bool, saved_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of at most 64: 1000 leaves 8 over, 640 nothing, and 40 is less than a block. The value
    of the entropy is exact in any case, and it makes no difference whether logits are kept for the
    gradient."""
    monkeypatch.setattr(logprobs, "MAX_BLOCK_TOKENS", 64)
    monkeypatch.setattr(logprobs, "MAX_DENSE_LOGITS", 0)
    monkeypatch.setattr(logprobs, "MAX_SAVED_LOGITS", saved_logits)
    model, (states, params, tokens) = decoder(vocab, tied), inputs(vocab, (3, 5), tied)
    rng = np.random.default_rng(0)
    advantages, spreads = rng.normal(size=(2, 3, 5)).astype(np.float32)

    def objective(states: Any, params: Any) -> Any:
        result = logprobs.token_stats(
            model, alone(params, states), tokens, TEMPERATURE, use_entropy
        )
        return (result.logps * advantages).sum() + (
            result.entropy * spreads * use_entropy
        ).sum(), result

    (d_states, d_params), result = quick_jit(jax.grad(objective, (0, 1), has_aux=True))(
        states, params
    )
    logps, entropies, wanted_states, wanted_matrix = by_numpy(
        states, params, tokens, advantages, spreads * use_entropy
    )
    (d_matrix,) = d_params.values()
    np.testing.assert_allclose(result.logps, logps, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(result.entropy, entropies, rtol=2e-6, atol=5e-6)
    np.testing.assert_allclose(d_states, wanted_states, atol=1e-5)
    np.testing.assert_allclose(d_matrix if tied else d_matrix.T, wanted_matrix, atol=1e-5)


@pytest.mark.parametrize(
    ("T", "responses", "dense_logits", "saved_logits", "padding"),
    [
        (4, 5, 0, 0, 0),
        (1, 5, 0, logprobs.MAX_SAVED_LOGITS, 0),
        (4, 2, 0, 0, 0),
        (4, 5, logprobs.MAX_DENSE_LOGITS, 0, 0),
        (3, 5, 0, logprobs.MAX_SAVED_LOGITS, 6),
        (3, 5, logprobs.MAX_DENSE_LOGITS, 0, 6),
    ],
)
def test_a_state_that_responses_share_counts_for_each(
    T: int,
    responses: int,
    dense_logits: int,
    saved_logits: int,
    padding: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Responses to the first and the last of three prompts; two begin with the same token. In
    blocks, where prompts are fewer than responses and are read once each, or are more; and in the
    dense form. Padded states count for nothing."""
    monkeypatch.setattr(logprobs, "MAX_BLOCK_TOKENS", 64)
    monkeypatch.setattr(logprobs, "MAX_DENSE_LOGITS", dense_logits)
    monkeypatch.setattr(logprobs, "MAX_SAVED_LOGITS", saved_logits)
    model, (states, params, tokens) = decoder(1000, True), inputs(1000, (responses, 4), True)
    entry, rng = jnp.array([2, 2, 0, 2, 0][:responses]), np.random.default_rng(0)
    prompts = rng.normal(size=(3, WIDTH)).astype(np.float32)
    own = states[:, 1:T]
    tokens = tokens[:, :T]
    padded = np.concatenate(
        [own, rng.normal(size=(responses, padding, WIDTH)).astype(np.float32)], 1
    )
    tokens[1, 0] = tokens[0, 0]
    advantages, spreads = rng.normal(size=(2, responses, T)).astype(np.float32)

    def objective(prompts: Any, own: Any, params: Any) -> Any:
        hidden = logprobs.HiddenStates(params, prompts, entry, own)
        assert len(hidden.unique_states()[0]) == min(3, responses) + responses * (T - 1 + padding)
        result = logprobs.token_stats(model, hidden, tokens, TEMPERATURE, True)
        return (result.logps * advantages).sum() + (result.entropy * spreads).sum(), result

    (d_prompts, d_own, d_params), result = quick_jit(jax.grad(objective, (0, 1, 2), has_aux=True))(
        prompts, padded, params
    )
    full = np.concatenate([prompts[entry][:, None], own], 1)
    logps, entropies, d_states, d_matrix = by_numpy(full, params, tokens, advantages, spreads)
    np.testing.assert_allclose(result.logps, logps, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(result.entropy, entropies, rtol=2e-6, atol=5e-6)
    np.testing.assert_allclose(
        d_prompts, [d_states[entry == i, 0].sum(0) for i in range(3)], atol=1e-5
    )
    np.testing.assert_allclose(d_own[:, : T - 1], d_states[:, 1:], atol=1e-5)
    assert not d_own[:, T - 1 :].any()
    np.testing.assert_allclose(d_params["embed"], d_matrix, atol=1e-5)


@pytest.mark.parametrize(
    ("vocab", "tied", "axes", "saved_logits"),
    [
        (1000, True, "data=2,tensor=2", 0),
        (640, False, "data=2,tensor=2", logprobs.MAX_SAVED_LOGITS),
        (999, True, "data=2,tensor=2", 0),
        (640, False, "sequence=2,tensor=4", 0),
        (1000, True, "sequence=2,tensor=4", logprobs.MAX_SAVED_LOGITS),
    ],
)
def test_devices_that_share_the_vocabulary_equal_one(
    vocab: int, tied: bool, axes: str, saved_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices with blocks of at most 64 of their parts; 999 tokens cannot be halved, and each has
    all. Those along `sequence` have the same."""
    monkeypatch.setattr(logprobs, "MAX_BLOCK_TOKENS", 64)
    monkeypatch.setattr(logprobs, "MAX_DENSE_LOGITS", 0)
    monkeypatch.setattr(logprobs, "MAX_SAVED_LOGITS", saved_logits)
    model, (states, params, tokens) = decoder(vocab, tied), inputs(vocab, (4, 5), tied)
    advantages, spreads = np.random.default_rng(0).normal(size=(2, 4, 5)).astype(np.float32)

    def gradient(
        vocab_split: bool, states: Any, tokens: Any, advantages: Any, spreads: Any, params: Any
    ) -> Any:
        def objective(states: Any, params: Any) -> Any:
            hidden = alone(params, states)
            result = logprobs.token_stats(model, hidden, tokens, TEMPERATURE, True, vocab_split)
            return (result.logps * advantages).sum() + (result.entropy * spreads).sum(), result

        (d_states, d_params), result = jax.grad(objective, (0, 1), has_aux=True)(states, params)
        return d_states, result, jax.tree.map(lambda x: x[None], d_params)

    on, rows = mesh(axes), P("data")
    logical_axes = {name: model.logical_axes()[name] for name in params}
    placed = jax.device_put(params, param_shardings(params, logical_axes, on))
    spread = map_over_shards(partial(gradient, True), on, (*[rows] * 4, P()), rows)
    compiled = quick_jit(spread).lower(states, tokens, advantages, spreads, placed).compile()
    d_states, result, d_params = compiled(states, tokens, advantages, spreads, placed)
    wanted_states, wanted, wanted_params = quick_jit(partial(gradient, False))(
        states, tokens, advantages, spreads, params
    )
    np.testing.assert_allclose(result.logps, wanted.logps, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(result.entropy, wanted.entropy, rtol=2e-6, atol=5e-6)
    np.testing.assert_allclose(d_states, wanted_states, atol=1e-5)
    (d_matrix,), (wanted_matrix,) = d_params.values(), wanted_params.values()
    np.testing.assert_allclose(d_matrix.sum(0), wanted_matrix[0], atol=1e-5)
    moved = [
        c.result
        for c in collectives(compiled.as_text(), on.size)
        if str(vocab // on.shape["tensor"]) in c.result
    ]
    assert not moved or vocab == 999, moved  # of logits and unembedding nothing


def test_bfloat16_blocks_round_products_operands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of states and an unembedding that are bfloat16: logits, and what is read off them, are sums
    in float32; a gradient is bfloat16.
    """
    monkeypatch.setattr(logprobs, "MAX_BLOCK_TOKENS", 64)
    monkeypatch.setattr(logprobs, "MAX_DENSE_LOGITS", 0)
    model, (states, params, tokens) = decoder(1000, True), inputs(1000, (3, 5), True)
    low = alone(
        {"embed": jnp.asarray(params["embed"], jnp.bfloat16)}, jnp.asarray(states, jnp.bfloat16)
    )

    def objective(embed: Any) -> Any:
        result = logprobs.token_stats(
            model, low._replace(params={"embed": embed}), tokens, TEMPERATURE, False
        )
        return result.logps.sum(), result

    d_matrix, result = quick_jit(jax.grad(objective, has_aux=True))(low.params["embed"])
    full = (
        np.asarray(low.states(tokens.shape[1]), np.float64),
        {"embed": np.asarray(low.params["embed"], np.float64)},
    )
    logps, entropies, _, wanted = by_numpy(
        *full, tokens, np.ones(tokens.shape), np.zeros(tokens.shape)
    )
    np.testing.assert_allclose(result.logps, logps, rtol=2e-6, atol=5e-6)
    np.testing.assert_allclose(result.entropy, entropies, rtol=2e-6, atol=5e-6)
    assert d_matrix.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        d_matrix.astype(np.float32), wanted, atol=0.02 * np.abs(wanted).max()
    )


def test_very_different_logits_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens, of the first and of the last block, have the logit 300 and share the probability;
    the rest have -300.
    """
    monkeypatch.setattr(logprobs, "MAX_BLOCK_TOKENS", 8)
    monkeypatch.setattr(logprobs, "MAX_DENSE_LOGITS", 0)
    embed = np.full((20, WIDTH), -300 / WIDTH, np.float32)
    embed[[0, 19]] = 300 / WIDTH
    hidden = alone({"embed": embed}, jnp.ones((1, 3, WIDTH)))
    result = logprobs.token_stats(decoder(20, True), hidden, jnp.array([[0, 19, 5]]), 1.0, True)
    np.testing.assert_allclose(
        result.logps, [[-np.log(2), -np.log(2), -600 - np.log(2)]], rtol=1e-5
    )
    np.testing.assert_allclose(
        result.entropy, np.log(2) * np.ones((1, 3)), rtol=1e-4
    )  # the difference of two numbers near 300


def test_the_entropys_gradient_is_left_out_where_it_cannot_matter() -> None:
    """In the plain form too: the coefficient's derivative is 0 there, and the value stays."""
    model, (states, params, tokens) = decoder(24, True), inputs(24, (2, 4), True)

    def spread(states: Any, use_entropy: bool) -> Any:
        return logprobs.token_stats(
            model, alone(params, states), tokens % 24, TEMPERATURE, use_entropy
        ).entropy.sum()

    assert float(spread(states, True)) == float(spread(states, False))
    assert float(jnp.abs(jax.grad(spread)(states, True)).max()) > 0.01
    assert float(jnp.abs(jax.grad(spread)(states, False)).max()) == 0


def test_which_form_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """By size: the quickstart's vocabulary stays plain."""

    def loops(vocab: int, rows: int) -> bool:
        model = decoder(vocab, True)
        hidden = jax.ShapeDtypeStruct((1, rows, WIDTH), jnp.float32)
        params = {"embed": jax.ShapeDtypeStruct((vocab, WIDTH), jnp.float32)}
        tokens = jax.ShapeDtypeStruct((1, rows), jnp.int32)
        program = jax.make_jaxpr(
            lambda p, h, t: logprobs.token_stats(model, alone(p, h), t, 1.0, False)
        )(params, hidden, tokens)
        return "custom_vjp" in str(program)

    assert not loops(24, 4096) and loops(49152, 1024)
    monkeypatch.setattr(logprobs, "MAX_DENSE_LOGITS", 24 * 4096)
    assert not loops(24, 4096) and loops(24, 4097)


@pytest.mark.parametrize("has_base", [False, True])
def test_a_nucleus_is_the_one_that_was_drawn_from(has_base: bool) -> None:
    """Of the mass that the sampler has recorded of each token; the tokens that were drawn are in it
    wherever rounding puts them, as the first one here. The base policy is cut to the same."""
    model, (states, params, tokens) = decoder(24, True), inputs(24, (3, 5), True)
    base = params | {"embed": params["embed"][::-1].copy()}
    log_p = log_softmax(np, states @ params["embed"].T / TEMPERATURE)
    log_base = log_softmax(np, states @ base["embed"].T / TEMPERATURE)
    order = np.argsort(-log_p, -1)
    sums = np.cumsum(np.exp(np.take_along_axis(log_p, order, -1)), -1)
    size = np.random.default_rng(0).integers(2, 12, (3, 5))  # tokens of each nucleus
    kept = np.zeros(log_p.shape, bool)
    for m, t in np.ndindex(3, 5):
        kept[m, t, order[m, t, : size[m, t]]] = True
        tokens[m, t] = order[m, t, 1]
    tokens[0, 0] = order[0, 0, 20]
    mass = np.take_along_axis(sums, size[..., None] - 1, -1)[..., 0]

    @quick_jit
    def compute(states: Any, params: Any, base: Any) -> Any:
        hidden, of_base = alone(params, states), alone(base, states) if has_base else None
        inputs = tokens, jnp.float32(mass), TEMPERATURE, False
        return logprobs.nucleus_token_stats(model, hidden, of_base, *inputs)

    stats, base_logps = compute(states, params, base)

    kept[0, 0, tokens[0, 0]] = True
    cut, cut_base = (log_softmax(np, np.where(kept, x, -1e30)) for x in (log_p, log_base))
    drawn = tokens[..., None]
    np.testing.assert_allclose(
        stats.logps, np.take_along_axis(cut, drawn, -1)[..., 0], rtol=1e-4, atol=1e-5
    )
    entropies = -(np.exp(cut) * np.where(kept, cut, 0)).sum(-1)
    np.testing.assert_allclose(stats.entropy, entropies, rtol=1e-4, atol=1e-5)
    if not has_base:
        assert base_logps is None
        return
    expected = np.take_along_axis(cut_base, drawn, -1)[..., 0]
    np.testing.assert_allclose(base_logps, expected, rtol=1e-4, atol=1e-5)


def test_a_quarter_of_the_memory_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """At V = 50000 with 100 tokens, by XLA's own account: the plain form holds 19 MiB of logits
    several times over. Kept, they are held once; at V = 152k and 512 tokens they are too many for
    that."""
    assert 512 * 151_936 > logprobs.MAX_SAVED_LOGITS
    model = decoder(50_000, True)
    shapes = (
        jax.ShapeDtypeStruct((1, 100, WIDTH), jnp.float32),
        jax.ShapeDtypeStruct((50_000, WIDTH), jnp.float32),
    )
    tokens = jnp.zeros((1, 100), jnp.int32)

    def temporary(max_dense_logits: int, max_saved_logits: int) -> int:
        monkeypatch.setattr(logprobs, "MAX_DENSE_LOGITS", max_dense_logits)
        monkeypatch.setattr(logprobs, "MAX_SAVED_LOGITS", max_saved_logits)

        def objective(states: Any, embed: Any) -> Any:
            return logprobs.token_stats(
                model, alone({"embed": embed}, states), tokens, 1.0, False
            ).logps.sum()

        program = jax.jit(jax.value_and_grad(objective, (0, 1))).lower(*shapes).compile()
        account = program.memory_analysis()
        assert account is not None
        return account.temp_size_in_bytes

    plain, saving, neither = temporary(10**9, 0), temporary(0, 10**9), temporary(0, 0)
    assert neither < plain / 4
    assert 0.9 * 4 * 100 * 50_000 < saving - neither < plain / 2
