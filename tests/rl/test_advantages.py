"""Group-normalised advantages against a loop in NumPy, and the groups without an advantage."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import RLConfig
from isojax.rl.advantages import EPS, RewardedBatch, zero_variance
from isojax.rl.advantages.batch import batch_standardized
from isojax.rl.advantages.group import group as group_plugin
from isojax.rl.advantages.whiten import whiten
from isojax.rl.algorithm import resolve_algorithm
from isojax.rl.recipe_checks import check_plugins
from tests.device import quick_jit
from tests.refusals import refused

ROWS, GROUPS = 100, 20
DECORATOR = "from isojax.rl.advantages import advantage\n\n\n@advantage\n"


@jax.jit
def group(rewards, groups, live, n):
    inputs = RewardedBatch(
        jnp.where(live, rewards, 0), jnp.ones_like(groups), groups, live, n, GROUPS
    )
    return group_plugin(inputs), zero_variance(inputs)


def run(rewards, n):
    """The rollouts of the batch in a buffer with dead rows behind them, whose rewards are
    nonsense."""
    B = len(rewards)
    padded = np.full(ROWS, 77.0, np.float32)
    padded[:B] = rewards
    groups = np.where(np.arange(ROWS) < B, np.arange(ROWS) // n, 0)
    out, zero_variance = group(
        jnp.array(padded), jnp.array(groups), jnp.arange(ROWS) < B, jnp.int32(n)
    )
    assert (np.asarray(out)[B:] == 0).all()
    # else the metric would count padding, as if above 1
    assert not np.asarray(zero_variance)[B:].any()
    return np.asarray(out)[:B], float(np.asarray(zero_variance)[:B].mean())


@pytest.mark.parametrize(("B_p", "n"), [(13, 7), (3, 5), (16, 2), (1, 4)])
def test_against_a_loop(B_p: int, n: int) -> None:
    rewards = np.random.default_rng(B_p).normal(size=B_p * n)
    got, zero_variance = run(rewards, n)
    for p in range(B_p):
        ours = rewards[p * n : (p + 1) * n]
        np.testing.assert_allclose(
            got[p * n : (p + 1) * n],
            (ours - ours.mean()) / (ours.std(ddof=1) + 1e-6),
            rtol=2e-5,
            atol=1e-6,
        )
    assert zero_variance == 0


def test_by_hand() -> None:
    # rewards 1 0 0 0: mean 1/4, sum of squares 9/16 + 3/16 = 3/4, over n - 1 = 3 gives std 1/2:
    # advantages 3/2 and -1/2
    got, zero_variance = run([1, 0, 0, 0, 1, 1, 1, 1], 4)
    np.testing.assert_allclose(got, [1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0], atol=1e-5)
    assert zero_variance == 0.5  # one group of the two that were used


@pytest.mark.parametrize("n", [3, 7, 11])
def test_equal_rewards_teach_nothing(n: int) -> None:
    # .1 and 1/3 are no binary fractions: their mean need not equal them
    for reward in (0.1, 1 / 3, 1.0):
        got, zero_variance = run([reward] * (2 * n), n)
        assert (got == 0).all()
        assert zero_variance == 1


def test_a_group_of_one_has_no_advantage() -> None:
    got, zero_variance = run([1.0, 0.0, 1.0], 1)
    assert got.tolist() == [0, 0, 0]
    assert zero_variance == 1


def test_rewards_that_are_nearly_equal() -> None:
    """Two that are 1e-6 apart differ: +-.5e-6 over their standard deviation .5e-6 sqrt 2, to which
    1e-6 is added, make +-.5 / (sqrt .5 + 1). Nearer ones are equal."""
    rows = jnp.arange(2)
    inputs = RewardedBatch(
        jnp.array([0, EPS]), jnp.ones_like(rows), rows * 0, rows >= 0, jnp.int32(2), GROUPS
    )
    size = 0.5 / (0.5**0.5 + 1)
    for plugin in (group_plugin, batch_standardized):
        estimator = quick_jit(lambda inputs, plugin=plugin: plugin(inputs._replace(num_groups=1)))
        np.testing.assert_allclose(estimator(inputs), [-size, size], rtol=1e-4)
        nearer = inputs._replace(rewards=jnp.array([0, 0.9 * EPS]))
        assert estimator(nearer).tolist() == [0, 0]


def test_whitened_rewards_that_are_all_equal_are_0() -> None:
    """And of rewards 0 and 1, of one token each, the standard deviation is sqrt .5."""
    rows = jnp.arange(3)
    inputs = RewardedBatch(
        jnp.array([0.5, 0.5, 9]), jnp.ones_like(rows), rows * 0, rows < 2, jnp.int32(2), GROUPS
    )
    assert whiten(inputs).tolist() == [0, 0, 0]
    differing = inputs._replace(rewards=jnp.array([0.0, 1, 9]))
    np.testing.assert_allclose(whiten(differing), [-(0.5**0.5), 0.5**0.5, 0], rtol=1e-5)


def test_padding_rows_belong_to_no_group() -> None:
    """Two groups of 2 in a buffer of 7 rows. The padding rows say group 0, as they do in every cell
    smaller than the buffer, and hold numbers of their own: group 0's sum is 1 + 2, not 1 + 2 + 100
    * 3.
    """
    valid = jnp.arange(7) < 4
    groups = jnp.array([0, 0, 1, 1, 0, 0, 0])
    values = jnp.array([1.0, 2, 3, 4, 100, 100, 100])
    inputs = RewardedBatch(
        jnp.where(valid, values, 0), jnp.ones_like(groups), groups, valid, jnp.int32(2), GROUPS
    )

    sums = np.asarray(inputs.group_sum(values))[:4]
    sizes = np.asarray(inputs.group_sum(jnp.ones(7)))[:4]

    assert sums.tolist() == [3, 3, 7, 7]
    assert sizes.tolist() == [2, 2, 2, 2]


def test_groups_of_equal_rewards_are_counted_without_the_padding() -> None:
    """Rewards 1 1 | 0 1: one group of two is level. The padding rows, whose rewards are 0, say
    group 0 too."""
    valid = jnp.arange(7) < 4
    groups = jnp.array([0, 0, 1, 1, 0, 0, 0])
    rewards = jnp.array([1.0, 1, 0, 1, 0, 0, 0])
    inputs = RewardedBatch(rewards, jnp.ones_like(groups), groups, valid, jnp.int32(2), GROUPS)

    level = np.asarray(zero_variance(inputs))

    assert level.tolist() == [True, True, False, False, False, False, False]
    below = zero_variance(inputs._replace(rewards=jnp.array([-1.0, -1, 0, 1, 0, 0, 0])))
    assert below.tolist() == level.tolist()


def test_groups_across_shards() -> None:
    """Rollouts 0..5 of two groups of 3 on two shards of 4 rows: 0 1 2 3 - and 4 5 - -."""
    rewards = jnp.array([[1.0, 0, 0, 1], [1, 0, 9, 9]])
    groups = jnp.array([[0, 0, 0, 1], [1, 1, 0, 0]])
    live = jnp.array([[True] * 4, [True, True, False, False]])
    out, _ = group(rewards, groups, live, jnp.int32(3))
    # mean 1/3, std sqrt((4/9 + 1/9 + 1/9) / 2) = 3**-0.5: 2/3 and -1/3 times sqrt 3; then 1 1 0
    a = 3**-0.5
    np.testing.assert_allclose(out, [[2 * a, -a, -a, a], [a, -2 * a, 0, 0]], atol=1e-5)


def test_the_batch_of_a_filtered_loss_holds_no_zero_variance_group() -> None:
    """Four groups of 4, two with rewards 1 1 0 0 and two whose rewards are equal: less their means,
    eight of +-1/2 and eight 0, a sum of squares of 2. Filtered, the standard deviation is that of 8
    rollouts, sqrt(2 / 7), and advantages are +-.5 / .53452 = .93541; unfiltered that of all 16,
    sqrt(2 / 15), and they are .5 / .36515 = 1.36931.
    """
    rewards = jnp.array([1.0, 1, 0, 0, 1, 1, 0, 0, *[1] * 4, *[0] * 4])
    rows = jnp.arange(16)
    inputs = RewardedBatch(rewards, jnp.ones_like(rows), rows // 4, rows >= 0, jnp.int32(4), GROUPS)
    for filtered, size in ((True, 0.93541), (False, 1.36931)):
        got = np.asarray(batch_standardized(inputs._replace(filters_zero_variance=filtered)))
        np.testing.assert_allclose(
            got, size * np.array([1, 1, -1, -1, 1, 1, -1, -1, *[0] * 8]), rtol=1e-4
        )


@pytest.mark.parametrize(
    "value",
    [
        "jnp.zeros(batch.num_groups)",
        "batch.rewards.reshape(-1)",
        "(batch.rewards, batch.rewards)",
    ],
)
def test_an_estimator_of_another_shape_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    name = f"estimator_{abs(hash(value))}"
    (tmp_path / f"{name}.py").write_text(
        f"import jax.numpy as jnp\n{DECORATOR}def mine(batch):\n    return {value}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    algorithm = resolve_algorithm(RLConfig(advantage=f"{name}.mine"))
    with refused(where="cell.rl.advantage"):
        check_plugins(algorithm)
