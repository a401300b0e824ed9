"""What each problem's rollouts came to, as the update on device and the one verified on the host
report it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device import MESHES
from tests.rl.test_inline_rollouts import COUNT, RL, TABLE, B_p, FixedOrder, Spoken, Twin, index, n

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("axes", ["auto", MESHES[0]])
def test_right_answers_by_problem(axes: str) -> None:
    """Against those that the verifier on the host was shown, one by one."""
    twin, task = Twin(axes), Spoken()
    twin.cell = twin.cell.model_copy(
        update={"rl": RL.model_copy(update={"no_positive_resampling": 0.9})}
    )
    order = FixedOrder(index()[:, :B_p], drop_above=0.9)
    _, host_metrics = twin.inline(task, order=order)
    reward_sums = order.reward_sums
    _, result = twin.trainer(twin.start(), twin.base, twin.batches(), twin.coefficients)
    device, reward = np.asarray(result.reward_sums), float(result.metrics["reward"].sum)
    assert host_metrics["reward"] == pytest.approx(reward)
    expected = np.zeros(COUNT)
    location = {int(i): row for row, i in enumerate(TABLE.ids)}
    for problem, tokens in zip(task.graded, task.shown, strict=True):
        expected[location[problem]] += tokens[0] % 2 == 0
    np.testing.assert_array_equal(reward_sums, expected)
    np.testing.assert_array_equal(device, expected)
    assert reward * B_p * n == pytest.approx(expected.sum()) and len(set(expected)) > 3
