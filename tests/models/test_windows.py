"""Sliding layers in the ways of running that tests/models/agreement.py has not: prompts and
responses in one pass, a prompt that several slots share, positions split over devices, a cache in
int8, kernels. Windows are shorter than the prompts and than the responses; transformers' logits
(references/) are what must come out."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.models.attention import self_attention
from isojax.models.decode import Decoding
from isojax.models.kernels.prefix import PrefixKV
from isojax.models.stack import AttentionShape
from isojax.models.transformer import ComputeOptions, Decoder
from tests.device import mesh, quick_jit
from tests.models.test_attention import far, rows, with_gradients
from tests.models.test_families import MOST, REFERENCES, model_of

pytestmark = pytest.mark.seconds(14)

NAMES = ("qwen2_sliding", "mistral", "gemma3")  # windows 7, 6 and 5
# Of qwen2_sliding one layer sees all positions and two slide: each way of running has it. Of
# mistral all layers slide; gemma3 has stacks of sliding layers on both sides of one that does not:
# of these, each way of running that keeps rings has what it could get wrong.
BOTH_KINDS, ALL_SLIDE, THREE_STACKS = NAMES
# of prompts, and tokens after each
LENGTHS = np.array([23, 9, 12], np.int32)
RESPONSE = 14
SLOTS = np.array([0, 0, 1, 1, 2, 2])  # the prompt of each slot


class Batch(NamedTuple):
    prompts: np.ndarray  # [3 P]
    responses: np.ndarray  # [6 T], two to a prompt
    logits: np.ndarray  # [6 T+1 V], from each prompt's last token on


@cache
def batch_of(name: str) -> Batch:
    """The first response to each prompt goes on as a row of the reference, with transformers'
    logits. The second is random, with those of our whole pass, which test_families.py compares with
    transformers'."""
    decoder, params = model_of(name)
    reference = np.load(REFERENCES / name / "batch.npz")
    of_rows = [0, 2, 3]  # of 40, 23 and 31 tokens
    whole = np.zeros((len(SLOTS), LENGTHS.max() + RESPONSE), np.int32)
    random_tokens = np.random.default_rng(0).integers(3, decoder.vocab, (len(SLOTS), RESPONSE))
    for slot, prompt in enumerate(SLOTS):
        length = LENGTHS[prompt]
        whole[slot, : length + RESPONSE] = reference["tokens"][of_rows[prompt], : length + RESPONSE]
        if slot % 2:
            whole[slot, length : length + RESPONSE] = random_tokens[slot]

    hidden = quick_jit(lambda p: decoder.forward(p, whole, np.zeros(len(SLOTS), np.int32)))(params)
    logits = np.array(decoder.logits(params, hidden))
    for slot in range(0, len(SLOTS), 2):
        logits[slot] = reference["logits"][of_rows[SLOTS[slot]], : whole.shape[1]]

    at = LENGTHS[SLOTS][:, None] - 1 + np.arange(RESPONSE + 1)[None]
    each = np.arange(len(SLOTS))[:, None]
    prompts = np.where(
        np.arange(LENGTHS.max())[None] < LENGTHS[:, None], whole[::2, : LENGTHS.max()], 0
    )
    return Batch(prompts, whole[each, at[:, 1:]], logits[each, at])


def test_the_window_is_shorter_than_prompts_and_responses() -> None:
    for name in NAMES:
        decoder, _ = model_of(name)
        windows = [
            stack.attention.window for stack in decoder.stacks if stack.attention.window is not None
        ]
        assert windows and max(windows) < min(LENGTHS.min(), RESPONSE)


@pytest.mark.parametrize(
    ("axes", "name"),
    [*(("auto", name) for name in NAMES), ("data=2,fsdp=2,tensor=2", BOTH_KINDS)],
)
def test_prompts_and_responses_in_one_pass(name: str, axes: str) -> None:
    decoder, params = model_of(name)
    prompts, responses, expected = batch_of(name)
    if axes != "auto":
        params = jax.device_put(params, decoder.shardings(mesh(axes)))

    @quick_jit
    def together(params: Any) -> Any:
        slots = jnp.asarray(SLOTS)
        last, after = decoder.forward_prompts_and_responses(
            params, prompts, jnp.asarray(LENGTHS), responses, slots
        )
        return decoder.logits(params, jnp.concatenate([last[slots][:, None], after], 1))

    np.testing.assert_allclose(together(params), expected, atol=MOST)


def decoded(decoding: Decoding, params: Any, prompts: Any, responses: Any) -> Any:
    """Logits [R T+1 V] from the prompts' last token on, one token of each response at a time; slots
    held other sequences before."""
    decoder = decoding.decoder
    start = jnp.asarray(LENGTHS)[SLOTS]
    weights = decoding.prepare_weights(params)
    entries, last = decoding.prefill(params, prompts, jnp.asarray(LENGTHS))
    leavings = jax.tree.map(lambda x: x + jnp.ones((), x.dtype), decoding.empty_cache())
    table = decoding.store_entries(decoding.empty_prefix_table(4), entries, jnp.int32(1))
    groups = jnp.asarray(SLOTS[:: decoding.slots_per_prefix]) + 1
    cache = decoding.admit(leavings, table, groups, jnp.ones(decoding.prefix_groups, bool))

    def step(carry: Any, token: Any) -> Any:
        cache, t = carry
        hidden, cache = decoding.step(weights, cache, token, start + t, t)
        return (cache, t + 1), decoding.logits(weights, hidden)

    _, logits = jax.lax.scan(step, (cache, jnp.zeros_like(start)), responses.T)
    first = decoder.logits(params, last)[SLOTS]
    return jnp.concatenate([first[:, None], logits.swapaxes(0, 1)], 1)


def make_decoding(
    decoder: Decoder, slots_per_prefix: int, unrolled: bool, shard_positions: bool = False
) -> Decoding:
    return Decoding(
        decoder,
        slots=len(SLOTS),
        slots_per_prefix=slots_per_prefix,
        prefix_length=24 if shard_positions else int(LENGTHS.max()),
        response_length=RESPONSE,
        unrolled_layers=unrolled,
        shard_positions=shard_positions,
    )


@pytest.mark.parametrize(
    ("unrolled", "slots_per_prefix", "name"),
    [
        (False, 1, BOTH_KINDS),
        (False, 2, BOTH_KINDS),
        (True, 1, BOTH_KINDS),
        (True, 2, BOTH_KINDS),
        (False, 1, ALL_SLIDE),
        (True, 2, ALL_SLIDE),
        (False, 2, THREE_STACKS),
    ],
)
def test_rings_of_prompts_and_of_slots(name: str, slots_per_prefix: int, unrolled: bool) -> None:
    decoder, params = model_of(name)
    prompts, responses, expected = batch_of(name)
    decoding = make_decoding(decoder, slots_per_prefix, unrolled)
    got = quick_jit(partial(decoded, decoding))(params, prompts, responses)
    np.testing.assert_allclose(got, expected, atol=MOST)


@pytest.mark.parametrize(
    ("axes", "name"),
    [
        (None, BOTH_KINDS),
        (None, ALL_SLIDE),
        pytest.param("data=2,fsdp=2,tensor=2", BOTH_KINDS, marks=pytest.mark.slow),
    ],
)
def test_the_kernel_of_a_tpu_takes_rings(name: str, axes: str | None) -> None:
    """Prompts of unequal lengths, longer than the windows, and responses that go round their rings
    again."""
    decoder, params = model_of(name)
    decoding = make_decoding(
        decoder.with_options(ComputeOptions(decode_attention="interpret")), 1, unrolled=False
    )
    prompts, responses, expected = batch_of(name)
    with jax.set_mesh(mesh(axes)) if axes else nullcontext():
        if axes:
            params = jax.device_put(params, decoder.shardings(mesh(axes)))
        got = jax.device_get(quick_jit(partial(decoded, decoding))(params, prompts, responses))
    np.testing.assert_allclose(got, expected, atol=MOST)


@pytest.mark.parametrize("slots_per_prefix", [1, 2])
def test_a_sliding_layer_holds_its_window_alone(slots_per_prefix: int) -> None:
    decoder, _ = model_of("gemma3")
    decoding = make_decoding(decoder, slots_per_prefix, unrolled=True)
    cache = jax.eval_shape(decoding.empty_cache)
    positions = [kv[1].shape[2] for kv in cache.slot_kv]
    whole = RESPONSE if slots_per_prefix == 2 else RESPONSE + LENGTHS.max()
    assert positions == [5, 5, 5, 5, 5, whole, 5, 5]
    if slots_per_prefix == 2:
        assert [kv[1].shape[2] for kv in cache.prefix_kv] == [5, 5, 5, 5, 5, LENGTHS.max(), 5, 5]


def test_a_ring_is_no_larger_than_rows() -> None:
    shape = AttentionShape(heads=2, kv_heads=1, head_dim=4, window=6)
    assert [shape.ring_size(positions) for positions in (3, 6, 40)] == [3, 6, 6]
    assert AttentionShape(heads=2, kv_heads=1, head_dim=4, window=None).ring_size(40) == 40


@pytest.mark.parametrize(
    ("axes", "slots_per_prefix", "name"),
    [
        ("sequence=4,tensor=2", 1, BOTH_KINDS),
        ("data=2,sequence=2,tensor=2", 2, BOTH_KINDS),
        ("sequence=4,tensor=2", 1, ALL_SLIDE),
    ],
)
def test_positions_split_over_devices(name: str, axes: str, slots_per_prefix: int) -> None:
    """23 positions of prompts are 24 on devices that share them."""
    decoder, params = model_of(name)
    prompts, responses, expected = batch_of(name)
    on = mesh(axes)
    decoding = make_decoding(decoder, slots_per_prefix, unrolled=False, shard_positions=True)
    with jax.set_mesh(on):
        params = jax.device_put(params, decoder.shardings(on))
        got = jax.device_get(quick_jit(partial(decoded, decoding))(params, prompts, responses))
    np.testing.assert_allclose(got, expected, atol=MOST)


@pytest.mark.slow
def test_an_int8_cache_has_rings_too() -> None:
    """Keys and values rounded to 1 / 127 of their largest: logits of standard deviation 3 and more
    move a little, and as much with rings as with one long cache of the same values."""
    decoder, params = model_of(BOTH_KINDS)
    prompts, responses, expected = batch_of(BOTH_KINDS)
    low = decoder.with_options(ComputeOptions(cache_dtype="int8"))
    got = quick_jit(partial(decoded, make_decoding(low, 1, unrolled=False)))(
        params, prompts, responses
    )
    cache = jax.eval_shape(make_decoding(low, 1, unrolled=False).empty_cache)
    assert jnp.dtype("int8") in {x.dtype for x in jax.tree.leaves(cache)}
    by_kernel = low.with_options(ComputeOptions(cache_dtype="int8", decode_attention="interpret"))
    same = quick_jit(partial(decoded, make_decoding(by_kernel, 1, unrolled=False)))(
        params, prompts, responses
    )
    np.testing.assert_allclose(same, got, atol=MOST)

    off = np.asarray(got) - expected
    assert MOST < np.sqrt(np.mean(off**2)) < 0.05 * expected.std(), (
        np.sqrt(np.mean(off**2)),
        expected.std(),
    )


# Kernels.


@pytest.mark.parametrize(
    ("t", "p", "window"), [(140, 130, 4), (140, 130, 133), (140, 0, 60), (5, 260, 200)]
)
def test_splash_knows_windows(t: int, p: int, window: int) -> None:
    """With prefixes that are shorter than their room, of which a window sees the end alone; and the
    gradients."""
    arrays, live = rows(3, t, p, 6, 2, 64), jnp.array([0, p, p // 2])

    def attend(implementation: str, q: Any, k: Any, v: Any, prefix: Any) -> Any:
        return self_attention(
            implementation, q, k, v, PrefixKV(*prefix[:2], live) if prefix else None, window
        )

    got, want = (
        with_gradients(partial(attend, implementation), arrays)
        for implementation in ("interpret", "plain")
    )
    for one, two in zip(got, want, strict=True):
        assert far(one, two) < 1e-5


def test_a_window_is_a_loop() -> None:
    """The plain form: token i sees positions j of its row and prefix with i - window < j <= i."""
    window, live = 4, np.array([0, 5, 3])
    arrays = rows(3, 6, 5, 4, 2, 8)
    q, k, v, prefix_keys, prefix_values = (np.asarray(x, np.float64) for x in arrays)
    prefix = PrefixKV(*arrays[3:], jnp.asarray(live))
    attend = quick_jit(partial(self_attention, "plain", window=window))
    out = np.asarray(attend(*arrays[:3], prefix))
    for b, length in enumerate(live):
        keys = np.concatenate([prefix_keys[b, :, :length], k[b]], 1)  # [K length+t H]
        values = np.concatenate([prefix_values[b, :, :length], v[b]], 1)
        for i in range(6):
            last = length + i
            seen = slice(max(0, last - window + 1), last + 1)
            for n in range(4):
                scores = keys[n // 2, seen] @ q[b, i, n] * 8**-0.5
                weights = np.exp(scores - scores.max())
                expected = weights @ values[n // 2, seen] / weights.sum()
                np.testing.assert_allclose(out[b, i, n], expected, rtol=2e-5, atol=1e-6)
