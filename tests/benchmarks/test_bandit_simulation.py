"""One training problem (paper's Appendix H): an update's mean and covariance by enumeration, its samples by a loop, the
rate in updates.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.bandit.budgets import grid, slope
from benchmarks.bandit.simulate import Bandit, exact_gradient, one_right_arm, sampled_gradient, simulate, suboptimality
from isojax.core.errors import InputError

MEANS = np.array([0.9, 0.5, 0.2, 0.0, 1.0])
THETA = np.array([0.3, -1.0, 0.8, 0.1, -0.4])


def softmax(theta: np.ndarray) -> np.ndarray:
    e = np.exp(theta - theta.max())
    return e / e.sum()


def enumerated(n: int, advantage: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of 1/n sum A_i (e_{a_i} - pi) over all (2 K)^n outcomes."""
    pi, K = softmax(THETA), len(THETA)
    chance = np.concatenate([pi * MEANS, pi * (1 - MEANS)])
    mean, square = np.zeros(K), np.zeros((K, K))
    for outcome in np.ndindex(*([2 * K] * n)):
        arms, rewards = np.array(outcome) % K, (np.array(outcome) < K).astype(float)
        g = (advantage(rewards)[:, None] * (np.eye(K)[arms] - pi)).mean(0)
        mean += np.prod(chance[list(outcome)]) * g
        square += np.prod(chance[list(outcome)]) * np.outer(g, g)
    return mean, square - np.outer(mean, mean)


def others(rewards: np.ndarray) -> np.ndarray:
    return np.array([r - np.delete(rewards, i).mean() for i, r in enumerate(rewards)])


def draws(n: int, baseline: str, count: int = 20_000) -> np.ndarray:
    theta, means = jnp.float32(THETA), jnp.float32(MEANS)
    keys = jax.random.split(jax.random.key(7), count)
    return np.asarray(jax.jit(jax.vmap(lambda key: sampled_gradient(theta, means, key, n, baseline)))(keys), np.float64)


def test_the_exact_gradient_by_hand_and_by_differentiation() -> None:
    """pi = (1/2, 1/2) with means (1, 0): d/d theta_0 of pi_0 is pi_0 (1 - pi_0) = 1/4."""
    assert exact_gradient(jnp.zeros(2), jnp.array([1.0, 0.0])) == pytest.approx([0.25, -0.25])
    theta, means = jnp.float32(THETA), jnp.float32(MEANS)
    of_reward = jax.grad(lambda theta: jax.nn.softmax(theta) @ means)(theta)
    np.testing.assert_allclose(exact_gradient(theta, means), of_reward, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        exact_gradient(theta, means), -jax.grad(suboptimality)(theta, means), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize(("n", "baseline"), [(1, "none"), (2, "none"), (2, "leave_one_out"), (3, "leave_one_out")])
def test_an_updates_mean_and_covariance_are_those_of_all_outcomes(n: int, baseline: str) -> None:
    mean, covariance = enumerated(n, others if baseline == "leave_one_out" else lambda r: r)
    np.testing.assert_allclose(
        mean, softmax(THETA) * (MEANS - softmax(THETA) @ MEANS), atol=1e-12
    )  # the exact gradient, whatever the baseline
    found = draws(n, baseline)
    error = np.sqrt(np.diag(covariance) / len(found))
    assert np.all(np.abs(found.mean(0) - mean) < 4.5 * error)
    np.testing.assert_allclose(np.cov(found.T), covariance, atol=0.03 * np.diag(covariance).max())


def test_the_variance_falls_as_one_over_n() -> None:
    of_one = np.trace(enumerated(1, lambda r: r)[1])
    for n in (4, 16, 64):
        assert n * np.trace(np.cov(draws(n, "none").T)) == pytest.approx(of_one, rel=0.03)


@pytest.mark.parametrize("baseline", ["none", "leave_one_out"])
def test_counting_arms_equals_a_loop_over_samples(baseline: str) -> None:
    """The same uniforms, read one sample at a time."""
    pi, K, n, key = softmax(THETA), len(THETA), 37, jax.random.key(3)
    edges = np.cumsum(np.concatenate([pi * MEANS, pi * (1 - MEANS)]))
    cells = [int(np.searchsorted(edges[:-1], u, side="right")) for u in np.asarray(jax.random.uniform(key, (n,)))]
    rewards = np.array([1.0 if cell < K else 0.0 for cell in cells])
    advantages = others(rewards) if baseline == "leave_one_out" else rewards
    expected = sum(A * (np.eye(K)[cell % K] - pi) for A, cell in zip(advantages, cells, strict=True)) / n
    found = sampled_gradient(jnp.float32(THETA), jnp.float32(MEANS), key, n, baseline)
    np.testing.assert_allclose(found, expected, atol=2e-7)


def test_exact_dynamics_are_those_of_a_loop_in_float64() -> None:
    bandit, at = one_right_arm(10, 0.1, 0.1), [1, 30, 1000]
    theta, expected = bandit.logits.copy(), {}
    for t in range(1, at[-1] + 1):
        pi = softmax(theta)
        theta += 0.5 * pi * (bandit.means - pi @ bandit.means)
        expected[t] = softmax(theta)[1:].sum() * 0.8
    found = {t: values for t, values in simulate(bandit, None, at, 0.5, 2, 0)}
    for t in at:
        np.testing.assert_allclose(found[t], [expected[t]] * 2, rtol=1e-4)
    assert found[1][0] == pytest.approx(0.72, abs=0.01) and found[1000][0] < 0.003


RATES = [(1, 0.2, 0.0, "none"), (1, 0.5, 0.1, "none"), (4, 0.5, 0.1, "none"), (32, 0.5, 0.1, "none"), (8, 0.5, 0.0, "leave_one_out"),
         (32, 1.0, 0.25, "none")]  # fmt: skip


@pytest.mark.parametrize(("n", "learning_rate", "noise", "baseline"), RATES)
def test_suboptimality_falls_as_one_over_t(n: int, learning_rate: float, noise: float, baseline: str) -> None:
    """Appendix H: O(A / (n t) + B / t). The slope in log-log, -1 +- .1; and no constant of it (an upper bound says
    nothing of those).
    """
    at = grid(3_000)
    values = np.array([v for _, v in simulate(one_right_arm(10, 0.3, noise), n, at, learning_rate, 64, 0, baseline)])
    found, error = slope(at, values)
    assert error < 0.04
    assert found == pytest.approx(-1.0, abs=0.1)


def test_too_large_a_learning_rate_breaks_the_rate_for_one_sample_an_update() -> None:
    """The check above can fail: at learning rate 4 with a noisy verifier, runs of n = 1 settle on wrong arms."""
    at = grid(1_000)
    values = np.array([v for _, v in simulate(one_right_arm(10, 0.1, 0.25), 1, at, 4.0, 96, 0)])
    assert slope(at, values)[0] > -0.5
    assert np.mean(values[-1] > 0.25) > 0.5


def test_a_draw_belongs_to_its_seed_n_repetition_and_update() -> None:
    bandit = one_right_arm(4, 0.3, 0.2)
    few = np.array([v for _, v in simulate(bandit, 2, [5, 20], 0.5, 3, 1)])
    more = np.array([v for _, v in simulate(bandit, 2, [1, 5, 7, 20, 30], 0.5, 6, 1)])
    np.testing.assert_array_equal(few, more[[1, 3], :3])
    other = np.array([v for _, v in simulate(bandit, 2, [5, 20], 0.5, 3, 2)])
    assert not np.any(few == other)


def test_the_first_policy_has_the_pass_rate_asked_for() -> None:
    """p = .2 on a right arm worth .9, .8 on wrong ones worth .1: (1 - .2) x .8 is missing."""
    bandit = one_right_arm(5, 0.2, 0.1)
    np.testing.assert_allclose(softmax(bandit.logits), [0.2, 0.2, 0.2, 0.2, 0.2])
    bandit = one_right_arm(100, 0.01, 0.1)
    assert softmax(bandit.logits)[0] == pytest.approx(0.01)
    assert float(suboptimality(jnp.float32(bandit.logits), jnp.float32(bandit.means))) == pytest.approx(
        0.99 * 0.8, rel=1e-5
    )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: one_right_arm(1, 0.5), "at least 2"),
        (lambda: one_right_arm(3, 1.0), "p = 1"),
        (lambda: one_right_arm(3, float("nan")), "p = nan"),
        (lambda: one_right_arm(3, 0.5, 0.5), "noise = 0.5"),
        (lambda: next(simulate(Bandit(MEANS, THETA), 1, [1], 0.1, 2, 0, "leave_one_out")), "n of at least 2"),
        (lambda: next(simulate(Bandit(MEANS, THETA), 2, [1], 0.1, 2, 0, "value")), "'value'"),
    ],
)
def test_what_cannot_be_simulated_is_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()
