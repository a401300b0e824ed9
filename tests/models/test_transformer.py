"""The decoder against the same model in NumPy, its three ways of running against each other, and
padding that changes nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.models.attention import MASKED_SCORE, RowSegment, attend
from isojax.models.cpu import sum_in_blocks
from isojax.models.decode import Decoding
from isojax.models.layers import linear
from tests.device import (
    CONFIG,
    DECODER,
    PAD,
    VOCAB,
    P,
    logits,
    mesh,
    placed,
    policy,
    random_problems,
    response_logits,
)

T = 5
GROUP = np.array([3, 0, 0, 7, 1, 6, 2, 5, 4, 7])


@pytest.fixture(scope="module")
def responses() -> np.ndarray:
    return np.random.default_rng(1).integers(0, VOCAB, (len(GROUP), T)).astype(np.int32)


def forward(params, prompts, lengths, group, tokens):
    """prefill, then score, as the trainer runs them."""
    prefix = DECODER.prefill(params, prompts, lengths)
    after = DECODER.forward(params, tokens[:, :-1], lengths[group], prefix.kv, group)
    return DECODER.logits(params, jnp.concatenate([prefix.last_hidden[group][:, None], after], 1))


def test_the_reference_is_causal_and_depends_on_order() -> None:
    tokens = np.array([[4, 5, 6, 7], [4, 5, 6, 8], [5, 4, 6, 7]])
    out = logits(np, policy(), tokens)
    np.testing.assert_array_equal(out[0, :3], out[1, :3])
    assert np.abs(out[0, 2] - out[2, 2]).max() > 0.01


def test_prefix_and_score_equal_numpy(responses: np.ndarray) -> None:
    problems = random_problems(8)
    assert set(problems.lengths) >= {1, P}
    got = jax.jit(forward)(policy(), problems.prompts, problems.lengths, GROUP, responses)
    np.testing.assert_allclose(
        got, response_logits(np, policy(), problems, GROUP, responses), atol=1e-5
    )


def test_prompts_of_one_token(responses: np.ndarray) -> None:
    prompts, lengths = random_problems(8).prompts[:, :1], np.ones(8, np.int32)
    tokens = np.concatenate([prompts[GROUP], responses], 1)
    got = jax.jit(forward)(policy(), prompts, lengths, GROUP, responses)
    np.testing.assert_allclose(got, logits(np, policy(), tokens)[:, :-1], atol=1e-5)


@pytest.mark.parametrize("axes", ["data=4,tensor=2", "data=2,tensor=4"])
def test_sharded_parameters_change_nothing(axes: str, responses: np.ndarray) -> None:
    # tensor=4 does not divide the 2 key/value heads, which stay whole
    problems = random_problems(8)
    got = jax.jit(forward)(
        placed(policy(), mesh(axes)), problems.prompts, problems.lengths, GROUP, responses
    )
    np.testing.assert_allclose(
        got, response_logits(np, policy(), problems, GROUP, responses), atol=1e-5
    )


def test_in_one_pass_prompts_and_responses_are_the_same(responses: np.ndarray) -> None:
    problems = random_problems(8)

    def together(params, prompts, lengths, tokens):
        last, after = DECODER.forward_prompts_and_responses(
            params, prompts, lengths, tokens[:, :-1], jnp.asarray(GROUP)
        )
        return DECODER.logits(params, jnp.concatenate([last[GROUP][:, None], after], 1))

    got = jax.jit(together)(policy(), problems.prompts, problems.lengths, responses)
    np.testing.assert_allclose(
        got, response_logits(np, policy(), problems, GROUP, responses), atol=1e-5
    )


def test_first_tokens_are_summed_in_blocks_and_no_others(
    responses: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way a sequence is run: whole, its prompt first, or both in one pass."""
    problems = random_problems(8)
    start = problems.lengths[GROUP]
    whole = np.zeros((len(GROUP), P + T), np.int32)
    for row, length, prompt, response in zip(
        whole, start, problems.prompts[GROUP], responses, strict=True
    ):
        row[:length], row[length : length + T] = prompt[:length], response

    def of_whole(params):
        hidden = DECODER.forward(params, jnp.asarray(whole), jnp.zeros(len(whole), jnp.int32))
        return DECODER.logits(
            params, hidden[np.arange(len(whole))[:, None], start[:, None] - 1 + np.arange(T)[None]]
        )

    def one_after_the_other(params):
        return forward(params, problems.prompts, problems.lengths, GROUP, responses)

    def together(params):
        last, after = DECODER.forward_prompts_and_responses(
            params,
            problems.prompts,
            jnp.asarray(problems.lengths),
            responses[:, :-1],
            jnp.asarray(GROUP),
        )
        return DECODER.logits(params, jnp.concatenate([last[GROUP][:, None], after], 1))

    monkeypatch.setattr(
        linear, "sum_in_blocks", lambda added, gated, down, first: added.at[:, first].add(1.0)
    )
    ways = [jax.jit(way)(policy()) for way in (of_whole, one_after_the_other, together)]
    assert np.abs(ways[0] - response_logits(np, policy(), problems, GROUP, responses)).max() > 0.1
    for way in ways[1:]:
        np.testing.assert_allclose(way, ways[0], atol=1e-5)


def test_large_first_activations_are_summed_in_blocks() -> None:
    """At positions 0 and 3, of 1536 inputs of size 20,000: nearer to float64 than one long sum, no
    other position touched, and the same gradient."""
    rng = np.random.default_rng(0)
    gated = rng.normal(size=(4, 6, 1536)).astype(np.float32)
    down = rng.normal(size=(1536, 576)).astype(np.float32)
    gated[:, ::3] *= 20_000
    exact = gated.astype(np.float64) @ down

    def whole(gated, down):
        return gated @ down

    def in_blocks(gated, down):
        return sum_in_blocks(whole(gated, down), gated, down, slice(0, 6, 3))

    plain, got = (np.asarray(jax.jit(f)(gated, down)) for f in (whole, in_blocks))
    first = np.arange(6) % 3 == 0
    np.testing.assert_array_equal(got[:, ~first], plain[:, ~first])
    assert np.abs(got - exact)[:, first].mean() < np.abs(plain - exact)[:, first].mean()
    np.testing.assert_allclose(got[:, first], exact[:, first], atol=1e-6 * np.abs(exact).max())
    d = rng.normal(size=exact.shape).astype(np.float32)
    pulled = [
        jax.jit(lambda x, w, f=f: jax.vjp(f, x, w)[1](jnp.asarray(d)))(gated, down)
        for f in (whole, in_blocks)
    ]
    for one, two in zip(*pulled, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6)


def test_padding_changes_nothing(responses: np.ndarray) -> None:
    problems = random_problems(8)
    padding = np.arange(P)[None] >= problems.lengths[:, None]
    assert padding.any() and (problems.prompts[padding] == PAD).all()
    f = jax.jit(forward)
    one = f(policy(), problems.prompts, problems.lengths, GROUP, responses)
    two = f(
        policy(),
        np.where(padding, 17, problems.prompts).astype(np.int32),
        problems.lengths,
        GROUP,
        responses,
    )
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("unrolled", [True, False])
@pytest.mark.parametrize("width", [1, 2])
def test_decoding_step_by_step_equals_numpy(
    responses: np.ndarray, width: int, unrolled: bool
) -> None:
    """Slots at positions of their own, over caches that hold what an earlier rollout left; groups
    of two share their prompt.
    """
    problems = random_problems(8)
    group = GROUP if width == 1 else GROUP[::2].repeat(2)
    start = problems.lengths[group]
    decoding = Decoding(DECODER, len(group), width, P, T, unrolled)

    @jax.jit
    def begin(params):
        leavings = jax.tree.map(lambda x: x + 9.0, decoding.empty_cache())
        entries, last = decoding.prefill(params, problems.prompts, problems.lengths)
        table = decoding.store_entries(decoding.empty_prefix_table(10), entries, jnp.int32(2))
        cache = decoding.admit(
            leavings, table, jnp.asarray(group[::width] + 2), np.ones(decoding.prefix_groups, bool)
        )
        return decoding.logits(decoding.prepare_weights(params), last[group]), cache

    @jax.jit
    def step(params, cache, tokens, positions, t):
        weights = decoding.prepare_weights(params)
        hidden, cache = decoding.step(weights, cache, tokens, positions, t)
        return decoding.logits(weights, hidden), cache

    expected = response_logits(np, policy(), problems, group, responses)
    first, cache = begin(policy())
    np.testing.assert_allclose(first, expected[:, 0], atol=1e-5)
    for t in range(T - 1):
        got, cache = step(policy(), cache, responses[:, t], start + t, np.full(len(group), t))
        np.testing.assert_allclose(got, expected[:, t + 1], atol=1e-5)


def test_the_samplers_weights_are_transposes() -> None:
    weights = Decoding(DECODER, 4, 1, P, T, unrolled_layers=True).prepare_weights(policy())
    for i, layer in enumerate(weights["blocks"]):
        np.testing.assert_array_equal(
            layer["out"], policy()["blocks"]["out"][i].reshape(-1, CONFIG.width).T
        )
        np.testing.assert_array_equal(
            layer["query"], policy()["blocks"]["query"][i].reshape(CONFIG.width, -1).T
        )
    np.testing.assert_array_equal(weights["unembed"], policy()["unembed"].T)


def test_unrolled_layers_prefill_as_stacked_ones() -> None:
    problems = random_problems(8)
    unrolled = Decoding(DECODER, 4, 1, P, T, unrolled_layers=True, allow_transposed=False)
    stacked = Decoding(DECODER, 4, 1, P, T, unrolled_layers=False)
    (one, one_last), (two, two_last) = (
        jax.jit(
            lambda params, d=d: d.prefill(
                d.prepare_weights(params), problems.prompts, problems.lengths
            )
        )(policy())
        for d in (unrolled, stacked)
    )
    np.testing.assert_allclose(one_last, two_last, atol=1e-5)
    for i, layer in enumerate(one):
        for x, y in zip(layer, two, strict=True):
            np.testing.assert_allclose(x, y[i], atol=1e-5)


def test_attention_over_parts_is_one_softmax() -> None:
    """By hand: scores 0 and log 3 over two parts give weights 1/4 and 3/4; a masked key gives
    nothing."""
    q = jnp.full((1, 1, 1, 1), 1.0)

    def part(key: float, value: float, seen: bool) -> RowSegment:
        keys, values = jnp.full((1, 1, 1, 1), key), jnp.full((1, 1, 1, 1), value)
        return RowSegment(keys, values, jnp.full((1, 1, 1), seen))

    out = attend(q, [part(0.0, 8.0, True), part(np.log(3.0), 4.0, True), part(50.0, 1e6, False)])
    assert float(out[0, 0, 0, 0]) == pytest.approx(8 / 4 + 4 * 3 / 4, rel=1e-6)
    assert np.exp(np.float32(MASKED_SCORE)) == 0


def test_fresh_parameters_have_the_scales_they_should() -> None:
    """Standard deviations: embeddings .5, matrices 1/sqrt(fan in), the two that write to the
    residual also over sqrt(2 layers).
    """
    params = jax.device_get(jax.jit(DECODER.init)(jax.random.key(1)))
    width, deep = CONFIG.width**-0.5, (2 * CONFIG.layers) ** -0.5
    expected = {
        "query": width,
        "key": width,
        "value": width,
        "out": width * deep,
        "gate": width,
        "up": width,
        "down": CONFIG.mlp**-0.5 * deep,
    }
    for name, std in expected.items():
        both = params["blocks"][name]
        assert both.shape[0] == CONFIG.layers and both.std() == pytest.approx(std, rel=0.12), name
        assert np.abs(both[0] - both[1]).max() > std  # the layers are drawn independently
    assert params["embed"].std() == pytest.approx(0.5, rel=0.12)
    assert params["unembed"].std() == pytest.approx(width, rel=0.12)
    assert (params["blocks"]["mlp_norm"] == 1).all() and (params["norm"] == 1).all()
