"""What each problem's rollouts came to, as the update on device and the hosted one tell it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isojax.rl.host_verified import build_host_verified_train
from isojax.rl.train_step import CORRECT, build_train
from tests.device import DECODER, MESHES, Parity
from tests.rl.test_host_verified import COUNT, PROBLEMS, RL, SEED, TABLE, UPDATES, B_p, Spoken, Twin, index, n


def right(given: Any, build: Any, task: Any, *text: Any) -> tuple[np.ndarray, float]:
    train = build(given.cell, DECODER, task, given.geometry, given.mesh)
    scalars = (np.int32(UPDATES), np.int32(B_p), np.int32(n), np.int32(SEED))
    _, metrics = train(given.start(), given.base, given.table(), *text, index(), *scalars, given.numbers)
    return np.asarray(metrics[CORRECT]), float(metrics["reward"])


@pytest.mark.parametrize("axes", ["auto", MESHES[0]])
def test_right_answers_by_problem(axes: str) -> None:
    """Against those that the verifier on the host was shown, one by one."""
    twin, task = Twin(axes), Spoken()
    twin.cell = twin.cell.model_copy(update={"rl": RL.model_copy(update={"no_positive_resampling": 0.9})})
    hosted, _ = right(twin, build_host_verified_train, task, PROBLEMS)
    device, reward = right(twin, build_train, Parity())
    expected = np.zeros(COUNT)
    place = {int(i): row for row, i in enumerate(TABLE.ids)}
    for problem, tokens in zip(task.graded, task.shown, strict=True):
        expected[place[problem]] += tokens[0] % 2 == 0
    np.testing.assert_array_equal(hosted, expected)
    np.testing.assert_array_equal(device, expected)
    assert reward * B_p * n == pytest.approx(expected.sum()) and len(set(expected)) > 3
