"""The nucleus against a sort, the inverse-CDF draw by hand, and keys that know the problem, the
rollout and the position.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.sampling.logits import (
    NEG_INF,
    draw_block_size,
    draw_by_blocks,
    first_index_above,
    log_probs,
    nucleus,
    renormalize,
    rollout_keys,
    sample_token,
    uniforms,
)
from tests.device import quick_jit


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_log_probs_at_a_temperature(temperature: float) -> None:
    # weights 1, 2, 5 as logits; at temperature t they are raised to 1/t
    weights = np.array([1.0, 2.0, 5.0]) ** (1 / temperature)
    got = log_probs(jnp.log(jnp.array([[1.0, 2.0, 5.0]])), temperature)
    np.testing.assert_allclose(got[0], np.log(weights / weights.sum()), atol=1e-6)


def test_log_probs_are_float32_and_survive_large_logits() -> None:
    got = log_probs(jnp.array([[1000.0, 990.0, -1000.0]], jnp.bfloat16), 1.0)
    assert got.dtype == jnp.float32
    # bfloat16 holds 992, not 990
    np.testing.assert_allclose(
        got[0], [-np.log1p(np.exp(-8.0)), -8 - np.log1p(np.exp(-8.0)), -2000], rtol=1e-4
    )


def shapes_of_distributions() -> dict[str, np.ndarray]:
    """Logits [12, V]: noise, one token far above all others, nearly flat, long-tailed, and with a
    padded vocabulary."""
    rng = np.random.default_rng(0)
    peaked = rng.normal(0, 1, (12, 2000))
    peaked[np.arange(12), rng.integers(0, 2000, 12)] += np.linspace(4, 60, 12)
    padded = rng.normal(0, 3, (12, 300))
    padded[:, 250:] = -np.inf
    return {
        "noise": rng.normal(0, 3, (12, 500)),
        "peaked": peaked,
        "flat": rng.normal(0, 1e-2, (12, 2000)),
        "tail": -1.5 * np.log(rng.permuted(np.tile(np.arange(1, 2001), (12, 1)), axis=1))
        + rng.normal(0, 0.1, (12, 2000)),
        "padded": padded,
        "two": rng.normal(0, 1, (12, 2)),
    }


def by_sorting(log_p: np.ndarray, mass: float) -> tuple[np.ndarray, np.ndarray]:
    """Top-p as one writes it down, in float64: the tokens from the most probable on until they hold
    `mass`, with those that tie with the last one; and how near `mass` the sum comes to stand, where
    rounding might tell otherwise."""
    p = np.exp(log_p.astype(np.float64))
    inside, margin = np.zeros(p.shape, bool), np.zeros(len(p))
    for row in range(len(p)):
        order = np.argsort(-log_p[row], kind="stable")
        held = np.cumsum(p[row, order])
        last = min(int(np.searchsorted(held, mass)), len(order) - 1)
        inside[row] = log_p[row] >= log_p[row, order[last]]
        margin[row] = np.abs(held - mass).min()
    return inside, margin


@pytest.mark.parametrize("shape", shapes_of_distributions())
def test_the_nucleus_is_the_one_that_sorting_finds(shape: str) -> None:
    """The same tokens wherever float32's sums can tell, and the mass they hold; a mass of its own
    for every row too."""
    log_p = np.asarray(log_probs(jnp.array(shapes_of_distributions()[shape]), 1.0))
    program, compared = jax.jit(nucleus), 0
    masses = [0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 0.999]
    for mass in masses:
        inside, remaining = (np.asarray(x) for x in program(log_p, log_p, mass))
        expected, margin = by_sorting(log_p, mass)
        clear = margin > 2e-6
        np.testing.assert_array_equal(inside[clear], expected[clear])
        held = np.where(inside, np.exp(log_p.astype(np.float64)), 0).sum(-1)
        np.testing.assert_allclose(remaining, held, atol=3e-6)
        assert (remaining > mass - 3e-6).all() and inside[np.arange(12), log_p.argmax(-1)].all()
        compared += int(clear.sum())
    assert compared > 0.8 * 12 * len(masses)
    of_its_own = np.resize(np.array(masses, np.float32), 12)
    inside, _ = (np.asarray(x) for x in program(log_p, log_p, of_its_own))
    for row, mass in enumerate(of_its_own):
        np.testing.assert_array_equal(inside[row], np.asarray(program(log_p, log_p, mass)[0])[row])


@pytest.mark.parametrize("shape", shapes_of_distributions())
def test_a_nucleus_of_all_mass_leaves_out_what_rounds_to_nothing(shape: str) -> None:
    log_p = np.asarray(log_probs(jnp.array(shapes_of_distributions()[shape]), 1.0))
    inside, remaining = (np.asarray(x) for x in jax.jit(nucleus)(log_p, log_p, 1.0))
    left_out = np.where(inside, 0, np.exp(log_p.astype(np.float64))).sum(-1)
    assert left_out.max() < 1e-6 and np.abs(remaining - 1).max() < 3e-6


def test_the_nucleus_is_ranked_by_the_logits_alone() -> None:
    """Whatever rounding does to log-probabilities that all but tie; over all of float32's range,
    either side of zero.
    """
    logits = jnp.array([[3e38, 1.0, 1e-40, 0.0, -0.5, -1e-3, -3e38, -jnp.inf]])
    order = [0, 1, 2, 3, 5, 4, 6, 7]
    equal = jnp.full((1, 8), -np.log(8), jnp.float32) + jnp.array(
        [[0, 0, 1e-7, 0, -1e-7, 0, 1e-7, 0]]
    )
    for size in range(1, 9):
        inside, remaining = nucleus(logits, equal, size / 8 - 1e-3)
        assert np.flatnonzero(inside[0]).tolist() == sorted(order[:size])
        assert float(remaining[0]) == pytest.approx(size / 8, abs=1e-6)


@pytest.mark.parametrize(
    ("p", "mass", "inside"),
    [
        ([0.4, 0.3, 0.2, 0.1], 0.69, [1, 1, 0, 0]),
        ([0.4, 0.3, 0.2, 0.1], 0.71, [1, 1, 1, 0]),
        ([0.1, 0.2, 0.3, 0.4], 0.05, [0, 0, 0, 1]),
        ([0.25, 0.25, 0.25, 0.25], 0.1, [1, 1, 1, 1]),  # all tie with the last one
        ([0.5, 0.2, 0.2, 0.1], 0.6, [1, 1, 1, 0]),
        ([0.5, 0.2, 0.2, 0.1], 0.45, [1, 0, 0, 0]),
        ([1.0, 0.0, 0.0, 0.0], 0.999, [1, 0, 0, 0]),
        ([1.0, 0.0, 0.0, 0.0], 1.0, [1, 0, 0, 0]),  # whose mass is just enough
    ],
)
def test_the_nucleus_by_hand(p: list[float], mass: float, inside: list[int]) -> None:
    """Tokens that tie with the last one are kept with it; renormalised over the nucleus, the rest
    cannot be drawn."""
    with np.errstate(divide="ignore"):
        log_p = jnp.log(jnp.array([p], jnp.float32))
    got, remaining = nucleus(log_p, log_p, mass)
    assert got[0].astype(int).tolist() == inside
    total = float(np.dot(p, inside))
    assert float(remaining[0]) == pytest.approx(total, rel=1e-6)
    again = np.asarray(renormalize(log_p, got))[0]
    np.testing.assert_allclose(np.exp(again), np.array(p) * inside / total, rtol=1e-6)
    assert (again[~np.array(inside, bool)] == np.float32(NEG_INF)).all()
    tokens, _ = jax.vmap(sample_token, (None, 0))(
        jnp.array([again]), jnp.linspace(0, 1 - 2**-23, 101, dtype=jnp.float32)[:, None]
    )
    assert set(np.asarray(tokens).reshape(-1).tolist()) == {
        i for i, remaining in enumerate(inside) if remaining and p[i]
    }


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 1), (0.2499, 1), (0.2501, 2), (0.7499, 2), (0.7501, 4), (1 - 2**-23, 4)],
)
def test_draw_by_hand(uniform: float, token: int) -> None:
    """Probabilities 0, 1/4, 1/2, 0, 1/4, 0: what has none is never drawn, at either end."""
    p = jnp.array([[0, 0.25, 0.5, 0, 0.25, 0]])
    got, logp = sample_token(jnp.log(p), jnp.array([uniform], jnp.float32))
    assert int(got[0]) == token
    assert float(logp[0]) == pytest.approx(np.log(p[0, token]), rel=1e-6)


def test_rows_of_any_number_of_axes_are_alike() -> None:
    """[m T V] as the trainer has them, with a nucleus of another mass for each."""
    logits = jnp.array(shapes_of_distributions()["noise"], jnp.float32)
    masses = jnp.linspace(0.1, 0.95, 12)

    @quick_jit
    def all_of(logits: jax.Array, masses: jax.Array) -> list[jax.Array]:
        log_p = log_probs(logits, 0.7)
        inside, mass = nucleus(logits, log_p, masses)
        return [log_p, inside, mass, renormalize(log_p, inside)]

    together = all_of(logits.reshape(4, 3, -1), masses.reshape(4, 3))
    for one, other in zip(together, all_of(logits, masses), strict=True):
        np.testing.assert_allclose(one.reshape(other.shape), other, rtol=1e-5)


COUNTS = np.array([[0, 4, 0, 3, 0, 0, 0, 0, 1, 0, 8, 0], [16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize("block_size", [1, 4, 6])
def test_a_draw_by_blocks_is_the_draw_from_all(block_size: int) -> None:
    """Of probabilities that are sixteenths, whose sums are exact, at their edges too: the j-th
    sixteenth belongs to the token that the j-th of COUNTS is of. What the sum is makes no
    difference."""
    cases = [(row, scale, u) for row in COUNTS for scale in (1.0, 0.5, 4.0) for u in range(32)]
    p = np.array([row * scale / 16 for row, scale, _ in cases], np.float32)
    uniform = np.array([u / 32 for _, _, u in cases], np.float32)
    expected = [np.arange(12).repeat(row)[u // 2] for row, _, u in cases]
    draw = quick_jit(partial(draw_by_blocks, block_size=block_size))
    assert draw(p, uniform).tolist() == expected


def test_a_draw_of_log_probs_that_do_not_sum_to_one() -> None:
    """Of 1/4 and 1/4, half of which is the first's."""
    log_p = jnp.log(jnp.full((3, 2), 0.25))
    tokens, logps = sample_token(log_p, jnp.array([0.0, 0.49, 0.51]))
    assert tokens.tolist() == [0, 0, 1]
    np.testing.assert_allclose(logps, np.log(0.25) * np.ones(3), rtol=1e-6)


def test_the_first_index_whose_sum_is_above() -> None:
    """Sums 0, 1/4, 3/4, 3/4, 1, 1: at a sum the next token begins; the last that may be drawn where
    none is above."""
    p = jnp.broadcast_to(jnp.array([0, 0.25, 0.5, 0, 0.25, 0]), (7, 6))
    mass = jnp.array([0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5])
    assert first_index_above(p, mass).tolist() == [1, 1, 2, 2, 4, 4, 4]


@pytest.mark.parametrize(
    ("V", "size"),
    [
        (64, 64),
        (512, 64),  # eight blocks
        (4096, 512),
        (50257, 50257),  # a product of 29 and a larger prime
        (49152, 512),
        (151_936, 64),  # 2374 blocks of 64 are shared by two devices; of no other size by more
        (1030, 103),  # ten blocks, of which two devices have five each; of 206, 5 cannot be halved
    ],
)
def test_blocks_are_shared_by_as_many_devices_as_can_be(V: int, size: int) -> None:
    assert draw_block_size(V) == size


def test_the_last_uniform_never_draws_a_token_without_probability() -> None:
    """A real vocabulary: rounding of 50,000 sums must not push the largest uniform of jax.random
    past the last token that may be drawn.
    """
    logits = np.random.default_rng(0).normal(0, 2, (64, 50_000)).astype(np.float32)
    logits[:, -100:] = -np.inf  # rows that pad a vocabulary
    tokens, logps = jax.jit(sample_token)(
        log_probs(jnp.array(logits), 1.0), jnp.full(64, 1 - 2**-23, jnp.float32)
    )
    assert (np.asarray(tokens) < 50_000 - 100).all()
    assert np.isfinite(logps).all()


def test_uniforms_differ_by_problem_rollout_position_and_key_and_by_nothing_else() -> None:
    problem, rollout = (x.reshape(-1) for x in np.mgrid[0:20, 0:30].astype(np.int32))
    both = []
    for key in (jax.random.key(0), jax.random.key(1)):
        for position in (0, 1):
            keys = rollout_keys(key, problem, rollout)
            both.append(np.asarray(uniforms(keys, np.full(600, position, np.int32))))
            mixed = np.random.default_rng(2).permutation(600)  # other slots
            again = uniforms(
                rollout_keys(key, problem[mixed], rollout[mixed]), np.full(600, position, np.int32)
            )
            np.testing.assert_array_equal(again, both[-1][mixed])
    every = np.stack(both)
    assert len(np.unique(every)) > 0.999 * every.size
    assert every.min() >= 0 and every.max() < 1
    assert abs(every.mean() - 0.5) < 4 / np.sqrt(12 * every.size)
    correlations = np.corrcoef(every)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(600)
