"""Asynchronous runs by command: at k = 0 the synchronous run's ledger, bit for bit; at k > 0
sampler and trainer at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compiler import AS_USERS_DO, flags

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

ONE = ("sweep.n=[4]", "sweep.seeds=1", "sweep.budget=300")


def test_k_0_writes_what_the_synchronous_run_writes(isojax: Any) -> None:
    """Both compiled as users do."""
    for name, k in (("sync", "null"), ("async", "0")):
        isojax.swept(
            "train",
            "tiny.yaml",
            *ONE,
            f"name={name}",
            f"cell.rl.max_staleness={k}",
            XLA_FLAGS=flags(AS_USERS_DO),
        )
    assert isojax.rows("8x4-s0", "async") == isojax.rows("8x4-s0", "sync")
    assert len(isojax.rows("8x4-s0", "sync")) > 4


def test_sampler_and_trainer_on_two_meshes(isojax: Any) -> None:
    isojax.swept(
        "train",
        "tiny.yaml",
        *ONE,
        "cell.rl.max_staleness=2",
        "run.sampler_mesh=data=2",
        "--mesh",
        "auto",
    )
    trained = [point["train"] for point in isojax.rows("8x4-s0") if point["M"]]
    assert all(point["staleness_max"] <= 2 and point["trainer_busy"] > 0 for point in trained)
    assert sum(point["sampler_busy"] for point in trained) > 0
    assert all(
        abs(sum(point[f"staleness_share_{age}"] for age in range(3)) - 1) < 1e-6
        for point in trained
    )


def test_a_sampler_mesh_that_would_wait_or_does_not_fit_is_refused(isojax: Any) -> None:
    isojax.refused(
        "train",
        "tiny.yaml",
        *ONE,
        "run.sampler_mesh=auto",
        saying=["run.sampler_mesh: given auto", "cell.rl.max_staleness of 1 or more"],
    )
    isojax.refused(
        "train",
        "tiny.yaml",
        *ONE,
        "cell.rl.max_staleness=1",
        "run.sampler_mesh=data=16",
        saying=["16 devices in addition to the 1 of another", "shows 8", "=17"],
    )
